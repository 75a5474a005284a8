"""Rules about packs, as `aish policy explain` and `aish plan` tell them."""

import json
from typing import Any

import pytest
from e2e_project import Project

RULES = """
mcp:
  servers:
    box: {pack: [fs, edit, git, shell], root: .}
  auto_approve:
    - "box__file_*"
    - "box__dir_*"
    - {tool: box__shell_run, command: [pytest, "*"]}
    - {tool: box__file_edit, when: {path: .envrc}}
    - box__write_file
  deny:
    - {tool: "box__*", when: {path: "secrets/**"}}
prompt: Do it
"""


def verdict(project: Project, tool: str, arguments: dict[str, Any]) -> tuple[str, str]:
    words = ("--tool", tool, "--args", json.dumps(arguments), "--format", "json")
    done = project.aish("policy", "explain", "p.yaml", *words)
    assert done.code == 0, done.stderr
    found = json.loads(done.stdout)
    return found["verdict"], found["reason"]


@pytest.mark.requirement("K47", "K11", "K19", "P5")
@pytest.mark.parametrize(
    ("tool", "arguments", "expected", "why"),
    [
        ("box__shell_run", {"command": "pytest -q"}, "auto", "it matches"),
        ("box__shell_run", {"command": "pytest -q", "cwd": "sub"}, "ask", "`cwd` is not the def"),
        ("box__shell_run", {"command": "pytest -q", "shell": "pwsh"}, "ask", "exactly this"),
        ("box__file_read", {"path": "a.txt"}, "auto", "it matches"),
        ("box__file_read", {"path": "secrets/a"}, "deny", "it matches"),
        ("box__file_write", {"path": "a.txt", "content": ""}, "ask", "calls itself destructive"),
        ("box__file_edit", {"path": "a.txt"}, "ask", "calls itself destructive"),
        ("box__file_delete", {"path": "a.txt"}, "ask", "calls itself destructive"),
        ("box__file_rename", {"path": "a", "new_path": "b"}, "ask", "calls itself destructive"),
        ("box__file_edit", {"path": ".envrc"}, "auto", "it matches"),
        ("box__dir_create", {"path": ".github/x"}, "ask", "run `.github/x` by themselves"),
        ("box__dir_tree", {"path": "."}, "ask", "looks below a folder"),
        ("box__dir_tree", {"path": "src"}, "auto", "it matches"),
    ],
)
def test_the_rules_of_a_file_decide_a_call_of_a_pack(
    project: Project, tool: str, arguments: dict[str, Any], expected: str, why: str
) -> None:
    project.pipeline(RULES)
    found, reason = verdict(project, tool, arguments)
    assert (found, why in reason) == (expected, True), reason


@pytest.mark.requirement("K47")
def test_a_plan_says_what_the_plain_name_of_a_shell_approves(project: Project) -> None:
    note = "approves every command, folder, shell and variable"
    project.pipeline("""
    mcp:
      servers:
        box: {pack: shell, root: .}
      auto_approve:
        - box__shell_run
        - {tool: box__shell_run, command: [make]}
      ask: [shell__run]
    prompt: Do it
    """)

    done = project.aish("plan", "p.yaml", "--offline")
    view = json.loads(project.aish("plan", "p.yaml", "--offline", "--format", "json").stdout)

    assert f"  auto_approve  box__shell_run ({note})\n" in done.stdout
    assert done.stdout.count(note) == 1
    assert [row.get("note") for row in view["rules"]] == [None, note, None]
    assert verdict(project, "box__shell_run", {"command": "a | b", "cwd": "x"})[0] == "auto"
