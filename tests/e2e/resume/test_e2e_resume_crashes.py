"""Killed anywhere, a run goes on: nothing done is lost or done again (promise 7, B3, B14).

One batch is killed many times, at named places and at seeded moments, resumed each time and then
left to end. It has to look as if nothing had ever happened to it.
"""

import json
import random
import signal
import subprocess
from collections import Counter
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest
from cli_process import Running
from e2e_project import ModelEndpoints, Project, driven, of_type
from model_endpoint import Gate, ModelEndpoint, Reply, hanging_reply, text_reply, tool_reply

from aish.journal.reader import read_journal

ITEMS = 200
WIDTH = 8
KILLS = 25
# Of what one process asks, where it is killed at any time: so it lives on with work left to do.
MOST_ANSWERS = 6
SEED = 20261121
PIPELINE = f"""
    mcp:
      servers: {{repo: {{pack: fs, root: data}}}}
      auto_approve: ["repo__*"]
    steps:
      - {{id: rows, foreach: {{file: rows.jsonl}}, key: item.id, concurrency: {WIDTH},
         on_error: continue, prompt: "Row {{{{ item.id }}}}"}}
      - {{id: count, prompt: "There are {{{{ steps.rows | length }}}}", tools: []}}
    """
# Of each record the places around its write, and of those that are synced around the sync.
FAILPOINTS = [
    f"{where}:{what}:{number}"
    for what, number in (
        ("run.started", 1),
        ("step.started", 1),
        ("item.started", 3),
        ("turn.started", 4),
        ("tool.decided", 2),
        ("tool.started", 2),
        ("tool.finished", 2),
        ("turn.finished", 4),
        ("item.finished", 2),
        ("results", 2),
    )
    for where in ("before", "torn", "after")
] + ["unsynced:item.finished:2", "synced:item.finished:2", "unsynced:tool.finished:1"]
# One place at each record, and all around the syncs.
SOME_FAILPOINTS = [FAILPOINTS[3 * n + n % 3] for n in range(10)] + FAILPOINTS[-3:]
LAST = [
    f"{where}:{what}:1"
    for what in ("step.finished", "run.finished")
    for where in ("before", "torn", "after")
]


def prompt_of(body: Any) -> str:
    """What a request is about: its first user message."""
    return next(str(m["content"]) for m in body["messages"] if m["role"] == "user")


def answer(body: Any) -> Reply:
    """Every other row reads a file first."""
    prompt = prompt_of(body)
    number = int(prompt.removeprefix("Row r")) if prompt.startswith("Row") else -1
    asked = body["messages"][-1]["role"] == "tool"
    if number % 2 == 0 and not asked:
        return tool_reply([(f"c{number}", "repo__file_read", '{"path": "note.txt"}')])
    return text_reply(f"<{prompt}>")


@dataclass
class Batch:
    """A batch that is killed again and again, and what was done at each of its deaths."""

    project: Project
    endpoint: ModelEndpoint
    kills: int = 0
    done: dict[str, int] = field(default_factory=dict)
    answered_up_to: int | None = None
    """How many requests are answered, where not all of them: no process comes further."""

    @property
    def folder(self) -> Path | None:
        return next(iter(self.project.run_folders), None)

    def arguments(self) -> list[str]:
        """Begins the run, or goes on with it where it got as far as its beginning."""
        begun = self.folder is not None and any(self.events("run.started"))
        return ["run", "p.yaml", *(["--resume"] if begun else [])]

    def events(self, kind: str) -> list[Any]:
        assert self.folder is not None
        with read_journal(self.folder / "events.jsonl") as reading:
            return of_type(list(reading), kind)

    def asked(self) -> Counter[str]:
        return Counter(prompt_of(request.json) for request in self.endpoint.requests)

    def forget_unbegun(self) -> None:
        """A run that was killed before it began is begun anew, and there is one run only."""
        if self.folder is not None and not any(self.events("run.started")):
            for path in sorted(self.folder.rglob("*"), reverse=True):
                path.rmdir() if path.is_dir() else path.unlink()
            self.folder.rmdir()

    def died(self, process: Running) -> None:
        """See after a death that what was done before has stayed so."""
        self.kills += 1
        self.forget_unbegun()
        if self.folder is None:
            return
        finished = Counter(event["key"] for event in self.events("item.finished"))
        assert set(finished.values()) <= {1}, process.stderr
        assert set(self.done) <= set(finished), "something that was done is lost"
        asked = self.asked()
        for key in finished:
            self.done.setdefault(key, asked[f"Row {key}"])

    def end(self) -> None:
        """Let it end, and hold it against a run that nothing happened to."""
        done = self.project.aish(*self.arguments())
        assert done.code == 0, done.stderr
        assert done.stdout == f"<There are {ITEMS}>\n"
        assert self.folder is not None
        finished = Counter(event["key"] for event in self.events("item.finished"))
        assert finished == {f"r{n}": 1 for n in range(ITEMS)}
        asked = self.asked()
        again = {key: asked[f"Row {key}"] - before for key, before in self.done.items()}
        assert not any(again.values()), "something that was done was asked for again"
        undisturbed = ITEMS + ITEMS // 2 + 1
        assert sum(asked.values()) <= undisturbed + 2 * WIDTH * self.kills
        assert rows(self.folder) == undisturbed_rows(self.project)
        self.endpoint.wait_closed()


