"""Rules about tools of packs: commands, paths below folders, files that run by themselves."""

from dataclasses import replace
from typing import Any

import pytest
from samples import each_case

from aish.core.json import JsonObject
from aish.core.rules import RuleEntry, RuleLists
from aish.core.tools import Annotations, Tool, ToolName
from aish.packs.catalogue import tool_marks
from aish.policy.decide import Ruling, decide, exact_entry
from aish.policy.rules import compile_policy, rule_text

READS = Annotations(read_only=True, destructive=False)
WRITES = Annotations(read_only=False, destructive=True)


def tool(name: str, annotations: Annotations = WRITES, **changes: Any) -> Tool:
    server, _, own = name.partition("__")
    known = Tool(ToolName(server, own), name, "", {}, annotations=annotations, builtin=True)
    marks = tool_marks().get(own) if changes.get("builtin", True) else None
    return replace(known, reach=marks.reach if marks else "", **changes)


SHELL = tool("box__shell_run")
PROCESS = tool("box__process_start")


def entry(name: str, **more: Any) -> RuleEntry:
    return RuleEntry(name, **more)


def ruling(
    subject: Tool,
    arguments: JsonObject,
    *approving: RuleEntry,
    deny: RuleEntry | None = None,
    **lists: tuple[RuleEntry, ...],
) -> Ruling:
    denying = () if deny is None else (deny,)
    policy = compile_policy(RuleLists(auto_approve=approving, deny=denying, **lists))
    return decide(policy, subject, arguments)


# --- Commands -------------------------------------------------------------------------------

PYTEST = entry("box__shell_run", command=("pytest", "*"))


@each_case(
    "arguments, expected",
    [
        ({"command": "pytest -q"}, "auto"),
        ({"command": "pytest -q", "cwd": "."}, "auto"),
        ({"command": "pytest -q", "shell": "sh", "timeout_seconds": 5}, "auto"),
        ({"command": "pytest tests"}, "auto"),
        ({"command": "pytest tests/a"}, "ask"),
        ({"command": "pytest -q", "cwd": "sub"}, "ask"),
        ({"command": "pytest -q", "cwd": ""}, "ask"),
        ({"command": "pytest -q", "cwd": None}, "ask"),
        ({"command": "pytest -q", "shell": "bash"}, "ask"),
        ({"command": "pytest -q", "shell": "pwsh"}, "ask"),
        ({"command": "pytest -q", "env": ["PATH=x"]}, "ask"),
        ({"command": "pytest -q tests"}, "ask"),
        ({"command": "pytest -q; rm x"}, "ask"),
        ({"command": "pytest --rootdir=/"}, "ask"),
        ({"command": "pytest --lf"}, "ask"),
        ({"command": "pytest -px"}, "ask"),
        ({"command": "pytest /etc"}, "ask"),
        ({"command": "pytest"}, "ask"),
    ],
)
def test_a_command_rule_approves_in_the_root_and_the_usual_shell(
    arguments: JsonObject, expected: str
) -> None:
    assert ruling(SHELL, arguments, PYTEST).verdict == expected


@pytest.mark.parametrize(
    ("pattern", "command"),
    [
        (("git", "push", "*"), "git push -f"),
        (("sudo", "*"), "sudo -s"),
        (("sh", "*"), "sh -s"),
        (("find", "*"), "find -delete"),
        (("*", "*"), "rm -r"),
        (("rm", "?*"), "rm -r"),
    ],
)
def test_an_option_is_taken_only_by_a_star_right_behind_the_program(
    pattern: tuple[str, ...], command: str
) -> None:
    rule = entry("box__shell_run", command=pattern)
    assert ruling(SHELL, {"command": command}, rule).verdict == "ask"


def test_no_other_server_and_no_local_command_has_an_option_taken() -> None:
    for subject in (replace(SHELL, builtin=False), tool("shell__run", builtin=False, trusted=True)):
        rule = entry(str(subject.name), command=("pytest", "*"))
        assert ruling(subject, {"command": "pytest -q"}, rule).verdict == "ask"
        assert ruling(subject, {"command": "pytest a"}, rule).verdict == "auto"


