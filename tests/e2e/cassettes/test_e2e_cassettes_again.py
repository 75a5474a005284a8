"""A replay is the same each time, whatever went wrong in the recording and however busy it is."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from e2e_project import ModelEndpoints, Project, http_server, stdio
from model_endpoint import (
    CUT,
    Gate,
    Reply,
    delta,
    hanging_reply,
    json_reply,
    sse,
    stream_reply,
    text_reply,
    tool_reply,
)

OF_THIS_RUN = {"seq", "at", "time", "seconds", "first_token_seconds", "run", "folder", "digest"}


def without_times(value: Any) -> Any:
    """An event without what is of one run alone; an approval's digest has the run in it (P6)."""
    if isinstance(value, dict):
        return {k: without_times(below) for k, below in value.items() if k not in OF_THIS_RUN}
    return [without_times(below) for below in value] if isinstance(value, list) else value


def events(stdout: str) -> list[Any]:
    found = [without_times(json.loads(line)) for line in stdout.splitlines()]
    # What is said of the cassette itself: recorded, replayed.
    return [{key: below for key, below in one.items() if key != "cassette"} for one in found]


def unordered(stdout: str) -> list[str]:
    """What does not depend on which of several calls ended first, nor on chance."""
    return sorted(json.dumps(one) for one in events(stdout) if one["type"] != "retry")


def replies(gate: Gate) -> Iterator[Reply]:
    """Refusals, a broken stream, silence, and calls of three servers at the same time."""
    echoes = [(f"c{n}", f"{'sw'[n % 2]}__echo", f'{{"text": "t{n % 3}"}}') for n in range(6)]
    files = [(f"f{n}", "r__file_read", '{"path": "n"}') for n in range(3)]
    yield json_reply(429, {"error": {"message": "slow"}}, {"retry-after": "0"})
    yield stream_reply(sse([delta(content="brok")], done=False), CUT)
    yield tool_reply([*echoes, *files])
    yield hanging_reply(gate)
    yield tool_reply([("a", "s__sleep", '{"ms": 60000}'), ("b", "s__fail", "{}"), *echoes])
    yield json_reply(500, {"error": "down"})
    yield json_reply(503, {"error": "still down"})
    yield text_reply("All is well")


@pytest.mark.slow(reason="replays again and again under load")
def test_replays_of_a_troubled_run_say_the_same_each_time_and_under_load(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    gate = Gate()
    script = replies(gate)
    endpoint = model_endpoint(lambda _: next(script))
    project.uses(endpoint)
    project.write("n", "from the pack")
    with http_server() as url:
        project.pipeline(
            f"""
            models:
              m:
                base_url: "${{MODEL_URL}}"
                model: x
                timeout: {{first_token: 5s}}
                retry: {{attempts: 2}}
                fallback: [other]
              other: {{base_url: "${{MODEL_URL}}", model: y}}
            model: m
            mcp:
              servers:
                s: {{command: {stdio()}, timeout: {{call: 500ms}}}}
                w: {{url: "{url}"}}
                r: {{pack: [fs], root: .}}
              auto_approve: ["*__*"]
            prompt: Use your tools
            """
        )
        recorded = project.run("--record", "c.yaml", "--format", "jsonl")
    gate.open()
    endpoint.close()
    assert recorded.code == 0, recorded.stderr

    with ThreadPoolExecutor(4) as several:
        again = [
            several.submit(project.run, "--replay", "c.yaml", "--format", "jsonl") for _ in range(8)
        ]
    first, *others = [one.result() for one in again]

    assert first.code == 0, first.stderr
    assert all(events(one.stdout) == events(first.stdout) for one in others)
    assert unordered(first.stdout) == unordered(recorded.stdout)
