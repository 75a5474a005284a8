"""Servers that come and go while a session goes on."""

import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp_dynamic_registry import DynamicScene, dynamic_registry
from mcp_emulators import Legacy, McpEndpoint
from mcp_processes import is_alive, read_pid, until_gone
from mcp_scenes import TwinPack, command, http, play, stdio
from model_endpoint import Gate, Recorded, Reply

from aish.config.model import ServerEntry
from aish.core.errors import AishError, UnavailableError, UsageError
from aish.core.events import ServerInfo
from aish.core.tools import ToolName
from aish.mcp.client.session import MAX_RESTARTS
from aish.mcp.protocol.convert import wire_name
from aish.mcp.transports.settings import ServerConnection

GONE = http("http://127.0.0.1:9/mcp", "web", connect=5.0)


def tool(name: str) -> dict[str, Any]:
    return {"name": name, "inputSchema": {"type": "object"}}


async def error_of(action: Any) -> AishError:
    try:
        await action
    except AishError as error:
        return error
    raise AssertionError("nothing was raised")


def test_servers_are_seen_while_they_connect() -> None:
    gate = Gate(opens_at=2)

    def slow(request: Recorded) -> Reply:
        return Legacy().usual(request).but(before_head=gate)

    with McpEndpoint(Legacy(initialize=slow)) as end:
        servers = [http(end.url, alias, protocol="legacy") for alias in "ab"]

        async def scene() -> None:
            async with dynamic_registry(*servers, settled=False) as s:
                assert s.states == {"a": "connecting", "b": "connecting"}
                assert s.registry.servers[0].address == end.url
                assert (s.names, s.heard) == ([], [])
                await s.dynamic_registry.wait_until_settled()
                assert s.states == {"a": "ready", "b": "ready"}
                assert sorted(info.alias for info in s.heard) == ["a", "b"]
                assert [name[0] for name in s.names] == ["a"] * 8 + ["b"] * 8

        play(scene)


def test_one_that_does_not_come_up_is_told_of_once_and_costs_nothing_else() -> None:
    async def scene() -> None:
        dead = stdio("--die-at-start", alias="dead")
        async with dynamic_registry(dead, stdio(alias="good")) as s:
            assert s.states == {"dead": "failed", "good": "ready"}
            (told,) = [info for info in s.heard if info.state == "failed"]
            assert "cannot find my configuration" in str(told.error)
            assert await s.text("good__add", a=1, b=2) == "3"

    play(scene)


@pytest.mark.parametrize("era", ["legacy", "modern"])
def test_a_server_can_be_connected_later_and_let_go_again(era: str) -> None:
    async def scene() -> None:
        async with dynamic_registry() as s:
            info = await s.dynamic_registry.connect(stdio("--era", era))
            assert isinstance(info, ServerInfo)
            assert (info.alias, info.state, info.tools) == ("kid", "ready", 8)
            assert await s.text("kid__echo", text="hi") == "hi"
            await s.dynamic_registry.disconnect("kid")
            assert s.picture == ((), ())
            assert s.registry.by_wire_name("kid__echo") is None
            assert s.heard == []

    play(scene)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("connection", "reason"),
    [
        (GONE, "cannot connect to http://127.0.0.1:9"),
        (stdio("--die-at-start", alias="web"), "cannot find my configuration"),
        (stdio("--hang-at-start", alias="web", connect=0.3), "no answer within 0.3 s"),
        (command("/nonexistent/program", alias="web"), "cannot start"),
        (http("ftp://somewhere", "web"), "the url does not begin with"),
    ],
)
def test_a_connect_that_fails_changes_nothing(connection: ServerConnection, reason: str) -> None:
    async def scene() -> None:
        async with dynamic_registry(stdio()) as s:
            before = s.picture
            error = await error_of(s.dynamic_registry.connect(connection))
            assert isinstance(error, UnavailableError)
            assert error.where == "mcp server `web`"
            assert reason in error.message
            assert s.picture == before
            assert await s.text("kid__add", a=1, b=2) == "3"
            assert (await s.dynamic_registry.connect(stdio(alias="web"))).state == "ready"

    play(scene)


