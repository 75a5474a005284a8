"""Answers whose calls come in odd places: each is made once, or the answer is no success."""

from typing import Any

import pytest
from e2e_project import ModelEndpoints, Project, of_type, stdio
from model_endpoint import Reply, delta, sse, stream_reply, text_reply

PIPELINE = f"""
mcp:
  servers: {{s: {{command: {stdio()}}}}}
  auto_approve: [s__echo, s__add]
models:
  m: {{base_url: "${{MODEL_URL}}", model: scripted, retry: {{attempts: 2, max_delay: 1s}}}}
prompt: Use your tools
"""
NOT_ONE = (
    "[aish] tool arguments not parseable as JSON:"
    " a second value begins at line 1 column 14, and only one is taken"
)


def called(name: str, arguments: str, id: str = "c1") -> dict[str, Any]:
    """A tool call that is sent whole."""
    return {"index": 0, "id": id, "function": {"name": name, "arguments": arguments}}


def answered(*choices: dict[str, Any]) -> Reply:
    """A stream with a choice for each message."""
    chunks = []
    for index, message in enumerate(choices):
        chunk = delta("tool_calls" if "tool_calls" in message else "stop", **message)
        chunk["choices"][0]["index"] = index
        chunks.append(chunk)
    return stream_reply(sse(chunks))


def test_a_call_in_another_choice_than_the_text_is_made(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    split = answered({"content": "I add."}, {"tool_calls": [called("s__add", '{"a":1,"b":2}')]})
    endpoint = model_endpoint([split, text_reply("It is 3.")])
    project.uses(endpoint)
    project.pipeline(PIPELINE)

    found = project.result()

    assert (found["exit"]["code"], found["steps"]["main"]["text"]) == (0, "It is 3.")
    asked, reply = endpoint.asked[1]["messages"][-2:]
    assert (asked["content"], asked["tool_calls"][0]["function"]["name"]) == ("I add.", "s__add")
    assert reply["content"] == "3"


def test_calls_that_cannot_be_told_apart_are_asked_for_again_and_then_a_failure(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    several = answered(
        {"tool_calls": [called("s__add", '{"a":1,"b":2}')]},
        {"tool_calls": [called("s__echo", '{"text":"x"}')]},
    )
    endpoint = model_endpoint([several, several])
    project.uses(endpoint)
    project.pipeline(PIPELINE)

    found = project.result()

    assert (found["exit"]["code"], len(endpoint.asked)) == (1, 2)
    assert "more than one answer, each with calls of its own" in found["exit"]["reason"]
    assert of_type(project.journal, "tool.started") == []


@pytest.mark.parametrize(
    ("again", "reply"),
    [('{"b": 2, "a": 1}', "3"), ('{"a":1,"b":3}', NOT_ONE)],
)
def test_arguments_that_are_sent_again_are_one_call_or_none(
    project: Project, model_endpoint: ModelEndpoints, again: str, reply: str
) -> None:
    chunks = [
        delta(tool_calls=[called("s__add", '{"a":1,"b":2}')]),
        delta(tool_calls=[called("s__add", again)]),
        delta("tool_calls"),
    ]
    endpoint = model_endpoint([stream_reply(sse(chunks)), text_reply("Done.")])
    project.uses(endpoint)
    project.pipeline(PIPELINE)

    found = project.result()

    assert found["exit"]["code"] == 0
    assert [m["content"] for m in endpoint.asked[1]["messages"] if m["role"] == "tool"] == [reply]
    assert len(of_type(project.journal, "tool.started")) == (1 if reply == "3" else 0)
