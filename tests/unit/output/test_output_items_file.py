"""`results.jsonl`: a line for each item, complete after whatever happened (B1, B4)."""

import json
import os
import stat
import tracemalloc
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from item_events import STEP, item_failed, item_finished, item_started, numbered, run_of
from scripted_events import HOSTILE

from aish.core.errors import UsageError
from aish.core.events import Event, ItemMoved, ItemStarted, Place, Stamped
from aish.output.items.results import ItemsFile, open_items_file, public


@contextmanager
def items_file(folder: Path | None, events: Sequence[Stamped] = ()) -> Generator[ItemsFile]:
    file = open_items_file(folder)
    try:
        for event in events:
            file(event)
        yield file
    finally:
        file.close()


def lines(folder: Path) -> list[Any]:
    text = (folder / "results.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def both(index: int, **changes: Any) -> list[Event]:
    return [item_started(index, {"n": index}), item_finished(index, **changes)]


def test_an_item_is_one_line_with_its_value_and_result(tmp_path: Path) -> None:
    run = run_of([item_started(0, {"a": 1}, key="ant"), item_finished(0, key="ant", output=[2])])

    with items_file(tmp_path, run):
        pass

    assert lines(tmp_path) == [
        {
            "v": 1,
            "seq": 4,
            "step": STEP,
            "index": 0,
            "key": "ant",
            "item": {"a": 1},
            "status": "ok",
            "text": "text of 0",
            "output": [2],
            "error": None,
            "usage": {
                "input": 10,
                "output": 5,
                "cached": None,
                "reasoning": None,
                "cache_written": None,
            },
            "cost_usd": None,
            "seconds": 0.25,
        }
    ]
    assert stat.S_IMODE((tmp_path / "results.jsonl").stat().st_mode) == 0o600


def test_rows_come_in_the_order_of_the_items(tmp_path: Path) -> None:
    events: list[Event] = [item_started(index, index) for index in range(4)]
    events += [item_finished(index) for index in (2, 0, 3, 1)]

    with items_file(tmp_path, run_of(events)) as file:
        assert [row["item"] for row in file.rows(STEP)] == [0, 1, 2, 3]
        assert [line["index"] for line in lines(tmp_path)] == [2, 0, 3, 1]
        assert file.steps() == (STEP,)
        assert list(file.rows("another")) == []


def test_of_a_shard_there_are_only_its_items(tmp_path: Path) -> None:
    with items_file(tmp_path, run_of([*both(5), *both(2), *both(9000)])) as file:
        assert [row["index"] for row in file.rows(STEP)] == [2, 5, 9000]


def test_an_item_that_was_tried_again_leaves_one_line(tmp_path: Path) -> None:
    first = numbered([item_started(0, "x"), item_failed(0), *both(1)])
    again = numbered([item_started(0, "x"), item_finished(0)], first=5)

    with items_file(tmp_path, first):
        pass
    with items_file(tmp_path, [*again, *numbered([run_of([])[-1].event], first=7)]) as file:
        assert [row["status"] for row in file.rows(STEP)] == ["ok", "ok"]

    assert [(line["index"], line["status"]) for line in lines(tmp_path)] == [(1, "ok"), (0, "ok")]
    assert [path.name for path in tmp_path.iterdir()] == ["results.jsonl"]


def test_items_within_items_are_kept_apart(tmp_path: Path) -> None:
    step = "outer/inner"
    events: list[Event] = []
    for outer in ("a", "b"):
        place = Place(step, f"{outer}/0")
        events.append(ItemStarted(place, "0", 0, "0" * 16, f"value of {outer}"))
    events.extend(item_finished(0, place=Place(step, f"{outer}/0")) for outer in ("b", "a"))
    again = [*both(0), item_started(0), item_finished(0)]

    with items_file(tmp_path, run_of([*events, *again])) as file:
        assert list(file.rows(step)) == []
    with items_file(tmp_path) as file:
        assert file.steps() == (STEP,)

    inner = [line for line in lines(tmp_path) if line["step"] == step]
    assert [(line["within"], line["item"]) for line in inner] == [
        ("b", "value of b"),
        ("a", "value of a"),
    ]
    assert len(lines(tmp_path)) == 3


def test_a_run_goes_on_where_the_file_ends(tmp_path: Path) -> None:
    run = run_of([*both(0), *both(1)])
    with items_file(tmp_path, run):
        pass

    with items_file(tmp_path, [*run, *numbered(both(2), first=9)]):
        pass

    assert [line["index"] for line in lines(tmp_path)] == [0, 1, 2]


@pytest.mark.parametrize("damage", [b'{"v":1,"seq":9,"st', b"\0\0\0\0", b"no line\n", b"{}\n"])
def test_what_is_not_as_it_was_written_is_cut_off(tmp_path: Path, damage: bytes) -> None:
    with items_file(tmp_path, run_of(both(0))):
        pass
    whole = (tmp_path / "results.jsonl").read_bytes()
    (tmp_path / "results.jsonl").write_bytes(whole + damage)

    with items_file(tmp_path, numbered(both(1), first=10)) as file:
        assert [row["index"] for row in file.rows(STEP)] == [0, 1]

    assert (tmp_path / "results.jsonl").read_bytes().startswith(whole + b'{"v":1,"seq":11,')


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cut=st.integers(0, 4000), data=st.data())
def test_what_the_file_lacks_is_added_when_it_is_told_again(
    tmp_path: Path, cut: int, data: st.DataObject
) -> None:
    order = data.draw(st.permutations(range(6)))
    events = [item_started(index, {"n": index, "t": HOSTILE}) for index in range(6)]
    ends = [item_failed(index) if index == 3 else item_finished(index) for index in order]
    run = run_of([*events, *ends])
    folder = tmp_path / os.urandom(8).hex()
    folder.mkdir(mode=0o700)
    with items_file(folder, run):
        pass
    path = folder / "results.jsonl"
    whole = path.read_bytes()
    os.truncate(path, min(cut, len(whole)))

    with items_file(folder, run) as file:
        assert len(list(file.rows(STEP))) == 6

    assert path.read_bytes() == whole


