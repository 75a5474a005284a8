"""The pack `ws`: starts the hub of events, and tells of it."""

import fcntl
import os
from collections.abc import AsyncGenerator, Generator
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import anyio

from aish.core.errors import UsageError
from aish.core.frozen import slotted
from aish.core.json import JsonValue
from aish.packs.framework.pack import Marks, Pack, PackContext, tool
from aish.packs.pack_error import PackError
from aish.packs.tool_results import Answer
from aish.packs.ws.ws_options import WsOptions
from aish.system.task_group import task_group

if TYPE_CHECKING:
    from anyio.abc import TaskGroup, TaskStatus

    from aish.net.listen.addresses import Address
    from aish.net.listen.tokens import ClientToken
    from aish.packs.ws.event_hub import EventHub

_NAME = "ws"
_DEFAULT = "127.0.0.1:0"
_PREFIX, _SUFFIX = "ws-", ".token"
_SECRET = "ws.token"  # ruff: ignore[hardcoded-password-string] - the name that masks show


@slotted
class WsState:
    """The hub, once it runs; `starting` lets one call after the other start it."""

    context: PackContext
    options: WsOptions
    tasks: "TaskGroup"
    token: "ClientToken | None"
    """That of the option, if it names one."""
    starting: anyio.Lock
    hub: "EventHub | None" = None
    address: "Address | None" = None
    token_file: Path | None = None


@asynccontextmanager
async def _open(context: PackContext) -> AsyncGenerator[WsState]:
    options = context.options
    assert isinstance(options, WsOptions)
    token = None
    if options.token_env:
        from aish.net.listen.tokens import token_from_env

        token = token_from_env(_NAME, options.token_env, (_NAME,), context.services.secrets)
    async with task_group() as tasks:
        try:
            yield WsState(context, options, tasks, token, anyio.Lock())
        finally:
            tasks.cancel_scope.cancel()


@tool(
    Marks(read_only=False, destructive=False, idempotent=True, open_world=True, passing=True),
    result={"address": "string", "url": "string", "token_file": "string", "already": "boolean"},
    codes=("blocked", "unavailable", "limit"),
    older_parameters={"addr": "address"},
)
async def ws_start(state: WsState, address: str = _DEFAULT) -> Answer:
    """Starts the event hub.

    Browsers and programs follow the events of this run there, with the token in the file.

    Args:
        address: Where it listens: `HOST:PORT`, with port 0 for any free one.
    """
    new_address = _parse_address(state, address)
    async with state.starting:
        already = state.hub is not None
        if not already:
            try:
                await state.tasks.start(_serve, state, new_address)
            except UsageError as error:
                raise PackError("unavailable", str(error)) from error
        own_address = state.address
        assert own_address is not None, "it was started"
        if already and address != _DEFAULT and not _is_same(own_address, new_address):
            message = f"the hub listens on `{own_address}` already, and there is one for a run"
            raise PackError("limit", message)
    url = f"ws://{own_address.reached.netloc}/ws"
    file = None if state.token_file is None else str(state.token_file)
    data: dict[str, JsonValue] = {
        "address": str(own_address),
        "url": url,
        "token_file": file,
        "already": already,
    }
    where = f"`{state.options.token_env}`" if file is None else file
    return Answer(f"the hub {'runs' if already else 'listens'} at {url}; token: {where}", data)


@tool(
    Marks(read_only=True, destructive=False, idempotent=True, open_world=False, parallel=True),
    result={
        "running": "boolean",
        "address": "string",
        "clients": "integer",
        "channels": "array",
        "dropped": "integer",
    },
    rows={"channels": {"name": "string", "clients": "integer"}},
)
async def ws_info(state: WsState) -> Answer:  # ruff: ignore[unused-async] - tools are async
    """State of the event hub."""
    hub, address = state.hub, state.address
    data: dict[str, JsonValue] = {
        "running": hub is not None,
        "address": None if address is None else str(address),
        "clients": 0 if hub is None else hub.clients,
        "channels": [] if hub is None else hub.channels(),
        "dropped": 0 if hub is None else hub.dropped,
    }
    if hub is None:
        return Answer("the hub does not run; ws_start starts it", data)
    rows = [f"{row['name']}  {row['clients']}" for row in hub.channels() if isinstance(row, dict)]
    summary = f"{address}: {hub.clients} clients, {hub.dropped} messages dropped"
    return Answer("\n".join([summary, *rows]), data)


