import json
import sys
import threading
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp_processes import is_alive, read_pid, until_gone
from mcp_scenes import Scene, command, play, registry, stdio
from waits import longest_wait, waits_of

from aish.mcp.transports.confined import tell_if_slow
from aish.system.process.reaper import Reaper


def failure_of(*flags: str, **fields: Any) -> str:
    async def scene() -> str | None:
        async with registry(stdio(*flags, **fields)) as s:
            return s.registry.failure("kid")

    found = play(scene)
    assert isinstance(found, str)
    return found


def test_a_child_gets_six_names_and_what_its_entry_adds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_SECRET_KEY", "do not pass this on")
    file = tmp_path / "environment.json"
    entry_env = {"EXTRA": "yes", "ABSENT": None}

    async def scene() -> None:
        async with registry(stdio("--print-environment", str(file), env=entry_env)):
            pass

    play(scene)
    names = set(json.loads(file.read_text(encoding="utf-8"))) - {"LC_CTYPE"}
    assert names == {"PATH", "HOME", "EXTRA", "AISH_PROCESS_MARK"}


def test_a_child_runs_in_the_folder_of_its_entry(tmp_path: Path) -> None:
    where = "import os, sys; print(os.getcwd(), file=sys.stderr)"

    async def scene() -> str | None:
        async with registry(command(sys.executable, "-c", where, cwd=tmp_path)) as s:
            return s.registry.failure("kid")

    assert str(tmp_path.resolve()) in str(play(scene))


def test_noise_on_stdout_is_tolerated_and_reported_once() -> None:
    async def scene() -> None:
        async with registry(stdio("--noise")) as s:
            for _ in range(3):
                assert await s.text("kid__add", a=1, b=2) == "3"
            assert s.notices.texts("stdout_noise") == [
                "ignores what is not JSON-RPC on its stdout: a banner on stdout, not JSON"
            ]

    play(scene)


def test_a_line_without_end_costs_a_call_and_not_the_server() -> None:
    async def scene() -> None:
        async with registry(stdio("--huge-line")) as s:
            found = await s.call("kid__add", a=1, b=2)
            assert found.kind == "transport_error"
            assert found.content == (
                "[aish] tool transport error: the server wrote a line of more than 33554432 bytes"
            )
            assert s.registry.servers[0].state == "ready"

    play(scene)


def test_an_answer_of_a_megabyte_is_read_whole() -> None:
    async def scene() -> None:
        async with registry(stdio()) as s:
            assert await s.text("kid__big", n=1_000_000) == "x" * 1_000_000
            assert await s.text("kid__echo", text="y" * 300_000) == "y" * 300_000

    play(scene)


def test_a_child_that_dies_is_restarted_as_often_as_it_answers_in_between() -> None:
    async def scene() -> None:
        async with registry(stdio("--die-after", "1")) as s:
            for number in range(4):
                assert await s.text("kid__add", a=number, b=2) == str(number + 2)
                died = await s.call("kid__add", a=1, b=2)
                assert died.kind == "transport_error"
                assert died.content == (
                    "[aish] tool transport error: the server ended with exit code 4"
                )
            assert s.notices.codes == ["server_restarted"] * 3

    assert longest_wait(scene)[1] < 1.0, "no restart waits"


def test_a_child_that_dies_again_and_again_is_given_up() -> None:
    async def scene() -> None:
        async with registry(stdio("--die-after", "0")) as s:
            for _ in range(4):
                died = await s.call("kid__add", a=1, b=2)
                assert "the server ended with exit code 4" in died.content
            gone = await s.call("kid__add", a=1, b=2)
            assert gone.content == (
                "[aish] tool transport error: the server ended again after it was restarted"
            )
            assert s.notices.codes == ["server_restarted"] * 3
            # Its tools stay listed, and whoever begins new work is told.
            (info,) = s.registry.servers
            assert (info.state, len(s.names)) == ("failed", 8)
            assert "again after it was restarted" in str(info.error)

    _, waited = waits_of(scene)
    assert [round(one) for one in waited if one > 0.9] == [1, 2]


@pytest.mark.parametrize("era", ["legacy", "modern"])
def test_a_restarted_child_of_either_era_is_greeted_as_before(era: str) -> None:
    async def scene() -> None:
        async with registry(stdio("--era", era)) as s:
            await s.call("kid__crash")
            assert await s.text("kid__add", a=1, b=2) == "3"

    play(scene)


