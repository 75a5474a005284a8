"""What a model or a tool says may be no JSON at all, and a step may end before its result."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from e2e_project import ModelEndpoints, Project, stdio
from model_endpoint import json_reply, text_reply, tool_reply

DEEP = "[" * 100_000
CANNED = Path(__file__).parents[2] / "support" / "mcp_canned_server.py"
HUGE = "9" * 5000
ECHO = f"mcp: {{servers: {{s: {{command: {stdio()}}}}}, auto_approve: ['s__*']}}"


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (DEEP, "nested more than 64 deep"),
        ('{"a": 1e999}', "`1e999` is too large a number"),
        (f'{{"a": {HUGE}}}', "a number of 5000 digits is too large"),
        ('{"a": 1, "a": 2}', "duplicate key `a`"),
    ],
)
def test_an_answer_that_is_no_sound_json_fails_its_step(
    project: Project, model_endpoint: ModelEndpoints, answer: str, why: str
) -> None:
    project.uses(model_endpoint([text_reply(answer)]))
    project.pipeline("prompt: Say something\noutput: {schema: {type: object}, attempts: 1}")

    found = project.result()

    assert found["exit"]["code"] == 1
    assert why in found["steps"]["main"]["error"]["message"]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("said", [DEEP, "NaN", '{"a": 1e999}', HUGE, '{"a": 1, "a": 2}'])
def test_a_tools_text_that_is_no_sound_json_stays_text(project: Project, said: str) -> None:
    project.pipeline(
        f"""
        {ECHO}
        inputs: {{said: {{type: string}}}}
        call: s__echo
        with: {{text: "{{{{ inputs.said }}}}"}}
        """
    )

    found = project.result("-i", f"said={said}")

    assert found["exit"]["code"] == 0
    assert found["steps"]["main"]["output"] == said


def test_a_denial_is_told_even_if_its_step_then_fails(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    asks = tool_reply([("c1", "s__echo", '{"text": "x"}')])
    project.uses(model_endpoint([asks, json_reply(400, {"error": "no"})]))
    project.pipeline(
        f"""
        {ECHO.replace("s__*", "s__add")}
        on_denied: continue
        prompt: Say something
        """
    )

    found = project.result()

    assert found["exit"]["code"] == 1
    assert found["denials"] == {"s__echo": 1}


def test_only_what_was_decided_against_counts_as_denied(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    calls = [("c1", "s__echo", '{"text": "x"}'), ("c2", "s__add", '{"a": 1, "b": 2}')]
    project.uses(model_endpoint([tool_reply(calls)]))
    project.pipeline(f"{ECHO.replace('s__*', 's__add')}\nprompt: Say something")

    found = project.result()

    assert found["denials"] == {"s__echo": 1}
    assert [call["kind"] for call in found["steps"]["main"]["tool_calls"]] == ["denied", "denied"]


@pytest.mark.requirement("M4")
def test_the_names_on_the_wire_do_not_depend_on_the_model_that_is_asked(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    endpoint = model_endpoint(lambda _: text_reply("ok"))
    project.uses(endpoint)
    project.pipeline(
        f"""
        models:
          short: {{base_url: "${{MODEL_URL}}", model: a, max_tool_name: 16}}
          other: {{base_url: "${{MODEL_URL}}", model: b}}
        model: short
        mcp: {{servers: {{quite-a-long-alias: {{command: {stdio()}}}}}}}
        prompt: Say something
        """
    )

    for model in ("short", "other"):
        assert project.run("-m", model).code == 0
    listed = project.aish("tools", "p.yaml", "--json")

    first, second = (
        [tool["function"]["name"] for tool in asked["tools"]] for asked in endpoint.asked
    )
    assert first == second
    assert all(f'"wire": "{name}"' in listed.stdout for name in first)


def test_a_direct_call_prints_the_result_as_the_tool_gave_it(project: Project) -> None:
    project.pipeline(f"{ECHO}\nrun: [echo]")
    long = "x" * 50_000

    def call(text: str) -> str:
        done = project.aish("call", "p.yaml", "s__echo", f"text={text}")
        assert (done.code, done.stderr) == (0, "")
        return done.stdout

    assert call("ends in a line\n") == "ends in a line\n"
    assert call("\x1b[1m\r.") == "\x1b[1m\r.\n", "a pipe is no terminal"
    assert not call("")
    done = project.aish("call", "p.yaml", "s__big", f"n={len(long)}")
    assert done.stdout == f"{long}\n"


def test_a_denied_call_is_told_of_a_way_that_works(project: Project) -> None:
    project.pipeline(f"{ECHO.replace('s__*', 's__add')}\nrun: [echo]")

    unasked = project.aish("call", "p.yaml", "s__echo", "text=x")
    denied = project.aish("call", "p.yaml", "s__echo", "text=x", "--deny", "s__echo")

    assert (unasked.code, denied.code) == (3, 3)
    assert unasked.stderr.startswith("error: s__echo: tool call denied: no rule approves s__echo")
    assert "`--allow s__echo`" in unasked.stderr
    assert "by rule s__echo" in denied.stderr
    assert "--allow" not in denied.stderr, "deny beats allow"


SPEC = {"properties": {"any": True, "none": False, "many": {"anyOf": [{"type": "array"}]}}}
SENT: list[tuple[list[str], Any]] = [
    (["any=a"], {"any": "a"}),
    (["any=[1]", "many=[x]"], {"any": [1], "many": ["x"]}),
    (["any=@no.json"], {"any": "@no.json"}),
    (['any:={"a": null}'], {"any": {"a": None}}),
    (["--args", '{"any": 1, "many": []}', "any=2"], {"any": 2, "many": []}),
    (["--args", "@given.json"], {"any": "of a file"}),
    (["--args", "-", "many=[]"], {"any": "piped", "many": []}),
]
REFUSED: list[tuple[list[str], str]] = [
    (["none=a"], "s__put: none: is not allowed"),
    (["any:=x"], "any:=: not JSON: "),
    (["any"], "`any` is neither KEY=VALUE nor KEY:=JSON"),
    (["--args", "[]"], "--args: not a JSON object"),
    (["--args", "any=1"], "--args: not JSON: "),
    (["--args", "@gone.json"], "--args: `gone.json`: no such file"),
]


@pytest.fixture
def canned(project: Project) -> Project:
    """A server with a tool whose schema names no types."""
    tool = {"name": "put", "inputSchema": {"type": "object", **SPEC}}
    results: Any = {"put": {"result": {"content": []}}}
    given = {"tools": [tool], "results": results, "calls": str(project.folder / "calls")}
    project.write("canned.json", json.dumps(given))
    project.write("given.json", '{"any": "of a file"}')
    command = f"[{sys.executable}, {CANNED}, canned.json]"
    project.pipeline(f"mcp: {{servers: {{s: {{command: {command}}}}}, auto_approve: ['s__*']}}")
    return project


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("words", "sent"), SENT)
def test_the_arguments_of_a_direct_call_are_what_the_schema_allows(
    canned: Project, words: list[str], sent: Any
) -> None:
    """Issue 27, B1."""
    done = canned.aish("call", "p.yaml", "s__put", *words, stdin='{"any": "piped"}')

    assert (done.code, done.stderr) == (0, "")
    assert json.loads((canned.folder / "calls").read_text("utf-8"))["arguments"] == sent


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("words", "said"), REFUSED)
def test_arguments_that_cannot_be_meant_are_refused_and_nothing_is_sent(
    canned: Project, words: list[str], said: str
) -> None:
    done = canned.aish("call", "p.yaml", "s__put", *words)

    assert done.code == 2
    assert done.stderr.startswith(f"error: {said}")
    assert not (canned.folder / "calls").exists()


def test_the_names_of_the_arguments_that_a_lock_has_are_completed(canned: Project) -> None:
    assert canned.aish("lock", "p.yaml").code == 0
    line = "aish call p.yaml s__put m"
    env = {"_AISH_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": "4"}

    assert canned.aish(env=env).stdout.split() == ["many="]
