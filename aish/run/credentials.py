"""`${VAR}`, `key_env` and `auth_env`, resolved at use and remembered as secrets (F7, F15, X4)."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from aish.config.environment import expand, variables
from aish.config.loader import lookup_position
from aish.config.models import ModelEntry
from aish.config.pipeline import Pipeline
from aish.config.server_entry import ServerEntry
from aish.errors import PipelineError, Problem, UsageError
from aish.models.headers import check_endpoint
from aish.run.checks.tools import WEB_URL, WEB_URL_HINT
from aish.system.children import child_environment
from aish.system.secrets import SHORTEST, Secrets
from aish.vocab.frozen import frozen


@frozen
class ResolvedModel:
    """A model entry with every `${VAR}` replaced, and its key."""

    entry: ModelEntry
    key: str | None


@frozen
class ResolvedServer:
    """A server entry with every `${VAR}` replaced, its token and its child's environment."""

    entry: ServerEntry
    token: str | None
    child_env: Mapping[str, str]


@frozen
class Variables:
    """Where variables come from: the environment, or, in replay, what was recorded (F7, C6).

    In replay nothing is missing: an unset secret is `<secret:NAME>`, as the cassette has it.
    `recorded` of `None` in replay means that another program made the cassette, and then what is
    no secret comes from the environment too, and has to be there.
    """

    environ: Mapping[str, str]
    in_replay: bool = False
    recorded: Mapping[str, str] | None = None

    def get(self, name: str, *, secret: bool, needed: bool) -> str | None:
        """The value of a variable; `None` where it is not set."""
        if not self.in_replay:
            return self.environ.get(name)
        plain = self.environ if self.recorded is None else self.recorded
        value = self.environ.get(name) if secret else plain.get(name)
        if secret and value is not None and len(value) < SHORTEST:
            # Nothing is sent, so that a stand-in of any length will do.
            value = None
        stands_in = needed and (secret or self.recorded is not None)
        return unknown(name) if value is None and stands_in else value


def unknown(name: str) -> str:
    """What stands for a secret that is not known."""
    return f"<secret:{name}>"


class Resolver:
    """Reads the variables of one pipeline; collects what is missing instead of stopping.

    `plain` are the values that it found and that are no secrets.
    """

    def __init__(self, pipeline: Pipeline, variables: Variables, secrets: Secrets) -> None:
        self.pipeline = pipeline
        self.variables = variables
        self.secrets = secrets
        self.problems: list[Problem] = []
        self.plain: dict[str, str] = {}

    def named(self, name: str | None, path: str) -> str | None:
        """The value behind `key_env` or `auth_env`; a secret."""
        if name is None:
            return None
        value = self.variables.get(name, secret=True, needed=True)
        if not value:
            self._missing(name, path)
            return None
        self._keep(name, value)
        return value

    def text(self, text: str, path: str, *, secret: bool) -> str:
        """`text` with its variables replaced; their values are secrets where `secret` says so."""
        values: dict[str, str] = {}
        for name, default in variables(text):
            value = self.variables.get(name, secret=secret, needed=default is None)
            if value is None and default is None:
                self._missing(name, path)
                return text
            if value is None:
                continue
            values[name] = value
            if not secret:
                self.plain[name] = value
            elif value:
                self._keep(name, value)
        return expand(text, values)

    def texts(self, texts: Mapping[str, str], path: str) -> dict[str, str]:
        """A mapping of header or environment values, each of them secret."""
        return {k: self.text(v, f"{path}.{k}", secret=True) for k, v in texts.items()}

    def refuse(self, path: str, message: str, hint: str | None) -> None:
        """Remember what is wrong at a place of the file."""
        self.problems.append(Problem(lookup_position(self.pipeline, path), path, message, hint))

    def _keep(self, name: str, value: str) -> None:
        if value != unknown(name):
            self.secrets.add(name, value)

    def _missing(self, name: str, path: str) -> None:
        message = f"the environment variable `{name}` is not set"
        self.refuse(path, message, f"export {name}=… before the run")


def finish(resolvers: Iterable[Resolver]) -> None:
    """Go on only if nothing is missing.

    Raises:
        PipelineError: everything that is not set.
    """
    problems = [problem for resolver in resolvers for problem in resolver.problems]
    if problems:
        raise PipelineError(tuple(problems))


def resolve_model(entry: ModelEntry, resolver: Resolver) -> ResolvedModel:
    """`entry` ready to be opened."""
    path = f"models.{entry.alias}"
    known = len(resolver.problems)
    base_url = entry.base_url and resolver.text(entry.base_url, f"{path}.base_url", secret=False)
    ready = ResolvedModel(
        entry=replace(
            entry,
            base_url=base_url,
            model=entry.model and resolver.text(entry.model, f"{path}.model", secret=False),
            headers=resolver.texts(entry.headers, f"{path}.headers"),
            proxy=entry.proxy and resolver.text(entry.proxy, f"{path}.proxy", secret=False),
        ),
        key=resolver.named(entry.key_env, f"{path}.key_env"),
    )
    if len(resolver.problems) == known:
        try:
            check_endpoint(ready.entry, ready.key)
        except UsageError as error:
            resolver.refuse(error.where or path, error.message, error.hint)
    return ready


def resolve_server(entry: ServerEntry, resolver: Resolver) -> ResolvedServer:
    """`entry` ready to be opened."""
    path = f"mcp.servers.{entry.alias}"
    token = entry.auth_token or resolver.named(entry.auth_env, f"{path}.auth_env")
    if entry.auth_token:
        resolver.secrets.add(f"{entry.alias}.auth_token", entry.auth_token)
    env = {
        name: None if value is None else resolver.text(value, f"{path}.env.{name}", secret=True)
        for name, value in entry.env.items()
    }
    known = len(resolver.problems)
    # What a URL's query takes from the environment is a key more often than not.
    place, mark, query = (entry.url or "").partition("?")
    url = resolver.text(place, f"{path}.url", secret=False)
    url += mark + resolver.text(query, f"{path}.url", secret=True)
    if url and len(resolver.problems) == known and not WEB_URL.match(url):
        resolver.refuse(f"{path}.url", "this is not the URL of a server", WEB_URL_HINT)
    return ResolvedServer(
        entry=replace(
            entry,
            url=url or None,
            headers=resolver.texts(entry.headers, f"{path}.headers"),
            command=tuple(
                resolver.text(word, f"{path}.command[{index}]", secret=index > 0)
                for index, word in enumerate(entry.command)
            ),
            env=env,
        ),
        token=token,
        child_env=child_environment(env, resolver.variables.environ) if entry.command else {},
    )


def declared_secrets(names: Iterable[str], resolver: Resolver) -> None:
    """Remember the values of the names under `secrets:` (F15)."""
    for name in names:
        value = resolver.variables.get(name, secret=True, needed=False)
        if value:
            resolver.secrets.add(name, value)
