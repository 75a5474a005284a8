"""The DevTools protocol with peers that answer, and with those that misbehave (K69, K70, X6)."""

import json
import os
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from pack_scenes import opened_packs
from samples import each_case
from web_server import WebServer, answer
from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.exceptions import ConnectionClosed

from aish.core.options import PackOptions
from aish.packs.browser.browser_options import BrowserOptions
from aish.packs.browser.cdp import (
    MAX_MESSAGE,
    BrowserLostError,
    CdpClient,
    CdpError,
    NoReplyError,
    Oversized,
    PipeWire,
    ReplyTooLargeError,
    connect_websocket,
)
from aish.system.process.child import PipeReader, PipeWriter

Answer = Callable[[ServerConnection, dict[str, Any]], Awaitable[None]]
Events = list[tuple[str, str, dict[str, Any]]]


@asynccontextmanager
async def client_of(reply: Answer) -> AsyncGenerator[tuple[CdpClient, Events]]:
    """A client of a peer on a real socket that does with each command what `reply` does."""
    events: Events = []

    async def talk(socket: ServerConnection) -> None:
        try:
            async for message in socket:
                await reply(socket, json.loads(message))
        except ConnectionClosed:
            return

    async with serve(talk, "127.0.0.1", 0, compression=None) as server:
        port = server.sockets[0].getsockname()[1]
        wire = await connect_websocket(f"ws://127.0.0.1:{port}/devtools/browser/x", 5)
        async with anyio.create_task_group() as tasks:
            client = CdpClient(wire, tasks, lambda *event: events.append(event))
            tasks.start_soon(client.run)
            try:
                yield client, events
            finally:
                tasks.cancel_scope.cancel()
        await wire.aclose()


async def well(socket: ServerConnection, told: dict[str, Any]) -> None:
    """Answer as a browser does, with an event before it."""
    event = {"method": "Some.event", "params": {"n": told["id"]}, "sessionId": "S"}
    await socket.send(json.dumps(event))
    await socket.send(json.dumps({"id": 10**6, "result": {}}))
    if told["method"] == "Wrong":
        await socket.send(json.dumps({"id": told["id"], "error": {"message": "no such method"}}))
    elif told["method"] != "Silent":
        await socket.send(json.dumps({"id": told["id"], "result": {"given": told["params"]}}))


@pytest.mark.requirement("K69")
def test_a_command_gets_its_own_reply_and_events_are_passed_on() -> None:
    async def scene() -> Events:
        async with client_of(well) as (client, events):
            found: dict[str, Any] = {}

            async def ask(name: str) -> None:
                found[name] = await client.call("Do", {"name": name}, session="S")

            async with anyio.create_task_group() as tasks:
                for name in "abc":
                    tasks.start_soon(ask, name)
            assert found == {name: {"given": {"name": name}} for name in "abc"}
            with pytest.raises(CdpError, match="no such method"):
                await client.call("Wrong")
            with pytest.raises(NoReplyError):
                await client.call("Silent", seconds=0.05)
            # A reply that nobody waits for any more is no reason to stop.
            assert await client.call("Do", seconds=5)
            return events

    events = anyio.run(scene)
    assert [event[:2] for event in events] == [("S", "Some.event")] * 6


BAD = {
    "close": None,
    "garbage": "{",
    "not UTF-8": b"\xff\xfe",
    "a list": "[]",
    "a number": "1",
    "a deep nest": "[" * 200_000,
    "a result that is none": '{"id": 1, "result": []}',
    "an event without a name": '{"method": 1}',
    "an event with odd parameters": '{"method": "A", "params": []}',
    "too much": "x" * (MAX_MESSAGE + 1),
}


@each_case("what", BAD)
def test_a_peer_that_misbehaves_ends_the_connection_and_every_call(what: str) -> None:
    async def badly(socket: ServerConnection, told: dict[str, Any]) -> None:
        if told["method"] == "Last":
            message = BAD[what]
            await (socket.close() if message is None else socket.send(message))

    async def scene() -> list[str]:
        said: list[str] = []
        async with client_of(badly) as (client, _):

            async def ask(method: str) -> None:
                with pytest.raises(BrowserLostError) as caught:
                    await client.call(method, seconds=20)
                said.append(str(caught.value))

            async with anyio.create_task_group() as tasks:
                for method in ("First", "Last"):
                    tasks.start_soon(ask, method)
            with pytest.raises(BrowserLostError):
                await client.call("Later")
            client.post("Later")
        return said

    first, last = anyio.run(scene)
    assert first == last
    assert ("too large" in first) is (what == "too much")
    assert ("not a message" in first) is (what not in {"close", "too much"})


