"""The frames a console draws around tool calls: pure, text in, lines out (S4).

▸ repo__file_read {"path": "README.md"}
│ # aish
│ … 40 more lines
╰ 0.01 s
"""

from collections.abc import Iterator

from aish.core.events import ToolFinished
from aish.core.json import JsonValue, json_text
from aish.core.phrases import counted
from aish.core.text import for_line
from aish.output.status import seconds_text
from aish.output.style import Look

SHOWN_LINES = 6
_INDENT = "  "
_LONGEST_RULE = 40
_READ_AT_MOST = 100_000
_TAB = "    "


def call_line(look: Look, tool: str, arguments: JsonValue) -> str:
    """Name and arguments of a call, on one dim line."""
    said = json_text(arguments, spaced=True)[:_READ_AT_MOST]
    shown = look.fit(for_line(f"{_INDENT}{look.glyphs.call} {tool} {said}"), look.width)
    return look.paint("dim", shown)


def again_line(look: Look, tool: str) -> str:
    """Says whose result follows, where other calls were shown in between."""
    shown = look.fit(for_line(f"{_INDENT}{look.glyphs.answer} {tool}"), look.width)
    return look.paint("dim", shown)


def result_lines(look: Look, finished: ToolFinished) -> Iterator[str]:
    """The result, indented and shortened, and how it ended."""
    if finished.kind == "denied":
        said = finished.content.removeprefix("[aish] ")
        shown = look.fit(for_line(f"{_INDENT}{look.glyphs.no} {said}"), look.width)
        yield look.paint("yellow", shown)
        return
    yield from _content(look, finished.content)
    took = seconds_text(finished.seconds)
    if finished.full:
        took += f" {look.glyphs.dot} whole result: {for_line(finished.full)}"
    if finished.kind == "ok":
        yield look.paint("dim", look.fit(f"{_INDENT}{look.glyphs.end} {took}", look.width))
    else:
        yield look.paint("red", failure_rule(look, f"{finished.kind} {look.glyphs.dot} {took}"))


def failure_rule(look: Look, label: str) -> str:
    """A rule that names a failure."""
    rule = look.glyphs.rule
    head = look.fit(f"{_INDENT}{look.glyphs.end}{rule} {label} ", look.width)
    return head + rule * max(0, min(look.width, _LONGEST_RULE) - len(head))


def _content(look: Look, content: str) -> Iterator[str]:
    lines = content.strip("\n").split("\n")
    shown = lines if len(lines) <= SHOWN_LINES + 1 else lines[:SHOWN_LINES]
    bar = f"{_INDENT}{look.glyphs.bar} "
    for line in shown:
        spread = line.removesuffix("\r")[:_READ_AT_MOST].replace("\t", _TAB)
        yield look.paint("dim", bar) + look.fit(for_line(spread), look.width - len(bar))
    left = len(lines) - len(shown)
    if left:
        more = f"{bar}{look.glyphs.cut} {counted(left, 'more line')}"
        yield look.paint("dim", more)
