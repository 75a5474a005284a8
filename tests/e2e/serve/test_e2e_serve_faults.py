"""`aish serve` where something fails: servers, clients, disk, descriptors, the process itself."""

import json
import os
import resource
import shlex
import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path

import anyio
import pytest
from e2e_project import Project, stdio
from mcp_emulators import Legacy, McpEndpoint
from mcp_peers import free_port
from mcp_processes import is_alive, until_gone, until_reaped
from mcp_scenes import HTTP_SERVER
from model_endpoint import Gate, hanging_reply
from patience import signal_until_end
from served_hub import META, ServedHub, SocketClient, text_of


def serving(project: Project, *flags: str, server: str = "", serve: str = "") -> None:
    """A file with one server, all of whose tools are approved."""
    project.pipeline(
        f"""
        mcp:
          servers: {{s: {{command: {stdio(*flags)}, {server}}}}}
          auto_approve: ["s__*", s__crash]
        {serve}
        """
    )


def pids(note: Path) -> list[int]:
    """The processes that a server was started as."""
    return [int(line) for line in note.read_text(encoding="utf-8").splitlines()]


def sleep(hub: ServedHub | SocketClient, ms: int) -> int:
    """Begin a call that takes a while; its id."""
    return hub.request("tools/call", {"name": "s__sleep", "arguments": {"ms": ms}})


def test_a_server_that_is_killed_in_mid_call_fails_that_call_and_comes_back(
    project: Project, tmp_path: Path
) -> None:
    project.shorten_pauses()
    note, again = tmp_path / "pid", tmp_path / "again"
    serving(project, "--note-pid", str(note), "--again", str(again))
    with ServedHub(project, "p.yaml") as hub:
        hub.begin()
        hub.tools()
        calls = [sleep(hub, 60_000) for _ in range(3)]
        hub.call("s__echo", {"text": "behind the calls"})
        os.kill(pids(note)[0], signal.SIGKILL)
        # It may be told before the calls have failed.
        hub.notification("notifications/tools/list_changed")
        ended = [one["result"] for one in hub.answers(*calls)]
        lost = hub.call("s__echo", {"text": "x"})
        again.touch()
        hub.notification("notifications/tools/list_changed")
        said = hub.call("s__echo", {"text": "again"})

    assert [one["isError"] for one in ended] == [True] * 3
    assert {text_of(one) for one in ended} == {
        "[aish] s: tool transport error: the server ended with signal 9"
    }
    assert lost["isError"] is True
    assert text_of(lost).startswith("[aish] s: the server is not connected: ")
    assert text_of(said) == "again"


@contextmanager
def at_port(port: int, *flags: str) -> Generator[int]:
    """An HTTP server, a process of its own that is killed at the end of the block; its port."""
    argv = [sys.executable, str(HTTP_SERVER), "--port", str(port), *flags]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            yield int(process.stdout.readline())
        finally:
            process.kill()


def test_a_server_over_http_that_loses_its_session_or_is_gone_is_reached_again(
    project: Project,
) -> None:
    flags = ("--sessions", "--era", "legacy")
    # A port that the kernel gives to nobody while no server is there.
    port = free_port()
    with ExitStack() as server:
        server.enter_context(at_port(port, *flags))
        entry = f'{{url: "http://127.0.0.1:{port}/mcp", protocol: legacy}}'
        project.pipeline(f"mcp: {{servers: {{s: {entry}}}, auto_approve: ['s__*']}}")
        with ServedHub(project, "p.yaml") as hub:
            hub.begin()
            listed = hub.tools()
            said = [text_of(hub.call("s__echo", {"text": "first"}))]
            server.close()
            # Another process at the same address knows nothing of the session.
            server.enter_context(at_port(port, *flags))
            said.append(text_of(hub.call("s__echo", {"text": "in a new session"})))
            server.close()
            failed = hub.call("s__echo", {"text": "to nobody"})
            hub.notification("notifications/tools/list_changed")
            lost = hub.tools()
            server.enter_context(at_port(port, *flags))
            hub.notification("notifications/tools/list_changed")
            back = hub.tools()
            said.append(text_of(hub.call("s__echo", {"text": "back"})))

    assert said == ["first", "in a new session", "back"]
    assert failed["isError"] is True
    assert "[aish] s: tool transport error" in text_of(failed)
    assert lost == []
    assert back == listed


