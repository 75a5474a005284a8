"""A program that has the editor of `aish shell` and nothing else, for tests at a terminal.

argv: the history file or `-`, and a FIFO from which commands come in lines. What is typed is told
as JSON; lines that begin with `:` do something.
"""

import asyncio
import json
import os
import signal
import sys
import termios
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import anyio

from aish.engine.cancellation import Interrupt, interruptible
from aish.output.screen import Screen
from aish.output.style import Look
from aish.shell.input.editor import EditorSettings
from aish.shell.input.lines import INTERRUPTED, Lines
from aish.shell.input.open_editor import open_editor
from aish.terminal.tty import open_terminal


class SomeWords:
    def commands(self) -> Mapping[str, str]:
        return {"mcp": "servers", "model": "shows or switches the model", "attach": "a file"}

    def arguments(self, command: str) -> Sequence[str]:
        return {"mcp": ("list", "tools"), "model": ("local", "large")}.get(command, ())

    def paths(self, command: str) -> bool:
        return command == "attach"

    def tools(self) -> Sequence[str]:
        return ("repo__file_read", "repo__file_write")


class Driver:
    def __init__(self) -> None:
        self.prompt = "local"
        self.toolbar = ""
        self.lines: Lines
        self.screen: Screen
        self.done = anyio.Event()
        self.scope = anyio.CancelScope()

    def settings(self, history: str) -> EditorSettings:
        return EditorSettings(
            SomeWords(),
            prompt=lambda: self.prompt,
            toolbar=self.toolbar_text,
            notice=lambda text: self.screen.line(f"notice: {text}"),
            history=None if history == "-" else Path(history),
            mask=lambda text: text.replace("s3cret", "***"),
            color=not os.environ.get("NO_COLOR"),
        )

    def toolbar_text(self) -> str:
        if self.toolbar == "bug":
            raise RuntimeError("a bug in the toolbar")
        return self.toolbar

    async def converse(self) -> None:
        while (text := await self.lines.next()) is not None:
            word, _, rest = text.partition(" ")
            if word == ":quit":
                break
            if text == INTERRUPTED:
                self.screen.line("put aside")
                continue
            if word in {":busy", ":halt", ":ask", ":crash", ":typed"}:
                await self.be_busy(word)
            elif word == ":edit":
                self.tell("edited", await self.lines.edit(rest, "edit: "))
            else:
                self.tell("got", text)
        with suppress(OSError):
            self.screen.line("left")

    async def be_busy(self, word: str) -> None:
        self.done = anyio.Event()
        on_key = self.done.set if word == ":halt" else None
        loop = asyncio.get_running_loop()
        with anyio.CancelScope() as scope, self.lines.busy(on_key):
            loop.add_signal_handler(signal.SIGINT, scope.cancel)
            self.screen.line("busy")
            if word == ":crash":
                raise RuntimeError("a bug while busy")
            if word == ":ask":
                await self.ask()
            else:
                await self.done.wait()
        if scope.cancelled_caught:
            self.lines.forget()
        self.screen.line("interrupted" if scope.cancelled_caught else "free")

    async def ask(self) -> None:
        with self.lines.question(), open_terminal() as terminal:
            self.tell("answered", await terminal.ask("sure?"))

    async def obey(self, fifo: str) -> None:
        descriptor = os.open(fifo, os.O_RDWR | os.O_NONBLOCK)
        while True:
            await anyio.wait_readable(descriptor)
            for command in os.read(descriptor, 4096).decode().splitlines():
                word, _, rest = command.partition(" ")
                await self.command(word, rest)

    async def command(self, word: str, rest: str) -> None:
        if word == "done":
            self.done.set()
        elif word == "above":
            self.screen.line(rest)
        elif word == "begin":
            self.screen.text(rest)
        elif word == "from-thread":
            await anyio.to_thread.run_sync(self.screen.line, rest)
        elif word == "ask":
            await self.ask()
        elif word == "interrupt":
            self.lines.interrupt()
        elif word == "ask-interrupted":
            with self.lines.question():
                self.lines.interrupt()
                with open_terminal() as terminal:
                    self.tell("answered", await terminal.ask("sure?"))
        elif word in {"toolbar", "prompt"}:
            setattr(self, word, rest)
            self.lines.refresh()

    def tell(self, what: str, text: str | None) -> None:
        shown = json.dumps(text)
        if len(shown) > 200:
            assert text is not None
            shown = f"{len(text)} characters, {text.count(chr(10)) + 1} lines"
        self.screen.line(f"{what}: {shown}")


async def main(history: str, fifo: str) -> int:
    driver = Driver()
    seen = Interrupt()
    with open_editor(driver.settings(history), os.environ, sys.stdin, sys.stdout) as lines:
        driver.lines = lines
        driver.screen = Screen(lines.out, Look())
        if "STARTING" in os.environ:
            driver.screen.line("starting")
            signal.pause()
        async with anyio.create_task_group() as tasks:
            with interruptible(lambda _: tasks.cancel_scope.cancel()) as seen:
                tasks.start_soon(driver.obey, fifo)
                await driver.converse()
                tasks.cancel_scope.cancel()
    try:
        local = termios.tcgetattr(0)[3]
        sane = bool(local & termios.ECHO and local & termios.ICANON and local & termios.ISIG)
        print(f"ended {seen.code!r} sane={sane}", flush=True)
    except (OSError, termios.error):
        # The terminal is gone: nobody is left to be told.
        os._exit(int(seen.code or 0))
    return int(seen.code or 0)


if __name__ == "__main__":
    sys.exit(anyio.run(main, sys.argv[1], sys.argv[2]))
