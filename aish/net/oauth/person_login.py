"""The login of a person: kept, renewed by one process at a time, and made anew in a browser."""

import secrets as random
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from typing import Final
from urllib.parse import urlsplit

import anyio
import anyio.to_thread

from aish.core.frozen import frozen
from aish.core.phrases import backticked
from aish.net.oauth.authorization import (
    OFFLINE,
    Authorization,
    RejectedAnswer,
    check_login_page,
    page_address,
    read_redirect,
)
from aish.net.oauth.challenges import AuthChallenge
from aish.net.oauth.discovery import Directory, DirectoryLookup
from aish.net.oauth.failure import LoginError, quote
from aish.net.oauth.login_site import LoginSite
from aish.net.oauth.login_store import KeptLogin, LoginSecrets, LoginStore
from aish.net.oauth.metadata import IssuerMetadata, is_same_issuer, origin_of
from aish.net.oauth.redirect_listener import PortTakenError, RedirectListener, open_listener
from aish.net.oauth.refusals import TokenQuestion, explain_refusal
from aish.net.oauth.registration import RegisteredClient, register
from aish.net.oauth.settings import Credentials
from aish.net.oauth.token_answer import IssuedToken, TokenRefusal
from aish.net.oauth.token_endpoint import TokenEndpoint
from aish.system.clock import SystemClock

_EARLY_SECONDS: Final = 60.0
PERSON_SECONDS: Final = 300.0
_OFFLINE: Final = frozenset({OFFLINE})
_BYTES: Final = 32
_MOST_TOLD: Final = 5
"""Answers of others that a person is told of: any page may send some."""
_DEAD: Final = frozenset({"invalid_grant", "invalid_client", "unauthorized_client"})
_CODE: Final = "authorization_code"
_REFRESH: Final = "refresh_token"
_UNKNOWN_CLIENT: Final = "invalid_client"


@frozen
class Person:
    """A person who is there to log in: `show` tells them the address, and where it leads back to.

    They have so many seconds for it. A `fresh` login does not look at the one that is kept.
    """

    show: Callable[[str, str], None]
    seconds: float = PERSON_SECONDS
    fresh: bool = False


