"""`:approve`, `:deny` and `:approvals`: rules for this session."""

from collections.abc import Iterator, Sequence
from typing import Literal

from aish.core.errors import UsageError
from aish.core.events import NOWHERE, RuleAdded
from aish.core.phrases import counted
from aish.core.rules import RuleEntry
from aish.core.text import for_line
from aish.core.tools import Tool
from aish.engine.plan.validation.older_names import own_rule_entries
from aish.engine.preview.tool_listing import view
from aish.policy.rules import LOCAL_COMMAND, Rule, split_glob
from aish.shell.command import ShellCommand
from aish.shell.servers import session_tools, still_connecting
from aish.shell.session import ShellSession

_MOST = 8
_NO_COMMANDS = "`CMD:` lines are approved by their words alone, which `shell.auto_approve` lists"


async def _add(session: ShellSession, kind: Literal["auto_approve", "deny"], glob: str) -> None:
    if len(glob.split()) != 1:
        raise UsageError("one glob `alias__tool` is needed", hint="for example `repo__git_*`")
    server, _ = split_glob(glob)
    if kind == "auto_approve" and server == LOCAL_COMMAND.server:
        raise UsageError("local commands are not approved by a glob", hint=_NO_COMMANDS)
    servers = session.open.plan.pipeline.servers
    for entry in own_rule_entries(kind, RuleEntry(tool=glob), servers):
        rule = session.open.box.runtime.gate.add_rule(kind, entry)
        session.emit(RuleAdded(NOWHERE, kind, entry.tool))
        session.show(for_line(f"{kind} {rule.text}, for this session"))
        for line in _effect(session, rule, await session_tools(session)):
            session.show(for_line(line))


def _effect(session: ShellSession, rule: Rule, tools: Sequence[Tool]) -> Iterator[str]:
    """Say what the rule applies to, and where another rule has precedence."""
    policy = session.open.box.runtime.gate.policy
    matched = [tool for tool in tools if rule.covers(tool.name)]
    about_commands = rule.covers(LOCAL_COMMAND)
    if matched:
        yield f"matches {len(matched)} of {counted(len(tools), 'tool')}"
    elif not about_commands:
        yield "matches no tool; `:mcp tools` lists them"
    if later := still_connecting(session):
        yield f"{later}; the rule applies to their tools too"
    if about_commands:
        also = " too" if matched else ""
        denied = rule.list == "deny"
        yield f"local commands are denied{also}" if denied else _NO_COMMANDS
    if rule.list == "deny":
        return
    others = [row for row in (view(policy, tool) for tool in matched) if row.verdict != "auto"]
    for row in others[:_MOST]:
        by_name = row.verdict == "ask" and not rule.exact
        why = f" ({row.rule})" if row.rule else " (only its exact name approves it)" * by_name
        yield f"{row.tool.name}: {row.verdict} all the same{why}"
    if len(others) > _MOST:
        yield f"and {len(others) - _MOST} more that are not approved: see `:mcp tools`"


async def _approve(session: ShellSession, rest: str) -> None:
    await _add(session, "auto_approve", rest)


async def _deny(session: ShellSession, rest: str) -> None:
    await _add(session, "deny", rest)


async def _approvals(session: ShellSession, _rest: str) -> None:
    opened = session.open
    rules = opened.box.runtime.gate.policy.all()
    rows = [(rule.list, f"{rule.text}  ({rule.entry.path})") for rule in rules]
    if rows:
        opened.out.rows(rows)
    else:
        opened.out.show("no rules: every tool call needs approval")
    if session.autonomous.on:
        opened.out.show(f"norris is on for {counted(session.autonomous.left, 'more call')}")


APPROVE = ShellCommand(
    "approve GLOB",
    "approves tools, for this session",
    _approve,
    details="GLOB is `alias__tool` with `*` and `?`, such as `repo__file_*`. Rules that deny, "
    "stage or ask are stronger. It applies to tools only: `CMD:` lines still need approval. "
    "The answer `a` to a question approves only that call, with exactly its arguments; `?` "
    "shows the call at length, with that rule. Approvals for one server end when it is "
    "disconnected.",
    completes="tool",
)
DENY = ShellCommand(
    "deny GLOB",
    "denies tools, for this session",
    _deny,
    details="No other rule is stronger. `:deny shell__run` denies all local commands, your own "
    "included.",
    completes="tool",
)
APPROVALS = ShellCommand(
    "approvals",
    "lists the rules, those of this session included",
    _approvals,
    details="Deny beats stage beats ask beats auto_approve; all other calls need approval.",
)
