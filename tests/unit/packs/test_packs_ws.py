"""The pack `ws`: who may connect, what clients get, and what hostile ones can do (K75, K76)."""

import base64
import json
import os
import re
import socket
import stat
import struct
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from pack_scenes import PackScene, opened_packs
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect
from websockets.typing import Subprotocol

from aish.core.errors import UsageError
from aish.core.events import NOWHERE, Notice, Stamped, to_object
from aish.core.options import PackOptions
from aish.packs.command_options import ProcOptions
from aish.packs.framework.channels import Channels
from aish.packs.ws.ws_options import WsOptions
from aish.system.secrets.secrets import Secrets

ORIGIN = "http://127.0.0.1:8000"
OPTIONS = {"ws": WsOptions(origins=(ORIGIN,)), "proc": ProcOptions(sandbox="off")}


class Feed:
    """The events of a run, as those who follow it get them."""

    def __init__(self) -> None:
        self.readers: list[Callable[[Stamped], None]] = []
        self.count = 0

    def follow(self, reader: Callable[[Stamped], None]) -> Callable[[], None]:
        self.readers.append(reader)
        return lambda: self.readers.remove(reader)

    def tell(self, text: str) -> Stamped:
        self.count += 1
        stamped = Stamped(self.count, 1.5, Notice(NOWHERE, "info", "note", text))
        for reader in tuple(self.readers):
            reader(stamped)
        return stamped


class Hub:
    """A hub that runs, its token, and its address."""

    def __init__(self, scene: PackScene, feed: Feed, secrets: Secrets, host: str) -> None:
        self.scene, self.feed, self.secrets = scene, feed, secrets
        self.result = scene.data("ws_start", address=f"{host}:0")
        self.url = str(self.result["url"])
        self.file = Path(str(self.result["token_file"]))
        self.token = self.file.read_text().strip()
        self.port = int(self.url.split(":")[2].split("/")[0])

    def info(self) -> Mapping[str, Any]:
        return self.scene.data("ws_info")

    def tell(self, text: str) -> None:
        self.scene.portal.call(self.feed.tell, text)

    def bearer(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"}

    def connect(self, **more: Any) -> ClientConnection:
        asked = {"additional_headers": self.bearer(), "compression": None, "proxy": None, **more}
        opened: ClientConnection = connect(self.url, **asked)
        return opened

    def raw(self, *more: str, host: str = "", head: str = "GET /ws HTTP/1.1") -> socket.socket:
        """A connection on which the head of a handshake was sent."""
        lines = [
            head,
            f"Host: {host or f'127.0.0.1:{self.port}'}",
            "Upgrade: websocket",
            "Connection: Upgrade",
            "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==",
            "Sec-WebSocket-Version: 13",
            *more,
        ]
        opened = socket.create_connection(("127.0.0.1", self.port), timeout=60)
        opened.sendall("".join(f"{line}\r\n" for line in [*lines, ""]).encode())
        return opened

    def open_raw(self) -> socket.socket:
        """A connection whose handshake has ended."""
        opened = self.raw(f"Authorization: Bearer {self.token}")
        assert opened.recv(12) == b"HTTP/1.1 101"
        return opened


@contextmanager
def hub_of(options: PackOptions = OPTIONS, *packs: str, **more: Any) -> Generator[Hub]:
    feed, secrets = Feed(), Secrets()
    host = more.pop("host", "127.0.0.1")
    with opened_packs(
        ("ws", *packs),
        more.pop("root", None),
        options,
        follow=feed.follow,
        run_secrets=secrets,
        mask=secrets.mask,
        **more,
    ) as scene:
        yield Hub(scene, feed, secrets, host)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    with hub_of() as opened:
        yield opened


def eventually(is_so: Callable[[], bool]) -> None:
    """Ask the hub again until it is so; each time its loop has gone round."""
    assert any(is_so() for _ in range(50_000))


def said(client: ClientConnection) -> dict[str, Any]:
    message = json.loads(client.recv(timeout=60))
    assert set(message) == {"type", "channel", "data", "timestamp"}
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", message["timestamp"])
    return {key: message[key] for key in ("type", "channel", "data")}


def follow(client: ClientConnection, channel: str) -> None:
    client.send(json.dumps({"type": "subscribe", "channel": channel}))
    assert said(client) == {"type": "subscribed", "channel": channel, "data": None}


def answer_of(connection: socket.socket) -> tuple[int, dict[str, Any]]:
    """The status and the error of a refused handshake."""
    data = b""
    with connection, suppress(ConnectionError):
        while more := connection.recv(65536):
            data += more
    head, _, body = data.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)["error"]


