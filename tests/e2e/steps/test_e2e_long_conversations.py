"""Long conversations in whole runs: live, recorded, replayed, with a schema, over a limit (L19)."""

import json
from typing import Any

import pytest
from e2e_project import ModelEndpoints, Project, of_type
from model_endpoint import Reply, json_reply, text_reply, tool_reply

HEAD = """
models:
  m: {{base_url: "${{MODEL_URL}}", model: x, retry: {{attempts: 1}}}}
  cheap: {{base_url: "${{CHEAP_URL}}", model: y, retry: {{attempts: 1}}}}
  spare: {{base_url: "${{SPARE_URL}}", model: z}}
model: m
mcp:
  servers: {{repo: {{pack: [fs], root: docs, exclude: [file_find, dir_tree]}}}}
  auto_approve: [repo__file_read]
context: {context}
steps:
  - {{id: one, prompt: Read it all, max_tool_depth: 50{more}}}
"""
SHORT = "{max_tokens: 4500, keep: 2}"
CHEAP = "{max_tokens: 2500, keep: 1, summary_model: cheap}"


def reads(times: int, said: str = "") -> list[Reply]:
    return [
        tool_reply([(f"c{n}", "repo__file_read", '{"path": "a.md"}')], said) for n in range(times)
    ]


@pytest.fixture
def reading(project: Project) -> Project:
    """A project with a file of 2,000 characters to be read again and again."""
    project.write("docs/a.md", "line of text\n" * 150)
    return project


def contents(asked: Any, role: str = "tool") -> list[str]:
    return [message["content"] for message in asked["messages"] if message["role"] == role]


def trims(project: Project) -> list[str]:
    notices = of_type(project.journal, "notice")
    return [one["text"] for one in notices if one["code"] == "context_trimmed"]


def trimmed(lines: str) -> list[str]:
    events = [json.loads(line) for line in lines.splitlines()]
    return [event["text"] for event in events if event.get("code") == "context_trimmed"]


def test_a_run_leaves_out_old_results_and_says_so(
    reading: Project, model_endpoint: ModelEndpoints
) -> None:
    endpoint = model_endpoint([*reads(12), text_reply("Read.")])
    reading.uses(endpoint)
    reading.pipeline(HEAD.format(context=SHORT, more=""))

    done = reading.run()

    assert (done.code, done.stdout) == (0, "Read.\n")
    last = contents(endpoint.asked[-1])
    assert last[0].startswith("[aish] result of repo__file_read left out (")
    assert all("line of text" in text for text in last[-2:])
    assert max(len(json.dumps(asked)) for asked in endpoint.asked) / 4 < 4500 * 9 / 8
    (text, *_) = trims(reading)
    assert "are more than `max_tokens: 4500`: left out " in text
    assert "(context_trimmed)" in done.stderr


@pytest.mark.parametrize(("context", "said"), [(SHORT, ""), (CHEAP, "x" * 1200)])
def test_a_shortened_run_is_replayed_as_it_was(
    reading: Project, model_endpoint: ModelEndpoints, context: str, said: str
) -> None:
    reading.uses(model_endpoint([*reads(12, said), text_reply("Read.")]))
    reading.aish.env["CHEAP_URL"] = model_endpoint([text_reply("in short")] * 9).base_url
    reading.pipeline(HEAD.format(context=context, more=""))

    recorded = reading.aish("record", "p.yaml", "-o", "c.yaml", "--format", "jsonl")
    again = reading.run("--replay", "c.yaml", "--format", "jsonl")

    assert (recorded.code, again.code) == (0, 0), recorded.stderr + again.stderr
    assert trimmed(recorded.stdout) == trimmed(again.stdout) != []
    assert ('"purpose":"summary"' in again.stdout) is (context == CHEAP)


def test_the_oldest_rounds_are_summarised_by_another_model(
    reading: Project, model_endpoint: ModelEndpoints
) -> None:
    endpoint = model_endpoint([*reads(9, "x" * 1200), text_reply("Read.")])
    cheap = model_endpoint([text_reply("It read a.md again and again.")] * 9)
    reading.uses(endpoint)
    reading.aish.env["CHEAP_URL"] = cheap.base_url
    reading.pipeline(HEAD.format(context=CHEAP, more=""))

    found = reading.result()

    assert found["exit"]["code"] == 0
    (prompt,) = contents(endpoint.asked[-1], "user")
    assert prompt.startswith("Read it all\n\n[aish] ")
    assert "a summary by model `cheap`, not the user's words:\nIt read a.md again" in prompt
    turns = of_type(reading.journal, "turn.finished")
    summaries = [turn for turn in turns if turn["purpose"] == "summary"]
    assert len(summaries) == len(cheap.asked) > 0
    assert found["usage"]["input"] == 7 * len(turns)
    assert found["steps"]["one"]["text"] == "Read."


