"""Shards joined: only those of one run, each once, each whole (B6)."""

from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from item_events import STEP, item_failed, item_finished, item_started, numbered
from scripted_events import run_finished, run_started

from aish.core.events import (
    Event,
    Exit,
    Failure,
    ItemMoved,
    Place,
    Shard,
    StepFinished,
    StepStarted,
)
from aish.core.messages import Usage
from aish.features.history.merge import MergeError, merge
from aish.features.history.run_store import RunStore, open_store
from aish.items.shards import shard_of
from aish.journal.writer import open_journal
from aish.output.items.results import open_items_file

OF = 3
COUNT = 9
FINGERPRINT = {"steps.each.prompt": "aaaa", "inputs.since": "bbbb"}


def indexes(shard: int) -> list[int]:
    return [index for index in range(COUNT) if shard_of(str(index), OF) == shard - 1]


def ended(code: str | None = None, status: Any = "failed") -> StepFinished:
    failure = None if code is None else Failure(code, "so it is")
    status = "ok" if failure is None else status
    return StepFinished(Place(STEP), status, None, None, Usage(), None, 1.0, failure)


def shard_run(
    number: int, *, items: Sequence[int] | None = None, end: Event | None = None, **changes: Any
) -> list[Event]:
    """The events of the run of one shard."""
    events: list[Event] = [
        run_started(**{"shard": Shard(number, OF), "fingerprint": FINGERPRINT} | changes),
        StepStarted(Place(STEP), "prompt"),
    ]
    for index in indexes(number) if items is None else items:
        events += [item_started(index, index), item_finished(index)]
    return [*events, end or ended(), run_finished()]


def merged(folder: Path, runs: Sequence[Sequence[Event]], step: str | None = None) -> list[Any]:
    """The rows of these runs, in folders `0`, `1`, …"""
    with ExitStack() as stack:
        found: list[tuple[RunStore, str]] = []
        for number, events in enumerate(runs):
            place = folder / str(number)
            place.mkdir(mode=0o700)
            with closing(open_journal(place)) as journal:
                for stamped in numbered(events):
                    journal(stamped)
            found.append((stack.enter_context(open_store(folder, Path("runs"))), str(number)))
        items = stack.enter_context(closing(open_items_file(None)))
        return list(items.rows(merge(found, step, items)))


def trouble(folder: Path, runs: Sequence[Sequence[Event]], step: str | None = None) -> str:
    with pytest.raises(MergeError) as caught:
        merged(folder, runs, step)
    return str(caught.value)


def all_shards() -> list[list[Event]]:
    return [shard_run(shard) for shard in range(1, OF + 1)]


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1)])
def test_all_shards_are_the_whole(tmp_path: Path, order: Sequence[int]) -> None:
    shards = all_shards()

    rows = merged(tmp_path, [shards[number] for number in order])

    assert [row["index"] for row in rows] == list(range(COUNT))
    assert [row["item"] for row in rows] == list(range(COUNT))


def test_a_shard_may_be_empty(tmp_path: Path) -> None:
    # Of one item, two shards have nothing.
    runs = [
        shard_run(shard, items=[0] if 0 in indexes(shard) else []) for shard in range(1, OF + 1)
    ]

    assert len(merged(tmp_path, runs)) == 1


def test_an_item_that_was_tried_again_counts_once(tmp_path: Path) -> None:
    shards = all_shards()
    again = next(index for index in range(COUNT) if index in indexes(1))
    # The resumed part of the same run, in the same journal.
    first = [*shards[0][:2], item_started(again, again), item_failed(again), *shards[0][-2:]]

    rows = merged(tmp_path, [[*first, *shards[0]], *shards[1:]])

    assert [row["status"] for row in rows] == ["ok"] * COUNT


def test_items_of_a_shard_that_have_moved_are_where_they_are_now(tmp_path: Path) -> None:
    """Its first part was run on rows in another order (issue 27, A6)."""
    one, other, *rest = indexes(1)
    first = shard_run(1, items=rest)
    for index, key in ((one, other), (other, one)):
        end = item_finished(index, key=str(key))
        first[2:2] = [item_started(index, key, key=str(key)), end]
    moved = [ItemMoved(Place(STEP, str(key)), str(key), key) for key in (one, other)]

    rows = merged(tmp_path, [[*first[:-2], *moved, *first[-2:]], *all_shards()[1:]])

    assert [(row["key"], row["item"]) for row in rows] == [(str(n), n) for n in range(COUNT)]


def test_two_items_of_a_shard_in_one_place_are_named(tmp_path: Path) -> None:
    one, other, *rest = indexes(1)
    first = shard_run(1, items=[one, *rest])
    end = item_finished(one, key=str(other))
    first[-2:-2] = [item_started(one, other, key=str(other)), end]

    said = trouble(tmp_path, [first, *all_shards()[1:]])

    assert said in {
        f"the item {other} is missing",
        f"the item {one} appears twice: once as `{one}`",
    }


