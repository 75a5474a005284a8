"""Rules about packs, as `aish policy explain` and `aish plan` tell them."""

import json
from typing import Any

import pytest
from e2e_project import MODEL, Project

from aish.packs.catalogue import PACKS, tool_marks, tools_of

RULES = """
mcp:
  servers:
    box: {pack: [fs, edit, git, shell], root: .}
  auto_approve:
    - "box__file_*"
    - "box__dir_*"
    - {tool: box__shell_run, command: [pytest, "*"]}
    - {tool: box__file_edit, when: {path: .envrc}}
    - box__set_file_slice
    - {tool: box__run_command, command: [make]}
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


@pytest.mark.sampled(6)
@pytest.mark.parametrize(
    ("tool", "arguments", "expected", "why"),
    [
        ("box__shell_run", {"command": "pytest -q"}, "auto", "it matches"),
        ("box__shell_run", {"command": "make"}, "auto", "it matches"),
        ("box__run_command", {"command": "make"}, "auto", "it matches"),
        ("box__file_set_lines", {"path": "a.txt"}, "auto", "it matches"),
        ("box__set_file_slice", {"path": "a.txt"}, "auto", "it matches"),
        ("box__read_file", {"path": "a.txt"}, "auto", "it matches"),
        ("box__write_file", {"path": "a.txt"}, "ask", "calls itself destructive"),
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


@pytest.mark.requirement("K11")
def test_a_search_that_a_rule_is_unsure_about_is_denied_with_that_rule(project: Project) -> None:
    deny = '{tool: "box__*", when: {path: "**/*.key"}}'
    servers = "{box: {pack: [fs], root: ., options: {fs: {deny_names: %s}}}}"
    head = "mcp: {servers: %s, auto_approve: ['box__*'], deny: [%s]}\nprompt: Do it\n"
    project.write("a.key", "here")
    project.write("a.txt", "here")

    project.pipeline(head % (servers % "[]", deny))
    denied = project.aish("call", "p.yaml", "box__file_search", "query=here")
    project.pipeline(head % (servers % '["*.key"]', ""))
    found = project.aish("call", "p.yaml", "box__file_search", "query=here")

    assert denied.code == 3
    rule = 'deny rule box__* when {"path": "**/*.key"} (mcp.deny[0])'
    assert f"tool call denied: {rule}: the call looks below a folder" in denied.stderr
    assert "no rule approves" not in denied.stderr
    assert "approves it" not in denied.stderr
    assert (found.code, found.stdout) == (0, "a.txt:1: here\n1 line in 2 files searched\n")


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


# --- Data that may leak ---------------------------------------------------------------------

SERVERS = """
mcp:
  servers:
    repo: {pack: [fs, edit], root: .}
    box: {pack: shell, root: .}
    quiet: {pack: shell, root: ., options: {shell: {network: false}}}
    work: {pack: proc, root: .}
    web: {pack: web}
    list: {pack: [rag, issues], root: .}
    far: {url: "http://127.0.0.1:1/mcp"}
    ours: {url: "http://127.0.0.1:2/mcp", trust: true}
