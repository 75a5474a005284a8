"""Servers that are connected at run time: entry, alias, secret; the tools known so far."""

import re
import shlex
from collections.abc import Container, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

import anyio

from aish.config.model import ServerEntry
from aish.core.errors import UnavailableError, UsageError
from aish.core.events import NOWHERE, ServerConnected, ServerInfo
from aish.core.tools import Tool
from aish.engine.plan.credentials import ResolvedServer, Resolver, Variables, finish, resolve_server
from aish.net.oauth.settings import OAuthSettings
from aish.shell.session import ShellSession
from aish.shell.url_keys import keys_in
from aish.system.secrets.secrets import SHORTEST

_ALIAS = re.compile(r"(?!.*__)[A-Za-z0-9]([A-Za-z0-9_-]*[A-Za-z0-9])?\Z")
_LONGEST_ALIAS = 64
_NONE: Mapping[str, str] = {}
_NO_HOST = "server"
_RESERVED = "shell"
_CREDENTIALS = (
    "`auth_env=NAME` sends the value of a variable as the bearer token, `oauth=login` logs in"
)
LOGIN = {"oauth": "login"}
"""The word of `:mcp connect` for a server at which a person logs in."""
_REFUSED = ("HTTP 401", "HTTP 403")


def server_of_url(
    url: str, alias: str | None, taken: Container[str], options: Mapping[str, str] = _NONE
) -> ServerEntry:
    """The entry of a server at `url`; its default alias is the first label of its host name.

    A number is appended if that is taken. `options` are `auth_env` or `oauth`.
    """
    parts = _split(url)
    if parts.username or parts.password:
        raise UsageError("a URL with credentials would be logged", hint=_CREDENTIALS)
    if alias is None:
        name = _label(parts.hostname or "")
        between = "-" if name[-1].isdigit() else ""
        number, alias = 1, name
        while alias in taken:
            number += 1
            alias = f"{name}{between}{number}"
    else:
        _check_alias(alias, taken)
    auth_env = options.get("auth_env")
    oauth = OAuthSettings(login=True) if "oauth" in options else None
    return ServerEntry(alias=alias, url=url, auth_env=auth_env, oauth=oauth, required=False)


def words_of(command: str) -> tuple[str, ...]:
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise UsageError(f"the command cannot be read: {error}") from None
    if not words:
        hint = "for example `:mcp connect clock -- uvx mcp-server-time`"
        raise UsageError("there is no command after `--`", hint=hint)
    return tuple(words)


def server_of_command(words: Sequence[str], alias: str, taken: Container[str]) -> ServerEntry:
    _check_alias(alias, taken)
    return ServerEntry(alias=alias, command=tuple(words), cwd=Path.cwd(), required=False)


def _check_alias(alias: str, taken: Container[str]) -> None:
    if not _ALIAS.match(alias) or alias == _RESERVED or len(alias) > _LONGEST_ALIAS:
        reserved = f"`{_RESERVED}` is the local shell; " if alias == _RESERVED else ""
        hint = f"{reserved}letters, digits, `-` and single `_`"
        raise UsageError(f"`{alias}` cannot be an alias", hint=hint)
    if alias in taken:
        hint = f"`:mcp disconnect {alias}` disconnects that server, or use another alias"
        raise UsageError(f"the alias `{alias}` is already used", hint=hint)


def _split(url: str) -> SplitResult:
    hint = "for example `:mcp connect http://127.0.0.1:8080/mcp`"
    try:
        parts = urlsplit(url)
        fine = parts.scheme in {"http", "https"} and parts.hostname and parts.port != 0
    except ValueError:
        fine = False
    if not fine:
        raise UsageError("this is not the URL of a server", hint=hint)
    return parts


def _label(host: str) -> str:
    """The first label of a host name; an address in brackets has none."""
    if ":" in host:
        return _NO_HOST
    name = re.sub(r"[^A-Za-z0-9]+", "-", host.partition(".")[0]).strip("-")
    return _NO_HOST if not name or name == _RESERVED else name


def aliases_in_use(session: ShellSession) -> frozenset[str]:
    """The aliases of connected and connecting servers; that of a failed one is free."""
    servers = session.servers
    return frozenset(server.alias for server in servers if server.state != "failed")


def session_servers(session: ShellSession) -> Mapping[str, ServerEntry]:
    """The servers of the file and those connected in the session, by alias."""
    return {entry.alias: entry for entry in _of_file(session)} | session.connected


