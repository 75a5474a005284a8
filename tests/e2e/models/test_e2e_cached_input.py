"""What is read from an endpoint's cache and written to it: counted, priced and shown."""

import json
from typing import Any

import messages_streams as m
import pytest
import responses_streams as r
from e2e_project import ModelEndpoints, Project, of_type
from model_endpoint import Reply, delta, sse, stream_reply

KEY = {"KEY": "sk-planted-0123456789"}
WRITTEN = {"ephemeral_5m_input_tokens": 40, "ephemeral_1h_input_tokens": 60}
CLAUDE = {
    "input_tokens": 100,
    "cache_read_input_tokens": 800,
    "cache_creation_input_tokens": 100,
    "cache_creation": WRITTEN,
    "output_tokens": 1,
}
GPT = {
    "input_tokens": 1000,
    "input_tokens_details": {"cached_tokens": 500, "cache_write_tokens": 200},
    "output_tokens": 1,
    "output_tokens_details": {"reasoning_tokens": 1},
}
GATEWAY = {
    "prompt_tokens": 1000,
    "prompt_tokens_details": {"cached_tokens": 400, "cache_write_tokens": 100},
    "completion_tokens": 1,
}
PIPELINE = """
    models:
      claude:
        {api: messages, base_url: "${MODEL_URL}", model: a, params: {max_tokens: 9},
         price: {input: 1.0, output: 0}}
      gpt:
        {api: responses, base_url: "${MODEL_URL}", model: b,
         price: {input: 1.0, output: 0, cached_input: 0.5, cache_write: 3.0}}
      gateway: {base_url: "${MODEL_URL}", model: c, price: {input: 1.0, output: 0}}
    limits: {turns: 2}
    steps:
      - {id: one, model: claude, prompt: Hi}
      - {id: two, model: gpt, prompt: Hi}
      - {id: three, model: gateway, prompt: Hi}
"""


def chat_reply(counts: dict[str, Any]) -> Reply:
    counted = {**delta(), "choices": [], "usage": counts}
    return stream_reply(sse([delta(content="Hi."), delta("stop"), counted]))


def answer(asked: Any) -> Reply:
    """An answer on the wire on which that model was asked."""
    if asked["model"] == "a":
        ends = m.ends(output=1)
        return stream_reply(m.start(CLAUDE), m.text("Hi."), ends)
    if asked["model"] == "b":
        return r.reply(r.message("Hi."), usage=GPT)
    return chat_reply(GATEWAY)


