"""What two runs did, side by side: calls, prompts, answers, tokens, seconds (C7, C10).

    compare(before: Trajectory, after: Trajectory) -> Comparison

`comparison_text.comparison_lines(comparison)` has the lines for people, escaped. A `Trajectory`
comes from a cassette or from a run's events: `run.trajectories` makes both. Of two cassettes what
was sent to servers is compared; of two models what they asked for.
"""

import json
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from operator import itemgetter
from typing import Literal

from aish.vocab.deltas import Usage
from aish.vocab.frozen import frozen
from aish.vocab.json import JsonValue


@frozen
class Call:
    """A call of a tool or a local command; `result` is `None` where it is not known."""

    tool: str
    arguments: JsonValue
    result: str | None = None


@frozen
class Totals:
    """What a run came to; `None` is unknown, never zero."""

    requests: int = 0
    calls: int = 0
    usage: Usage = Usage()
    seconds: float | None = None
    cost_usd: float | None = None


@frozen
class Trajectory:
    """What a run did, in its order.

    `prompts` are what models were told by the pipeline, each with its role, or `None` where that is
    not known; `answers` are the texts of the turns that asked for no tool.
    """

    calls: tuple[Call, ...]
    answers: tuple[str, ...]
    prompts: tuple[tuple[str, str], ...] | None = None
    totals: Totals = Totals()


Kind = Literal["added", "missing", "changed"]


@frozen
class CallChange:
    """A call that is only in one of two runs, or differs in arguments or result."""

    kind: Kind
    before: Call | None
    after: Call | None


@frozen
class TextChange:
    """A text that is only in one of two runs, or differs; `what` is such as `user prompt`."""

    kind: Kind
    what: str
    before: str | None
    after: str | None


@frozen
class Comparison:
    """What changed from one run to the other; what is the same is left out."""

    calls: tuple[CallChange, ...]
    prompts: tuple[TextChange, ...]
    answers: tuple[TextChange, ...]
    reordered: bool
    before: Totals
    after: Totals

    @property
    def same(self) -> bool:
        """Whether calls, prompts and answers are; tokens, time and order of calls may differ."""
        return not (self.calls or self.prompts or self.answers)


def compare(before: Trajectory, after: Trajectory) -> Comparison:
    """What the second run did otherwise than the first."""
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
    )


_Pairs = list[tuple[int, int]]


def _calls(old: Sequence[Call], new: Sequence[Call]) -> tuple[tuple[CallChange, ...], bool]:
    """The same call wherever it stands first, then the same tool, each with each in order."""
    same = _paired(range(len(old)), range(len(new)), lambda n: _key(old[n]), lambda n: _key(new[n]))
    old_left, new_left = _left(len(old), len(new), same)
    other = _paired(old_left, new_left, lambda n: old[n].tool, lambda n: new[n].tool)
    pairs = [(a, b) for a, b in same if not _agree(old[a].result, new[b].result)] + other
    old_left, new_left = _left(len(old), len(new), same + other)
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


def _texts(old: _Named, new: _Named) -> tuple[TextChange, ...]:
    """Equal texts first, wherever they stand; then those of one kind, each with each in order."""
    same = _paired(range(len(old)), range(len(new)), lambda n: old[n], lambda n: new[n])
    old_left, new_left = _left(len(old), len(new), same)
    pairs = _paired(old_left, new_left, lambda n: old[n][0], lambda n: new[n][0])
    old_left, new_left = _left(len(old), len(new), same + pairs)
    return (
        *(TextChange("changed", old[a][0], old[a][1], new[b][1]) for a, b in pairs),
        *(TextChange("missing", *old[a], None) for a in old_left),
        *(TextChange("added", new[b][0], None, new[b][1]) for b in new_left),
    )


def _paired(
    old: Sequence[int],
    new: Sequence[int],
    old_key: Callable[[int], Hashable],
    new_key: Callable[[int], Hashable],
) -> _Pairs:
    """Places with equal keys, in order among equals."""
    waiting: dict[Hashable, deque[int]] = {}
    for place in old:
        waiting.setdefault(old_key(place), deque()).append(place)
    return [(places.popleft(), place) for place in new if (places := waiting.get(new_key(place)))]


def _left(old: int, new: int, pairs: _Pairs) -> tuple[list[int], list[int]]:
    """The places that no pair has."""
    olds, news = {a for a, _ in pairs}, {b for _, b in pairs}
    return [n for n in range(old) if n not in olds], [n for n in range(new) if n not in news]


def _key(call: Call) -> str:
    return f"{call.tool} {json.dumps(call.arguments, sort_keys=True)}"


def _agree(before: str | None, after: str | None) -> bool:
    return before is None or after is None or before == after
