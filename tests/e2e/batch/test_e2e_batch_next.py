"""A batch that did not end well says what to do next, where there is something to do (B3, B5)."""

import csv
import json
import shlex

import pytest
from e2e_project import ModelEndpoints, Project
from model_endpoint import text_reply

HINT = "`aish run p.yaml --resume --retry-failed` runs the failed items again"
BATCH = """
    models: {}
    mcp: {auto_approve: [shell__run]}
    steps:
      - id: each
        foreach: {file: rows.csv}
        key: item.id
        concurrency: 1
        on_error: continue
        run: [sh, do.sh, "{{ item.id }}"MORE]
    """
BAD = 'case "$1" in k2|k4) echo no >&2; exit 1;; esac\necho "did $1"\n'
STOPS = 'case "$1" in k2) exit 1;; k4) kill -TERM $PPID; exec sleep 60;; esac\necho "did $1"\n'
KILLED = 'case "$1" in k2) exit 1;; k4) kill -KILL $PPID; exit 0;; k5) exit 1;; esac\necho hi\n'


def batch(project: Project, script: str, more: str = "") -> None:
    project.write("rows.csv", "id,note\n" + "".join(f"k{n},=n{n}\n" for n in range(1, 7)))
    project.write("do.sh", script)
    project.pipeline(BATCH.replace("MORE", more))


def test_failed_items_can_be_run_again_and_the_end_says_how(project: Project) -> None:
    batch(project, BAD)

    done = project.run("-q")
    found = project.result("--resume", "--retry-failed", "-q")

    assert done.code == 1
    assert "2 of 6 items failed; first `k2`: the command ended with exit code 1: no" in done.stderr
    assert f"hint: {HINT}\n" in done.stderr
    assert (found["exit"]["code"], found["exit"]["hint"]) == (1, HINT)


def test_the_command_that_is_advised_works_and_is_the_last_line_but_one(project: Project) -> None:
    batch(project, BAD)

    done = project.run("--run-dir", "my runs")
    advised = next(line for line in reversed(done.stderr.splitlines()) if "hint: " in line)
    command = shlex.split(advised.partition("`")[2].partition("`")[0])
    again = project.aish(*command[1:], "-q")

    assert command[3:] == ["--resume", "--run-dir", "my runs", "--retry-failed"]
    exit_line = next(line for line in done.stderr.splitlines() if "exit 1 (" in line)
    assert done.stderr.rindex(advised) > done.stderr.index(exit_line)
    assert "2 of 6 items failed" in again.stderr


def test_what_failed_before_this_part_is_told_apart(project: Project) -> None:
    batch(project, KILLED)
    assert project.run().code == -9
    project.write("do.sh", KILLED.replace("kill -KILL $PPID; ", ""))

    more = project.run("--resume", "--retry-unknown", "-q")
    none = project.run("--resume", "-q")

    assert "2 of 6 items failed (1 before this part); first `k5`: " in more.stderr
    assert "2 of 6 items failed (all before this part)\n" in none.stderr
    assert HINT in more.stderr
    assert HINT in none.stderr


@pytest.mark.sampled(2)
@pytest.mark.parametrize("flag", ["--ephemeral", "--record", "template", "denied"])
def test_nothing_is_advised_that_cannot_help(project: Project, flag: str) -> None:
    more = ', "{{ item.nothing }}"' if flag == "template" else ""
    batch(project, BAD, more)
    flags: tuple[str, ...] = ("--record", "c.yaml") if flag == "--record" else (flag,)
    if flag == "denied":
        flags = ("--deny", "shell__run")

    done = project.run("-q", *(() if flag == "template" else flags))

    assert done.code == (3 if flag == "denied" else 1)
    assert "of 6 items failed" in done.stderr
    assert "--retry-failed" not in done.stderr


@pytest.mark.parametrize("mendable", [False, True])
def test_a_resumed_run_advises_it_only_for_what_can_be_mended(
    project: Project, *, mendable: bool
) -> None:
    batch(project, BAD if mendable else "echo done")
    project.write("rows.csv", 'id,note\nk1,a\n"",b\nk2,c\n')
    assert project.run().code == 1

    done = project.run("--resume", "-q")

    failed = "2 of 3 items failed" if mendable else "1 of 3 items failed"
    assert f"{failed} (all before this part)" in done.stderr
    assert ("--retry-failed" in done.stderr) is mendable


def test_a_run_that_was_interrupted_has_a_table_of_what_has_ended(project: Project) -> None:
    batch(project, STOPS)

    done = project.run("-q", "-o", "out.csv")
    (folder,) = project.run_folders
    made = project.aish("runs", "report", folder.name, "-o", "part.csv")
    raw = project.aish("runs", "report", "latest", "-o", "p.jsonl", "--format", "json")

    assert done.code == 143
    assert "note: `out.csv` is not written: not all items have ended" in done.stderr
    command = f"aish runs report {folder.name} -o out.csv"
    assert f"hint: `{command}` writes the finished ones" in done.stderr
    assert (made.code, made.stdout) == (0, "part.csv\n")
    with (project.folder / "part.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["id"], row["note"], row["status"]) for row in rows] == [
        ("k1", "=n1", "ok"),
        ("k2", "=n2", "failed"),
        ("k3", "=n3", "ok"),
    ]
    assert json.loads(raw.stdout)["items"] == len(rows)
    assert not (folder / "report.html").exists()


def test_the_table_of_a_run_without_items_is_an_error(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    project.uses(model_endpoint([text_reply("Hello.")]))
    project.pipeline("prompt: Say hello")
    assert project.run().code == 0

    none = project.aish("runs", "report", "latest", "-o", "x.csv")
    other = project.aish("runs", "report", "latest", "-o", "x.txt")
    alone = project.aish("runs", "report", "latest", "--step", "main")

    assert (none.code, other.code, alone.code) == (2, 2, 2)
    assert "there are no items" in none.stderr
    assert "items are written as `.csv`" in other.stderr
    assert "`--step` goes with `-o FILE.csv`" in alone.stderr
