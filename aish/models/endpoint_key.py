"""The key of an endpoint that is made: sent in its header, and made anew where it is refused."""

from collections.abc import Callable, Mapping

from aish.config.model import ModelEntry
from aish.models.headers import headers_of
from aish.models.retry import AttemptError
from aish.net.renewed_secret import RenewedSecret, Token


class EndpointKey:
    """The key of one endpoint, which all requests to it share."""

    def __init__(self, entry: ModelEntry, secret: RenewedSecret) -> None:
        self.entry = entry
        self.secret = secret
        self.accepted: Token | None = None
        self._carried: Token | None = None
        self._headers: Mapping[str, str] = {}

    def headers(self, token: Token) -> Mapping[str, str]:
        """All headers of a request with this key."""
        if self._carried is not token:
            self._headers, self._carried = headers_of(self.entry, token.value), token
        return self._headers


class TurnKey:
    """The key as one turn uses it; `None` for one that is not made."""

    def __init__(self, key: EndpointKey | None) -> None:
        self._key = key
        self._sent: Token | None = None
        self._made = 0

    async def headers(self) -> Mapping[str, str] | None:
        """The headers to send now, if they are not always the same.

        Raises:
            UnavailableError: there is no key.
        """
        if self._key is None:
            return None
        self._sent = await self._key.secret.current()
        return self._key.headers(self._sent)

    def note_accepted(self) -> None:
        if self._key is not None:
            self._key.accepted = self._sent

    async def replace(
        self, failure: AttemptError, recorded_again: Callable[[], bool] | None
    ) -> bool:
        """Replace a key that was refused; whether the request is to be sent again.

        A turn makes it anew once: but one that answers were given to has ended since, and is made
        anew as often as a request is tried. What others have made meanwhile costs nothing. A replay
        repeats what was recorded.

        Raises:
            UnavailableError: there is no key.
        """
        refused = self._sent
        if self._key is None or refused is None or not failure.advice.refuses_key:
            return False
        if recorded_again is not None:
            return recorded_again()
        most = max(1, self._key.entry.retry.attempts if self._key.accepted is refused else 1)

        def may_make() -> bool:
            self._made += 1
            return self._made <= most

        new = await self._key.secret.replacement_if(refused, may_make)
        if new is not None and new.value == refused.value:
            source = self._key.entry.key_source
            place = "what makes it" if source is None else f"`{source.place}`"
            failure.hint = f"{place} gives the same key again, which is refused: look there"
            return False
        return new is not None