def test_a_server_with_two_tools_of_one_wire_name_is_not_taken_in() -> None:
    # A pair of names that come to the same on the wire.
    both = [tool("x.y"), tool(wire_name(ToolName("later", "x.y"), 64).removeprefix("later__"))]

    async def scene(url: str) -> None:
        async with dynamic_registry(stdio()) as s:
            before = s.picture
            error = await error_of(s.dynamic_registry.connect(http(url, "later")))
            assert isinstance(error, UsageError)
            assert "`later` offers two tools that are called `later__x_y" in error.message
            assert s.picture == before

    with McpEndpoint(Legacy(tools=both)) as end:
        play(lambda: scene(end.url))


def test_of_two_different_tools_of_one_name_a_session_is_offered_neither() -> None:
    tools = [tool("same"), {**tool("same"), "description": "another"}, tool("fine")]

    async def scene(url: str) -> None:
        async with dynamic_registry(stdio(), http(url, "begun")) as s:
            assert s.states == {"kid": "ready", "begun": "ready"}
            assert (await s.dynamic_registry.connect(http(url, "later"))).state == "ready"
            assert s.registry.by_wire_name("later__same") is None
            assert s.registry.by_wire_name("later__fine") is not None

    with McpEndpoint(Legacy(tools=tools)) as end:
        play(lambda: scene(end.url))


def test_an_alias_that_is_taken_is_refused() -> None:
    async def scene() -> None:
        async with dynamic_registry(
            stdio(), stdio("--hang-at-start", alias="slow"), settled=False
        ) as s:
            for alias in ("slow", "kid"):
                error = await error_of(s.dynamic_registry.connect(stdio(alias=alias)))
                assert isinstance(error, UsageError)
                assert str(error) == f"mcp server `{alias}`: there is such a server already"
            await s.dynamic_registry.disconnect("slow")
            assert list(s.states) == ["kid"]

    play(scene)


def test_one_that_failed_can_be_tried_again() -> None:
    async def scene() -> None:
        async with dynamic_registry(stdio("--die-at-start"), stdio(alias="pal")) as s:
            before = s.picture
            await error_of(s.dynamic_registry.connect(stdio("--die-at-start")))
            assert s.picture == before
            assert (await s.dynamic_registry.connect(stdio())).state == "ready"
            assert s.states == {"kid": "ready", "pal": "ready"}
            assert s.names[0] == "kid__echo"

    play(scene)


def test_of_two_connects_under_one_alias_one_wins() -> None:
    async def scene() -> None:
        async with dynamic_registry() as s:
            ended: list[ServerInfo | AishError] = []

            async def one() -> None:
                try:
                    ended.append(await s.dynamic_registry.connect(stdio()))
                except AishError as error:
                    ended.append(error)

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(one)
                tasks.start_soon(one)
            assert sorted(type(end).__name__ for end in ended) == ["ServerInfo", "UsageError"]
            assert len(s.names) == 8

    play(scene)


def test_a_server_that_is_not_there_cannot_be_let_go() -> None:
    async def scene() -> None:
        async with dynamic_registry(stdio(alias="kids")) as s:
            error = await error_of(s.dynamic_registry.disconnect("kid"))
            assert isinstance(error, UsageError)
            assert error.hint == "did you mean `kids`"

    play(scene)


def test_letting_go_of_a_server_ends_its_whole_group(tmp_path: Path) -> None:
    note = tmp_path / "pid"

    async def scene() -> None:
        async with dynamic_registry(stdio("--grandchild-note", str(note), "--ignore-sigterm")) as s:
            grandchild = read_pid(note)
            assert is_alive(grandchild)
            await s.dynamic_registry.disconnect("kid")
            await until_gone(grandchild)
            assert s.states == {}

    play(scene)


HANGING = """
import os, sys, time
with open(sys.argv[1], "w") as note:
    note.write(str(os.getpid()))
time.sleep(600)
"""


