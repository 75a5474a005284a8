"""What a request has to pass: names, origins, types, tokens, in this order (H18, H19, X11)."""

from collections.abc import Sequence

import pytest
from listening_server import BEARER, READER, WRITER, WRITING, Answer, serving

from aish.net.listen.addresses import parse_address

pytestmark = pytest.mark.anyio

JSON = "Content-Type: application/json\r\n"
ALLOWED = {"hosts": frozenset({"phone.example"}), "origins": frozenset({"https://phone.example"})}


def error_of(answer: Answer) -> tuple[int, str]:
    return answer.status, answer.code


@pytest.mark.parametrize(
    "host",
    [
        *("evil.example", "evil.example:{port}", "127.0.0.1", "127.0.0.1:1", "localhost:1"),
        *("LOCALHOST:{port}", "localhost.:{port}", "127.0.0.1:{port}.evil.example"),
        *("127.0.0.1:{port}@evil.example", "user@127.0.0.1:{port}", "127.0.0.2:{port}"),
        *("127.0.0.1:0{port}", "2130706433:{port}", "[::ffff:127.0.0.1]:{port}", ""),
        *("127.0.0.1:{port}, evil.example", "phone.example:{port}", "0.0.0.0:{port}"),
    ],
)
async def test_a_foreign_host_is_refused(host: str) -> None:
    async with serving(access=ALLOWED) as server:
        said = host.format(port=server.address.port)
        answer = await server.ask(f"GET /things HTTP/1.1\r\nHost: {said}\r\n{BEARER}\r\n")

    assert error_of(answer) == (421, "wrong_host")


@pytest.mark.parametrize(
    "host", ["127.0.0.1:{port}", "localhost:{port}", "[::1]:{port}", "phone.example"]
)
async def test_the_names_of_this_machine_and_those_in_the_list_are_served(host: str) -> None:
    async with serving(access=ALLOWED) as server:
        said = host.format(port=server.address.port)
        answer = await server.ask(f"GET /things HTTP/1.1\r\nHost: {said}\r\n{BEARER}\r\n")

    assert answer.status == 200


async def test_a_request_of_http_1_0_without_a_host_is_refused() -> None:
    async with serving() as server:
        answer = await server.ask(f"GET /things HTTP/1.0\r\n{BEARER}\r\n")

    assert error_of(answer) == (421, "wrong_host")


ORIGINS = [
    *("http://evil.example", "https://evil.example", "null", "", "http://127.0.0.1"),
    *("http://127.0.0.1:1", "https://127.0.0.1:{port}", "http://localhost:1", "http://localhost"),
    *("HTTP://127.0.0.1:{port}", "http://LOCALHOST:{port}", "http://127.0.0.1:{port}/"),
    *("http://user@127.0.0.1:{port}", "http://user:word@localhost:{port}", "file://"),
    *("http://127.0.0.1:{port}.evil.example", "http://evil.example#127.0.0.1:{port}"),
    *("http://127.0.0.1:{port}, http://evil.example", "http://phone.example", "http://[::]:{port}"),
    *("https://phone.example:443", "https://Phone.example", "chrome-extension://abcdef"),
]


@pytest.mark.parametrize("origin", ORIGINS)
@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_pages_of_other_origins_are_refused(origin: str, method: str) -> None:
    async with serving(access=ALLOWED) as server:
        said = f"Origin: {origin.format(port=server.address.port)}\r\n"
        if method == "GET":
            answer = await server.get(headers=BEARER + said)
        else:
            answer = await server.post(b"{}", WRITING + said)

    assert error_of(answer) == (403, "wrong_origin")
    assert server.bodies == []


async def test_two_origins_are_refused_even_if_both_are_allowed() -> None:
    async with serving(access=ALLOWED) as server:
        one = "Origin: https://phone.example\r\n"
        answer = await server.get(headers=BEARER + one + one)

    assert error_of(answer) == (403, "wrong_origin")


