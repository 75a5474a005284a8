"""Servers in a sandbox that reach listed hosts and no others (T4 to T6)."""

import json
import os
import shutil
import signal
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from confined_servers import BUBBLEWRAP, PROBE, add_probe, call, processes_called, refused
from e2e_project import Project, wait_gone
from web_server import WebServer, answer

pytestmark = BUBBLEWRAP


@pytest.fixture
def host() -> Iterator[WebServer]:
    with WebServer({"/": answer("here it is")}) as started:
        yield started


def fetch(project: Project, host: str, port: int) -> str:
    result = call(project, "fetch", host=host, port=port)
    assert isinstance(result, str)
    return result


@pytest.mark.requirement("T5")
def test_a_server_reaches_what_its_sandbox_lists_and_nothing_else(
    project: Project, host: WebServer
) -> None:
    add_probe(project, {"network": [f"LOCALHOST:{host.port}"]})

    with WebServer({"/": answer("not listed")}) as other:
        assert fetch(project, "localhost", host.port) == "here it is"
        assert fetch(project, "127.0.0.1", host.port) == "here it is"
        tried = {
            (name, port): refused(project, "fetch", host=name, port=port).splitlines()[0]
            for name, port in (
                ("localhost", other.port),
                ("127.0.0.1", other.port),
                ("169.254.169.254", 80),
                ("93.184.216.34", 443),
                ("::1", host.port),
            )
        }

    assert other.connections == 0
    words = ("Connection refused", "Network is unreachable")
    assert all(text.endswith(words) for text in tried.values()), tried


@pytest.mark.requirement("T6")
@pytest.mark.parametrize("listed", [True, False])
def test_a_name_that_is_not_listed_is_told_once_with_what_permits_it(
    project: Project, host: WebServer, *, listed: bool
) -> None:
    """Also without a list, where nothing else is there; a literal address is no name."""
    entries = [f"localhost:{host.port}"] if listed else []
    add_probe(project, {"network": entries} if listed else "required")
    text = (project.folder / "p.yaml").read_text("utf-8").partition("steps:")[0]
    calls = [("a", "one.example"), ("b", "one.example"), ("c", "two.example"), ("d", "192.0.2.1")]
    steps = "".join(
        f"  - {{id: {name}, call: probe__fetch, with: {{host: {asked}, port: 80}},"
        f" on_error: continue}}\n"
        for name, asked in calls
    )
    project.write("p.yaml", f"{text}steps:\n{steps}")

    recorded = project.aish("record", "p.yaml", "-o", "c.yaml", "--run-dir", "a", "--format=json")
    replayed = project.aish(
        "run", "p.yaml", "--replay", "c.yaml", "--run-dir", "b", "--format=json"
    )

    result = json.loads(recorded.stdout)
    notices = [one for one in result["notices"] if one["code"] == "sandbox_refused"]
    assert [(one["level"], one["text"]) for one in notices] == [
        (
            "info",
            f"mcp probe: it looked up `{name}`, which is not in `network` of its sandbox",
        )
        for name in ("one.example", "two.example")
    ]
    wanted = ", ".join((*entries, "one.example"))
    first = result["steps"]["a"]["tool_calls"][0]["content"].splitlines()
    assert "in its sandbox: bubblewrap, reads nothing" in first[1]
    assert first[2] == f"it looked up `one.example` in vain; `network: [{wanted}]` permits that"
    last = result["steps"]["d"]["tool_calls"][0]["content"]
    assert f"`network: [{wanted}, two.example]` permits that" in last
    again = json.loads(replayed.stdout)["steps"]
    assert {name: step["tool_calls"][0]["content"] for name, step in again.items()} == {
        name: step["tool_calls"][0]["content"] for name, step in result["steps"].items()
    }


@pytest.mark.parametrize(
    ("sandbox", "words"),
    [
        ({"network": ["localhost"]}, "`localhost` has an address that is not public"),
        ({"network": ["127.0.0.1"]}, "(`127.0.0.1:443` permits any address)"),
        (
            {"network": ["localhost:80"], "kind": "landlock"},
            "a list of hosts in `network` needs bubblewrap, Landlock knows ports only",
        ),
    ],
)
def test_a_list_that_cannot_be_kept_is_an_error_before_the_server_starts(
    project: Project, sandbox: Any, words: str
) -> None:
    add_probe(project, sandbox)

    done = project.run()

    assert done.code == 5
    assert words in done.stderr


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ("*.example", "write `host` or `host:port`, no URL and no pattern"),
        ("https://api.example", "write `host` or `host:port`, no URL and no pattern"),
        ("api.example:0", "its port must be between 1 and 65535"),
        ("0.0.0.0:80", "nothing can be connected to at this address"),
    ],
)
def test_what_is_no_host_is_an_error_of_the_file(project: Project, entry: str, words: str) -> None:
    add_probe(project, {"network": ["api.example", entry]})

    done = project.aish("validate", "p.yaml")

    assert done.code == 2
    assert f"mcp.servers.probe.sandbox.network: `{entry}` cannot be listed: {words}" in done.stderr


