"""The sockets of a run's control API: where it listens, and the file that names it.

That file and the token are in the user's runtime folder, out of reach of tools and commands. A
server has such a file beside its questions too, for who has another runtime folder.

What was asked for and cannot be opened ends the run before it begins. A socket that a run opens by
itself, and every later fault, is a notice and ends no run.
"""

import os
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from aish.core.errors import AishError, UsageError
from aish.core.events import NOWHERE, ControlCalled, Event, Notice
from aish.core.frozen import frozen
from aish.core.json import JsonObject, JsonValue
from aish.engine.environment import RunHandle
from aish.engine.run_folder import RunFolder
from aish.features.approvals.questions import HUB_ID
from aish.features.control.run_state import ControlledRun
from aish.net.listen.access import Access, AccessRecord
from aish.net.listen.addresses import Address, Exposure, check_exposure, parse_address
from aish.net.listen.server import require_serve, serve, tls_context
from aish.net.listen.sockets import Listener, default_address, listen_on, remove_dead_sockets
from aish.net.listen.tokens import ClientToken, Tokens, ensure_token
from aish.system.files import hidden_folder, private_folder, runtime_folder, runtime_folders
from aish.system.process.ancestry import adopt_orphans, is_own_process
from aish.system.process.live_entries import live_entries, own_entry
from aish.system.user import name_of_user

if TYPE_CHECKING:
    import ssl

    from aish.net.listen.routes import Route

SCOPES = frozenset({"read", "answer", "write"})
_LINK = "link"
_OWN_SCOPES = SCOPES | {_LINK}
TOKEN_FILE = "control.token"  # ruff: ignore[hardcoded-password-string] - the name of a file
OWN_SOCKET = "auto"
"""Stands for a socket in the user's runtime folder."""
_FAILED = "control_failed"
_CONTROL_FILE = ".control.json"
_CHANGING = frozenset({"answer", "write", _LINK})
_REFUSALS = frozenset({401, 403})
_BAD_REQUEST = 400
_UNANSWERED = 504
_MOST_REFUSED = 100


@frozen
class ListenRequest:
    """Options of a listener; without addresses a run opens its own socket if it can.

    `where` names the option or key. Without `tokens` one is made for a port. `hosts` and `origins`
    are allowed beside the own ones. `page` is the origin under which browsers reach the page, if it
    is not the listener's own.
    """

    addresses: tuple[str, ...] = ()
    where: str = "--control"
    exposure: Exposure = Exposure()
    tokens: tuple[ClientToken, ...] = ()
    hosts: frozenset[str] = frozenset()
    origins: frozenset[str] = frozenset()
    page: str | None = None