@pytest.mark.parametrize(
    "origin",
    ["http://127.0.0.1:{port}", "http://localhost:{port}", "https://phone.example"],
)
async def test_the_own_origin_and_those_in_the_list_are_served(origin: str) -> None:
    async with serving(access=ALLOWED) as server:
        said = f"Origin: {origin.format(port=server.address.port)}\r\n"
        answer = await server.post(b"{}", WRITING + said)

    assert answer.status == 201
    assert not [name for name in answer.headers if name.startswith("access-control-")]


@pytest.mark.parametrize(
    ("origin", "expected"),
    [("http://evil.example", (403, "wrong_origin")), ("", (405, "method_not_allowed"))],
)
async def test_a_preflight_is_never_answered_with_leave(
    origin: str, expected: tuple[int, str]
) -> None:
    async with serving() as server:
        said = origin or f"http://{server.address.netloc}"
        asked = "Access-Control-Request-Method: POST\r\nAccess-Control-Request-Headers: x\r\n"
        answer = await server.ask(
            f"OPTIONS /things HTTP/1.1\r\n{server.host}Origin: {said}\r\n{asked}\r\n"
        )

    assert error_of(answer) == expected
    assert not [name for name in answer.headers if name.startswith("access-control-")]


@pytest.mark.parametrize("method", ["DELETE", "TRACE", "CONNECT", "PROPFIND", "HEAD"])
async def test_a_method_that_no_route_names_is_refused(method: str) -> None:
    async with serving() as server, await server.open() as connection:
        await connection.send(f"{method} /things HTTP/1.1\r\n{server.host}{WRITING}\r\n")
        head = await connection.reader.readuntil(b"\r\n\r\n")

    assert head.startswith(b"HTTP/1.1 405 ")
    assert b"\r\nallow: GET, POST\r\n" in head


@pytest.mark.parametrize(
    "types",
    [
        *([], ["text/plain"], ["application/x-www-form-urlencoded"], ["text/json"], [""]),
        *(["multipart/form-data; boundary=x"], ["application/json, text/plain"], ["*/*"]),
        *(["application/json; charset=utf-16"], ["application/jsonp"], ["application/json+x"]),
        *(["application/json", "application/json"], ["text/plain;application/json"]),
    ],
)
async def test_only_json_is_taken(types: Sequence[str]) -> None:
    async with serving() as server:
        said = "".join(f"Content-Type: {one}\r\n" for one in types)
        answer = await server.ask(
            f"POST /things HTTP/1.1\r\n{server.host}{WRITING}{said}Content-Length: 2\r\n\r\n{{}}"
        )

    assert error_of(answer) == (415, "wrong_type")
    assert server.bodies == []


@pytest.mark.parametrize(
    "said", ["application/json; charset=utf-8", 'Application/JSON;charset="UTF-8"']
)
async def test_json_may_say_that_it_is_utf_8(said: str) -> None:
    async with serving() as server:
        answer = await server.ask(
            f"POST /things HTTP/1.1\r\n{server.host}{WRITING}Content-Type: {said}\r\n"
            'Content-Length: 9\r\n\r\n{"a": "b"}'
        )
        whole = await server.post('{"a": "ä"}'.encode())

    assert error_of(answer) == (400, "invalid_json")
    assert whole.json() == {"got": {"a": "ä"}}


@pytest.mark.parametrize("body", [b"", b"{", b'{"a": 1, "a": 2}', b"NaN", b"\xff", b"[" * 100_000])
async def test_a_body_that_is_not_json_is_refused(body: bytes) -> None:
    async with serving() as server:
        answer = await server.post(body)

    assert error_of(answer) == (400, "invalid_json")
    assert server.faults == []


@pytest.mark.parametrize("framing", ["Content-Length: 2\r\n", "Transfer-Encoding: chunked\r\n"])
async def test_a_request_that_reads_has_no_body(framing: str) -> None:
    async with serving() as server:
        answer = await server.get(headers=BEARER + framing)

    assert error_of(answer) == (400, "unexpected_body")


