"""Lists of MCP servers: `mcpServers` of many programs, `servers` of VS Code, Codex's tables.

What looks like a credential becomes a variable, because a file of other programs is often private
and a pipeline is not; every other value stays as it is.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from aish.cassettes.record.secret_scan import scan_text
from aish.cli.importing.draft import Draft, Section, as_section, as_text, variable_name
from aish.config.fields import variables
from aish.config.yaml_tree import ListNode, MappingNode, Node, ScalarNode, to_data
from aish.core.frozen import frozen
from aish.core.json import JsonValue
from aish.system.secrets.secrets import SHORTEST, names_credential

Convert = Callable[[str, Section, str], str]
"""A text of the source with its references as ours; told where it stands."""

# What `${…}` may be in the files of other programs.
# Possessive throughout: a file may hold a megabyte of anything.
_REFERENCE = re.compile(r"\$\{(?P<inside>[^${}]*+(?:\$\{[^{}]*+\})?+[^${}]*+)\}")
_VARIABLE = re.compile(r"(?P<name>[A-Za-z_]\w*)(?::-(?P<default>[^}]*))?")
_DOLLAR = re.compile(r"\$([A-Za-z_]\w*)")
_SCHEME = re.compile(r"(?P<scheme>Bearer|Basic|Token) +(?P<rest>\S.*)", re.IGNORECASE)
_ONE = re.compile(r"\$\{(?P<name>[A-Za-z_]\w*)\}")
_OPTION = re.compile(r"(?P<option>--?[A-Za-z][\w-]*)=(?P<value>.+)", re.DOTALL)
_ASSIGNED = re.compile(r"(?P<name>[A-Za-z_]\w*)=(?P<value>.+)", re.DOTALL)
_HEADER = re.compile(r"(?P<name>[A-Za-z][A-Za-z0-9-]*): ?(?P<value>\S.*)")
_LOGIN = re.compile(
    r"(?<![a-z0-9+.-])(?P<before>[a-z][a-z0-9+.-]*+://[^/@:\s]*+:)(?P<password>[^/@\s]++)(?=@)"
)
_USER = re.compile(r"(?<=://)[^/@\s]+@")
_QUERY = re.compile(r"(?P<before>[?&](?P<name>[^=&#?]++)=)(?P<value>[^&#]++)")
_PATH = re.compile(r"(?:~|\.{0,2})/[\w.~/ -]+")
_HEADER_OPTIONS = frozenset({"--header", "-H"})
# Values that switch something on or off, whatever they are called.
_SWITCHES = frozenset({"", "true", "false", "yes", "no", "on", "off", "none", "null"})

_OAUTH = "a token in `auth_env` instead: aish does not log in"
_DISABLED = "left out: it is switched off"
_INSTEAD: Final = {
    "envFile": "export what the file holds, and name the variables under `env`",
    "headersHelper": "a token in `auth_env`, or `headers` with a `${VAR}`",
    "oauth": _OAUTH,
    "oauth_resource": _OAUTH,
    "scopes": _OAUTH,
    "auth": _OAUTH,
    "authProviderType": _OAUTH,
    "timeout": "`timeout: {connect: 20s, call: 60s}`; its meaning differs between programs",
    "trust": "rules under `mcp.auto_approve`",
    "sandbox": "run the command in a sandbox of your own",
    "sandboxEnabled": "run the command in a sandbox of your own",
    "supports_parallel_tool_calls": "`mcp.parallel`",
    "default_tools_approval_mode": "a rule under `mcp.auto_approve`",
    "bearer_token": "`auth_env` with the name of a variable",
    "bundled": "left out: not needed here",
}
_IGNORED = frozenset(
    {"description", "name", "icon", "gallery", "version", "dev", "note", "comment", "_comment"}
)
_STDIO = frozenset({"stdio", "local"})
_HTTP = frozenset({"http", "sse", "streamable-http", "streamable_http", "streamableHttp", "remote"})


@frozen
class Server:
    """One server of the source, its texts with our references; `None` in `env` passes on."""

    command: tuple[str, ...] = ()
    env: Mapping[str, str | None] = {}
    cwd: str | None = None
    url: str | None = None
    headers: Mapping[str, str] = {}
    auth_env: str | None = None
    required: bool | None = None
    connect: float | None = None
    call: float | None = None
    tools: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()


@frozen
class Input:
    """An entry of VS Code's `inputs`."""

    variable: str
    default: str | None
    what: str


