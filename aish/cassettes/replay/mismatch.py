"""Why a request matched no recording: the differences from the nearest one."""

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, islice

from aish.cassettes.replay.matching import Canonical
from aish.core.frozen import frozen
from aish.core.json import JsonValue
from aish.core.text import for_line, for_terminal
from aish.core.text_diff import equal_lines, equal_start, hunks

_DIFFERENCES = 5
_LINES = 12
_WIDTH = 200
_BEFORE = 40
_ABSENT = object()
_COMMAND = "exec://"
_FILES = "context://"
_APPROVAL = "approval://"
_ANSWER = "answer about a call"


@frozen
class Recorded:
    """A recording that did not match; numbers count from 1."""

    number: int
    form: Canonical
    used: bool


def explain(asked: Canonical, recorded: Sequence[Recorded]) -> str:
    """Several lines: the request, the nearest recording, the differences."""
    first = f"no recording matches {_what(asked)}"
    if not recorded:
        return f"{first}\nthe cassette is empty"
    same = [entry for entry in recorded if entry.form.digest == asked.digest]
    if same:
        times = "once" if len(same) == 1 else f"{len(same)} times"
        return f"{first}\nit was recorded {times} and is requested once more"
    if all(_kind(entry.form) != _kind(asked) for entry in recorded):
        others = list(dict.fromkeys(_kind(entry.form) for entry in recorded))
        return f"{first}\nno {_kind(asked)} is recorded, only {' and '.join(map(_many, others))}"
    nearest = _nearest(asked, recorded)
    state = "already used" if nearest.used else "not used yet"
    lines = [first, f"nearest: interaction {nearest.number} of {len(recorded)}, {state}"]
    if _what(nearest.form) != _what(asked):
        before, after = (_what(form).replace("`", "") for form in (nearest.form, asked))
        lines += _pair("request", before, after)
    differences = _differences(nearest.form.body, asked.body, ())
    rows = list(islice(differences, _DIFFERENCES + 1))
    for difference in rows[:_DIFFERENCES]:
        lines += difference
    if len(rows) > _DIFFERENCES:
        lines.append("… and more")
    return "\n".join(lines)


def _kind(form: Canonical) -> str:
    if form.place.startswith(_COMMAND):
        return "local command"
    if form.place.startswith(_FILES):
        return "prompt's files"
    if form.place.startswith(_APPROVAL):
        return _ANSWER
    is_message = isinstance(form.body, Mapping) and "jsonrpc" in form.body
    return "message to a server" if is_message else "request"


def _many(kind: str) -> str:
    plurals = {"message to a server": "messages to a server", _ANSWER: "answers about calls"}
    return plurals.get(kind, f"{kind}s")


def _what(form: Canonical) -> str:
    """A request in readable form."""
    if form.place.startswith(_COMMAND):
        step = form.place.removeprefix(_COMMAND).rstrip("/")
        return f"the command of step `{for_line(step)}`"
    if form.place.startswith(_FILES):
        return f"the files of step `{for_line(form.place.removeprefix(_FILES).rstrip('/'))}`"
    if form.place.startswith(_APPROVAL):
        step = form.place.removeprefix(_APPROVAL).rstrip("/")
        tool = form.body.get("tool") if isinstance(form.body, Mapping) else None
        return f"the answer about a call of `{for_line(str(tool))}` in step `{for_line(step)}`"
    if isinstance(form.body, Mapping) and isinstance(form.body.get("method"), str):
        return f"`{for_line(_message(form.body))}` to `{for_line(form.place.rstrip('/'))}`"
    return f"`{for_line(form.target)}`"


def _message(body: Mapping[str, JsonValue]) -> str:
    params = body.get("params")
    name = params.get("name") if isinstance(params, Mapping) else None
    return f"{body['method']} {name}" if isinstance(name, str) else str(body["method"])


def _nearest(asked: Canonical, recorded: Sequence[Recorded]) -> Recorded:
    text = _text(asked.body)

    def nearness(candidate: Recorded) -> tuple[bool, bool, bool, int, bool]:
        other = _text(candidate.form.body)
        start = equal_start(text, other)
        end = equal_start(text[start:][::-1], other[start:][::-1])
        same = candidate.form.place == asked.place
        alike = _kind(candidate.form) == _kind(asked)
        return alike, same, candidate.form.method == asked.method, start + end, not candidate.used

    return max(recorded, key=nearness)