@pytest.mark.parametrize(
    "headers",
    [
        "",
        "Authorization: Bearer\r\n",
        f"Authorization: Bearer {READER[:-1]}\r\n",
        f"Authorization: Bearer {READER}x\r\n",
        f"Authorization: Bearer {READER.upper()}\r\n",
        f"Authorization: Bearer {READER}, Bearer {READER}\r\n",
        f"Authorization: Basic {READER}\r\n",
        f"Authorization: {READER}\r\n",
        f"Authorization: Bearer  {READER}\r\n",
        f"{BEARER}{BEARER}",
        f"X-Authorization: Bearer {READER}\r\n",
        f"Cookie: token={READER}\r\n",
        f"Proxy-Authorization: Bearer {READER}\r\n",
    ],
)
async def test_without_its_token_nobody_is_served(headers: str) -> None:
    async with serving() as server:
        answer = await server.get(headers=headers)

    assert error_of(answer) == (401, "unauthorized")
    assert answer.headers["www-authenticate"] == "Bearer"
    assert READER not in answer.raw.decode()


async def test_the_handler_is_told_who_asked() -> None:
    async with serving() as server:
        reader = await server.get(headers=f"authorization: bearer {READER}\r\n")
        writer = await server.get(headers=WRITING)

    assert (reader.json()["name"], reader.json()["scopes"]) == ("reader", ["read"])
    assert (writer.json()["name"], writer.json()["scopes"]) == ("writer", ["read", "write"])


async def test_a_token_without_the_scope_is_refused() -> None:
    async with serving() as server:
        answer = await server.post(b"{}", BEARER)

    assert error_of(answer) == (403, "forbidden")
    assert "`write`" in answer.json()["error"]["message"]
    assert server.bodies == []


async def test_a_token_that_was_issued_or_withdrawn_counts_at_once() -> None:
    async with serving() as server:
        issued = server.tokens.issue("page", ["read"], 60)
        served = await server.get(headers=f"Authorization: Bearer {issued.value}\r\n")
        server.tokens.configure([])
        refused = await server.get(headers=BEARER)

    assert (served.json()["name"], refused.status) == ("page", 401)


URLS = [
    *("/things?token=x", "/things?access_token=x", "/things?key=x", "/things?a=1&TOKEN=x"),
    *("/things?%74oken=x", f"/things?a={READER}", f"/things?a=1&b={WRITER}", "/things?token"),
    *(f"/things/{READER}", f"/things/a/{WRITER}/b", f"/{READER}", f"/nothing?a={READER}"),
    f"/things?a={READER.replace('r', '%72')}",
]


