"""Finds the authorization server of an MCP server, by what the server and the file say.

Every document is checked before it counts: that of a resource names the server, that of an
authorization server names the issuer that it was asked for as.
"""

from typing import Final

import anyio

from aish.core.frozen import frozen
from aish.core.phrases import backticked
from aish.net.oauth.challenges import AuthChallenge
from aish.net.oauth.failure import LoginError, quote
from aish.net.oauth.login_site import LoginSite, Notice
from aish.net.oauth.metadata import (
    IssuerMetadata,
    ResourceMetadata,
    UnusableMetadataError,
    bare_origin,
    canonical_resource,
    is_same_issuer,
    is_secure,
    issuer_places,
    origin_of,
    read_issuer_metadata,
    read_resource_metadata,
    resource_places,
)
from aish.net.oauth.requests import FetchedPage, OAuthClient

_OK: Final = 200
_MOST_PLACES: Final = 3
_MOST_HANGING: Final = 2
"""Places without an answer in their time that end the search."""


@frozen
class Directory:
    """Who issues tokens for a server, and what it is called there."""

    resource: ResourceMetadata
    issuer: IssuerMetadata


async def find_resource(
    client: OAuthClient, url: str, metadata_url: str | None
) -> ResourceMetadata | None:
    """Ask a server for its metadata: where it says that it is, else at the usual places.

    Raises:
        LoginError: all that is found belongs to another server.
    """
    places = (metadata_url, *resource_places(url)) if metadata_url else resource_places(url)
    refused = ""
    for place in dict.fromkeys(places):
        page = await _look(client, place)
        if isinstance(page, str):
            continue
        try:
            return read_resource_metadata(page.body, url)
        except UnusableMetadataError as error:
            if place == metadata_url or "another server" in str(error):
                refused = refused or f"the metadata at `{quote(place)}` is not used: {error}"
    if refused:
        raise LoginError(refused)
    return None


async def find_issuer(client: OAuthClient, issuer: str, notice: Notice) -> IssuerMetadata:
    """The metadata of an authorization server that gets secrets of ours.

    Raises:
        LoginError: there is none that may be used.
    """
    hint = "`token_url` names its token endpoint"
    found = await find_issuer_metadata(client, issuer, notice, hint=hint)
    _check_endpoint(found)
    return found


async def find_issuer_metadata(
    client: OAuthClient, issuer: str, notice: Notice, *, hint: str, any_slash: bool = False
) -> IssuerMetadata:
    """The metadata of an authorization server whose endpoints get nothing from us.

    `hint` says what to do if there is none. With `any_slash` it may call itself by one more slash.

    Raises:
        LoginError: there is none that may be used.
    """
    if not is_secure(issuer):
        message = "is not used: it is not https, nor of this machine"
        raise LoginError(f"the authorization server `{quote(issuer)}` {message}")
    reasons: list[str] = []
    for place in issuer_places(issuer):
        page = await _look(client, place.url)
        if isinstance(page, str):
            reasons.append(page)
            continue
        try:
            found = read_issuer_metadata(page.body, issuer, any_slash=any_slash)
        except UnusableMetadataError as error:
            reasons.insert(0, f"`{quote(place.url)}`: {quote(str(error))}")
            continue
        if not place.usual:
            text = (
                f"the metadata of `{quote(issuer)}` is at `{quote(place.url)}`,"
                " where no standard has it"
            )
            notice("oauth_metadata_place", text)
        return found
    said = "; ".join(reasons[:_MOST_PLACES])
    raise LoginError(
        f"the authorization server `{quote(issuer)}` has no metadata that can be used ({said});"
        f" {hint}"
    )