def test_what_differs_is_named(tmp_path: Path) -> None:
    other = shard_run(3, fingerprint={"steps.each.prompt": "cccc", "env.X": "d"})

    said = trouble(tmp_path, [*all_shards()[:2], other])

    names = "`env.X`, `inputs.since`, `steps.each.prompt`"
    assert said == f"runs/2: it is not the same run as `runs/0`: {names} differ"


def test_the_shard_itself_may_differ(tmp_path: Path) -> None:
    runs = [
        shard_run(shard, fingerprint=FINGERPRINT | {"--shard": str(shard)})
        for shard in range(1, OF + 1)
    ]

    assert len(merged(tmp_path, runs)) == COUNT


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"shard": Shard(3, 4)}, "runs/2: it is one of 4 shards, not of 3 as `runs/0`"),
        ({"shard": None}, "runs/2: it is not a shard: it has all items"),
        ({"pipeline": "another"}, "runs/2: it is not the same run as `runs/0`: `name` differ"),
        (
            {"shard": Shard(2, 3), "items": []},
            "runs/2: the shard 2/3 appears twice: also in `runs/1`",
        ),
        (
            {"end": ended("max_failures")},
            f"runs/2: the step `{STEP}` has not finished its items",
        ),
        (
            {"end": ended("items_stopped")},
            f"runs/2: the step `{STEP}` has not finished its items",
        ),
        ({"end": ended("budget", "budget")}, "runs/2: the step"),
    ],
)
def test_a_run_that_does_not_belong_is_refused(
    tmp_path: Path, change: dict[str, Any], said: str
) -> None:
    given: dict[str, Any] = {
        "items": [] if change.get("shard", 1) == Shard(3, 4) else None
    } | change

    assert trouble(tmp_path, [*all_shards()[:2], shard_run(3, **given)]).startswith(said)


def test_failed_items_are_results_too(tmp_path: Path) -> None:
    runs = [*all_shards()[:2], shard_run(3, end=ended("items"))]

    assert len(merged(tmp_path, runs)) == COUNT


def test_a_run_without_an_end_is_refused(tmp_path: Path) -> None:
    said = trouble(tmp_path, [all_shards()[0][:-1], *all_shards()[1:]])

    assert said == "runs/0: it has not finished"


def test_a_run_that_is_paused_is_refused(tmp_path: Path) -> None:
    end = run_finished(status="paused", exit=Exit(8, "paused", retryable=False, reason=""))
    said = trouble(tmp_path, [[*all_shards()[0][:-1], end], *all_shards()[1:]])

    assert said == "runs/0: it is paused: calls of it wait for an answer"


def test_a_run_that_was_interrupted_is_refused(tmp_path: Path) -> None:
    cut = Exit(130, "interrupted", retryable=True, reason="")
    said = trouble(tmp_path, [[*all_shards()[0][:-1], run_finished(exit=cut)], *all_shards()[1:]])

    assert said == "runs/0: it ended early: interrupted"


def test_an_item_in_the_wrong_shard_is_named(tmp_path: Path) -> None:
    wrong = next(index for index in range(COUNT) if index not in indexes(1))

    said = trouble(tmp_path, [shard_run(1, items=[wrong]), *all_shards()[1:]])

    assert said == f"runs/0: the item `{wrong}` is not of the shard 1/3"


def test_an_item_that_is_missing_is_named(tmp_path: Path) -> None:
    less = [index for index in indexes(1) if index != indexes(1)[0]]

    said = trouble(tmp_path, [shard_run(1, items=less), *all_shards()[1:]])

    assert said == f"the item {indexes(1)[0]} is missing"


def test_two_items_in_one_place_are_named(tmp_path: Path) -> None:
    place = indexes(2)[0]
    key = next(f"k{number}" for number in range(99) if shard_of(f"k{number}", OF) == 2)
    third = shard_run(3)
    third[2:2] = [item_started(place, "x", key=key), item_finished(place, key=key)]

    said = trouble(tmp_path, [*all_shards()[:2], third])

    assert said == f"runs/2: the item {place} appears twice: as `{place}` and as `{key}`"


def test_which_step_is_meant_has_to_be_said_if_there_are_several(tmp_path: Path) -> None:
    runs = all_shards()
    for number, run in enumerate(runs):
        index = indexes(number + 1)[0]
        run[2:2] = [item_started(index, step="more"), item_finished(index, step="more")]

    first = tmp_path / "first"
    first.mkdir()
    second = tmp_path / "second"
    second.mkdir()

    assert trouble(first, runs).startswith("several steps have items: `")
    assert len(merged(second, runs, STEP)) == COUNT


def test_a_step_without_items_is_refused_with_those_that_have_some(tmp_path: Path) -> None:
    assert trouble(tmp_path, all_shards(), "none") == "--step none: no step `none` has items"


def test_runs_without_items_have_nothing_to_join(tmp_path: Path) -> None:
    runs = [shard_run(shard, items=[]) for shard in range(1, OF + 1)]

    assert trouble(tmp_path, runs) == "there are no items"
