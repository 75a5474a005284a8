"""`:model` and `:norris`."""

from collections.abc import Mapping
from dataclasses import replace

from aish.config.fields import expand, variables
from aish.config.model import ModelEntry
from aish.core.errors import UsageError
from aish.core.events import Notice
from aish.core.phrases import counted
from aish.engine.plan.credentials import model_name, origin
from aish.shell.autonomous import STEPS
from aish.shell.command import Form, ShellCommand
from aish.shell.session import ShellSession
from aish.shell.session_models import model_if_in_file

_RULES = "`:approve GLOB`, or `mcp.auto_approve` in the file, approves without one"
_MOST_STEPS = 10_000
_DIGITS = 6


async def _model(session: ShellSession, rest: str) -> None:
    opened = session.open
    if not rest:
        rows = [_row(session, alias, entry) for alias, entry in opened.plan.pipeline.models.items()]
        opened.out.rows(rows)
        if not rows:
            opened.out.show(f"{opened.plan.pipeline.file} has no models")
        return
    alias = model_if_in_file(rest, opened.plan)
    # Opened now, so that a missing requirement is reported before anything is asked.
    await opened.models.get(alias)
    session.choose(alias)
    opened.out.show(f"the model is now {alias}")
    opened.lines.refresh()


def _row(session: ShellSession, alias: str, entry: ModelEntry) -> tuple[str, ...]:
    mark = "*" if alias == session.model else " "
    url, environ = entry.base_url or "", session.open.options.environ
    unset = [name for name, usual in variables(url) if usual is None and name not in environ]
    where = f"`{unset[0]}` is not set" if unset else origin(_at(entry, url, environ))
    return f"{mark} {alias}", model_name(entry), where


def _at(entry: ModelEntry, url: str, environ: Mapping[str, str]) -> ModelEntry:
    """The entry as it would be opened, with its URL expanded."""
    return replace(entry, base_url=expand(url, environ)) if url else entry


async def _autonomous(session: ShellSession, rest: str) -> None:
    word, _, number = rest.partition(" ")
    if word == "off" and not number:
        session.autonomous.left = 0
        session.show("norris is off: calls that no rule approves need approval")
        return
    if word == "on" and (not number or _is_count(number)):
        if not session.open.attended:
            raise UsageError("`:norris on` needs a terminal, where it can be stopped", hint=_RULES)
        session.autonomous.begin(int(number or STEPS), lambda text: _tell(session, text))
        session.show(_on_text(session))
        return
    if not rest:
        left = session.autonomous.left
        on = f"norris is on for {counted(left, 'more call')}"
        session.show(on if left else "norris is off")
        return
    hint = f"N is the number of calls to approve, from 1 to {_MOST_STEPS:,}"
    raise UsageError("`:norris` takes `on`, `on N` or `off`", hint=hint)


def _tell(session: ShellSession, text: str) -> None:
    session.emit(Notice(session.heard.place, "warning", "norris", text))


def _is_count(text: str) -> bool:
    return text.isascii() and text.isdecimal() and 0 < int(text[:_DIGITS]) <= _MOST_STEPS


def _on_text(session: ShellSession) -> str:
    calls = counted(session.autonomous.left, "call")
    halts = "; any key halts" if session.open.attended else ""
    tools = sum(map(session.autonomous.lets, session.tools()))
    about = counted(tools, "tool") if tools else "no tool now"
    return (
        f"norris is on for {calls}: tools of servers with `trust: true` that call themselves"
        f" harmless run unasked ({about}){halts}"
    )


MODEL = ShellCommand(
    "model [ALIAS]",
    "shows the models, or switches to one",
    _model,
    details="The conversation continues with the other model. Its key is checked now.",
    completes="model",
)
AUTONOMOUS = ShellCommand(
    "norris [on [N]|off]",
    "autonomous mode: approves harmless tools of trusted servers",
    _autonomous,
    details="Tools of servers with `trust: true` that are declared read-only or non-destructive "
    "are approved for N calls; any key stops it. Rules that deny or ask still apply, and "
    "everything else needs approval, `CMD:` lines included. The toolbar shows that it is on.",
    forms=(
        Form("on [N]", f"for N calls, {STEPS} if none is said"),
        Form("off", "calls that no rule approves need approval again"),
    ),
)
