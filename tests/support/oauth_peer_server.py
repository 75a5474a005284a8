"""The official SDK's MCP servers behind authorization servers made with authlib, in one process.

    python tests/support/oauth_peer_server.py PUBLIC_KEY SOCKET=SET_UP…

`SET_UP` is the name of a row of `oauth_setups.py`, SOCKET the descriptor of one that listens. All
are strict: the SDK compares the resource and the scopes of a token, authlib the proof of a client.
The public key of the client `with-a-key` is the file named; `with-a-secret` has SECRET. Persons log
in at `/authorize`, which asks them nothing, with clients that register by themselves; refresh
tokens are used once. With AUDIENCE, another server, tokens are JWTs for that; the programs `reader`
and `writer` have SECRET too, and `reader` gets `notes:read` only.
"""

import asyncio
import json
import os
import socket
import sys
import time
from base64 import b64decode
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import quote_plus, unquote_plus

import uvicorn
from authlib.oauth2.rfc6749 import AuthorizationServer, ClientMixin, OAuth2Request, grants
from authlib.oauth2.rfc6749.requests import BasicOAuth2Payload, JsonPayload, JsonRequest
from authlib.oauth2.rfc7523 import JWTBearerClientAssertion
from authlib.oauth2.rfc7591 import ClientRegistrationEndpoint, InvalidClientMetadataError
from authlib.oauth2.rfc7636 import CodeChallenge
from authlib.oauth2.rfc9068 import JWTBearerTokenGenerator
from joserfc.jwk import ECKey, RSAKey
from mcp.server import MCPServer
from mcp.server.auth.provider import AccessToken
from mcp.server.auth.settings import AuthSettings
from oauth_setups import OTHERS, SET_UPS, USUAL, SetUp, spell
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

KEY = Path(sys.argv[1])
AUDIENCE = os.environ.get("AUDIENCE", "")
SIGNING = RSAKey.generate_key(2048, {"kid": "of-today", "use": "sig", "alg": "RS256"})
SCOPES = ["notes:read"]
RESOURCE = "/.well-known/oauth-protected-resource/mcp"


class Client(ClientMixin):  # type: ignore[misc]  # authlib has no types
    """A registered client, which proves itself by any of `methods`; `redirects` are a person's."""

    def __init__(
        self,
        client_id: str,
        secret: str,
        methods: tuple[str, ...],
        redirects: tuple[str, ...] = (),
    ) -> None:
        self.client_id, self.secret, self.methods = client_id, secret, methods
        self.redirects = redirects

    def get_client_id(self) -> str:
        return self.client_id

    def get_allowed_scope(self, scope: str | None) -> str:
        own = {*SCOPES} if self.client_id == "reader" else {*SCOPES, "notes:write"}
        return " ".join(one for one in (scope or "").split() if one in own)

    def check_client_secret(self, secret: str) -> bool:
        return secret == self.secret

    def check_endpoint_auth_method(self, method: str, endpoint: str) -> bool:
        return method in self.methods and endpoint == "token"

    def check_grant_type(self, grant_type: str) -> bool:
        return (grant_type == "client_credentials") != bool(self.redirects)

    def check_redirect_uri(self, url: str) -> bool:
        return url in self.redirects

    def check_response_type(self, kind: str) -> bool:
        return kind == "code" and bool(self.redirects)


@dataclass
class Credential:
    """A code or a refresh token."""

    client_id: str
    scope: str
    redirect: str = ""
    code_challenge: str = ""
    code_challenge_method: str = ""

    def get_redirect_uri(self) -> str:
        return self.redirect

    def get_scope(self) -> str:
        return self.scope

    def check_client(self, client: Client) -> bool:
        return client.client_id == self.client_id


