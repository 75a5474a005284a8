"""A server in a child process: one message per line on its stdin and stdout."""

import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
from anyio.abc import TaskGroup

from aish.core.events import UNCONFINED
from aish.mcp.protocol import messages
from aish.mcp.protocol.messages import (
    MAX_LINE,
    LineBuffer,
    NotAMessageError,
    NotSentError,
    RpcResponse,
    ServerEndedError,
    TransportError,
)
from aish.mcp.transports.pending_requests import Pending
from aish.mcp.transports.settings import ServerConnection
from aish.mcp.transports.transport import Headers, Inbox, Outgoing, hears_already
from aish.system.process.child import Child, start_child
from aish.system.process.reaper import Reaper
from aish.system.process.reaper_process import MARK
from aish.system.secrets.secrets import Secrets

if TYPE_CHECKING:
    from aish.mcp.transports.confined import Confinement

StartConfined = Callable[
    [Path | None, Secrets | None], Awaitable["tuple[Child, Confinement] | None"]
]
"""Starts the server in its sandbox; `None` if there is none, and it may do without."""

GRACE_SECONDS = 2.0
"""How long a child may take to leave after its stdin is closed, and again after SIGTERM."""
LAST_WORDS_SECONDS = 0.2
"""How long what a dead child has written may take to be read."""
NOISE_SHOWN = 200


class Stdio:
    """The transport to a child; its stdout is read by a task of `tasks`."""

    over_http = False
    has_session = False
    listen = staticmethod(hears_already)

    def __init__(
        self,
        connection: ServerConnection,
        tasks: TaskGroup,
        *,
        reaper: Reaper,
        log: Path | None,
        secrets: Secrets | None,
        on_noise: Callable[[str], None],
        on_ended: Callable[[str], None] | None = None,
        start_confined: "StartConfined | None" = None,
    ) -> None:
        self._connection = connection
        self._tasks = tasks
        self._reaper = reaper
        self._log = log
        self._secrets = secrets
        self._on_noise = on_noise
        self._on_ended = on_ended
        self._quiet = True
        self._pending = Pending()
        self._writing = anyio.Lock(fast_acquire=True)
        self._start_confined = start_confined
        self._confinement: Confinement | None = None
        self.sandbox = "" if start_confined is not None else UNCONFINED
        """Its sandbox in words, once what starts it has chosen one."""
        self._child: Child | None = None
        self._said = ""
        self._failure = ServerEndedError("the server is not running")

    @property
    def stderr_excerpt(self) -> str:
        return self._said if self._child is None else self._child.stderr_excerpt

    async def open(self, inbox: Inbox) -> None:
        await self.close()
        try:
            child = await self._start()
        except OSError as error:
            why = error.strerror or str(error)
            word = self._connection.command[0]
            raise TransportError(f"cannot start `{word}`: {why}") from error
        self._child = child
        ended = anyio.Event()
        self._tasks.start_soon(self._read, child, inbox, ended)
        self._tasks.start_soon(_outlive, child, ended)

    async def _start(self) -> Child:
        if self._start_confined is not None:
            started = await self._start_confined(self._log, self._secrets)
            if started is not None:
                child, self._confinement = started
                if self._confinement.relay is not None:
                    self._tasks.start_soon(self._confinement.relay.serve)
                return child
            self.sandbox = UNCONFINED
        entry = self._connection.entry
        return await start_child(
            self._connection.command,
            cwd=entry.cwd or Path(),
            env={**self._connection.child_env, MARK: os.urandom(16).hex()},
            reaper=self._reaper,
            stderr_to=self._log,
            secrets=self._secrets,
        )

    async def _leave_sandbox(self) -> None:
        confinement, self._confinement = self._confinement, None
        if confinement is not None:
            with anyio.CancelScope(shield=True):
                await confinement.close()

    async def exchange(self, outgoing: Outgoing) -> RpcResponse:
        self._pending.open(outgoing.number)
        try:
            await self.send(messages.request(outgoing.number, outgoing.method, outgoing.params))
            return await self._pending.wait(outgoing.number)
        finally:
            self._pending.forget(outgoing.number)

    async def send(self, body: bytes, headers: Headers = ()) -> None:  # ruff: ignore[unused-method-argument] - for HTTP
        """Write one message; messages are never interleaved."""
        async with self._writing:
            child = self._child
            if child is None:
                raise NotSentError(self._failure.message)
            try:
                await child.write(body + b"\n")
            except BrokenPipeError as error:
                raise NotSentError(await _why_deaf(child)) from error
            except anyio.get_cancelled_exc_class():
                # The line may be incomplete: all that follows would be unreadable.
                self._tasks.start_soon(child.stop, 0)
                raise

    async def close(self) -> None:
        child = self._child
        if child is not None:
            has_ended = child.exit_code is not None
            code = await child.stop(GRACE_SECONDS)
            self._handle_loss(child, _exit_text(code) if has_ended else "the server is closed")
        await self._leave_sandbox()

    async def _read(self, child: Child, inbox: Inbox, ended: anyio.Event) -> None:
        lines = LineBuffer()
        while chunk := await child.read():
            for line in lines.feed(chunk):
                try:
                    self._pending.take(line, inbox)
                except NotAMessageError:
                    self._noise(line)
            if lines.dropped:
                lines.dropped = 0
                text = f"the server wrote a line of more than {MAX_LINE} bytes"
                self._pending.fail(TransportError(text))
        ended.set()
        code = await child.stop(GRACE_SECONDS)
        if self._child is child:
            reason = _exit_text(code)
            self._handle_loss(child, reason)
            await self._leave_sandbox()
            if self._on_ended is not None:
                self._on_ended(reason)

    def _handle_loss(self, child: Child, reason: str) -> None:
        if self._child is child:
            self._said = child.stderr_excerpt
            self._child = None
            self._failure = ServerEndedError(reason)
            self._pending.fail(self._failure)

    def _noise(self, line: bytes) -> None:
        if self._quiet:
            self._quiet = False
            self._on_noise(line[:NOISE_SHOWN].decode("utf-8", "replace"))


async def _why_deaf(child: Child) -> str:
    """Why a child no longer reads: usually it is about to end, and its exit status says more."""
    with anyio.move_on_after(LAST_WORDS_SECONDS):
        return _exit_text(await child.wait())
    return "the server no longer reads its stdin"


async def _outlive(child: Child, ended: anyio.Event) -> None:
    """Wait until the child ends; its children must not keep its stdout open any longer."""
    await child.wait()
    with anyio.move_on_after(LAST_WORDS_SECONDS):
        await ended.wait()
    await child.stop(0)


def _exit_text(code: int) -> str:
    how = f"signal {-code}" if code < 0 else f"exit code {code}"
    return f"the server ended with {how}"
