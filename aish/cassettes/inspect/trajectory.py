"""The actions of two runs, compared: calls, prompts, answers, tokens, seconds.

compare(before: Trajectory, after: Trajectory) -> Comparison

`comparison_lines(comparison)` returns the escaped text. A `Trajectory` is made from a
cassette or from a run's events.
"""

import json
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Literal

from aish.cassettes.format.json_body import at
from aish.core.frozen import frozen
from aish.core.json import JsonObject, JsonValue
from aish.core.messages import Usage
from aish.core.phrases import dollars, shorten_counted
from aish.core.text import for_line
from aish.core.text_diff import line_changes


@frozen
class TrajectoryCall:
    """A call of a tool or a local command; `result` is `None` if unknown."""

    tool: str
    arguments: JsonValue
    result: str | None = None


@frozen
class Totals:
    """The totals of a run; `None` is unknown, never zero."""

    requests: int = 0
    calls: int = 0
    usage: Usage = Usage()
    seconds: float | None = None
    cost_usd: float | None = None


@frozen
class RecordedModelRequest:
    """A request to a model: its whole body, and its endpoint.

    `parameters` are the keys other than model, messages and tools; `tools` maps names to
    definitions.
    """

    endpoint: str
    model: str
    parameters: JsonObject
    tools: Mapping[str, JsonValue]
    messages: JsonValue


@frozen
class Trajectory:
    """The actions of a run, in order.

    `prompts` are the messages of the pipeline to models, each with its role, or `None` if unknown;
    `answers` are the texts of the turns that requested no tool. `requests` are those to models, or
    `None`. `approvals` are the answers to questions about calls, each with its tool.
    """

    calls: tuple[TrajectoryCall, ...]
    answers: tuple[str, ...]
    prompts: tuple[tuple[str, str], ...] | None = None
    totals: Totals = Totals()
    requests: tuple[RecordedModelRequest, ...] | None = None
    approvals: tuple[tuple[str, str], ...] = ()


Kind = Literal["added", "missing", "changed"]


@frozen
class CallChange:
    """A call that is only in one of two runs, or differs in arguments or result."""

    kind: Kind
    before: TrajectoryCall | None
    after: TrajectoryCall | None


@frozen
class TextChange:
    """A text that is only in one of two runs, or differs; `what` is such as `user prompt`."""

    kind: Kind
    what: str
    before: str | None
    after: str | None


@frozen
class SettingChange:
    """A model, parameter or tool of requests that differs between two runs, or is only in one.

    `requests` counts those with this change, `of` those that were compared.
    """

    kind: Kind
    name: str
    before: JsonValue
    after: JsonValue
    requests: int
    of: int


@frozen
class Settings:
    """Changes in the settings of requests; `endpoints` alone are no difference."""

    models: tuple[SettingChange, ...]
    parameters: tuple[SettingChange, ...]
    tools: tuple[SettingChange, ...]
    endpoints: tuple[SettingChange, ...]


@frozen
class Comparison:
    """The changes from one run to the other; equal parts are left out.

    `settings` is `None` where they are not compared.
    """

    calls: tuple[CallChange, ...]
    prompts: tuple[TextChange, ...]
    answers: tuple[TextChange, ...]
    reordered: bool
    before: Totals
    after: Totals
    settings: Settings | None = None
    approvals: tuple[TextChange, ...] = ()

    @property
    def same(self) -> bool:
        """True if all but endpoints, tokens, time and the order of calls is equal."""
        asked = self.settings
        is_asked_otherwise = asked is not None and (asked.models or asked.parameters or asked.tools)
        is_otherwise = self.prompts or self.answers or self.approvals
        return not (is_asked_otherwise or self.calls or is_otherwise)


def compare(before: Trajectory, after: Trajectory) -> Comparison:
    """The differences of the second run from the first."""
    calls, reordered = _calls(before.calls, after.calls)
    prompts: tuple[TextChange, ...] = ()
    if before.prompts is not None and after.prompts is not None:
        prompts = _texts(_prompts(before.prompts), _prompts(after.prompts))
    return Comparison(
        calls=calls,
        prompts=prompts,
        answers=_texts(_answers(before.answers), _answers(after.answers)),
        reordered=reordered,
        before=before.totals,
        after=after.totals,
        settings=None
        if before.requests is None or after.requests is None
        else _settings(before.requests, after.requests),
        approvals=_texts(_approvals(before.approvals), _approvals(after.approvals)),
    )


def _settings(old: Sequence[RecordedModelRequest], new: Sequence[RecordedModelRequest]) -> Settings:
    """Requests with the same messages are compared, then the rest, paired in order."""
    pairs: _Pairs = []
    for key in (_whole, _messages_text, _settings_text, _any):
        old_left, new_left = _indexes_without_pair(len(old), len(new), pairs)
        old_keys, new_keys = [key(request) for request in old], [key(request) for request in new]
        pairs += _pairs(old_left, new_left, old_keys.__getitem__, new_keys.__getitem__)
    both = [(old[a], new[b]) for a, b in sorted(pairs, key=itemgetter(1))]
    return Settings(
        models=_changes([({"": a.model}, {"": b.model}) for a, b in both]),
        parameters=_changes([(a.parameters, b.parameters) for a, b in both]),
        tools=_changes([(a.tools, b.tools) for a, b in both]),
        endpoints=_changes([({"": a.endpoint}, {"": b.endpoint}) for a, b in both]),
    )


