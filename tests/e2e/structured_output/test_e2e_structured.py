"""Answers in a JSON Schema: read leniently, checked, and asked for again (B9)."""

import json
from typing import Any

import pytest
from e2e_project import ModelEndpoints, Project, of_type, stdio
from model_endpoint import Gate, Reply, hanging_reply, json_reply, text_reply, tool_reply

SORT = """
prompt: Sort this
output:
  schema:
    type: object
    properties: {kind: {enum: [bug, wish]}}
    required: [kind]
    additionalProperties: false
"""
GOOD = '{"kind": "bug"}'
WRONG = '{"kind": "query"}'
NOT_ONE_OF = "the answer does not fit its schema: kind: 'query' is not one of 'bug', 'wish'"
TOOLS = f"mcp: {{servers: {{s: {{command: {stdio()}}}}}, auto_approve: [s__echo]}}"
ECHO = tool_reply([("c1", "s__echo", '{"text": "looked"}')])


def entry(**facts: Any) -> str:
    """The only model, with these facts about it."""
    return f'models: {{m: {{base_url: "${{MODEL_URL}}", model: x, {json.dumps(facts)[1:-1]}}}}}\n'


def roles(asked: Any) -> list[str]:
    return [message["role"] for message in asked["messages"]]


@pytest.mark.requirement("B9")
@pytest.mark.parametrize("facts", [{"json_schema": True}, {"json_schema": False}])
def test_a_broken_answer_is_sent_back_with_its_problems(
    project: Project, model_endpoint: ModelEndpoints, facts: dict[str, Any]
) -> None:
    endpoint = model_endpoint([text_reply('{"kind": "bug",'), text_reply(WRONG), text_reply(GOOD)])
    project.uses(endpoint)
    project.pipeline(entry(**facts) + SORT)

    found = project.result()

    step = found["steps"]["main"]
    assert (found["exit"]["code"], step["output"], step["text"]) == (0, {"kind": "bug"}, GOOD)
    assert step["usage"]["input"] == 21
    first, second, third = endpoint.asked
    assert roles(third) == ["user", "assistant", "user", "assistant", "user"]
    assert third["messages"][:3] == second["messages"]
    assert second["messages"][1]["content"] == '{"kind": "bug",'
    assert "- it is not JSON: Expecting property name" in second["messages"][2]["content"]
    assert "- kind: 'query' is not one of 'bug', 'wish'" in third["messages"][4]["content"]
    assert all(
        ("response_format" in asked) is facts["json_schema"] for asked in (first, second, third)
    )
    notices = of_type(project.journal, "notice")
    assert [(one["code"], one["level"], one["turn"]) for one in notices] == [
        ("answer_rejected", "warning", 1),
        ("answer_rejected", "warning", 2),
    ]
    assert notices[1]["text"] == f"answer 2 of 3: {NOT_ONE_OF}; retrying"
    assert [event["usage"]["input"] for event in of_type(project.journal, "turn.finished")] == [
        7
    ] * 3


@pytest.mark.parametrize("attempts", [1, 2, 3])
def test_after_the_last_attempt_the_step_fails_and_its_text_is_kept(
    project: Project, model_endpoint: ModelEndpoints, attempts: int
) -> None:
    endpoint = model_endpoint([text_reply(WRONG)] * 4)
    project.uses(endpoint)
    project.pipeline(SORT + (f"  attempts: {attempts}\n" if attempts != 3 else ""))

    found = project.result()

    step = found["steps"]["main"]
    assert (found["exit"]["code"], len(endpoint.asked)) == (1, attempts)
    assert (step["text"], step["output"]) == (WRONG, None)
    tried = f" (after {attempts} attempts)" if attempts > 1 else ""
    assert step["error"]["message"] == NOT_ONE_OF + tried
    assert NOT_ONE_OF in found["exit"]["reason"]


