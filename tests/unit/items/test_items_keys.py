"""Keys and shards of items (B4, B6)."""

import tracemalloc
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from samples import each_case, sampled
from work import work_of

from aish.core.errors import UsageError
from aish.core.events import KeySurvey, OnDuplicate, Shard
from aish.core.json import JsonValue
from aish.items.items import Item, from_file, from_list
from aish.items.keys import LONGEST_KEY, Keys, key_text, survey
from aish.items.shards import holds, parse_shard, shard_of
from aish.items.source import ItemsError
from aish.templates.render import evaluate


@pytest.mark.parametrize(
    ("value", "key"), [("a b", "a b"), (7, "7"), (1.5, "1.5"), (True, "true"), ("é", "é")]
)
def test_a_text_or_a_number_is_a_key(value: JsonValue, key: str) -> None:
    assert key_text(value) == key


@each_case(
    "value, said",
    [
        (None, "the key is null"),
        (["a"], "the key is no text or number"),
        ({}, "the key is no text or number"),
        ("", "the key is empty"),
        ("x" * (LONGEST_KEY + 1), "the key is longer than 256 characters"),
        ("a\nb", "the key has a line end"),
        ("a\x1b[31mb", "the key has a line end"),
        ("a\x85b", "the key has a line end"),
        ("a\ud800b", "the key has a line end"),
    ],
)
def test_what_names_no_item_is_refused(value: JsonValue, said: str) -> None:
    with pytest.raises(ItemsError, match=said):
        key_text(value)


def test_a_key_that_is_there_twice_is_refused_with_both_items() -> None:
    keys = Keys()
    for index in range(3000):
        keys.add(f"key {index}", index)

    with pytest.raises(ItemsError, match="items 17 and 3000 have the same key `key 17`"):
        keys.add("key 17", 3000)


def test_many_keys_take_little_memory() -> None:
    keys = Keys()
    tracemalloc.start()

    for index in range(20_000):
        keys.add(f"a key of some length, {index}", index)

    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2_000_000


def test_of_equal_keys_the_first_one_is_taken_if_so_wanted() -> None:
    keys = Keys("first")

    assert [keys.add(key, index) for index, key in enumerate("abacab")] == [
        *("a", "b", None, "c", None, None)
    ]


def test_equal_keys_are_numbered_if_so_wanted_and_no_name_is_there_twice() -> None:
    keys = Keys("number")
    given = ["a", "a-2", "a", "a", "a-2", "a-3", "b", "a"]

    names = [keys.add(key, index) for index, key in enumerate(given)]

    assert names == ["a", "a-2", "a-3", "a-4", "a-2-2", "a-3-2", "b", "a-5"]
    assert len(set(names)) == len(names)


@given(st.lists(st.sampled_from(["a", "a-2", "a-2-2", "a-3", "b"]), max_size=40))
def test_numbered_keys_are_all_different(given: list[str]) -> None:
    keys = Keys("number")
    names = [keys.add(key, index) for index, key in enumerate(given)]

    assert len(set(names)) == len(names)
    assert all(str(name).startswith(key) for name, key in zip(names, given, strict=True))


@pytest.mark.parametrize(
    "policy", sampled(["fail", "first", "number"], often={0}, reason="each makes a million keys")
)
def test_keys_take_less_than_32_mib_a_million(policy: OnDuplicate) -> None:
    # The table has just grown, which is when it has the most room that it does not use.
    count = 16 * 1536 + 1250
    keys = Keys(policy)
    tracemalloc.start()
    for index in range(count):
        keys.add(f"key {index}", index)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert peak / count < 32 * 1024**2 / 1_000_000


def value_of(item: Item) -> JsonValue:
    assert isinstance(item.value, Mapping)
    return item.value["id"]


def whole(looks: Iterable[KeySurvey | None]) -> KeySurvey:
    return next(look for look in looks if look is not None)


def surveyed(folder: Path, name: str, text: str, column: str | None = None) -> KeySurvey:
    path = folder / name
    path.write_text(text, "utf-8", newline="")
    return whole(survey(from_file(path), value_of, column))


@pytest.mark.parametrize("column", ["id", None])
def test_a_survey_of_a_table_names_the_lines_of_a_key_that_is_there_twice(
    tmp_path: Path, column: str | None
) -> None:
    rows = 'id,text\n"a",1\n\nb,"two\nlines"\nc,3\nb,4\na,5\nb,6\n'

    found = surveyed(tmp_path, "rows.csv", rows, column)

    assert (found.items, found.repeated, found.twice) == (6, 3, ("b", 4, 7))
    assert str(found.file).endswith("rows.csv")


