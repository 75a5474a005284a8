from pathlib import Path

import pytest

from aish.core.errors import UsageError
from aish.core.json import JsonObject
from aish.core.rules import RuleEntry, RuleLists
from aish.core.tools import ToolName
from aish.engine.plan.validation.older_names import own_call, own_rules, policy_of
from aish.engine.plan.validation.validate import check_file
from aish.policy.decide import explain
from aish.policy.rules import compile_policy

FILE = """
aish: 1
models: {m: {base_url: "http://127.0.0.1:9/v1", model: m}}
mcp:
  servers:
    box:
      pack: [fs, edit, shell]
      root: .
      exclude: [write_file]
      timeout: {tools: {read_file: 5s}}
    other: {url: "http://127.0.0.1:9/mcp"}
  auto_approve:
    - box__read_file
    - {tool: box__move_file, when: {source: "docs/**"}}
    - box__read_*
    - other__read_file
  deny: ["*__create_directory"]
serve:
  tools: [box__read_file, "box__dir_*"]
  clients: {ci: {token_env: CI_TOKEN, tools: [box__write_file]}}
policy_tests:
  - {tool: box__read_file, arguments: {path: a}, expect: auto}
steps:
  - {id: ask, prompt: "hello {{ 1 }}", tools: [box__read_file, "box__dir_*"]}
  - {id: move, call: box__move_file, with: {source: a, destination: b}}
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "p.yaml"
    path.write_text(text)
    return path


def test_a_file_is_read_with_own_names_only(tmp_path: Path) -> None:
    pipeline, problems = check_file(write(tmp_path, FILE))
    assert pipeline is not None
    assert not [problem for problem in problems if not problem.warning]
    assert [(rule.tool, dict(rule.when)) for rule in pipeline.rules.auto_approve] == [
        ("box__file_read", {}),
        ("box__file_rename", {"path": "docs/**"}),
        ("box__read_*", {}),
        ("other__read_file", {}),
    ]
    # What forbids an older name on any server forbids the tool, and the other servers' too.
    assert [rule.tool for rule in pipeline.rules.deny] == [
        "*__create_directory",
        "*__dir_create",
    ]
    assert pipeline.policy_tests[0].tool == "box__file_read"
    ask, move = pipeline.steps
    assert getattr(ask, "tools", None) == ("box__file_read", "box__dir_*")
    assert getattr(move, "call", None) == "box__file_rename"
    assert getattr(move, "arguments", None) == {"path": "a", "new_path": "b"}
    box = pipeline.servers["box"]
    assert box.exclude == ("file_write",)
    assert dict(box.timeout.tools) == {"file_read": 5.0}
    assert pipeline.serve.tools == ("box__file_read", "box__dir_*")
    assert pipeline.serve.clients[0].tools == ("box__file_write",)


def test_both_spellings_in_a_step_are_an_error_of_the_file(tmp_path: Path) -> None:
    text = FILE.replace("with: {source: a,", "with: {source: a, path: c,")
    _, problems = check_file(write(tmp_path, text))
    (wrong,) = [problem for problem in problems if not problem.warning]
    assert wrong.path == "steps[1].with"
    assert wrong.message == "`source` is an older name of `path`, and both are given"


def test_rules_of_the_command_line_join_those_of_the_file(tmp_path: Path) -> None:
    pipeline, _ = check_file(write(tmp_path, FILE))
    assert pipeline is not None
    policy = policy_of(pipeline, allow=("box__write_file",), deny=("box__edit_file",))
    assert [rule.text for rule in policy.auto_approve][-1] == "box__file_write"
    assert [rule.text for rule in policy.deny][-1] == "box__file_edit"
    assert policy.deny[-1].entry.path == "--deny"
    with pytest.raises(UsageError, match=r"--allow: `read` has no `__`"):
        policy_of(pipeline, allow=("read",))


def test_an_older_name_that_sets_a_parameter_is_a_rule_about_it(tmp_path: Path) -> None:
    pipeline, _ = check_file(write(tmp_path, FILE))
    assert pipeline is not None
    rules = own_rules(
        RuleLists(auto_approve=(RuleEntry("box__run_powershell", when={"script": "ls"}),)),
        pipeline.servers,
    )
    (rule,) = rules.auto_approve
    assert (rule.tool, dict(rule.when)) == ("box__shell_run", {"command": "ls", "shell": "pwsh"})


def test_a_call_is_translated_and_both_spellings_are_refused(tmp_path: Path) -> None:
    pipeline, _ = check_file(write(tmp_path, FILE))
    assert pipeline is not None
    servers = pipeline.servers
    name = ToolName("box", "edit_file")
    assert own_call(name, {"path": "a", "old_string": "b", "new_text": "c"}, servers) == (
        ToolName("box", "file_edit"),
        {"path": "a", "old_text": "b", "new_text": "c"},
    )
    with pytest.raises(ValueError, match="`old_string` is an older name of `old_text`"):
        own_call(name, {"old_string": "b", "old_text": "b"}, servers)
    with pytest.raises(ValueError, match="`run_powershell` sets `shell` itself"):
        own_call(ToolName("box", "run_powershell"), {"shell": "sh"}, servers)
    other = ToolName("other", "read_file")
    assert own_call(other, {"p": 1}, servers) == (other, {"p": 1})


def test_the_schema_of_a_rule_is_about_own_parameters(tmp_path: Path) -> None:
    pipeline, _ = check_file(write(tmp_path, FILE))
    assert pipeline is not None
    inside: JsonObject = {"properties": {"source": {"type": "string", "pattern": "^docs/"}}}
    keys: JsonObject = {"required": ["script"], "additionalProperties": False}
    rules = own_rules(
        RuleLists(
            auto_approve=(RuleEntry("box__move_file", schema=inside),),
            deny=(
                RuleEntry("*__file_edit", when={"old_string": "a"}),
                RuleEntry("box__edit_file", schema={"anyOf": [{"required": ["old_string"]}]}),
                RuleEntry("box__run_powershell", schema={"properties": {"script": {}}, **keys}),
            ),
        ),
        pipeline.servers,
    )
    policy = compile_policy(rules)

    def verdict(name: str, arguments: JsonObject) -> str:
        return explain(policy, ToolName("box", name), arguments).ruling.verdict

    assert verdict("file_rename", {"path": "docs/a", "new_path": "b"}) == "auto"
    assert verdict("file_rename", {"path": "src/a", "new_path": "b"}) == "ask"
    assert [rule.rule for rule in policy.infos() if rule.rule.startswith("*")] == [
        '*__file_edit when {"old_string": "a"}',
        '*__file_edit when {"old_text": "a"}',
    ]
    assert verdict("file_edit", {"path": "x", "old_text": "z", "new_text": "b"}) == "deny"
    assert verdict("shell_run", {"command": "ls", "shell": "pwsh"}) == "deny"
    assert verdict("shell_run", {"command": "ls"}) == "ask"


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (
            '{tool: box__run_powershell, when: {shell: pwsh, script: "rm *"}}',
            "`run_powershell` sets `shell` itself",
        ),
        (
            '{tool: "*__file_rename", when: {path: a, old_path: b}}',
            "`old_path` is an older name of `path`, and both are given",
        ),
    ],
)
def test_a_condition_that_names_a_parameter_twice_is_an_error_of_the_file(
    tmp_path: Path, rule: str, message: str
) -> None:
    text = FILE.replace('["*__create_directory"]', f"[{rule}]")
    _, problems = check_file(write(tmp_path, text))
    (wrong,) = [problem for problem in problems if not problem.warning]
    assert (wrong.path, wrong.message) == ("mcp.deny[0].when", message)


EDIT: JsonObject = {"path": "x", "old_text": "z", "new_text": "b"}
SCRIPT: JsonObject = {"command": "ls", "shell": "pwsh"}


@pytest.mark.requirement("K10")
@pytest.mark.parametrize(
    ("tool", "schema", "fits", "misfits"),
    [
        (
            "file_edit",
            {"propertyNames": {"enum": ["path", "old_string", "new_string"]}},
            EDIT,
            None,
        ),
        ("file_edit", {"propertyNames": {"not": {"const": "old_string"}}}, None, EDIT),
        ("file_edit", {"dependentRequired": {"old_string": ["replace_all"]}}, None, EDIT),
        ("edit_file", {"const": {"path": "x", "old_string": "z", "new_string": "b"}}, EDIT, None),
        ("edit_file", {"enum": [{"path": "x", "old_string": "z", "new_text": "b"}]}, EDIT, None),
        ("edit_file", {"patternProperties": {"_": {"type": "integer"}}}, None, EDIT),
        ("run_powershell", {"propertyNames": {"enum": ["script"]}}, SCRIPT, {**SCRIPT, "cwd": "a"}),
        ("run_powershell", {"maxProperties": 1}, SCRIPT, {**SCRIPT, "cwd": "a"}),
        ("run_powershell", {"const": {"script": "ls"}}, SCRIPT, None),
    ],
    ids=str,
)
def test_every_keyword_that_names_parameters_is_translated(
    tmp_path: Path, tool: str, schema: JsonObject, fits: JsonObject, misfits: JsonObject
) -> None:
    pipeline, _ = check_file(write(tmp_path, FILE))
    assert pipeline is not None
    given = RuleLists(deny=(RuleEntry(f"box__{tool}", schema=schema),))
    policy = compile_policy(own_rules(given, pipeline.servers))
    own = ToolName("box", "shell_run" if tool == "run_powershell" else "file_edit")
    for arguments, verdict in ((fits, "deny"), (misfits, "ask")):
        if arguments is not None:
            assert explain(policy, own, arguments).ruling.verdict == verdict


@pytest.mark.parametrize("key", ["dependentSchemas", "dependencies"])
def test_what_depends_on_a_parameter_is_translated(tmp_path: Path, key: str) -> None:
    pipeline, _ = check_file(write(tmp_path, FILE))
    assert pipeline is not None
    schema: JsonObject = {key: {"old_string": {"required": ["new_string"]}, "path": ["old_string"]}}
    rules = own_rules(
        RuleLists(deny=(RuleEntry("box__file_edit", schema=schema),)), pipeline.servers
    )
    assert rules.deny[0].schema == {
        key: {"old_text": {"required": ["new_text"]}, "path": ["old_text"]}
    }


@pytest.mark.parametrize(
    ("rule", "path", "message"),
    [
        (
            '{tool: box__file_edit, schema: {patternProperties: {"_string$": {minLength: 3}}}}',
            "mcp.deny[0].schema.patternProperties",
            (
                "the pattern `_string$` takes in `old_string`, an older name of the parameter"
                " `old_text` of `file_edit`, and not that name"
            ),
        ),
        (
            '{tool: box__move_file, schema: {anyOf: [{propertyNames: {not: {pattern: "^sour"}}}]}}',
            "mcp.deny[0].schema.propertyNames",
            (
                "the pattern `^sour` takes in `source`, an older name of the parameter `path` of"
                " `file_rename`, and not that name"
            ),
        ),
        (
            '{tool: box__run_powershell, schema: {patternProperties: {"^s": {maxLength: 3}}}}',
            "mcp.deny[0].schema.patternProperties",
            (
                "the pattern `^s` takes in `script`, an older name of the parameter `command` of"
                " `shell_run`, and not that name"
            ),
        ),
        (
            '{tool: box__run_powershell, schema: {patternProperties: {"sh": {maxLength: 3}}}}',
            "mcp.deny[0].schema.patternProperties",
            "the pattern `sh` takes in `shell`, which the older name `run_powershell` sets",
        ),
    ],
    ids=str,
)
def test_a_pattern_that_means_an_older_name_is_an_error_of_the_file(
    tmp_path: Path, rule: str, path: str, message: str
) -> None:
    text = FILE.replace('["*__create_directory"]', f"[{rule}]")
    _, problems = check_file(write(tmp_path, text))
    (wrong,) = [problem for problem in problems if not problem.warning]
    assert (wrong.path, wrong.message) == (path, message)


@pytest.mark.parametrize("pattern", ["_text$", ".*", "^path$", "("])
def test_a_pattern_over_own_names_is_none(tmp_path: Path, pattern: str) -> None:
    rule = f"{{tool: box__file_edit, schema: {{patternProperties: {{'{pattern}': true}}}}}}"
    text = FILE.replace('["*__create_directory"]', f"[{rule}]")
    _, problems = check_file(write(tmp_path, text))
    assert not [problem for problem in problems if "an older name" in problem.message]
