"""stdout is a contract (B12): how the event stream begins and ends, and that it only ever grows."""

import json
import signal
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from cli_process import Done
from e2e_project import ModelEndpoints, Project
from model_endpoint import Gate, hanging_reply, json_reply, text_reply, tool_reply

from aish.system.files import schema_text

BEFORE = Path(__file__).parents[2] / "data" / "contract"
DENIED = tool_reply([("call_1", "repo__file_read", '{"path": "p.yaml"}')])
SERVERS = "mcp: {servers: {repo: {pack: [fs], root: .}}}"
ASK = "steps: [{id: ask, prompt: Hello there}]"
# What a file says, how its model answers, how it ends.
ENDINGS: Mapping[str, tuple[str, Sequence[Any], int]] = {
    "ok": (ASK, [text_reply("fine")], 0),
    "failed": (
        "steps: [{id: ask, prompt: Hello there, expect: [{contains: x}]}]",
        [text_reply("no")],
        1,
    ),
    "denied": (
        f"{SERVERS}\nsteps: [{{id: ask, prompt: Hello there, on_denied: fail}}]",
        [DENIED, text_reply("so be it")],
        3,
    ),
    "budget": (
        f"limits: {{turns: 1}}\n{SERVERS[:-1]}, auto_approve: ['*__*']}}\n{ASK}",
        [DENIED, text_reply("late")],
        4,
    ),
    "unavailable": (
        ASK,
        [json_reply(401, {"error": {"message": "no"}})],
        5,
    ),
    "no server": (
        f"mcp: {{servers: {{gone: {{command: [/nowhere/server]}}}}}}\n{ASK}",
        [text_reply("never")],
        5,
    ),
    "skipped": (
        """
        steps: [{id: one, run: ['false']}, {id: two, prompt: Hello there, needs: [one]}]
        mcp: {auto_approve: [shell__run]}
        """,
        [],
        1,
    ),
}


def checked(done: Done) -> list[Any]:
    """The events of a whole stream; fails where anything else is on stdout."""
    assert done.stdout.endswith("\n")
    events = [json.loads(line) for line in done.stdout.splitlines()]
    assert [one["type"] for one in events].count("run.started") == 1
    assert (events[0]["type"], events[-1]["type"]) == ("run.started", "run.finished")
    assert {one["v"] for one in events} == {1}
    assert [one["seq"] for one in events] == sorted({one["seq"] for one in events})
    assert events[-1]["exit"]["code"] == done.code
    return events


@pytest.mark.parametrize("ending", ENDINGS)
def test_however_a_run_ends_its_stream_is_whole(
    project: Project, model_endpoint: ModelEndpoints, ending: str
) -> None:
    text, replies, code = ENDINGS[ending]
    project.uses(model_endpoint(replies))
    project.pipeline(text)

    done = project.run("--format", "jsonl")

    assert done.code == code, done.stderr
    events = checked(done)
    head, tail = events[0], events[-1]
    assert {"aish", "models", "servers", "rules", "limits", "inputs"} <= head.keys()
    assert {"status", "exit", "usage", "cost_usd", "denials", "seconds"} <= tail.keys()
    assert {"code", "name", "retryable", "reason", "hint"} <= tail["exit"].keys()
    assert bool(tail["denials"]) is (ending == "denied")


