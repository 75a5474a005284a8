"""Ids of tool calls that endpoints left out, repeated, or would not take back (L16).

Made from where the call stands, never at random: replay depends on it.
"""

from collections.abc import Container
from typing import Final

from aish.core.events import Place

LENGTH: Final = 9
"""Nine letters and digits: the strictest endpoint takes exactly that (quirk 42)."""


def made_id(place: Place, index: int, taken: Container[str]) -> str:
    """An id for the call at `index` of a turn that is not `taken`."""
    source = (place.step or "", place.item or "", str(place.turn), str(index))
    return _first_free("\0".join(source), taken)


def short_id(original: str, taken: Container[str]) -> str:
    """An id of nine letters and digits in place of another: itself, where it is one already."""
    fits = len(original) == LENGTH and original.isascii() and original.isalnum()
    return original if fits and original not in taken else _first_free(original, taken)


def numbered_id(original: str, taken: Container[str]) -> str:
    """The id itself, or with a number where a turn before has used it (quirk 39)."""
    number, candidate = 1, original
    while candidate in taken:
        number += 1
        candidate = f"{original}_{number}"
    return candidate


def _first_free(source: str, taken: Container[str]) -> str:
    attempt, candidate = 0, _digest(source)
    while candidate in taken:
        attempt += 1
        candidate = _digest(f"{source}\0{attempt}")
    return candidate


def _digest(source: str) -> str:
    import hashlib  # most turns need no id of ours

    return hashlib.sha256(source.encode("utf-8", "replace")).hexdigest()[:LENGTH]
