"""The hub of events: who follows which channel, and what each is sent.

Imported when the hub is started. Each message is `{type, channel, data, timestamp}`; what comes
from outside stands within `data` only, so that no text can imitate a message of ours.
"""

import json
import re
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

from aish.core.events import EVENT_TYPES, Stamped, rfc3339, to_line
from aish.core.json import JsonObject, JsonValue, json_text, strict_json
from aish.net.listen.access import Access
from aish.net.listen.sockets import Listener
from aish.net.listen.websocket import SocketClient, SocketLimits, SocketServer, WebSocketService
from aish.packs.framework.channels import Follower
from aish.packs.framework.pack import PackServices

PATH = "/ws"
PROTOCOL = "aish"
"""The subprotocol that a page offers beside its token."""
MOST_CHANNELS = 1_000
EVENTS = "events"
_CHANNEL = re.compile(r"(?:process|ide|chat):[A-Za-z0-9._-]{1,100}", re.ASCII)
_SHOWN = 100


class EventHub:
    def __init__(self, services: PackServices, limits: SocketLimits) -> None:
        self._services = services
        self._limits = limits
        self._followers: dict[str, dict[SocketClient, None]] = {}
        self._channels: dict[SocketClient, set[str]] = {}
        self._dropped = 0
        self._unfollow: Callable[[], None] | None = None

    @property
    def clients(self) -> int:
        return len(self._channels)

    @property
    def dropped(self) -> int:
        """The number of messages dropped because their clients read too slowly."""
        return self._dropped + sum(client.dropped for client in self._channels)

    def channels(self) -> list[JsonValue]:
        counts = sorted((-len(clients), name) for name, clients in self._followers.items())
        return [{"name": name, "clients": -count} for count, name in counts[:_SHOWN]]

    @asynccontextmanager
    async def serve(
        self, listener: Listener, access: Access, report: Callable[[Exception], None]
    ) -> AsyncGenerator[None]:
        conversation = WebSocketService(self._on_open, self._message, self._on_close, _loss_message)
        stop = self._services.channels.follow(
            Follower(lambda channel: channel in self._followers, self._publish)
        )
        try:
            server = SocketServer(
                PATH, PROTOCOL, listener, access, conversation, report, self._limits
            )
            async with server.serve_clients():
                yield
        finally:
            stop()
            self._follow_events()

    def _on_open(self, client: SocketClient) -> None:
        self._channels[client] = set()

    def _on_close(self, client: SocketClient) -> None:
        self._dropped += client.dropped
        for channel in self._channels.pop(client, ()):
            self._leave(client, channel)
        self._follow_events()

    def _message(self, client: SocketClient, text: str) -> None:
        try:
            message = strict_json(text)
        except (ValueError, RecursionError):
            message = None
        if not isinstance(message, dict):
            client.send(_error(None, "bad_message", "a message is a JSON object"))
            return
        channel = message.get("channel")
        match message.get("type"):
            case "ping":
                client.send(_encode("pong", None, None))
            case "subscribe":
                client.send(self._subscribe(client, channel))
            case "unsubscribe":
                client.send(self._unsubscribe(client, channel))
            case _:
                reason = "the types are `subscribe`, `unsubscribe` and `ping`"
                client.send(_error(None, "bad_type", reason))

    def _subscribe(self, client: SocketClient, channel: object) -> bytes:
        if not isinstance(channel, str) or (channel != EVENTS and not _CHANNEL.fullmatch(channel)):
            message = "the channels are `events`, `process:ID`, `ide:TYPE` and `chat:ID`"
            return _error(None, "bad_channel", message)
        own = self._channels[client]
        if channel not in own and len(own) >= MOST_CHANNELS:
            message = f"a client follows at most {MOST_CHANNELS:,} channels"
            return _error(channel, "limit", message)
        own.add(channel)
        self._followers.setdefault(channel, {})[client] = None
        self._follow_events()
        return _encode("subscribed", channel, None)

    def _unsubscribe(self, client: SocketClient, channel: object) -> bytes:
        own = self._channels[client]
        if not isinstance(channel, str) or channel not in own:
            return _error(None, "bad_channel", "this channel is not followed")
        own.remove(channel)
        self._leave(client, channel)
        self._follow_events()
        return _encode("unsubscribed", channel, None)

    def _leave(self, client: SocketClient, channel: str) -> None:
        followers = self._followers[channel]
        del followers[client]
        if not followers:
            del self._followers[channel]

    def _follow_events(self) -> None:
        """Follow the events of the run while a client does."""
        follow = self._services.follow
        if EVENTS in self._followers and self._unfollow is None and follow is not None:
            reader = self._event  # the same object at its end
            self._unfollow = follow(reader)
        elif EVENTS not in self._followers and self._unfollow is not None:
            self._unfollow()
            self._unfollow = None

    def _event(self, stamped: Stamped) -> None:
        """An event of the run, as `--format jsonl` prints it."""
        line = to_line(stamped).strip()
        if len(line) > self._limits.message - _HEAD_ROOM:
            about: JsonObject = {
                "seq": stamped.seq,
                "type": EVENT_TYPES[type(stamped.event)],
                "truncated": True,
            }
            line = json_text(about).encode()
        self._send("event", EVENTS, line)

    def _publish(self, channel: str, type: str, data: JsonObject) -> None:  # ruff: ignore[builtin-argument-shadowing] - the word of the message
        encoded = json_text(data).encode("utf-8", "replace")
        if len(encoded) > self._limits.message - _HEAD_ROOM:
            encoded = b'{"truncated":true}'
        self._send(type, channel, encoded)

    def _send(self, type: str, channel: str, data: bytes) -> None:  # ruff: ignore[builtin-argument-shadowing] - the word of the message
        message = _frame(type, channel, data)
        for client in tuple(self._followers.get(channel, ())):
            client.send(message)


_HEAD_ROOM = 1_024


def _frame(type: str, channel: str | None, data: bytes) -> bytes:  # ruff: ignore[builtin-argument-shadowing] - the word of the message
    head = f'{{"type":{json.dumps(type)},"channel":{json.dumps(channel)},"data":'.encode()
    return head + data + f',"timestamp":"{rfc3339(time.time())}"}}'.encode()


def _encode(type: str, channel: str | None, data: JsonValue) -> bytes:  # ruff: ignore[builtin-argument-shadowing] - the word of the message
    return _frame(type, channel, json_text(data).encode())


def _error(channel: str | None, code: str, message: str) -> bytes:
    return _encode("error", channel, {"code": code, "message": message})


def _loss_message(count: int) -> bytes:
    """The message for a client that read too slowly: how many it missed, in all."""
    return _encode("dropped", None, {"count": count})