def test_on_a_pipe_a_message_that_is_too_large_fails_its_command_alone() -> None:
    async def scene() -> None:
        reading, to_client = os.pipe()
        from_client, writing = os.pipe()
        browser, commands = PipeWriter(to_client), PipeReader(from_client)
        wire = PipeWire(PipeReader(reading), PipeWriter(writing))
        try:
            async with anyio.create_task_group() as tasks:
                client = CdpClient(wire, tasks, lambda *_: None)
                tasks.start_soon(client.run)

                async def play() -> None:
                    """An event and a reply that are too large, and a reply in two pieces."""
                    large = b'"' + b"x" * MAX_MESSAGE + b'"'
                    await browser.write(b'{"method":"A","params":{"a":' + large + b"}}\0")
                    await commands.read()
                    await browser.write(b'{"id":1,"result":{"a":' + large + b"}}\0")
                    await commands.read()
                    await browser.write(b'{"id":2,"res')
                    await browser.write(b'ult":{"a":1}}\0{"id":1,"result":{}}\0')
                    await commands.read()
                    browser.close()

                tasks.start_soon(play)
                with pytest.raises(ReplyTooLargeError):
                    await client.call("First", seconds=30)
                assert await client.call("Second", seconds=30) == {"a": 1}
                with pytest.raises(BrowserLostError, match="ended"):
                    await client.call("Third", seconds=30)
        finally:
            await wire.aclose()
            commands.close()

    anyio.run(scene)


def test_the_beginning_of_a_large_message_is_kept_across_reads() -> None:
    async def scene() -> bytes | str | Oversized:
        reading, writing = os.pipe()
        sink, unused = os.pipe()
        wire = PipeWire(PipeReader(reading), PipeWriter(unused))
        browser = PipeWriter(writing)
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(browser.write, b'{"id":7,' + b" " * MAX_MESSAGE + b"}\0")
                found = await wire.receive()
        finally:
            browser.close()
            await wire.aclose()
            os.close(sink)
        return found

    found = anyio.run(scene)
    assert isinstance(found, Oversized)
    assert found.head.startswith(b'{"id":7,')


def options(**given: Any) -> PackOptions:
    return {"browser": BrowserOptions(**given)}


@pytest.mark.requirement("K70")
def test_a_running_browser_is_attached_to_only_if_the_file_says_so() -> None:
    with opened_packs(["browser"], None, options()) as box:
        refused = box.error("browser_connect", debug_url="http://127.0.0.1:9222")
        assert refused["code"] == "blocked"
        assert "`attach: true`" in refused["message"]


@each_case(
    "url, code",
    [
        ("http://192.0.2.1:9222", "blocked"),
        ("ws://example.org:9222/devtools/browser/x", "blocked"),
        ("http://127.0.0.1.example.org:9222", "blocked"),
        ("http://user@127.0.0.1:9222", "blocked"),
        ("http://[::ffff:192.0.2.1]:9222", "blocked"),
        ("ws://127.0.0.1:9222/devtools/page/x", "bad_arguments"),
        ("ws://127.0.0.1:9222/../devtools/browser/x", "bad_arguments"),
        ("https://127.0.0.1:9222", "bad_arguments"),
        ("http://127.0.0.1", "bad_arguments"),
        ("http://127.0.0.1:99999", "bad_arguments"),
        ("file:///devtools/browser/x", "bad_arguments"),
        ("http://[", "bad_arguments"),
    ],
)
def test_only_a_browser_on_this_machine_is_attached_to(url: str, code: str) -> None:
    with opened_packs(["browser"], None, options(attach=True)) as box:
        assert box.code("browser_connect", debug_url=url) == code


