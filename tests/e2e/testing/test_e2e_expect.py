"""What a step expects of itself, in `aish run` (F12)."""

import json
from typing import Any

import pytest
from e2e_project import REPO, ModelEndpoints, Project, of_type, stdio
from jsonschema import Draft202012Validator
from model_endpoint import delta, sse, stream_reply, text_reply, tool_reply
from syrupy.assertion import SnapshotAssertion

TOOLS = f"""
mcp:
  servers: {{s: {{command: {stdio()}}}}}
  auto_approve: [s__*]
"""
NOTES = """
mcp: {auto_approve: [shell__run]}
steps:
  - id: notes
    run: [printf, '# Notes\\n\\nFixed the door.\\n']
    expect:
      - contains: Fixed
      - matches: "^# "
      - max_tool_calls: 1
      - tool_called: {tool: shell__run}
      - expression: output.exit_code == 0
      - snapshot: kept/notes.md
  - id: after
    needs: [notes]
    run: [touch, after.txt]
"""


def valid(schema: str, value: Any) -> None:
    text = (REPO / "schemas" / f"{schema}.schema.json").read_text(encoding="utf-8")
    Draft202012Validator(json.loads(text)).validate(value)


@pytest.mark.requirement("F12")
def test_a_step_that_does_what_it_is_expected_to_is_ok(project: Project) -> None:
    project.pipeline(NOTES)
    project.write("kept/notes.md", "# Notes\n\nFixed the door.\n")

    result = project.result()

    valid("result", result)
    assert result["status"] == "ok"
    assert [(row["step"], row["kind"], row["ok"]) for row in result["expectations"]] == [
        ("notes", "contains", True),
        ("notes", "matches", True),
        ("notes", "max_tool_calls", True),
        ("notes", "tool_called", True),
        ("notes", "expression", True),
        ("notes", "snapshot", True),
    ]
    assert (project.folder / "after.txt").exists()
    checked = of_type(project.journal, "expect.checked")
    assert [event["step"] for event in checked] == ["notes"] * 6
    for event in checked:
        valid("events", event)


def test_a_step_that_does_not_fails_and_ends_the_run(
    project: Project, snapshot: SnapshotAssertion
) -> None:
    project.pipeline(NOTES)
    project.write("kept/notes.md", "# Notes\n\nFixed the window.\n")

    result = project.result()

    valid("result", result)
    assert (result["status"], result["exit"]["code"]) == ("failed", 1)
    assert result["steps"]["notes"]["error"]["code"] == "expectation"
    assert result["steps"]["notes"]["text"] == "# Notes\n\nFixed the door.\n"
    assert result["steps"]["after"]["status"] == "skipped"
    assert not (project.folder / "after.txt").exists()
    assert [row["ok"] for row in result["expectations"]] == [True] * 5 + [False]
    assert result["expectations"][-1]["message"] == snapshot
    assert (project.folder / "kept/notes.md").read_text() == "# Notes\n\nFixed the window.\n"


def test_everything_that_does_not_hold_is_said(
    project: Project, model_endpoint: ModelEndpoints, snapshot: SnapshotAssertion
) -> None:
    project.uses(
        model_endpoint([tool_reply([("c1", "s__echo", '{"text": "a"}')]), text_reply("Hello")])
    )
    project.pipeline(
        TOOLS
        + """
prompt: Say hello
expect:
  - contains: Hello
  - tool_called: s__ech?
  - tool_called: {tool: s__echo, with: {text: b}}
  - tool_not_called: s__*
  - tool_sequence: {tools: [s__echo, s__echo], exact: true}
  - max_tool_calls: 0
  - max_tokens: 1
  - equals: |
      Hello
      there
"""
    )

    done = project.run()

    assert done.code == 1
    assert project.tidy(done.stderr) == snapshot


def test_a_person_at_a_console_sees_what_does_not_hold(
    project: Project, snapshot: SnapshotAssertion
) -> None:
    project.pipeline(NOTES)
    project.write("kept/notes.md", "# Notes\n\nFixed the window.\n")
    project.aish.env |= {"FORCE_COLOR": "1", "NO_COLOR": "1", "COLUMNS": "90"}
    project.aish.env.pop("CI", None)

    done = project.run()

    assert done.code == 1
    assert project.tidy(done.stderr) == snapshot


def test_quiet_still_says_what_does_not_hold(project: Project) -> None:
    project.pipeline(
        "run: [echo, hi]\nexpect: [{contains: ho}]\nmcp: {auto_approve: [shell__run]}\n"
    )

    done = project.run("-q")

    assert (done.code, done.stderr) == (
        1,
        "error: step `main`: expected the text to contain `ho`; got `hi`\n",
    )


def test_a_step_that_failed_anyway_is_not_held_to_anything(project: Project) -> None:
    project.pipeline("run: [echo, hi]\nexpect: [{contains: ho}]\n")

    result = project.result()

    assert result["exit"]["code"] == 3
    assert result["expectations"] == []


def test_an_unknown_number_of_tokens_fails_the_step(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    unsaid = stream_reply(sse([delta(content="Hello")], done=False), sse([delta("stop")]))
    project.uses(model_endpoint([unsaid]))
    project.pipeline("prompt: Say hello\nexpect: [{max_tokens: 100000}]\n")

    result = project.result()

    assert result["exit"]["code"] == 1
    assert "did not say how many" in result["exit"]["reason"]


def test_a_secret_stays_out_of_what_expectations_say(project: Project) -> None:
    project.aish.env["DEPLOY_TOKEN"] = "hunter2-hunter2-hunter2"
    project.pipeline(
        "run: [echo, a hunter2-hunter2-hunter2 b]\n"
        "secrets: [DEPLOY_TOKEN]\n"
        "mcp: {auto_approve: [shell__run]}\n"
        "expect: [{not_contains: hunter2-hunter2-hunter2}, {snapshot: s.md}]\n"
    )
    project.write("s.md", "a <secret:DEPLOY_TOKEN> b\n")

    done = project.run("--format", "json")

    found = json.loads(done.stdout)["expectations"]
    assert [row["ok"] for row in found] == [False, True]
    assert "hunter2" not in done.stdout + done.stderr + project.everything_written()


def test_an_expectation_that_cannot_hold_never_reaches_a_model(
    project: Project, model_endpoint: ModelEndpoints, snapshot: SnapshotAssertion
) -> None:
    endpoint = model_endpoint([])
    project.uses(endpoint)
    project.pipeline("prompt: Say hello\nexpect: [{matches: '(a'}, {expression: txet}]\n")

    done = project.run()

    assert (done.code, endpoint.requests) == (2, [])
    assert project.tidy(done.stderr) == snapshot
    assert project.aish("validate", "p.yaml").code == 2


def test_a_template_that_fails_is_told_as_what_cannot_be_checked(project: Project) -> None:
    project.pipeline(
        """
        mcp: {auto_approve: [shell__run]}
        run: [echo, x]
        expect: [{contains: "{{ 1 / 0 }}"}]
        """
    )

    done = project.run("-q")

    assert done.code == 1
    said = "step `main`: this cannot be checked: the template `{{ 1 / 0 }}`: division by zero"
    assert said in done.stderr
