"""Rules that stage, and the gate on the way to a review and back (B16)."""

from dataclasses import dataclass, field, replace

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aish.core.events import Place, RuleInfo
from aish.core.json import JsonObject
from aish.core.rules import PolicyTest, RuleEntry, RuleLists
from aish.core.tools import Annotations, Tool, ToolName
from aish.policy.decide import check_policy_tests, decide, explain, forbidden
from aish.policy.gate import STAGED, ApprovalError, Decision, Gate, Proposal
from aish.policy.rules import compile_policy, rules_without_tools
from aish.terminal.unattended import Unattended

TOOL = Tool(ToolName("fs", "rm"), "fs__rm", "", {"type": "object"})
CALL = Proposal(TOOL, {"path": "a"}, Place(step="one", turn=1, call="c1"))
ANY = (RuleEntry("fs__*"),)
ODD = RuleEntry("fs__rm", when={"path": "b*"})
"""Of a list that forbids it cannot be told whether it fits `a/../b`."""


@dataclass
class StagingQueue:
    """Where calls are put down; `why` refuses them."""

    why: str | None = None
    held: set[str] = field(default_factory=set)

    def refusal(self, tool: Tool, arguments: JsonObject) -> str | None:
        del tool, arguments
        return self.why

    def definition(self, tool: Tool) -> str:
        return f"the hash of {tool.name}"

    def holds(self, digest: str) -> bool:
        return digest in self.held


@dataclass
class Review:
    """A person who has reviewed calls with these arguments."""

    arguments: JsonObject

    def rule(self, tool: Tool, arguments: JsonObject, place: Place) -> str | None:
        del tool, place
        return "apply staged.json#1" if arguments == self.arguments else None


def gate(
    lists: RuleLists,
    staging_queue: StagingQueue | None = None,
    review: Review | None = None,
    **allow: str,
) -> Gate:
    rules = tuple(RuleEntry(tool=glob) for glob in allow.values())
    policy = compile_policy(replace(lists, auto_approve=lists.auto_approve + rules))
    return Gate(policy, Unattended(), "r1", staging=staging_queue, reviewed=review)


def decided(subject: Gate, proposal: Proposal = CALL) -> Decision:
    return anyio.run(subject.decide, proposal)


@given(deny=st.booleans(), stage=st.booleans(), ask=st.booleans(), auto=st.booleans())
def test_deny_beats_stage_beats_ask_beats_auto(
    *, deny: bool, stage: bool, ask: bool, auto: bool
) -> None:
    lists = RuleLists(
        deny=ANY if deny else (),
        stage=ANY if stage else (),
        ask=ANY if ask else (),
        auto_approve=ANY if auto else (),
    )
    found = decide(compile_policy(lists), TOOL, {"path": "a"}).verdict
    expected = next(
        word
        for word, there in (
            ("deny", deny),
            ("staged", stage),
            ("ask", ask),
            ("auto", auto),
            ("ask", True),
        )
        if there
    )
    assert found == expected


def test_a_rule_of_the_command_line_does_not_free_a_staged_call() -> None:
    found = decided(gate(RuleLists(stage=ANY), StagingQueue(), allow="fs__rm"))
    assert found.verdict == "staged"


def test_a_stage_rule_that_may_or_may_not_fit_stages() -> None:
    policy = compile_policy(RuleLists(auto_approve=ANY, stage=(ODD,)))
    assert decide(policy, TOOL, {"path": "a/../b"}).verdict == "staged"
    assert decide(policy, TOOL, {"path": "a"}).verdict == "auto"


def test_what_a_deny_rule_may_forbid_is_not_staged() -> None:
    policy = compile_policy(RuleLists(stage=ANY, deny=(ODD,)))
    found = decide(policy, TOOL, {"path": "a/../b"})
    assert (found.verdict, found.rule) == ("deny", 'fs__rm when {"path": "b*"}')
    assert decide(policy, TOOL, {"path": "a"}).verdict == "staged"


