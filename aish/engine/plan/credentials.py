"""`${VAR}`, `key_env` and `auth_env`, resolved on use and registered as secrets."""

import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import field, replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from aish.config.fields import expand, host_span, variables
from aish.config.loader import lookup_position
from aish.config.model import KeySource, ModelEntry, Pipeline, ServerEntry
from aish.config.yaml_tree import in_file_order
from aish.core.errors import PipelineError, Position, Problem, UsageError
from aish.core.frozen import frozen
from aish.core.json import JsonValue
from aish.core.options import marked_options
from aish.engine.plan.validation.tools import WEB_URL, WEB_URL_HINT
from aish.models.headers import check_endpoint
from aish.net.oauth.settings import Credentials, OAuthSettings
from aish.system.files import display_path
from aish.system.secrets.secrets import (
    SHORTEST,
    Secrets,
    is_everywhere,
    is_ordinary,
    names_credential,
)


@frozen
class ResolvedKey:
    """The source of a key with every `${VAR}` replaced, and the environment of its command.

    With a `stand_in`, in a replay, nothing is made.
    """

    source: KeySource
    env: Mapping[str, str] = field(default_factory=dict)
    stand_in: str | None = None


@frozen
class ResolvedModel:
    """A model entry with every `${VAR}` replaced, and its key, or what makes it."""

    entry: ModelEntry
    key: str | None
    made: ResolvedKey | None = None


@frozen
class ResolvedServer:
    """A server entry with every `${VAR}` replaced, its token and its child's environment.

    `named` are the values of variables that the options of its packs name, `made` makes the values
    of headers by their names.
    """

    entry: ServerEntry
    token: str | None
    child_env: Mapping[str, str]
    named: Mapping[str, str] = field(default_factory=dict)
    login: Credentials | None = None
    made: Mapping[str, ResolvedKey] = field(default_factory=dict)


@frozen
class Variables:
    """The source of variables: the environment or, in replay, the recording.

    In replay nothing is missing: an unset secret is `<secret:NAME>`, as in the cassette. `recorded`
    of `None` in replay means that another program made the cassette; then variables that are not
    secrets come from the environment too, and must be set.
    """

    environ: Mapping[str, str]
    in_replay: bool = False
    recorded: Mapping[str, str] | None = None

    def get(self, name: str, *, secret: bool, needed: bool) -> str | None:
        if not self.in_replay:
            return self.environ.get(name)
        plain = self.environ if self.recorded is None else self.recorded
        value = self.environ.get(name) if secret else plain.get(name)
        if secret and value is not None and len(value) < SHORTEST:
            # Nothing is sent, so a placeholder of any length is sufficient.
            value = None
        stands_in = needed and (secret or self.recorded is not None)
        return unknown(name) if value is None and stands_in else value


@frozen
class Missing:
    """A variable that is not set; `key` if all of it is a credential."""

    name: str
    problem: Problem
    key: bool


def unknown(name: str) -> str:
    return f"<secret:{name}>"


