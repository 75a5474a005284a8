"""Lists of MCP servers: `mcpServers` of many programs, `servers` of VS Code, Codex's tables.

What looks like a credential becomes a variable, because a file of other programs is often private
and a pipeline is not; every other value stays as it is.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from aish.cassettes.record.secret_scan import scan_text
from aish.cli.importing.draft import ImportDraft, Section, as_section, as_text, variable_name
from aish.cli.importing.keys import RULES
from aish.cli.importing.sandboxes import sandbox_of_server
from aish.config.fields import variables
from aish.config.yaml_tree import ListNode, MappingNode, Node, ScalarNode, join
from aish.core.frozen import frozen
from aish.core.json import JsonValue
from aish.system.secrets.secrets import SHORTEST, names_credential

Convert = Callable[[str, Section, str], str]
"""A text of the source with its references as ours; told where it stands."""

# What `${…}` may be in the files of other programs.
# Possessive throughout: a file may hold a megabyte of anything.
_REFERENCE = re.compile(r"\$\{(?P<inside>[^${}]*+(?:\$\{[^{}]*+\})?+[^${}]*+)\}")
_STRAY = re.compile(r"(?<!\$)\$\{(?![A-Za-z_]\w*(?::-[^}]*)?\})")
_VARIABLE = re.compile(r"(?P<name>[A-Za-z_]\w*)(?::-(?P<default>[^}]*))?")
_DOLLAR = re.compile(r"\$([A-Za-z_]\w*)")
_ENVIRONMENT = re.compile(r"\{env:([A-Za-z_]\w*)\}")
_SCHEME = re.compile(r"(?P<scheme>Bearer|Basic|Token) +(?P<rest>\S.*)", re.IGNORECASE)
_ONE = re.compile(r"\$\{(?P<name>[A-Za-z_]\w*)\}")
_OPTION = re.compile(r"(?P<option>--?[A-Za-z][\w-]*)=(?P<value>.+)", re.DOTALL)
_ASSIGNED = re.compile(r"(?P<name>[A-Za-z_]\w*)=(?P<value>.+)", re.DOTALL)
_HEADER = re.compile(r"(?P<name>[A-Za-z][A-Za-z0-9-]*): ?(?P<value>\S.*)")
_LOGIN = re.compile(
    r"(?<![a-z0-9+.-])(?P<before>[a-z][a-z0-9+.-]*+://[^/@:\s]*+:)(?P<password>[^/@\s]++)(?=@)"
)
# `Password=…;` and `password=…` in the words of a connection string.
_PAIR = re.compile(
    r"(?<![\w-])(?P<before>(?P<name>[A-Za-z][\w-]*+)\s*+=\s*+)(?P<password>'[^']*+'|[^\s&']++)"
)
_PAIR_BEFORE_SEMICOLON = re.compile(
    r"(?<![\w-])(?P<before>(?P<name>[A-Za-z][\w-]*+)\s*+=\s*+)(?P<password>[^;]++)"
)
_USER = re.compile(r"(?<=://)[^/@\s]+@")
_QUERY = re.compile(r"(?P<before>[?&](?P<name>[^=&#?]++)=)(?P<value>[^&#]++)")
_PATH = re.compile(r"(?:~|\.{0,2})/[\w.~/ -]+")
_HEADER_OPTIONS = frozenset({"--header", "-H"})
# Values that switch something on or off, whatever they are called.
_SWITCHES = frozenset({"", "true", "false", "yes", "no", "on", "off", "none", "null"})

_DISABLED = "left out: it is switched off"
_STDIO = frozenset({"stdio", "local"})
_HTTP = frozenset({"http", "sse", "streamable-http", "streamable_http", "streamableHttp", "remote"})


@frozen
class ImportedServer:
    """A server of the source, its texts with our references; `None` in `env` passes on."""

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
    """The servers under a key, by alias; started in the folder `base`.

    Without one, they start where the pipeline stands.
    """
    if isinstance(node := root.node.entries[key], ListNode):
        mapping = MappingNode(node.position)
        for number, item in enumerate(node.items, 1):
            named = item.entries.get("name") if isinstance(item, MappingNode) else None
            name = None if named is None else literal(named)
            mapping.put(name or f"server {number}", item, item.position)
        root.node.entries[key] = mapping
    convert = _json_references(_inputs(root), key, base, root.draft)
    return _servers(root, key, base, lambda _, section: _of_json(section, convert), "mcp.server")


def of_codex(root: Section, base: Path | None) -> dict[str, JsonValue]:
    return _servers(root, "mcp_servers", base, _of_codex, "codex.server")


def _servers(
    root: Section,
    key: str,
    base: Path | None,
    read: Callable[[str, Section], ImportedServer | None],
    kind: str,
) -> dict[str, JsonValue]:
    draft, listed = root.draft, root.section(key)
    if listed is None:
        return {}
    if not listed.node.entries:
        root.wrong(key, "it contains no server", "expected NAME: {command: …} or {url: …}")
    servers: dict[str, JsonValue] = {}
    for name, node in listed.node.entries.items():
        section = as_section(node, listed.place(name), draft)
        server = None if section is None else read(name, section)
        if section is not None and server is not None:
            alias = alias_near(name, servers)
            approved = _codex_approvals if kind == "codex.server" else _approvals
            draft.approved += [f"{alias}__{tool}" for tool in approved(section)]
            section.leave(kind)
            servers[alias] = entry(alias, name, server, section, base)
    if not servers and not draft.problems:
        draft.refuse_empty(root.position(key), root.place(key), "server")
    return servers


def of_goose(section: Section, alias: str, name: str, fill: Callable[[str], str]) -> JsonValue:
    """An extension of goose that is a server; `fill` puts variables in the place of parameters.

    Raises:
        LeftOutError: from `fill`.
    """
    values = {key: fill(_escape(value)) for key, value in section.pairs("envs").items()}
    env: dict[str, str | None] = {**dict.fromkeys(section.texts("env_keys")), **values}
    common = ImportedServer(call=section.number("timeout"), tools=section.texts("available_tools"))
    url, command = section.text("uri", "url"), section.text("cmd", "command")
    if url is not None:
        headers: dict[str, str] = {}
        for key, value in section.pairs("headers").items():
            header = _DOLLAR.sub(lambda match: values.get(match[1], f"${{{match[1]}}}"), value)
            headers[key] = fill(header)
        if env:
            section.skip("envs" if values else "env_keys", "carried over where `headers` read them")
        server = replace(common, url=fill(_escape(url)), headers=headers)
    elif command is None:
        section.wrong("cmd", f"the extension `{name}` has neither `cmd` nor `uri`")
        return None
    else:
        words = tuple(fill(_escape(word)) for word in (command, *section.texts("args")))
        server = replace(common, command=words, env=env)
        for key in env.keys() - values:
            section.draft.uses(key, f"the variable `{key}` of the server `{alias}`")
    section.leave("goose.extension")
    return entry(alias, name, server, section, None)


def alias_near(name: str, taken: Mapping[str, JsonValue]) -> str:
    tame = re.sub(r"_{2,}", "_", re.sub(r"[^A-Za-z0-9_-]+", "-", name)).strip("_-") or "server"
    tame = tame[:60].rstrip("_-")
    alias, number = tame, 2
    while alias in taken or alias == "shell":
        alias, number = f"{tame}-{number}", number + 1
    return alias


def entry(
    alias: str, name: str, server: ImportedServer, section: Section, base: Path | None
) -> dict[str, JsonValue]:
    """The entry under `mcp.servers`, with variables where the source has credentials."""
    moving = _Moving(alias, name, section.draft)
    data: dict[str, JsonValue] = {}
    if server.url is not None:
        data["url"] = moving.url(server.url, section)
        data |= _access(server, moving)
    else:
        data["command"] = list(moving.words(server.command))
        if server.env:
            data["env"] = moving.env(server.env)
        if (cwd := _cwd(server, section, base)) is not None:
            data["cwd"] = cwd
        sandbox = sandbox_of_server(server.command, relative="cwd" not in data)
        if sandbox is not None:
            data["sandbox"] = dict(sandbox)
    if server.required is not None:
        data["required"] = server.required
    times = {"connect": server.connect, "call": server.call}
    timeout: dict[str, JsonValue] = {
        key: f"{value:.3f}".rstrip("0").rstrip(".") + "s"
        for key, value in times.items()
        if value is not None and value > 0
    }
    if timeout:
        data["timeout"] = timeout
    if server.tools:
        data["tools"] = list(server.tools)
    if server.exclude:
        data["exclude"] = list(server.exclude)
    return data


class _Moving:
    """Puts variables in the place of credentials of one server."""

    def __init__(self, alias: str, name: str, draft: ImportDraft) -> None:
        self._alias = alias
        self._of = f"the server `{name}`"
        self._draft = draft

    def words(self, words: tuple[str, ...]) -> Iterator[str]:
        """The words of a command; what follows an option named like a credential is one."""
        before = ""
        for index, word in enumerate(words):
            yield (
                self._note_variables(word, f"the program of {self._of}")
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
        match = _SCHEME.fullmatch(value)
        where = f"the header `{name}` of {self._of}"
        if match is None:
            whole = f"the whole value of {where}"
            if name.lower() == "authorization":
                whole += ", with `Bearer ` if the server wants it"
            return self._value(name, value, f"{self._alias}_{name}", whole)
        scheme, rest = match["scheme"], match["rest"]
        alone = f"the token alone, without `{scheme} `, for {where}"
        if variables(rest):
            return f"{scheme} {self._note_variables(rest, alone)}"
        return (
            f"{scheme} ${{{self._draft.moves(rest, f'{self._alias}_token', self._alias, alone)}}}"
        )

    def url(self, url: str, section: Section) -> str:
        """An address; a key in its query becomes a variable, and so does a path that is one."""
        if _USER.search(url):
            section.skip("url", "`auth_env` with the name of a variable: no login in an address")
            url = _USER.sub("", url)
        self._note_variables(_QUERY.sub("", url), f"the address of {self._of}")
        url = _QUERY.sub(self._parameter, url)
        place = url.partition("?")[0]
        if not variables(place) and scan_text("", place):
            what = f"the whole address of {self._of}"
            name = self._draft.moves(url, f"{self._alias}_url", self._alias, what)
            self._draft.secrets.append(name)
            return f"${{{name}}}"
        return url

    def _parameter(self, match: re.Match[str]) -> str:
        name, value = match["name"], match["value"]
        what = f"the parameter `{name}` in the address of {self._of}"
        return match["before"] + self._value(name, value, f"{self._alias}_{name}", what)

    def _word(self, word: str, before: str) -> str:
        if before in _HEADER_OPTIONS and (header := _HEADER.fullmatch(word)):
            gap = word[len(header["name"]) : word.index(header["value"], len(header["name"]))]
            return header["name"] + gap + self.header(header["name"], header["value"])
        if match := _OPTION.fullmatch(word):
            option = match["option"]
            what = f"the option `{option}` of {self._of}"
            value = self._value(option, match["value"], f"{self._alias}_{option}", what)
            return f"{option}={value}"
        if match := _ASSIGNED.fullmatch(word):
            name = match["name"]
            what = f"the variable `{name}` of {self._of}"
            return f"{name}={self._value(name, match['value'], name, what)}"
        option = before if before.startswith("-") and "=" not in before else ""
        named = option if names_credential(option) and not word.startswith("-") else ""
        what = f"the option `{option}` of {self._of}" if named else f"an argument of {self._of}"
        return self._value(named, word, f"{self._alias}_{named or 'argument'}", what)

    def _value(self, name: str, value: str, variable: str, what: str) -> str:
        """A value: as it is, or with variables for the credentials in it."""

        def password(match: re.Match[str]) -> str:
            word, named = match["password"], match.groupdict().get("name") or "password"
            is_one = names_credential(named) or named.lower() == "pwd"
            if not is_one or variables(word) or word.lower() in _SWITCHES:
                return match[0]
            alone = f"the password alone, in {what}"
            variable = self._draft.moves(word, f"{self._alias}_password", self._alias, alone)
            return f"{match['before']}${{{variable}}}"

        if variables(value):
            self._note_variables(value, what)
        result = _LOGIN.sub(password, value)
        if result.count("=") > 1 or ("=" in result and ";" in result):
            result = (_PAIR_BEFORE_SEMICOLON if ";" in result else _PAIR).sub(password, result)
        if result != value or variables(value) or not _is_credential(name, value):
            return result
        return f"${{{self._draft.moves(value, variable, self._alias, what)}}}"

    def _note_variables(self, value: str, what: str) -> str:
        for name, default in variables(value):
            self._draft.read.add(name)
            if default is None:
                alone = _ONE.fullmatch(value) is not None
                self._draft.uses(name, what if alone else f"a part of {what}")
        return value


def _is_credential(name: str, value: str) -> bool:
    if value.lower() in _SWITCHES:
        return False
    if scan_text("", value):
        return True
    # What is too short to be masked would be refused at run time.
    return names_credential(name) and len(value) >= SHORTEST and not _PATH.fullmatch(value)


def _access(server: ImportedServer, moving: _Moving) -> dict[str, JsonValue]:
    """Headers, and the bearer token as `auth_env`."""
    data: dict[str, JsonValue] = {}
    headers: dict[str, JsonValue] = {}
    if server.auth_env is not None:
        data["auth_env"] = server.auth_env
    for name, value in server.headers.items():
        settled = moving.header(name, value)
        token = _ONE.fullmatch(settled.removeprefix("Bearer ")) if "Bearer " in settled else None
        if name.lower() == "authorization" and token and "auth_env" not in data:
            data["auth_env"] = token["name"]
        else:
            headers[name] = settled
    return data | ({"headers": headers} if headers else {})


def _cwd(server: ImportedServer, section: Section, base: Path | None) -> str | None:
    """The folder a child starts in, as the pipeline says it; `None` for the pipeline's own."""
    own = server.cwd
    if own is not None and ("$" in own or own.startswith("~")):
        section.skip("cwd", "a folder, absolute or relative to the pipeline")
        own = None
    if own is not None and Path(own).is_absolute():
        return own
    if base is None:
        return own
    folder = section.draft.relative_folder(base / (own or "."))
    return None if folder == "." else folder


