"""`aish serve` behind an identity provider: tokens, challenges, keys, from start to wire."""

import json
import signal
from collections.abc import Generator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from e2e_project import Project, stdio
from mcp_emulators import Legacy, McpEndpoint
from model_endpoint import Gate, Reply, json_reply
from patience import rounds
from plain_http import PLAIN
from served_http import (
    BOTH,
    JSON,
    HttpHub,
    initialize,
    last_message,
    modern_headers,
    modern_request,
)
from served_hub import META, PATIENCE, Message, ServedHub, text_of

pytest.importorskip("joserfc")

from joserfc.jwk import OctKey
from tls_files import make_tls_files
from token_issuer import AUDIENCE, TokenIssuer, forge, new_key, sign

ROBOT = "robot-token-" + "c3" * 20


CLIENTS = {
    "robot": {"token_env": "ROBOT", "tools": ["s__add"]},
    "readers": {"scopes": ["tools:read"], "tools": ["s__echo"]},
    "writers": {"scopes": ["tools:read", "tools:write"], "tools": ["s__echo", "s__add", "w__*"]},
}


def write(
    project: Project, issuer: str, *, downstream: str = "", auth: str = "", listen: str = ""
) -> None:
    """A file with that issuer, and the server `s`, or also `w` at that URL; all is approved."""
    project.aish.env["ROBOT"] = ROBOT
    more = f', w: {{url: "{downstream}"}}' if downstream else ""
    project.pipeline(
        f"""
        mcp:
          servers: {{s: {{command: {stdio()}}}{more}}}
          auto_approve: ["{"*__*" if downstream else "s__*"}"]
        serve:
          auth: {{issuer: "{issuer}", audience: "{AUDIENCE}"{auth}}}
          clients: {json.dumps(CLIENTS)}
          {f'listen: "{listen}"' if listen else ""}
        """
    )


@pytest.fixture
def issuer() -> Generator[TokenIssuer]:
    with TokenIssuer(scopes_supported=["tools:read", "tools:write", "openid"]) as found:
        yield found


def refused(hub: HttpHub) -> list[tuple[str, str]]:
    """Why clients were refused, as the audit log has it."""
    # A record is written right after its answer: before the next request is.
    assert httpx.get(f"{hub.base}/healthz", timeout=PATIENCE, verify=PLAIN).status_code == 200
    records = [one for one in hub.audit if one["event"] == "refused"]
    return [(one["reason"], one.get("detail", "")) for one in records]


def ask(hub: HttpHub, token: str | None, message: Message | None = None) -> httpx.Response:
    """The answer to a message with this token, or without one."""
    own = {} if token is None else {"Authorization": f"Bearer {token}"}
    return httpx.post(
        hub.url,
        json=message or initialize(),
        headers={**BOTH, **own},
        timeout=PATIENCE,
        verify=PLAIN,
    )


def names_of(client: Any) -> list[str]:
    return [tool["name"] for tool in client.tools()]


@pytest.mark.requirement("W20")
def test_scopes_choose_what_a_client_may_call_and_its_token_goes_no_further(
    project: Project, issuer: TokenIssuer
) -> None:
    with McpEndpoint(Legacy()) as downstream:
        write(project, issuer.origin, downstream=downstream.url)
        with HttpHub(project, "p.yaml") as hub:
            hub.until_ready(200)
            low, high = issuer.token("tools:read"), issuer.token(["tools:write", "tools:read"])
            reader, writer, robot = hub.client(low), hub.client(high), hub.client(ROBOT)
            for client in (reader, writer, robot):
                client.begin()
            lists = [names_of(client) for client in (reader, writer, robot)]
            call = {"name": "w__echo", "arguments": {"text": "hello"}}
            message = {"jsonrpc": "2.0", "id": 9, "method": "tools/call", "params": call}
            denied = reader.post(message)
            written = writer.call("w__echo", {"text": "hello"})
            # The client has asked for more, and makes the same call in the same session.
            reader.http.headers["Authorization"] = f"Bearer {high}"
            stepped = reader.call("w__echo", {"text": "hello"})
            listed = names_of(reader)
            audit = hub.audit
        seen = [request for request in downstream.requests if request.method == "POST"]

    assert lists[0] == ["s__echo"]
    assert lists[2] == ["s__add"]
    assert {"s__echo", "s__add", "w__echo"} <= set(lists[1])
    assert denied.status_code == 403
    place = f"{hub.base}/.well-known/oauth-protected-resource/mcp"
    (challenge,) = denied.headers.get_list("www-authenticate")
    assert challenge == (
        'Bearer error="insufficient_scope",'
        ' error_description="this needs the scopes `tools:read`, `tools:write`",'
        f' resource_metadata="{place}", scope="tools:read tools:write"'
    )
    assert written["content"] == stepped["content"] == [{"type": "text", "text": "hello"}]
    assert listed == lists[1]
    calls = [one for one in audit if one["event"] == "decided"]
    assert [one["client"] for one in calls] == ["oauth:ada/nightly"] * 2
    assert calls[0]["peer"] | {"address": ""} == {
        "transport": "http",
        "address": "",
        "issuer": issuer.issuer,
        "subject": "ada",
        "client_id": "nightly",
        "entries": ["readers", "writers"],
    }
    assert calls[1]["peer"]["entries"] == ["readers", "writers"]
    assert len(seen) >= 3
    assert not any("authorization" in request.headers for request in seen)
    traces = json.dumps([request.json for request in seen]) + hub.stderr
    for token in (low, high):
        assert token not in traces + project.everything_written()