def test_the_token_is_in_a_private_file_and_not_in_the_result(hub: Hub) -> None:
    assert hub.token not in json.dumps(hub.result)
    assert len(hub.token) >= 32
    assert stat.S_IMODE(hub.file.stat().st_mode) == 0o600
    assert hub.secrets.mask(f"it is {hub.token}") == "it is <secret:ws.token>"
    assert hub.result["already"] is False
    again = hub.scene.data("ws_start")
    assert (again["already"], again["url"]) == (True, hub.result["url"])
    assert hub.scene.error("ws_start", address="127.0.0.1:1")["code"] == "limit"
    assert hub.scene.data("ws_start", address=hub.result["address"])["already"] is True


def test_events_are_sent_as_jsonl_prints_them(hub: Hub) -> None:
    with hub.connect() as client, hub.connect() as other:
        follow(client, "events")
        text = '"}\n{"type":"event","channel":"events","data":{"type":"run.finished"}}\u2028'
        stamped = hub.scene.portal.call(hub.feed.tell, text)
        expected = json.loads(json.dumps(to_object(stamped)))
        assert said(client) == {"type": "event", "channel": "events", "data": expected}
        client.send('{"type": "ping"}')
        assert said(client)["type"] == "pong"
        client.send('{"type": "unsubscribe", "channel": "events"}')
        assert said(client)["type"] == "unsubscribed"
        assert hub.feed.readers == []
        hub.tell("unheard")
        other.send('{"type": "ping"}')
        assert said(other)["type"] == "pong", "it followed nothing"
    eventually(lambda: hub.info()["clients"] == 0)


@pytest.mark.requirement("K76")
def test_output_of_processes_has_channels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    root = tmp_path / "root"
    root.mkdir()
    with hub_of(OPTIONS, "proc", root=root, environ=dict(os.environ)) as hub:
        hub.secrets.add("KEY", "hunter2-hunter2")
        with hub.connect() as client:
            follow(client, "process:p1")
            script = "read x; printf 'a hunter2-'; printf 'hunter2 b\\n'"
            started = hub.scene.data("process_start", command="sh", args=["-c", script])
            assert started["id"] == "p1"
            hub.scene.data("process_input", id="p1", input="go\n")
            output, message = "", said(client)
            while message["type"] == "output":
                output += message["data"]["output"]
                message = said(client)
            assert output == "a <secret:KEY> b\n"
            assert message == {
                "type": "exited",
                "channel": "process:p1",
                "data": {"id": "p1", "status": "exited", "exit_code": 0, "signal": None},
            }


def test_ids_of_two_servers_name_two_channels(tmp_path: Path) -> None:
    services = {"channels": Channels(), "environ": dict(os.environ)}
    with (
        opened_packs(["proc", "ide"], tmp_path, OPTIONS, **services) as one,
        opened_packs(["proc", "ide"], tmp_path, OPTIONS, **services) as other,
    ):
        ids = [scene.data("process_start", command="true")["id"] for scene in (one, other, one)]
        assert ids == ["p1", "p2", "p3"]
        assert [row["id"] for row in one.data("process_list")["processes"]] == ["p1", "p3"]
        assert other.code("process_output", id="p1") == "not_found"
        sessions = [scene.data("ide_session_create", name="a")["session"] for scene in (one, other)]
        assert [session["id"] for session in sessions] == ["chat-1", "chat-2"]


