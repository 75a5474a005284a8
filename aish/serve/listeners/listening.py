"""The sockets that clients connect to: opened before anything else, and named in a file.

A socket that was asked for and cannot be opened ends the start; what fails later is told, and ends
nothing.
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
    """An endpoint with its real address, and the socket that listens there.

    Connections over TCP are encrypted with `tls`, if there is one.
    """

    endpoint: Endpoint
    listener: Listener
    tls: ssl.SSLContext | None

    @property
    def shown(self) -> str:
        """The endpoint as people and programs are told of it."""
        return self.endpoint.to_text(has_tls=self.tls is not None)


@contextmanager
def open_endpoints(
    endpoints: Sequence[Endpoint],
    exposure: Exposure,
    state: ServeState,
    emit: Emit | None,
    token: Path | None = None,
) -> Generator[Sequence[OpenEndpoint]]:
    """Open the sockets, tell where they are, and write it down until the end of the block.

    `token` is the file with the token that was made, if the pipeline names no clients. Without
    `emit` it is not told yet.

    Raises:
        UsageError: one of them cannot be opened, or must not be; none is left open.
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
    """Tell where clients can connect."""
    for listener in opened:
        text = f"listening on {listener.shown}"
        if token is not None and listener.endpoint.needs_token:
            text += f", token in `{token}`"
        emit(Notice(NOWHERE, "info", "listening", text))


def listener_json(opened: OpenEndpoint) -> JsonObject:
    """A listener as `listeners.json` and the audit log have it."""
    has_tls = opened.tls is not None and opened.listener.address.path is None
    return {
        "transport": opened.endpoint.kind,
        "address": str(opened.listener.address),
        "listen": opened.shown,
        "tls": has_tls,
    }


@contextmanager
def _write_entry(path: Path, opened: Sequence[OpenEndpoint]) -> Generator[None]:
    """Say in a file where this process listens, beside others that share the folder."""
    with ExitStack() as stack:
        entry: JsonObject = {"listeners": [listener_json(listener) for listener in opened]}
        try:
            stack.enter_context(own_entry(path, entry, _forget))
        except OSError as error:
            message = f"cannot write `{path.name}`: {error.strerror or error}"
            raise UsageError(message, where=str(path.parent)) from error
        yield


def open_listeners(folder: Path) -> Sequence[str]:
    """The listeners of the servers whose state is in a folder; none if none runs."""
    try:
        entries = live_entries(folder / LISTENERS_FILE, _forget)
    except (OSError, ValueError, UsageError):
        return ()
    return [str(listen) for entry in entries for listen in _each(entry, "listen")]


def _forget(entry: JsonObject) -> None:
    """Remove the socket files of a process that was killed."""
    remove_dead_sockets(list(_each(entry, "address")))


def _each(entry: JsonObject, key: str) -> Iterator[JsonValue]:
    """A value of each listener of a process, as its entry has it."""
    rows = entry.get("listeners")
    for row in rows if isinstance(rows, list) else ():
        if isinstance(row, dict) and key in row:
            yield row[key]
