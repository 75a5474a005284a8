"""Servers over HTTP through a cassette: recorded once, played with nothing in reach."""

import json
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp_emulators import (
    Legacy,
    LuaServer,
    McpEndpoint,
    Modern,
    accepted,
    event,
    events,
    result,
)
from mcp_recorded_scenes import RecordedScene, Seen
from mcp_scenes import Scene, http, play, registry
from model_endpoint import CUT, Gate, Part, Recorded, Reply, json_reply

from aish.cassettes.format.interaction import CassetteMissError
from aish.core.json import JsonObject

Handler = Callable[[Recorded], Reply]


@pytest.fixture
def recorded_scene(tmp_path: Path) -> RecordedScene:
    return RecordedScene(tmp_path)


def played(
    recorded_scene: RecordedScene, handler: Handler, act: Any, **fields: Any
) -> tuple[Seen, Seen]:
    """What a run saw, and what it sees again once the server is gone."""
    with McpEndpoint(handler) as end:
        recorded = recorded_scene.record(act, http(end.url, **fields))
    return recorded, recorded_scene.replay(act, http(end.url, **fields))


async def add(scene: Scene) -> Any:
    return await scene.call("web__add", a=1, b=2)


async def work(scene: Scene) -> list[Any]:
    return [
        await scene.call("web__echo", text="é \u2028"),
        await scene.call("web__add", a=1, b=2),
        await scene.call("web__add", a=1, b=2),
        await scene.call("web__fail"),
        await scene.call("web__rpc_error"),
    ]


def in_events(request: Recorded) -> Reply:
    body = b"".join(part for part in Legacy().usual(request).parts if isinstance(part, bytes))
    return events(b": hello\n\n", b"event: message\ndata: " + body[:20], body[20:] + b"\n\n")


def test_a_call_that_was_refused_for_load_is_made_again_in_a_replay(
    recorded_scene: RecordedScene,
) -> None:
    """Whatever time it is then: the server named a time of day."""
    at = str(int((time.time() + 1) * 1000))
    busy = [json_reply(429, {"error": "slow down"}, {"x-ratelimit-reset": at})]
    handler = Legacy(
        tools__call=lambda request: busy.pop() if busy else result(request, {"content": []})
    )
    recorded, replayed = played(recorded_scene, handler, add)
    assert recorded.value.kind == "ok"
    assert replayed.value == recorded.value


@pytest.mark.parametrize(
    ("handler", "failed"),
    [
        (Legacy(), False),
        (Legacy(version="2025-03-26"), False),
        (Legacy(session="session-1"), False),
        (Legacy(tools__call=in_events), False),
        (Modern(), False),
        (Legacy(tools__call=lambda _: json_reply(500, {"error": "no"})), True),
        (Legacy(tools__call=lambda _: events(CUT)), True),
        (Legacy(tools__call=lambda _: accepted()), True),
    ],
)
def test_a_server_is_played_when_it_is_gone(
    handler: Handler, recorded_scene: RecordedScene, *, failed: bool
) -> None:
    recorded, again = played(recorded_scene, handler, work)

    assert again == recorded
    assert (recorded.value[0].kind == "transport_error") is failed


def test_a_server_that_only_answers_posts_is_played(recorded_scene: RecordedScene) -> None:
    async def house(scene: Scene) -> list[Any]:
        return [
            await scene.call("web__status"),
            await scene.call("web__set_light", room="attic", on=True),
        ]

    with LuaServer("token-of-the-house") as lua:
        recorded = recorded_scene.record(house, http(lua.url, token="token-of-the-house"))

    assert recorded.value[0].content == "all is well"
    # Without a token: a replay needs none.
    assert recorded_scene.replay(house, http(lua.url)) == recorded


def test_neither_token_nor_session_is_in_the_file(recorded_scene: RecordedScene) -> None:
    played(recorded_scene, Legacy(session="session-of-mine"), work, token="token-of-mine")

    text = recorded_scene.path.read_text(encoding="utf-8")
    assert "session-of-mine" not in text
    assert "token-of-mine" not in text


class Forgetful(Legacy):
    """A server that forgets its first session before the second call."""

    def __init__(self) -> None:
        super().__init__()
        self.sessions = 0
        self.calls = 0

    def usual(self, request: Recorded) -> Reply:
        if request.method == "POST" and request.json["method"] == "initialize":
            self.sessions += 1
            self.session = f"session-{self.sessions}"
        if request.method == "POST" and request.json["method"] == "tools/call":
            self.calls += 1
            if self.calls == 2:
                return json_reply(404, {"error": "unknown session"})
        return super().usual(request)


def test_a_session_that_was_lost_is_lost_and_begun_again(recorded_scene: RecordedScene) -> None:
    recorded, again = played(recorded_scene, Forgetful(), work)

    assert again == recorded
    assert recorded.value[1].content == "3"