@each_case(
    "when, arguments, expected",
    [
        ({"cwd": "sub"}, {"command": "make", "cwd": "sub"}, "auto"),
        ({"cwd": "sub"}, {"command": "make"}, "ask"),
        ({"cwd": "su*"}, {"command": "make", "cwd": "sub"}, "auto"),
        ({"cwd": "**"}, {"command": "make", "cwd": "../x"}, "ask"),
        ({"shell": "bash"}, {"command": "make", "shell": "bash"}, "auto"),
        ({"shell": "bash"}, {"command": "make", "shell": "bash", "cwd": "x"}, "ask"),
        ({"shell": "pwsh"}, {"command": "make", "shell": "pwsh"}, "auto"),
        ({"shell": "pwsh"}, {"command": "make  ", "shell": "pwsh"}, "ask"),
        ({"shell": "pwsh"}, {"command": "make; x", "shell": "pwsh"}, "ask"),
    ],
)
def test_what_is_not_the_default_stands_under_when(
    when: JsonObject, arguments: JsonObject, expected: str
) -> None:
    rule = entry("box__shell_run", command=("make",), when=when)
    assert ruling(SHELL, arguments, rule).verdict == expected


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        (("Get-ChildItem", "-Path", "."), "auto"),
        (("Get-ChildItem", "**"), "ask"),
        (("Get-ChildItem", "-Path", "*"), "ask"),
    ],
)
def test_a_powershell_command_is_approved_only_as_it_is(
    pattern: tuple[str, ...], expected: str
) -> None:
    rule = entry("box__shell_run", command=pattern, when={"shell": "pwsh"})
    arguments: JsonObject = {"command": "Get-ChildItem -Path .", "shell": "pwsh"}
    assert ruling(SHELL, arguments, rule).verdict == expected
    whole = entry("box__shell_run", when={"shell": "pwsh", "command": "Get-ChildItem -Path ."})
    assert ruling(SHELL, arguments, whole).verdict == "auto"


def test_a_denied_command_in_powershell_is_asked_about() -> None:
    rules = (entry("box__shell_run"),)
    deny = entry("box__shell_run", command=("rm", "**"))
    arguments: JsonObject = {"command": "Remove-Item x", "shell": "pwsh"}
    assert ruling(SHELL, arguments, *rules, deny=deny).verdict == "ask"
    assert ruling(SHELL, {"command": "rm x", "cwd": "sub"}, *rules, deny=deny).verdict == "deny"


@each_case(
    "arguments, expected",
    [
        ({"command": "npm", "args": ["run", "dev"]}, "auto"),
        ({"command": "npm", "args": ["run", "dev"], "cwd": "."}, "auto"),
        ({"command": "npm", "args": ["run", "dev"], "env": []}, "auto"),
        ({"command": "npm", "args": ["run", "dev"], "env": ["PORT=1"]}, "ask"),
        ({"command": "npm", "args": ["run", "dev"], "cwd": "web"}, "ask"),
        ({"command": "npm", "args": ["run"]}, "ask"),
        ({"command": "npm run dev"}, "ask"),
        ({"command": "npm", "args": ["run dev"]}, "ask"),
        ({"command": "./npm", "args": ["run", "dev"]}, "ask"),
        ({"command": "npm"}, "ask"),
        ({"args": ["npm", "run", "dev"]}, "ask"),
        ({"command": "npm", "args": "run dev"}, "ask"),
        ({"command": "npm", "args": ["run", 1]}, "ask"),
    ],
)
def test_the_words_of_a_process_are_its_command_and_arguments(
    arguments: JsonObject, expected: str
) -> None:
    rule = entry("box__process_start", command=("npm", "run", "dev"))
    assert ruling(PROCESS, arguments, rule).verdict == expected


def test_a_shell_that_is_started_as_a_process_is_approved_only_as_it_is() -> None:
    rule = entry("box__process_start", command=("sh", "-c", "*"))
    deny = entry("box__process_start", command=("rm", "**"))
    piped: JsonObject = {"command": "sh", "args": ["-c", "a | b"]}
    assert ruling(PROCESS, piped, rule).verdict == "ask"
    exact = entry("box__process_start", command=("sh", "-c", "a | b"))
    assert ruling(PROCESS, piped, exact).verdict == "auto"
    hidden: JsonObject = {"command": "sh", "args": ["-c", "rm x"]}
    assert ruling(PROCESS, hidden, entry("box__process_start"), deny=deny).verdict == "ask"
    plain: JsonObject = {"command": "rm", "args": ["x"]}
    assert ruling(PROCESS, plain, entry("box__process_start"), deny=deny).verdict == "deny"


@pytest.mark.parametrize(
    ("subject", "arguments"),
    [
        (SHELL, {"command": "a | b > c", "cwd": "x", "shell": "pwsh"}),
        (PROCESS, {"command": "sh", "args": ["-c", "a|b"], "cwd": "x", "env": ["A=b"]}),
    ],
)
def test_the_plain_name_approves_every_command_of_a_pack(
    subject: Tool, arguments: JsonObject
) -> None:
    plain = entry(str(subject.name))
    assert ruling(subject, arguments, plain).verdict == "auto"
    assert ruling(subject, arguments, entry("box__*")).verdict == "ask"
    assert ruling(replace(subject, trusted=True), arguments, entry("box__*")).verdict == "ask"
    assert ruling(replace(subject, builtin=False), arguments, plain).verdict == "ask"
    narrowed = replace(plain, when={"cwd": "x"})
    assert ruling(subject, arguments, narrowed).verdict == "ask"


