"""What other programs want of a session waits for its turn, and loses no line (A3, S1)."""

import os
from collections.abc import Iterator

import anyio
import pytest

from aish.core.errors import UsageError
from aish.core.json import JsonObject
from aish.shell.input.lines import INTERRUPTED, PipedLines
from aish.shell.input.typeahead import TypeaheadLines
from aish.shell.request_queue import MOST_REQUESTS, RequestQueue
from aish.shell.resource_group import background_task

pytestmark = pytest.mark.anyio


@pytest.fixture
def ends() -> Iterator[tuple[int, int]]:
    reader, writer = os.pipe()
    yield reader, writer
    os.close(reader)
    os.close(writer)


async def test_an_interrupted_wait_for_a_line_loses_nothing_of_it(ends: tuple[int, int]) -> None:
    reader, writer = ends
    lines = PipedLines(reader, lambda _: None)
    lines.interrupt()
    assert await lines.next() == INTERRUPTED
    os.write(writer, b"first\nhalf ")
    assert await lines.next() == "first"
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_interrupt, lines)
        assert await lines.next() == INTERRUPTED
    os.write(writer, b"a line\n")
    assert await lines.next() == "half a line"


async def test_a_line_that_is_typed_early_is_interrupted_too(ends: tuple[int, int]) -> None:
    reader, writer = ends
    lines = TypeaheadLines(PipedLines(reader, lambda _: None))
    async with background_task(lines.begin):
        await anyio.lowlevel.checkpoint()
        lines.interrupt()
        assert await lines.next() == INTERRUPTED
        os.write(writer, b"typed\n")
        assert await lines.next() == "typed"


async def _interrupt(lines: PipedLines) -> None:
    await anyio.lowlevel.checkpoint()
    lines.interrupt()


async def _nothing() -> JsonObject:
    await anyio.lowlevel.checkpoint()
    return {}


async def test_a_queue_takes_so_many_requests_and_ends_them_with_the_session() -> None:
    woken: list[int] = []
    queue = RequestQueue(lambda: woken.append(len(queue)))
    first, *rest = [queue.put(_nothing) for _ in range(MOST_REQUESTS)]
    with pytest.raises(UsageError, match="100 requests are waiting already"):
        queue.put(_nothing)
    assert woken[-1] == len(queue) == MOST_REQUESTS

    assert queue.take() is first
    first.end({"done": True})
    assert await first.result() == {"done": True}
    (second, *others) = rest
    assert queue.take() is second
    second.end(None)
    with pytest.raises(UsageError, match="interrupted"):
        await second.result()
    queue.close()
    for one in others:
        with pytest.raises(UsageError, match="the session has ended"):
            await one.result()
    with pytest.raises(UsageError, match="the session has ended"):
        queue.put(_nothing)
    assert queue.take() is None
