"""What is done with several servers at the same time."""

from collections.abc import Callable, Coroutine, Iterable

import anyio


async def together(actions: Iterable[Callable[[], Coroutine[None, None, None]]]) -> None:
    """Do all at the same time."""
    async with anyio.create_task_group() as group:
        for action in actions:
            group.start_soon(action)


def single(error: Exception) -> Exception:
    """The first of those that servers failed with at the same time."""
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error