def test_a_server_that_hangs_or_floods_fails_its_calls_and_no_others(project: Project) -> None:
    project.pipeline(
        f"""
        mcp:
          servers:
            s: {{command: {stdio()}}}
            hung: {{command: {stdio()}, timeout: {{call: 300ms}}}}
            flood: {{command: {stdio("--huge-line")}}}
          auto_approve: ["*__*"]
        """
    )
    with ServedHub(project, "p.yaml") as hub:
        hub.begin()
        hub.tools()
        hung = hub.request("tools/call", {"name": "hung__sleep", "arguments": {"ms": 60_000}})
        flooded = hub.request("tools/call", {"name": "flood__echo", "arguments": {"text": "x"}})
        beside = hub.call("s__echo", {"text": "beside"})
        found = [one["result"] for one in hub.answers(hung, flooded)]

    assert text_of(beside) == "beside"
    assert [one["isError"] for one in found] == [True, True]
    assert "no answer within 0.3 s" in text_of(found[0])
    assert "the server wrote a line of more than" in text_of(found[1])


@pytest.mark.slow(reason="sends a flood of messages")
def test_a_flood_of_messages_and_noise_reaches_nobody_else(project: Project) -> None:
    serving(project, "--asks", "--noise", "--stderr", "20000")
    with ServedHub(project, "p.yaml", "--unix", "run/s") as hub:
        (address,) = hub.addresses()
        with SocketClient(address) as one, SocketClient(address) as other:
            for client in (one, other):
                client.begin()
                client.tools()
            count = {"name": "s__count", "arguments": {"steps": 30_000}}
            flooded = one.request("tools/call", {**count, "_meta": {"progressToken": "t"}})
            said = other.call("s__echo", {"text": "beside"})
            done = one.answer(flooded)["result"]
            told = [m for m in one.seen if m.get("method") == "notifications/progress"]
        hub.signal(signal.SIGTERM)
        assert hub.finish() == 0

    assert text_of(said) == "beside"
    assert text_of(done) == "counted"
    assert 1 <= len(told) <= 1000
    assert not any(m.get("method") == "notifications/progress" for m in other.seen)


def test_a_server_that_is_not_shared_is_started_for_each_session_and_ends_with_it(
    project: Project, tmp_path: Path
) -> None:
    note = tmp_path / "pid"
    serving(project, "--note-pid", str(note), server="share: false")
    with ServedHub(project, "p.yaml", "--stdio", "--unix", "run/s") as hub:
        (address,) = hub.addresses()
        hub.begin()
        listed = hub.tools()
        hub.call("s__echo", {"text": "mine"})
        hub.call("s__echo", {"text": "mine"})
        mine = pids(note)
        with SocketClient(address) as other:
            other.begin()
            assert other.tools() == listed
            both = [sleep(other, 100), sleep(other, 100)]
            texts = [text_of(one["result"]) for one in other.answers(*both)]
            theirs = pids(note)
            crashed = other.call("s__crash")
            again = other.call("s__echo", {"text": "again"})
            last = pids(note)[-1]
        anyio.run(until_gone, last)
        still = [is_alive(pid) for pid in mine]
        after = hub.call("s__echo", {"text": "mine"})
        hub.end_input()
        assert hub.finish() == 0

    assert len(mine) == 2  # the one that is listed, and ours
    assert len(theirs) == 3
    assert texts == ["slept 100 ms"] * 2
    assert "the server ended with exit code 3" in text_of(crashed)
    assert text_of(again) == "again"
    assert still == [True, True]
    assert text_of(after) == "mine"
    assert not any(map(is_alive, pids(note)))


def test_no_more_child_processes_run_than_may(project: Project, tmp_path: Path) -> None:
    note = tmp_path / "pid"
    serving(
        project,
        *("--note-pid", str(note)),
        server="share: false",
        serve="serve: {limits: {children: 2}}",
    )
    with ServedHub(project, "p.yaml", "--unix", "run/s") as hub:
        (address,) = hub.addresses()
        with SocketClient(address) as one, SocketClient(address) as other:
            one.begin()
            other.begin()
            fits = one.call("s__echo", {"text": "fits"})
            refused = other.call("s__echo", {"text": "refused"})
        with SocketClient(address) as third:
            third.begin()
            anyio.run(until_reaped, pids(note)[1])
            free = third.call("s__echo", {"text": "free"})

    assert text_of(fits) == "fits"
    assert refused["isError"] is True
    assert "2 child processes run already" in text_of(refused)
    assert text_of(free) == "free"


