"""Answers about calls through a cassette: what was answered is answered again, to the same call."""

import json
from dataclasses import replace
from itertools import permutations
from pathlib import Path

import anyio
import pytest
from cassette_exchanges import HEAD

from aish.cassettes.format.file import load
from aish.cassettes.format.interaction import CassetteFileError, CassetteMissError
from aish.cassettes.format.path_placeholders import PathPlaceholders
from aish.cassettes.record.file_writer import Recording
from aish.cassettes.record.recorder import KINDS, RecorderRules, Way
from aish.cassettes.replay.matching import Matching
from aish.core.errors import StepFailedError
from aish.core.events import ApprovalAnswered, ApprovalAsked, Event, Place
from aish.core.protocols import Asking
from aish.core.rules import RuleLists
from aish.core.tools import Tool, ToolName
from aish.features.recording.session import RunRecorder
from aish.policy.gate import Decision, Gate, Proposal
from aish.policy.questions import QuestionEnd, Questions
from aish.policy.rules import compile_policy
from aish.system.clock import SystemClock
from aish.system.offline import offline
from aish.system.secrets.secrets import Secrets
from aish.terminal.unattended import Unattended

SECRET = "planted-secret-value-1"
WRITE = Tool(ToolName("box", "write"), "box__write", "Write", {"type": "object"})
CALL = Proposal(WRITE, {"text": "one"}, Place("note", None, 1, "c1"))
YES = QuestionEnd("approve", "ada", "command")
NO = QuestionEnd("deny", "ada", "page", "not on a Friday")


class AnswerScene:
    """The cassette of some questions, and what was told of them."""

    def __init__(self, folder: Path, secret: str = SECRET) -> None:
        self.folder = folder
        self.path = folder / "answers.yaml"
        self.secret = secret
        self.events: list[Event] = []
        self.recorder: RunRecorder

    def record(self, *asked: tuple[Proposal, QuestionEnd]) -> list[Decision]:
        """Record the decisions on calls, each of which somebody answers."""
        with Recording(self.path, HEAD) as recording:
            gate = self.gate("record", recording)
            found = [anyio.run(self.answered, gate, *one) for one in asked]
            self.recorder.finish(HEAD)
        return found

    def replay(
        self, *calls: Proposal, ignore: tuple[str, ...] = (), reuses: bool = False
    ) -> list[Decision]:
        """The decisions on calls in a replay."""
        gate = self.gate("replay", ignore=ignore, reuses=reuses)
        with offline() as trips:
            found = [anyio.run(gate.decide, call, Asking("wait", 60.0)) for call in calls]
        assert trips == []
        return found

    def gate(
        self,
        way: Way,
        recording: Recording | None = None,
        ignore: tuple[str, ...] = (),
        *,
        reuses: bool = False,
    ) -> Gate:
        """The gate of another run."""
        self.events = []
        places = PathPlaceholders(root=str(self.folder))
        secrets = Secrets()
        secrets.add("KEY", self.secret)
        self.recorder = RunRecorder(
            RecorderRules(dict.fromkeys(KINDS, way), reuses=reuses),
            () if way == "record" else load(self.path).interactions,
            Matching(ignore=ignore, places=places),
            places=places,
            secrets=secrets,
            monotonic=SystemClock().monotonic,
            recording=recording,
        )
        gate = Gate(compile_policy(RuleLists()), Unattended(), f"run-{way}", mask=secrets.mask)
        clock = SystemClock()
        gate.questions = Questions(self.events.append, clock, (), self.recorder.approvals)
        return gate

    async def answered(self, gate: Gate, call: Proposal, end: QuestionEnd) -> Decision:
        found: list[Decision] = []

        def answer() -> None:
            (one,) = gate.questions.still_open()
            gate.questions.settle(one.id, end)

        found.append(await gate.decide(call, Asking("wait", 60.0), answer))
        return found[0]

    @property
    def told(self) -> list[tuple[str, ...]]:
        """The questions and answers of the last run."""
        return [
            (one.answer, one.by, one.way, one.note)
            if isinstance(one, ApprovalAnswered)
            else (type(one).__name__,)
            for one in self.events
        ]


@pytest.fixture
def answer_scene(tmp_path: Path) -> AnswerScene:
    return AnswerScene(tmp_path)


