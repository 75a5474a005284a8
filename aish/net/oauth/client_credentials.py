"""Logs in a program: tokens by the grant `client_credentials`, for one server."""

from collections.abc import Sequence

from aish.net.oauth.challenges import Refusal
from aish.net.oauth.discovery import Directory, Notice, discover
from aish.net.oauth.failure import LoginError
from aish.net.oauth.refusals import TokenQuestion, explain_refusal
from aish.net.oauth.requests import OAuthClient
from aish.net.oauth.settings import Credentials
from aish.net.oauth.token_answer import IssuedToken, TokenRefusal
from aish.net.oauth.token_endpoint import SecretMask, TokenEndpoint


class ClientCredentials:
    """The login of a program at the authorization server of the server with this URL."""

    def __init__(
        self,
        url: str,
        credentials: Credentials,
        client: OAuthClient,
        *,
        name: str,
        secret_mask: SecretMask,
        notice: Notice,
    ) -> None:
        self._url = url
        self._credentials = credentials
        self._settings = credentials.settings
        self._client = client
        self.note_server = client.note_server
        self._name = name
        self._secret_mask = secret_mask
        self.mask = secret_mask.mask
        self._notice = notice
        self._directory: Directory | None = None
        self._endpoint: TokenEndpoint | None = None

    @property
    def issuer(self) -> str:
        """Who issues the tokens, as far as that is known."""
        return self._url if self._directory is None else self._directory.issuer.issuer

    @property
    def listed_scopes(self) -> tuple[str, ...]:
        """The scopes that the server's metadata lists, as far as that is known."""
        return () if self._directory is None else self._directory.resource.scopes or ()

    async def is_ready(self) -> bool:  # ruff: ignore[no-self-use] - that of a person is kept
        """Return false: nothing is sent before the server has asked for it."""
        return False

    async def usual_scopes(self, refusal: Refusal) -> tuple[str, ...]:
        """The scopes to ask for: those of the file, else of the refusal, else of the server.

        Raises:
            LoginError: nobody is found who issues tokens.
        """
        await self._find(refusal)
        if self._settings.scopes is not None:
            return self._settings.scopes
        return refusal.scopes or self.listed_scopes

    async def issue(self, scopes: Sequence[str], refusal: Refusal) -> IssuedToken:
        """A new token.

        Raises:
            LoginError: there is none.
        """
        directory = await self._find(refusal)
        if self._endpoint is None:
            self._endpoint = TokenEndpoint(
                directory.issuer,
                self._credentials,
                self._client,
                name=self._name,
                secret_mask=self._secret_mask,
            )
        asked = TokenQuestion(
            self._settings, directory.issuer.token_endpoint, directory.resource.resource, scopes
        )
        fields = {"scope": " ".join(scopes)} if scopes else {}
        answer = await self._endpoint.ask(asked, fields)
        if isinstance(answer, TokenRefusal):
            raise LoginError(explain_refusal(asked, answer))
        return answer

    async def _find(self, refusal: Refusal) -> Directory:
        if self._directory is None:
            self._directory = await discover(
                self._client, self._url, refusal.metadata_url, self._settings, self._notice
            )
        return self._directory
