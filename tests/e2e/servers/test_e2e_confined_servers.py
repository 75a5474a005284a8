"""Servers in a sandbox: what they see, change and reach, and what errors say (T1 to T12)."""

import contextlib
import json
import os
import shutil
import signal
import socket
import sys
import threading
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from confined_servers import (
    BUBBLEWRAP,
    KINDS,
    add_probe,
    call,
    described,
    processes_called,
    refused,
)
from e2e_project import REPO, Project, wait_gone

NO_NETWORK = "reads data, writes nothing, no network"


@pytest.mark.requirement("T1")
@BUBBLEWRAP
@pytest.mark.parametrize(
    ("sandbox", "default", "words"),
    [
        (None, None, "unconfined"),
        ("off", "required", "unconfined"),
        (None, "required", "bubblewrap, reads nothing, writes nothing, no network"),
        (None, "auto", "bubblewrap, reads ., writes nothing, all of the network"),
        ({"read": ["data"]}, "auto", f"bubblewrap, {NO_NETWORK}"),
        ({}, None, "bubblewrap, reads nothing, writes nothing, no network"),
    ],
)
def test_a_server_has_its_own_sandbox_else_that_of_all_servers(
    project: Project, sandbox: Any, default: str | None, words: str
) -> None:
    add_probe(project, sandbox, default=default)

    assert described(project) == words


@BUBBLEWRAP
def test_the_pipeline_of_the_ci_job_runs(project: Project) -> None:
    file = REPO / "tests" / "support" / "confined.yaml"

    done = project.aish("run", file, "--run-dir", "runs")

    assert done.code == 0, done.stderr


@pytest.mark.slow(reason="runs three commands that start servers")
def test_plan_doctor_and_the_list_of_servers_show_the_sandbox(project: Project) -> None:
    project.aish.env["MODEL_URL"] = "http://127.0.0.1:9"
    add_probe(project, {"read": ["data"]}, default="off")

    plan = project.aish("plan", "p.yaml")
    doctor = project.aish("doctor", "p.yaml")
    offline = json.loads(project.aish("plan", "p.yaml", "--offline", "--format", "json").stdout)
    listed = project.aish("shell", "p.yaml", stdin=":mcp list\n")

    assert NO_NETWORK in plan.stdout
    assert f"tools over stdio; bubblewrap, {NO_NETWORK}" in doctor.stdout
    assert offline["servers"][0]["sandbox"] == f"confined, {NO_NETWORK}"
    assert NO_NETWORK in listed.stdout + listed.stderr


@pytest.mark.requirement("T3")
@pytest.mark.parametrize("kind", KINDS)
def test_a_server_sees_its_folders_and_a_home_of_its_own(project: Project, kind: str) -> None:
    add_probe(project, {"kind": kind, "read": ["data"], "write": ["out"]})
    (project.folder / "out").mkdir()

    seen = call(project, "about")

    home = seen["environ"]["HOME"]
    assert seen["cwd"] == str(project.folder)
    assert seen["environ"]["TMPDIR"] == home
    assert len(home) <= 30 or kind == "landlock"
    assert seen["home"] == [".cache", ".config", ".local"]
    assert [path for path, can in seen["writable"].items() if can] == [home]
    assert call(project, "read", path="data/shown.txt") == "what it was given"
    assert call(project, "write", path="out/new.txt", text="by it") == "written"
    assert (project.folder / "out" / "new.txt").read_text("utf-8") == "by it"
    assert "Permission denied" in refused(project, "write", path="data/x", text="") or (
        kind == "bubblewrap"
    )
    assert not (project.folder / "data" / "x").exists()
    for path in ("kept/secret.txt", str(Path(project.aish.env["HOME"], ".profile")), "p.yaml"):
        assert "what it was not given" not in refused(project, "read", path=path)
    assert not Path(home).exists()


@pytest.mark.slow(reason="starts a confined server for each folder")
@BUBBLEWRAP
def test_keys_and_runs_in_its_folders_are_empty_and_what_the_run_is_made_of_stays(
    project: Project,
) -> None:
    project.write("work/.env", "KEY=canary")
    project.write("work/deep/id_rsa", "canary")
    project.write("work/.github/workflows/ci.yml", "on: push\n")
    project.write("work/.aish/runs/x/events.jsonl", "canary")
    add_probe(project, {"kind": "bubblewrap", "write": ["work"]})

    assert not call(project, "read", path="work/.env")
    assert not call(project, "read", path="work/deep/id_rsa")
    assert "No such file" in refused(project, "read", path="work/.aish/runs/x/events.jsonl")
    for path in ("work/.github/workflows/ci.yml", "work/.env", "work/.aish/x"):
        assert "Read-only file system" in refused(project, "write", path=path, text="mine")
    assert call(project, "write", path="work/new.txt", text="mine") == "written"


