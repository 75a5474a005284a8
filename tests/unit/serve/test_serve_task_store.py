"""Tasks on disk: whose they are, how long they are kept, and how many."""

import fcntl
import json
import os
import stat
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from work import work_of

from aish.serve.calls import task_store
from aish.serve.calls.task_store import KEPT_SECONDS, Task, TaskStore, TooManyTasksError


class Clock:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.time = 1_000_000.0

    def now(self) -> float:
        return self.time

    def monotonic(self) -> float:
        return self.time


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(tmp_path: Path, clock: Clock) -> Iterator[TaskStore]:
    found = TaskStore(tmp_path / "tasks", clock)
    yield found
    found.close()


def ended(store: TaskStore, client: str = "ada", text: str = "done") -> Task:
    made = store.create(client, "t__x", None)
    store.keep_result(made.id, json.dumps({"content": text}).encode(), lambda value: value)
    return store.update(made, status="completed")


def test_a_task_is_its_clients_until_it_expires_whatever_the_clock_does(
    tmp_path: Path, store: TaskStore, clock: Clock
) -> None:
    made = store.create("ada", "pipeline__x", "run-1")
    (file,) = (tmp_path / "tasks").glob("*.json")
    clock.time -= 3600
    done = store.update(made, status="completed")

    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert store.get(made.id, "ada") == done
    assert store.get(made.id, "eve") is None
    assert done.updated == made.created
    clock.time = made.created + KEPT_SECONDS - 1
    assert store.get(made.id, "ada") == done
    clock.time += 1
    assert store.get(made.id, "ada") is None
    assert not file.exists()


def test_a_task_under_way_does_not_expire_and_one_of_a_process_that_is_gone_is_taken_once(
    tmp_path: Path, store: TaskStore, clock: Clock
) -> None:
    other = TaskStore(tmp_path / "tasks", clock)
    theirs = other.create("ada", "pipeline__x", "run-1")
    mine = store.create("ada", "pipeline__y", "run-2")
    clock.time += 100 * KEPT_SECONDS

    assert store.take_over(theirs) is None
    assert list(store.orphans()) == []
    other.close()
    assert [one.id for one in store.orphans()] == [theirs.id]
    third = TaskStore(tmp_path / "tasks", clock)
    taken = store.take_over(theirs)
    assert taken is not None
    assert taken.owner == store.owner
    assert third.take_over(theirs) is None
    assert third.take_over(mine) is None
    third.close()


def test_there_are_no_more_tasks_than_there_may_be_and_the_oldest_ended_ones_go(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, store: TaskStore, clock: Clock
) -> None:
    monkeypatch.setattr(task_store, "MOST_OF_CLIENT", 3)
    monkeypatch.setattr(task_store, "MOST_TASKS", 5)
    first = ended(store)
    clock.time += 1
    others = [ended(store) for _ in range(2)]
    clock.time += 1
    running = [store.create("ada", "t__x", None) for _ in range(2)]

    assert store.get(first.id, "ada") is None
    assert sum(store.get(one.id, "ada") is not None for one in others) == 1
    running.append(store.create("ada", "t__x", None))
    with pytest.raises(TooManyTasksError):
        store.create("ada", "t__x", None)
    running += [store.create("bob", "t__x", None) for _ in range(2)]
    with pytest.raises(TooManyTasksError):
        store.create("eve", "t__x", None)
    assert all(store.get(one.id, one.client) == one for one in running)
    assert len(list((tmp_path / "tasks").glob("*.json"))) == 5


def test_results_are_not_kept_beyond_their_size_and_what_is_left_over_goes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, store: TaskStore, clock: Clock
) -> None:
    monkeypatch.setattr(task_store, "MOST_BYTES", 2500)
    old = ended(store, text="x" * 2000)
    clock.time += 1
    new = ended(store, text="y" * 2000)
    folder = tmp_path / "tasks"
    (folder / f"{'a' * 32}.cancel").touch()
    (folder / f"{'b' * 32}.owner").touch()
    store.clean()

    assert store.get(old.id, "ada") is None
    assert store.get(new.id, "ada") == new
    names = {path.name for path in folder.iterdir()}
    assert names == {f"{new.id}.json", f"{new.id}.result", f"{store.owner}.owner", "tasks.lock"}


