"""Creates the transport for a server's entry; imported when a server needs it."""

import os
from collections.abc import Callable, Mapping
from dataclasses import field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
from anyio.abc import TaskGroup

from aish.config.model import ServerEntry
from aish.core.errors import LockDiffersError, UnavailableError
from aish.core.events import UNCONFINED
from aish.core.frozen import frozen
from aish.core.phrases import backticked
from aish.mcp.protocol.convert import ListTrust
from aish.mcp.protocol.messages import TransportError
from aish.mcp.transports.settings import ServerConnection
from aish.mcp.transports.transport import Transport
from aish.system.files import MANY_FILES, MANY_FILES_HINT
from aish.system.process.reaper import Reaper
from aish.system.secrets.secrets import Secrets

if TYPE_CHECKING:
    from aish.mcp.transports.adapter import CassetteAdapter
    from aish.mcp.transports.confined import Confinement
    from aish.mcp.transports.http import HttpOrigin
    from aish.mcp.transports.package_store import PackageUse
    from aish.mcp.transports.stdio import Stdio
    from aish.net.oauth.login import Login
    from aish.net.oauth.login_site import LoginSite
    from aish.net.oauth.login_site import Notice as SiteNotice
    from aish.net.oauth.settings import Credentials
    from aish.net.sandbox_relay import Refusal
    from aish.packs.framework.server import OpenPacks
    from aish.system.process.child import Child
    from aish.system.process.supervisor import Supervisor

Noise = Callable[[str], None]
Notify = Callable[[str, str, str], None]
"""Takes a server's alias, a code and a sentence."""
_FIRST_LINES = 3
_LAST_LINES = 10
_MOST_REFUSED = 100
_SLOW = "its folders are large: looking for files that no server may see or change"
_REFUSED: "Mapping[Refusal, str]" = {
    "unlisted": "it looked up `{name}`, which is not in `network` of its sandbox",
    "not public": "`{name}` now has an address that is not public; `{name}:443` in `network` of its"
    " sandbox permits any",
    "no descriptors": f"its connections to `{{name}}` wait: {MANY_FILES} ({MANY_FILES_HINT})",
}
"""What is said of a host that a server asks for in vain."""
_SHOWN_REFUSED = 5


@frozen
class ServerEnvironment:
    """Environment that all servers of a run share.

    `logs` is the folder for the stderr of child processes; `adapter` is set if a run has a
    cassette. `forwards` are the capabilities of clients that requests of servers are passed on to.
    """

    reaper: Reaper
    logs: Path | None
    tasks: TaskGroup
    notify: Notify
    secrets: Secrets | None
    adapter: "CassetteAdapter | None" = None
    forwards: frozenset[str] = frozenset()
    supervisors: "list[Supervisor]" = field(default_factory=list)
    """What starts confined servers: none, or one, made by the first of them."""


async def close_supervisors(supervisors: "list[Supervisor]") -> None:
    """End what starts confined servers; they are closed before."""
    with anyio.CancelScope(shield=True):
        for supervisor in supervisors:
            await anyio.to_thread.run_sync(supervisor.close)
    supervisors.clear()


def login_site(
    entry: ServerEntry, credentials: "Credentials | None", secrets: Secrets, notice: "SiteNotice"
) -> "LoginSite":
    """The site of a login at the server of an entry; nothing is asked yet."""
    from aish.net.oauth.login_site import SecretMask, open_site

    assert entry.url is not None, "a login is for a url"
    assert credentials is not None, "the server wants a login"
    return open_site(
        entry.url,
        credentials,
        name=entry.alias,
        verify_server=entry.verify_tls,
        seconds=entry.timeout.connect,
        secret_mask=SecretMask(secrets.add, secrets.mask),
        notice=notice,
    )


