"""A connection to a bridge, which is reopened when it is lost.

A message is `{type, channel, sessionId, data, timestamp}`, with an `id`. Most bridges forward it
and answer nothing; only one that has sent a `replyTo` before is waited for. Its answer has the id
as `replyTo`, and `data` or `error: {code, message}`. Other messages are published on the channel
`ide:<type>`. Imported only if the option `bridge` is set.
"""

import json
import logging
import os
import random
import re
import ssl
import time
from collections.abc import Awaitable, Callable, Mapping
from secrets import token_hex
from urllib.parse import urlsplit

import anyio
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import InvalidStatus, WebSocketException

from aish.core.events import rfc3339
from aish.core.json import JsonObject, JsonValue, strict_json
from aish.core.phrases import shorten
from aish.core.text import for_line
from aish.core.tools import CALL_DEADLINE
from aish.packs.framework.channels import Channels
from aish.packs.ide.ide_options import BridgeOptions
from aish.packs.pack_error import PackError
from aish.system.secrets.secrets import Secrets

ANSWER_SECONDS = 5.0
LIFE_SECONDS = 2.0
"""How long a connection lives until the next wait is the first again."""
MOST_WAITING = 64
_MESSAGE = 1 << 20
_SAID = 1_000
_OPEN_SECONDS = 10.0
_JITTER = 0.2
_TYPE = re.compile(r"[A-Za-z0-9._-]{1,100}", re.ASCII)
_SILENT = logging.getLogger("aish.packs.ide.bridge")
_SILENT.setLevel(logging.CRITICAL + 1)
_SILENT.propagate = False


class ReconnectPauses:
    """Pauses between attempts to connect: doubled each time, with some jitter."""

    def __init__(self, first: float, most: float) -> None:
        self._first = first
        self._most = most
        self._count = 0

    def next(self) -> float:
        wait = min(self._first * 2.0**self._count, self._most)
        self._count = min(self._count + 1, 30)
        return wait * random.uniform(1 - _JITTER, 1 + _JITTER)  # ruff: ignore[suspicious-non-cryptographic-random-usage] - spreads connections

    def reset(self) -> None:
        """Start again with the first pause, after a useful connection."""
        self._count = 0


class _Connecting(connect):
    """Follows no redirect, because the token is for the configured address."""

    def process_redirect(self, exc: Exception) -> Exception:  # ruff: ignore[no-self-use] - overrides
        return exc


class _EditorRequest:
    def __init__(self) -> None:
        self.answered = anyio.Event()
        self.reply: Mapping[str, JsonValue] | None = None


