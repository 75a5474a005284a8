"""The official SDK's MCP server behind an authorization server made with authlib, in one process.

    python tests/support/oauth_peer_server.py PORT PUBLIC_KEY

Both are strict: the SDK compares the resource and the scopes of a token, authlib the proof of a
client. The public key of the client `with-a-key` is the file named; `with-a-secret` has SECRET.
Persons log in at `/authorize`, which asks them nothing, with clients that register by themselves;
refresh tokens are used once.
"""

import json
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import quote_plus

import uvicorn
from authlib.oauth2.rfc6749 import AuthorizationServer, ClientMixin, OAuth2Request, grants
from authlib.oauth2.rfc6749.requests import BasicOAuth2Payload, JsonPayload, JsonRequest
from authlib.oauth2.rfc7523 import JWTBearerClientAssertion
from authlib.oauth2.rfc7591 import ClientRegistrationEndpoint
from authlib.oauth2.rfc7636 import CodeChallenge
from joserfc.jwk import ECKey
from mcp.server import MCPServer
from mcp.server.auth.provider import AccessToken
from mcp.server.auth.settings import AuthSettings
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

PORT, KEY = int(sys.argv[1]), Path(sys.argv[2])
ORIGIN = f"http://127.0.0.1:{PORT}"
SCOPES = ["notes:read"]
tokens: dict[str, AccessToken] = {}


class Client(ClientMixin):  # type: ignore[misc]  # authlib has no types
    """A registered client; `secret` is empty for that with a key, `redirects` are a person's."""

    def __init__(
        self, client_id: str, secret: str, method: str, redirects: tuple[str, ...] = ()
    ) -> None:
        self.client_id, self.secret, self.method = client_id, secret, method
        self.redirects = redirects

    def get_client_id(self) -> str:
        return self.client_id

    def get_allowed_scope(self, scope: str | None) -> str:
        return " ".join(one for one in (scope or "").split() if one in {*SCOPES, "notes:write"})

    def check_client_secret(self, secret: str) -> bool:
        return secret == self.secret

    def check_endpoint_auth_method(self, method: str, endpoint: str) -> bool:
        return method == self.method and endpoint == "token"

    def check_grant_type(self, grant_type: str) -> bool:
        return (grant_type == "client_credentials") != bool(self.redirects)

    def check_redirect_uri(self, url: str) -> bool:
        return url in self.redirects

    def check_response_type(self, kind: str) -> bool:
        return kind == "code" and bool(self.redirects)


CLIENTS = {
    client.client_id: client
    for client in (
        Client("with-a-secret", os.environ["SECRET"], "client_secret_basic"),
        Client("with-a-key", "", "private_key_jwt"),
    )
}


class TokenRequest(OAuth2Request):  # type: ignore[misc]  # authlib has no types
    def __init__(self, form: dict[str, str], headers: dict[str, str]) -> None:
        super().__init__("POST", f"{ORIGIN}/token", headers=headers)
        self.payload = BasicOAuth2Payload(form)

    @property
    def form(self) -> dict[str, str]:
        found: dict[str, str] = self.payload.data
        return found


