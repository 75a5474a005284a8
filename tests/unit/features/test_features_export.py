"""What an export makes of events: questions and answers, ids that two processes have, memory."""

import gc
import json
import tracemalloc
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted_events import (
    any_event,
    decided,
    run_finished,
    run_started,
    stamped,
    step_finished,
    troubled_run,
    turn_finished,
)

from aish.cli.commands.runs_export import command
from aish.cli.options import Report
from aish.core.events import (
    AskEnded,
    AskReceived,
    ControlCalled,
    ControlEvent,
    Event,
    ItemFinished,
    ItemStarted,
    Place,
    ReasoningDelta,
    ServerInfo,
    Stamped,
    StepStarted,
    TextDelta,
    ToolFinished,
    ToolOutput,
    ToolStarted,
    TurnAdded,
    TurnStarted,
    ValueSet,
    to_line,
)
from aish.core.json import JsonObject, json_text
from aish.core.messages import Usage
from aish.core.text import for_ci_log, for_terminal
from aish.features.history.export import ExportSummary, export_run
from aish.features.history.run_store import open_store
from aish.journal.writer import open_journal, seal

ID = "20261101T120640Z-nightly-aaaa"
DELTAS = TextDelta | ReasoningDelta | ToolOutput
PACK = (ServerInfo("box", "pack", "ready", 7),)


def kept(runs: Path, events: Iterable[Stamped]) -> Path:
    """The folder of a run with these events in its journal."""
    folder = runs / ID
    folder.mkdir(parents=True)
    journal = open_journal(folder)
    for event in events:
        if not isinstance(event.event, DELTAS):
            journal(event)
    journal.close()
    return folder


def exported(runs: Path, folder: Path) -> ExportSummary:
    with open_store(runs, runs) as store:
        return export_run(store, ID, folder)


def log_of(folder: Path) -> list[str]:
    return (folder / "control.log").read_text("utf-8").splitlines()


def commands_of(folder: Path) -> list[Any]:
    text = (folder / "commands.jsonl").read_text("utf-8")
    return [json.loads(line) for line in text.splitlines()]


# --- control.log ------------------------------------------------------------------------------


def append(folder: Path, *records: JsonObject) -> None:
    with (folder / "events.jsonl").open("ab") as journal:
        for record in records:
            journal.write(seal(f"{json_text(record)}\n".encode()))


def test_what_other_programs_did_over_the_control_api(tmp_path: Path) -> None:
    id = "ab" * 16
    events = stamped(
        run_started(),
        ValueSet("limits.turns", 9, None, "ada"),
        ControlCalled("PUT", "/api/v1/values/limits.turns", "write", "ada", 200),
        ControlCalled("POST", "/api/v1/commands", "write", "ada", 200),
        ControlCalled("GET", "/api/v1/status", "read", "", 401),
        ControlEvent("deployed", {"by": "ci"}, "ci"),
        AskReceived(id, "Go\x1b[2J?", "now", None, "ci", "2026-11-01T12:07:41.000Z"),
        AskEnded(id, "answered", "yes", "ada"),
        ControlCalled("POST", "/api/v1/ask", "write", "ci", 200),
    )
    folder = kept(tmp_path / "runs", events)

    exported(folder.parent, tmp_path / "out")

    said = [line.partition(" control API: ")[2] for line in log_of(tmp_path / "out")[1:]]
    assert said == [
        "`limits.turns` set to 9 by ada, was null",
        "POST /api/v1/commands by ada: done (200)",
        "GET /api/v1/status: refused (401)",
        "event `deployed` by ci",
        "ci asks (abababab): Go\\x1b[2J?",
        "question abababab answered by ada",
    ]


def test_questions_and_answers_about_calls(tmp_path: Path) -> None:
    place = Place("fix", "a\nb", 1, "c1")
    events = stamped(run_started(), StepStarted(Place("fix"), "prompt"))
    folder = kept(tmp_path / "runs", events)
    head: JsonObject = {
        "v": 1,
        "time": "2026-11-01T12:06:41.000Z",
        "step": place.step,
        "item": place.item,
    }
    append(
        folder,
        {
            **head,
            "seq": 3,
            "type": "approval.asked",
            "id": "ab" * 16,
            "digest": "d" * 64,
            "reason": "no rule approves repo__file_delete",
            "always": None,
            "expires": "2026-11-08T12:06:41.000Z",
            "tool": "repo__file_delete",
            "server": "repo",
            "name": "file_delete",
            "arguments": {"path": "x\x1b[2J"},
        },
        {
            **head,
            "seq": 4,
            "type": "approval.answered",
            "id": "ab" * 16,
            "answer": "approve",
            "by": "user eve (uid 7)",
            "way": "command",
            "note": "::error::fine",
        },
        {**head, "seq": 5, "type": "from.the.future", "text": "nothing"},
    )

    exported(tmp_path / "runs", tmp_path / "out")

    asked, answered = log_of(tmp_path / "out")[-2:]
    assert asked.startswith(f"2026-11-01T12:06:41.000Z fix · a⏎b: approval {'ab' * 16} asked for ")
    assert 'repo__file_delete {"path": "x\\u001b[2J"}' in asked
    assert asked.endswith(f"expires 2026-11-08T12:06:41.000Z, digest {'d' * 64}")
    assert f"approval {'ab' * 16} answered: approve by user eve (uid 7) (command): " in answered


