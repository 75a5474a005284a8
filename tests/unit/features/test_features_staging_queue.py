"""What the sink of staged calls makes of the events of a run (B16)."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from aish.core.errors import UsageError
from aish.core.events import Event, ItemStarted, Place, Retry, Stamped, StepStarted, ToolDecided
from aish.core.json import JsonObject, JsonValue
from aish.core.tools import Tool, ToolName
from aish.features.staging.file import StagedHead, open_staged, read_staged
from aish.features.staging.queue import StagingQueue
from aish.policy.lock import ServerPin
from aish.system.secrets.secrets import Secrets

HEAD = StagedHead("20261121T153101Z-notes-9kq2", "notes", "notes.yaml", "0" * 64)
TOOL = Tool(ToolName("repo", "write"), "repo__write", "Writes", {"type": "object"})


def a_book(path: Path, secrets: Secrets | None = None) -> StagingQueue:
    pins: Mapping[str, ServerPin | None] = {"repo": ServerPin("pack", ("fs",), {}), "shell": None}
    return StagingQueue(
        HEAD, lambda _: pins, secrets or Secrets(), lambda: open_staged(path, HEAD), path
    )


def staged(digest: str, place: Place, **changes: Any) -> ToolDecided:
    fields: dict[str, Any] = {
        "place": place,
        "tool": "repo__write",
        "server": "repo",
        "name": "write",
        "arguments": {"n": digest},
        "digest": digest * 64,
        "verdict": "staged",
        "rule": "repo__*",
        "definition": "d" * 64,
    }
    return ToolDecided(**(fields | changes))


def tell(book: StagingQueue, *events: Event) -> None:
    for number, event in enumerate(events, 1):
        book(Stamped(number, 1_795_000_000.25, event))


def arguments_in(path: Path) -> list[JsonValue]:
    return [call.arguments["n"] for call in read_staged(path).calls]


STEP = Place(step="one", turn=1, call="c1")
ITEM = Place(step="many", item="k", turn=1, call="c1")


def test_only_what_is_staged_is_put_down(tmp_path: Path) -> None:
    path = tmp_path / "staged.json"
    book = a_book(path)
    tell(book, staged("a", STEP, verdict="auto"), staged("b", STEP, verdict="deny"))
    assert not path.exists()
    tell(book, staged("c", STEP))
    assert book.holds("c" * 64)
    assert not book.holds("a" * 64)
    (call,) = read_staged(path).calls
    assert (call.step, call.item, call.name) == ("one", None, ToolName("repo", "write"))
    assert (call.rule, call.definition, call.decision) == ("repo__*", "d" * 64, "c" * 64)
    assert call.server == ServerPin("pack", ("fs",), {})
    assert (call.time, book.count) == ("2026-11-18T11:06:40.250Z", 1)
    book.close()


@pytest.mark.requirement("B16")
def test_the_same_call_of_a_step_is_put_down_once(tmp_path: Path) -> None:
    path = tmp_path / "staged.json"
    book = a_book(path)
    tell(book, staged("a", STEP), staged("a", Place(step="one", turn=2, call="c2")))
    assert arguments_in(path) == ["a"]
    book.close()


@pytest.mark.parametrize(
    "again",
    [
        StepStarted(Place(step="one"), "prompt"),
        Retry(Place(step="one"), "step one", 2, 0.0, "it failed"),
    ],
    ids=["begun again", "another attempt"],
)
def test_what_an_earlier_attempt_has_put_down_does_not_count(tmp_path: Path, again: Event) -> None:
    path = tmp_path / "staged.json"
    book = a_book(path)
    other = Place(step="two", call="c1")
    tell(book, staged("a", STEP), staged("b", other), again, staged("c", STEP))
    assert arguments_in(path) == ["b", "c"]
    assert not book.holds("a" * 64)
    book.close()


def test_a_request_that_is_sent_again_forgets_nothing(tmp_path: Path) -> None:
    path = tmp_path / "staged.json"
    book = a_book(path)
    tell(book, staged("a", STEP), Retry(Place(step="one", turn=2), "m", 1, 0.0, "HTTP 503"))
    assert arguments_in(path) == ["a"]
    book.close()


def test_a_resumed_run_has_each_call_of_an_unfinished_item_once(tmp_path: Path) -> None:
    path = tmp_path / "staged.json"
    done = Place(step="many", item="done", turn=1, call="c1")
    killed = a_book(path)
    tell(killed, StepStarted(Place(step="many"), "prompt"), staged("a", done), staged("b", ITEM))
    killed.close()

    resumed = a_book(path)
    resumed.begin()
    assert resumed.holds("a" * 64)
    tell(
        resumed,
        StepStarted(Place(step="many"), "prompt"),
        ItemStarted(Place(step="many", item="k"), "k", 1, "0" * 16),
        staged("c", ITEM),
    )
    assert arguments_in(path) == ["a", "c"]
    resumed.close()


@pytest.mark.parametrize(
    "arguments",
    [
        {"text": "the key is s3cret-t0ken!"},
        {"deep": [{"s3cret-t0ken!": 1}]},
        {"text": "czNjcmV0LXQwa2VuIQ=="},
        {"text": "s3cret\\u002dt0ken!"},
    ],
    ids=str,
)
def test_a_secret_is_not_written_to_disk(tmp_path: Path, arguments: JsonObject) -> None:
    secrets = Secrets()
    secrets.add("TOKEN", "s3cret-t0ken!")
    book = a_book(tmp_path / "staged.json", secrets)
    why = book.refusal(TOOL, arguments)
    assert why == "an argument contains a secret of this run, and staged calls are stored in a file"
    assert book.refusal(TOOL, {"text": "no key"}) is None


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "\ud800", [[[]]] * 2, None], ids=str)
def test_only_what_comes_back_as_it_was_is_staged(tmp_path: Path, value: Any) -> None:
    book = a_book(tmp_path / "staged.json")
    deep: JsonValue = 1
    for _ in range(60):
        deep = [deep]
    assert book.refusal(TOOL, {"x": deep}) is not None
    odd = value is not None and not isinstance(value, list)
    assert (book.refusal(TOOL, {"x": value}) is not None) == odd


def test_where_nothing_is_kept_every_call_is_put_down() -> None:
    book = StagingQueue(HEAD, lambda _: {}, Secrets())
    book.begin()
    tell(book, staged("a", STEP), StepStarted(Place(step="one"), "prompt"))
    assert book.holds("b" * 64)
    book.close()


def test_a_file_of_another_run_is_refused_before_the_run(tmp_path: Path) -> None:
    path = tmp_path / "staged.json"
    book = a_book(path)
    tell(book, staged("a", STEP))
    book.close()
    head = StagedHead("20261121T153101Z-notes-0000", "notes", "notes.yaml", "0" * 64)
    other = StagingQueue(head, lambda _: {}, Secrets(), lambda: open_staged(path, head), path)
    with pytest.raises(UsageError, match="staged calls of the run"):
        other.begin()