"""


def leaks(project: Project, mcp: str, steps: str = "prompt: Go") -> list[str]:
    """What `validate` warns of, and that `plan` and `--strict` agree."""
    project.aish.env["MODEL_URL"] = "http://127.0.0.1:1/v1"
    project.pipeline(f"{SERVERS}{mcp}\n{steps}\n")
    told = []
    for command, code in ((["validate", "p.yaml"], 0), (["validate", "p.yaml", "--strict"], 2)):
        done = project.aish(*command, "--format", "json")
        (row,) = json.loads(done.stdout)
        found = [one for one in row["problems"] if one["message"].startswith("exfiltration: ")]
        assert done.code == (code if row["problems"] else 0), done.stdout
        assert {one["level"] for one in found} <= {"error" if code else "warning"}
        told.append([one["message"] for one in found])
    assert told[0] == told[1]
    planned = project.aish("plan", "p.yaml", "--offline")
    strict = project.aish("plan", "p.yaml", "--offline", "--strict")
    assert (planned.code, strict.code) == (0, 2 if told[0] else 0)
    assert all(one in planned.stderr and one in strict.stderr for one in told[0])
    assert ("exfiltration" in planned.stderr) == bool(told[0])
    return told[0]


def approving(*rules: str, more: str = "") -> str:
    listed = "".join(f"    - {rule}\n" for rule in rules)
    return f"  auto_approve:\n{listed}{more}"


def test_a_model_that_may_read_and_send_without_approval_is_warned_of(project: Project) -> None:
    (told,) = leaks(project, approving("repo__file_read", '"far__*"'))
    hint = project.aish("validate", "p.yaml").stderr.splitlines()[-1]
    assert told == (
        "exfiltration: `far__*` may send data out without approval: read repo__file_read "
        "(private), far__* (untrusted)"
    )
    assert hint.startswith("  hint: narrow `repo__file_read`, `far__*` or put it under `ask`; or ")


@pytest.mark.requirement("K20")
@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    "mcp",
    [
        approving('"repo__*"', "far__get"),
        approving("{tool: repo__file_read, when: {path: docs}}", "{tool: far__get, when: {a: b}}"),
        approving('"*__*"'),
        approving("box__shell_run"),
        approving("{tool: box__shell_run, command: [cat, x]}", "far__get"),
        approving("quiet__shell_run", "far__get"),
        approving("repo__read_file", "far__get"),
        approving("repo__file_read", "web__web_fetch"),
        approving("repo__file_read", "web__fetch_url"),
        approving("list__bd_ready", "ours__send"),
        approving("list__rag_query", "ours__send"),
        approving("work__process_start"),
        approving("{tool: work__process_start, command: [cat, x]}", "web__web_search"),
        approving("repo__file_edit", "far__get"),
        approving("repo__file_read", "web__web_search"),
        approving("list__bd_create", "ours__send"),
    ],
)
def test_what_leaks(project: Project, mcp: str) -> None:
    assert len(leaks(project, mcp)) == 1


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    "mcp",
    [
        approving('"far__*"'),
        approving('"repo__*"'),
        approving('"repo__*"', '"ours__*"'),
        approving("{tool: box__shell_run, command: [pytest]}", "repo__file_read"),
        approving("quiet__shell_run"),
        approving('"web__*"'),
        approving('"repo__*"', '"work__*"'),
        approving('"repo__*"', "far__get", more='  ask: ["far__*"]'),
        approving('"repo__*"', "far__get", more="  deny: [far__get]"),
        approving("repo__file_read", "far__get", more='  stage: ["repo__file_*"]'),
    ],
)
def test_what_does_not_leak(project: Project, mcp: str) -> None:
    assert leaks(project, mcp) == []


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("step", "expected"),
    [
        ("{id: b, prompt: Go on, tools: []}", 0),
        ("{id: b, prompt: Go on}", 1),
        ('{id: b, prompt: Go on, tools: ["far__*"]}', 0),
        ('{id: b, prompt: Go on, continues: a, tools: ["far__*"]}', 1),
        ("{id: b, call: far__get}", 0),
    ],
)
def test_tools_are_counted_by_conversation(project: Project, step: str, expected: int) -> None:
    steps = f'steps: [{{id: a, prompt: Go on, tools: ["repo__*"]}}, {step}]'
    assert len(leaks(project, approving('"repo__*"', '"far__*"'), steps)) == expected


FILES, SERVER = "repo__file_read", "`far__*`"
READER = 'id: a, prompt: Go on, tools: ["repo__*"]'
SHOWN = "id: a, prompt: Go on, tools: [], context: {files: [notes.txt]}"
SENDER = 'id: b, tools: ["far__*"]'


def listed(steps: tuple[str, ...]) -> str:
    return "".join(["steps:\n", *(f"  - {{{step}}}\n" for step in steps)])


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("steps", "files", "sends"),
    [
        ((READER, SENDER + ", prompt: '{{ steps.a.output }}'"), FILES, SERVER),
        (
            (READER, SENDER + ", prompt: '{{ steps.a.text | upper }}'"),
            FILES,
            SERVER,
        ),
        (
            (
                READER,
                "id: c, run: [cat, '{{ steps.a.output }}']",
                SENDER + ", prompt: Go on, system: '{{ steps.c.output.stdout }}'",
            ),
            FILES,
            SERVER,
        ),
        (
            (
                "id: a, call: repo__file_read, with: {path: x}",
                SENDER + ", prompt: '{{ item }}', foreach: steps.a.output.content",
            ),
            FILES,
            SERVER,
        ),
        ((SENDER + ", prompt: Go on, attach: notes.txt",), "attach", SERVER),
        ((SENDER + """, prompt: "{{ 'notes.txt' | readfile }}\"""",), "readfile", SERVER),
        (
            (SENDER + ", prompt: Go on, context: {files: [notes.txt]}",),
            "context.files",
            SERVER,
        ),
        ((SHOWN, SENDER + ", prompt: Go on, continues: a"), "context.files", SERVER),
        ((READER, SENDER + ", prompt: Go on, when: steps.a.output"), FILES, SERVER),
        (
            (SHOWN, SENDER + ", prompt: '{{ steps.a.output }}'"),
            "context.files",
            SERVER,
        ),
        (
            (
                READER + ", attach: [{server: far, uri: 'docs://a/b'}]",
                "id: b, call: far__post, with: {text: '{{ steps.a.output }}'}",
            ),
            FILES,
            "`far__post`",
        ),
    ],
)
def test_text_is_followed_from_step_to_step(
    project: Project, steps: tuple[str, ...], files: str, sends: str
) -> None:
    project.write("notes.txt", "x\n")

    (told,) = leaks(project, approving('"repo__*"', '"far__*"'), listed(steps))

    assert f"exfiltration: {sends} may send data out without approval: read {files} (" in told


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "steps",
    [
        # Nothing but how it ended.
        (READER, SENDER + ", prompt: '{{ steps.a.status }}'"),
        # The other way round: after what the server says has been read, nothing is sent.
        (SENDER + ", prompt: Go on", "id: c, prompt: '{{ steps.b.output }}', tools: []"),
        # A call that only its author words, and one whose text no server has influenced.
        (READER, "id: c, call: far__get"),
        (READER, "id: c, call: far__post, with: {text: '{{ steps.a.output }}'}"),
        (SHOWN,),
    ],
)
def test_text_that_leads_nowhere_is_no_leak(project: Project, steps: tuple[str, ...]) -> None:
    project.write("notes.txt", "x\n")
    assert leaks(project, approving('"repo__*"', '"far__*"'), listed(steps)) == []


