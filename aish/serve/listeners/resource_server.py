"""The server as an OAuth resource server (RFC 9728, RFC 6750).

Turns the `Authorization` of a request into a client or a challenge, and describes the server to
clients that look for its issuer. Tokens that the file names are accepted too. Needs the extra
`oauth`; imported only by a server with `serve.auth`.
"""

import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from math import ceil
from typing import Final, Literal
from urllib.parse import quote as percent_encoded
from urllib.parse import urlsplit

import anyio

from aish.config.model import AuthSettings, ServeClient
from aish.core.errors import UnavailableError
from aish.core.json import JsonObject
from aish.core.phrases import backticked
from aish.core.protocols import Clock
from aish.net.listen.access import Bearer, Target
from aish.net.listen.http_error import HttpError
from aish.net.oauth.access_token import (
    LEEWAY,
    AccessToken,
    BadTokenError,
    Expected,
    UnknownKeyError,
    read_token,
)
from aish.net.oauth.discovery import find_issuer_metadata
from aish.net.oauth.failure import LoginError, quote
from aish.net.oauth.issuer_keys import IssuerKeys
from aish.net.oauth.metadata import (
    RESOURCE_PATH,
    IssuerMetadata,
    canonical_resource,
    resource_places,
)
from aish.net.oauth.requests import OAuthClient
from aish.serve.clients import OF_ISSUER, SCOPE, AuthenticatedClient, Clients

Tell = Callable[[Literal["info", "warning"], str, str], None]
"""Tells the person who runs the server: a level, a code, and a sentence."""
UNREACHABLE: Final = "issuer_unreachable"
"""The code of an answer to a token that cannot be judged for the moment."""
_WHERE: Final = "serve.auth"
_HOST: Final = re.compile(r"[A-Za-z0-9._:\[\]-]{1,255}", re.ASCII)
_NOT_QUOTED: Final = re.compile(r"[^ !#-\[\]-~]", re.ASCII)
_PLAIN: Final = "@.-_~|:"
"""Characters of a subject that its name keeps; a slash ends it."""


