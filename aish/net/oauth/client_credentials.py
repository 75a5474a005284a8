"""Logs in a program: tokens by the grant `client_credentials`, for one server."""

from collections.abc import Sequence

from aish.net.oauth.challenges import AuthChallenge
from aish.net.oauth.discovery import DirectoryLookup
from aish.net.oauth.failure import LoginError
from aish.net.oauth.login_site import LoginSite
from aish.net.oauth.refusals import TokenQuestion, explain_refusal
from aish.net.oauth.token_answer import IssuedToken, TokenRefusal
from aish.net.oauth.token_endpoint import TokenEndpoint


class ClientCredentials:
    """The login of a program at the authorization server of a server."""

    def __init__(self, site: LoginSite) -> None:
        self.site = site
        self._lookup = DirectoryLookup(site)
        self._endpoint: TokenEndpoint | None = None

    @property
    def issuer(self) -> str:
        """Who issues the tokens, as far as that is known."""
        known = self._lookup.known
        return self.site.url if known is None else known.issuer.issuer

    @property
    def listed_scopes(self) -> tuple[str, ...]:
        """The scopes that the server's metadata lists, as far as that is known."""
        return self._lookup.listed_scopes

    async def is_ready(self) -> bool:  # ruff: ignore[no-self-use] - that of a person is kept
        """Return false: nothing is sent before the server has asked for it."""
        return False

    async def usual_scopes(self, refusal: AuthChallenge) -> tuple[str, ...]:
        """The scopes to ask for.

        Raises:
            LoginError: nobody is found who issues tokens.
        """
        return await self._lookup.usual_scopes(refusal)

    async def issue(self, scopes: Sequence[str], refusal: AuthChallenge) -> IssuedToken:
        """A new token.

        Raises:
            LoginError: there is none.
        """
        directory = await self._lookup.find(refusal)
        if self._endpoint is None:
            self._endpoint = TokenEndpoint(directory.issuer, self.site)
        asked = TokenQuestion(
            self.site.settings,
            directory.issuer.token_endpoint,
            directory.resource.resource,
            scopes,
        )
        fields = {"scope": " ".join(scopes)} if scopes else {}
        answer = await self._endpoint.ask(asked, fields)
        if isinstance(answer, TokenRefusal):
            raise LoginError(explain_refusal(asked, answer))
        return answer
