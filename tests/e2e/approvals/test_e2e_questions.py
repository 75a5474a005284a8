"""`aish runs pending` and `aish approve`: questions of runs that nobody is executing (A6, A9)."""

import json
import os
import pwd
import secrets
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pexpect
import pytest
from asking_runs import (
    DIGEST,
    ID,
    OTHER_RUN,
    RUN,
    answered,
    asked,
    finished,
    kept_run,
    tear,
)
from e2e_project import Project, of_type
from samples import sampled
from scripted_events import HOSTILE
from syrupy.assertion import SnapshotAssertion
from terminal_window import close_terminal

from aish.core.events import Event, Notice, Place
from aish.journal.reader import read_journal

OTHER = "77" * 16
USER = pwd.getpwuid(os.getuid()).pw_name
YES = ("--yes", "--digest", DIGEST[:12])
# Holds the journal of a folder until its stdin is closed.
HOLDER = """
import sys
from pathlib import Path
from aish.journal.writer import open_journal
journal = open_journal(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


def kept(project: Project, *events: Event, id: str = RUN) -> Path:
    return kept_run(project.folder / ".aish" / "runs", id, *events)


@pytest.fixture
def paused(project: Project) -> Project:
    """A run that waits for an answer, and no process."""
    kept(project, asked(), finished())
    return project


def records(project: Project, id: str = RUN) -> list[Any]:
    with read_journal(project.folder / ".aish" / "runs" / id / "events.jsonl") as reading:
        return list(reading)


def pending(project: Project, *arguments: str) -> Any:
    done = project.aish("runs", "pending", "--format", "json", *arguments)
    assert done.code == 0, done.stderr
    return json.loads(done.stdout)


def states(project: Project, *arguments: str) -> dict[str, str]:
    found = pending(project, *arguments)
    return {one["id"]: one["state"] for one in (*found["pending"], *found["decided"])}


# --- Listing ---------------------------------------------------------------------------------


@pytest.mark.requirement("A9")
def test_open_questions_are_listed_for_people_and_programs(
    project: Project, snapshot: SnapshotAssertion
) -> None:
    """The second run was killed; the ids of two questions begin with the same eight digits."""
    row = asked("3f9a1c22" + "1" * 24, place=Place("write", "row 7", 2, "c"))
    kept(project, asked(), row, asked(OTHER), answered(OTHER, "deny"), finished())
    kept(project, asked(OTHER, tool="repo__" + HOSTILE), id=OTHER_RUN)

    table = project.aish("runs", "pending")
    found = project.aish("runs", "pending", "--format", "json")

    assert (table.code, table.stdout, table.stderr) == snapshot
    assert found.stdout == snapshot(name="json")
    assert pending(project, "99zz")["decided"] == []
    assert [one["run"] for one in pending(project, OTHER_RUN)["pending"]] == [OTHER_RUN]


def test_that_nothing_is_open_is_no_error(project: Project) -> None:
    nothing = project.aish("runs", "pending")
    kept(project, finished("ok"))
    ended = project.aish("runs", "pending")
    one = project.aish("runs", "pending", "latest")

    said = (0, "", "no call waits for an answer\n")
    where = "there is no run or server here, and `--run-dir DIR` looks into another folder"
    assert (nothing.code, nothing.stderr) == (0, f"no call waits for an answer; {where}\n")
    assert [(done.code, done.stdout, done.stderr) for done in (ended, one)] == [said] * 2
    assert pending(project) == {"v": 1, "pending": [], "decided": [], "batches": []}
    assert project.aish("runs", "pending", "gone").code == 2


@pytest.mark.parametrize("status", ["ok", "failed", "denied", "budget"])
def test_a_run_that_finished_for_good_has_withdrawn_its_questions(
    project: Project, status: str
) -> None:
    kept(project, asked(), finished(status))

    assert states(project) == {}
    assert states(project, "latest") == {ID: "withdrawn"}
    done = project.aish("approve", "latest", ID, *YES)
    assert (done.code, done.stdout) == (1, "")
    assert "was withdrawn: its call was cancelled, or its run has ended" in done.stderr


def test_a_run_that_failed_while_a_call_waits_is_kept_and_can_be_answered(
    project: Project,
) -> None:
    kept(project, asked(), finished("failed", waiting=1))

    cleaned = project.aish("runs", "clean", "--keep", "0")

    assert cleaned.code == 1
    assert "1 call waits for an answer" in cleaned.stderr
    assert states(project) == {ID: "open"}
    assert "failed (1 pending)" in project.aish("runs", "list").stdout
    assert project.aish("approve", "latest", ID, *YES).code == 0


def test_only_the_end_of_a_finished_journal_is_read(project: Project) -> None:
    """Both journals are damaged in the middle; who reads it says so."""
    for id, status in ((RUN, "ok"), (OTHER_RUN, "paused")):
        path = kept(project, asked(), finished(status), id=id) / "events.jsonl"
        path.write_bytes(path.read_bytes().replace(b"TITLE.md", b"title.md"))

    done = project.aish("runs", "pending")
    named = project.aish("runs", "pending", RUN)

    assert (done.code, done.stdout) == (0, "")
    assert OTHER_RUN in done.stderr
    assert "is damaged: its checksum does not match" in done.stderr
    assert RUN not in done.stderr
    assert (named.code, named.stdout) == (2, "")


def test_a_question_at_a_terminal_is_gone_with_its_process(project: Project) -> None:
    folder = kept(project, asked(expires=None))
    with _held(folder):
        assert states(project) == {ID: "open"}

    assert states(project) == {ID: "withdrawn"}
    assert project.aish("approve", "latest", ID, *YES).code == 1


def test_a_live_run_is_listed_and_its_caller_waits(project: Project) -> None:
    folder = kept(project, asked())
    assert [one["caller_waiting"] for one in pending(project)["pending"]] == [False]

    with _held(folder):
        assert [one["caller_waiting"] for one in pending(project)["pending"]] == [True]


# --- Answering -------------------------------------------------------------------------------


@pytest.mark.parametrize(("flags", "answer"), [(YES, "approve"), (("--deny", "--yes"), "deny")])
def test_a_program_answers_and_the_answer_is_in_the_journal(
    paused: Project, flags: tuple[str, ...], answer: str
) -> None:
    paused.write("release.yaml", "")
    before = records(paused)

    done = paused.aish("approve", "latest", ID[:8], *flags, "--note", "as agreed")

    said = {"approve": "approved", "deny": "denied"}[answer]
    assert (done.code, done.stdout) == (0, f"{said}: repo__file_write, question {ID}\n")
    assert done.stderr == f"hint: `aish run release.yaml --resume {RUN}` continues the run\n"
    *rest, last = records(paused)
    assert rest == before
    expected = {"answer": answer, "by": USER, "way": "command", "note": "as agreed", "id": ID}
    assert {key: last[key] for key in expected} == expected
    assert (last["step"], last["turn"], last["call"]) == ("write", 1, "call-1")
    assert last["seq"] == rest[-1]["seq"] + 1
    assert states(paused) == {ID: said}


def test_a_second_answer_is_an_error_that_names_the_first(paused: Project) -> None:
    # No argument of a process has a lone surrogate.
    note = HOSTILE.replace("\ud800", "")
    assert paused.aish("approve", "latest", ID, "--deny", "--yes", "--note", note).code == 0
    before = records(paused)

    done = paused.aish("approve", "latest", ID, *YES)

    assert (done.code, done.stdout) == (1, "")
    assert f"question `{ID}` is already denied, by {USER} (command) at 20" in done.stderr
    assert "\x1b" not in done.stderr
    assert not any(line.startswith("::error") for line in done.stderr.splitlines())
    assert records(paused) == before


def test_an_answer_after_the_time_is_refused(project: Project) -> None:
    kept(project, asked(expires="2026-11-21T00:00:00.000Z"), finished())

    done = project.aish("approve", "latest", ID, *YES)

    assert (done.code, done.stdout) == (1, "")
    assert "has expired: it was open until 2026-11-21T00:00:00.000Z" in done.stderr
    assert of_type(records(project), "approval.answered") == []
    assert states(project) == {ID: "expired"}


def test_guessed_ids_and_ids_of_other_runs_are_unknown(project: Project) -> None:
    kept(project, asked(), finished())
    kept(project, asked(OTHER), finished(), id=OTHER_RUN)
    before = records(project)
    guesses = [secrets.token_hex(size) for size in (4, 8, 16, 16, 16)]

    for call in (*guesses, OTHER, OTHER[:8], ID[:7] + "0" + ID[8:], "../../x", "*", ""):
        done = project.aish("approve", RUN, call, *YES)
        assert (done.code, done.stdout) == (2, "")
        assert done.stderr.startswith(f"error: {RUN}: ")
        assert f"`{ID}`" in done.stderr

    assert records(project) == before
    assert states(project) == {ID: "open", OTHER: "open"}


def test_a_part_of_an_id_has_to_name_one_question(project: Project) -> None:
    near = ID[:9] + "f" * 23
    kept(project, asked(), asked(near), finished())

    short, both = (project.aish("approve", "latest", ID[:size], *YES) for size in (7, 8))
    one = project.aish("approve", "latest", near[:10].upper(), *YES)

    assert (short.code, both.code, one.code) == (2, 2, 0)
    assert "is not the id of a question: 8 to 32 hex digits" in short.stderr
    assert "`3f9a1c22` matches 2 questions" in both.stderr
    assert "note: 1 question of this run is still open" in one.stderr
    assert states(project) == {ID: "open", near: "approved"}


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--yes",), "`--yes` approves a call only with its digest"),
        (("--yes", "--digest", DIGEST[:11]), "is not 12 to 64 hex digits"),
        (("--yes", "--digest", DIGEST + "0"), "is not 12 to 64 hex digits"),
        (("--yes", "--digest", "x" * 12), "is not 12 to 64 hex digits"),
        (("--yes", "--digest", "0" * 12), "does not begin with"),
        (("--deny", "--yes", "--digest", "0" * 64), "does not begin with"),
        (("--deny", "--yes", "--note", "n" * 2001), "--note: more than 2,000 characters"),
        (("--digest", DIGEST), "there is no terminal to ask at"),
        ((), "there is no terminal to ask at"),
        (("--deny",), "there is no terminal to ask at"),
    ],
)
def test_without_a_terminal_only_the_right_digest_is_a_yes(
    paused: Project, flags: tuple[str, ...], said: str
) -> None:
    done = paused.aish("approve", "latest", ID, *flags, stdin="y\ny\n")

    assert (done.code, done.stdout) == (2, "")
    assert said in done.stderr
    assert states(paused) == {ID: "open"}


def test_the_whole_digest_counts_in_either_case(paused: Project) -> None:
    assert paused.aish("approve", "latest", ID, "--yes", "--digest", DIGEST.upper()).code == 0


@pytest.mark.parametrize(
    "count",
    [8, pytest.param(100, marks=pytest.mark.slow(reason="a hundred processes at once"))],
)
def test_of_many_answers_at_once_one_wins(project: Project, count: int) -> None:
    """The run was killed: nothing in its journal says that nobody executes it."""
    kept(project, asked(), asked(OTHER))
    started = [
        project.aish.start(
            *("approve", "latest", ID, *(YES if number % 2 else ("--deny", "--yes"))),
            *("--note", str(number)),
        )
        for number in range(count)
    ]
    ends = [running.finish() for running in started]

    assert sorted(done.code for done in ends) == [0, *([1] * (count - 1))]
    (answer,) = of_type(records(project), "approval.answered")
    assert ends[int(answer["note"])].code == 0
    assert all("is already" in done.stderr for done in ends if done.code)


def test_answers_to_several_questions_at_once_are_all_kept(project: Project) -> None:
    ids = [f"{number:02x}" * 16 for number in range(8)]
    kept(project, *map(asked, ids), finished())

    started = [project.aish.start("approve", "latest", id, *YES) for id in ids]

    assert [running.finish().code for running in started] == [0] * len(ids)
    assert states(project) == dict.fromkeys(ids, "approved")


# --- Journals that are used, torn, damaged, or do not fit on the disk -------------------------


def _held(folder: Path) -> "subprocess.Popen[bytes]":
    """A process that writes the journal until it is left."""
    argv = [sys.executable, "-c", HOLDER, str(folder)]
    holder = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"held\n"
    return holder


def test_a_live_run_is_told_from_one_that_is_being_answered(project: Project) -> None:
    folder = kept(project, asked())
    before = records(project)

    with _held(folder) as holder:
        done = project.aish("approve", "latest", ID, *YES)

        assert (done.code, done.stdout) == (1, "")
        assert f"the run is live: process {holder.pid} writes its journal" in done.stderr
    assert records(project) == before
    assert project.aish("approve", "latest", ID, *YES).code == 0


@pytest.mark.parametrize(
    "tail", [b'{"v":1,"seq":4,"time":"2026-', b"\0" * 4096], ids=["half", "NUL"]
)
def test_a_torn_journal_is_answered_and_what_was_torn_is_kept(paused: Project, tail: bytes) -> None:
    folder = paused.folder / ".aish" / "runs" / RUN
    tear(folder, tail)
    assert states(paused) == {ID: "open"}

    assert paused.aish("approve", "latest", ID, *YES).code == 0

    assert states(paused) == {ID: "approved"}
    assert (folder / "events.jsonl.torn").read_bytes() == tail + b"\n"
    assert [record["seq"] for record in records(paused)] == [1, 2, 3, 4]


def test_half_an_answer_is_none(paused: Project) -> None:
    """The process was killed while it wrote the answer."""
    assert paused.aish("approve", "latest", ID, "--deny", "--yes").code == 0
    path = paused.folder / ".aish" / "runs" / RUN / "events.jsonl"
    path.write_bytes(path.read_bytes()[:-5])
    assert states(paused) == {ID: "open"}

    assert paused.aish("approve", "latest", ID, *YES).code == 0

    assert [one["answer"] for one in of_type(records(paused), "approval.answered")] == ["approve"]


def test_a_damaged_journal_is_left_alone(project: Project) -> None:
    note = Notice(Place(), "info", "x", "a notice")
    path = kept(project, note, asked(), finished()) / "events.jsonl"
    path.write_bytes(path.read_bytes().replace(b"a notice", b"a Notice"))
    before = path.read_bytes()

    done = project.aish("approve", "latest", ID, *YES)

    assert (done.code, done.stdout) == (2, "")
    assert f"{RUN}/events.jsonl:2: this line" in done.stderr
    assert path.read_bytes() == before


@pytest.mark.real_process
def test_an_answer_that_does_not_fit_on_the_disk_is_none(project: Project) -> None:
    """A limit on the size of files makes `os.write` short, as a full disk does."""
    block = 512
    folder = kept(project, asked(), finished())
    size = (folder / "events.jsonl").stat().st_size
    notice = Notice(Place(), "info", "x", "y" * (10 * block - size - 300))
    (folder / "events.jsonl").unlink()
    folder.rmdir()
    path = kept(project, notice, asked(), finished()) / "events.jsonl"
    before = path.read_bytes()
    room = 10 * block - len(before)
    assert 0 < room < 250, "less than an answer, and more than nothing"

    project.through_shell('ulimit -f 10 && exec "$@"')
    done = project.aish("approve", "latest", ID, *YES)

    assert (done.code, done.stdout) == (1, "")
    assert "cannot write the journal" in done.stderr
    assert "no answer was recorded" in done.stderr
    assert path.read_bytes() == before
    assert states(project) == {ID: "open"}
    project.aish.python = (sys.executable,)
    assert project.aish("approve", "latest", ID, *YES).code == 0


def test_a_run_elsewhere_is_answered_and_resumed_there(project: Project) -> None:
    kept_run(project.folder / "kept runs", RUN, asked(), finished())

    listed = project.aish("runs", "pending", "--run-dir", "kept runs")
    done = project.aish("approve", RUN, ID, *YES, "--run-dir", "kept runs")

    assert listed.stdout.splitlines()[1].startswith(f"{RUN}  3f9a1c22  write")
    assert done.code == 0
    said = f"`aish run FILE --resume {RUN} --run-dir 'kept runs'`"
    assert said in done.stderr


# --- At a terminal ---------------------------------------------------------------------------


@pytest.fixture
def at_terminal(project: Project) -> Iterator[Any]:
    """Starts `aish approve` at a real terminal of 100 columns, 60 rows."""
    children: list[Any] = []

    def start(*flags: str, run: str = RUN, id: str = ID) -> "pexpect.spawn[str]":
        line = shlex.join([sys.executable, "-m", "aish", "approve", run, id, *flags])
        child = pexpect.spawn(
            "sh",
            ["-c", f"exec {line}"],
            cwd=str(project.folder),
            env=project.aish.env,
            encoding="utf-8",
            timeout=60,
            dimensions=(60, 100),
        )
        children.append(child)
        return child

    yield start
    for child in children:
        close_terminal(child)


def _end(child: Any) -> int | None:
    child.expect(pexpect.EOF)
    child.wait()
    found: int | None = child.exitstatus
    return found


PROMPT = "approve this call? [y: approve, n: deny, Enter: leave it open] "
TYPED = {
    "y": ("y\r", "approved"),
    "yes": ("YES\r", "approved"),
    "n": ("n\r", "denied"),
    "Enter": ("\r", "open"),
    "something else": ("sure\r", "open"),
    "end of input": ("\x04", "open"),
}


@pytest.mark.real_process
@pytest.mark.parametrize(
    "answer", sampled(TYPED, often={0, 1, 2}, reason="each starts the real program")
)
def test_a_person_approves_denies_or_leaves_it_open(
    paused: Project, at_terminal: Any, answer: str
) -> None:
    typed, state = TYPED[answer]
    child = at_terminal()
    child.expect_exact(PROMPT)
    child.send(typed)

    assert _end(child) == 0
    assert states(paused) == {ID: state}
    assert ("left open" in child.before) is (state == "open")


@pytest.mark.real_process
@pytest.mark.parametrize(("typed", "state"), [("y\r", "denied"), ("n\r", "open"), ("\r", "open")])
def test_whether_to_deny_is_asked_as_such(
    paused: Project, at_terminal: Any, typed: str, state: str
) -> None:
    child = at_terminal("--deny")
    child.expect_exact("deny this call? [y: deny, Enter: leave it open] ")
    child.send(typed)

    assert _end(child) == 0
    assert states(paused) == {ID: state}


@pytest.mark.real_process
def test_an_interrupt_at_the_question_leaves_it_open(paused: Project, at_terminal: Any) -> None:
    child = at_terminal()
    child.expect_exact(PROMPT)
    child.sendintr()

    assert _end(child) == 130
    assert states(paused) == {ID: "open"}


@pytest.mark.real_process
def test_a_question_that_was_answered_meanwhile_says_by_whom(
    paused: Project, at_terminal: Any
) -> None:
    child = at_terminal()
    child.expect_exact(PROMPT)
    assert paused.aish("approve", "latest", ID, "--deny", "--yes").code == 0
    child.send("y\r")

    assert _end(child) == 1
    assert f"is already denied, by {USER} (command)" in " ".join(child.before.split())
    assert states(paused) == {ID: "denied"}


@pytest.mark.real_process
def test_all_of_a_hostile_call_is_shown_and_does_nothing(
    project: Project, at_terminal: Any, snapshot: SnapshotAssertion
) -> None:
    """What is in the journal was masked, which the person is told."""
    hostile = asked(
        OTHER,
        tool="repo__" + HOSTILE,
        place=Place("write", HOSTILE, 1, "c"),
        reason="no rule approves repo__" + HOSTILE,
        arguments={
            "path": HOSTILE,
            "fake": "approve this call? [y: approve, n: deny, Enter: leave it open] y\n" + PROMPT,
            "header": "Bearer <secret:API_KEY>, again <secret:API_KEY>, <secret:PASS>",
            HOSTILE: [HOSTILE],
        },
    )
    kept(project, hostile, finished(), id=OTHER_RUN)
    child = at_terminal(run=OTHER_RUN, id=OTHER)
    child.expect(r"\x1b\[\?2004happrove this call\? .* leave it open\] ")
    shown = child.before.replace("\r", "")
    child.send("\r")
    assert _end(child) == 0

    assert shown == snapshot
    for odd in ("\x1b[2J", "\x07", "\x08", "\x9b", "\u202e", "\u200b", "\x1b]0;"):
        assert odd not in shown
    assert "hidden: 2 secrets" in shown
