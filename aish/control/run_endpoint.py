"""Addresses of runs, and the entry that the process of a run writes about its own."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from aish.control.errors import ConnectionLostError, NotListeningError, SilentError
from aish.core.errors import AishError, UsageError
from aish.core.frozen import frozen
from aish.core.json import JsonObject
from aish.core.phrases import backticked
from aish.features.control.server import control_entries
from aish.journal.reader import read_journal
from aish.net.listen.addresses import Address, parse_address, unix_address
from aish.net.listen.tokens import token_from_file

_UNIX: Final = "unix:"
_HOST_AND_PORT: Final = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[\w.-]+):\d{1,5}", re.ASCII)
_OPEN_ONE: Final = "`--control` opens a socket to a run; it is closed when the run ends"
_FORMS: Final = "write `unix:PATH`, `HOST:PORT`, or a URL such as `https://runs.example.org`"


@frozen
class RunEndpoint:
    """A URL, the socket file if it is one, and the token."""

    url: str
    path: str | None = None
    token: str | None = None

    def __repr__(self) -> str:
        return f"Endpoint({self.shown!r})"

    @property
    def shown(self) -> str:
        return self.url if self.path is None else f"{_UNIX}{self.path}"

    @property
    def is_tls(self) -> bool:
        return urlsplit(self.url).scheme == "https"

    def not_listening(self, why: str) -> NotListeningError:
        hint = "a run listens with `--control`, `on_ask: wait` or `on_ask: pause`, until it ends"
        return NotListeningError(f"no connection to `{self.shown}`: {why}", hint=hint)

    def silent(self) -> SilentError:
        return SilentError(f"`{self.shown}` sent nothing for too long")

    def loss_error(self, why: str) -> ConnectionLostError:
        """Return the error for a missing or incomplete answer."""
        message = f"the connection to `{self.shown}` was lost: {why}"
        return ConnectionLostError(message, hint="ask for the state before the same is sent again")


@frozen
class LiveAddress:
    """Address and token of a run's process, from its entry; a socket file has no token.

    `answer_token` says where the token for answers is kept, if the pipeline file names one.
    """

    address: Address
    token: str | None = None
    is_tls: bool = False
    answer_token: Any = None

    def endpoint(self, token: str | None = None) -> RunEndpoint:
        """Return the endpoint: a port with the caller's token, or else with the run's own.

        A host that stands for all addresses is reached by loopback.
        """
        if self.address.path is not None:
            return RunEndpoint("http://localhost", str(self.address.path))
        scheme = "https" if self.is_tls else "http"
        return RunEndpoint(f"{scheme}://{self.address.reached.netloc}", None, token or self.token)


@frozen
class EndedRun:
    """Journal of a finished run: its events and its `run.finished`."""

    events: Sequence[JsonObject]
    finished: JsonObject


Locate = Callable[[], RunEndpoint]
"""Finds the endpoint, whenever a connection is needed; raises `NotListeningError`."""


def endpoint_at(address: str, token: str | None) -> Locate:
    """Parse an address.

    Raises:
        UsageError: it is not an address.
    """
    if address.startswith(_UNIX):
        path = unix_address(Path(address.removeprefix(_UNIX))).path
        endpoint = RunEndpoint("http://localhost", str(path), token)
    else:
        url = f"http://{address}" if _HOST_AND_PORT.fullmatch(address) else address
        if not _is_plain_url(url):
            # What was written may hold a token.
            raise UsageError("this is not the address of a control API", hint=_FORMS)
        endpoint = RunEndpoint(url.rstrip("/"), None, token)
    return lambda: endpoint


def _is_plain_url(url: str) -> bool:
    """Return true if it is an HTTP URL without credentials, query and fragment."""
    try:
        parts = urlsplit(url)
        # A port above the last one would be another one to the system.
        has_host = bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False
    plain = not (parts.username or parts.password or parts.query or parts.fragment)
    return has_host and plain and parts.scheme in {"http", "https"}


def endpoint_of_folder(folder: Path, token: str | None) -> Locate:
    """Find the endpoint of the run in a folder; it changes when the run is resumed."""

    def locate() -> RunEndpoint:
        entries = _entries(folder.name, folder)
        if not entries:
            raise NotListeningError(f"the run in `{folder}` does not listen", hint=_OPEN_ONE)
        return _endpoint(entries[0], token)

    return locate


def only_endpoint(token: str | None) -> RunEndpoint:
    """Find the only run that listens; one of this folder is preferred."""
    entries = _entries()
    near = [entry for entry in entries if Path(str(entry.get("folder"))).is_relative_to(Path.cwd())]
    entries_here = near or entries
    if not entries_here:
        raise NotListeningError("no run listens", hint=_OPEN_ONE)
    if len(entries_here) > 1:
        message = f"several runs listen: {backticked(str(one.get('run')) for one in entries_here)}"
        raise NotListeningError(message, hint="`Client.of_run(FOLDER)` is for one of them")
    return _endpoint(entries_here[0], token)


def _entries(run: str = "*", folder: Path | None = None) -> Sequence[JsonObject]:
    try:
        return control_entries(run, folder)
    except (OSError, ValueError, AishError) as error:
        raise NotListeningError(f"where runs listen cannot be read: {error}") from error


def _endpoint(entry: JsonObject, token: str | None) -> RunEndpoint:
    try:
        live = live_address(entry)
    except (OSError, KeyError, TypeError, AishError) as error:
        raise NotListeningError(f"where the run listens cannot be used: {error}") from error
    return live.endpoint(token)


def live_address(content: Any, *, port: bool = False) -> LiveAddress:
    """Read the address of a run from the entry of its process.

    With `port`, prefer a port to a socket file.

    Raises:
        AishError: the address or the token in it cannot be used.
        KeyError, TypeError: it is not such a file.
    """
    known = [parse_address(text) for text in content.get("addresses") or [content["address"]]]
    # A socket file needs no token, which the file of the pipeline may have named.
    address = next((one for one in known if (one.path is None) is port), known[0])
    if address.path is not None:
        return LiveAddress(address)
    if "token_file" not in content:
        return LiveAddress(address, None, content["tls"] is True, content.get("answer_token"))
    token = token_from_file("control", Path(content["token_file"]), ())
    return LiveAddress(address, token.value, content["tls"] is True)


def read_ended_run(folder: Path, after: int) -> EndedRun | None:
    """Read the events after a number from the journal of a run; `None` if it has not ended.

    Raises:
        JournalError: the journal is damaged.
    """
    events: list[JsonObject] = []
    last: JsonObject | None = None
    try:
        with read_journal(folder / "events.jsonl") as journal:
            for last in journal:
                number = last["seq"]
                if isinstance(number, int) and number > after:
                    events.append(last)
    except FileNotFoundError:
        return None
    if last is None or last.get("type") != "run.finished":
        return None
    return EndedRun(events, last)
