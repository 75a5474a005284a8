import pytest
from samples import each_case

from aish.agent.conversation import (
    Buffer,
    Conversation,
    IllegalTurnError,
    add_system,
    add_user,
)
from aish.core.messages import AssistantTurn, History, SystemTurn, ToolTurn, Turn, UserTurn
from aish.core.tools import ToolCall

CALL = ToolCall("c1", "box__look", "{}")
OTHER = ToolCall("c2", "box__look", "{}")
ASKED: list[Turn] = [UserTurn("go"), AssistantTurn("", (CALL, OTHER))]


def after(*turns: Turn) -> Conversation:
    conversation = Conversation(History())
    for turn in turns:
        conversation.add(turn)
    return conversation


def test_a_whole_tool_round_is_legal() -> None:
    conversation = after(
        SystemTurn("be brief"),
        *ASKED,
        ToolTurn("c2", "box__look", "second first"),
        ToolTurn("c1", "box__look", "first"),
        AssistantTurn("done"),
        UserTurn("thanks"),
    )
    assert len(conversation.history.turns) == 7
    assert conversation.open_calls == ()


def test_an_assistant_turn_may_be_empty_if_it_carries_calls() -> None:
    assert after(*ASKED).open_calls == ("c1", "c2")


@each_case(
    "before, turn, why",
    [
        ([UserTurn("go")], AssistantTurn(""), "neither text nor calls"),
        ([], AssistantTurn("hello"), "answers nothing"),
        ([UserTurn("go"), AssistantTurn("a")], AssistantTurn("b"), "answers nothing"),
        ([UserTurn("go")], ToolTurn("c1", "t", "x"), "nobody asked for"),
        (ASKED, ToolTurn("", "t", "x"), "without the id"),
        (ASKED, ToolTurn("c1", "t", ""), "without content"),
        (ASKED, ToolTurn("c3", "t", "x"), "nobody asked for"),
        ([*ASKED, ToolTurn("c1", "t", "x")], ToolTurn("c1", "t", "x"), "is answered"),
        (ASKED, UserTurn("wait"), "without a reply: c1, c2"),
        ([*ASKED, ToolTurn("c1", "t", "x")], AssistantTurn("done"), "without a reply: c2"),
        ([UserTurn("go")], SystemTurn("late"), "stands first"),
        ([UserTurn("go")], AssistantTurn("", (CALL, CALL)), "missing or repeated ids"),
        ([UserTurn("go")], AssistantTurn("", (ToolCall("", "t", "{}"),)), "missing or repeated"),
        ([UserTurn("go")], AssistantTurn("", (ToolCall("c", "t", "oops"),)), "no JSON object"),
    ],
)
def test_an_illegal_turn_is_caught_where_it_is_added(
    before: list[Turn], turn: Turn, why: str
) -> None:
    conversation = after(*before)
    with pytest.raises(IllegalTurnError, match=why):
        conversation.add(turn)
    assert conversation.history.turns == before


def test_an_id_is_not_used_twice_in_a_conversation() -> None:
    conversation = after(
        *ASKED, ToolTurn("c1", "t", "x"), ToolTurn("c2", "t", "x"), UserTurn("again")
    )
    with pytest.raises(IllegalTurnError, match="repeated ids"):
        conversation.add(AssistantTurn("", (CALL,)))
    assert "c1" in conversation.used_ids


def test_a_conversation_goes_on_where_a_history_stands() -> None:
    history = History([*ASKED, ToolTurn("c1", "t", "x")])
    conversation = Conversation(history)
    assert conversation.open_calls == ("c2",)
    conversation.add(ToolTurn("c2", "t", "x"))
    assert history.turns[-1] == ToolTurn("c2", "t", "x")


def test_an_illegal_turn_is_a_bug_and_no_failure_a_person_could_act_on() -> None:
    assert issubclass(IllegalTurnError, AssertionError)


@pytest.mark.requirement("L14")
def test_local_output_goes_out_with_the_next_user_turn_and_once() -> None:
    buffer = Buffer()
    buffer.add("$ make\nok")
    buffer.add("$ ls\na")
    assert buffer.user_turn("and now?").text == "$ make\nok\n\n$ ls\na\n\nand now?"
    assert buffer.user_turn("next").text == "next"


def test_local_output_waits_over_tool_rounds() -> None:
    buffer = Buffer()
    conversation = after(UserTurn("go"))
    buffer.add("$ make\nok")
    for number in range(3):
        call = ToolCall(f"c{number}", "box__look", "{}")
        conversation.add(AssistantTurn("", (call,)))
        conversation.add(ToolTurn(call.id, "box__look", "seen"))
    conversation.add(AssistantTurn("done"))
    conversation.add(buffer.user_turn("and now?"))
    said = [turn.text for turn in conversation.history.turns if isinstance(turn, UserTurn)]
    assert said == ["go", "$ make\nok\n\nand now?"]


def test_a_prompt_becomes_a_system_and_a_user_turn() -> None:
    history = History()
    add_system(history, "be brief")
    add_user(history, "go")
    assert history.turns == [SystemTurn("be brief"), UserTurn("go")]
    with pytest.raises(IllegalTurnError):
        add_system(history, "late")
