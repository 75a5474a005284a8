"""The journal of a real run that is killed at any moment: nothing that was told is lost (B2)."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
from e2e_project import PATIENCE, ModelEndpoints, Project, of_type
from model_endpoint import Gate, Reply, text_reply, tool_reply
from samples import sampled

from aish.core.errors import UsageError
from aish.journal.reader import read_journal
from aish.journal.writer import open_journal

SEED = 20261121
KILLS = 30
GROUPS = 3
TURNS = 5
PIPELINE = """
name: killed
mcp:
  servers: {repo: {pack: [fs], root: .}}
  auto_approve: [repo__*]
steps: [{id: look, prompt: Look around}, {id: more, prompt: And again}]
"""


def answers(request: Any) -> Reply:
    """Three tools at a time for some turns, then a text."""
    said = [message for message in request["messages"] if message["role"] == "assistant"]
    if len(said) == TURNS:
        return text_reply("done")
    calls = [(f"c{len(said)}{n}", "repo__dir_list", '{"path": "."}') for n in range(3)]
    return tool_reply(calls)


@pytest.fixture
def busy(project: Project, model_endpoint: ModelEndpoints) -> Project:
    project.uses(model_endpoint(answers))
    project.pipeline(PIPELINE)
    return project


def recorded(folder: Path) -> list[Any]:
    """What the reader makes of a run's journal."""
    with read_journal(folder / "events.jsonl") as reading:
        return list(reading)


@pytest.mark.slow(reason="kills a run at many moments")
@pytest.mark.parametrize("group", sampled(range(GROUPS), often={0}, reason="each kills many runs"))
def test_a_run_killed_at_any_moment_has_in_its_journal_all_that_it_told(
    busy: Project, group: int
) -> None:
    whole = busy.run("--format", "jsonl")
    assert whole.code == 0, whole.stderr
    lines = whole.stdout.count("\n")
    chance = random.Random(SEED + group)
    for kill in range(KILLS // GROUPS):
        after = chance.randrange(1, lines)
        kept = Path(f"kept{kill}")
        with busy.aish.start("run", "p.yaml", "--format", "jsonl", "--run-dir", kept) as running:
            running.wait_for_lines(after)
            running.process.kill()
            done = running.finish()

        assert done.code in {-9, 0}
        told = [json.loads(line) for line in done.stdout.splitlines() if line.endswith("}")]
        (folder,) = (busy.folder / kept).iterdir()
        found = recorded(folder)
        assert len(told) >= after
        expected = [event for event in told if not event["type"].endswith(".delta")]
        assert found[: len(expected)] == expected, f"killed after line {after}"
        assert len(found) <= len(expected) + 1


def test_a_second_process_cannot_write_the_journal_of_a_running_one(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    gate = Gate()
    project.uses(model_endpoint([text_reply("late").but(before_head=gate)]))
    project.pipeline("prompt: Hello")
    with project.aish.start("run", "p.yaml") as running:
        gate.wait_arrived()
        (folder,) = project.run_folders
        with pytest.raises(UsageError, match=f"is being written by process {running.pid}"):
            open_journal(folder)
        gate.open()
        assert running.finish(PATIENCE).code == 0

    open_journal(folder).close()


def test_a_disk_that_fills_up_leaves_what_was_told_and_the_run_says_so(busy: Project) -> None:
    busy.through_shell('ulimit -f 8; exec "$@"')

    done = busy.run("--format", "jsonl")

    assert done.code == 1
    assert "error: cannot write the journal: " in done.stderr
    (folder,) = busy.run_folders
    told = [json.loads(line) for line in done.stdout.splitlines()]
    found = recorded(folder)
    assert found
    assert found == [event for event in told if not event["type"].endswith(".delta")][: len(found)]
    assert of_type(told, "run.finished")


def test_the_journal_has_the_whole_text_and_no_pieces_of_it(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    project.uses(model_endpoint([text_reply("Hello there.")]))
    project.pipeline("prompt: Hello")
    done = project.run("--format", "jsonl")

    (folder,) = project.run_folders
    found = recorded(folder)

    assert of_type([json.loads(line) for line in done.stdout.splitlines()], "text.delta")
    assert not of_type(found, "text.delta")
    assert [turn["text"] for turn in of_type(found, "turn.finished")] == ["Hello there."]