def test_only_a_token_opens_the_hub(hub: Hub) -> None:
    encoded = base64.urlsafe_b64encode(hub.token.encode()).decode().rstrip("=")
    for given, code in (
        ([], "unauthorized"),
        (["Authorization: Bearer " + "x" * 43], "unauthorized"),
        ([f"Authorization: Basic {hub.token}"], "unauthorized"),
        ([f"Authorization: Bearer {hub.token}"] * 2, "unauthorized"),
        (["Sec-WebSocket-Protocol: aish, bearer.eHh4"], "unauthorized"),
        (["Sec-WebSocket-Protocol: aish, bearer.*"], "unauthorized"),
        ([f"Sec-WebSocket-Protocol: aish, {hub.token}"], "unauthorized"),
    ):
        assert answer_of(hub.raw(*given))[1]["code"] == code, given
    bearer = f"Authorization: Bearer {hub.token}"
    for given, host, head, status in (
        ([bearer, "Origin: http://evil.test"], "", "GET /ws HTTP/1.1", 403),
        ([bearer, "Origin: null"], "", "GET /ws HTTP/1.1", 403),
        ([bearer, f"Origin: {ORIGIN}.evil.test"], "", "GET /ws HTTP/1.1", 403),
        ([bearer], "evil.test", "GET /ws HTTP/1.1", 421),
        ([bearer], f"evil.test:{hub.port}", "GET /ws HTTP/1.1", 421),
        ([bearer, "Host: 127.0.0.1"], "", "GET /ws HTTP/1.1", 421),
        ([], "", f"GET /ws?token={hub.token} HTTP/1.1", 400),
        ([], "", f"GET /{hub.token} HTTP/1.1", 400),
        ([bearer], "", "GET /other HTTP/1.1", 404),
        ([bearer], "", "GET /ws?x=1 HTTP/1.1", 404),
    ):
        assert answer_of(hub.raw(*given, host=host, head=head))[0] == status, (given, host, head)
    # A page: its token is a subprotocol, and the answer never has it.
    offered = [Subprotocol("aish"), Subprotocol(f"bearer.{encoded}")]
    with hub.connect(additional_headers={}, subprotocols=offered, origin=ORIGIN) as page:
        assert page.subprotocol == "aish"
        assert page.response is not None
        assert encoded not in str(page.response.headers)
        follow(page, "events")
    for own in ("127.0.0.1", "localhost"):
        with hub.connect(origin=f"http://{own}:{hub.port}"):
            pass
    with hub.connect(compression="deflate") as client:
        assert client.protocol.extensions == [], "nothing is compressed: no bomb is unpacked"


def test_a_token_of_a_variable_is_used_and_no_file_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    token = "t" * 40 + "/+=="
    options = {"ws": WsOptions(token_env="HUB")}
    with opened_packs(("ws",), None, options, secrets={"HUB": token}) as scene:
        result = scene.data("ws_start")
        assert result["token_file"] is None
        assert list(tmp_path.iterdir()) == []
        encoded = base64.urlsafe_b64encode(token.encode()).decode().rstrip("=")
        offered = [Subprotocol("aish"), Subprotocol(f"bearer.{encoded}")]
        with connect(result["url"], subprotocols=offered, proxy=None) as page:
            follow(page, "events")
    for value in ({}, {"HUB": "short"}):
        with (
            pytest.RaisesGroup(pytest.RaisesExc(UsageError, match="token of `ws`")),
            opened_packs(("ws",), None, options, secrets=value),
        ):
            pass


