"""A scripted authorization server, and an MCP server behind it; both are real HTTP servers.

with AuthorizationServer() as issuer, guarded(issuer) as server: ...
"""

import json
from base64 import b64decode
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, unquote_plus

from mcp_emulators import Handler, Legacy, McpEndpoint
from model_endpoint import Recorded, Reply, json_reply

OAUTH = "/.well-known/oauth-authorization-server"
OPENID = "/.well-known/openid-configuration"
RESOURCE = "/.well-known/oauth-protected-resource"
NOT_FOUND = json_reply(404, {"error": "not_found"})
CLIENT, SECRET = "the-nightly-review", "a secret: with + and % in it"
Form = Mapping[str, str]


def origin_of(request: Recorded) -> str:
    """The origin under which a server was asked."""
    return f"http://{request.headers['host']}"


def token_answer(value: str = "the-first-token", **fields: Any) -> Reply:
    """What a token endpoint says; a field of `None` is left out."""
    said = {"access_token": value, "token_type": "Bearer", "expires_in": 3600, **fields}
    return json_reply(200, {name: one for name, one in said.items() if one is not None})


def refusal(error: str, description: str = "", status: int = 400) -> Reply:
    """A refusal of a token endpoint."""
    said = {"error_description": description} if description else {}
    return json_reply(status, {"error": error, **said})


class AuthorizationServer(McpEndpoint):
    """Has its metadata at `places`, and answers forms by `answer`, else with tokens in a row.

    `path` is that of the issuer; `metadata` changes fields of the document, and `None` drops one.
    """

    def __init__(
        self,
        *,
        path: str = "",
        places: Sequence[str] | None = None,
        answer: Callable[[Form], Reply] | None = None,
        others: Mapping[str, Reply] | None = None,
        **metadata: Any,
    ) -> None:
        super().__init__(self._handle)
        self.path = path
        self.places = [f"{OAUTH}{path}"] if places is None else places
        self.answer = answer
        self.others = others or {}
        self.metadata = metadata

    @property
    def issuer(self) -> str:
        return f"{self.origin}{self.path}"

    @property
    def posts(self) -> list[Recorded]:
        """The requests to the token endpoint."""
        return [one for one in self.requests if one.method == "POST"]

    @property
    def forms(self) -> list[Form]:
        """Their forms."""
        return [dict(parse_qsl(one.body.decode())) for one in self.posts]

    @property
    def asked_for(self) -> list[str]:
        """The paths of the requests for documents."""
        return [one.path for one in self.requests if one.method == "GET"]

    def document(self) -> dict[str, Any]:
        found = {
            "issuer": self.issuer,
            "token_endpoint": f"{self.origin}/token",
            "grant_types_supported": ["client_credentials"],
            **self.metadata,
        }
        return {name: value for name, value in found.items() if value is not None}

    def _handle(self, request: Recorded) -> Reply:
        if request.method == "POST":
            if self.answer is not None:
                return self.answer(dict(parse_qsl(request.body.decode())))
            return token_answer(f"token-number-{len(self.posts)}")
        if request.path in self.others:
            return self.others[request.path]
        return json_reply(200, self.document()) if request.path in self.places else NOT_FOUND


def basic_of(request: Recorded, *, encoded: bool = True) -> tuple[str, str]:
    """The id and the secret in the header of a request."""
    scheme, _, value = request.headers["authorization"].partition(" ")
    assert scheme == "Basic"
    client, _, secret = b64decode(value).decode().partition(":")
    return (unquote_plus(client), unquote_plus(secret)) if encoded else (client, secret)


@dataclass
class Guard:
    """What guards a handler: which token it takes, and how it refuses.

    `issuers` are those that its metadata lists. `refuse` gets the token of a request, empty if
    there is none, and the request.
    """

    issuers: Sequence[str]
    inner: Handler = field(default_factory=Legacy)
    refuse: Callable[[str, Recorded], Reply | None] | None = None
    resource: str = "/mcp"
    challenge: str = ""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    places: Sequence[str] = (f"{RESOURCE}/mcp",)

    def __call__(self, request: Recorded) -> Reply:
        if request.path.startswith("/.well-known/"):
            return self._describe(request)
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        assert scheme in {"", "Bearer"}
        refused = self._refuse(token, request)
        return self.inner(request) if refused is None else refused

    def _describe(self, request: Recorded) -> Reply:
        if request.path not in self.places:
            return NOT_FOUND
        document = {
            "resource": f"{origin_of(request)}{self.resource}",
            "authorization_servers": list(self.issuers),
            **self.metadata,
        }
        return json_reply(200, document)

    def _refuse(self, token: str, request: Recorded) -> Reply | None:
        if self.refuse is not None:
            return self.refuse(token, request)
        return None if token else unauthorized(self.challenge)


def unauthorized(challenge: str = "") -> Reply:
    """401, with a challenge if it has one."""
    headers = {"www-authenticate": challenge} if challenge else {}
    return json_reply(401, {"error": "unauthorized"}, headers)


def forbidden(challenge: str = "", body: Any = None) -> Reply:
    """403, with a challenge if it has one."""
    headers = {"www-authenticate": challenge} if challenge else {}
    return json_reply(403, body or {"detail": "forbidden"}, headers)


@contextmanager
def protected_server() -> Generator[str]:
    """The URL of a server behind an issuer, both of this process."""
    with AuthorizationServer() as issuer:
        guard = Guard([issuer.issuer], metadata={"scopes_supported": ["notes:read"]})
        with McpEndpoint(guard) as server:
            yield server.url


def claims_of(jwt: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The header and the claims of a JWT, not verified."""
    head, body = (json.loads(b64decode(part + "==", altchars=b"-_")) for part in jwt.split(".")[:2])
    return head, body
