"""Asks a token endpoint for a token, with the proof of the client."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final
from urllib.parse import quote_plus, urlencode

from aish.net.oauth.client_proof import (
    Proof,
    pick_place,
    prove_by_assertion,
    prove_by_secret,
    second_place,
)
from aish.net.oauth.failure import LoginError
from aish.net.oauth.login_site import LoginSite
from aish.net.oauth.metadata import IssuerMetadata
from aish.net.oauth.refusals import TokenQuestion
from aish.net.oauth.token_answer import IssuedToken, TokenRefusal, read_token_answer
from aish.system.clock import SystemClock

if TYPE_CHECKING:
    from aish.net.oauth.assertion import PrivateKey

INSTALL: Final = "pip install 'aish-pipelines[oauth]'"
_REFUSED: Final = frozenset({400, 401})


class TokenEndpoint:
    """The token endpoint of one issuer, asked by one client: with a secret, a key, or neither."""

    def __init__(self, issuer: IssuerMetadata, site: LoginSite) -> None:
        self._issuer = issuer
        self._site = site
        self._settings = site.settings
        self._key: PrivateKey | None = None
        self._place = self._settings.token_auth

    async def ask(
        self, asked: TokenQuestion, fields: Mapping[str, str]
    ) -> IssuedToken | TokenRefusal:
        """A token, or why there is none; `fields` are those of the kind of request.

        Raises:
            LoginError: there is no answer.
        """
        client_id, secret = self._settings.client_id, self._site.credentials.secret
        fields = {"grant_type": asked.grant, **fields}
        if self._settings.resource:
            fields["resource"] = asked.resource
        if secret is None and self._settings.private_key_file is None:
            return await self._post(asked, Proof({}, {"client_id": client_id}), fields)
        if secret is None:
            assertion = self._sign()
            proof = prove_by_assertion(client_id, assertion)
            return await self._post(asked, proof, fields, assertion)
        # In `basic` it is encoded twice, and the mask knows the base64 of what it was given alone.
        self._site.hide("client_secret", quote_plus(secret))
        methods = self._issuer.auth_methods
        place = pick_place(self._place, methods)
        proof = prove_by_secret(place, client_id, secret)
        answer = await self._post(asked, proof, fields, secret)
        if isinstance(answer, TokenRefusal) and answer.status in _REFUSED:
            # Half of the servers read a secret in `basic` as it is, and the other half decode it.
            other = second_place(place, self._place, methods, client_id, secret)
            if other is not None:
                proof = prove_by_secret(other, client_id, secret)
                answer = await self._post(asked, proof, fields, secret)
                self._place = other if isinstance(answer, IssuedToken) else self._place
        return answer

    async def _post(
        self, asked: TokenQuestion, proof: Proof, fields: Mapping[str, str], shown: str = ""
    ) -> IssuedToken | TokenRefusal:
        body = urlencode({**fields, **proof.fields}).encode()
        page = await self._site.client.post(asked.endpoint, proof.headers, body)
        answer = read_token_answer(page.status, page.content_type, page.body)
        if isinstance(answer, IssuedToken):
            self._site.hide("oauth_token", answer.value)
            if answer.refresh_token is not None:
                self._site.hide("oauth_refresh_token", answer.refresh_token)
            return answer
        said = answer.said.replace(shown, "<secret>") if shown else answer.said
        mask = self._site.secret_mask.mask
        return TokenRefusal(answer.status, mask(answer.error), mask(said))

    def _sign(self) -> str:
        try:
            from aish.net.oauth.assertion import UnusableKeyError, read_private_key, sign_assertion
        except ImportError as error:
            message = f"a login with `private_key_file` needs the extra `oauth`: {INSTALL}"
            raise LoginError(message) from error
        path = self._settings.private_key_file
        assert path is not None, "a client without a secret has a key"
        issuer = self._issuer
        by_url = self._settings.assertion_audience == "token_url"
        try:
            if self._key is None:
                text, self._key = read_private_key(path)
                self._site.hide("private_key", text)
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
