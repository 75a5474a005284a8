"""The time of a call that reports progress (M9): the case `progress-and-call-timeout`."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import anyio
import pytest
from mcp_emulators import Legacy, McpEndpoint, event, events
from mcp_scenes import Scene, http, registry
from model_endpoint import Gate, Part, Recorded, Reply
from waits import put_forward, waits_of

from aish.core.tools import ToolName, ToolResult
from aish.mcp.client.server_requests import Call
from aish.mcp.transports.settings import ServerConnection

STEP, TURNS = 1.5, 20
LATE = "[aish] tool transport error: no answer within 2 s"
HINT = ", though it reports progress: raise `timeout.tools.add`, or set `timeout.call_max`"
LIMITS = " of its last progress, or within {:g} s"


def timed(url: str, call_max: float | None) -> ServerConnection:
    found = http(url, call=2.0)
    timeout = replace(found.entry.timeout, call_max=call_max)
    return replace(found, entry=replace(found.entry, timeout=timeout))


def progress_of(request: Recorded, progress: Any) -> bytes:
    token = request.json["params"]["_meta"]["progressToken"]
    if progress == "another":
        token, progress = token + 1, 1
    params = {"progressToken": token, "progress": progress}
    return event({"jsonrpc": "2.0", "method": "notifications/progress", "params": params})


def called(
    told: list[Any], call_max: float | None, call: Callable[[Scene], Any] | None = None
) -> str:
    """What a call comes to that tells its progress each 1.5 s, and is answered after the last."""
    gates = [Gate() for _ in told]

    def slow(request: Recorded) -> Reply:
        done = {"content": [{"type": "text", "text": "indexed"}]}

        def parts() -> Iterator[Part]:
            for gate, progress in zip(gates, told, strict=True):
                yield progress_of(request, progress)
                yield gate
            yield event({"jsonrpc": "2.0", "id": request.json["id"], "result": done})

        return events(*parts())

    with McpEndpoint(Legacy(tools__call=slow)) as end:

        async def pace() -> None:
            for gate in gates:
                await gate.arrival()
                for _ in range(TURNS):  # what was sent is read
                    await anyio.lowlevel.checkpoint()
                put_forward(STEP)
                await anyio.lowlevel.checkpoint()
                gate.open()

        async def scene() -> str:
            async with registry(timed(end.url, call_max)) as s, anyio.create_task_group() as tasks:
                tasks.start_soon(pace)
                found = await (call or (lambda s: s.call("web__add", a=1, b=2)))(s)
                tasks.cancel_scope.cancel()
                for gate in gates:
                    gate.arrived.set()
            return str(found.content if isinstance(found, ToolResult) else found)

        said: str = waits_of(scene)[0]
        return said


def test_progress_gives_a_call_its_time_anew() -> None:
    assert called([1, 2, 3, 4, 5], 600.0) == "indexed"


def test_progress_does_not_count_without_a_maximum_and_the_error_says_what_does() -> None:
    assert called([1, 2, 3], None) == LATE + HINT


def test_a_call_has_no_more_time_than_the_maximum() -> None:
    assert called([1, 2, 3, 4, 5, 6], 5.0) == LATE + LIMITS.format(5)


@pytest.mark.parametrize("told", [[1, 1, 1], [2, 1, 0.5], [1, "another", "another"]])
def test_progress_that_does_not_rise_or_of_another_call_does_not_count(told: list[Any]) -> None:
    assert called(told, 600.0) == LATE + LIMITS.format(600)


def test_a_call_without_progress_is_told_as_before() -> None:
    assert called(["another", "another"], 600.0) == LATE


def test_a_call_of_a_hub_has_the_same_time_though_its_client_asks_for_no_progress() -> None:
    async def forward(s: Scene) -> Any:
        tool = s.registry.by_name(ToolName("web", "add"))
        assert tool is not None
        found: Any = await s.registry.forward(tool, {"a": 1, "b": 2}, Call())
        assert not isinstance(found, ToolResult), found.content
        return found["content"][0]["text"]

    assert called([1, 2, 3], 600.0, forward) == "indexed"