def test_calls_under_way_end_when_the_child_dies() -> None:
    async def scene() -> None:
        kinds: list[str] = []

        async def one(s: Scene, tool: str) -> None:
            kinds.append((await s.call(tool, ms=20_000)).kind)

        async with registry(stdio()) as s, anyio.create_task_group() as tasks:
            tasks.start_soon(one, s, "kid__sleep")
            tasks.start_soon(one, s, "kid__crash")
        assert kinds == ["transport_error"] * 2

    play(scene)


def test_a_child_that_dies_at_start_is_reported_with_both_ends_of_its_stderr() -> None:
    assert failure_of("--die-at-start", "--stderr", "30").splitlines() == [
        "the server ended with exit code 1; its stderr begins and ends with:",
        *(f"stderr line {number}" for number in range(3)),
        "…",
        *(f"stderr line {number}" for number in range(21, 30)),
        "cannot find my configuration",
    ]


def test_a_reason_before_a_long_trace_is_shown() -> None:
    shown = failure_of("--die-at-start", "--stderr", "2000").splitlines()
    assert shown[1:4] == [f"stderr line {number}" for number in range(3)]
    assert shown[-1] == "cannot find my configuration"


def test_a_stderr_of_few_lines_is_shown_whole() -> None:
    assert failure_of("--die-at-start", "--stderr", "4").splitlines() == [
        "the server ended with exit code 1; its stderr ends with:",
        *(f"stderr line {number}" for number in range(4)),
        "cannot find my configuration",
    ]


def test_a_child_that_hangs_at_start_is_given_up_after_its_own_time() -> None:
    assert failure_of("--hang-at-start", connect=0.4) == "no answer within 0.4 s"


def test_a_command_that_is_not_there_is_a_failed_server() -> None:
    async def scene() -> str | None:
        async with registry(command("/nonexistent/server")) as s:
            return s.registry.failure("kid")

    assert play(scene) == "cannot start `/nonexistent/server`: No such file or directory"


def test_stderr_goes_to_a_log_in_the_runs_folder(tmp_path: Path) -> None:
    async def scene() -> None:
        async with registry(stdio("--stderr", "3"), logs=tmp_path) as s:
            await s.text("kid__add", a=1, b=2)

    play(scene)
    log = tmp_path / "kid.stderr.log"
    assert log.read_text(encoding="utf-8").splitlines()[:3] == [
        f"stderr line {number}" for number in range(3)
    ]
    assert log.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("flags", [(), ("--ignore-sigterm",), ("--apart",)])
def test_a_childs_own_children_are_gone_when_the_registry_is(
    flags: tuple[str, ...], tmp_path: Path
) -> None:
    note = tmp_path / "grandchild"

    async def scene() -> int:
        async with registry(stdio("--grandchild-note", str(note), *flags)) as s:
            assert await s.text("kid__add", a=1, b=2) == "3"
            pid = read_pid(note)
            assert is_alive(pid)
        await until_gone(pid)
        return pid

    assert not is_alive(play(scene))


def test_a_grandchild_that_holds_stdout_does_not_hide_its_parents_death(tmp_path: Path) -> None:
    note = tmp_path / "grandchild"

    async def scene() -> None:
        async with registry(stdio("--grandchild-note", str(note))) as s:
            pid = read_pid(note)
            found = await s.call("kid__crash")
            assert found.kind == "transport_error"
            await until_gone(pid)

    play(scene)


KILLED = """
import sys
sys.path.insert(0, {support!r})
import anyio
from mcp_scenes import registry, stdio

async def scene():
    async with registry(stdio("--grandchild-note", {note!r}, *{flags!r})) as s:
        assert await s.text("kid__add", a=1, b=2) == "3"
        print("ready", flush=True)
        await anyio.sleep_forever()

anyio.run(scene)
"""


@pytest.mark.parametrize("flags", [(), ("--apart",)])
def test_a_kill_minus_nine_of_aish_takes_the_grandchildren_along(
    tmp_path: Path, flags: tuple[str, ...]
) -> None:
    note = tmp_path / "grandchild"
    support = str(Path(__file__).parents[2] / "support")
    program = KILLED.format(support=support, note=str(note), flags=flags)

    async def scene() -> int:
        async with await anyio.open_process([sys.executable, "-c", program]) as process:
            assert process.stdout is not None
            assert b"ready" in await process.stdout.receive()
            pid = read_pid(note)
            assert is_alive(pid)
            process.kill()
            await process.wait()
        await until_gone(pid)
        return pid

    assert not is_alive(play(scene))