@pytest.mark.parametrize("status", [307, 308])
def test_redirects_are_followed_again(status: int, recorded_scene: RecordedScene) -> None:
    usual = Legacy()

    def moved(request: Recorded) -> Reply:
        if request.path == "/mcp":
            return Reply(status=status, headers={"location": "/elsewhere"}, framing="length")
        return usual(request)

    recorded, again = played(recorded_scene, moved, work)

    assert again == recorded
    assert recorded.value[1].content == "3"


def test_a_stream_that_broke_off_is_taken_up_again(recorded_scene: RecordedScene) -> None:
    waiting: list[Any] = []

    def broken(request: Recorded) -> Reply:
        text = f"sum {request.json['params']['arguments']['a']}"
        content = [{"type": "text", "text": text}]
        waiting.append({"jsonrpc": "2.0", "id": request.json["id"], "result": {"content": content}})
        return events(f"id: e-{len(waiting)}\nretry: 1500\ndata: \n\n".encode())

    def resumed(request: Recorded) -> Reply:
        number = int(request.headers["last-event-id"].partition("-")[2])
        return events(event(waiting[number - 1], id="later"))

    async def two(scene: Scene) -> list[str]:
        return [await scene.text("web__add", a=n, b=0) for n in (1, 2)]

    async def two_reversed(scene: Scene) -> list[str]:
        return [await scene.text("web__add", a=n, b=0) for n in (2, 1)]

    with McpEndpoint(Legacy(tools__call=broken, GET=resumed)) as end:
        recorded = recorded_scene.record(two, http(end.url))

    assert recorded.value == ["sum 1", "sum 2"]
    assert recorded_scene.replay(two_reversed, http(end.url)).value == ["sum 2", "sum 1"]


def batched(message: Any) -> Reply:
    return json_reply(200, [{"jsonrpc": "2.0", "method": "notifications/message"}, message])


def bare(message: Any) -> Reply:
    return json_reply(200, {key: value for key, value in message.items() if key != "jsonrpc"})


def streamed(message: Any) -> Reply:
    told = {"progressToken": message["id"], "progress": 1}
    note = {"jsonrpc": "2.0", "method": "notifications/progress", "params": told}
    return events(event(note), b": now\nretry: 5\n" + event(message))


@pytest.mark.parametrize(
    "form",
    [
        lambda message: json_reply(200, message),
        lambda message: json_reply(200, {**message, "id": str(message["id"])}),
        lambda message: json_reply(200, {**message, "id": float(message["id"])}),
        lambda message: Reply((json.dumps(message, indent=2).encode(),), framing="length"),
        batched,
        bare,
        streamed,
        lambda message: events(event(json.dumps([message]))),
    ],
)
def test_numbers_of_messages_may_differ_from_run_to_run(
    form: Any, recorded_scene: RecordedScene
) -> None:
    def call(request: Recorded) -> Any:
        text = f"sum {request.json['params']['arguments']['a']}"
        result = {"content": [{"type": "text", "text": text}]}
        return form({"jsonrpc": "2.0", "id": request.json["id"], "result": result})

    def act(*numbers: int) -> Any:
        async def calls(scene: Scene) -> list[str]:
            return [await scene.text("web__add", a=n, b=0) for n in numbers]

        return calls

    with McpEndpoint(Legacy(tools__call=call)) as end:
        recorded = recorded_scene.record(act(1, 2, 3), http(end.url))
    again = recorded_scene.replay(act(3, 1, 2), http(end.url))

    assert again.value == ["sum 3", "sum 1", "sum 2"]
    assert again.progress == recorded.progress


class Verses:
    """A sampler."""

    async def sample(self, params: JsonObject) -> JsonObject:
        for _ in range(5):
            await anyio.lowlevel.checkpoint()
        return {"role": "assistant", "content": {"type": "text", "text": f"on {params['topic']}"}}


class Asking(Legacy):
    """A server that asks for a verse before it answers a call: on its stream, or on another."""

    def __init__(self, *, elsewhere: bool) -> None:
        says = {"tools": {"listChanged": True}}
        super().__init__(capabilities=says, session="s", tools__call=self.call, answer=self.heard)
        self.question, self.reply, self.over = Gate(), Gate(), Gate()
        self.answers: list[Any] = []
        self.elsewhere = elsewhere
        if elsewhere:
            self.overrides["GET"] = lambda _: events().but(parts=self.stream())

    def stream(self) -> Iterator[Part]:
        yield b": open\n\n"
        yield self.question
        yield event(QUESTION)
        yield self.over

    def call(self, request: Recorded) -> Reply:
        def parts() -> Iterator[Part]:
            self.question.open()
            if not self.elsewhere:
                yield event(QUESTION)
            yield self.reply
            text = json.dumps(self.answers[0]["result"])
            content = [{"type": "text", "text": text}]
            yield event(
                {"jsonrpc": "2.0", "id": request.json["id"], "result": {"content": content}}
            )

        return events().but(parts=parts())

    def heard(self, request: Recorded) -> Reply:
        self.answers.append(request.json)
        self.reply.open()
        return accepted()


