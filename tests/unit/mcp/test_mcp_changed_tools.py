"""A tool that is not what it was: nothing of a call of it reaches the server (P6, P8)."""

from typing import Any

import pytest
from mcp_emulators import Legacy, McpEndpoint, Modern, error
from mcp_scenes import http, play, registry, stdio
from model_endpoint import Recorded, Reply, json_reply

from aish.core.tools import ToolName

NUMBER = {"name": "add", "inputSchema": {"type": "object", "properties": {"a": {}}}}
REGION = {"type": "integer", "x-mcp-header": "Region"}
MIRRORED = {"name": "add", "inputSchema": {"type": "object", "properties": {"a": REGION}}}
SUM = {"resultType": "complete", "content": [{"type": "text", "text": "3"}]}
DENIED = "[aish] tool call denied: web__add changed before it could be called"


class Forgetful(Legacy):
    """Forgets its first session at a call; the next one has other tools."""

    def __init__(self, after: dict[str, Any]) -> None:
        super().__init__(tools__list=lambda _: {"tools": [NUMBER if self.first else after]})
        self.sessions: list[str] = []

    @property
    def first(self) -> bool:
        return len(self.sessions) == 1

    def usual(self, request: Recorded) -> Reply:
        if request.method == "POST" and request.json["method"] == "initialize":
            self.session = f"s-{len(self.sessions)}"
            self.sessions.append(self.session)
        return super().usual(request)

    def __call__(self, request: Recorded) -> Reply:
        old = request.headers.get("mcp-session-id") == "s-0"
        if old and request.method == "POST" and request.json["method"] == "tools/call":
            return json_reply(404, {"error": "no such session"})
        return super().__call__(request)


@pytest.mark.parametrize("same", [True, False], ids=["the same", "another"])
def test_a_new_session_is_asked_for_its_tools_before_one_is_called(*, same: bool) -> None:
    server = Forgetful(NUMBER if same else {**NUMBER, "description": "Something else"})
    with McpEndpoint(server) as end:

        async def scene() -> tuple[Any, Any]:
            async with registry(http(end.url)) as s:
                return await s.call("web__add", a=1), s.notices.codes

        found, codes = play(scene)

    made = end.methods.count("tools/call")
    if same:
        assert (found.kind, made) == ("ok", 2)
        assert "tools_changed" not in codes
    else:
        assert (found.kind, found.content, made) == ("denied", DENIED, 1)
        assert "tools_changed" in codes


@pytest.mark.parametrize("offered", [True, False])
def test_a_list_that_is_renewed_for_its_headers_passes_the_lock(*, offered: bool) -> None:
    lists = [NUMBER, MIRRORED]

    def call(request: Recorded) -> Any:
        if request.headers.get("mcp-param-region") != "1":
            return error(request, -32020, "Header mismatch", status=400)
        return SUM

    server = Modern(
        tools__list=lambda _: {"resultType": "complete", "tools": [lists.pop(0)]},
        tools__call=call,
    )
    heard: list[str] = []
    with McpEndpoint(server) as end:

        async def scene() -> Any:
            async with registry(http(end.url)) as s:
                s.registry.hold_to(lambda: heard.append("changed"), lambda _tool: offered)
                return await s.call("web__add", a=1)

        found = play(scene)

    assert heard == ["changed"]
    assert found.content == ("3" if offered else DENIED)
    assert end.methods.count("tools/call") == (2 if offered else 1)


def test_whoever_holds_tools_to_something_hears_of_each_change() -> None:
    async def scene() -> None:
        async with registry(stdio("--change-tools")) as s:
            heard: list[str] = []

            def hear() -> None:
                tool = s.registry.by_name(ToolName("kid", "echo"))
                assert tool is not None
                heard.append(tool.description)

            s.registry.hold_to(hear, lambda _tool: True)
            await s.text("kid__echo", text="x")
            await s.notices.wait_for("tools_changed")
            await s.call("kid__added")
            assert heard == ["Say the text back, differently"]

    play(scene)


def test_a_call_is_not_made_of_a_tool_that_changed_while_somebody_was_asked() -> None:
    async def scene() -> None:
        async with registry(stdio("--change-tools")) as s:
            decided_on = s.registry.by_name(ToolName("kid", "echo"))
            assert decided_on is not None
            await s.text("kid__add", a=1, b=2)
            await s.notices.wait_for("tools_changed")

            found = await s.registry.call(decided_on, {"text": "x"}, s.progress.append)

            assert (found.kind, found.content) == (
                "denied",
                "[aish] tool call denied: kid__echo has changed",
            )
            assert await s.text("kid__echo", text="x") == "x"

    play(scene)
