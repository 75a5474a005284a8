"""Sessions and streams of `aish serve --http`: what is kept, bounds, ends (H12, H15, H16)."""

import json
import resource
import signal
import socket
import ssl
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from e2e_project import Project, stdio
from plain_http import PLAIN
from served_http import BOTH, HttpClient, HttpHub, initialize, read_all
from served_hub import META, PATIENCE, text_of
from tls_files import make_tls_files

ALICE, BOB = "alice-token-" + "a1" * 20, "bob-token-" + "b2" * 20
CLIENTS = "clients: {alice: {token_env: ALICE}, bob: {token_env: BOB}}"
CHANGED = "notifications/tools/list_changed"
# Tells its progress, then takes long.
SLOW = {"name": "s__count", "arguments": {"steps": 3, "ms": 60_000}, "_meta": {"progressToken": 1}}
LISTEN = {"notifications": {"toolsListChanged": True}}
COUNTED = 'aish_calls_total{tool="s__count",decision="auto",kind='


def serving(project: Project, *flags: str, serve: str = "{}") -> None:
    """A file with one server, all of whose tools are approved."""
    project.aish.env |= {"ALICE": ALICE, "BOB": BOB}
    project.pipeline(
        f"""
        mcp: {{servers: {{s: {{command: {stdio(*flags)}}}}}, auto_approve: ["s__*", s__crash]}}
        serve: {serve}
        """
    )


def until_heard(stream: socket.socket, what: bytes) -> bytes:
    """What comes on a connection until something is in it; comments may come before it."""
    heard = b""
    while what not in heard and (piece := stream.recv(65536)):
        heard += piece
    return heard


def test_changes_are_told_on_the_stream_of_a_session_and_of_a_subscription(
    project: Project,
) -> None:
    serving(project, "--change-tools")
    with HttpHub(project, "p.yaml") as hub:
        client, other = hub.client(), hub.client()
        client.begin()
        with client.stream() as events, other.opened("subscriptions/listen", LISTEN) as listened:
            acknowledged = next(listened).message
            client.call("s__echo", {"text": "x"})
            told, listened_to = next(events), next(listened).message
        client.call("s__crash")
        with client.stream(told.id) as events:
            lost = next(events)
        with client.stream(told.id) as events:
            again = next(events)
        with client.stream("not-an-id") as events:
            hub.signal(signal.SIGTERM)
            rest = [one.message["method"] for one in events]
        assert hub.finish() == 0

    assert acknowledged["params"]["notifications"] == {"toolsListChanged": True}
    assert acknowledged["params"]["_meta"] == {f"{META}subscriptionId": 1}
    assert (told.message["method"], listened_to["method"]) == (CHANGED, CHANGED)
    assert lost.message["method"] == again.message["method"] == CHANGED
    assert (lost.id, lost.id != told.id) == (again.id, True)
    assert set(rest) <= {CHANGED}


def test_a_subscription_ends_with_its_result_when_the_server_does(project: Project) -> None:
    serving(project)
    with HttpHub(project, "p.yaml") as hub:
        refused = hub.client().modern(
            "subscriptions/listen", LISTEN, {"Accept": "application/json"}
        )
        with hub.client().opened("subscriptions/listen", LISTEN) as events:
            next(events)
            hub.signal(signal.SIGTERM)
            *_, last = events
        assert hub.finish() == 0

    assert refused.status_code == 406
    assert last.message["id"] == 1
    assert last.message["result"]["resultType"] == "complete"


