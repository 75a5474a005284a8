"""The search for a batch whose id was lost, among those that its provider has."""

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
from aish.wire.batches.types import BatchMark, BatchState, ResultsReader

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
        for pause in (0.0, *SETTLE_PAUSES):
            await calls.pace.sleep(pause)
            if (found := await _find(lost, calls)) is not None:
                return found
    except CallError as error:
        if error.status in NOT_OFFERED:
            raise _doubt(f"no batch can be looked up: {error.failure.message}") from None
        error.doubtful = True  # it is about the question
        raise
    return None


async def _find(lost: LostBatch, calls: BatchCalls) -> BatchState | None:
    """The batch in the list of the provider; one in doubt is waited for."""
    interface, cursor = calls.interface, None
    seen: set[str | None] = set()
    while cursor not in seen:
        seen.add(cursor)
        query = interface.list_query(cursor)
        states, cursor = await calls.get(interface.leaf, interface.decode_list, query)
        for state in states:
            if state.id in lost.known:
                continue
            likeness = interface.match(state, lost.mark, lost.size, lost.began)
            if likeness == "yes" or (likeness == "maybe" and await _is_it(lost, state.id, calls)):
                return state
        if cursor is None:
            break
    return None


async def _is_it(lost: LostBatch, id: str, calls: BatchCalls) -> bool:
    """Tell by the names in its results whether a batch is this one, once it has ended."""
    names = [lost.mark.custom_id(number) for number in range(lost.size)]
    for look in range(LOOKS):
        if look:
            await calls.pace.sleep(FIRST_GAP * 2 ** (look - 1))
        state = await calls.until_ended(id, lost.on_held)
        has_others = False
        for place in state.results:
            has_some = await _has_some(place, id, names, calls)
            if has_some:
                return True
            has_others = has_others or has_some is False
        if has_others or state.status in INCOMPLETE:
            return False  # else nothing of it was answered
    raise _doubt(f"`{id}` may be the one, but has no results")


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