@BUBBLEWRAP
@pytest.mark.skipif(shutil.which("node") is None, reason="there is no node to hide")
def test_a_server_in_python_without_a_network_finds_no_node(project: Project) -> None:
    """As programs expect that look for it: not as one that may not be started."""
    text = "import subprocess\ntry: subprocess.run(['node'])\nexcept OSError as e: exit(repr(e))"
    add_probe(project, {"kind": "bubblewrap"}, command=[sys.executable, "-c", text])

    assert "FileNotFoundError(2" in project.run().stderr


@pytest.mark.linux_forms
@pytest.mark.requirement("T7")
@pytest.mark.parametrize("name", [".env", ".aish/x", "id_rsa"])
def test_landlock_takes_nothing_out_of_a_folder_so_it_refuses_such_folders(
    project: Project, name: str
) -> None:
    add_probe(project, {"kind": "landlock", "read": ["data"]})
    project.write(f"data/{name}", "a key")

    done = project.run()

    assert done.code == 5
    shown = name.split("/", maxsplit=1)[0]
    assert "Landlock takes nothing out of a folder" in done.stderr
    assert f"`data/{shown}` must stay hidden" in done.stderr


@contextlib.contextmanager
def listener() -> Generator[int]:
    """A port of this machine that accepts connections."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    server.accept()[0].close()

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        try:
            yield server.getsockname()[1]
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join(60)


@pytest.mark.requirement("T4")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("network", ["none", "full"])
def test_a_server_reaches_no_network_or_that_of_the_machine(
    project: Project, kind: str, network: str
) -> None:
    add_probe(project, {"kind": kind, "network": network})

    with listener() as port:
        tried = call(project, "try", names=["tcp"], port=port)

    assert (tried["tcp"] is None) == (network == "full"), tried


@pytest.mark.parametrize(
    ("sandbox", "words"),
    [
        ({"read": ["missing"]}, "`missing` in its sandbox does not exist"),
        ({"read": ["two\nlines"]}, "`two⏎lines` in its sandbox does not exist"),
        ({"read": ["/proc"]}, "`/proc` in its sandbox has processes, devices or sockets"),
        ({"read": ["/proc/1"]}, "`/proc/1` in its sandbox has processes, devices or sockets"),
        ({"write": ["/dev"]}, "`/dev` in its sandbox has processes, devices or sockets"),
        ({"write": ["/run"]}, "`/run` in its sandbox has processes, devices or sockets"),
        ({"read": ["/"]}, "`/` in its sandbox is everything, or has the home folder in it"),
        ({"write": ["/"]}, "name the folders that it needs"),
        ({"read": [".aish"]}, "is, or is in, what no server may see"),
    ],
)
@pytest.mark.linux_forms
def test_what_a_sandbox_may_not_hold_is_an_error_before_the_server_starts(
    project: Project, sandbox: Any, words: str
) -> None:
    project.write(".aish/x", "")
    add_probe(project, sandbox)

    done = project.run()

    assert done.code == 5
    assert words in done.stderr


@pytest.mark.linux_forms
@pytest.mark.requirement("T2")
def test_a_sandbox_is_kept_whole_or_the_server_is_not_started(project: Project) -> None:
    project.aish.env["PATH"] = "/nowhere"
    project.aish.python = (
        sys.executable,
        str(REPO / "tests" / "support" / "without_landlock.py"),
    )
    add_probe(project, "required")
    contract = project.run()
    add_probe(project, {"kind": "landlock", "network": "full"})
    named = project.run()
    add_probe(project, "auto")
    effort = project.result("--run-dir", "effort")

    assert contract.code == named.code == 5
    assert "its sandbox cannot be kept: bubblewrap does not work here" in contract.stderr
    assert "Landlock does not work here: the kernel does not have it" in contract.stderr
    assert "its sandbox cannot be kept: Landlock does not work here" in named.stderr
    assert "`aish doctor` shows which sandboxes work here" in named.stderr
    assert effort["exit"]["code"] == 0
    (notice,) = [one for one in effort["notices"] if one["code"] == "sandbox_missing"]
    assert notice["level"] == "security"
    assert "it runs without a sandbox" in notice["text"]


@pytest.mark.linux_forms
def test_a_launcher_without_a_network_is_refused_before_it_waits(project: Project) -> None:
    add_probe(project, None)
    project.pipeline(
        """
        mcp: {servers: {time: {command: [uvx, --offline, mcp-server-time], sandbox: required}}}
        steps: [{id: now, call: time__now}]
        """
    )

    done = project.run()

    assert done.code == 5
    assert "`uvx` fetches the server before it starts it, and its sandbox has no network" in (
        done.stderr
    )


@pytest.mark.requirement("T12")
@pytest.mark.parametrize("kind", KINDS)
def test_each_failure_of_a_confined_server_names_its_sandbox_in_its_second_line(
    project: Project, kind: str
) -> None:
    line = f"in its sandbox: {'Landlock' if kind == 'landlock' else kind}, reads nothing"
    add_probe(project, {"kind": kind}, timeout={"tools": {"hang": "1s"}, "connect": "30s"})

    texts = {tool: refused(project, tool) for tool in ("fail", "refuse", "hang", "die")}
    add_probe(project, {"kind": kind}, command=[sys.executable, "-c", "exit('no luck')"])
    start = project.run().stderr.replace("⏎", "\n")

    assert f"it failed\n{line}" in texts["fail"]
    assert f"it refused\n{line}" in texts["refuse"]
    assert f"no answer within 1 s\n{line}" in texts["hang"]
    assert f"the server ended with exit code 4\n{line}" in texts["die"]
    project.write("server", "#!/nonexistent\n").chmod(0o755)
    add_probe(project, {"kind": kind}, command=["./server"])
    not_started = project.run().stderr.replace("⏎", "\n")
    assert f"\n{line}" in not_started
    assert kind == "bubblewrap" or "what it starts with is not in its sandbox" in not_started
    assert f"the server ended with exit code 1\n{line}" in start
    assert "its stderr ends with:\nno luck" in start


@pytest.mark.slow(reason="locks confined servers several times")
def test_a_lock_pins_the_sandbox_and_a_wider_one_is_a_difference(project: Project) -> None:
    project.write("more/x.txt", "")
    add_probe(project, {"read": ["data"]})
    locked = project.aish("lock", "p.yaml")
    codes = {}
    for name, sandbox in (
        ("same", {"read": ["data"]}),
        ("narrower", {}),
        ("wider", {"read": ["data", "more"]}),
        ("network", {"read": ["data"], "network": "full"}),
        ("none", None),
    ):
        add_probe(project, sandbox)
        codes[name] = project.run()

    pin = json.loads((project.folder / "p.lock.json").read_text("utf-8"))["servers"]["probe"]
    assert locked.code == 0, locked.stderr
    assert pin["sandbox"] == {"read": ["data"], "write": [], "network": "none"}
    assert {name: done.code for name, done in codes.items()} == {
        **dict.fromkeys(("same", "narrower"), 0),
        **dict.fromkeys(("wider", "network", "none"), 7),
    }
    assert "server `probe` differs from the lock: sandbox" in codes["wider"].stderr


@pytest.mark.parametrize("kind", KINDS)
def test_a_replay_names_the_recorded_sandbox_and_looks_for_none(
    project: Project, kind: str
) -> None:
    add_probe(project, {"kind": kind, "read": ["data"]})
    text = (project.folder / "p.yaml").read_text("utf-8")
    steps = "".join(
        f"  - {{id: {tool}, needs: [{needs}], call: probe__{tool}, on_error: continue}}\n"
        for tool, needs in (("about", ""), ("fail", ""), ("refuse", ""))
    )
    project.write("p.yaml", text.partition("steps:")[0] + f"steps:\n{steps}")
    recorded = project.aish("record", "p.yaml", "-o", "c.yaml", "--run-dir", "a")
    project.aish.env["PATH"] = "/nowhere"
    (project.folder / "data" / "shown.txt").unlink()
    (project.folder / "data").rmdir()

    replayed = project.run("--replay", "c.yaml", "--run-dir", "b")

    assert recorded.code == replayed.code, replayed.stderr
    for one in (recorded.stderr, replayed.stderr):
        assert one.count("in its sandbox: ") >= 2


@pytest.mark.requirement("T8")
@pytest.mark.parametrize("kind", KINDS)
def test_a_confined_server_and_what_it_left_end_with_aish_however_that_ends(
    project: Project, kind: str
) -> None:
    project.aish.python = ("env", sys.executable)
    name, tag = (f"{word}-by-{os.getpid()}-{kind}" for word in ("left", "served"))
    add_probe(project, {"kind": kind}, command=[sys.executable, "probe.py", tag])
    text = (project.folder / "p.yaml").read_text("utf-8").partition("steps:")[0]
    project.write(
        "p.yaml",
        f"{text}steps:\n  - {{id: leave, call: probe__leave, with: {{name: {name}}}}}\n"
        "  - {id: hang, needs: [leave], call: probe__hang}\n",
    )

    with project.aish.start("run", "p.yaml") as running:
        running.wait_for_line("hang: tool probe__hang")
        pids = [pid for pid in processes_called(name) if pid]
        servers = processes_called(tag)
        os.kill(running.pid, signal.SIGKILL)
        for pid in (*pids, *servers):
            wait_gone(pid)

    assert pids
    assert servers