def test_the_stream_of_a_call_is_read_on_after_its_connection_broke(project: Project) -> None:
    serving(project, "--asks")
    # One step: of several that wait to be sent only the last one is told.
    params = {**SLOW, "arguments": {"steps": 1, "ms": 500}}
    with HttpHub(project, "p.yaml") as hub:
        client = hub.client()
        client.begin()
        with client.opened("tools/call", params) as events:
            first, second = next(events), next(events)
        with client.stream(second.id) as events:
            rest = list(events)
        with client.stream(first.id) as events:
            again = list(events)
        with client.stream(rest[-1].id) as events:
            nothing = list(events)

    assert first.message == {}
    assert second.message["method"] == "notifications/progress"
    assert text_of(rest[-1].message["result"]) == "counted"
    ids = [one.id for one in again]
    assert {second.id, *(one.id for one in rest)} <= set(ids)
    assert (ids[-1], first.id in ids) == (rest[-1].id, False)
    assert nothing == []


@pytest.mark.slow(reason="sends more notices than are kept")
@pytest.mark.parametrize("tells", ["progress", "logs"])
def test_notices_of_one_call_push_out_no_result_of_another(project: Project, tells: str) -> None:
    serving(project, "--asks")
    params = {**SLOW, "arguments": {"steps": 1}}
    flood: dict[str, Any] = {**SLOW, "arguments": {"steps": 400}}
    if tells == "logs":
        log = {"level": "error", "data": "x" * 30_000}
        arguments = {"method": "notifications/message", "params": log}
        flood = {"name": "s__tell_client", "arguments": arguments}
    with HttpHub(project, "p.yaml") as hub:
        client = hub.client()
        client.begin()
        with client.opened("tools/call", params) as events:
            first, *_, last = events
        for _ in range(1 if tells == "progress" else 60):
            with client.opened("tools/call", flood) as events:
                *_, other = events
        with client.stream(first.id) as events:
            again = list(events)

    assert text_of(other.message["result"]) in {"counted", "told"}
    assert again[-1].id == last.id
    assert text_of(again[-1].message["result"]) == "counted"


@pytest.mark.slow(reason="a client has ten seconds to come back")
def test_a_call_whose_stream_nobody_reads_on_is_cancelled(project: Project) -> None:
    serving(project, "--asks")
    with HttpHub(project, "p.yaml") as hub:
        client = hub.client()
        client.begin()
        with client.opened("tools/call", SLOW) as events:
            told = next(events)
        with client.stream(told.id) as events:
            next(events)
        hub.until_counted(f'{COUNTED}"cancelled"}} 1')
        assert client.ask("ping")["result"] == {}


@pytest.mark.slow(reason="a session is idle for eight seconds")
def test_a_session_that_ends_takes_its_calls_and_streams_with_it(project: Project) -> None:
    serving(project, "--asks", serve="{limits: {idle: 8s}}")
    with HttpHub(project, "p.yaml") as hub, ExitStack() as stack:
        ended, idle, used = hub.client(), hub.client(), hub.client()
        for one in (ended, idle, used):
            one.begin()
        stack.enter_context(used.stream())
        with ended.stream() as quiet, ended.opened("tools/call", SLOW) as events:
            next(events)
            ended.http.delete(hub.url, headers=ended.session)
            rest = [one.message for one in events]
            assert list(quiet) == []
        hub.until_counted(f'{COUNTED}"cancelled"}} 1')
        # One was ended, one has expired, and one is kept by its stream.
        hub.until_counted("aish_sessions 1")
        late = idle.post({"jsonrpc": "2.0", "id": 1, "method": "ping"})
        assert used.ask("ping")["result"] == {}

    assert all("result" not in one for one in rest)
    assert (late.status_code, late.json()["error"]["code"]) == (404, -32001)


def test_too_many_sessions_push_out_unused_ones_of_the_same_client_first(
    project: Project,
) -> None:
    serving(project, serve=f"{{limits: {{sessions: 3}}, {CLIENTS}}}")
    ping: dict[str, Any] = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
    with HttpHub(project, "p.yaml", token=ALICE) as hub, ExitStack() as streams:
        oldest, bob, alice, newer = (hub.client(token) for token in (BOB, BOB, ALICE, ALICE))
        for one in (oldest, bob, alice):
            one.begin()
        oldest.ask("ping")  # used later than the other one of its client
        newer.begin()
        codes = [one.post(ping).status_code for one in (oldest, bob, alice, newer)]
        third = hub.client(ALICE)
        streams.enter_context(newer.stream())
        third.begin()
        later = [one.post(ping).status_code for one in (oldest, bob, newer, third)]
        for one in (bob, third):
            streams.enter_context(one.stream())
        full = hub.client(ALICE).post(initialize())

    assert codes == [200, 200, 404, 200]
    assert later == [404, 200, 200, 200]
    assert (full.status_code, full.headers["retry-after"]) == (503, "5")
    assert full.json()["error"]["message"] == "busy: there are too many sessions"


