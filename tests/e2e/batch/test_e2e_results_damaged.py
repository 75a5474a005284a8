"""`results.jsonl` is made of the journal: whatever becomes of it, a resumed run has all of it."""

import csv
import json
import re
from collections.abc import Callable
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest
from e2e_project import ModelEndpoints, Project
from model_endpoint import Reply, json_reply, text_reply

Lines = list[str]
ROWS = 6


def answer(request: Any) -> Reply:
    """One row fails, so that there is something to go on with."""
    text = request["messages"][-1]["content"]
    if text == "row r5":
        return json_reply(400, {"error": {"message": "no"}})
    return text_reply(f"<{text}>")


@pytest.fixture
def batch(project: Project, model_endpoint: ModelEndpoints) -> Path:
    """A batch that was run; the file with its results."""
    project.write("rows.jsonl", "".join(f'{{"id": "r{n}"}}\n' for n in range(ROWS)))
    project.pipeline(
        """
        steps:
          - {id: each, foreach: {file: rows.jsonl}, key: item.id, on_error: continue,
             prompt: "row {{ item.id }}"}
        """
    )
    project.uses(model_endpoint(answer))
    assert project.run().code == 1
    (folder,) = project.run_folders
    return folder / "results.jsonl"


DAMAGES: dict[str, Callable[[Lines], Lines]] = {
    "without the first": itemgetter(slice(1, None)),
    "without one in the middle": lambda lines: lines[:2] + lines[3:],
    "without the last": itemgetter(slice(-1)),
    "empty": lambda _: [],
    "cut in the middle": lambda lines: [*lines[:2], lines[2][:30], *lines[3:]],
    "in CRLF": lambda lines: [line.replace("\n", "\r\n") for line in lines],
    "twice": lambda lines: lines + lines,
}


def keys_of_table(project: Project) -> list[str]:
    text = (project.folder / "o.csv").read_text("utf-8")
    return [row["key"] for row in csv.DictReader(text.splitlines())]


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "damage", [pytest.param(damage, id=name) for name, damage in DAMAGES.items()]
)
def test_damaged_results_are_made_anew_from_the_journal(
    project: Project, batch: Path, damage: Callable[[Lines], Lines]
) -> None:
    lines = batch.read_text("utf-8").splitlines(keepends=True)
    before = sorted(map(json.loads, lines), key=itemgetter("index"))
    batch.write_bytes("".join(damage(lines)).encode())

    done = project.run("--resume", "-o", "o.csv")

    assert done.code == 1, done.stderr
    assert keys_of_table(project) == [f"r{n}" for n in range(ROWS)]
    after = [json.loads(line) for line in batch.read_text("utf-8").splitlines()]
    assert sorted(after, key=itemgetter("index")) == before


def test_no_result_is_lost_where_rows_were_put_between_and_the_run_goes_on_by_force(
    project: Project, batch: Path
) -> None:
    rows = (project.folder / "rows.jsonl").read_text("utf-8")
    project.write("rows.jsonl", '{"id": "new"}\n' + rows)

    done = project.run("--resume", "--force", "-o", "o.csv")

    assert done.code == 1, done.stderr
    assert sorted(keys_of_table(project)) == ["new", *(f"r{n}" for n in range(ROWS))]
    kept = [json.loads(line)["key"] for line in batch.read_text("utf-8").splitlines()]
    assert sorted(kept) == ["new", *(f"r{n}" for n in range(ROWS))]


MOVES = {
    "one before": ["new", *(f"r{n}" for n in range(ROWS))],
    "backwards": [f"r{n}" for n in reversed(range(ROWS))],
    "without the first": [f"r{n}" for n in range(1, ROWS)],
    "the failed one first": ["r5", "r0", "r1", "new", "r2", "r3", "r4"],
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("keys", [pytest.param(keys, id=name) for name, keys in MOVES.items()])
@pytest.mark.parametrize("together", [1, 4])
def test_rows_that_have_moved_have_one_result_each_in_the_order_of_the_file(
    project: Project, batch: Path, model_endpoint: ModelEndpoints, keys: list[str], together: int
) -> None:
    """In each table and each report, and in what later steps and a second resumption read."""
    project.uses(model_endpoint(lambda request: text_reply(request["messages"][-1]["content"])))
    project.write("rows.jsonl", "".join(f'{{"id": "{key}"}}\n' for key in keys))
    gone = [f"r{n}" for n in range(ROWS) if f"r{n}" not in keys]

    done = project.run(
        *("--resume", "--retry-failed", "--force", "--concurrency", str(together)),
        *("-o", "o.csv", "--junit", "j.xml", "--html", "h.html"),
    )

    assert done.code == 0, done.stderr
    assert keys_of_table(project) == keys + gone
    named = re.findall(
        r'<testcase classname="each" name="([^"]*)"', (project.folder / "j.xml").read_text("utf-8")
    )
    assert [case for case in named if case != "each"] in _merged(keys, gone)
    page = (project.folder / "h.html").read_text("utf-8")
    places = [page.index(f">{key}<") for key in keys]
    assert places == sorted(places)
    (id,) = [folder.name for folder in project.run_folders]
    assert project.aish("runs", "report", id, "-o", "o.csv").code == 0
    assert keys_of_table(project) == keys + gone
    # The results say it again by themselves, and so does the journal.
    shown = project.run("--resume", "--format", "json")
    assert [row["key"] for row in json.loads(shown.stdout)["steps"]["each"]["items"]] == keys + gone
    batch.unlink()
    assert project.run("--resume", "-o", "o.csv").code == 0
    assert keys_of_table(project) == keys + gone


def _merged(keys: list[str], gone: list[str]) -> list[list[str]]:
    """The keys in order, with what is gone at any place between them."""
    return [keys[:at] + gone + keys[at:] for at in range(len(keys) + 1)]
