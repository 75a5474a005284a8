"""The clients that may connect with a token, and what each of them sees.

A token is named by the file, or issued by an authorization server; its scopes then select entries
of the file.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from aish.config.model import ServeClient, ServeSettings
from aish.core.errors import UsageError
from aish.core.frozen import frozen
from aish.core.protocols import Clock
from aish.engine.plan.plan import Plan
from aish.net.listen.tokens import (
    ClientToken,
    Tokens,
    ensure_token,
    token_from_env,
    token_from_file,
)
from aish.serve.state import ServeState
from aish.system.files import secret_path
from aish.system.secrets.secrets import Secrets

DEFAULT_CLIENT = "default"
"""The name of the client whose token is made, where the file names none."""
SCOPE = "call"
_TOKEN_FILE = "token"  # ruff: ignore[hardcoded-password-string] - the name of a file


OF_ISSUER = "oauth:"
"""The beginning of names of clients with a token of an issuer; no name of a file has a colon."""
_AND = "+"


@frozen
class HubClient:
    """A client with a token; `tools` are globs over `alias__tool`, and an empty list means all.

    `listed` are the tools in its list, if it is shown more than it may call.
    """

    name: str
    tools: tuple[str, ...] = ()
    listed: tuple[str, ...] | None = None


@frozen
class AuthenticatedClient:
    """The client of a token; `key` distinguishes it from earlier tokens of the same client.

    The key is empty for a client without a token, and has the names of entries for an issued token.
    """

    client: HubClient
    key: str


class Clients:
    """The clients with a token; `read` reads those of a plan, if any are needed."""

    def __init__(
        self, clock: Clock, read: Callable[[Plan], Mapping[HubClient, ClientToken]]
    ) -> None:
        self.tokens = Tokens((), clock)
        self.watchers: set[Callable[[], None]] = set()
        """Hear that they are others now."""
        self._clock = clock
        self._read = read
        self._tools: Mapping[str, tuple[str, ...]] = {}
        self._known: set[str] = set()
        self.scoped: tuple[ServeClient, ...] = ()
        """The entries for tokens of an issuer, in the order of the file."""
        self._steps_up = False

    def prepare(self, plan: Plan) -> Mapping[HubClient, ClientToken]:
        """Return the clients of a plan with their tokens, for `configure`.

        Raises:
            UsageError: a token is missing, too short, or can be read by others, or two are equal.
        """
        tokens = self._read(plan)
        Tokens(tokens.values(), self._clock)
        return tokens

    def configure(self, tokens: Mapping[HubClient, ClientToken], settings: ServeSettings) -> None:
        """Replace all clients at once; `settings` are those of the same plan.

        Raises:
            UsageError: two of them have the same token.
        """
        self.tokens.configure(tokens.values())
        self.scoped = settings.scoped
        self._steps_up = settings.auth is not None and settings.auth.step_up
        self._tools = {client.name: client.tools for client in tokens}
        self._known.update(self._tools)
        for tell in tuple(self.watchers):
            tell()

    def by_token(self, value: str) -> AuthenticatedClient | None:
        """Return the client with this token, if there is one."""
        token = self.tokens.find(value)
        return None if token is None else AuthenticatedClient(self.by_name(token.name), token.key)

    def admit(self, name: str, scopes: frozenset[str]) -> AuthenticatedClient | None:
        """Return the client of an issued token; `None` if its scopes fit no entry."""
        fitting = [entry.name for entry in self.scoped if scopes.issuperset(entry.scopes or ())]
        return self.proof(name, _AND.join(fitting)) if fitting else None

    def proof(self, name: str, key: str) -> AuthenticatedClient | None:
        """Return the proof of a client whose token was just valid; `None` if it no longer is."""
        if not name.startswith(OF_ISSUER):
            return AuthenticatedClient(self.by_name(name), key) if self._has(name, key) else None
        entries = {entry.name: entry for entry in self.scoped}
        names = key.split(_AND)
        if not all(one in entries for one in names):
            return None
        listed = _all_tools(self.scoped) if self._steps_up else None
        return AuthenticatedClient(
            HubClient(name, _all_tools([entries[one] for one in names]), listed), key
        )

    def entries_of(self, proof: AuthenticatedClient) -> tuple[ServeClient, ...]:
        """Return the entries that an issued token fits, in the order of the file."""
        names = proof.key.split(_AND)
        return tuple(entry for entry in self.scoped if entry.name in names)

    def holds(self, proof: AuthenticatedClient) -> bool:
        """Return true if the token is still valid and its client still sees the same tools."""
        return self.proof(proof.client.name, proof.key) == proof

    def _has(self, name: str, key: str) -> bool:
        """Return true if this is the current token of the client; without a key it needs none."""
        keys = {token.name: token.key for token in self.tokens.configured}
        return not key or key == keys.get(name)

    def current(self, proof: AuthenticatedClient) -> HubClient | None:
        """Return the current entry of a client; `None` if it had a token that is gone.

        With an issued token, the entry follows from its scopes.
        """
        name = proof.client.name
        if name.startswith(OF_ISSUER):
            now = self.proof(name, proof.key)
            return None if now is None else now.client
        return None if name in self._known and name not in self._tools else self.by_name(name)

    def by_name(self, name: str) -> HubClient:
        """Return the client with this name; one at a socket file, without a token, sees all."""
        return HubClient(name, self._tools.get(name, ()))


def _all_tools(entries: Iterable[ServeClient]) -> tuple[str, ...]:
    """Combine the tools of several entries: globs, or none for all."""
    globs = [entry.tools for entry in entries]
    return tuple(dict.fromkeys(one for own in globs for one in own)) if all(globs) else ()


def read_tokens(
    settings: ServeSettings, state: ServeState, environ: Mapping[str, str], secrets: Secrets
) -> Mapping[HubClient, ClientToken]:
    """Read the clients that the file names, or the one with the generated token.

    Each token is a secret from here on.

    Raises:
        UsageError: a token is missing, too short, or can be read by others.
    """
    tokens: dict[HubClient, ClientToken] = {}
    for client, token, source in _tokens(settings, state, environ):
        secrets.add(source, token.value)
        tokens[client] = token
    return tokens


def token_path(settings: ServeSettings, state: ServeState) -> Path | None:
    """Return the file of the generated token; `None` if the pipeline names clients."""
    return None if settings.clients else secret_path(state.path, _TOKEN_FILE)


def _tokens(
    settings: ServeSettings, state: ServeState, environ: Mapping[str, str]
) -> Iterator[tuple[HubClient, ClientToken, str]]:
    """Yield each client, its token, and the name that replaces the token in masked text."""
    for one in settings.clients:
        if one.scopes is not None:
            continue
        client = HubClient(one.name, one.tools)
        if one.env is not None:
            yield client, token_from_env(one.name, one.env, (SCOPE,), environ), one.env
        else:
            assert one.path is not None, "the schema requires one of both"
            source = f"serve.clients.{one.name}"
            yield client, token_from_file(one.name, one.path, (SCOPE,)), source
    path = token_path(settings, state)
    if path is not None:
        try:
            token = ensure_token(DEFAULT_CLIENT, path, (SCOPE,))
        except OSError as error:
            message = f"the token cannot be written: {error.strerror or error}"
            raise UsageError(message, where=str(path)) from error
        yield HubClient(DEFAULT_CLIENT), token, "serve.token"
