"""Keeps things open that were opened in passing: each in a task of its own.

What a command opens must outlive the scope that the command can be interrupted by, and a context
has to be left in the task that has entered it.
"""

from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TypeVar

import anyio
from anyio.abc import TaskGroup, TaskStatus

T = TypeVar("T")


class ResourceGroup:
    """Enters contexts, which are left when the resources closes."""

    def __init__(self, tasks: TaskGroup) -> None:
        self._tasks = tasks
        self._closing = anyio.Event()
        self._asides: set[anyio.CancelScope] = set()

    async def enter(self, make: Callable[[], AbstractAsyncContextManager[T]]) -> T:
        """What `make` opens; whatever it raises, and cancellation, end the attempt."""

        async def hold(*, task_status: TaskStatus[T]) -> None:
            async with make() as found:
                task_status.started(found)
                await self._closing.wait()

        found: T = await self._tasks.start(hold)
        return found

    def aside(self, work: Callable[[], Coroutine[None, None, None]]) -> None:
        """Have `work`, which fails with nothing, done meanwhile; it is given up at the close."""

        async def bounded() -> None:
            with anyio.CancelScope() as scope:
                self._asides.add(scope)
                await work()
            self._asides.discard(scope)

        if not self._closing.is_set():
            self._tasks.start_soon(bounded)

    def close(self) -> None:
        """Let all of it go."""
        self._closing.set()
        for scope in self._asides:
            scope.cancel()


@asynccontextmanager
async def open_resource_group() -> AsyncGenerator[ResourceGroup]:
    """A resources for as long as the block lasts."""
    failure: BaseException | None = None
    async with anyio.create_task_group() as tasks:
        resources = ResourceGroup(tasks)
        try:
            yield resources
        except BaseException as error:  # ruff: ignore[blind-except] - raised again: a task group would wrap it
            failure = error
        resources.close()
    if failure is not None:
        raise failure


@asynccontextmanager
async def background_task(work: Callable[[], Coroutine[None, None, None]]) -> AsyncGenerator[None]:
    """Have `work`, which fails with nothing, done beside the block, and given up at its end."""
    failure: BaseException | None = None
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(work)
        try:
            yield
        except BaseException as error:  # ruff: ignore[blind-except] - raised again: a task group would wrap it
            failure = error
        tasks.cancel_scope.cancel()
    if failure is not None:
        raise failure
