"""Attacks on `aish serve --http`, one test each: a real process, bytes on real sockets (8.7.4)."""

import json
import queue
import re
import signal
import socket
import threading
from contextlib import ExitStack, suppress
from typing import Any

import httpx
import pytest
from e2e_project import Project, stdio
from served_http import HttpHub, modern_headers, modern_request, read_all
from served_hub import PATIENCE, text_of

ALICE, BOB = "alice-token-" + "a1" * 20, "bob-token-" + "b2" * 20


def serving(project: Project, *flags: str, serve: str = "{}") -> None:
    """A file with one server, all of whose tools are approved."""
    project.aish.env |= {"ALICE": ALICE, "BOB": BOB}
    project.pipeline(
        f"""
        mcp: {{servers: {{s: {{command: {stdio(*flags)}}}}}, auto_approve: ["s__*"]}}
        serve: {serve}
        """
    )


def body_of(id: Any = 1, text: str = "x") -> bytes:
    """A call of `s__echo`."""
    params = {"name": "s__echo", "arguments": {"text": text}}
    return json.dumps(modern_request(id, "tools/call", params)).encode()


def head_of(hub: HttpHub, *lines: str, body: bytes | None = None) -> bytes:
    """The head of such a call, with its usual headers and `lines`."""
    message = modern_request(1, "tools/call", {"name": "s__echo"})
    usual = [f"{name}: {value}" for name, value in modern_headers(message).items()]
    length = [] if body is None else [f"Content-Length: {len(body)}"]
    return hub.head(*usual, *length, *lines)


def status_of(answer: bytes) -> int:
    """The status of the only answer."""
    assert answer.count(b"HTTP/1.1 ") == 1, answer
    return int(answer.split(b" ", 2)[1])


def calls_of(hub: HttpHub) -> int:
    """How many calls were decided about."""
    return sum(one["event"] == "decided" for one in hub.audit)


def test_a_request_for_another_host_is_refused(project: Project) -> None:
    serving(project)
    hosts = [
        "evil.example",
        "127.0.0.1",
        "127.0.0.1:1",
        "localhost:{}.evil.example",
        "LOCALHOST:{}",
        "0.0.0.0:{}",
        "",
        "127.0.0.1:{}@evil.example",
    ]
    with HttpHub(project, "p.yaml") as hub:
        body = body_of()
        head = head_of(hub, "Connection: close", body=body)
        own = f"Host: 127.0.0.1:{hub.port}".encode()
        answers = {
            host: hub.raw(head.replace(own, f"Host: {host.format(hub.port)}".encode()) + body)
            for host in hosts
        }
        right = hub.raw(head.replace(own, f"Host: localhost:{hub.port}".encode()) + body)
        calls = calls_of(hub)
        reasons = {one["reason"] for one in hub.audit if one["event"] == "refused"}

    assert {host: status_of(answer) for host, answer in answers.items()} == dict.fromkeys(
        hosts, 421
    )
    assert (status_of(right), calls) == (200, 1)
    assert reasons == {"wrong_host"}


@pytest.mark.requirement("H19")
def test_a_page_of_another_origin_is_refused(project: Project) -> None:
    serving(project, serve="{origins: ['https://tools.example.org']}")
    with HttpHub(project, "p.yaml") as hub:
        own = f"http://127.0.0.1:{hub.port}"
        foreign = [
            *("null", "", "http://evil.example", "https://127.0.0.1", "http://127.0.0.1"),
            *(f"https://127.0.0.1:{hub.port}", f"{own}0", f"{own}.evil.example", f"{own}/"),
            *(f"http://user@127.0.0.1:{hub.port}", f"http://127.0.0.1:{hub.port + 1}"),
            *(
                own.upper(),
                f"{own} http://evil.example",
                f"{own}, {own}",
                f"http://[::1]:{hub.port + 1}",
            ),
            *(
                "https://tools.example.org:8443",
                "http://tools.example.org",
                "https://tools.example.org.",
            ),
            *("https://TOOLS.example.org", "https://tools.example.org.evil.example", "file://"),
        ]
        body = body_of()
        answers = {
            origin: hub.raw(
                head_of(hub, f"Origin: {origin}", "Connection: close", body=body) + body
            )
            for origin in foreign
        }
        twice = hub.raw(
            head_of(hub, f"Origin: {own}", f"Origin: {own}", "Connection: close", body=body) + body
        )
        allowed = [
            hub.raw(head_of(hub, f"Origin: {origin}", "Connection: close", body=body) + body)
            for origin in (own, f"http://localhost:{hub.port}", "https://tools.example.org")
        ]
        calls = calls_of(hub)

    assert len(foreign) >= 20
    assert {origin: status_of(answer) for origin, answer in answers.items()} == dict.fromkeys(
        foreign, 403
    )
    assert status_of(twice) == 403
    assert ([status_of(answer) for answer in allowed], calls) == ([200] * 3, 3)
    assert all(b"access-control" not in answer.lower() for answer in allowed)