@dataclass
class Site:
    """An authorization server as it is set up, and what it has issued."""

    set_up: SetUp
    port: int
    tokens: dict[str, AccessToken] = field(default_factory=dict)
    codes: dict[str, Credential] = field(default_factory=dict)
    refreshing: dict[str, Credential] = field(default_factory=dict)
    clients: dict[str, Client] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.origin = f"http://127.0.0.1:{self.port}"
        self.issuer = spell(self.set_up.issuer, self.origin)
        for client in (
            Client("with-a-secret", os.environ["SECRET"], self.set_up.takes),
            Client("with-a-key", "", ("private_key_jwt",)),
            Client("reader", os.environ["SECRET"], self.set_up.takes),
            Client("writer", os.environ["SECRET"], self.set_up.takes),
        ):
            self.clients[client.client_id] = client

    def metadata(self) -> dict[str, Any]:
        methods = self.set_up.methods
        return {
            "issuer": self.issuer,
            "authorization_endpoint": f"{self.origin}/authorize",
            "token_endpoint": f"{self.origin}/token",
            "code_challenge_methods_supported": ["S256"],
            "authorization_response_iss_parameter_supported": True,
            "grant_types_supported": ["client_credentials", "authorization_code", "refresh_token"],
            "response_types_supported": ["code"],
            "token_endpoint_auth_methods_supported": None if methods is None else [*methods],
            "token_endpoint_auth_signing_alg_values_supported": ["ES256"],
            "registration_endpoint": f"{self.origin}/register",
            "jwks_uri": f"{self.origin}/jwks",
        }


class TokenRequest(OAuth2Request):  # type: ignore[misc]  # authlib has no types
    def __init__(self, form: dict[str, str], headers: dict[str, str]) -> None:
        super().__init__("POST", "https://issuer.test/token", headers=headers)
        self.payload = BasicOAuth2Payload(form)

    @property
    def form(self) -> dict[str, str]:
        found: dict[str, str] = self.payload.data
        return found


class Issuer(AuthorizationServer):  # type: ignore[misc]  # authlib has no types
    site: Site

    def query_client(self, client_id: str) -> Client | None:
        return self.site.clients.get(client_id)

    def save_token(self, token: dict[str, Any], request: OAuth2Request) -> None:
        if "refresh_token" in token:
            self.site.refreshing[token["refresh_token"]] = Credential(
                request.client.client_id, token.get("scope", "")
            )
        self.site.tokens[token["access_token"]] = AccessToken(
            token=token["access_token"],
            client_id=request.client.client_id,
            scopes=token.get("scope", "").split(),
            expires_at=int(time.time()) + token["expires_in"],
            resource=request.form.get("resource"),
        )

    def create_oauth2_request(self, request: OAuth2Request) -> OAuth2Request:
        return request

    def create_json_request(self, request: JsonRequest) -> JsonRequest:
        return request

    def handle_response(self, status: int, body: Any, headers: Any) -> Response:
        text = body if isinstance(body, str) else json.dumps(body)
        return Response(text, status, dict(headers))

    def send_signal(self, name: str, *args: object, **kwargs: object) -> None:
        """Tell nobody."""


class Assertion(JWTBearerClientAssertion):  # type: ignore[misc]  # authlib has no types
    CLIENT_AUTH_METHOD = "private_key_jwt"
    seen: ClassVar[set[str]] = set()
    audience: str

    def get_audiences(self) -> list[str]:
        return [self.audience]

    def validate_jti(self, claims: dict[str, Any], jti: str) -> bool:
        is_new = jti not in self.seen
        self.seen.add(jti)
        return is_new

    def resolve_client_public_key(self, client: Client) -> ECKey:
        return ECKey.import_key(KEY.read_text("ascii"))


BY_SECRET = ("client_secret_basic", "client_secret_post")


class Grant(grants.ClientCredentialsGrant):  # type: ignore[misc]  # authlib has no types
    TOKEN_ENDPOINT_AUTH_METHODS: ClassVar = [*BY_SECRET, "private_key_jwt"]


class CodeGrant(grants.AuthorizationCodeGrant):  # type: ignore[misc]  # authlib has no types
    TOKEN_ENDPOINT_AUTH_METHODS: ClassVar = ["none", *BY_SECRET]

    def save_authorization_code(self, code: str, request: OAuth2Request) -> None:
        asked = request.payload.data
        challenge = (asked["code_challenge"], asked["code_challenge_method"])
        self.server.site.codes[code] = Credential(
            request.client.client_id, request.scope, asked["redirect_uri"], *challenge
        )

    def query_authorization_code(self, code: str, client: Client) -> Credential | None:
        found: Credential | None = self.server.site.codes.get(code)
        return found if found is not None and found.check_client(client) else None

    def delete_authorization_code(self, code: Credential) -> None:
        self.server.site.codes.pop(self.request.form["code"])

    def authenticate_user(self, _: Credential) -> "User":
        return User()


