"""`results.jsonl` is made of the journal: whatever becomes of it, a resumed run has all of it."""

import csv
import json
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


@pytest.mark.requirement("B1", "B3", "B4")
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


@pytest.mark.requirement("B3")
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