class Resolver:
    """Reads the variables of a pipeline; collects missing ones instead of stopping.

    `problems` are unusable values, `missing` variables that are not set, `not_passed` those that a
    child would receive if they were set; `plain` are the values found that are not secrets. Of what
    is not `used` by this run, no secret is refused for being short.
    """

    def __init__(
        self, pipeline: Pipeline, variables: Variables, secrets: Secrets, *, used: bool = True
    ) -> None:
        self.pipeline = pipeline
        self.variables = variables
        self.secrets = secrets
        self._used = used
        self.problems: list[Problem] = []
        self.missing: list[Missing] = []
        self.not_passed: list[Missing] = []
        self.plain: dict[str, str] = {}

    def read_secret(self, name: str | None, path: str) -> str | None:
        """The value behind `key_env` or `auth_env`; a secret."""
        if name is None:
            return None
        value = self.variables.get(name, secret=True, needed=True)
        if not value:
            self._miss(name, path, key=True)
            return None
        self._keep(name, value)
        return value

    def text(self, text: str, path: str, *, secret: bool, credential: bool = False) -> str:
        """`text` with its variables expanded.

        Their values are secrets if `secret`, except those that are `is_ordinary`; if the text is a
        `credential`, those too.
        """
        values: dict[str, str] = {}
        for name, default in variables(text):
            value = self.variables.get(name, secret=secret, needed=default is None)
            if value is None and default is None:
                self._miss(name, path)
                return text
            if value is None:
                continue
            values[name] = value
            if not secret:
                self.plain[name] = value
            elif value and (credential or not is_ordinary(name, value)):
                self._keep(name, value)
        return expand(text, values)

    def url(self, text: str, path: str) -> str:
        """A URL with its variables expanded; those in front of its host or behind it are secret.

        Of a variable that holds the host, its password and the values of its query are.
        """
        if "${" not in text:
            return text
        begin, end = host_span(text)
        host = self.text(text[begin:end], path, secret=False)
        for name, _ in variables(text[begin:end]):
            for value in _credentials_in(self.plain.get(name, "")):
                self._keep(name, value)
        before, after = (self.text(part, path, secret=True) for part in (text[:begin], text[end:]))
        return before + host + after

    def headers(self, headers: Mapping[str, str], path: str) -> dict[str, str]:
        """Headers with their variables expanded, each of them secret."""
        return {
            name: self.text(value, f"{path}.{name}", secret=True, credential=names_credential(name))
            for name, value in headers.items()
        }

    def note_if_unset(self, name: str, path: str) -> None:
        """A variable that a child receives unchanged; without it the child starts anyway."""
        if name not in self.variables.environ and not is_everywhere(name):
            position = lookup_position(self.pipeline, path)
            self.not_passed.append(Missing(name, unset(name, position, path), key=False))

    def refuse(self, path: str, message: str, hint: str | None) -> None:
        self.problems.append(Problem(lookup_position(self.pipeline, path), path, message, hint))

    def _keep(self, name: str, value: str) -> None:
        if value != unknown(name) and (self._used or len(value) >= SHORTEST):
            self.secrets.add(name, value)

    def _miss(self, name: str, path: str, *, key: bool = False) -> None:
        position = lookup_position(self.pipeline, path)
        self.missing.append(Missing(name, unset(name, position, path), key))


