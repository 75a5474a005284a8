"""Rules that a person makes while working: `always`, rules of a session, autonomy (P2, S5)."""

import json
from dataclasses import dataclass, field, replace

import anyio
import pytest

from aish.core.errors import UsageError
from aish.core.events import Place
from aish.core.json import JsonObject
from aish.core.protocols import Answer, Question
from aish.core.rules import RuleEntry, RuleLists
from aish.core.tools import Annotations, Tool, ToolName
from aish.policy.gate import Decision, Gate, Proposal
from aish.policy.rules import compile_policy


@dataclass
class Person:
    answers: list[Answer]
    questions: list[Question] = field(default_factory=list)
    attended: bool = True
    turns: anyio.Lock = field(default_factory=anyio.Lock)

    async def ask(self, question: Question) -> Answer:
        async with self.turns:
            if not await question.is_open():
                return "no"
            self.questions.append(question)
            await anyio.lowlevel.checkpoint()
            return self.answers.pop(0)


TOOL = Tool(ToolName("fs", "rm"), "fs__rm", "", {"type": "object"})
SHELL = Tool(ToolName("shell", "run"), "shell__run", "", {"type": "object"})
CALL = Proposal(TOOL, {"path": "a"}, Place(step="one", turn=1, call="c1"))


def gate(person: Person, lists: RuleLists | None = None) -> Gate:
    return Gate(compile_policy(lists or RuleLists()), person, "r1")


def decided(subject: Gate, proposal: Proposal = CALL) -> Decision:
    return anyio.run(subject.decide, proposal)


def offered(tool: Tool, arguments: JsonObject, lists: RuleLists | None = None) -> str | None:
    person = Person(["no"])
    decided(gate(person, lists), Proposal(tool, arguments, Place()))
    return person.questions[0].always if person.questions else None


def test_after_always_this_call_is_approved_by_the_rule_that_was_offered() -> None:
    person = Person(["always", "no"])
    subject = gate(person)
    first, again = decided(subject), decided(subject)
    other = decided(subject, replace(CALL, arguments={"path": "b"}))
    rule = 'fs__rm when {"path": "a"} schema {"maxProperties": 1}'
    assert person.questions[0].always == rule
    assert (first.verdict, first.rule) == ("ask-yes", f"the user, always: {rule} (this session)")
    assert (again.verdict, again.rule) == ("auto", f"{rule} (this session)")
    assert other.verdict == "ask-no"
    subject.redeem(first, CALL)
    assert [rule.text for rule in subject.policy.auto_approve] == [rule]
    assert subject.policy.auto_approve[0].entry.path == "this session"


def test_an_always_that_was_not_offered_is_a_no() -> None:
    subject = gate(Person(["always", "no"]), RuleLists(ask=(RuleEntry("fs__rm"),)))
    assert decided(subject).verdict == "ask-no"
    assert subject.policy.auto_approve == ()
    assert decided(subject).verdict == "ask-no"


def test_always_is_offered_only_where_its_rule_would_approve_this_very_call() -> None:
    destructive = replace(TOOL, annotations=Annotations(destructive=True))
    doubtful = RuleEntry("fs__rm", when={"path": "secrets/**"})
    odd: JsonObject = {"path": "a/../b"}
    assert offered(TOOL, {}) == 'fs__rm schema {"maxProperties": 0}'
    assert offered(destructive, {}) == 'fs__rm schema {"maxProperties": 0}'
    assert offered(TOOL, {}, RuleLists(ask=(RuleEntry("*__*"),))) is None
    assert offered(TOOL, odd, RuleLists(deny=(doubtful,))) is None
    assert offered(TOOL, odd, RuleLists(ask=(doubtful,))) is None
    assert offered(replace(TOOL, name=ToolName("fs", "r*")), {}) is None
    assert offered(replace(TOOL, name=ToolName("fs", "r?m")), {}) is None


@pytest.mark.parametrize(
    "arguments",
    [
        {"argv": ["git", "log"]},
        {"command": "git  log"},
        {"command": "ls | wc"},
        {"argv": ["sh", "-c", "a; b"]},
        {"argv": ["ls"], "cwd": "/tmp", "n": 1},
        {"argv": ["rm", "*"]},
        {"argv": ["echo", "**"]},
    ],
)
def test_always_of_a_command_is_about_exactly_this_command(arguments: JsonObject) -> None:
    rule = f'shell__run when {json.dumps(arguments)} schema {{"maxProperties": {len(arguments)}}}'
    assert offered(SHELL, arguments) == rule


