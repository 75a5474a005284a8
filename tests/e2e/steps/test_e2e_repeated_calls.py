"""`retry` of a step makes no call again that must not be repeated (L8, F4)."""

import json
import sys
from typing import Any

import pytest
from e2e_project import ModelEndpoints, Project, of_type
from model_endpoint import json_reply, text_reply, tool_reply

# Ends at its first call, after its effect.
LINE_SERVER = """\
import json, os, sys
for line in sys.stdin:
    asked = json.loads(line)
    method, id = asked.get("method"), asked.get("id")
    if method == "initialize":
        found = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}},
                 "serverInfo": {"name": "s", "version": "1"}}
    elif method == "tools/list":
        found = {"tools": [{"name": "pay", "inputSchema": {"type": "object"}}]}
    elif method == "tools/call":
        with open("paid.txt", "a") as file:
            print("paid", file=file)
        if len(open("paid.txt").readlines()) < 2:
            os._exit(1)
        found = {"content": [{"type": "text", "text": "paid"}]}
    elif id is None:
        continue
    else:
        print(json.dumps({"jsonrpc": "2.0", "id": id,
                          "error": {"code": -32601, "message": "unknown"}}), flush=True)
        continue
    print(json.dumps({"jsonrpc": "2.0", "id": id, "result": found}), flush=True)
"""


def paid(project: Project) -> int:
    path = project.folder / "paid.txt"
    return len(path.read_text("utf-8").splitlines()) if path.exists() else 0


def lines(project: Project, step: str, rules: str = "") -> None:
    """A pipeline with a server that ends at its first call, after its effect."""
    project.write("server.py", LINE_SERVER)
    command = json.dumps([sys.executable, "server.py"])
    project.pipeline(f"""
        mcp:
          servers: {{s: {{command: {command}}}}}
          auto_approve: [s__pay, shell__run]
          {rules}
        steps: [{{id: pay, {step}}}]
        """)


def error(project: Project) -> Any:
    return of_type(project.journal, "step.finished")[-1]["error"]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("retry", "rules", "code", "payments"),
    [
        pytest.param("{attempts: 3}", "", 5, 1, id="any"),
        pytest.param("{attempts: 3, on: [unavailable]}", "", 5, 1, id="on unavailable"),
        pytest.param("{attempts: 3, on: [timeout]}", "", 5, 1, id="not meant"),
        pytest.param("{attempts: 3, on: [call_unknown]}", "", 0, 2, id="wished"),
        pytest.param("{attempts: 3}", "idempotent: [s__pay]", 0, 2, id="idempotent"),
    ],
)
def test_a_call_without_an_answer_is_made_once(
    project: Project, retry: str, rules: str, code: int, payments: int
) -> None:
    lines(project, f"call: s__pay, retry: {retry}", rules)

    done = project.run()

    assert (done.code, paid(project)) == (code, payments), done.stderr
    if code:
        meant = "timeout" not in retry
        assert error(project)["code"] == ("call_unknown" if meant else "transport_error")
        again = project.run("--resume")
        assert (again.code, paid(project)) == (2, 1)
        assert "1 call started, with unknown outcome" in again.stderr
    if code and "timeout" not in retry:
        assert "its call of `s__pay` may have taken effect" in done.stderr
        assert "`retry.on: [call_unknown]` allows" in done.stderr


@pytest.mark.parametrize("on", ["", ", on: [call_unknown]"])
@pytest.mark.parametrize("outer", [False, True])
def test_an_attempt_of_a_model_that_has_called_is_not_repeated(
    project: Project,
    model_endpoint: ModelEndpoints,
    on: str,
    outer: bool,  # ruff: ignore[boolean-type-hint-positional-argument] - a row of a table
) -> None:
    call = tool_reply([("c1", "box__shell_run", '{"command": "echo paid >> paid.txt"}')])
    broken = json_reply(400, {"error": {"message": "no"}})
    project.uses(model_endpoint([call, broken, call, text_reply("done")]))
    rules = "mcp: {servers: {box: {pack: [shell], root: .}}, auto_approve: [box__shell_run]}\n"
    retry = f"retry: {{attempts: 2{on}}}"
    inner = "" if outer else f", {retry}"
    project.pipeline(f"{rules}steps: [{{id: pay, prompt: Pay{inner}}}]\n", "inner.yaml")
    if outer:
        project.pipeline(f"steps: [{{id: all, pipeline: inner.yaml, {retry}}}]\n")

    done = project.aish("run", "p.yaml" if outer else "inner.yaml")

    assert (done.code, paid(project)) == ((0, 2) if on else (1, 1)), done.stderr
    assert on or error(project)["code"] == "call_unknown"