class TransportFactory:
    """Creates the transports of one server, and explains their failures."""

    def __init__(self, connection: ServerConnection, around: ServerEnvironment) -> None:
        self._connection = connection
        self.environment = around
        self._door: HttpOrigin | None = None
        self._stdio: Stdio | None = None
        self._login: Login | None = None
        self._printed = ""
        self._line: str | None = None
        self._refused: list[str] = []
        self.on_ended: Callable[[str], None] | None = None
        """Hears at once that the child has ended by itself, and how."""

    @property
    def transport(self) -> str:
        return self._connection.transport

    @property
    def pack(self) -> "OpenPacks | None":
        return self._connection.pack

    @property
    def address(self) -> str:
        return self._mask(self._connection.address)

    @property
    def probe_seconds(self) -> float:
        """Seconds for which a server may leave the first request unanswered, before `initialize`.

        Half of its time to connect: the rest is for a server of the handshake era that ignores
        unknown requests.
        """
        return self._connection.entry.timeout.connect / 2

    @property
    def origin(self) -> str:
        """The server's address up to its path, as a cassette names it."""
        if self._door is not None:
            return self._door.origin
        scheme = "sse" if self.transport == "http" else self.transport
        return f"mcp+{scheme}://{self._connection.entry.alias}"

    async def prepare(self) -> None:
        """Make what the server is sent as a key, and fetch it: that time is not the server's.

        Raises:
            CredentialsError: a key cannot be made.
            TransportError: the server cannot be fetched.
            LockDiffersError: what would be fetched is not what is locked.
        """
        adapter, package = self.environment.adapter, self._connection.package
        if package is not None and (adapter is None or not adapter.replays):
            await self._prepare_package(package)
        if self._connection.made:
            from aish.mcp.transports.http import tokens_of

            await tokens_of(self._connection.made)

    async def _prepare_package(self, package: "PackageUse") -> None:
        """Have a server start from the store; a confined or locked one is fetched if it has to be.

        Raises:
            TransportError: it cannot be fetched.
            LockDiffersError: what would be fetched is not what is locked.
        """
        from aish.mcp.transports.package_store import find_entry

        sandbox = self._connection.entry.sandbox
        entry = await anyio.to_thread.run_sync(find_entry, package.spec, package.pin)
        if entry is None and (sandbox is not None or package.pin is not None):
            from aish.mcp.transports.package_fetch import fetch_for_run

            began = anyio.current_time()
            try:
                entry = await fetch_for_run(package, self.environment.reaper)
            except (UnavailableError, LockDiffersError) as error:
                text = "\n".join(filter(None, (error.message, error.hint)))
                if isinstance(error, LockDiffersError) and package.enforced:
                    where = f"mcp server `{self._connection.entry.alias}`"
                    raise LockDiffersError(text, where=where) from error
                if package.pin is not None or sandbox is None or not sandbox.best_effort:
                    raise TransportError(text) from error
                self.notice("fetched", f"{text}\n`{package.spec.launcher}` starts it")
                return
            seconds = anyio.current_time() - began
            self.notice("fetched", f"fetched `{package.spec.requirement}` in {seconds:.1f} s")
        if entry is not None:
            await anyio.to_thread.run_sync(entry.note_use)
            command = entry.command(package.spec)
            self._connection = replace(self._connection, fetched=command)

    def first(self) -> Transport:
        """The transport to try first.

        Raises:
            TransportError: the entry's url or headers are not valid.
        """
        if self.transport == "http":
            self._door = self._open_door(self.environment.adapter)
            from aish.mcp.transports.streamable import StreamableHttp

            return StreamableHttp(self._door)
        if self.environment.adapter is None:
            return self._local(self._noise)
        return self._behind(self.environment.adapter, self.origin, self._local)

    async def older(self) -> Transport:
        """2024's transport, over the same HTTP origin.

        Raises:
            TransportError: the server's transport is not HTTP.
        """
        door = self._door
        if door is None:
            raise TransportError("only a server with a url can have an older transport")
        from aish.mcp.transports.sse_2024 import HttpEvents

        if self.environment.adapter is None:
            return HttpEvents(door, self.environment.tasks)
        await door.close()
        self._door = None
        # Answers and requests use different streams: for HTTP they are not exchanges.
        return self._behind(
            self.environment.adapter,
            self.origin,
            lambda _: HttpEvents(self._open_door(), self.environment.tasks),
        )

    def _open_door(self, adapter: "CassetteAdapter | None" = None) -> "HttpOrigin":
        from aish.mcp.transports.http import HttpOrigin

        entry = self._connection.entry
        assert entry.url is not None, "a door leads to a url"
        return HttpOrigin(
            entry.url,
            token=self._connection.token,
            headers=entry.headers,
            connect_seconds=entry.timeout.connect,
            verify_tls=entry.verify_tls,
            taking=adapter,
            mask=self._mask,
            open_login=None if self._connection.login is None else self._open_login,
            made=self._connection.made,
        )

    def _mask(self, text: str) -> str:
        secrets = self.environment.secrets
        return text if secrets is None else secrets.mask(text)

    def _open_login(self) -> "Login":
        """The login at the server: one for all connections, made when the first of them is."""
        from aish.net.oauth.login import open_login

        if self._login is None:
            secrets, connection = self.environment.secrets or Secrets(), self._connection
            site = login_site(connection.entry, connection.login, secrets, self.notice)
            self._login = open_login(site)
        return self._login

    def _behind(
        self, adapter: "CassetteAdapter", uri: str, make: Callable[[Noise], Transport]
    ) -> Transport:
        found = adapter.wrap(uri, lambda: make(found.noise), self.environment.tasks, self._noise)
        return found

    def _local(self, on_noise: Noise) -> Transport:
        if self._connection.pack is not None:
            from aish.mcp.transports.inprocess import InProcess

            return InProcess(self._connection.pack)
        from aish.mcp.transports.stdio import Stdio

        self._stdio = Stdio(
            self._connection,
            self.environment.tasks,
            reaper=self.environment.reaper,
            log=self._log(),
            secrets=self.environment.secrets,
            on_noise=on_noise,
            on_ended=self.on_ended,
            start_confined=None if self._connection.entry.sandbox is None else self._start_confined,
        )
        return self._stdio

    async def _start_confined(
        self, log: Path | None, secrets: Secrets | None
    ) -> "tuple[Child, Confinement] | None":
        """Start the server in its sandbox; `None` if none works, and it may do without.

        Raises:
            TransportError: the sandbox cannot be kept.
            OSError: the server cannot be started.
        """
        from aish.mcp.transports.confined import choose_kind, describe_sandbox, start_confined
        from aish.system.process.sandbox import NoSandboxError
        from aish.system.process.supervisor import Supervisor

        shared, sandbox = self.environment, self._connection.entry.sandbox
        assert sandbox is not None, "it is to be confined"
        assert self._stdio is not None, "it starts the server"
        cwd = self._connection.entry.cwd
        if not shared.supervisors:
            shared.supervisors.append(Supervisor(shared.reaper))
        try:
            kind = await anyio.to_thread.run_sync(choose_kind, sandbox, os.environ, cwd)
            self._stdio.sandbox = describe_sandbox(sandbox, kind)
            return await start_confined(
                self._connection,
                kind,
                shared.supervisors[0],
                shared.reaper,
                log=log,
                secrets=secrets,
                on_refused=self._note_refused,
                on_slow=partial(self.notice, "sandbox_slow", _SLOW),
            )
        except NoSandboxError as error:
            self._stdio.sandbox = ""
            if not sandbox.best_effort:
                raise TransportError(error.message) from error
            self.notice("sandbox_missing", f"it runs without a sandbox: {error.message}")
            return None

    def _note_refused(self, name: str, why: "Refusal") -> None:
        """Tell once of a host that a server looked for; a restarted one looks for it again."""
        if name in self._refused or len(self._refused) >= _MOST_REFUSED:
            return
        self._refused.append(name)
        self.notice("sandbox_refused", _REFUSED[why].format(name=name))

    def make_reading(self, *, modern: bool) -> ListTrust:
        # Marks of a pack that is not built in are claims, as those of any server.
        ours = self.transport == "pack"
        if ours:
            from aish.packs.catalogue import is_builtin

            ours = is_builtin(self._connection.entry.pack)
        return ListTrust(ours=ours, mirrors=modern and self.transport == "http")

    def notice(self, code: str, text: str) -> None:
        self.environment.notify(self._connection.entry.alias, code, text)

    def explain(self, reason: str) -> str:
        """A reason, with the first and last lines of a child's stderr."""
        excerpt = self._stdio.stderr_excerpt if self._stdio is not None else ""
        if self.environment.adapter is not None and self.transport == "stdio":
            excerpt = self.environment.adapter.last_words(self.origin, excerpt)
        if self._printed:
            reason = f"{reason}; on its stdout, which is for JSON-RPC, it printed: {self._printed}"
        return _with_stderr(self.name_sandbox(reason), excerpt)

    def explain_loss(self, reason: str) -> str:
        """The same for a server that had been connected.

        It is not recorded: in a replay such a server fails call by call.
        """
        excerpt = "" if self._stdio is None else self._stdio.stderr_excerpt
        return _with_stderr(self.name_sandbox(reason), excerpt)

    @property
    def sandbox(self) -> str:
        """The sandbox of a child, in words: the one that it has, else the one of the file."""
        if self.transport != "stdio" or (self._stdio is not None and self._stdio.sandbox):
            return "" if self._stdio is None else self._stdio.sandbox
        sandbox = self._connection.entry.sandbox
        if sandbox is None:
            return UNCONFINED
        from aish.mcp.transports.confined import describe_sandbox

        return describe_sandbox(sandbox)

    def name_sandbox(self, reason: str) -> str:
        """The failure of a server, with its sandbox in the second line if it runs in one.

        What confines it is often the reason, and the server's own words rarely tell.
        """
        line = "\n".join(filter(None, (self._sandbox_line(), self._refused_line())))
        if not line:
            return reason
        if reason.lstrip().startswith(("{", "[")):  # JSON, which a line within would damage
            return f"{reason}\n{line}"
        first, *rest = reason.split("\n")
        return "\n".join((first, line, *rest))

    def _sandbox_line(self) -> str:
        """The line about the sandbox; a replay says what was recorded, whatever there is now."""
        if self._connection.entry.sandbox is None:
            return ""
        if self._line is None:
            stdio, adapter = self._stdio, self.environment.adapter
            confined = stdio is not None and stdio.sandbox not in {"", UNCONFINED}
            self._line = f"in its sandbox: {stdio.sandbox}" if stdio and confined else ""
            if adapter is not None:
                self._line = adapter.last_words(f"{self.origin}/sandbox", self._line)
        return self._line

    def _refused_line(self) -> str:
        """The line about hosts that a server was refused, and how they are permitted."""
        sandbox, adapter = self._connection.entry.sandbox, self.environment.adapter
        if sandbox is None or sandbox.network == "full":
            return ""
        from aish.net.address_guard import is_host

        listed = () if isinstance(sandbox.network, str) else sandbox.network
        names = [name for name in self._refused if name not in listed and is_host(name)]
        line = ""
        if names:
            wanted = ", ".join((*listed, *names[:_SHOWN_REFUSED]))
            line = (
                f"it looked up {backticked(names, _SHOWN_REFUSED)} in vain;"
                f" `network: [{wanted}]` permits that"
            )
        return line if adapter is None else adapter.last_words(f"{self.origin}/names", line)

    def _log(self) -> Path | None:
        logs = self.environment.logs
        return None if logs is None else logs / f"{self._connection.entry.alias}.stderr.log"

    def _noise(self, line: str) -> None:
        self._printed = line
        self.notice("stdout_noise", f"ignores what is not JSON-RPC on its stdout: {line}")


def _with_stderr(reason: str, excerpt: str) -> str:
    lines = excerpt.strip().splitlines()
    if not lines:
        return reason
    how, tail = "ends with", "\n".join(lines[-_LAST_LINES:])
    if len(lines) > _FIRST_LINES + _LAST_LINES:
        first = (line for line in lines[:_FIRST_LINES] if line != "…")
        how, tail = "begins and ends with", "\n".join((*first, "…", tail))
    elif len(lines) > _LAST_LINES:
        tail = "\n".join(lines)
    between = "\n" if "\n" in reason else "; "
    return f"{reason}{between}its stderr {how}:\n{tail}"
