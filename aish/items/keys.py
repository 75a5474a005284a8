"""Keys of items: the name under which each is journaled, resumed, sharded and reported (B4).

`survey` looks at all of them before anything is asked; `Keys` at each as the items come.
"""

import json
import re
from array import array
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator

from aish.core.errors import AishError
from aish.core.events import KeySurvey, OnDuplicate
from aish.core.json import JsonValue
from aish.items.items import Item, Items
from aish.items.source import ItemsError, shown

KeyOf = Callable[[Item], JsonValue]
"""What a `key` expression gives for an item."""

LONGEST_KEY = 256
"""Characters."""

# What breaks a line or is no text: a key stands in logs, reports and names of test cases.
_ODD = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_TABLES = 64
_FIRST_SIZE = 8
_BUCKETS = 256
_MOST_WANTED = 100_000


def key_text(value: JsonValue) -> str:
    """The key that the value of a `key` expression makes.

    Raises:
        ItemsError: it is nothing that names an item.
    """
    if isinstance(value, str):
        text = value
    elif isinstance(value, (bool, int, float)):
        text = json.dumps(value)
    else:
        kind = "null" if value is None else "no text or number"
        raise ItemsError(f"the key is {kind}", hint=_HINT)
    if not text:
        raise ItemsError("the key is empty", hint=_HINT)
    if len(text) > LONGEST_KEY:
        said = f"the key is longer than {LONGEST_KEY} characters"
        raise ItemsError(said, hint="`| sha256` makes a short key of a long text")
    if _ODD.search(text):
        said = "the key has a line end or another control character in it, or half a character"
        raise ItemsError(said, hint=_HINT)
    return text


def place_key(index: int) -> str:
    """What an item goes by that has no key of its own."""
    return f"[{index}]"


_HINT = "`key` names each item by a short text or a number of its own"
SAME_KEY = (
    "a key names one item: take a column in which all differ, "
    "or say `on_duplicate: first` or `on_duplicate: number`"
)


class DuplicateKeyError(ItemsError):
    """Two items have the same key."""


class Keys:
    """The keys that were there, and what becomes of one that comes again.

    Keeps 64 bits of each (a hash that nobody can aim at) and a number in 16 to 32 bytes: a million
    take 16 to 31 MiB. There are several tables, so that only a part is copied when one grows.
    """

    def __init__(self, policy: OnDuplicate = "fail") -> None:
        self._policy = policy
        self._tables = [_Table() for _ in range(_TABLES)]

    def add(self, key: str, index: int) -> str | None:
        """Note the key of the item `index`; the key that it goes by, `None` if it is left out.

        Raises:
            DuplicateKeyError: another item has the same, and that is to fail.
        """
        mark = hash(key)
        number = 1 if self._policy == "number" else index + 1
        before = self._tables[mark % _TABLES].take(mark, number)
        if not before:
            return key
        if self._policy == "first":
            return None
        if self._policy == "number":
            return self._numbered(key, before)
        said = f"items {before - 1} and {index} have the same key `{key}`"
        raise DuplicateKeyError(said, hint=SAME_KEY)

    def _numbered(self, key: str, count: int) -> str:
        """`key-2` for the second one, or the next that is free."""
        while True:
            count += 1
            name = f"{key}-{count}"
            mark = hash(name)
            if not self._tables[mark % _TABLES].take(mark, 1):
                break
        mark = hash(key)
        self._tables[mark % _TABLES].put(mark, count)
        return name


class _Table:
    """Numbers by marks, with open addressing; a number is never 0."""

    def __init__(self) -> None:
        self._count = 0
        self._make(_FIRST_SIZE)

    def take(self, mark: int, number: int) -> int:
        """The number of a mark; 0 if it has none, and then it has this one from now on."""
        marks, numbers, last = self._marks, self._numbers, self._last
        place = mark // _TABLES & last
        while before := numbers[place]:
            if marks[place] == mark:
                return before
            place = (place + 1) & last
        marks[place], numbers[place] = mark, number
        self._count += 1
        if self._count > self._most:
            self._grow()
        return 0

    def put(self, mark: int, number: int) -> None:
        """Give a mark that has a number another one."""
        place = mark // _TABLES & self._last
        while self._marks[place] != mark or not self._numbers[place]:
            place = (place + 1) & self._last
        self._numbers[place] = number

    def _grow(self) -> None:
        marks, numbers = self._marks, self._numbers
        self._make(2 * len(marks))
        self._count = 0
        for mark, number in zip(marks, numbers, strict=True):
            if number:
                self.take(mark, number)

    def _make(self, size: int) -> None:
        self._marks = array("q", bytes(8 * size))
        self._numbers = array("I", bytes(4 * size))
        self._last, self._most = size - 1, size * 3 // 4


def survey(items: Items, key_of: KeyOf, column: str | None = None) -> KeySurvey:
    """Whether any key is there twice, and how many items have none; goes through all items.

    `column` is the column that the key is, where it is no more than that. Of each key 8 bytes are
    kept, so a million take 9 MiB; where one is there twice, the items are gone through once more.

    Raises:
        ItemsError: the items cannot be read, or there is no such column.
    """
    buckets = [array("q") for _ in range(_BUCKETS)]
    take = [bucket.append for bucket in buckets]
    rows = unusable = 0
    odd: str | None = None
    for number, key, problem in _keys(items, key_of, column):
        rows += 1
        if key is None:
            unusable += 1
            odd = odd or f"{items.place(number)}: {problem}"
        else:
            mark = hash(key)
            take[mark % _BUCKETS](mark)
    repeated, wanted = 0, set[int]()
    for bucket in buckets:
        more = len(bucket) - len(set(bucket))
        if more and len(wanted) < _MOST_WANTED:
            wanted.update(mark for mark, times in Counter(bucket).items() if times > 1)
        repeated += more
    twice = _twice(_keys(items, key_of, column), wanted) if repeated else None
    file = None if items.file is None else shown(items.file)
    return KeySurvey(rows, file, repeated if twice else 0, twice, unusable, odd)


_Found = tuple[int, str | None, str]
"""A line, or an index where there are no lines; the key; what is wrong where there is none."""


def _keys(items: Items, key_of: KeyOf, column: str | None) -> Iterator[_Found]:
    cells = None if column is None else items.column(column)
    if cells is None:
        for item in items:
            number = item.index if item.line is None else item.line
            try:
                yield number, key_text(key_of(item)), ""
            except AishError as error:
                yield number, None, error.message
        return
    for line, text in cells:
        if text.isascii() and text.isprintable() and 0 < len(text) <= LONGEST_KEY:
            yield line, text, ""
            continue
        try:
            yield line, key_text(text), ""
        except ItemsError as error:
            yield line, None, error.message


def _twice(keys: Iterable[_Found], wanted: Container[int]) -> tuple[str, int, int] | None:
    """The first key that is there twice, and where; `None` if only its mark is the same."""
    seen: dict[str, int] = {}
    for number, key, _ in keys:
        if key is None or hash(key) not in wanted:
            continue
        if key in seen:
            return key, seen[key], number
        seen[key] = number
    return None