def test_the_metadata_is_at_the_path_and_at_the_root_as_the_client_spells_the_server(
    project: Project, issuer: TokenIssuer
) -> None:
    write(project, f"{issuer.origin}/")
    with HttpHub(project, "p.yaml") as hub:
        found = [
            httpx.get(
                f"http://{host}:{hub.port}/.well-known/oauth-protected-resource{path}", verify=PLAIN
            )
            for host in ("127.0.0.1", "localhost")
            for path in ("/mcp", "")
        ]
        stale = {"Authorization": "Bearer an-old-token"}
        with_token = httpx.get(found[0].url, headers=stale, verify=PLAIN)
        # Nobody's page may read it, by whichever name it finds the server.
        odd = [{"Host": "evil.example"}, {"Origin": "http://evil.example"}, {"Origin": "null"}]
        pages = [httpx.get(found[0].url, headers=headers, verify=PLAIN) for headers in odd]
        told = hub.stderr_with("the issuer calls itself")

    assert [answer.json()["resource"] for answer in found] == [
        f"http://{host}:{hub.port}/mcp" for host in ("127.0.0.1", "localhost") for _ in range(2)
    ]
    assert with_token.json() == found[0].json()
    assert [page.status_code for page in pages] == [421, 403, 403]
    assert not any("access-control-allow-origin" in page.headers for page in (*pages, *found))
    document = found[0].json()
    assert document["authorization_servers"] == [issuer.origin]
    assert document["scopes_supported"] == ["tools:read", "tools:write"]
    assert document["bearer_methods_supported"] == ["header"]
    assert f"`{issuer.origin}`, and the file `{issuer.origin}/`" in told


def test_the_metadata_lists_only_scopes_of_the_issuer_or_none(
    project: Project, issuer: TokenIssuer
) -> None:
    issuer.metadata["scopes_supported"] = ["tools:read"]
    resource = ', resource: "https://tools.example/team/mcp/"'
    documents, challenges = [], []
    for more in ("", ", scopes_supported: false, scopes: [openid, tools:write]"):
        write(project, issuer.origin, auth=resource + more)
        with HttpHub(project, "p.yaml") as hub:
            place = f"{hub.base}/.well-known/oauth-protected-resource"
            documents.append(httpx.get(f"{place}/team/mcp", verify=PLAIN).json())
            told = hub.stderr_with("does not list the scopes `tools:write`")
            challenges.append(ask(hub, None).headers["www-authenticate"])

    assert told
    assert documents[0]["scopes_supported"] == ["tools:read"]
    assert "scopes_supported" not in documents[1]
    assert documents[0]["resource"] == "https://tools.example/team/mcp"
    place = "https://tools.example/.well-known/oauth-protected-resource/team/mcp"
    assert challenges == [
        f'Bearer resource_metadata="{place}", scope="tools:read"',
        f'Bearer resource_metadata="{place}", scope="openid tools:write"',
    ]


def test_with_step_up_a_client_sees_what_needs_more_scopes(
    project: Project, issuer: TokenIssuer
) -> None:
    write(project, issuer.origin, auth=", step_up: true")
    with HttpHub(project, "p.yaml") as hub:
        first, other = ask(hub, None), ask(hub, issuer.token("openid"))
        reader = hub.client(issuer.token("tools:read"))
        reader.begin()
        listed = names_of(reader)
        params = {"name": "s__add", "arguments": {"a": 1, "b": 2}}
        message = {"jsonrpc": "2.0", "id": 9, "method": "tools/call", "params": params}
        denied = reader.post(message)
        stateless = hub.client(issuer.token("tools:read")).modern("tools/call", params)

    assert first.headers["www-authenticate"] == (
        f'Bearer resource_metadata="{hub.base}/.well-known/oauth-protected-resource/mcp",'
        ' scope="tools:read"'
    )
    assert {"s__echo", "s__add"} <= set(listed)
    assert other.status_code == 403
    assert 'error="insufficient_scope"' in other.headers["www-authenticate"]
    assert other.headers["www-authenticate"].endswith('scope="tools:read"')
    for answer in (denied, stateless):
        assert answer.status_code == 403
        assert answer.headers["www-authenticate"].endswith('scope="tools:read tools:write"')