def test_a_client_that_does_not_read_holds_up_no_other(project: Project) -> None:
    serving(project, "--asks", serve="{limits: {queued: 8}}")
    flood = {"name": "s__count", "arguments": {"steps": 3000, "ms": 60_000}}
    call = {"jsonrpc": "2.0", "id": "flood", "method": "tools/call"}
    with HttpHub(project, "p.yaml") as hub:
        client = hub.client()
        client.begin("2025-06-18")
        message = {**call, "params": {**flood, "_meta": {"progressToken": 1}}}
        with hub.leaving(message, client.session):
            # Its messages replace each other while they wait: nobody is cut off for progress.
            hub.until_counted("aish_sessions 1")
            assert text_of(client.call("s__echo", {"text": "beside"})) == "beside"
        client.http.delete(hub.url, headers=client.session)
        hub.until_counted(f'{COUNTED}"cancelled"}} 1')
        assert text_of(hub.client().call("s__echo", {"text": "after"})) == "after"


def test_http_on_a_socket_file_needs_the_same_user_and_no_token(project: Project) -> None:
    serving(project)
    path = project.folder / "run" / "hub.sock"
    with HttpHub(project, "p.yaml", listen="unix:run/hub.sock") as hub:
        transport = httpx.HTTPTransport(uds=str(path), verify=PLAIN)
        http = httpx.Client(transport=transport, headers=BOTH, timeout=PATIENCE)
        hub.clients.append(http)
        client = HttpClient(http, "http://whatever.example/mcp")
        called = client.call("s__echo", {"text": "over a file"})
        client.begin()
        again = client.call("s__echo", {"text": "in a session"})
        foreign = client.post({}, {"Origin": "http://whatever.example"})
        metrics = http.get("http://x/metrics")
        decided = next(one for one in hub.audit if one["event"] == "decided")
        hub.signal(signal.SIGTERM)
        assert hub.finish() == 0

    assert (text_of(called), text_of(again)) == ("over a file", "in a session")
    assert (foreign.status_code, metrics.status_code) == (403, 200)
    assert decided["client"].startswith("uid:")
    assert decided["peer"]["transport"] == "http"
    assert decided["peer"]["pid"] > 0
    assert not path.exists()
    assert not (project.served_state() / ".aish" / "token").exists()


def test_other_machines_need_a_word_and_tls(project: Project) -> None:
    serving(project)
    files = make_tls_files(project.folder)
    for arguments, said in (
        ((), "`0.0.0.0:0` can be reached from other machines"),
        (("--allow-remote",), "`0.0.0.0:0` would send tokens unencrypted"),
    ):
        done = project.aish("serve", "p.yaml", "--http", "0.0.0.0:0", *arguments)
        assert (done.code, said in done.stderr) == (2, True), done.stderr
    tls = ("--tls-cert", files.certificate, "--tls-key", files.key)
    with HttpHub(project, "p.yaml", *tls) as hub:
        client = hub.client(verify=files.trusting)
        called = client.call("s__echo", {"text": "encrypted"})
        plain = hub.raw(hub.head("Content-Length: 0"))
        with pytest.raises(ssl.SSLError), hub.connect() as connection:
            ssl.create_default_context().wrap_socket(connection, server_hostname="localhost")

    assert hub.url.startswith("https://127.0.0.1:")
    assert text_of(called) == "encrypted"
    assert b"HTTP/1.1 2" not in plain