async def discover(site: LoginSite, metadata_url: str | None) -> Directory:
    """Who issues tokens for a server; what the file names is not looked for elsewhere.

    Raises:
        LoginError: nobody is found, or somebody else than the file names, or it takes too long.
    """
    seconds = site.client.seconds * _MOST_HANGING
    try:
        with anyio.fail_after(seconds):
            return await _discover(site, metadata_url)
    except TimeoutError as error:
        message = f"who issues tokens for `{quote(site.url)}` was not found within {seconds:g} s"
        raise LoginError(f"{message}: `issuer` and `token_url` name it") from error


async def _discover(site: LoginSite, metadata_url: str | None) -> Directory:
    url, settings = site.url, site.settings
    found = await find_resource(site.client, url, metadata_url)
    resource = found or ResourceMetadata(canonical_resource(url))
    issuer, token_url = settings.issuer, settings.token_url
    if token_url is not None:
        named = IssuerMetadata(
            issuer or token_url, token_url, authorization_endpoint=settings.authorization_url
        )
        return Directory(resource, named)
    picked = _pick(found, url, issuer, site.notice)
    return Directory(resource, await find_issuer(site.client, picked, site.notice))


class DirectoryLookup:
    """The directory of one server, looked up once; `known` is empty before."""

    def __init__(self, site: LoginSite) -> None:
        self._site = site
        self.known: Directory | None = None

    async def find(self, refusal: AuthChallenge) -> Directory:
        """The directory, looked up at the place that a refusal names.

        Raises:
            LoginError: as of `discover`.
        """
        if self.known is None:
            self.known = await discover(self._site, refusal.metadata_url)
        return self.known

    @property
    def listed_scopes(self) -> tuple[str, ...]:
        """The scopes that the server's metadata lists, as far as that is known."""
        return () if self.known is None else self.known.resource.scopes or ()

    async def usual_scopes(self, refusal: AuthChallenge) -> tuple[str, ...]:
        """The scopes to ask for: those of the file, else of the refusal, else of the server.

        Raises:
            LoginError: as of `discover`.
        """
        await self.find(refusal)
        named = self._site.settings.scopes
        return (refusal.scopes or self.listed_scopes) if named is None else named


def _pick(found: ResourceMetadata | None, url: str, issuer: str | None, notice: Notice) -> str:
    """The authorization server to ask.

    Raises:
        LoginError: the file names another one than the server.
    """
    listed = () if found is None else found.issuers
    if issuer is not None:
        for one in listed:
            if is_same_issuer(one, issuer):
                return one
        if listed:
            raise LoginError(
                f"the server names the authorization server {backticked(map(quote, listed), 3)},"
                f" and `issuer` in the file is `{issuer}`: its credentials go nowhere else"
            )
        return issuer
    if not listed:
        # As in 2025-03-26, where a server is its own authorization server.
        own = bare_origin(url)
        text = f"the server names no authorization server; `{own}` is asked, its own origin"
        notice("oauth_own_origin", text)
        return own
    if len(listed) > 1:
        text = (
            f"the server names several authorization servers ({backticked(map(quote, listed), 3)});"
            " the first is asked, and `issuer` chooses another"
        )
        notice("oauth_several_issuers", text)
    return listed[0]


def _check_endpoint(found: IssuerMetadata) -> None:
    """Check that secrets sent to an issuer reach that issuer.

    Raises:
        LoginError: its token endpoint is elsewhere, or not secure.
    """
    endpoint = found.token_endpoint
    if not is_secure(endpoint):
        message = "is not used: it is not https, nor of this machine"
        raise LoginError(f"the token endpoint `{quote(endpoint)}` {message}")
    if origin_of(endpoint) != origin_of(found.issuer):
        raise LoginError(
            f"the token endpoint `{quote(endpoint)}` has another origin than its authorization"
            f" server `{quote(found.issuer)}`: if that is right, write it as `token_url`"
        )


async def _look(client: OAuthClient, url: str) -> FetchedPage | str:
    """A document, or why there is none at that place."""
    try:
        page = await client.get(url)
    except LoginError as error:
        return str(error)
    return page if page.status == _OK else f"`{quote(url)}`: HTTP {page.status}"
