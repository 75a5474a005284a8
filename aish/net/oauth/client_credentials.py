"""Logs in a program: tokens by the grant `client_credentials`, for one server."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final
from urllib.parse import quote_plus, urlencode

from aish.core.errors import UsageError
from aish.core.frozen import frozen
from aish.net.oauth.challenges import Refusal
from aish.net.oauth.client_proof import (
    Proof,
    pick_place,
    prove_by_assertion,
    prove_by_secret,
    second_place,
)
from aish.net.oauth.discovery import Directory, Notice, discover
from aish.net.oauth.failure import LoginError
from aish.net.oauth.refusals import TokenQuestion, explain_refusal
from aish.net.oauth.requests import OAuthClient
from aish.net.oauth.settings import Credentials
from aish.net.oauth.token_answer import IssuedToken, TokenRefusal, read_token_answer
from aish.system.clock import SystemClock

if TYPE_CHECKING:
    from aish.net.oauth.assertion import PrivateKey

INSTALL: Final = "pip install 'aish-pipelines[oauth]'"
_REFUSED: Final = frozenset({400, 401})


@frozen
class SecretMask:
    """Hides what is secret: `add` takes a name and a value, `mask` a text."""

    add: Callable[[str, str], None]
    mask: Callable[[str], str]


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
        self._key: PrivateKey | None = None
        self._place = self._settings.token_auth

    @property
    def issuer(self) -> str:
        """Who issues the tokens, as far as that is known."""
        return self._url if self._directory is None else self._directory.issuer.issuer

    @property
    def listed_scopes(self) -> tuple[str, ...]:
        """The scopes that the server's metadata lists, as far as that is known."""
        return () if self._directory is None else self._directory.resource.scopes or ()

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
        asked = TokenQuestion(
            self._settings, directory.issuer.token_endpoint, directory.resource.resource, scopes
        )
        answer = await self._ask(asked, directory)
        if isinstance(answer, TokenRefusal):
            raise LoginError(explain_refusal(asked, answer))
        self._hide("oauth_token", answer.value)
        return answer

    async def _find(self, refusal: Refusal) -> Directory:
        if self._directory is None:
            self._directory = await discover(
                self._client,
                self._url,
                refusal.metadata_url,
                issuer=self._settings.issuer,
                token_url=self._settings.token_url,
                notice=self._notice,
            )
        return self._directory

    async def _ask(self, asked: TokenQuestion, directory: Directory) -> IssuedToken | TokenRefusal:
        client_id, secret = self._settings.client_id, self._credentials.secret
        if secret is None:
            assertion = self._sign(directory)
            return await self._post(asked, prove_by_assertion(client_id, assertion), assertion)
        # In `basic` it is encoded twice, and the mask knows the base64 of what it was given alone.
        self._hide("client_secret", quote_plus(secret))
        methods = directory.issuer.auth_methods
        place = pick_place(self._place, methods)
        answer = await self._post(asked, prove_by_secret(place, client_id, secret), secret)
        if isinstance(answer, TokenRefusal) and answer.status in _REFUSED:
            # Half of the servers read a secret in `basic` as it is, and the other half decode it.
            other = second_place(place, self._place, methods, client_id, secret)
            if other is not None:
                proof = prove_by_secret(other, client_id, secret)
                answer = await self._post(asked, proof, secret)
                self._place = other if isinstance(answer, IssuedToken) else self._place
        return answer

    async def _post(
        self, asked: TokenQuestion, proof: Proof, shown: str
    ) -> IssuedToken | TokenRefusal:
        fields = {"grant_type": "client_credentials", **proof.fields}
        if asked.scopes:
            fields["scope"] = " ".join(asked.scopes)
        if self._settings.resource:
            fields["resource"] = asked.resource
        page = await self._client.post(asked.endpoint, proof.headers, urlencode(fields).encode())
        answer = read_token_answer(page.status, page.content_type, page.body)
        if isinstance(answer, IssuedToken):
            return answer
        said = self.mask(answer.said.replace(shown, "<secret>"))
        return TokenRefusal(answer.status, self.mask(answer.error), said)

    def _sign(self, directory: Directory) -> str:
        try:
            from aish.net.oauth.assertion import UnusableKeyError, read_private_key, sign_assertion
        except ImportError as error:
            message = f"a login with `private_key_file` needs the extra `oauth`: {INSTALL}"
            raise LoginError(message) from error
        path = self._settings.private_key_file
        assert path is not None, "a client has a secret or a key"
        issuer = directory.issuer
        by_url = self._settings.assertion_audience == "token_url"
        try:
            if self._key is None:
                text, self._key = read_private_key(path)
                self._hide("private_key", text)
            return sign_assertion(
                self._key,
                client_id=self._settings.client_id,
                audience=issuer.token_endpoint if by_url else issuer.issuer,
                now=SystemClock().now(),
                algorithms=issuer.signing_algorithms,
                key_id=self._settings.key_id,
            )
        except UnusableKeyError as error:
            raise LoginError(f"the private key `{path}` cannot be used: {error}") from error

    def _hide(self, what: str, value: str) -> None:
        try:
            self._secret_mask.add(f"{self._name}.{what}", value)
        except UsageError as error:
            raise LoginError(f"`{self.issuer}`: {error.message}") from error