def rows(folder: Path) -> list[Any]:
    """The results of the items, without what is another in each run."""
    lines = (folder / "results.jsonl").read_text("utf-8").splitlines()
    found = [json.loads(line) for line in lines]
    for row in found:
        del row["seq"], row["seconds"]
    return sorted(found, key=itemgetter("index"))


def undisturbed_rows(project: Project) -> list[Any]:
    done = project.aish("run", "p.yaml", "--run-dir", "undisturbed")
    assert done.code == 0, done.stderr
    (folder,) = (project.folder / "undisturbed").iterdir()
    return rows(folder)


@pytest.fixture
def batch(project: Project, model_endpoint: ModelEndpoints) -> Batch:
    project.write("rows.jsonl", "".join(f'{{"id": "r{n}"}}\n' for n in range(ITEMS)))
    project.write("data/note.txt", "a note\n")
    project.pipeline(PIPELINE)
    batch: Batch

    def limited(body: Any) -> Reply:
        most, number = batch.answered_up_to, len(batch.endpoint.requests)
        return answer(body) if most is None or number <= most else hanging_reply(Gate())

    endpoint = model_endpoint(limited)
    project.uses(endpoint)
    batch = Batch(project, endpoint)
    return batch


@pytest.mark.parametrize(
    "failpoints",
    [
        pytest.param(SOME_FAILPOINTS, id="some"),
        pytest.param(
            FAILPOINTS,
            id="all",
            marks=pytest.mark.slow(reason="thirty deaths; at each record one is in the first case"),
        ),
    ],
)
def test_a_batch_survives_a_kill_at_every_failpoint(batch: Batch, failpoints: list[str]) -> None:
    for failpoint in failpoints:
        process = driven(batch.project, failpoint, *batch.arguments())
        code = process.finish().code
        assert code == -signal.SIGKILL, f"{failpoint}: {process.stderr}"
        batch.died(process)
    batch.end()


@pytest.mark.slow(reason="a kill at each other place is in the case that always runs")
def test_a_batch_survives_a_kill_at_its_very_end(batch: Batch) -> None:
    for failpoint in LAST:
        process = driven(batch.project, failpoint, *batch.arguments())
        assert process.finish().code in {-signal.SIGKILL, 0}, f"{failpoint}: {process.stderr}"
        batch.died(process)
    batch.end()


@pytest.mark.slow(reason="many runs; each place where one can die is in the tests above")
def test_a_batch_survives_many_kills_at_any_time(batch: Batch) -> None:
    chance = random.Random(SEED)
    while batch.kills < KILLS and len(batch.done) < ITEMS - 2 * WIDTH:
        before = len(batch.endpoint.requests)
        batch.answered_up_to = before + MOST_ANSWERS
        process = batch.project.aish.start(*batch.arguments())
        batch.endpoint.wait_requests(before + chance.randrange(1, 4))
        try:
            process.process.wait(chance.random() * 0.01)
        except subprocess.TimeoutExpired:
            process.interrupt(signal.SIGKILL)
        process.finish()
        batch.died(process)
    assert batch.kills > KILLS // 2
    batch.answered_up_to = None
    batch.end()
