from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from turn_files import IMAGE, Files
from work import Work, work_of

from aish.agent.conversation import Conversation
from aish.agent.restore import Restorer
from aish.agent.turn_json import ReadFile
from aish.agent.turn_recorder import TurnRecorder
from aish.core.errors import UsageError
from aish.core.events import Event, Place, Stamped, to_object
from aish.core.messages import AssistantTurn, History, SystemTurn, ToolTurn, Turn, UserTurn
from aish.core.tools import ToolCall

CALLS = (ToolCall("c1", "box__look", "{}"), ToolCall("c2", "box__look", '{"a": 1}'))
UNANSWERED = "[aish] interrupted before this call was answered"


def history_of(
    records: Iterable[Any],
    read_file: ReadFile,
    step: str | None = None,
    begin: Iterable[Turn] = (),
) -> Restorer:
    """The conversation in `records`; with a `step`, that of this step only."""
    restorer = Restorer(read_file, begin)
    for record in records:
        if step is None or record.get("step") == step:
            restorer.take(record)
    restorer.end()
    return restorer


class Told:
    """A conversation, and the records of its journal."""

    def __init__(self, *, step: str = "talk", files: Files | None = None) -> None:
        self.files = files or Files()
        self.records: list[Any] = []
        teller = TurnRecorder(self._emit, self.files.keep, Place(step))
        self.conversation = Conversation(History(), teller)

    def _emit(self, event: Event) -> None:
        self.records.append(to_object(Stamped(len(self.records) + 1, 0.0, event)))

    def say(self, *turns: Turn) -> "Told":
        for turn in turns:
            self.conversation.add(turn)
        return self

    def recalled(self) -> list[Turn]:
        return history_of(self.records, self.files.read).history.turns


def lines(count: int) -> Iterable[Turn]:
    for number in range(count // 2):
        yield UserTurn(f"question {number}")
        yield AssistantTurn(f"answer {number}", origin="local")


@pytest.mark.requirement("S6")
def test_a_conversation_comes_back_with_tool_turns_extras_and_images() -> None:
    extras = {"reasoning_details": [{"type": "text", "signature": "s"}]}
    told = Told().say(
        SystemTurn("be brief"),
        UserTurn("look", (IMAGE,)),
        AssistantTurn("", CALLS, extras, "cloud"),
        ToolTurn("c1", "box__look", "seen", (IMAGE,)),
        ToolTurn("c2", "box__look", "seen"),
        AssistantTurn("a box", origin="cloud"),
    )

    assert told.recalled() == told.conversation.history.turns
    # The same image twice is one file.
    assert len(told.files.content) == 1


def test_a_conversation_that_was_shortened_comes_back_short() -> None:
    told = Told().say(*lines(6))
    told.conversation.rewrite([UserTurn("in short"), AssistantTurn("yes")], "context_trimmed")
    told.say(UserTurn("and now?"))

    assert [record["type"] for record in told.records[-2:]] == ["history.replaced", "turn.added"]
    assert told.records[-2]["reason"] == "context_trimmed"
    assert told.recalled() == told.conversation.history.turns
    assert len(told.recalled()) == 3


@pytest.mark.parametrize("answered", [0, 1])
def test_calls_that_nobody_answered_get_a_reply(answered: int) -> None:
    told = Told().say(UserTurn("look"), AssistantTurn("", CALLS))
    told.say(*[ToolTurn("c1", "box__look", "seen")][:answered])

    turns = told.recalled()

    replies = [turn.content for turn in turns if isinstance(turn, ToolTurn)]
    assert replies == ["seen"] * answered + [UNANSWERED] * (2 - answered)
    assert Conversation(History(turns)).open_calls == ()


def test_what_was_said_after_an_earlier_repair_stands_after_it() -> None:
    killed = Told().say(UserTurn("look"), AssistantTurn("", CALLS))
    # The next part of the session knew of the repair, and its journal does not.
    later = Told().say(UserTurn("again"), AssistantTurn("yes"))

    turns = history_of([*killed.records, *later.records], Files().read).history.turns

    assert [type(turn).__name__ for turn in turns] == [
        "UserTurn",
        "AssistantTurn",
        "ToolTurn",
        "ToolTurn",
        "UserTurn",
        "AssistantTurn",
    ]


def test_an_image_that_is_gone_is_told_of_once() -> None:
    told = Told().say(UserTurn("look", (IMAGE,)), AssistantTurn("a box"))
    told.conversation.rewrite(told.conversation.history.turns, "again")
    told.files.content.clear()

    recalled = history_of(told.records, told.files.read)

    assert recalled.history.turns[0] == UserTurn("look\n[aish] no longer there: image/png")
    assert list(recalled.lost) == ["`files/0001-turn.png`, an image of the conversation, is gone"]


def test_an_image_that_no_disk_takes_does_not_end_the_conversation() -> None:
    def full(name: str, content: bytes) -> str | None:
        raise OSError(28, f"no space for {name}, {len(content)} bytes")

    events: list[Event] = []
    conversation = Conversation(History(), TurnRecorder(events.append, full, Place("talk")))

    conversation.add(UserTurn("look", (IMAGE,)))

    assert [type(event).__name__ for event in events] == ["TurnAdded"]


def test_the_turns_of_one_step_are_told_apart_from_others() -> None:
    one, other = Told(step="one").say(UserTurn("a")), Told(step="two").say(UserTurn("b"))
    records = [*one.records, *other.records, {"type": "notice", "step": "two", "text": "?"}]

    assert history_of(records, Files().read, "two").history.turns == [UserTurn("b")]


def test_a_conversation_may_begin_with_that_of_another_step() -> None:
    replies = [ToolTurn(call.id, "box__look", "y") for call in CALLS]
    before: Sequence[Turn] = (UserTurn("a"), AssistantTurn("", CALLS), *replies)
    told = Told().say(UserTurn("and?"))

    turns = history_of(told.records, Files().read, "talk", before).history.turns

    assert turns == [*before, UserTurn("and?")]


@pytest.mark.parametrize(
    "record",
    [
        {"seq": 7, "type": "turn.added"},
        {"seq": 7, "type": "turn.added", "added": {"role": "user"}},
        {"seq": 7, "type": "turn.added", "added": {"role": "assistant", "text": "hi"}},
        {"seq": 7, "type": "history.replaced", "turns": 3},
        {"seq": 7, "type": "history.replaced", "turns": [{"role": "assistant", "text": "hi"}]},
    ],
)
def test_a_record_that_is_no_turn_is_refused_with_its_number(record: Any) -> None:
    with pytest.raises(UsageError, match="not a valid event") as raised:
        history_of([record], Files().read)

    assert raised.value.where == "record 7"


def test_ten_thousand_turns_come_back_in_time_that_does_not_grow_with_their_square() -> None:
    def work(count: int) -> Work:
        records = Told().say(*lines(count)).records
        turns: list[Turn] = []
        done = work_of(lambda: turns.extend(history_of(records, Files().read).history.turns))
        assert len(turns) == count
        return done

    few, many = work(1_000), work(10_000)
    assert many.steps < 15 * few.steps
