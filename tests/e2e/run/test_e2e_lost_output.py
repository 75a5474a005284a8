"""Full disks and readers that have gone: said in a sentence, no traceback, the right code."""

import sys

import pytest
from e2e_project import ModelEndpoints, Project
from model_endpoint import text_reply
from samples import sampled

LONG = "word " * 20_000
# A stdout whose reader has gone before the program starts.
NO_READER = """
import os, sys
read, write = os.pipe()
os.close(read)
os.dup2(write, 1)
os.execv(sys.argv[1], sys.argv[1:])
"""


@pytest.fixture
def talking(project: Project, model_endpoint: ModelEndpoints) -> Project:
    """A project whose model says much."""
    project.uses(model_endpoint([text_reply(LONG)]))
    project.pipeline("prompt: Talk")
    return project


@pytest.mark.parametrize("form", ["text", "json", "jsonl"])
def test_a_full_stdout_is_said_and_fails_the_run(talking: Project, form: str) -> None:
    talking.through_shell('exec "$@" >/dev/full')

    done = talking.run("--format", form)

    assert done.code == 1
    assert "No space left on device" in done.stderr
    assert "error: cannot write the " in done.stderr
    assert "Traceback" not in done.stderr
    assert talking.journal[-1]["exit"]["code"] == 0, "the run itself went well"


@pytest.mark.parametrize("form", ["text", "jsonl"])
def test_a_full_result_file_is_said_and_fails_the_run(talking: Project, form: str) -> None:
    done = talking.run("--format", form, "-o", "/dev/full")

    assert done.code == 1
    assert "/dev/full" in done.stderr
    assert "No space left on device" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_full_disk_costs_the_journal_and_not_the_answer(talking: Project) -> None:
    talking.through_shell('ulimit -f 2; exec "$@"')

    done = talking.run()

    assert done.code == 1
    assert done.stdout == LONG + "\n"
    assert "error: cannot write the journal: " in done.stderr
    assert "Traceback" not in done.stderr


def test_a_disk_without_room_for_a_run_folder_is_a_usage_error(talking: Project) -> None:
    talking.through_shell('ulimit -f 0; exec "$@"')

    done = talking.run()

    assert (done.code, done.stdout) == (2, "")
    assert "File too large" in done.stderr
    assert "--ephemeral" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.requirement("B12")
@pytest.mark.parametrize("form", ["text", "json", "jsonl"])
def test_a_reader_that_has_gone_is_no_failure(talking: Project, form: str) -> None:
    talking.aish.python = (sys.executable, "-c", NO_READER, sys.executable)

    done = talking.run("--format", form)

    assert done.code == 0
    assert "Traceback" not in done.stderr
    assert "Exception" not in done.stderr
    assert talking.journal[-1]["exit"]["code"] == 0


@pytest.mark.parametrize(
    "command",
    sampled(
        [
            ["tools", "p.yaml", "--json"],
            ["plan", "p.yaml"],
            ["validate", "p.yaml", "--strict"],
            ["schema", "pipeline"],
            ["tools", "--help"],
            ["--help"],
        ],
        often={0, 1},
        reason="cases of the same kind",
    ),
    ids=" ".join,
)
def test_no_command_fails_because_its_reader_has_gone(talking: Project, command: list[str]) -> None:
    talking.pipeline("mcp: {servers: {repo: {pack: [fs, edit], root: .}}}\nprompt: Talk")
    talking.aish.python = (sys.executable, "-c", NO_READER, sys.executable)

    done = talking.aish(*command)

    assert (done.code, done.stderr) == (0, "")


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("command", "code"),
    [
        (["plan", "p.yaml"], 5),
        (["run", "p.yaml"], 5),
        (["tools", "p.yaml"], 5),
        (["runs", "show", "none"], 2),
        (["test", "p.yaml"], 2),
    ],
    ids=str,
)
def test_a_reader_that_has_gone_hides_no_failure(
    talking: Project, command: list[str], code: int
) -> None:
    talking.pipeline(
        "mcp: {servers: {s: {command: [./none]}}}\n"
        "run: [ls]\n"
        "tests: [{name: a, expect: [contains: b]}]\n"
    )
    heard = talking.aish(*command)
    talking.aish.python = (sys.executable, "-c", NO_READER, sys.executable)

    alone = talking.aish(*command)

    assert (heard.code, alone.code) == (code, code), heard.stderr
    assert "Traceback" not in alone.stderr