async def pid_in(pipe: Path) -> int:
    """What a child writes down before it hangs."""
    return await anyio.to_thread.run_sync(read_pid, pipe)


@pytest.mark.parametrize("how", ["cancelled", "let go", "closed"])
def test_a_connect_that_is_given_up_leaves_nothing_behind(how: str, tmp_path: Path) -> None:
    note = tmp_path / "pipe"
    os.mkfifo(note)
    hanging = command(sys.executable, "-c", HANGING, str(note))

    async def given_up(s: DynamicScene) -> int:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(s.dynamic_registry.connect, hanging)
            pid = await pid_in(note)
            tasks.cancel_scope.cancel()
        assert not is_alive(pid), "who gives up waits until it is gone"
        assert s.picture == ((), ())
        assert (await s.dynamic_registry.connect(stdio())).state == "ready"
        return pid

    async def let_go(s: DynamicScene) -> int:
        s.dynamic_registry.begin([hanging])
        pid = await pid_in(note)
        await s.dynamic_registry.disconnect("kid")
        await s.dynamic_registry.wait_until_settled()
        assert (s.picture, s.heard) == (((), ()), [])
        return pid

    async def scene() -> None:
        async with dynamic_registry() as s:
            if how == "closed":
                s.dynamic_registry.begin([hanging])
                pid = await pid_in(note)
            else:
                pid = await (given_up(s) if how == "cancelled" else let_go(s))
        assert not is_alive(pid)

    play(scene)


def test_a_connect_over_http_that_is_given_up_closes_its_connection() -> None:
    gate = Gate()

    def slow(request: Recorded) -> Reply:
        return Legacy().usual(request).but(before_head=gate)

    async def scene(end: McpEndpoint) -> None:
        async with dynamic_registry() as s:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(s.dynamic_registry.connect, http(end.url, protocol="legacy"))
                await gate.arrival()
                tasks.cancel_scope.cancel()
            await end.requests[-1].abort_seen()
            assert s.picture == ((), ())

    with McpEndpoint(Legacy(initialize=slow)) as end:
        play(lambda: scene(end))
        gate.open()


@pytest.mark.requirement("M4")
def test_wire_names_are_the_same_in_any_order() -> None:
    tools = [tool("a" * 80), tool("b c"), tool("plain")]

    async def names(url: str, *order: str) -> set[str]:
        async with dynamic_registry() as s:
            for alias in order:
                await s.dynamic_registry.connect(http(url, alias))
            await s.dynamic_registry.disconnect(order[0])
            await s.dynamic_registry.connect(http(url, order[0]))
            return set(s.names)

    async def scene(url: str) -> None:
        first, second = await names(url, "x", "y", "z"), await names(url, "z", "x", "y")
        assert first == second
        async with dynamic_registry(*(http(url, alias) for alias in "zyx")) as s:
            assert set(s.names) == first

    with McpEndpoint(Legacy(tools=tools)) as end:
        play(lambda: scene(end.url))


def test_changes_of_a_server_that_was_connected_are_heard() -> None:
    async def scene() -> None:
        async with dynamic_registry() as s:
            heard: list[int] = []
            s.registry.hold_to(lambda: heard.append(len(s.names)), lambda _tool: True)
            await s.dynamic_registry.connect(stdio("--change-tools"))
            assert heard == [8]
            await s.text("kid__add", a=1, b=2)
            await s.notices.wait_for("tools_changed")
            assert "kid__added" in s.names
            await s.dynamic_registry.disconnect("kid")
            assert heard == [8, 9, 0]

    play(scene)


def test_a_server_that_dies_between_calls_is_restarted() -> None:
    async def scene() -> None:
        async with dynamic_registry() as s:
            await s.dynamic_registry.connect(stdio())
            assert (await s.call("kid__crash")).kind == "transport_error"
            assert await s.text("kid__add", a=1, b=2) == "3"
            assert s.notices.codes == ["server_restarted"]
            assert s.states == {"kid": "ready"}

    play(scene)


LOST = "[aish] tool transport error: the server ended again after it was restarted"