def _changes(pairs: Sequence[tuple[JsonObject, JsonObject]]) -> tuple[SettingChange, ...]:
    """The differences between pairs of objects, each difference once."""
    changes: dict[str, SettingChange] = {}
    for before, after in pairs:
        for name in dict.fromkeys((*before, *after)):
            old, new = before.get(name), after.get(name)
            if name in before and name in after and _text(old) == _text(new):
                continue
            kind: Kind = "changed"
            if name not in before or name not in after:
                kind = "added" if name in after else "missing"
            key = f"{kind} {name} {_text(old)} {_text(new)}"
            count = changes[key].requests + 1 if key in changes else 1
            changes[key] = SettingChange(kind, name, old, new, count, len(pairs))
    return tuple(changes.values())


def _whole(request: RecordedModelRequest) -> str:
    return f"{_messages_text(request)} {_settings_text(request)}"


def _messages_text(request: RecordedModelRequest) -> str:
    return _text(request.messages)


def _settings_text(request: RecordedModelRequest) -> str:
    return _text([request.model, dict(request.parameters), dict(request.tools)])


def _any(request: RecordedModelRequest) -> str:
    del request
    return ""


def _text(value: JsonValue) -> str:
    return json.dumps(value, sort_keys=True)


_Pairs = list[tuple[int, int]]


def _calls(
    old: Sequence[TrajectoryCall], new: Sequence[TrajectoryCall]
) -> tuple[tuple[CallChange, ...], bool]:
    """Equal calls first, wherever they are; then those of the same tool, paired in order."""
    same = _pairs(range(len(old)), range(len(new)), lambda n: _key(old[n]), lambda n: _key(new[n]))
    old_left, new_left = _indexes_without_pair(len(old), len(new), same)
    other = _pairs(old_left, new_left, lambda n: old[n].tool, lambda n: new[n].tool)
    pairs = [(a, b) for a, b in same if not _agree(old[a].result, new[b].result)] + other
    old_left, new_left = _indexes_without_pair(len(old), len(new), same + other)
    changes = [(b, 0, CallChange("changed", old[a], new[b])) for a, b in pairs]
    changes += [(b, 2, CallChange("added", None, new[b])) for b in new_left]
    changes += [(a, 1, CallChange("missing", old[a], None)) for a in old_left]
    changes.sort(key=itemgetter(0, 1))
    order = [b for _, b in sorted(same)]
    return tuple(change for _, _, change in changes), order != sorted(order)


_Named = list[tuple[str, str]]


def _prompts(prompts: Sequence[tuple[str, str]]) -> _Named:
    return [(f"{role} prompt", text) for role, text in prompts]


def _answers(answers: Sequence[str]) -> _Named:
    return [("answer", text) for text in answers]


def _approvals(approvals: Sequence[tuple[str, str]]) -> _Named:
    return [(f"approval of {tool}", text) for tool, text in approvals]


def _texts(old: _Named, new: _Named) -> tuple[TextChange, ...]:
    """Equal texts first, wherever they are; then those of one kind, paired in order."""
    same = _pairs(range(len(old)), range(len(new)), lambda n: old[n], lambda n: new[n])
    old_left, new_left = _indexes_without_pair(len(old), len(new), same)
    pairs = _pairs(old_left, new_left, lambda n: old[n][0], lambda n: new[n][0])
    old_left, new_left = _indexes_without_pair(len(old), len(new), same + pairs)
    return (
        *(TextChange("changed", old[a][0], old[a][1], new[b][1]) for a, b in pairs),
        *(TextChange("missing", *old[a], None) for a in old_left),
        *(TextChange("added", new[b][0], None, new[b][1]) for b in new_left),
    )


def _pairs(
    old: Sequence[int],
    new: Sequence[int],
    old_key: Callable[[int], Hashable],
    new_key: Callable[[int], Hashable],
) -> _Pairs:
    """Pairs of indexes with equal keys, in order among equals."""
    waiting: dict[Hashable, deque[int]] = {}
    for place in old:
        waiting.setdefault(old_key(place), deque()).append(place)
    return [(places.popleft(), place) for place in new if (places := waiting.get(new_key(place)))]


def _indexes_without_pair(old: int, new: int, pairs: _Pairs) -> tuple[list[int], list[int]]:
    """The indexes without a pair."""
    olds, news = {a for a, _ in pairs}, {b for _, b in pairs}
    return [n for n in range(old) if n not in olds], [n for n in range(new) if n not in news]


def _key(call: TrajectoryCall) -> str:
    return f"{call.tool} {_text(call.arguments)}"