def test_what_went_wrong_is_in_the_log(tmp_path: Path) -> None:
    kept(tmp_path / "runs", troubled_run())

    exported(tmp_path / "runs", tmp_path / "out")

    log = "\n".join(log_of(tmp_path / "out"))
    for part in (
        "warning: mcp evil: ",
        "retry: http://127.0.0.1:9: connection reset; attempt 2 in ",
        "fallback: cloud to local: unavailable after 4 attempts",
        "the answer so far is withdrawn",
        "decision about evil__delete_all {}: deny (*__delete*), digest ",
        "run finished: failed, exit 1 (failed): step `fix`: ",
    ):
        assert part in log


# --- Any event, any text ----------------------------------------------------------------------


@given(st.lists(any_event(), max_size=12))
@settings(max_examples=60, deadline=None)
def test_any_events_can_be_exported(events: list[Stamped]) -> None:
    with TemporaryDirectory() as base:
        runs, out = Path(base) / "runs", Path(base) / "out"
        whole = [replace(one, seq=seq) for seq, one in enumerate(events, 1)]
        kept(runs, whole)

        done = exported(runs, out)

        assert done.problem is None
        for name in ("comms.jsonl", "toolcalls.md", "control.log", "commands.jsonl"):
            text = (out / name).read_text("utf-8")
            assert for_terminal(text) == text
            assert for_ci_log(text) == text
            if name.endswith("l"):
                assert (
                    len([json.loads(line) for line in text.split("\n")[:-1]]) == done.counts[name]
                )
        assert len(list((out / "scripts").iterdir())) == done.counts["scripts"]


# --- Processes --------------------------------------------------------------------------------


def process_call(place: Place, name: str, arguments: JsonObject, id: str) -> list[Event]:
    tool = f"box__{name}"
    return [
        replace(decided(place, tool, arguments), server="box", name=name),
        ToolStarted(place, tool),
        ToolFinished(place, tool, "ok", "ok", None, 0.1, structured={"id": id, "output": "x"}),
    ]


def test_a_process_is_known_by_its_id_in_a_later_step(tmp_path: Path) -> None:
    start, read = Place("a", call="a-1"), Place("b", call="b-1")
    kept(
        tmp_path / "runs",
        stamped(
            run_started(servers=PACK),
            StepStarted(Place("a"), "call"),
            *process_call(start, "process_start", {"command": "cat"}, "p1"),
            step_finished("a"),
            StepStarted(Place("b"), "call"),
            *process_call(read, "process_output", {"id": "p1"}, "p1"),
            step_finished("b"),
        ),
    )

    exported(tmp_path / "runs", tmp_path / "out")

    assert [one["argv"] for one in commands_of(tmp_path / "out")] == [["cat"], ["cat"]]


def test_an_id_that_two_workers_gave_names_the_process_of_its_own_item(tmp_path: Path) -> None:
    events: list[Event] = [run_started(servers=PACK), StepStarted(Place("s"), "prompt")]
    for item in ("one", "two"):
        place = Place("s", item, 1, "c1")
        events += process_call(place, "process_start", {"command": item}, "p1")
    for item in ("one", "two"):
        events += process_call(Place("s", item, 2, "c2"), "process_output", {"id": "p1"}, "p1")
    events += process_call(Place("t", None, 1, "c1"), "process_output", {"id": "p1"}, "p1")
    kept(tmp_path / "runs", stamped(*events))

    exported(tmp_path / "runs", tmp_path / "out")

    argv = [one["argv"] for one in commands_of(tmp_path / "out")]
    assert argv == [["one"], ["two"], ["one"], ["two"], None]


# --- Large journals ---------------------------------------------------------------------------


def batch(items: int) -> Iterable[Stamped]:
    """A run with this many items, each with a request, an answer and a command."""
    for seq, event in enumerate(batch_events(items), 1):
        yield Stamped(seq, 1_790_000_000 + seq / 1000, event)


def batch_events(items: int) -> Iterable[Event]:
    yield run_started(servers=PACK)
    yield StepStarted(Place("s"), "prompt", items)
    for number in range(items):
        key = f"item {number}"
        place, turn, call = (
            Place("s", key),
            Place("s", key, 1),
            Place("s", key, 1, "c1"),
        )
        yield ItemStarted(place, key, number, f"{number:016x}")
        yield TurnAdded(place, {"role": "user", "text": f"{number} " + "q" * 500}, "answer")
        yield TurnStarted(turn, "m", 1)
        yield turn_finished(turn, "a" * 500)
        yield from process_call(call, "shell_run", {"command": f"run {number}"}, "none")
        yield ItemFinished(place, key, number, "ok", "a", None, Usage(), None, 0.1)
    yield step_finished("s")
    yield run_finished()


@pytest.mark.slow(reason="measures memory over many items")
def test_memory_does_not_grow_with_the_items(
    tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    def peak(items: int, name: str = "once") -> int:
        runs = tmp_path / f"runs-{items}-{name}"
        folder = kept(runs, ())
        lines = b"".join(seal(to_line(stamped)) for stamped in batch(items))
        (folder / "events.jsonl").write_bytes(lines)
        out = tmp_path / f"out-{items}-{name}"
        # As the program starts: commands that live long switch it on.
        gc.disable()
        tracemalloc.start()
        try:
            command(ID, out, run_dir=runs, output_format=Report.JSON)
            found = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
            gc.enable()
        counts = json.loads(capsysbinary.readouterr().out)["files"]
        assert counts["comms.jsonl"] == 4 * items
        assert counts["scripts"] == counts["commands.jsonl"] == items
        return found

    peak(20)
    # What another thread of this process allocates meanwhile counts too, but not each time.
    few, many = peak(100), min(peak(400, name) for name in ("once", "again"))
    assert many < 1.1 * few
