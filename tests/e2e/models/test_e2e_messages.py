"""Pipelines over `api: messages`: tools, thinking, schemas, cassettes, to chat and back."""

import json

import messages_streams as s
import pytest
from e2e_project import ModelEndpoints, Project
from model_endpoint import Reply, json_reply, stream_reply, text_reply, tool_reply

KEY = {"KEY": "sk-ant-planted-0123456789"}
ENTRY = (
    '{api: messages, base_url: "${MODEL_URL}", model: claude-sonnet-4-5, key_env: KEY,'
    " retry: {attempts: 2}}"
)
REPO = """
mcp:
  servers:
    repo: {pack: [fs], root: .}
  auto_approve: [repo__file_read]
"""
BUSY = {"error": {"type": "overloaded_error", "message": "busy"}}
READS = '{"path": "notes.txt"}'


def messages_reply(*blocks: bytes, reason: str = "end_turn") -> Reply:
    """An answer of these blocks."""
    return stream_reply(s.start(), *blocks, s.ends(reason))


def asks(thought: str, id: str = "toolu_1") -> Reply:
    """An answer that thinks and calls."""
    read = s.call(id, "repo__file_read", READS, index=1)
    return messages_reply(s.thinking(thought, f"signed-{thought}"), read, reason="tool_use")