@pytest.mark.real_process
def test_a_program_without_buffers_is_no_other(talking: Project) -> None:
    talking.aish.env["PYTHONUNBUFFERED"] = "1"
    talking.pipeline("run: [ls]\n")
    done = talking.aish("validate", "p.yaml")
    assert (done.code, done.stdout) == (0, "p.yaml: ok\n"), done.stderr


@pytest.mark.sampled(2)
@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_descriptors_do_not_disturb_a_run(talking: Project, closed: str) -> None:
    talking.through_shell(f'exec "$@" {closed}')

    done = talking.run("-o", "out.txt")

    assert done.code == 0, done.stderr
    assert (talking.folder / "out.txt").read_text(encoding="utf-8") == LONG + "\n"
    assert "Traceback" not in done.stderr
    assert talking.journal[-1]["exit"]["code"] == 0


@pytest.mark.parametrize(
    "closed",
    sampled(
        [">&-", "2>&-", ">/dev/full", "2>/dev/full"], often={0}, reason="cases of the same kind"
    ),
)
def test_other_commands_bear_lost_streams_too(talking: Project, closed: str) -> None:
    talking.through_shell(f'exec "$@" {closed}')

    listed = talking.aish("plan", "p.yaml")
    wrong = talking.aish("validate", "missing.yaml")

    assert listed.code == (1 if closed == ">/dev/full" else 0)
    assert wrong.code == 2
    assert "Traceback" not in listed.stderr + wrong.stderr


SERVER = "mcp: {servers: {s: {command: [./none]}}}\n"
# What a command ends with whose output can be read.
PRINTING = {
    "--version": 0,
    "--help": 0,
    "run --help": 0,
    "--show-completion bash": 0,
    "validate ok.yaml": 0,
    "validate --format json ok.yaml": 0,
    "validate --format json broken.yaml": 2,
    "plan ok.yaml": 0,
    "plan lost.yaml": 5,
    "plan lost.yaml --format json": 5,
    "tools packs.yaml": 0,
    "tools lost.yaml": 5,
    "tools lost.yaml --format json": 5,
    "lock lost.yaml": 5,
    "lock packs.yaml --diff": 7,
    "doctor lost.yaml": 5,
    "policy explain packs.yaml --tool box__file_list": 0,
    "call packs.yaml box__file_read path=ok.yaml": 0,
    "call packs.yaml box__file_read path=none --format json": 1,
    "schema pipeline": 0,
    "init tools -o new.yaml": 0,
    "runs list": 0,
    "runs show latest": 0,
    "runs show latest --format json": 0,
    "runs report latest": 0,
    "runs pending": 0,
    "cassette show c.yaml": 0,
    "cassette check c.yaml": 0,
    "cassette diff c.yaml c.yaml": 0,
    "test tested.yaml": 1,
    "test tested.yaml --format json": 1,
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("line", PRINTING)
def test_a_command_keeps_its_code_where_stdout_is_full(project: Project, line: str) -> None:
    """A7: the code that it would have had, and 1 for a success that nobody can read."""
    project.pipeline("mcp: {auto_approve: [shell__run]}\nrun: [echo, hi]\n", "ok.yaml")
    project.pipeline("promt: hi\n", "broken.yaml")
    project.pipeline(f"{SERVER}run: [echo, hi]\n", "lost.yaml")
    project.pipeline(
        "mcp: {servers: {box: {pack: fs, root: .}}, auto_approve: ['box__*']}\nrun: [echo, hi]\n",
        "packs.yaml",
    )
    project.pipeline(
        "run: [echo, hi]\ntests: [{name: a, cassette: c.yaml, expect: [contains: no]}]\n",
        "tested.yaml",
    )
    if line.startswith(("runs", "cassette", "test")):
        project.aish("run", "ok.yaml", "--record", "c.yaml")
    if "--diff" in line:
        text = (project.folder / "packs.yaml").read_text()
        assert project.aish("lock", "packs.yaml").code == 0
        project.write("packs.yaml", text.replace("pack: fs", "pack: git"))
    words, code = line.split(), PRINTING[line]

    # Completion looks for the shell that it was started by.
    bash = ("bash", "-c", '"$@"; exit $?', "bash", sys.executable)
    project.aish.python = bash
    plain = project.aish(*words)
    if line.startswith("init"):
        (project.folder / "new.yaml").unlink()
    project.aish.python = (*bash[:2], '"$@" >/dev/full; exit $?', *bash[3:])
    full = project.aish(*words)

    assert plain.code == code, plain.stderr
    said = bool(plain.stdout)
    assert full.code == (code or int(said)), full.stderr
    assert full.stderr.count("No space left on device\n") == int(said)
    assert "Traceback" not in full.stderr
