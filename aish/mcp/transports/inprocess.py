"""Packs behind the same interface as other servers, without bytes or a process (K1, M2).

The in-memory transport: part of the product, at next to no cost.
"""

from typing import TYPE_CHECKING

from aish.core.json import JsonObject
from aish.mcp.protocol.convert import PARALLEL
from aish.mcp.protocol.messages import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    Answer,
    RpcError,
    json_object,
)
from aish.mcp.transports.transport import Headers, Inbox, Outgoing, hears_already

if TYPE_CHECKING:
    from aish.packs.framework.pack import PackTool
    from aish.packs.framework.server import OpenPacks


class InProcess:
    """A pack that answers requests; its owner shuts it down."""

    over_http = False
    has_session = False
    listen = staticmethod(hears_already)

    def __init__(self, pack: "OpenPacks") -> None:
        self._pack = pack

    async def open(self, inbox: Inbox) -> None:
        """Open what the packs share; they send no unsolicited messages."""
        del inbox
        await self._pack.start()

    async def exchange(self, outgoing: Outgoing) -> Answer:
        """Handle a request directly."""
        try:
            return Answer(str(outgoing.number), await self._result(outgoing))
        except RpcError as error:
            return Answer(str(outgoing.number), {}, error)

    async def send(self, body: bytes, headers: Headers = ()) -> None:
        """Ignored by packs: cancellation is passed to them as task cancellation."""

    async def close(self) -> None:
        """Does nothing; the code that opened the pack closes it."""

    async def _result(self, outgoing: Outgoing) -> JsonObject:
        match outgoing.method:
            case "initialize":
                return {"protocolVersion": outgoing.params.get("protocolVersion")}
            case "tools/list":
                return {"tools": [_listed(tool) for tool in self._pack.tools.values()]}
            case "tools/call":
                return await self._call(outgoing.params)
        raise RpcError(METHOD_NOT_FOUND, f"method not found: {outgoing.method}")

    async def _call(self, params: JsonObject) -> JsonObject:
        name = str(params.get("name"))
        if name not in self._pack.tools:
            raise RpcError(INVALID_PARAMS, f"unknown tool: {name}")
        try:
            return await self._pack.call(name, json_object(params.get("arguments")))
        except Exception as error:
            text = f"{type(error).__name__}: {error}"
            raise RpcError(INTERNAL_ERROR, f"the tool failed unexpectedly: {text}") from error


def _listed(tool: "PackTool") -> JsonObject:
    """A tool in the form of `tools/list`, with marks that only built-in packs may set."""
    return {
        "name": tool.name,
        "description": tool.description,
        "inputSchema": tool.input_schema,
        "outputSchema": tool.output_schema,
        "annotations": tool.annotations,
        "_meta": {PARALLEL: tool.parallel},
    }
