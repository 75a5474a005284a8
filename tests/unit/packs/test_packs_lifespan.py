"""Packs are opened in order and closed in reverse, whatever happens to one of them (K12, K21)."""

from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import anyio
import pytest
from pack_scenes import pack_services
from waits import waits_of

from aish.core.errors import UsageError
from aish.core.options import PackOptions
from aish.packs.command_options import ShellOptions
from aish.packs.framework import server
from aish.packs.framework.pack import READS, Pack, PackContext, tool
from aish.packs.framework.server import OpenPacks
from aish.packs.pack_error import PackError
from aish.packs.tool_results import Answer

Opened = Callable[[PackContext], AbstractAsyncContextManager[Any]]


@tool(READS, result={"state": "string"}, codes=("not_found",))
async def state_get(state: str, code: str = "") -> Answer:
    """Returns the state of its pack.

    Args:
        state: What the lifespan yields.
        code: The code of a failure.
    """
    await anyio.lowlevel.checkpoint()
    if code:
        raise PackError(code, "as asked for")
    return Answer(state)


def packs(*lifespans: tuple[str, Opened]) -> dict[str, Pack]:
    return {
        name: Pack(tools=(state_get,), root="none", lifespan=lifespan)
        for name, lifespan in lifespans
    }


@asynccontextmanager
async def opened(
    found: dict[str, Pack], options: PackOptions | None = None, **services: Any
) -> AsyncGenerator[OpenPacks]:
    async with anyio.create_task_group() as tasks:
        with pack_services(tasks=tasks, **services) as offered:
            pack = OpenPacks(found, None, offered, options or {})
            try:
                yield pack
            finally:
                await pack.shutdown()


def noting(name: str, said: list[str], failure: Exception | None = None) -> tuple[str, Opened]:
    @asynccontextmanager
    async def lifespan(context: PackContext) -> AsyncGenerator[str]:
        said.append(f"{name} opens")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(anyio.sleep_forever)
            try:
                yield f"{name} {context.options}"
            finally:
                tasks.cancel_scope.cancel()
        said.append(f"{name} closes")
        if failure is not None:
            raise failure

    return name, lifespan


def test_packs_close_in_reverse_order_even_if_one_fails() -> None:
    said: list[str] = []
    notices: list[tuple[str, str]] = []

    async def scene() -> None:
        found = packs(
            noting("a", said), noting("b", said, OSError("it is stuck")), noting("c", said)
        )
        async with opened(found, notice=lambda code, text: notices.append((code, text))) as pack:
            assert said == []
            await pack.call("state_get", {})
            assert said == ["a opens", "b opens", "c opens"]

    anyio.run(scene)
    assert said[3:] == ["c closes", "b closes", "a closes"]
    assert notices == [("pack_shutdown", "pack `b` failed to close: it is stuck")]


def test_a_pack_that_does_not_close_does_not_keep_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server, "SHUTDOWN_SECONDS", 0.05)
    said: list[str] = []
    notices: list[str] = []

    @asynccontextmanager
    async def stuck(context: PackContext) -> AsyncGenerator[str]:
        del context
        try:
            yield "stuck"
        finally:
            await anyio.sleep_forever()

    async def scene() -> None:
        found = packs(noting("a", said), ("b", stuck))
        async with opened(found, notice=lambda _, text: notices.append(text)) as pack:
            await pack.start()

    # The other one has that time too, and a busy machine takes none of it.
    waits_of(scene)
    assert said == ["a opens", "a closes"]
    assert notices == ["pack `b` did not close within 0.05 seconds"]


def test_a_pack_that_cannot_open_closes_those_before_it() -> None:
    said: list[str] = []

    @asynccontextmanager
    async def refusing(context: PackContext) -> AsyncGenerator[str]:
        if context.options is None:
            raise UsageError("the environment file is missing")
        yield ""

    async def scene() -> None:
        async with opened(packs(noting("a", said), ("b", refusing))) as pack:
            with pytest.raises(UsageError, match="environment file"):
                await pack.start()

    anyio.run(scene)
    assert said == ["a opens", "a closes"]


@pytest.mark.requirement("K12")
def test_a_pack_has_its_own_options() -> None:
    said: list[str] = []
    seen: list[Any] = []

    async def scene() -> None:
        options = {"shell": ShellOptions(network=False)}
        async with opened(packs(noting("shell", said)), options) as pack:
            seen.append(await pack.call("state_get", {}))

    anyio.run(scene)
    assert "network=False" in seen[0]["content"][0]["text"]


def test_a_code_that_a_tool_does_not_list_becomes_a_plain_failure() -> None:
    async def scene() -> list[str]:
        async with opened(packs(noting("a", []))) as pack:
            results: list[Any] = [
                await pack.call("state_get", {"code": code})
                for code in ("not_found", "failed", "too_large")
            ]
            return [one["structuredContent"]["error"]["code"] for one in results]

    assert anyio.run(scene) == ["not_found", "failed", "failed"]


@pytest.mark.parametrize("moment", ["while it opens", "as soon as it is open"])
def test_a_start_that_is_cancelled_leaves_nothing_open(moment: str) -> None:
    said: list[str] = []
    scopes: list[anyio.CancelScope] = []

    @asynccontextmanager
    async def cancelled(context: PackContext) -> AsyncGenerator[str]:
        del context
        said.append("second opens")
        scopes[0].cancel()
        try:
            if moment == "while it opens":
                await anyio.sleep_forever()
            yield ""
        finally:
            said.append("second closes")

    async def scene() -> None:
        found = packs(noting("first", said), ("second", cancelled), noting("third", said))
        async with opened(found) as pack:
            with anyio.CancelScope() as starting:
                scopes.append(starting)
                await pack.start()
            assert starting.cancelled_caught
            assert said == ["first opens", "second opens", "second closes", "first closes"]

    async def limited() -> None:
        with anyio.fail_after(60):  # it hung
            await scene()

    anyio.run(limited)