def test_what_a_page_can_send_without_asking_is_refused(project: Project) -> None:
    serving(project)
    types = [
        "text/plain",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=x",
        "application/json-rpc",
        "text/plain; application/json",
        "application/json; charset=utf-16",
        "application/json, text/plain",
        "",
    ]
    with HttpHub(project, "p.yaml") as hub:
        body = body_of()
        head = head_of(hub, "Connection: close", body=body)
        answers = {
            kind: hub.raw(head.replace(b"application/json", kind.encode(), 1) + body)
            for kind in types
        }
        preflight = hub.raw(
            hub.head(
                f"Origin: http://127.0.0.1:{hub.port}",
                "Access-Control-Request-Method: POST",
                "Access-Control-Request-Headers: authorization, content-type",
                "Connection: close",
                method="OPTIONS",
            )
        )
        get = hub.raw(hub.head("Content-Length: 2", "Connection: close", method="GET") + b"{}")
        calls = calls_of(hub)

    assert {kind: status_of(answer) for kind, answer in answers.items()} == dict.fromkeys(
        types, 415
    )
    assert (status_of(preflight), status_of(get), calls) == (405, 400, 0)
    assert b"access-control" not in preflight.lower()


@pytest.mark.requirement("H18")
def test_a_token_that_is_missing_wrong_or_in_a_url_is_refused_and_in_no_log(
    project: Project,
) -> None:
    serving(project, serve="{clients: {alice: {token_env: ALICE}, bob: {token_env: BOB}}}")
    project.aish.env["PLANTED"] = ALICE
    wrong = {
        "none": "",
        "another": "Authorization: Bearer " + "x" * 40,
        "an empty one": "Authorization: Bearer ",
        "the beginning": f"Authorization: Bearer {ALICE[:-1]}",
        "more": f"Authorization: Bearer {ALICE}x",
        "another scheme": f"Authorization: Basic {ALICE}",
        "two": f"Authorization: Bearer {ALICE}\r\nAuthorization: Bearer {ALICE}",
        "a cookie": f"Cookie: token={ALICE}",
    }
    with HttpHub(project, "p.yaml", token=ALICE) as hub:
        body = body_of()
        head = head_of(hub, "Connection: close", body=body)
        bearer = f"Authorization: Bearer {ALICE}\r\n".encode()
        answers = {
            name: hub.raw(head.replace(bearer, f"{line}\r\n".encode() if line else b"") + body)
            for name, line in wrong.items()
        }
        targets = [
            f"/mcp?token={ALICE}",
            f"/mcp?key={'x' * 32}",
            f"/mcp?a={BOB}",
            f"/{ALICE}",
            f"/mcp/{BOB}",
        ]
        urls = [hub.raw(head.replace(b"/mcp", target.encode(), 1) + body) for target in targets]
        right = hub.raw(head + body)
        alice, bob = hub.client(ALICE), hub.client(BOB)
        alice.begin()
        bobs = bob.post({"jsonrpc": "2.0", "id": 1, "method": "ping"}, alice.session)
        alice.call("s__echo", {"text": "x"})
        calls = calls_of(hub)
        hub.end_input()
        stderr = hub.stderr

    assert {name: status_of(answer) for name, answer in answers.items()} == dict.fromkeys(
        wrong, 401
    )
    assert [status_of(answer) for answer in urls] == [400] * len(targets)
    assert (status_of(right), bobs.status_code, calls) == (200, 404, 2)
    written = project.everything_written() + stderr
    for token in (ALICE, BOB, ALICE[:-1]):
        assert token not in written
        assert all(token.encode() not in answer for answer in (*answers.values(), *urls))