class ControlServer:
    """The control API of one run."""

    def __init__(
        self,
        run: ControlledRun,
        listeners: Sequence[Listener],
        access: Access,
        tls: "ssl.SSLContext | None",
        notices: Sequence[Notice],
        page: str | None = None,
    ) -> None:
        self.state = run.state
        self.page = page
        """The address of the page for browsers; none where they cannot connect."""
        self.notices = tuple(notices)
        """What is to be told at the start of the run."""
        self.addresses = [listener.address for listener in listeners]
        """Where it listens; nothing if no socket could be opened."""
        self._run = run
        self._listeners = listeners
        self._access = access
        self._tls = tls
        self._handle: RunHandle | None = None
        self._refused = 0

    def link(self) -> str | None:
        """A link to the page, good once; `None` where no browser can connect."""
        if self.page is None:
            return None
        name = name_of_user(os.geteuid())
        return f"{self.page}#code={self._access.tokens.issue_code(name, _OWN_SCOPES - {_LINK})}"

    def attach(self, handle: RunHandle) -> None:
        self._handle = handle
        self.state.conversation.is_one = handle.subject == "shell"
        handle.questions.answered_elsewhere = bool(self._listeners)
        self.state.caller_waits = handle.caller_waits

    @asynccontextmanager
    async def serve(self) -> AsyncGenerator[None]:
        """Answer requests in the block."""
        async with AsyncExitStack() as stack:
            if self._listeners:
                adopt_orphans()
                server = serve(
                    self._routes,
                    self._listeners,
                    self._access,
                    report=self._report,
                    on_call=self._note,
                    tls=self._tls,
                )
                await stack.enter_async_context(server)
            yield

    def _routes(self) -> "Sequence[Route]":
        from aish.features.control.older_paths import older_routes
        from aish.features.control.page.page_routes import PageLinks, page_routes
        from aish.features.control.routes import Api

        assert self._handle is not None, "the run has begun before anybody is heard"
        links = PageLinks(self._access.tokens, self.page)
        api = Api(self._run, self._handle)
        return [*api.routes(), *older_routes(api), *page_routes(self._run, self._handle, links)]

    def _report(self, error: Exception) -> None:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        text = f"the control API failed: {type(error).__name__}: {reason}"
        self._emit(Notice(NOWHERE, "warning", _FAILED, text))

    def _note(self, call: AccessRecord) -> None:
        if call.status not in _REFUSALS and call.scope not in _CHANGING:
            return
        is_refused = call.status >= _BAD_REQUEST and call.status != _UNANSWERED
        self._refused += is_refused
        if is_refused and self._refused > _MOST_REFUSED:
            return  # nobody fills the disk by asking for what is refused
        from aish.features.control.routes import name_of

        by = name_of(call.peer)
        self._emit(ControlCalled(call.method, call.path, call.scope, by, call.status))

    def _emit(self, event: Event) -> None:
        # The stream of events ends with `run.finished`; what comes after it changes nothing.
        if self._handle is not None and not self.state.is_finished:
            self._handle.emit(event)


@contextmanager
def open_control(asked: ListenRequest, run: ControlledRun) -> Generator[ControlServer]:
    """Open the sockets of a run, and write the file that names them.

    Raises:
        UsageError: the address that was asked for cannot be opened.
    """
    with ExitStack() as stack:
        try:
            control = _open_server(asked, run, stack)
        except AishError as error:
            if asked.addresses:
                raise
            hint = "" if error.hint is None else f" ({error.hint})"
            text = f"no answers are taken while the run waits: {error.message}{hint}"
            notice = Notice(NOWHERE, "warning", _FAILED, text)
            nobody = Access(Tokens((), run.clock), SCOPES, is_own_process)
            control = ControlServer(run, (), nobody, None, [notice])
        yield control


def _open_server(asked: ListenRequest, run: ControlledRun, stack: ExitStack) -> ControlServer:
    require_serve()
    folder = run.folder
    addresses, is_asked_for = _addresses(asked, folder), bool(asked.addresses)
    check_exposure(addresses, asked.exposure)
    tls = tls_context(asked.exposure)
    tokens = Tokens(asked.tokens, run.clock)
    with ExitStack() as opened:
        listeners = opened.enter_context(listen_on(addresses))
        at = [listener.address for listener in listeners]
        try:
            entries = _write_entry(at, folder, opened, asked, is_tls=tls is not None)
        except OSError as error:
            message = f"cannot write into `{runtime_folder()}`: {error.strerror}"
            raise UsageError(message, where=asked.where if is_asked_for else None) from error
        stack.push(opened.pop_all())
    notices = []
    if is_asked_for or folder.path is None:
        # Without a folder no file names it.
        for address in at:
            text = f"listening on {address}"
            if entries and address.path is None:
                text += f", token in `{_token_path(folder)}`"
            notices.append(Notice(NOWHERE, "info", "control_listening", text))
    named = [replace(token, scopes=token.scopes | {_LINK}) for token in asked.tokens]
    for token in entries:
        run.secrets.add(TOKEN_FILE, token.value)
    tokens.configure((*named, *entries))
    access = Access(tokens, _OWN_SCOPES, is_own_process, asked.hosts, asked.origins)
    page = _page_address(asked, at, is_tls=tls is not None)
    return ControlServer(run, listeners, access, tls, notices, page)


def _page_address(asked: ListenRequest, at: Sequence[Address], *, is_tls: bool) -> str | None:
    if asked.page is not None:
        return f"{asked.page}/"
    port = next((address for address in at if address.path is None), None)
    if port is None:
        return None
    return f"{'https' if is_tls else 'http'}://{port.reached.netloc}/"


