"""`aish serve` on socket files: several listeners beside each other, their sessions, their ends."""

import json
import os
import signal
import stat
from pathlib import Path

import anyio
import pytest
from e2e_project import Project
from mcp_processes import until_gone
from served_hub import ServedHub, SocketClient, text_of

PACK = ("--pack", "fs", "--root", ".")


@pytest.mark.requirement("H14", "H15", "H21")
def test_several_listeners_serve_sessions_of_their_own(project: Project) -> None:
    (project.folder / "a.txt").write_text("text")
    call = {"name": "fs__file_read", "arguments": {"path": "a.txt"}}
    with ServedHub(project, *PACK, "--stdio", "--unix", "run/a", "--unix", "run/b") as hub:
        addresses = hub.addresses()
        named = project.folder / ".aish" / "serve" / "listeners.json"
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


@pytest.mark.requirement("H14", "H25")
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


@pytest.mark.requirement("H14")
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
    project.pipeline("serve: {listen: [ftp]}")
    with ServedHub(project, "p.yaml") as unknown:
        assert unknown.finish() == 2
    assert "`ftp`" in unknown.stderr


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
