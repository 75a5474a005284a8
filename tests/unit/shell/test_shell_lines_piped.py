"""Messages that come through a pipe, in every shape that bytes can have."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aish.core.errors import UsageError
from aish.shell.input.lines import LONGEST_LINE, PipedLines


class Pipe:
    """A pipe whose writing end is fed by a thread."""

    def __init__(self) -> None:
        self.reader, self.writer = os.pipe()
        self.notices: list[str] = []
        self.lines = PipedLines(self.reader, self.notices.append)

    def feed(self, *pieces: bytes) -> threading.Thread:
        def write() -> None:
            with suppress(BrokenPipeError):
                for piece in pieces:
                    rest = memoryview(piece)
                    while rest:
                        rest = rest[os.write(self.writer, rest) :]
            os.close(self.writer)

        thread = threading.Thread(target=write, daemon=True)
        thread.start()
        return thread


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    pipe = Pipe()
    yield pipe
    os.close(pipe.reader)


def read_all(lines: PipedLines) -> list[str]:
    """Each message, and each error as its text."""

    async def read() -> list[str]:
        found: list[str] = []
        while True:
            try:
                text = await lines.next()
            except UsageError as error:
                text = f"error: {error}"
            if text is None:
                return found
            found.append(text)

    return anyio.run(read)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", []),
        (b"one", ["one"]),
        (b"one\ntwo\n", ["one", "two"]),
        (b"one\r\ntwo\r\n", ["one", "two"]),
        (b"\n\n  \none\n\n\t\ntwo\n\n", ["one", "two"]),
        (b"\xef\xbb\xbfone\ntwo\xef\xbb\xbf\n", ["one", "two\ufeff"]),
        (b"a\0b\n", ["a\0b"]),
        (b" keeps its blanks \n", [" keeps its blanks "]),
        ("größer 🦉\n".encode(), ["größer 🦉"]),
        (b"a\x1b[2Jb\n", ["a\x1b[2Jb"]),
        (b"a\x0bb\x0cc\x85d\n".replace(b"\x85", "\x85\u2028".encode()), ["a\x0bb\x0cc\x85\u2028d"]),
    ],
)
def test_lines_are_messages_without_their_ends(
    pipe: Pipe, data: bytes, expected: list[str]
) -> None:
    pipe.feed(data)
    assert read_all(pipe.lines) == expected
    assert pipe.notices == []


def test_what_is_not_utf8_is_replaced_and_told_once(pipe: Pipe) -> None:
    pipe.feed(b"caf\xe9\n", b"\xff\xfe\x00\n", b"fine\n")
    assert read_all(pipe.lines) == ["caf\ufffd", "\ufffd\ufffd\0", "fine"]
    assert pipe.notices == ["a line of stdin is not valid UTF-8; invalid bytes were replaced"]


def test_utf16_is_refused(pipe: Pipe) -> None:
    pipe.feed("hello\nworld\n".encode("utf-16"))
    assert read_all(pipe.lines) == ["error: stdin is UTF-16, and only UTF-8 is read"]


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b""])
def test_a_line_of_the_longest_length_is_taken(pipe: Pipe, end: bytes) -> None:
    pipe.feed(b"x" * LONGEST_LINE + end)
    assert [len(line) for line in read_all(pipe.lines)] == [LONGEST_LINE]


@pytest.mark.parametrize("size", [LONGEST_LINE + 1, LONGEST_LINE + 2, 3 * LONGEST_LINE])
def test_a_longer_line_is_an_error_and_the_next_one_is_read(pipe: Pipe, size: int) -> None:
    pipe.feed(b"first\n" + b"x" * size + b"\nlast\n")
    assert read_all(pipe.lines) == [
        "first",
        "error: line 2 of stdin is longer than 1,048,576 bytes",
        "last",
    ]


def test_a_longer_line_without_an_end_is_an_error_too(pipe: Pipe) -> None:
    pipe.feed(b"x" * (2 * LONGEST_LINE))
    assert read_all(pipe.lines) == ["error: line 1 of stdin is longer than 1,048,576 bytes"]


def test_a_line_comes_before_the_next_one_is_written(pipe: Pipe) -> None:
    async def read() -> list[str | None]:
        os.write(pipe.writer, b"one\ntw")
        first = await pipe.lines.next()
        os.write(pipe.writer, b"o\n")
        second = await pipe.lines.next()
        os.close(pipe.writer)
        return [first, second, await pipe.lines.next(), await pipe.lines.next()]

    assert anyio.run(read) == ["one", "two", None, None]


def test_waiting_for_a_line_can_be_cancelled_and_loses_nothing(pipe: Pipe) -> None:
    async def read() -> str | None:
        os.write(pipe.writer, b"begun ")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(pipe.lines.next)
            await anyio.wait_all_tasks_blocked()
            tasks.cancel_scope.cancel()
        os.write(pipe.writer, b"and done\n")
        os.close(pipe.writer)
        return await pipe.lines.next()

    assert anyio.run(read) == "begun and done"


def test_the_shared_descriptor_is_left_as_it_was(pipe: Pipe) -> None:
    pipe.feed(b"one\n")
    read_all(pipe.lines)
    assert os.get_blocking(pipe.reader)


def test_plain_files_and_nothing_are_read(tmp_path: Path) -> None:
    (tmp_path / "lines").write_bytes(b"one\ntwo")
    for path, expected in ((tmp_path / "lines", ["one", "two"]), (Path(os.devnull), [])):
        descriptor = os.open(path, os.O_RDONLY)
        assert read_all(PipedLines(descriptor, print)) == expected
        os.close(descriptor)


def test_a_stdin_that_was_closed_is_empty() -> None:
    assert read_all(PipedLines(None, print)) == []


def test_a_stdin_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    descriptor = os.open(tmp_path, os.O_RDONLY)
    told = read_all(PipedLines(descriptor, print))
    os.close(descriptor)
    assert told == ["error: stdin cannot be read: Is a directory"]


def test_nobody_edits_and_nothing_is_drawn(pipe: Pipe) -> None:
    assert anyio.run(pipe.lines.edit, "ls", "run: ") is None
    with pipe.lines.busy(lambda: None), pipe.lines.question():
        pipe.lines.refresh()
        pipe.lines.forget()
        pipe.lines.restore()


@given(st.lists(st.binary(max_size=40), max_size=12), st.data())
def test_it_does_not_matter_how_the_bytes_arrive(rows: list[bytes], data: st.DataObject) -> None:
    whole = b"\n".join(rows)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=4)))
    pieces = [whole[a:b] for a, b in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
    at_once, in_pieces = Pipe(), Pipe()
    at_once.feed(whole)
    in_pieces.feed(*pieces)
    assert read_all(at_once.lines) == read_all(in_pieces.lines)
    for pipe in (at_once, in_pieces):
        os.close(pipe.reader)


def test_sigterm_while_waiting_ends_the_wait(pipe: Pipe) -> None:
    async def read() -> bool:
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_cancel_on, signal.SIGTERM, scope.cancel)
                await anyio.wait_all_tasks_blocked()
                os.kill(os.getpid(), signal.SIGTERM)
                await pipe.lines.next()
        return scope.cancelled_caught

    assert anyio.run(read)
    os.close(pipe.writer)


async def _cancel_on(number: signal.Signals, cancel: Callable[[], None]) -> None:
    with anyio.open_signal_receiver(number) as signals:
        async for _ in signals:
            cancel()
            return
