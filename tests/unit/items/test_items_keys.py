"""Keys and shards of items (B4, B6)."""

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aish.errors import UsageError
from aish.items.keys import LONGEST_KEY, Keys, key_text
from aish.items.shards import holds, parse_shard, shard_of
from aish.items.source import ItemsError
from aish.vocab.json import JsonValue
from aish.vocab.run_parts import Shard


@pytest.mark.requirement("B4")
@pytest.mark.parametrize(
    ("value", "key"), [("a b", "a b"), (7, "7"), (1.5, "1.5"), (True, "true"), ("é", "é")]
)
def test_a_text_or_a_number_is_a_key(value: JsonValue, key: str) -> None:
    assert key_text(value, 0) == key


@pytest.mark.requirement("B4")
@pytest.mark.parametrize(
    ("value", "said"),
    [
        (None, "the key of item 3 is null"),
        (["a"], "the key of item 3 is no text or number"),
        ({}, "the key of item 3 is no text or number"),
        ("", "the key of item 3 is empty"),
        ("x" * (LONGEST_KEY + 1), "the key of item 3 is longer than 256 characters"),
        ("a\nb", "the key of item 3 has a line end"),
        ("a\x1b[31mb", "the key of item 3 has a line end"),
        ("a\x85b", "the key of item 3 has a line end"),
        ("a\ud800b", "the key of item 3 has a line end"),
    ],
)
def test_what_names_no_item_is_refused_with_the_item(value: JsonValue, said: str) -> None:
    with pytest.raises(ItemsError, match=said):
        key_text(value, 3)


@pytest.mark.requirement("B4")
def test_a_key_that_is_there_twice_is_refused_with_both_items() -> None:
    keys = Keys()
    for index in range(3000):
        keys.add(f"key {index}", index)

    with pytest.raises(ItemsError, match="items 17 and 3000 have the same key `key 17`"):
        keys.add("key 17", 3000)


@pytest.mark.requirement("B4")
def test_many_keys_take_little_memory() -> None:
    keys = Keys()
    tracemalloc.start()

    for index in range(100_000):
        keys.add(f"a key of some length, {index}", index)

    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10_000_000


@pytest.mark.requirement("B6")
@given(key=st.text(), shards=st.integers(1, 50))
def test_an_item_is_in_exactly_one_shard(key: str, shards: int) -> None:
    among = [part for part in range(1, shards + 1) if holds(Shard(part, shards), key)]

    assert among == [shard_of(key, shards) + 1]


@pytest.mark.requirement("B6")
def test_the_shard_of_a_key_never_changes() -> None:
    assert [shard_of(str(index), 8) for index in range(12)] == [0, 1, 6, 3, 6, 3, 7, 6, 7, 0, 0, 2]


@pytest.mark.requirement("B6")
def test_shards_are_about_equal() -> None:
    counts = [0] * 8
    for index in range(8000):
        counts[shard_of(str(index), 8)] += 1

    assert all(850 < count < 1150 for count in counts)


@pytest.mark.requirement("B6")
def test_a_shard_is_written_as_which_of_how_many() -> None:
    assert parse_shard("2/8") == Shard(2, 8)
    assert parse_shard("1/1") == Shard(1, 1)


@pytest.mark.requirement("B6")
@pytest.mark.parametrize(
    ("text", "said"),
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