def _parse_address(state: WsState, text: str) -> "Address":
    from aish.net.listen.addresses import Exposure, check_exposure, parse_address

    try:
        address = parse_address(text)
    except UsageError as error:
        message = f"`address`: {error}; write `HOST:PORT`, such as `127.0.0.1:8080`"
        raise PackError("bad_arguments", message) from error
    if address.path is not None:
        raise PackError("bad_arguments", "`address` is `HOST:PORT`: browsers reach no socket file")
    try:
        # Where the option allows it, what is in front of the hub has the encryption.
        check_exposure([address], Exposure(state.options.allow_remote, behind_proxy=True))
    except UsageError:
        message = f"`{address}` can be reached from other machines, and `allow_remote` is not set"
        raise PackError("blocked", message) from None
    return address


def _is_same(address: "Address", other: "Address") -> bool:
    return address.host == other.host and other.port in {0, address.port}


async def _serve(state: WsState, address: "Address", *, task_status: "TaskStatus[None]") -> None:
    from aish.net.listen.access import Access
    from aish.net.listen.sockets import listen_on
    from aish.net.listen.tokens import Tokens, token_from_file
    from aish.net.listen.websocket import SocketLimits
    from aish.packs.ws.event_hub import EventHub
    from aish.system.clock import SystemClock

    services = state.context.services
    with ExitStack() as stack:
        (listener,) = stack.enter_context(listen_on((address,)))
        token, file = state.token, None
        if token is None:
            try:
                file = stack.enter_context(_token_file())
            except OSError as error:
                message = f"the file of the token cannot be made: {error.strerror}"
                raise UsageError(message) from error
            token = token_from_file(_NAME, file, (_NAME,))
            if services.run_secrets is not None:
                services.run_secrets.add(_SECRET, token.value)
        access = Access(
            Tokens((token,), SystemClock()),
            frozenset(),
            lambda _pid: True,
            origins=frozenset(state.options.origins),
        )

        def report(error: Exception) -> None:
            services.notice("ws_failed", f"the event hub: {services.mask(str(error))}")

        hub = EventHub(services, SocketLimits())
        async with hub.serve(listener, access, report):
            state.hub, state.address, state.token_file = hub, listener.address, file
            task_status.started()
            try:
                await anyio.sleep_forever()
            finally:
                state.hub = None


@contextmanager
def _token_file() -> Generator[Path]:
    """A new file with a token that only this user can read, locked while this process has it.

    Those that killed processes left are removed.

    Raises:
        OSError: it cannot be made.
    """
    import secrets

    from aish.net.listen.tokens import SHORTEST
    from aish.system.file_lock import PATIENCE, take
    from aish.system.files import hidden_folder, open_new, runtime_folder

    folder = hidden_folder(runtime_folder())
    held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        # Whoever removes files must not find one without its lock.
        take(held, folder, PATIENCE)
        _remove_left(folder)
        path = folder / f"{_PREFIX}{secrets.token_hex(8)}{_SUFFIX}"
        descriptor = open_new(path)
        os.write(descriptor, f"{secrets.token_urlsafe(SHORTEST)}\n".encode())
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        os.close(held)
    try:
        yield path
    finally:
        with suppress(FileNotFoundError):
            path.unlink()
        os.close(descriptor)


def _remove_left(folder: Path) -> None:
    from aish.system.file_lock import is_written
    from aish.system.files import open_own

    for path in folder.glob(f"{_PREFIX}*{_SUFFIX}"):
        with suppress(OSError, UsageError):
            descriptor = open_own(path)
            try:
                if not is_written(descriptor):
                    path.unlink()
            finally:
                os.close(descriptor)


PACK = Pack(tools=(ws_start, ws_info), root="none", lifespan=_open, options=WsOptions)