def of_json(root: Section, key: str, base: Path | None) -> dict[str, JsonValue]:
    """The servers under `mcpServers` or `servers`, by alias; started in the folder `base`.

    Without one, they start where the pipeline stands.
    """
    draft = root.draft
    listed = root.section(key)
    if listed is None:
        return {}
    if not listed.node.entries:
        root.wrong(key, "it contains no server", "expected NAME: {command: …} or {url: …}")
    convert = _json_references(_inputs(root), base, draft)
    made: dict[str, JsonValue] = {}
    for name, node in listed.node.entries.items():
        section = as_section(node, listed.place(name), draft)
        if section is None:
            continue
        alias = alias_near(name, made)
        server = _of_json(section, convert)
        if server is not None:
            _approve(alias, section.texts("autoApprove", "alwaysAllow"), draft)
            section.leave(_INSTEAD, _IGNORED)
            made[alias] = entry(alias, name, server, section, base)
    return made


def of_codex(root: Section, base: Path | None) -> dict[str, JsonValue]:
    """The tables `[mcp_servers.NAME]` of Codex, by alias."""
    draft = root.draft
    listed = root.section("mcp_servers")
    made: dict[str, JsonValue] = {}
    for name, node in () if listed is None else listed.node.entries.items():
        assert listed is not None
        section = as_section(node, listed.place(name), draft)
        if section is None:
            continue
        alias = alias_near(name, made)
        server = _of_codex(name, section)
        if server is not None:
            _approve(alias, _approved_by_codex(section), draft)
            section.leave(_INSTEAD, _IGNORED)
            made[alias] = entry(alias, name, server, section, base)
    return made


def of_goose(section: Section, alias: str, name: str) -> JsonValue:
    """An extension of goose that is a server: `stdio`, `streamable_http` or `sse`."""
    env: dict[str, str | None] = {
        **{key: _escaped(value) for key, value in section.pairs("envs").items()},
        **dict.fromkeys(section.texts("env_keys")),
    }
    timeout = section.number("timeout")
    url = section.text("uri", "url")
    if url is not None:
        headers = section.pairs("headers")
        server = Server(
            url=_escaped(url),
            headers={k: _DOLLAR.sub(r"${\1}", v) for k, v in headers.items()},
            call=timeout,
            tools=section.texts("available_tools"),
        )
    else:
        command = section.text("cmd", "command")
        if command is None:
            section.wrong("cmd", f"the extension `{name}` has neither `cmd` nor `uri`")
            return None
        words = (command, *section.texts("args"))
        server = Server(
            command=tuple(map(_escaped, words)),
            env=env,
            call=timeout,
            tools=section.texts("available_tools"),
        )
        for key, value in env.items():
            if value is None:
                section.draft.uses(key, f"the variable `{key}` of the server `{alias}`")
    section.leave(_INSTEAD, _IGNORED | {"type", "env_keys", "envs", "display_name"})
    return entry(alias, name, server, section, None)


def alias_near(name: str, taken: Mapping[str, JsonValue]) -> str:
    """A legal alias (M4) near `name`."""
    tame = re.sub(r"_{2,}", "_", re.sub(r"[^A-Za-z0-9_-]+", "-", name)).strip("_-") or "server"
    alias, number = tame, 2
    while alias in taken or alias == "shell":
        alias, number = f"{tame}-{number}", number + 1
    return alias


