"""The destinations that a server in a sandbox may connect to, and the addresses they get there.

A name has one address in the sandbox, one that it really has: programs that take loopback for
private would refuse any other. Nothing is connected to here.
"""

import socket
from collections.abc import Collection, Mapping, Sequence
from ipaddress import ip_address
from typing import TYPE_CHECKING, Final

import anyio

from aish.core.errors import UnavailableError
from aish.core.frozen import frozen
from aish.core.patterns import lazy_pattern
from aish.net.address_guard import (
    AddressGuard,
    BlockedAddressError,
    Destination,
    Resolve,
    host_text,
    is_address,
    is_host,
    system_addresses,
)
from aish.system.task_group import task_group

if TYPE_CHECKING:
    from aish.system.process.supervisor import WantedSocket

MOST_DESTINATIONS: Final = 64
NAME_SERVER: Final = "127.53.53.53"
"""Its address in the sandbox, which hardly is the one of a destination."""
_NAME_SERVER_PORT: Final = 53
NAME_SERVER_SOCKETS: Final[tuple["WantedSocket", ...]] = (
    ("udp", NAME_SERVER, _NAME_SERVER_PORT),
    ("tcp", NAME_SERVER, _NAME_SERVER_PORT),
)
RESOLV_CONF: Final = f"nameserver {NAME_SERVER}\nsearch .\n"
"""No domain is added to a name: without `search`, the machine's would be."""
_LOOKUP_SECONDS: Final = 20.0
_DEFAULT_PORT: Final = 443
_LAST_PORT: Final = 65_535
_ENTRY: Final = lazy_pattern(
    r"(?P<bare>[0-9a-f:.]*:[0-9a-f:.]*:[0-9a-f:.]*)"
    r"|(?:\[(?P<six>[0-9a-f:.]+)\]|(?P<name>[^:\[\]/@]+))(?::(?P<port>[0-9]{1,5}))?"
)


@frozen
class ListedDestination:
    """A destination that a sandbox may connect to, `is_public` if only at public addresses."""

    destination: Destination
    is_public: bool

    def __str__(self) -> str:
        host = self.destination.host
        return host if self.is_public else str(self.destination)


@frozen
class SandboxNetwork:
    """Listed destinations and the address of each host in the sandbox."""

    listed: tuple[ListedDestination, ...]
    addresses: Mapping[str, str]

    @property
    def sockets(self) -> "tuple[WantedSocket, ...]":
        """The sockets to be opened in the sandbox; the name server's are the last two."""
        ends = dict.fromkeys(map(self.end, self.listed))
        return (
            *(("tcp", address, port) for address, port in ends),
            *NAME_SERVER_SOCKETS,
        )

    @property
    def hosts(self) -> str:
        """The text of `/etc/hosts` in the sandbox."""
        own = socket.gethostname()
        first = f"127.0.0.1 localhost {own if is_host(own.lower()) else ''}".rstrip()
        names = {host: to for host, to in self.addresses.items() if not is_address(host)}
        return "".join(
            f"{line}\n" for line in (first, *(f"{names[host]} {host}" for host in names))
        )

    def end(self, listed: ListedDestination) -> tuple[str, int]:
        """The address and the port of a destination in the sandbox."""
        return self.addresses[listed.destination.host], listed.destination.port


def parse_destination(text: str) -> ListedDestination:
    """Parse `host` (port 443, public addresses) or `host:port` (whatever its address).

    Raises:
        ValueError: it is neither; its text says what to write.
    """
    found = _ENTRY.fullmatch(text.lower())
    if found is None or "*" in text:
        raise ValueError("write `host` or `host:port`, no URL and no pattern")
    host = (found["bare"] or found["six"] or found["name"]).rstrip(".")
    port = int(found["port"] or _DEFAULT_PORT)
    if not is_host(host) or (":" in host and not is_address(host)):
        raise ValueError("it is not a valid host name or address")
    if not 0 < port <= _LAST_PORT:
        raise ValueError(f"its port must be between 1 and {_LAST_PORT}")
    if (host, port) == (NAME_SERVER, _NAME_SERVER_PORT):
        raise ValueError("the name server of the sandbox has this address")
    if is_address(host) and not _is_usable(host):
        raise ValueError("nothing can be connected to at this address")
    return ListedDestination(Destination(host, port), found["port"] is None)


def guard_of(listed: Collection[ListedDestination], resolve: Resolve) -> AddressGuard:
    """A guard that permits what is listed: those with a port, whatever their address."""
    return AddressGuard([one.destination for one in listed if not one.is_public], resolve)


async def resolve_network(
    listed: Sequence[ListedDestination], resolve: Resolve = system_addresses
) -> SandboxNetwork:
    """Look up all destinations and choose the address of each host.

    Hosts that share addresses get different ones where they have several.

    Raises:
        UnavailableError: one of them has no address, or none that is permitted.
    """
    guard = guard_of(listed, resolve)
    found: dict[ListedDestination, Sequence[str]] = {}

    async def look_up(one: ListedDestination) -> None:
        found[one] = await _addresses(one, guard)

    async with task_group() as tasks:
        for one in listed:
            tasks.start_soon(look_up, one)
    addresses: dict[str, str] = {}
    for one in listed:
        taken = set(addresses.values())
        usable = sorted(found[one], key=lambda address: (":" in address, address in taken))
        addresses.setdefault(one.destination.host, usable[0])
    return SandboxNetwork(tuple(listed), addresses)


async def _addresses(one: ListedDestination, guard: AddressGuard) -> Sequence[str]:
    destination = one.destination
    try:
        with anyio.fail_after(_LOOKUP_SECONDS):
            found = await guard.addresses(destination.host, destination.port)
    except BlockedAddressError as error:
        message = f"`{host_text(destination.host)}` has an address that is not public"
        raise UnavailableError(message, hint=f"`{destination}` permits any address") from error
    except (OSError, UnicodeError, TimeoutError) as error:
        message = f"no address was found for `{host_text(destination.host)}`"
        raise UnavailableError(message) from error
    usable = list(filter(_is_usable, found))
    if not usable:
        message = f"`{host_text(destination.host)}` has no address that can be connected to"
        raise UnavailableError(message)
    return usable


def _is_usable(address: str) -> bool:
    parsed = ip_address(address)
    return not (
        parsed.is_unspecified
        or parsed.is_multicast
        or getattr(parsed, "scope_id", None)
        or address == "255.255.255.255"
    )
