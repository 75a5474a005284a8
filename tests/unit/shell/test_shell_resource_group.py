"""What commands open stays open until the session ends; what was typed early is not lost (S1)."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import anyio
import pytest

from aish.core.errors import UsageError
from aish.core.events import Event
from aish.shell.input.deferred_editor import DeferredEditor
from aish.shell.input.lines import PipedLines
from aish.shell.input.typeahead import TypeaheadLines
from aish.shell.resource_group import background_task, open_resource_group

pytestmark = pytest.mark.anyio


async def test_what_is_opened_outlives_the_scope_that_opened_it() -> None:
    told: list[str] = []

    @asynccontextmanager
    async def thing() -> AsyncGenerator[str]:
        told.append("open")
        try:
            yield "found"
        finally:
            told.append("closed")

    async with open_resource_group() as resources:
        with anyio.CancelScope() as scope:
            assert await resources.enter(thing) == "found"
            scope.cancel()
            await anyio.lowlevel.checkpoint()
        assert told == ["open"]
    assert told == ["open", "closed"]


async def test_what_cannot_be_opened_is_raised_where_it_was_wanted() -> None:
    given: list[str] = []

    @asynccontextmanager
    async def broken() -> AsyncGenerator[str]:
        if not given:
            raise UsageError("no")
        yield "never"

    async with open_resource_group() as resources:
        with pytest.raises(UsageError, match="no"):
            await resources.enter(broken)
        with anyio.CancelScope() as scope:
            scope.cancel()
            await resources.enter(broken)
        assert scope.cancelled_caught


async def test_a_failure_of_the_block_is_raised_as_it_is() -> None:
    with pytest.raises(UsageError, match="mine"):
        async with open_resource_group():
            raise UsageError("mine")
    with pytest.raises(UsageError, match="mine"):
        async with background_task(anyio.sleep_forever):
            raise UsageError("mine")


def test_notices_from_before_the_session_are_told_once_it_is_there() -> None:
    late, told = DeferredEditor("m"), list[Event]()
    late.emit = told.append
    late.notice("early")
    assert not told
    assert late.prompt() == "m"
    assert (late.toolbar(), late.commands(), late.tools(), late.arguments("")) == ("", {}, (), ())


async def test_the_first_line_is_waited_for_before_it_is_asked_for() -> None:
    lines = TypeaheadLines(PipedLines(None, lambda _: None))
    async with background_task(lines.begin):
        assert await lines.next() is None
    assert await lines.next() is None


async def test_what_goes_wrong_with_the_first_line_is_raised_where_it_is_asked_for() -> None:
    class Failing(PipedLines):
        async def next(self) -> str | None:
            raise UsageError("unreadable")

    lines = TypeaheadLines(Failing(None, lambda _: None))
    async with background_task(lines.begin):
        with pytest.raises(UsageError, match="unreadable"):
            await lines.next()
