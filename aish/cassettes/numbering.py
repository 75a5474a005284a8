"""Numbers of interactions, by which one of them waits for another, in another cassette."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from aish.cassettes.exchange import Exchange
from aish.cassettes.interaction import Interaction


def in_order(kept: Sequence[Interaction | Exchange | None]) -> tuple[Interaction, ...]:
    """What there is, in order, with numbers of interactions as they are now."""
    there = [place for place, one in enumerate(kept) if one is not None]
    numbers = {place + 1: number for number, place in enumerate(there, 1)}
    found = (
        one.interaction if isinstance(one, Exchange) else one for one in kept if one is not None
    )
    if len(there) == len(kept):
        return tuple(found)
    return tuple(numbered(one, numbers) for one in found)


def numbered(one: Interaction, numbers: Mapping[int, int]) -> Interaction:
    """The interaction in another cassette, where those that it waits for have other `numbers`."""
    if not any(chunk.after for chunk in one.response.chunks):
        return one
    chunks = tuple(
        replace(chunk, after=numbers.get(chunk.after, 0)) if chunk.after else chunk
        for chunk in one.response.chunks
    )
    return replace(one, response=replace(one.response, chunks=chunks))
