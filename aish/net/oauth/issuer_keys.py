"""The keys of an issuer, and when they are fetched: at the start, each hour, and for a new key.

A token that is signed by an unknown key has them fetched at once, so that an issuer may change its
keys at any time. That can be had by anybody, so it happens once in a while only; an ordinary fetch
does not count. What the issuer does not list any more is gone with the next fetch.
"""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from http import HTTPStatus
from typing import Any, Final

from aish.core.protocols import Clock
from aish.net.oauth.access_token import VerificationKey, read_keys
from aish.net.oauth.failure import LoginError, quote
from aish.net.oauth.requests import OAuthClient

COOL_DOWN: Final = 30.0
"""Seconds between two fetches for the sake of unknown keys."""
MOST_WAITING: Final = 16
"""Requests that may wait for one fetch: nobody knows yet who sent them."""
_ORDINARY: Final = 3600.0
_AGAIN: Final = 60.0
"""Seconds to an ordinary fetch: the usual one, and one after a failure."""


class IssuerKeys:
    """The keys at a URL; `report` is told when they cannot be fetched, and when they can again."""

    def __init__(
        self, client: OAuthClient, url: str, clock: Clock, report: Callable[[str | None], None]
    ) -> None:
        self.url = url
        self.known: tuple[VerificationKey, ...] = ()
        self.is_failing = False
        """The last fetch has failed."""
        self._client = client
        self._clock = clock
        self._report = report
        self._asked: float | None = None
        self._wanted = asyncio.Event()
        self._done: asyncio.Event | None = None
        """The end of the fetch that an unknown key has caused, until it has ended."""
        self._waiting = 0

    @property
    def cool_down(self) -> float:
        """The seconds until an unknown key may have the keys fetched; 0 if it may now."""
        since = None if self._asked is None else self._clock.monotonic() - self._asked
        return 0.0 if since is None else max(0.0, COOL_DOWN - since)

    @property
    def may_change(self) -> bool:
        """True while a fetch for an unknown key has not ended."""
        return self._done is not None

    async def fetch(self) -> None:
        """Replace the keys by those that the issuer has now.

        Raises:
            LoginError: they cannot be had, and the old ones stay.
        """
        page = await self._client.get(self.url)
        if page.status != HTTPStatus.OK:
            raise LoginError(f"`{quote(self.url)}`: HTTP {page.status}")
        try:
            known = read_keys(page.body)
        except ValueError as error:
            raise LoginError(f"`{quote(self.url)}`: {quote(str(error))}") from error
        if not known:
            raise LoginError(f"`{quote(self.url)}` has no key that can verify a signature")
        self.known = known

    def look_again(self) -> Callable[[], Coroutine[Any, Any, object]] | None:
        """Have them fetched for an unknown key; waits for that, and `None` means not now.

        Many that ask at the same time are answered by one fetch.
        """
        if self._done is None:
            if self.cool_down:
                return None
            self._asked, self._waiting = self._clock.monotonic(), 0
            self._done = asyncio.Event()
            self._wanted.set()
        if self._waiting >= MOST_WAITING:
            return None
        self._waiting += 1
        return self._done.wait

    async def stay_current(self) -> None:
        """Fetch in the usual intervals, and when it is wanted, until this is cancelled."""
        while True:
            with suppress(TimeoutError):
                seconds = _AGAIN if self.is_failing else _ORDINARY
                await asyncio.wait_for(self._wanted.wait(), seconds)
            self._wanted.clear()
            done = self._done
            await self._try()
            if done is not None:
                self._done = None
                done.set()

    async def _try(self) -> None:
        try:
            await self.fetch()
        except Exception as error:  # ruff: ignore[blind-except] - anybody can cause a fetch, and it ends no server
            said = str(error) if isinstance(error, LoginError) else f"{error!r}, a bug in aish"
            if not self.is_failing:
                self._report(said)
            self.is_failing = True
        else:
            if self.is_failing:
                self._report(None)
            self.is_failing = False
