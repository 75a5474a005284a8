"""A secret that is made at its first use, and anew once it has expired or was refused.

One renewal at a time: whoever needs the secret meanwhile waits for that one, and shares its
failure. Used for keys that a command prints and for tokens of an authorization server.
"""

import base64
import json
import math
import time
from collections.abc import Awaitable, Callable

import anyio

from aish.core.frozen import frozen

_EARLY_SECONDS = 60.0
_EARLY_SHARE = 0.1
_LARGEST_JWT = 64 * 1024


@frozen
class Token:
    """A secret as it was made, usable for so many seconds; `None`: until it is refused."""

    value: str
    seconds: float | None = None


class RenewedSecret:
    """Keeps the newest token of `make`, in memory only.

    Two tokens are the same only if they are one object: a maker that gives the same value again has
    made another one. A caller that is cancelled while it makes one cancels `make`, and the next
    caller begins again; a maker that must not be interrupted shields itself.
    """

    def __init__(
        self, make: Callable[[], Awaitable[Token]], monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._make = make
        self._monotonic = monotonic
        self._making = anyio.Lock()
        self._token: Token | None = None
        self._ends = math.inf
        self._failure: Exception | None = None
        self._failures = 0

    async def current(self) -> Token:
        """The token to use now, made if there is none or its time is over.

        Raises:
            Exception: what `make` raised, here or for somebody else while this waited.
        """
        token = self._usable(None) or await self._renew(None, lambda: True)
        assert token is not None, "it may always be made"
        return token

    async def replacement(self, refused: Token) -> Token:
        """A token that is not this one, which was refused: the one that replaced it, or a new one.

        Raises:
            Exception: as of `current`.
        """
        token = await self.replacement_if(refused, lambda: True)
        assert token is not None, "it may always be made"
        return token

    async def replacement_if(self, refused: Token, may_make: Callable[[], bool]) -> Token | None:
        """The same; `may_make` is asked just before this caller makes one, `None` if it must not.

        Raises:
            Exception: as of `current`.
        """
        return self._usable(refused) or await self._renew(refused, may_make)

    def _usable(self, refused: Token | None) -> Token | None:
        token = self._token
        return None if token is refused or self._monotonic() >= self._ends else token

    async def _renew(self, refused: Token | None, may_make: Callable[[], bool]) -> Token | None:
        failures = self._failures
        async with self._making:
            if (token := self._usable(refused)) is not None:
                return token
            if self._failure is not None and self._failures != failures:
                raise self._failure
            if not may_make():
                return None
            try:
                token = await self._make()
            except Exception as error:
                self._failure, self._failures = error, self._failures + 1
                raise
            self._failure = None
            self._token = token
            self._ends = math.inf if token.seconds is None else self._monotonic() + token.seconds
            return token


def seconds_of_use(seconds: float) -> float:
    """The seconds for which a secret that expires in so many is used: a few less."""
    return seconds - min(_EARLY_SECONDS, _EARLY_SHARE * seconds)


def jwt_expiry(value: str) -> float | None:
    """The expiry of a JWT in seconds since the epoch, read without verifying; else `None`."""
    parts = value.split(".") if len(value) <= _LARGEST_JWT else []
    if len(parts) not in {3, 5}:
        return None
    try:
        # An encrypted one has its claims hidden, and this is no JSON then.
        raw = base64.b64decode(parts[1] + "=" * (-len(parts[1]) % 4), altchars=b"-_", validate=True)
        claims = json.loads(raw)
    except (ValueError, RecursionError):
        return None
    expiry = claims.get("exp") if isinstance(claims, dict) else None
    if isinstance(expiry, bool) or not isinstance(expiry, int | float):
        return None
    try:
        return float(expiry) if math.isfinite(expiry) else None
    except OverflowError:
        return None