@pytest.mark.parametrize(
    ("subject", "arguments"),
    [
        (PROCESS, {"command": "npm", "args": ["run", "dev"], "cwd": "web", "env": ["PORT=1"]}),
        (PROCESS, {"command": "sh", "args": ["-c", "ls | wc"]}),
        (SHELL, {"command": "make all", "cwd": "sub"}),
        (SHELL, {"command": "ls *", "cwd": "a*"}),
        (SHELL, {"command": "Get-Item x", "shell": "pwsh"}),
    ],
)
def test_the_exact_rule_for_a_command_approves_it(subject: Tool, arguments: JsonObject) -> None:
    found = exact_entry(subject, arguments)
    assert found is not None
    assert found.when == arguments
    assert ruling(subject, arguments, found).verdict == "auto"


# --- Below a folder -------------------------------------------------------------------------

SECRETS = entry("repo__*", when={"path": "secrets/**"})
LOOKING = ["dir_list", "dir_tree", "file_find", "file_search", "git_diff", "git_show", "git_log"]


@pytest.mark.parametrize("name", LOOKING)
@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({}, "ask"),
        ({"path": "."}, "ask"),
        ({"path": ""}, "ask"),
        ({"path": "./"}, "ask"),
        ({"path": "secrets"}, "ask"),
        ({"path": "SECRETS"}, "ask"),
        ({"path": "secrets/keys"}, "deny"),
        ({"path": "src"}, "auto"),
        ({"path": "secretsque"}, "auto"),
        ({"path": "src/../secrets"}, "ask"),
    ],
)
def test_a_denied_path_below_a_folder_that_is_looked_into_is_asked_about(
    name: str, arguments: JsonObject, expected: str
) -> None:
    subject = tool(f"repo__{name}", READS)
    found = ruling(subject, arguments, entry("repo__*"), deny=SECRETS)
    assert found.verdict == expected, found.reason


@pytest.mark.parametrize(
    ("pattern", "path", "expected"),
    [
        ("**/*.key", "src", "ask"),
        ("src/*.key", "src", "ask"),
        ("src/*.key", "src/deep", "auto"),
        ("s?c/a/**", "src", "ask"),
        ("src", "src", "deny"),
        ("src", ".", "ask"),
    ],
)
def test_what_could_be_denied_below_a_folder_follows_the_glob(
    pattern: str, path: str, expected: str
) -> None:
    deny = entry("*__*", when={"path": pattern})
    subject = tool("repo__dir_tree", READS)
    assert ruling(subject, {"path": path}, entry("repo__*"), deny=deny).verdict == expected


def test_tools_that_follow_a_program_are_asked_about_wherever_they_begin() -> None:
    for name in ("py_find_usages", "py_get_hierarchy", "py_derive_code_path"):
        subject = tool(f"repo__{name}", READS)
        assert ruling(subject, {"path": "src"}, entry("repo__*"), deny=SECRETS).verdict == "ask"


def test_tools_that_look_at_one_file_are_not_concerned() -> None:
    subject = tool("repo__file_read", READS)
    assert ruling(subject, {"path": "src"}, entry("repo__*"), deny=SECRETS).verdict == "auto"
    search = tool("repo__file_search", READS, builtin=False)
    assert ruling(search, {"path": "."}, entry("repo__*"), deny=SECRETS).verdict == "auto"


def test_an_ask_about_something_below_asks_and_a_stage_does_not_stage() -> None:
    subject = tool("repo__file_search", READS)
    everything = entry("repo__*")
    assert ruling(subject, {"path": "."}, everything, ask=(SECRETS,)).verdict == "ask"
    assert ruling(subject, {"path": "."}, everything, stage=(SECRETS,)).verdict == "auto"


def test_what_changes_files_below_a_folder_needs_a_rule_about_all_of_them() -> None:
    subject = tool("repo__file_patch")

    def verdict(rule: RuleEntry, *path: str, **lists: Any) -> str:
        arguments: JsonObject = {"path": path[0]} if path else {}
        return ruling(subject, arguments, rule, **lists).verdict

    all_below = entry("repo__file_patch", when={"path": "src/**"})
    assert verdict(all_below, "src/app") == "auto"
    assert verdict(all_below, "src/app/a.py") == "auto"
    assert verdict(all_below, "docs") == verdict(all_below, ".") == verdict(all_below) == "ask"
    one_level = entry("repo__file_patch", when={"path": "src/*"})
    assert verdict(one_level, "src/app") == "ask"
    assert verdict(entry("repo__file_patch", when={"path": "src"}), "src") == "auto"
    assert verdict(entry("repo__file_patch")) == "auto"

    everything = entry("repo__file_patch")
    for path in ((), (".",)):
        assert ruling(subject, {"path": path[0]} if path else {}, everything, deny=SECRETS).unsure
        assert verdict(everything, *path, stage=(all_below,)) == "staged"
        assert verdict(everything, *path, ask=(all_below,)) == "ask"
    assert ruling(subject, {"path": "src"}, everything, deny=SECRETS).verdict == "auto"
    assert verdict(everything, "docs", stage=(all_below,)) == "auto"