def test_arguments_that_a_tool_repeats_in_headers_are_compared(project: Project) -> None:
    schema = {
        "type": "object",
        "properties": {
            "region": {"type": "string", "x-mcp-header": "Region"},
            "deep": {
                "type": "object",
                "properties": {"n": {"type": "integer", "x-mcp-header": "N"}},
            },
        },
    }
    script = {
        "tools": [{"name": "run", "inputSchema": schema}],
        "results": {"run": {"result": {"content": []}}},
    }
    script["calls"] = str(project.folder / "calls.jsonl")
    project.write("script.json", json.dumps(script))
    canned = Path(__file__).parents[2] / "support" / "mcp_canned_server.py"
    command = json.dumps([sys.executable, str(canned), str(project.folder / "script.json")])
    project.pipeline(
        f'mcp: {{servers: {{c: {{command: {command}, protocol: legacy}}}}, auto_approve: ["c__*"]}}'
    )
    arguments = {"region": "Süd", "deep": {"n": 42}}
    right = {"Mcp-Param-Region": "=?base64?U8O8ZA==?=", "Mcp-Param-N": "42"}
    with HttpHub(project, "p.yaml") as hub:
        client = hub.client()

        def call(given: dict[str, Any], headers: dict[str, str]) -> tuple[int, int]:
            found = client.modern("tools/call", {"name": "c__run", "arguments": given}, headers)
            return found.status_code, found.json().get("error", {}).get("code", 0)

        good = [
            call(arguments, right),
            call(arguments, {**right, "Mcp-Param-N": "42.0"}),
            call({}, {}),
        ]
        bad = [
            call(arguments, {}),
            call(arguments, {**right, "Mcp-Param-N": "43"}),
            call(arguments, {**right, "Mcp-Param-Region": "Sued"}),
            call({"region": "Süd"}, right),
        ]
        other = call({}, {"Mcp-Param-Unknown": "x"})

    assert good == [(200, 0)] * 3
    assert bad == [(400, -32020)] * 4
    assert other == (200, 0)


def test_a_reload_ends_the_sessions_of_a_client_whose_token_is_another_one(
    project: Project,
) -> None:
    def clients(alice: str, tools: str) -> None:
        bob = f"{{token_env: BOB, tools: [{tools}]}}"
        serving(project, serve=f"{{clients: {{alice: {{token_env: {alice}}}, bob: {bob}}}}}")

    project.aish.env["NEW"] = "new-token-" + "c3" * 20
    clients("ALICE", "s__echo")
    with HttpHub(project, "p.yaml", token=ALICE) as hub:
        alice, bob = hub.client(ALICE), hub.client(BOB)
        alice.begin()
        bob.begin()
        with (
            hub.client(ALICE).opened("subscriptions/listen", LISTEN) as events,
            bob.stream() as told,
        ):
            next(events)
            clients("NEW", "s__echo")
            hub.signal(signal.SIGHUP)
            assert list(events) == []
            hub.stderr_with("reloaded")
            new = hub.client(project.aish.env["NEW"])
            late = alice.post({"jsonrpc": "2.0", "id": 1, "method": "ping"})
            stale = new.post({"jsonrpc": "2.0", "id": 1, "method": "ping"}, alice.session)
            assert bob.ask("ping")["result"] == {}
            clients("NEW", "s__add")
            hub.signal(signal.SIGHUP)
            assert list(told) == []
        gone = bob.post({"jsonrpc": "2.0", "id": 1, "method": "ping"})

    assert (late.status_code, stale.status_code, gone.status_code) == (401, 404, 404)


