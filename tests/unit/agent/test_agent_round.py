import gc
from dataclasses import dataclass, field

import anyio
import pytest
from agent_fakes import Box, Kit, Person, gives, tool, wants

from aish.agent.tool_round import Round, make_legal
from aish.core.events import Event, Place, ToolDecided, ToolFinished, ToolStarted
from aish.core.json import JsonObject
from aish.core.messages import ToolTurn
from aish.core.protocols import Answer
from aish.core.tools import ToolCall, ToolResult
from aish.policy.gate import Decision

PLACE = Place(step="one", turn=1)
TOOLS = (tool("a"), tool("b"), tool("c"), tool("write"))


def round_of(kit: Kit, *calls: ToolCall) -> Round:
    visible = {one.wire: one for one in kit.box.tools}
    return Round(make_legal(calls, visible, PLACE, set(), str), PLACE, kit.runtime())


def run(kit: Kit, *calls: ToolCall) -> list[ToolTurn]:
    subject = round_of(kit, *calls)
    anyio.run(subject.run)
    return list(subject.replies())


@dataclass
class Meeting:
    """A tool whose calls wait until `size` of them are under way."""

    size: int
    inside: int = 0
    most: int = 0
    order: list[object] = field(default_factory=list)

    async def __call__(self, arguments: JsonObject) -> ToolResult:
        self.inside += 1
        self.most = max(self.most, self.inside)
        while self.most < self.size:
            await anyio.lowlevel.checkpoint()
        await anyio.lowlevel.checkpoint()
        self.inside -= 1
        self.order.append(arguments.get("n"))
        return ToolResult("ok", f"met {arguments.get('n')}")


def numbered(name: str, count: int) -> list[ToolCall]:
    return [wants(f"box__{name}", f'{{"n": {n}}}', f"c{n}") for n in range(count)]


def test_parallel_calls_run_at_the_same_time_and_at_most_eight() -> None:
    meeting = Meeting(8)
    kit = Kit(Box(TOOLS, {"a": meeting}), parallel=("box__a",))
    with_time = run(kit, *numbered("a", 20))
    assert meeting.most == 8
    assert [turn.content for turn in with_time] == [f"met {n}" for n in range(20)]


def test_a_packs_own_mark_is_enough_to_run_in_parallel() -> None:
    meeting = Meeting(2)
    kit = Kit(Box((tool("a", parallel=True),), {"a": meeting}))
    run(kit, *numbered("a", 2))
    assert meeting.most == 2


def test_other_calls_run_alone_in_the_models_order() -> None:
    meeting = Meeting(1)
    kit = Kit(Box(TOOLS, {"write": meeting}), parallel=("box__a",))
    run(kit, *numbered("write", 5))
    assert meeting.most == 1
    assert meeting.order == [0, 1, 2, 3, 4]


def test_a_call_that_runs_alone_waits_for_those_before_it_and_holds_those_after() -> None:
    kit = Kit(Box(TOOLS), parallel=("box__a", "box__b"))
    run(
        kit,
        *(wants(f"box__{name}", id=name + str(n)) for n, name in enumerate("abwab")),
    )
    # `w` is no tool: it is answered at once and holds nobody up.
    kit = Kit(Box(TOOLS), parallel=("box__a", "box__b"))
    names = ("a", "b", "write", "a", "b")
    run(kit, *(wants(f"box__{name}", id=f"{name}{n}") for n, name in enumerate(names)))
    told: list[tuple[type[Event], str | None]] = [
        (type(event), event.place.call)
        for event in kit.events
        if isinstance(event, ToolStarted | ToolFinished)
    ]
    start = told.index((ToolStarted, "write2"))
    end = told.index((ToolFinished, "write2"))
    assert end == start + 1
    assert {call for kind, call in told[:start] if kind is ToolFinished} == {"a0", "b1"}
    assert {call for kind, call in told[end:] if kind is ToolStarted} == {"a3", "b4"}


def test_replies_stand_in_the_models_order_whoever_ends_first() -> None:
    second_done = anyio.Event

    async def main() -> list[ToolTurn]:
        done = second_done()

        async def first(arguments: JsonObject) -> ToolResult:
            await done.wait()
            return ToolResult("ok", "first")

        async def second(arguments: JsonObject) -> ToolResult:
            await anyio.lowlevel.checkpoint()
            done.set()
            return ToolResult("ok", "second")

        kit = Kit(Box(TOOLS, {"a": first, "b": second}), parallel=("box__*",))
        subject = round_of(kit, wants("box__a", id="x"), wants("box__b", id="y"))
        await subject.run()
        finished = [event.place.call for event in kit.events_of(ToolFinished)]
        assert finished == ["y", "x"]
        assert [used.tool for used in subject.used] == ["box__a", "box__b"]
        return list(subject.replies())

    assert [(turn.call_id, turn.content) for turn in anyio.run(main)] == [
        ("x", "first"),
        ("y", "second"),
    ]