class Bridge:
    """Asks a bridge; `run` keeps the connection open."""

    def __init__(
        self,
        options: BridgeOptions,
        token: str | None,
        channels: Channels,
        secrets: Secrets | None,
        session: str = "",
        *,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = anyio.sleep,
    ) -> None:
        self._options = options
        self._headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self._channels = channels
        self._session = session
        self._answers = False
        self._secrets = Secrets() if secrets is None else secrets
        self._monotonic = monotonic
        self._sleep = sleep
        self._waits = ReconnectPauses(options.reconnect, options.most)
        self._connection: ClientConnection | None = None
        self._problem = "no connection could be opened yet"
        self._tried = anyio.Event()
        self._requests: dict[str, _EditorRequest] = {}

    @property
    def is_online(self) -> bool:
        return self._connection is not None

    async def run(self) -> None:
        while True:
            try:
                await self._run_connection()
                self._problem = "it closed the connection"
            except (OSError, WebSocketException, EOFError, UnicodeError) as error:
                self._problem = _error_text(error)  # calls are told; the next wait is longer
            finally:
                self._connection = None
                self._tried.set()
                for request in self._requests.values():
                    request.answered.set()
            await self._sleep(self._waits.next())

    async def ask(self, type: str, data: JsonObject) -> Mapping[str, JsonValue] | None:  # ruff: ignore[builtin-argument-shadowing] - the word of the message
        """Return the bridge's answer; `None` if there is none within 5 seconds.

        Raises:
            PackError: `unavailable` if it is down or its answer is not valid; or its own error.
        """
        with anyio.move_on_after(ANSWER_SECONDS):
            await self._tried.wait()
        connection = self._connection
        if connection is None:
            where = urlsplit(self._options.url)
            at = for_line(where.netloc.rpartition("@")[2])
            why = shorten(for_line(self._secrets.mask(self._problem)), _SAID)
            raise PackError("unavailable", f"the bridge at {at} is not connected: {why}")
        if len(self._requests) >= MOST_WAITING:
            raise PackError("unavailable", f"{MOST_WAITING} requests wait for the bridge")
        id = token_hex(8)
        message = {
            "id": id,
            "type": type,
            "channel": "ide",
            "sessionId": data.get("session_id") or self._session,
            "data": data,
            "timestamp": rfc3339(time.time()),
        }
        self._requests[id] = request = _EditorRequest()
        left = CALL_DEADLINE.get() - anyio.current_time() - 1
        try:
            with anyio.move_on_after(max(min(ANSWER_SECONDS, left), 0)):
                await connection.send(self._secrets.mask(json.dumps(message)))
                if self._answers:
                    await request.answered.wait()
        except WebSocketException as error:
            raise PackError("unavailable", "the connection to the bridge was lost") from error
        finally:
            del self._requests[id]
        if request.reply is not None:
            return _data(request.reply)
        if request.answered.is_set():
            raise PackError("unavailable", "the connection to the bridge was lost")
        return None

    async def _run_connection(self) -> None:
        """Open a connection and handle its messages until it ends."""
        async with _Connecting(
            self._options.url,
            additional_headers=self._headers,
            compression=None,
            max_size=_MESSAGE,
            open_timeout=_OPEN_SECONDS,
            close_timeout=1,
            proxy=None,
            user_agent_header=None,
            logger=_SILENT,
        ) as connection:
            began = self._monotonic()
            self._connection = connection
            self._tried.set()
            try:
                async for text in connection:
                    self._waits.reset()
                    self._take(text)
            finally:
                if self._monotonic() - began >= LIFE_SECONDS:
                    self._waits.reset()
                # Otherwise a cancellation would cut the goodbye off, and leave the socket open.
                with anyio.CancelScope(shield=True):
                    await connection.close()

    def _take(self, text: str | bytes) -> None:
        try:
            value = strict_json(text if isinstance(text, str) else text.decode())
        except (ValueError, RecursionError):
            return
        # Not before it is read: JSON spells a character in several ways.
        message = self._secrets.mask_json(value)
        if not isinstance(message, dict):
            return
        self._answers = self._answers or "replyTo" in message
        request = self._requests.get(str(message.get("replyTo")))
        if request is not None:
            request.reply = message
            request.answered.set()
            return
        kind, data = message.get("type"), message.get("data")
        if isinstance(kind, str) and _TYPE.fullmatch(kind):
            about = data if isinstance(data, dict) else {"value": data}
            self._channels.publish(f"ide:{kind}", kind, about)


def _error_text(error: Exception) -> str:
    """Return the reason why a connection failed or ended."""
    match error:
        case TimeoutError():
            return f"no answer in {_OPEN_SECONDS:.0f} s"
        case InvalidStatus():
            return f"it answered with HTTP {error.response.status_code}"
        case ssl.SSLError():  # its numbers are those of the library
            return str(error)
        case OSError() if error.errno is not None and error.errno > 0:
            return os.strerror(error.errno).lower()
    return str(error) or "the connection was lost"


def _data(reply: Mapping[str, JsonValue]) -> Mapping[str, JsonValue]:
    error = reply.get("error")
    if isinstance(error, dict):
        reason = for_line(str(error.get("message") or "it gave no reason"))
        raise PackError(str(error.get("code")), f"the bridge: {shorten(reason, _SAID)}")
    data = reply.get("data")
    if not isinstance(data, dict):
        raise PackError("unavailable", "the bridge answered without data")
    return data
