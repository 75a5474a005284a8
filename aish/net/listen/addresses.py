"""Addresses to listen on, and which of them other machines may reach."""

import re
import sys
from collections.abc import Sequence
from ipaddress import ip_address
from pathlib import Path

from aish.core.errors import UsageError
from aish.core.frozen import frozen

_UNIX = "unix:"
_TCP = re.compile(r"(?P<host>\[[^\[\]]+\]|[^:\[\]]+):(?P<port>\d{1,5})", re.ASCII)
_LAST_PORT = 65535
_LOCALHOST = "localhost"
_LONGEST_PATH = 103 if sys.platform == "darwin" else 107  # bytes of `sun_path` without its NUL
_FORMS = "write `unix:PATH`, or `HOST:PORT` such as `127.0.0.1:8080`; port 0 is any free one"
_EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # ruff: ignore[hardcoded-bind-all-interfaces] - replaced
LOOPBACK_HOSTS = ("127.0.0.1", _LOCALHOST, "[::1]")
"""The names of this machine, as they stand in a URL."""


@frozen
class Address:
    """A socket file (`path`), or a port of an IP address (`host`); port 0 is any free one."""

    path: Path | None = None
    host: str = ""
    port: int = 0

    @property
    def is_loopback(self) -> bool:
        """True if only this machine can reach it."""
        return self.path is not None or ip_address(self.host).is_loopback

    @property
    def netloc(self) -> str:
        """`HOST:PORT` as it stands in a URL; empty for a socket file."""
        if self.path is not None:
            return ""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def reached(self) -> "Address":
        """The address to connect to from this machine: loopback if it listens on all addresses."""
        return Address(self.path, _EVERYWHERE.get(self.host, self.host), self.port)

    def __str__(self) -> str:
        return self.netloc or f"{_UNIX}{self.path}"


@frozen
class Exposure:
    """Options about connections from other machines."""

    allow_remote: bool = False
    behind_proxy: bool = False
    tls_cert: Path | None = None
    tls_key: Path | None = None

    @property
    def has_tls(self) -> bool:
        """True if connections over TCP are encrypted here."""
        return self.tls_cert is not None and self.tls_key is not None


def parse_address(text: str, where: str | None = None) -> Address:
    """The address that a person wrote; `where` names the option or key.

    Raises:
        UsageError: it is not an address, or its path is too long for a socket.
    """
    if text.startswith(_UNIX):
        return unix_address(Path(text.removeprefix(_UNIX)), where)
    found = _TCP.fullmatch(text)
    if found is None or int(found["port"]) > _LAST_PORT:
        raise UsageError(f"`{text}` is not an address to listen on", where=where, hint=_FORMS)
    host = found["host"].strip("[]")
    if host == _LOCALHOST:
        host = "127.0.0.1"
    try:
        parsed = ip_address(host)
    except ValueError:
        said = f"`{host}` is neither an IP address nor `localhost`"
        raise UsageError(said, where=where, hint=_FORMS) from None
    if (":" in host) != found["host"].startswith("[") or parsed.is_multicast or "%" in host:
        raise UsageError(f"`{text}` is not an address to listen on", where=where, hint=_FORMS)
    return Address(host=str(parsed), port=int(found["port"]))


def unix_address(path: Path, where: str | None = None) -> Address:
    """The address of a socket file.

    Raises:
        UsageError: the path has no name, or is too long for a socket.
    """
    if path.name in {"", ".."} or "\0" in str(path):
        raise UsageError("`unix:` needs the path of a socket file", where=where, hint=_FORMS)
    absolute = path.absolute()
    if len(bytes(absolute)) > _LONGEST_PATH:
        said = f"`{absolute}` is too long: a socket's path has at most {_LONGEST_PATH} bytes"
        raise UsageError(said, where=where, hint="use a shorter path")
    return Address(path=absolute)


def check_exposure(addresses: Sequence[Address], exposure: Exposure) -> None:
    """Refuse what other machines could reach unless it was asked for, and is encrypted.

    Raises:
        UsageError: an address or an option does not fit the others.
    """
    if (exposure.tls_cert is None) != (exposure.tls_key is None):
        raise UsageError(
            "`--tls-cert` and `--tls-key` go together", hint="give the certificate and its key"
        )
    over_tcp = [address for address in addresses if address.path is None]
    if exposure.has_tls and not over_tcp:
        raise UsageError(
            "`--tls-cert` goes with an address `HOST:PORT`", hint="a socket file needs no TLS"
        )
    for address in over_tcp:
        if address.is_loopback:
            continue
        if not exposure.allow_remote:
            raise UsageError(
                f"`{address}` can be reached from other machines",
                hint=f"use `127.0.0.1:{address.port}`, or add `--allow-remote`",
            )
        if not (exposure.has_tls or exposure.behind_proxy):
            raise UsageError(
                f"`{address}` would send tokens unencrypted",
                hint="add `--tls-cert` and `--tls-key`, or `--behind-proxy` where a proxy has TLS",
            )