def _differences(old: object, new: object, path: tuple[str | int, ...]) -> Iterator[list[str]]:
    """Yield a list of lines for each difference, in the order of the request."""
    if old == new and type(old) is type(new):
        return
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for key in dict.fromkeys((*old, *new)):
            yield from _differences(
                old.get(key, _ABSENT), new.get(key, _ABSENT), (*path, *_name_with_role(key, new))
            )
    elif isinstance(old, list) and isinstance(new, list):
        for place in range(max(len(old), len(new))):
            before = old[place] if place < len(old) else _ABSENT
            after = new[place] if place < len(new) else _ABSENT
            yield from _differences(before, after, (*path, place))
    elif isinstance(old, str) and isinstance(new, str) and ("\n" in old or "\n" in new):
        yield _line_difference(_name(path), old, new)
    else:
        yield _pair(_name(path), old, new)


def _name_with_role(key: str, within: Mapping[str, JsonValue]) -> tuple[str, ...]:
    """A message's fields are named with its role."""
    role = within.get("role")
    return (f"({role})", key) if isinstance(role, str) and key != "role" else (key,)


def _name(path: tuple[str | int, ...]) -> str:
    """`messages, 1, (user), content` is `message 2 (user), content`."""
    pieces: list[str] = []
    for step in path:
        if isinstance(step, int) and pieces and pieces[-1].endswith("s"):
            pieces[-1] = f"{pieces[-1][:-1]} {step + 1}"
        elif isinstance(step, int):
            pieces.append(f"item {step + 1}")
        elif step.startswith("(") and pieces:
            pieces[-1] = f"{pieces[-1]} {step}"
        else:
            pieces.append(step)
    return for_line(", ".join(pieces)) or "body"


def _line_difference(name: str, old: str, new: str) -> list[str]:
    before, after = old.split("\n"), new.split("\n")
    place = equal_lines(before, after)
    # Only around the first difference: comparing two long prompts must stay cheap.
    window = slice(place, place + 4 * _LINES)
    line_hunks = hunks(before[window], after[window], around=0, most=4 * _LINES)
    line_list = [line for hunk in line_hunks for line in _pair_rows(hunk.rows)][:_LINES]
    # Of a long line that changed late, the changed part is shown.
    pair = [line[1:] for line in line_list[:2]]
    skipped = _length_to_skip(*pair) if [line[0] for line in line_list[:2]] == ["-", "+"] else 0
    lines = [
        f"  {line[0]} {_clip(line[1:], skipped if n < len(pair) else 0)}"
        for n, line in enumerate(line_list)
    ]
    return [f"{name}, line {place + 1}:", *lines]


def _pair_rows(rows: Sequence[str]) -> Sequence[str]:
    """The removed and added lines, paired if there are as many of both."""
    old = [row for row in rows if row[0] == "-"]
    new = [row for row in rows if row[0] == "+"]
    return [*chain(*zip(old, new, strict=True))] if len(old) == len(new) else [*old, *new]


def _pair(name: str, old: object, new: object) -> list[str]:
    if old is _ABSENT:
        return [f"{name} is not in the recording:", f"  + {_clip(_text(new))}"]
    if new is _ABSENT:
        return [f"{name} is only in the recording:", f"  - {_clip(_text(old))}"]
    before, after = _text(old), _text(new)
    skipped = _length_to_skip(before, after)
    return [f"{name}:", f"  - {_clip(before, skipped)}", f"  + {_clip(after, skipped)}"]


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _length_to_skip(old: str, new: str) -> int:
    """The length that need not be shown, since both texts begin with the same text."""
    return max(0, equal_start(old, new) - _BEFORE) if max(len(old), len(new)) > _WIDTH else 0


def _clip(line: str, skipped: int = 0) -> str:
    excerpt = for_terminal(line[skipped : skipped + _WIDTH].replace("\n", "⏎"))
    return f"{'…' if skipped else ''}{excerpt}{'…' if len(line) > skipped + _WIDTH else ''}"
