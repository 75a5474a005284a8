"""Twelve rounds with thoughts and tools on one `api`, with another to fall back to."""

import json
import signal
from collections.abc import Callable
from typing import Any

import pytest
from e2e_project import ModelEndpoints, Project
from model_endpoint import Gate, Reply, json_reply
from wire_replies import answer, thoughtful

ROUNDS = 12
DOWN = frozenset({3, 4, 8})
"""The rounds in which the first endpoint is out of reach."""
KILLED = 6
RESULTS = {"messages": '"tool_result"', "responses": '"function_call_output"'}
ERRORS = {"messages": b'"is_error":true', "responses": b'"output":"{\\"error\\":'}
BUSY = json_reply(529, {"type": "error", "error": {"type": "overloaded_error", "message": "busy"}})


def results(api: str, body: Any) -> int:
    """How many results of tools are in a request."""
    return json.dumps(body).count(RESULTS[api])


def model(api: str, name: str, down: frozenset[int] = frozenset()) -> Callable[[Any], Reply]:
    """A model that calls until it has all results; every second file is not there."""

    def reply(body: Any) -> Reply:
        number = results(api, body)
        if number in down:
            return BUSY
        if number == ROUNDS:
            return answer(api, "Done.")
        path = "notes.txt" if number % 2 else "gone.txt"
        call = (f"call_{name}_{number}", "repo__file_read", json.dumps({"path": path}))
        return thoughtful(api, f"thought-{name}-{number:02}", call)

    return reply


@pytest.mark.slow(reason="runs, resumes and replays a long conversation")
@pytest.mark.parametrize(("api", "spare"), [("messages", "responses"), ("responses", "messages")])
def test_twelve_rounds_cross_to_another_api_and_are_resumed_and_replayed(
    project: Project, model_endpoint: ModelEndpoints, api: str, spare: str
) -> None:
    project.write("notes.txt", "from the file")
    gate, holds = Gate(), [False]
    first, other = model(api, "one", DOWN), model(spare, "two")

    def may_hold(body: Any) -> Reply:
        stuck = holds[0] and results(api, body) == KILLED
        return first(body).but(before_head=gate if stuck else None)

    one, two = model_endpoint(may_hold), model_endpoint(other)
    project.aish.env |= {"ONE": one.base_url, "TWO": two.base_url}
    project.pipeline(
        f"""
        models:
          m:
            api: {api}
            base_url: ${{ONE}}
            model: gpt-6
            fallback: [spare]
            retry: {{attempts: 1}}
          spare: {{api: {spare}, base_url: "${{TWO}}", model: gpt-6}}
        model: m
        max_tool_depth: 20
        mcp:
          servers: {{repo: {{pack: [fs], root: .}}}}
          auto_approve: [repo__file_read]
        prompt: Read them all.
        """
    )

    recorded = project.aish("record", "p.yaml", "-o", "c.yaml")
    assert recorded.code == 0, recorded.stderr
    whole = [request.body for request in one.requests], [request.body for request in two.requests]
    one.requests.clear()
    two.requests.clear()
    holds[0] = True
    running = project.aish.start("run", "p.yaml")
    gate.wait_arrived()
    running.interrupt(signal.SIGKILL)
    running.finish()
    holds[0] = False
    gate.open()
    resumed = project.run("--resume")
    again = [request.body for request in one.requests], [request.body for request in two.requests]
    one.close()
    two.close()
    replayed = project.run("--replay", "c.yaml")

    for done in (recorded, resumed, replayed):
        assert (done.code, done.stdout) == (0, "Done.\n"), done.stderr
    assert (len(whole[0]), len(whole[1])) == (ROUNDS + 1, len(DOWN))
    # What was asked for in the round of the kill is asked for again, and nothing differs.
    assert again == ([*whole[0][: KILLED + 1], *whole[0][KILLED:]], whole[1])
    assert all(b"thought-two" not in body and b"call_one" in body for body in whole[0][1:])
    assert all(b"thought-one" not in body and b"call_one" in body for body in whole[1])
    assert whole[0][-1].count(b"thought-one-00") == whole[0][1].count(b"thought-one-00") > 0
    assert b"thought-two-03" in whole[1][-1]
    assert whole[0][-1].count(ERRORS[api]) == whole[1][-1].count(ERRORS[spare]) + 2 == ROUNDS // 2