def entry(
    alias: str, name: str, server: Server, section: Section, base: Path | None
) -> dict[str, JsonValue]:
    """The entry under `mcp.servers`, with variables where the source has credentials."""
    moving = _Moving(alias, name, section.draft)
    made: dict[str, JsonValue] = {}
    if server.url is not None:
        made["url"] = moving.url(server.url, section)
        made |= _access(server, moving)
    else:
        made["command"] = list(moving.words(server.command))
        if server.env:
            made["env"] = moving.env(server.env)
        if (cwd := _cwd(server, section, base)) is not None:
            made["cwd"] = cwd
    if server.required is not None:
        made["required"] = server.required
    times = {"connect": server.connect, "call": server.call}
    timeout: dict[str, JsonValue] = {
        key: f"{value:.3f}".rstrip("0").rstrip(".") + "s"
        for key, value in times.items()
        if value is not None and value > 0
    }
    if timeout:
        made["timeout"] = timeout
    if server.tools:
        made["tools"] = list(server.tools)
    if server.exclude:
        made["exclude"] = list(server.exclude)
    return made


class _Moving:
    """Puts variables in the place of credentials of one server."""

    def __init__(self, alias: str, name: str, draft: Draft) -> None:
        self._alias = alias
        self._of = f"the server `{name}`"
        self._draft = draft

    def words(self, words: tuple[str, ...]) -> Iterator[str]:
        """The words of a command; what follows an option named like a credential is one."""
        before = ""
        for index, word in enumerate(words):
            yield (
                self._known(word, f"the program of {self._of}")
                if index == 0
                else self._word(word, before)
            )
            before = word

    def env(self, env: Mapping[str, str | None]) -> JsonValue:
        """The environment of a child: names alone where nothing else is said of them."""
        if all(value is None for value in env.values()):
            return list(env)
        return {
            name: None
            if value is None
            else self._value(name, value, name, f"the variable `{name}` of {self._of}")
            for name, value in env.items()
        }

    def header(self, name: str, value: str) -> str:
        """The value of a header; a scheme such as `Bearer` stays in the file."""
        found = _SCHEME.fullmatch(value)
        where = f"the header `{name}` of {self._of}"
        if found is None:
            whole = f"the whole value of {where}"
            if name.lower() == "authorization":
                whole += ", with `Bearer ` if the server wants it"
            return self._value(name, value, f"{self._alias}_{name}", whole)
        scheme, rest = found["scheme"], found["rest"]
        alone = f"the token alone, without `{scheme} `, for {where}"
        if variables(rest):
            return f"{scheme} {self._known(rest, alone)}"
        return (
            f"{scheme} ${{{self._draft.moves(rest, f'{self._alias}_token', self._alias, alone)}}}"
        )

    def url(self, url: str, section: Section) -> str:
        """An address; a key in its query becomes a variable, and so does a path that is one."""
        if _USER.search(url):
            section.skip("url", "`auth_env` with the name of a variable: no login in an address")
            url = _USER.sub("", url)
        self._known(_QUERY.sub("", url), f"the address of {self._of}")
        url = _QUERY.sub(self._parameter, url)
        place = url.partition("?")[0]
        if not variables(place) and _is_random(place):
            what = f"the whole address of {self._of}"
            name = self._draft.moves(url, f"{self._alias}_url", self._alias, what)
            self._draft.secrets.append(name)
            return f"${{{name}}}"
        return url

    def _parameter(self, found: re.Match[str]) -> str:
        name, value = found["name"], found["value"]
        what = f"the parameter `{name}` in the address of {self._of}"
        return found["before"] + self._value(name, value, f"{self._alias}_{name}", what)

    def _word(self, word: str, before: str) -> str:
        if before in _HEADER_OPTIONS and (header := _HEADER.fullmatch(word)):
            gap = word[len(header["name"]) : word.index(header["value"], len(header["name"]))]
            return header["name"] + gap + self.header(header["name"], header["value"])
        if found := _OPTION.fullmatch(word):
            option = found["option"]
            what = f"the option `{option}` of {self._of}"
            value = self._value(option, found["value"], f"{self._alias}_{option}", what)
            return f"{option}={value}"
        if found := _ASSIGNED.fullmatch(word):
            name = found["name"]
            what = f"the variable `{name}` of {self._of}"
            return f"{name}={self._value(name, found['value'], name, what)}"
        option = before if before.startswith("-") and "=" not in before else ""
        named = option if names_credential(option) and not word.startswith("-") else ""
        what = f"the option `{option}` of {self._of}" if named else f"an argument of {self._of}"
        return self._value(named, word, f"{self._alias}_{named or 'argument'}", what)

    def _value(self, name: str, value: str, wanted: str, what: str) -> str:
        """A value: as it is, or as the variable that holds it."""
        if variables(value):
            return self._known(value, what)
        if login := _LOGIN.search(value):
            what = f"the password alone, in {what}"
            made = self._draft.moves(
                login["password"], f"{self._alias}_password", self._alias, what
            )
            return value[: login.start("password")] + f"${{{made}}}" + value[login.end() :]
        if not _is_credential(name, value):
            return value
        made = self._draft.moves(value, wanted, self._alias, what)
        return f"${{{made}}}"

    def _known(self, value: str, what: str) -> str:
        for name, default in variables(value):
            self._draft.read.add(name)
            if default is None:
                alone = _ONE.fullmatch(value) is not None
                self._draft.uses(name, what if alone else f"a part of {what}")
        return value