@pytest.mark.slow(reason="guesses many ids")
def test_a_session_id_that_is_foreign_guessed_or_fixed_is_unknown(project: Project) -> None:
    serving(project, serve="{clients: {alice: {token_env: ALICE}, bob: {token_env: BOB}}}")
    with HttpHub(project, "p.yaml", token=ALICE) as hub:
        alice, bob = hub.client(ALICE), hub.client(BOB)
        alice.begin()
        own = alice.session["Mcp-Session-Id"]
        guesses = [
            own.upper() if own.upper() != own else "0" * 32,
            own[:-1],
            f"{own}0",
            "0" * 32,
            "*",
            "../token",
            own[::-1],
        ]
        ping = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
        begin = {
            **ping,
            "method": "initialize",
            "params": {
                "protocolVersion": "2025-11-25",
                "capabilities": {},
                "clientInfo": {"name": "x", "version": "1"},
            },
        }
        found = [alice.post(ping, {"Mcp-Session-Id": guess}) for guess in guesses]
        found += [
            bob.post(ping, {"Mcp-Session-Id": own}),
            bob.http.get(hub.url, headers={"Mcp-Session-Id": own}),
        ]
        fixed = alice.post(begin, {"Mcp-Session-Id": "f" * 32})
        later = alice.post(ping, {"Mcp-Session-Id": "f" * 32})
        twice = alice.http.post(hub.url, json=ping, headers=[("Mcp-Session-Id", own)] * 2)
        still = alice.post(ping)
        ids = set()
        for _ in range(50):
            other = hub.client(BOB)
            other.begin()
            ids.add(other.session["Mcp-Session-Id"])

    for answer in (*found, fixed, later):
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, -32001)
        assert "mcp-session-id" not in answer.headers
    assert (twice.status_code, still.json()["result"]) == (400, {})
    assert len(ids) == 50
    assert all(re.fullmatch(r"[0-9a-f]{32}", id) for id in ids)


def test_headers_never_decide_about_a_call(project: Project) -> None:
    serving(project, serve="{clients: {bob: {token_env: BOB, tools: [s__echo]}}}")
    with HttpHub(project, "p.yaml", token=BOB) as hub:
        client = hub.client(BOB)
        crash = modern_request(1, "tools/call", {"name": "s__crash", "arguments": {}})
        echo = modern_request(2, "tools/call", {"name": "s__echo", "arguments": {"text": "x"}})
        disguised = client.post(crash, modern_headers(echo))
        listing = client.post(crash, modern_headers(modern_request(1, "tools/list")))
        plain = client.post(crash, modern_headers(crash))
        client.begin()
        legacy = client.post(
            {**crash, "params": {"name": "s__crash"}},
            {"Mcp-Method": "tools/list", "Mcp-Name": "s__echo"},
        )
        after = client.call("s__echo", {"text": "alive"})

    assert [one.json()["error"]["code"] for one in (disguised, listing)] == [-32020, -32020]
    assert [one.json()["error"]["code"] for one in (plain, legacy)] == [-32602, -32602]
    assert text_of(after) == "alive"


def test_framing_that_can_be_read_in_two_ways_is_refused(project: Project) -> None:
    serving(project)
    framings = {
        "CL and TE": ("Content-Length: {}", "Transfer-Encoding: chunked"),
        "TE and CL": ("Transfer-Encoding: chunked", "Content-Length: {}"),
        "two CL": ("Content-Length: {}", "Content-Length: 0"),
        "two equal CL": ("Content-Length: {}", "Content-Length: {}"),
        "folded": ("X-Folded: a\r\n b", "Content-Length: {}"),
        "folded TE": ("Content-Length: {}", "X-Folded: a\r\n\tTransfer-Encoding: chunked"),
    }
    with HttpHub(project, "p.yaml") as hub:
        first, second = body_of(text="first"), body_of(text="smuggled")
        rest = first + b"0\r\n\r\n" + head_of(hub, body=second) + second
        answers = {
            name: hub.raw(head_of(hub, *(line.format(len(first)) for line in lines)) + rest)
            for name, lines in framings.items()
        }
        after = hub.client().call("s__echo", {"text": "after"})
        calls = calls_of(hub)

    found = {name: status_of(answer) for name, answer in answers.items()}
    assert found == dict.fromkeys(framings, 400)
    assert (text_of(after), calls) == ("after", 1)


