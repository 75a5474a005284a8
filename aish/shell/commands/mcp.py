"""`:mcp`: lists, connects and disconnects servers of the session, and shows their tools."""

import asyncio
import json
import re
from collections.abc import Iterator, Sequence

import anyio

from aish.agent.runtime import Mask
from aish.config.model import ServerEntry
from aish.core.errors import UnavailableError, UsageError, did_you_mean
from aish.core.events import NOWHERE, Notice, ServerInfo
from aish.core.phrases import counted, shorten
from aish.core.text import for_line
from aish.core.tools import Tool, ToolName
from aish.engine.preview.tool_listing import ToolView, view
from aish.policy.rules import SEPARATOR, Rule, matches_tool, split_glob
from aish.shell.autonomous import RULE
from aish.shell.command import Form, ShellCommand
from aish.shell.servers import (
    LOGIN,
    aliases_in_use,
    connect,
    is_of_file,
    lacks_login,
    log_in,
    may_log_in,
    server_of_command,
    server_of_url,
    servers_known,
    session_servers,
    session_tools,
    still_connecting,
    words_of,
)
from aish.shell.session import ShellSession

_SHORT = 71
_SOON = 1.0
"""Seconds that a connection may take before that is told."""
_CONDITIONAL = "* depends on the arguments: `:mcp tool ALIAS__NAME` tells the rules"
_CONNECT = (
    "`:mcp connect URL [ALIAS] [auth_env=NAME]`, `… [oauth=login]` or"
    " `:mcp connect ALIAS -- COMMAND` is the form"
)
_STARTS = re.compile(r"(?:^|\s)--(?:\s|$)")


async def _mcp(session: ShellSession, rest: str) -> None:
    word, *after = rest.split(None, 1) or ["list"]
    form = next((form for form in FORMS if form.name == word), None)
    if form is None or form.run is None:
        known = tuple(dict.fromkeys(form.name for form in FORMS))
        near = did_you_mean(word, known)
        # A common prefix makes no name more similar.
        hint = near and near.replace("`", "`:mcp ", 1)
        hint = hint or ", ".join(f"`:mcp {name}`" for name in known)
        raise UsageError(f"unknown command `:mcp {word}`", hint=hint)
    await form.run(session, after[0].strip() if after else "")


async def _list(session: ShellSession, rest: str) -> None:
    if rest:
        raise UsageError("`:mcp list` takes no arguments", hint="`:mcp tools GLOB` lists tools")
    if not session.open.attended:
        await servers_known(session)
    servers = session.servers
    if not servers:
        session.show("no servers: `:mcp connect URL` connects to one")
        return
    mask = session.open.box.runtime.mask
    head = ("alias", "transport", "address", "tools", "state")
    session.open.out.rows([head, *(_row(server, mask) for server in servers)])


def _row(server: ServerInfo, mask: Mask) -> tuple[str, ...]:
    count = str(server.tools) if server.state == "ready" else "-"
    why, *lines = (server.error or "").split("\n")
    if lines:
        # The last line of a child's stderr says most; the earlier ones are in its log.
        why = f"{why} {shorten(mask(lines[-1]), _SHORT)}"
    state = f"{server.state}: {why}" if why else server.state
    if server.sandbox and server.state == "ready":
        state = f"{state}, {server.sandbox}"
    return server.alias, server.transport, server.address, count, state


async def _tools(session: ShellSession, rest: str) -> None:
    words, out = rest.split(), session.open.out
    if len(words) > 1:
        raise UsageError("`:mcp tools` takes one glob", hint="for example `:mcp tools repo__git_*`")
    glob = words[0] if words else None
    if glob is not None:
        split_glob(glob)
    tools = await session_tools(session)
    views = [
        _view(session, tool) for tool in tools if glob is None or matches_tool(glob, tool.name)
    ]
    mask = session.open.box.runtime.mask
    out.rows([(str(row.tool.name), _mark(row), _first_line(row.tool, mask)) for row in views])
    if not views:
        out.show("no tools" if glob is None else f"no tool matches {for_line(glob)}")
    if any(tool_view.conditional for tool_view in views):
        out.show(_CONDITIONAL)
    if later := still_connecting(session):
        out.show(later)


def _view(session: ShellSession, tool: Tool) -> ToolView:
    """Return how the rules would decide about a call; `:norris` allows calls that match no rule."""
    tool_view = view(session.open.box.runtime.gate.policy, tool)
    if tool_view.verdict == "ask" and not tool_view.rule and session.autonomous.lets(tool):
        return ToolView(tool, "auto", RULE, conditional=tool_view.conditional)
    return tool_view


def _mark(tool_view: ToolView) -> str:
    return f"{tool_view.verdict}*" if tool_view.conditional else tool_view.verdict


