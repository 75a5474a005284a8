import json
import sys
from typing import Any

import anyio
import pytest
from mcp_emulators import Legacy, McpEndpoint, Modern, event, events, result
from mcp_scenes import Scene, TwinPack, command, http, play, registry, stdio
from model_endpoint import Gate, Recorded, Reply
from samples import each_case
from waits import put_forward, waits_of

from aish.config.model import ServerEntry
from aish.core.errors import StepFailedError, UsageError
from aish.core.tools import ToolName
from aish.mcp.protocol.convert import wire_name
from aish.mcp.transports.settings import ServerConnection

EMPTY = {"type": "object", "properties": {}}
CHANGED = {"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}


def tool(name: str, description: str = "") -> dict[str, Any]:
    return {"name": name, "description": description, "inputSchema": EMPTY}


def names_of(handler: Any, **fields: Any) -> tuple[list[str], list[tuple[str, str, str]]]:
    with McpEndpoint(handler) as end:

        async def scene() -> Any:
            async with registry(http(end.url, **fields)) as s:
                assert s.registry.failure("web") is None
                return s.names, s.notices.said

        found: tuple[list[str], list[tuple[str, str, str]]] = play(scene)
        return found


@pytest.mark.requirement("M5")
def test_all_servers_connect_at_the_same_time() -> None:
    gate = Gate(opens_at=4)

    def slow(request: Recorded) -> Reply:
        return Legacy().usual(request).but(before_head=gate)

    with McpEndpoint(Legacy(initialize=slow)) as end:
        servers = [http(end.url, alias, protocol="legacy") for alias in "abcd"]

        async def scene() -> list[str]:
            async with registry(*servers) as s:
                return [info.state for info in s.registry.servers]

        assert play(scene) == ["ready"] * 4


def test_a_server_that_fails_costs_its_own_tools_only() -> None:
    async def scene() -> None:
        dead = stdio("--die-at-start", alias="dead")
        async with registry(dead, stdio(alias="good")) as s:
            first, second = s.registry.servers
            assert (first.alias, first.state, first.tools) == ("dead", "failed", 0)
            assert str(first.error).startswith("the server ended with exit code 1")
            assert (second.alias, second.state, second.tools) == ("good", "ready", 8)
            assert all(name.startswith("good__") for name in s.names)

    play(scene)


def test_each_server_has_its_own_time_to_connect() -> None:
    async def scene() -> None:
        hung = stdio("--hang-at-start", alias="hung", connect=0.2)
        async with registry(hung, stdio(alias="good", connect=20)) as s:
            assert s.registry.failure("hung") == "no answer within 0.2 s"
            assert s.registry.failure("good") is None

    play(scene)


def test_tools_are_found_by_their_wire_name_and_by_their_pair() -> None:
    with McpEndpoint(Legacy(tools=[tool("files.read"), tool("_x__y")])) as end:

        async def scene() -> None:
            async with registry(http(end.url)) as s:
                odd = s.registry.by_name(ToolName("web", "files.read"))
                assert odd is not None
                assert odd.wire == wire_name(odd.name, 64) != "web__files.read"
                assert s.registry.by_wire_name(odd.wire) is odd
                assert s.registry.by_wire_name("web__files.read") is None
                plain = s.registry.by_wire_name("web___x__y")
                assert plain is not None
                assert plain.name == ToolName("web", "_x__y")

        play(scene)


def test_a_limit_of_the_models_shortens_names() -> None:
    with McpEndpoint(Legacy(tools=[tool("a_rather_long_name_of_a_tool")])) as end:

        async def scene() -> list[str]:
            async with registry(http(end.url), max_tool_name=24) as s:
                return s.names

        (name,) = play(scene)
        assert len(name) == 24


def test_two_tools_that_would_share_a_name_are_an_error() -> None:
    tools = [tool("x.y"), tool(wire_name(ToolName("web", "x.y"), 64).removeprefix("web__"))]
    with pytest.raises(UsageError, match="`web` offers two tools that are called"):
        names_of(Legacy(tools=tools))


def test_a_shared_name_can_be_solved_by_leaving_one_out() -> None:
    tools = [tool("t", "one"), tool("t", "another"), tool("u")]
    names, _ = names_of(Legacy(tools=tools), exclude=("t",))
    assert names == ["web__u"]


@pytest.mark.parametrize(
    "more", [[], [tool("t", "one")], [tool("t", "a third")], [tool("u"), tool("u")]]
)
def test_of_two_different_tools_of_one_name_neither_is_offered(more: list[Any]) -> None:
    tools = [tool("t", "one"), tool("u"), tool("t", "another"), *more]

    async def scene(url: str) -> Any:
        async with registry(http(url)) as s:
            assert s.registry.failure("web") is None
            assert s.registry.by_wire_name("web__t") is None
            why = s.registry.omission_reason(ToolName("web", "t"))
            assert why == "`web` lists two different tools of that name"
            assert s.registry.omission_reason(ToolName("web", "u")) is None
            assert s.registry.omission_reason(ToolName("none", "t")) is None
            return s.names, s.notices.said

    with McpEndpoint(Legacy(tools=tools)) as end:
        names, said = play(lambda: scene(end.url))

    assert names == ["web__u"]
    text = "it lists two different tools as `t`: neither is offered"
    assert [one for one in said if one[1] != "duplicate_tool"] == [("web", "ambiguous_tool", text)]


def test_the_very_same_tool_listed_twice_is_used_once() -> None:
    names, said = names_of(Legacy(tools=[tool("t"), tool("t")]))
    assert names == ["web__t"]
    assert said == [("web", "duplicate_tool", "it lists `t` more than once; the first is used")]


def test_all_pages_are_read() -> None:
    def page(request: Recorded) -> Any:
        number = int(request.json["params"].get("cursor", "0"))
        more = {"nextCursor": str(number + 1)} if number < 4 else {}
        return {"tools": [tool(f"t{number}")], **more}

    names, said = names_of(Legacy(tools__list=page))
    assert names == [f"web__t{number}" for number in range(5)]
    assert said == []


def test_pages_without_end_are_cut_off() -> None:
    count = iter(range(10_000))

    def page(_: Recorded) -> Any:
        number = next(count)
        return {"tools": [tool(f"t{number}")], "nextCursor": str(number)}

    names, said = names_of(Legacy(tools__list=page))
    assert len(names) == 100
    text = "it lists more than 100 pages of `tools/list`: the rest is left out"
    assert said == [("web", "too_many_pages", text)]


def test_large_pages_are_cut_off_sooner() -> None:
    count = iter(range(10_000))

    def page(_: Recorded) -> Any:
        number = next(count)
        rows = [tool(f"t{number}-{row}") for row in range(700)]
        return {"tools": rows, "nextCursor": str(number)}

    names, said = names_of(Legacy(tools__list=page))
    assert len(names) == 2000
    text = "it lists more than 2,000 tools: the rest is left out"
    assert said == [("web", "too_many_pages", text)]


@pytest.mark.parametrize(("count", "told"), [(2000, 0), (2001, 1), (100_000, 1)])
def test_of_a_page_with_too_many_tools_the_first_are_taken(count: int, told: int) -> None:
    rows = [tool(f"t{number}") for number in range(count)]

    names, said = names_of(Legacy(tools__list=lambda _: {"tools": rows}))

    assert names == [f"web__t{number}" for number in range(2000)]
    assert [code for _, code, _ in said] == ["too_many_pages"] * told


def test_a_cursor_that_repeats_ends_the_list() -> None:
    names, _ = names_of(Legacy(tools__list=lambda _: {"tools": [], "nextCursor": "again"}))
    assert names == []


def test_a_malformed_tool_is_a_notice_and_the_others_are_there() -> None:
    broken = {"name": "bad", "inputSchema": "none"}
    names, said = names_of(Legacy(tools=[broken, tool("good")]))
    assert names == ["web__good"]
    assert said == [
        ("web", "malformed_tool", "tool `bad` is left out: its `inputSchema` is not an object")
    ]


def test_an_entry_chooses_among_the_tools_by_globs() -> None:
    tools = [tool(name) for name in ("file_read", "file_write", "dir_list", "File_x")]
    names, _ = names_of(Legacy(tools=tools), tools=("file_*", "dir*"), exclude=("*_write",))
    assert names == ["web__file_read", "web__dir_list"]


def test_a_child_that_changes_its_tools_is_listed_again() -> None:
    async def scene() -> None:
        async with registry(stdio("--change-tools")) as s:
            assert "kid__added" not in s.names
            await s.text("kid__add", a=1, b=2)
            text = await s.notices.wait_for("tools_changed")
            assert text == "its tools changed: added `added`, changed `echo`"
            assert "kid__added" in s.names

    play(scene)


@pytest.mark.parametrize("era", ["legacy", "modern"])
def test_a_server_over_http_that_changes_its_tools_is_listed_again(era: str) -> None:
    lists = [[tool("old")], [tool("new")]]
    gate, done = Gate(), Gate()

    def listed(_: Recorded) -> Any:
        return {"resultType": "complete", "tools": lists.pop(0)}

    def stream(_: Recorded) -> Reply:
        return events(b": open\n\n", gate, event(CHANGED), done)

    says = {"tools": {"listChanged": True}}
    server = (
        Legacy(capabilities=says, tools__list=listed, GET=stream)
        if era == "legacy"
        else Modern(capabilities=says, tools__list=listed, subscriptions__listen=stream)
    )
    with McpEndpoint(server) as end:

        async def scene() -> None:
            async with registry(http(end.url)) as s:
                assert s.names == ["web__old"]
                gate.open()
                text = await s.notices.wait_for("tools_changed")
                assert text == "its tools changed: added `new`, removed `old`"
                assert s.names == ["web__new"]

        play(scene)


def test_a_change_told_before_the_first_list_is_in_it() -> None:
    def greet(request: Recorded) -> Reply:
        hello = [one for one in Legacy().usual(request).parts if isinstance(one, bytes)]
        return events(event(CHANGED), event(json.loads(b"".join(hello))))

    with McpEndpoint(Legacy(initialize=greet)) as end:

        async def scene() -> list[str]:
            async with registry(http(end.url)) as s:
                await s.text("web__add", a=1, b=2)
                return s.notices.codes

        codes = play(scene)

    asked = [one for one in end.methods if one != "server/discover"]
    assert asked == ["initialize", "notifications/initialized", "tools/list", "tools/call"]
    assert codes == []


def test_a_change_told_while_the_first_list_is_under_way_is_listed() -> None:
    lists = [[tool("old")], [tool("new")]]

    def listed(request: Recorded) -> Reply:
        answer = {"jsonrpc": "2.0", "id": request.json["id"], "result": {"tools": lists.pop(0)}}
        return events(event(CHANGED) * len(lists) + event(answer))

    with McpEndpoint(Legacy(tools__list=listed)) as end:

        async def scene() -> list[str]:
            async with registry(http(end.url)) as s:
                await s.notices.wait_for("tools_changed")
                return s.names

        assert play(scene) == ["web__new"]


def test_what_is_odd_in_a_list_is_told_once() -> None:
    odd = {"name": "odd", "inputSchema": {"type": "string"}}

    def listed(request: Recorded) -> Any:
        return {"tools": [tool(f"add{end.methods.count('tools/list')}"), odd]}

    def call(request: Recorded) -> Reply:
        answer = {"jsonrpc": "2.0", "id": request.json["id"], "result": {"content": []}}
        return events(event(CHANGED) + event(answer))

    with McpEndpoint(Legacy(tools__list=listed, tools__call=call)) as end:

        async def scene() -> list[str]:
            async with registry(http(end.url)) as s:
                await s.call("web__add1")
                await s.notices.wait_for("tools_changed")
                return s.notices.codes

        assert play(scene) == ["malformed_tool", "tools_changed"]


def test_a_list_that_the_end_of_a_run_cuts_off_is_no_failure() -> None:
    async def scene() -> list[str]:
        async with registry(stdio("--change-tools", "--lists", "1")) as s:
            await s.text("kid__add", a=1, b=2)
        return s.notices.codes

    assert play(scene) == []


def test_a_flood_of_changes_leads_to_a_bounded_number_of_lists() -> None:
    note = event(CHANGED)

    def flooding(request: Recorded) -> Reply:
        answer = {"jsonrpc": "2.0", "id": request.json["id"], "result": {"content": []}}
        return events(note * 5000, event(answer))

    with McpEndpoint(Legacy(tools__call=flooding)) as end:

        async def scene() -> None:
            async with registry(http(end.url)) as s:
                for _ in range(3):
                    await s.call("web__add", a=1, b=2)

        play(scene)
        assert end.methods.count("tools/list") <= 51


def test_a_failure_in_the_block_leaves_as_it_was_raised() -> None:
    async def scene() -> None:
        async with registry(stdio()):
            raise UsageError("something else went wrong")

    with pytest.raises(UsageError, match="something else went wrong"):
        play(scene)


def test_trust_comes_from_the_file_and_never_from_the_server() -> None:
    async def scene() -> list[bool]:
        servers = stdio(alias="a"), stdio(alias="b", trust=True)
        async with registry(*servers) as s:
            found = (s.registry.by_name(ToolName(alias, "echo")) for alias in "ab")
            return [bool(one and one.trusted) for one in found]

    assert play(scene) == [False, True]


def test_a_pack_is_a_server_like_any_other() -> None:
    connection = ServerConnection(ServerEntry(alias="repo", pack=("fs",)), pack=TwinPack())

    async def scene() -> None:
        async with registry(connection) as s:
            (info,) = s.registry.servers
            assert (info.transport, info.state, info.tools) == ("pack", "ready", 2)
            assert s.names == ["repo__read", "repo__bug"]
            assert await s.text("repo__read", path="a") == "read {'path': 'a'}"
            assert (await s.call("repo__read", path="bad")).kind == "handler_error"
            tools = s.registry.listed()
            assert all(one.parallel and not one.trusted for one in tools)
            bug = await s.call("repo__bug")
            assert bug.kind == "rpc_error"
            why = "the tool failed unexpectedly: ZeroDivisionError: oops"
            assert bug.content == f"[aish] tool dispatch failed: {why}"
            assert s.notices.said == []

    play(scene)


def test_no_failure_of_one_call_ends_the_session() -> None:
    async def scene() -> None:
        async with registry(stdio()) as s:
            kinds = [
                (await s.call(f"kid__{name}")).kind
                for name in ("fail", "rpc_error", "crash", "fail", "rpc_error")
            ]
            assert kinds == [
                "handler_error",
                "rpc_error",
                "transport_error",
                "handler_error",
                "rpc_error",
            ]
            found = await s.call("kid__rpc_error")
            assert found.content == "[aish] tool dispatch failed: refused on purpose"
            found = await s.call("kid__fail")
            assert found.content == "the handler failed on purpose"

    play(scene)


def test_a_program_that_is_no_server_is_a_failed_server() -> None:
    async def scene() -> str | None:
        async with registry(command(sys.executable, "-c", "print('hello')")) as s:
            return s.registry.failure("kid")

    said = "on its stdout, which is for JSON-RPC, it printed: hello"
    assert play(scene) == f"the server ended with exit code 0; {said}"


def test_a_call_that_takes_too_long_is_cancelled_on_the_wire(tmp_path: Any) -> None:
    note = tmp_path / "cancelled"

    async def scene() -> None:
        kid = stdio("--note-cancelled", str(note), seconds_by_tool={"sleep": 0.1})
        async with registry(kid) as s:
            found = await s.call("kid__sleep", ms=20_000)
            assert found.kind == "transport_error"
            assert found.content == "[aish] tool transport error: no answer within 0.1 s"
            assert await s.text("kid__add", a=1, b=2) == "3"

    play(scene)
    assert len(note.read_text(encoding="utf-8").split()) == 1


def test_a_call_may_have_less_time_than_its_server_allows(tmp_path: Any) -> None:
    note = tmp_path / "cancelled"

    async def scene() -> None:
        async with registry(stdio("--note-cancelled", str(note))) as s:
            tool = s.registry.by_name(ToolName("kid", "sleep"))
            assert tool is not None
            found = await s.registry.call(tool, {"ms": 20_000}, lambda _: None, limit=0.1)
            assert found.content == "[aish] tool transport error: no answer within 0.1 s"
            assert await s.text("kid__add", a=1, b=2) == "3"

    play(scene)
    assert len(note.read_text(encoding="utf-8").split()) == 1


def test_a_call_that_is_interrupted_is_cancelled_on_the_wire(tmp_path: Any) -> None:
    note = tmp_path / "cancelled"

    async def scene() -> None:
        async with registry(stdio("--note-cancelled", str(note))) as s:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(lambda: s.call("kid__sleep", ms=20_000))
                await anyio.wait_all_tasks_blocked()  # it is sent, and waits for its answer
                tasks.cancel_scope.cancel()
            assert await s.text("kid__add", a=1, b=2) == "3"

    play(scene)
    assert len(note.read_text(encoding="utf-8").split()) == 1


@pytest.mark.parametrize("era", [Legacy, Modern])
def test_over_http_the_handshake_era_is_told_and_the_stateless_one_hung_up_on(
    era: type[Legacy],
) -> None:
    gate = Gate()

    async def time_out() -> None:
        await gate.arrival()
        put_forward(60)

    async def scene() -> None:
        async with registry(http(end.url, call=60)) as s, anyio.create_task_group() as tasks:
            tasks.start_soon(time_out)
            found = await s.call("web__add", a=1, b=2)
            assert found.content == "[aish] tool transport error: no answer within 60 s"
        if era is Legacy:
            await anyio.to_thread.run_sync(end.wait_requests, 6)  # with what cancels the call
        (call,) = [r for r in end.requests if r.json["method"] == "tools/call"]
        await call.abort_seen()
        cancelled = [
            r.json["params"]["requestId"]
            for r in end.requests
            if r.json["method"] == "notifications/cancelled"
        ]
        assert cancelled == ([call.json["id"]] if era is Legacy else [])

    with McpEndpoint(era(tools__call=lambda r: result(r, {}).but(before_head=gate))) as end:
        play(scene, seconds=120, run=waits_of)


def test_progress_is_handed_to_the_call_it_belongs_to() -> None:
    async def scene() -> None:
        async with registry(stdio("--asks")) as s:
            assert await s.text("kid__count", steps=3) == "counted"
            told = [(one.progress, one.total, one.message) for one in s.progress]
            assert told == [(1.0, 3.0, "step 1"), (2.0, 3.0, "step 2"), (3.0, 3.0, "step 3")]

    play(scene)


def test_a_flood_of_progress_is_bounded() -> None:
    async def scene() -> int:
        async with registry(stdio("--asks")) as s:
            await s.text("kid__count", steps=5000)
            return len(s.progress)

    assert play(scene) == 1000


@each_case(
    "params",
    [
        {},
        {"progressToken": "x"},
        {"progressToken": 1, "progress": "much"},
        {"progress": 1},
        *({"progressToken": token, "progress": 10**400} for token in range(1, 9)),
        *({"progressToken": token, "progress": float("inf")} for token in range(1, 9)),
    ],
)
def test_progress_that_makes_no_sense_is_ignored(params: dict[str, Any]) -> None:
    def call(request: Recorded) -> Reply:
        note = {"jsonrpc": "2.0", "method": "notifications/progress", "params": params}
        answer = {"jsonrpc": "2.0", "id": request.json["id"], "result": {"content": []}}
        return events(event(note), event(answer))

    async def scene(end: McpEndpoint) -> Scene:
        async with registry(http(end.url)) as s:
            assert (await s.call("web__add", a=1, b=2)).kind == "ok"
            return s

    with McpEndpoint(Legacy(tools__call=call)) as end:
        assert play(lambda: scene(end)).progress == []


def test_a_pack_has_tools_and_nothing_else() -> None:
    connection = ServerConnection(ServerEntry(alias="repo", pack=("fs",)), pack=TwinPack())

    async def scene() -> None:
        async with registry(connection) as s:
            assert await s.registry.aliases_with("resources") == ()
            with pytest.raises(StepFailedError, match="it offers no resources"):
                await s.registry.read_resource("repo", "file:///a")

    play(scene)
