"""Limits of a run and of its steps, prices and costs (B8, B10)."""

import json
from typing import Any

import pytest
from e2e_project import ModelEndpoints, Project, of_type, stdio
from model_endpoint import (
    CUT,
    Gate,
    Reply,
    delta,
    json_reply,
    sse,
    stream_reply,
    text_reply,
    tool_reply,
    usage,
)

# 10 tokens an answer, so $0.01; a request is 45 tokens at worst, or $0.045.
ENTRY = 'base_url: "${MODEL_URL}", model: x, params: {max_tokens: 10}'
PRICED = f"models: {{m: {{{ENTRY}, price: {{input: 1000, output: 1000}}}}}}\n"
TOOLS = f"mcp: {{servers: {{s: {{command: {stdio()}}}}}, auto_approve: [s__echo]}}\n"
ECHO = tool_reply([("c1", "s__echo", '{"text": "looked"}')])


def counted_reply(text: str, **counts: Any) -> Reply:
    """An answer whose `usage` has these fields as well."""
    last = usage()
    last["usage"] |= counts
    return stream_reply(sse([delta(content=text), delta("stop"), last]))


def uncounted_reply(text: str) -> Reply:
    """An answer that says nothing of tokens."""
    return stream_reply(sse([delta(content=text), delta("stop")]))


def three_steps(head: str) -> str:
    return f"{head}steps:\n" + "".join(
        f"  - {{id: {id}, prompt: Say {id}{needs}}}\n"
        for id, needs in (("a", ""), ("b", ", needs: [a]"), ("c", ", needs: [b]"))
    )


def test_a_turn_costs_what_the_file_says_and_the_run_what_its_turns_do(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    project.uses(model_endpoint([text_reply("x")] * 3))
    project.pipeline(three_steps(PRICED))

    found = project.result()

    assert [step["cost_usd"] for step in found["steps"].values()] == [pytest.approx(0.01)] * 3
    assert found["cost_usd"] == pytest.approx(0.03)
    turns = of_type(project.journal, "turn.finished")
    assert [turn["cost_usd"] for turn in turns] == [pytest.approx(0.01)] * 3


def test_the_closing_line_has_the_cost(project: Project, model_endpoint: ModelEndpoints) -> None:
    project.uses(model_endpoint([text_reply("x")]))
    project.pipeline(f"{PRICED}prompt: Hi\n")

    assert ", $0.01, " in project.run().stderr


@pytest.mark.requirement("B10")
@pytest.mark.parametrize("cost", [0.5, {"total_cost": 0.5}])
def test_what_the_provider_says_beats_the_price_in_the_file(
    project: Project, model_endpoint: ModelEndpoints, cost: Any
) -> None:
    project.uses(model_endpoint([counted_reply("x", cost=cost)]))
    project.pipeline(f"{PRICED}prompt: Hi\n")

    assert project.result()["cost_usd"] == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("entry", "reply"),
    [(ENTRY, text_reply("x")), (f"{ENTRY}, price: {{input: 1, output: 1}}", uncounted_reply("x"))],
)
def test_without_a_price_or_a_count_the_cost_is_unknown_and_never_zero(
    project: Project, model_endpoint: ModelEndpoints, entry: str, reply: Reply
) -> None:
    project.uses(model_endpoint([reply]))
    project.pipeline(f"models: {{m: {{{entry}}}}}\nprompt: Hi\n")

    found = project.result()

    assert (found["exit"]["code"], found["cost_usd"]) == (0, None)
    assert found["steps"]["main"]["cost_usd"] is None


