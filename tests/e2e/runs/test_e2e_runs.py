"""`aish runs`: what was kept is listed, shown and cleaned away; nothing else is touched."""

import json
import os
import re
from dataclasses import replace
from pathlib import Path

import pytest
from e2e_project import ModelEndpoints, Project
from model_endpoint import Gate, text_reply, tool_reply
from scripted_events import (
    HOSTILE,
    answered,
    ordinary_run,
    paused_run,
    run_finished,
    run_started,
    stamped,
    step_finished,
    troubled_run,
)
from syrupy.assertion import SnapshotAssertion

from aish.core.events import ApprovalAsked, Event, Exit, Notice, Place, Stamped, StepStarted
from aish.core.text import for_ci_log, for_terminal
from aish.journal.writer import open_journal

FIRST, SECOND, THIRD, FOURTH = (
    f"2026110{day}T120640Z-nightly-{end}"
    for day, end in enumerate(("aaaa", "bbbb", "cccc", "xccc"), 1)
)
KILLED = stamped(run_started(), StepStarted(Place("read"), "prompt"))


def kept(project: Project, id: str, events: list[Stamped], runs: str = ".aish/runs") -> Path:
    """A run folder with these events in its journal."""
    folder = project.folder / runs / id
    folder.mkdir(parents=True)
    journal = open_journal(folder)
    for event in events:
        if "Delta" not in type(event.event).__name__:
            journal(event)
    journal.close()
    return folder


def failed() -> list[Stamped]:
    events: list[Event] = [
        run_started(pipeline=HOSTILE),
        StepStarted(Place("read"), "prompt"),
        step_finished("read", status="failed"),
        run_finished(status="failed", exit=Exit(1, "failed", retryable=False, reason=HOSTILE)),
    ]
    return stamped(*events)


def ids(project: Project) -> set[str]:
    return {path.name for path in project.run_folders}


# --- Listed ----------------------------------------------------------------------------------


@pytest.fixture
def five(project: Project) -> Project:
    """A run that went well, one that failed, one that was killed, one torn, one damaged."""
    kept(project, FIRST, ordinary_run())
    kept(project, SECOND, failed())
    torn = kept(project, THIRD, KILLED)
    with (torn / "events.jsonl").open("ab") as journal:
        journal.write(b'{"v":1,"se')
    kept(project, FOURTH, [], "pipelines/.aish/runs")
    damaged = kept(project, "20261105T120640Z-broken-dddd", ordinary_run()) / "events.jsonl"
    damaged.write_bytes(damaged.read_bytes().replace(b"README", b"README2", 1))
    return project


def test_runs_are_listed_the_newest_first_with_how_they_ended(
    five: Project, snapshot: SnapshotAssertion
) -> None:
    done = five.aish("runs", "list")

    assert done.code == 0
    assert done.stdout == snapshot(name="stdout")
    assert done.stderr == snapshot(name="stderr")


@pytest.fixture
def paused(project: Project) -> Project:
    """A run with an open question, one whose time has passed, one that was answered."""
    kept(project, FIRST, stamped(*_asking("2126-12-31T12:00:00.000Z")))
    kept(project, SECOND, stamped(*_asking("2026-11-01T12:00:00.000Z")))
    answer = answered(Place("fix", turn=1, call="c2"), answer="deny", note="no")
    kept(project, THIRD, stamped(*_asking("2126-12-31T12:00:00.000Z"), answer))
    return project


def _asking(expires: str) -> list[Event]:
    return [
        replace(one, expires=expires) if isinstance(one, ApprovalAsked) else one
        for one in paused_run()
    ]


def test_the_list_tells_how_many_calls_of_a_paused_run_wait(paused: Project) -> None:
    rows = json.loads(paused.aish("runs", "list", "--format", "json").stdout)
    table = paused.aish("runs", "list").stdout.splitlines()[1:]

    assert [(row["run"], row["status"], row["pending"]) for row in rows] == [
        (THIRD, "paused", 0),
        (SECOND, "paused", 0),
        (FIRST, "paused", 1),
    ]
    assert [row["exit"]["code"] for row in rows] == [8, 8, 8]
    assert ["(1 pending)" in line for line in table] == [False, False, True]