def _is_credential(name: str, value: str) -> bool:
    if value.lower() in _SWITCHES:
        return False
    if _is_random(value):
        return True
    # What is too short to be masked would be refused at run time (F15).
    return names_credential(name) and len(value) >= SHORTEST and not _PATH.fullmatch(value)


def _is_random(text: str) -> bool:
    return bool(scan_text("", text))


def _access(server: Server, moving: _Moving) -> dict[str, JsonValue]:
    """Headers, and the bearer token as `auth_env`."""
    made: dict[str, JsonValue] = {}
    headers: dict[str, JsonValue] = {}
    if server.auth_env is not None:
        made["auth_env"] = server.auth_env
    for name, value in server.headers.items():
        settled = moving.header(name, value)
        token = _ONE.fullmatch(settled.removeprefix("Bearer ")) if "Bearer " in settled else None
        if name.lower() == "authorization" and token and "auth_env" not in made:
            made["auth_env"] = token["name"]
        else:
            headers[name] = settled
    return made | ({"headers": headers} if headers else {})


def _cwd(server: Server, section: Section, base: Path | None) -> str | None:
    """The folder a child starts in, as the pipeline says it; `None` for the pipeline's own."""
    own = server.cwd
    if own is not None and ("$" in own or own.startswith("~")):
        section.skip("cwd", "a folder, absolute or relative to the pipeline")
        own = None
    if own is not None and Path(own).is_absolute():
        return own
    if base is None:
        return own
    made = section.draft.relative_folder(base / (own or "."))
    return None if made == "." else made


def _of_json(section: Section, convert: Convert) -> Server | None:
    """An entry of a JSON list; `None` where it is left out."""
    url = section.text("url", "serverUrl", "httpUrl")
    command = _command(section) if "command" in section.node.entries else None
    if _is_left_out(section, url):
        return None

    def converted(key: str, texts: Mapping[str, str]) -> dict[str, str]:
        return {name: convert(text, section, key) for name, text in texts.items()}

    filters = Server(
        tools=section.texts("includeTools", "enabledTools"),
        exclude=section.texts("excludeTools", "disabledTools"),
    )
    if url is not None:
        return replace(
            filters,
            url=convert(url, section, "url"),
            headers=converted("headers", section.pairs("headers")),
        )
    cwd = section.text("cwd")
    return replace(
        filters,
        command=tuple(convert(word, section, "command") for word in command or ()),
        env=converted("env", section.pairs("env")),
        cwd=None if cwd is None else convert(cwd, section, "cwd"),
    )