@pytest.mark.requirement("W21")
def test_tokens_that_are_wrong_in_any_way_are_refused_and_the_log_says_why(
    project: Project, issuer: TokenIssuer
) -> None:
    own, other = issuer.keys[0], new_key("first")
    good = issuer.claims("tools:read")
    now = good["iat"]
    parts = issuer.token("tools:read").split(".")
    public = json.dumps(own.as_dict(private=False)).encode()
    shared = OctKey.import_key(public, {"kid": "first"})

    def signed(**changes: Any) -> str:
        return sign({**good, **changes}, own)

    attacks = {
        forge({"alg": "none"}, good): "the token is signed by `none`",
        forge({"alg": "None", "kid": "first"}, good): "the token is signed by `None`",
        sign(good, shared, alg="HS256"): "the token is signed by `HS256`",
        sign(good, other): "the signature of the token is not by a key of the issuer",
        ".".join([*parts[:2], ""]): "the signature of the token is not by",
        signed(exp=now - 60): "the token expired",
        signed(exp=None): "the token never expires: it has no `exp`",
        signed(exp="tomorrow"): "`exp` of the token is no time",
        signed(
            aud="https://tools.example.com/mcp/"
        ): "is for `https://tools.example.com/mcp/` (`aud`), and not for `https://tools.example.com/mcp`",
        signed(aud=["a", "b"]): "the token is for `a`, `b` (`aud`), and not for",
        signed(aud=None): "the token is for nobody (`aud`)",
        signed(
            iss="https://evil.example"
        ): f"the issuer `https://evil.example` (`iss`), and not `{issuer.issuer}`",
        signed(
            iss=f"{issuer.issuer}/"
        ): f"the issuer `{issuer.issuer}/` (`iss`), and not `{issuer.issuer}`",
        signed(iat=now + 3000): "the clocks differ by",
        signed(nbf=now + 3000): "the token is good only",
        signed(sub=None, client_id=None): "the token names nobody",
        signed(sub=["ada"]): "`sub` of the token is no text",
        signed(cnf={"jkt": "x"}): "the token is bound to a key",
        sign(good, own, crit=["kid"]): "the token has critical headers",
        sign(good, own, typ="logout+jwt"): "the token is of the type `logout+jwt`",
        sign(b'{"iss":"x","iss":"y"}', own): "the claims of the token cannot be read",
        sign(b"[]", own): "the claims of the token cannot be read",
        "x" * 9000: "the token is no JWT",
        "a.b.c.d.e": "the token is encrypted",
        "x": "the token is no JWT",
        f"{parts[0]}.{'A' * 9000}.x": "the signature of the token is not by",
    }
    write(project, issuer.origin)
    with HttpHub(project, "p.yaml") as hub:
        answers = [(said, ask(hub, token)) for token, said in attacks.items()]
        told = refused(hub)
        calls = [one for one in hub.audit if one["event"] in {"session.opened", "decided"}]
        works = ask(hub, issuer.token("tools:read"))

    assert len(attacks) == 26
    for said, answer in answers:
        assert answer.status_code == 401, said
        (challenge,) = answer.headers.get_list("www-authenticate")
        assert challenge.startswith('Bearer error="invalid_token", error_description="'), said
        assert challenge.endswith('scope="tools:read"')
        assert said in answer.json()["error"]["message"]
    assert len(told) == len(attacks)
    for (reason, detail), (said, _) in zip(told, answers, strict=True):
        assert reason == "invalid_token"
        assert said in detail
    assert calls == []
    assert works.status_code == 200
    assert issuer.fetches == 1


def test_a_token_that_is_sent_in_another_way_is_refused(
    project: Project, issuer: TokenIssuer
) -> None:
    write(project, issuer.origin)
    token = issuer.token("tools:read")
    body = json.dumps(initialize()).encode()
    with HttpHub(project, "p.yaml", token=token) as hub:

        def post(path: str, *headers: tuple[str, str]) -> httpx.Response:
            return httpx.post(
                f"{hub.base}{path}",
                content=body,
                headers=[*JSON.items(), *headers],
                timeout=PATIENCE,
                verify=PLAIN,
            )

        bearer = ("Authorization", f"Bearer {token}")
        found = [
            post("/mcp?access_token=x", bearer),
            post(f"/mcp?a={token}", bearer),
            post(f"/mcp?a=1&a={token}"),
            post(f"/{token}/mcp"),
            post("/mcp", bearer, bearer),
            post("/mcp", ("Authorization", "Basic YTpi")),
            post("/mcp", ("Authorization", f"Bearer  {token}")),
            post("/mcp", ("Authorization", f"Bearer {'e' * 20_000}")),
        ]
        log = project.everything_written() + hub.stderr
        told = refused(hub)

    assert [answer.status_code for answer in found] == [400, 400, 400, 400, 401, 401, 401, 431]
    assert [answer.json()["error"]["code"] for answer in found[4:7]] == [
        "invalid_token",
        "unauthorized",
        "invalid_token",
    ]
    assert "error=" not in found[5].headers["www-authenticate"]
    assert [reason for reason, _ in told][:5] == [*["token_in_url"] * 4, "invalid_token"]
    assert token not in log