def test_an_answer_after_the_end_leaves_a_run_ended(paused: Project) -> None:
    log = paused.aish("runs", "show", THIRD)
    result = json.loads(paused.aish("runs", "show", THIRD, "--format", "json").stdout)
    report = paused.aish("runs", "report", THIRD, "--junit", "j.xml", "--sarif", "s.sarif")

    assert log.code == 0
    assert "interrupted" not in log.stdout
    assert "repo__file_remove (1a2b3c4d) denied by mia (command): no" in log.stdout
    assert result["status"] == "paused"
    assert "pending" not in result
    assert result["steps"]["fix"]["tool_calls"][1]["approval"]["note"] == "no"
    assert report.code == 0, report.stderr
    xml = (paused.folder / "j.xml").read_text("utf-8")
    assert "<skipped" in xml
    assert "<error" in xml
    (run,) = json.loads((paused.folder / "s.sarif").read_text("utf-8"))["runs"]
    (invocation,) = run["invocations"]
    assert invocation["exitCode"] == 8
    assert [one["level"] for one in invocation["toolExecutionNotifications"]] == ["warning"]


@pytest.mark.parametrize("words", [[], ["--dry-run"]], ids=["clean", "dry run"])
def test_a_run_with_calls_that_wait_is_not_cleaned_away(paused: Project, words: list[str]) -> None:
    done = paused.aish("runs", "clean", "--keep", "0", *words)

    assert done.code == 1
    assert "is kept: 1 call waits for an answer: `aish runs pending` lists them" in done.stderr
    assert ids(paused) == ({FIRST, SECOND, THIRD} if words else {FIRST})


@pytest.mark.parametrize("words", [["list"], ["list", "--format", "json"]], ids=" ".join)
def test_what_a_run_called_itself_steers_no_terminal_and_no_runner(
    five: Project, words: list[str]
) -> None:
    done = five.aish("runs", *words)

    assert done.code == 0
    assert for_terminal(done.stdout) == done.stdout
    assert "\n::error" not in done.stdout
    assert "##[" not in done.stdout


def test_the_list_as_json(five: Project, snapshot: SnapshotAssertion) -> None:
    done = five.aish("runs", "list", "--format", "json")

    assert len(json.loads(done.stdout)) == 5
    assert done.stdout == snapshot


