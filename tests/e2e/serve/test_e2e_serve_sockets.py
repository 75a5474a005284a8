"""`aish serve` on socket files: several listeners beside each other, their sessions, their ends."""

import json
import os
import signal
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Generator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Self

import anyio
import pytest
from e2e_project import Project, stdio
from mcp_processes import until_gone
from patience import is_ready
from served_hub import PATIENCE, ServedHub, SocketClient, flood, text_of
from tls_files import make_tls_files


class Fifo:
    """A named pipe; others append lines to it."""

    def __init__(self, path: Path) -> None:
        os.mkfifo(path)
        self._descriptor = os.open(path, os.O_RDWR)
        self._held = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *details: object) -> None:
        os.close(self._descriptor)

    def next(self) -> str:
        """The next line."""
        while b"\n" not in self._held:
            assert is_ready(self._descriptor, PATIENCE), "nothing was written"
            self._held += os.read(self._descriptor, 4096)
        line, _, self._held = self._held.partition(b"\n")
        return line.decode()


PACK = ("--pack", "fs", "--root", ".")


@pytest.mark.requirement("H14")
def test_several_listeners_serve_sessions_of_their_own(project: Project) -> None:
    (project.folder / "a.txt").write_text("text")
    call = {"name": "fs__file_read", "arguments": {"path": "a.txt"}}
    with ServedHub(project, *PACK, "--stdio", "--unix", "run/a", "--unix", "run/b") as hub:
        addresses = hub.addresses()
        named = project.served_state() / "listeners.json"
        document = json.loads(named.read_text("ascii"))
        with SocketClient(addresses[0]) as one, SocketClient(addresses[1]) as other:
            versions = [
                client.begin(version)["protocolVersion"]
                for client, version in ((hub, "2025-06-18"), (one, "2024-11-05"))
            ]
            for client in (hub, one, other):
                client.send({"jsonrpc": "2.0", "id": "same", "method": "ping"})
            same = [client.answer("same") for client in (hub, one, other)]
            texts = [
                text_of(client.ask("tools/call", call, modern=client is other)["result"])
                for client in (hub, one, other)
            ]
            hub.end_input()
            assert hub.finish() == 0
            assert one.rest() == other.rest() == []
        audit = hub.audit

    folder = project.folder / "run"
    assert addresses == [f"unix:{folder}/a", f"unix:{folder}/b"]
    assert hub.stderr.count("listening on unix:") == 2
    assert document["pid"] == hub.process.pid
    assert document["listeners"][0] == {
        "transport": "unix",
        "address": addresses[0],
        "listen": addresses[0],
        "tls": False,
    }
    assert versions == ["2025-06-18", "2024-11-05"]
    assert [one.get("result") for one in same] == [{}, {}, {}]
    assert texts == ["text", "text", "text"]
    assert sorted(path.name for path in folder.iterdir()) == []
    assert not named.exists()
    listening = [one["listen"] for one in audit if one["event"] == "listening"]
    assert listening == addresses
    decided = [one for one in audit if one["event"] == "decided"]
    assert [one["client"] for one in decided] == ["stdio", *[f"uid:{os.geteuid()}"] * 2]
    assert len({one["session"] for one in decided}) == 3
    assert decided[1]["peer"] == {
        "transport": "unix",
        "address": f"{folder}/a",
        "pid": os.getpid(),
        "uid": os.geteuid(),
        "user": decided[0]["peer"]["user"],
    }


def test_without_standard_streams_it_serves_until_a_signal_and_prints_nothing(
    project: Project,
) -> None:
    project.pipeline("mcp: {servers: {fs: {pack: fs, root: .}}}\nserve: {listen: 'unix:run/s'}")
    with ServedHub(project, "p.yaml") as hub:
        (address,) = hub.addresses()
        hub.end_input()
        with SocketClient(address) as first:
            first.begin()
            names = [tool["name"] for tool in first.tools()]
        with SocketClient(address) as second:
            second.begin()
            again = [tool["name"] for tool in second.tools()]
            hub.signal(signal.SIGTERM)
            assert second.rest() == []
        assert hub.finish() == 0

    assert hub.seen == []
    assert names
    assert names == again