def test_a_person_is_asked_about_one_parallel_call_at_a_time() -> None:
    @dataclass
    class Careful(Person):
        asking: int = 0

        async def ask(self, question: object) -> Answer:
            self.asking += 1
            assert self.asking == 1
            await anyio.lowlevel.checkpoint()
            self.asking -= 1
            return "yes"

    kit = Kit(Box(TOOLS), auto=(), parallel=("box__a",), person=Careful(attended=True))
    replies = run(kit, *numbered("a", 3))
    assert [turn.content for turn in replies] == ["a done"] * 3


def test_an_unknown_name_gets_the_nearest_right_one_and_nothing_runs() -> None:
    kit = Kit(Box((tool("file_read"), tool("file_write"), tool("git_log"))))
    replies = run(kit, wants("box__file_raed"), wants("file_read"), wants("box__file_read<|x|>"))
    first, second, third = (turn.content for turn in replies)
    assert first.startswith("[aish] no such tool: box__file_raed; did you mean box__file_read")
    assert second.startswith("[aish] no such tool: file_read; did you mean box__file_read")
    assert third.startswith("[aish] no such tool: box__file_read<|x|>; did you mean box__file_read")
    assert kit.box.called == []
    assert kit.events_of(ToolDecided) == []


def test_a_name_like_no_other_gets_the_list() -> None:
    kit = Kit(Box(tuple(tool(f"t{n}") for n in range(10))))
    (reply,) = run(kit, wants("frobnicate"))
    assert reply.content == (
        "[aish] no such tool: frobnicate; the tools are "
        "box__t0, box__t1, box__t2, box__t3, box__t4, box__t5, box__t6, box__t7 and 2 more"
    )


def test_a_name_where_there_are_no_tools_gets_told_so() -> None:
    (reply,) = run(Kit(Box(())), wants(""))
    assert reply.content == "[aish] no such tool: (no name); no tools can be called here"


def test_broken_arguments_are_answered_and_reported_as_they_were_sent() -> None:
    kit = Kit(Box(TOOLS))
    subject = round_of(kit, wants("box__a", '{"a":', id="x"), wants("box__b", id="y"))
    anyio.run(subject.run)
    first, second = subject.replies()
    assert first.content == (
        "[aish] tool arguments not parseable as JSON: Expecting value at line 1 column 6"
    )
    assert second.content == "b done"
    assert subject.used[0].arguments == '{"a":'
    assert kit.box.called == [("b", {})]


def test_after_a_denial_that_ends_the_run_nothing_more_is_started() -> None:
    kit = Kit(Box(TOOLS), deny=("box__b",), on_denied="fail")
    subject = round_of(kit, wants("box__a"), wants("box__b"), wants("box__c"))
    anyio.run(subject.run)
    assert [turn.content for turn in subject.replies()] == [
        "a done",
        "[aish] tool call denied by rule box__b",
        "[aish] tool call not run: an earlier call of this turn was denied",
    ]
    assert subject.denied is subject.used[1]
    assert [name for name, _ in kit.box.called] == ["a"]


def test_an_approval_that_a_denial_leaves_unused_is_not_kept() -> None:
    kit = Kit(Box(TOOLS), deny=("box__b",), parallel=("box__a", "box__b"), on_denied="fail")
    runtime = kit.runtime()
    calls = (wants("box__a"), wants("box__b"))
    wanted = make_legal(calls, {one.wire: one for one in kit.box.tools}, PLACE, set(), str)

    anyio.run(Round(wanted, PLACE, runtime).run)

    assert kit.box.called == []
    gc.collect()
    kept = [one for one in gc.get_referrers(Decision) if type(one) is Decision and one.allowed]
    assert kept == []


def test_after_a_denial_the_others_go_on_where_the_file_says_continue() -> None:
    kit = Kit(Box(TOOLS), deny=("box__b",), on_denied="continue")
    subject = round_of(kit, wants("box__a"), wants("box__b"), wants("box__c"))
    anyio.run(subject.run)
    assert [turn.content for turn in subject.replies()][2] == "c done"
    assert subject.denied is None


def test_a_bug_in_one_of_several_calls_comes_out_as_itself() -> None:
    async def broken(arguments: JsonObject) -> ToolResult:
        await anyio.lowlevel.checkpoint()
        raise ZeroDivisionError

    kit = Kit(Box(TOOLS, {"b": broken}), parallel=("box__*",))
    subject = round_of(kit, wants("box__a"), wants("box__b"))
    with pytest.raises(ZeroDivisionError):
        anyio.run(subject.run)
    assert len(list(subject.replies())) == 2


def test_an_interrupted_round_still_has_a_reply_for_each_call() -> None:
    async def main() -> list[str]:
        kit = Kit(Box(TOOLS, {"a": gives(ToolResult("ok", "seen"))}))
        scope = anyio.CancelScope()

        async def hangs(arguments: JsonObject) -> ToolResult:
            scope.cancel()
            await anyio.sleep_forever()
            raise AssertionError

        kit.box.handlers["b"] = hangs
        subject = round_of(kit, wants("box__a"), wants("box__b"), wants("box__c"))
        with scope:
            await subject.run()
        assert [event.place.call for event in kit.events_of(ToolFinished)] == [
            next(subject.replies()).call_id
        ]
        return [turn.content for turn in subject.replies()]

    assert anyio.run(main) == [
        "seen",
        "[aish] tool call interrupted; whether it took effect is not known",
        "[aish] tool call not run: interrupted",
    ]