@pytest.mark.slow(reason="the test of the listening server alone shows the same")
def test_two_hundred_dripping_sockets_do_not_hold_up_an_honest_client(project: Project) -> None:
    serving(project, serve="{limits: {http_connections: 250, receive: 5s}}")
    with HttpHub(project, "p.yaml") as hub, ExitStack() as stack:
        drips = [stack.enter_context(hub.connect()) for _ in range(200)]
        half, body = head_of(hub)[:40], body_of()
        whole = head_of(hub, body=body)
        for number, drip in enumerate(drips):
            drip.sendall((half, whole, b"", b"P")[number % 4])
        client = hub.client()
        for number in range(40):
            assert text_of(client.call("s__echo", {"text": str(number)})) == str(number)
            for drip in drips[number::40]:
                with suppress(OSError):
                    drip.sendall(b"x")
        answers = [read_all(drip) for drip in drips]
        assert text_of(client.call("s__echo", {"text": "after"})) == "after"

    codes = {answer.split(b" ", 2)[1] for answer in answers if answer}
    assert codes <= {b"408", b"400"}
    assert b"408" in codes


def test_a_body_that_is_one_byte_too_long_is_refused_and_an_endless_one_is_cut_off(
    project: Project,
) -> None:
    serving(project, serve="{limits: {message: 20KiB}}")
    most = 20 * 1024
    with HttpHub(project, "p.yaml") as hub:
        text = "y" * (most - len(body_of(text="")))
        longest, longer = body_of(text=text), body_of(text=text + "y")
        exact = hub.raw(head_of(hub, "Connection: close", body=longest) + longest)
        over = hub.raw(head_of(hub, "Connection: close", body=longer) + longer)
        with hub.connect() as connection:
            connection.sendall(head_of(hub, "Transfer-Encoding: chunked"))
            endless = _pour(connection, b"8000\r\n" + b"z" * 0x8000 + b"\r\n")
        announced = hub.raw(head_of(hub, "Content-Length: 99999999999999"))
        after = hub.client().call("s__echo", {"text": "after"})
        calls = calls_of(hub)

    assert len(longest) == most
    assert [status_of(one) for one in (exact, over, endless, announced)] == [200, 413, 413, 413]
    assert (text_of(after), calls) == ("after", 2)


def _pour(connection: socket.socket, piece: bytes) -> bytes:
    """Send without an end; what the server says before it hangs up."""
    heard: list[bytes] = []
    reader = threading.Thread(target=lambda: heard.append(read_all(connection)), daemon=True)
    reader.start()
    with suppress(OSError):
        for _ in range(100_000):
            connection.sendall(piece)
    reader.join(PATIENCE)
    return b"".join(heard)


def test_equal_ids_of_several_clients_do_not_meet(project: Project) -> None:
    serving(project)
    cancelled = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}}
    end = project.folder / "end"
    params = {"name": "s__sleep", "arguments": {"ms": 0, "until": str(end)}}
    slow = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    with HttpHub(project, "p.yaml") as hub:
        first, second, third = hub.client(), hub.client(), hub.client()
        first.begin()
        second.begin()
        found: queue.Queue[tuple[str, httpx.Response]] = queue.Queue()
        sleep = modern_request(1, "tools/call", params)
        requests = {
            "first": lambda: first.post(slow),
            "twice": lambda: first.post(slow),
            "second": lambda: second.post(slow),
            "alone": lambda: third.post(sleep, modern_headers(sleep)),
            "also alone": lambda: hub.client().post(sleep, modern_headers(sleep)),
        }
        threads = [
            threading.Thread(target=lambda n=name, ask=ask: found.put((n, ask())))
            for name, ask in requests.items()
        ]
        for thread in threads:
            thread.start()
        # Only the one whose id is taken is answered before the calls may end.
        answers = dict([found.get(timeout=PATIENCE)])
        ignored = third.post(cancelled, {"MCP-Protocol-Version": "2026-07-28"})
        end.touch()
        answers |= dict(found.get(timeout=PATIENCE) for _ in requests.keys() - answers.keys())
        for thread in threads:
            thread.join(PATIENCE)

    assert ignored.status_code == 202
    (refused,) = {"first", "twice"} & {next(iter(answers))}
    assert answers.pop(refused).status_code == 400
    assert len(answers) == 4
    for name, answer in answers.items():
        assert text_of(answer.json()["result"]) == "slept 0 ms", name