def _first_line(tool: Tool, mask: Mask) -> str:
    return shorten(mask(tool.description).strip().partition("\n")[0], _SHORT)


async def _tool(session: ShellSession, rest: str) -> None:
    words = rest.split()
    if len(words) != 1:
        hint = "`:mcp tools` lists them"
        raise UsageError("`:mcp tool ALIAS__NAME` takes one name", hint=hint)
    await session_tools(session)
    tool = _tool_named(session, words[0])
    schema = json.dumps(tool.input_schema, ensure_ascii=False, indent=2)
    # Text of the server is indented further than our own.
    theirs = (f"  {line}" for line in f"{tool.description.strip()}\n{schema}".split("\n") if line)
    session.show("\n".join((*_head(session, tool), *theirs)))


def _head(session: ShellSession, tool: Tool) -> Iterator[str]:
    tool_view = _view(session, tool)
    rule = f" ({tool_view.rule})" if tool_view.rule else ""
    yield for_line(f"{tool.name}  {_mark(tool_view)}{rule}")
    if str(tool.name) != tool.wire:
        yield for_line(f"(models know it as {tool.wire})")
    if tool_view.conditional:
        policy = session.open.box.runtime.gate.policy
        rules = (rule for rule in policy.deciders() if rule.covers(tool.name))
        yield from (for_line(f"* {_rule_text(rule)}") for rule in rules)


def _rule_text(rule: Rule) -> str:
    return f"{rule.list} {rule.text}  ({rule.entry.path})"


def _tool_named(session: ShellSession, name: str) -> Tool:
    tools = session.open.box.tools
    server, _, rest = name.partition(SEPARATOR)
    tool = tools.by_name(ToolName(server, rest)) or tools.by_wire_name(name)
    if tool is None:
        known = [str(one.name) for one in session.tools()]
        hint = did_you_mean(name, known) or "`:mcp tools` lists them"
        raise UsageError(f"no server offers the tool `{name}`", hint=hint)
    return tool


async def _connect(session: ShellSession, rest: str) -> None:
    starts = _STARTS.search(rest)
    if starts is not None:
        await _start(session, rest[: starts.start()].split(), rest[starts.end() :])
        return
    words = rest.split()
    options = dict(word.split("=", 1) for word in words[1:] if "=" in word)
    names = [word for word in words[1:] if "=" not in word]
    is_known = options in ({}, LOGIN) or set(options) == {"auth_env"}
    if not words or len(names) > 1 or not is_known:
        raise UsageError(_CONNECT, hint="for example `:mcp connect http://127.0.0.1:8080/mcp docs`")
    taken, known = aliases_in_use(session), session_servers(session)
    if words[0] in known and len(words) == 1:
        entry = known[words[0]]
        if words[0] in taken:
            if not lacks_login(session, entry):
                hint = "`:mcp list` shows them"
                raise UsageError(f"`{words[0]}` is already connected", hint=hint)
            await log_in(session, entry)
            if words[0] in aliases_in_use(session):
                return  # its next call uses the login
    else:
        alias = names[0] if names else None
        # A new server does not take the alias of a missing one, and so not its rules either.
        others = taken if alias else {*taken, *known}
        entry = server_of_url(words[0], alias, others, options)
        _require_own(session, entry)
    await _come(session, entry)


async def _start(session: ShellSession, names: list[str], command: str) -> None:
    if len(names) != 1:
        hint = "for example `:mcp connect clock -- uvx mcp-server-time`"
        raise UsageError(_CONNECT, hint=hint)
    entry = server_of_command(words_of(command), names[0], aliases_in_use(session))
    _require_own(session, entry)
    await _come(session, entry)


async def connect_for(
    session: ShellSession, by: str, alias: str | None, url: str, argv: Sequence[str]
) -> ServerInfo:
    """Connect to the server at `url`, or to one that `argv` starts, for another program.

    Raises:
        AishError: it cannot be connected; nothing has changed.
    """
    if any("${" in word for word in (url, *argv)):
        # Its sender would learn the value of any variable.
        hint = "`:mcp connect` at the terminal takes them"
        raise UsageError("variables (`${NAME}`) are not taken from another program", hint=hint)
    taken = aliases_in_use(session)
    if not argv:
        entry = server_of_url(url, alias, taken if alias else {*taken, *session_servers(session)})
    elif alias is None:
        raise UsageError("`alias` is missing: a server that is started has no other name")
    else:
        entry = server_of_command(argv, alias, taken)
    _require_own(session, entry)
    return await _come(session, entry, by)


