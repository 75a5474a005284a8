"""`:approve`, `:deny` and `:approvals`: rules for this session (S5)."""

from typing import Literal

from aish.errors import UsageError
from aish.shell.command import Command
from aish.shell.session import Session
from aish.text import for_line
from aish.vocab.rules import RuleEntry

SESSION = "this session"


def _add(session: Session, list_: Literal["auto_approve", "deny"], glob: str) -> None:
    if not glob or " " in glob:
        raise UsageError("one glob `alias__tool` is wanted", hint="for example `repo__git_*`")
    rule = session.open.box.equipment.gate.add_rule(list_, RuleEntry(tool=glob, path=SESSION))
    matched = sum(rule.covers(tool.name) for tool in session.tools())
    session.open.out.show(
        f"{list_} {for_line(rule.text)}, for this session: matches {matched} of"
        f" {len(session.tools())} tools"
    )


async def _approve(session: Session, rest: str) -> None:
    _add(session, "auto_approve", rest)


async def _deny(session: Session, rest: str) -> None:
    _add(session, "deny", rest)


async def _approvals(session: Session, rest: str) -> None:
    del rest
    rules = session.open.box.equipment.gate.policy.all()
    if not rules:
        session.open.out.show("no rules: every tool call is asked about")
    session.open.out.rows([(rule.list, f"{rule.text}  ({rule.entry.path})") for rule in rules])


APPROVE = Command(
    "approve",
    "GLOB",
    "lets tools run unasked, for this session",
    _approve,
    details="GLOB is `alias__tool` with `*` and `?`. Deny and ask rules of the file are stronger.",
    completes="tool",
)
DENY = Command("deny", "GLOB", "denies tools, for this session", _deny, completes="tool")
APPROVALS = Command("approvals", "", "lists the rules, those of this session too", _approvals)