def test_what_others_want_of_a_task_is_taken_once(tmp_path: Path, store: TaskStore) -> None:
    task = store.create("ada", "t__x", None)
    store.put_answers(task, {"a": {"action": "accept"}})
    store.put_cancel(task)
    store.put_cancel(task)
    (tmp_path / "tasks" / f"{task.id}.0.answer").write_text("no JSON")

    other = store.create("ada", "t__x", None)
    store.put_cancel(other)

    wanted = list(store.take_commands({task.id}))
    assert (task.id, None) in wanted
    assert (task.id, {"a": {"action": "accept"}}) in wanted
    assert sum(responses != {} for _, responses in wanted) == 2
    assert list(store.take_commands({task.id})) == []
    assert list(store.take_commands({task.id, other.id})) == [(other.id, None)]


def test_files_that_were_planted_or_damaged_are_no_tasks(tmp_path: Path, store: TaskStore) -> None:
    folder = tmp_path / "tasks"
    task = ended(store)
    row = json.loads((folder / f"{task.id}.json").read_text())
    planted = {
        "1" * 32: "{",
        "2" * 32: "[]",
        "3" * 32: json.dumps({**row, "v": 2}),
        "4" * 32: json.dumps({**row, "status": "odd"}),
        "5" * 32: json.dumps({"v": 1}),
    }
    for id, text in planted.items():
        (folder / f"{id}.json").write_text(text)
    (folder / f"{'6' * 32}.json").symlink_to(folder / f"{task.id}.json")
    os.mkfifo(folder / f"{'7' * 32}.json")
    (folder / f"{'8' * 32}.json").mkdir()

    for digit in "12345678":
        assert store.get(digit * 32, "ada") is None
    assert store.result(task.id) == {"content": "done"}
    (folder / f"{task.id}.result").write_text("[1")
    assert store.result(task.id) is None
    (folder / f"{task.id}.result").unlink()
    assert store.result(task.id) is None
    assert list(store.orphans()) == []


def test_a_new_task_reads_no_other_and_commands_for_all_are_looked_for_at_once(
    monkeypatch: pytest.MonkeyPatch, store: TaskStore
) -> None:
    monkeypatch.setattr(task_store, "MOST_OF_CLIENT", 1000)

    def opened(count: int) -> int:
        made = [store.create("ada", "t__x", None) for _ in range(count)]
        work = work_of(lambda: store.create("ada", "t__x", None))
        looking = work_of(lambda: list(store.take_commands({one.id for one in made})))
        assert looking.calls["scandir"] == 1
        assert work_of(lambda: store.get(made[0].id, "ada")).calls["open"] == 0
        return work.calls["open"] + work.calls["fdopen"]

    assert opened(100) == opened(1) > 0


def test_tasks_of_other_processes_count_after_a_second(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, store: TaskStore, clock: Clock
) -> None:
    monkeypatch.setattr(task_store, "MOST_OF_CLIENT", 3)
    other = TaskStore(tmp_path / "tasks", clock)
    mine = store.create("ada", "t__x", None)
    theirs = other.create("ada", "t__x", None)
    assert theirs == store.get(theirs.id, "ada")
    other.create("ada", "t__x", None)
    clock.time += 1
    with pytest.raises(TooManyTasksError):
        store.create("ada", "t__x", None)
    other.update(theirs, status="cancelled")
    assert store.get(theirs.id, "ada") != theirs
    store.create("ada", "t__x", None)
    other.close()
    assert store.get(mine.id, "ada") == mine


def test_a_busy_lock_is_not_waited_for(tmp_path: Path, store: TaskStore, clock: Clock) -> None:
    other = TaskStore(tmp_path / "tasks", clock)
    theirs = other.create("ada", "pipeline__x", "run-1")
    other.close()
    lock = os.open(tmp_path / "tasks" / "tasks.lock", os.O_RDWR)
    fcntl.flock(lock, fcntl.LOCK_EX)
    for act in (store.clean, partial(store.take_over, theirs)):
        assert work_of(act).calls["sleep"] == 0
    assert store.get(theirs.id, "ada") == theirs
    os.close(lock)
    assert store.take_over(theirs) is not None