class User:
    """Who logs in."""

    def get_user_id(self) -> str:
        return "ada"


class RenewalGrant(grants.RefreshTokenGrant):  # type: ignore[misc]  # authlib has no types
    TOKEN_ENDPOINT_AUTH_METHODS: ClassVar = ["none", *BY_SECRET]
    INCLUDE_NEW_REFRESH_TOKEN = True

    def authenticate_refresh_token(self, token: str) -> Credential | None:
        found: Credential | None = self.server.site.refreshing.get(token)
        return found

    def authenticate_user(self, _: Credential) -> "User":
        return User()

    def revoke_old_credential(self, _: Credential) -> None:
        self.server.site.refreshing.pop(self.request.form["refresh_token"])


class Registration(ClientRegistrationEndpoint):  # type: ignore[misc]  # authlib has no types
    def authenticate_token(self, _: JsonRequest) -> str:
        return "anybody"

    def get_server_metadata(self) -> dict[str, Any]:
        metadata: dict[str, Any] = self.server.site.metadata()
        return metadata

    def extract_client_metadata(self, request: JsonRequest) -> dict[str, Any]:
        if "scope" in request.payload.data and not AUDIENCE:
            raise InvalidClientMetadataError("scopes are not registered here")
        found: dict[str, Any] = super().extract_client_metadata(request)
        return found

    def save_client(self, info: dict[str, Any], asked: dict[str, Any], _: JsonRequest) -> Client:
        site: Site = self.server.site
        methods: tuple[str, ...] = (asked["token_endpoint_auth_method"],)
        if site.set_up.gives_secret:
            methods = site.set_up.takes
            asked.update(token_endpoint_auth_method=None, jwks_uri=None)
        redirects = tuple(asked["redirect_uris"])
        client = Client(info["client_id"], info["client_secret"], methods, redirects)
        site.clients[client.client_id] = client
        return client


class JsonBody(JsonPayload):  # type: ignore[misc]  # authlib has no types
    def __init__(self, data: dict[str, Any]) -> None:
        self._data = data

    @property
    def data(self) -> dict[str, Any]:
        return self._data


def read_basic(query: Callable[[str], Client | None], request: OAuth2Request) -> Client | None:
    """The client of a header whose words are encoded for a form, which authlib does not decode."""
    scheme, _, value = request.headers.get("Authorization", "").partition(" ")
    if scheme != "Basic":
        return None
    client_id, _, secret = b64decode(value).decode().partition(":")
    client = query(unquote_plus(client_id))
    return client if client is not None and client.secret == unquote_plus(secret) else None


class Jwts(JWTBearerTokenGenerator):  # type: ignore[misc]  # authlib has no types
    """Tokens that say themselves what they are good for."""

    def get_jwks(self) -> RSAKey:
        return SIGNING

    def get_audiences(self, _client: Client, _user: User | None, _scope: str) -> str:
        return AUDIENCE


def open_issuer(site: Site) -> Issuer:
    issuer = Issuer(scopes_supported=[*SCOPES, "notes:write"])
    issuer.site = site
    issuer.register_grant(Grant)
    issuer.register_grant(CodeGrant, [CodeChallenge(required=True)])
    issuer.register_grant(RenewalGrant)
    issuer.register_endpoint(Registration)
    assertion = Assertion()
    assertion.audience = spell(site.set_up.audience, site.origin)
    issuer.register_client_auth_method("private_key_jwt", assertion)
    if site.set_up.decodes:
        issuer.register_client_auth_method("client_secret_basic", read_basic)

    def make_token(
        *_: object, scope: str | None = None, include_refresh_token: bool = False, **__: object
    ) -> dict[str, Any]:
        made = {"token_type": "Bearer", "access_token": os.urandom(16).hex(), "expires_in": 600}
        if include_refresh_token and site.set_up.refreshes:
            made["refresh_token"] = os.urandom(16).hex()
        return made | ({"scope": scope} if scope else {})

    issuer.register_token_generator("default", Jwts(site.issuer) if AUDIENCE else make_token)
    return issuer