@pytest.mark.parametrize(
    "end",
    [
        YES,
        NO,
        QuestionEnd("always", "the user", "terminal"),
        QuestionEnd("expired", "nobody", "time"),
        QuestionEnd("approve", "box__* (this session)", "rule"),
        QuestionEnd("deny", "ada", "page", "snow \u2603, and half a pair \ud83d"),
    ],
)
def test_a_decision_is_the_same_again(answer_scene: AnswerScene, end: QuestionEnd) -> None:
    (recorded,) = answer_scene.record((CALL, end))
    told = answer_scene.told
    (replayed,) = answer_scene.replay(CALL)

    assert answer_scene.told == told
    same = replace(
        replayed,
        digest=recorded.digest,
        approval=recorded.approval,
    )
    assert same == recorded
    # The digest of P6 is about this run.
    assert replayed.digest != recorded.digest
    assert answer_scene.recorder.leftovers() == ()


def test_the_cassette_has_the_digest_and_no_arguments(answer_scene: AnswerScene) -> None:
    call = replace(CALL, arguments={"text": f"quite long {SECRET}"}, place=Place("a/b", "k 1/é"))
    answer_scene.record((call, replace(NO, note=f"not {SECRET}")))

    (one,) = load(answer_scene.path).interactions
    assert (one.request.method, one.request.uri) == ("APPROVAL", "approval://a/b/k%201/%C3%A9")
    asked = json.loads(one.request.body)
    assert (asked["tool"], asked["number"], len(asked["digest"])) == ("box__write", 1, 64)
    assert json.loads(one.response.body)["note"] == "not <secret:KEY>"
    text = answer_scene.path.read_text("utf-8")
    assert "quite long" not in text
    assert SECRET not in text
    (replayed,) = answer_scene.replay(call)
    assert replayed.reply == "[aish] tool call denied by the user: not <secret:KEY>"


@pytest.mark.parametrize(
    "other",
    [
        replace(CALL, arguments={"text": "two"}),
        replace(CALL, arguments={}),
        replace(CALL, place=Place("other", None, 1, "c1")),
        replace(CALL, place=Place("note", "item", 1, "c1")),
        replace(CALL, tool=replace(WRITE, description="Erase everything")),
        replace(CALL, tool=replace(WRITE, name=ToolName("box", "erase"))),
        replace(CALL, tool=replace(WRITE, name=ToolName("bag", "write"))),
        replace(CALL, tool=replace(WRITE, input_schema={})),
    ],
)
def test_another_call_is_denied_at_once(answer_scene: AnswerScene, other: Proposal) -> None:
    answer_scene.record((CALL, YES))

    (found,) = answer_scene.replay(other)

    assert (found.verdict, found.rule) == ("ask-no", "nobody to ask")
    assert answer_scene.events == []
    assert len(answer_scene.recorder.leftovers()) == 1
    assert answer_scene.recorder.missed == []


def test_an_answer_is_given_once_and_in_order(answer_scene: AnswerScene) -> None:
    later = replace(CALL, place=Place("note", None, 7, "c9"))
    recorded = answer_scene.record((CALL, YES), (later, NO), (CALL, YES))

    replayed = answer_scene.replay(CALL, CALL, later, CALL)

    verdicts = [one.verdict for one in recorded]
    assert verdicts == ["ask-yes", "ask-no", "ask-yes"]
    assert [one.verdict for one in replayed] == [*verdicts, "ask-no"]
    assert replayed[3].rule == "nobody to ask"


def test_a_secret_of_the_replay_may_be_an_ordinary_word_of_the_recording(
    answer_scene: AnswerScene,
) -> None:
    call = replace(CALL, arguments={"text": "replaced"}, place=Place("note", "replaced"))
    answer_scene.record((call, YES))
    answer_scene.secret = "replaced"

    (found,) = answer_scene.replay(call)

    assert found.verdict == "ask-yes"


def test_arguments_that_a_pipeline_ignores_are_not_compared(answer_scene: AnswerScene) -> None:
    ignore = ("$.params.arguments.now",)
    with Recording(answer_scene.path, HEAD) as recording:
        gate = answer_scene.gate("record", recording, ignore)
        call = replace(CALL, arguments={"text": "one", "now": 1})
        anyio.run(answer_scene.answered, gate, call, YES)
        answer_scene.recorder.finish(HEAD)

    (same,) = answer_scene.replay(replace(call, arguments={"text": "one", "now": 2}), ignore=ignore)
    (other,) = answer_scene.replay(replace(call, arguments={"text": "2", "now": 1}), ignore=ignore)

    assert (same.verdict, other.verdict) == ("ask-yes", "ask-no")