@pytest.mark.requirement("W11")
def test_cached_and_written_input_is_counted_priced_and_shown_over_a_resumption(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    endpoint = model_endpoint(answer)
    project.uses(endpoint)
    project.pipeline(PIPELINE)

    first = project.run(env=KEY)
    done = project.run("--resume", "--max-turns", "9", "--format", "json", "--html", "r.html")

    assert first.code == 4, first.stderr
    assert done.code == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["usage"] == {
        "input": 3000, "output": 3, "cached": 1700, "reasoning": 1, "cache_written": 400
    }  # fmt: skip
    turns = of_type(project.journal, "turn.finished")
    # 100 + 80 + 50 + 120, 300 + 250 + 600, and 500 + 40 + 125 millionths.
    assert [turn["cost_usd"] for turn in turns] == pytest.approx([0.00035, 0.00115, 0.000665])
    assert [turn["usage"]["cached"] for turn in turns] == [800, 500, 400]
    assert [turn["usage"]["cache_written"] for turn in turns] == [100, 200, 100]
    assert result["cost_usd"] == pytest.approx(0.002165)
    assert "whole run: 3,000 in (57% cached) / 3 out tokens, $0.0022" in done.stderr
    page = (project.folder / "r.html").read_text()
    assert "1,700 cached (57%) · 400 written to the cache" in page


def test_what_is_written_for_long_costs_twice_the_input_though_it_is_not_told_apart(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    project.uses(model_endpoint(answer))
    project.pipeline(
        """
        models:
          gateway:
            {base_url: "${MODEL_URL}", model: c, cache: 1h, price: {input: 1.0, output: 0}}
          gpt:
            {api: responses, base_url: "${MODEL_URL}", model: b, cache: 12h,
             price: {input: 1.0, output: 0}}
        steps:
          - {id: one, model: gateway, prompt: Hi}
          - {id: two, model: gpt, prompt: Hi}
        """
    )

    done = project.run()

    assert done.code == 0, done.stderr
    turns = of_type(project.journal, "turn.finished")
    # 500 + 40 + 200, and 300 + 50 + 400 millionths.
    assert [turn["cost_usd"] for turn in turns] == pytest.approx([0.00074, 0.00075])


def test_counts_of_zero_are_no_counts_and_the_worst_case_is_used_up(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    none = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
    endpoint = model_endpoint([chat_reply(none), chat_reply(none)])
    project.uses(endpoint)
    project.pipeline(
        """
        models: {m: {base_url: "${MODEL_URL}", model: c, params: {max_tokens: 100}}}
        limits: {tokens: 200}
        steps:
          - {id: one, prompt: Hi}
          - {id: two, prompt: Hi}
        """
    )

    done = project.run()

    assert done.code == 4, done.stderr
    assert len(endpoint.requests) == 1
    (turn,) = of_type(project.journal, "turn.finished")
    assert set(turn["usage"].values()) == {None}


def test_a_conversation_that_is_never_read_from_the_cache_is_told_once(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    project.write("notes.txt", "from the file")
    counts = {"input_tokens": 2000, "cache_read_input_tokens": 0, "output_tokens": 1}
    missed = {"type": "tools_changed", "cache_missed_input_tokens": 1900}

    def ask(asked: Any) -> Reply:
        number = len(asked["messages"]) // 2
        diagnostics = {"cache_miss_reason": missed if number == 1 else None}
        begins = m.start(counts, diagnostics=diagnostics)
        if number == 5:
            return stream_reply(begins, m.text("Done."), m.ends(output=1))
        read = m.call(f"toolu_{number}", "repo__file_read", '{"path": "notes.txt"}')
        return stream_reply(begins, read, m.ends("tool_use", output=1))

    project.uses(model_endpoint(ask))
    project.pipeline(
        """
        models:
          m:
            {api: messages, base_url: "${MODEL_URL}", model: a,
             params: {diagnostics: {previous_message_id: null}}}
        mcp:
          servers:
            repo: {pack: [fs], root: .}
          auto_approve: [repo__file_read]
        prompt: Read it.
        """
    )

    done = project.run()

    assert done.code == 0, done.stderr
    notices = [(one["code"], one["text"]) for one in of_type(project.journal, "notice")]
    never = "4 turns of a conversation, and nothing read from the endpoint's cache: "
    never += "though each request begins with the whole one before it"
    assert notices == [
        ("cache_miss",
         "the endpoint has not read all from its cache: `tools_changed`, about 1,900 tokens"),
        ("cache_unused", never),
    ]  # fmt: skip


def test_a_limit_that_allows_no_answer_of_the_default_length_names_what_to_set(
    project: Project,
) -> None:
    project.pipeline(
        """
        models:
          m: {api: messages, base_url: "http://127.0.0.1:9", model: claude-sonnet-4-5}
          gpt:
            {api: responses, base_url: "http://127.0.0.1:9", model: gpt, cache: 1h,
             params: {prompt_cache_retention: 24h}}
        model: m
        limits: {tokens: 50000}
        prompt: Hi
        """
    )

    wrong = project.aish("validate", "p.yaml")
    project.write("p.yaml", (project.folder / "p.yaml").read_text().replace("cache: 1h,", ""))
    done = project.run()

    assert wrong.code == 2
    assert "with `api: responses` it is one of `auto`, `off`, `30m`, `12h`" in wrong.stderr
    assert done.code == 4
    assert "and the next request could use 64," in done.stderr
    assert "shorter answers by `max_tokens` in `params`" in done.stderr
    assert "`prompt_cache_retention` is deprecated by the vendor" in done.stderr
