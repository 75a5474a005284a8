"""Subjects of expectations: an ended step, or a whole run; paths into a result."""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence

from aish.agent.runtime import UsedCall
from aish.core.errors import did_you_mean
from aish.core.frozen import frozen
from aish.core.json import JsonValue, json_text
from aish.core.messages import Usage
from aish.core.phrases import shorten
from aish.core.text_diff import equal_lines, hunks
from aish.engine.records import (
    Records,
    StepRecord,
    calls_view,
    template_view,
    total_cost,
    total_usage,
    usage_view,
)
from aish.system.schema.check import spell_path
from aish.templates.values import with_names

ResultPath = tuple[str | int, ...]

_SEGMENT = re.compile(
    r"(?P<dot>\.)?(?P<key>[^.\[\]\"\s]+)|\[(?P<index>[0-9]{1,6})\]|\[(?P<quoted>\"(?:[^\"\\]|\\.)*\")\]"
)


class NotThereError(Exception):
    """A path leads to nothing; the message completes a sentence about the actual value."""


def parse_path(text: str) -> ResultPath:
    """The keys and indices of a path; it begins with a name.

    Raises:
        ValueError: it is not a path; gives the position of the error.
    """
    keys: list[str | int] = []
    place = 0
    while place < len(text):
        match = _SEGMENT.match(text, place)
        # Names are joined by dots: one before each but the first.
        if match is None or (match["key"] is not None and bool(match["dot"]) != bool(keys)):
            raise ValueError(f"`{text}` is not a path at `{text[place:][:20]}`")
        keys.append(_key(match))
        place = match.end()
    if not keys or isinstance(keys[0], int):
        raise ValueError(f"`{text}` does not begin with a name")
    return tuple(keys)


def find(path: ResultPath, value: JsonValue | Mapping[str, JsonValue]) -> JsonValue:
    """The value that a path leads to.

    Raises:
        NotThereError: there is none.
    """
    here: JsonValue | Mapping[str, JsonValue] = value
    for depth, key in enumerate(path):
        place = spell_path(path[: depth + 1])
        if isinstance(key, int):
            if not isinstance(here, Sequence) or isinstance(here, str):
                raise NotThereError(_no_parts(path[:depth], here, "a list"))
            if key >= len(here):
                raise NotThereError(f"nothing at `{place}`: the list has {len(here)}")
            here = here[key]
        else:
            if not isinstance(here, Mapping):
                raise NotThereError(_no_parts(path[:depth], here, "a mapping"))
            if key not in here:
                near = did_you_mean(key, map(str, here))
                raise NotThereError(f"nothing at `{place}`" + (f", {near}" if near else ""))
            here = here[key]
    assert not isinstance(here, Mapping) or isinstance(here, dict) or path
    return here


def kind_of(value: JsonValue | Mapping[str, JsonValue]) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case str():
            return "text"
        case int() | float():
            return "a number"
        case Mapping():
            return "a mapping"
        case _:
            return "a list"


def _key(match: re.Match[str]) -> str | int:
    if match["index"] is not None:
        return int(match["index"])
    if match["quoted"] is None:
        return match["key"]
    try:
        return str(json.loads(match["quoted"]))
    except ValueError:
        raise ValueError(f"`{match['quoted'][:20]}` is not a quoted key") from None


def _no_parts(path: ResultPath, value: JsonValue | Mapping[str, JsonValue], kinds: str) -> str:
    return f"`{spell_path(path)}`, which is {kind_of(value)} and not {kinds}"


Mask = Callable[[str], str]
"""A text without its secrets, taken out before it is cut: no half would be known for one."""

_LONGEST = 120
_LONGEST_LINE = 200
_MOST_LINES = 24
# Comparison starts at the first line that differs.
_MOST_COMPARED = 300


def about(path: str | None, otherwise: str = "the text") -> str:
    return otherwise if path is None else f"`{path}`"


def short(value: JsonValue, mask: Mask) -> str:
    """A value on one line, cut where it is long."""
    text = mask(value if isinstance(value, str) else json_text(value, spaced=True))
    line = text.strip("\n").replace("\r", "").replace("\n", " ⏎ ")
    if len(line) <= _LONGEST:
        return f"`{line}`"
    return f"`{line[:_LONGEST]}…` ({len(text):,} characters)"


