"""The transport that logs in when the server asks for it, and sends the token.

It lies below a cassette: only the exchange that counts is recorded, without the token, and a replay
asks no authorization server.
"""

from typing import Final

import httpx

from aish.net.oauth.challenges import AuthChallenge, read_refusal
from aish.net.oauth.failure import LoginError
from aish.net.oauth.login import FORBIDDEN, Login
from aish.net.renewed_secret import Token

_UNAUTHORIZED: Final = 401
_MOST_BODY: Final = 4096


class LoggedInTransport(httpx.AsyncBaseTransport):
    """Sends requests with the token of a login, which begins at the first 401 or 403.

    A request logs in or renews once, and steps up once.
    """

    def __init__(self, inner: httpx.AsyncBaseTransport, login: Login) -> None:
        self._inner = inner
        self._login = login

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """The answer of the server, once it takes the token.

        Raises:
            LoginError: there is no token, or the server refuses it.
            httpx.TransportError: there is no answer.
        """
        token = await self._login.current()
        may_log_in = may_step_up = True
        while True:
            response = await self._inner.handle_async_request(_with_token(request, token))
            status = response.status_code
            if status not in {_UNAUTHORIZED, FORBIDDEN}:
                return response
            self._login.note_server(response.extensions["server_address"])
            body = await _read_start(response)
            refusal = read_refusal(response.headers.get_list("www-authenticate"), body)
            if token is not None and status == FORBIDDEN:
                if not refusal.wants_more_scopes:
                    return httpx.Response(
                        status, headers=response.headers, stream=httpx.ByteStream(body)
                    )
                if not may_step_up:
                    raise self._login.explain(status, refusal)
                may_step_up = False
                token = await self._login.step_up(token, refusal)
            elif may_log_in:
                may_log_in = False
                token = await self._log_in(token, status, refusal)
            else:
                raise self._login.explain(status, refusal)

    async def aclose(self) -> None:
        await self._inner.aclose()

    async def _log_in(self, token: Token | None, status: int, refusal: AuthChallenge) -> Token:
        try:
            return await self._login.log_in(token, refusal)
        except LoginError as error:
            if status == _UNAUTHORIZED:
                raise
            # Some servers say 403 where they want a login, and others mean it.
            raise LoginError(f"HTTP 403, and a login fails: {error}") from error


def _with_token(request: httpx.Request, token: Token | None) -> httpx.Request:
    if token is None:
        return request
    headers = request.headers.copy()
    headers["authorization"] = f"Bearer {token.value}"
    return httpx.Request(
        request.method,
        request.url,
        headers=headers,
        stream=request.stream,
        extensions=request.extensions,
    )


async def _read_start(response: httpx.Response) -> bytes:
    """The start of a refusal's body; the connection is free afterwards."""
    assert isinstance(response.stream, httpx.AsyncByteStream)
    start = b""
    try:
        async for piece in response.stream:
            start += piece
            if len(start) > _MOST_BODY:
                break
    finally:
        await response.aclose()
    return start[:_MOST_BODY]