class Verifier:
    def __init__(self, site: Site) -> None:
        self._site = site

    async def verify_token(self, token: str) -> AccessToken | None:
        return self._site.tokens.get(token)


def open_server(site: Site) -> Starlette:
    """The MCP server of a site."""
    auth = {
        "issuer_url": site.origin,
        "resource_server_url": f"{site.origin}/mcp",
        "required_scopes": SCOPES,
        "validate_token_resource": True,
    }
    server = MCPServer(
        "guarded",
        log_level="WARNING",
        token_verifier=Verifier(site),
        auth=AuthSettings.model_validate(auth),
    )

    @server.tool()
    def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    app: Starlette = server.streamable_http_app()
    return app


def app_of(site: Site) -> Starlette:
    """All of a site: its issuer, its server, and the documents of both."""
    issuer, app = open_issuer(site), open_server(site)

    async def token(request: Request) -> Response:
        body = {name: str(value) for name, value in (await request.form()).items()}
        headers = {name.title(): value for name, value in request.headers.items()}
        answer: Response = issuer.create_token_response(TokenRequest(body, headers))
        return answer

    async def authorize(request: Request) -> Response:  # ruff: ignore[unused-async] - a route
        asked = TokenRequest(dict(request.query_params), {})
        grant = issuer.get_consent_grant(asked, User())
        answer: Response = issuer.create_authorization_response(asked, User(), grant)
        answer.headers["location"] += f"&iss={quote_plus(site.issuer)}"
        return answer

    async def register(request: Request) -> Response:
        asked = JsonRequest("POST", "https://issuer.test/register")
        asked.payload = JsonBody(await request.json())
        answer: Response = issuer.create_endpoint_response(Registration.ENDPOINT_NAME, asked)
        return answer

    async def keys(_: Request) -> Response:  # ruff: ignore[unused-async] - a route
        return JSONResponse({"keys": [SIGNING.as_dict(private=False)]})

    async def describe(_: Request) -> Response:  # ruff: ignore[unused-async] - a route
        return JSONResponse(site.metadata())

    async def describe_resource(_: Request) -> Response:  # ruff: ignore[unused-async] - a route
        listed = spell(site.set_up.listed or "", site.origin)
        fields = {"resource": f"{site.origin}/mcp", "authorization_servers": [listed]}
        return JSONResponse({**fields, "scopes_supported": SCOPES}, 200 if listed else 404)

    routes = [
        Route("/token", token, methods=["POST"]),
        Route("/authorize", authorize),
        Route("/jwks", keys),
        Route("/register", register, methods=["POST"]),
        Route(site.set_up.place, describe),
    ]
    if site.set_up.listed is not None:
        routes.append(Route(RESOURCE, describe_resource))
    app.routes[:0] = routes
    return app


class Sites:
    """One application for all ports."""

    def __init__(self, apps: dict[int, Starlette]) -> None:
        self._apps = apps
        self._lifespan = Starlette(lifespan=self._open)

    @asynccontextmanager
    async def _open(self, _: Starlette) -> AsyncGenerator[None]:
        async with AsyncExitStack() as stack:
            for app in self._apps.values():
                await stack.enter_async_context(app.router.lifespan_context(app))
            yield

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self._lifespan if scope["type"] == "lifespan" else self._apps[scope["server"][1]]
        await app(scope, receive, send)


if __name__ == "__main__":
    # authlib refuses what is not https, and this is this machine.
    os.environ["AUTHLIB_INSECURE_TRANSPORT"] = "1"
    known = {set_up.name: set_up for set_up in (USUAL, *SET_UPS, *OTHERS)}
    named = (word.partition("=") for word in sys.argv[2:])
    opened = {socket.socket(fileno=int(number)): known[name] for number, _, name in named}
    sites = [Site(set_up, one.getsockname()[1]) for one, set_up in opened.items()]
    apps = {site.port: app_of(site) for site in sites}
    server = uvicorn.Server(uvicorn.Config(Sites(apps), log_level="warning"))
    asyncio.run(server.serve([*opened]))
