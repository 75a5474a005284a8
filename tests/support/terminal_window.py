"""A terminal for a program to run in, and what a person would see there.

with Window(argv, env=env, cwd=folder) as window:
    window.wait_for("local> ")
    window.type("hello\\r")
"""

import os
import pty
import re
import select
import signal
import termios
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import pexpect
import ptyprocess
import pyte
from cli_process import forked_arguments
from fork_server import ForkServer
from wcwidth import wcwidth

PATIENCE = 60.0
_PIECE = 1 << 16
_COLOR = re.compile(rb"\x1b\[[0-9;]*?\b(?:[349][0-7]|[34]8;[0-9;]+)[0-9;]*m")


def close_terminal(child: "pexpect.spawn[Any]") -> None:
    """Close the terminal of a program, and see that it has ended."""
    try:
        child.close(force=True)
    except pexpect.ExceptionPexpect:
        # It was killed a tenth of a second ago, which a busy machine does not do sooner.
        child.ptyproc.wait()  # type: ignore[attr-defined]  # the stubs lack it


class Window:
    """A program in a pseudo-terminal; `raw` is every byte that it wrote."""

    def __init__(
        self,
        argv: Sequence[str],
        *,
        cwd: Path,
        env: Mapping[str, str],
        rows: int = 24,
        columns: int = 80,
        warm: ForkServer | None = None,
    ) -> None:
        self.raw = b""
        self.watched = True
        """Whether what comes is drawn, which takes a second for a few hundred KiB."""
        self._screen: Any = pyte.Screen(columns, rows)
        self._stream: Any = pyte.ByteStream(self._screen)
        self._drawn: list[str] = []
        self._since: Any = None
        self._since_stream: Any = None
        arguments = forked_arguments(argv, env, warm)
        spawn: Any = pexpect.spawn
        if warm is not None and arguments is not None:
            spawn = _spawn_of(warm, arguments, cwd, env)
        self.child: Any = spawn(
            argv[0], list(argv[1:]), cwd=str(cwd), env=dict(env), dimensions=(rows, columns)
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the window, and see that the program has ended."""
        close_terminal(self.child)

    @property
    def lines(self) -> list[str]:
        """What stands on the screen, without the empty end."""
        screen = self._screen
        # Only rows that changed are read again. A combining character may go to the row above.
        changed = {*screen.dirty, *(y - 1 for y in screen.dirty)}
        screen.dirty.clear()
        self._drawn[screen.lines :] = [""] * (screen.lines - len(self._drawn))
        for y in changed & set(range(screen.lines)):
            self._drawn[y] = _row(screen.buffer[y], screen.columns)
        return "\n".join(self._drawn).rstrip().split("\n")

    def mark(self) -> None:
        """Begin anew with what is in `since`."""
        self._since = pyte.Screen(self._screen.columns, self._screen.lines)
        self._since_stream = pyte.ByteStream(self._since)

    @property
    def since(self) -> list[str]:
        """What was written since `mark`, as if on an empty screen."""
        return "\n".join(line.rstrip() for line in self._since.display).rstrip().split("\n")

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    @property
    def styles(self) -> str:
        """What stands on the screen, with the styles that it has in brackets."""
        rows = []
        for y, line in enumerate(self.lines):
            runs: list[tuple[str, str]] = []
            for x in range(len(line)):
                cell = self._screen.buffer[y][x]
                named = {"bold": cell.bold, "italic": cell.italics, "reverse": cell.reverse}
                on = [name for name, is_on in named.items() if is_on]
                style = " ".join([*([cell.fg] if cell.fg != "default" else []), *on])
                text = runs.pop()[1] if runs and runs[-1][0] == style else ""
                runs.append((style, text + cell.data))
            rows.append("".join(f"[{style}]{text}[/]" if style else text for style, text in runs))
        return "\n".join(rows)

    @property
    def cursor(self) -> tuple[int, int]:
        """Row and column."""
        return self._screen.cursor.y, self._screen.cursor.x

    def wait_for(self, wanted: str | Callable[[], bool]) -> str:
        """Read until a text is on the screen, or something holds."""
        seen: Callable[[], bool] = (
            (lambda: wanted in self.text) if isinstance(wanted, str) else wanted
        )
        until = time.monotonic() + PATIENCE
        alive = True
        while not seen():
            is_late = not alive or time.monotonic() >= until
            assert not is_late, (
                f"{wanted!r} did not come:\n{self.text}\nraw end: {self.raw[-2000:]!r}"
            )
            alive = self._read(until - time.monotonic())
        return self.text

    def wait_for_raw(self, wanted: bytes, *, times: int = 1) -> None:
        """Read until the program has written these bytes."""
        self.wait_for(lambda: self.raw.count(wanted) >= times)

    def type(self, keys: str | bytes) -> None:
        """Press keys; what the program writes meanwhile is read, so that neither waits."""
        rest = memoryview(keys.encode() if isinstance(keys, str) else keys)
        until = time.monotonic() + PATIENCE
        fd = self.child.child_fd
        while rest:
            assert time.monotonic() < until, f"nobody reads what is typed:\n{self.text}"
            readable, writable, _ = select.select([fd], [fd], [], PATIENCE)
            if readable:
                self._read(0)
            if writable:
                # No more than a terminal takes without waiting for who reads it.
                rest = rest[os.write(fd, rest[:512]) :]

    def resize(self, rows: int, columns: int) -> None:
        self._screen.resize(rows, columns)
        self.child.setwinsize(rows, columns)

    def send_signal(self, number: signal.Signals) -> None:
        self.child.kill(number)

    def hang_up(self) -> int:
        """Close the window; how the program ended then."""
        process = self.child.ptyproc
        process.fileobj.close()
        _, status = os.waitpid(process.pid, 0)
        process.closed = process.terminated = True
        return os.waitstatus_to_exitcode(status)

    def finish(self) -> int:
        """Wait for its end; the exit code, negative for a signal."""
        until = time.monotonic() + PATIENCE
        while self._read(until - time.monotonic()):
            assert time.monotonic() < until, f"it did not end:\n{self.text}"
        self.child.wait()
        code: int | None = self.child.exitstatus
        return code if code is not None else -self.child.signalstatus

    @property
    def echoes(self) -> bool:
        """Whether the terminal echoes what is typed, in whole lines, and Ctrl-C is a signal."""
        local = termios.tcgetattr(self.child.child_fd)[3]
        return all(local & flag for flag in (termios.ECHO, termios.ICANON, termios.ISIG))

    @property
    def styled(self) -> bool:
        """Whether the program has used a colour."""
        return bool(_COLOR.search(self.raw))

    def _read(self, seconds: float) -> bool:
        """Take what there is; false at the end."""
        try:
            piece = self.child.read_nonblocking(_PIECE, max(seconds, 0))
        except pexpect.TIMEOUT:
            return True
        except pexpect.EOF:
            return False
        self.raw += piece
        if self.watched:
            self._stream.feed(piece)
            if self._since is not None:
                self._since_stream.feed(piece)
        return True


def _row(cells: Mapping[int, Any], columns: int) -> str:
    """What stands in a row; a wide character takes its own cell and the next."""
    text = []
    x = 0
    last = max(cells, default=-1)
    while x <= min(last, columns - 1):
        text.append(cells[x].data)
        x += 2 if text[-1] and wcwidth(text[-1][0]) == 2 else 1
    return "".join(text).rstrip()


def _spawn_of(warm: ForkServer, arguments: Sequence[str], cwd: Path, env: Mapping[str, str]) -> Any:
    """`pexpect.spawn`, but of a child of the fork server."""

    class Spawn(pexpect.spawn):  # type: ignore[type-arg]  # its types know of no parameter here
        def _spawnpty(self, _: Any, *, dimensions: tuple[int, int], **__: Any) -> Any:
            ours, theirs = pty.openpty()
            try:
                termios.tcsetwinsize(theirs, dimensions)
                process = warm.start(
                    arguments,
                    cwd=cwd,
                    env=env,
                    stdin=theirs,
                    stdout=theirs,
                    stderr=theirs,
                    terminal=True,
                )
            finally:
                os.close(theirs)
            return ptyprocess.PtyProcess(process.pid, ours)

    return Spawn
