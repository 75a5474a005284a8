"""Packs behind the same interface as other servers, without bytes or a process (K1, M2).

The in-memory transport: part of the product, at next to no cost.
"""

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

import anyio

from aish.core.frozen import slotted
from aish.core.json import JsonObject
from aish.core.tools import SAMPLE, SAMPLING_FAILURE, SamplingError, SamplingFailure
from aish.mcp.protocol.convert import PARALLEL
from aish.mcp.protocol.messages import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    Answer,
    Asked,
    RpcError,
    decode,
    json_object,
)
from aish.mcp.transports.transport import Headers, Inbox, Outgoing, hears_already

if TYPE_CHECKING:
    from aish.packs.framework.pack import PackTool
    from aish.packs.framework.server import OpenPacks


_FAILURES: Mapping[str, SamplingFailure] = {"limit": "limit"}
SAMPLING_SECONDS = 60
"""How long a tool of a pack waits for the answer of a model."""


@slotted
class _Question:
    """A request of a pack that waits for its answer."""

    answered: anyio.Event
    answer: Answer | None = None


class InProcess:
    """A pack that answers requests; its owner shuts it down.

    It asks a model as any server does, with a request on the way to its answer (K13): so the
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
        """Open what the packs share."""
        self._inbox = inbox
        await self._pack.start()

    async def exchange(self, outgoing: Outgoing) -> Answer:
        """Handle a request directly."""
        token = SAMPLE.set(partial(self._sample, outgoing.number))
        try:
            return Answer(str(outgoing.number), await self._result(outgoing))
        except RpcError as error:
            return Answer(str(outgoing.number), {}, error)
        finally:
            SAMPLE.reset(token)

    async def send(self, body: bytes, headers: Headers = ()) -> None:
        """Take the answer to a question; a cancellation is that of the task."""
        del headers
        for message in decode(body):
            question = (
                self._questions.get(message.id or "") if isinstance(message, Answer) else None
            )
            if question is not None and isinstance(message, Answer):
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
            self._inbox(Asked(id, "sampling/createMessage", params), number)
            with anyio.move_on_after(SAMPLING_SECONDS):
                await question.answered.wait()
        finally:
            del self._questions[id]
        if question.answer is None:
            raise SamplingError(f"no answer came within {SAMPLING_SECONDS} seconds", "timeout")
        if (error := question.answer.error) is not None:
            failure = json_object(error.data).get(SAMPLING_FAILURE)
            raise SamplingError(error.message, _FAILURES.get(str(failure), "unavailable"))
        return question.answer.result

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