def test_commands_of_packs_are_child_processes_too(project: Project) -> None:
    project.pipeline(
        """
        mcp:
          servers: {sh: {pack: shell, root: .}}
          auto_approve:
            - {tool: sh__shell_run, command: ["cat", "held"]}
            - {tool: sh__shell_run, command: ["sleep", "*"]}
        serve: {limits: {children: 1}}
        """
    )
    os.mkfifo(project.folder / "held")
    with ServedHub(project, "p.yaml") as hub:
        hub.begin()
        hub.tools()
        # Whichever is first goes on until the other one was refused.
        call = {"name": "sh__shell_run", "arguments": {"command": "cat held"}}
        ids = [hub.request("tools/call", call) for _ in range(2)]
        refused = hub.until(lambda one: one.get("id") in ids)["result"]
        (project.folder / "held").write_text("")
        done = hub.until(lambda one: one.get("id") in ids)["result"]
        after = hub.call("sh__shell_run", {"command": "sleep 0"})

    assert done["structuredContent"]["exit_code"] == 0
    assert refused["isError"] is True
    assert "1 child processes run already" in text_of(refused), refused
    assert after["structuredContent"]["exit_code"] == 0


def test_a_broken_reload_and_a_signal_under_load_lose_no_answer(project: Project) -> None:
    serving(project)
    with ServedHub(project, "p.yaml", "--unix", "run/s") as hub:
        (address,) = hub.addresses()
        clients = [SocketClient(address) for _ in range(4)]
        for client in clients:
            client.begin()
            client.tools()
        calls = [[sleep(client, 400) for _ in range(8)] for client in clients]
        project.pipeline("mcp: {servers: 3}")
        hub.signal(signal.SIGHUP)
        hub.stderr_with("the file is not reloaded")
        for client, numbers in zip(clients, calls, strict=True):
            numbers += [sleep(client, 400) for _ in range(8)]
            client.ask("ping")
        hub.signal(signal.SIGTERM)
        texts = []
        for client, numbers in zip(clients, calls, strict=True):
            told = (*client.seen, *client.rest())
            texts += [text_of(one["result"]) for one in told if one.get("id") in numbers]
        code = hub.finish()
        for client in clients:
            client.__exit__()

    assert texts == ["slept 400 ms"] * 64
    assert code == 0


def test_what_is_cut_off_is_told_so_and_cancelled_at_its_server(project: Project) -> None:
    gate = Gate()
    # Over HTTP what the server was told stays there for it, however late it looks.
    server = Legacy(tools__call=lambda _: hanging_reply(gate))
    with McpEndpoint(server) as endpoint:
        entry = f"{{url: '{endpoint.url}', protocol: legacy}}"
        project.pipeline(
            f"""
            mcp: {{servers: {{s: {entry}}}, auto_approve: ["s__*"]}}
            serve: {{limits: {{drain: 100ms}}}}
            """
        )
        with ServedHub(project, "p.yaml") as hub:
            hub.begin()
            hub.tools()
            running = sleep(hub, 60_000)
            gate.wait_arrived()
            hub.signal(signal.SIGTERM)
            found = hub.answer(running)
            code = hub.finish()
        endpoint.wait_until(lambda: "notifications/cancelled" in endpoint.methods)
        methods = endpoint.methods

    assert found["error"]["message"] == "this request was cut off: the server is shutting down"
    assert code == 143
    assert methods.count("notifications/cancelled") == 1


def last_records(hub: ServedHub) -> list[str]:
    """What the audit log says of the end: of calls how they ended."""
    return [
        str(one.get("kind", one["event"]))
        for one in hub.audit
        if one["event"] in {"finished", "session.closed"}
    ]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kinds", ["INT INT", "INT TERM", "TERM TERM"])
@pytest.mark.parametrize("leaves", [True, False], ids=["client leaves", "client stays"])
def test_signals_at_the_same_time_are_one(
    project: Project, tmp_path: Path, kinds: str, *, leaves: bool
) -> None:
    """A terminal and a client send one each for one Ctrl-C, and the client may leave then."""
    cancelled = tmp_path / "cancelled"
    serving(project, "--note-cancelled", str(cancelled), serve="serve: {limits: {drain: 200ms}}")
    with ServedHub(project, "p.yaml") as hub:
        hub.begin()
        hub.tools()
        call = sleep(hub, 60_000)
        hub.ask("ping")
        for kind in kinds.split():
            hub.signal(signal.Signals[f"SIG{kind}"])
        if leaves:
            hub.end_input()
        else:
            said = hub.answer(call)["error"]["message"]
            assert said == "this request was cut off: the server is shutting down"
        code = hub.finish()

    assert code == 0 if leaves else code in {130, 143}
    assert last_records(hub) == ["cancelled", "session.closed"]
    assert len(cancelled.read_text("utf-8").split()) == 1


