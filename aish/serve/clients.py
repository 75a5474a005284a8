"""The clients that may connect with a token, and what each of them sees."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from aish.config.model import ServeSettings
from aish.core.errors import UsageError
from aish.core.frozen import frozen
from aish.core.protocols import Clock
from aish.engine.plan.plan import Plan
from aish.net.listen.tokens import Token, Tokens, ensure_token, token_from_env, token_from_file
from aish.serve.state import ServeState
from aish.system.secrets.secrets import Secrets

DEFAULT_CLIENT = "default"
"""The name of the client whose token is made, where the file names none."""
SCOPE = "call"
_TOKEN_FILE = "token"  # ruff: ignore[hardcoded-password-string] - the name of a file


@frozen
class Client:
    """Somebody with a token; `tools` are globs over `alias__tool`, and none means all."""

    name: str
    tools: tuple[str, ...] = ()


@frozen
class Proof:
    """The client of a token; `key` tells it from an earlier token of the same client.

    It is empty for one who needs no token.
    """

    client: Client
    key: str


class Clients:
    """The clients with a token; `read` reads those of a plan, if any are needed."""

    def __init__(self, clock: Clock, read: Callable[[Plan], Mapping[Client, Token]]) -> None:
        self.tokens = Tokens((), clock)
        self.watchers: set[Callable[[], None]] = set()
        """Hear that they are others now."""
        self._clock = clock
        self._read = read
        self._tools: Mapping[str, tuple[str, ...]] = {}
        self._known: set[str] = set()

    def prepare(self, plan: Plan) -> Mapping[Client, Token]:
        """The clients of a plan with their tokens, for `configure`.

        Raises:
            UsageError: a token is missing, too short, or can be read by others, or two are equal.
        """
        tokens = self._read(plan)
        Tokens(tokens.values(), self._clock)
        return tokens

    def configure(self, tokens: Mapping[Client, Token]) -> None:
        """Replace all of them, at once.

        Raises:
            UsageError: two of them have the same token.
        """
        self.tokens.configure(tokens.values())
        self._tools = {client.name: client.tools for client in tokens}
        self._known.update(self._tools)
        for tell in tuple(self.watchers):
            tell()

    def by_token(self, value: str) -> Proof | None:
        """The client that this token proves, if there is one."""
        token = self.tokens.find(value)
        return None if token is None else Proof(self.by_name(token.name), token.key)

    def proof(self, name: str, key: str) -> Proof | None:
        """The proof of a client whose token was good a moment ago; `None` if it is not any more."""
        return Proof(self.by_name(name), key) if self._has(name, key) else None

    def holds(self, proof: Proof) -> bool:
        """Tell whether the token is still good, and its client sees what it saw."""
        client = proof.client
        return self._has(client.name, proof.key) and self.by_name(client.name) == client

    def _has(self, name: str, key: str) -> bool:
        """Tell whether this is the token of that client now; one without a key needs none."""
        keys = {token.name: token.key for token in self.tokens.configured}
        return not key or key == keys.get(name)

    def current(self, name: str) -> Client | None:
        """A client as it is now; `None` if it had a token, and has none any more."""
        return None if name in self._known and name not in self._tools else self.by_name(name)

    def by_name(self, name: str) -> Client:
        """The client with this name; one without a token, over a socket file, sees all tools."""
        return Client(name, self._tools.get(name, ()))


def read_tokens(
    settings: ServeSettings, state: ServeState, environ: Mapping[str, str], secrets: Secrets
) -> Mapping[Client, Token]:
    """The clients that the file names, or the one whose token is made.

    Each token is a secret from here on.

    Raises:
        UsageError: a token is missing, too short, or can be read by others.
    """
    tokens: dict[Client, Token] = {}
    for client, token, source in _tokens(settings, state, environ):
        secrets.add(source, token.value)
        tokens[client] = token
    return tokens


def token_path(settings: ServeSettings, state: ServeState) -> Path | None:
    """The file of the token that is made; `None` where the pipeline names clients."""
    return None if settings.clients else state.path / _TOKEN_FILE


def _tokens(
    settings: ServeSettings, state: ServeState, environ: Mapping[str, str]
) -> Iterator[tuple[Client, Token, str]]:
    """Yield each client, its token, and the name that replaces the token in masked text."""
    for one in settings.clients:
        client = Client(one.name, one.tools)
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
        yield Client(DEFAULT_CLIENT), token, "serve.token"