@pytest.mark.parametrize("begun", [True, False], ids=["begun", "connected"])
def test_a_server_that_dies_for_good_is_one_that_failed(*, begun: bool) -> None:
    kid = stdio()

    async def scene() -> None:
        async with dynamic_registry(*([kid] if begun else []), stdio(alias="pal")) as s:
            if not begun:
                await s.dynamic_registry.connect(kid)
            s.heard.clear()
            held = [s.registry.by_name(ToolName("kid", name)) for name in ("add", "crash")]
            changes: list[int] = []
            s.registry.hold_to(lambda: changes.append(len(s.names)), lambda _tool: True)
            for _ in range(MAX_RESTARTS):
                await s.call("kid__crash")
            assert s.heard == []
            last = await s.call("kid__crash")
            assert last.content.endswith("the server ended with exit code 3")
            (told,) = s.heard
            assert (told.alias, told.state, told.tools) == ("kid", "failed", 0)
            assert "again after it was restarted" in str(told.error)
            assert s.states == {"kid": "failed", "pal": "ready"}
            # It offers what one offers that never came up, and whoever looks is told.
            assert {name[:3] for name in s.names} == {"pal"}
            assert changes == [8]
            # Who was shown its tools before may call them until the turn is over.
            for tool in held:
                assert tool is not None
                found = await s.registry.call(tool, {"a": 1, "b": 2}, s.progress.append)
                assert (found.kind, found.content) == ("transport_error", LOST)
            assert len(s.heard) == 1
            assert (await s.dynamic_registry.connect(kid)).state == "ready"
            assert await s.text("kid__add", a=1, b=2) == "3"
            assert s.states == {"kid": "ready", "pal": "ready"}

    play(scene)


def test_a_server_that_cannot_be_started_again_is_one_that_failed(tmp_path: Path) -> None:
    program = tmp_path / "program"
    argv = " ".join(stdio().entry.command)
    program.write_text(f"#!/bin/sh\nexec {argv}\n")
    program.chmod(0o755)

    async def scene() -> None:
        async with dynamic_registry(command(str(program))) as s:
            program.rename(tmp_path / "elsewhere")
            await s.call("kid__crash")
            assert s.states == {"kid": "ready"}
            for _ in range(MAX_RESTARTS):
                assert "cannot start" in (await s.call("kid__add", a=1, b=2)).content
            assert "cannot start" in str(s.registry.failure("kid"))
            assert (
                "cannot start"
                in (await error_of(s.dynamic_registry.connect(command(str(program))))).message
            )
            (tmp_path / "elsewhere").rename(program)
            await s.dynamic_registry.connect(command(str(program)))
            assert await s.text("kid__add", a=1, b=2) == "3"

    play(scene)


def test_a_server_that_is_let_go_during_a_call_is_not_one_that_was_lost() -> None:
    async def scene() -> None:
        async with dynamic_registry(stdio()) as s:
            s.heard.clear()
            await s.call("kid__crash")
            kinds: list[str] = []

            async def call() -> None:
                kinds.append((await s.call("kid__sleep", ms=20_000)).kind)

            assert await s.text("kid__add", a=1, b=2) == "3"
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(call)
                await anyio.wait_all_tasks_blocked()
                await s.dynamic_registry.disconnect("kid")
            assert (kinds, s.heard, s.states) == (["transport_error"], [], {})

    play(scene)


def test_a_tool_of_a_server_that_is_gone_cannot_be_called() -> None:
    async def scene() -> None:
        async with dynamic_registry(stdio()) as s:
            held = s.registry.by_name(ToolName("kid", "add"))
            assert held is not None
            await s.dynamic_registry.disconnect("kid")
            found = await s.registry.call(held, {"a": 1, "b": 2}, s.progress.append)
            assert (found.kind, found.content) == (
                "transport_error",
                "[aish] tool transport error: the server `kid` is not connected",
            )

    play(scene)