def test_a_call_that_was_cancelled_before_an_answer_waits_for_the_same(
    answer_scene: AnswerScene,
) -> None:
    async def cancelled(gate: Gate) -> list[str]:
        async with anyio.create_task_group() as tasks:
            await gate.decide(CALL, Asking("wait", 60.0), tasks.cancel_scope.cancel)
        gate.questions.withdraw(lambda _: True)
        return [type(one).__name__ for one in answer_scene.events]

    with Recording(answer_scene.path, HEAD) as recording:
        recorded = anyio.run(cancelled, answer_scene.gate("record", recording))
        answer_scene.recorder.finish(HEAD)
    replayed = anyio.run(cancelled, answer_scene.gate("replay"))
    unused = answer_scene.gate("replay")

    assert recorded == replayed == ["ApprovalAsked", "ApprovalAnswered"]
    # It may be cancelled before it is asked about, too.
    assert unused.questions.recording is not None
    assert answer_scene.recorder.leftovers() == ()


@pytest.mark.parametrize(
    "body",
    ["", "[]", "{}", '{"answer": "yes", "by": "", "way": "", "note": ""}', '{"answer": "approve"}'],
)
def test_what_is_no_answer_is_no_yes(answer_scene: AnswerScene, body: str) -> None:
    answer_scene.record((CALL, YES))
    gate = answer_scene.gate("replay")
    (one,) = load(answer_scene.path).interactions
    broken = replace(one, response=replace(one.response, body=body.encode(), chunks=()))
    recorder = RunRecorder(
        RecorderRules(dict.fromkeys(KINDS, "replay")),
        (broken,),
        Matching(),
        places=PathPlaceholders(),
        secrets=Secrets(),
        monotonic=SystemClock().monotonic,
    )
    gate.questions = Questions(recording=recorder.approvals)

    with pytest.raises(StepFailedError, match="does not say how"):
        anyio.run(gate.decide, CALL)


def test_a_note_that_looks_like_a_key_is_not_written(answer_scene: AnswerScene) -> None:
    key = "sk-" + "a1B2c3D4e5F6g7H8i9J0k1L2"

    with pytest.raises(CassetteFileError):
        answer_scene.record((CALL, replace(NO, note=f"use {key}")))

    assert not answer_scene.path.exists()


def test_a_live_call_is_decided_by_nobody_s_recorded_yes(answer_scene: AnswerScene) -> None:
    answer_scene.record((CALL, YES))

    ways: tuple[Way, ...] = ("live", "extend")
    for way in ways:
        found = anyio.run(answer_scene.gate(way).decide, CALL)
        assert (found.verdict, found.rule) == ("ask-no", "nobody to ask")
    assert not any(isinstance(one, ApprovalAsked) for one in answer_scene.events)


def test_items_that_come_in_another_order_have_their_own_answers(
    answer_scene: AnswerScene,
) -> None:
    """Of three items one is denied, one approved for always, and one approved by that."""
    first, second, third = (replace(CALL, place=Place("note", key)) for key in "abc")
    with Recording(answer_scene.path, HEAD) as recording:
        gate = answer_scene.gate("record", recording)
        always = QuestionEnd("always", "the user", "terminal")
        recorded = [
            anyio.run(answer_scene.answered, gate, first, NO),
            anyio.run(answer_scene.answered, gate, second, always),
            anyio.run(gate.decide, third),
        ]
        answer_scene.recorder.finish(HEAD)
    assert [one.verdict for one in recorded] == ["ask-no", "ask-yes", "auto"]

    for order in permutations(range(3)):
        calls = (first, second, third)
        replayed = answer_scene.replay(*(calls[index] for index in order))
        found = {index: (one.verdict, one.rule) for index, one in zip(order, replayed, strict=True)}
        assert found == {n: (one.verdict, one.rule) for n, one in enumerate(recorded)}, order
        assert answer_scene.recorder.leftovers() == ()


def test_answers_are_used_again_where_only_models_are_asked(tmp_path: Path) -> None:
    scene = AnswerScene(tmp_path)
    other = replace(CALL, arguments={"text": "two"})
    scene.record((CALL, NO), (CALL, YES))

    assert [one.allowed for one in scene.replay(CALL, CALL, CALL)] == [False, True, False]
    again = scene.replay(CALL, CALL, CALL, CALL, reuses=True)
    assert [one.allowed for one in again] == [False, True, True, True]
    with pytest.raises(CassetteMissError, match="about a call of `box__write` in step `note`"):
        scene.replay(other, reuses=True)
