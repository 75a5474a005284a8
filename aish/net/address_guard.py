"""Which hosts and ports may be connected to where others name them.

A name is looked up here, and all its addresses are checked before one of them is connected to: what
it means later does not matter. This is the one rule of the client that packs ask the web with and
of the proxy that a browser is given.
"""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Collection, Sequence
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Final

from aish.core.frozen import frozen
from aish.core.patterns import lazy_pattern
from aish.core.phrases import shorten
from aish.core.text import for_line

PORTS: Final = {"http": 80, "https": 443}
"""The ports that may be connected to without being named."""
_HOST: Final = lazy_pattern(r"[a-z0-9_](?:[a-z0-9_.-]{0,251}[a-z0-9_])?")
_SHOWN: Final = 200

# As of IANA's registries of special-purpose addresses; independent of the version of Python, whose
# `is_global` is asked too. 168.63.129.16 is the host of a virtual machine of Azure.
_NOT_PUBLIC_4: Final = tuple(
    ip_network(network)
    for network in (
        *("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "168.63.129.16/32"),
        *("169.254.0.0/16", "172.16.0.0/12", "192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24"),
        *("192.168.0.0/16", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/3"),
    )
)
_PUBLIC_6: Final = ip_network("2000::/3")
_NOT_PUBLIC_6: Final = tuple(
    ip_network(network) for network in ("2001::/23", "2001:db8::/32", "3fff::/20")
)
_NAT64: Final = ip_network("64:ff9b::/96")

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""The addresses of a host, as numbers; an `OSError` if there are none."""


class BlockedAddressError(OSError):
    """A host and a port may not be connected to."""


@frozen
class Destination:
    """A host, in lower case and without a final dot, and a port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class AddressGuard:
    """Guard of connections: public addresses, and what `allow` names whatever its address."""

    def __init__(self, allow: Collection[Destination], resolve: Resolve) -> None:
        self._allow = frozenset(allow)
        self._resolve = resolve

    def check_port(self, wanted: Destination) -> None:
        """Check what can be checked without a look-up.

        Raises:
            BlockedAddressError: the port is not permitted.
        """
        if wanted.port not in PORTS.values() and wanted not in self._allow:
            message = f"port {wanted.port} is blocked: 80 and 443 are permitted{_otherwise(wanted)}"
            raise BlockedAddressError(message)

    async def addresses(self, host: str, port: int) -> Sequence[str]:
        """The addresses of a host, all of them checked.

        Raises:
            BlockedAddressError: one of them is not public.
            OSError: there is none.
        """
        wanted = Destination(host, port)
        found = await self._resolve(host, port)
        if not found:
            raise OSError("no address")
        if wanted not in self._allow and not all(map(is_public, found)):
            what = (
                "is not a public address"
                if is_address(host)
                else "has an address that is not public"
            )
            raise BlockedAddressError(f"`{host_text(host)}` {what}{_otherwise(wanted)}")
        return found


def is_address(host: str) -> bool:
    """Return true if a host is an address and not a name."""
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def is_host(text: str) -> bool:
    """Return true if a text, in lower case and without a final dot, can be a host."""
    return is_address(text) or _HOST.fullmatch(text) is not None


def host_text(text: str) -> str:
    """A host or destination for a message."""
    return shorten(for_line(text), _SHOWN)


def is_public(address: str) -> bool:
    """Return true if a numeric address belongs to the public internet.

    An IPv6 address that contains an IPv4 address (mapped, NAT64, 6to4) is judged by the latter.
    """
    try:
        found = ip_address(address)
    except ValueError:
        return False
    if isinstance(found, IPv4Address):
        return found.is_global and not any(found in network for network in _NOT_PUBLIC_4)
    inner = _inner_ipv4(found)
    if inner is not None:
        return is_public(str(inner))
    return (
        found.is_global
        and found.scope_id is None
        and found in _PUBLIC_6
        and not any(found in network for network in _NOT_PUBLIC_6)
    )


def _inner_ipv4(address: IPv6Address) -> IPv4Address | None:
    if address in _NAT64:
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour


async def system_addresses(host: str, port: int) -> Sequence[str]:
    """The addresses of a host, as the system looks them up."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return tuple(dict.fromkeys(str(place[0]) for *_, place in found))


def _otherwise(wanted: Destination) -> str:
    return f' (the option `allow: ["{host_text(str(wanted))}"]` permits it)'