@pytest.mark.parametrize("arguments", [{"argv": []}, {}, {"argv": ["a"], "command": "a"}])
def test_always_is_not_offered_for_what_is_no_command(arguments: JsonObject) -> None:
    assert offered(SHELL, arguments) is None


@pytest.mark.parametrize("command", ["git log", "git log --all", "git log; rm x", "git log *"])
def test_a_stored_command_approves_no_other(command: str) -> None:
    subject = gate(Person(["always", "no"]))
    decided(subject, Proposal(SHELL, {"argv": ["git", "log"]}, Place()))
    verdict = decided(subject, Proposal(SHELL, {"command": command}, Place())).verdict
    assert verdict == "ask-no"


def test_a_question_that_waited_is_not_asked_where_the_answer_was_always() -> None:
    person = Person(["always"])
    subject = gate(person)
    verdicts: list[str] = []

    async def one() -> None:
        verdicts.append((await subject.decide(CALL)).verdict)

    async def scene() -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(one)
            tasks.start_soon(one)

    anyio.run(scene)
    assert sorted(verdicts) == ["ask-yes", "auto"]
    assert len(person.questions) == 1


def test_a_rule_added_to_deny_beats_what_was_approved_always() -> None:
    subject = gate(Person(["always"]))
    decided(subject)
    rule = subject.add_rule("deny", RuleEntry("fs__*"))
    assert rule.text == "fs__*"
    decision = decided(subject)
    assert (decision.verdict, decision.rule) == ("deny", "fs__* (this session)")
    assert decision.reply == "[aish] tool call denied by rule fs__* (this session)"


@pytest.mark.parametrize(
    "other",
    [
        replace(TOOL, description="Removes everything"),
        replace(TOOL, input_schema={"type": "object", "required": ["path"]}),
        replace(TOOL, annotations=Annotations(destructive=True)),
    ],
)
def test_always_is_for_the_tool_as_it_was_then(other: Tool) -> None:
    subject = gate(Person(["always", "no"]))
    decided(subject)
    assert decided(subject, replace(CALL, tool=other)).verdict == "ask-no"
    assert decided(subject).verdict == "auto"


def test_what_was_approved_of_a_server_is_forgotten_with_it() -> None:
    subject = gate(Person(["always", "no"]))
    for glob in ("fs__ls", "fs__l*", "*__ls", "other__ls"):
        subject.add_rule("auto_approve", RuleEntry(glob))
    subject.add_rule("deny", RuleEntry("fs__never"))
    decided(subject)
    assert subject.forget("git") == 0
    assert decided(subject).verdict == "auto"
    assert subject.forget("fs") == 3
    assert decided(subject).verdict == "ask-no"
    assert [rule.text for rule in subject.policy.auto_approve] == ["*__ls", "other__ls"]
    assert [rule.text for rule in subject.policy.deny] == ["fs__never"]


def test_a_bad_glob_is_not_added() -> None:
    subject = gate(Person([]))
    with pytest.raises(UsageError, match="has no `__`"):
        subject.add_rule("auto_approve", RuleEntry("fs"))
    assert subject.policy.auto_approve == ()


def test_autonomy_is_asked_only_where_no_rule_has_matched() -> None:
    asked: list[str] = []

    def autonomous(tool: Tool) -> str | None:
        asked.append(str(tool.name))
        return ":norris" if tool.annotations.read_only else None

    lists = RuleLists(
        auto_approve=(RuleEntry("a__auto"),),
        ask=(RuleEntry("a__ask"),),
        deny=(RuleEntry("a__deny"),),
    )
    subject = gate(Person(["no"] * 9), lists)
    subject.autonomy = autonomous
    reads = Annotations(read_only=True)

    def verdict(name: str, annotations: Annotations = reads, server: str = "a") -> tuple[str, str]:
        tool = replace(TOOL, name=ToolName(server, name), annotations=annotations)
        found = decided(subject, replace(CALL, tool=tool))
        return found.verdict, found.rule

    assert verdict("auto") == ("auto", "a__auto")
    assert verdict("ask") == ("ask-no", "the user")
    assert verdict("deny") == ("deny", "a__deny")
    assert asked == []
    assert verdict("other") == ("auto", ":norris")
    assert verdict("other", Annotations()) == ("ask-no", "the user")
    assert verdict("shell_run") == ("ask-no", "the user")
    assert verdict("run", server="shell") == ("ask-no", "the user")
    subject.autonomy = None
    assert verdict("other") == ("ask-no", "the user")