class ResourceServer:
    """Validates tokens, and challenges requests without one; `paths` are those of the listeners."""

    def __init__(
        self,
        settings: AuthSettings,
        issuer: IssuerMetadata,
        keys: IssuerKeys,
        clients: Clients,
        clock: Clock,
        *,
        paths: Sequence[str],
        behind_proxy: bool,
    ) -> None:
        self._settings = settings
        self._issuer = issuer
        self._expected = Expected(issuer.issuer, settings.audience)
        self._clients = clients
        self._clock = clock
        self._paths = tuple(paths)
        self._behind_proxy = behind_proxy
        self.keys = keys

    @property
    def document_paths(self) -> tuple[str, ...]:
        """The paths of the metadata, for each listener, the resource, and the root."""
        own = () if self._settings.resource is None else (_path_of(self._settings.resource),)
        return tuple(dict.fromkeys(f"{RESOURCE_PATH}{path}" for path in (*self._paths, *own, "")))

    def document(self, target: Target) -> JsonObject:
        """Return the metadata of the resource at this path."""
        of = Target(target.path.removeprefix(RESOURCE_PATH), target.host, target.is_tls)
        scopes, listed = _scopes_of(self._clients.scoped), self._issuer.scopes
        shown = [one for one in scopes if not listed or one in listed]
        has_scopes = bool(shown) and self._settings.scopes_supported
        return {
            "resource": self._resource(of),
            "authorization_servers": [self._issuer.issuer],
            **({"scopes_supported": shown} if has_scopes else {}),
            "bearer_methods_supported": ["header"],
        }

    def judge(
        self, values: Sequence[str], target: Target
    ) -> Bearer | Callable[[], Awaitable[Bearer]]:
        """Return the owner of the token in `Authorization`, or what finds it with new keys.

        Raises:
            HttpError: the request is not authorized.
        """
        kind, _, value = (values[0] if values else "").partition(" ")
        if kind.lower() != "bearer":
            scopes = self._usual_scopes()
            raise self._refusal(401, "unauthorized", "a token is needed", target, scopes)
        if len(values) > 1:
            raise self._bad("`Authorization` was sent more than once", target)
        own = self._clients.tokens.find(value)
        if own is not None:
            return Bearer(own.name, own.scopes, own.key)
        try:
            return self._admit(self._read(value), target)
        except UnknownKeyError as error:
            wait = self.keys.look_again()
            if wait is None:
                raise self._unknown(error, target) from error
            return partial(self._judge_again, wait, value, target)
        except BadTokenError as error:
            raise self._bad(str(error), target) from error

    def lacks(self, proof: AuthenticatedClient, needed: ServeClient, target: Target) -> HttpError:
        """Return the answer to a client that lacks scopes, with all that it needs."""
        entries = self._clients.entries_of(proof)
        scopes = _scopes_of((*entries, needed))
        message = f"this needs the scopes {backticked(scopes)}"
        return self._refusal(403, "insufficient_scope", message, target, scopes)

    def no_client(self, target: Target) -> HttpError:
        """Return the answer to a client whose entry is gone from the file."""
        return self._bad("the token is not valid any more", target)

    async def _judge_again(
        self, wait: Callable[[], Awaitable[object]], value: str, target: Target
    ) -> Bearer:
        await wait()
        try:
            return self._admit(self._read(value), target)
        except UnknownKeyError as error:
            raise self._unknown(error, target) from error
        except BadTokenError as error:
            raise self._bad(str(error), target) from error

    def _read(self, value: str) -> AccessToken:
        return read_token(value, self.keys.known, self._expected, self._clock.now())

    def _admit(self, token: AccessToken, target: Target) -> Bearer:
        """Return the client of a token.

        Raises:
            HttpError: the token has too few scopes for any entry.
        """
        proof = self._clients.admit(_name_of(token), token.scopes)
        if proof is None:
            scopes = self._usual_scopes()
            message = f"the token fits no client: it needs the scopes {backticked(scopes)}"
            raise self._refusal(403, "insufficient_scope", message, target, scopes)
        about: dict[str, str | list[str]] = {"issuer": self._issuer.issuer}
        about |= {"subject": token.subject, "client_id": token.client_id}
        about["entries"] = [entry.name for entry in self._clients.entries_of(proof)]
        left = token.expires + LEEWAY - self._clock.now()
        until = anyio.current_time() + left
        return Bearer(proof.client.name, frozenset({SCOPE}), proof.key, about, until)

    def _unknown(self, error: UnknownKeyError, target: Target) -> HttpError:
        """Return the answer to a token with an unknown key, which may be valid."""
        if not (self.keys.is_failing or self.keys.may_change):
            return self._bad(str(error), target)
        seconds = "1" if self.keys.may_change else str(max(1, ceil(self.keys.cool_down)))
        message = f"{error}, and its keys cannot be fetched at the moment"
        return HttpError(503, UNREACHABLE, message, headers={"retry-after": seconds})

    def _bad(self, message: str, target: Target) -> HttpError:
        return self._refusal(401, "invalid_token", message, target, self._usual_scopes())

    def _usual_scopes(self) -> Sequence[str]:
        """Return the scopes that a client is told to request first."""
        named = self._settings.scopes
        return _scopes_of(self._clients.scoped[:1]) if named is None else named

    def _refusal(
        self, status: int, error: str, message: str, target: Target, scopes: Sequence[str]
    ) -> HttpError:
        """Return an answer with a challenge; without a token the challenge has no error."""
        about = {"resource_metadata": resource_places(self._resource(target))[0]}
        if error != "unauthorized":
            about = {"error": error, "error_description": message, **about}
        if scopes:
            about["scope"] = " ".join(scopes)
        fields = ", ".join(f'{name}="{_quotable(value)}"' for name, value in about.items())
        return HttpError(status, error, message, headers={"www-authenticate": f"Bearer {fields}"})

    def _resource(self, target: Target) -> str:
        """Return the URL of this server as the client wrote it, without a slash at its end."""
        if self._settings.resource is not None:
            return canonical_resource(self._settings.resource)
        path = target.path if target.path in self._paths else self._paths[0]
        host = target.host if _HOST.fullmatch(target.host) else "localhost"
        scheme = "https" if target.is_tls or self._behind_proxy else "http"
        return canonical_resource(f"{scheme}://{host}{path}")