def test_other_machines_reach_it_only_if_that_is_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    with opened_packs(("ws",), None) as scene:
        for address in ("0.0.0.0:0", "[::]:0", "192.0.2.1:0"):
            assert scene.error("ws_start", address=address)["code"] == "blocked", address
        for address in ("", "x", "unix:/tmp/x.sock", "127.0.0.1:99999", "example.test:1"):
            error = scene.error("ws_start", address=address)
            assert error["code"] == "bad_arguments", address
            assert "`HOST:PORT`" in str(error), "what an address is"
        with socket.create_server(("127.0.0.1", 0)) as taken:
            address = f"127.0.0.1:{taken.getsockname()[1]}"
            assert scene.error("ws_start", address=address)["code"] == "unavailable"
        assert scene.data("ws_info")["running"] is False
        assert scene.data("ws_start")["already"] is False
    allowed = {"ws": WsOptions(allow_remote=True)}
    with opened_packs(("ws",), None, allowed) as scene:
        result = scene.data("ws_start", address="0.0.0.0:0")
        assert str(result["address"]).startswith("0.0.0.0:")
        assert str(result["url"]).startswith("ws://127.0.0.1:")


def test_messages_that_are_none_are_answered_and_channels_are_bounded(hub: Hub) -> None:
    with hub.connect() as client:
        for text, code in (
            ("", "bad_message"),
            ("[]", "bad_message"),
            ("[" * 100_000, "bad_message"),
            ('{"type":1,"type":2}', "bad_message"),
            ("{}", "bad_type"),
            ('{"type":"event","channel":"events","data":{}}', "bad_type"),
            ('{"type":"subscribe"}', "bad_channel"),
            ('{"type":"subscribe","channel":"other:x"}', "bad_channel"),
            ('{"type":"subscribe","channel":"chat:a\\nb"}', "bad_channel"),
            ('{"type":"subscribe","channel":["events"]}', "bad_channel"),
            ('{"type":"unsubscribe","channel":"events"}', "bad_channel"),
        ):
            client.send(text)
            message = said(client)
            assert (message["type"], message["data"]["code"]) == ("error", code), text[:50]
        codes = []
        for number in range(10_000):
            client.send(json.dumps({"type": "subscribe", "channel": f"chat:{number}"}))
            message = said(client)
            codes.append(message["type"] if message["data"] is None else message["data"]["code"])
        assert codes == ["subscribed"] * 1_000 + ["limit"] * 9_000
        rows = hub.info()["channels"]
        assert (len(rows), rows[0]) == (100, {"name": "chat:0", "clients": 1})
    eventually(lambda: hub.info()["channels"] == [])


def test_a_message_is_one_mebibyte_at_most_and_whole(hub: Hub) -> None:
    with hub.connect() as client:
        with suppress(ConnectionClosed):
            client.send("x" * (2 << 20))
        with pytest.raises(ConnectionClosed):
            client.recv(timeout=60)
    assert client.close_code in {1009, 1006}  # the rest of the message is not read
    with hub.connect() as client:
        client.send("x" * (1 << 20))
        assert said(client)["data"]["code"] == "bad_message"
        client.send(b"{")
        with pytest.raises(ConnectionClosed):
            client.recv(timeout=60)
    assert client.close_code == 1003, "messages are text"
    with hub.connect() as client:
        client.send(iter(['{"type":', '"pi', 'ng"}']))
        assert said(client)["type"] == "pong"
    parts = b"\x01\x80\0\0\0\0" + b"\x00\x80\0\0\0\0" * 50_000
    with hub.open_raw() as opened:
        with suppress(ConnectionError):
            for _ in range(20):
                opened.sendall(parts)
        with hub.connect() as client:
            client.send('{"type":"ping"}')
            assert said(client)["type"] == "pong", "others are answered"


def test_the_65th_client_is_refused_and_the_hub_goes_on(hub: Hub) -> None:
    with ExitStack() as stack:
        clients = [stack.enter_context(hub.connect()) for _ in range(64)]
        with pytest.raises(InvalidStatus) as refused, hub.connect():
            pass
        assert refused.value.response.status_code == 503
        # Those that only begin: the oldest go, and nobody who is in is disturbed.
        pending = [
            stack.enter_context(socket.create_connection(("127.0.0.1", hub.port), timeout=60))
            for _ in range(70)
        ]
        assert pending[0].recv(1) == b""
        follow(clients[0], "events")
        hub.tell("still there")
        assert said(clients[0])["data"]["text"] == "still there"
        assert hub.info()["clients"] == 64
        clients[1].close()
        eventually(lambda: hub.info()["clients"] == 63)
        stack.enter_context(hub.connect())