def test_a_sub_pipeline_is_looked_at_too(project: Project) -> None:
    inner = f"aish: 1\n{MODEL}\n{SERVERS}{approving('box__shell_run')}\nprompt: Go\n"
    project.write("inner.yaml", inner)
    project.pipeline("steps: [{id: within, pipeline: inner.yaml}]")

    for command in (["validate"], ["plan", "--offline"]):
        done = project.aish(*command, "p.yaml")
        assert done.stderr.count("exfiltration: ") == 1
        assert "warning: " in done.stderr
        assert "inner.yaml:" in done.stderr


def test_calls_that_a_file_holds_are_said_by_step_and_are_no_fault(project: Project) -> None:
    project.aish.env["MODEL_URL"] = "http://127.0.0.1:1/v1"
    asks = "  exfiltration: ask\n  auto_approve: [repo__file_read, 'far__*']\n"
    project.pipeline(f"{SERVERS}{asks}\nprompt: Go\ntools: [repo__file_read, far__get]\n")
    why = "read repo__file_read (private), far__get (untrusted), far.tools (untrusted)"

    checked = project.aish("validate", "p.yaml", "--strict")
    planned = project.aish("plan", "p.yaml", "--offline", "--strict")
    view = json.loads(project.aish("plan", "p.yaml", "--offline", "--format", "json").stdout)

    assert (checked.code, planned.code) == (0, 0)
    said = f"prompt: `far__get` may be held by `mcp.exfiltration` (ask): {why}"
    assert f"warning: p.yaml:16:9: {said}" in checked.stderr
    assert "exfiltration: without approval" not in checked.stderr
    assert f"     may be held by mcp.exfiltration (ask): far__get: {why}\n" in planned.stdout
    assert view["steps"][0]["held"] == [
        {
            "tools": ["far__get"],
            "rule": "mcp.exfiltration",
            "then": "ask",
            "sources": ["repo__file_read", "far__get", "far.tools"],
            "why": why,
        }
    ]