@pytest.mark.requirement("K11")
@pytest.mark.parametrize("name", ["file_rename", "py_move_def"])
def test_a_rule_about_a_path_holds_for_both_paths(name: str) -> None:
    subject = tool(f"repo__{name}")
    approve = entry(f"repo__{name}", when={"path": "docs/**"})

    def verdict(path: str, new_path: str, *rules: RuleEntry) -> str:
        arguments: JsonObject = {"path": path, "new_path": new_path}
        return ruling(subject, arguments, *rules, deny=SECRETS).verdict

    assert verdict("docs/a.py", "docs/b.py", approve) == "auto"
    assert verdict("docs/a.py", "src/b.py", approve) == "ask"
    assert verdict("src/a.py", "docs/b.py", approve) == "ask"
    assert verdict("src/a.py", "secrets/b.py", entry(f"repo__{name}")) == "deny"


# --- Files that programs run by themselves --------------------------------------------------

WORKFLOW = ".github/workflows/ci.yml"
PLAIN = entry("repo__file_write")


@pytest.mark.parametrize(
    "path",
    [
        WORKFLOW,
        f"./{WORKFLOW}",
        ".GitHub/workflows/ci.yml",
        "sub/.github/x",
        ".gitlab-ci.yml",
        ".pre-commit-config.yaml",
        ".envrc",
        ".vscode/tasks.json",
        ".devcontainer/devcontainer.json",
        "lib/site-packages/x.pth",
        "lib/sitecustomize.py",
    ],
)
@pytest.mark.parametrize(
    "rule",
    [
        PLAIN,
        entry("repo__*"),
        entry("repo__file_write", when={"path": "**"}),
        entry("repo__file_write", schema={"type": "object"}),
    ],
    ids=rule_text,
)
@pytest.mark.parametrize(
    "subject", [tool("repo__file_write"), tool("repo__file_write", trusted=True)]
)
def test_a_file_that_runs_by_itself_needs_a_rule_with_that_very_path(
    path: str, rule: RuleEntry, subject: Tool
) -> None:
    assert ruling(subject, {"path": path}, rule).verdict == "ask"
    exact = entry("repo__file_write", when={"path": path})
    assert ruling(subject, {"path": path}, rule, exact).verdict == "auto"


def test_the_denial_names_the_rule_that_approves_it() -> None:
    found = ruling(tool("repo__file_write"), {"path": WORKFLOW, "content": "x"}, PLAIN)
    assert found.reason == (
        "no rule approves repo__file_write (rule repo__file_write: other programs run "
        f"`{WORKFLOW}` by themselves: only a rule with exactly this path under `when`)"
    )
    assert found.hint == (
        f'`{{tool: repo__file_write, when: {{path: "{WORKFLOW}", content: x}}, '
        "schema: {maxProperties: 2}}` under `mcp.auto_approve` approves this"
    )


@pytest.mark.parametrize(
    ("when", "expected"),
    [
        ({}, "ask"),
        ({"path": "a"}, "ask"),
        ({"path": "a", "new_path": "**"}, "ask"),
        ({"path": "*", "new_path": ".envrc"}, "auto"),
        ({"new_path": ".envrc"}, "auto"),
    ],
)
def test_moving_a_file_there_needs_its_new_path(when: JsonObject, expected: str) -> None:
    subject = tool("repo__file_rename")
    rule = entry("repo__file_rename", when=when)
    assert ruling(subject, {"path": "a", "new_path": ".envrc"}, rule).verdict == expected


def test_reading_such_a_file_and_writing_others_is_as_before() -> None:
    assert ruling(tool("repo__file_read", READS), {"path": ".envrc"}, entry("repo__*")).verdict == (
        "auto"
    )
    for path in ("envrc", "docs/.github.md", "x.pth.txt", "github/ci.yml"):
        assert ruling(tool("repo__file_write"), {"path": path}, PLAIN).verdict == "auto"


def test_an_exact_rule_for_such_a_file_has_its_path() -> None:
    subject = tool("repo__file_rename")
    arguments: JsonObject = {"path": "a", "new_path": ".envrc"}
    found = exact_entry(subject, arguments)
    assert found is not None
    assert found.when == arguments
    assert ruling(subject, arguments, found).verdict == "auto"