def test_flags_win_over_the_key_and_a_place_is_given_once(project: Project) -> None:
    project.pipeline("serve: {listen: ['unix:run/key', stdio]}")
    with ServedHub(project, "p.yaml", "--unix", "run/flag") as hub:
        assert hub.addresses() == [f"unix:{project.folder}/run/flag"]
        assert not (project.folder / "run" / "key").exists()
    for arguments, said in (
        (("--unix", "a/s", "--unix", "a/s"), f"`unix:{project.folder}/a/s` is given twice"),
        (("--unix", "s"), "is open to others, and a socket needs a folder of its own"),
        (("--unix", f"a/{'b' * 120}"), "is too long: a socket's path has at most 107 bytes"),
    ):
        project.folder.chmod(0o755)
        with ServedHub(project, "p.yaml", *arguments) as refused:
            assert refused.finish() == 2
        assert said in refused.stderr
    wrong = ["ftp", "tcp://nowhere:1", "http://127.0.0.1:70000/mcp", "unix:", "unix:" + "a" * 120]
    project.pipeline(f"serve: {{listen: {json.dumps(wrong)}}}")
    checked = project.aish("validate", "p.yaml")
    assert checked.code == 2
    for said in (
        "`ftp` is not a listening address",
        "`nowhere` is neither an IP address nor `localhost`",
        "`127.0.0.1:70000` is not an address to listen on",
        "`unix:` needs the path of a socket file",
        "is too long: a socket's path has at most 107 bytes",
    ):
        assert said in checked.stderr + checked.stdout


@pytest.mark.requirement("H17")
def test_a_socket_is_replaced_only_if_nobody_answers_there(project: Project) -> None:
    folder = project.folder / "run"
    with ServedHub(project, *PACK, "--unix", "run/s") as hub:
        hub.addresses()
        with ServedHub(project, *PACK, "--unix", "run/s") as second:
            assert second.finish() == 2
        kept = stat.S_IMODE((folder / "s").stat().st_mode)
        hub.signal(signal.SIGKILL)
        anyio.run(until_gone, hub.process.pid)
    left = (folder / "s").exists()
    with ServedHub(project, *PACK, "--unix", "run/s") as third:
        (address,) = third.addresses()
        with SocketClient(address) as client:
            client.begin()
    planted: list[tuple[str, str]] = []
    for name, make in (
        ("file", Path.touch),
        ("link", lambda path: path.symlink_to("elsewhere")),
        ("folder", Path.mkdir),
    ):
        make(folder / name)
        with ServedHub(project, *PACK, "--unix", f"run/{name}") as refused:
            assert refused.finish() == 2
        planted.append((name, refused.stderr))
        assert os.path.lexists(folder / name)

    assert f"another process listens on `{folder}/s`" in second.stderr
    assert kept == 0o600
    assert left
    assert "`file` is not a socket" in planted[0][1].replace(f"{folder}/", "")
    assert "`link` is a link" in planted[1][1].replace(f"{folder}/", "")
    assert "`folder` is not a socket" in planted[2][1].replace(f"{folder}/", "")


TOKENS = {"ALICE": "alice-" + "a" * 40, "BOB": "bob-" + "b" * 40}
OVER_TCP = """
    mcp:
      servers: {fs: {pack: fs, root: .}}
      auto_approve: [fs__file_read, fs__dir_list]
    serve:
      listen: tcp://127.0.0.1:0
      clients:
        alice: {token_env: ALICE}
        bob: {token_env: BOB, tools: [fs__dir_*]}
"""


@pytest.mark.parametrize("modern", [False, True])
def test_a_tcp_client_is_known_by_the_token_in_its_first_message(
    project: Project, *, modern: bool
) -> None:
    project.aish.env.update(TOKENS)
    project.pipeline(OVER_TCP)
    with ServedHub(project, "p.yaml") as hub:
        (address,) = hub.addresses()
        with (
            SocketClient(address, TOKENS["ALICE"]) as alice,
            SocketClient(address, TOKENS["BOB"]) as bob,
        ):
            for client in () if modern else (alice, bob):
                client.begin()
            all_names = {tool["name"] for tool in alice.tools(modern=modern)}
            names = {tool["name"] for tool in bob.tools(modern=modern)}
            hidden = bob.ask(
                "tools/call", {"name": "fs__file_read", "arguments": {}}, modern=modern
            )
            seen = alice.call("fs__dir_list", {"path": "."}, modern=modern)
        hub.signal(signal.SIGTERM)
        assert hub.finish() == 0
        told = hub.stderr + json.dumps(hub.audit)
        decided = [one for one in hub.audit if one["event"] == "decided"]

    assert hub.seen == []
    assert "fs__file_read" in all_names
    assert names < all_names
    assert {name.partition("__dir_")[0] for name in names} == {"fs"}
    assert hidden["error"] == {"code": -32602, "message": "unknown tool: fs__file_read"}
    assert seen["isError"] is False
    assert [one["client"] for one in decided] == ["alice"]
    assert decided[0]["peer"]["transport"] == "tcp"
    assert decided[0]["peer"]["address"].startswith("127.0.0.1:")
    assert not any(token in told for token in TOKENS.values())