def test_a_run_that_goes_on_is_said_to_be_running_and_by_whom(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    gate = Gate()
    project.uses(model_endpoint([text_reply("late").but(before_head=gate)]))
    project.pipeline("prompt: Hello")
    with project.aish.start("run", "p.yaml") as running:
        gate.wait_arrived()
        (row,) = json.loads(project.aish("runs", "list", "--format", "json").stdout)
        shown = project.aish("runs", "show", "latest")
        cleaned = project.aish("runs", "clean", "--keep", "0")
        gate.open()
        assert running.finish().code == 0

    assert (row["status"], row["writer"]) == ("running", f"process {running.pid}")
    assert shown.stdout.endswith(f"still running: process {running.pid} writes the journal\n")
    assert cleaned.code == 1
    assert f"is kept: it is running (process {running.pid})" in cleaned.stderr
    assert project.journal[-1]["type"] == "run.finished", "and it was not disturbed"


@pytest.mark.parametrize(
    "words", [[], ["--messages"], ["--level", "security"], ["--format", "json"]], ids=" ".join
)
def test_a_run_that_was_killed_before_its_journal_was_made(
    project: Project, words: list[str]
) -> None:
    (project.folder / ".aish" / "runs" / FIRST).mkdir(parents=True)

    done = project.aish("runs", "show", "latest", *words)

    assert (done.code, done.stdout) == (2, "")
    assert done.stderr == f"error: .aish/runs/{FIRST}: it has no journal\n"


def test_a_run_that_was_killed_has_no_end(project: Project, model_endpoint: ModelEndpoints) -> None:
    gate = Gate()
    project.uses(model_endpoint([text_reply("late").but(before_head=gate)]))
    project.pipeline("prompt: Hello")
    with project.aish.start("run", "p.yaml") as running:
        gate.wait_arrived()
        running.kill()
    gate.open()

    listed = project.aish("runs", "list").stdout

    assert "  interrupted (no end)  " in listed
    assert project.aish("runs", "show", "latest").stdout.splitlines()[-1] == (
        "interrupted: the journal has no end"
    )


@pytest.mark.parametrize("words", [["list"], ["clean", "--keep", "1"]], ids=" ".join)
def test_no_runs_are_no_mistake(project: Project, words: list[str]) -> None:
    assert project.aish("runs", *words).code == 0


@pytest.mark.parametrize("folder", [".aish/sessions", "pipelines/.aish/sessions"])
def test_where_sessions_are_is_said_where_one_is_looked_for_among_runs(
    project: Project, folder: str
) -> None:
    kept(project, FIRST, ordinary_run(), folder)
    hint = f"`--run-dir {folder}` has the sessions of `aish shell`"

    listed = project.aish("runs", "list")
    assert (listed.code, listed.stdout) == (0, "")
    assert listed.stderr == f"there are no runs here; {hint}\n"
    for words in (["show", "latest"], ["show", FIRST], ["report", "aaaa"]):
        done = project.aish("runs", *words)
        assert done.code == 2
        assert "there are no runs" in done.stderr
        assert hint in done.stderr

    kept(project, SECOND, ordinary_run())
    for words in (["show", FIRST], ["report", "aaaa"]):
        assert hint in project.aish("runs", *words).stderr
    assert hint not in project.aish("runs", "show", "zzzz").stderr, "that is not a session either"
    assert hint not in project.aish("runs", "show", "zzzz", "--run-dir", folder).stderr
    assert project.aish("runs", "show", FIRST, "--run-dir", folder).code == 0


def test_runs_are_found_where_run_dir_says(project: Project) -> None:
    kept(project, FIRST, ordinary_run(), "else/where")

    assert FIRST in project.aish("runs", "list", "--run-dir", "else/where").stdout
    assert project.aish("runs", "show", FIRST, "--run-dir", "else/where").code == 0
    assert FIRST not in project.aish("runs", "list").stdout
    missing = project.aish("runs", "list", "--run-dir", "nowhere")
    assert missing.code == 2
    assert missing.stderr.startswith("error: --run-dir nowhere: ")


def test_of_runs_that_began_in_the_same_second_the_later_one_is_the_latest(
    project: Project,
) -> None:
    runs = [f"20261101T120640Z-nightly-{end}" for end in ("bbbb", "cccc", "aaaa")]
    for order, id in enumerate(runs):
        plan = kept(project, id, KILLED) / "plan.json"
        plan.write_text("{}")
        os.utime(plan, ns=(order, order))

    listed = project.aish("runs", "list").stdout

    assert re.findall(r"nightly-\w{4}", listed) == ["nightly-aaaa", "nightly-cccc", "nightly-bbbb"]
    shown = project.aish("runs", "show", "latest", "--format", "json").stdout
    assert json.loads(shown)["run"] == runs[-1]


# --- Shown -----------------------------------------------------------------------------------


def test_a_run_is_shown_as_it_was_told(project: Project, model_endpoint: ModelEndpoints) -> None:
    calls = [("c1", "repo__dir_list", '{"path": "."}')]
    project.uses(model_endpoint([tool_reply(calls), text_reply("Two files.")] * 2))
    project.pipeline(
        """
        mcp: {servers: {repo: {pack: [fs], root: .}}, auto_approve: [repo__*]}
        prompt: What is here?
        """
    )
    first = project.run()
    shown = project.aish("runs", "show", "latest")
    result = project.run("--format", "json")
    again = project.aish("runs", "show", "latest", "--format", "json")

    assert (shown.code, shown.stderr) == (0, "")
    # The journal keeps milliseconds: at a hundredth's edge a line may be rounded the other way.
    assert project.tidy(shown.stdout) == project.tidy(first.stderr)
    assert again.stdout == result.stdout


def test_a_reader_that_wants_no_more_is_no_failure(project: Project) -> None:
    text = "x" * 150
    many = [Stamped(n, 1.8e9, Notice(Place(), "info", "many", text)) for n in range(1, 5000)]
    kept(project, FIRST, many)
    project.through_shell('"$@" | head -1; exit ${PIPESTATUS[0]}')
    project.aish.python = ("bash", *project.aish.python[1:])

    done = project.aish("runs", "show", "latest")

    assert (done.code, done.stderr) == (0, "")
    assert done.stdout.count("\n") == 1


def test_a_run_full_of_hostile_text_is_shown_harmless(
    project: Project, snapshot: SnapshotAssertion
) -> None:
    kept(project, FIRST, troubled_run())

    done = project.aish("runs", "show", FIRST)

    assert done.code == 0
    assert for_ci_log(done.stdout) == done.stdout
    assert done.stdout == snapshot


def test_a_run_without_an_end_as_json_has_no_exit(project: Project) -> None:
    kept(project, FIRST, ordinary_run()[:-2])

    found = json.loads(project.aish("runs", "show", "latest", "--format", "json").stdout)

    assert (found["run"], found["status"], found["exit"]) == (FIRST, "no_end", None)
    assert [call["kind"] for call in found["steps"]["read"]["tool_calls"]] == ["ok"]


def test_a_damaged_journal_is_refused_with_line_and_offset(five: Project) -> None:
    done = five.aish("runs", "show", "dddd")

    assert done.code == 2
    journal = re.escape(".aish/runs/20261105T120640Z-broken-dddd/events.jsonl")
    assert re.search(rf"error: {journal}:\d+: this line \(at byte \d+\) is damaged", done.stderr)
    assert "Traceback" not in done.stderr


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("20261101T120640Z-nightly-aaab", "did you mean `20261101T120640Z-nightly-aaaa`"),
        ("nothing-like-it", "`aish runs list` lists them"),
        ("ccc", "matches 2 runs"),
        ("../../etc", "unknown run `../../etc`"),
        ("", "unknown run ``"),
    ],
)
def test_a_run_that_is_not_there_is_a_usage_error(five: Project, name: str, said: str) -> None:
    done = five.aish("runs", "show", name)

    assert (done.code, done.stdout) == (2, "")
    assert said in done.stderr


