"""Whatever a model does, the history is legal and each call has exactly one reply."""

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import anyio
from agent_fakes import Answer, Box, Kit, Person, Talker, asked, assert_legal, tool
from hypothesis import given, settings
from hypothesis import strategies as st

from aish.agent.converse import Ask, Outcome, converse
from aish.config.model import LoopLimits
from aish.core.errors import StepFailedError, UnavailableError
from aish.core.events import Place, ToolDecided, ToolFinished, ToolStarted, TurnFinished
from aish.core.json import JsonObject
from aish.core.messages import (
    AssistantTurn,
    Delta,
    Extras,
    Finish,
    ReasoningPiece,
    TextPiece,
    ToolTurn,
    Usage,
    Withdrawn,
)
from aish.core.tools import ToolCall, ToolResult

SCHEMA: JsonObject = {
    "type": "object",
    "properties": {"n": {"type": "integer"}, "what": {"type": "string"}},
}
NEEDY: JsonObject = {**SCHEMA, "required": ["n"]}
TOOLS = (
    tool("read", SCHEMA),
    tool("read_more", NEEDY),
    tool("write", NEEDY),
    tool("rm", SCHEMA),
    tool("fragile", SCHEMA),
    tool("hang", SCHEMA),
)

names = st.sampled_from([one.wire for one in TOOLS]) | st.sampled_from(
    ["", "read", "box__", "shell__run", "box__raed", "bo\u202ex__read", "x" * 200, "\ud800"]
)
arguments = st.sampled_from(
    [
        "{}",
        '{"n": 1}',
        '{"n": "1"}',
        "",
        "null",
        '"{}"',
        '{"n": 1, "n": 2}',
        '{"n": NaN}',
        "[1]",
        '{"what": "\\ud800"}',
        '{"n": 1',
        "\ud800",
    ]
) | st.text(max_size=8)
ids = st.sampled_from(["", "call_0", "call_0", "call_1", "c\n", "\ud800"]) | st.text(max_size=4)
calls = st.builds(ToolCall, ids, names, arguments)
deltas: st.SearchStrategy[Delta] = st.one_of(
    calls,
    calls,
    st.builds(TextPiece, st.sampled_from(["", " ", "a", "\ud800"])),
    st.builds(ReasoningPiece, st.text(max_size=3)),
    st.builds(Extras, st.just({"signature": "x"})),
    st.just(Withdrawn("reset")),
)
finishes = st.builds(
    Finish,
    st.sampled_from(["stop", "tool_calls", "length", "refusal", "other"]),
    st.just(Usage()),
)


@st.composite
def answers(draw: st.DrawFn) -> Answer:
    batches: list[Sequence[Delta] | Exception] = list(
        draw(st.lists(st.lists(deltas, max_size=5), max_size=3))
    )
    end = draw(st.sampled_from(["finish"] * 8 + ["refused", "gone", "nothing"]))
    if end == "finish":
        batches.append([draw(finishes)])
    elif end == "refused":
        batches.append(StepFailedError("400"))
    elif end == "gone":
        batches.append(UnavailableError("503"))
    return batches


results = st.builds(
    ToolResult,
    st.sampled_from(["ok", "handler_error", "rpc_error", "transport_error"]),
    st.sampled_from(["", "seen", "line\n" * 100, "\ud800", " "]),
)


@dataclass(frozen=True)
class World:
    script: list[Answer]
    results: list[ToolResult]
    attended: bool
    fails_on_denial: bool
    depth: int
    most_calls: int
    stop_after: int


worlds = st.builds(
    World,
    st.lists(answers(), min_size=1, max_size=4),
    st.lists(results, min_size=1, max_size=5),
    st.booleans(),
    st.booleans(),
    st.integers(0, 4),
    st.integers(1, 6),
    st.integers(1, 60),
)


def kit_of(world: World) -> Kit:
    box = Box(TOOLS)
    count = 0

    async def answer(given: JsonObject) -> ToolResult:
        nonlocal count
        count += 1
        await anyio.lowlevel.checkpoint()
        return world.results[count % len(world.results)]

    async def hang(given: JsonObject) -> ToolResult:
        # Long enough for many a cancellation to find it under way.
        for _ in range(20):
            await anyio.lowlevel.checkpoint()
        return await answer(given)

    box.handlers = {one.name.name: answer for one in TOOLS}
    box.handlers["hang"] = hang
    return Kit(
        box,
        auto=("box__r*", "box__write", "box__hang", "box__fragile"),
        deny=("box__rm",),
        ask=("box__write",),
        parallel=("box__read*", "box__hang"),
        idempotent=("box__fragile",),
        person=Person(answer=True, attended=world.attended),
        limits=LoopLimits(world.depth, world.most_calls, result_limit=200),
        on_denied="fail" if world.fails_on_denial else "continue",
        ephemeral=True,
    )


async def live(world: World, kit: Kit, ask: Ask) -> Outcome | None:
    """Run it, and interrupt it when so many steps of the event loop are done."""
    got: Outcome | None = None

    async def interrupt() -> None:
        for _ in range(world.stop_after):
            await anyio.lowlevel.checkpoint()
        tasks.cancel_scope.cancel()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(interrupt)
        with suppress(StepFailedError, UnavailableError):
            got = await converse(ask, kit.runtime())
        tasks.cancel_scope.cancel()
    return got


@settings(max_examples=3 * settings().max_examples, deadline=None)
@given(worlds)
def test_every_turn_stays_legal_and_every_call_has_one_reply(world: World) -> None:
    kit = kit_of(world)
    model = Talker(list(world.script))
    ask = Ask(asked(), model, TOOLS, place=Place(step="one"))
    got = anyio.run(live, world, kit, ask)
    turns = ask.history.turns
    for seen in (*model.seen, turns):
        assert_legal(seen)
    asked_for = [
        call.id for turn in turns if isinstance(turn, AssistantTurn) for call in turn.calls
    ]
    replied = [turn.call_id for turn in turns if isinstance(turn, ToolTurn)]
    assert Counter(asked_for) == Counter(replied)
    assert_true_events(kit)
    if got is not None:
        assert (got.status == "ok") == (got.failure is None)
        assert len(got.calls) == len(replied)


def assert_true_events(kit: Kit) -> None:
    """Every call that reached a tool was decided on and started first; none finished twice."""
    decided = [event for event in kit.events if isinstance(event, ToolDecided)]
    started = [event.place for event in kit.events if isinstance(event, ToolStarted)]
    finished = [event.place for event in kit.events if isinstance(event, ToolFinished)]
    allowed = {event.place for event in decided if event.verdict in {"auto", "ask-yes"}}
    assert set(started) <= allowed
    assert len(set(started)) == len(started)
    assert len(set(finished)) == len(finished)
    assert {event.place for event in decided} - allowed <= set(finished)
    assert len(kit.box.called) >= len(started)
    assert all(name != "rm" for name, _ in kit.box.called)
    turns = [event.place.turn for event in kit.events if isinstance(event, TurnFinished)]
    assert turns == list(range(1, len(turns) + 1))