def test_a_later_second_signal_ends_it_at_once_with_its_children_and_its_records(
    project: Project, tmp_path: Path
) -> None:
    note, cancelled = tmp_path / "pid", tmp_path / "cancelled"
    serving(project, "--note-pid", str(note), "--note-cancelled", str(cancelled))
    with ServedHub(project, "p.yaml") as hub:
        hub.begin()
        hub.tools()
        sleep(hub, 60_000)
        hub.ask("ping")
        signal_until_end(hub.process, signal.SIGTERM)
        code = hub.finish()
        anyio.run(until_gone, pids(note)[0])

    assert code == 143
    assert last_records(hub) == ["cancelled", "session.closed"]
    assert len(cancelled.read_text("utf-8").split()) == 1


@pytest.mark.requirement("H22")
def test_calls_of_packs_end_before_the_packs_do(project: Project) -> None:
    project.pipeline(
        """
        mcp:
          servers: {sh: {pack: shell, root: .}}
          auto_approve: [{tool: sh__shell_run, command: ["sleep", "*"]}]
        """
    )
    with ServedHub(project, "p.yaml") as hub:
        hub.begin()
        hub.tools()
        arguments = {"command": "sleep 0.5"}
        running = hub.request("tools/call", {"name": "sh__shell_run", "arguments": arguments})
        hub.ask("ping")
        hub.signal(signal.SIGTERM)
        found = hub.answer(running)
        code = hub.finish()

    assert found["result"]["structuredContent"]["exit_code"] == 0
    assert code == 0


def test_after_kill_9_no_child_is_left_and_the_socket_is_replaced(
    project: Project, tmp_path: Path
) -> None:
    note = tmp_path / "pid"
    serving(project, "--note-pid", str(note))
    with ServedHub(project, "p.yaml", "--unix", "run/s") as hub:
        (address,) = hub.addresses()
        with SocketClient(address) as client:
            client.begin()
            client.tools()
            sleep(client, 60_000)
            client.ask("ping")
            hub.signal(signal.SIGKILL)
            assert client.rest() == []
        anyio.run(until_gone, pids(note)[0])
        left = Path(address.removeprefix("unix:")).exists()
    with ServedHub(project, "p.yaml", "--unix", "run/s") as again:
        with SocketClient(again.addresses()[0]) as client:
            client.begin()
            said = client.call("s__echo", {"text": "again"})
        again.signal(signal.SIGTERM)
        assert again.finish() == 0

    assert left
    assert text_of(said) == "again"


def test_on_a_full_disk_no_call_is_made_and_none_is_lost(project: Project, tmp_path: Path) -> None:
    serving(project)
    with ServedHub(project, "p.yaml") as hub:
        hub.begin()
        hub.tools()
        end = tmp_path / "end"
        arguments = {"ms": 0, "until": str(end)}
        running = hub.request("tools/call", {"name": "s__sleep", "arguments": arguments})
        hub.ask("ping")
        # No file may be longer than the log is now: its next record does not fit.
        (log,) = (project.served_state() / "audit").glob("audit-*.jsonl")
        size = log.stat().st_size
        resource.prlimit(hub.process.pid, resource.RLIMIT_FSIZE, (size, size))
        refused = hub.call("s__echo", {"text": "not made"})
        end.touch()
        done = hub.answer(running)
        code = hub.finish()

    assert "the call was not made: the audit log cannot be written" in text_of(refused)
    assert refused["isError"] is True
    assert text_of(done["result"]) == "slept 0 ms"
    assert code == 1
    assert all(json.loads(line) for line in log.read_text("ascii").splitlines())


def test_without_descriptors_new_clients_wait_and_old_ones_are_served(project: Project) -> None:
    project.write("a.txt", "text")
    with ServedHub(project, "--pack", "fs", "--root", ".", "--unix", "run/s") as hub:
        (address,) = hub.addresses()
        pid = hub.process.pid
        with SocketClient(address) as old:
            old.begin()
            old.call("fs__file_read", {"path": "a.txt"})
            before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
            used = max(int(one.name) for one in Path(f"/proc/{pid}/fd").iterdir()) + 1
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (used, before[1]))
            with SocketClient(address) as new:
                waiting = new.request("server/discover", modern=True)
                hub.stderr_with("a listener failed")
                failed = old.call("fs__file_read", {"path": "a.txt"})
                resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
                answered = new.answer(waiting)
            said = old.call("fs__file_read", {"path": "a.txt"})
        hub.signal(signal.SIGTERM)
        assert hub.finish() == 0

    assert failed["isError"] or text_of(failed) == "text"
    assert answered["result"]["_meta"][f"{META}serverInfo"]["name"] == "aish"
    assert text_of(said) == "text"