@pytest.mark.slow(reason="a thousand sessions with open streams, and a change told to each")
def test_a_thousand_sessions_with_open_streams_hear_of_a_change(project: Project) -> None:
    count = 1000
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    serving(project, "--change-tools")
    with HttpHub(project, "p.yaml") as hub, ExitStack() as stack:
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, before)
        resource.setrlimit(resource.RLIMIT_NOFILE, (before[1], before[1]))
        limits = httpx.Limits(max_connections=10, max_keepalive_connections=10)
        client = hub.client(limits=limits)
        streams = []
        for _ in range(count):
            client.session = {}
            client.begin()
            lines = [f"{name}: {value}" for name, value in client.session.items()]
            streams.append(stack.enter_context(hub.connect()))
            streams[-1].sendall(hub.head(*lines, "Accept: text/event-stream", method="GET"))
        hub.until_counted(f"aish_sessions {count}")
        assert all(b" 200 OK" in stream.recv(65536) for stream in streams)
        client.call("s__echo", {"text": "x"})
        heard = [until_heard(stream, CHANGED.encode()) for stream in streams]
        more = hub.client().post(initialize())
        hub.signal(signal.SIGTERM)
        ends = [read_all(stream) for stream in streams]
        assert hub.finish() == 0

    assert all(CHANGED.encode() in one for one in heard)
    assert more.status_code == 503
    assert all(end.endswith(b"0\r\n\r\n") for end in ends)


def test_a_session_continues_after_a_restart_and_at_another_process(project: Project) -> None:
    serving(project, serve=f"{{{CLIENTS}}}")
    ping: dict[str, Any] = {"jsonrpc": "2.0", "id": 1, "method": "ping"}

    def moved(client: HttpClient, hub: HttpHub, token: str = ALICE) -> HttpClient:
        """The same session at another process."""
        found = hub.client(token)
        found.session = client.session
        return found

    def status(client: HttpClient) -> int:
        return client.post(ping).status_code

    with HttpHub(project, "p.yaml", token=ALICE) as hub:
        kept, ended, older = (hub.client() for _ in range(3))
        kept.begin("2025-06-18", {"roots": {}})
        ended.begin()
        older.begin("2025-03-26")
        ended.http.delete(hub.url, headers=ended.session)
        hub.signal(signal.SIGTERM)
        assert hub.finish() == 0
        first = {one["session"] for one in hub.audit if one["event"] == "session.opened"}
    with (
        HttpHub(project, "p.yaml", token=ALICE) as hub,
        HttpHub(project, "p.yaml", token=ALICE) as other,
    ):
        said = [text_of(moved(kept, one).call("s__echo", {"text": "x"})) for one in (hub, other)]
        arrays = [moved(one, hub).post([ping]).status_code for one in (kept, older)]
        forged = hub.client()
        forged.session = {"Mcp-Session-Id": "0" * 32}
        unknown = [status(one) for one in (moved(ended, hub), moved(kept, hub, BOB), forged)]
        # What ends at one process has ended at the other.
        moved(kept, hub).http.delete(hub.url, headers=kept.session)
        unknown += [status(moved(kept, one)) for one in (hub, other)]
        hub.process.kill()
        hub.process.wait()
        crashed = status(moved(older, other))
        again = {one["session"] for one in hub.audit if one["event"] == "session.opened"}
    project.aish.env["ALICE"] = "alice-token-" + "c3" * 20
    with HttpHub(project, "p.yaml", token=project.aish.env["ALICE"]) as hub:
        unknown.append(status(moved(older, hub, project.aish.env["ALICE"])))

    assert said == ["x", "x"]
    assert arrays == [400, 200]
    assert unknown == [404] * 6
    assert crashed == 200
    assert again <= first


def test_a_session_that_was_not_used_for_long_does_not_continue(project: Project) -> None:
    serving(project)
    with HttpHub(project, "p.yaml") as hub:
        client = hub.client()
        client.begin()
        hub.process.kill()
        hub.process.wait()
    with HttpHub(project, "p.yaml", ahead=3600) as hub:
        late = hub.client()
        late.session = client.session
        found = late.post({"jsonrpc": "2.0", "id": 1, "method": "ping"})
    assert (found.status_code, found.json()["error"]["code"]) == (404, -32001)
