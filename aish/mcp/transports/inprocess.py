"""Packs in memory: the results of their tools, and a transport for runs with a cassette.

A run without a cassette needs no messages: it calls the tools by `mcp.client.pack_session`.
"""

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

import anyio

from aish.core.errors import UnavailableError
from aish.core.frozen import slotted
from aish.core.json import JsonObject
from aish.core.tools import SAMPLE, SAMPLING_FAILURE, SamplingError, SamplingFailure
from aish.mcp.protocol.convert import PARALLEL
from aish.mcp.protocol.messages import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    RpcError,
    RpcResponse,
    ServerRequest,
    UnreachableError,
    decode,
    json_object,
)
from aish.mcp.transports.transport import Headers, Inbox, Outgoing, hears_already

if TYPE_CHECKING:
    from aish.packs.framework.server import OpenPacks


_FAILURES: Mapping[str, SamplingFailure] = {"limit": "limit"}
SAMPLING_SECONDS = 60
"""How long a tool of a pack waits for the answer of a model."""


@slotted
class _Question:
    """A request of a pack that waits for its answer."""

    answered: anyio.Event
    answer: RpcResponse | None = None


class InProcess:
    """A pack that answers requests; its owner shuts it down.

    It asks a model as any server does, with a request on the way to its answer: so the
    request has the limits of a step, and is recorded and replayed with the call.
    """

    over_http = False
    has_session = False
    listen = staticmethod(hears_already)

    def __init__(self, pack: "OpenPacks") -> None:
        self._pack = pack
        self._inbox: Inbox | None = None
        self._questions: dict[str, _Question] = {}
        self._count = 0

    async def open(self, inbox: Inbox) -> None:
        self._inbox = inbox
        await start_packs(self._pack)

    async def exchange(self, outgoing: Outgoing) -> RpcResponse:
        token = SAMPLE.set(partial(self._sample, outgoing.number))
        try:
            return RpcResponse(str(outgoing.number), await self._result(outgoing))
        except RpcError as error:
            return RpcResponse(str(outgoing.number), {}, error)
        finally:
            SAMPLE.reset(token)

    async def send(self, body: bytes, headers: Headers = ()) -> None:
        """Take the answer to a question; a cancellation is that of the task."""
        del headers
        for message in decode(body):
            question = (
                self._questions.get(message.id or "") if isinstance(message, RpcResponse) else None
            )
            if question is not None and isinstance(message, RpcResponse):
                question.answer = message
                question.answered.set()

    async def close(self) -> None:
        """Does nothing; the code that opened the pack closes it."""

    async def _sample(self, number: int, params: JsonObject) -> JsonObject:
        """Ask a model while the request `number` runs.

        Raises:
            SamplingError: it did not answer.
        """
        assert self._inbox is not None, "a call comes after `open`"
        self._count += 1
        id = f"sample-{self._count}"
        self._questions[id] = question = _Question(anyio.Event())
        try:
            self._inbox(ServerRequest(id, "sampling/createMessage", params), number)
            with anyio.move_on_after(SAMPLING_SECONDS):
                await question.answered.wait()
        finally:
            del self._questions[id]
        if question.answer is None:
            raise no_sample()
        if question.answer.error is not None:
            raise sampling_error(question.answer.error)
        return question.answer.result

    async def _result(self, outgoing: Outgoing) -> JsonObject:
        match outgoing.method:
            case "initialize":
                return {"protocolVersion": outgoing.params.get("protocolVersion")}
            case "tools/list":
                return list_tools(self._pack)
            case "tools/call":
                return await call_tool(self._pack, outgoing.params)
        raise RpcError(METHOD_NOT_FOUND, f"method not found: {outgoing.method}")


async def start_packs(packs: "OpenPacks") -> None:
    """Open the packs of a server.

    Raises:
        UsageError: an option of a built-in pack cannot be used.
        UnreachableError: a pack of a distribution cannot be loaded or opened.
    """
    try:
        await packs.start()
    except UnavailableError as error:
        raise UnreachableError(f"{error.message}: {error.hint}") from error


async def call_tool(pack: "OpenPacks", params: JsonObject) -> JsonObject:
    """The result of `tools/call`.

    Raises:
        RpcError: there is no such tool, or it has a defect.
    """
    name = str(params.get("name"))
    if name not in pack.tools:
        raise RpcError(INVALID_PARAMS, f"unknown tool: {name}")
    try:
        return await pack.call(name, json_object(params.get("arguments")))
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        raise RpcError(INTERNAL_ERROR, f"the tool failed unexpectedly: {text}") from error


def list_tools(pack: "OpenPacks") -> JsonObject:
    """The result of `tools/list`, with marks that only built-in packs may set."""
    return {
        "tools": [
            {
                "name": tool.name,
                "description": tool.description,
                "inputSchema": tool.input_schema,
                "outputSchema": tool.output_schema,
                "annotations": tool.marks.annotations,
                "_meta": {PARALLEL: tool.marks.parallel},
            }
            for tool in pack.tools.values()
        ]
    }


def sampling_error(error: RpcError) -> SamplingError:
    failure = json_object(error.data).get(SAMPLING_FAILURE)
    return SamplingError(error.message, _FAILURES.get(str(failure), "unavailable"))


def no_sample() -> SamplingError:
    return SamplingError(f"no answer came within {SAMPLING_SECONDS} seconds", "timeout")
