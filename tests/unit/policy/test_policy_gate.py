from dataclasses import dataclass, field, replace

import anyio
import pytest
from samples import each_case

from aish.core.events import Place
from aish.core.json import JsonObject, JsonValue
from aish.core.protocols import Answer, Question
from aish.core.rules import RuleEntry, RuleLists
from aish.core.tools import Tool, ToolName
from aish.policy.gate import ApprovalError, Decision, Gate, Proposal
from aish.policy.rules import compile_policy


@dataclass
class Person:
    """Answers as told and keeps the questions."""

    answer: Answer = "yes"
    attended: bool = True
    questions: list[Question] = field(default_factory=list)

    async def ask(self, question: Question) -> Answer:
        await anyio.lowlevel.checkpoint()
        self.questions.append(question)
        return self.answer


TOOL = Tool(ToolName("fs", "rm"), "fs__rm", "", {"type": "object"})
CALL = Proposal(TOOL, {"path": "a"}, Place(step="one", turn=1, call="c1"))


def gate(
    person: Person,
    auto: tuple[str, ...] = (),
    ask: tuple[str, ...] = (),
    deny: tuple[str, ...] = (),
    run: str = "r1",
) -> Gate:
    lists = RuleLists(
        tuple(map(RuleEntry, auto)), tuple(map(RuleEntry, ask)), tuple(map(RuleEntry, deny))
    )
    return Gate(compile_policy(lists), person, run)


def decided(subject: Gate, proposal: Proposal = CALL) -> Decision:
    return anyio.run(subject.decide, proposal)


def test_a_rule_that_approves_is_named_and_nobody_is_asked() -> None:
    person = Person()
    decision = decided(gate(person, auto=("fs__*",)))
    assert (decision.verdict, decision.rule, decision.reply) == ("auto", "fs__*", None)
    assert decision.allowed
    assert not decision.by_person
    assert not person.questions


def test_a_rule_that_denies_is_named_to_the_model_and_nobody_is_asked() -> None:
    person = Person()
    decision = decided(gate(person, auto=("*__*",), deny=("*__rm",)))
    assert (decision.verdict, decision.rule) == ("deny", "*__rm")
    assert decision.reply == "[aish] tool call denied by rule *__rm"
    assert not decision.allowed
    assert not person.questions


@pytest.mark.parametrize(
    ("ask", "why"),
    [
        ((), "no rule approves fs__rm"),
        (("fs__rm",), "rule fs__rm asks, and nobody is there to answer"),
    ],
)
def test_without_a_person_the_answer_is_no(ask: tuple[str, ...], why: str) -> None:
    person = Person(attended=False)
    decision = decided(gate(person, ask=ask))
    assert decision.verdict == "ask-no"
    assert decision.reply == f"[aish] tool call denied: {why}"
    assert not decision.allowed
    assert not decision.by_person
    assert not person.questions


@pytest.mark.requirement("P2")
def test_a_person_is_shown_exactly_what_will_be_sent() -> None:
    person = Person()
    decision = decided(gate(person))
    assert (decision.verdict, decision.rule, decision.by_person) == ("ask-yes", "the user", True)
    (question,) = person.questions
    assert (question.tool, question.arguments, question.place) == (
        CALL.tool,
        CALL.arguments,
        CALL.place,
    )
    assert question.reason == "no rule approves fs__rm"


def test_the_no_of_a_person_is_told_to_the_model() -> None:
    decision = decided(gate(Person(answer="no")))
    assert (decision.verdict, decision.rule, decision.by_person) == ("ask-no", "the user", True)
    assert decision.reply == "[aish] tool call denied by the user"


@pytest.mark.requirement("P6")
def test_an_approval_is_used_once() -> None:
    subject = gate(Person(), auto=("fs__*",))
    decision = decided(subject)
    subject.redeem(decision, CALL)
    with pytest.raises(ApprovalError, match="not open"):
        subject.redeem(decision, CALL)


def test_two_equal_calls_need_two_approvals() -> None:
    subject = gate(Person(), auto=("fs__*",))
    first, second = decided(subject), decided(subject)
    assert first.digest == second.digest
    subject.redeem(first, CALL)
    subject.redeem(second, CALL)
    with pytest.raises(ApprovalError):
        subject.redeem(replace(first), CALL)