@pytest.mark.requirement("T30")
def test_a_call_is_explained_and_tested_after_text_of_sources(project: Project) -> None:
    project.aish.env["MODEL_URL"] = "http://127.0.0.1:1/v1"
    denies = "  exfiltration: deny\n  auto_approve: [repo__file_read, 'far__*']\n"
    rows = "policy_tests:\n  - {tool: far__get, expect: auto, read: [repo__file_read%s]}\n"
    explain = ("policy", "explain", "p.yaml", "--tool", "far__get", "--read", "far__get")
    checks = []
    for more in ("", ", far__get"):
        project.pipeline(f"{SERVERS}{denies}\nprompt: Go\n{rows % more}")
        checks.append(project.aish("validate", "p.yaml"))

    one = project.aish(*explain)
    both = project.aish(*explain, "--read", "repo__file_read")
    unknown = project.aish(*explain, "--read", "repo_file_read")

    why = "mcp.exfiltration: read repo__file_read (private), far__get (untrusted)"
    assert (one.code, both.code, unknown.code) == (0, 0, 2)
    assert "\n  auto: auto_approve rule far__*" in one.stdout
    assert f"\n  deny: {why}\n" in both.stdout
    assert "--read: unknown source `repo_file_read`" in unknown.stderr
    assert [check.code for check in checks] == [0, 2]
    assert "`far__get` is expected to be `auto` and is `deny`" in checks[1].stderr
    assert f"hint: {why}" in checks[1].stderr


# --- A root ---------------------------------------------------------------------------------


@pytest.mark.parametrize("command", [["validate"], ["plan", "--offline"], ["run"], ["tools"]])
def test_a_pack_that_needs_a_root_and_has_none_is_an_error(
    project: Project, command: list[str]
) -> None:
    project.pipeline("mcp: {servers: {repo: {pack: [fs, git]}}}\nprompt: Go\n")
    done = project.aish(*command, "p.yaml")
    assert done.code == 2
    assert "mcp.servers.repo: `fs`, `git` need a `root`, the folder for its tools" in done.stderr
    assert "hint: `root: .` is the folder of this file" in done.stderr


# --- Wildcards ------------------------------------------------------------------------------


def verdicts(project: Project, *rules: str) -> dict[str, str]:
    """The verdict of these rules on every tool of every pack."""
    listed = "".join(f"    - {rule}\n" for rule in rules)
    server = f"box: {{pack: [{', '.join(PACKS)}], root: .}}"
    project.pipeline(f"mcp:\n  servers: {{{server}}}\n  auto_approve:\n{listed}prompt: Go on\n")
    done = project.aish("tools", "p.yaml", "--format", "json")
    assert done.code == 0, done.stderr
    return {row["tool"].removeprefix("box__"): row["verdict"] for row in json.loads(done.stdout)}


ADDING = {
    *("dir_create", "metrics_record", "bd_create", "ws_start", "ide_session_create"),
    # A browser of its own, and messages of a chat.
    *("browser_connect", "browser_disconnect", "browser_navigate", "browser_console"),
    "ide_chat_send",
}


def test_a_wildcard_approves_no_tool_that_changes_an_existing_file(project: Project) -> None:
    found = verdicts(project, '"box__*"', '"*__*"')
    marks = tool_marks()

    assert set(found) == {name for name, _ in tools_of(tuple(PACKS))}
    for name, verdict in found.items():
        assert verdict == ("ask" if marks[name].destructive else "auto"), name
    # What is approved changes nothing that is there: it adds something of its own, or only reads.
    approved = {name for name, verdict in found.items() if verdict == "auto"}
    assert {name for name in approved if not marks[name].read_only} <= ADDING


def test_a_wildcard_over_readers_approves_readers_only(project: Project) -> None:
    found = verdicts(project, '"box__py_get_*"')

    approved = {name for name, verdict in found.items() if verdict == "auto"}
    assert approved == {name for name in tool_marks() if name.startswith("py_get_")}
    assert all(tool_marks()[name].read_only for name in approved)
