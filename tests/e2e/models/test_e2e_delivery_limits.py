"""Rounds of a batch under a limit on cost."""

import json
from typing import Any

import pytest
from batch_servers import BatchServer, answer_in_words
from e2e_project import Project

KEY = {"KEY": "sk-batch-0123456789abcdef"}
INPUT, OUTPUT = 3.0, 15.0
WORST_ANSWER = 100
ROWS = 12


def pipeline(project: Project, cost: float) -> None:
    project.shorten_pauses()
    project.pipeline(
        f"""
        models:
          m:
            api: messages
            delivery: batch
            base_url: "${{MODEL_URL}}"
            model: scripted
            key_env: KEY
            params: {{max_tokens: {WORST_ANSWER}}}
            price: {{input: {INPUT}, output: {OUTPUT}, batch: 0.5}}
        limits: {{cost_usd: {cost}}}
        steps:
          - id: rows
            foreach: "range({ROWS}) | list"
            prompt: "Row {{{{ item }}}} of all"
        """
    )


def cost_of(input_tokens: int, output_tokens: int) -> float:
    return (input_tokens * INPUT + output_tokens * OUTPUT) / 2e6


def test_a_round_that_does_not_fit_a_limit_on_cost_is_several_rounds(project: Project) -> None:
    limit = 5.5 * cost_of(20, WORST_ANSWER)
    pipeline(project, limit)
    with BatchServer("messages") as server:
        project.uses(server)
        done = project.aish("run", "p.yaml", "--format", "json", env=KEY)

    assert done.code == 0, done.stderr
    result = json.loads(done.stdout)
    assert sum(len(batch.rows) for batch in server.batches) == ROWS
    assert len(server.batches) > 2
    for batch in server.batches:
        assert len(batch.rows) * cost_of(0, WORST_ANSWER) <= limit
    assert server.singles == []
    assert result["cost_usd"] == pytest.approx(ROWS * cost_of(7, 3))


def test_nothing_is_submitted_where_no_request_fits(project: Project) -> None:
    pipeline(project, cost_of(0, WORST_ANSWER))
    with BatchServer("messages") as server:
        project.uses(server)
        done = project.aish("run", "p.yaml", "--format", "json", env=KEY)

    assert done.code == 4, done.stderr
    assert "cost" in done.stderr
    assert not server.batches
    assert not server.singles


def test_what_a_provider_says_that_it_charged_comes_before_the_price_of_batches(
    project: Project,
) -> None:
    def answer(body: dict[str, Any]) -> dict[str, Any]:
        found = answer_in_words("messages", "hello")
        text = json.dumps(body["messages"][0])
        is_standard = "Row 0 of all" in text or "Row 1 of all" in text
        found["usage"]["service_tier"] = "standard" if is_standard else "batch"
        return found

    pipeline(project, 1.0)
    with BatchServer("messages", answer) as server:
        project.uses(server)
        done = project.aish("run", "p.yaml", "--format", "json", env=KEY)

    assert done.code == 0, done.stderr
    assert json.loads(done.stdout)["cost_usd"] == pytest.approx((ROWS + 2) * cost_of(7, 3))
