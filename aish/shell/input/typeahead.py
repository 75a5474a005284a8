"""Shows the prompt before the session exists, because importing it takes longer than drawing.

Input typed meanwhile is used once the session exists.
"""

from contextlib import AbstractContextManager
from typing import TextIO

import anyio

from aish.shell.input.lines import Lines, OnKey


class TypeaheadLines:
    """`Lines` that wait for the first message before it is requested."""

    def __init__(self, lines: Lines) -> None:
        self._lines = lines
        self._first: list[str | None] = []
        self._typed = anyio.Event()
        self._begun = False
        self._failure: Exception | None = None

    @property
    def out(self) -> TextIO:
        return self._lines.out

    async def begin(self) -> None:
        """Wait for the first message; `next` raises an exception of that."""
        self._begun = True
        try:
            self._first.append(await self._lines.next())
        except Exception as error:  # ruff: ignore[blind-except] - raised where the line is asked for
            self._failure = error
        finally:
            self._typed.set()

    async def next(self) -> str | None:
        if self._begun:
            await self._typed.wait()
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure
        return self._first.pop() if self._first else await self._lines.next()

    def interrupt(self) -> None:
        self._lines.interrupt()

    async def edit(self, text: str, label: str) -> str | None:
        return await self._lines.edit(text, label)

    def busy(self, on_key: OnKey | None = None) -> AbstractContextManager[None]:
        return self._lines.busy(on_key)

    def question(self) -> AbstractContextManager[None]:
        return self._lines.question()

    def forget(self) -> None:
        self._lines.forget()

    def refresh(self) -> None:
        self._lines.refresh()

    def restore(self) -> None:
        self._lines.restore()
