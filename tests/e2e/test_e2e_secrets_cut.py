"""A secret that lies across the place where a text is cut: its beginning shows up nowhere."""

import json

import pytest
from e2e_project import ModelEndpoints, Project, stdio
from model_endpoint import text_reply, tool_reply

SECRET = "planted-0123456789-abcdefghij"
HALF = SECRET[:12]


def across(boundary: int, more: int = 0) -> str:
    """A text with the secret across its character `boundary`, and `more` behind it."""
    return "x" * (boundary - len(HALF)) + SECRET + "y" * more


TOLD_AGAIN = """
    - {id: say, prompt: Say it.}
    - {id: first, prompt: "{{ steps.say.output }}"}
    - {id: again, needs: [first], prompt: "{{ steps.say.output }}"}
"""
REJECTED = "- {id: say, prompt: Say it., output: {schema: {type: object}, attempts: 2}}"
COMMAND = """
    - {id: say, prompt: Say it.}
    - {id: do, run: [git, "{{ steps.say.output }}"]}
"""
MISFIT = """
    - id: say
      prompt: Say it.
      output: {schema: {type: object, properties: {a: {pattern: "^z"}}}, attempts: 2}
"""
RULE = "mcp: {auto_approve: [{tool: shell__run, command: [git, log]}]}"
FINDING = "- {id: say, prompt: Say it., output: {schema: {type: object}}}"
ANNOTATIONS = """
annotations:
  - {path: "{{ steps.say.output.path }}", line: "{{ steps.say.output.line }}",
     level: "{{ steps.say.output.level }}", message: "{{ steps.say.output.message }}"}
"""


def finding(**fields: str) -> str:
    return json.dumps({"path": "a", "line": 1, "level": "error", "message": "m", **fields})


@pytest.mark.requirement("X4", "F15", "C8", "B11")
@pytest.mark.parametrize(
    ("steps", "top", "answer"),
    [
        pytest.param(TOLD_AGAIN, "", across(2_000, 40_000), id="long text"),
        pytest.param(TOLD_AGAIN, "", across(200, 2_000), id="text told again"),
        pytest.param(REJECTED, "", across(120, 200), id="answer that is no JSON"),
        pytest.param(MISFIT, "", json.dumps({"a": across(79, 60)}), id="answer that does not fit"),
        pytest.param(COMMAND, RULE, across(60, 60), id="word of a command"),
        pytest.param(FINDING, ANNOTATIONS, finding(path=across(60, 2_000)), id="path"),
        pytest.param(FINDING, ANNOTATIONS, finding(line=across(60, 60)), id="line"),
        pytest.param(FINDING, ANNOTATIONS, finding(level=across(60, 60)), id="level"),
        pytest.param(FINDING, ANNOTATIONS, finding(message=across(10_000, 60)), id="message"),
    ],
)
def test_half_a_secret_shows_up_nowhere(
    project: Project, model_endpoint: ModelEndpoints, steps: str, top: str, answer: str
) -> None:
    endpoint = model_endpoint(
        [text_reply(answer), text_reply("{}"), text_reply("{}"), text_reply("{}")]
    )
    project.uses(endpoint)
    project.pipeline(f"secrets: [PLANTED]\n{top}\nsteps:\n{steps}")
    project.aish.env["PLANTED"] = SECRET
    done = project.run("--format", "json", "--github", "--junit", "j.xml", "--html", "h.html")

    seen = project.everything_written() + done.stdout + done.stderr
    assert "<secret:PLANTED>" in seen
    assert HALF not in seen


@pytest.mark.requirement("X4", "F15", "L18", "C6")
def test_a_long_result_with_a_secret_is_cut_at_the_same_place_in_a_replay(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    call = ("c1", "s__echo", json.dumps({"text": f"{across(491, 1_000)} {SECRET}"}))
    endpoint = model_endpoint([tool_reply([call]), text_reply("done")])
    project.uses(endpoint)
    project.pipeline(
        f"""
        secrets: [PLANTED]
        mcp: {{servers: {{s: {{command: {stdio()}}}}}, auto_approve: ["s__*"]}}
        steps: [{{id: say, prompt: Say it., result_limit: 1KiB}}]
        """
    )
    project.aish.env["PLANTED"] = SECRET
    recorded = project.aish("record", "p.yaml", "-o", "c.yaml")
    replayed = project.run("--replay", "c.yaml")

    assert recorded.code == 0, recorded.stderr
    seen = project.everything_written() + (project.folder / "c.yaml").read_text("utf-8")
    assert "<secret:PLANTED>" in seen
    assert HALF not in seen
    assert replayed.code == 0, replayed.stderr
