"""Keys of items: the name under which each is journaled, resumed, sharded and reported.

`survey` checks all of them before the run begins; `Keys` checks each as the items are read.
"""

import json
import re
from array import array
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator
from functools import partial
from itertools import islice

from aish.core.errors import AishError
from aish.core.events import KeySurvey, OnDuplicate
from aish.core.json import JsonValue
from aish.items.items import Item, Items
from aish.items.source import ItemsError
from aish.system.computation import ComputationStoppedError, compute
from aish.system.files import display_path

KeyOf = Callable[[Item], JsonValue]
"""What a `key` expression gives for an item."""

LONGEST_KEY = 256
"""Characters."""

# What breaks a line or is no text: a key stands in logs, reports and names of test cases.
_ODD = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_STAND_IN = re.compile(r"\[(?:0|[1-9][0-9]*)\]")
_TABLES = 64
_FIRST_SIZE = 8
_BUCKETS = 256
# How many keys are read before yielding to other tasks.
_READ_AT_ONCE = 256
# How many are computed at once, whose items are all kept meanwhile, and for how long.
_COMPUTED_AT_ONCE = 32
_COMPUTED_SECONDS = 0.05
_MOST_WANTED = 100_000


def key_text(value: JsonValue) -> str:
    """The key that the value of a `key` expression makes.

    Raises:
        ItemsError: it is not a usable key.
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
        said = (
            "the key has a line end or another control character in it, or half of a surrogate pair"
        )
        raise ItemsError(said, hint=_HINT)
    if _STAND_IN.fullmatch(text):
        raise StandInKeyError(text)
    return text


def place_key(index: int) -> str:
    """The key of an item that has none of its own."""
    return f"[{index}]"


_HINT = "`key` names each item by a short text or a number of its own"
SAME_KEY = (
    "a key names one item: use a column with unique values, or "
    "set `on_duplicate: first` or `on_duplicate: number`"
)


class StandInKeyError(ItemsError):
    """The key equals that of an item which has none of its own."""

    def __init__(self, key: str) -> None:
        said = f"the key `{key}` has the form of names of items without a key"
        super().__init__(said, hint="put a word before it, as in `key: \"'row ' ~ item.id\"`")
        self.key = key


class DuplicateKeyError(ItemsError):
    """Two items have the same key."""


class Keys:
    """The keys seen so far, and the handling of duplicates.

    Keeps 64 bits of each (a hash that nobody can aim at) and a number in 16 to 32 bytes: a million
    take 16 to 31 MiB. There are several tables, so that only a part is copied when one grows.
    """

    def __init__(self, policy: OnDuplicate = "fail") -> None:
        self._policy = policy
        self._tables = [_NumberTable() for _ in range(_TABLES)]

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
            return self._number_key(key, before)
        said = f"items {before - 1} and {index} have the same key `{key}`"
        raise DuplicateKeyError(said, hint=SAME_KEY)

    def _number_key(self, key: str, count: int) -> str:
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


class _NumberTable:
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


def survey(
    items: Items, key_of: KeyOf, column: str | None = None, *, is_computed: bool = True
) -> Iterator[KeySurvey | None]:
    """Look for duplicate keys and items without one; goes through all items.

    That is the last one; before it, `None` where something else is to get a turn.

    `column` is the column that the key is, where it is no more than that; `is_computed` says that
    it takes a template to tell. Of each key 8 bytes are kept, so a million take 9 MiB; where one is
    there twice, the items are gone through once more.

    Raises:
        ItemsError: the items cannot be read, or there is no such column.
        ComputationStoppedError: a signal or the deadline of the task has stopped it.
    """
    keys = partial(_keys, items, key_of, column, is_computed=is_computed)
    buckets = [array("q") for _ in range(_BUCKETS)]
    take = [bucket.append for bucket in buckets]
    rows = unusable = 0
    odd: str | None = None
    for found in keys():
        if found is None:
            yield None
            continue
        number, key, problem = found
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
    twice: tuple[str, int, int] | None = None
    for twice in _twice(keys(), wanted) if repeated else ():
        if twice is None:
            yield None
    file = None if items.file is None else display_path(items.file)
    yield KeySurvey(rows, file, repeated if twice else 0, twice, unusable, odd)


_Found = tuple[int, str | None, str]
"""A line, or an index where there are no lines; the key; what is wrong where there is none."""


def _keys(
    items: Items, key_of: KeyOf, column: str | None, *, is_computed: bool
) -> Iterator[_Found | None]:
    """The keys, and `None` where something else is to get a turn."""
    cells = None if column is None else items.column(column)
    if cells is not None:
        yield from _cells(cells)
    elif is_computed:
        yield from _compute_keys(items, key_of)
    else:
        for item in items:
            if item.index % _READ_AT_ONCE == 0:
                yield None
            yield _compute_key(item, key_of)


def _cells(cells: Iterable[tuple[int, str]]) -> Iterator[_Found | None]:
    for index, (line, text) in enumerate(cells):
        if index % _READ_AT_ONCE == 0:
            yield None
        if (
            text.isascii()
            and text.isprintable()
            and 0 < len(text) <= LONGEST_KEY
            and text[-1] != "]"
        ):
            yield line, text, ""
            continue
        try:
            yield line, key_text(text), ""
        except ItemsError as error:
            yield line, None, error.message


def _compute_keys(items: Iterable[Item], key_of: KeyOf) -> Iterator[_Found | None]:
    """Compute many keys at once: a computation that can be stopped costs more than most keys.

    Where they take long, each of the others is one of its own.
    """
    source = iter(items)
    while block := list(islice(source, _COMPUTED_AT_ONCE)):
        yield None
        done: list[_Found] = []
        rest = partial(_compute_rest, done, block, key_of)
        try:
            compute(rest, _COMPUTED_SECONDS)
        except ComputationStoppedError as stopped:
            if not stopped.is_late:
                raise
        yield from done
        for item in block[len(done) :]:
            yield None
            yield _compute_key(item, key_of)


def _compute_rest(done: list[_Found], block: list[Item], key_of: KeyOf) -> None:
    """Add what is not there yet: after a signal that changes nothing this is called again."""
    done.extend(_compute_key(item, key_of) for item in block[len(done) :])


def _compute_key(item: Item, key_of: KeyOf) -> _Found:
    number = item.index if item.line is None else item.line
    try:
        return number, key_text(key_of(item)), ""
    except AishError as error:
        return number, None, error.message


def _twice(
    keys: Iterable[_Found | None], wanted: Container[int]
) -> Iterator[tuple[str, int, int] | None]:
    """The first key that is there twice, and where, if not only its mark is the same."""
    seen: dict[str, int] = {}
    for found in keys:
        if found is None:
            yield None
            continue
        number, key, _ = found
        if key is None or hash(key) not in wanted:
            continue
        if key in seen:
            yield key, seen[key], number
            return
        seen[key] = number