# --- Cleaned ---------------------------------------------------------------------------------


@pytest.fixture
def three(project: Project) -> Project:
    for id in (FIRST, SECOND, THIRD):
        folder = kept(project, id, ordinary_run())
        (folder / "files").mkdir()
        (folder / "files" / "0001-a.txt").write_text("x" * 1000)
        (folder / "plan.json").write_text("{}")
    return project


def test_all_but_the_newest_are_deleted_and_it_is_said_what_that_frees(three: Project) -> None:
    rehearsed = three.aish("runs", "clean", "--keep", "1", "--dry-run")
    assert ids(three) == {FIRST, SECOND, THIRD}
    done = three.aish("runs", "clean", "--keep", "1")

    assert ids(three) == {THIRD}
    assert (done.code, done.stderr) == (0, "")
    assert re.fullmatch(
        rf"\.aish/runs/{SECOND}: \d\.\d kB\n\.aish/runs/{FIRST}: \d\.\d kB\n"
        r"2 runs were deleted, \d+\.\d kB\n",
        done.stdout,
    )
    assert rehearsed.stdout == done.stdout.replace("were deleted", "would be deleted")


def test_what_is_deleted_is_told_to_programs_too(three: Project) -> None:
    rehearsed = three.aish("runs", "clean", "--keep", "2", "--dry-run", "--format", "json")
    done = three.aish("runs", "clean", "--keep", "2", "--format", "json")

    [row] = json.loads(done.stdout)
    assert row == {
        "run": FIRST,
        "folder": f".aish/runs/{FIRST}",
        "bytes": row["bytes"],
        "deleted": True,
        "kept": None,
    }
    assert json.loads(rehearsed.stdout) == [row | {"deleted": False}]


def test_what_began_long_ago_is_deleted(three: Project) -> None:
    kept(three, "20990101T000000Z-later-aaaa", ordinary_run())

    assert three.aish("runs", "clean", "--older-than", "1m").code == 0

    assert ids(three) == {"20990101T000000Z-later-aaaa"}


def test_a_damaged_run_and_a_killed_one_can_be_deleted(five: Project) -> None:
    done = five.aish("runs", "clean", "--keep", "0")

    assert done.code == 0, done.stderr
    assert ids(five) == set()