@pytest.mark.slow(reason="makes several keys")
def test_a_new_key_is_taken_at_once_and_an_old_one_goes_with_it(
    project: Project, issuer: TokenIssuer
) -> None:
    write(project, issuer.origin)
    with HttpHub(project, "p.yaml") as hub:
        old = issuer.token("tools:read")
        before = ask(hub, old)
        issuer.keys = [new_key("second")]
        after = [ask(hub, issuer.token("tools:read")), ask(hub, old)]
        asked = issuer.fetches
        # Within the cool-down, whoever asks for whatever key.
        strange = [ask(hub, sign(issuer.claims("tools:read"), new_key(str(i)))) for i in range(30)]
        told = refused(hub)

    assert before.status_code == 200
    assert [answer.status_code for answer in after] == [200, 401]
    assert asked >= 2
    assert {answer.status_code for answer in strange} == {401}
    # One in a while: on a busy machine it may be over, and the unit test counts them by a clock.
    assert issuer.fetches - asked < len(strange) // 2
    assert told[-1] == (
        "invalid_token",
        "the issuer has no key for the token, which has the `kid` `29`",
    )


def test_while_the_issuer_is_down_known_keys_count_and_others_may_be_tried_again(
    project: Project, issuer: TokenIssuer
) -> None:
    write(project, issuer.origin)
    with HttpHub(project, "p.yaml") as hub:
        assert ask(hub, issuer.token("tools:read")).status_code == 200
        issuer.jwks = json_reply(500, {"error": "down"})
        known = ask(hub, issuer.token("tools:read"))
        unknown = [ask(hub, sign(issuer.claims("tools:read"), new_key("new"))) for _ in range(3)]
        told = hub.stderr_with("cannot be fetched: ")
        log = refused(hub)

    assert known.status_code == 200
    assert [answer.status_code for answer in unknown] == [503] * 3
    assert all(0 < int(answer.headers["retry-after"]) <= 30 for answer in unknown)
    assert told.count("cannot be fetched") == 1
    assert f"`{issuer.origin}/jwks`: HTTP 500; tokens of known keys are taken as before" in told
    assert [reason for reason, _ in log] == ["issuer_unreachable"] * 3


def elsewhere(url: str) -> Reply:
    """A redirect."""
    return Reply(status=302, headers={"location": url}, framing="length")


@pytest.mark.slow(reason="starts a server for each broken issuer")
def test_a_server_whose_issuer_cannot_be_used_does_not_start(
    project: Project, issuer: TokenIssuer
) -> None:
    other = TokenIssuer()
    with other:
        replies = {
            "larger than 1024 KiB": json_reply(200, {"keys": [], "more": "x" * 10_000_000}),
            f"`{issuer.origin}/jwks`: HTTP 302": elsewhere(f"{other.origin}/jwks"),
            f"`{issuer.origin}/jwks`: HTTP 302 ": elsewhere("http://169.254.169.254/latest"),
            "it is no JWK set": json_reply(200, {"keys": "many"}),
            "has no key that can verify a signature": json_reply(
                200, {"keys": [{"kty": "oct", "k": "c2VjcmV0"}]}
            ),
        }
        for said, reply in replies.items():
            issuer.jwks = reply
            write(project, issuer.origin)
            done = project.aish("serve", "p.yaml", "--http", "127.0.0.1:0")
            assert done.code == 5, done.stderr
            assert said.strip() in done.stderr
            assert "serve.auth" in done.stderr
            assert "listening on" not in done.stderr
        assert other.fetches == 0
    issuer.jwks, issuer.metadata["issuer"] = None, "https://evil.example"
    write(project, issuer.origin)
    mixed = project.aish("serve", "p.yaml", "--http", "127.0.0.1:0")
    assert mixed.code == 5
    assert f"the issuer `https://evil.example`, and not `{issuer.origin}`" in mixed.stderr
    write(project, other.origin)
    gone = project.aish("serve", "p.yaml", "--http", "127.0.0.1:0")
    assert gone.code == 5
    assert f"the authorization server `{other.origin}` has no metadata" in gone.stderr
    assert "`jwks` names its keys" in gone.stderr


