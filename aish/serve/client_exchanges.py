"""Exchanges with clients, in the cassette of a server.

They are recorded as `mcp+serve://NUMBER`, numbered by session, beside the answers of servers,
models and commands. In a replay, clients may send any request.
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
    """A request or notification of a client while it is handled."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange

    def tell(self, message: bytes) -> None:
        self._exchange.chunk(message + b"\n")

    def end(self, answer: bytes | None) -> None:
        """Record the answer; `None` if the client has cancelled the request or disconnected."""
        if answer:
            self._exchange.chunk(_without_seal(answer) + b"\n")
        self._exchange.end(broken=LEFT if answer is None else None)


class ClientExchanges:
    """Records requests of clients and their answers."""

    def __init__(self, recorder: CassetteRecorder) -> None:
        self._recorder = recorder
        self._numbers: dict[str, int] = {}

    def begin(
        self, session: str, message: ClientRequest | Notification | ClientResponse
    ) -> ClientExchange | None:
        """Begin to record a message of a client; `None` if it is not recorded."""
        number = self._numbers.setdefault(session, len(self._numbers) + 1)
        body = readable({"jsonrpc": "2.0", **_members(message)})
        exchange = self._recorder.begin(
            "client", Request("POST", f"mcp+serve://{number}", (), body)
        )
        return None if exchange is None else ClientExchange(exchange)


def _without_seal(answer: bytes) -> bytes:
    """Return the answer without `requestState`, which is random and valid for ten minutes only."""
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
