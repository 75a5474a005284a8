"""Configuration of a client that uses this server, one form per client. Pure.

It has no secrets: variables and tokens are references, in the client's own syntax.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum

from aish.core.frozen import frozen
from aish.core.json import JsonObject, JsonValue

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+", re.ASCII)
_NO_NAME = re.compile(r"[^A-Za-z0-9_-]+", re.ASCII)


class ConfigClient(StrEnum):
    """Clients whose configuration format is known."""

    CLAUDE = "claude"
    CURSOR = "cursor"
    VSCODE = "vscode"
    CODEX = "codex"


@frozen
class ClientEntry:
    """A server in the configuration of a client: a command to start, or a URL.

    `variables` are the variables that the command needs; `token` is the variable with the token for
    the URL, and empty if the client gets its token from an issuer.
    """

    name: str
    command: tuple[str, ...] = ()
    variables: tuple[str, ...] = ()
    url: str = ""
    token: str = ""


PLACES: Mapping[ConfigClient, str] = {
    ConfigClient.CLAUDE: "`.mcp.json` of a project",
    ConfigClient.CURSOR: "`.cursor/mcp.json` of a project, or `~/.cursor/mcp.json`",
    ConfigClient.VSCODE: "`.vscode/mcp.json` of a project, or `MCP: Open User Configuration`",
    ConfigClient.CODEX: "`~/.codex/config.toml`",
}
"""Where a client looks for it."""


def entry_name(text: str) -> str:
    """Return a name that all clients accept: letters, digits, `_` and `-`."""
    return _NO_NAME.sub("-", text).strip("-") or "aish"


def render(entry: ClientEntry, client: ConfigClient) -> str:
    """Return the entry with its surroundings, as it appears in the client's file."""
    return _FORMS[client](entry)


def _claude(entry: ClientEntry) -> str:
    return _json({"mcpServers": {entry.name: _describe(entry, "${%s}", ("stdio", "http"))}})


def _cursor(entry: ClientEntry) -> str:
    return _json({"mcpServers": {entry.name: _describe(entry, "${env:%s}", ("stdio", ""))}})


def _vscode(entry: ClientEntry) -> str:
    names = [entry.token] if entry.token else entry.variables
    inputs: list[JsonValue] = [
        {"type": "promptString", "id": name, "description": name, "password": True}
        for name in names
    ]
    servers = {entry.name: _describe(entry, "${input:%s}", ("stdio", "http"))}
    return _json({"inputs": inputs, "servers": servers} if inputs else {"servers": servers})


def _codex(entry: ClientEntry) -> str:
    key = entry.name if _BARE_KEY.fullmatch(entry.name) else _toml(entry.name)
    return "\n".join([f"[mcp_servers.{key}]", *_codex_lines(entry)])


def _codex_lines(entry: ClientEntry) -> Iterator[str]:
    if entry.url:
        yield f"url = {_toml(entry.url)}"
        if entry.token:
            yield f"bearer_token_env_var = {_toml(entry.token)}"
        return
    yield f"command = {_toml(entry.command[0])}"
    yield f"args = [{', '.join(map(_toml, entry.command[1:]))}]"
    if entry.variables:
        yield f"env_vars = [{', '.join(map(_toml, entry.variables))}]"


_FORMS: Mapping[ConfigClient, Callable[[ClientEntry], str]] = {
    ConfigClient.CLAUDE: _claude,
    ConfigClient.CURSOR: _cursor,
    ConfigClient.VSCODE: _vscode,
    ConfigClient.CODEX: _codex,
}


def _describe(entry: ClientEntry, reference: str, types: tuple[str, str]) -> JsonObject:
    """Return the entry as JSON; `reference` is the pattern of one, `types` the transports."""
    stdio, http = types
    description: dict[str, JsonValue] = {}
    if entry.url:
        if http:
            description["type"] = http
        description["url"] = entry.url
        if entry.token:
            description["headers"] = {"Authorization": f"Bearer {reference % entry.token}"}
        return description
    description["type"] = stdio
    description["command"] = entry.command[0]
    description["args"] = list(entry.command[1:])
    if entry.variables:
        description["env"] = {name: reference % name for name in entry.variables}
    return description


def _json(value: JsonObject) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)


def _toml(text: str) -> str:
    """Return a basic string of TOML, which has all escapes of JSON."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
