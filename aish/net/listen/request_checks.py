"""Checks of every request, over HTTP or at the start of a WebSocket.

Pure, and imports nothing of the extra `serve`.
"""

from collections.abc import Sequence
from functools import cache
from typing import Final
from urllib.parse import parse_qsl

from aish.core.frozen import frozen
from aish.core.patterns import lazy_pattern
from aish.net.listen.access import Access
from aish.net.listen.addresses import LOOPBACK_HOSTS, Address
from aish.net.listen.http_error import HttpError
from aish.net.listen.tokens import SHORTEST, ClientToken

URL_HAS_TOKEN: Final = "token_in_url"  # ruff: ignore[hardcoded-password-string] - a code of an error
"""The code of a request whose URL has a token: it must not be logged."""
_CREDENTIAL_FIELDS = frozenset({"token", "access_token", "key"})
_JWT = lazy_pattern(r"eyJ[\w-]+\.eyJ[\w-]+\.")
_MOST_FIELDS = 100
_DEFAULT_PORTS = {80: False, 443: True}
_SEND_IT = "send it as `Authorization: Bearer TOKEN`"


@frozen
class Listening:
    """Endpoint at which a connection came in."""

    local: Address
    is_tls: bool = False


def check_host(values: Sequence[str], listener: Listening, access: Access) -> None:
    """Check the values of `Host`: a name of this machine, or one that is allowed.

    Raises:
        HttpError: there is no single one, or it is another name.
    """
    if listener.local.path is not None:
        return
    allowed = len(values) == 1 and (values[0] in _own_hosts(listener) or values[0] in access.hosts)
    if not allowed:
        hint = f"use `{listener.local}`, or add the name to `hosts`"
        raise HttpError(421, "wrong_host", "this server has another name", hint=hint)


def check_origin(values: Sequence[str], listener: Listening, access: Access) -> None:
    """Check the values of `Origin`, which browsers send: the server's own, or one that is allowed.

    Raises:
        HttpError: it is another one.
    """
    if not values:
        return
    own: set[str] = set()
    if listener.local.path is None:
        scheme = "https" if listener.is_tls else "http"
        # On the other loopback address may be the page of another program.
        other = "[::1]" if listener.local.host.count(".") else "127.0.0.1"
        hosts = {host for host in _own_hosts(listener) if host.rpartition(":")[0] != other}
        own = {f"{scheme}://{host}" for host in hosts - {other}}
    if len(values) != 1 or values[0] not in own | access.origins:
        message = "pages of another origin may not use this server"
        raise HttpError(403, "wrong_origin", message, hint="add the origin to `origins`")


def check_url(path: str, query: str, access: Access) -> None:
    """Check that a URL has no token in it.

    Raises:
        HttpError: it has one, or more fields than are looked at.
    """
    try:
        fields = (
            parse_qsl(query, keep_blank_values=True, max_num_fields=_MOST_FIELDS) if query else []
        )
    except ValueError as error:
        message = f"the query has more than {_MOST_FIELDS} fields"
        raise HttpError(400, "bad_request", message) from error
    words = [*(value for _, value in fields), *path.split("/")]
    long_words = [word for word in words if len(word) >= SHORTEST]
    if any(name.lower() in _CREDENTIAL_FIELDS for name, _ in fields) or any(
        access.tokens.find(word) is not None
        or (access.authority is not None and _JWT.match(word) is not None)
        for word in long_words
    ):
        message = "a token in a URL ends up in logs and histories"
        raise HttpError(400, URL_HAS_TOKEN, message, hint=_SEND_IT)


def bearer_token(values: Sequence[str], access: Access) -> ClientToken:
    """The token in the values of `Authorization`.

    Raises:
        HttpError: there is none, or it is not one of this server.
    """
    kind, _, value = (values[0] if len(values) == 1 else "").partition(" ")
    token = access.tokens.find(value)
    if kind.lower() != "bearer" or token is None:
        said = "the token is not valid" if values else "a token is needed"
        headers = {"www-authenticate": "Bearer"}
        raise HttpError(401, "unauthorized", said, hint=_SEND_IT, headers=headers)
    return token


@cache
def _own_hosts(listener: Listening) -> frozenset[str]:
    """List the `Host` values allowed without configuration: this machine, or the address itself."""
    local = listener.local
    names = {*LOOPBACK_HOSTS, local.netloc.rpartition(":")[0]} - {"0.0.0.0", "[::]"}  # ruff: ignore[hardcoded-bind-all-interfaces] - it is taken out
    hosts = {f"{name}:{local.port}" for name in names}
    is_default = _DEFAULT_PORTS.get(local.port) is listener.is_tls
    return frozenset(hosts | (names if is_default else set()))
