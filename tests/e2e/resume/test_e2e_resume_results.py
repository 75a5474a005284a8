"""Calls whose results are in the journal are not made again after a crash (B3, A10)."""

import json
import signal
from textwrap import dedent
from typing import Any

import pytest
from e2e_project import ModelEndpoints, Project, driven
from model_endpoint import Gate, ModelEndpoint, Reply, text_reply, tool_reply

PAY = "echo {} >> paid.txt"
MODES = {
    "step": "steps: [{id: pay, prompt: 'Pay a'}]",
    "item": "steps: [{id: pay, foreach: \"['a']\", key: item, prompt: 'Pay {{ item }}'}]",
    "continued": """steps:
      - {id: pay, prompt: 'Pay a'}
      - {id: more, continues: pay, prompt: 'Then what?'}""",
    "structured": """steps:
      - {id: pay, prompt: 'Pay a', output: {schema: {type: object, required: [paid]}}}""",
    "sub-pipeline": "steps: [{id: outer, pipeline: inner.yaml, with: {name: a}}]",
    "item that is a pipeline": """steps:
      - {id: outer, foreach: "['a']", key: item, pipeline: inner.yaml,
         with: {name: '{{ item }}'}}""",
}
INNER = """
    inputs: {name: {type: string}}
    steps:
      - {id: before, run: [sh, note.sh]}
      - {id: pay, needs: [before], prompt: "Pay {{ inputs.name }}"}
    """
BOX = """
    mcp:
      servers: {box: {pack: [shell], root: .}}
      auto_approve: [box__shell_run, shell__run]
    """
# In the first part; the second payment is in a round of its own, the third in one with the second.
PLACES = [
    *(f"{where}:tool.finished:{number}" for where in ("after", "torn") for number in (1, 2)),
    *("before:turn.started:2", "after:turn.started:2", "before:turn.finished:2"),
    *("after:turn.finished:2", "after:tool.decided:2", "before:tool.started:2"),
    *("after:tool.finished:3", "after:turn.started:3", "after:turn.finished:3"),
]


def lines(project: Project, name: str = "paid.txt") -> list[str]:
    path = project.folder / name
    return path.read_text("utf-8").splitlines() if path.exists() else []


def answer(body: Any) -> Reply:
    """Pays once, then twice in one turn, then answers."""
    if body["messages"][-1]["role"] == "user" and "Pay" not in body["messages"][-1]["content"]:
        return text_reply("the end")
    replies = sum(message["role"] == "tool" for message in body["messages"])
    calls = {0: ["one"], 1: ["two", "three"]}.get(replies)
    if calls is None:
        return text_reply('{"paid": true}')
    commands = [json.dumps({"command": PAY.format(one)}) for one in calls]
    ids = [f"c{replies}{number}" for number in range(len(calls))]
    return tool_reply([(id, "box__shell_run", c) for id, c in zip(ids, commands, strict=True)])


def paying(project: Project, model_endpoint: ModelEndpoints, steps: str) -> ModelEndpoint:
    endpoint = model_endpoint(answer)
    project.uses(endpoint)
    project.write("note.sh", "echo before >> before.txt\n")
    project.pipeline(dedent(BOX) + dedent(INNER), "inner.yaml")
    project.pipeline(dedent(BOX) + steps)
    return endpoint


def dies(project: Project, failpoint: str, *flags: str) -> None:
    done = driven(project, failpoint, "run", "p.yaml", *flags).finish()
    assert done.code == -signal.SIGKILL, done.stderr


@pytest.mark.sampled(2)
@pytest.mark.parametrize("mode", MODES)
def test_a_payment_that_is_known_is_not_made_again(
    project: Project, model_endpoint: ModelEndpoints, mode: str
) -> None:
    endpoint = paying(project, model_endpoint, MODES[mode])
    whole = project.run()
    assert whole.code == 0, whole.stderr
    sent = [request.json["messages"] for request in endpoint.requests]
    for place in PLACES[:1] if "pipeline" in mode else PLACES[::3]:
        (project.folder / "paid.txt").unlink()
        first = len(endpoint.requests)
        is_later = mode in {"sub-pipeline", "item that is a pipeline"}
        dies(project, place.replace("finished:1", "finished:2") if is_later else place)
        known = len(lines(project))

        done = project.run("--resume")

        if done.code == 2:
            # It was made, and the record of its end was not written.
            assert place.startswith("torn"), done.stderr
            assert len(lines(project)) == known
            continue
        assert (done.code, done.stdout) == (0, whole.stdout), f"{place}: {done.stderr}"
        assert lines(project) == ["one", "two", "three"], place
        # Each request was as if nothing had happened, and only the one under way was sent again.
        asked = [request.json["messages"] for request in endpoint.requests[first:]]
        assert [one for at, one in enumerate(asked) if at == 0 or one != asked[at - 1]] == sent
        assert len(asked) <= len(sent) + 1


@pytest.mark.parametrize("mode", ["step", "item"])
def test_a_payment_is_not_made_again_however_often_the_run_is_killed(
    project: Project, model_endpoint: ModelEndpoints, mode: str
) -> None:
    paying(project, model_endpoint, MODES[mode])
    dies(project, "after:tool.finished:1")
    for place in ("after:notice:2", "after:turn.started:1", "after:tool.finished:1"):
        dies(project, place, "--resume")
    dies(project, "after:turn.started:1", "--resume")

    done = project.run("--resume")

    assert (done.code, lines(project)) == (0, ["one", "two", "three"]), done.stderr


@pytest.mark.parametrize("kind", [signal.SIGINT, signal.SIGTERM])
def test_a_payment_before_a_signal_is_not_made_again(
    project: Project, model_endpoint: ModelEndpoints, kind: signal.Signals
) -> None:
    gate = Gate()
    paying(project, model_endpoint, MODES["step"])
    waits = model_endpoint(
        lambda body: answer(body).but(before_head=gate if len(body["messages"]) > 2 else None)
    )
    project.uses(waits)
    running = project.aish.start("run", "p.yaml")
    gate.wait_arrived()
    running.interrupt(kind)
    assert running.finish().code == 128 + kind
    gate.open()
    assert lines(project) == ["one"]

    done = project.run("--resume")

    assert (done.code, lines(project)) == (0, ["one", "two", "three"]), done.stderr


def test_a_payment_is_named_where_its_conversation_is_lost(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    long = """steps: [{id: pay, system: "{{ 'be careful, ' * 5000 }}", prompt: 'Pay a'}]"""
    paying(project, model_endpoint, long)
    dies(project, "after:turn.started:2")
    (kept,) = (project.run_folders[0] / "files").iterdir()
    kept.rename(project.folder / "kept")

    done = project.run("--resume")

    assert done.code == 2
    assert "1 call would be made again" in done.stderr
    (project.folder / "kept").rename(kept)
    done = project.run("--resume")
    assert (done.code, lines(project)) == (0, ["one", "two", "three"]), done.stderr


def test_a_payment_is_named_where_its_conversation_had_a_secret(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    project.aish.env["TOKEN"] = "hush-hush-hush"
    steps = MODES["step"].replace("Pay a", "Pay hush-hush-hush")
    paying(project, model_endpoint, f"secrets: [TOKEN]\n{steps}")
    dies(project, "after:turn.started:2")

    done = project.run("--resume")

    assert done.code == 2
    assert "1 call would be made again" in done.stderr
