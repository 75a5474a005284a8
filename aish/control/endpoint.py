"""Where a run is asked: addresses, what the folder of a run names, and how httpx is told."""

import os
import re
import socket
import ssl
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, Generic, Self, TypeVar
from urllib.parse import urlsplit

import httpx

from aish.control.errors import ConnectionLostError, ControlError, NotListeningError, SilentError
from aish.control.operations import EndedRun, Request, Retries
from aish.core.errors import AishError, UsageError
from aish.core.frozen import frozen
from aish.core.json import JsonObject
from aish.core.phrases import backticked
from aish.features.control.live_run import live_address
from aish.features.control.server import control_entries
from aish.journal.reader import read_journal
from aish.net.listen.addresses import unix_address

HttpClient = TypeVar("HttpClient")
MAX_RETRIES: Final = 5
RETRY_DELAY: Final = 0.2
_UNIX: Final = "unix:"
_HOST_AND_PORT: Final = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[\w.-]+):\d{1,5}", re.ASCII)
CONNECT_SECONDS: Final = 10.0
_OPEN_ONE: Final = "`--control` opens a socket to a run; it is closed when the run ends"
_FORMS: Final = "write `unix:PATH`, `HOST:PORT`, or a URL such as `https://runs.example.org`"


@frozen
class Endpoint:
    """A URL, the socket file if it is one, and the token."""

    url: str
    path: str | None = None
    token: str | None = None

    def __repr__(self) -> str:
        return f"Endpoint({self.shown!r})"

    @property
    def shown(self) -> str:
        """The address as a person would write it."""
        return self.url if self.path is None else f"{_UNIX}{self.path}"

    @property
    def headers(self) -> dict[str, str]:
        """The headers of every request."""
        own = {"Accept": "application/json", "Accept-Encoding": "identity"}
        return own if self.token is None else own | {"Authorization": f"Bearer {self.token}"}

    def options(self, tls: ssl.SSLContext | None) -> dict[str, Any]:
        """What a transport of httpx is told: no proxy, and nothing else of the environment."""
        return {"verify": self._verify(tls), "trust_env": False, "uds": self.path}

    def require_listener(self) -> None:
        """Check that somebody listens on a socket file; a port is seen to when it is used.

        httpcore leaves a socket open that it could not connect, and Python warns of it.

        Raises:
            NotListeningError: nobody does.
        """
        if self.path is None:
            return
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(CONNECT_SECONDS)
            try:
                probe.connect(self.path)
            except OSError as error:
                raise self._not_listening(error.strerror or str(error)) from error

    def request(self, request: Request) -> httpx.Request:
        """A request for a client of httpx."""
        headers = self.headers
        if request.content is not None:
            headers["Content-Type"] = "application/json"
        headers |= request.headers or {}
        times = httpx.Timeout(request.seconds, connect=min(request.seconds, CONNECT_SECONDS))
        return httpx.Request(
            request.method,
            f"{self.url}{request.path}",
            headers=headers,
            content=request.content,
            extensions={"timeout": times.as_dict()},
        )

    def failure(self, error: httpx.TransportError) -> ControlError:
        """What it means that there is no answer, or no whole one."""
        if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout | httpx.PoolTimeout):
            said = f"no connection to `{self.shown}`: {str(error) or type(error).__name__}"
            hint = (
                "a run listens with `--control`, `on_ask: wait` or `on_ask: pause`, until it ends"
            )
            return NotListeningError(said, hint=hint)
        if isinstance(error, httpx.ReadTimeout):
            return SilentError(f"`{self.shown}` sent nothing for too long")
        said = f"the connection to `{self.shown}` was lost: {str(error) or type(error).__name__}"
        return ConnectionLostError(said, hint="ask for the state before the same is sent again")

    def _not_listening(self, why: str) -> NotListeningError:
        hint = "a run listens with `--control`, `on_ask: wait` or `on_ask: pause`, until it ends"
        return NotListeningError(f"no connection to `{self.shown}`: {why}", hint=hint)

    def _verify(self, tls: ssl.SSLContext | None) -> ssl.SSLContext | bool:
        """How a certificate is checked; making a context takes time that only TLS needs."""
        if not self.url.startswith("https:"):
            return False
        return tls or ssl.create_default_context()


Locate = Callable[[], Endpoint]
"""Finds the endpoint, whenever a connection is needed; raises `NotListeningError`."""


