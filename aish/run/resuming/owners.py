"""What an event is a part of: its step or item, or that whose sub-pipeline it happens in (F2)."""

from collections.abc import Iterator
from typing import Any

Unit = tuple[Any, Any]
"""The step, and the item if it is one."""


def owners(step: Any, item: Any) -> Iterator[Unit]:
    """A unit, and each that it may be a part of, the innermost first.

    A step of a sub-pipeline is `outer/inner`; where that runs for an item, its own items have the
    outer one's key before theirs.
    """
    yield step, item
    while isinstance(step, str) and "/" in step:
        step = step.rpartition("/")[0]
        if item is None:
            yield step, None
        else:
            yield from ((step, key) for key in _keys(item))


def _keys(item: str) -> Iterator[str]:
    """The key, and whatever of it may be that of an outer item: keys have slashes too."""
    yield item
    while "/" in item:
        item = item.rpartition("/")[0]
        yield item