def test_it_says_where_it_listens_once_it_has_the_keys_and_ends_before_if_it_is_told_to(
    project: Project, issuer: TokenIssuer
) -> None:
    write(project, issuer.origin)
    for is_ended in (True, False):
        gate = Gate()
        issuer.jwks = json_reply(200, {"keys": [issuer.keys[0].as_dict(private=False)]}).but(
            before_head=gate
        )
        with ServedHub(project, "p.yaml", "--http", "127.0.0.1:0") as hub:
            gate.wait_arrived()
            assert "listening on" not in hub.stderr
            if is_ended:
                hub.signal(signal.SIGTERM)
                assert hub.finish() == 0
                assert "listening on" not in hub.stderr
            gate.open()
            if not is_ended:
                (url,) = hub.addresses()
                bearer = {"Authorization": f"Bearer {issuer.token('tools:read')}"}
                headers = {**BOTH, **bearer}
                done = httpx.post(
                    url, json=initialize(), headers=headers, timeout=PATIENCE, verify=PLAIN
                )
                assert done.status_code == 200


@pytest.mark.slow(reason="starts servers with and without the authority")
def test_an_issuer_may_have_a_certificate_of_an_authority_of_the_company(
    project: Project, tmp_path: Path
) -> None:
    files = make_tls_files(tmp_path)
    with TokenIssuer(tls=files.serving) as issuer:
        write(project, issuer.origin)
        refused = project.aish("serve", "p.yaml", "--http", "127.0.0.1:0")
        project.aish.env["SSL_CERT_FILE"] = str(files.authority)
        with HttpHub(project, "p.yaml") as hub:
            works = ask(hub, issuer.token("tools:read"))
            files.authority.unlink()
            unknown = ask(hub, sign(issuer.claims("tools:read"), new_key("new")))
            known = ask(hub, issuer.token("tools:read"))
            told = hub.stderr_with("cannot be read")
        gone = project.aish("serve", "p.yaml", "--http", "127.0.0.1:0")

    assert issuer.origin.startswith("https://")
    assert refused.code == gone.code == 5
    assert "its certificate is not valid" in refused.stderr
    assert [works.status_code, unknown.status_code, known.status_code] == [200, 503, 200]
    for text in (told, gone.stderr):
        assert f"the authorities in `{files.authority}` (`SSL_CERT_FILE`) cannot be read" in text


def test_keys_that_the_file_names_need_no_metadata(project: Project, issuer: TokenIssuer) -> None:
    issuer.places = []
    write(project, issuer.origin, auth=f', jwks: "{issuer.origin}/jwks"')
    with HttpHub(project, "p.yaml") as hub:
        works = ask(hub, issuer.token("tools:read"))
        told = hub.stderr_with("clients are sent to")
        place = f"{hub.base}/.well-known/oauth-protected-resource"
        document = httpx.get(place, verify=PLAIN).json()

    assert works.status_code == 200
    assert f"clients are sent to `{issuer.origin}`, as it is written" in told
    assert document["authorization_servers"] == [issuer.origin]


def test_a_stream_ends_with_the_token_that_opened_it(project: Project, issuer: TokenIssuer) -> None:
    write(project, issuer.origin)
    with HttpHub(project, "p.yaml") as hub:
        client = hub.client(issuer.token("tools:read"))
        client.begin()
        listen = modern_request(7, "subscriptions/listen", {"notifications": {"tools": {}}})
        rests = []
        for message, about in ((None, client.session), (listen, modern_headers(listen))):
            for _ in rounds("no token is good for long enough"):
                claims = issuer.claims("tools:read")
                claims["exp"] = claims["iat"] - 27  # and 30 seconds of leeway
                bearer = {"Authorization": f"Bearer {sign(claims, issuer.keys[0])}"}
                headers = {**about, "Accept": "text/event-stream", **bearer}
                method = "GET" if message is None else "POST"
                with client.http.stream(method, hub.url, json=message, headers=headers) as answer:
                    if answer.status_code == 200:
                        rests.append(answer.read())
                        break
        again = client.tools()

    assert b"data" not in rests[0]
    assert rests[1].count(b"data") == 1
    assert b"notifications/subscriptions/acknowledged" in rests[1]
    assert [tool["name"] for tool in again] == ["s__echo"]


