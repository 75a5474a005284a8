"""Logging in to a server as a program does: a registry, an MCP server and its issuer, all real."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from mcp_emulators import Legacy, McpEndpoint, Modern
from mcp_scenes import Notices, http, play, registry
from model_endpoint import CUT, Gate, Recorded, Reply, json_reply
from oauth_servers import (
    CLIENT,
    NOT_FOUND,
    OAUTH,
    OPENID,
    RESOURCE,
    SECRET,
    AuthorizationServer,
    Guard,
    basic_of,
    claims_of,
    forbidden,
    refusal,
    token_answer,
    unauthorized,
)

from aish.mcp.transports.settings import ServerConnection
from aish.net.oauth.settings import Credentials, OAuthSettings

LACKS = 'Bearer error="insufficient_scope", scope="{}"'


def connection(url: str, secret: str | None = SECRET, **settings: Any) -> ServerConnection:
    plain = http(url)
    variable = None if secret is None else "CLIENT_SECRET"
    oauth = OAuthSettings(CLIENT, client_secret_env=variable, **settings)
    return ServerConnection(plain.entry, login=Credentials(oauth, secret))


def outcome(url: str, secret: str | None = SECRET, **settings: Any) -> tuple[str, Notices]:
    """What a call of the tool `add` comes to, or why there was no connection; the notices."""

    async def scene() -> tuple[str, Notices]:
        async with registry(connection(url, secret, **settings)) as s:
            failure = s.registry.failure("web")
            return failure or (await s.call("web__add", a=1, b=2)).content, s.notices

    found = play(scene)
    return found[0], found[1]


def tokens_of(server: McpEndpoint) -> list[str]:
    """The tokens with which its messages came, each once."""
    sent = (
        request.headers.get("authorization", "").removeprefix("Bearer ")
        for request in server.requests
        if request.method == "POST"
    )
    return list(dict.fromkeys(sent))


@pytest.mark.requirement("W18")
@pytest.mark.parametrize("era", [Legacy, Modern])
def test_a_program_logs_in_when_a_server_wants_it(era: Callable[[], Legacy]) -> None:
    with AuthorizationServer() as issuer:
        guard = Guard([issuer.issuer], era())
        with McpEndpoint(guard) as server:
            assert outcome(server.url)[0] == "3"
            assert tokens_of(server) == ["", "token-number-1"]
            assert issuer.forms == [{"grant_type": "client_credentials", "resource": server.url}]
            assert basic_of(issuer.posts[0]) == (CLIENT, SECRET)
            assert issuer.asked_for == [OAUTH]


def test_a_server_that_wants_no_token_is_asked_without_one() -> None:
    with AuthorizationServer() as issuer, McpEndpoint(Legacy()) as server:
        assert outcome(server.url, issuer=issuer.issuer)[0] == "3"
        assert tokens_of(server) == [""]
        assert issuer.requests == []


def test_the_metadata_is_where_the_challenge_says() -> None:
    with AuthorizationServer() as issuer:

        def refuse(token: str, request: Recorded) -> Reply | None:
            place = f"http://{request.headers['host']}/elsewhere"
            header = f'Negotiate, bearer realm="x", resource_metadata="{place}", scope="read all"'
            return None if token else unauthorized(header)

        def handle(request: Recorded) -> Reply:
            if request.path == "/elsewhere":
                request.path = f"{RESOURCE}/mcp"
            elif request.path.startswith(RESOURCE):
                return NOT_FOUND
            return guard(request)

        guard = Guard([issuer.issuer], refuse=refuse)
        with McpEndpoint(handle) as server:
            assert outcome(server.url)[0] == "3"
            assert issuer.forms[0]["scope"] == "read all"


@pytest.mark.parametrize(
    ("settings", "challenge", "metadata", "scope"),
    [
        ({}, "", {}, None),
        ({}, "", {"scopes_supported": ["a", "b"]}, "a b"),
        ({}, 'Bearer scope="c"', {"scopes_supported": ["a", "b"]}, "c"),
        ({"scopes": ("x", "y")}, 'Bearer scope="c"', {"scopes_supported": ["a"]}, "x y"),
        ({"scopes": ()}, 'Bearer scope="c"', {"scopes_supported": ["a"]}, None),
    ],
)
def test_the_scopes_are_those_of_the_file_else_of_the_challenge_else_of_the_document(
    settings: Any, challenge: str, metadata: Any, scope: str | None
) -> None:
    with AuthorizationServer() as issuer:
        guard = Guard([issuer.issuer], challenge=challenge, metadata=metadata)
        with McpEndpoint(guard) as server:
            assert outcome(server.url, **settings)[0] == "3"
            assert issuer.forms[0].get("scope") == scope


@pytest.mark.parametrize(
    ("path", "places", "asked", "codes"),
    [
        ("", [OPENID], [OAUTH, OPENID], []),
        ("/", [OAUTH], [OAUTH], []),
        ("/t", [f"{OPENID}/t"], [f"{OAUTH}/t", f"{OPENID}/t"], []),
        ("/t", [f"/t{OPENID}"], [f"{OAUTH}/t", f"{OPENID}/t", f"/t{OPENID}"], []),
        ("/t", [f"/t{OAUTH}"], [f"{OAUTH}/t", f"{OPENID}/t", f"/t{OPENID}", f"/t{OAUTH}"],
         ["oauth_metadata_place"]),
        ("/t", [OAUTH], [f"{OAUTH}/t", f"{OPENID}/t", f"/t{OPENID}", f"/t{OAUTH}", OAUTH],
         ["oauth_metadata_place"]),
    ],
)  # fmt: skip
def test_the_metadata_of_an_issuer_is_looked_for_in_order(
    path: str, places: list[str], asked: list[str], codes: list[str]
) -> None:
    with (
        AuthorizationServer(path=path, places=places) as issuer,
        McpEndpoint(Guard([issuer.issuer])) as server,
    ):
        found, notices = outcome(server.url)
    assert found == "3"
    assert issuer.asked_for == asked
    assert notices.codes == codes


@pytest.mark.parametrize(
    "odd",
    [
        json_reply(500, {}),
        Reply((b"<html>not here</html>",), 200, {"content-type": "text/html"}),
        Reply((b"{",), 200, {"content-type": "application/json"}),
        Reply((), 302, {"location": "https://elsewhere.invalid/"}),
        Reply((), 302, {"location": "http://[bad"}),
        json_reply(200, {"issuer": "https://honest.invalid", "token_endpoint": "https://x/t"}),
        Reply((CUT,)),
    ],
)
def test_a_place_without_usable_metadata_does_not_end_the_search(odd: Reply) -> None:
    with (
        AuthorizationServer(places=[OPENID], others={OAUTH: odd}) as issuer,
        McpEndpoint(Guard([issuer.issuer])) as server,
    ):
        assert outcome(server.url)[0] == "3"


def test_without_metadata_no_endpoint_is_guessed() -> None:
    with AuthorizationServer(places=[]) as issuer, McpEndpoint(Guard([issuer.issuer])) as server:
        found, _ = outcome(server.url)
    assert "has no metadata that can be used" in found
    assert issuer.posts == []
    assert issuer.asked_for == [OAUTH, OPENID]


@pytest.mark.parametrize("slash", ["/", ""])
def test_a_bare_issuer_may_be_spelled_with_and_without_a_slash(slash: str, tmp_path: Path) -> None:
    with AuthorizationServer() as issuer:
        issuer.metadata["issuer"] = issuer.origin + slash
        with McpEndpoint(Guard([issuer.origin + ("" if slash else "/")])) as server:
            key = write_key(tmp_path, ec.generate_private_key(ec.SECP256R1()))
            assert outcome(server.url, None, private_key_file=key)[0] == "3"
        # It is spelled as the issuer spells itself.
        _, claims = claims_of(issuer.forms[0]["client_assertion"])
        assert claims["aud"] == issuer.origin + slash


def write_key(folder: Path, key: Any) -> Path:
    pytest.importorskip("joserfc", reason="the extra `oauth` is not installed")
    file = folder / "client.pem"
    pem = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    file.write_bytes(key.private_bytes(*pem, serialization.NoEncryption()))
    return file


@pytest.mark.parametrize(
    ("make", "listed", "algorithm"),
    [
        (lambda: ec.generate_private_key(ec.SECP256R1()), None, "ES256"),
        (lambda: rsa.generate_private_key(65537, 2048), None, "RS256"),
        (lambda: rsa.generate_private_key(65537, 2048), ["ES256", "PS256"], "PS256"),
        (ed25519.Ed25519PrivateKey.generate, ["EdDSA"], "EdDSA"),
    ],
)
def test_a_key_signs_a_new_assertion_for_each_token(
    make: Callable[[], Any], listed: Any, algorithm: str, tmp_path: Path
) -> None:
    answers = [refusal("slow_down"), token_answer()]
    with (
        AuthorizationServer(
            answer=lambda _form: answers.pop(0),
            token_endpoint_auth_signing_alg_values_supported=listed,
        ) as issuer,
        McpEndpoint(Guard([issuer.issuer])) as server,
    ):
        key = write_key(tmp_path, make())
        for _ in range(2):
            outcome(server.url, None, private_key_file=key, key_id="k1")
    jwts = [claims_of(form["client_assertion"]) for form in issuer.forms]
    (header, claims), (_, other) = jwts
    assert header == {"alg": algorithm, "typ": "JWT", "kid": "k1"}
    assert (claims["iss"], claims["sub"], claims["aud"]) == (CLIENT, CLIENT, issuer.issuer)
    assert claims["exp"] - claims["iat"] == 60
    assert claims["jti"] != other["jti"]
    assert "nbf" not in claims
    assert "authorization" not in issuer.posts[0].headers


def test_an_assertion_may_be_meant_for_the_token_endpoint(tmp_path: Path) -> None:
    with AuthorizationServer() as issuer, McpEndpoint(Guard([issuer.issuer])) as server:
        key = write_key(tmp_path, ec.generate_private_key(ec.SECP256R1()))
        settings: Any = {"private_key_file": key, "assertion_audience": "token_url"}
        assert outcome(server.url, None, **settings)[0] == "3"
        _, claims = claims_of(issuer.forms[0]["client_assertion"])
        assert claims["aud"] == f"{issuer.origin}/token"


@pytest.mark.parametrize("text", ["", "no key", "{}", '{"kty": "oct", "k": "YQ"}', "[1]"])
def test_a_file_without_a_private_key_is_told(text: str, tmp_path: Path) -> None:
    pytest.importorskip("joserfc", reason="the extra `oauth` is not installed")
    key = tmp_path / "client.pem"
    key.write_text(text)
    with AuthorizationServer() as issuer, McpEndpoint(Guard([issuer.issuer])) as server:
        found, _ = outcome(server.url, None, private_key_file=key)
        assert found.startswith(f"the private key `{key}` cannot be used: it is no private key")
        assert issuer.posts == []


def test_a_key_that_the_issuer_does_not_take_is_told(tmp_path: Path) -> None:
    key = write_key(tmp_path, ec.generate_private_key(ec.SECP256R1()))
    listed = ["RS256"]
    with (
        AuthorizationServer(token_endpoint_auth_signing_alg_values_supported=listed) as issuer,
        McpEndpoint(Guard([issuer.issuer])) as server,
    ):
        found, _ = outcome(server.url, None, private_key_file=key)
    assert found.endswith("cannot be used: the server takes RS256")


def takes(place: str) -> Callable[[Recorded], bool]:
    """Whether a request proves itself at this place, as that kind of server reads it."""

    def check(request: Recorded) -> bool:
        if "authorization" not in request.headers:
            return place == "post"
        return place != "post" and basic_of(request, encoded=place == "basic") == (CLIENT, SECRET)

    return check


@pytest.mark.parametrize(
    ("server_reads", "methods", "token_auth", "tries"),
    [
        ("basic", None, None, 1),
        ("post", ["client_secret_post"], None, 1),
        ("post", None, "post", 1),
        ("basic-plain", ["client_secret_basic"], "basic-plain", 1),
        ("post", ["client_secret_basic", "client_secret_post"], None, 2),
    ],
)
def test_a_secret_is_proved_as_the_server_reads_it(
    server_reads: str, methods: Any, token_auth: Any, tries: int
) -> None:
    def answer(_form: Any) -> Reply:
        is_known = takes(server_reads)(issuer.posts[-1])
        return token_answer() if is_known else refusal("invalid_client", status=401)

    with (
        AuthorizationServer(answer=answer, token_endpoint_auth_methods_supported=methods) as issuer,
        McpEndpoint(Guard([issuer.issuer])) as server,
    ):
        assert outcome(server.url, token_auth=token_auth)[0] == "3"
    assert len(issuer.posts) == tries


def test_a_secret_is_never_sent_plain_unless_the_file_says_so() -> None:
    methods = ["client_secret_basic"]
    with (
        AuthorizationServer(
            answer=lambda _form: refusal("invalid_client", "unknown", 401),
            token_endpoint_auth_methods_supported=methods,
        ) as issuer,
        McpEndpoint(Guard([issuer.issuer])) as server,
    ):
        found, _ = outcome(server.url)
    assert len(issuer.posts) == 1
    assert found == (
        f"no token from `{issuer.origin}/token`: `invalid_client` (unknown); it does not know the"
        f" client `{CLIENT}` by this secret: see `client_id` and the variable `CLIENT_SECRET`, or"
        " set `token_auth` if it wants the secret elsewhere"
    )


def test_a_resource_that_the_issuer_does_not_know_is_left_out_only_if_the_file_says_so() -> None:
    def answer(form: Any) -> Reply:
        return refusal("invalid_target") if "resource" in form else token_answer()

    with (
        AuthorizationServer(answer=answer) as issuer,
        McpEndpoint(Guard([issuer.issuer])) as server,
    ):
        found, _ = outcome(server.url)
        assert f"the resource `{server.url}`" in found
        assert "`resource: false`" in found
        assert outcome(server.url, resource=False)[0] == "3"


def test_a_token_url_is_asked_without_looking_for_its_issuer() -> None:
    with AuthorizationServer(places=[]) as issuer, McpEndpoint(Guard([])) as server:
        assert outcome(server.url, token_url=f"{issuer.origin}/token")[0] == "3"
        assert issuer.asked_for == []
        assert issuer.forms[0]["resource"] == server.url


def test_a_server_of_2025_03_26_is_its_own_issuer() -> None:
    def handle(request: Recorded) -> Reply:
        if request.path in {OAUTH, "/token"}:
            issuer.port = server.port
            return issuer._handle(request)
        return guard(request)

    issuer, guard = AuthorizationServer(), Guard([], places=[])
    with McpEndpoint(handle) as server:
        found, notices = outcome(server.url)
        assert found == "3"
        assert notices.codes == ["oauth_own_origin"]


def test_the_first_of_several_issuers_is_asked_and_that_is_told() -> None:
    with (
        AuthorizationServer() as issuer,
        AuthorizationServer() as other,
        McpEndpoint(Guard([issuer.issuer, other.issuer])) as server,
    ):
        found, notices = outcome(server.url)
        assert found == "3"
        assert other.requests == []
        assert notices.codes == ["oauth_several_issuers"]
        assert outcome(server.url, issuer=other.issuer)[0] == "3"
        assert len(other.posts) == 1


# Tokens over time


def test_a_refused_token_is_renewed_once_for_all_who_wait() -> None:
    """Eight calls are under way when the first token becomes invalid."""
    gate = Gate(opens_at=8)

    def refuse(token: str, request: Recorded) -> Reply | None:
        is_call = request.method == "POST" and request.json.get("method") == "tools/call"
        if not token:
            return unauthorized()
        if is_call and token == "token-number-1":
            return unauthorized('Bearer error="invalid_token"').but(before_head=gate)
        return None

    with (
        AuthorizationServer() as issuer,
        McpEndpoint(Guard([issuer.issuer], refuse=refuse)) as server,
    ):

        async def scene() -> list[str]:
            found: list[str] = []
            async with registry(connection(server.url)) as s, anyio.create_task_group() as tasks:
                for number in range(8):

                    async def call(number: int = number) -> None:
                        found.append((await s.call("web__add", a=number, b=1)).content)

                    tasks.start_soon(call)
            return sorted(found)

        assert play(scene) == [str(number + 1) for number in range(8)]
        assert len(issuer.posts) == 2
        assert tokens_of(server) == ["", "token-number-1", "token-number-2"]


def test_a_token_that_is_refused_again_and_again_is_renewed_once_for_a_request() -> None:
    def refuse(token: str, _request: Recorded) -> Reply:
        said = 'Bearer error="invalid_token", error_description="the audience is wrong"'
        return unauthorized(said if token else "")

    with (
        AuthorizationServer() as issuer,
        McpEndpoint(Guard([issuer.issuer], refuse=refuse)) as server,
    ):
        found, _ = outcome(server.url)
        assert len(issuer.posts) == 1
        assert len(tokens_of(server)) == 2
    assert found == (
        "HTTP 401 `invalid_token` (the audience is wrong): the server refuses the token that"
        f" `{issuer.issuer}` has just issued; it was asked for with no scopes: see whether it is"
        " made for this server (`resource`), and who issues it (`issuer`)"
    )


@pytest.mark.parametrize("in_body", [False, True])
def test_scopes_that_a_call_needs_are_asked_for_beside_those_of_before(*, in_body: bool) -> None:
    def refuse(token: str, request: Recorded) -> Reply | None:
        if not token:
            return unauthorized('Bearer scope="read"')
        asked = issuer.forms[int(token.rpartition("-")[2]) - 1]["scope"]
        is_call = request.method == "POST" and request.json.get("method") == "tools/call"
        if not is_call or "write" in asked:
            return None
        if in_body:
            return forbidden(body={"error": "insufficient_scope", "scope": "write"})
        return forbidden(LACKS.format("write"))

    with (
        AuthorizationServer() as issuer,
        McpEndpoint(Guard([issuer.issuer], refuse=refuse)) as server,
    ):
        assert outcome(server.url)[0] == "3"
    assert [form["scope"] for form in issuer.forms] == ["read", "read write"]


def test_scopes_may_be_lacking_right_after_the_login() -> None:
    def refuse(token: str, _request: Recorded) -> Reply | None:
        if not token:
            return unauthorized()
        return None if token == "token-number-2" else forbidden(LACKS.format("all"))

    with (
        AuthorizationServer() as issuer,
        McpEndpoint(Guard([issuer.issuer], refuse=refuse)) as server,
    ):
        assert outcome(server.url, scopes=("some",))[0] == "3"
    assert [form["scope"] for form in issuer.forms] == ["some", "some all"]


def test_scopes_that_a_refusal_does_not_name_are_those_of_the_document() -> None:
    def refuse(token: str, _request: Recorded) -> Reply | None:
        if not token:
            return unauthorized('Bearer scope="a"')
        return None if token == "token-number-2" else forbidden(LACKS.partition(",")[0])

    with AuthorizationServer() as issuer:
        guard = Guard([issuer.issuer], refuse=refuse, metadata={"scopes_supported": ["a", "b"]})
        with McpEndpoint(guard) as server:
            assert outcome(server.url)[0] == "3"
    assert [form["scope"] for form in issuer.forms] == ["a", "a b"]


def test_scopes_that_are_lacking_again_are_told() -> None:
    def refuse(token: str, _request: Recorded) -> Reply | None:
        return forbidden(LACKS.format("all")) if token else unauthorized()

    def answer(form: Any) -> Reply:
        return token_answer(scope="some", access_token=f"token-number-{len(issuer.posts)}")

    with (
        AuthorizationServer(answer=answer) as issuer,
        McpEndpoint(Guard([issuer.issuer], refuse=refuse)) as server,
    ):
        found, _ = outcome(server.url, scopes=("some",))
    assert len(issuer.posts) == 2
    assert found == (
        "HTTP 403 `insufficient_scope`: the server refuses the token that"
        f" `{issuer.issuer}` has just issued; it was asked for with the scopes `some`, `all`, and"
        " given for `some`: allow the client the scopes `all` there"
    )


def test_a_bare_403_is_tried_once_with_credentials() -> None:
    def refuse(token: str, _request: Recorded) -> Reply | None:
        return None if token else forbidden()

    with (
        AuthorizationServer() as issuer,
        McpEndpoint(Guard([issuer.issuer], refuse=refuse)) as server,
    ):
        assert outcome(server.url)[0] == "3"
        assert len(issuer.posts) == 1


def test_a_403_that_means_it_is_told_as_it_is() -> None:
    with (
        AuthorizationServer() as issuer,
        McpEndpoint(Guard([issuer.issuer], refuse=lambda *_: forbidden())) as server,
    ):
        found, _ = outcome(server.url)
        assert len(issuer.posts) == 1
    assert found == 'HTTP 403: {"detail": "forbidden"}; it may want a login: `auth_env` or `oauth`'


def test_a_403_without_a_login_in_the_file_says_that_one_may_be_wanted() -> None:
    async def scene() -> str | None:
        async with registry(http(server.url)) as s:
            return s.registry.failure("web")

    with McpEndpoint(lambda _request: forbidden()) as server:
        assert play(scene) == (
            'HTTP 403: {"detail": "forbidden"}; it may want a login: `auth_env` or `oauth`'
        )


# Attacks


def failure_behind(issuer_url: str, **settings: Any) -> tuple[str, McpEndpoint]:
    with McpEndpoint(Guard([issuer_url])) as server:
        return outcome(server.url, **settings)[0], server


def test_the_metadata_of_another_issuer_is_refused_with_both_spellings() -> None:
    with AuthorizationServer(path="/t", issuer="https://honest.example/t/") as issuer:
        found, _ = failure_behind(issuer.issuer)
        assert issuer.posts == []
    assert "`https://honest.example/t/`, and not" in found
    assert f"`{issuer.issuer}`" in found
    assert found.endswith("`token_url` names its token endpoint")


def test_an_issuer_that_the_file_does_not_name_gets_no_secret() -> None:
    with AuthorizationServer() as evil:
        found, _ = failure_behind(evil.issuer, issuer="https://honest.example")
        assert evil.requests == []
    assert found == (
        f"the server names the authorization server `{evil.issuer}`, and `issuer` in the file is"
        " `https://honest.example`: its credentials go nowhere else"
    )


def test_a_token_endpoint_on_another_origin_gets_no_secret_unless_the_file_names_it() -> None:
    with AuthorizationServer() as honest, AuthorizationServer() as issuer:
        issuer.metadata["token_endpoint"] = f"{honest.origin}/token"
        found, _ = failure_behind(issuer.issuer)
        assert honest.requests == []
        assert "has another origin than its authorization server" in found
        assert failure_behind(issuer.issuer, token_url=f"{honest.origin}/token")[0] == "3"


@pytest.mark.parametrize("endpoint", ["http://192.0.2.1/token", "file:///etc/passwd", "x"])
def test_a_token_endpoint_is_secure(endpoint: str) -> None:
    with AuthorizationServer(token_endpoint=endpoint) as issuer:
        found, _ = failure_behind(issuer.issuer)
    assert found == (
        f"the token endpoint `{endpoint}` is not used: it is not https, nor of this machine"
    )


def test_the_resource_of_another_server_is_refused() -> None:
    with AuthorizationServer() as issuer:
        guard = Guard([issuer.issuer], metadata={"resource": "https://honest.example/mcp"})
        with McpEndpoint(guard) as server:
            found, _ = outcome(server.url)
        assert issuer.requests == []
    assert found == (
        f"the metadata at `{server.origin}{RESOURCE}/mcp` is not used: it is the metadata of"
        " `https://honest.example/mcp`, another server"
    )


def test_metadata_of_ten_megabytes_is_not_read() -> None:
    sent = [0]

    def flood() -> Any:
        for _ in range(10 * 16):
            sent[0] += 1
            yield b" " * 65536

    with AuthorizationServer(others={OAUTH: Reply(flood())}) as issuer:
        found, _ = failure_behind(issuer.issuer)
    assert f"the answer of `{issuer.origin}{OAUTH}` is larger than 1024 KiB" in found


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_a_form_with_a_secret_is_not_redirected_to_another_origin(status: int) -> None:
    with AuthorizationServer() as other, AuthorizationServer() as issuer:
        target = {"location": f"{other.origin}/token"}
        issuer.answer = lambda _form: Reply((), status, target, framing="length")
        found, _ = failure_behind(issuer.issuer)
        assert other.requests == []
    assert found == f"no token from `{issuer.origin}/token`: HTTP {status}"


def test_a_redirect_within_an_origin_is_followed() -> None:
    moved = Reply((), 302, {"location": "/new"}, framing="length")
    with AuthorizationServer(places=["/new"], others={OAUTH: moved}) as issuer:
        assert failure_behind(issuer.issuer)[0] == "3"


def test_a_token_is_not_sent_to_another_origin() -> None:
    with AuthorizationServer() as issuer, McpEndpoint(Legacy()) as other:

        def refuse(token: str, _request: Recorded) -> Reply | None:
            target = {"location": other.url}
            return Reply((), 307, target, framing="length") if token else unauthorized()

        with McpEndpoint(Guard([issuer.issuer], refuse=refuse)) as server:
            found, _ = outcome(server.url)
        assert found == f"the server sent us to another origin, {other.origin}"
        assert other.requests == []


def test_a_login_that_fails_is_one_request_and_no_loop() -> None:
    with AuthorizationServer(answer=lambda _form: json_reply(503, {"later": True})) as issuer:
        found, server = failure_behind(issuer.issuer)
        assert len(issuer.posts) == 1
    assert len([one for one in server.requests if one.method == "POST"]) == 1
    assert found == f'no token from `{issuer.origin}/token`: HTTP 503 ({{"later": true}})'


def test_a_secret_that_the_issuer_repeats_is_not_shown() -> None:
    def answer(_form: Any) -> Reply:
        return refusal("invalid_client", f"no client with the secret {SECRET}", 401)

    with AuthorizationServer(answer=answer) as issuer:
        found, _ = failure_behind(issuer.issuer)
    assert SECRET not in found
    assert "no client with the secret <secret>" in found


def test_a_secret_that_the_issuer_repeats_from_the_header_is_not_shown() -> None:
    secret = "a secret/with+signs"
    echoes: list[str] = []

    class Echo(AuthorizationServer):
        def _handle(self, request: Recorded) -> Reply:
            if request.method != "POST":
                return super()._handle(request)
            echoes.append(request.headers["authorization"].removeprefix("Basic "))
            return json_reply(503, {"authorization": echoes[-1]})

    with Echo() as issuer, McpEndpoint(Guard([issuer.issuer])) as server:
        found, _ = outcome(server.url, secret)
    assert "HTTP 503" in found
    assert echoes[-1][-20:] not in found


def test_a_long_token_that_the_server_repeats_is_not_shown_in_part() -> None:
    token = "".join(f"part{number:03}" for number in range(100))

    def refuse(sent: str, _request: Recorded) -> Reply:
        said = f'Bearer error="invalid_token", error_description="the token {sent} is not good"'
        return unauthorized(said) if sent else unauthorized()

    with (
        AuthorizationServer(answer=lambda _form: token_answer(token)) as issuer,
        McpEndpoint(Guard([issuer.issuer], refuse=refuse)) as server,
    ):
        found, _ = outcome(server.url)
    assert "(the token <secret:web.oauth_token> is not good)" in found
