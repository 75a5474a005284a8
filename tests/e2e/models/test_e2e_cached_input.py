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