def _agree(before: str | None, after: str | None) -> bool:
    return before is None or after is None or before == after


_SHOWN = 40
_WIDTH = 300
_OF_WORDS = 3


def comparison_lines(comparison: Comparison) -> Iterator[str]:
    """Yield a block for each setting, call, prompt and answer that changed, then the totals."""
    if (asked := comparison.settings) is not None:
        for change in asked.models:
            yield f"model changed{_in(change)}: {_word(change.before)} → {_word(change.after)}"
        for change in asked.parameters:
            yield from _describe("parameter", change, _value)
        for change in asked.tools:
            yield from _describe("tool", change, _definition)
    for call in comparison.calls:
        yield from _call(call)
    if comparison.reordered:
        yield "calls came in another order"
    yield from _text_lines((*comparison.prompts, *comparison.approvals, *comparison.answers))
    if comparison.same:
        compared = "" if comparison.settings is None else "models, parameters, tools, "
        yield f"{compared}calls, prompts and answers are the same"
    for change in comparison.settings.endpoints if comparison.settings is not None else ():
        yield f"{'endpoint':14}  {_word(change.before)} → {_word(change.after)}{_in(change)}"
    yield from _totals(comparison.before, comparison.after)


def _describe(what: str, change: SettingChange, text: Callable[[JsonValue], str]) -> Iterator[str]:
    yield f"{what} {change.kind}{_in(change)}: {_clip(change.name)}"
    before, after = change.before, change.after
    if change.kind == "changed":
        lines = list(_difference(text(before), text(after)))
        # For two words a position is not useful.
        yield from (line for line in lines if len(lines) > _OF_WORDS or "@@" not in line)
    elif what == "parameter":
        yield from _difference(
            None if change.kind == "added" else text(before),
            None if change.kind == "missing" else text(after),
        )


def _in(change: SettingChange) -> str:
    """The number of requests concerned, unless all."""
    return f" in {change.requests} of {change.of} requests" if change.requests < change.of else ""


def _word(value: JsonValue) -> str:
    return _clip(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))


def _value(value: JsonValue) -> str:
    indent = 2 if isinstance(value, (dict, list)) else None
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _definition(tool: JsonValue) -> str:
    """The definition of a tool: its description as text, the rest as JSON."""
    function = at(tool, "function")
    if not isinstance(function, Mapping):
        return _value(tool)
    described = function.get("description")
    if not isinstance(described, str):
        return _value(tool)
    rest = {key: value for key, value in function.items() if key not in {"name", "description"}}
    return f"{described}\n{_value(rest)}"


def _call(change: CallChange) -> Iterator[str]:
    before, after = change.before, change.after
    if before is None or after is None:
        only = before or after
        assert only is not None
        yield f"call {change.kind}: {_clip(only.tool)} {_arguments(only.arguments)}"
        return
    yield f"call changed: {_clip(after.tool)}"
    if before.arguments != after.arguments:
        yield f"  - {_arguments(before.arguments)}"
        yield f"  + {_arguments(after.arguments)}"
    if before.result is not None and after.result is not None and before.result != after.result:
        yield "  its result:"
        yield from _difference(before.result, after.result)


def _text_lines(changes: Sequence[TextChange]) -> Iterator[str]:
    for change in changes:
        yield f"{_clip(change.what)} {change.kind}:"
        yield from _difference(change.before, change.after)


def _difference(before: str | None, after: str | None) -> Iterator[str]:
    if before is None or after is None:
        mark = "+" if before is None else "-"
        text = (before if after is None else after) or ""
        lines: Sequence[str] = [f"{mark}{line}" for line in text.split("\n")]
    else:
        lines = line_changes(before, after)
    for line in lines[:_SHOWN]:
        yield f"  {line[:1]} {_clip(line[1:])}".rstrip() if line[:2] != "@@" else f"  {line}"
    if len(lines) > _SHOWN:
        yield f"  … and {len(lines) - _SHOWN} more lines"


def _totals(before: Totals, after: Totals) -> Iterator[str]:
    rows = (
        ("model requests", before.requests, after.requests),
        ("calls", before.calls, after.calls),
        ("tokens in", before.usage.input, after.usage.input),
        ("tokens out", before.usage.output, after.usage.output),
        ("model seconds", before.seconds, after.seconds),
    )
    for name, old, new in rows:
        if old is not None or new is not None:
            yield f"{name:14}  {_number(old)} → {_number(new)}"
    costs = [before.cost_usd, after.cost_usd]
    if costs != [None, None]:
        amounts = ("unknown" if cost is None else dollars(cost) for cost in costs)
        yield f"{'cost':14}  {' → '.join(amounts)}"


def _number(value: float | None) -> str:
    if value is None:
        return "unknown"
    return str(value) if isinstance(value, int) else f"{value:.1f}"


def _arguments(value: JsonValue) -> str:
    return _clip(json.dumps(value, ensure_ascii=False))


def _clip(text: str) -> str:
    return for_line(shorten_counted(text, _WIDTH))
