"""Long conversations: what is left out, in which order, and what never is (L19)."""

import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from itertools import pairwise

import anyio
import pytest
from agent_fakes import (
    Answer,
    Box,
    Kit,
    Talker,
    asked,
    assert_legal,
    gives,
    replies,
    says,
    tool,
    wants,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from aish.agent.compaction import Window, part
from aish.agent.conversation import Buffer, add_system, add_user
from aish.agent.converse import Ask, Outcome, converse
from aish.config.model import Context, LoopLimits
from aish.core.errors import AishError, BudgetError, StepFailedError, UnavailableError
from aish.core.events import Notice, Place, TextDelta, TurnFinished, TurnStarted
from aish.core.messages import (
    AssistantTurn,
    Delta,
    Extras,
    Finish,
    History,
    SystemTurn,
    TextPiece,
    ToolTurn,
    Turn,
    Usage,
    UserTurn,
)
from aish.core.protocols import ModelRequest
from aish.core.tools import ToolCall, ToolResult
from aish.wire.chat.encode import Encoder
from aish.wire.dialect import Dialect

LOOK = tool("look")
STUB = "[aish] result of box__look left out (4,000 characters)"
LONG = "y" * 4_000


def kit_of(result: str = LONG) -> Kit:
    kit = Kit(Box((LOOK,), {"look": gives(ToolResult("ok", result))}))
    kit.limits = LoopLimits(max_tool_depth=1_000)
    return kit


def looks(rounds: int, text: str = "", usage: Usage | None = None, id: str = "c") -> list[Answer]:
    """A model that looks so many times; its endpoint counts nothing unless it is told to."""
    finish = Finish("tool_calls", usage or Usage())
    said = [TextPiece(text)] if text else []
    return [[[*said, wants("box__look", "{}", f"{id}{n}"), finish]] for n in range(rounds)]


def talk(
    script: list[Answer],
    context: Context,
    *,
    kit: Kit | None = None,
    summarizer: Talker | None = None,
    history: History | None = None,
) -> tuple[Outcome, Talker, History, Kit]:
    kit = kit or kit_of()
    model = Talker(script)
    history = history or asked()
    ask = Ask(history, model, (LOOK,), place=Place(step="one"), bound=Window(context, summarizer))
    outcome = anyio.run(converse, ask, kit.runtime())
    for turns in model.seen:
        assert_legal(turns)
    assert_legal(history.turns)
    return outcome, model, history, kit


def notices(kit: Kit, code: str = "context_trimmed") -> list[str]:
    told = kit.events_of(Notice)
    return [one.text for one in told if isinstance(one, Notice) and one.code == code]


def contents(turns: tuple[Turn, ...]) -> list[str]:
    return [turn.content for turn in turns if isinstance(turn, ToolTurn)]


def test_old_results_become_lines_oldest_first_and_the_last_rounds_stay() -> None:
    # About 1,050 tokens a round: the sixth request would have more than 5,000.
    outcome, model, _history, kit = talk(looks(5), Context(max_tokens=5_000, keep=2))

    assert outcome.status == "ok"
    assert contents(model.seen[4]) == [LONG] * 4
    assert contents(model.seen[5]) == [STUB, STUB, LONG, LONG, LONG]
    assert [type(turn) for turn in model.seen[5]] == [
        UserTurn,
        *([AssistantTurn, ToolTurn] * 5),
    ]
    (text,) = notices(kit)
    assert text.startswith("about 5,")
    assert "more than `max_tokens: 5000`: left out 2 tool results (8,000 characters);" in text
    assert text.endswith(" tokens now")


def test_a_notice_comes_before_the_request_that_is_shorter() -> None:
    *_, kit = talk(looks(5), Context(max_tokens=5_000, keep=2))
    order = [
        type(event).__name__ for event in kit.events if isinstance(event, Notice | TurnStarted)
    ]

    assert order == [*["TurnStarted"] * 5, "Notice", "TurnStarted"]


def test_where_stubs_are_not_enough_the_oldest_rounds_go() -> None:
    kit = kit_of("short")
    script = [looks(1, f"{n} " + "x" * 2_000, id=f"c{n}-")[0] for n in range(12)]
    outcome, model, history, kit = talk(script, Context(max_tokens=4_000, keep=3), kit=kit)

    assert outcome.status == "ok"
    shorter = next(turns for turns in model.seen if "left out" in str(turns[0]))
    assert isinstance(shorter[0], UserTurn)
    assert shorter[0].text == "go\n\n[aish] 3 earlier rounds left out here"
    assert str(shorter[1]).startswith("AssistantTurn(text='3 xxx")
    assert "left out 3 rounds;" in notices(kit)[0]
    assert not contents(tuple(history.turns))[0].startswith("[aish]")


def test_the_system_and_the_first_question_always_stay() -> None:
    history = History()
    add_system(history, "be brief")
    add_user(history, "find the bug")
    _, model, _, kit = talk(
        looks(60), Context(max_tokens=3_000, keep=1), kit=kit_of("z" * 2_000), history=history
    )

    assert len(notices(kit)) > 3
    for turns in model.seen:
        assert turns[0] == SystemTurn("be brief")
        assert isinstance(turns[1], UserTurn)
        assert turns[1].text.startswith("find the bug")
        assert turns[1].text.count("left out here") <= 1


def test_the_endpoints_own_count_decides_where_there_is_one() -> None:
    counted = [looks(1, usage=Usage(20 + 600 * n, 1), id=f"c{n}-")[0] for n in range(5)]
    *_, kit = talk(counted, Context(max_tokens=5_000, keep=2))

    assert notices(kit) == []

    dear = [looks(1, usage=Usage(1_500 * (n + 1), 1), id=f"c{n}-")[0] for n in range(3)]
    _, model, _, kit = talk(dear, Context(max_tokens=5_000, keep=1))

    assert contents(model.seen[2]) == [LONG] * 2
    assert contents(model.seen[3]) == [STUB, LONG, LONG]
    assert len(notices(kit)) == 1


def test_what_does_not_fit_however_short_it_is_made_ends_the_step() -> None:
    outcome, model, history, _kit = talk(looks(9), Context(max_tokens=2_000, keep=4))

    assert outcome.status == "failed"
    assert outcome.failure is not None
    assert outcome.failure.code == "context"
    assert "`context.max_tokens: 2000`" in outcome.failure.message
    assert "only the prompt and the last 2 rounds are left in it" in outcome.failure.message
    assert "`context.keep`" in str(outcome.failure.hint)
    assert outcome.turns == 2
    assert len(model.requests) == 2
    assert replies(history) == [LONG] * 2


def test_a_first_request_that_is_too_long_is_never_sent() -> None:
    outcome, model, _, _ = talk([], Context(max_tokens=300), history=asked("x" * 2_000))

    assert (outcome.status, outcome.turns, outcome.usage) == ("failed", 0, Usage())
    assert model.requests == []


def test_tools_count_too() -> None:
    big = tool("big", {"type": "object", "description": "x" * 4_000})
    ask = Ask(asked(), Talker([]), (big,), bound=Window(Context(max_tokens=500)))

    failed = anyio.run(converse, ask, kit_of().runtime())
    assert failed.status == "failed"
    # The case `context-full-of-tools`.
    assert failed.failure is not None
    assert failed.failure.message.endswith(
        "(`context.max_tokens: 500`), of which 1 tool about 1,030"
    )
    hint = "name fewer tools in `tools` of the step, or raise `context.max_tokens`"
    assert failed.failure.hint == hint
    assert anyio.run(converse, replace(ask, tools=()), kit_of().runtime()).status == "ok"


def test_turns_that_stay_are_the_very_same() -> None:
    extras = {"reasoning_details": [{"signature": "s1"}]}
    signed = ToolCall("c0", "box__look", "{}", {"extra_content": {"thought_signature": "s2"}})
    script: list[Answer] = [
        [[signed, Extras(extras), Finish("tool_calls", Usage())]],
        *looks(6)[1:],
    ]
    _, model, _, kit = talk(script, Context(max_tokens=5_000, keep=4))

    assert notices(kit)
    answers = [turn for turn in model.seen[-1] if isinstance(turn, AssistantTurn)]
    assert answers[0].calls[0].extras == signed.extras
    assert answers[0].extras == extras
    assert answers[0] is next(t for t in model.seen[1] if isinstance(t, AssistantTurn))


def test_a_result_shorter_than_its_stub_stays() -> None:
    kit = kit_of("ok")
    history = asked("q" * 3_000)
    script = looks(80)
    _, model, _, _ = talk(script, Context(max_tokens=2_000, keep=2), kit=kit, history=history)

    assert all(text == "ok" for turns in model.seen for text in contents(turns))


def test_a_summary_stands_where_the_rounds_were() -> None:
    cheap = Talker([says("It read file 0.", usage=Usage(40, 4))], alias="cheap")
    context = Context(max_tokens=2_000, keep=1)
    outcome, model, _, _ = talk(
        looks(6, "x" * 1_500),
        context,
        kit=kit_of("short"),
        summarizer=cheap,
        history=asked("find the bug"),
    )

    assert outcome.status == "ok"
    first = model.seen[-1][0]
    assert isinstance(first, UserTurn)
    task, _, rest = first.text.partition("\n\n")
    assert task == "find the bug"
    assert "earlier rounds left out here; a summary by model `cheap`, not the user's" in rest
    assert rest.endswith(":\nIt read file 0.\n[aish] end of the summary")
    asked_of_it = cheap.seen[0]
    assert isinstance(asked_of_it[0], SystemTurn)
    assert "find the bug" in str(asked_of_it[1])
    assert "[assistant calls box__look]" in str(asked_of_it[1])


def test_a_summary_is_a_turn_of_its_own_in_the_event_log_and_in_the_usage() -> None:
    cheap = Talker([says("in short", usage=Usage(40, 4))] * 9, alias="cheap")
    script = [looks(1, "x" * 1_500, Usage(400 * n + 100, 1), f"c{n}-")[0] for n in range(6)]
    outcome, _, _, kit = talk(
        script, Context(max_tokens=2_000, keep=1), kit=kit_of("short"), summarizer=cheap
    )
    started = [event for event in kit.events_of(TurnStarted) if isinstance(event, TurnStarted)]
    finished = [event for event in kit.events_of(TurnFinished) if isinstance(event, TurnFinished)]
    summaries = [event for event in finished if event.purpose == "summary"]

    assert len(cheap.requests) == len(summaries) > 0
    assert [event.model for event in started if event.purpose == "summary"] == ["cheap"] * len(
        summaries
    )
    assert {event.text for event in summaries} == {"in short"}
    assert not any(isinstance(e, TextDelta) and e.text == "in short" for e in kit.events)
    assert outcome.usage == Usage(6_601 + 40 * len(summaries), 7 + 4 * len(summaries))
    assert outcome.turns == 7


def test_each_summary_goes_on_from_the_one_before() -> None:
    cheap = Talker([says(f"summary {n}") for n in range(20)], alias="cheap")
    _, model, _, _ = talk(
        looks(20, "x" * 1_500),
        Context(max_tokens=2_000, keep=1),
        kit=kit_of("short"),
        summarizer=cheap,
    )

    assert len(cheap.seen) > 2
    assert "summary 0" not in str(cheap.seen[0])
    assert "<summary-so-far>\nsummary 0\n</summary-so-far>" in str(
        next(turn.text for turn in cheap.seen[1] if isinstance(turn, UserTurn))
    )
    assert f"summary {len(cheap.seen) - 1}" in str(model.seen[-1][0])
    assert str(model.seen[-1][0]).count("[aish] end of the summary") == 1


@pytest.mark.parametrize(
    "failing",
    [
        [UnavailableError("out of reach", where="model `cheap`")],
        [StepFailedError("HTTP 400: too long", where="model `cheap`")],
        says("   "),
        says("I will not", "refusal"),
    ],
    ids=["unavailable", "refused", "empty", "refusal"],
)
def test_a_summary_that_fails_is_no_failure_of_the_run(failing: Answer) -> None:
    cheap = Talker([failing] * 9, alias="cheap")
    outcome, model, _, kit = talk(
        looks(6, "x" * 1_500),
        Context(max_tokens=2_000, keep=1),
        kit=kit_of("short"),
        summarizer=cheap,
    )

    assert outcome.status == "ok"
    assert "left out here" in str(model.seen[-1][0])
    assert "summary by" not in str(model.seen[-1][0])
    assert notices(kit, "summary_failed")[0].startswith("no summary of ")
    assert notices(kit)


def failing(error: Exception) -> tuple[Outcome, Talker, History, Kit]:
    """A conversation whose summary meets `error`."""
    return talk(
        looks(6, "x" * 1_500),
        Context(max_tokens=2_000, keep=1),
        kit=kit_of("short"),
        summarizer=Talker([[error]], alias="cheap"),
    )


def test_what_ends_a_run_ends_it_in_a_summary_too() -> None:
    with pytest.raises(AishError, match="not recorded"):
        failing(AishError("not recorded"))


def test_a_limit_holds_for_summaries_too() -> None:
    outcome, *_, kit = failing(BudgetError("no tokens left"))

    assert outcome.status == "budget"
    assert notices(kit, "summary_failed") == []


def test_a_conversation_goes_on_after_its_summary_was_interrupted() -> None:
    cheap = Talker([[AishError("gone")], *[says("in short")] * 9], alias="cheap")
    window = Window(Context(max_tokens=2_000, keep=1), cheap)
    history = asked()
    model = Talker(looks(6, "x" * 1_500))
    ask = Ask(history, model, (LOOK,), bound=window)
    with pytest.raises(AishError, match="gone"):
        anyio.run(converse, ask, kit_of("short").runtime())
    assert_legal(history.turns)
    model.script = [*looks(5, "x" * 1_500), *looks(4, "x" * 1_500, id="d")]
    outcome = anyio.run(converse, ask, kit_of("short").runtime())

    assert outcome.status == "ok"
    assert_legal(history.turns)
    assert "in short" in str(history.turns[0])


def test_a_summary_is_never_longer_than_there_is_room_for() -> None:
    cheap = Talker([says("é" * 50_000)] * 9, alias="cheap")
    outcome, model, _, _ = talk(
        looks(6, "x" * 1_500),
        Context(max_tokens=2_000, keep=1),
        kit=kit_of("short"),
        summarizer=cheap,
    )

    assert outcome.status == "ok"
    first = model.seen[-1][0]
    assert isinstance(first, UserTurn)
    assert 100 < first.text.count("é") <= 500


def test_a_later_question_is_not_lost_with_its_round() -> None:
    history = History([UserTurn("first"), AssistantTurn("one"), UserTurn("and now?")])
    _, model, _, kit = talk(
        looks(9, "x" * 1_500), Context(max_tokens=2_600, keep=2), history=history, kit=kit_of("ok")
    )

    assert notices(kit)
    assert all("and now?" in str(turns) for turns in model.seen)
    trimmed = [turns for turns in model.seen if "left out here" in str(turns[0])]
    assert trimmed
    first = trimmed[-1][0]
    assert isinstance(first, UserTurn)
    assert first.text.startswith("first\n\n[aish] ")
    assert first.text.endswith("left out here\n\nand now?")


def test_output_of_local_commands_comes_with_the_next_question_all_the_same() -> None:
    buffer = Buffer()
    buffer.add("$ make\nok")
    history = asked("first")
    window = Window(Context(max_tokens=5_000, keep=2))
    kit = kit_of()
    ask = Ask(history, Talker(looks(8)), (LOOK,), bound=window)
    anyio.run(converse, ask, kit.runtime())
    history.turns.append(buffer.user_turn("second"))
    model = Talker(looks(8, id="d"))
    anyio.run(converse, replace(ask, model=model), kit_of().runtime())

    assert all("$ make\\nok\\n\\nsecond" in str(turns) for turns in model.seen)
    assert_legal(history.turns)


def dialect(*, tool_role: bool) -> Dialect:
    return Dialect(
        model="m",
        params={},
        usage=True,
        json_schema=False,
        tool_role=tool_role,
        vision=False,
        origin="twin",
    )


class Sender(Talker):
    """A `Talker` that encodes what it is sent, as a client does."""

    def __init__(self, script: list[Answer], *, tool_role: bool) -> None:
        super().__init__(script)
        self.encoder = Encoder(dialect(tool_role=tool_role))
        self.tool_role = tool_role
        self.bodies: list[bytes] = []

    async def stream(self, request: ModelRequest) -> AsyncIterator[Sequence[Delta]]:
        self.bodies.append(self.encoder.body(request))
        fresh = Encoder(dialect(tool_role=self.tool_role))
        assert fresh.body(request) == self.bodies[-1]
        async for batch in super().stream(request):
            yield batch


@settings(deadline=None)
@given(
    sizes=st.lists(
        st.tuples(st.integers(0, 3_000), st.integers(0, 3_000), st.integers(1, 3)), max_size=20
    ),
    most=st.integers(1_000, 6_000),
    keep=st.integers(1, 5),
    tool_role=st.booleans(),
    summarised=st.booleans(),
)
def test_a_shortened_conversation_is_legal_and_fits_whatever_was_said(
    *,
    sizes: list[tuple[int, int, int]],
    most: int,
    keep: int,
    tool_role: bool,
    summarised: bool,
) -> None:
    results = iter([size for _, size, calls in sizes for _ in range(calls)])

    async def look(_: object) -> ToolResult:
        await anyio.lowlevel.checkpoint()
        return ToolResult("ok", "r" * next(results))

    kit = kit_of()
    kit.box.handlers["look"] = look
    script: list[Answer] = [
        [
            [
                *(wants("box__look", id=f"c{n}-{call}") for call in range(calls)),
                Finish("tool_calls", Usage()),
            ]
        ]
        for n, (_, _, calls) in enumerate(sizes)
    ]
    model = Sender(script, tool_role=tool_role)
    cheap = Talker([says("s" * 10_000)] * 99, alias="cheap") if summarised else None
    window = Window(Context(max_tokens=most, keep=keep), cheap)
    history = asked("the question")
    ask = Ask(history, model, (LOOK,), bound=window)
    outcome = anyio.run(converse, ask, kit.runtime())
    assert_legal(history.turns)
    for turns, body in zip(model.seen, model.bodies, strict=True):
        assert_legal(turns)
        assert isinstance(turns[0], UserTurn)
        assert turns[0].text.startswith("the question")
        roles = [message["role"] for message in json.loads(body)["messages"]]
        assert all(one != next_ or one == "tool" for one, next_ in pairwise(roles))
        # Within an eighth for what only the wire has.
        assert len(body) / 4 <= most * 9 / 8
        kept = part(turns).rounds[-keep:]
        assert not any("left out (" in text for one in kept for text in contents(one))
    assert outcome.status == "ok" or (outcome.failure and outcome.failure.code == "context")


@pytest.mark.requirement("L19")
def test_the_same_conversation_is_shortened_in_the_same_way() -> None:
    def seen() -> list[tuple[Turn, ...]]:
        _, model, _, _ = talk(looks(30), Context(max_tokens=6_000, keep=3))
        return model.seen

    assert seen() == seen()


def test_a_line_that_stands_for_a_result_stays_as_it_is() -> None:
    # Long enough for several trims; each round is about 1,050 tokens.
    _, model, _, kit = talk(looks(14), Context(max_tokens=5_000, keep=2))

    assert len(notices(kit)) > 2
    for turns in model.seen:
        assert set(contents(turns)) <= {STUB, LONG}
    told = [text.partition("left out ")[2].partition(";")[0] for text in notices(kit)]
    assert told == ["2 tool results (8,000 characters)"] * len(told)


def test_a_line_that_stands_for_a_result_stays_in_a_conversation_that_is_gone_on_with() -> None:
    history = asked()
    talk(looks(6), Context(max_tokens=5_000, keep=2), history=history)
    add_user(history, "go on")
    _, model, _, kit = talk(looks(6, id="d"), Context(max_tokens=5_000, keep=2), history=history)

    assert notices(kit)
    assert all(set(contents(turns)) <= {STUB, LONG} for turns in model.seen)


@pytest.mark.parametrize("tool_role", [True, False])
def test_what_was_sent_stays_as_it_is_between_two_trims(*, tool_role: bool) -> None:
    model = Sender(looks(30), tool_role=tool_role)
    kit = kit_of()
    ask = Ask(asked(), model, (LOOK,), bound=Window(Context(max_tokens=6_000, keep=2)))
    anyio.run(converse, ask, kit.runtime())
    sent = [json.loads(body)["messages"] for body in model.bodies]
    order = [type(event) for event in kit.events if isinstance(event, Notice | TurnStarted)]
    trims = {order[:at].count(TurnStarted) for at, one in enumerate(order) if one is Notice}

    assert len(trims) > 4
    for number, (before, after) in enumerate(pairwise(sent), 1):
        pairs = enumerate(zip(before, after, strict=False))
        same = next((at for at, (one, other) in pairs if one != other), len(before))
        if number not in trims:
            assert same == len(before)
        else:
            # What was left out earlier is as it was.
            stubs = [at for at, one in enumerate(before) if "left out (" in str(one["content"])]
            assert same > max(stubs, default=-1)


def test_trims_are_rare() -> None:
    *_, kit = talk(looks(200), Context(max_tokens=40_000), kit=kit_of("z" * 1_000))

    assert 1 <= len(notices(kit)) <= 12


def test_a_conversation_that_fits_is_left_alone() -> None:
    plain = Talker(looks(5))
    bound = Talker(looks(5))
    for model, window in ((plain, None), (bound, Window(Context(max_tokens=100_000)))):
        ask = Ask(asked(), model, (LOOK,), bound=window)
        anyio.run(converse, ask, kit_of().runtime())

    assert plain.seen == bound.seen
