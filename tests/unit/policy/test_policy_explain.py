import pytest
import yaml
from samples import each_case

from aish.core.errors import UsageError
from aish.core.json import JsonObject
from aish.core.rules import PolicyTest, RuleEntry, RuleLists
from aish.core.tools import Annotations, Tool, ToolName
from aish.policy.decide import check_policy_tests, explain, tool_name
from aish.policy.rules import Fit, compile_policy

POLICY = compile_policy(
    RuleLists(
        auto_approve=(
            RuleEntry("repo__git_*", path="mcp.auto_approve[0]"),
            RuleEntry("repo__write", when={"path": "docs/**"}, path="mcp.auto_approve[1]"),
        ),
        deny=(RuleEntry("*__*delete*", path="mcp.deny[0]"),),
    )
)

NEAREST = 'rule repo__write when {"path": "docs/**"}: argument `path` does not fit `docs/**`'

GC = Tool(
    ToolName("repo", "git_gc"), "repo__git_gc", "", {}, annotations=Annotations(destructive=True)
)


def test_every_rule_is_looked_at_and_says_why() -> None:
    found = explain(POLICY, ToolName("repo", "write"), {"path": "src/x"})
    assert [(seen.rule.text, seen.fit, seen.why) for seen in found.looked_at] == [
        ("*__*delete*", Fit.NO, "`*__*delete*` does not match `repo__write`"),
        ("repo__git_*", Fit.NO, "`repo__git_*` does not match `repo__write`"),
        (
            'repo__write when {"path": "docs/**"}',
            Fit.NO,
            "argument `path` does not fit `docs/**`",
        ),
    ]
    assert found.ruling.verdict == "ask"
    assert found.ruling.reason == f"no rule approves repo__write ({NEAREST})"
    assert found.ruling.hint == (
        "`{tool: repo__write, when: {path: src/x}, schema: {maxProperties: 1}}` under "
        "`mcp.auto_approve` approves this"
    )
    assert not found.known


def test_the_rule_that_decides_is_named_with_its_place() -> None:
    ruling = explain(POLICY, tool_name("repo__write"), {"path": "docs/x"}).ruling
    assert ruling.verdict == "auto"
    assert ruling.rule == 'repo__write when {"path": "docs/**"}'
    assert ruling.reason == (
        'auto_approve rule repo__write when {"path": "docs/**"} (mcp.auto_approve[1]): it matches'
    )
    assert explain(POLICY, tool_name("repo__git_delete_tag"), {}).ruling.verdict == "deny"


def test_a_wildcard_that_a_destructive_tool_outranks_says_so() -> None:
    found = explain(POLICY, GC.name, {}, GC)
    assert found.known
    assert found.ruling.verdict == "ask"
    assert "calls itself destructive" in found.looked_at[1].why
    assert found.ruling.reason == (
        "no rule approves repo__git_gc (rule repo__git_*: the tool calls itself destructive and"
        " its server is not trusted: only its exact name)"
    )
    assert found.ruling.hint == (
        "`{tool: repo__git_gc, schema: {maxProperties: 0}}` under `mcp.auto_approve` approves this"
    )


def test_policy_tests_that_do_not_hold_are_told_with_the_reason() -> None:
    tests = (
        PolicyTest("repo__git_log", {}, "auto", "policy_tests[0]"),
        PolicyTest("repo__write", {"path": "../x"}, "auto", "policy_tests[1]"),
        PolicyTest("repo__undelete", {}, "ask", "policy_tests[2]"),
    )
    failed = check_policy_tests(tests, POLICY)
    assert [(one.path, one.message) for one in failed] == [
        ("policy_tests[1]", "`repo__write` is expected to be `auto` and is `ask`"),
        ("policy_tests[2]", "`repo__undelete` is expected to be `ask` and is `deny`"),
    ]
    assert failed[0].hint == f"no rule approves repo__write ({NEAREST})"
    assert "mcp.deny[0]" in failed[1].hint


def test_a_known_tool_is_tested_with_its_annotations() -> None:
    tests = (PolicyTest("repo__git_gc", {}, "auto", "policy_tests[0]"),)
    assert not check_policy_tests(tests, POLICY)
    assert check_policy_tests(tests, POLICY, (GC,))


def test_a_tool_without_separator_is_an_error() -> None:
    with pytest.raises(UsageError):
        tool_name("write")


SHELL = ToolName("shell", "run")
MORE = "`**` at the end of a rule stands for any further words"
ONLY = "only a rule with exactly this command approves it"


@each_case(
    "arguments, why, when",
    [
        (
            {"command": "git log | head"},
            f"the command has the shell metacharacter `|`: {ONLY}",
            '{command: "git log | head"}',
        ),
        (
            {"argv": ["git", "log", "-3"]},
            "`*` does not take a word that begins with a dash, `-3`",
            '{argv: [git, log, "-3"]}',
        ),
        (
            {"argv": ["git", "log", "../x"]},
            "`*` does not take a word that may lead out of the folder, `../x`",
            '{argv: [git, log, "../x"]}',
        ),
        (
            {"argv": ["git", "log", "a;b"]},
            "`*` does not take a word with shell metacharacters, `a;b`",
            '{argv: [git, log, "a;b"]}',
        ),
        (
            {"argv": ["git", "log", "a", "b"]},
            f"the command has 4 words, and the rule 3; {MORE}",
            "{argv: [git, log, a, b]}",
        ),
        (
            {"argv": ["git", "push", "a"]},
            "word 2 is `push`, and the rule has `log`",
            "{argv: [git, push, a]}",
        ),
        (
            {"argv": ["make", "--dir=/etc"]},
            "`**` does not take a word that may lead out of the folder, `--dir=/etc`",
            '{argv: [make, "--dir=/etc"]}',
        ),
        (
            {"argv": ["git", "log", "@args"]},
            "`*` does not take a word that may name a file of arguments, `@args`",
            '{argv: [git, log, "@args"]}',
        ),
        (
            {"argv": ["make", "all", "@args"]},
            "`**` does not take a word that may name a file of arguments, `@args`",
            '{argv: [make, all, "@args"]}',
        ),
        (
            {"argv": ["sh", "-c", "make; make"]},
            f"the command goes through a shell, with metacharacters: {ONLY}",
            '{argv: [sh, -c, "make; make"]}',
        ),
    ],
)
def test_a_command_that_just_misses_a_rule_is_told_why_and_how_to_write_it(
    arguments: JsonObject, why: str, when: str
) -> None:
    commands = (("make", "**"), ("git", "log", "*"), ("ls",), ("sh", "**"))
    rules = tuple(RuleEntry("shell__run", command=words) for words in commands)
    ruling = explain(compile_policy(RuleLists(rules)), SHELL, arguments).ruling
    assert ruling.reason.startswith("no rule approves shell__run (rule shell__run command [")
    assert ruling.reason.endswith(f"]: {why})")
    hint = f"{{tool: shell__run, when: {when}, schema: {{maxProperties: 1}}}}"
    assert ruling.hint == f"`{hint}` under `mcp.auto_approve` approves this"

    written = yaml.safe_load(hint)
    rule = RuleEntry(written["tool"], written["when"], written["schema"])
    assert explain(compile_policy(RuleLists((rule,))), SHELL, arguments).ruling.verdict == "auto"


def test_a_rule_about_another_command_is_no_reason() -> None:
    policy = compile_policy(RuleLists((RuleEntry("shell__run", command=("ls", "*")),)))
    ruling = explain(policy, SHELL, {"argv": ["git", "log"]}).ruling
    assert ruling.reason == "no rule approves shell__run"
