"""The frames around tool calls and local commands: pure, text in, lines out (S4).

▸ docs__search {"query": "approvals", "limit": 3}        $ git log --oneline -3
  approved by you                                          │ 1b2c3d4 Add the shell
│ 12 results                                               ╰ exit 0 · 0.02 s
╰ 0.31 s
"""

from collections.abc import Iterator, Mapping, Sequence

from aish.core.events import ToolDecided, Verdict
from aish.core.json import JsonValue
from aish.core.text import for_line, for_terminal
from aish.sinks.frames import failure_rule
from aish.sinks.json_text import json_text
from aish.sinks.look import Look, cells
from aish.sinks.talk.folding import folded
from aish.sinks.tally import seconds_text

_READ_AT_MOST = 100_000
_PERSONS: Mapping[Verdict, str] = {"ask-yes": "approved by", "staged": "kept for later by"}
_RULES: Mapping[Verdict, str] = {"auto": "approved by", "staged": "kept for later by"}


def is_command(tool: str) -> bool:
    """Whether a call is a local command."""
    return tool == "shell__run"


def call_line(look: Look, tool: str, arguments: JsonValue) -> str:
    """Name and arguments of a call on one dim line, with the count of what does not fit."""
    said = f"  {look.glyphs.call} {tool} {json_text(arguments, spaced=True)}"
    shown = for_line(said[:_READ_AT_MOST])
    if len(said) > _READ_AT_MOST or cells(shown) > look.width:
        room = look.width - len(f" +{len(said):,}")
        kept = look.fit(shown, room)
        left = len(said) - len(kept) + len(look.glyphs.cut)
        shown = f"{kept} +{left:,}"
    return look.paint("dim", shown)


def decided_lines(look: Look, event: ToolDecided) -> Iterator[str]:
    """Who let a call pass, where that is news; a denied one says it itself.

    Of a call that is a person, of a command, which persons give, it is a rule.
    """
    if said := (_RULES if is_command(event.tool) else _PERSONS).get(event.verdict):
        yield look.paint("dim", look.fit(for_line(f"    {said} {event.rule}"), look.width))


def command_lines(look: Look, event: ToolDecided) -> Iterator[str]:
    """The command as it was given, folded and not cut; a `$` stands before one that is run."""
    rows = folded(for_terminal(_command(event.arguments)), look.width - 2)
    runs = event.verdict in {"auto", "ask-yes"}
    for number, row in enumerate(rows):
        mark = "$ " if runs and not number else "  "
        yield look.paint("bold" if runs else "dim", f"{mark}{row}")


def printed(output: JsonValue) -> Sequence[tuple[str, str]]:
    """What a command printed, by stream."""
    given = output if isinstance(output, Mapping) else {}
    both = [(name, given.get(name)) for name in ("stdout", "stderr")]
    return [(name, text) for name, text in both if isinstance(text, str) and text]


def exit_code(output: JsonValue) -> int | None:
    """The exit code of a command, if it has come to one."""
    code = output.get("exit_code") if isinstance(output, Mapping) else None
    return code if isinstance(code, int) else None


def command_end(look: Look, code: int | None, how: str, seconds: float) -> str:
    """The exit code, or how it ended without one, and the time; red if it is not 0."""
    said = for_line(f"{how if code is None else f'exit {code}'} {look.glyphs.dot} ")
    said += seconds_text(seconds)
    if code != 0:
        return look.paint("red", failure_rule(look, said))
    return look.paint("dim", look.fit(f"  {look.glyphs.end} {said}", look.width))


def _command(arguments: JsonValue) -> str:
    given = arguments if isinstance(arguments, Mapping) else {}
    words = given.get("argv")
    if isinstance(words, (list, tuple)):
        import shlex

        return shlex.join(map(str, words))
    return str(given.get("command", ""))
