"""The search for a batch whose id was lost, among those that its provider has."""

import math
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from contextlib import aclosing

from aish.core.frozen import frozen
from aish.models.batch_calls import (
    FIRST_GAP,
    INCOMPLETE,
    LOOKS,
    NOT_OFFERED,
    OR_FORCE,
    BatchCalls,
    CallError,
    DoubtError,
)
from aish.wire.batches.types import (
    CLOCK_SKEW,
    BatchMark,
    BatchState,
    Likeness,
    ResultsReader,
)

SETTLE_PAUSES = (1.0, 2.0, 3.0, 4.0, 5.0, 15.0)
"""Pauses between the looks for a batch: one may appear in the list of its provider late.

Neither vendor's client sends an idempotency key, with which a submission could be repeated.
"""


@frozen
class LostBatch:
    """A batch of so many requests that was perhaps submitted after `began`; not one of `known`.

    `on_held` is called if there is one that may be it, and that has not ended.
    """

    mark: BatchMark
    size: int
    began: float
    known: Collection[str | None]
    on_held: Callable[[], None]


async def look_for(lost: LostBatch, calls: BatchCalls) -> BatchState | None:
    """Look for a batch; lists may show a new one late.

    Raises:
        CallError, BatchError: nobody can tell, and the batch stays in doubt.
    """
    try:
        return await _look_for(lost, calls)
    except CallError as error:
        if error.status in NOT_OFFERED:
            raise _doubt(f"no batch can be looked up: {error.failure.message}") from None
        error.doubtful = True  # it is about the question
        raise


async def _look_for(lost: LostBatch, calls: BatchCalls) -> BatchState | None:
    names = [lost.mark.custom_id(number) for number in range(lost.size)]
    others, looks = {*lost.known}, Counter[str]()
    pauses, began = iter(SETTLE_PAUSES), calls.pace.clock.monotonic()
    while True:
        gaps = []
        for listed, likeness in await _list_candidates(lost, others, calls):
            if likeness == "yes":
                return listed
            # Whose it is shows once it has ended. That of another run may end later than this one.
            state = await calls.state_of(listed.id)
            if not state.is_ended:
                lost.on_held()
                gaps.append(calls.gap_since(began))
                continue
            is_it = await _is_it(state, names, calls)
            if is_it:
                return state
            if is_it is False:
                others.add(listed.id)
                continue
            looks[listed.id] += 1
            if looks[listed.id] == LOOKS:
                raise _doubt(f"`{listed.id}` may be the one, but has no results")
            gaps.append(FIRST_GAP * 2 ** (looks[listed.id] - 1))
        gap = max(gaps) if gaps else next(pauses, None)
        if gap is None:
            return None
        await calls.pace.sleep(gap)


async def _list_candidates(
    lost: LostBatch, others: Collection[str | None], calls: BatchCalls
) -> list[tuple[BatchState, Likeness]]:
    """The batches in the list of the provider that may be this one.

    Pages are left out once they are too old, if they are in the order of vendors, newest first.
    """
    interface, cursor, oldest = calls.interface, None, lost.began - CLOCK_SKEW
    seen: set[str | None] = set()
    found: list[tuple[BatchState, Likeness]] = []
    while cursor not in seen:
        seen.add(cursor)
        query = interface.list_query(cursor)
        states, cursor = await calls.get(interface.leaf, interface.decode_list, query)
        for state in states:
            likeness = interface.match(state, lost.mark, lost.size, lost.began)
            if state.id not in others and likeness != "no":
                found.append((state, likeness))
        times = [state.created_at or math.inf for state in states]
        if cursor is None or (times and oldest > max(times) and times[0] > times[-1]):
            break
    return found


async def _is_it(state: BatchState, names: Sequence[str], calls: BatchCalls) -> bool | None:
    """Tell by the names in its results whether a batch is the one; none if there are none yet."""
    has_others = state.status in INCOMPLETE
    for place in state.results:
        has_some = await _has_some(place, state.id, names, calls)
        if has_some:
            return True
        has_others = has_others or has_some is False
    return False if has_others else None


async def _has_some(place: str, id: str, names: Sequence[str], calls: BatchCalls) -> bool | None:
    """Tell whether a file has a result of these; none if it has no result at all."""
    reader = ResultsReader(calls.interface, names)
    async with aclosing(calls.read(place, id, reader)) as pieces:
        async for results in pieces:
            if results:
                return True
    return False if reader.foreign else None


def _doubt(why: str) -> DoubtError:
    said = f"it is unknown whether the batch was created: {why}; {OR_FORCE}"
    return DoubtError(said, retryable=False)
