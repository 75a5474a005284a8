"""A secret that lies across the place where a text is cut: its beginning shows up nowhere."""

import json
import re

import pytest
from e2e_project import ModelEndpoints, Project, stdio
from model_endpoint import Reply, delta, json_reply, sse, stream_reply, text_reply, tool_reply
from samples import sampled
from shell_scene import piped

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


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("steps", "top", "answer"),
    [
        pytest.param(TOLD_AGAIN, "", across(2_000, 40_000), id="long text"),
        pytest.param(TOLD_AGAIN, "", across(200, 2_000), id="text told again"),
        pytest.param(REJECTED, "", across(120, 200), id="answer that is not JSON"),
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


def expecting(expectation: str) -> str:
    return f"- {{id: say, prompt: Say it., expect: [{{{expectation}}}]}}"


def events(*values: object) -> Reply:
    """A stream with these events."""
    return stream_reply(sse(json.dumps(value) for value in values))


SAY = "- {id: say, prompt: Say it.}"
SERVER = f"mcp: {{servers: {{s: {{command: {stdio()}}}}}, auto_approve: ['s__*']}}"
WITH_SERVER = "- {id: say, prompt: Say it., tools: ['s__*']}"


@pytest.mark.parametrize(
    ("steps", "top", "reply"),
    sampled(
        [
            pytest.param(SAY, "", events({"error": {"message": across(400, 60)}}), id="error"),
            pytest.param(SAY, "", events({"error": across(400, 60)}), id="error that is a text"),
            pytest.param(SAY, "", events({"error": {"x": across(394, 60)}}), id="error as JSON"),
            pytest.param(SAY, "", events([[across(197, 60)]]), id="event that is not an object"),
            pytest.param(
                SAY, "", json_reply(200, [across(198, 60)]), id="body that is not an object"
            ),
            pytest.param(
                SAY,
                "",
                Reply((f"data: {across(200, 60)}\n\n".encode(),)),
                id="event that is not JSON",
            ),
            pytest.param(SAY, "", Reply((across(200, 60).encode(),)), id="no stream at all"),
            pytest.param(
                SAY,
                "",
                Reply((sse([delta(content="Hi")], done=False) + across(200, 60).encode() + b"\n",)),
                id="text in a stream",
            ),
            pytest.param(
                SAY,
                "",
                events(delta(content=[{"type": across(200, 60)}]), delta("stop", content="a")),
                id="type of content",
            ),
            pytest.param(
                SAY,
                "",
                events(delta(tool_calls=[across(200, 60)])),
                id="call that is not an object",
            ),
            pytest.param(SAY, "", events(delta(across(400, 60), content="a")), id="finish reason"),
            pytest.param(SAY, "", events(delta("stop", refusal=across(400, 60))), id="refusal"),
            pytest.param(
                WITH_SERVER, SERVER, tool_reply([("c1", across(80, 60), "{}")]), id="unknown tool"
            ),
            pytest.param(
                WITH_SERVER, SERVER, tool_reply([("c1", across(64, 60), "{}")]), id="sent tool name"
            ),
            pytest.param(
                WITH_SERVER,
                SERVER,
                tool_reply(
                    [("c1", "s__echo", f'{{"{across(380, 60)}": 1, "{across(380, 60)}": 1}}')]
                ),
                id="arguments that are no JSON",
            ),
            pytest.param(
                expecting("contains: other"),
                "",
                text_reply(across(120, 60)),
                id="text without another",
            ),
            pytest.param(
                expecting("not_contains: y"),
                "",
                text_reply("y" + across(40, 60)),
                id="text around what should not be there",
            ),
            pytest.param(
                expecting("matches: '{{ output }}['"), "", text_reply(across(100, 60)), id="regex"
            ),
            pytest.param(
                expecting(r'equals: "a\nb"'),
                "",
                text_reply("a\n" + across(199, 60)),
                id="line that differs",
            ),
        ],
        often={0, 3, 6, 9},
        reason="cases of the same kind",
    ),
)
def test_half_a_secret_in_what_an_endpoint_sends_shows_up_nowhere(
    project: Project, model_endpoint: ModelEndpoints, steps: str, top: str, reply: Reply
) -> None:
    endpoint = model_endpoint([reply, *[text_reply("{}")] * 3])
    project.uses(endpoint)
    project.pipeline(f"secrets: [PLANTED]\n{top}\nsteps:\n    {steps}")
    project.aish.env["PLANTED"] = SECRET
    done = project.run("--format", "json", "--github", "--junit", "j.xml", "--html", "h.html")

    files = [project.folder / name for name in ("j.xml", "h.html")]
    reports = "".join(path.read_text("utf-8") for path in files if path.exists())
    seen = project.everything_written() + done.stdout + done.stderr + reports
    # What stands for it may be cut too, and is spelled otherwise in the name of a tool.
    assert re.search(r"[<_]secret[:_]P", seen)
    assert HALF not in seen
    assert HALF.replace("-", "_") not in seen


def test_half_a_secret_in_the_name_of_a_column_shows_up_nowhere(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    project.uses(model_endpoint([]))
    name = across(80, 60)
    project.write("rows.csv", f"{name},{name}\n1,2\n")
    project.pipeline(
        """
        secrets: [PLANTED]
        steps: [{id: say, foreach: {file: rows.csv}, prompt: Say it.}]
        """
    )
    project.aish.env["PLANTED"] = SECRET
    done = project.run("--format", "json")

    assert "the header has a long name twice, in columns 1 and 2" in done.stderr
    assert HALF not in project.everything_written() + done.stdout + done.stderr


def test_a_long_result_with_paths_is_cut_at_the_same_place_in_a_folder_with_a_longer_name(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    there = project.folder / "s"
    text = "".join(f"{there}/a/{number}.txt\n" for number in range(200))
    call = ("c1", "s__echo", json.dumps({"text": text}))
    project.uses(model_endpoint([tool_reply([call]), text_reply("done")]))
    project.pipeline(
        f"""
        mcp: {{servers: {{s: {{command: {stdio()}}}}}, auto_approve: ["s__*"]}}
        steps: [{{id: say, prompt: Say it., result_limit: 2KiB}}]
        """,
        name="s/p.yaml",
    )
    recorded = project.aish("record", "s/p.yaml", "-o", "s/c.yaml")
    longer = project.folder / "a-folder-with-a-name-that-is-much-longer" / "and-one-within-it"
    longer.parent.mkdir()
    there.rename(longer)
    name = longer.relative_to(project.folder)
    replayed = project.aish("run", f"{name}/p.yaml", "--replay", f"{name}/c.yaml")

    assert recorded.code == 0, recorded.stderr
    assert replayed.code == 0, replayed.stderr
    kept = [path.read_text("utf-8") for path in project.folder.rglob("runs/*/files/*.txt")]
    assert text.replace(str(there), str(longer)) in kept


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


def test_half_a_secret_shows_up_in_no_line_of_a_session(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    """The question that is taken back, and the proposal that is not asked about, are shortened."""
    proposal = text_reply(f"CMD: {across(80, 60)}\x0bx")
    project.uses(model_endpoint([proposal]))
    project.pipeline("secrets: [PLANTED]")
    project.aish.env["PLANTED"] = SECRET
    done = piped(project, across(60, 60), ":undo")

    seen = project.everything_written() + done.stdout + done.stderr
    assert "left out, with its answer: x" in done.stdout
    assert "is not run: it has a character that ends a line" in done.stderr
    assert HALF not in seen