def test_without_a_token_that_is_known_a_tcp_client_gets_nothing(project: Project) -> None:
    project.aish.env.update(TOKENS)
    project.pipeline(OVER_TCP)
    ping = {"jsonrpc": "2.0", "id": "p", "method": "ping"}
    token = TOKENS["ALICE"]
    cases: tuple[tuple[Any, str], ...] = (
        ({**ping}, "a token is needed"),
        ({**ping, "params": {"_meta": {"aish/token": token[:-1]}}}, "the token is not valid"),
        ({**ping, "params": {"_meta": {"aish/token": "x" * 46}}}, "the token is not valid"),
        ({**ping, "params": {"_meta": {"aish/token": [token]}}}, "a token is needed"),
        ({**ping, "params": {"aish/token": token}}, "a token is needed"),
        ([{**ping, "params": {"_meta": {"aish/token": token}}}], "a token is needed"),
        ({"jsonrpc": "2.0", "method": "notifications/initialized"}, "a token is needed"),
    )
    with ServedHub(project, "p.yaml") as hub:
        (address,) = hub.addresses()
        answers = []
        for message, _ in cases:
            with SocketClient(address) as client:
                client.send(message, ping, ping)
                answers.append(client.rest())
        with SocketClient(address) as browser:
            # What a page could send: a request whose body has the token of somebody.
            proof = {**ping, "params": {"_meta": {"aish/token": token}}}
            browser.write(b"POST / HTTP/1.1\r\nContent-Type: text/plain\r\n\r\n")
            browser.send(proof)
            answers.append(browser.rest())
        with SocketClient(address, token) as honest:
            # Only the first message can prove it.
            honest.begin()
            honest.send({**ping, "params": {"_meta": {"aish/token": "wrong"}}})
            assert honest.answer("p")["result"] == {}
        hub.signal(signal.SIGTERM)
        assert hub.finish() == 0
        refused = [one for one in hub.audit if one["event"] == "refused"]
        written = json.dumps(hub.audit) + hub.stderr

    cases += (("POST", "a token is needed"),)
    for (message, reason), found in zip(cases, answers, strict=True):
        id = message.get("id") if isinstance(message, dict) else None
        assert len(found) == 1, found
        assert found[0]["id"] == id
        assert found[0]["error"]["code"] == -32600
        assert found[0]["error"]["message"].startswith(reason)
    assert [one["reason"] for one in refused] == [reason for _, reason in cases]
    assert all(one["peer"]["address"].startswith("127.0.0.1:") for one in refused)
    assert token[:-1] not in written


def test_without_clients_a_token_is_made_and_the_address_may_be_in_a_variable(
    project: Project,
) -> None:
    project.aish.env["MCP_ADDR"] = "127.0.0.1:0"
    with ServedHub(project, *PACK, "--from-env") as hub:
        (address,) = hub.addresses()
        made = project.served_state() / ".aish" / "token"
        mode = stat.S_IMODE(made.stat().st_mode)
        with SocketClient(address, made.read_text().strip()) as client:
            client.begin()
            names = [tool["name"] for tool in client.tools()]
    with ServedHub(project, *PACK, "--tcp", "127.0.0.1:0") as without:
        (other,) = without.addresses()
    project.aish.env["MCP_ADDR"] = ""
    with ServedHub(project, *PACK, "--from-env") as unset:
        assert unset.finish() == 2

    assert mode == 0o600
    assert names
    assert address.startswith("tcp://127.0.0.1:")
    assert not address.endswith(":0")
    assert other.startswith("tcp://127.0.0.1:")
    assert "`--from-env` needs `MCP_ADDR`, which is not set" in unset.stderr