def test_no_link_is_followed_and_what_is_no_run_is_left_alone(three: Project) -> None:
    outside = three.write("outside/keep.txt", "precious")
    runs = three.folder / ".aish" / "runs"
    (runs / "20261001T000000Z-link-aaaa").symlink_to(outside.parent)
    (runs / SECOND / "servers").symlink_to(outside.parent)
    (runs / "notes").mkdir()
    (runs / "20261001T000000Z-file-aaaa").write_text("no folder")
    (runs / FIRST / "my notes.txt").write_text("mine")
    os.link(outside, runs / THIRD / "events.jsonl.torn")

    done = three.aish("runs", "clean", "--keep", "0")

    assert done.code == 1
    assert outside.read_text(encoding="utf-8") == "precious"
    assert {path.name for path in runs.iterdir()} == {
        FIRST,
        "notes",
        "20261001T000000Z-link-aaaa",
        "20261001T000000Z-file-aaaa",
    }
    assert "`my notes.txt` in it is not part of a run" in done.stderr
    assert (runs / FIRST / "my notes.txt").read_text() == "mine"


@pytest.mark.parametrize("planted", [".aish", ".aish/runs"])
def test_a_planted_link_to_other_runs_is_refused(project: Project, planted: str) -> None:
    kept(project, FIRST, ordinary_run(), "other/runs")
    link = project.folder / planted
    link.parent.mkdir(exist_ok=True)
    link.symlink_to(project.folder / ("other" if planted == ".aish" else "other/runs"))

    for words in (["list"], ["show", "latest"], ["clean", "--keep", "0"]):
        done = project.aish("runs", *words)
        assert (done.code, done.stdout) == (2, "")
        assert (
            f"`{planted}` is a link or not a folder, and links are not followed here" in done.stderr
        )
    assert (project.folder / "other" / "runs" / FIRST / "events.jsonl").exists()


def test_a_link_in_the_place_of_a_journal_is_not_read(project: Project) -> None:
    elsewhere = kept(project, FIRST, ordinary_run(), "other/runs") / "events.jsonl"
    folder = project.folder / ".aish" / "runs" / SECOND
    folder.mkdir(parents=True)
    (folder / "events.jsonl").symlink_to(elsewhere)

    (row,) = json.loads(project.aish("runs", "list", "--format", "json").stdout)

    assert row["status"] == "unreadable"
    assert "links are not followed here" in row["problem"]
    assert project.aish("runs", "show", "latest").code == 2
    assert project.aish("runs", "clean", "--keep", "0").code == 1
    assert elsewhere.exists()


def test_a_folder_without_a_journal_is_deleted_once_it_is_old(project: Project) -> None:
    old = project.folder / ".aish" / "runs" / FIRST
    young = project.folder / ".aish" / "runs" / "20990101T000000Z-later-aaaa"
    for folder in (old, young):
        folder.mkdir(parents=True)

    done = project.aish("runs", "clean", "--keep", "0")

    assert (done.code, ids(project)) == (1, {young.name})
    assert "is kept: it may be about to start" in done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "no runs are selected"),
        (["--keep", "1", "--older-than", "1d"], "exclude each other"),
        (["--older-than", "soon"], "is not a duration"),
        (["--keep", "-1"], "--keep"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_clean_wants_to_be_told_what(three: Project, words: list[str], said: str) -> None:
    done = three.aish("runs", "clean", *words)

    assert (done.code, done.stdout) == (2, "")
    assert said in done.stderr
    assert ids(three) == {FIRST, SECOND, THIRD}


def test_the_page_of_a_run_is_opened_or_its_path_is_printed(project: Project) -> None:
    """A browser gets its address; where there is none the path is enough."""
    page = kept(project, FIRST, ordinary_run()) / "report.html"
    project.write("browser", '#!/bin/sh\nprintf %s "$1" > opened\n').chmod(0o755)

    without = project.aish("runs", "open", "aaaa")
    assert (without.code, without.stdout) == (0, f".aish/runs/{FIRST}/report.html\n")
    assert "note: there is no browser" in without.stderr
    assert page.read_text().startswith("<!doctype html>")

    project.aish.env["BROWSER"] = f"{project.folder}/browser %s"
    opened = project.aish("runs", "open")
    assert (opened.code, opened.stdout, opened.stderr) == (0, without.stdout, "")
    assert (project.folder / "opened").read_text() == page.as_uri()
