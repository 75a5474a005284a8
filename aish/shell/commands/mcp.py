"""`:mcp`: the servers of the session and their tools; they come and go here (S5)."""

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence

from aish.errors import UsageError, did_you_mean
from aish.policy.globs import split_glob
from aish.policy.rules import matches_tool
from aish.run.looking import view
from aish.shell.command import Command
from aish.shell.connecting import connect, server_of_url
from aish.shell.session import Session
from aish.text import counted, for_line
from aish.vocab.run_parts import ServerInfo
from aish.vocab.tools import Tool, ToolName

_SHORT = 72
_FORMS = (
    "`:mcp list`, `tools [GLOB]`, `tool ALIAS__NAME`, `connect URL [ALIAS]`, `disconnect ALIAS`"
)


async def _mcp(session: Session, rest: str) -> None:
    word, _, after = rest.partition(" ")
    found = _SUBCOMMANDS.get(word or "list")
    if found is None:
        hint = did_you_mean(word, _SUBCOMMANDS) or _FORMS
        raise UsageError(f"there is no `:mcp {word}`", hint=hint)
    await found(session, tuple(after.split()))


async def _list(session: Session, words: Sequence[str]) -> None:
    del words
    servers = session.open.servers.roster.registry.servers
    if not servers:
        session.open.out.show("no servers: `:mcp connect URL` connects to one")
    rows = [("alias", "transport", "address", "tools", "state"), *map(_row, servers)]
    if servers:
        session.open.out.rows(rows)


def _row(server: ServerInfo) -> tuple[str, ...]:
    count = str(server.tools) if server.state == "ready" else "-"
    why = (server.error or "").partition("\n")[0]
    state = f"{server.state}: {why}" if why else server.state
    return server.alias, server.transport, server.address, count, state


async def _tools(session: Session, words: Sequence[str]) -> None:
    glob = words[0] if words else None
    if glob is not None:
        split_glob(glob)
    await session.open.servers.roster.settled()
    tools = [tool for tool in session.tools() if glob is None or matches_tool(glob, tool.name)]
    if not tools:
        session.open.out.show("no tools" if glob is None else f"no tool matches {for_line(glob)}")
        return
    policy = session.open.box.equipment.gate.policy
    rows = []
    for tool in tools:
        verdict = view(policy, tool)
        mark = f"{verdict.verdict}*" if verdict.conditional else verdict.verdict
        first = tool.description.strip().partition("\n")[0]
        short = first if len(first) <= _SHORT else first[: _SHORT - 1] + "…"
        rows.append((str(tool.name), mark, short))
    session.open.out.rows(rows)


async def _tool(session: Session, words: Sequence[str]) -> None:
    if len(words) != 1:
        raise UsageError("`:mcp tool` takes one name", hint="for example `:mcp tool repo__fs_read`")
    await session.open.servers.roster.settled()
    tool = _named(session, words[0])
    verdict = view(session.open.box.equipment.gate.policy, tool)
    rule = f" ({verdict.rule})" if verdict.rule else ""
    lines = [
        for_line(f"{tool.name}  {verdict.verdict}{rule}"),
        *tool.description.strip().split("\n"),
        json.dumps(tool.input_schema, ensure_ascii=False, indent=2),
    ]
    session.open.out.show("\n".join(line for line in lines if line))


def _named(session: Session, name: str) -> Tool:
    server, _, rest = name.partition("__")
    tool = session.open.box.tools.by_name(ToolName(server, rest))
    if tool is None:
        hint = did_you_mean(name, [str(one.name) for one in session.tools()])
        raise UsageError(f"no server offers the tool `{name}`", hint=hint or "`:mcp tools` lists")
    return tool


async def _connect(session: Session, words: Sequence[str]) -> None:
    options = dict(word.split("=", 1) for word in words[1:] if "=" in word)
    names = [word for word in words[1:] if "=" not in word]
    if not words or len(names) > 1 or set(options) - {"auth_env"}:
        raise UsageError("`:mcp connect URL [ALIAS] [auth_env=NAME]` is the form")
    taken = {server.alias for server in session.open.servers.roster.registry.servers}
    entry = server_of_url(words[0], names[0] if names else None, taken, options.get("auth_env"))
    info = await connect(session, entry)
    session.open.out.show(f"{info.alias} is connected: {counted(info.tools, 'tool')}")


async def _disconnect(session: Session, words: Sequence[str]) -> None:
    if len(words) != 1:
        raise UsageError("`:mcp disconnect` takes one alias", hint="`:mcp list` shows them")
    await session.open.servers.roster.disconnect(words[0])
    session.connected.pop(words[0], None)
    session.open.out.show(f"{for_line(words[0])} is disconnected")


_SUBCOMMANDS: Mapping[str, Callable[[Session, Sequence[str]], Awaitable[None]]] = {
    "list": _list,
    "tools": _tools,
    "tool": _tool,
    "connect": _connect,
    "disconnect": _disconnect,
}

MCP = Command(
    "mcp",
    "list|tools|tool|connect|disconnect …",
    "the servers and their tools; connects and disconnects them",
    _mcp,
    details=(
        ":mcp list                         alias, transport, address, tools, state\n"
        ":mcp tools [GLOB]                 names, and what the rules say of a call\n"
        ":mcp tool ALIAS__NAME             the whole description and input schema\n"
        ":mcp connect URL [ALIAS] [auth_env=NAME]   a failure changes nothing\n"
        ":mcp disconnect ALIAS             closes one"
    ),
    completes="server",
)