def as_text(value: JsonValue) -> str:
    """A value for display: text as it is, anything else as JSON."""
    return value if isinstance(value, str) else json_text(value, indent=2)


def instead(wanted: str, got: str, mask: Mask) -> str:
    """The actual value instead of the expected text: whole if short, or the differing lines."""
    differ_in_secret = wanted != got
    wanted, got = mask(wanted), mask(got)
    if differ_in_secret and wanted == got:
        return "another text, which differs in a secret"
    if "\n" not in wanted.strip("\n") + got.strip("\n") and len(got) <= _LONGEST:
        return short(got, str)
    lines = [f"  {line}" for line in _difference(wanted.splitlines(), got.splitlines())]
    return "\n".join(["another text (`-` expected, `+` got):", *lines])


def _difference(expected: Sequence[str], got: Sequence[str]) -> Iterator[str]:
    # One equal line before the first difference is shown.
    begin = max(equal_lines(expected, got) - 1, 0)
    cut = slice(begin, begin + _MOST_COMPARED)
    lines: list[str] = []
    for hunk in hunks(expected[cut], got[cut], around=1, most=_MOST_COMPARED):
        lines.append(f"line {begin + hunk.old + 1}:")
        lines += [shorten(row, _LONGEST_LINE) for row in hunk.rows]
    if not lines:
        yield "only white space or line ends differ"
    yield from lines[:_MOST_LINES]
    if len(lines) > _MOST_LINES:
        yield f"… {len(lines) - _MOST_LINES} more lines"


@frozen
class Subject:
    """Everything that an expectation may refer to.

    `names` is the context of paths and expressions. `text` and `value` are used without a path, the
    latter for `schema`. `usage` of `None` means that no model was asked, `cost_usd` of `None` is
    unknown. `mask` masks what is shown of it.
    """

    names: Mapping[str, JsonValue]
    text: str | None
    value: JsonValue
    calls: tuple[UsedCall, ...]
    usage: Usage | None
    seconds: float
    cost_usd: float | None = None
    mask: Mask = str

    def at(self, path: str | None) -> JsonValue:
        """The value at `path`; the text without one.

        Raises:
            NotThereError: it leads to nothing.
        """
        return self.text if path is None else find(parse_path(path), self.names)


def step_subject(context: Mapping[str, JsonValue], record: StepRecord) -> Subject:
    """A step that has ended; `context` is the template context before it."""
    view = template_view(record)
    fields = view if isinstance(view, dict) else {}
    before = context["steps"]
    assert isinstance(before, dict)
    meters = {"seconds": record.seconds, "cost_usd": record.cost_usd}
    own = {**fields, **meters, "steps": {**before, record.id: view}}
    return Subject(
        names=with_names(context, own),
        text=record.text,
        value=record.output,
        calls=record.calls,
        usage=record.usage if record.kind == "prompt" else None,
        seconds=record.seconds,
        cost_usd=record.cost_usd,
    )


def run_subject(
    context: Mapping[str, JsonValue],
    records: Records,
    outputs: JsonValue,
    *,
    seconds: float,
    status: str = "ok",
) -> Subject:
    """A run that has ended: `context` is the current template context, `records` are in order.

    Its text and `output` are those of its last step; without a path `schema` checks the outputs, if
    the file has any.
    """
    rows = tuple(records.values())
    last = rows[-1] if rows else None
    asked = any(row.kind == "prompt" and row.status != "skipped" for row in rows)
    usage, cost = total_usage(rows), total_cost(rows)
    own: dict[str, JsonValue] = {
        "outputs": outputs,
        "text": last.text if last else None,
        "output": last.output if last else None,
        "status": status,
        "tool_calls": [call for row in rows for call in calls_view(row)],
        "usage": usage_view(usage),
        "cost_usd": cost,
        "seconds": seconds,
    }
    return Subject(
        names=with_names(context, own),
        text=last.text if last else None,
        value=outputs if outputs is not None or last is None else last.output,
        calls=tuple(call for row in rows for call in row.calls),
        usage=usage if asked else None,
        seconds=seconds,
        cost_usd=cost,
    )
