"""A server that is connected at run time: its entry, its alias, its secret (S5)."""

import re
from collections.abc import Container
from dataclasses import replace
from urllib.parse import urlsplit

from aish.config.server_entry import ServerEntry
from aish.errors import UsageError
from aish.run.credentials import Resolver, Variables, finish, resolve_server
from aish.shell.session import Session
from aish.vocab.run_parts import ServerInfo

_ALIAS = re.compile(r"(?!.*__)[A-Za-z0-9]([A-Za-z0-9_-]*[A-Za-z0-9])?\Z")


def server_of_url(
    url: str, alias: str | None, taken: Container[str], auth_env: str | None = None
) -> ServerEntry:
    """The entry of a server at `url`; without an alias it is called by its host's first label.

    A number is added to that if it is taken.

    Raises:
        UsageError: the url or the alias is not one, or the alias is taken.
    """
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise UsageError(f"`{url}` is not the URL of a server", hint="http://host:port/mcp")
    if parts.username or parts.password:
        raise UsageError(
            "a URL with credentials in it would end up in logs",
            hint="`auth_env=NAME` sends the value of a variable as the bearer token",
        )
    if alias is None:
        alias = _free(_tame(parts.hostname.partition(".")[0]), taken)
    elif not _ALIAS.match(alias) or alias == "shell":
        raise UsageError(
            f"`{alias}` cannot be an alias", hint="letters, digits, `-` and single `_`"
        )
    elif alias in taken:
        raise UsageError(f"the alias `{alias}` is taken", hint="`:mcp list` shows them")
    return ServerEntry(alias=alias, url=url, auth_env=auth_env, required=False)


def _tame(label: str) -> str:
    name = re.sub(r"[^A-Za-z0-9]+", "-", label).strip("-")
    return "server" if not name or name == "shell" else name


def _free(name: str, taken: Container[str]) -> str:
    number, found = 1, name
    while found in taken:
        number += 1
        found = f"{name}{number}"
    return found


async def connect(session: Session, entry: ServerEntry) -> ServerInfo:
    """Connect to the server of an entry; it stays until it is disconnected.

    Raises:
        PipelineError: its token's variable is not set.
        UnavailableError: it could not be reached or refused; nothing has changed.
        UsageError: its alias is taken, or one of its tools would have the name of another.
    """
    opened = session.open
    plan = opened.plan
    resolver = Resolver(plan.pipeline, Variables(opened.options.environ), plan.secrets)
    resolved = resolve_server(entry, resolver)
    finish([resolver])
    resolved = replace(resolved, entry=replace(resolved.entry, required=False))
    info = await opened.servers.roster.connect(opened.servers.connection(resolved))
    session.connected[entry.alias] = entry
    return info
