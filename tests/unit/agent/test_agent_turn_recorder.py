"""Whoever hears of a conversation knows it as it stands, however it went on."""

from collections.abc import Sequence

import anyio
import pytest
from agent_fakes import Answer, Box, Kit, Talker, asked, asks, gives, says, tool, wants

from aish.agent.compaction import Window
from aish.agent.conversation import add_system, add_user
from aish.agent.converse import Ask, converse
from aish.config.model import Context, LoopLimits
from aish.core.errors import UnavailableError
from aish.core.json import JsonObject
from aish.core.messages import History, TextPiece, ToolTurn, Turn
from aish.core.tools import ToolResult

LOOK = tool("look")
CALLS: list[Answer] = [asks(wants("box__look", "{}", f"c{n}")) for n in range(8)]


class Ear:
    """Keeps what it is told, as a journal would."""

    def __init__(self) -> None:
        self.turns: list[Turn] = []
        self.reasons: list[str] = []

    def add_turn(self, turn: Turn, *, told: bool) -> None:
        del told
        self.turns.append(turn)

    def replace_turns(self, turns: Sequence[Turn], reason: str) -> None:
        self.turns = list(turns)
        self.reasons.append(reason)


def begun(ear: Ear) -> History:
    history = History()
    add_system(history, "be brief", ear)
    add_user(history, "go", heard=ear)
    return history


def test_each_turn_of_an_exchange_is_heard() -> None:
    ear = Ear()
    history = begun(ear)
    ask = Ask(history, Talker([*CALLS[:2], says("seen")]), (LOOK,), heard=ear)

    anyio.run(converse, ask, Kit(Box((LOOK,))).runtime())

    assert ear.turns == history.turns
    assert len(ear.turns) == 7


def test_a_conversation_that_is_shortened_is_heard_anew() -> None:
    ear = Ear()
    history = begun(ear)
    kit = Kit(Box((LOOK,), {"look": gives(ToolResult("ok", "y" * 4_000))}))
    kit.limits = LoopLimits(max_tool_depth=100)
    window = Window(Context(max_tokens=3_000, keep=1))
    ask = Ask(history, Talker([*CALLS, says("seen")]), (LOOK,), bound=window, heard=ear)

    anyio.run(converse, ask, kit.runtime())

    assert set(ear.reasons) == {"context_trimmed"}
    assert ear.turns == history.turns


def test_replies_that_an_interrupt_leaves_are_heard() -> None:
    ear = Ear()
    history = begun(ear)
    ask = Ask(history, Talker(CALLS), (LOOK,), heard=ear)

    async def main() -> None:
        with anyio.CancelScope() as scope:

            async def stops(arguments: JsonObject) -> ToolResult:
                del arguments
                scope.cancel()
                await anyio.sleep_forever()
                raise AssertionError

            await converse(ask, Kit(Box((LOOK,), {"look": stops})).runtime())

    anyio.run(main)

    assert ear.turns == history.turns
    assert isinstance(ear.turns[-1], ToolTurn)
    assert "interrupted" in ear.turns[-1].content


def test_an_answer_that_never_came_is_not_heard() -> None:
    ear, history = Ear(), asked()
    broken: Answer = [[TextPiece("half an")], UnavailableError("gone")]

    with pytest.raises(UnavailableError):
        anyio.run(converse, Ask(history, Talker([broken]), heard=ear), Kit(Box(())).runtime())

    assert ear.turns == []
