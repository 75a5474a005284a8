"""Failed tool calls: what they mean for a step, and where they are shown."""

import json
from typing import Any
from xml.etree import ElementTree as ET  # ruff: ignore[suspicious-xml-etree-import] - reads what we wrote

import pytest
from e2e_project import ModelEndpoints, Project, of_type, stdio
from model_endpoint import text_reply, tool_reply

BOX = """
mcp:
  servers:
    box: {pack: [fs, edit, shell], root: ., options: {shell: {sandbox: "off"}}}
  auto_approve: ["box__*", box__file_edit, box__file_write, box__shell_run]
"""
EDIT = {"path": "no.txt", "old_text": "a", "new_text": "b"}
CALLS: dict[str, tuple[str, dict[str, Any]]] = {
    "edit": ("box__file_edit", EDIT),
    "write": ("box__file_write", {"path": "yes.txt", "content": "b"}),
    "read": ("box__file_read", {"path": "no.txt"}),
    "test": ("box__shell_run", {"command": "exit 1"}),
    "pass": ("box__shell_run", {"command": "true"}),
    "fail": ("s__fail", {}),
    "crash": ("s__crash", {}),
}


def calling(project: Project, endpoints: ModelEndpoints, *calls: str) -> None:
    """A model that makes these calls, one a turn, and then says that it is done."""
    replies = [
        tool_reply([(f"c{number}", CALLS[name][0], json.dumps(CALLS[name][1]))])
        for number, name in enumerate(calls)
    ]
    project.uses(endpoints([*replies, text_reply("Done.\nAll of it.")]))