KEYS = [*"abcdef", 'é"\\']


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_items_that_have_moved_have_one_row_each_in_the_new_order(
    tmp_path: Path, data: st.DataObject
) -> None:
    """`--resume --retry-failed --force` on a file whose rows have moved (issue 27, A6)."""
    before = data.draw(st.permutations(KEYS))[: data.draw(st.integers(1, 6))]
    after = data.draw(st.permutations([*KEYS, "new"]))[: data.draw(st.integers(1, 8))]
    failed = data.draw(st.sets(st.sampled_from(before)))
    events: list[Event] = []
    for index in data.draw(st.permutations(range(len(before)))):
        events += ended(before[index], index, before[index] in failed)
    for index in data.draw(st.permutations(range(len(after)))):
        key = after[index]
        if key not in before or key in failed:
            events += ended(key, index)
        elif before.index(key) != index:
            events.append(ItemMoved(Place(STEP, key), key, index))
    folder = tmp_path / os.urandom(8).hex()
    folder.mkdir(mode=0o700)
    run = run_of(events)
    stop = data.draw(st.integers(0, len(run)))
    with items_file(folder, run[:stop]):
        pass

    for told in (run, ()):  # gone on with, and read again
        with items_file(folder, told) as file:
            rows = list(file.rows(STEP))
        gone = {key for key in before if key not in after}
        assert [row["key"] for row in rows[: len(after)]] == after
        assert sorted(row["key"] for row in rows[len(after) :]) == sorted(gone)
        assert [row["index"] for row in rows[: len(after)]] == list(range(len(after)))
        assert {row["key"]: row["item"] for row in rows} == {row["key"]: row["key"] for row in rows}
        assert {row["key"] for row in rows if row["status"] == "failed"} == failed & gone
        assert all(public(row).keys().isdisjoint({"was", "seq"}) for row in rows)


def test_a_failed_item_that_runs_again_at_a_free_place_leaves_no_old_row(tmp_path: Path) -> None:
    """The item that is now where it was has not ended when the run does."""
    first = [*ended("a", 0), *ended("b", 1, bad=True)]
    with items_file(tmp_path, run_of(first)):
        pass
    run = run_of([*first, *ended("b", 2)])

    for told in (run, ()):  # gone on with, and read again
        with items_file(tmp_path, told) as file:
            rows = [(row["key"], row["index"], row["status"]) for row in file.rows(STEP)]
        assert rows == [("a", 0, "ok"), ("b", 2, "ok")]


def ended(key: str, index: int, bad: bool = False) -> list[Event]:  # ruff: ignore[boolean-type-hint-positional-argument, boolean-default-value-positional-argument] - a row of a table
    return [
        item_started(index, key, key=key),
        (item_failed if bad else item_finished)(index, key=key),
    ]


def test_without_a_folder_the_results_are_in_a_file_of_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import tempfile

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    with items_file(None, run_of([*both(1), *both(0)])) as file:
        assert [row["index"] for row in file.rows(STEP)] == [0, 1]
        assert list(tmp_path.iterdir()) == []


def test_a_planted_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("", encoding="utf-8")
    (tmp_path / "results.jsonl").symlink_to(tmp_path / "victim")

    with pytest.raises(UsageError, match="links are not followed"):
        open_items_file(tmp_path)


def test_a_full_disk_leaves_whole_lines(tmp_path: Path) -> None:
    import resource
    import signal

    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    quiet = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    with items_file(tmp_path, run_of(both(0))) as file:
        size = (tmp_path / "results.jsonl").stat().st_size
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + 50, old[1]))
        try:
            start, end = numbered(both(1), first=10)
            file(start)
            with pytest.raises(OSError, match="File too large"):
                file(end)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, old)
            signal.signal(signal.SIGXFSZ, quiet)

    assert [line["index"] for line in lines(tmp_path)] == [0]


@pytest.mark.slow(reason="writes many items")
def test_memory_is_flat_over_many_items(tmp_path: Path) -> None:
    file = open_items_file(tmp_path)
    tracemalloc.start()
    for index in range(5_000):
        for event in numbered(
            [item_started(index, "v" * 500), item_finished(index)], 2 * index + 1
        ):
            file(event)
    assert sum(1 for _ in file.rows(STEP)) == 5_000
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    file.close()

    assert peak < 500_000
