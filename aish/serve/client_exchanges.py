"""The exchanges of clients in a cassette of a server.

They are recorded as `mcp+serve://NUMBER`, by session in the order in which they began, beside what
came from servers, models and commands. Clients of a replay ask what they want: it plays the rest.
"""

import json

from aish.cassettes.format.interaction import Exchange, Request
from aish.cassettes.record.recorder import LEFT, CassetteRecorder
from aish.core.json import JsonObject
from aish.mcp.protocol.requests import ClientRequest, ClientResponse, Notification, dump
from aish.mcp.recorded.cassette_adapter import readable
from aish.serve.calls.pending_calls import STATE

_SEALED = "sealed"
"""What a cassette has in the place of a `requestState`."""


class ClientExchange:
    """A request of a client while it is answered, or what it only tells."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange

    def tell(self, message: bytes) -> None:
        self._exchange.chunk(message + b"\n")

    def end(self, answer: bytes | None) -> None:
        """The answer is sent; without one the client has cancelled the request, or is gone."""
        if answer:
            self._exchange.chunk(_without_seal(answer) + b"\n")
        self._exchange.end(broken=LEFT if answer is None else None)


class ClientExchanges:
    """Records what clients say, and what they are answered."""

    def __init__(self, recorder: CassetteRecorder) -> None:
        self._recorder = recorder
        self._numbers: dict[str, int] = {}

    def begin(
        self, session: str, message: ClientRequest | Notification | ClientResponse
    ) -> ClientExchange | None:
        """A message of a client begins to be handled; `None` if it is not recorded."""
        number = self._numbers.setdefault(session, len(self._numbers) + 1)
        body = readable({"jsonrpc": "2.0", **_members(message)})
        exchange = self._recorder.begin(
            "client", Request("POST", f"mcp+serve://{number}", (), body)
        )
        return None if exchange is None else ClientExchange(exchange)


def _without_seal(answer: bytes) -> bytes:
    """The answer without a `requestState`: that is random, and good for ten minutes only."""
    if STATE.encode() not in answer:
        return answer
    message = json.loads(answer)
    result = message.get("result") if isinstance(message, dict) else None
    if not isinstance(result, dict) or STATE not in result:
        return answer
    return dump({**message, "result": {**result, STATE: _SEALED}})


def _members(message: ClientRequest | Notification | ClientResponse) -> JsonObject:
    match message:
        case ClientRequest(id, method, params):
            if STATE in params:
                params = {**params, STATE: _SEALED}
            return {"id": id, "method": method, **({"params": params} if params else {})}
        case Notification(method, params):
            return {"method": method, **({"params": params} if params else {})}
        case ClientResponse(id, result, error):
            if error is None:
                return {"id": id, "result": result}
            return {"id": id, "error": {"code": error.code, "message": error.message}}
