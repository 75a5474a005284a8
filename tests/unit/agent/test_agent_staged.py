"""What the loop makes of a staged call (B16)."""

from dataclasses import dataclass, field, replace

import anyio
from agent_fakes import Box, Kit, Person, gives, tool

from aish.agent.dispatch import call_tool
from aish.agent.runtime import AgentRuntime, UsedCall
from aish.core.events import Event, Place, ToolDecided, ToolFinished
from aish.core.json import JsonObject
from aish.core.rules import RuleEntry, RuleLists
from aish.core.tools import Tool, ToolResult
from aish.policy.gate import NOT_KEPT, STAGED, Gate
from aish.policy.rules import compile_policy

PLACE = Place(step="one", turn=2, call="c1")
LOOK = tool("look", {"type": "object", "required": ["path"]})


@dataclass
class StagingQueue:
    """Puts down what it hears of, as the sink of a run does, unless its disk is full."""

    full: bool = False
    heard: list[str] = field(default_factory=list)

    def refusal(self, tool: Tool, arguments: JsonObject) -> str | None:
        del tool, arguments
        return None

    def definition(self, tool: Tool) -> str:
        del tool
        return "d" * 64

    def holds(self, digest: str) -> bool:
        return digest in self.heard and not self.full


def scene(kit: Kit, staging_queue: StagingQueue) -> AgentRuntime:
    """The kit, with a rule that stages everything."""
    policy = compile_policy(RuleLists(stage=(RuleEntry("*__*"),)))

    def emit(event: Event) -> None:
        kit.events.append(event)
        if isinstance(event, ToolDecided):
            staging_queue.heard.append(event.digest)

    gate = Gate(policy, Person(), "run", staging=staging_queue)
    return replace(kit.runtime(), gate=gate, emit=emit)


def used(kit: Kit, staging_queue: StagingQueue, arguments: JsonObject) -> UsedCall:
    return anyio.run(call_tool, LOOK, arguments, scene(kit, staging_queue), PLACE)


def a_kit() -> Kit:
    return Kit(Box((LOOK,), {"look": gives(ToolResult("ok", "seen"))}))


def test_a_staged_call_reaches_no_tool_and_the_model_is_told_so() -> None:
    kit = a_kit()
    got = used(kit, StagingQueue(), {"path": "a"})
    decided, finished = kit.events
    assert isinstance(decided, ToolDecided)
    assert (decided.verdict, decided.rule, decided.definition) == ("staged", "*__*", "d" * 64)
    assert finished == ToolFinished(PLACE, "box__look", "ok", STAGED, None, 0.0)
    assert (got.verdict, got.kind, got.content) == ("staged", "ok", STAGED)
    assert "NOT executed" in got.content
    assert not kit.box.called


def test_arguments_are_checked_as_those_of_a_real_call() -> None:
    kit = a_kit()
    got = used(kit, StagingQueue(), {})
    assert (got.kind, got.verdict) == ("bad_arguments", None)
    assert [type(event) for event in kit.events] == [ToolFinished]


def test_a_call_that_could_not_be_put_down_is_not_called_staged() -> None:
    kit = a_kit()
    got = used(kit, StagingQueue(full=True), {"path": "a"})
    assert (got.kind, got.content) == ("transport_error", NOT_KEPT)
    assert not kit.box.called