def test_a_socket_file_is_no_proof_where_an_issuer_has_tokens(
    project: Project, issuer: TokenIssuer, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    folder.mkdir(0o700)
    path = folder / "hub.sock"
    write(project, issuer.origin, listen=f"http+unix:{path}")
    with ServedHub(project, "p.yaml") as hub:
        hub.addresses()
        transport = httpx.HTTPTransport(uds=str(path), verify=PLAIN)
        with httpx.Client(transport=transport, headers=BOTH, timeout=PATIENCE) as client:
            url = "http://tools.local/mcp"
            bare = client.post(url, json=initialize())
            bearer = {"Authorization": f"Bearer {issuer.token('tools:read')}"}
            known = client.post(url, json=initialize(), headers=bearer)
            robot = client.post(
                url, json=initialize(), headers={"Authorization": f"Bearer {ROBOT}"}
            )

    assert bare.status_code == 401
    place = "http://tools.local/.well-known/oauth-protected-resource/mcp"
    assert f'resource_metadata="{place}"' in bare.headers["www-authenticate"]
    assert [known.status_code, robot.status_code] == [200, 200]


def test_a_session_is_of_one_person_and_one_program(project: Project, issuer: TokenIssuer) -> None:
    write(project, issuer.origin)
    call = {"name": "s__echo", "arguments": {"text": "mine"}}
    messages: list[Message] = [
        {"jsonrpc": "2.0", "id": 1, "method": "tools/list"},
        {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call},
        {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}},
    ]
    with HttpHub(project, "p.yaml") as hub:
        hub.until_ready(200)
        owner = hub.client(issuer.token("tools:read"))
        owner.begin()
        events = {**owner.session, "Accept": "text/event-stream"}
        answers = []
        for claims in ({"sub": "eve"}, {"client_id": "other"}, {"client_id": None}):
            other = hub.client(issuer.token("tools:read tools:write", **claims))
            answers += [other.post(message, owner.session) for message in messages]
            for more in ({}, {"Last-Event-ID": "1-1"}):
                answers.append(other.http.get(hub.url, headers={**events, **more}))
            answers.append(other.http.delete(hub.url, headers=owner.session))
        still = owner.call("s__echo", {"text": "still"})

    assert {answer.status_code for answer in answers} == {404}
    assert text_of(still) == "still"


@pytest.mark.slow(reason="waits in several servers")
def test_what_waits_for_a_person_outlives_its_token_and_stays_with_its_client(
    project: Project, issuer: TokenIssuer
) -> None:
    project.pipeline(
        f"""
        mcp: {{servers: {{s: {{command: {stdio()}}}}}}}
        serve:
          hold: 100ms
          auth: {{issuer: "{issuer.origin}", audience: "{AUDIENCE}"}}
          clients: {json.dumps({name: CLIENTS[name] for name in ("readers", "writers")})}
        """
    )
    meta: Message = {f"{META}clientCapabilities": {"extensions": {f"{META}tasks": {}}}}
    with HttpHub(project, "p.yaml", "--control") as hub:
        hub.until_ready(200)
        params = {"name": "s__add", "arguments": {"a": 1, "b": 2}, "_meta": meta}
        for _ in rounds("no token is good for long enough"):
            claims = issuer.claims("tools:read tools:write")
            claims["exp"] = claims["iat"] - 27  # and 30 seconds of leeway
            brief = sign(claims, issuer.keys[0])
            made = hub.client(brief).modern("tools/call", params)
            if made.status_code == 200:
                break
        task: Message = {"taskId": last_message(made)["result"]["taskId"], "_meta": meta}
        for _ in rounds("the token does not expire"):
            if ask(hub, brief).status_code == 401:
                break
        eve = hub.client(issuer.token("tools:read tools:write", sub="eve"))
        answers: Message = {**task, "inputResponses": {}}
        stolen = [eve.modern(f"tasks/{name}", answers) for name in ("get", "cancel", "update")]
        # A token of less scopes is good enough to ask, and takes nothing from the call.
        less = hub.client(issuer.token("tools:read"))
        waiting = less.modern("tasks/get", task).json()["result"]["status"]
        listed = json.loads(project.aish("runs", "pending", "--format", "json").stdout)["pending"]
        words = ("approve", listed[0]["run"], listed[0]["id"], "--yes")
        approved = project.aish(*words, "--digest", listed[0]["digest"])
        for _ in rounds("the task does not end"):
            ended = less.modern("tasks/get", task).json()["result"]
            if ended["status"] not in {"working", "input_required"}:
                break

    assert approved.code == 0, approved.stderr
    assert {one.json()["error"]["message"] for one in stolen} == {
        "unknown task, or one that has expired"
    }
    assert waiting == "working"
    assert ended["status"] == "completed"
    assert text_of(ended["result"]) == "3"