def test_a_summary_has_fallbacks_as_any_request(
    reading: Project, model_endpoint: ModelEndpoints
) -> None:
    away = json_reply(503, {"error": {"message": "away"}})
    spare = model_endpoint([text_reply("in the stead")] * 9)
    reading.uses(model_endpoint([*reads(9, "x" * 1200), text_reply("Read.")]))
    reading.aish.env["CHEAP_URL"] = model_endpoint([away] * 9).base_url
    reading.aish.env["SPARE_URL"] = spare.base_url
    text = HEAD.format(context=CHEAP, more="")
    reading.pipeline(text.replace("model: y,", "model: y, fallback: [spare],"))

    found = reading.result()

    assert found["exit"]["code"] == 0
    fallbacks = of_type(reading.journal, "fallback")
    assert {(one["from"], one["to"]) for one in fallbacks} == {("cheap", "spare")}
    assert len(spare.asked) == len(fallbacks)


def test_a_run_goes_on_without_a_summary_that_nobody_makes(
    reading: Project, model_endpoint: ModelEndpoints
) -> None:
    endpoint = model_endpoint([*reads(9, "x" * 1200), text_reply("Read.")])
    reading.uses(endpoint)
    refused = json_reply(400, {"error": {"message": "too long for me"}})
    reading.aish.env["CHEAP_URL"] = model_endpoint([refused] * 9).base_url
    reading.pipeline(HEAD.format(context=CHEAP, more=""))

    done = reading.run()

    assert (done.code, done.stdout.splitlines()[-1]) == (0, "Read.")
    assert "too long for me" in done.stderr
    assert "(summary_failed)" in done.stderr
    (prompt,) = contents(endpoint.asked[-1], "user")
    assert prompt.endswith("earlier rounds left out here")


@pytest.mark.requirement("L19")
def test_a_conversation_that_cannot_be_shortened_ends_its_step(
    reading: Project, model_endpoint: ModelEndpoints
) -> None:
    endpoint = model_endpoint([*reads(9), text_reply("Read.")])
    reading.uses(endpoint)
    reading.pipeline(HEAD.format(context="{max_tokens: 1500}", more=""))

    found = reading.result()

    assert found["exit"]["code"] == 1
    error = found["steps"]["one"]["error"]
    assert (error["code"], "`context.keep`" in error["hint"]) == ("context", True)
    assert "`context.max_tokens: 1500`" in found["exit"]["reason"]
    assert found["usage"]["input"] == 7 * len(endpoint.asked)


def test_an_answer_is_mended_in_a_conversation_that_was_shortened(
    reading: Project, model_endpoint: ModelEndpoints
) -> None:
    answers = [text_reply("no JSON"), text_reply("still none"), text_reply('{"n": 1}')]
    endpoint = model_endpoint([*reads(8), *answers])
    reading.uses(endpoint)
    schema = ", output: {schema: {type: object, required: [n]}}"
    reading.pipeline(HEAD.format(context=SHORT, more=schema))

    found = reading.result()

    assert found["steps"]["one"]["output"] == {"n": 1}
    first, *rest = contents(endpoint.asked[-1], "user")
    assert first.startswith("Read it all")
    assert '"required": ["n"]' in first or '"required":["n"]' in first
    assert len(rest) == 2
    assert trims(reading)


def test_models_without_a_tool_role_have_short_conversations_too(
    reading: Project, model_endpoint: ModelEndpoints
) -> None:
    endpoint = model_endpoint([*reads(12), text_reply("Read.")])
    reading.uses(endpoint)
    text = HEAD.format(context=SHORT, more="").replace("model: x,", "model: x, tool_role: false,")
    reading.pipeline(text)

    assert reading.run().code == 0
    told = [m["content"] for m in endpoint.asked[-1]["messages"] if m["role"] == "user"]
    stub = "[tool: repo__file_read]\n[aish] result of repo__file_read left out ("
    assert told[1].startswith(stub)
    assert "line of text" in told[-1]


def test_what_the_event_log_says_names_no_model_that_was_not_asked(
    reading: Project, model_endpoint: ModelEndpoints
) -> None:
    endpoint = model_endpoint([text_reply("Nothing to read.")])
    reading.uses(endpoint)
    reading.aish.env["CHEAP_URL"] = "http://127.0.0.1:1/v1"
    reading.pipeline(HEAD.format(context=CHEAP, more=""))

    assert reading.run().code == 0
    assert [turn["purpose"] for turn in of_type(reading.journal, "turn.started")] == ["answer"]


def test_a_session_is_summarised_by_another_model_too(
    reading: Project, model_endpoint: ModelEndpoints
) -> None:
    endpoint = model_endpoint([*reads(9, "x" * 1200), text_reply("Read.")])
    cheap = model_endpoint([text_reply("It read a.md again and again.")] * 9)
    reading.uses(endpoint)
    reading.aish.env["CHEAP_URL"] = cheap.base_url
    # A session has the file's own bounds, and no steps.
    head = HEAD.format(context=CHEAP, more="").partition("steps:")[0]
    reading.pipeline(head.replace("  auto_approve", "  max_tool_depth: 50\n  auto_approve"))

    done = reading.aish("shell", "p.yaml", stdin="Read it all\n")

    assert (done.code, done.stdout) == (0, "Read.\n")
    (prompt,) = contents(endpoint.asked[-1], "user")
    assert prompt.startswith("Read it all\n\n[aish] ")
    assert "a summary by model `cheap`, not the user's words:\nIt read a.md again" in prompt
    assert cheap.asked
