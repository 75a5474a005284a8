"""Pipelines over `api: responses`: tools, reasoning, schemas, cassettes, to chat and back."""

import json
from typing import Any

import pytest
import responses_streams as s
from e2e_project import ModelEndpoints, Project
from model_endpoint import Reply, json_reply, stream_reply, text_reply, tool_reply

KEY = {"KEY": "sk-planted-0123456789"}
ENTRY = (
    '{api: responses, base_url: "${MODEL_URL}", model: gpt-6, key_env: KEY, retry: {attempts: 2}}'
)
REPO = """
        mcp:
          servers:
            repo: {pack: [fs], root: .}
          auto_approve: [repo__file_read]
        """
READS = '{"path": "notes.txt"}'
SCHEMA = (
    "{type: object, properties: {word: {type: string}, note: {type: string}}, required: [word]}"
)


def asks(thought: str, call_id: str = "call_1") -> Reply:
    """An answer that thinks, says what it is about to do, and calls."""
    return s.reply(
        s.reasoning(thought, id=f"rs_{call_id}"),
        s.message("I will look.", f"msg_{call_id}", phase="commentary"),
        s.call(call_id, "repo__file_read", READS),
    )


@pytest.mark.requirement("W3")
def test_tools_reasoning_and_a_schema_run_are_recorded_and_replayed(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    project.write("notes.txt", "from the file")
    answer = s.reply(s.message('{"word": "file", "note": null}'))
    endpoint = model_endpoint([asks("privately"), answer])
    project.uses(endpoint)
    project.pipeline(
        f"""
        models: {{m: {ENTRY.replace("retry", "effort: high, retry")}}}
        steps:
          - id: ask
            system: Be kind.
            prompt: Which word?
            output: {{schema: {SCHEMA}}}
        """
        + REPO
    )

    recorded = project.aish("record", "p.yaml", "-o", "c.yaml", env=KEY)
    endpoint.close()
    replayed = project.run("--replay", "c.yaml")
    shown = project.aish("cassette", "show", "c.yaml")

    assert recorded.code == 0, recorded.stderr
    assert json.loads(recorded.stdout) == {"word": "file"}
    assert replayed.code == 0, replayed.stderr
    assert replayed.stdout == recorded.stdout
    first, second = endpoint.requests[:2]
    assert first.path == "/v1/responses"
    assert first.headers["authorization"] == f"Bearer {KEY['KEY']}"
    assert (first.json["store"], first.json["stream"]) == (False, True)
    assert first.json["instructions"] == "Be kind."
    assert first.json["reasoning"] == {"effort": "high"}
    assert first.json["include"] == ["reasoning.encrypted_content"]
    assert first.json["text"]["format"]["schema"]["required"] == ["word", "note"]
    _, thought, said, call, result = second.json["input"]
    assert thought == s.reasoning("privately", id="rs_call_1")
    assert said == s.message("I will look.", "msg_call_1", phase="commentary")
    assert call == s.call("call_1", "repo__file_read", READS)
    assert result["call_id"] == "call_1"
    assert "from the file" in result["output"]
    assert "repo__file_read" in shown.stdout
    assert "from the file" in shown.stdout
    assert KEY["KEY"] not in project.everything_written()


@pytest.mark.requirement("W7")
def test_a_conversation_goes_from_chat_to_responses_and_back_and_takes_no_thought_along(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    project.write("notes.txt", "from the file")
    down = json_reply(503, {"error": {"message": "busy"}}, {"x-should-retry": "false"})
    read = tool_reply([("functions.read:0", "repo__file_read", READS)])
    chat = model_endpoint([read, down, text_reply("Done.")])
    gpt = model_endpoint([asks("privately")])
    project.pipeline(
        f"""
        models:
          m: {{base_url: "${{OTHER_URL}}", model: qwen, fallback: [gpt], retry: {{attempts: 1}}}}
          gpt: {ENTRY}
        model: m
        prompt: Read it twice.
        """
        + REPO
    )

    urls = {"MODEL_URL": gpt.base_url, "OTHER_URL": chat.base_url}
    done = project.run(env={**KEY, **urls})

    assert done.code == 0, done.stderr
    assert "Done." in done.stdout
    kinds = [item["type"] for item in gpt.asked[0]["input"]]
    assert kinds == ["message", "function_call", "function_call_output"]
    last = chat.requests[-1]
    roles = [message["role"] for message in last.json["messages"]]
    assert roles == ["user", "assistant", "tool", "assistant", "tool"]
    for request in chat.requests:
        sent = request.body.decode() + json.dumps(request.headers)
        for kept in ("privately", "secret", "gAAAA", "encrypted", "phase", KEY["KEY"]):
            assert kept not in sent


def nulls(value: Any, place: str = "") -> set[str]:
    """The places of nulls in a JSON value."""
    if value is None:
        return {place}
    if not isinstance(value, (dict, list)):
        return set()
    fields = value.items() if isinstance(value, dict) else enumerate(value)
    return set().union(*(nulls(one, f"{place}/{key}") for key, one in fields))


def test_neither_references_nor_nulls_that_were_not_received_go_back(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    project.write("notes.txt", "from the file")
    received = [
        s.reasoning("privately", status=None),
        s.message("I will look.", phase=None),
        {"type": "item_reference", "id": "msg_0"},
        s.call("call_1", "repo__file_read", READS, namespace=None),
    ]
    endpoint = model_endpoint([s.reply(*received), s.reply(s.message("Done."))])
    project.uses(endpoint)
    project.pipeline(f"models: {{m: {ENTRY}}}\nprompt: Read it.\n" + REPO.replace("        ", ""))

    done = project.run(env=KEY)

    assert done.code == 0, done.stderr
    assert "an item `item_reference` was left out" in done.stderr
    sent = {item["type"]: item for item in endpoint.asked[-1]["input"] if "role" not in item}
    assert sent.keys() == {"reasoning", "function_call", "function_call_output"}
    assert "null" not in json.dumps(endpoint.asked[0])
    for item in received:
        assert nulls(sent.get(item["type"], {})) <= nulls(item)


@pytest.mark.parametrize(
    "broken",
    [
        stream_reply(*s.events(s.message("Hel"))[:-1]),
        stream_reply(
            *s.events(s.message("Hel"))[:-1],
            s.event("response.failed", response=s.response(
                status="failed", error={"code": "server_is_overloaded", "message": "busy"})),
        ),
        json_reply(500, {"error": {"message": "oops", "type": "server_error", "code": None}}),
    ],
    ids=["no last event", "failed", "500"],
)  # fmt: skip
def test_what_is_overloaded_or_broken_is_asked_again(
    project: Project, model_endpoint: ModelEndpoints, broken: Reply
) -> None:
    endpoint = model_endpoint([broken, s.reply(s.message("Hello."))])
    project.uses(endpoint)
    project.pipeline(f"models: {{m: {ENTRY}}}\nprompt: Hi\n")

    done = project.run(env=KEY)

    assert done.code == 0, done.stderr
    assert done.stdout == "Hello.\n"
    assert len(endpoint.requests) == 2


def test_thoughts_that_their_endpoint_refuses_are_left_out_and_the_run_goes_on(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    project.write("notes.txt", "from the file")
    said = "The encrypted content gAAA could not be verified."
    refused = json_reply(400, {"error": {"message": said, "code": "invalid_encrypted_content"}})
    endpoint = model_endpoint([asks("privately"), refused, s.reply(s.message("Done."))])
    project.uses(endpoint)
    project.pipeline(f"models: {{m: {ENTRY}}}\nprompt: Read it.\n" + REPO.replace("        ", ""))

    done = project.run(env=KEY)

    assert done.code == 0, done.stderr
    assert done.stdout.endswith("Done.\n")
    assert "does not take back what it thought" in done.stderr
    kinds = [item["type"] for item in endpoint.asked[-1]["input"]]
    assert kinds == ["message", "message", "function_call", "function_call_output"]


def test_an_answer_that_reached_its_limit_is_told_though_it_is_called_completed(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    endpoint = model_endpoint([s.reply(s.message("Once upon"))])
    project.uses(endpoint)
    entry = ENTRY.replace("retry", "params: {max_output_tokens: 12}, retry")
    project.pipeline(f"models: {{m: {entry}}}\nprompt: Hi\n")

    done = project.run(env=KEY)

    assert "cut off" in done.stderr


@pytest.mark.parametrize(
    ("more", "said", "code"),
    [
        ("params: {input: x}", "m.params.input: `input` is set by `api: responses` itself", 2),
        ("params: {max_tokens: 5}", "here it is `max_output_tokens`", 0),
        ("params: {tools: [{type: web_search}]}", "no rule is asked about their calls", 0),
        ("params: {tools: [{type: function}]}", "params.tools[0]: only tools of the vendor", 2),
    ],
)
def test_what_the_wire_does_not_know_is_told_before_the_run(
    project: Project, more: str, said: str, code: int
) -> None:
    project.pipeline(f"models: {{m: {{api: responses, model: gpt-6, {more}}}}}\nprompt: Hi\n")

    done = project.aish("validate", "p.yaml")

    assert said in done.stdout + done.stderr
    assert done.code == code, done.stderr


@pytest.mark.parametrize("api", ["responses", "messages"])
def test_a_schema_that_the_api_has_no_form_for_is_told_before_the_run(
    project: Project, api: str
) -> None:
    project.pipeline(
        f"""
        models: {{m: {{api: {api}, model: any}}}}
        steps:
          - id: open
            prompt: Hi
            output: {{schema: {{type: object, additionalProperties: {{type: string}}}}}}
          - id: closed
            prompt: Hi
            output: {{schema: {SCHEMA}}}
        """
    )

    done = project.aish("validate", "p.yaml")

    said = f"`api: {api}` has no form for this schema"
    assert done.code == 0, done.stderr
    assert (done.stdout + done.stderr).count(said) == 1


@pytest.mark.requirement("W9")
def test_a_conversation_recorded_on_one_wire_is_followed_on_the_other(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    project.write("notes.txt", "from the file")
    gpt = model_endpoint([asks("privately"), s.reply(s.message("It is there."))])
    chat = model_endpoint(
        [tool_reply([("c1", "repo__file_read", READS)]), text_reply("It is there.")]
    )
    project.pipeline(
        f"""
        models:
          m: {ENTRY}
          qwen: {{base_url: "${{OTHER_URL}}", model: qwen}}
        model: m
        prompt: Read it.
        """
        + REPO
    )
    urls = {"MODEL_URL": gpt.base_url, "OTHER_URL": chat.base_url}

    recorded = project.aish("record", "p.yaml", "-o", "c.yaml", env={**KEY, **urls})
    followed = project.run("--replay", "c.yaml", "--live-model", "qwen", env={**KEY, **urls})

    assert recorded.code == 0, recorded.stderr
    assert followed.code == 0, followed.stderr
    assert "It is there." in followed.stdout
    assert len(chat.requests) == 2


@pytest.mark.parametrize("name", ["input", "tools"])
@pytest.mark.requirement("W1")
def test_a_step_sets_nothing_that_the_wire_sets_itself(project: Project, name: str) -> None:
    project.pipeline(
        f"""
        models: {{m: {{api: responses, model: gpt-6}}}}
        steps:
          - id: ask
            prompt: Hi
            params: {{{name}: []}}
        """
    )

    done = project.aish("validate", "p.yaml")

    assert f"params.{name}: `{name}` is set by `api: responses` itself" in done.stderr + done.stdout
    assert done.code == 2