@pytest.mark.requirement("V24")
def test_a_step_fails_whose_last_change_failed(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    calling(project, model_endpoint, "write", "edit", "read")
    project.pipeline(BOX + "prompt: Do it\n")

    found = project.result()

    assert (found["exit"]["code"], found["steps"]["main"]["error"]["code"]) == (1, "tool_failed")
    said = found["exit"]["reason"]
    assert '`box__file_edit` with `{"path": "no.txt"' in said
    assert said.endswith("; the model answered: `Done.`")
    assert "ERROR: " in said
    assert found["steps"]["main"]["text"] == "Done.\nAll of it."


@pytest.mark.requirement("V27")
def test_a_later_change_mends_a_failed_one_which_is_still_shown(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    calling(project, model_endpoint, "edit", "write", "test")
    project.pipeline(BOX + "prompt: Do it\n")

    done = project.run("--format", "json")

    found = json.loads(done.stdout)
    assert found["exit"]["code"] == 0
    assert found["call_counts"] == {"total": 3, "failed": 1, "denied": 0, "exit_nonzero": 1}
    (notice,) = of_type(project.journal, "notice")
    assert (notice["level"], notice["code"]) == ("warning", "tool_failed")
    assert notice["text"].endswith("; a later call mended it")
    assert "tool box__shell_run: exit 1, " in done.stderr
    assert "ok, 1 step, 3 tool calls (1 failed, 1 nonzero exit)" in done.stderr


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("calls", "setting", "code"),
    [
        (["read"], "unmended", 0),
        (["test"], "unmended", 0),
        (["fail"], "unmended", 0),
        (["crash"], "unmended", 1),
        (["crash", "write"], "unmended", 0),
        (["edit"], "continue", 0),
        (["read"], "fail", 1),
        (["test"], "fail", 1),
        (["edit", "write"], "fail", 1),
        (["write", "pass"], "fail", 0),
    ],
)
def test_which_failed_calls_count_depends_on_the_setting(
    project: Project,
    model_endpoint: ModelEndpoints,
    calls: list[str],
    setting: str,
    code: int,
) -> None:
    calling(project, model_endpoint, *calls)
    servers = BOX.replace("  auto", f"    s: {{command: {stdio()}}}\n  auto").replace(
        '["box__*"', '["box__*", "s__*", s__crash'
    )
    project.pipeline(f"{servers}on_tool_error: {setting}\nprompt: Do it\n")

    found = project.result()

    assert found["exit"]["code"] == code, found["exit"]
    assert (found["steps"]["main"].get("error", {}).get("code") == "tool_failed") is bool(code)


@pytest.mark.requirement("V25")
@pytest.mark.parametrize(("setting", "code"), [("unmended", 1), ("fail", 1), ("continue", 0)])
def test_a_call_step_fails_with_its_command(project: Project, setting: str, code: int) -> None:
    command = "echo no luck >&2; exit 3"
    step = f"call: box__shell_run, with: {{command: {command!r}}}, on_tool_error: {setting}"
    project.pipeline(f"{BOX}steps: [{{id: it, {step}}}]\n")

    found = project.result()

    assert found["exit"]["code"] == code
    assert found["steps"]["it"]["output"]["exit_code"] == 3
    if code:
        assert found["exit"]["reason"] == ("step `it`: the command ended with exit code 3: no luck")


@pytest.mark.requirement("V23")
def test_an_exit_code_is_shown_and_is_no_failed_call(project: Project) -> None:
    project.pipeline(
        f"{BOX}steps:\n"
        "  - {id: ours, call: box__shell_run, with: {command: exit 3}, on_tool_error: continue}\n"
        "  - {id: local, run: [sh, -c, exit 4], on_error: continue}\n"
    )

    done = project.run(
        *("--format", "json", "--allow", "shell__run"),
        *("--junit", "j.xml", "--html", "r.html"),
    )

    found = json.loads(done.stdout)
    ends = [(one["kind"], one["exit_code"]) for one in of_type(project.journal, "tool.finished")]
    assert sorted(ends) == [("ok", 3), ("ok", 4)]
    assert found["call_counts"] == {"total": 2, "failed": 0, "denied": 0, "exit_nonzero": 2}
    assert found["steps"]["ours"]["tool_calls"][0]["exit_code"] == 3
    assert "ours: tool box__shell_run: exit 3, " in done.stderr
    assert "local: tool shell__run: exit 4, " in done.stderr
    page = (project.folder / "r.html").read_text("utf-8")
    assert '<span class="chip error">exit 3</span>' in page
    cases = ET.parse(project.folder / "j.xml").iter("testcase")  # ruff: ignore[suspicious-xml-element-tree-usage] - the same
    (ours,) = (case for case in cases if case.get("name") == "ours")
    assert "box__shell_run: exit 3" in (ours.findtext("system-out") or "")


def test_a_background_process_that_was_stopped_is_no_failed_command(project: Project) -> None:
    project.pipeline(
        "mcp:\n"
        "  servers: {box: {pack: [proc], root: ., options: {proc: {sandbox: off}}}}\n"
        "  auto_approve: [box__process_start, box__process_stop]\n"
        "steps:\n"
        "  - {id: a, call: box__process_start, with: {command: sleep, args: ['60']}}\n"
        "  - {id: b, call: box__process_stop, with: {id: '{{ steps.a.output.id }}'}}\n"
    )

    found = project.result()

    assert found["exit"]["code"] == 0, found["exit"]


@pytest.mark.requirement("V26")
@pytest.mark.sampled(5)
@pytest.mark.parametrize(
    ("calls", "expectation", "met"),
    [
        (["read"], "tool_called: box__file_read", False),
        (["read"], "tool_called: {tool: box__file_read, outcome: any}", True),
        (["read"], "tool_called: {tool: box__file_read, outcome: failed}", True),
        (["write"], "tool_called: {tool: box__file_write, outcome: failed}", False),
        (["test"], "tool_called: box__shell_run", True),
        (["test"], "tool_called: {tool: box__shell_run, exit_code: 0}", False),
        (["pass", "test"], "tool_called: {tool: box__shell_run, exit_code: 0}", True),
        (["pass", "test"], "tool_called: {tool: box__shell_run, exit_code: 0, last: true}", False),
        (["test", "pass"], "tool_called: {tool: box__shell_run, exit_code: 0, last: true}", True),
        (["read", "write"], "tool_sequence: [box__file_read, box__file_write]", False),
        (["write", "pass"], "tool_sequence: [box__file_write, box__shell_run]", True),
        (["read", "write"], "max_failed_calls: 0", False),
        (["read", "write"], "max_failed_calls: 1", True),
        (["test", "write"], "max_failed_calls: 0", True),
        (["test", "write"], "max_failed_calls: {value: 0, exit_codes: true}", False),
        (["read", "write"], "max_failed_calls: {value: 0, tools: [box__shell_*]}", True),
    ],
)
def test_expectations_tell_how_calls_ended(
    project: Project,
    model_endpoint: ModelEndpoints,
    calls: list[str],
    expectation: str,
    met: bool,  # ruff: ignore[boolean-type-hint-positional-argument] - of the table
) -> None:
    calling(project, model_endpoint, *calls)
    project.pipeline(f"{BOX}prompt: Do it\nexpect:\n  - {expectation}\n")

    found = project.result()

    assert found["expectations"][0]["ok"] is met, found["expectations"]
    assert found["exit"]["code"] == (0 if met else 1)