def _credentials_in(url: str) -> Iterator[str]:
    """Parts of a URL that are long enough to be masked and may be credentials."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return
    values = (unquote(parts.password or ""), *(value for _, value in parse_qsl(parts.query)))
    yield from (value for value in values if len(value) >= SHORTEST)


def unset(name: str, position: Position, path: str) -> Problem:
    message = f"the environment variable `{name}` is not set"
    return Problem(position, path, message, f"export {name}=… before the run")


def finish(resolvers: Iterable[Resolver], *, offline: bool = False) -> tuple[Missing, ...]:
    """Continue only if everything can be opened; if `offline`, only report what is missing."""
    resolvers = tuple(resolvers)
    missing = tuple(one for resolver in resolvers for one in resolver.missing)
    problems = [problem for resolver in resolvers for problem in resolver.problems]
    if offline:
        missing += tuple(variable for resolver in resolvers for variable in resolver.not_passed)
    else:
        problems += [variable.problem for variable in missing]
    if problems:
        raise PipelineError(in_file_order(problems))
    return missing


def unset_references(pipeline: Pipeline, environ: Mapping[str, str]) -> Iterator[Problem]:
    """Each `${VAR}` without a default that is not set; keys are not included."""
    for path, text in _texts(pipeline):
        for name, default in variables(text):
            if default is None and name not in environ:
                yield unset(name, lookup_position(pipeline, path), path)


def needed_variables(pipeline: Pipeline, *, with_models: bool) -> tuple[str, ...]:
    """The names of the variables that its servers, and perhaps its models, need to be set."""
    names = [
        name
        for path, text in _texts(pipeline)
        if with_models or path.startswith("mcp.")
        for name, default in variables(text)
        if default is None
    ]
    for server in pipeline.servers.values():
        names += [name for name, value in server.env.items() if value is None]
        names += [server.auth_env] if server.auth_env else []
        secret = server.oauth and server.oauth.client_secret_env
        names += [secret] if secret else []
        names += (name for _, name in _option_variables(server))
    if with_models:
        names += [model.key_env for model in pipeline.models.values() if model.key_env]
    return tuple(name for name in dict.fromkeys(names) if not is_everywhere(name))


def _texts(pipeline: Pipeline) -> Iterator[tuple[str, str]]:
    """The texts in which variables are expanded, by path."""
    for alias, model in pipeline.models.items():
        path = f"models.{alias}"
        own = {"base_url": model.base_url, "model": model.model, "proxy": model.proxy}
        yield from ((f"{path}.{key}", text) for key, text in own.items() if text is not None)
        yield from ((f"{path}.headers.{name}", text) for name, text in model.headers.items())
        yield from _words_of([model.key_source] if model.key_source else ())
    for alias, server in pipeline.servers.items():
        path = f"mcp.servers.{alias}"
        if server.url is not None:
            yield f"{path}.url", server.url
        if server.oauth is not None:
            own = {key: getattr(server.oauth, key) for key in _OAUTH_TEXTS}
            yield from ((f"{path}.oauth.{key}", text) for key, text in own.items() if text)
        yield from ((f"{path}.headers.{name}", text) for name, text in server.headers.items())
        yield from ((f"{path}.command[{n}]", text) for n, text in enumerate(server.command))
        values = ((name, text) for name, text in server.env.items() if text is not None)
        yield from ((f"{path}.env.{name}", text) for name, text in values)
        yield from _words_of(server.key_sources.values())


def _words_of(sources: Iterable[KeySource]) -> Iterator[tuple[str, str]]:
    for source in sources:
        yield from ((f"{source.place}[{n}]", text) for n, text in enumerate(source.command))


def key_lines(sources: Iterable[KeySource]) -> Iterator[str]:
    """A line for each source of a key: what a run starts, or reads."""
    for source in sources:
        what = f"runs {shlex.join(source.command)}" if source.command else f"reads {source.file}"
        yield f"{source.place}  {what}"


def key_rows(sources: Iterable[KeySource], mask: Callable[[str], str] = str) -> list[JsonValue]:
    return [
        {"path": source.place, "command": [*map(mask, source.command)]}
        if source.command
        else {"path": source.place, "file": str(source.file)}
        for source in sources
    ]


def resolve_key(source: KeySource, resolver: Resolver) -> ResolvedKey:
    """The source of a key, ready to make it; its command gets the variables that the file names."""
    if resolver.variables.in_replay:
        return ResolvedKey(source, stand_in=unknown(source.place))
    if not source.command:
        return ResolvedKey(source)
    # As for servers: most runs start no process.
    from aish.system.process.child import child_environment

    words = (
        resolver.text(word, f"{source.place}[{index}]", secret=index > 0)
        for index, word in enumerate(source.command)
    )
    named = dict.fromkeys((*resolver.pipeline.env, *resolver.pipeline.secrets))
    env = child_environment(named, resolver.variables.environ)
    return ResolvedKey(replace(source, command=tuple(words)), env)


def resolve_model(entry: ModelEntry, resolver: Resolver) -> ResolvedModel:
    path = f"models.{entry.alias}"
    known = len(resolver.problems) + len(resolver.missing)
    base_url = entry.base_url and resolver.url(entry.base_url, f"{path}.base_url")
    ready = ResolvedModel(
        entry=replace(
            entry,
            base_url=base_url,
            model=entry.model and resolver.text(entry.model, f"{path}.model", secret=False),
            headers=resolver.headers(entry.headers, f"{path}.headers"),
            proxy=entry.proxy and resolver.url(entry.proxy, f"{path}.proxy"),
        ),
        key=resolver.read_secret(entry.key_env, f"{path}.key_env"),
        made=None if entry.key_source is None else resolve_key(entry.key_source, resolver),
    )
    if len(resolver.problems) + len(resolver.missing) == known:
        try:
            check_endpoint(ready.entry, ready.key)
        except UsageError as error:
            resolver.refuse(error.where or path, error.message, error.hint)
    return ready


def model_name(entry: ModelEntry) -> str:
    return entry.model or entry.embedded or entry.alias


def origin(entry: ModelEntry) -> str:
    """Scheme, host and port, or `embedded`; nothing that could contain a credential.

    For an unknown address, only the variable that it depends on.
    """
    if entry.base_url is None or entry.embedded is not None:
        return "embedded"
    for name, default in variables(entry.base_url):
        if default is None:
            return f"${{{name}}}"
    parts = urlsplit(entry.base_url)
    host = parts.hostname or ""
    port = f":{parts.port}" if parts.port else ""
    return f"{parts.scheme}://{host}{port}"


def resolve_server(entry: ServerEntry, resolver: Resolver) -> ResolvedServer:
    # Child processes import asyncio and anyio, and `aish validate` reads this file without starting
    # any.
    from aish.system.process.child import child_environment

    path = f"mcp.servers.{entry.alias}"
    token = entry.auth_token or resolver.read_secret(entry.auth_env, f"{path}.auth_env")
    if entry.auth_token:
        resolver.secrets.add(f"{entry.alias}.auth_token", entry.auth_token)
    env = {
        name: None
        if value is None
        else resolver.text(
            value, f"{path}.env.{name}", secret=True, credential=names_credential(name)
        )
        for name, value in entry.env.items()
    }
    for name, value in entry.env.items():
        if value is None:
            resolver.note_if_unset(name, f"{path}.env.{name}")
    known = len(resolver.missing)
    url = resolver.url(entry.url or "", f"{path}.url")
    if url and len(resolver.missing) == known and not WEB_URL.match(url):
        resolver.refuse(f"{path}.url", "this is not the URL of a server", WEB_URL_HINT)
    return ResolvedServer(
        entry=replace(
            entry,
            url=url or None,
            headers=resolver.headers(entry.headers, f"{path}.headers"),
            command=tuple(
                resolver.text(word, f"{path}.command[{index}]", secret=index > 0)
                for index, word in enumerate(entry.command)
            ),
            env=env,
        ),
        token=token,
        child_env=child_environment(env, resolver.variables.environ) if entry.command else {},
        named=_option_secrets(entry, resolver, f"{path}.options"),
        login=None if entry.oauth is None else _login(entry.oauth, resolver, entry.alias),
        made={name: resolve_key(one, resolver) for name, one in entry.key_sources.items()},
    )


def login_command(file: Path, alias: str) -> str:
    """The command that a person types to log in at a server of a file."""
    return shlex.join(["aish", "login", display_path(file), alias])


_OAUTH_TEXTS = ("client_id", "issuer", "token_url", "authorization_url")


def _login(oauth: OAuthSettings, resolver: Resolver, alias: str) -> Credentials:
    path = f"mcp.servers.{alias}.oauth"
    expanded: dict[str, Any] = {
        key: text and resolver.text(text, f"{path}.{key}", secret=False)
        for key, text in ((key, getattr(oauth, key)) for key in _OAUTH_TEXTS)
    }
    secret = resolver.read_secret(oauth.client_secret_env, f"{path}.client_secret_env")
    file = resolver.pipeline.file
    return Credentials(replace(oauth, **expanded), secret, login_command(file, alias))


def _option_variables(entry: ServerEntry) -> Iterator[tuple[str, str]]:
    """The variables that the options of an entry's packs name, each with the option."""
    marked = marked_options(entry.options, "variable")
    return ((path, name) for path, name in marked if path.split(".")[0] in entry.pack)


def _option_secrets(entry: ServerEntry, resolver: Resolver, path: str) -> dict[str, str]:
    named: dict[str, str] = {}
    for place, name in _option_variables(entry):
        value = resolver.read_secret(name, f"{path}.{place}")
        if value is not None:
            named[name] = value
    return named


def register_secrets(names: Iterable[str], resolver: Resolver) -> None:
    """Register the values of the names under `secrets:`."""
    for name in names:
        value = resolver.variables.get(name, secret=True, needed=False)
        if value:
            resolver.secrets.add(name, value)
