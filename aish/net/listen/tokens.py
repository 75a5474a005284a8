"""Bearer tokens with names and scopes, and codes that are good once.

A token is compared in constant time with every token there is, and its text is in no `repr`.
"""

import hashlib
import hmac
import os
import re
import secrets
import stat
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from aish.core.errors import UsageError
from aish.core.frozen import frozen
from aish.core.protocols import Clock
from aish.system.file_lock import PATIENCE, take
from aish.system.files import atomic_write, open_own

SHORTEST = 32
CODE_SECONDS = 60.0
"""How long a code is good."""
_LONGEST = 4096
_WORD = re.compile(r"[A-Za-z0-9._~+/=-]+", re.ASCII)
_MOST_CODES = 64
_MOST_ISSUED = 100
_MAKE = "`openssl rand -hex 32` makes one"


@frozen
class ClientToken:
    """A secret that a client proves its `name` with, and what it may then do.

    `expires` is a time of the monotonic clock; `None` for a token that somebody configured. That is
    in the environment variable `env`, or in the file `path`.
    """

    name: str
    scopes: frozenset[str]
    value: str
    expires: float | None = None
    env: str | None = None
    path: Path | None = None

    @property
    def key(self) -> str:
        """Tells it from another token, to somebody who has neither."""
        return _digest(self.value).hex()[:16]

    def __repr__(self) -> str:
        return f"Token(name={self.name!r}, scopes={sorted(self.scopes)!r})"


def token_from_env(
    name: str, variable: str, scopes: Iterable[str], environ: Mapping[str, str]
) -> ClientToken:
    """A token from an environment variable.

    Raises:
        UsageError: the variable is not set, or its value is not a token.
    """
    value = environ.get(variable)
    if not value:
        raise UsageError(f"the token of `{name}` is missing: `{variable}` is not set", hint=_MAKE)
    return replace(_token(name, scopes, value, f"`{variable}`"), env=variable)


def token_from_file(name: str, path: Path, scopes: Iterable[str]) -> ClientToken:
    """A token that stands in a file that only this user can read.

    Raises:
        UsageError: the file is missing, is readable by others, is a link, or holds no token.
    """
    try:
        descriptor = open_own(path)
    except OSError as error:
        said = f"the token of `{name}` is missing: {error.strerror}: `{path}`"
        raise UsageError(said, hint=_MAKE) from error
    try:
        if stat.S_IMODE(os.fstat(descriptor).st_mode) & 0o077:
            said = f"`{path}` holds a token, and others may read it"
            raise UsageError(said, hint=f"`chmod 600 {path}`")
        content = os.read(descriptor, _LONGEST + 1)
    finally:
        os.close(descriptor)
    value = content.decode("utf-8", errors="replace").strip("\r\n")
    return replace(_token(name, scopes, value, f"`{path}`"), path=path)


def ensure_token(name: str, path: Path, scopes: Iterable[str]) -> ClientToken:
    """The token in a file of ours, which is made if it is missing.

    Raises:
        UsageError: there is a file that holds no token, or is not private.
        OSError: it cannot be written.
    """
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        # Another process may be making it at the same moment.
        take(folder, path.parent, PATIENCE)
        if not os.path.lexists(path):
            atomic_write(path, f"{secrets.token_urlsafe(SHORTEST)}\n".encode())
    finally:
        os.close(folder)
    return token_from_file(name, path, scopes)


class Tokens:
    """All tokens that are good now: those that were configured, and those issued since."""

    def __init__(self, configured: Iterable[ClientToken], clock: Clock) -> None:
        self._clock = clock
        self._configured: dict[bytes, ClientToken] = {}
        self._issued: dict[bytes, ClientToken] = {}
        self._codes: dict[bytes, ClientToken] = {}
        self.configure(configured)

    def configure(self, tokens: Iterable[ClientToken]) -> None:
        """Replace the configured tokens, at once; issued ones stay.

        Raises:
            UsageError: two of them have the same value.
        """
        found: dict[bytes, ClientToken] = {}
        for token in tokens:
            same = found.setdefault(_digest(token.value), token)
            if same is not token:
                raise UsageError(f"`{same.name}` and `{token.name}` have the same token")
        self._configured = found

    @property
    def configured(self) -> Iterable[ClientToken]:
        """Tokens of the configuration."""
        return self._configured.values()

    def find(self, value: str) -> ClientToken | None:
        """The token with that value, if there is one and it has not expired."""
        self._forget_expired(self._issued)
        return _equal(value, self._configured) or _equal(value, self._issued)

    def issue(self, name: str, scopes: Iterable[str], seconds: float) -> ClientToken:
        """A new token, kept in memory; the oldest goes where there are too many."""
        token = self._make_token(name, scopes, seconds)
        _keep(token, self._issued, _MOST_ISSUED)
        return token

    def issue_code(self, name: str, scopes: Iterable[str]) -> str:
        """A code that `redeem` takes once, within 60 seconds."""
        code = self._make_token(name, scopes, CODE_SECONDS)
        _keep(code, self._codes, _MOST_CODES)
        return code.value

    def redeem(self, code: str, seconds: float) -> ClientToken | None:
        """The token that a code is exchanged for; `None` if it is unknown, used or too old."""
        self._forget_expired(self._codes)
        found = _equal(code, self._codes)
        if found is None:
            return None
        del self._codes[_digest(found.value)]
        return self.issue(found.name, found.scopes, seconds)

    def _make_token(self, name: str, scopes: Iterable[str], seconds: float) -> ClientToken:
        value = secrets.token_urlsafe(SHORTEST)
        return ClientToken(name, frozenset(scopes), value, self._clock.monotonic() + seconds)

    def _forget_expired(self, tokens: dict[bytes, ClientToken]) -> None:
        now = self._clock.monotonic()
        for digest, token in list(tokens.items()):
            if token.expires is not None and token.expires <= now:
                del tokens[digest]


def _token(name: str, scopes: Iterable[str], value: str, where: str) -> ClientToken:
    if len(value) < SHORTEST:
        said = f"the token of `{name}` in {where} is shorter than {SHORTEST} characters"
        raise UsageError(said, hint=_MAKE)
    if len(value) > _LONGEST or not _WORD.fullmatch(value):
        said = f"the token of `{name}` in {where} has characters that no token has, or too many"
        raise UsageError(said, hint=_MAKE)
    return ClientToken(name, frozenset(scopes), value)


def _digest(value: str) -> bytes:
    return hashlib.sha256(value.encode("utf-8", errors="surrogatepass")).digest()


def _equal(value: str, tokens: Mapping[bytes, ClientToken]) -> ClientToken | None:
    """The token of that value; each one is compared, whether it was found before or not."""
    wanted = _digest(value)
    found = None
    for digest, token in tokens.items():
        if hmac.compare_digest(wanted, digest):
            found = token
    return found


def _keep(token: ClientToken, tokens: dict[bytes, ClientToken], most: int) -> None:
    while len(tokens) >= most:
        del tokens[next(iter(tokens))]
    tokens[_digest(token.value)] = token