def _of_file(session: ShellSession) -> list[ServerEntry]:
    return [server.entry for server in session.open.plan.servers]


async def connect(session: ShellSession, entry: ServerEntry) -> ServerInfo:
    """Connect to the server of an entry; it stays until it is disconnected.

    Raises:
        UnavailableError: it could not be reached or refused; nothing has changed.
        UsageError: its token's variable is not set, its alias is taken, or one of its tools would
            have the name of another.
    """
    resolved = _resolve(session, entry)
    # A key in its query is masked wherever it would be shown.
    for name, value in keys_in(entry.url or ""):
        if len(value) >= SHORTEST:
            session.open.plan.secrets.add(name, value)
    servers = session.open.servers
    try:
        info = await servers.dynamic_registry.connect(servers.connection(resolved))
    except UnavailableError as error:
        if error.hint is not None:
            raise
        raise UnavailableError(error.message, where=error.where, hint=_hint(error, entry)) from None
    if not is_of_file(session, entry):
        session.connected[entry.alias] = entry
        cwd = None if entry.cwd is None else str(entry.cwd)
        session.emit(
            ServerConnected(
                NOWHERE,
                entry.alias,
                entry.url,
                entry.command,
                cwd,
                entry.auth_env,
                login=entry.oauth is not None,
            )
        )
    return info


def may_log_in(session: ShellSession, entry: ServerEntry, error: UnavailableError) -> bool:
    """Return true if a person is there, and a login of theirs is what a connection lacks."""
    login = _resolve(session, entry).login if session.open.attended else None
    return login is not None and login.settings.login and login.command in error.message


def lacks_login(session: ShellSession, entry: ServerEntry) -> bool:
    """Return true if a person is there who could log in at a server, and nobody has."""
    login = _resolve(session, entry).login if session.open.attended else None
    if login is None or not login.settings.login or entry.url is None:
        return False
    from aish.net.oauth.login_store import LoginStore

    return LoginStore(entry.url, login.settings).look() is None


async def log_in(session: ShellSession, entry: ServerEntry) -> None:
    """Have the person log in at a server of the file, in a browser.

    Raises:
        UnavailableError: there is no login; nothing has changed.
    """
    # Few sessions log in.
    from aish.features.browser_login import LoginDialog, log_in_at

    dialog = LoginDialog(session.open.out.show_unfolded, session.show)
    try:
        await log_in_at(_resolve(session, entry), session.open.plan.secrets, dialog)
    except anyio.get_cancelled_exc_class():
        session.show(f"{entry.alias}: nobody is logged in: interrupted")
        raise


def is_of_file(session: ShellSession, entry: ServerEntry) -> bool:
    """Return true if the server is from the session's file, and was not added by a command."""
    return entry in _of_file(session)


def _resolve(session: ShellSession, entry: ServerEntry) -> ResolvedServer:
    opened = session.open
    for server in opened.plan.servers:
        if server.entry == entry:
            return server
    environ = opened.options.environ
    if entry.auth_env is not None and not environ.get(entry.auth_env):
        message = f"the environment variable `{entry.auth_env}` is not set"
        raise UsageError(message, hint="set it, and restart the session: `aish shell --resume`")
    resolver = Resolver(opened.plan.pipeline, Variables(environ), opened.plan.secrets)
    resolved = resolve_server(entry, resolver)
    finish([resolver])
    login = resolved.login
    if login is not None:
        login = replace(login, command=f":mcp connect {entry.alias}")
    return replace(resolved, entry=replace(resolved.entry, required=False), login=login)


def _hint(error: UnavailableError, entry: ServerEntry) -> str:
    if entry.auth_env is None and entry.url is not None and error.message.startswith(_REFUSED):
        return _CREDENTIALS
    return "nothing has changed; `:mcp list` shows the servers"


_SOON = 2.0
"""Seconds that a person waits for servers that still connect before what there is is shown."""


async def session_tools(session: ShellSession) -> tuple[Tool, ...]:
    """Known tools; in an unattended session all servers are awaited."""
    await servers_known(session)
    return session.tools()


async def servers_known(session: ShellSession) -> None:
    """Wait briefly for servers that still connect; in an unattended session without limit."""
    with anyio.move_on_after(_SOON if session.open.attended else None):
        await session.open.servers.dynamic_registry.wait_until_settled()


def still_connecting(session: ShellSession) -> str:
    servers = session.servers
    names = [server.alias for server in servers if server.state == "connecting"]
    return f"still connecting: {', '.join(names)}" if names else ""