def test_a_rejected_answer_never_reaches_a_pipe(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    project.uses(model_endpoint([text_reply("Hm."), text_reply(GOOD)]))
    project.pipeline(SORT)

    done = project.run()

    assert (done.code, done.stdout) == (0, f"{GOOD}\n")
    assert "answer 1 of 3: the answer is not JSON" in done.stderr


@pytest.mark.sampled(3)
@pytest.mark.parametrize("more", [(), ("--stream",), ("-o", "out.txt")], ids=str)
@pytest.mark.parametrize("said", [f"```json\n{GOOD}\n```", f"Here: {GOOD}\n\nAnything else?"])
def test_the_value_is_printed_and_not_the_words_around_it(
    project: Project, model_endpoint: ModelEndpoints, said: str, more: tuple[str, ...]
) -> None:
    project.uses(model_endpoint([text_reply("No idea."), text_reply(said)]))
    project.pipeline(SORT)

    done = project.run(*more)

    written = project.folder / "out.txt"
    assert done.code == 0
    assert (written.read_text("utf-8") if "-o" in more else done.stdout) == f"{GOOD}\n"


@pytest.mark.sampled(3)
@pytest.mark.parametrize("more", [(), ("--stream",), ("-o", "out.txt")], ids=str)
@pytest.mark.parametrize("said", [WRONG, "I cannot say."])
def test_a_rejected_answer_is_never_printed(
    project: Project, model_endpoint: ModelEndpoints, said: str, more: tuple[str, ...]
) -> None:
    project.uses(model_endpoint([text_reply(said)] * 3))
    project.pipeline(SORT)

    done = project.run(*more)

    assert (done.code, done.stdout) == (1, "")
    assert not (project.folder / "out.txt").exists()


def test_an_answer_that_fits_and_is_not_what_was_expected_is_printed(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    project.uses(model_endpoint([text_reply(f"Sure: {GOOD}")]))
    project.pipeline(f"{SORT}expect: [{{expression: output.kind == 'wish'}}]\n")

    done = project.run()

    assert (done.code, done.stdout) == (1, f"{GOOD}\n")


def test_items_print_and_write_what_was_accepted_and_nothing_else(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    texts = {"1": f"Sure: {GOOD}", "2": WRONG}
    project.uses(
        model_endpoint(lambda request: text_reply(texts[request["messages"][0]["content"][0]]))
    )
    each = "foreach: '[1, 2]'\non_error: continue\n"
    project.pipeline(each + SORT.replace("Sort this", '"{{ item }} sort"') + "  attempts: 1\n")

    printed = project.run()
    written = project.run("-o", "out.csv")

    assert (printed.code, printed.stdout, written.code) == (1, f"{GOOD}\n", 1)
    table = (project.folder / "out.csv").read_text("utf-8").splitlines()
    assert table[1] == "0,1,ok,,bug"
    assert table[2].startswith('1,2,failed,"the answer does not fit')
    assert table[2].endswith('",')


def test_a_pipeline_that_ends_in_an_answer_prints_its_value(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    project.uses(model_endpoint([text_reply(f"Sure: {GOOD}")]))
    project.pipeline(SORT, "inner.yaml")
    project.pipeline("steps: [{id: main, pipeline: inner.yaml}]")

    assert project.run().stdout == f"{GOOD}\n"


@pytest.mark.parametrize(
    "said", [f"```json\n{GOOD}\n```", f"Sure, here it is: {GOOD}\n\nTell me if that helps."]
)
def test_a_fence_and_words_around_an_answer_cost_no_attempt(
    project: Project, model_endpoint: ModelEndpoints, said: str
) -> None:
    endpoint = model_endpoint([text_reply(said)])
    project.uses(endpoint)
    project.pipeline(SORT)

    step = project.result()["steps"]["main"]

    assert (step["output"], step["text"], len(endpoint.asked)) == ({"kind": "bug"}, said, 1)


def test_of_two_values_none_is_taken(project: Project, model_endpoint: ModelEndpoints) -> None:
    endpoint = model_endpoint([text_reply(f'{GOOD}\n{{"kind": "wish"}}'), text_reply(GOOD)])
    project.uses(endpoint)
    project.pipeline(SORT)

    assert project.result()["steps"]["main"]["output"] == {"kind": "bug"}
    assert "several JSON values" in endpoint.asked[1]["messages"][2]["content"]


@pytest.mark.parametrize(
    ("reply", "code"),
    [
        (text_reply('{"kind": "b', finish="length"), "truncated"),
        (text_reply("I cannot help with that", finish="content_filter"), "refusal"),
    ],
)
def test_cut_off_and_refused_answers_are_not_asked_for_again(
    project: Project, model_endpoint: ModelEndpoints, reply: Reply, code: str
) -> None:
    endpoint = model_endpoint([text_reply(WRONG), reply, text_reply(GOOD)])
    project.uses(endpoint)
    project.pipeline(SORT)

    found = project.result()

    assert (found["exit"]["code"], len(endpoint.asked)) == (1, 2)
    assert found["steps"]["main"]["error"]["code"] == code


def test_the_time_limit_ends_the_asking_too(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    gate = Gate()
    project.uses(model_endpoint([text_reply(WRONG), hanging_reply(gate)]))
    project.pipeline(f"limits: {{time: 1500ms}}\n{SORT}")

    found = project.result()
    gate.open()

    assert (found["exit"]["code"], found["status"]) == (4, "budget")
    assert found["steps"]["main"]["status"] == "budget"


def test_an_endpoint_that_goes_away_in_between_is_unavailable(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    refused = json_reply(401, {"error": {"message": "no more"}})
    project.uses(model_endpoint([text_reply(WRONG), refused]))
    project.pipeline(SORT)

    assert project.result()["exit"]["code"] == 5


@pytest.mark.parametrize(("on_denied", "code"), [("continue", 0), ("fail", 3)])
def test_a_call_that_is_denied_between_two_answers(
    project: Project, model_endpoint: ModelEndpoints, on_denied: str, code: int
) -> None:
    denied = tool_reply([("c1", "s__add", '{"a": 1, "b": 2}')])
    endpoint = model_endpoint([ECHO, text_reply(WRONG), denied, text_reply(GOOD)])
    project.uses(endpoint)
    project.pipeline(f"{TOOLS}\non_denied: {on_denied}\n{SORT}")

    found = project.result()

    assert (found["exit"]["code"], found["denials"]) == (code, {"s__add": 1})
    calls = found["steps"]["main"]["tool_calls"]
    assert [call["kind"] for call in calls] == ["ok", "denied"]
    assert roles(endpoint.asked[2]) == ["user", "assistant", "tool", "assistant", "user"]
    assert all("tools" in asked for asked in endpoint.asked)


@pytest.mark.parametrize("said_by", ["the endpoint", "the file"])
def test_tools_and_schema_go_out_apart_where_they_do_not_go_together(
    project: Project, model_endpoint: ModelEndpoints, said_by: str
) -> None:
    refusal = json_reply(
        400, {"error": {"message": "json mode cannot be combined with tool/function calling"}}
    )
    told = said_by == "the file"
    replies = [ECHO, text_reply("It is a bug."), text_reply(WRONG), text_reply(GOOD)]
    endpoint = model_endpoint([*([] if told else [refusal]), *replies])
    project.uses(endpoint)
    project.pipeline(entry(json_schema="without_tools" if told else True) + f"{TOOLS}\n{SORT}")

    found = project.result()

    assert found["steps"]["main"]["output"] == {"kind": "bug"}
    kinds = [("tools" in asked, "response_format" in asked) for asked in endpoint.asked]
    apart = [(True, False), (True, False), (False, True), (False, True)]
    assert kinds == [*([] if told else [(True, True)]), *apart]
    assert roles(endpoint.asked[-2])[-2:] == ["assistant", "user"]
    asked_in = endpoint.asked[-2]["messages"][-1]["content"]
    assert asked_in.startswith("Now give your answer in this form. Answer with one JSON value")
    codes = [notice["code"] for notice in found["notices"]]
    assert codes == [*([] if told else ["schema_apart"]), "schema_asked", "answer_rejected"]


def test_a_recorded_run_repeats_its_attempts(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    refusal = json_reply(400, {"error": {"message": "no response_format with tools"}})
    replies = [refusal, ECHO, text_reply("A bug."), text_reply(WRONG), text_reply(GOOD)]
    endpoint = model_endpoint(replies)
    project.uses(endpoint)
    strict = "cassette: {path: c.yaml, strict: true}\n"
    project.pipeline(f"{entry(json_schema=True)}{strict}{TOOLS}\n{SORT}")
    recorded = project.aish("record", "p.yaml", "-o", "c.yaml")
    assert (recorded.code, recorded.stdout) == (0, f"{GOOD}\n")
    endpoint.close()

    replayed = project.run("--replay", "c.yaml")
    shown = project.aish("cassette", "show", "c.yaml")
    checked = project.aish("cassette", "check", "c.yaml")

    assert (replayed.code, replayed.stdout) == (0, f"{GOOD}\n")
    assert "That answer cannot be used:" in shown.stdout
    assert checked.code == 0, checked.stdout


def test_expectations_see_the_answer_that_fits(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    project.uses(model_endpoint([text_reply("Hm."), text_reply(GOOD)]))
    project.pipeline(
        f"{SORT}expect:\n  - equals: {{path: output.kind, value: bug}}\n  - max_tokens: 20\n"
    )

    assert project.result()["exit"]["code"] == 0


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("head", "most"),
    [
        ("", 3),
        (TOOLS, 3 + 8),
        (f"{TOOLS}\nmax_tool_depth: 2", 3 + 2),
        (f"{TOOLS}\ntools: []", 3),
        (entry(json_schema=True) + TOOLS, 3 + 8 + 1),
        (entry(json_schema=True), 3),
    ],
)
def test_the_plan_counts_every_attempt(project: Project, head: str, most: int) -> None:
    project.aish.env["MODEL_URL"] = "http://127.0.0.1:9/v1"
    project.pipeline(f"{head}\n{SORT}")

    view = json.loads(project.aish("plan", "p.yaml", "--format", "json", "--offline").stdout)
    said = project.aish("plan", "p.yaml", "--offline").stdout

    assert view["requests"] == {"at_least": 1, "at_most": most}
    assert view["steps"][0]["attempts"] == 3
    assert "answers in a JSON schema, requested up to 3 times" in said


RATE = """
output:
  release: [untrusted]
  schema:
    type: object
    properties: {stars: {type: integer, minimum: 1, maximum: 5}, spam: {type: boolean}}
    required: [stars, spam]
    additionalProperties: false
"""


def test_released_outputs_have_one_form_and_are_counted(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    stars = ['{"stars": 2.0, "spam": false}', '{"spam": true, "stars": 5}']
    project.uses(model_endpoint([text_reply(text) for text in stars]))
    project.pipeline(f"prompt: Rate this\nforeach: '[1, 2]'\nconcurrency: 1\n{RATE}")
    planned = project.aish("plan", "p.yaml", "--offline").stdout
    view = json.loads(project.aish("plan", "p.yaml", "--offline", "--format", "json").stdout)

    found = project.result()

    items = [json.dumps(item["output"]) for item in found["steps"]["main"]["items"]]
    assert items == ['{"spam": false, "stars": 2}', '{"spam": true, "stars": 5}']
    assert of_type(project.journal, "run.finished")[0]["released_bits"] == 8
    assert "release: 4 bits, which are not untrusted any more" in planned
    assert view["steps"][0]["release"] == {"labels": ["untrusted"], "bits": 4}


@pytest.mark.requirement("T27")
def test_a_released_output_is_sent_and_the_text_of_its_answer_is_held(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    project.uses(model_endpoint([text_reply('{"stars": 5, "spam": false}')]))
    schema = {
        "type": "object",
        "properties": {"stars": {"enum": [1, 2, 3, 4, 5]}, "spam": {"type": "boolean"}},
        "additionalProperties": False,
        "required": ["stars", "spam"],
    }
    output = {"release": ["untrusted"], "schema": schema}
    call = {"call": "net__web_fetch", "on_error": "continue"}
    url = "http://127.0.0.1:1/{{ steps.rate.%s }}"
    steps = [
        {"id": "rate", "prompt": "{{ inputs.text }}", "output": output},
        {"id": "out", **call, "with": {"url": url % "output.stars"}},
        {"id": "text", **call, "with": {"url": url % "text"}},
    ]
    project.pipeline(
        f"""
        mcp:
          servers: {{net: {{pack: web}}}}
          auto_approve: [net__web_fetch]
          labels: {{inputs.text: [untrusted]}}
          flow: [{{from: [untrusted], to: [sends], then: deny}}]
        on_denied: continue
        inputs: {{text: {{default: Good}}}}
        steps: {json.dumps(steps)}
        """
    )

    project.run()

    decided = {one["step"]: one["verdict"] for one in of_type(project.journal, "tool.decided")}
    assert decided == {"out": "auto", "text": "deny"}
    assert of_type(project.journal, "run.finished")[0]["released_bits"] == 4


@pytest.mark.parametrize(
    ("leaf", "why"),
    [
        ("{type: string}", "`release` needs a closed schema: `stars` is a string without `const`"),
        (
            "{type: integer, minimum: 0, maximum: 4294967295}",
            "`release` is for 32 bits at most, and the answer has 33: most are in `stars`",
        ),
    ],
)
def test_an_output_that_can_say_too_much_is_not_released(
    project: Project, leaf: str, why: str
) -> None:
    project.aish.env["MODEL_URL"] = "http://127.0.0.1:1/v1"
    project.pipeline("prompt: x\n" + RATE.replace("{type: integer, minimum: 1, maximum: 5}", leaf))
    done = project.aish("validate", "p.yaml")
    assert done.code == 2
    assert f": output.schema: {why}" in done.stderr


@pytest.mark.embedded
@pytest.mark.slow(reason="the model writes for 5 s, as it does in the unit test of the same")
def test_the_embedded_model_uses_a_tool_and_answers_in_a_schema(project: Project) -> None:
    project.write("notes.txt", "The colour is teal.\n")
    project.pipeline(
        """
        models: {m: {embedded: smollm2}}
        mcp: {servers: {repo: {pack: [fs], root: .}}, auto_approve: [repo__file_read]}
        prompt: Use the tool file_read to read the file notes.txt. What colour is in it?
        tools: [repo__file_read]
        output:
          schema:
            type: object
            properties: {colour: {type: string}}
            required: [colour]
            additionalProperties: false
        """
    )

    step = project.result()["steps"]["main"]

    assert [call["tool"] for call in step["tool_calls"]] == ["repo__file_read"]
    assert step["output"] == {"colour": "teal"}