def test_a_destructive_tool_is_staged_by_a_wildcard() -> None:
    policy = compile_policy(RuleLists(auto_approve=(RuleEntry("fs__gone"),), stage=ANY))
    destructive = Tool(TOOL.name, "fs__rm", "", {}, annotations=Annotations(destructive=True))
    assert decide(policy, destructive, {}).verdict == "staged"


def test_a_stage_rule_is_explained_listed_and_tested() -> None:
    policy = compile_policy(RuleLists(auto_approve=ANY, stage=(RuleEntry("fs__rm"),)))
    found = explain(policy, TOOL.name, {})
    assert found.ruling.verdict == "staged"
    assert [row.rule.list for row in found.looked_at] == ["stage", "auto_approve"]
    assert policy.infos()[0] == RuleInfo("stage", "fs__rm")
    assert [rule.tool for rule in rules_without_tools(policy, [])] == ["fs__rm", "fs__*"]
    assert not check_policy_tests([PolicyTest("fs__rm", {}, "staged")], policy)
    (failed,) = check_policy_tests([PolicyTest("fs__rm", {}, "auto")], policy)
    assert failed.message == "`fs__rm` is expected to be `auto` and is `staged`"


def test_a_staged_call_may_not_be_sent() -> None:
    staging_queue = StagingQueue()
    subject = gate(RuleLists(stage=ANY), staging_queue)
    found = decided(subject)
    assert (found.verdict, found.rule, found.reply) == ("staged", "fs__*", STAGED)
    assert found.definition == "the hash of fs__rm"
    assert not found.allowed
    with pytest.raises(ApprovalError, match="was not approved"):
        subject.redeem(found, CALL)
    assert not anyio.run(subject.is_put_down, found)
    staging_queue.held.add(found.digest)
    assert anyio.run(subject.is_put_down, found)


def test_without_a_place_for_it_a_staged_call_is_denied() -> None:
    found = decided(gate(RuleLists(stage=ANY, auto_approve=ANY)))
    assert (found.verdict, found.rule) == ("deny", "fs__*")
    assert found.reply is not None
    assert "stages it, but nothing here can store it" in found.reply


def test_what_cannot_be_put_down_is_denied_with_its_reason() -> None:
    found = decided(gate(RuleLists(stage=ANY), StagingQueue("it is a secret")))
    assert (found.verdict, found.reply) == ("deny", "[aish] tool call denied: it is a secret")


def test_a_reviewed_call_is_approved_once_and_no_other_call_is() -> None:
    subject = gate(RuleLists(stage=ANY, ask=ANY), review=Review({"path": "a"}))
    found = decided(subject)
    assert (found.verdict, found.rule, found.by_person) == ("auto", "apply staged.json#1", True)
    subject.redeem(found, CALL)
    with pytest.raises(ApprovalError, match="not open"):
        subject.redeem(found, CALL)
    other = decided(subject, Proposal(TOOL, {"path": "b"}, CALL.place))
    assert other.verdict == "deny"
    assert other.reply == "[aish] tool call denied: this call of fs__rm was not reviewed"


def test_what_is_approved_by_rule_is_not_approved_where_calls_are_applied() -> None:
    subject = gate(RuleLists(auto_approve=ANY), review=Review({}))
    assert decided(subject).verdict == "deny"


@pytest.mark.parametrize("path", ["b", "a/../b"])
def test_a_deny_rule_holds_against_a_review(path: str) -> None:
    arguments: JsonObject = {"path": path}
    lists = RuleLists(deny=(ODD,))
    found = decided(gate(lists, review=Review(arguments)), Proposal(TOOL, arguments, CALL.place))
    assert (found.verdict, found.rule) == ("deny", 'fs__rm when {"path": "b*"}')
    assert forbidden(compile_policy(lists), TOOL, {"path": "a"}) is None


def test_the_lock_holds_against_a_review() -> None:
    policy = compile_policy(RuleLists())
    subject = Gate(
        policy, Unattended(), "r1", withdrawn=lambda tool: f"no {tool.name}", reviewed=Review({})
    )
    found = decided(subject)
    assert (found.verdict, found.rule, found.reply) == ("deny", "the lock file", "no fs__rm")