@pytest.mark.slow(reason="starts the real executable for each signal")
@pytest.mark.real_process
@pytest.mark.parametrize("kind", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_while_packs_open_ends_the_server(project: Project, kind: signal.Signals) -> None:
    packs = ("fs", "edit", "git", "shell", "proc", "py", "c", "rag", "web")
    names = [word for name in packs for word in ("--pack", name)]
    with ServedHub(project, *names, "--root", ".", "--unix", "run/s") as hub:
        hub.stderr_with("listening on")
        hub.signal(kind)
        assert hub.finish() == 0
    assert not (project.folder / "run" / "s").exists()


@pytest.mark.requirement("H4")
def test_a_call_for_a_lost_server_connects_it_again_and_is_answered(
    project: Project, tmp_path: Path
) -> None:
    note, again = tmp_path / "pid", tmp_path / "again"
    serving(project, "--note-pid", str(note), "--again", str(again))
    with ServedHub(project, "p.yaml") as hub:
        hub.begin()
        hub.tools()
        call = sleep(hub, 60_000)
        hub.ask("ping")
        again.touch()
        os.kill(pids(note)[0], signal.SIGKILL)
        hub.answer(call)
        # No list was asked for, and no change was told of, since it is lost.
        said = [hub.call("s__echo", {"text": str(number)}) for number in range(3)]
    assert [text_of(one) for one in said] == ["0", "1", "2"]


# The server's loop has a clock that only its waits move, and tells when it starts the server `s`.
STARTS = """
import asyncio, sys
from waits import waiting_loop

class Policy(asyncio.DefaultEventLoopPolicy):
    def new_event_loop(self):
        self.loop = waiting_loop()
        return self.loop

def hear(event, arguments):
    if event == "subprocess.Popen" and "flaky.sh" in str(arguments[1]):
        with open("starts", "a") as file:
            print(policy.loop.time(), file=file)

policy = Policy()
asyncio.set_event_loop_policy(policy)
sys.addaudithook(hear)
"""


@pytest.mark.slow(reason="starts the real executable and waits for attempts")
@pytest.mark.real_process
def test_calls_for_a_lost_server_make_one_attempt_a_second_and_wait_for_no_other(
    project: Project, tmp_path: Path
) -> None:
    note = tmp_path / "pid"
    server = shlex.join(json.loads(stdio("--note-pid", str(note))))
    flaky = project.write("flaky.sh", f"test -e down && exit 3\nexec {server}\n")
    project.pipeline(
        f"""
        mcp: {{servers: {{s: {{command: [sh, {flaky}]}}}}, auto_approve: ["s__*"]}}
        """
    )
    project.write("site/sitecustomize.py", STARTS)
    support = Path(__file__).parents[2] / "support"
    project.aish.env["PYTHONPATH"] = f"{project.folder / 'site'}:{support}"
    with ServedHub(project, "p.yaml") as hub:
        hub.begin()
        hub.tools()
        call = sleep(hub, 60_000)
        hub.ask("ping")
        project.write("down", "")
        os.kill(pids(note)[0], signal.SIGKILL)
        hub.answer(call)
        said = []
        for _ in range(4):
            echo = {"name": "s__echo", "arguments": {"text": "x"}}
            said += hub.answers(*[hub.request("tools/call", echo) for _ in range(10)])
        (project.folder / "down").unlink()
        back = hub.call("s__echo", {"text": "back"})
        hub.end_input()
        assert hub.finish() == 0

    assert all("the server is not connected" in text_of(one["result"]) for one in said)
    assert text_of(back) == "back"
    # An attempt that fails may start the server twice, for each of its protocols.
    starts = [float(one) for one in (project.folder / "starts").read_text("ascii").split()]
    waits = [later - former for former, later in pairwise(starts) if later > former]
    # The first attempt is made at once; the others wait, and one is for the last call.
    assert 4 <= len(waits) <= 7
    assert all(one > 0.999_999 for one in waits)
    # By itself it would wait for 2, 4 and 8 seconds before these, less a quarter.
    assert sum(waits[:4]) < 0.75 * (2 + 4 + 8)
