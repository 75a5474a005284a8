"""Events that memory keeps no more are read from the journal of a live run (A3)."""

import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from served_runs import SCOPES, ServedRun, served_run
from work import work_of

from aish.core.events import ControlEvent, Stamped, to_line
from aish.features.control import past_events
from aish.features.control.past_events import PastEvents
from aish.features.control.run_state import RunState
from aish.journal.writer import seal
from aish.system.clock import SystemClock

pytestmark = pytest.mark.anyio

SLEEPING = "run: [sleep, '60']\nmcp: {auto_approve: [shell__run]}"
KEPT = 20


@pytest.fixture(autouse=True)  # ruff: ignore[pytest-fixture-autouse] - what this file is about
def _little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run does not tell 5,000 events in a moment."""
    monkeypatch.setattr("aish.features.control.run_state.MOST_EVENTS", KEPT)


async def tell(run: ServedRun, count: int) -> None:
    """Let the run tell many events."""
    await run.until("tool.started")
    for number in range(count):
        body = {"command": "event", "name": f"n{number}", "data": "é" * number}
        assert (await run.post("commands", body)).status_code == 200


def written(run: ServedRun) -> list[dict[str, Any]]:
    """The events in the journal, as they are told."""
    return [{k: v for k, v in one.items() if k != "crc"} for one in run.journal]


async def test_older_events_come_from_the_journal(tmp_path: Path) -> None:
    async with served_run(tmp_path, SLEEPING) as run:
        await tell(run, 60)
        found = await run.get("events?after=0")
        some = await run.get("events?after=17")
        kept = await run.get("events")
        everything = written(run)

        # Up to what memory keeps, then the rest.
        rest = await run.get(f"events?after={found['next']}")
        assert found["events"] + rest["events"] == everything
        assert some["events"] == [one for one in found["events"] if one["seq"] > 17]
        assert kept["events"] == everything[-KEPT:]
        assert rest["next"] == everything[-1]["seq"]


async def test_pages_of_the_journal_miss_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(past_events, "MOST_EVENTS", 7)
    async with served_run(tmp_path, SLEEPING) as run:
        first = (await run.get("/api/events"))["events"]
        await tell(run, 50)
        found, after = [], 0
        while page := (await run.get(f"events?after={after}"))["events"]:
            assert len(page) <= 7
            found += page
            after = page[-1]["seq"]
        older = [*first]
        while page := (await run.get("/api/events"))["events"]:
            older += page

        assert found == written(run)
        assert older == found[-len(older) :]
        assert older[0]["seq"] == first[0]["seq"]


async def test_a_stream_begins_in_the_journal_and_goes_on_live(tmp_path: Path) -> None:
    async with served_run(tmp_path, SLEEPING) as run:
        await tell(run, 60)
        async with streamed(run, after=3) as stream:
            seen = [await anext(stream) for _ in range(80)]
            await tell(run, 1)
            while seen[-1].get("name") != "n0":
                seen.append(await anext(stream))

        assert seen == [one for one in written(run) if 3 < one["seq"] <= seen[-1]["seq"]]


async def test_readers_hold_a_part_of_what_is_kept_and_the_same_of_what_follows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(past_events, "_MOST_BYTES", 1000)
    state = RunState("r", "p", {}, SystemClock())
    past = PastEvents(state, None)

    def tell(numbers: range) -> None:
        for number in numbers:
            state(Stamped(number, 0.0, ControlEvent("n", "x" * 300, "me")))

    tell(range(1, 11))
    streams = [await past.stream(None) for _ in range(2)]
    taken = [[await stream.take() for _ in range(4)] for stream in streams]
    tell(range(11, 13))
    last = [await stream.take() for stream in streams]

    for parts in taken:
        assert [int(one.id) for part in parts for one in part] == list(range(1, 11))
        assert max(map(len, parts)) < 5
    assert [int(one.id) for one in last[0]] == [11, 12]
    assert last[0][-1] is last[1][-1]


@asynccontextmanager
async def streamed(run: ServedRun, after: int) -> AsyncGenerator[AsyncIterator[dict[str, Any]]]:
    """The events of a stream."""
    client = await run.client(*SCOPES)
    headers = {"Accept": "text/event-stream", "Last-Event-ID": str(after)}
    with anyio.fail_after(60):
        async with client.stream("GET", "/api/v1/events", headers=headers) as stream:
            lines = stream.aiter_lines()
            yield (json.loads(line[6:]) async for line in lines if line.startswith("data: "))


async def test_what_is_nowhere_kept_is_said(tmp_path: Path) -> None:
    async with served_run(tmp_path, SLEEPING, is_kept=False) as run:
        await tell(run, 40)
        refused = await run.asked("GET", "events?after=0")
        assert (refused.status_code, refused.json()["error"]["code"]) == (410, "events_gone")
        hint = refused.json()["error"]["hint"]
        first = int(hint.partition("after=")[2].partition("`")[0])
        assert len((await run.get(f"events?after={first}"))["events"]) == KEPT

    async with served_run(tmp_path, SLEEPING, is_kept=False) as run:
        first = (await run.get("/api/events"))["events"]
        await tell(run, 40)
        # A program with no number to ask with gets what is left.
        later = (await run.get("/api/events"))["events"]
        assert len(later) == KEPT
        assert later[0]["seq"] > first[-1]["seq"] + 1
        assert (await run.get("/api/events"))["events"] == []

    async with served_run(tmp_path, SLEEPING) as run:
        await tell(run, 40)
        journal = run.folder / "events.jsonl"
        journal.write_bytes(b"".join(journal.read_bytes().splitlines(keepends=True)[:4]))
        found = await run.get("events?after=0")
        assert [one["seq"] for one in found["events"]] == [1, 2, 3, 4]
        refused = await run.asked("GET", "events?after=4")
        assert (refused.status_code, refused.json()["error"]["code"]) == (410, "events_gone")


async def test_a_place_in_a_long_journal_is_found_in_few_steps(tmp_path: Path) -> None:  # ruff: ignore[unused-async] - as the others
    path = tmp_path / "events.jsonl"
    with path.open("wb") as file:
        for number in range(1, 40_001):
            data = "x" * (300_000 if number % 10_000 == 0 else 20)
            event = ControlEvent("n", data, "me")
            file.write(seal(to_line(Stamped(2 * number, 0.0, event))))

    for after in (0, 1, 39_998, 40_000, 79_000, 79_997):
        page = past_events.read_page(path, after, 79_998)
        begin = after // 2 + 1
        expected = [2 * one for one in range(begin, 40_000)][: past_events.MOST_EVENTS]
        assert [one["seq"] for one in page.events] == expected
        assert page.next == (expected[-1] if expected else 79_998)
    near = work_of(lambda: past_events.read_page(path, 200, 210)).steps
    far = work_of(lambda: past_events.read_page(path, 79_000, 79_010)).steps
    assert far < 3 * near
