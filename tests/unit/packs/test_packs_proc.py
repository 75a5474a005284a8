import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
import stray_processes
from mcp_processes import is_alive
from pack_scenes import PackScene, opened_packs, started_packs
from samples import sampled
from stray_processes import STRAYS, Strays, gone

from aish.core.options import PackOptions
from aish.packs.command_options import ProcOptions
from aish.system.process.sandbox import sandbox_report
from aish.system.secrets.secrets import Secrets

REPORT = sandbox_report(os.environ)
SANDBOXES = [
    pytest.param(name, marks=pytest.mark.skipif(bool(why), reason=f"{name}: {why}"))
    for name, why in (
        ("off", ""),
        ("landlock", REPORT.landlock),
        ("bubblewrap", REPORT.bubblewrap),
    )
]
ENVIRON = {"PATH": os.environ["PATH"]}
READER = 'while read -r line; do echo "got $line"; echo err >&2; done; echo end'


@pytest.fixture
def box(tmp_path: Path) -> Iterator[PackScene]:
    with opened_packs(["proc"], tmp_path, options(sandbox="off"), environ=ENVIRON) as scene:
        yield scene


@pytest.fixture
def strays(tmp_path: Path) -> Iterator[Strays]:
    yield from stray_processes.strays_in(tmp_path)


def options(**given: Any) -> PackOptions:
    return {"proc": ProcOptions(**given)}


def shell(box: PackScene, line: str, **more: Any) -> str:
    id: str = box.data("process_start", command="sh", args=["-c", line], **more)["id"]
    return id


def ended(box: PackScene, id: str) -> dict[str, Any]:
    """The output of a process that ends by itself."""
    return box.data("process_output", id=id, wait_seconds=30, wait_for="\0 never")