class PersonLogin:
    """The login of a person at the authorization server of a server.

    Without a `person` there is nobody to ask, and no browser is opened.
    """

    def __init__(self, site: LoginSite, person: Person | None = None) -> None:
        self.site = site
        self._settings = site.settings
        self._command = site.credentials.command
        self._person = person
        self.store = LoginStore(site.url, site.settings)
        self._lookup = DirectoryLookup(site)
        self._newest: KeptLogin | None = None
        self._given = ""
        self._has_told_of_keyring = False
        self._is_fresh = person is not None and person.fresh

    @property
    def newest(self) -> KeptLogin | None:
        """The login whose token was given last."""
        return self._newest

    @property
    def issuer(self) -> str:
        """Who issues the tokens, as far as that is known."""
        return self.site.url if self._newest is None else self._newest.issuer

    async def is_ready(self) -> bool:
        """Return true if there is a login: its token is sent before the server asks for one."""
        if self._is_fresh:
            return False
        kept = await self._read()
        return kept is not None and bool(kept.secrets.access_token)

    @property
    def listed_scopes(self) -> tuple[str, ...]:
        """The scopes that the server's metadata lists, as far as that is known."""
        return self._lookup.listed_scopes

    async def usual_scopes(self, refusal: AuthChallenge) -> tuple[str, ...]:
        """The scopes of the login, else those to ask for.

        Raises:
            LoginError: it cannot be read, or nobody is found who issues tokens.
        """
        kept = None if self._is_fresh else await self._read()
        if kept is not None and kept.secrets.access_token:
            return kept.asked
        if self._person is None:
            return self._settings.scopes or ()
        return await self._lookup.usual_scopes(refusal)

    async def issue(self, scopes: Sequence[str], refusal: AuthChallenge) -> IssuedToken:
        """The token that is kept, else a renewed one, else that of a new login.

        Raises:
            LoginError: there is none.
        """
        if self._is_fresh:
            self._is_fresh = False
            return await self.log_in(scopes, refusal)
        found = await self._kept_token(scopes)
        if isinstance(found, IssuedToken):
            return found
        if self._person is None:
            raise LoginError(f"{found}: `{self._command}`")
        return await self.log_in(scopes, refusal)

    async def log_in(self, scopes: Sequence[str] | None, refusal: AuthChallenge) -> IssuedToken:
        """A token of a login that the person makes now, in a browser; it is kept.

        Raises:
            LoginError: there is none; nothing was kept.
        """
        assert self._person is not None, "there is somebody to log in"
        self.store.make_folder()  # a person logs in for nothing otherwise
        self._lookup.known = None  # the server may have moved to another issuer since
        if scopes is None:
            scopes = await self._lookup.usual_scopes(refusal)
        login, fields, issuer = await self._ask_person(await self._lookup.find(refusal), scopes)
        answer = await self._ask(login, _CODE, fields, issuer)
        if isinstance(answer, TokenRefusal):
            raise LoginError(explain_refusal(self._question(login, _CODE), answer))
        async with self.store.lock():
            await self._keep(login, answer)
        return answer

    async def _ask_person(
        self, directory: Directory, scopes: Sequence[str]
    ) -> tuple[KeptLogin, Mapping[str, str], IssuerMetadata]:
        """A login without tokens yet, and the fields of the request for them."""
        issuer = directory.issuer
        is_named = self._settings.authorization_url is not None
        page = check_login_page(issuer, is_named=is_named)
        if not is_named and origin_of(page) != origin_of(issuer.issuer):
            text = (
                f"the login page `{quote(page)}` has another origin than its authorization server"
                f" `{quote(issuer.issuer)}`: log in there only if you expect that"
            )
            self.site.notice("oauth_login_page", text)
        before = await self._before(issuer)
        async with AsyncExitStack() as stack:
            listener = await self._open_listener(stack, before)
            client = await self._client_for(issuer, before, listener.url)
            settings = replace(self._settings, client_id=client.client_id)
            wanted = dict.fromkeys((*scopes, *_OFFLINE.intersection(issuer.scopes)))
            named = directory.resource.resource
            asked = Authorization(
                question=TokenQuestion(settings, page, named, (*wanted,), _CODE),
                redirect_url=listener.url,
                state=random.token_urlsafe(_BYTES),
                verifier=random.token_urlsafe(_BYTES),
                issuer=self._known_issuer(issuer),
                promises_issuer=issuer.promises_issuer,
            )
            code = await self._wait(listener, asked)
        login = KeptLogin(
            server=self.store.server,
            resource=directory.resource.resource,
            issuer=issuer.issuer,
            token_url=issuer.token_endpoint,
            client_id=client.client_id,
            token_auth=client.token_auth,
            registered=self._registers(issuer),
            client_expires=client.expires,
            redirect_url=listener.url,
            asked=tuple(scopes),
            secrets=LoginSecrets(client_secret=client.secret or ""),
        )
        redirect = {"redirect_uri": asked.redirect_url, "code_verifier": asked.verifier}
        return login, {"code": code, **redirect}, issuer

    async def _before(self, issuer: IssuerMetadata) -> KeptLogin | None:
        """The login of before, if it was there: its client is used again."""
        try:
            before = await self._read()
        except LoginError:
            return None
        is_there = before is not None and is_same_issuer(before.issuer, issuer.issuer)
        return before if is_there else None

    async def _kept_token(self, scopes: Sequence[str]) -> IssuedToken | str:
        """The token that is kept, renewed if it has to be; else why there is none."""
        kept = await self._read()
        if kept is not None and (lacking := self._lack_text(kept, scopes)):
            return lacking
        if kept is not None and (usable := self._usable(kept)) is not None:
            return usable
        if kept is None or not kept.secrets.access_token:
            return f"nobody is logged in to `{self.store.server}`"
        async with self.store.lock():
            # Another process may have renewed it meanwhile.
            kept = await self._read() or kept.without_tokens()
            if (usable := self._usable(kept)) is not None:
                return usable
            if kept.secrets.refresh_token:
                # One that was used and whose successor is lost is a login that is lost.
                with anyio.CancelScope(shield=True):
                    return await self._refresh(kept)
        return f"the login at `{quote(kept.issuer)}` has expired, or is not taken any more"

    @staticmethod
    def _lack_text(kept: KeptLogin, scopes: Sequence[str]) -> str:
        """The words for scopes that a login was not asked for; empty if it has all."""
        lacking = [quote(scope) for scope in scopes if scope not in kept.asked]
        if not lacking or not kept.secrets.access_token:
            return ""
        wanted = ", ".join(quote(scope) for scope in dict.fromkeys((*kept.asked, *scopes)))
        return (
            f"the server wants the scopes {backticked(lacking)} too, and a person has to allow"
            f" them: write `scopes: [{wanted}]`, and log in again"
        )

    def _usable(self, kept: KeptLogin) -> IssuedToken | None:
        """The token that is kept, unless it was refused or its time is over."""
        left = None if kept.expires is None else kept.expires - SystemClock().now()
        least = _EARLY_SECONDS if kept.secrets.refresh_token else 0.0
        if kept.secrets.access_token in {"", self._given} or (left is not None and left <= least):
            return None
        self._take(kept)
        return IssuedToken(kept.secrets.access_token, left, kept.granted)

    async def _refresh(self, kept: KeptLogin) -> IssuedToken | str:
        fields = {"refresh_token": kept.secrets.refresh_token}
        answer = await self._ask(kept, _REFRESH, fields, None)
        if isinstance(answer, IssuedToken):
            try:
                await self._keep(kept, answer)
            except LoginError as error:
                # This run has its token, but a disk that is full has lost the refresh token.
                text = f"{error}: later runs may need a new login: `{self._command}`"
                self.site.notice("oauth_login_not_kept", text)
            return answer
        said = explain_refusal(self._question(kept, _REFRESH), answer)
        if answer.error not in _DEAD:
            raise LoginError(said)
        over = kept.without_tokens()
        if answer.error == _UNKNOWN_CLIENT:
            over = replace(over, redirect_url="")  # the next login registers another client
        with suppress(LoginError):
            await self._write(over)
        return f"{said}; the login is over"

    async def _keep(self, login: KeptLogin, answer: IssuedToken) -> None:
        now = SystemClock().now()
        tokens = replace(
            login.secrets,
            access_token=answer.value,
            refresh_token=answer.refresh_token or login.secrets.refresh_token,
        )
        login = replace(
            login,
            secrets=tokens,
            granted=login.granted if answer.scopes is None else answer.scopes,
            expires=None if answer.seconds is None else now + answer.seconds,
        )
        self._take(login)
        self._newest = await self._write(login)

    async def _write(self, login: KeptLogin) -> KeptLogin:
        told: list[str] = []
        written = await anyio.to_thread.run_sync(self.store.write, login, told.append)
        for text in told:
            if not self._has_told_of_keyring:
                self._has_told_of_keyring = True
                self.site.notice("oauth_keyring", text)
        return written

    def _take(self, login: KeptLogin) -> None:
        self._newest = login
        self._given = login.secrets.access_token

    async def _read(self) -> KeptLogin | None:
        kept = await anyio.to_thread.run_sync(self.store.read, self._command)
        if kept is None or self._settings.token_url not in {None, kept.token_url}:
            return None
        for what, value in (
            ("oauth_token", kept.secrets.access_token),
            ("oauth_refresh_token", kept.secrets.refresh_token),
            ("client_secret", kept.secrets.client_secret),
        ):
            if value:
                self.site.hide(what, value)
        return kept

    async def _ask(
        self, login: KeptLogin, grant: str, fields: Mapping[str, str], issuer: IssuerMetadata | None
    ) -> IssuedToken | TokenRefusal:
        credentials = self.site.credentials
        if login.registered:
            settings = replace(
                self._settings,
                token_auth=login.token_auth,
                client_secret_env=None,
                private_key_file=None,
            )
            credentials = Credentials(settings, login.secrets.client_secret or None)
        settings = replace(credentials.settings, client_id=login.client_id)
        endpoint = TokenEndpoint(
            issuer or IssuerMetadata(login.issuer, login.token_url),
            replace(self.site, credentials=replace(credentials, settings=settings)),
        )
        return await endpoint.ask(self._question(login, grant), fields)

    def _question(self, login: KeptLogin, grant: str) -> TokenQuestion:
        settings = replace(self._settings, client_id=login.client_id)
        return TokenQuestion(settings, login.token_url, login.resource, login.asked, grant)

    def _known_issuer(self, issuer: IssuerMetadata) -> str:
        """The issuer that an answer has to name; empty if only its endpoints are known."""
        by_file = self._settings.authorization_url is not None
        return (self._settings.issuer or "") if by_file else issuer.issuer

    def _registers(self, issuer: IssuerMetadata) -> bool:
        """Return true if the client has to register by itself."""
        id = self._settings.client_id
        is_document = id.startswith("https://") and not self._settings.client_secret_env
        return not id or (
            is_document
            and not issuer.takes_client_documents
            and issuer.registration_endpoint is not None
        )

    async def _open_listener(
        self, stack: AsyncExitStack, kept: KeptLogin | None
    ) -> RedirectListener:
        """The listener that the browser returns to: on the port of before, if it is free."""
        url = self._settings.redirect_url
        port = 0 if kept is None or url is not None else urlsplit(kept.redirect_url).port or 0
        try:
            return await stack.enter_async_context(open_listener(url, port))
        except PortTakenError as error:
            if not port:
                message = f"the port of `redirect_url: {url}` is taken by another program"
                raise LoginError(message) from error
        return await stack.enter_async_context(open_listener(url, 0))

    async def _client_for(
        self, issuer: IssuerMetadata, kept: KeptLogin | None, redirect_url: str
    ) -> RegisteredClient:
        """The client: that of the file, else the one that is registered for this redirect."""
        if not self._registers(issuer):
            return RegisteredClient(self._settings.client_id, token_auth=self._settings.token_auth)
        is_known = kept is not None and kept.registered and kept.redirect_url == redirect_url
        if kept is not None and is_known:
            ends = kept.client_expires
            if not ends or ends > SystemClock().now() + _EARLY_SECONDS:
                secret = kept.secrets.client_secret or None
                return RegisteredClient(kept.client_id, secret, kept.token_auth, ends)
        endpoint = issuer.registration_endpoint
        if endpoint is None:
            raise LoginError(
                f"the authorization server `{quote(issuer.issuer)}` registers no client by itself:"
                " register one there, and write its `client_id`"
            )
        return await register(self.site.client, endpoint, redirect_url, issuer.auth_methods)

    async def _wait(self, listener: RedirectListener, asked: Authorization) -> str:
        """The code that the browser brings.

        Raises:
            LoginError: it brings none, or not in time.
        """
        assert self._person is not None, "there is somebody to log in"
        codes: list[str] = []
        seen: set[str] = set()

        def take(query: str) -> bool:
            found = read_redirect(query, asked)
            if not isinstance(found, RejectedAnswer):
                codes.append(found)
                return True
            if found.said not in seen and len(seen) < _MOST_TOLD:
                seen.add(found.said)
                text = f"an answer to the login was not accepted: {found.said}"
                self.site.notice("oauth_answer_rejected", text)
            return False

        self._person.show(page_address(asked), listener.url)
        try:
            with anyio.fail_after(self._person.seconds):
                await listener.wait(take)
        except TimeoutError as error:
            raise LoginError(
                f"no answer to the login within {self._person.seconds:g} s; if the page of"
                f" `{quote(asked.issuer)}` showed an error, it may not know the client"
                f" `{quote(asked.question.settings.client_id)}` or `{asked.redirect_url}`"
            ) from error
        return codes[0]