@pytest.mark.slow(reason="a thousand signatures, and as many connections")
def test_a_storm_of_tokens_fetches_keys_once_and_leaves_room_for_clients(
    project: Project, issuer: TokenIssuer
) -> None:
    write(project, issuer.origin)
    with HttpHub(project, "p.yaml") as hub, ExitStack() as stack:
        hub.until_ready(200)
        client = hub.client(issuer.token("tools:read"))
        client.begin()
        fetched = issuer.fetches
        for number in range(1000):
            token = sign(issuer.claims("tools:read"), new_key(str(number)))
            head = f"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1:{hub.port}\r\n".encode()
            connection = stack.enter_context(hub.connect())
            connection.sendall(
                head
                + f"Content-Type: application/json\r\nAuthorization: Bearer {token}\r\n"
                "Content-Length: 2\r\n\r\n".encode()
            )
        called = client.call("s__echo", {"text": "hello"})
        new = ask(hub, issuer.token("tools:read", sub="eve"))

    assert text_of(called) == "hello"
    assert new.status_code == 200
    # One for each cool-down, and the machine may be slow.
    assert issuer.fetches - fetched < 10


def test_a_reload_changes_what_scopes_are_good_for(project: Project, issuer: TokenIssuer) -> None:
    write(project, issuer.origin)
    with HttpHub(project, "p.yaml") as hub:
        hub.until_ready(200)
        client = hub.client(issuer.token("tools:read"))
        client.begin()
        before = names_of(client)
        text = (project.folder / "p.yaml").read_text("utf-8")
        changed = text.replace(
            '["tools:read"], "tools": ["s__echo"]', '["tools:read"], "tools": ["s__add"]'
        )
        assert changed != text
        (project.folder / "p.yaml").write_text(
            changed.replace(issuer.origin, "https://new.example")
        )
        hub.signal(signal.SIGHUP)
        told = hub.stderr_with("the file is reloaded")
        hub.stderr_with("`serve.auth`")
        gone = client.post({"jsonrpc": "2.0", "id": 5, "method": "tools/list"})
        client.begin()
        after = names_of(client)

    assert told
    assert (before, after) == (["s__echo"], ["s__add"])
    assert gone.status_code == 404


def test_a_yes_is_for_one_person_and_good_with_a_renewed_token(
    project: Project, issuer: TokenIssuer
) -> None:
    project.pipeline(
        f"""
        mcp: {{servers: {{s: {{command: {stdio()}}}}}}}
        serve:
          hold: 100ms
          auth: {{issuer: "{issuer.origin}", audience: "{AUDIENCE}"}}
          clients: {{all: {{scopes: []}}}}
        """
    )
    with HttpHub(project, "p.yaml", "--control") as hub:
        hub.until_ready(200)
        ada, eve = (hub.client(issuer.token(sub=sub, client_id="a/b")) for sub in ("ada/b", "eve"))
        first = [text_of(one.call("s__echo", {"text": "hello"})) for one in (ada, eve)]
        listed = json.loads(project.aish("runs", "pending", "--format", "json").stdout)["pending"]
        (asked,) = (one for one in listed if one["id"] in first[0])
        words = ("approve", asked["run"], asked["id"], "--yes", "--digest", asked["digest"])
        approved = project.aish(*words)
        ada.http.headers["Authorization"] = f"Bearer {issuer.token(sub='ada/b', client_id='a/b')}"
        again = [text_of(one.call("s__echo", {"text": "hello"})) for one in (eve, ada)]
        clients = {one["client"] for one in hub.audit if one["event"] in {"waiting", "decided"}}

    assert approved.code == 0, approved.stderr
    assert all("waiting for approval" in text for text in first)
    assert len({one["id"] for one in listed}) == 2
    assert "waiting for approval" in again[0]
    assert again[1] == "hello"
    assert clients == {"oauth:ada%2Fb/a%2Fb", "oauth:eve/a%2Fb"}


@pytest.mark.parametrize("flags", [["--stdio"], ["--tcp", "127.0.0.1:0"], ["--unix", "s.sock"], []])
def test_an_issuer_goes_with_http_only(project: Project, flags: list[str]) -> None:
    write(project, "http://127.0.0.1:1")

    done = project.aish("serve", "p.yaml", *flags)

    assert done.code == 2
    assert "has no place for a token of an issuer" in done.stderr
    assert "hint: listen with `--http HOST:PORT` only" in done.stderr