def _is_left_out(section: Section, url: str | None) -> bool:
    """Whether an entry makes no server, which is then told."""
    kind = section.text("type", "transport")
    both = (url is not None) + ("command" in section.node.entries)
    if section.flag("disabled") or section.flag("enabled") is False:
        section.draft.skip(section.node.position, section.path, _DISABLED)
    elif kind is not None and kind not in _STDIO | _HTTP:
        section.skip("type", f"left out: pipelines cannot reach a server by `{kind}`")
    elif both != 1:
        has = "both `url` and `command`" if both else "neither `url` nor `command`"
        hint = "`command` for a child process, `url` for a server over HTTP"
        section.draft.wrong(section.node.position, section.path, f"the server has {has}", hint)
    elif url is not None and not re.match(r"(?i)https?://|\$\{", url):
        section.skip("url", "left out: pipelines reach servers over HTTP only")
    else:
        return False
    return True


def _command(section: Section) -> tuple[str, ...] | None:
    """The program and its words; some programs have both in one list."""
    if isinstance(section.raw("command"), ListNode):
        words = section.texts("command")
    else:
        program = section.text("command")
        if program is None and section.raw("command") is not None:
            return None  # told by `text`
        words = () if program is None else (program,)
    if not words or not words[0]:
        section.wrong("command", "the name of a program is expected here")
        return None
    return (*words, *section.texts("args"))


def _inputs(root: Section) -> dict[str, Input]:
    """`inputs` of VS Code, which asks a person for them."""
    found: dict[str, Input] = {}
    for path, node in root.items("inputs"):
        one = as_section(node, path, root.draft)
        id = None if one is None else one.text("id")
        if one is None or id is None:
            if one is not None:
                root.draft.wrong(node.position, path, "the input has no `id`")
            continue
        default = None if one.flag("password") else one.data("default")
        what = one.text("description") or f"the input `{id}`"
        options = [_option(item) for item in as_list(one.data("options"))]
        if options:
            what += f" (one of {', '.join(options)})"
        if one.text("type") == "command":
            what += ", which a command of the editor gave"
        usual = default if isinstance(default, str) else None
        found[id] = Input(variable_name(id), usual, what)
    return found


def as_list(value: JsonValue) -> list[JsonValue]:
    """A list; anything else is an empty one."""
    return list(value) if isinstance(value, list) else []


def _option(item: JsonValue) -> str:
    return str(item.get("value", item.get("label"))) if isinstance(item, Mapping) else str(item)


def _json_references(inputs: Mapping[str, Input], base: Path | None, draft: Draft) -> Convert:
    """`${VAR}` of `.mcp.json`, and what editors have between the braces."""
    folder = draft.target.parent if base is None else base
    fixed = {**_FOLDERS, "workspaceFolderBasename": folder.resolve().name}

    def convert(text: str, section: Section, key: str) -> str:
        def one(found: re.Match[str]) -> str:
            inside = found["inside"]
            kind, _, name = inside.partition(":")
            made = fixed.get(inside)
            if kind == "env" and name:
                made = f"${{{name}}}"
            elif kind == "input" and name in inputs:
                made = _of_input(inputs[name], draft)
            elif kind == "input":
                section.wrong(key, f"unknown input `{name}` under `inputs`")
            elif made is None and _VARIABLE.fullmatch(inside) and inside not in _EDITORS:
                made = found[0]
            if made is None:
                instead = f"`{found[0]}` stays as it is: only the other program knows it"
                section.draft.skip(section.position(key), section.place(key), instead)
                made = f"${found[0]}"
            return made

        # What looks like a reference and is none would be an error in a pipeline.
        return _stray(_REFERENCE.sub(one, text))

    return convert


_FOLDERS = {
    "workspaceFolder": ".",
    "workspaceRoot": ".",
    "cwd": ".",
    "userHome": "${HOME}",
    "pathSeparator": "/",
    "/": "/",
}
# Words of editors that could be names of variables.
_EDITORS = frozenset(
    {
        *("file", "fileBasename", "fileDirname", "fileExtname", "fileWorkspaceFolder"),
        *("relativeFile", "relativeFileDirname", "lineNumber", "selectedText", "execPath"),
        *("defaultBuildTask", "pathSeparator", "cwd"),
    }
)