def _of_json(section: Section, convert: Convert) -> ImportedServer | None:
    """An entry of a JSON list; `None` where it is left out."""
    url = section.text("url", "serverUrl", "httpUrl")
    command = _command(section) if "command" in section.node.entries else None
    if _is_left_out(section, url):
        return None

    def convert_all(key: str, texts: Mapping[str, str]) -> dict[str, str]:
        return {name: convert(text, section, key) for name, text in texts.items()}

    listed = section.texts("includeTools", "enabledTools", "enabled_tools", "tools")
    filters = ImportedServer(
        tools=() if "*" in listed else listed,
        exclude=section.texts("excludeTools", "disabledTools", "disabled_tools"),
    )
    if url is not None:
        return replace(
            filters,
            url=convert(url, section, "url"),
            headers=convert_all("headers", section.pairs("headers")),
        )
    cwd = section.text("cwd", "working_directory")
    return replace(
        filters,
        command=tuple(convert(word, section, "command") for word in command or ()),
        env=convert_all("env", section.pairs("env", "environment")),
        cwd=None if cwd is None else convert(cwd, section, "cwd"),
    )


def _is_left_out(section: Section, url: str | None) -> bool:
    """Return true, and say so, if an entry makes no server."""
    kind = section.text("type", "transport")
    both = (url is not None) + ("command" in section.node.entries)
    if _offers_nothing(section):
        pass
    elif section.flag("disabled") or section.flag("enabled") is False:
        section.draft.skip(section.node.position, section.path, _DISABLED)
    elif kind is not None and kind not in _STDIO | _HTTP:
        section.skip("type", f"left out: pipelines cannot reach a server by `{kind}`")
    elif not both and section.text("source") == "extension":
        section.skip("source", "left out: the other program brings this server")
    elif both != 1:
        has = "both `url` and `command`" if both else "neither `url` nor `command`"
        hint = "`command` for a child process, `url` for a server over HTTP"
        section.draft.wrong(section.node.position, section.path, f"the server has {has}", hint)
    elif url is not None and not re.match(r"(?i)https?://|\$\{", url):
        section.skip("url", "left out: pipelines reach servers over HTTP only")
    else:
        return False
    return True


