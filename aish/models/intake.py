"""Bytes between the task that reads from the network and the one that makes sense of them.

Whatever has come by the time the second one looks is handed over as one piece: a thousand network
chunks that arrive together cost their decoding, and not a thousand turns of everything behind it.
A replay has all of them at once, and hands them over as they were cut when they came (C3).
"""

import asyncio
from collections import deque

from aish.models.failure import AttemptError
from aish.models.retry import REFUSED

CAP = 64 * 1024 * 1024
_PLENTY = 1024 * 1024
# Pieces of a replay after which others have their turn.
_TURN = 64


class Intake:
    """One response's body; one task puts, one takes."""

    __slots__ = (
        "_arrived",
        "_chunks",
        "_ended",
        "_failure",
        "_held",
        "_room",
        "_size",
        "_taken",
        "keeps_cuts",
    )

    def __init__(self) -> None:
        self._chunks: deque[bytes] = deque()
        self._taken = 0
        self.keeps_cuts = False
        """Whether what came apart is taken apart."""
        self._held = 0
        self._size = 0
        self._ended = False
        self._failure: Exception | None = None
        self._arrived = asyncio.Event()
        self._room = asyncio.Event()

    @property
    def empty(self) -> bool:
        """Whether everything that came was taken."""
        return not self._chunks

    def put(self, chunk: bytes) -> bool:
        """Take in a chunk; whether there is room for another right away.

        Raises:
            AttemptError: the body is larger than any answer.
        """
        self._held += len(chunk)
        self._chunks.append(chunk)
        self._arrived.set()
        return self._held < _PLENTY

    async def room(self) -> None:
        """Wait until what was put was taken."""
        self._size += self._held
        if self._size > CAP:
            raise AttemptError("the answer is larger than 64 MiB", REFUSED)
        while self._chunks:
            self._room.clear()
            await self._room.wait()

    def end(self, failure: Exception | None) -> None:
        """Nothing more will come, because of a failure or not."""
        self._ended = True
        self._failure = failure
        self._arrived.set()

    async def ended(self) -> None:
        """Wait for the end, whether or not everything was taken."""
        while not self._ended:
            self._arrived.clear()
            await self._arrived.wait()

    async def take(self) -> bytes:
        """What has come since the last time, at least something; nothing at the end.

        Raises:
            Exception: the failure that ended it, once everything before it was taken.
        """
        while not self._chunks:
            if self._ended:
                if self._failure is not None:
                    raise self._failure
                return b""
            self._arrived.clear()
            await self._arrived.wait()
        if self.keeps_cuts:
            return await self._take_one()
        data = self._chunks[0] if len(self._chunks) == 1 else b"".join(self._chunks)
        self._chunks.clear()
        self._held = 0
        self._room.set()
        return data

    async def _take_one(self) -> bytes:
        self._taken += 1
        if self._taken % _TURN == 0:
            await asyncio.sleep(0)
        data = self._chunks.popleft()
        self._held -= len(data)
        if not self._chunks:
            self._room.set()
        return data