@pytest.mark.requirement("W2")
def test_tools_thinking_and_a_schema_run_are_recorded_and_replayed(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    project.write("notes.txt", "from the file")
    answer = messages_reply(s.text('{"word": "file"}'))
    endpoint = model_endpoint([asks("privately"), answer])
    project.uses(endpoint)
    project.pipeline(
        f"""
        models: {{m: {ENTRY.replace("retry", "effort: high, retry")}}}
        steps:
          - id: ask
            prompt: Which word?
            output:
              schema: {{type: object, properties: {{word: {{type: string}}}}, required: [word]}}
        """
        + REPO.replace("\n", "\n        ")
    )

    recorded = project.aish("record", "p.yaml", "-o", "c.yaml", env=KEY)
    endpoint.close()
    replayed = project.run("--replay", "c.yaml")
    shown = project.aish("cassette", "show", "c.yaml")

    assert recorded.code == 0, recorded.stderr
    assert replayed.code == 0, replayed.stderr
    assert replayed.stdout == recorded.stdout
    first, second = endpoint.requests[:2]
    assert first.path == "/v1/messages"
    assert first.headers["x-api-key"] == KEY["KEY"]
    assert first.headers["anthropic-version"] == "2023-06-01"
    assert "authorization" not in first.headers
    assert first.json["max_tokens"] == 64_000
    assert first.json["output_config"]["effort"] == "high"
    assert first.json["output_config"]["format"]["schema"]["additionalProperties"] is False
    assert first.json["tools"][-1]["cache_control"] == {"type": "ephemeral"}
    _, asked, told = second.json["messages"]
    assert told["content"][-1]["cache_control"] == {"type": "ephemeral"}
    assert asked["content"][0] == {
        "type": "thinking",
        "thinking": "privately",
        "signature": "signed-privately",
    }
    assert told["content"][0]["tool_use_id"] == asked["content"][1]["id"] == "toolu_1"
    assert "from the file" in told["content"][0]["content"][0]["text"]
    assert "repo__file_read" in shown.stdout
    assert "from the file" in shown.stdout
    assert KEY["KEY"] not in project.everything_written()


@pytest.mark.parametrize("base", ["", "/v1", "/v1/"])
@pytest.mark.requirement("W1")
def test_an_address_is_with_or_without_its_version(
    project: Project, model_endpoint: ModelEndpoints, base: str
) -> None:
    endpoint = model_endpoint([messages_reply(s.text("Hello."))])
    url = endpoint.base_url.removesuffix("/v1") + base
    entry = ENTRY.replace("${MODEL_URL}", url).replace(
        "key_env", "key_header: Authorization, key_env"
    )
    project.pipeline(f"models: {{m: {entry}}}\nprompt: Hi\n")

    done = project.run(env=KEY)

    assert done.code == 0, done.stderr
    assert endpoint.requests[0].path == "/v1/messages"
    assert endpoint.requests[0].headers["authorization"] == f"Bearer {KEY['KEY']}"
    assert "x-api-key" not in endpoint.requests[0].headers


@pytest.mark.requirement("W7")
def test_a_conversation_goes_to_chat_and_back_and_takes_no_thought_along(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    project.write("notes.txt", "from the file")
    overloaded = json_reply(529, {"type": "error", **BUSY})
    claude = model_endpoint(
        [asks("privately"), overloaded, asks("again", "toolu_3"), messages_reply(s.text("Done."))]
    )
    other = model_endpoint([tool_reply([("functions.read:0", "repo__file_read", READS)])])
    entry = ENTRY.replace("attempts: 2", "attempts: 1").replace(
        "retry:", "fallback: [other], retry:"
    )
    project.pipeline(
        f"""
        models:
          m: {entry}
          other: {{base_url: "${{OTHER_URL}}", model: gpt}}
        model: m
        prompt: Read it twice.
        """
        + REPO.replace("\n", "\n        ")
    )

    urls = {"MODEL_URL": claude.base_url, "OTHER_URL": other.base_url}
    done = project.run(env={**KEY, **urls})

    assert done.code == 0, done.stderr
    assert "Done." in done.stdout
    sent_away = other.requests[0].body.decode()
    assert "privately" not in sent_away
    assert "signed" not in sent_away
    assert KEY["KEY"] not in sent_away + json.dumps(other.requests[0].headers)
    last = claude.requests[-1].json["messages"]
    kinds = [[block["type"] for block in message["content"]] for message in last]
    assert kinds == [
        *(["text"], ["thinking", "tool_use"], ["tool_result"]),
        *(["tool_use"], ["tool_result"], ["thinking", "tool_use"], ["tool_result"]),
    ]
    ids = [block["id"] for message in last[1::2] for block in message["content"][-1:]]
    assert ids == [message["content"][0]["tool_use_id"] for message in last[2::2]]


@pytest.mark.parametrize(
    "busy",
    [
        json_reply(529, {"type": "error", "error": {"type": "overloaded_error", "message": "x"}}),
        stream_reply(
            s.start(), s.text("Hel"), s.event("error", error={"type": "overloaded_error"})
        ),
        stream_reply(s.start(), s.text("Hel")),
    ],
    ids=["529", "inside the stream", "no last event"],
)
def test_what_is_overloaded_or_broken_is_asked_again(
    project: Project, model_endpoint: ModelEndpoints, busy: Reply
) -> None:
    endpoint = model_endpoint([busy, messages_reply(s.text("Hello."))])
    project.uses(endpoint)
    project.pipeline(f"models: {{m: {ENTRY}}}\nprompt: Hi\n")

    done = project.run(env=KEY)

    assert done.code == 0, done.stderr
    assert done.stdout == "Hello.\n"
    assert len(endpoint.requests) == 2


@pytest.mark.requirement("W5")
def test_a_refused_schema_is_told_in_words_once_for_the_run(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    said = {"type": "invalid_request_error", "message": "output_config.format.schema: too complex"}
    answer = messages_reply(s.text('{"word": "a"}'))
    endpoint = model_endpoint([json_reply(400, {"type": "error", "error": said}), answer, answer])
    project.uses(endpoint)
    step = "prompt: Hi, output: {schema: {type: object, properties: {word: {type: string}}}}"
    steps = f"steps: [{{id: a, {step}}}, {{id: b, needs: [a], {step}}}]"
    project.pipeline(f"models: {{m: {ENTRY}}}\n{steps}\n")

    done = project.run(env=KEY)

    assert done.code == 0, done.stderr
    assert done.stderr.count("the answer schema is refused") == 1
    assert ["output_config" in asked for asked in endpoint.asked] == [True, False, False]
    assert "fits this schema" in endpoint.asked[2]["system"][0]["text"]


def test_a_refusal_is_told_with_its_category(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    details = {"type": "refusal", "category": "bio", "explanation": "not that"}
    endpoint = model_endpoint([stream_reply(s.start(), s.ends("refusal", stop_details=details))])
    project.uses(endpoint)
    project.pipeline(f"models: {{m: {ENTRY}}}\nprompt: Hi\n")

    done = project.run(env=KEY)

    assert done.code == 1
    assert "the model refused: bio: not that" in done.stderr


def test_a_full_context_window_is_told_with_what_to_do(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    full = messages_reply(s.text("Hel"), reason="model_context_window_exceeded")
    endpoint = model_endpoint([full])
    project.uses(endpoint)
    project.pipeline(f"models: {{m: {ENTRY}}}\nprompt: Hi\n")

    done = project.run(env=KEY)

    assert done.code == 1
    assert "fills the context window" in done.stderr
    assert "`context: {max_tokens: N}` bounds a conversation" in done.stderr
    assert len(endpoint.requests) == 1


@pytest.mark.parametrize(
    ("more", "said", "code"),
    [
        ("params: {system: x}", "m.params.system: `system` is set by `api: messages` itself", 2),
        ("params: {max_completion_tokens: 5}", "here it is `max_tokens`", 0),
        ("effort: minimal", "`low` is sent", 0),
        ("effort: huge", "effort", 2),
        ("cache: 2h", "cache", 2),
        ("tool_role: false", "only an endpoint with `api: chat` has `tool_role`", 2),
    ],
)
def test_what_the_wire_does_not_know_is_told_before_the_run(
    project: Project, more: str, said: str, code: int
) -> None:
    project.pipeline(f"models: {{m: {{api: messages, model: claude, {more}}}}}\nprompt: Hi\n")

    done = project.aish("validate", "p.yaml")

    assert said in done.stdout + done.stderr
    assert done.code == code, done.stderr


def test_plan_shows_the_vendors_own_address_and_the_limit(project: Project) -> None:
    project.pipeline("models: {m: {api: messages, model: claude-sonnet-4-5}}\nprompt: Hi\n")

    done = project.aish("plan", "p.yaml")

    assert "https://api.anthropic.com" in done.stdout
    assert "64,000 tokens an answer at most" in done.stdout


@pytest.mark.requirement("W9")
def test_a_conversation_recorded_on_one_wire_is_followed_on_the_other(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    project.write("notes.txt", "from the file")
    chat = model_endpoint(
        [tool_reply([("c1", "repo__file_read", READS)]), text_reply("It is there.")]
    )
    claude = model_endpoint([asks("privately"), messages_reply(s.text("It is there."))])
    project.pipeline(
        f"""
        models:
          m: {{base_url: "${{OTHER_URL}}", model: gpt}}
          claude: {ENTRY}
        model: m
        prompt: Read it.
        """
        + REPO.replace("\n", "\n        ")
    )
    urls = {"MODEL_URL": claude.base_url, "OTHER_URL": chat.base_url}

    recorded = project.aish("record", "p.yaml", "-o", "c.yaml", env={**KEY, **urls})
    followed = project.run("--replay", "c.yaml", "--live-model", "claude", env={**KEY, **urls})

    assert recorded.code == 0, recorded.stderr
    assert followed.code == 0, followed.stderr
    assert "It is there." in followed.stdout
    assert len(claude.requests) == 2
