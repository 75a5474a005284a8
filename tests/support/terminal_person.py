"""A person at a pseudo-terminal: reads what is shown there and types lines."""

import os
import pty
import termios
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

import anyio

from aish.terminal.tty import Turns

Result = TypeVar("Result")


@dataclass
class PersonAtTerminal:
    """Sits at the master end."""

    master: int
    slave: int
    waiting: bytes = b""
    place: int = 0

    @property
    def seen(self) -> str:
        """All that was shown, without carriage returns."""
        return self.waiting.decode("utf-8", "replace").replace("\r", "")

    @property
    def turns(self) -> Turns:
        """The terminal as whoever asks has it."""
        return Turns(reader=self.slave, writer=self.slave)

    async def hears(self, text: str) -> None:
        """Read until `text` is shown once more than when this was called last."""
        while text not in self.seen[self.place :]:
            await anyio.wait_readable(self.master)
            self.waiting += os.read(self.master, 65536)
        self.place = self.seen.index(text, self.place) + len(text)

    def talk(self, ask: Callable[[], Awaitable[Result]], *lines: tuple[str, str]) -> Result:
        """What `ask` comes to where each of the prompts, in turn, is answered by a line."""

        async def type_all() -> None:
            for prompt, typed in lines:
                await self.hears(prompt)
                os.write(self.master, typed.encode())

        async def scene() -> list[Result]:
            found: list[Result] = []
            with anyio.fail_after(60):
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(type_all)
                    found.append(await ask())
            return found

        return anyio.run(scene)[0]


@contextmanager
def person_at_terminal(width: int = 80) -> Generator[PersonAtTerminal]:
    """A person at a terminal of their own."""
    master, slave = pty.openpty()
    termios.tcsetwinsize(slave, (24, width))
    try:
        yield PersonAtTerminal(master, slave)
    finally:
        os.close(master)
        os.close(slave)
