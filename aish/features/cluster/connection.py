"""Dask distributed (extra `dask`), which only runs with `--cluster` load."""

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
    """See that Dask is installed, before anything is begun.

    Raises:
        UsageError: it is not; says how it is installed.
    """
    missing = [name for name in ("distributed", "cryptography") if find_spec(name) is None]
    if missing:
        named = backticked(missing, by=" and ")
        raise UsageError(f"`--cluster` needs {named}, not installed here", hint=INSTALL)


def quiet() -> None:
    """Load Dask, and let it keep to itself what a run tells in its own words."""
    import distributed  # ruff: ignore[unused-import] - its levels are set when it is loaded

    for name in ("distributed", "tornado", "asyncio"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    for name, logger in logging.root.manager.loggerDict.items():
        if name.startswith("distributed.") and isinstance(logger, logging.Logger):
            logger.setLevel(logging.CRITICAL)


@asynccontextmanager
async def ended_in_order(thing: AbstractAsyncContextManager[object]) -> AsyncGenerator[None]:
    """A part of Dask that is open meanwhile, and closed in peace also where we are cancelled."""
    await thing.__aenter__()  # ruff: ignore[unnecessary-dunder-call] - its end is shielded, its beginning is not
    try:
        yield
    finally:
        with anyio.move_on_after(_CLOSING, shield=True):
            await thing.__aexit__(None, None, None)
