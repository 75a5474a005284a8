"""The packs of a server in the place of a session: their tools are called without messages.

A run with a cassette reaches them through `transports.inprocess` instead, which has messages to
record.
"""

from functools import partial
from typing import TYPE_CHECKING

import anyio

from aish.core.json import JsonObject
from aish.core.protocols import Sampler
from aish.core.tools import SAMPLE
from aish.mcp.client.channel import BEFORE_AGREEMENT
from aish.mcp.client.negotiate import Agreement
from aish.mcp.client.server_requests import NO_CALL, SAMPLING, Answers, Call
from aish.mcp.protocol.messages import METHOD_NOT_FOUND, RpcError
from aish.mcp.transports.inprocess import (
    SAMPLING_SECONDS,
    call_tool,
    list_tools,
    no_sample,
    sampling_error,
    start_packs,
)

if TYPE_CHECKING:
    from aish.packs.framework.server import OpenPacks


class PackSession:
    """Answers what a `Session` answers; the owner of the packs closes them."""

    agreement = Agreement(BEFORE_AGREEMENT, BEFORE_AGREEMENT.version, {})

    def __init__(self, pack: "OpenPacks", answers: Answers) -> None:
        self._pack = pack
        self._answers = answers

    async def open(self) -> None:
        """Open what the packs share.

        Raises:
            UsageError: an option of a built-in pack cannot be used.
            UnreachableError: a pack of a distribution cannot be loaded or opened.
        """
        await start_packs(self._pack)

    async def close(self) -> None:
        pass

    async def wait_until_listening(self) -> None:
        pass

    async def request(self, method: str, params: JsonObject, call: Call = NO_CALL) -> JsonObject:
        """The result of a request.

        Raises:
            RpcError: there is no such method or tool, or the tool has a defect.
        """
        if method != "tools/call":
            raise RpcError(METHOD_NOT_FOUND, f"method not found: {method}").about(method)
        token = SAMPLE.set(partial(self._sample, call.sample))
        try:
            return await call_tool(self._pack, params)
        finally:
            SAMPLE.reset(token)

    async def pages(self, method: str) -> list[JsonObject]:
        if method == "tools/list":
            return [list_tools(self._pack)]
        return [await self.request(method, {})]

    async def subscribe(self, uri: str) -> None:
        await self.request("resources/subscribe", {"uri": uri})

    async def unsubscribe(self, uri: str) -> None:
        """Does nothing: there are no subscriptions."""

    async def set_log_level(self, level: str) -> None:
        """Does nothing: packs log nothing."""

    async def _sample(self, sampler: Sampler | None, params: JsonObject) -> JsonObject:
        """Ask a model while a tool runs.

        Raises:
            SamplingError: it did not answer.
        """
        try:
            with anyio.move_on_after(SAMPLING_SECONDS):
                return await self._answers.answer(SAMPLING, params, sampler)
        except RpcError as error:
            raise sampling_error(error) from error
        raise no_sample()