def test_what_has_not_called_or_only_read_is_repeated(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    read = tool_reply([("c1", "box__file_read", '{"path": "note.txt"}')])
    broken = json_reply(400, {"error": {"message": "no"}})
    endpoint = model_endpoint([broken, read, broken, read, text_reply("done")])
    project.uses(endpoint)
    project.write("note.txt", "a note\n")
    project.pipeline("""
        mcp: {servers: {box: {pack: [fs], root: .}}, auto_approve: ["box__*"]}
        steps: [{id: read, prompt: Read, retry: {attempts: 3}}]
        """)

    done = project.run()

    assert (done.code, len(endpoint.requests)) == (0, 5), done.stderr


def test_a_call_that_no_server_received_is_made_again(project: Project) -> None:
    lines(project, "call: s__pay, retry: {attempts: 2}")
    gone = project.write("gone.py", LINE_SERVER.replace("os._exit(1)", "pass"))
    text = (project.folder / "p.yaml").read_text("utf-8").replace("server.py", gone.name)
    (project.folder / "p.yaml").write_text(text.replace("s__pay, retry", "s__none, retry"), "utf-8")

    done = project.run()

    assert done.code == 1
    assert error(project)["code"] != "call_unknown"
    assert paid(project) == 0


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("inner", "said"),
    [
        ("call: s__pay", "s__pay"),
        ("run: [ls]", "shell__run"),
        ("prompt: Pay", "s__pay"),
        ("prompt: Pay, tools: []", None),
        ("pipeline: innermost.yaml", "shell__run"),
        ("pipeline: inner.yaml", None),
        ("pipeline: none.yaml", None),
    ],
)
def test_validation_says_where_a_sub_pipeline_is_not_tried_again(
    project: Project, inner: str, said: str | None
) -> None:
    """A3: an attempt of a whole sub-pipeline makes its calls."""
    lines(project, inner)
    (project.folder / "p.yaml").rename(project.folder / "inner.yaml")
    project.pipeline("run: [ls]\n", "innermost.yaml")
    project.pipeline("steps: [{id: all, pipeline: inner.yaml, retry: {attempts: 2}}]\n")

    done = project.aish("validate", "p.yaml")
    once = project.pipeline("steps: [{id: all, pipeline: inner.yaml}]\n", "once.yaml")

    told = [line for line in done.stderr.splitlines() if "is not repeated" in line]
    assert len(told) == (said is not None), done.stderr
    for line in told:
        file = "innermost.yaml" if "innermost" in inner else "inner.yaml"
        assert line.startswith("warning: p.yaml:")
        assert f"steps[0].retry: an attempt that has called `{said}` of `{file}`" in line
        assert f"`mcp.idempotent` of `{file}`" in done.stderr
    assert "is not repeated" not in project.aish("validate", once.name).stderr


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("step", "said"),
    [
        ("call: s__pay, retry: {attempts: 2}", "s__pay"),
        ("run: [ls], retry: {attempts: 2}", "shell__run"),
        ("prompt: Pay, retry: {attempts: 2}", "s__pay"),
        ("prompt: Pay, tools: [], retry: {attempts: 2}", None),
        ("call: s__pay, retry: {attempts: 2, on: [call_unknown]}", None),
        ("call: s__pay, retry: {attempts: 1}", None),
    ],
)
def test_validation_says_where_a_step_is_not_tried_again(
    project: Project, step: str, said: str | None
) -> None:
    lines(project, step)

    done = project.aish("validate", "p.yaml")

    assert done.code == 0
    wanted = f"an attempt that has called `{said}` is not repeated"
    assert (wanted in done.stderr) == (said is not None), done.stderr
    lines(project, step, "idempotent: [s__pay, shell__run]")
    assert "is not repeated" not in project.aish("validate", "p.yaml").stderr


def test_a_wrong_rule_beside_a_retry_is_reported_where_it_stands(project: Project) -> None:
    project.pipeline("mcp: {auto_approve: [nope]}\nrun: [ls]\nretry: {attempts: 2}\n")

    done = project.aish("validate", "p.yaml")

    assert done.code == 2
    assert "error: p.yaml:3:22: mcp.auto_approve[0]: `nope` has no `__`" in done.stderr
