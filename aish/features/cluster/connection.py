"""Dask distributed (extra `dask`), imported only with `--cluster`."""

import logging
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from importlib.util import find_spec

import anyio

from aish.core.errors import UsageError
from aish.core.phrases import backticked

_PATIENCE = 30
_CLOSING = 5.0
INSTALL = "pip install 'aish-pipelines[dask]'"


def require_dask() -> None:
    missing = [name for name in ("distributed", "cryptography") if find_spec(name) is None]
    if missing:
        named = backticked(missing, by=" and ")
        raise UsageError(f"`--cluster` needs {named}, not installed here", hint=INSTALL)


def quiet() -> None:
    """Import Dask, and suppress its log messages for what a run reports itself."""
    import distributed  # ruff: ignore[unused-import] - its levels are set on import

    for name in ("distributed", "tornado", "asyncio"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    for name, logger in logging.root.manager.loggerDict.items():
        if name.startswith("distributed.") and isinstance(logger, logging.Logger):
            logger.setLevel(logging.CRITICAL)


@asynccontextmanager
async def close_in_order(thing: AbstractAsyncContextManager[object]) -> AsyncGenerator[None]:
    """An open Dask object, which is closed properly even on cancellation."""
    await thing.__aenter__()  # ruff: ignore[unnecessary-dunder-call] - its exit is shielded, its enter is not
    try:
        yield
    finally:
        with anyio.move_on_after(_CLOSING, shield=True):
            await thing.__aexit__(None, None, None)
