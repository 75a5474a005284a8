"""Reading and writing pipes without blocking, and without a buffer of our own (X6)."""

import contextlib
import os

import anyio
import anyio.lowlevel

CHUNK = 1 << 16


class PipeReader:
    """The reading end of a pipe; what is not asked for stays with the writer."""

    def __init__(self, descriptor: int) -> None:
        os.set_blocking(descriptor, False)
        self._descriptor: int | None = descriptor
        self._ready = 0

    async def read(self, most: int = CHUNK) -> bytes:
        """Some bytes; none at the end, or after `close`."""
        self._ready += 1
        if self._ready % 16 == 0:  # a writer that never pauses must not hold the loop
            await anyio.lowlevel.checkpoint()
        while self._descriptor is not None:
            try:
                return os.read(self._descriptor, most)
            except BlockingIOError:
                with contextlib.suppress(anyio.ClosedResourceError):
                    await anyio.wait_readable(self._descriptor)
        return b""

    def close(self) -> None:
        """Close the pipe; who waits for it reads its end."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            anyio.notify_closing(descriptor)
            os.close(descriptor)


class PipeWriter:
    """The writing end of a pipe."""

    def __init__(self, descriptor: int) -> None:
        os.set_blocking(descriptor, False)
        self._descriptor: int | None = descriptor

    async def write(self, data: bytes) -> None:
        """Write everything; a write that is cancelled may have written a part.

        Raises:
            BrokenPipeError: nobody reads any more, or `close` was called.
        """
        rest = memoryview(data)
        while rest:
            if self._descriptor is None:
                raise BrokenPipeError
            try:
                rest = rest[os.write(self._descriptor, rest) :]
            except BlockingIOError:
                with contextlib.suppress(anyio.ClosedResourceError):
                    await anyio.wait_writable(self._descriptor)

    def close(self) -> None:
        """Close the pipe; the reader reads its end."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            anyio.notify_closing(descriptor)
            os.close(descriptor)