def test_the_turn_of_a_fallback_costs_its_own_price(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    down = json_reply(500, {"error": "down"}, {"x-should-retry": "false"})
    project.uses(model_endpoint([down, text_reply("x")]))
    dear = f"m: {{{ENTRY}, price: {{input: 9000, output: 9000}}, fallback: [n]}}"
    cheap = f"n: {{{ENTRY}, price: {{input: 100, output: 100}}}}"
    project.pipeline(f"models: {{{dear}, {cheap}}}\nmodel: m\nprompt: Hi\n")

    found = project.result()

    assert found["cost_usd"] == pytest.approx(0.001)


@pytest.mark.parametrize("option", [(), ("--max-cost-usd", "0.06")])
def test_a_cost_limit_stops_before_the_request_that_could_pass_it(
    project: Project, model_endpoint: ModelEndpoints, option: tuple[str, ...]
) -> None:
    endpoint = model_endpoint([text_reply("x")] * 3)
    project.uses(endpoint)
    limit = "limits: {cost_usd: 9}\n" if option else "limits: {cost_usd: 0.06}\n"
    project.pipeline(three_steps(PRICED + limit))

    found = project.result(*option)

    assert len(endpoint.asked) == 2
    assert [step["status"] for step in found["steps"].values()] == ["ok", "ok", "budget"]
    assert (found["exit"]["code"], found["exit"]["name"]) == (4, "budget")
    assert found["exit"]["reason"].startswith(
        "step `c`: the limit of $0.06 is reached: $0.02 spent, and the next request could cost $0.0"
    )
    assert found["exit"]["hint"] == (
        "raise `limits.cost_usd` in the file, or `--max-cost-usd`; `--resume` continues the run"
    )
    assert found["cost_usd"] == pytest.approx(0.02)


@pytest.mark.parametrize(
    ("limits", "option", "said"),
    [
        ("turns: 1", (), "the limit of 1 turn is reached"),
        ("turns: 9", ("--max-turns", "1"), "the limit of 1 turn is reached"),
        ("tokens: 50", (), "the limit of 50 tokens is reached: 10 tokens spent, and the next"),
    ],
)
def test_turns_and_tokens_are_bounded_too(
    project: Project,
    model_endpoint: ModelEndpoints,
    limits: str,
    option: tuple[str, ...],
    said: str,
) -> None:
    endpoint = model_endpoint([text_reply("x")] * 3)
    project.uses(endpoint)
    project.pipeline(three_steps(f"{PRICED}limits: {{{limits}}}\n"))

    found = project.result(*option)

    assert (found["exit"]["code"], len(endpoint.asked)) == (4, 1)
    assert said in found["exit"]["reason"]
    assert found["steps"]["c"]["status"] == "skipped"


def test_a_limit_of_a_step_holds_for_that_step_alone(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    endpoint = model_endpoint([text_reply("x"), ECHO, text_reply("never asked for")])
    project.uses(endpoint)
    steps = "steps: [{id: a, prompt: A}, {id: b, prompt: B, needs: [a], limits: {turns: 1}}]\n"
    project.pipeline(f"{PRICED}{TOOLS}{steps}")

    found = project.result()

    assert (found["exit"]["code"], len(endpoint.asked)) == (4, 2)
    step = found["steps"]["b"]
    assert step["status"] == "budget"
    assert step["error"]["message"] == "the limit of the step `b` of 1 turn is reached"
    assert (step["usage"]["input"], step["cost_usd"]) == (7, pytest.approx(0.01))


def test_a_step_that_takes_too_long_is_over_its_budget(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    gate = Gate()
    project.uses(model_endpoint([text_reply("late").but(before_head=gate)]))
    project.pipeline(f"{PRICED}steps: [{{id: a, prompt: A, limits: {{time: 1s}}}}]\n")

    found = project.result()

    gate.open()
    assert (found["exit"]["code"], found["steps"]["a"]["status"]) == (4, "budget")
    assert found["steps"]["a"]["error"]["message"] == "the time limit of the step, 1 s, is exceeded"


def test_calls_over_the_limit_are_answered_and_not_made(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    both = tool_reply([("c1", "s__echo", '{"text": "1"}'), ("c2", "s__echo", '{"text": "2"}')])
    endpoint = model_endpoint([both, text_reply("never asked for")])
    project.uses(endpoint)
    project.pipeline(f"{PRICED}{TOOLS}limits: {{tool_calls: 1}}\nprompt: Hi\n")

    found = project.result()

    first, second = found["steps"]["main"]["tool_calls"]
    assert (first["kind"], second["kind"]) == ("ok", "denied")
    assert second["content"] == "[aish] tool call not run: the limit on tool calls is reached"
    assert (found["exit"]["code"], found["denials"], len(endpoint.asked)) == (4, {}, 1)
    assert "the limit of 1 tool call is reached" in found["exit"]["reason"]
    assert len(of_type(project.journal, "tool.started")) == 1


def test_a_call_that_was_denied_does_not_count(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    other = tool_reply([("c1", "s__add", '{"a": 1, "b": 2}')])
    project.uses(model_endpoint([other, ECHO, text_reply("done")]))
    head = f"{PRICED}{TOOLS}on_denied: continue\nlimits: {{tool_calls: 1}}\n"
    project.pipeline(f"{head}prompt: Hi\n")

    found = project.result()

    assert (found["exit"]["code"], found["steps"]["main"]["text"]) == (0, "done")


def test_a_call_step_over_the_limit_is_not_made(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    project.uses(model_endpoint([]))
    step = "{id: a, call: s__echo, with: {text: hi}}"
    project.pipeline(f"{PRICED}{TOOLS}limits: {{tool_calls: 0}}\nsteps: [{step}]\n")

    found = project.result()

    assert (found["exit"]["code"], found["steps"]["a"]["status"]) == (4, "budget")
    assert of_type(project.journal, "tool.started") == []


def test_eight_at_a_time_do_not_pass_a_limit_that_four_of_them_reach(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    endpoint = model_endpoint(lambda _: text_reply("x"))
    project.uses(endpoint)
    items = "foreach: range(30) | list\nconcurrency: 8\nprompt: Say it\n"
    # Each answer costs $0.01; a request is sent while $0.045 are left.
    project.pipeline(f"{PRICED}limits: {{cost_usd: 0.2}}\n{items}")

    found = project.result()

    assert found["exit"]["code"] == 4
    assert found["cost_usd"] <= 0.2
    assert len(endpoint.asked) == round(found["cost_usd"] / 0.01)
    # What is held for others is waited for, so the limit is used as far as it goes.
    assert len(endpoint.asked) in {16, 17}


@pytest.mark.requirement("B8")
def test_requests_under_way_are_held_against_the_limit(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    gate = Gate(opens_at=4)
    endpoint = model_endpoint(lambda _: text_reply("x").but(before_head=gate))
    project.uses(endpoint)
    items = "foreach: range(8) | list\nconcurrency: 8\nprompt: Say it\n"
    project.pipeline(f"{PRICED}limits: {{turns: 4}}\n{items}")

    found = project.result()

    assert (found["exit"]["code"], len(endpoint.asked)) == (4, 4)


def test_an_answer_without_counts_is_charged_at_its_worst(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    endpoint = model_endpoint([uncounted_reply("x")] * 3)
    project.uses(endpoint)
    project.pipeline(three_steps(f"{PRICED}limits: {{tokens: 80}}\n"))

    found = project.result()

    assert (found["exit"]["code"], len(endpoint.asked)) == (4, 1)
    assert found["usage"]["input"] is None


def test_each_try_is_weighed_and_a_broken_answer_is_charged_at_its_worst(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    broken = stream_reply(sse([delta(content="half")], done=False), CUT)
    endpoint = model_endpoint([broken, text_reply("never asked for")])
    project.uses(endpoint)
    project.pipeline(f"{PRICED}limits: {{tokens: 70}}\nprompt: Hi\n")

    found = project.result()

    assert (found["exit"]["code"], len(endpoint.asked)) == (4, 1)
    assert "the limit of 70 tokens is reached" in found["exit"]["reason"]


def test_a_refused_request_costs_nothing(project: Project, model_endpoint: ModelEndpoints) -> None:
    busy = json_reply(503, {"error": "busy"})
    project.uses(model_endpoint([busy, busy, text_reply("x")]))
    project.pipeline(f"{PRICED}limits: {{tokens: 70, turns: 1}}\nprompt: Hi\n")

    found = project.result()

    assert (found["exit"]["code"], found["cost_usd"]) == (0, pytest.approx(0.01))


@pytest.mark.parametrize(
    ("entry", "limits", "where", "said"),
    [
        (ENTRY, "cost_usd: 1", "2:13", "`limits.cost_usd` needs a price for the model `m`"),
        (
            'base_url: "${MODEL_URL}", model: x, price: {input: 1, output: 1}',
            "cost_usd: 1",
            "2:13",
            "`limits.cost_usd` needs `max_tokens` in the `params` of the model `m`",
        ),
        (
            'base_url: "${MODEL_URL}", model: x',
            "tokens: 5",
            "2:13",
            "`limits.tokens` needs `max_tokens` in the `params` of the model `m`",
        ),
    ],
)
def test_a_limit_that_could_not_hold_is_an_error_in_the_file(
    project: Project,
    model_endpoint: ModelEndpoints,
    entry: str,
    limits: str,
    where: str,
    said: str,
) -> None:
    endpoint = model_endpoint([text_reply("never asked for")])
    project.uses(endpoint)
    project.pipeline(f"models: {{m: {{{entry}}}}}\nlimits: {{{limits}}}\nprompt: Hi\n")

    done = project.aish("validate", "p.yaml")

    assert (done.code, endpoint.asked) == (2, [])
    assert f"p.yaml:{where}: models.m" in done.stderr + done.stdout
    assert said in done.stderr + done.stdout


def test_a_limit_of_the_command_line_asks_for_the_same(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    endpoint = model_endpoint([text_reply("never asked for")])
    project.uses(endpoint)
    project.pipeline(f"models: {{m: {{{ENTRY}}}}}\nprompt: Hi\n")

    done = project.run("--max-cost-usd", "1")

    assert (done.code, endpoint.asked) == (2, [])
    assert "`limits.cost_usd` needs a price for the model `m`" in done.stderr


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_the_params_of_a_step_will_do(
    project: Project, model_endpoint: ModelEndpoints, name: str
) -> None:
    project.uses(model_endpoint([text_reply("x")]))
    models = 'models: {m: {base_url: "${MODEL_URL}", model: x}}'
    project.pipeline(
        f"{models}\nlimits: {{tokens: 500}}\nsteps: [{{id: a, prompt: A, params: {{{name}: 9}}}}]\n"
    )

    assert project.run().code == 0


def test_the_plan_shows_limits_prices_and_the_worst_case(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    project.uses(model_endpoint([]))
    project.pipeline(three_steps(f"{PRICED}limits: {{tokens: 900, turns: 7}}\n"))

    view = json.loads(project.aish("plan", "p.yaml", "--format", "json").stdout)
    text = project.aish("plan", "p.yaml", "--max-cost-usd", "2").stdout

    assert view["limits"]["tokens"] == 900
    assert view["models"][0]["price"] == {"input": 1000.0, "output": 1000.0}
    assert 0.1 < view["cost_usd"]["at_most"] < 0.4
    assert "limits  tokens 900, cost $2.00, turns 7\n" in text
    assert "$1,000.00 in / $1,000.00 out per million tokens" in text


def test_a_worst_case_that_nobody_knows_is_unknown_in_the_plan(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    project.uses(model_endpoint([]))
    project.pipeline(three_steps(f"models: {{m: {{{ENTRY}}}}}\n"))

    view = json.loads(project.aish("plan", "p.yaml", "--format", "json").stdout)
    text = project.aish("plan", "p.yaml").stdout

    assert view["cost_usd"]["at_most"] is None
    assert "cost  unknown\n" in text


def test_what_was_spent_before_a_resume_still_counts(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    endpoint = model_endpoint(lambda _: text_reply("x"))
    project.uses(endpoint)
    items = "foreach: range(5) | list\nconcurrency: 1\nprompt: Say it\n"
    project.pipeline(f"{PRICED}limits: {{cost_usd: 0.06}}\n{items}")

    first = project.result()
    again = project.result("--resume")
    done = project.result("--resume", "--max-cost-usd", "0.09")

    assert [found["exit"]["code"] for found in (first, again, done)] == [4, 4, 0]
    assert len(endpoint.asked) == 5
    assert done["cost_usd"] == pytest.approx(0.05)


def test_a_limit_of_a_step_holds_for_the_pipeline_in_it(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    endpoint = model_endpoint([text_reply("x")] * 3)
    project.uses(endpoint)
    project.pipeline(three_steps(PRICED), "inner.yaml")
    project.pipeline("steps: [{id: all, pipeline: inner.yaml, limits: {turns: 2}}]\n")

    found = project.result()

    assert (found["exit"]["code"], len(endpoint.asked)) == (4, 2)
    assert "the limit of the step `all` of 2 turns is reached" in found["exit"]["reason"]
    assert found["cost_usd"] == pytest.approx(0.02)


def test_what_a_server_asks_the_model_counts_too(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    said = [{"role": "user", "content": {"type": "text", "text": "Where?"}}]
    sampling = {"method": "sampling/createMessage", "params": {"messages": said, "maxTokens": 9}}
    ask = tool_reply([("c1", "s__ask_client", json.dumps(sampling))])
    endpoint = model_endpoint([ask, text_reply("There"), text_reply("never asked for")])
    project.uses(endpoint)
    server = f"s: {{command: {stdio('--asks')}, sampling: allow}}"
    tools = f"mcp: {{servers: {{{server}}}, auto_approve: ['s__*']}}\n"
    project.pipeline(f"{PRICED}{tools}limits: {{turns: 2}}\nprompt: Hi\n")

    found = project.result()

    assert (found["exit"]["code"], len(endpoint.asked)) == (4, 2)
    assert found["cost_usd"] == pytest.approx(0.02)
