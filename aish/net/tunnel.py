"""Connections whose bytes are carried to another one: of a browser, or of a sandbox."""

import asyncio
import socket
import struct
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

import anyio

from aish.system.task_group import task_group

STEP: Final = 64 * 1024
_ONE_ADDRESS_SECONDS: Final = 5.0
_RESET: Final = struct.pack("ii", 1, 0)  # `struct linger`: on, and nothing is waited for


class TrafficMeter:
    """Counts what a connection carries, and puts its end off while it carries something.

    After one side has ended, `half_closed_seconds` count instead of `seconds`.
    """

    def __init__(
        self,
        idle: anyio.CancelScope,
        seconds: float,
        most_bytes: float = float("inf"),
        half_closed_seconds: float | None = None,
    ) -> None:
        self._idle = idle
        self._seconds = seconds
        self._left = most_bytes
        self._half_closed_seconds = half_closed_seconds

    @property
    def is_full(self) -> bool:
        """True if all permitted bytes have been carried."""
        return self._left < 0

    def count(self, size: int) -> None:
        """So many bytes more."""
        self._left -= size
        self._idle.deadline = anyio.current_time() + self._seconds

    def half_close(self) -> None:
        """Note that one side has ended."""
        if self._half_closed_seconds is not None:
            self._seconds = self._half_closed_seconds
            self.count(0)


async def receive(connection: socket.socket, most: int) -> bytes:
    return await asyncio.get_running_loop().sock_recv(connection, most)


async def send(connection: socket.socket, data: bytes) -> None:
    await asyncio.get_running_loop().sock_sendall(connection, data)


async def copy(source: socket.socket, target: socket.socket, meter: TrafficMeter) -> bool:
    """Copy until the source ends, and end the target; false where there is too much."""
    while piece := await receive(source, STEP):
        meter.count(len(piece))
        if meter.is_full:
            return False
        await send(target, piece)
        # Where both are always ready, nothing else would get its turn.
        await asyncio.sleep(0)
    target.shutdown(socket.SHUT_WR)
    return True


async def relay(connection: socket.socket, server: socket.socket, meter: TrafficMeter) -> None:
    """Copy bytes in both directions until both ends have closed; a reset resets both."""
    async with task_group() as tasks:

        async def one_way(source: socket.socket, target: socket.socket) -> None:
            try:
                if await copy(source, target, meter):
                    meter.half_close()
                    return
            except OSError:
                reset(connection)
                reset(server)
            tasks.cancel_scope.cancel()

        tasks.start_soon(one_way, connection, server)
        tasks.start_soon(one_way, server, connection)


def reset(connection: socket.socket) -> None:
    """Let the other side see an error when the connection is closed, and not its end."""
    with suppress(OSError):  # it is gone
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)


async def dial(addresses: Sequence[str], port: int) -> socket.socket:
    """A connection to the first of some addresses that answers.

    Raises:
        OSError: none does.
    """
    *others, last = addresses
    for address in others:
        with suppress(OSError), anyio.move_on_after(_ONE_ADDRESS_SECONDS):
            return await _dial_one(address, port)
    return await _dial_one(last, port)


async def _dial_one(address: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    made = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        made.setblocking(False)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await asyncio.get_running_loop().sock_connect(made, (address, port))
    except BaseException:
        made.close()
        raise
    return made