def test_the_grace_of_a_run_that_ends_is_short() -> None:
    async def scene() -> None:
        async with registry(stdio("--ignore-sigterm"), reaper=Reaper()) as s:
            await s.text("kid__add", a=1, b=2)

    _, waits = play(scene, run=waits_of)
    assert 1 < max(waits) < 5


ALL_AT_ONCE = """
import json, sys
calls = []
for line in sys.stdin:
    message = json.loads(line)
    results = []
    if message["method"] == "initialize":
        results = [(message["id"], {"protocolVersion": "2025-11-25", "capabilities": {}})]
    elif message["method"] == "tools/list":
        results = [(message["id"], {"tools": [{"name": "echo"}]})]
    elif message["method"] == "tools/call":
        calls.append(message["id"])
        if len(calls) == 8:
            text = {"content": [{"type": "text", "text": "all are here"}]}
            results = [(number, text) for number in calls]
    for number, result in results:
        print(json.dumps({"jsonrpc": "2.0", "id": number, "result": result}), flush=True)
"""


def test_calls_to_one_child_run_side_by_side() -> None:
    answers = []

    async def scene() -> None:
        async def call() -> None:
            answers.append(await s.text("kid__echo"))

        waits = command(sys.executable, "-c", ALL_AT_ONCE, protocol="legacy")
        async with registry(waits) as s, anyio.create_task_group() as tasks:
            for _ in range(8):
                tasks.start_soon(call)

    play(scene)

    assert answers == ["all are here"] * 8


DEAF = """
import json, signal, sys
for line in sys.stdin:
    message = json.loads(line)
    match message["method"]:
        case "initialize":
            result = {"protocolVersion": "2025-11-25", "capabilities": {}}
        case "tools/list":
            result = {"tools": [{"name": "echo"}]}
        case "tools/call":
            signal.pause()
    if "id" in message:
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
"""


def test_a_child_that_stops_reading_is_replaced_after_the_call_gave_up() -> None:
    async def scene() -> None:
        deaf = command(sys.executable, "-c", DEAF, call=0.3, protocol="legacy")
        async with registry(deaf) as s:
            assert (await s.call("kid__echo")).kind == "transport_error"
            stuck = await s.call("kid__echo", text="x" * 1_000_000)
            assert stuck.content == "[aish] tool transport error: no answer within 0.3 s"
            await s.call("kid__echo")
            assert s.notices.codes == ["server_restarted"]

    play(scene)


TWICE = """
import json, sys
for line in sys.stdin:
    message = json.loads(line)
    if message["method"] == "initialize":
        results = [{"protocolVersion": "2025-06-18", "capabilities": {}}]
    elif message["method"] == "tools/list":
        results = [{"tools": [{"name": "first"}]}, {"tools": [{"name": "second"}]}]
    elif message["method"] == "tools/call":
        texts = ["the first", "the second"]
        results = [{"content": [{"type": "text", "text": text}]} for text in texts]
    else:
        results = []
    answers = [{"jsonrpc": "2.0", "id": message.get("id"), "result": one} for one in results]
    # All of them in one write, so that one read has them.
    sys.stdout.write("".join(json.dumps(one) + "\\n" for one in answers))
    sys.stdout.flush()
"""


def test_of_two_answers_to_one_request_the_first_counts(tmp_path: Path) -> None:
    script = tmp_path / "twice.py"
    script.write_text(TWICE)

    async def scene() -> None:
        entry = command(sys.executable, str(script), protocol="legacy")
        async with registry(entry) as s:
            assert s.names == ["kid__first"]
            assert await s.text("kid__first") == "the first"
            assert await s.text("kid__first") == "the first"

    play(scene)


def test_work_that_is_slow_is_told_once_and_then_done() -> None:
    heard, told = threading.Event(), []

    def note() -> None:
        told.append("slow")
        heard.set()

    slow = partial(tell_if_slow, lambda: heard.wait(30), note, 0)
    assert anyio.run(slow) is True
    assert anyio.run(tell_if_slow, lambda: "quick", note) == "quick"
    assert told == ["slow"]
