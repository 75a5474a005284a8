"""`aish serve --http`: streamable HTTP in both eras, real sockets, real servers behind it."""

import json
import signal
from typing import Any

import httpx
import pytest
from e2e_project import Project, stdio
from patience import rounds, signal_until_end
from plain_http import PLAIN
from served_http import (
    HttpHub,
    modern_headers,
    modern_request,
)
from served_hub import META, PATIENCE, ServedHub, text_of

ALICE, BOB = "alice-token-" + "a1" * 20, "bob-token-" + "b2" * 20
CLIENTS = "clients: {alice: {token_env: ALICE}, bob: {token_env: BOB, tools: [s__echo, s__add]}}"


# Tells its progress, then takes long.
SLOW: dict[str, Any] = {
    "name": "s__count",
    "arguments": {"steps": 1, "ms": 60_000},
    "_meta": {"progressToken": 1},
}


def serving(project: Project, *flags: str, serve: str = "{}") -> None:
    """A file with one server, all of whose tools are approved."""
    project.aish.env |= {"ALICE": ALICE, "BOB": BOB}
    project.pipeline(
        f"""
        mcp:
          servers: {{s: {{command: {stdio(*flags)}}}}}
          auto_approve: ["s__*", s__crash]
        serve: {serve}
        """
    )


def until_decided(hub: HttpHub, tool: str, count: int) -> None:
    """Wait for calls that came on connections of their own: they are under way."""
    for _ in rounds(f"`{tool}` was not called"):
        decided = [one.get("tool") for one in hub.audit if one["event"] == "decided"]
        if decided.count(tool) >= count:
            break
        hub.until_ready(200)


def test_a_request_without_a_session_stands_for_itself(project: Project) -> None:
    serving(project)
    with HttpHub(project, "p.yaml") as hub:
        client = hub.client()
        listed = client.modern("tools/list")
        called = client.modern("tools/call", {"name": "s__echo", "arguments": {"text": "hello"}})
        found = client.modern("server/discover")
        told = {"jsonrpc": "2.0", "method": "notifications/whatever"}
        noted = client.post(told, {"MCP-Protocol-Version": "2026-07-28"})
        unknown = client.modern("tools/unknown")
        no_tool = client.modern("tools/call", {"name": "none"})
        get = client.http.get(hub.url, headers={"MCP-Protocol-Version": "2026-07-28"})
        head = client.http.head(hub.url)

    assert listed.status_code == called.status_code == found.status_code == 200
    assert listed.headers["content-type"] == "application/json"
    assert [tool["name"] for tool in listed.json()["result"]["tools"]][:2] == ["s__echo", "s__add"]
    assert text_of(called.json()["result"]) == "hello"
    assert "mcp-session-id" not in called.headers
    assert found.json()["result"]["supportedVersions"][0] == "2026-07-28"
    assert (noted.status_code, noted.content) == (202, b"")
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, -32601)
    assert (no_tool.status_code, no_tool.json()["error"]["code"]) == (400, -32602)
    assert (get.status_code, get.headers["allow"]) == (405, "POST")
    assert head.status_code == 405