def test_a_line_break_in_a_name_reaches_no_header_and_no_log(project: Project) -> None:
    serving(project)
    name = 's__echo\r\nX-Planted: yes\n{"event":"decided"}'
    with HttpHub(project, "p.yaml") as hub:
        client = hub.client()
        unknown = client.modern("tools/call", {"name": name, "arguments": {}})
        method = client.modern("tools/call\nX: y", None, {"Mcp-Method": "=?base64?x?="})
        body = body_of()
        head = head_of(hub, "Connection: close", body=body)
        header = hub.raw(
            head.replace(b"Mcp-Name: s__echo", b"Mcp-Name: s__echo\nX-Planted: yes") + body
        )
        argument = client.call("s__echo", {"text": "a\r\n\r\ndata: planted\n\nid: 7"})
        client.begin()
        late = client.post({"jsonrpc": "2.0", "id": "1\ndata: x\n\n", "method": "ping"})
        metrics = client.http.get(f"{hub.base}/metrics").text
        events = [one["event"] for one in hub.audit]

    assert (unknown.status_code, unknown.json()["error"]["code"]) == (400, -32602)
    assert "x-planted" not in unknown.headers
    assert (method.status_code, method.json()["error"]["code"]) == (400, -32020)
    assert status_of(header) == 400
    assert text_of(argument) == "a\r\n\r\ndata: planted\n\nid: 7"
    assert late.json() == {"jsonrpc": "2.0", "id": "1\ndata: x\n\n", "result": {}}
    assert "Planted" not in metrics
    assert events.count("decided") == 1


def test_a_request_whose_token_a_reload_takes_away_before_its_body_came_is_refused(
    project: Project,
) -> None:
    alone = "alice: {token_env: ALICE}"
    serving(project, serve=f"{{clients: {{{alone}, bob: {{token_env: BOB, tools: [s__add]}}}}}}")
    body, length = body_of(), f"Content-Length: {len(body_of())}"
    with HttpHub(project, "p.yaml", token=BOB) as hub:
        head = head_of(hub, length, "Connection: close")
        alice = hub.client(ALICE)
        alice.begin()
        with hub.connect() as connection:
            # What bob asks for, he could not see.
            connection.sendall(head + body[:10])
            alice.ask("ping")
            serving(project, serve=f"{{clients: {{{alone}}}}}")
            hub.signal(signal.SIGHUP)
            hub.stderr_with("reloaded")
            connection.sendall(body[10:])
            answer = read_all(connection)
        calls = calls_of(hub)

    assert (status_of(answer), calls) == (401, 0)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("number", ["9" * 5_000, "0" * 5_000, "1e999", "-1", "²"])
def test_numbers_in_requests_are_refused_or_read_whatever_their_size(
    project: Project, number: str
) -> None:
    serving(project)
    body = body_of()
    odd = body.replace(b'"id": 1', f'"id": {number}'.encode(), 1)
    assert odd != body
    with HttpHub(project, "p.yaml") as hub:
        closed = "Connection: close"
        answers = [
            hub.raw(head_of(hub, closed, f"Content-Length: {number}") + body),
            hub.raw(head_of(hub, closed, f"Last-Event-ID: {number}", body=body) + body),
            hub.raw(head_of(hub, closed, body=odd) + odd),
        ]
        right = hub.raw(head_of(hub, closed, body=body) + body)
    statuses = [status_of(one) for one in answers]
    assert all(one < 500 for one in statuses), answers
    assert status_of(right) == 200
    assert "internal" not in hub.stderr
