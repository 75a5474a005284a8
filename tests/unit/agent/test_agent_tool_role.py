"""Histories of the loop as they go out, for templates with and without a tool role (L13)."""

import json
from itertools import starmap
from typing import Any

import anyio
import pytest
from agent_fakes import Answer, Box, Kit, asked, asks, gives, says, tool, wants
from hypothesis import given, settings
from hypothesis import strategies as st

from aish.agent.conversation import Buffer, add_system, add_user
from aish.agent.converse import Ask, converse
from aish.core.events import Place
from aish.core.messages import Delta, History
from aish.core.protocols import ModelRequest
from aish.core.tools import ToolCall, ToolResult
from aish.models.scripted import Scripted, ScriptedTurn
from aish.wire.chat.encode import Encoder
from aish.wire.dialect import Dialect

TOOLS = (tool("look"), tool("rm"))


def scripted(*answers: Answer) -> Scripted:
    turns = []
    for answer in answers:
        batches: list[tuple[Delta, ...]] = []
        for batch in answer:
            assert not isinstance(batch, Exception)
            batches.append(tuple(batch))
        turns.append(ScriptedTurn(tuple(batches)))
    return Scripted(turns)


def sent(history: History, *, tool_role: bool) -> list[dict[str, Any]]:
    dialect = Dialect(
        model="m",
        params={},
        usage=True,
        json_schema=False,
        tool_role=tool_role,
        vision=False,
        origin="scripted",
    )
    body = json.loads(Encoder(dialect).body(ModelRequest(history)))
    messages: list[dict[str, Any]] = body["messages"]
    return messages


def talked(history: History, *answers: Answer) -> None:
    kit = Kit(Box(TOOLS, {"look": gives(ToolResult("ok", "seen"))}), deny=("box__rm",))
    model = scripted(*answers)
    anyio.run(converse, Ask(history, model, TOOLS, place=Place(step="one")), kit.runtime())


ROUNDS = (
    asks(wants("box__look", id="c1"), wants("box__rm", "{", "c1"), text="Let me look."),
    asks(wants("nothing")),
    says("Seen."),
)


def test_with_a_tool_role_each_reply_has_its_role_and_id() -> None:
    talked(history := asked(), *ROUNDS)
    messages = sent(history, tool_role=True)
    roles = [message["role"] for message in messages]
    assert roles == ["user", "assistant", "tool", "tool", "assistant", "tool", "assistant"]
    assert [call["id"] for call in messages[1]["tool_calls"]] == [
        message["tool_call_id"] for message in messages[2:4]
    ]


@pytest.mark.requirement("L13")
def test_without_a_tool_role_the_replies_of_a_round_are_one_user_turn() -> None:
    talked(history := asked(), *ROUNDS)
    messages = sent(history, tool_role=False)
    assert [message["role"] for message in messages] == [
        "user",
        "assistant",
        "user",
        "assistant",
        "user",
        "assistant",
    ]
    assert all("tool_calls" not in message for message in messages)
    told = messages[2]["content"]
    assert told.startswith("[tool: box__look]\nseen")
    assert "[tool: box__rm]\n[aish] tool arguments not parseable as JSON: " in told


@pytest.mark.parametrize("tool_role", [True, False])
def test_local_output_stays_with_its_user_turn_in_both_forms(*, tool_role: bool) -> None:
    buffer = Buffer()
    talked(history := asked(), *ROUNDS[:1], says("Seen."))
    buffer.add("$ make\nok")
    history.turns.append(buffer.user_turn("and now?"))
    talked(history, *ROUNDS[1:])
    texts = [str(message["content"]) for message in sent(history, tool_role=tool_role)]
    assert [text for text in texts if "$ make" in text] == ["$ make\nok\n\nand now?"]


rounds = st.lists(
    st.lists(
        st.builds(
            wants,
            st.sampled_from(["box__look", "box__rm", "nothing", ""]),
            st.sampled_from(["{}", "{", "", "[]", '"{}"']),
            st.sampled_from(["", "c1", "c2"]),
        ),
        min_size=1,
        max_size=4,
    ),
    max_size=4,
)


@settings(deadline=None)
@given(script=rounds, system=st.booleans(), tool_role=st.booleans())
def test_both_forms_are_legal_whatever_the_model_asked_for(
    *, script: list[list[ToolCall]], system: bool, tool_role: bool
) -> None:
    history = History()
    if system:
        add_system(history, "be brief")
    add_user(history, "go")
    talked(history, *starmap(asks, script), says("done"))
    open_ids: list[str] = []
    seen: set[str] = set()
    before = ""
    for message in sent(history, tool_role=tool_role):
        role = message["role"]
        if role == "tool":
            assert tool_role
            open_ids.remove(message["tool_call_id"])
            assert message["content"]
        else:
            assert not open_ids
            assert role != before
        for call in message.get("tool_calls", ()):
            assert tool_role
            assert isinstance(json.loads(call["function"]["arguments"]), dict)
            assert call["function"]["name"]
            assert call["id"] not in seen
            seen.add(call["id"])
            open_ids.append(call["id"])
        before = role
    assert not open_ids