@pytest.mark.parametrize("sandbox", SANDBOXES)
def test_a_process_is_started_watched_fed_and_ended(sandbox: str, tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    with opened_packs(["proc"], tmp_path, options(sandbox=sandbox), environ=ENVIRON) as box:
        started = box.data(
            "process_start", command="sh", args=["-c", f"pwd; {READER}"], cwd="sub", env=["A=b c"]
        )
        assert started["id"] == "p1"
        assert is_alive(started["pid"])
        assert (started["command"], started["cwd"]) == ("sh", "sub")
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", started["started_at"])
        assert started["sandbox"] == ("none" if sandbox == "off" else sandbox)
        first = box.data("process_output", id="p1", wait_seconds=30, wait_for="sub\n")
        assert first["output"] == f"{tmp_path}/sub\n"
        assert (first["found"], first["status"], first["exit_code"]) == (True, "running", None)
        assert box.data("process_input", id="p1", input="a\n") == {
            "id": "p1",
            "written": 2,
            "closed": False,
        }
        more = box.data(
            "process_output", id="p1", since=first["next"], wait_seconds=30, wait_for="err\n"
        )
        assert sorted(more["output"].splitlines()) in (
            ["[stderr]", "err", "got a"],
            ["[stderr]", "[stdout]", "err", "got a"],
        )
        assert box.data("process_input", id="p1", close=True)["closed"] is True
        last = ended(box, "p1")
        assert last["output"].endswith("end\n")
        assert (last["status"], last["exit_code"], last["found"]) == ("exited", 0, False)
        assert box.code("process_input", id="p1", input="x") == "failed"


@pytest.mark.sampled(3)
@pytest.mark.parametrize("sandbox", SANDBOXES)
@pytest.mark.parametrize(
    ("line", "tool", "signal"),
    [
        ("echo on; sleep 600", "process_stop", "SIGTERM"),
        ("trap '' TERM; echo on; sleep 600", "process_kill", "SIGKILL"),
        ("echo on; exit 143", "", None),
    ],
)
def test_the_signal_that_ends_a_process_is_named_in_every_sandbox(
    sandbox: str, line: str, tool: str, signal: str | None, tmp_path: Path
) -> None:
    with opened_packs(["proc"], tmp_path, options(sandbox=sandbox), environ=ENVIRON) as box:
        id = shell(box, line)
        box.data("process_output", id=id, wait_seconds=30, wait_for="on\n")
        if not tool:
            ended(box, id)
        last = box.data(tool or "process_stop", id=id)
        assert (last["status"], last["signal"]) == ("exited", signal)


def test_no_shell_reads_the_command(box: PackScene) -> None:
    id = box.data("process_start", command="echo", args=["$HOME; ls", "*", "a b"])["id"]
    assert ended(box, id)["output"] == "$HOME; ls * a b\n"
    assert box.code("process_start", command="echo hello") == "not_installed"
    assert box.code("process_start", command=" ") == "bad_arguments"
    assert box.code("process_start", command="echo", args=["\0"]) == "bad_arguments"
    assert box.code("process_start", command="echo", cwd="..") == "outside"
    assert box.code("process_start", command="/etc/passwd") == "unavailable"


def test_variables_are_named_as_in_an_environment_file(box: PackScene) -> None:
    id = shell(box, "echo $A-$B", env=["A=1=2", "B="])
    assert ended(box, id)["output"] == "1=2-\n"
    for refused in ("LD_PRELOAD=x", "PATH=/", "PYTHONPATH=.", "A B=1", "A", "=x", "A=\0"):
        assert box.code("process_start", command="true", env=[refused]) == "bad_arguments", refused


def test_only_so_many_run_at_the_same_time(tmp_path: Path) -> None:
    with opened_packs(["proc"], tmp_path, options(most=2), environ=ENVIRON) as box:
        first, second = shell(box, "sleep 1000"), shell(box, "sleep 1000")
        assert box.error("process_start", command="true") == {
            "code": "limit",
            "message": "2 processes are running, and no more may; stop one first",
            "details": {},
        }
        box.data("process_kill", id=first)
        assert [first, second, shell(box, "true")] == ["p1", "p2", "p3"]


@pytest.mark.requirement("K56")
def test_a_process_is_stopped_orderly_and_then_by_force(box: PackScene, strays: Strays) -> None:
    orderly = shell(
        box, "trap 'echo bye; exit 7' TERM; echo $$ > told; while :; do sleep 0.01; done"
    )
    anyio.run(strays.next)
    assert box.data("process_stop", id=orderly, grace_seconds=60) == {
        "id": orderly,
        "status": "exited",
        "exit_code": 7,
        "signal": None,
    }
    assert "bye\n" in box.data("process_output", id=orderly)["output"]
    stubborn = shell(box, "trap '' TERM; echo $$ > told; while :; do sleep 0.01; done")
    anyio.run(strays.next)
    stopped = box.data("process_stop", id=stubborn, grace_seconds=0)
    assert (stopped["exit_code"], stopped["signal"]) == (-9, "SIGKILL")
    # What has ended is no failure.
    assert box.data("process_stop", id=stubborn) == stopped
    assert box.data("process_kill", id=orderly)["exit_code"] == 7


@pytest.mark.parametrize("sandbox", SANDBOXES)
@pytest.mark.parametrize(
    "name", sampled(STRAYS, often={0, 2}, reason="each leaves a process behind in another way")
)
def test_the_tree_of_a_process_ends_with_it(
    name: str, sandbox: str, strays: Strays, tmp_path: Path
) -> None:
    async def used() -> None:
        async with started_packs(
            ["proc"], tmp_path, options(sandbox=sandbox), environ=ENVIRON
        ) as pack:
            arguments = {"command": "sh", "args": ["-c", f"{STRAYS[name]} sleep 1000"]}
            for _ in range(2):
                await pack.call("process_start", arguments)
                await strays.next()
            assert len(strays.host_pids()) >= 4
            await pack.call("process_stop", {"id": "p1", "grace_seconds": 1})
            listed: Any = await pack.call("process_list", {"running_only": True})
            assert [row["id"] for row in listed["structuredContent"]["processes"]] == ["p2"]
            left = strays.host_pids()
            assert left
        # The run has ended, and p2 with it.
        await gone(*left)
        assert not strays.host_pids()

    anyio.run(used)


def test_processes_are_listed_in_order(box: PackScene) -> None:
    assert box.text("process_list") == "no process was started"
    first = shell(box, "exit 3")
    ended(box, first)
    second = shell(box, "sleep 1000")
    rows = box.data("process_list")["processes"]
    assert [(row["id"], row["status"], row["exit_code"]) for row in rows] == [
        (first, "exited", 3),
        (second, "running", None),
    ]
    assert rows[1]["args"] == ["-c", "sleep 1000"]
    running = box.data("process_list", running_only=True)
    assert (running["total"], running["processes"][0]["id"]) == (1, second)
    assert box.text("process_list").splitlines() == [
        "p1  exit code 3  sh -c exit 3",
        "p2  running  sh -c sleep 1000",
    ]


def test_output_is_read_on_and_its_last_lines_can_be_chosen(box: PackScene) -> None:
    id = shell(box, "seq 1 20000")
    ended(box, id)
    place, parts = 0, []
    while True:
        found = box.data("process_output", id=id, since=place)
        if not found["output"]:
            break
        parts.append(found["output"])
        place = found["next"]
    assert len(parts) > 1
    assert "".join(parts) == "".join(f"{n}\n" for n in range(1, 20001))
    assert box.data("process_output", id=id, tail=2)["output"] == "19999\n20000\n"
    assert "continue with since=" in box.text("process_output", id=id)
    assert box.code("process_output", id="p9") == "not_found"


def test_a_wait_ends_with_any_output_the_end_or_its_time(box: PackScene, strays: Strays) -> None:
    id = shell(box, "echo begun; read line < go; echo more; read line < go; exit 2")
    first = box.data("process_output", id=id, wait_seconds=30)
    assert first["output"] == "begun\n"
    assert not box.data("process_output", id=id, since=6, wait_seconds=0)["output"]
    strays.go()
    second = box.data("process_output", id=id, since=6, wait_seconds=30)
    assert (second["output"], second["status"]) == ("more\n", "running")
    assert box.data("process_output", id=id, wait_seconds=30, wait_for="gun\nmo")["found"] is True
    strays.go()
    last = box.data("process_output", id=id, since=second["next"], wait_seconds=30)
    assert (last["output"], last["status"], last["exit_code"]) == ("", "exited", 2)


@pytest.mark.requirement("K55")
def test_a_process_that_floods_its_ring_loses_the_beginning(box: PackScene) -> None:
    code = "import os\nfor _ in range(400): os.write(1, b'x' * 65535 + b'\\n')\nprint('end')"
    id = box.data("process_start", command=sys.executable, args=["-I", "-S", "-c", code])["id"]
    found = box.data("process_output", id=id, wait_seconds=30, wait_for="end\n")
    assert found["found"] is True
    assert found["dropped"] + 2**20 >= 400 * 65536 > found["dropped"] > 398 * 65536 - 2**20
    assert box.data("process_output", id=id, tail=1)["output"] == "end\n"


@pytest.mark.slow(reason="waits for the limit of time")
def test_input_has_a_limit_of_size_and_of_time(box: PackScene) -> None:
    reading = shell(box, "wc -c")
    assert box.data("process_input", id=reading, input="é" * 32768)["written"] == 65536
    assert box.code("process_input", id=reading, input="x" * 65537) == "bad_arguments"
    box.data("process_input", id=reading, close=True)
    assert ended(box, reading)["output"].strip() == "65536"
    idle = shell(box, "sleep 1000")
    box.data("process_input", id=idle, input="x" * 65536)
    error = box.error("process_input", id=idle, input="y" * 65536)
    assert error["code"] == "timeout"
    assert error["details"]["written"] == 0


def test_a_grandchild_that_holds_the_output_open_does_not_delay_the_end(box: PackScene) -> None:
    id = shell(box, "(sleep 1000) & echo done")
    last = ended(box, id)
    assert (last["output"], last["exit_code"]) == ("done\n", 0)


def test_no_offset_shows_a_part_of_a_secret(tmp_path: Path) -> None:
    value = "hidden-Value-0123456789"
    secrets = Secrets()
    secrets.add("TOKEN", value)
    services = {"environ": ENVIRON, "mask": secrets.mask, "run_secrets": secrets}
    with opened_packs(["proc"], tmp_path, options(sandbox="off"), **services) as box:
        first = f"printf 'before {value} after\\n'; printf 'next {value[:9]}'"
        id = shell(box, f"{first}; read line; printf '{value[9:]} end\\n'")
        shown = box.data("process_output", id=id, wait_seconds=30, wait_for="next ")
        assert shown["output"] == "before <secret:TOKEN> after\nnext "
        box.data("process_input", id=id, input="\n", close=True)
        whole = ended(box, id)
        assert whole["output"] == f"{shown['output']}<secret:TOKEN> end\n"
        read_on = box.data("process_output", id=id, since=shown["next"])
        assert read_on["output"] == "<secret:TOKEN> end\n"
        for since in range(whole["next"]):
            part = box.data("process_output", id=id, since=since)["output"]
            assert not any(value[at : at + 4] in part for at in range(len(value) - 3)), since
