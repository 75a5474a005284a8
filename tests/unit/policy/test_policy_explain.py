import pytest

from aish.errors import UsageError
from aish.policy.explain import check_policy_tests, explain, tool_name
from aish.policy.rules import compile_policy
from aish.policy.texts import Fit
from aish.vocab.rules import PolicyTest, RuleEntry, RuleLists
from aish.vocab.tools import Annotations, Tool, ToolName

POLICY = compile_policy(
    RuleLists(
        auto_approve=(
            RuleEntry("repo__git_*", path="mcp.auto_approve[0]"),
            RuleEntry("repo__write", when={"path": "docs/**"}, path="mcp.auto_approve[1]"),
        ),
        deny=(RuleEntry("*__*delete*", path="mcp.deny[0]"),),
    )
)

GC = Tool(
    ToolName("repo", "git_gc"), "repo__git_gc", "", {}, annotations=Annotations(destructive=True)
)


@pytest.mark.requirement("P7")
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
    assert found.ruling.reason == "no rule approves repo__write"
    assert not found.known


@pytest.mark.requirement("P7")
def test_the_rule_that_decides_is_named_with_its_place() -> None:
    ruling = explain(POLICY, tool_name("repo__write"), {"path": "docs/x"}).ruling
    assert ruling.verdict == "auto"
    assert ruling.rule == 'repo__write when {"path": "docs/**"}'
    assert ruling.reason == (
        'auto_approve rule repo__write when {"path": "docs/**"} (mcp.auto_approve[1]): it matches'
    )
    assert explain(POLICY, tool_name("repo__git_delete_tag"), {}).ruling.verdict == "deny"


@pytest.mark.requirement("P5", "P7")
def test_a_wildcard_that_a_destructive_tool_outranks_says_so() -> None:
    found = explain(POLICY, GC.name, {}, GC)
    assert found.known
    assert found.ruling.verdict == "ask"
    assert "calls itself destructive" in found.looked_at[1].why


@pytest.mark.requirement("P7")
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
    assert failed[0].hint == "no rule approves repo__write"
    assert "mcp.deny[0]" in failed[1].hint


@pytest.mark.requirement("P7")
def test_a_known_tool_is_tested_with_its_annotations() -> None:
    tests = (PolicyTest("repo__git_gc", {}, "auto", "policy_tests[0]"),)
    assert not check_policy_tests(tests, POLICY)
    assert check_policy_tests(tests, POLICY, (GC,))


@pytest.mark.requirement("P1")
def test_a_tool_without_separator_is_an_error() -> None:
    with pytest.raises(UsageError):
        tool_name("write")