@pytest.mark.slow(reason="starts several confined servers")
def test_where_the_namespace_cannot_be_entered_a_list_fails_and_no_network_works(
    project: Project, host: WebServer
) -> None:
    """By a bubblewrap that does not tell of its child: its words for that are taken away."""
    real = shutil.which("bwrap")
    folder = project.folder / "programs"
    project.write(
        "programs/bwrap",
        f'#!/bin/sh\n[ "$1" = --info-fd ] || exec {real} "$@"\n'
        f'eval "exec $2>&- $4<&-"; shift 4; exec {real} "$@"\n',
    )
    (folder / "bwrap").chmod(0o755)
    # Not the folder of the file: no program is taken from there.
    moved = project.folder.parent / "programs"
    folder.rename(moved)
    project.aish.env["PATH"] = f"{moved}:{os.environ['PATH']}"
    add_probe(project, {"network": [f"localhost:{host.port}"]})
    listed = project.run("--run-dir", "a")
    doctor = project.aish("doctor")
    add_probe(project, "required")
    without = project.run("--run-dir", "b")

    assert listed.code == 5
    assert (
        "its sandbox cannot be kept: the hosts of its `network` need sockets in its network"
        " namespace: bubblewrap ended before its network was prepared"
    ) in listed.stderr
    assert without.code == 0, without.stderr
    assert "files, no network; bubblewrap ended before its network was prepared" in doctor.stdout


@pytest.mark.slow(reason="starts several confined servers")
def test_two_servers_share_a_host_and_one_that_is_restarted_reaches_it_again(
    project: Project, host: WebServer
) -> None:
    project.write("probe.py", PROBE.read_text("utf-8"))
    server = {
        "command": [sys.executable, "probe.py"],
        "protocol": "legacy",
        "sandbox": {"network": [f"localhost:{host.port}"]},
    }
    servers = {"one": server, "two": server}
    rules = {"servers": servers, "auto_approve": ["one__*", "two__*"]}
    request = json.dumps({"host": "localhost", "port": host.port})
    project.pipeline(
        f"mcp: {json.dumps(rules)}\nsteps:\n"
        f"  - {{id: first, call: one__fetch, with: {request}}}\n"
        f"  - {{id: second, call: two__fetch, with: {request}}}\n"
        "  - {id: dies, needs: [first], call: one__die, on_error: continue}\n"
        f"  - {{id: again, needs: [dies], call: one__fetch, with: {request}}}\n"
        f"  - {{id: still, needs: [dies], call: two__fetch, with: {request}}}\n"
    )

    result = project.result()

    texts = {name: step["text"] for name, step in result["steps"].items() if name != "dies"}
    assert texts == dict.fromkeys(("first", "second", "again", "still"), "here it is")


def test_nothing_is_left_of_a_listed_network_when_aish_is_killed(
    project: Project, host: WebServer
) -> None:
    word = f"network-of-{os.getpid()}"
    command = [sys.executable, "probe.py", word]
    add_probe(project, {"network": [f"localhost:{host.port}"]}, command=command)
    text = (project.folder / "p.yaml").read_text("utf-8").partition("steps:")[0]
    request = json.dumps({"host": "localhost", "port": host.port})
    project.write(
        "p.yaml",
        f"{text}steps:\n  - {{id: fetch, call: probe__fetch, with: {request}}}\n"
        "  - {id: hang, needs: [fetch], call: probe__hang}\n",
    )

    with project.aish.start("run", "p.yaml") as running:
        running.wait_for_line("hang: tool probe__hang")
        inside = processes_called(word)
        os.kill(running.pid, signal.SIGKILL)
        for pid in inside:
            wait_gone(pid)

    assert inside


def test_a_long_program_that_an_interpreter_is_given_as_text_is_no_path(project: Project) -> None:
    text = f"{'#' * 5_000}\nexit('it ran')"
    add_probe(project, "required", command=[sys.executable, "-c", text])

    assert "it ran" in project.run().stderr