def _offers_nothing(section: Section) -> bool:
    """True for a list of tools that is empty, which is told; a pipeline would offer all of them."""
    for key in ("tools", "includeTools", "enabledTools", "enabled_tools"):
        node = section.node.entries.get(key)
        if isinstance(node, ListNode) and not node.items:
            section.skip(key, "left out with its server: it offers no tool")
            return True
    return False


def _command(section: Section) -> tuple[str, ...] | None:
    """The program and its words; some programs have both in one list."""
    if isinstance(section.raw("command"), ListNode):
        words = section.texts("command")
    elif isinstance(node := section.raw("command"), MappingNode):
        # As Zed once wrote it: the program, its words and its variables in one mapping.
        entries = {key: entry for key, entry in node.entries.items() if key in {"args", "env"}}
        section.node.entries.update({"args": ListNode(node.position), **entries})
        inner = Section(node, section.place("command"), section.draft, {*entries})
        words = (inner.text("path", "program") or "",)
        inner.leave("zed.command")
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
    inputs: dict[str, Input] = {}
    for section in root.sections("inputs"):
        if (id := section.text("id")) is None:
            root.draft.wrong(section.node.position, section.path, "the input has no `id`")
            continue
        default = None if section.flag("password") else section.data("default")
        what = section.text("description") or f"the input `{id}`"
        options = [_option(item) for item in as_list(section.data("options"))]
        if options:
            what += f" (one of {', '.join(options)})"
        if section.text("type") == "command":
            what += ", which a command of the editor gave"
        usual = default if isinstance(default, str) else None
        section.leave("mcp.input")
        inputs[id] = Input(variable_name(id), usual, what)
    return inputs