@pytest.mark.parametrize("url", URLS)
async def test_a_token_in_a_url_is_refused_and_logged_nowhere(
    url: str, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(0):
        async with serving() as server:
            answer = await server.get(url)

    assert error_of(answer) == (400, "token_in_url")
    seen = f"{server.calls} {answer.raw!r} {caplog.text} {capfd.readouterr()}"
    assert READER not in seen
    assert WRITER not in seen
    assert "%72" not in seen
    assert [(call.status, call.path) for call in server.calls] == [(400, "")]


async def test_no_token_is_in_any_log(
    capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    wrong = "wrong-token-" + "x" * 32
    with caplog.at_level(0):
        async with serving() as server:
            for headers in (BEARER, WRITING, f"Authorization: Bearer {wrong}\r\n"):
                await server.get(headers=headers)
                await server.get("/refuse", headers=headers)
                await server.post(b"{}", headers)
                await server.ask(f"GET /things HTTP/1.1\r\n{headers}X: folded\r\n y\r\n\r\n")

    assert len(server.calls) == 12
    seen = f"{server.calls} {caplog.text} {capfd.readouterr()}"
    assert [one for one in (READER, WRITER, wrong) if one in seen] == []


async def test_the_first_thing_that_is_wrong_decides() -> None:
    """Everything is wrong at first; each answer names one thing, which is then put right."""
    async with serving() as server:
        parts = {
            "method": "DELETE",
            "url": "/things?token=x",
            "framing": "Content-Length: 3\r\nContent-Length: 3\r\n",
            "host": "Host: evil.example\r\n",
            "origin": "Origin: null\r\n",
            "type": "Content-Type: text/plain\r\n",
            "token": "",
        }
        steps: list[tuple[tuple[int, str], dict[str, str]]] = [
            ((400, "bad_request"), {"framing": "Content-Length: 3\r\n"}),
            ((421, "wrong_host"), {"host": server.host}),
            ((400, "token_in_url"), {"url": "/things"}),
            ((403, "wrong_origin"), {"origin": ""}),
            ((405, "method_not_allowed"), {"method": "POST"}),
            ((415, "wrong_type"), {"type": JSON}),
            ((401, "unauthorized"), {"token": BEARER}),
            ((403, "forbidden"), {"token": WRITING}),
            ((400, "invalid_json"), {}),
        ]
        for expected, correction in steps:
            head = f"{parts['method']} {parts['url']} HTTP/1.1\r\n"
            names = ("framing", "host", "origin", "type", "token")
            raw = head + "".join(parts[name] for name in names) + "\r\n{a}"
            assert error_of(await server.ask(raw)) == expected
            parts |= correction


@pytest.mark.parametrize(
    "target", ["http://{host}/things", "//things", "*", "things", "/things%0A", "/Things"]
)
async def test_a_target_that_is_no_path_of_ours_is_found_nowhere(target: str) -> None:
    async with serving() as server:
        answer = await server.get(target.format(host=server.address.netloc))

    assert answer.status in {400, 404}


async def test_paths_have_parameters_and_unknown_ones_need_a_token_too() -> None:
    async with serving() as server:
        found = await server.get("/things/a/b%20c?d=e")
        number = await server.get("/number/x")
        unknown = await server.get("/nothing")
        secret = await server.get("/nothing", headers="")

    assert found.json()["path"] == {"path": "a/b c"}
    assert error_of(number) == error_of(unknown) == (404, "not_found")
    assert error_of(secret) == (401, "unauthorized")


async def test_a_public_route_needs_no_token_but_no_wrong_one_is_taken() -> None:
    async with serving() as server:
        anonymous = await server.get("/", headers="")
        known = await server.get("/")
        wrong = await server.get("/", headers="Authorization: Bearer x\r\n")
        foreign = await server.ask("GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n")
        health = await server.ask("GET /healthz HTTP/1.1\r\nHost: balancer\r\n\r\n")

    assert (anonymous.json()["name"], anonymous.json()["scopes"]) == ("", [])
    assert known.json()["name"] == "reader"
    assert wrong.status == 401
    assert foreign.status == 421
    assert health.status == 200


async def test_an_error_says_what_and_what_to_do() -> None:
    async with serving() as server:
        refused = await server.get("/refuse")
        failed = await server.get("/fail")

    assert refused.status == 409
    assert refused.json() == {
        "error": {"code": "conflict", "message": "it was decided", "hint": "look again"}
    }
    assert error_of(failed) == (500, "internal")
    assert [type(fault) for fault in server.faults] == [ZeroDivisionError]
    assert READER not in failed.raw.decode()


async def test_every_answer_keeps_browsers_from_guessing_and_storing() -> None:
    async with serving() as server:
        answers = [await server.get(), await server.get("/nothing"), await server.get("/fail")]

    for answer in answers:
        assert answer.headers["cache-control"] == "no-store"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        assert "server" not in answer.headers


async def test_each_answer_is_logged_with_who_asked_for_what() -> None:
    async with serving(parse_address("127.0.0.1:0")) as server:
        await server.get("/things?a=1")
        await server.post(b"{}", BEARER)
        await server.get("/fail")

    logged = [
        (call.method, call.path, call.scope, call.peer.name, call.status, call.code)
        for call in server.calls
    ]
    assert logged == [
        ("GET", "/things", "read", "reader", 200, ""),
        ("POST", "/things", "write", "reader", 403, "forbidden"),
        ("GET", "/fail", "read", "reader", 500, "internal"),
    ]
    assert all(call.peer.address.startswith("127.0.0.1:") for call in server.calls)


@pytest.mark.parametrize(("address", "other"), [("127.0.0.1", "[::1]"), ("[::1]", "127.0.0.1")])
async def test_a_page_of_the_other_loopback_address_is_of_another_origin(
    address: str, other: str
) -> None:
    async with serving(parse_address(f"{address}:0")) as server:
        port = server.address.port
        for host, status in ((address, 200), ("localhost", 200), (other, 403)):
            answer = await server.get(headers=f"{BEARER}Origin: http://{host}:{port}\r\n")
            assert answer.status == status, host
