"""Keys of items: the name under which each is journaled, resumed, sharded and reported (B4)."""

import json
import re
from array import array

from aish.items.source import ItemsError
from aish.vocab.json import JsonValue

LONGEST_KEY = 256
"""Characters."""

# What breaks a line or is no text: a key stands in logs, reports and names of test cases.
_ODD = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_FIRST_SIZE = 1 << 10


def key_text(value: JsonValue, index: int) -> str:
    """The key that the value of a `key` expression makes for the item `index`.

    Raises:
        ItemsError: it is nothing that names an item.
    """
    if isinstance(value, str):
        text = value
    elif isinstance(value, (bool, int, float)):
        text = json.dumps(value)
    else:
        kind = "null" if value is None else "no text or number"
        raise ItemsError(f"the key of item {index} is {kind}", hint=_HINT)
    if not text:
        raise ItemsError(f"the key of item {index} is empty", hint=_HINT)
    if len(text) > LONGEST_KEY:
        said = f"the key of item {index} is longer than {LONGEST_KEY} characters"
        raise ItemsError(said, hint="`| sha256` makes a short key of a long text")
    if _ODD.search(text):
        said = f"the key of item {index} has a line end or another control character in it"
        raise ItemsError(said, hint=_HINT)
    return text


_HINT = "`key` names each item by a short text or a number of its own"


class Keys:
    """The keys that were there, so that none is there twice.

    Keeps 64 bits of each (a hash that nobody can aim at) in 24 bytes: a million take 24 to 48 MB.
    """

    def __init__(self) -> None:
        self._count = 0
        self._make(_FIRST_SIZE)

    def add(self, key: str, index: int) -> None:
        """Note the key of the item `index`.

        Raises:
            ItemsError: another item has the same.
        """
        mark = hash(key)
        place = self._place(mark)
        if self._indexes[place]:
            other = self._indexes[place] - 1
            said = f"items {other} and {index} have the same key `{key}`"
            raise ItemsError(said, hint="a key names one item: take a column in which all differ")
        self._marks[place], self._indexes[place] = mark, index + 1
        self._count += 1
        if self._count * 2 > len(self._marks):
            self._grow()

    def _place(self, mark: int) -> int:
        """Where the mark stands, or where it would."""
        last = len(self._marks) - 1
        place = mark & last
        while self._indexes[place] and self._marks[place] != mark:
            place = (place + 1) & last
        return place

    def _grow(self) -> None:
        marks, indexes = self._marks, self._indexes
        self._make(2 * len(marks))
        for mark, index in zip(marks, indexes, strict=True):
            if index:
                place = self._place(mark)
                self._marks[place], self._indexes[place] = mark, index

    def _make(self, size: int) -> None:
        """Both tables, empty: the hash of each key, and its item's index and 1."""
        self._marks = array("q", bytes(8 * size))
        self._indexes = array("Q", bytes(8 * size))