@pytest.mark.parametrize("same", [True, False], ids=["the same", "another"])
def test_a_call_is_not_made_of_another_server_under_the_same_alias(*, same: bool) -> None:
    tools = Legacy().tools if same else [tool("add")]

    async def scene(url: str) -> None:
        async with dynamic_registry(stdio()) as s:
            held = s.registry.by_name(ToolName("kid", "add"))
            assert held is not None
            await s.dynamic_registry.disconnect("kid")
            await s.dynamic_registry.connect(http(url, "kid"))
            found = await s.registry.call(held, {"a": 1, "b": 2}, s.progress.append)
            assert found.kind == ("ok" if same else "denied")

    with McpEndpoint(Legacy(tools=tools)) as end:
        play(lambda: scene(end.url))


def test_a_call_under_way_ends_when_its_child_is_let_go() -> None:
    async def scene() -> None:
        async with dynamic_registry(stdio()) as s:
            ended: list[Any] = []

            async def sleeper() -> None:
                ended.append(await s.call("kid__sleep", ms=60_000))

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(sleeper)
                assert await s.text("kid__add", a=1, b=2) == "3"
                await s.dynamic_registry.disconnect("kid")
            assert ended[0].kind == "transport_error"

    play(scene)


def test_a_call_under_way_ends_when_its_server_is_let_go() -> None:
    gate = Gate()

    def slow(request: Recorded) -> Reply:
        return Legacy().usual(request).but(before_head=gate)

    async def scene(end: McpEndpoint) -> None:
        async with dynamic_registry(http(end.url)) as s:
            ended: list[Any] = []

            async def sleeper() -> None:
                ended.append(await s.call("web__add", a=1, b=2))

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(sleeper)
                await gate.arrival()
                await s.dynamic_registry.disconnect("web")
            assert ended[0].kind == "transport_error"

    with McpEndpoint(Legacy(tools__call=slow)) as end:
        play(lambda: scene(end))
        gate.open()


def test_a_session_over_http_is_ended_with_its_server() -> None:
    async def scene(end: McpEndpoint) -> None:
        async with dynamic_registry() as s:
            await s.dynamic_registry.connect(http(end.url, protocol="legacy"))
            await s.dynamic_registry.disconnect("web")
            # A client that is done does not wait long for the answer to its last request.
            last = partial(end.wait_until, lambda: end.requests[-1].method == "DELETE")
            await anyio.to_thread.run_sync(last)

    with McpEndpoint(Legacy(session="s1")) as end:
        play(lambda: scene(end))


def test_what_goes_wrong_in_a_session_is_raised_as_it_is() -> None:
    async def scene() -> None:
        async with dynamic_registry(stdio()):
            raise UsageError("nothing to do with servers")

    with pytest.raises(UsageError, match="nothing to do"):
        play(scene)


class Closing(TwinPack):
    """A pack that counts how often it was shut down."""

    def __init__(self) -> None:
        super().__init__()
        self.shut = 0

    async def shutdown(self) -> None:
        self.shut += 1


def test_a_pack_is_shut_down_when_it_is_let_go() -> None:
    pack = Closing()
    connection = ServerConnection(
        ServerEntry(alias="repo", pack=("fs", "git")), pack=pack, let_go=pack.shutdown
    )

    async def scene() -> None:
        async with dynamic_registry(stdio()) as s:
            info = await s.dynamic_registry.connect(connection)
            assert (info.transport, info.address) == ("pack", "pack fs, git")
            await error_of(s.dynamic_registry.connect(connection))
            assert pack.shut == 1, "one that is not taken is let go at once"
            await s.dynamic_registry.disconnect("repo")
            assert pack.shut == 2
            await s.dynamic_registry.connect(connection)
        assert pack.shut == 3

    play(scene)


def test_an_address_has_no_credentials() -> None:
    entry = ServerEntry(alias="web", url="http://me:secret@host:81/a/b?key=secret#part")
    broken = ServerEntry(alias="web", url="http://[half")
    argv = ServerEntry(alias="kid", command=("run me", "--now"))

    assert ServerConnection(entry).address == "http://host:81/a/b"
    assert not ServerConnection(broken).address
    assert ServerConnection(argv).address == "'run me' --now"