def test_a_port_that_is_taken_ends_the_start(project: Project) -> None:
    with socket.socket() as taken:
        # Another test may have it: then it is taken too.
        with suppress(OSError):
            taken.bind(("127.0.0.1", 9100))
            taken.listen()
        with ServedHub(project, *PACK, "--unix", "run/s", "--tcp") as hub:
            assert hub.finish() == 2

    assert "error: cannot listen on `127.0.0.1:9100`: Address already in use" in hub.stderr
    assert not (project.folder / "run" / "s").exists()
    assert not (project.served_state() / "listeners.json").exists()


@pytest.mark.requirement("H20")
def test_other_machines_connect_only_if_asked_for_and_encrypted(
    project: Project, tmp_path: Path
) -> None:
    project.pipeline("serve: {listen: 'tcp://0.0.0.0:0'}")
    for options, said in (
        ((), "`0.0.0.0:0` can be reached from other machines"),
        (("--allow-remote",), "`0.0.0.0:0` would send tokens unencrypted"),
        (("--allow-remote", "--tls-cert", "c.pem"), "`--tls-cert` and `--tls-key` go together"),
    ):
        with ServedHub(project, "p.yaml", *options) as refused:
            assert refused.finish() == 2
        assert said in refused.stderr
    files = make_tls_files(tmp_path)
    tls = ("--tls-cert", files.certificate, "--tls-key", files.key)
    with ServedHub(project, *PACK, "--tcp", "127.0.0.1:0", *tls) as hub:
        (address,) = hub.addresses()
        token = (project.served_state() / ".aish" / "token").read_text().strip()
        with SocketClient(address, token, read=False) as plain:
            plain.send({"jsonrpc": "2.0", "id": 1, "method": "ping"})
            answer = plain.raw_rest()
        with SocketClient(address, token, tls=files.trusting) as client:
            client.begin()
            names = [tool["name"] for tool in client.tools()]
            big = "x" * 300_000
            client.send({"jsonrpc": "2.0", "id": big, "method": "ping"})
            assert client.answer(big)["result"] == {}
        with SocketClient(address, "y" * 40, tls=files.trusting) as wrong:
            wrong.send({"jsonrpc": "2.0", "id": 1, "method": "ping"})
            (last,) = wrong.rest()

    assert b"result" not in answer
    assert names
    assert last["error"]["message"].startswith("the token is not valid")


@contextmanager
def begun(hub: ServedHub, address: str, token: str | None) -> Generator[SocketClient]:
    """A client whose first message is there when its connection is taken: it is never too late."""
    hub.signal(signal.SIGSTOP)
    with SocketClient(address, token) as client:
        params = {"protocolVersion": "2025-11-25", "capabilities": {}}
        number = client.request("initialize", params)
        hub.signal(signal.SIGCONT)
        assert "result" in client.answer(number)
        yield client


@pytest.mark.parametrize("transport", ["tcp", "unix"])
def test_what_a_client_of_a_socket_sends_has_bounds(project: Project, transport: str) -> None:
    listen = {"tcp": "tcp://127.0.0.1:0", "unix": "unix:run/s"}[transport]
    project.aish.env.update(TOKENS)
    project.pipeline(
        f"""
        serve:
          listen: "{listen}"
          clients: {{alice: {{token_env: ALICE}}}}
          limits: {{message: 4KiB, receive: 21s, connections: 3}}
        """
    )
    project.times_out(21, "over")
    over = project.folder / "over"
    token = TOKENS["ALICE"] if transport == "tcp" else None
    with ServedHub(project, "p.yaml") as hub:
        (address,) = hub.addresses()
        with begun(hub, address, token) as honest:
            whole = {"jsonrpc": "2.0", "id": 1, "method": "ping", "params": {"a": ""}}
            whole["params"] = {"a": "b" * (4096 - len(json.dumps(whole)))}
            assert len(json.dumps(whole)) == 4096
            honest.send(whole)
            assert honest.answer(1)["result"] == {}
            said = []
            for sent in (b"x" * 4097 + b"\n", b"x" * 150_000, b'{"jsonrpc": '):
                with begun(hub, address, token) as client:
                    client.write(sent)
                    if sent.startswith(b"{"):
                        over.touch()
                    said.append(client.rest()[-1])
            if transport == "tcp":
                with SocketClient(address) as silent:
                    over.touch()
                    said += silent.rest()
            with (
                begun(hub, address, token),
                begun(hub, address, token),
                SocketClient(address) as fourth,
            ):
                (busy,) = fourth.rest()
            honest.send(whole)
            assert honest.answer(1)["result"] == {}

    long = "a message has more than 4,096 bytes"
    slow = "a message took longer than 21 s to arrive"
    expected = [long, long, slow]
    if transport == "tcp":
        expected.append("no message arrived within 21 s")
    assert [one["error"]["message"] for one in said] == expected
    assert {one["id"] for one in said} == {None}
    assert {one["error"]["code"] for one in said} == {-32600}
    assert busy["error"]["message"] == "busy: there are 3 connections already"