@each_case(
    "other",
    [
        replace(CALL, arguments={"path": "b"}),
        replace(CALL, arguments={"path": "a", "force": True}),
        replace(CALL, arguments={}),
        replace(CALL, tool=replace(TOOL, name=ToolName("fs", "read"))),
        replace(CALL, tool=replace(TOOL, name=ToolName("git", "rm"))),
        replace(CALL, tool=replace(TOOL, input_schema={"type": "object", "x": 1})),
        replace(CALL, place=Place(step="two", turn=1, call="c1")),
        replace(CALL, place=Place(step="one", item="3", turn=1, call="c1")),
    ],
)
def test_an_approval_is_good_for_no_other_call(other: Proposal) -> None:
    subject = gate(Person(), auto=("fs__*",))
    decision = decided(subject)
    with pytest.raises(ApprovalError, match="not the call that was approved"):
        subject.redeem(decision, other)
    with pytest.raises(ApprovalError, match="not open"):
        subject.redeem(decision, CALL)


def test_arguments_that_change_after_the_approval_are_not_sent() -> None:
    arguments: dict[str, JsonValue] = {"path": "a"}
    proposal = replace(CALL, arguments=arguments)
    subject = gate(Person(), auto=("fs__*",))
    decision = decided(subject, proposal)
    arguments["path"] = "/etc/passwd"
    with pytest.raises(ApprovalError, match="not the call that was approved"):
        subject.redeem(decision, proposal)


def test_the_order_of_keys_is_not_part_of_a_call() -> None:
    subject = gate(Person(), auto=("fs__*",))
    decision = decided(subject, replace(CALL, arguments={"a": 1, "b": 2}))
    subject.redeem(decision, replace(CALL, arguments={"b": 2, "a": 1}))


def test_an_approval_of_another_run_or_gate_or_of_no_gate_is_worth_nothing() -> None:
    ours, theirs = gate(Person(), auto=("fs__*",)), gate(Person(), auto=("fs__*",), run="r2")
    foreign = decided(theirs)
    own = decided(ours)
    assert foreign.digest != own.digest
    for forged in (foreign, replace(own), Decision("auto", "x", own.digest, None, by_person=False)):
        with pytest.raises(ApprovalError):
            ours.redeem(forged, CALL)


def test_a_refusal_is_never_redeemed() -> None:
    subject = gate(Person(answer="no"), deny=("git__*",))
    refused = decided(subject)
    denied = decided(subject, replace(CALL, tool=replace(TOOL, name=ToolName("git", "rm"))))
    for decision in (refused, denied):
        with pytest.raises(ApprovalError, match="was not approved"):
            subject.redeem(decision, CALL)


def test_odd_arguments_have_a_digest_too() -> None:
    odd: JsonObject = {"x": "\ud800\u202e", "n": float("nan"), "deep": [[[{}]]]}
    subject = gate(Person(), auto=("fs__*",))
    proposal = replace(CALL, arguments=odd)
    subject.redeem(decided(subject, proposal), proposal)


def test_only_the_word_is_yes() -> None:
    person = Person()
    person.answer = True  # type: ignore[assignment]  # an approver that breaks its contract
    assert decided(gate(person)).verdict == "ask-no"


HARD: JsonObject = {"properties": {"x": {"pattern": "^(a+)+$"}}, "required": ["x"]}


def test_only_the_yes_of_the_schema_worker_counts_and_only_for_approvals() -> None:
    asked: list[JsonValue] = []

    async def worker(schema: JsonObject, value: JsonValue) -> list[str]:
        await anyio.lowlevel.checkpoint()
        asked.append(value)
        return [] if value == {"x": "aaa"} else ["took too long"]

    def verdict(lists: RuleLists, arguments: JsonObject) -> str:
        subject = Gate(compile_policy(lists), Person(attended=False), "r1", worker)
        return decided(subject, replace(CALL, arguments=arguments)).verdict

    hard = RuleEntry("fs__rm", schema=HARD)
    other = RuleEntry("git__rm", schema=HARD)
    approving = RuleLists(auto_approve=(other, hard))
    assert verdict(approving, {"x": "aaa"}) == "auto"
    assert verdict(approving, {"x": "aab"}) == "ask-no"
    assert len(asked) == 2
    denying = RuleLists(auto_approve=(RuleEntry("fs__rm"),), deny=(hard,))
    assert verdict(denying, {"x": "aab"}) == "ask-no"
    assert len(asked) == 2


def test_nobody_is_asked_about_a_tool_that_was_withdrawn() -> None:
    person = Person()
    lists = RuleLists(auto_approve=(RuleEntry("fs__rm"),))
    subject = Gate(compile_policy(lists), person, "r1", withdrawn=lambda tool: f"no {tool.name}")

    decision = decided(subject)

    assert (decision.verdict, decision.rule) == ("deny", "the lock file")
    assert decision.reply == "no fs__rm"
    assert not person.questions
    with pytest.raises(ApprovalError):
        subject.redeem(decision, CALL)
