"""Keeps resources open that a command has opened: each in a task of its own.

What a command opens must outlive the scope by which the command can be interrupted, and a context
has to be left in the task that entered it.
"""

from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TypeVar

import anyio
from anyio.abc import TaskGroup, TaskStatus

T = TypeVar("T")


class ResourceGroup:
    """Enters contexts, which are left when the group closes."""

    def __init__(self, tasks: TaskGroup) -> None:
        self._tasks = tasks
        self._closing = anyio.Event()
        self._asides: set[anyio.CancelScope] = set()

    async def enter(self, make: Callable[[], AbstractAsyncContextManager[T]]) -> T:
        """Enter the context that `make` returns; an exception or cancellation ends the attempt."""

        async def hold(*, task_status: TaskStatus[T]) -> None:
            async with make() as resource:
                task_status.started(resource)
                await self._closing.wait()

        resource: T = await self._tasks.start(hold)
        return resource

    def aside(self, work: Callable[[], Coroutine[None, None, None]]) -> None:
        """Run `work`, which must not fail, in the background; it is cancelled at the close."""

        async def run_in_scope() -> None:
            with anyio.CancelScope() as scope:
                self._asides.add(scope)
                await work()
            self._asides.discard(scope)

        if not self._closing.is_set():
            self._tasks.start_soon(run_in_scope)

    def close(self) -> None:
        self._closing.set()
        for scope in self._asides:
            scope.cancel()


@asynccontextmanager
async def open_resource_group() -> AsyncGenerator[ResourceGroup]:
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
    """Run `work` in the background of the block, and cancel it at the end; it must not fail."""
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