@pytest.mark.requirement("H16")
def test_connections_without_a_token_do_not_keep_clients_out(project: Project) -> None:
    project.aish.env.update(TOKENS)
    project.pipeline(OVER_TCP + "      limits: {connections: 2}\n")
    with ServedHub(project, "p.yaml") as hub:
        (address,) = hub.addresses()
        with ExitStack() as stack:
            silent = [stack.enter_context(SocketClient(address)) for _ in range(8)]
            with SocketClient(address, TOKENS["ALICE"]) as honest:
                honest.begin()
                assert honest.tools()
            assert [one.rest() for one in silent[:6]] == [[]] * 6


@pytest.mark.slow(reason="starts a server for each transport; HTTP has a test of its own")
@pytest.mark.parametrize("transport", ["tcp", "unix"])
def test_calls_of_a_client_that_leaves_are_cancelled_and_others_go_on(
    project: Project, transport: str
) -> None:
    note = project.folder / "cancelled"
    listen = {"tcp": "tcp://127.0.0.1:0", "unix": "unix:run/s"}[transport]
    project.aish.env.update(TOKENS)
    project.pipeline(
        f"""
        mcp:
          servers: {{s: {{command: {stdio("--note-cancelled", str(note))}}}}}
          auto_approve: [s__*]
        serve:
          listen: "{listen}"
          clients: {{alice: {{token_env: ALICE}}}}
          limits: {{queued: 4}}
        """
    )
    token = TOKENS["ALICE"] if transport == "tcp" else None
    slow = {"name": "s__sleep", "arguments": {"ms": 60_000}}
    call = {"jsonrpc": "2.0", "id": "same", "method": "tools/call", "params": slow}
    with Fifo(note) as lines, ServedHub(project, "p.yaml") as hub:
        (address,) = hub.addresses()
        with SocketClient(address, token) as stays:
            stays.begin()
            with SocketClient(address, token) as leaves:
                leaves.begin()
                leaves.tools()
                leaves.send(call)
                stays.send(call)
                leaves.ask("ping")
            cancelled = [lines.next()]
            with SocketClient(address, token, read=False) as deaf:
                deaf.send(*flood(20, 1_000_000))
                hub.stderr_with("a client does not read: it is disconnected")
            assert text_of(stays.call("s__echo", {"text": "here"})) == "here"
        cancelled += [lines.next()]
    assert len(set(cancelled)) == 2
    assert all(one.get("id") != "same" for one in stays.seen)


def test_a_reload_ends_clients_whose_token_is_gone_or_who_see_other_tools(
    project: Project,
) -> None:
    tokens = {name: f"{name}-" + "0" * 40 for name in ("kept", "gone", "other", "rotated")}
    for name, token in tokens.items():
        path = project.write(f".aish/{name}.token", token + "\n")
        path.chmod(0o600)

    def serve(clients: dict[str, Any]) -> None:
        entries = {
            name: {"token_file": f".aish/{name}.token"} | more for name, more in clients.items()
        }
        project.pipeline(
            f"""
            mcp: {{servers: {{fs: {{pack: fs, root: .}}}}}}
            serve: {{listen: 'tcp://127.0.0.1:0', clients: {json.dumps(entries)}}}
            """
        )

    serve({name: {} for name in tokens})
    with ServedHub(project, "p.yaml") as hub, ExitStack() as stack:
        (address,) = hub.addresses()
        clients = {
            name: stack.enter_context(SocketClient(address, token))
            for name, token in tokens.items()
        }
        for client in clients.values():
            client.begin()
        serve({"kept": {}, "other": {"tools": ["fs__dir_*"]}, "rotated": {}})
        (project.folder / ".aish/rotated.token").write_text("rotated-" + "1" * 40)
        hub.signal(signal.SIGHUP)
        ended = {name: clients[name].rest() for name in ("gone", "other", "rotated")}
        assert clients["kept"].ask("ping")["result"] == {}
        with SocketClient(address, tokens["gone"]) as late:
            late.send({"jsonrpc": "2.0", "id": 1, "method": "ping"})
            (refused,) = late.rest()
        with SocketClient(address, tokens["other"]) as again:
            again.begin()
            names = {tool["name"] for tool in again.tools()}
        with SocketClient(address, "rotated-" + "1" * 40) as rotated:
            rotated.begin()
        (project.folder / ".aish/kept.token").chmod(0o644)
        hub.signal(signal.SIGHUP)
        hub.stderr_with("the file is not reloaded, and nothing has changed")
        assert clients["kept"].ask("ping")["result"] == {}

    assert ended == {"gone": [], "other": [], "rotated": []}
    assert refused["error"]["message"].startswith("the token is not valid")
    assert {name.partition("__dir_")[0] for name in names} == {"fs"}