async def open_resource_server(
    settings: AuthSettings,
    clients: Clients,
    clock: Clock,
    tell: Tell,
    *,
    paths: Sequence[str],
    behind_proxy: bool,
) -> ResourceServer:
    """Fetch the issuer's metadata and keys.

    Raises:
        UnavailableError: it does not answer as an issuer does.
    """
    named = () if settings.jwks is None else (settings.jwks,)
    client = OAuthClient(settings.issuer, named=named, own_authorities=True)
    issuer = await _find_issuer(client, settings, tell)
    url = settings.jwks or issuer.jwks_uri
    if url is None:
        message = f"the metadata of `{quote(issuer.issuer)}` names no keys (`jwks_uri`)"
        raise UnavailableError(message, where=_WHERE, hint="name them as `jwks`")
    keys = IssuerKeys(client, url, clock, partial(_report_keys, tell, issuer.issuer))
    try:
        await keys.fetch()
    except LoginError as error:
        message = f"the keys of the issuer cannot be fetched: {error}"
        raise UnavailableError(message, where=_WHERE) from error
    lacking = [one for one in _scopes_of(clients.scoped) if one not in issuer.scopes]
    if issuer.scopes and lacking:
        text = f"`{quote(issuer.issuer)}` does not list the scopes {backticked(lacking)}"
        tell("warning", "issuer_scopes", f"{text}, which `serve.clients` needs")
    return ResourceServer(
        settings, issuer, keys, clients, clock, paths=paths, behind_proxy=behind_proxy
    )


async def _find_issuer(client: OAuthClient, settings: AuthSettings, tell: Tell) -> IssuerMetadata:
    def notice(code: str, text: str) -> None:
        tell("info", code, text)

    named = settings.issuer
    try:
        found = await find_issuer_metadata(
            client, named, notice, hint="`jwks` names its keys", any_slash=True
        )
    except LoginError as error:
        if settings.jwks is None:
            raise UnavailableError(str(error), where=_WHERE) from error
        text = f"{error}; clients are sent to `{named}`, as it is written"
        tell("warning", "issuer_metadata", text)
        return IssuerMetadata(named, "")
    if found.issuer != named:
        text = f"the issuer calls itself `{quote(found.issuer)}`, and the file `{named}`"
        tell("warning", "issuer_slash", f"{text}: tokens need the former as `iss`")
    return found


def _report_keys(tell: Tell, issuer: str, failure: str | None) -> None:
    if failure is None:
        tell("info", "issuer_keys", f"the keys of `{quote(issuer)}` can be fetched again")
    else:
        text = f"the keys of `{quote(issuer)}` cannot be fetched: {failure}"
        tell("warning", UNREACHABLE, f"{text}; tokens of known keys are taken as before")


def _name_of(token: AccessToken) -> str:
    """Return the name of a client: the subject, and its program if that is another one."""
    names = dict.fromkeys(name for name in (token.subject, token.client_id) if name)
    return OF_ISSUER + "/".join(percent_encoded(name, safe=_PLAIN) for name in names)


def _scopes_of(entries: Iterable[ServeClient]) -> Sequence[str]:
    return list(dict.fromkeys(scope for entry in entries for scope in entry.scopes or ()))


def _path_of(url: str) -> str:
    return urlsplit(canonical_resource(url)).path


def _quotable(text: str) -> str:
    """Return a text for the quoted string of a header."""
    return _NOT_QUOTED.sub("?", text.replace('"', "'"))
