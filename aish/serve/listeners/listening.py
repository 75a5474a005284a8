"""The sockets that clients connect to: opened before anything else, and listed in a file.

If a requested socket cannot be opened, the start fails; later failures are only reported.
"""

import ssl
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from aish.core.errors import UsageError
from aish.core.events import NOWHERE, Notice
from aish.core.frozen import frozen
from aish.core.json import JsonObject, JsonValue
from aish.core.protocols import Emit
from aish.net.listen.addresses import Exposure, check_exposure
from aish.net.listen.server import require_serve, tls_context
from aish.net.listen.sockets import Listener, listen_on, remove_dead_sockets
from aish.serve.listeners.endpoint import Endpoint
from aish.serve.state import ServeState
from aish.system.files import raise_descriptor_limit
from aish.system.process.ancestry import adopt_orphans
from aish.system.process.live_entries import live_entries, own_entry

LISTENERS_FILE = "listeners.json"


@frozen
class OpenEndpoint:
    """An endpoint with its real address, and its listening socket.

    Connections over TCP are encrypted with `tls`, if it is set.
    """

    endpoint: Endpoint
    listener: Listener
    tls: ssl.SSLContext | None

    @property
    def shown(self) -> str:
        """The endpoint as shown to people and programs."""
        return self.endpoint.to_text(has_tls=self.tls is not None)


@contextmanager
def open_endpoints(
    endpoints: Sequence[Endpoint],
    exposure: Exposure,
    state: ServeState,
    emit: Emit | None,
    token: Path | None = None,
) -> Generator[Sequence[OpenEndpoint]]:
    """Open the sockets, and announce and list them until the end of the block.

    `token` is the file of the generated token, if the pipeline names no clients. Without `emit`
    nothing is announced yet.

    Raises:
        UsageError: one of them cannot or must not be opened; none is left open.
    """
    placed = [(one, one.address) for one in endpoints if one.address is not None]
    addresses = [address for _, address in placed]
    check_exposure(addresses, exposure)
    if any(endpoint.kind == "http" for endpoint in endpoints):
        require_serve()
    tls = tls_context(exposure)
    if addresses:
        raise_descriptor_limit()
        adopt_orphans()
    with listen_on(addresses) as listeners:
        entries = [
            OpenEndpoint(endpoint.at(listener.address), listener, tls)
            for (endpoint, _), listener in zip(placed, listeners, strict=True)
        ]
        with ExitStack() as stack:
            if entries:
                stack.enter_context(_write_entry(state.path / LISTENERS_FILE, entries))
            if emit is not None:
                tell_listening(entries, emit, token)
            yield entries


def tell_listening(opened: Sequence[OpenEndpoint], emit: Emit, token: Path | None = None) -> None:
    """Announce where clients can connect."""
    for listener in opened:
        text = f"listening on {listener.shown}"
        if token is not None and listener.endpoint.needs_token:
            text += f", token in `{token}`"
        emit(Notice(NOWHERE, "info", "listening", text))


def listener_json(opened: OpenEndpoint) -> JsonObject:
    """Return a listener for `listeners.json` and the audit log."""
    has_tls = opened.tls is not None and opened.listener.address.path is None
    return {
        "transport": opened.endpoint.kind,
        "address": str(opened.listener.address),
        "listen": opened.shown,
        "tls": has_tls,
    }


@contextmanager
def _write_entry(path: Path, opened: Sequence[OpenEndpoint]) -> Generator[None]:
    """Write the entry of this process, beside those of others that share the folder."""
    with ExitStack() as stack:
        entry: JsonObject = {"listeners": [listener_json(listener) for listener in opened]}
        try:
            stack.enter_context(own_entry(path, entry, _forget))
        except OSError as error:
            message = f"cannot write `{path.name}`: {error.strerror or error}"
            raise UsageError(message, where=str(path.parent)) from error
        yield


def open_listeners(folder: Path) -> Sequence[str]:
    """Return the listeners of the servers that share a state folder."""
    try:
        entries = live_entries(folder / LISTENERS_FILE, _forget)
    except (OSError, ValueError, UsageError):
        return ()
    return [str(listen) for entry in entries for listen in _each(entry, "listen")]


def _forget(entry: JsonObject) -> None:
    """Remove the socket files of a process that was killed."""
    remove_dead_sockets(list(_each(entry, "address")))


def _each(entry: JsonObject, key: str) -> Iterator[JsonValue]:
    """Yield a value of each listener in the entry of a process."""
    rows = entry.get("listeners")
    for row in rows if isinstance(rows, list) else ():
        if isinstance(row, dict) and key in row:
            yield row[key]
