"""The clients that may connect with a token, and what each of them sees (H18)."""

from collections.abc import Iterator, Mapping

from aish.config.model import ServeSettings
from aish.core.errors import UsageError
from aish.core.frozen import frozen
from aish.core.protocols import Clock
from aish.net.listen.tokens import Token, Tokens, made_token, token_from_env, token_from_file
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


class Clients:
    """All that may connect with a token now."""

    def __init__(self, clock: Clock) -> None:
        self.tokens = Tokens((), clock)
        self._tools: Mapping[str, tuple[str, ...]] = {}

    def configure(self, tokens: Mapping[Client, Token]) -> None:
        """Replace all of them, at once.

        Raises:
            UsageError: two of them have the same token.
        """
        self.tokens.configure(tokens.values())
        self._tools = {client.name: client.tools for client in tokens}

    def by_token(self, value: str) -> Client | None:
        """The client that this token proves, if there is one."""
        token = self.tokens.find(value)
        return None if token is None else self.named(token.name)

    def named(self, name: str) -> Client:
        """A client with its tools; one who needs no token, over a socket file, sees all."""
        return Client(name, self._tools.get(name, ()))


def read_tokens(
    settings: ServeSettings, state: ServeState, environ: Mapping[str, str], secrets: Secrets
) -> Mapping[Client, Token]:
    """The clients that the file names, or the one whose token is made.

    Each token is a secret from here on.

    Raises:
        UsageError: a token is missing, too short, or can be read by others.
    """
    found: dict[Client, Token] = {}
    for client, token, source in _tokens(settings, state, environ):
        secrets.add(source, token.value)
        found[client] = token
    return found


def _tokens(
    settings: ServeSettings, state: ServeState, environ: Mapping[str, str]
) -> Iterator[tuple[Client, Token, str]]:
    """Each client, its token, and the name that stands for the token where it is masked."""
    for one in settings.clients:
        client = Client(one.name, one.tools)
        if one.env is not None:
            yield client, token_from_env(one.name, one.env, (SCOPE,), environ), one.env
        else:
            assert one.path is not None, "the schema requires one of both"
            source = f"serve.clients.{one.name}"
            yield client, token_from_file(one.name, one.path, (SCOPE,)), source
    if not settings.clients:
        path = state.path / _TOKEN_FILE
        try:
            token = made_token(DEFAULT_CLIENT, path, (SCOPE,))
        except OSError as error:
            said = f"the token cannot be written: {error.strerror or error}"
            raise UsageError(said, where=str(path)) from error
        yield Client(DEFAULT_CLIENT), token, "serve.token"