@pytest.mark.parametrize(
    ("name", "text", "twice"),
    [
        ("rows.jsonl", '{"id": 1}\n\n{"id": "1"}\n{"id": 2}\n', ("1", 1, 3)),
        ("rows.json", '[{"id": 1},\n{"id": 2},\n\n {"id": 2}]', ("2", 2, 4)),
        ("rows.json", '[{"id": 1}, {"id": 2}, {"id": 3}]', None),
    ],
)
def test_a_survey_knows_the_lines_of_json_too(
    tmp_path: Path, name: str, text: str, twice: tuple[str, int, int] | None
) -> None:
    assert surveyed(tmp_path, name, text).twice == twice


@pytest.mark.parametrize("column", ["id", None])
def test_a_survey_counts_items_without_a_key(tmp_path: Path, column: str | None) -> None:
    rows = f'id\na\n \n""\nb\x07\n{"x" * 257}\né\n'

    found = surveyed(tmp_path, "rows.csv", rows, column)

    assert (found.items, found.repeated, found.unusable) == (6, 0, 3)
    assert str(found.odd).endswith("rows.csv:4: the key is empty")


def test_a_survey_takes_little_memory(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    count = 25_000
    with path.open("w", encoding="utf-8") as file:
        file.write("id,text\n")
        file.writelines(f"T-{number},some text\n" for number in range(count))
    items = from_file(path)
    tracemalloc.start()
    found = whole(survey(items, value_of, "id"))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert (found.items, found.repeated) == (count, 0)
    assert peak < 32 * 1024**2 * count / 1_000_000


def test_a_column_that_is_not_there_is_named_with_those_that_are(tmp_path: Path) -> None:
    with pytest.raises(ItemsError, match="unknown column `ids`") as failed:
        surveyed(tmp_path, "rows.csv", "id,text\n1,a\n", "ids")

    assert failed.value.hint == "did you mean `id`"


@given(key=st.text(), shards=st.integers(1, 50))
def test_an_item_is_in_exactly_one_shard(key: str, shards: int) -> None:
    among = [part for part in range(1, shards + 1) if holds(Shard(part, shards), key)]

    assert among == [shard_of(key, shards) + 1]


def test_the_shard_of_a_key_never_changes() -> None:
    assert [shard_of(str(index), 8) for index in range(12)] == [0, 1, 6, 3, 6, 3, 7, 6, 7, 0, 0, 2]


def test_shards_are_about_equal() -> None:
    counts = [0] * 8
    for index in range(8000):
        counts[shard_of(str(index), 8)] += 1

    assert all(850 < count < 1150 for count in counts)


def test_a_shard_is_written_as_which_of_how_many() -> None:
    assert parse_shard("2/8") == Shard(2, 8)
    assert parse_shard("1/1") == Shard(1, 1)


@each_case(
    "text, said",
    [
        ("2", "a shard is written as `2/8`"),
        ("2/", "a shard is written as `2/8`"),
        ("-1/8", "a shard is written as `2/8`"),
        ("a/b", "a shard is written as `2/8`"),
        ("٢/٨", "a shard is written as `2/8`"),
        ("1/2\n", "a shard is written as `2/8`"),
        ("0/8", "there is no shard 0 of 8"),
        ("9/8", "there is no shard 9 of 8"),
        ("1/0", "there are 1 to 10000 shards"),
        ("1/10001", "there are 1 to 10000 shards"),
    ],
)
def test_a_shard_that_is_none_is_refused(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        parse_shard(text)

    assert caught.value.where == f"--shard {text}"


def test_many_keys_are_computed_within_one_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aish.items.keys._COMPUTED_SECONDS", 600.0)
    items = from_list([{"id": number} for number in range(3200)])

    def key_of(item: Item) -> JsonValue:
        return evaluate("item.id ~ '!'", {"item": item.value})

    looks: list[KeySurvey | None] = []
    work = work_of(lambda: looks.extend(survey(items, key_of)))

    assert looks[-1] == KeySurvey(3200, None, 0, None, 0, None)
    assert work.calls["setitimer"] <= 2 * 3200 / 32, "one timer for many"
    assert looks.count(None) >= 3200 / 32, "others get a turn"


def test_keys_that_take_long_are_each_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aish.items.keys._COMPUTED_SECONDS", 0.0)
    asked: list[int] = []

    def key_of(item: Item) -> JsonValue:
        asked.append(item.index)
        return sum(1 for _ in range(200_000)) + item.index

    (found,) = [look for look in survey(from_list([*range(40)]), key_of) if look is not None]

    assert (found.items, found.repeated) == (40, 0)
    assert len(asked) <= 40 + 2, "at most the one of each block that was stopped is begun again"
