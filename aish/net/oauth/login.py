"""The token of one server: made when the server asks for one, renewed, and made for more scopes."""

import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from aish.core.phrases import backticked
from aish.net.oauth.challenges import AuthChallenge
from aish.net.oauth.failure import LoginError, quote
from aish.net.oauth.login_site import LoginSite
from aish.net.oauth.refusals import scopes_asked
from aish.net.renewed_secret import RenewedSecret, Token

if TYPE_CHECKING:
    from aish.net.oauth.client_credentials import ClientCredentials
    from aish.net.oauth.person_login import PersonLogin

FORBIDDEN: Final = 403
_EARLY_SECONDS: Final = 60.0


class Login:
    """The token of one server, for all its connections."""

    def __init__(
        self,
        flow: "ClientCredentials | PersonLogin",
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._flow = flow
        self.note_server = flow.site.client.note_server
        self._mask = flow.site.secret_mask.mask
        self._monotonic = monotonic
        self._secret = RenewedSecret(self._make, monotonic)
        self._refusal: AuthChallenge | None = None
        self._scopes: tuple[str, ...] = ()
        self._newest: Token | None = None
        self._ends = 0.0
        self._asked: tuple[str, ...] = ()
        self._granted: tuple[str, ...] | None = None

    async def current(self) -> Token | None:
        """The token to send; `None` before a server has asked for one.

        Raises:
            LoginError: it cannot be renewed.
        """
        if self._refusal is None and self._newest is None and not await self._flow.is_ready():
            return None
        try:
            return await self._secret.current()
        except LoginError:
            # It is renewed before it expires, so that a failure costs nothing yet.
            if self._newest is None or self._monotonic() >= self._ends:
                raise
            return self._newest

    async def log_in(self, refused: Token | None, refusal: AuthChallenge) -> Token:
        """A token after a request without one, or in the place of a refused one.

        Raises:
            LoginError: there is none.
        """
        if self._refusal is None:
            self._refusal = refusal
        if refused is None:
            return await self._secret.current()
        return await self._secret.replacement(refused)

    async def step_up(self, refused: Token, refusal: AuthChallenge) -> Token:
        """A token with the scopes that a request needs, and those of before.

        Raises:
            LoginError: they were asked for already, or there is none.
        """
        newest = await self._secret.current()
        # The official SDK of servers does not say which.
        needed = refusal.scopes or self._flow.listed_scopes
        missing = [scope for scope in needed if scope not in self._asked]
        if newest is not refused and not missing:
            return newest
        if not missing:
            raise self.explain(FORBIDDEN, refusal)
        self._scopes = tuple(dict.fromkeys((*self._scopes, *missing)))
        try:
            token = await self._secret.replacement(newest)
        except LoginError:
            # Later tokens are for what there are tokens for.
            self._scopes = tuple(scope for scope in self._scopes if scope not in missing)
            raise
        if not set(missing) <= set(self._asked):
            # Another request had stepped up meanwhile, for other scopes.
            token = await self._secret.replacement(token)
        return token

    def explain(self, status: int, refusal: AuthChallenge) -> LoginError:
        """The failure of a request whose new token is refused."""
        mask = (
            self._flow.site.secret_mask.mask
        )  # before a text is cut: the server has the token, and may repeat it
        said = f" ({quote(mask(refusal.description))})" if refusal.description else ""
        error = f" `{quote(mask(refusal.error))}`{said}" if refusal.error else said
        asked = f"it was asked for with {scopes_asked([*map(mask, self._asked)])}"
        if self._granted is not None and set(self._granted) != set(self._asked):
            granted = (quote(mask(scope)) for scope in self._granted)
            asked += f", and given for {backticked(granted) or 'none'}"
        if status == FORBIDDEN:
            needed = backticked(quote(mask(scope)) for scope in refusal.scopes)
            next_ = f"allow the client the scopes {needed} there" if needed else "set `scopes`"
        else:
            next_ = (
                "see whether it is made for this server (`resource`), and who issues it (`issuer`)"
            )
        return LoginError(
            f"HTTP {status}{error}: the server refuses the token that `{quote(self._flow.issuer)}`"
            f" has just issued; {asked}: {next_}"
        )

    async def _make(self) -> Token:
        refusal = self._refusal or AuthChallenge()
        usual = await self._flow.usual_scopes(refusal)
        scopes = tuple(dict.fromkeys((*usual, *self._scopes)))
        issued = await self._flow.issue(scopes, refusal)
        self._asked, self._granted = scopes, issued.scopes
        life = issued.seconds
        early = None if life is None else life - min(_EARLY_SECONDS, life / 2)
        self._newest = Token(issued.value, early)
        self._ends = math.inf if life is None else self._monotonic() + life
        return self._newest


def open_login(site: LoginSite) -> Login:
    """The login at a server; nothing is asked yet."""
    if site.settings.login:
        # Few servers have a person to log in.
        from aish.net.oauth.person_login import PersonLogin

        return Login(PersonLogin(site))
    from aish.net.oauth.client_credentials import ClientCredentials

    return Login(ClientCredentials(site))