@pytest.mark.requirement("H25")
def test_a_signal_lets_calls_over_sockets_end_and_takes_nobody_new(project: Project) -> None:
    project.pipeline(
        f"""
        mcp: {{servers: {{s: {{command: {stdio()}}}}}, auto_approve: [s__sleep]}}
        serve: {{listen: "unix:run/s"}}
        """
    )
    with ServedHub(project, "p.yaml") as hub:
        (address,) = hub.addresses()
        with SocketClient(address) as client, SocketClient(address) as idle:
            client.begin()
            client.tools()
            listening = idle.request("subscriptions/listen", {"notifications": {}}, modern=True)
            idle.notification("notifications/subscriptions/acknowledged")
            end = project.folder / "end"
            slow = {"name": "s__sleep", "arguments": {"ms": 0, "until": str(end)}}
            running = client.request("tools/call", slow)
            client.ask("ping")
            hub.signal(signal.SIGTERM)
            ended = idle.answer(listening)
            late = [client.ask("ping"), idle.ask("ping")]
            with pytest.raises(ConnectionRefusedError):
                SocketClient(address)
            end.touch()
            done = client.answer(running)
            assert client.rest() == idle.rest() == []
        assert hub.finish() == 0

    assert "result" in ended
    assert {one["error"]["message"] for one in late} == {"the server is shutting down"}
    assert text_of(done["result"]) == "slept 0 ms"
    assert list((project.folder / "run").iterdir()) == []


FOREIGN = """
import os, socket, sys
os.setgid(12345); os.setuid(12345)
client = socket.socket(socket.AF_UNIX)
try:
    client.connect(sys.argv[1])
except PermissionError:
    sys.exit("no permission")
client.sendall(b'{"jsonrpc":"2.0","id":1,"method":"ping"}\\n')
print(client.recv(65536).decode(), client.recv(65536))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_user_gets_nothing_at_a_socket_file(project: Project) -> None:
    before = os.umask(0)
    try:
        with (
            tempfile.TemporaryDirectory() as public,
            ServedHub(project, *PACK, "--unix", f"{public}/run/s") as hub,
        ):
            hub.addresses()
            path = Path(public) / "run" / "s"
            modes = [stat.S_IMODE(one.stat().st_mode) for one in (path.parent, path)]
            # Somebody opens the way to it: then the kernel's word on who it is decides.
            for one, mode in ((Path(public), 0o755), (path.parent, 0o755), (path, 0o666)):
                command = [sys.executable, "-I", "-c", FOREIGN, str(path)]
                kept_out = subprocess.run(command, capture_output=True, text=True, check=False)
                assert kept_out.stderr.strip() == "no permission"
                one.chmod(mode)
            refused = subprocess.run(command, capture_output=True, text=True, check=True)
            hub.signal(signal.SIGTERM)
            assert hub.finish() == 0
            (record,) = [one for one in hub.audit if one["event"] == "refused"]
    finally:
        os.umask(before)

    assert modes == [0o700, 0o600]
    answer, _, rest = refused.stdout.partition("\n")
    assert json.loads(answer)["error"]["message"] == "this socket belongs to another user"
    assert rest.strip() == "b''"
    assert record["reason"] == "this socket belongs to another user"
    assert record["peer"]["uid"] == 12345


def test_the_option_of_another_command_is_refused_with_those_that_are_meant(
    project: Project,
) -> None:
    done = project.aish("serve", "p.yaml", "--listen", "127.0.0.1:0")
    assert done.code == 2
    assert "hint: `--http`, `--unix` and `--tcp` say where clients connect" in done.stderr