def as_list(value: JsonValue) -> list[JsonValue]:
    """A list; anything else is an empty one."""
    return list(value) if isinstance(value, list) else []


def _option(item: JsonValue) -> str:
    return str(item.get("value", item.get("label"))) if isinstance(item, Mapping) else str(item)


def _json_references(
    inputs: Mapping[str, Input], key: str, base: Path | None, draft: ImportDraft
) -> Convert:
    """`${VAR}` of `.mcp.json`, and what editors have between the braces."""
    folder = draft.target.parent if base is None else base
    fixed = {**_FOLDERS, "workspaceFolderBasename": folder.resolve().name}

    def convert(text: str, section: Section, place: str) -> str:
        def one(match: re.Match[str]) -> str:
            inside = match["inside"]
            kind, _, name = inside.partition(":")
            replacement = fixed.get(inside)
            if kind == "env" and name:
                replacement = f"${{{name}}}"
            elif kind == "input" and name in inputs:
                replacement = _of_input(inputs[name], draft)
            elif kind == "input":
                section.wrong(place, f"unknown input `{name}` under `inputs`")
            elif replacement is None and _VARIABLE.fullmatch(inside) and inside not in _EDITORS:
                replacement = match[0]
            if replacement is None:
                instead = f"`{match[0]}` stays as it is: only the other program knows it"
                section.draft.skip(section.position(place), section.place(place), instead)
                replacement = f"${match[0]}"
            return replacement

        if draft.source.resolve().parent.name in {".gemini", ".qwen"}:
            text = _DOLLAR.sub(r"${\1}", text)
        text = _ENVIRONMENT.sub(r"${\1}", text) if key == "mcp" else text
        if _DOLLAR.fullmatch(text) or text.startswith("{file:"):
            instead = f"`{text}` stays as it is: only the other program knows it"
            section.draft.skip(section.position(place), section.place(place), instead)
        # What looks like a reference and is none would be an error in a pipeline.
        return _STRAY.sub("$${", _REFERENCE.sub(one, text))

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


