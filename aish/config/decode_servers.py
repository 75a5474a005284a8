"""`mcp.servers:` into entries (design 2.1)."""

from pathlib import Path
from typing import cast

from aish.config.nodes import ListNode
from aish.config.reading import Table
from aish.config.server_entry import ProtocolChoice, ServerEntry, ServerTimeout

_KINDS = ("url", "command", "pack")
# What only one kind of server has.
_BELONGS = {
    "auth_env": "url",
    "auth_token": "url",
    "headers": "url",
    "verify_tls": "url",
    "args": "command",
    "env": "command",
    "cwd": "command",
    "root": "pack",
}


def decode_servers(servers: Table) -> dict[str, ServerEntry]:
    """Every entry by its alias."""
    return {alias: _entry(alias, table) for alias, table in servers.tables()}


def _entry(alias: str, table: Table) -> ServerEntry:
    _check_kind(table)
    for key in ("url", "headers", "command", "args", "env"):
        table.check_references(key)
    return ServerEntry(
        alias=alias,
        url=table.text("url"),
        auth_env=table.text("auth_env"),
        auth_token=table.text("auth_token"),
        headers=table.pairs("headers"),
        command=table.texts("command") + table.texts("args"),
        env=_env(table),
        cwd=_cwd(table),
        pack=table.texts("pack"),
        root=table.absolute("root"),
        required=table.flag("required", default=True) if table.has("required") else None,
        trust=table.flag("trust", default=False),
        protocol=cast("ProtocolChoice", table.text("protocol") or "auto"),
        sampling="allow" if table.text("sampling") == "allow" else "deny",
        roots=table.absolutes("roots"),
        tools=table.texts("tools"),
        exclude=table.texts("exclude"),
        timeout=_timeout(table.part("timeout")),
        verify_tls=table.flag("verify_tls", default=True),
    )


def _check_kind(table: Table) -> None:
    kinds = [key for key in _KINDS if table.has(key)]
    if not kinds:
        hint = "`url` for HTTP, `command` for a child process, `pack` for tools of our own"
        table.problem(None, "a server needs `url`, `command` or `pack`", hint)
        return
    if len(kinds) > 1:
        named = " and ".join(f"`{key}`" for key in kinds)
        table.problem(kinds[1], f"a server has one of `url`, `command` and `pack`, not {named}")
        return
    for key, kind in _BELONGS.items():
        if table.has(key) and kind != kinds[0]:
            table.problem(key, f"`{key}` is for servers with `{kind}`")
    if table.has("args") and isinstance(table.raw("command"), ListNode):
        table.problem("args", "`args` go with a `command` that is one program")


def _env(table: Table) -> dict[str, str | None]:
    """Names with their values; `None` passes the variable on."""
    if isinstance(table.raw("env"), ListNode):
        return dict.fromkeys(table.texts("env"))
    return {
        name: None if value is None else str(value) for name, value in table.mapping("env").items()
    }


def _cwd(table: Table) -> Path | None:
    if not table.has("command"):
        return None
    return table.absolute("cwd") or Path.cwd() / table.folder_of("command")


def _timeout(table: Table) -> ServerTimeout:
    default = ServerTimeout()
    tools = table.part("tools")
    return ServerTimeout(
        connect=table.seconds("connect", default.connect),
        call=table.seconds("call", default.call),
        tools={name: tools.seconds(name, default.call) for name in tools.node.entries},
    )
