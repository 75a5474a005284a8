"""Endpoints for clients, from flags and `serve.listen`: a kind of listener and its address.

Imports nothing that a listener needs, so that `aish serve` starts quickly.
"""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Literal

from aish.core.errors import UsageError
from aish.core.frozen import frozen
from aish.net.listen.addresses import Address, parse_address, unix_address

Kind = Literal["stdio", "http", "tcp", "unix"]
TCP_DEFAULT = "127.0.0.1:9100"
HTTP_PATH = "/mcp"
ADDRESS_VARIABLE = "MCP_ADDR"
_PATH = re.compile(r"(/[A-Za-z0-9._~-]+)+", re.ASCII)
_OWN_PATHS = frozenset({"/healthz", "/readyz", "/metrics"})
"""Those that every HTTP listener has for other purposes."""
_FORMS = "write `stdio`, `http://HOST:PORT/mcp`, `http+unix:PATH`, `tcp://HOST:PORT` or `unix:PATH`"


@frozen
class Endpoint:
    """An endpoint for clients; only HTTP has a `path`, standard streams have no address."""

    kind: Kind
    address: Address | None = None
    path: str = ""

    @property
    def needs_token(self) -> bool:
        """True if clients need a token: a port does not identify them."""
        return self.address is not None and self.address.path is None

    def at(self, address: Address) -> "Endpoint":
        """Return the endpoint with its real address: the port that was free."""
        return Endpoint(self.kind, address, self.path)

    def to_text(self, *, has_tls: bool = False) -> str:
        """Return the form of `serve.listen`, with `https` if HTTP over TCP is encrypted here."""
        if self.address is None:
            return self.kind
        if self.address.path is not None:
            return f"http+{self.address}" if self.kind == "http" else str(self.address)
        scheme = f"{self.kind}s" if has_tls and self.kind == "http" else self.kind
        return f"{scheme}://{self.address}{self.path}"


STDIO = Endpoint("stdio")


def parse_endpoint(text: str, where: str) -> Endpoint:
    """Parse an endpoint of `serve.listen`.

    Raises:
        UsageError: it is not a valid form.
    """
    if text == "stdio":
        return STDIO
    if text.startswith("http://"):
        return http_endpoint(text.removeprefix("http://"), where)
    if text.startswith("http+unix:"):
        return http_endpoint(text.removeprefix("http+"), where)
    if text.startswith("tcp://"):
        return tcp_endpoint(text.removeprefix("tcp://"), where)
    if text.startswith("unix:"):
        return unix_endpoint(Path(text.removeprefix("unix:")), where)
    raise UsageError(f"`{text}` is not a listening address", where=where, hint=_FORMS)


def http_endpoint(text: str, where: str) -> Endpoint:
    """Parse `HOST:PORT`, with or without a path, or `unix:PATH`.

    Raises:
        UsageError: it is neither.
    """
    if text.startswith("unix:"):
        return Endpoint("http", parse_address(text, where), HTTP_PATH)
    if text.startswith("https://"):
        hint = "leave `https://` out: `--tls-cert` and `--tls-key` encrypt"
        raise UsageError(f"`{text}` is not `HOST:PORT`", where=where, hint=hint)
    netloc, slash, rest = text.partition("/")
    path = HTTP_PATH if not rest else f"{slash}{rest}"
    if not _PATH.fullmatch(path) or path in _OWN_PATHS:
        message = f"`{path}` is not a path that HTTP can be served under"
        raise UsageError(message, where=where, hint=f"for example `{netloc}{HTTP_PATH}`")
    return Endpoint("http", parse_address(netloc, where), path)


def tcp_endpoint(text: str, where: str) -> Endpoint:
    """Parse `HOST:PORT`.

    Raises:
        UsageError: it is not.
    """
    address = parse_address(text, where)
    if address.path is not None:
        hint = "a socket file is `unix:PATH`"
        raise UsageError(f"`{text}` is not `HOST:PORT`", where=where, hint=hint)
    return Endpoint("tcp", address)


def unix_endpoint(path: Path, where: str) -> Endpoint:
    """Return the endpoint of a socket file for JSON lines.

    Raises:
        UsageError: its path is too long or empty.
    """
    return Endpoint("unix", unix_address(path, where))


def environment_endpoint(environ: Mapping[str, str]) -> Endpoint:
    """Return the endpoint in `MCP_ADDR`: `HOST:PORT` for TCP, or a form of `serve.listen`.

    Raises:
        UsageError: it is not set or not valid.
    """
    text = environ.get(ADDRESS_VARIABLE, "")
    if not text:
        hint = f"for example `{ADDRESS_VARIABLE}={TCP_DEFAULT}`"
        message = f"`--from-env` needs `{ADDRESS_VARIABLE}`, which is not set"
        raise UsageError(message, hint=hint)
    if text == STDIO.kind or "://" in text or text.startswith(("unix:", "http+unix:")):
        return parse_endpoint(text, ADDRESS_VARIABLE)
    return tcp_endpoint(text, ADDRESS_VARIABLE)


def check_distinct(endpoints: Iterable[Endpoint], where: str) -> tuple[Endpoint, ...]:
    """Return the endpoints after a check that no address is listed twice.

    Raises:
        UsageError: one is listed twice.
    """
    result: list[Endpoint] = []
    for endpoint in endpoints:
        address = endpoint.address
        # Port 0 is another one each time.
        is_any = address is not None and address.path is None and address.port == 0
        if not is_any and any(endpoint.address == address for endpoint in result):
            raise UsageError(f"`{endpoint.to_text()}` is given twice", where=where)
        result.append(endpoint)
    return tuple(result)
