"""Headers whose values are made: sent with each message, and made anew on 401 (W13)."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import anyio
import pytest
from mcp_emulators import Legacy, McpEndpoint, Modern, result
from mcp_scenes import http, play, registry
from model_endpoint import Recorded, Reply, json_reply

from aish.core.errors import UnavailableError
from aish.mcp.transports.http import MadeHeaders
from aish.net.renewed_secret import RenewedSecret, Token

SUM = {"content": [{"type": "text", "text": "3"}]}
EXPIRED = json_reply(401, {"error": "the token has expired"})


class Made:
    """Makes `NAME-1`, `NAME-2`, …"""

    def __init__(self, name: str, *, failure: UnavailableError | None = None) -> None:
        self._name = name
        self.count = 0
        self.failure = failure

    async def __call__(self) -> Token:
        await anyio.lowlevel.checkpoint()
        if self.failure is not None:
            raise self.failure
        self.count += 1
        return Token(f"{self._name}-{self.count}")


def guarded(handler: Any, is_good: Callable[[Recorded], bool]) -> Callable[[Recorded], Reply]:
    """The server behind a guard of tokens."""
    return lambda request: handler(request) if is_good(request) else EXPIRED


def called(handler: Any, made: Callable[[], MadeHeaders]) -> tuple[Any, McpEndpoint]:
    """What a call comes to, or why there is no server; and the endpoint."""
    with McpEndpoint(handler) as end:

        async def scene() -> Any:
            async with registry(replace(http(end.url), made=made())) as s:
                failure = s.registry.failure("web")
                return failure if failure is not None else await s.call("web__add", a=1, b=2)

        return play(scene), end


def bearer(make: Made) -> Callable[[], MadeHeaders]:
    return lambda: {"authorization": ("Bearer ", RenewedSecret(make))}


@pytest.mark.parametrize("era", [Legacy, Modern])
def test_a_made_token_is_sent_with_each_message_and_made_once(era: Any) -> None:
    make, key = Made("token"), Made("key")
    found, end = called(
        era(tools__call=lambda request: result(request, SUM)),
        lambda: {
            "authorization": ("Bearer ", RenewedSecret(make)),
            "x-api-key": ("", RenewedSecret(key)),
        },
    )
    assert found.content == "3"
    assert {request.headers["authorization"] for request in end.requests} == {"Bearer token-1"}
    assert {request.headers["x-api-key"] for request in end.requests} == {"key-1"}
    assert (make.count, key.count) == (1, 1)


def test_a_call_with_an_expired_token_is_sent_again_with_a_new_one() -> None:
    make, calls = Made("token"), []

    def is_good(request: Recorded) -> bool:
        if b"tools/call" in request.body:
            calls.append(request.headers["authorization"])
            return request.headers["authorization"] == "Bearer token-2"
        return True

    found, _ = called(
        guarded(Legacy(tools__call=lambda request: result(request, SUM)), is_good), bearer(make)
    )
    assert found.content == "3"
    assert calls == ["Bearer token-1", "Bearer token-2"]
    assert make.count == 2


def test_a_server_that_refuses_each_token_is_asked_twice() -> None:
    make = Made("token")
    found, end = called(guarded(Legacy(), lambda _: False), bearer(make))
    assert "HTTP 401" in found
    # Each message is sent with two tokens at most, and a token is made for each message at most.
    assert make.count <= 1 + len(end.requests) // 2


def test_a_token_that_cannot_be_made_is_why_there_is_no_server() -> None:
    failure = UnavailableError(
        "`op` ended with exit code 1", where="mcp.servers.web.auth_command", hint="run it by hand"
    )
    found, end = called(Legacy(), bearer(Made("token", failure=failure)))
    assert found == (
        "no value for `authorization`: mcp.servers.web.auth_command: `op` ended with exit code 1:"
        " run it by hand"
    )
    assert end.requests == []


def test_a_made_token_goes_to_no_other_origin() -> None:
    with McpEndpoint(Legacy()) as other:
        away = Reply(status=307, headers={"location": other.url}, framing="length")
        found, _ = called(lambda _: away, bearer(Made("token")))
    assert "another origin" in found
    assert other.requests == []