def _of_input(one: Input, draft: Draft) -> str:
    if one.default is not None and "}" not in one.default:
        return f"${{{one.variable}:-{one.default}}}"
    draft.described[one.variable] = one.what
    return f"${{{one.variable}}}"


def _stray(text: str) -> str:
    """With `$${` for each `${` that begins no reference of ours."""
    return re.sub(r"(?<!\$)\$\{(?![A-Za-z_]\w*(?::-[^}]*)?\})", "$${", text)


def _escaped(text: str) -> str:
    """A text of a program that puts nothing in the place of `${`."""
    return text.replace("${", "$${")


def _of_codex(name: str, section: Section) -> Server | None:
    if section.flag("enabled") is False:
        section.draft.skip(section.node.position, section.path, _DISABLED)
        return None
    command, url = section.text("command"), section.text("url")
    if (url is None) == (command is None):
        both = "both `url` and `command`" if url is not None else "neither `url` nor `command`"
        section.draft.wrong(section.node.position, section.path, f"the server has {both}")
        return None
    ms = section.number("startup_timeout_ms")
    connect = section.number("startup_timeout_sec")
    common = Server(
        required=section.flag("required"),
        connect=ms / 1000 if connect is None and ms is not None else connect,
        call=section.number("tool_timeout_sec"),
        tools=section.texts("enabled_tools"),
        exclude=section.texts("disabled_tools"),
    )
    if command is not None:
        passed = dict.fromkeys(_passed_on(section))
        given = {key: _escaped(value) for key, value in section.pairs("env").items()}
        for key in passed:
            if key not in given:
                section.draft.uses(key, f"the variable `{key}` of the server `{name}`")
        return replace(
            common,
            command=tuple(map(_escaped, (command, *section.texts("args")))),
            env={**passed, **given},
            cwd=section.text("cwd"),
        )
    assert url is not None
    headers = {key: _escaped(value) for key, value in section.pairs("http_headers").items()}
    for key, variable in section.pairs("env_http_headers").items():
        headers[key] = f"${{{variable}}}"
    token = section.text("bearer_token_env_var")
    if token is not None:
        what = f"the token alone, without `Bearer `, for the server `{name}`"
        section.draft.uses(token, what)
    return replace(common, url=_escaped(url), headers=headers, auth_env=token)


def _passed_on(section: Section) -> Iterator[str]:
    """The names under `env_vars`, each alone or as `{name, source}`."""
    for path, node in section.items("env_vars"):
        match node:
            case ScalarNode(value=str(name)):
                yield name
            case MappingNode() if isinstance(to_data(node), dict) and "name" in node.entries:
                inner = Section(node, path, section.draft, set())
                if inner.text("source") == "remote":
                    inner.skip("source", "the variable of this machine is passed on")
                if (named := inner.text("name")) is not None:
                    yield named
            case _:
                section.draft.wrong(node.position, path, "the name of a variable is expected here")


def _approved_by_codex(section: Section) -> tuple[str, ...]:
    """The tools whose calls are approved one by one."""
    tools = section.section("tools")
    if tools is None:
        return ()
    approved: list[str] = []
    for name, node in tools.node.entries.items():
        tool = as_section(node, tools.place(name), section.draft)
        mode = None if tool is None else tool.text("approval_mode")
        if mode == "approve":
            approved.append(name)
        elif tool is not None and mode is not None:
            tool.skip("approval_mode", f"`{mode}`: a call that no rule approves is denied in a run")
    return tuple(approved)


def _approve(alias: str, tools: tuple[str, ...], draft: Draft) -> None:
    """Carry over which tools may run unasked, each by its exact name."""
    draft.approved += [f"{alias}__{tool}" for tool in tools if "*" not in tool]


def literal(node: Node) -> str | None:
    """A scalar as a text."""
    if isinstance(node, ScalarNode) and node.value is not None:
        return as_text(node.value)
    return None