def _of_input(one: Input, draft: ImportDraft) -> str:
    if one.default is not None and "}" not in one.default:
        return f"${{{one.variable}:-{one.default}}}"
    draft.described[one.variable] = one.what
    return f"${{{one.variable}}}"


def _escape(text: str) -> str:
    """A text of a program that puts nothing in the place of `${`."""
    return text.replace("${", "$${")


def _of_codex(name: str, section: Section) -> ImportedServer | None:
    if section.flag("enabled") is False:
        section.draft.skip(section.node.position, section.path, _DISABLED)
        return None
    if _offers_nothing(section):
        return None
    command, url = section.text("command"), section.text("url")
    if (url is None) == (command is None):
        both = "both `url` and `command`" if url is not None else "neither `url` nor `command`"
        section.draft.wrong(section.node.position, section.path, f"the server has {both}")
        return None
    ms = section.number("startup_timeout_ms")
    connect = section.number("startup_timeout_sec")
    common = ImportedServer(
        required=section.flag("required"),
        connect=ms / 1000 if connect is None and ms is not None else connect,
        call=section.number("tool_timeout_sec"),
        tools=section.texts("enabled_tools"),
        exclude=section.texts("disabled_tools"),
    )
    if command is not None:
        passed = dict.fromkeys(_env_names(section))
        values = {key: _escape(value) for key, value in section.pairs("env").items()}
        for key in passed:
            if key not in values:
                section.draft.uses(key, f"the variable `{key}` of the server `{name}`")
        return replace(
            common,
            command=tuple(map(_escape, (command, *section.texts("args")))),
            env={**passed, **values},
            cwd=section.text("cwd"),
        )
    assert url is not None
    headers = {key: _escape(value) for key, value in section.pairs("http_headers").items()}
    for key, variable in section.pairs("env_http_headers").items():
        headers[key] = f"${{{variable}}}"
    token = section.text("bearer_token_env_var")
    if token is not None:
        what = f"the token alone, without `Bearer `, for the server `{name}`"
        section.draft.uses(token, what)
    return replace(common, url=_escape(url), headers=headers, auth_env=token)


