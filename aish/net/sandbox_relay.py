"""Relay of a sandbox: aish listens in its network, and connects for the server in it.

Bytes are carried, and nothing in them is read: any protocol over TCP works, TLS between the two
ends. A name is looked up again for each connection. The name server of the sandbox answers from
the same list.
"""

import asyncio
import socket
import struct
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import Final, Literal

import anyio

from aish.net.address_guard import (
    BlockedAddressError,
    Destination,
    Resolve,
    host_text,
    system_addresses,
)
from aish.net.destinations import SandboxNetwork, guard_of
from aish.net.listen.addresses import Address
from aish.net.listen.sockets import Listener, accept_connections
from aish.net.name_server import reply_to
from aish.net.tunnel import TrafficMeter, dial, receive, relay, reset, send
from aish.system.task_group import task_group

MOST_CONNECTIONS: Final = 512
"""Of one server at a time; further ones wait."""
MOST_REFUSED: Final = 100
CONNECT_SECONDS: Final = 20.0
HALF_CLOSED_SECONDS: Final = 300.0
_QUERY_SECONDS: Final = 60.0
_LONGEST_QUERY: Final = 65_535
_SIZE: Final = struct.Struct("!H")

Refusal = Literal["unlisted", "not public", "no descriptors"]
OnRefused = Callable[[str, Refusal], None]
"""Told a name, safe to print, that was asked for in vain, and why."""


class SandboxRelay:
    """Serves the sockets of one sandbox, of which it is the owner."""

    def __init__(
        self,
        network: SandboxNetwork,
        sockets: Sequence[socket.socket],
        on_refused: OnRefused,
        resolve: Resolve = system_addresses,
    ) -> None:
        *self._listening, self._queries, self._query_listener = sockets
        self._sockets = ExitStack()
        for opened in sockets:
            self._sockets.enter_context(opened)
        self._is_served = False
        self._network = network
        self._names: Mapping[str, str] = {"localhost": "127.0.0.1", **network.addresses}
        self._guard = guard_of(network.listed, resolve)
        self._on_refused = on_refused
        self._refused: set[str] = set()
        self._places = asyncio.Semaphore(MOST_CONNECTIONS)
        self._serving = anyio.CancelScope()

    def close(self) -> None:
        """End `serve`, which may begin later; nothing is left open."""
        self._serving.cancel()
        if not self._is_served:
            self._sockets.close()

    async def serve(self) -> None:
        """Serve until `close`; then nothing is open any more."""
        by_end: dict[tuple[str, int], list[Destination]] = {}
        for one in self._network.listed:
            by_end.setdefault(self._network.end(one), []).append(one.destination)
        if self._serving.cancel_called:
            return
        self._is_served = True
        with self._sockets, self._serving:
            async with task_group() as tasks:
                for (end, found), opened in zip(by_end.items(), self._listening, strict=True):
                    tasks.start_soon(self._accept, opened, end, tuple(dict.fromkeys(found)))
                tasks.start_soon(self._accept, self._query_listener, None, ())
                tasks.start_soon(self._answer_datagrams)

    async def _accept(
        self,
        opened: socket.socket,
        end: tuple[str, int] | None,
        destinations: Sequence[Destination],
    ) -> None:
        host, port = opened.getsockname()[:2]
        listener = Listener(Address(host=host, port=port), opened)

        def on_fault(_: Exception) -> None:
            for name in map(str, destinations):
                self._refuse(name, "no descriptors")

        async with task_group() as tasks:
            async for connection in accept_connections(listener, on_fault):
                connection.setblocking(False)
                # Others wait in the queue of the kernel; the loop is not held by a flood of them.
                await self._places.acquire()
                await asyncio.sleep(0)
                tasks.start_soon(self._talk, connection, end, destinations)

    async def _talk(
        self,
        connection: socket.socket,
        end: tuple[str, int] | None,
        destinations: Sequence[Destination],
    ) -> None:
        """Serve one connection: of a destination, or of the name server."""
        try:
            with connection:
                if end is None:
                    with suppress(OSError), anyio.move_on_after(_QUERY_SECONDS):
                        await self._answer_stream(connection)
                else:
                    await self._connect(connection, end, destinations)
        finally:
            self._places.release()

    async def _connect(
        self,
        connection: socket.socket,
        end: tuple[str, int],
        destinations: Sequence[Destination],
    ) -> None:
        address, port = end
        try:
            with anyio.fail_after(CONNECT_SECONDS):
                server = await dial(await self._addresses(address, destinations), port)
        except OSError:  # also a `TimeoutError`
            reset(connection)
            return
        with server, anyio.CancelScope() as idle:
            server.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            never = float("inf")
            await relay(connection, server, TrafficMeter(idle, never, never, HALF_CLOSED_SECONDS))

    async def _addresses(self, first: str, destinations: Sequence[Destination]) -> Sequence[str]:
        """The addresses that a destination has now, the one that was connected to first.

        Where several hosts share that, it alone is known to be the right one.
        """
        found: list[str] = []
        for wanted in destinations:
            try:
                found += await self._guard.addresses(wanted.host, wanted.port)
            except BlockedAddressError:
                self._refuse(wanted.host, "not public")
                raise
            except OSError:  # the name cannot be looked up now: it was when the server started
                found.append(first)
        if len(destinations) > 1 or first in found:
            return list(dict.fromkeys([first, *found]))
        return found

    async def _answer_datagrams(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            # An answer that cannot be sent is asked for again.
            with suppress(OSError):
                query, peer = await loop.sock_recvfrom(self._queries, _LONGEST_QUERY)
                if answer := self._answer(query):
                    await loop.sock_sendto(self._queries, answer, peer)
            await asyncio.sleep(0)

    async def _answer_stream(self, connection: socket.socket) -> None:
        while head := await _exactly(connection, _SIZE.size):
            answer = self._answer(await _exactly(connection, *_SIZE.unpack(head)))
            if not answer:
                return
            await send(connection, _SIZE.pack(len(answer)) + answer)

    def _answer(self, query: bytes) -> bytes:
        reply = reply_to(query, self._names)
        if reply.refused:
            self._refuse(reply.refused, "unlisted")
        return reply.data

    def _refuse(self, name: str, why: Refusal) -> None:
        if name not in self._refused and len(self._refused) < MOST_REFUSED:
            self._refused.add(name)
            self._on_refused(host_text(name), why)


async def _exactly(connection: socket.socket, size: int) -> bytes:
    """So many bytes; none if the connection ends before."""
    data = b""
    while len(data) < size:
        piece = await receive(connection, size - len(data))
        if not piece:
            return b""
        data += piece
    return data