def test_what_does_not_go_together_is_a_problem_of_the_file(project: Project) -> None:
    auth = 'auth: {issuer: "https://id.example", audience: a}'
    anybody = "clients: {r: {scopes: []}}"
    tcp = 'listen: [stdio, "tcp://127.0.0.1:1"]'
    bad = auth.replace("https", "http")
    cases = {
        f"{bad}\n  {anybody}": "`http://id.example` is not an address that can be used here",
        auth: "no token would be let in",
        "clients: {r: {scopes: [a]}}": "only tokens of an issuer have scopes",
        f"{auth}\n  {anybody}\n  {tcp}": "`tcp://127.0.0.1:1` has no place for a token",
        f"{auth[:-13]}}}\n  {anybody}": "the key `audience` is missing",
        f"{auth.replace('.example', '.example?a=1')}\n  {anybody}": "has a query",
    }
    for serve, said in cases.items():
        project.write("p.yaml", f"aish: 1\nserve:\n  {serve}\n")
        done = project.aish("validate", "p.yaml")
        assert done.code == 2, done.stderr
        assert said in done.stderr
    project.write("p.yaml", f"aish: 1\nserve:\n  {auth}\n  {anybody}\n")
    alone = project.aish("validate", "p.yaml")
    assert alone.code == 0
    assert "warning: p.yaml:3:9: serve.auth: tokens of an issuer come over HTTP" in alone.stderr
    project.write(
        "p.yaml", f"aish: 1\nserve:\n  {auth}\n  {anybody}\n  listen: http://127.0.0.1:0\n"
    )
    assert not project.aish("validate", "p.yaml").stderr


@pytest.mark.slow(reason="records and replays a session")
def test_a_replay_asks_no_issuer(project: Project, issuer: TokenIssuer) -> None:
    write(project, issuer.origin)
    with HttpHub(project, "p.yaml", "--record", "c.yaml") as hub:
        hub.until_ready(200)
        assert ask(hub, issuer.token("tools:read")).status_code == 200
        hub.signal(signal.SIGTERM)
        assert hub.finish() == 0
    asked = len(issuer.requests)

    refused = project.aish("serve", "p.yaml", "--replay", "c.yaml", "--http", "127.0.0.1:0")
    project.pipeline(
        f"""
        mcp: {{servers: {{s: {{command: {stdio()}}}}}, auto_approve: ["s__*"]}}
        """
    )
    with HttpHub(project, "p.yaml", "--replay", "c.yaml") as hub:
        replayed = ask(hub, hub.token)

    assert refused.code == 2
    assert "a replay contacts nobody" in refused.stderr
    assert replayed.status_code == 200
    assert len(issuer.requests) == asked


def test_a_server_without_the_extra_says_what_to_install(project: Project) -> None:
    write(project, "http://127.0.0.1:1")
    (project.folder / "sitecustomize.py").write_text(
        "import importlib.util as u\n"
        "find = u.find_spec\n"
        "u.find_spec = lambda name, *more: None if name == 'joserfc' else find(name, *more)\n",
        "utf-8",
    )
    project.aish.env["PYTHONPATH"] = str(project.folder)
    project.aish.warm = None

    done = project.aish("serve", "p.yaml", "--http", "127.0.0.1:0")

    assert done.code == 2
    assert "tokens of an issuer need `joserfc`, not installed here" in done.stderr
    assert "hint: pip install 'aish-pipelines[oauth]'" in done.stderr


def test_a_plan_shows_whose_tokens_are_taken_and_asks_nobody(project: Project) -> None:
    write(project, "https://id.example")
    path = project.folder / "p.yaml"
    path.write_text(f"{path.read_text('utf-8')}call: s__echo\nwith: {{text: hello}}\n", "utf-8")

    told = project.aish("plan", "p.yaml", "--offline").stdout
    listed = json.loads(project.aish("plan", "p.yaml", "--offline", "--format", "json").stdout)

    assert f"tokens of clients\n  issuer https://id.example  for {AUDIENCE}\n" in told
    assert "  readers  scopes tools:read  s__echo\n" in told
    assert "robot" not in told
    assert listed["auth"]["clients"][0] == {
        "name": "readers",
        "scopes": ["tools:read"],
        "tools": ["s__echo"],
    }


def test_an_entry_for_a_client_has_no_token_where_an_issuer_gives_it(project: Project) -> None:
    write(project, "https://id.example", auth=', resource: "https://tools.example.com/mcp"')
    printed = {
        client: project.aish(
            "serve", "p.yaml", "--http", "127.0.0.1:8080", "--print-config", client
        ).stdout
        for client in ("claude", "cursor", "vscode", "codex")
    }
    nowhere = project.aish("serve", "p.yaml", "--print-config", "claude")

    assert json.loads(printed["claude"]) == {
        "mcpServers": {"p": {"type": "http", "url": "https://tools.example.com/mcp"}}
    }
    assert json.loads(printed["cursor"]) == {
        "mcpServers": {"p": {"url": "https://tools.example.com/mcp"}}
    }
    assert json.loads(printed["vscode"]) == {
        "servers": {"p": {"type": "http", "url": "https://tools.example.com/mcp"}}
    }
    assert (nowhere.code, nowhere.stdout) == (2, "")
    assert "tokens of an issuer come over HTTP, and no address for it is named" in nowhere.stderr
    assert printed["codex"] == '[mcp_servers.p]\nurl = "https://tools.example.com/mcp"\n'