def test_the_head_tells_of_servers_and_their_state(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    project.uses(model_endpoint([text_reply("fine")]))
    project.pipeline(
        """
        mcp:
          servers:
            repo: {pack: [fs], root: .}
            gone: {command: [/nowhere/server], required: false}
          auto_approve: [repo__file_read]
        prompt: Hello there
        """
    )

    head = checked(project.run("--format", "jsonl"))[0]

    servers = {one["alias"]: one for one in head["servers"]}
    assert servers["repo"]["state"] == "ready"
    assert servers["repo"]["tools"] > 0
    assert servers["gone"]["state"] == "failed"
    assert servers["gone"]["error"]
    assert {"list": "auto_approve", "rule": "repo__file_read"} in head["rules"]
    assert head["models"][0]["model"] == "scripted"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_the_stream_in_order(
    project: Project, model_endpoint: ModelEndpoints, number: signal.Signals, code: int
) -> None:
    project.uses(model_endpoint([hanging_reply(Gate())]))
    project.pipeline(ASK)

    with project.aish.start("run", "p.yaml", "--format", "jsonl") as running:
        running.wait_for_line("asking m")
        running.process.send_signal(number)
        done = running.finish()

    assert done.code == code
    end = checked(done)[-1]
    assert (end["status"], end["exit"]["name"]) == ("interrupted", "interrupted")
    assert end["exit"]["retryable"] is True


@pytest.mark.sampled(4)
@pytest.mark.parametrize("form", ["text", "json", "jsonl"])
@pytest.mark.parametrize(
    "text", ["prompt: {{ inputs.no }}", "name: x\nnmae: y", "prompt: Hello there\nmodel: other"]
)
def test_what_cannot_run_leaves_stdout_empty(project: Project, form: str, text: str) -> None:
    project.pipeline(text)

    done = project.run("--format", form)

    assert (done.code, done.stdout) == (2, "")
    assert done.stderr.startswith("error: ")


@pytest.mark.parametrize("name", ["events", "result"])
def test_the_contract_has_only_grown(name: str) -> None:
    """Against what was published last: no key, word or promise of it is gone."""
    file = f"{name}.schema.json"
    before = json.loads((BEFORE / file).read_text("utf-8"))
    now = json.loads(schema_text(file))

    assert list(_lost(before, now, before, now, name)) == []


def _lost(old: Any, new: Any, olds: Any, news: Any, path: str) -> Iterator[str]:
    old, new = _resolved(old, olds), _resolved(new, news)
    for word in ("const", "type", "pattern", "format"):
        if word in old and old[word] != new.get(word):
            yield f"{path}: {word} was {old[word]}, and is {new.get(word)}"
    yield from (f"{path}: no {one!r} any more" for one in _gone("enum", old, new))
    yield from (f"{path}: {one} may be missing" for one in _gone("required", old, new))
    for key, schema in old.get("properties", {}).items():
        if key in new.get("properties", {}):
            yield from _lost(schema, new["properties"][key], olds, news, f"{path}.{key}")
        else:
            yield f"{path}: no {key} any more"
    for key in ("items", "additionalProperties"):
        if isinstance(old.get(key), dict) and isinstance(new.get(key), dict):
            yield from _lost(old[key], new[key], olds, news, f"{path}[]")
    for key, schema in old.get("$defs", {}).items():
        if key in new["$defs"]:
            yield from _lost(schema, new["$defs"][key], olds, news, key)
        else:
            yield f"{path}: no {key} any more"


def _gone(word: str, old: Any, new: Any) -> Sequence[Any]:
    return [one for one in old.get(word, ()) if one not in new.get(word, ())]


def _resolved(schema: Any, whole: Any) -> Any:
    while "$ref" in schema:
        schema = whole["$defs"][schema["$ref"].removeprefix("#/$defs/")]
    return schema


@pytest.mark.parametrize(
    "change",
    [
        lambda schema: schema["$defs"]["notice"]["properties"].pop("code"),
        lambda schema: schema["$defs"]["exit"]["required"].remove("reason"),
        lambda schema: schema["$defs"]["step_status"]["enum"].remove("ok"),
        lambda schema: schema["$defs"].pop("retry"),
        lambda schema: schema["properties"]["seq"].update(type="string"),
    ],
)
def test_a_contract_that_shrinks_is_found(change: Any) -> None:
    before = json.loads((BEFORE / "events.schema.json").read_text("utf-8"))
    now = json.loads(json.dumps(before))
    change(now)

    assert len(list(_lost(before, now, before, now, ""))) >= 1