def test_headers_and_body_of_a_request_have_to_say_the_same(project: Project) -> None:
    serving(project)
    message = modern_request(7, "tools/call", {"name": "s__echo", "arguments": {"text": "x"}})
    right = modern_headers(message)
    wrong: dict[str, tuple[dict[str, str], int]] = {
        "no version": ({**right, "MCP-Protocol-Version": ""}, -32020),
        "another version": ({**right, "MCP-Protocol-Version": "2025-11-25"}, -32020),
        "another method": ({**right, "Mcp-Method": "tools/list"}, -32020),
        "a method in capitals": ({**right, "Mcp-Method": "TOOLS/CALL"}, -32020),
        "another name": ({**right, "Mcp-Name": "s__crash"}, -32020),
        "an encoded other name": ({**right, "Mcp-Name": "=?base64?c19fY3Jhc2g=?="}, -32020),
        "a broken encoding": ({**right, "Mcp-Name": "=?base64?*?="}, -32020),
    }
    with HttpHub(project, "p.yaml") as hub:
        client = hub.client()
        for name in right:
            headers = {key: value for key, value in right.items() if key != name}
            wrong[f"without {name}"] = headers, -32020
        answers = {name: client.post(message, headers) for name, (headers, _) in wrong.items()}
        encoded = client.post(message, {**right, "Mcp-Name": "=?base64?c19fZWNobw==?="})
        body = json.dumps(message)
        padded = {**right, "Mcp-Method": "  tools/call  ", "Content-Length": str(len(body))}
        lines = [f"{name}: {value}" for name, value in padded.items()]
        spaced = hub.raw(hub.head(*lines, "Connection: close") + body.encode())
        twice = client.http.post(
            hub.url, json=message, headers=[*right.items(), ("Mcp-Name", "s__echo")]
        )
        other = modern_request(8, "tools/list", {"_meta": {f"{META}protocolVersion": "1900-01-01"}})
        unknown = client.post(other, modern_headers(other))
        old = client.post(
            {"jsonrpc": "2.0", "id": 9, "method": "ping"}, {"MCP-Protocol-Version": "1900-01-01"}
        )
        bare = client.post({"jsonrpc": "2.0", "id": 10, "method": "tools/list"}, right)

    for name, (_, code) in wrong.items():
        found = answers[name].json()
        assert (answers[name].status_code, found["error"]["code"]) == (400, code), name
        assert found["id"] == 7
    assert text_of(encoded.json()["result"]) == "x"
    assert spaced.startswith(b"HTTP/1.1 200 ")
    assert (twice.status_code, twice.json()["error"]["code"]) == (400, -32020)
    for found, id in ((unknown, 8), (old, 9)):
        assert (found.status_code, found.json()["error"]["code"]) == (400, -32022)
        assert found.json()["error"]["data"]["supported"][0] == "2026-07-28"
        assert found.json()["id"] == id
    assert (bare.status_code, bare.json()["error"]["code"]) == (400, -32602)


def test_a_session_begins_with_the_handshake_and_ends_for_its_client_alone(
    project: Project,
) -> None:
    serving(project, serve=f"{{{CLIENTS}}}")
    with HttpHub(project, "p.yaml") as hub:
        alice, bob = hub.client(ALICE), hub.client(BOB)
        early = alice.post({"jsonrpc": "2.0", "id": 1, "method": "tools/list"})
        begun = alice.begin()
        other = hub.client(ALICE)
        other.begin("2025-03-26")
        names = [tool["name"] for tool in alice.tools()]
        unknown = alice.post({"jsonrpc": "2.0", "id": 2, "method": "tools/unknown"})
        again = alice.post({"jsonrpc": "2.0", "id": 3, "method": "initialize", "params": {}})
        foreign = bob.post({"jsonrpc": "2.0", "id": 4, "method": "ping"}, alice.session)
        guessed = bob.post(
            {"jsonrpc": "2.0", "id": 5, "method": "initialize", "params": {}},
            {"Mcp-Session-Id": "0" * 32},
        )
        robbed = bob.http.delete(hub.url, headers=alice.session)
        ended = alice.http.delete(hub.url, headers=alice.session)
        late = alice.post({"jsonrpc": "2.0", "id": 6, "method": "ping"})
        stream = alice.http.get(hub.url, headers=alice.session)
        beside = other.call("s__echo", {"text": "beside"})
        records = [(one["event"], one["client"]) for one in hub.audit if "session." in one["event"]]

    assert (early.status_code, early.json()["error"]["code"]) == (400, -32602)
    assert begun["protocolVersion"] == "2025-11-25"
    assert len(alice.session["Mcp-Session-Id"]) == 32
    assert alice.session["Mcp-Session-Id"] != other.session["Mcp-Session-Id"]
    assert "s__crash" in names
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (200, -32601)
    assert again.json()["error"]["code"] in {-32600, -32602}
    for found, id in ((foreign, 4), (guessed, 5), (robbed, None), (late, 6), (stream, None)):
        assert (found.status_code, found.json()["error"]["code"]) == (404, -32001)
        assert found.json()["id"] == id
    assert ended.status_code == 204
    assert text_of(beside) == "beside"
    assert records == [
        ("session.opened", "alice"),
        ("session.opened", "alice"),
        ("session.closed", "alice"),
    ]


