"""What a server may ask of us, and what it hears (M11).

Legacy servers send these as requests of their own, those of the stateless era put them into an
`input_required` result; the answers are the same.
"""

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from aish.core.errors import AishError
from aish.core.frozen import frozen
from aish.core.json import JsonObject
from aish.core.protocols import Sampler
from aish.mcp.failures import INTERNAL_ERROR, METHOD_NOT_FOUND, REFUSED_BY_USER, RpcError
from aish.mcp.running import Running

Elicit = Callable[[str, JsonObject], Awaitable[JsonObject]]
"""Asks the person: the server's alias and its `elicitation/create` params in, the result out."""

ELICITATION = "elicitation/create"
DECLINED: JsonObject = {"action": "decline"}


@frozen
class Answers:
    """The answers of one server's entry.

    Elicitation is declared even where nobody can be asked: a server that wants to ask before it
    goes on hears a no, and does not go on without asking.
    """

    alias: str
    roots: Sequence[Path] = ()
    sampling: bool = False
    elicit: Elicit | None = None

    def capabilities(self) -> JsonObject:
        """What we declare to the server."""
        declared: dict[str, Any] = {"elicitation": {}}
        if self.roots:
            declared["roots"] = {}
        if self.sampling:
            declared["sampling"] = {}
        return declared

    async def answer_on_the_way(
        self, method: str, params: JsonObject, running: Running
    ) -> JsonObject:
        """The result for what a server asks on the way to the answer to a request of ours.

        Raises:
            RpcError: the request is refused, or unknown.
        """
        elicits = method == ELICITATION
        if elicits and not running.elicits:
            return DECLINED
        result = await self.answer(method, params, running.call.sample)
        if elicits and result.get("action") == "cancel":
            # Whoever had enough is not asked again and again.
            running.elicits = False
        return result

    async def answer(self, method: str, params: JsonObject, sample: Sampler | None) -> JsonObject:
        """The result for one request; `sample` is that of the call under way.

        Raises:
            RpcError: the request is refused, or unknown.
        """
        match method:
            case "ping":
                return {}
            case "roots/list":
                return {"roots": [{"uri": p.as_uri(), "name": p.name} for p in self.roots]}
            case _ if method == ELICITATION:
                return DECLINED if self.elicit is None else await self.elicit(self.alias, params)
            case "sampling/createMessage":
                return await self._sample(params, sample)
        raise RpcError(METHOD_NOT_FOUND, f"method not found: {method}")

    async def _sample(self, params: JsonObject, sample: Sampler | None) -> JsonObject:
        if not self.sampling:
            raise RpcError(REFUSED_BY_USER, "sampling is denied by the configuration")
        if sample is None:
            raise RpcError(REFUSED_BY_USER, "sampling is answered only while a step's call runs")
        try:
            return await sample.sample(params)
        except AishError as error:
            # The server gets an answer; the call it was made for goes on and fails in its own way.
            raise RpcError(INTERNAL_ERROR, error.message) from error