def test_what_is_no_browser_is_not_attached_to() -> None:
    pages = {
        "/json/version": answer('{"webSocketDebuggerUrl": "ws://elsewhere.test/other"}'),
        "/devtools/browser/x": b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n",
    }
    with WebServer(pages) as server, opened_packs(["browser"], None, options(attach=True)) as box:
        assert box.code("browser_connect", debug_url=server.url) == "unavailable"
        socket = server.url.replace("http:", "ws:") + "/devtools/browser/x"
        assert box.code("browser_connect", debug_url=socket) == "unavailable"
        assert box.code("browser_query") == "unavailable"
    with opened_packs(["browser"], None, options(attach=True)) as box:
        # The server is gone: nobody listens there.
        assert box.code("browser_connect", debug_url=server.url) == "unavailable"


class FakeBrowser:
    """Answers what attaching asks; of `Page.createIsolatedWorld` on it hangs up."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    @asynccontextmanager
    async def served(self) -> AsyncGenerator[Server]:
        async with serve(self.talk, "127.0.0.1", 0) as server:
            yield server

    async def talk(self, socket: ServerConnection) -> None:
        results = {
            "Browser.getVersion": {"product": "Fake/1\x1b[31m"},
            "Target.createTarget": {"targetId": "T"},
            "Target.attachToTarget": {"sessionId": "S"},
            "Page.navigate": {"frameId": "T", "loaderId": "L"},
        }
        async for message in socket:
            told = json.loads(message)
            self.asked.append(told["method"])
            if told["method"] == "Page.createIsolatedWorld":
                await socket.close()
                return
            result = results.get(told["method"], {})
            await socket.send(json.dumps({"id": told["id"], "result": result}))


def test_an_attached_browser_that_hangs_up_in_a_call_is_unavailable() -> None:
    fake = FakeBrowser()
    with opened_packs(["browser"], None, options(attach=True)) as box:
        served = box.portal.wrap_async_context_manager(fake.served())
        with served as server:
            port = server.sockets[0].getsockname()[1]
            url = f"ws://localhost:{port}/devtools/browser/x"
            found = box.data("browser_connect", debug_url=url)
            assert found == {"browser": "Fake/1\\x1b[31m", "attached": True, "sandboxed": None}
            # What the user has permitted or downloads is not ours to change.
            assert not [name for name in fake.asked if name.startswith("Browser.set")]
            failed = box.error("browser_query")
            assert failed["code"] == "unavailable"
            assert "closed the connection" in failed["message"]
            assert box.data("browser_disconnect") == {"closed": True}
            assert box.data("browser_disconnect") == {"closed": False}


class CrashingBrowser(FakeBrowser):
    """Its first page crashes when it is looked at, the second while it opens an address."""

    async def talk(self, socket: ServerConnection) -> None:
        pages = 0
        async for message in socket:
            told = json.loads(message)
            method = told["method"]
            self.asked.append(method)
            pages += method == "Target.createTarget"
            if (pages, method) in {(1, "Page.createIsolatedWorld"), (2, "Page.navigate")}:
                crash = {"method": "Target.targetCrashed", "params": {"targetId": f"T{pages}"}}
                await socket.send(json.dumps(crash))
                error = {"code": -32000, "message": "Target crashed"}
                await socket.send(json.dumps({"id": told["id"], "error": error}))
                continue
            results = {
                "Browser.getVersion": {"product": "Fake/1"},
                "Target.createTarget": {"targetId": f"T{pages}"},
                "Target.attachToTarget": {"sessionId": f"S{pages}"},
                "Page.navigate": {"frameId": f"T{pages}", "loaderId": "L"},
                "Runtime.callFunctionOn": {
                    "result": {"value": {"url": "http://shop.test/", "title": "shop"}}
                },
            }
            result = results.get(method, {})
            await socket.send(json.dumps({"id": told["id"], "result": result}))


def test_a_page_that_crashes_with_the_one_before_it_is_replaced_too() -> None:
    fake = CrashingBrowser()
    with opened_packs(["browser"], None, options(attach=True)) as box:
        served = box.portal.wrap_async_context_manager(fake.served())
        with served as server:
            port = server.sockets[0].getsockname()[1]
            box.data("browser_connect", debug_url=f"ws://localhost:{port}/devtools/browser/x")
            assert "has crashed" in box.error("browser_query")["message"]
            went = box.data("browser_navigate", url="http://shop.test/", wait="none")
            assert went["title"] == "shop"
            assert fake.asked.count("Target.createTarget") == 3
            assert fake.asked.count("Page.navigate") == 2