@pytest.mark.slow(reason="sends until buffers are full")
def test_a_slow_reader_loses_messages_and_slows_nobody(hub: Hub) -> None:
    subscribe = json.dumps({"type": "subscribe", "channel": "events"}).encode()
    frame = bytes([0x81, 0x80 | len(subscribe)]) + b"\0\0\0\0" + subscribe
    with hub.open_raw() as slow, hub.connect() as quick:
        slow.sendall(frame)
        follow(quick, "events")
        eventually(lambda: {"name": "events", "clients": 2} in hub.info()["channels"])
        text = "x" * 50_000
        for _ in range(400):
            hub.tell(text)
            assert said(quick)["type"] == "event"
        dropped = hub.info()["dropped"]
        assert dropped > 0
        # It reads at last: what waited comes, then how many are missing.
        data = b""
        slow.settimeout(60)
        # To the end of the message: a read may end anywhere within it.
        while not (end := re.search(rb'"type":"dropped".*?\}', data)):
            more = slow.recv(1 << 20)
            assert more
            data = data[-1_000:] + more
        assert end[0].endswith(json.dumps({"count": dropped}, separators=(",", ":")).encode())
    # A client that sends and sends, and reads no answer, is cut off.
    ping = b"\x89\x80\0\0\0\0"
    with hub.open_raw() as flooding:
        flooding.settimeout(60)
        with suppress(ConnectionError):
            flooding.sendall(ping * 1_000_000)
            while flooding.recv(1 << 20):
                pass
        eventually(lambda: hub.info()["clients"] == 0)
        with hub.connect() as client:
            client.send('{"type":"ping"}')
            assert said(client)["type"] == "pong"


def test_an_event_over_the_limit_is_named_and_not_sent(hub: Hub) -> None:
    with hub.connect() as client:
        follow(client, "events")
        hub.tell("x" * (2 << 20))
        data = {"seq": 1, "type": "notice", "truncated": True}
        assert said(client)["data"] == data


def test_the_end_of_the_run_closes_connections_and_removes_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    folder = tmp_path / "aish" / ".aish"
    # Nobody else listens on this address, also not on a port that has become free.
    host = "127.0.0.75"
    with ExitStack() as stack, hub_of(host=host) as first:
        client = stack.enter_context(first.connect())
        # What a killed process left is removed, what another one uses is not.
        left = folder / "ws-0123456789abcdef.token"
        left.write_text("x" * 40)
        left.chmod(0o600)
        with hub_of() as second:
            assert not left.exists()
            assert first.file.exists()
            assert second.file != first.file
        assert [one.name for one in folder.iterdir()] == [first.file.name]
    assert client.close_code == 1001
    assert list(folder.iterdir()) == []
    with pytest.raises(OSError, match="refused"):
        socket.create_connection((host, first.port), timeout=60)


def test_damaged_frames_end_their_connection_alone(hub: Hub) -> None:
    for frame in (
        b"\x81\x02hi",  # not masked
        b"\xc1\x80\0\0\0\0",  # a bit of an extension that was not agreed on
        b"\x80\x80\0\0\0\0",  # a part without a beginning
        b"\x83\x80\0\0\0\0",  # no such kind
        b"\x81\xff" + struct.pack("!Q", 1 << 62) + b"\0\0\0\0",
        b"\x81\x82\0\0\0\0\xff\xfe",  # not UTF-8
    ):
        with hub.open_raw() as opened:
            opened.sendall(frame)
            data = b""
            with suppress(ConnectionError):
                while more := opened.recv(65536):
                    data += more
            assert b"\x88" in data, frame
    assert hub.info()["running"] is True