QUESTION = {
    "jsonrpc": "2.0",
    "id": "q1",
    "method": "sampling/createMessage",
    "params": {"topic": "rain"},
}


@pytest.mark.parametrize("elsewhere", [False, True])
def test_what_a_server_asks_in_mid_call_is_answered_again(
    recorded_scene: RecordedScene, *, elsewhere: bool
) -> None:
    order: list[str] = []

    class Noting(Verses):
        async def sample(self, params: JsonObject) -> JsonObject:
            found = await super().sample(params)
            order.append("sampled")
            return found

    async def ask(scene: Scene) -> Any:
        found = await scene.call("web__add", Noting(), a=1, b=2)
        order.append("called")
        return found

    recorded, again = played(recorded_scene, Asking(elsewhere=elsewhere), ask, sampling="allow")

    assert "on rain" in recorded.value.content
    assert again == recorded
    assert order == ["sampled", "called"] * 2


def tool(name: str) -> dict[str, Any]:
    return {"name": name, "inputSchema": {"type": "object", "properties": {}}}


@pytest.mark.parametrize("era", ["legacy", "modern"])
def test_tools_that_change_in_mid_session_change_at_the_same_place(
    era: str, recorded_scene: RecordedScene
) -> None:
    lists = [[tool("add"), tool("old")], [tool("add"), tool("new")]]
    note = {"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}
    change, over = Gate(), Gate()

    def listed(_: Recorded) -> Any:
        return {"resultType": "complete", "tools": lists.pop(0)}

    def stream(_: Recorded) -> Reply:
        return events(b": open\n\n", change, event(note), over)

    def call(request: Recorded) -> Reply:
        change.open()
        content = [{"type": "text", "text": "3"}]
        return result(request, {"resultType": "complete", "content": content})

    says = {"tools": {"listChanged": True}}
    handler = (
        Legacy(capabilities=says, tools__list=listed, GET=stream, tools__call=call)
        if era == "legacy"
        else Modern(
            capabilities=says, tools__list=listed, subscriptions__listen=stream, tools__call=call
        )
    )

    async def change_tools(scene: Scene) -> list[Any]:
        before = scene.names
        await scene.text("web__add", a=1, b=2)
        await scene.notices.wait_for("tools_changed")
        return [before, scene.names]

    recorded, again = played(recorded_scene, handler, change_tools)

    assert recorded.value == [["web__add", "web__old"], ["web__add", "web__new"]]
    assert again == recorded


def test_all_pages_of_a_list_are_played(recorded_scene: RecordedScene) -> None:
    def paged(request: Recorded) -> Any:
        cursor = request.json["params"].get("cursor", "0")
        more = {"nextCursor": str(int(cursor) + 1)} if cursor != "2" else {}
        return {"tools": [tool(f"t{cursor}")], **more}

    recorded, again = played(recorded_scene, Legacy(tools__list=paged), names)

    assert recorded.value == ["web__t0", "web__t1", "web__t2"]
    assert again == recorded


CHANGED = {"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}


class Older:
    """A server that has 2024's HTTP+SSE only: POSTs go to `/messages`, answers to the stream.

    After each call it says that its tools changed.
    """

    def __init__(self) -> None:
        self.gates = [Gate() for _ in range(20)]
        self.answers: list[bytes] = []

    def __call__(self, request: Recorded) -> Reply:
        if request.method == "GET":
            return Reply(self.stream(), headers={"content-type": "text/event-stream"})
        if request.path == "/mcp":
            return Reply(status=405, framing="length")
        if "id" in request.json:
            body = Legacy(version="2024-11-05").usual(request).parts
            data = b"".join(part for part in body if isinstance(part, bytes))
            change = event(CHANGED) if request.json["method"] == "tools/call" else b""
            self.answers.append(b"event: message\ndata: " + data + b"\n\n" + change)
            self.gates[len(self.answers) - 1].open()
        return accepted()

    def stream(self) -> Iterator[Part]:
        yield event("/messages?session=1", name="endpoint")
        for number, gate in enumerate(self.gates):
            yield gate
            yield self.answers[number]


def test_the_transport_of_2024_is_played(recorded_scene: RecordedScene) -> None:
    recorded, again = played(recorded_scene, Older(), work)

    assert recorded.value[1].content == "3"
    assert again == recorded
    assert {one.request.uri.partition("://")[0] for one in recorded_scene.interactions} == {
        "http",
        "mcp+sse",
    }
    lists = [one for one in recorded_scene.interactions if b'"tools/list"' in one.request.body]
    assert len(lists) > 1


@pytest.mark.parametrize("handler", [Legacy, Modern])
def test_a_call_that_took_too_long_fails_at_once_in_replay(
    handler: Any, recorded_scene: RecordedScene
) -> None:
    gate = Gate()

    def slow(request: Recorded) -> Reply:
        reply = Legacy().usual(request) if handler is Legacy else Modern().usual(request)
        is_slow = request.json["params"]["name"] == "echo"
        return reply.but(before_head=gate) if is_slow else reply

    async def wait(scene: Scene) -> list[str]:
        late = await scene.call("web__echo", text="late")
        return [late.content, await scene.text("web__add", a=1, b=2)]

    with McpEndpoint(handler(tools__call=slow)) as end:
        recorded = recorded_scene.record(wait, http(end.url, seconds_by_tool={"echo": 0.3}))
        gate.open()
    again = recorded_scene.replay(wait, http(end.url, seconds_by_tool={"echo": 10}))

    assert recorded.value == ["[aish] tool transport error: no answer within 0.3 s", "3"]
    assert again.value == ["[aish] tool transport error: no answer within 10 s", "3"]
    assert recorded_scene.waited < 0.3


def test_a_server_that_was_not_there_is_not_there_again(recorded_scene: RecordedScene) -> None:
    with socket.socket() as held:  # so that nobody else listens at its port
        held.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{held.getsockname()[1]}/mcp"
        recorded = recorded_scene.record(nothing, http(url))

    (info,) = recorded.servers
    assert "cannot connect to" in str(info.error)
    assert recorded_scene.replay(nothing, http(url)) == recorded


async def names(scene: Scene) -> list[str]:  # ruff: ignore[unused-async] - `Act`
    return scene.names


async def nothing(scene: Scene) -> None:
    """Only connect."""


def test_credentials_that_were_refused_are_refused_again(recorded_scene: RecordedScene) -> None:
    with LuaServer("a") as lua:
        recorded = recorded_scene.record(nothing, http(lua.url, token="wrong"))

    (info,) = recorded.servers
    assert str(info.error).startswith('HTTP 401: {"error":"unauthorized"}; ')
    assert recorded_scene.replay(nothing, http(lua.url)) == recorded


def test_a_call_with_other_arguments_is_a_miss(recorded_scene: RecordedScene) -> None:
    with McpEndpoint(Legacy()) as end:
        recorded_scene.record(add, http(end.url))

    async def other(scene: Scene) -> None:
        await scene.call("web__add", a=1, b=3)

    with pytest.raises(CassetteMissError):
        recorded_scene.replay(other, http(end.url))


def test_a_lenient_replay_fails_the_call_alone(recorded_scene: RecordedScene) -> None:
    with McpEndpoint(Legacy()) as end:
        recorded_scene.record(add, http(end.url))

    async def other(scene: Scene) -> list[str]:
        found = [await scene.call("web__add", a=1, b=3), await scene.call("web__add", a=1, b=2)]
        return [one.kind for one in found]

    assert recorded_scene.replay(other, http(end.url), lenient=True).value == ["rpc_error", "ok"]


def test_an_extended_recording_calls_only_what_it_lacks(recorded_scene: RecordedScene) -> None:
    async def more(scene: Scene) -> list[str]:
        return [await scene.text("web__add", a=1, b=b) for b in (2, 3)]

    with McpEndpoint(Legacy()) as end:
        recorded_scene.record(add, http(end.url))
        assert end.methods.count("tools/call") == 1
        assert recorded_scene.extend(more, http(end.url)).value == ["3", "4"]
        assert end.methods.count("tools/call") == 2

    assert recorded_scene.replay(more, http(end.url)).value == ["3", "4"]


def test_servers_that_connect_at_the_same_time_are_kept_apart(
    recorded_scene: RecordedScene,
) -> None:
    def named(name: str) -> Legacy:
        return Legacy(tools=[tool(name)])

    with ExitStack() as stack:
        ends = [stack.enter_context(McpEndpoint(named(name))) for name in "abcd"]
        servers = [http(end.url, alias) for end, alias in zip(ends, "abcd", strict=True)]
        recorded = recorded_scene.record(names, *servers)

    assert recorded.value == ["a__a", "b__b", "c__c", "d__d"]
    assert recorded_scene.replay(names, *servers) == recorded


def test_without_a_cassette_nothing_lies_between(recorded_scene: RecordedScene) -> None:
    with McpEndpoint(Legacy()) as end:

        async def live() -> Any:
            async with registry(http(end.url)) as s:
                return await add(s)

        assert play(live) == recorded_scene.record(add, http(end.url)).value