def _write_entry(
    addresses: Sequence[Address],
    folder: RunFolder,
    opened: ExitStack,
    asked: ListenRequest,
    *,
    is_tls: bool,
) -> Sequence[ClientToken]:
    """Write where the run listens and, for a port, who may connect; removed with `opened`.

    Raises:
        OSError: it cannot be written.
    """
    tokens: list[ClientToken] = []
    texts = [str(address) for address in addresses]
    named: dict[str, JsonValue] = {"run": folder.id, "folder": None}
    if folder.path is not None:
        named["folder"] = str(folder.path.absolute())
    named |= {"address": texts[0], "addresses": texts}
    has_port = any(address.path is None for address in addresses)
    if has_port:
        named["tls"] = is_tls
    if has_port and not asked.tokens:
        path = _token_path(folder)
        path.unlink(missing_ok=True)  # of an earlier process with this number
        opened.callback(path.unlink, missing_ok=True)
        # Who has it is the user of the run, as over a socket file.
        tokens.append(ensure_token(name_of_user(os.geteuid()), path, _OWN_SCOPES))
        named["token_file"] = str(path)
    elif has_port and (token := _answer_token(asked.tokens)) is not None:
        in_file = {} if token.path is None else {"file": str(token.path.absolute())}
        named["answer_token"] = in_file if token.env is None else {"env": token.env}
    places = [private_folder(runtime_folder())]
    if HUB_ID.match(folder.id) and folder.path is not None:
        places.append(folder.path)
    for place in places:
        path = place / f"{folder.id}{_CONTROL_FILE}"
        opened.enter_context(own_entry(path, named, _forget))
    with suppress(OSError, UsageError, ValueError):
        control_entries()  # and take out what processes that were killed have left
    return tokens


def _answer_token(tokens: Sequence[ClientToken]) -> ClientToken | None:
    """The token for answers, best one that reads too: `aish approve` looks where it is kept."""
    able = [token for token in tokens if "answer" in token.scopes]
    return next((token for token in able if "read" in token.scopes), able[0] if able else None)


def _addresses(asked: ListenRequest, folder: RunFolder) -> Sequence[Address]:
    addresses: list[Address] = []
    for text in asked.addresses or (OWN_SOCKET,):
        if text == OWN_SOCKET:
            address = default_address(_own_name(folder))
        else:
            address = parse_address(text, asked.where)
        # Port 0 is another one each time.
        if address in addresses and (address.path is not None or address.port != 0):
            raise UsageError(f"`{address}` is given twice", where=asked.where)
        addresses.append(address)
    return addresses


def control_entries(run: str = "*", folder: Path | None = None) -> Sequence[JsonObject]:
    """Read where the processes of a run or a server listen, or all of this user.

    Runtime folders depend on the environment. A server is found by its `folder` in whatever
    environment it was started.

    Raises:
        OSError, UsageError, ValueError: what is written of that cannot be used.
    """
    ours = [one for one in runtime_folders() if one.is_dir() and one.stat().st_uid == os.geteuid()]
    if folder is not None and HUB_ID.match(run):
        ours.append(folder)
    files = [path for place in ours for path in sorted(place.glob(f"{run}{_CONTROL_FILE}"))]
    entries = [entry for path in files for entry in live_entries(path, _forget)]
    # A server says the same in two places.
    return list({(entry.get("pid"), entry.get("started")): entry for entry in entries}.values())


def _forget(entry: JsonObject) -> None:
    """Remove the sockets of a process that was killed, and the token that was made for it."""
    remove_dead_sockets(entry.get("addresses"))
    token = entry.get("token_file")
    if isinstance(token, str) and Path(token).parent.parent in runtime_folders():
        with suppress(OSError):
            Path(token).unlink(missing_ok=True)


def _own_name(folder: RunFolder) -> str:
    return f"{folder.id[-4:]}-{os.getpid()}"


def _token_path(folder: RunFolder) -> Path:
    return hidden_folder(runtime_folder()) / f"{_own_name(folder)}.token"