async def _come(session: ShellSession, entry: ServerEntry, by: str | None = None) -> ServerInfo:
    """Connect to a server, and report it; the gate decides about a command that is started.

    Of one that is not in the file, the command is approved by who has sent it: `by`, or the person.
    """
    known = session_servers(session)
    if entry.command and not is_of_file(session, entry):
        tell = await session.open.local.permit(entry.command, by)
        try:
            info = await _patiently(session, entry)
        except BaseException as error:
            tell("handler_error", str(error) or "interrupted")
            raise
        tell("ok", f"{entry.alias} is connected")
    else:
        info = await _come_logged_in(session, entry)
    if known.get(info.alias, entry) != entry:
        # The earlier server with this alias was a different one.
        _forget(session, info.alias)
    offered = counted(info.tools, "tool")
    session.show(for_line(f"{info.alias} is connected: {offered}, {info.address}"))
    return info


async def _come_logged_in(session: ShellSession, entry: ServerEntry) -> ServerInfo:
    """Like `_patiently`, after a login of the person if that is what it lacks."""
    try:
        return await _patiently(session, entry)
    except UnavailableError as error:
        if not may_log_in(session, entry, error):
            raise
    await log_in(session, entry)
    return await _patiently(session, entry)


async def _patiently(session: ShellSession, entry: ServerEntry) -> ServerInfo:
    """Like `connect`, but reports that it takes long, or was cancelled."""
    text = f"waiting for {entry.alias} to connect; Ctrl-C gives up"
    notice = Notice(NOWHERE, "info", "connecting", text)
    waiting = asyncio.get_running_loop().call_later(_SOON, session.emit, notice)
    try:
        return await connect(session, entry)
    except anyio.get_cancelled_exc_class():
        session.show(f"{entry.alias} is not connected: interrupted")
        raise
    finally:
        waiting.cancel()


def _require_own(session: ShellSession, entry: ServerEntry) -> None:
    """The rules and the lock of the file apply to its own servers, wherever these run."""
    declared = {server.entry.alias: server.entry for server in session.open.plan.servers}
    own = declared.get(entry.alias)
    if own is not None and (own.url, own.command) != (entry.url, entry.command):
        raise UsageError(
            f"`{entry.alias}` is a different server in the file",
            hint=f"use another alias; `:mcp connect {entry.alias}` connects that of the file",
        )


async def _disconnect(session: ShellSession, rest: str) -> None:
    words = rest.split()
    if len(words) != 1:
        raise UsageError("`:mcp disconnect` takes one alias", hint="`:mcp list` shows them")
    servers = session.open.servers.dynamic_registry
    known = [server.alias for server in servers.registry.servers]
    if words[0] not in known:
        hint = did_you_mean(words[0], known) or "`:mcp list` shows them"
        raise UsageError(f"unknown server `{words[0]}`", hint=hint)
    await servers.disconnect(words[0])
    again = f"`:mcp connect {words[0]}` connects it again"
    session.show(for_line(f"{words[0]} is disconnected; {again}"))
    _forget(session, words[0])


def _forget(session: ShellSession, alias: str) -> None:
    """Approvals for one server do not apply to another that takes its alias."""
    over = session.open.box.runtime.gate.forget(alias)
    if over:
        rules = counted(over, "rule")
        session.show(f"your approvals for it are withdrawn ({rules})")


FORMS = (
    Form("list", "alias, transport, address, tools, state", run=_list),
    Form("tools [GLOB]", "names, and what the rules decide", completes="tool", run=_tools),
    Form("tool ALIAS__NAME", "the whole description and input schema", completes="tool", run=_tool),
    Form(
        "connect URL [ALIAS] [auth_env=NAME]",
        "connects to a server; a failure changes nothing",
        run=_connect,
    ),
    Form(
        "connect URL [ALIAS] oauth=login",
        "connects to one that wants a login, in a browser",
        run=_connect,
    ),
    Form(
        "connect ALIAS -- COMMAND…",
        "starts a server as a child process, in this folder",
        run=_connect,
    ),
    Form(
        "connect ALIAS",
        "reconnects one that failed or was disconnected, and logs in there",
        completes="absent",
        run=_connect,
    ),
    Form("disconnect ALIAS", "disconnects one", completes="server", run=_disconnect),
)

MCP = ShellCommand(
    "mcp list|tools|tool|connect|disconnect …",
    "the servers and their tools; connects and disconnects them",
    _mcp,
    details="Of a call, `auto` runs, `ask` asks you, `deny` is refused and `staged` waits for a "
    "review; `*` says that it depends on the arguments. Without an alias a server is called "
    "by the first label of its host. `auth_env=NAME` sends the value of an environment "
    "variable as the bearer token. A server behind `--` is started from its words, without a "
    "shell: what you type is approved by that, unless a rule denies it. `${NAME}` in them is "
    "the value of a variable, which is a secret.",
    forms=FORMS,
)