def test_a_client_sees_the_tools_that_its_token_is_for(project: Project) -> None:
    serving(project, serve=f"{{{CLIENTS}}}")
    with HttpHub(project, "p.yaml") as hub:
        bob = hub.client(BOB)
        stateless = [tool["name"] for tool in bob.tools()]
        refused = bob.modern("tools/call", {"name": "s__sleep", "arguments": {"ms": 0}})
        bob.begin()
        names = [tool["name"] for tool in bob.tools()]
        added = bob.call("s__add", {"a": 1, "b": 2})
        nobody = hub.client("n" * 40).modern("tools/list")
        client = [one["client"] for one in hub.audit if one["event"] == "decided"]

    assert stateless == names == ["s__echo", "s__add"]
    assert refused.json()["error"]["code"] == -32602
    assert text_of(added) == "3"
    assert nobody.status_code == 401
    assert client == ["bob"]
    assert not (project.served_state() / ".aish" / "token").exists()


def test_several_messages_at_once_are_taken_for_one_revision_only(project: Project) -> None:
    serving(project)
    ping: dict[str, Any] = {"jsonrpc": "2.0", "method": "ping"}
    call = {"name": "s__echo", "arguments": {"text": "x"}}
    several = [
        {**ping, "id": 1},
        {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": call},
        {"jsonrpc": "2.0", "method": "notifications/whatever"},
        {**ping, "id": 3, "jsonrpc": "1.0"},
    ]
    with HttpHub(project, "p.yaml") as hub:
        old, new = hub.client(), hub.client()
        old.begin("2025-03-26")
        new.begin("2025-06-18")
        answers = old.post(several).json()
        nothing = old.post([{"jsonrpc": "2.0", "method": "notifications/whatever"}])
        refused = [
            new.post(several),
            hub.client().post(several, {"MCP-Protocol-Version": "2026-07-28"}),
        ]
        broken = [
            old.http.post(hub.url, content=body, headers=old.session)
            for body in (b"{", b"[]", b"1", b'{"id": 1}')
        ]

    assert {one["id"]: "result" in one for one in answers} == {1: True, 2: True, 3: False}
    assert nothing.status_code == 202
    assert [(one.status_code, one.json()["error"]["code"]) for one in refused] == [
        (400, -32600)
    ] * 2
    codes = [(one.status_code, one.json()["error"]["code"]) for one in broken]
    assert codes == [(400, -32700), (400, -32600), (400, -32600), (400, -32600)]


def test_an_answer_is_a_stream_from_the_first_notification_on(project: Project) -> None:
    serving(project, "--asks")
    with HttpHub(project, "p.yaml") as hub:
        client = hub.client()
        params = {"name": "s__count", "arguments": {"steps": 3}, "_meta": {"progressToken": "p"}}
        with client.opened("tools/call", params) as events:
            stateless = list(events)
        quiet = client.modern("tools/call", params, {"Accept": "application/json"})
        client.begin()
        with client.opened("tools/call", params) as events:
            session = list(events)

    assert {one.message["method"] for one in stateless[:-1]} == {"notifications/progress"}
    assert {one.id for one in stateless} == {""}
    assert quiet.headers["content-type"] == "application/json"
    first, *told, last = session
    assert (first.message, text_of(last.message["result"])) == ({}, "counted")
    assert text_of(stateless[-1].message["result"]) == text_of(quiet.json()["result"]) == "counted"
    assert told[-1].message["params"] == {
        "progressToken": "p",
        "progress": 3,
        "total": 3,
        "message": "step 3",
    }
    ids = [int(one.id.removeprefix("1-")) for one in session]
    assert ids == sorted(set(ids))


def test_a_client_that_leaves_in_the_middle_of_a_call_cancels_it(project: Project) -> None:
    note = project.folder / "cancelled"
    serving(project, "--asks", "--note-cancelled", str(note))
    with HttpHub(project, "p.yaml") as hub:
        slow = modern_request(1, "tools/call", {"name": "s__sleep", "arguments": {"ms": 60_000}})
        client = hub.client()
        with hub.leaving(slow, modern_headers(slow)):
            until_decided(hub, "s__sleep", 1)
            client.call("s__echo", {"text": "beside"})
        hub.until_counted('aish_calls_total{tool="s__sleep",decision="auto",kind="cancelled"} 1')
        told = modern_request(2, "tools/call", SLOW)
        with hub.leaving(told, modern_headers(told)):
            until_decided(hub, "s__count", 1)
            client.call("s__echo", {"text": "beside"})
        hub.until_counted('aish_calls_total{tool="s__count",decision="auto",kind="cancelled"} 1')
        client.begin()
        with hub.leaving({**slow, "params": {**slow["params"], "_meta": {}}}, client.session):
            until_decided(hub, "s__sleep", 2)
            client.call("s__echo", {"text": "beside"})
        hub.until_counted('aish_calls_total{tool="s__sleep",decision="auto",kind="cancelled"} 2')
        client.call("s__echo", {"text": "after"})

    assert len(note.read_text().splitlines()) == 3


def test_where_it_listens_is_told_with_the_token_that_was_made(project: Project) -> None:
    project.pipeline("mcp: {servers: {fs: {pack: fs, root: .}}}")
    ports = ("--http", "http://127.0.0.1:0/mcp", "--tcp", "tcp://127.0.0.1:0")

    with ServedHub(project, "p.yaml", *ports, "--unix", "run/s") as hub:
        told = hub.stderr_with("listening on ", 3)
        http, tcp, unix = hub.addresses()
        hub.signal(signal.SIGTERM)
        assert hub.finish() == 0

    token = project.served_state() / ".aish" / "token"
    assert http.startswith("http://127.0.0.1:")
    assert http.endswith("/mcp")
    assert tcp.startswith("tcp://127.0.0.1:")
    assert told.splitlines() == [
        f"info: listening on {http}, token in `{token}`",
        f"info: listening on {tcp}, token in `{token}`",
        f"info: listening on {unix}",
    ]


@pytest.mark.requirement("H24")
def test_health_is_told_to_everybody_and_more_to_a_client(project: Project) -> None:
    serving(project, "--asks", serve="{limits: {drain: 60s}}")
    with HttpHub(project, "p.yaml") as hub:
        client = hub.client()
        called = client.modern("tools/call", {"name": "s__echo", "arguments": {"text": "x"}})
        client.modern("tools/call", {"name": "s__none"})
        anybody = httpx.Client(headers={"Host": "10.0.0.7"}, timeout=PATIENCE, verify=PLAIN)
        hub.clients.append(anybody)
        health = anybody.get(f"{hub.base}/healthz")
        assert anybody.head(f"{hub.base}/readyz").status_code == 200
        ready = anybody.get(f"{hub.base}/readyz")
        names = client.tools()
        hidden = anybody.get(f"{hub.base}/metrics", headers={"Host": f"127.0.0.1:{hub.port}"})
        shown = client.http.get(f"{hub.base}/readyz")
        client.begin()
        metrics = client.http.get(f"{hub.base}/metrics")
        with client.opened("tools/call", SLOW) as slow:
            assert next(slow).message == {}
            assert next(slow).message["method"] == "notifications/progress"
            hub.signal(signal.SIGTERM)
            hub.until_ready(503)
            draining = anybody.get(f"{hub.base}/readyz")
            late = client.modern("tools/list")
            signal_until_end(hub.process, signal.SIGTERM)
        assert hub.finish() == 143

    assert called.status_code == 200
    assert (health.status_code, health.json()) == (200, {"status": "ok"})
    assert (ready.status_code, ready.json()) == (200, {"status": "ready"})
    assert hidden.status_code == 401
    assert shown.json()["servers"] == [{"alias": "s", "state": "ready", "tools": len(names)}]
    assert (draining.status_code, draining.json()) == (503, {"status": "draining"})
    assert (late.status_code, late.headers["retry-after"]) == (503, "5")
    lines = metrics.text.splitlines()
    assert 'aish_calls_total{tool="s__echo",decision="auto",kind="ok"} 1' in lines
    assert 'aish_calls_total{tool="other",decision="none",kind="unknown_tool"} 1' in lines
    assert "aish_call_seconds_count 1" in lines
    assert 'aish_server_up{server="s"} 1' in lines
    assert "aish_sessions 1" in lines
    assert 'aish_reloads_total{result="ok"} 0' in lines
    assert metrics.headers["content-type"].startswith("text/plain; version=0.0.4")
