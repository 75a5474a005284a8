"""`${VAR}`, `key_env` and `auth_env`, resolved at use and remembered as secrets (F7, F15, X4)."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from aish.config.environment import expand, variables
from aish.config.loader import lookup_position
from aish.config.pipeline import ModelEntry, Pipeline, ServerEntry
from aish.errors import PipelineError, Problem, UsageError
from aish.models.headers import check_endpoint
from aish.run.check_tools import WEB_URL, WEB_URL_HINT
from aish.system.children import child_environment
from aish.system.secrets import Secrets
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


class Resolver:
    """Reads the environment for one pipeline; collects what is missing instead of stopping."""

    def __init__(self, pipeline: Pipeline, environ: Mapping[str, str], secrets: Secrets) -> None:
        self.pipeline = pipeline
        self.environ = environ
        self.secrets = secrets
        self.problems: list[Problem] = []

    def finish(self) -> None:
        """Raise `PipelineError` with everything that is not set."""
        if self.problems:
            raise PipelineError(tuple(self.problems))

    def named(self, name: str | None, path: str) -> str | None:
        """The value behind `key_env` or `auth_env`; a secret."""
        if name is None:
            return None
        value = self.environ.get(name)
        if not value:
            self._missing(name, path)
            return None
        self.secrets.add(name, value)
        return value

    def text(self, text: str, path: str, *, secret: bool) -> str:
        """`text` with its variables replaced; their values are secrets where `secret` says so."""
        for name, default in variables(text):
            value = self.environ.get(name)
            if value is None and default is None:
                self._missing(name, path)
                return text
            if secret and value:
                self.secrets.add(name, value)
        return expand(text, self.environ)

    def texts(self, texts: Mapping[str, str], path: str) -> dict[str, str]:
        """A mapping of header or environment values, each of them secret."""
        return {k: self.text(v, f"{path}.{k}", secret=True) for k, v in texts.items()}

    def refuse(self, path: str, message: str, hint: str | None) -> None:
        """Remember what is wrong at a place of the file."""
        self.problems.append(Problem(lookup_position(self.pipeline, path), path, message, hint))

    def _missing(self, name: str, path: str) -> None:
        message = f"the environment variable `{name}` is not set"
        self.refuse(path, message, f"export {name}=… before the run")


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
        child_env=child_environment(env, resolver.environ) if entry.command else {},
    )


def declared_secrets(names: Iterable[str], resolver: Resolver) -> None:
    """Remember the values of the names under `secrets:` (F15)."""
    for name in names:
        value = resolver.environ.get(name)
        if value:
            resolver.secrets.add(name, value)
