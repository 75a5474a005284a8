"""Logs a person in at a server, whatever login is kept: asks it for nothing but its refusal."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import httpx

from aish.net.http import DirectTransport
from aish.net.oauth.challenges import AuthChallenge
from aish.net.oauth.failure import LoginError
from aish.net.oauth.login import Login
from aish.net.oauth.login_store import KeptLogin
from aish.net.oauth.person_login import PersonLogin
from aish.net.oauth.transport import LoggedInTransport

_PING: Final = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "ping"}).encode()
_HEADERS: Final = {
    "accept": "application/json, text/event-stream",
    "content-type": "application/json",
    "accept-encoding": "identity",
}
_CONNECTIONS: Final = 2


async def log_in_person(
    flow: PersonLogin,
    *,
    headers: Mapping[str, str],
    verify_server: bool | Path,
    seconds: float,
) -> KeptLogin:
    """The login that the person made, which the server takes; it is kept.

    Raises:
        LoginError: there is none.
    """
    real = DirectTransport(verify=verify_server, most=_CONNECTIONS, kept_seconds=0)
    transport = LoggedInTransport(real, Login(flow))
    times = {"connect": seconds, "read": seconds, "write": seconds, "pool": None}
    try:
        request = httpx.Request(
            "POST",
            flow.site.url,
            headers={**headers, **_HEADERS},
            content=_PING,
            extensions={"timeout": times},
        )
        response = await transport.handle_async_request(request)
        await response.aclose()
    except LoginError:
        raise
    except httpx.TransportError as error:
        why = str(error) or type(error).__name__
        raise LoginError(f"cannot connect to the server: {why}") from error
    finally:
        await transport.aclose()
    if flow.newest is None:
        # Some servers answer anybody, and want a login for their tools only.
        await flow.log_in(None, AuthChallenge())
    assert flow.newest is not None, "a login was made"
    return flow.newest
