"""Asking a model for a turn in tests: entries, requests, time that is not waited for."""

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import anyio

from aish.config.model import ModelEntry, ModelTimeout, RetryPolicy
from aish.core.events import Place
from aish.core.json import JsonObject
from aish.core.messages import Delta, History, ReasoningPiece, TextPiece, UserTurn
from aish.core.protocols import Model, ModelRequest
from aish.core.tools import Tool, ToolName
from aish.models.client import ChatModel, open_model
from aish.models.retry import RetryTiming
from aish.models.throttle import Throttles
from aish.net.renewed_secret import RenewedSecret
from aish.system.secrets.secrets import Secrets

PLACE = Place(step="ask", turn=1)


class Ticking:
    """A clock that only sleeping moves; every sleep is kept."""

    def __init__(self, now: float = 1_700_000_000.0) -> None:
        self._start = now
        self._passed = 0.0
        self.slept: list[float] = []

    def now(self) -> float:
        """Seconds since the epoch."""
        return self._start + self._passed

    def monotonic(self) -> float:
        """Seconds since the start."""
        return self._passed

    async def sleep(self, seconds: float) -> None:
        """Let time pass at once."""
        self.slept.append(seconds)
        self._passed += seconds
        await anyio.lowlevel.checkpoint()

    def pace(self, chance: float = 0.0) -> RetryTiming:
        """For `open_model`; jitter always draws `chance`."""
        return RetryTiming(clock=self, sleep=self.sleep, chance=lambda: chance)


def an_entry(base_url: str, **changes: Any) -> ModelEntry:
    """A model called `cloud` with short time-outs."""
    fields: dict[str, Any] = {
        "alias": "cloud",
        "base_url": base_url,
        "model": "m",
        "retry": RetryPolicy(attempts=3),
        "timeout": ModelTimeout(connect=5.0, first_token=15.0, idle=15.0, turn=60.0),
    }
    return ModelEntry(**(fields | changes))


def a_tool(wire: str, schema: JsonObject | None = None) -> Tool:
    """A tool as a server would offer it."""
    server, _, name = wire.partition("__")
    return Tool(
        name=ToolName(server, name),
        wire=wire,
        description=f"The tool {wire}",
        input_schema=schema or {"type": "object", "properties": {}},
    )


def a_request(text: str = "hello", **changes: Any) -> ModelRequest:
    """One user turn."""
    fields: Mapping[str, Any] = {"history": History([UserTurn(text)]), "place": PLACE}
    return ModelRequest(**{**fields, **changes})


@asynccontextmanager
async def a_model(
    entry: ModelEntry,
    *,
    key: str | None = None,
    clock: Ticking | None = None,
    secrets: Secrets | None = None,
    throttles: Throttles | None = None,
    secret: RenewedSecret | None = None,
) -> AsyncGenerator[ChatModel]:
    """An open model that never really waits between tries."""
    pace = (clock or Ticking()).pace()
    async with open_model(
        entry,
        key,
        secrets=secrets or Secrets(),
        pace=pace,
        throttles=throttles,
        secret=secret,
    ) as model:
        yield model


async def turn(
    model: Model, request: ModelRequest | None = None, said: list[Delta] | None = None
) -> list[Delta]:
    """All deltas of one turn; `said` keeps them should the turn fail."""
    said = said if said is not None else []
    async for batch in model.stream(request or a_request()):
        assert batch, "an empty batch"
        said.extend(batch)
    return said


def text_of(deltas: list[Delta]) -> str:
    """The words, reasoning left out."""
    return "".join(delta.text for delta in deltas if isinstance(delta, TextPiece))


def reasoning_of(deltas: list[Delta]) -> str:
    """The thinking."""
    return "".join(delta.text for delta in deltas if isinstance(delta, ReasoningPiece))
