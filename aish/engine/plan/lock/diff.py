"""Differences from a lock, in words: one line for a run, all of it for `aish lock` (P8).

The words hold a stranger's text; who prints them makes it harmless, line by line.
"""

import json
from collections.abc import Iterator, Sequence

from aish.core.json import JsonValue
from aish.core.phrases import first_of, shorten
from aish.core.text import for_line, suspicious
from aish.core.text_diff import changed_lines
from aish.policy.lock import Difference, FieldChange

_SHORT = 160
_MOST_NAMES = 5
_KINDS = {"server": "server ", "model": "model ", "prompt": "prompt of step ", "tool": ""}


def summary(found: Difference) -> str:
    """What differs, on one line: the fields that changed, what a new tool says of itself."""
    name = f"{_KINDS[found.kind]}`{found.name}`"
    if found.change == "removed":
        return f"{name} is pinned but missing"
    if found.change == "added":
        said = next((f.after for f in found.fields if f.field == "description"), "")
        return f"{name} is not in the lock" + (f": {_quoted(said)}" if said else "")
    if found.kind == "prompt":
        return f"{name} differs from the locked one"
    changes = "; ".join(_change(field) for field in found.fields)
    return f"{name} differs from the lock: {changes}"


def named(found: Sequence[Difference]) -> str:
    """The names of what differs, the first few of many."""
    return first_of([f"{_KINDS[one.kind]}`{one.name}`" for one in found], _MOST_NAMES)


def difference_lines(found: Difference) -> Iterator[str]:
    """A difference whole: each field with the lines that went and came."""
    yield f"{_KINDS[found.kind]}{for_line(found.name)}: {found.change}"
    for field in found.fields:
        if found.kind == "prompt":
            continue
        yield f"  {field.field}"
        yield from (f"    {line}" for line in _field_lines(field))
    new = [field.after for field in found.fields if field.after is not None]
    if found.kind == "tool" and (signs := signs_of([found.name, *new])):
        yield f"  suspicious: {', '.join(signs)}"


def signs_of(values: Sequence[JsonValue]) -> tuple[str, ...]:
    """What is odd in the texts of these values (P9)."""
    from aish.engine.plan.order import texts

    return suspicious("\n".join(text for value in values for text in texts(value)))


def difference_row(found: Difference) -> JsonValue:
    """A difference as JSON."""
    return {
        "kind": found.kind,
        "name": found.name,
        "change": found.change,
        "fields": [
            {"field": field.field, "before": field.before, "after": field.after}
            for field in found.fields
        ],
    }


def _field_lines(field: FieldChange) -> Iterator[str]:
    if field.before is None or field.after is None:
        sign, value = ("+", field.after) if field.before is None else ("-", field.before)
        yield from (f"{sign} {for_line(line)}" for line in _text(value).split("\n"))
        return
    before, after = _text(field.before), _text(field.after)
    lines = changed_lines(before, after)
    if sorted(map(for_line, before.split("\n"))) == sorted(map(for_line, after.split("\n"))):
        # What differs looks alike even where odd characters are spelled out.
        lines = changed_lines(json.dumps(before), json.dumps(after))
    for line in lines:
        sign = line[:1]
        yield for_line(line if sign == "@" else f"{sign} {line[1:]}")


def _text(value: JsonValue) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, (list, tuple)) and all(isinstance(word, str) for word in value):
        return "\n".join(map(str, value))
    return json.dumps(value, ensure_ascii=False, indent=2, sort_keys=True, default=dict)


def _change(field: FieldChange) -> str:
    if isinstance(field.before, str) and isinstance(field.after, str):
        return f"{field.field} {_quoted(field.before)} → {_quoted(field.after)}"
    lines = (line for line in _field_lines(field) if not line.startswith(("@", "  ")))
    changed = (f"{line[:2]}{line[2:].strip()}" for line in lines)
    return f"{field.field} {shorten(' '.join(changed), _SHORT)}"


def _quoted(value: JsonValue) -> str:
    return json.dumps(shorten(str(value), _SHORT), ensure_ascii=False)