def _env_names(section: Section) -> Iterator[str]:
    for path, node in section.items("env_vars"):
        match node:
            case ScalarNode(value=str(name)):
                yield name
            case MappingNode() if "name" in node.entries:
                inner = Section(node, path, section.draft)
                if inner.text("source") == "remote":
                    inner.skip("source", "the variable of this machine is passed on")
                if (named := inner.text("name")) is not None:
                    yield named
            case _:
                section.draft.wrong(node.position, path, "the name of a variable is expected here")


def _codex_approvals(section: Section) -> Iterator[str]:
    tools = section.section("tools")
    for name, node in () if tools is None else tools.node.entries.items():
        tool = as_section(node, join(f"{section.path}.tools", name), section.draft)
        mode = None if tool is None else tool.text("approval_mode")
        if mode == "approve":
            yield name
        elif tool is not None and mode is not None:
            tool.skip("approval_mode", f"`{mode}`: a call that no rule approves is denied in a run")
        if tool is not None:
            tool.leave("codex.tool")


def _approvals(section: Section) -> Iterator[str]:
    """The tools that may run unasked, each by its exact name."""
    for key in ("autoApprove", "alwaysAllow"):
        node = section.raw(key)
        for tool in section.texts(key) if isinstance(node, ListNode) else ("*",) if node else ():
            if "*" in tool:
                section.skip(key, RULES)
            else:
                yield tool


def literal(node: Node) -> str | None:
    if isinstance(node, ScalarNode) and node.value is not None:
        return as_text(node.value)
    return None