class Connections(Generic[HttpClient]):
    """What both clients have: where the run is, and the clients of httpx that were made for it."""

    def __init__(
        self,
        address: str | None = None,
        token: str | None = None,
        max_retries: int = MAX_RETRIES,
        retry_delay: float = RETRY_DELAY,
        *,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        locate = partial(_only_live, token) if address is None else _fixed(address, token)
        self._set_up(locate, Retries(max_retries, retry_delay, _unknown), tls)

    @classmethod
    def of_run(
        cls,
        folder: str | os.PathLike[str],
        token: str | None = None,
        max_retries: int = MAX_RETRIES,
        retry_delay: float = RETRY_DELAY,
        *,
        tls: ssl.SSLContext | None = None,
    ) -> Self:
        """A client of the run with this folder, wherever it listens now.

        Its entry in the runtime folder names the address, also after the run was resumed, and the
        token that was made for it; where the file of the run names tokens, give one. The events of
        a run that has ended, and listens no more, are read from its journal.
        """
        path = Path(folder).absolute()
        retries = Retries(max_retries, retry_delay, lambda after: _ended_run(path, after))
        made = cls.__new__(cls)
        made._set_up(  # ruff: ignore[private-member-access] - its own
            _of_folder(path, token), retries, tls
        )
        return made

    def _set_up(self, locate: Locate, retries: Retries, tls: ssl.SSLContext | None) -> None:
        self._locate = locate
        self._retries = retries
        self._tls = tls
        self._endpoint: Endpoint | None = None
        self._clients: dict[Endpoint, HttpClient] = {}


def _unknown(after: int) -> None:
    """An address does not say how a run has ended."""
    del after


def _fixed(address: str, token: str | None) -> Locate:
    """The endpoint at an address that somebody wrote.

    Raises:
        UsageError: it is not an address.
    """
    if address.startswith(_UNIX):
        path = unix_address(Path(address.removeprefix(_UNIX))).path
        found = Endpoint("http://localhost", str(path), token)
    else:
        url = f"http://{address}" if _HOST_AND_PORT.fullmatch(address) else address
        if not _is_plain_url(url):
            # What was written may hold a token.
            raise UsageError("this is not the address of a control API", hint=_FORMS)
        found = Endpoint(url.rstrip("/"), None, token)
    return lambda: found


def _is_plain_url(url: str) -> bool:
    """Whether it is a URL of HTTP without credentials, query and fragment."""
    try:
        parts = urlsplit(url)
        # A port above the last one would be another one to the system.
        has_host = bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False
    plain = not (parts.username or parts.password or parts.query or parts.fragment)
    return has_host and plain and parts.scheme in {"http", "https"}


def _of_folder(folder: Path, token: str | None) -> Locate:
    """The endpoint that the folder of a run names, which changes when the run is resumed."""

    def locate() -> Endpoint:
        entries = _entries(folder.name)
        if not entries:
            raise NotListeningError(f"the run in `{folder}` does not listen", hint=_OPEN_ONE)
        return _endpoint(entries[0], token)

    return locate


def _only_live(token: str | None) -> Endpoint:
    """The endpoint of the only run that listens; one of this folder comes before all others."""
    entries = _entries()
    near = [one for one in entries if Path(str(one.get("folder"))).is_relative_to(Path.cwd())]
    found = near or entries
    if not found:
        raise NotListeningError("no run listens", hint=_OPEN_ONE)
    if len(found) > 1:
        said = f"several runs listen: {backticked(str(one.get('run')) for one in found)}"
        raise NotListeningError(said, hint="`Client.of_run(FOLDER)` is for one of them")
    return _endpoint(found[0], token)


def _entries(run: str = "*") -> Sequence[JsonObject]:
    try:
        return control_entries(run)
    except (OSError, ValueError, AishError) as error:
        raise NotListeningError(f"where runs listen cannot be read: {error}") from error


def _endpoint(entry: JsonObject, token: str | None) -> Endpoint:
    """The endpoint that an entry of a live process names."""
    try:
        live = live_address(entry)
    except (OSError, KeyError, TypeError, AishError) as error:
        raise NotListeningError(f"where the run listens cannot be used: {error}") from error
    if live.address.path is not None:
        return Endpoint("http://localhost", str(live.address.path))
    scheme = "https" if live.is_tls else "http"
    return Endpoint(f"{scheme}://{live.host}", None, token or live.token)


def _ended_run(folder: Path, after: int) -> EndedRun | None:
    """The events after a number in the journal of a run that has ended; `None` if it has not.

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