class Issuer(AuthorizationServer):  # type: ignore[misc]  # authlib has no types
    def query_client(self, client_id: str) -> Client | None:
        return CLIENTS.get(client_id)

    def save_token(self, token: dict[str, Any], request: OAuth2Request) -> None:
        if "refresh_token" in token:
            refreshing[token["refresh_token"]] = Credential(
                request.client.client_id, token.get("scope", "")
            )
        tokens[token["access_token"]] = AccessToken(
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

    def get_audiences(self) -> list[str]:
        return [ORIGIN]

    def validate_jti(self, claims: dict[str, Any], jti: str) -> bool:
        is_new = jti not in self.seen
        self.seen.add(jti)
        return is_new

    def resolve_client_public_key(self, client: Client) -> ECKey:
        return ECKey.import_key(KEY.read_text("ascii"))


class Grant(grants.ClientCredentialsGrant):  # type: ignore[misc]  # authlib has no types
    TOKEN_ENDPOINT_AUTH_METHODS: ClassVar = ["client_secret_basic", "private_key_jwt"]


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


codes: dict[str, Credential] = {}
refreshing: dict[str, Credential] = {}


class CodeGrant(grants.AuthorizationCodeGrant):  # type: ignore[misc]  # authlib has no types
    TOKEN_ENDPOINT_AUTH_METHODS: ClassVar = ["none"]

    def save_authorization_code(self, code: str, request: OAuth2Request) -> None:
        asked = request.payload.data
        challenge = (asked["code_challenge"], asked["code_challenge_method"])
        codes[code] = Credential(
            request.client.client_id, request.scope, asked["redirect_uri"], *challenge
        )

    def query_authorization_code(self, code: str, client: Client) -> Credential | None:
        found = codes.get(code)
        return found if found is not None and found.check_client(client) else None

    def delete_authorization_code(self, code: Credential) -> None:
        codes.pop(self.request.form["code"])

    def authenticate_user(self, _: Credential) -> str:
        return "ada"


class RenewalGrant(grants.RefreshTokenGrant):  # type: ignore[misc]  # authlib has no types
    TOKEN_ENDPOINT_AUTH_METHODS: ClassVar = ["none"]
    INCLUDE_NEW_REFRESH_TOKEN = True

    def authenticate_refresh_token(self, token: str) -> Credential | None:
        return refreshing.get(token)

    def authenticate_user(self, _: Credential) -> str:
        return "ada"

    def revoke_old_credential(self, _: Credential) -> None:
        refreshing.pop(self.request.form["refresh_token"])


class Registration(ClientRegistrationEndpoint):  # type: ignore[misc]  # authlib has no types
    def authenticate_token(self, _: JsonRequest) -> str:
        return "anybody"

    def get_server_metadata(self) -> dict[str, Any]:
        return metadata()

    def save_client(self, info: dict[str, Any], asked: dict[str, Any], _: JsonRequest) -> Client:
        method, redirects = asked["token_endpoint_auth_method"], tuple(asked["redirect_uris"])
        client = Client(info["client_id"], info["client_secret"], method, redirects)
        CLIENTS[client.client_id] = client
        return client


def make_token(
    *_: object, scope: str | None = None, include_refresh_token: bool = False, **__: object
) -> dict[str, Any]:
    made = {"token_type": "Bearer", "access_token": os.urandom(16).hex(), "expires_in": 600}
    if include_refresh_token:
        made["refresh_token"] = os.urandom(16).hex()
    return made | ({"scope": scope} if scope else {})


issuer = Issuer(scopes_supported=[*SCOPES, "notes:write"])
issuer.register_grant(Grant)
issuer.register_grant(CodeGrant, [CodeChallenge(required=True)])
issuer.register_grant(RenewalGrant)
issuer.register_endpoint(Registration)
issuer.register_client_auth_method("private_key_jwt", Assertion())
issuer.register_token_generator("default", make_token)


async def token(request: Request) -> Response:
    body = {name: str(value) for name, value in (await request.form()).items()}
    headers = {name.title(): value for name, value in request.headers.items()}
    answer: Response = issuer.create_token_response(TokenRequest(body, headers))
    return answer


async def authorize(request: Request) -> Response:  # ruff: ignore[unused-async] - a route
    asked = TokenRequest(dict(request.query_params), {})
    grant = issuer.get_consent_grant(asked, "ada")
    answer: Response = issuer.create_authorization_response(asked, "ada", grant)
    answer.headers["location"] += f"&iss={quote_plus(ORIGIN)}"
    return answer


async def register(request: Request) -> Response:
    asked = JsonRequest("POST", f"{ORIGIN}/register")
    asked.payload = JsonBody(await request.json())
    answer: Response = issuer.create_endpoint_response(Registration.ENDPOINT_NAME, asked)
    return answer


class JsonBody(JsonPayload):  # type: ignore[misc]  # authlib has no types
    def __init__(self, data: dict[str, Any]) -> None:
        self._data = data

    @property
    def data(self) -> dict[str, Any]:
        return self._data


async def describe(_: Request) -> Response:  # ruff: ignore[unused-async] - a route
    return JSONResponse(metadata())


def metadata() -> dict[str, Any]:
    return {
        "issuer": ORIGIN,
        "authorization_endpoint": f"{ORIGIN}/authorize",
        "registration_endpoint": f"{ORIGIN}/register",
        "token_endpoint": f"{ORIGIN}/token",
        "code_challenge_methods_supported": ["S256"],
        "authorization_response_iss_parameter_supported": True,
        "grant_types_supported": ["client_credentials", "authorization_code", "refresh_token"],
        "response_types_supported": ["code"],
        "token_endpoint_auth_methods_supported": [*Grant.TOKEN_ENDPOINT_AUTH_METHODS, "none"],
        "token_endpoint_auth_signing_alg_values_supported": ["ES256"],
    }


class Verifier:
    async def verify_token(self, token: str) -> AccessToken | None:
        return tokens.get(token)


server = MCPServer(
    "guarded",
    log_level="WARNING",
    token_verifier=Verifier(),
    auth=AuthSettings.model_validate(
        {
            "issuer_url": ORIGIN,
            "resource_server_url": f"{ORIGIN}/mcp",
            "required_scopes": SCOPES,
            "validate_token_resource": True,
        }
    ),
)


@server.tool()
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


if __name__ == "__main__":
    # authlib refuses what is not https, and this is this machine.
    os.environ["AUTHLIB_INSECURE_TRANSPORT"] = "1"
    app = server.streamable_http_app()
    app.routes.extend(
        [
            Route("/token", token, methods=["POST"]),
            Route("/authorize", authorize),
            Route("/register", register, methods=["POST"]),
            Route("/.well-known/oauth-authorization-server", describe),
        ]
    )
    uvicorn.run(app, port=PORT, log_level="warning")
