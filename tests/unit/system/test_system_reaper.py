import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest
from mcp_processes import is_alive
from samples import sampled

from aish.system.process.child import child_environment, run_command, start_child
from aish.system.process.reaper import Reaper

ROOT = Path(__file__).parents[3]
ENV = child_environment({}, os.environ)

# A child whose grandchild ignores SIGTERM, as `uvx` and `npx` may have one; it tells both numbers.
STUBBORN = (
    "trap '' TERM; sh -c 'trap \"\" TERM HUP; echo $$; while :; do sleep 1000; done' & "
    "echo $$; wait"
)

PARENT = f"""
import os, sys, anyio
from aish.system.process.child import Reaper, child_environment, run_command, start_child
reaper = Reaper()
env = child_environment({{}}, os.environ)
async def main():
    child = await start_child(["sh", "-c", {STUBBORN!r}], cwd="/", env=env, reaper=reaper)
    told = b""
    while told.count(b"\\n") < 2:
        told += await child.read()
    print(*told.decode().split(), flush=True)
    END
anyio.run(main)
"""


def start(code: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        cwd=ROOT,
        text=True,
        start_new_session=True,
    )


@pytest.fixture
def watched() -> Iterator[list[int]]:
    """Numbers of processes that are to be gone in the end, whatever the test does."""
    pids: list[int] = []
    yield pids
    for pid in pids:
        if is_alive(pid):
            os.kill(pid, signal.SIGKILL)


def wait_until_gone(*pids: int) -> None:
    async def gone() -> None:
        with anyio.fail_after(60):
            for pid in pids:
                try:
                    descriptor = os.pidfd_open(pid)
                except ProcessLookupError:
                    continue
                await anyio.wait_readable(descriptor)
                os.close(descriptor)

    anyio.run(gone)


def children_of(pid: int) -> set[int]:
    return {
        int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text("ascii").split()
    }


@pytest.fixture
def others() -> set[int]:
    """The children that were there before the test: other tests share a fork server."""
    return children_of(os.getpid())


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_killed_parent_leaves_neither_child_nor_grandchild(
    number: signal.Signals, watched: list[int]
) -> None:
    with start(PARENT.replace("END", "await anyio.sleep_forever()")) as parent:
        assert parent.stdout is not None
        watched += map(int, parent.stdout.readline().split())
        (reaper,) = children_of(parent.pid) - set(watched)
        parent.send_signal(number)
        parent.wait()
    wait_until_gone(*watched, reaper)


@pytest.mark.parametrize(
    "end",
    sampled(
        ["os._exit(3)", "raise SystemExit(3)", "os.abort()", "reaper.close(); os._exit(0)"],
        often={0},
        reason="cases of the same kind",
    ),
)
def test_a_parent_that_ends_without_a_word_leaves_nobody(end: str, watched: list[int]) -> None:
    with start(PARENT.replace("END", end)) as parent:
        assert parent.stdout is not None
        watched += map(int, parent.stdout.readline().split())
        parent.wait()
    wait_until_gone(*watched)


def test_a_command_does_not_outlive_its_killed_parent(tmp_path: Path, watched: list[int]) -> None:
    os.mkfifo(tmp_path / "told")
    script = f"exec > {tmp_path / 'told'}; {STUBBORN}"
    code = f"""
import os, anyio
from aish.system.process.child import Reaper, child_environment, run_command
async def main():
    await run_command(["sh", "-c", {script!r}], cwd="/", env=child_environment({{}}, os.environ),
        timeout=None, limit_bytes=10, reaper=Reaper())
anyio.run(main)
"""
    with start(code) as parent:
        with (tmp_path / "told").open(encoding="ascii") as told:
            watched += [int(told.readline()), int(told.readline())]
        parent.kill()
        parent.wait()
    wait_until_gone(*watched)


def test_the_signals_of_a_terminal_do_not_stop_the_reaper(watched: list[int]) -> None:
    with start(PARENT.replace("END", "await anyio.sleep_forever()")) as parent:
        assert parent.stdout is not None
        watched += map(int, parent.stdout.readline().split())
        (reaper,) = children_of(parent.pid) - set(watched)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
            os.kill(reaper, number)
        assert os.getsid(reaper) == reaper
        parent.kill()
        parent.wait()
    wait_until_gone(*watched, reaper)


def test_a_child_whose_group_was_not_yet_told_is_known_by_its_pipe(watched: list[int]) -> None:
    code = """
import os, subprocess
from aish.system.process.reaper import Reaper
reaper = Reaper()
reading, writing = os.pipe()
reaper.expect({os.fstat(reading).st_ino})
child = subprocess.Popen(["sleep", "1000"], stdout=writing, start_new_session=True)
print(child.pid, flush=True)
os.kill(os.getpid(), 9)
"""
    with start(code) as parent:
        assert parent.stdout is not None
        watched.append(int(parent.stdout.readline()))
        parent.wait()
    wait_until_gone(*watched)


@pytest.mark.parametrize("kept", [0, 1, 2])
def test_a_child_is_known_by_any_of_its_pipes(kept: int, watched: list[int]) -> None:
    code = f"""
import os, subprocess
from aish.system.process.child import start_process
from aish.system.process.reaper import Reaper
class Killed(Reaper):
    def register(self, pgid):
        print(pgid, flush=True)
        os.kill(os.getpid(), 9)
streams = [os.open(os.devnull, os.O_RDWR) for _ in range(3)]
streams[{kept}] = os.pipe()[0 if {kept} == 0 else 1]
start_process(["sleep", "1000"], cwd="/", env={{"PATH": os.environ["PATH"]}},
    streams=tuple(streams), reaper=Killed())
"""
    with start(code) as parent:
        assert parent.stdout is not None
        watched.append(int(parent.stdout.readline()))
        parent.wait()
    wait_until_gone(*watched)


def test_a_grandchild_that_left_the_group_is_known_by_its_pipe(watched: list[int]) -> None:
    escape = (
        "import os, time\\nif os.fork() == 0:\\n os.setsid()\\n print(os.getpid(), flush=True)\\n"
        " time.sleep(1000)\\nos.wait()"
    )
    code = f"""
import os, sys, anyio
from aish.system.process.child import Reaper, child_environment, start_child
async def main():
    child = await start_child([sys.executable, "-I", "-S", "-c", '''{escape}'''], cwd="/",
        env=child_environment({{}}, os.environ), reaper=Reaper())
    print((await child.read()).decode(), end="", flush=True)
    os.kill(os.getpid(), 9)
anyio.run(main)
"""
    with start(code) as parent:
        assert parent.stdout is not None
        watched.append(int(parent.stdout.readline()))
        parent.wait()
    wait_until_gone(*watched)


def test_a_reaper_starts_nothing_before_there_is_something_to_reap() -> None:
    before = children_of(os.getpid())
    reaper = Reaper()
    reaper.forget(1)
    reaper.close()
    assert children_of(os.getpid()) <= before


def test_closing_kills_what_is_still_registered(watched: list[int], others: set[int]) -> None:
    child = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    watched.append(child.pid)
    reaper = Reaper()
    reaper.register(child.pid)
    reaper.close()
    assert child.wait(60) == -signal.SIGTERM
    assert children_of(os.getpid()) <= others


def test_what_was_forgotten_is_left_alone() -> None:
    child = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    reaper = Reaper()
    reaper.register(child.pid)
    reaper.forget(child.pid)
    reaper.close()
    assert child.poll() is None
    child.kill()
    child.wait()


def test_a_stopped_process_is_killed_too() -> None:
    child = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    child.send_signal(signal.SIGSTOP)
    reaper = Reaper()
    reaper.register(child.pid)
    reaper.close()
    assert child.wait(60) in {-signal.SIGTERM, -signal.SIGKILL}


def test_a_reaper_that_somebody_killed_is_replaced_and_told_everything(others: set[int]) -> None:
    first = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    second = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    reaper = Reaper()
    reaper.register(first.pid)
    (pid,) = children_of(os.getpid()) - {first.pid, second.pid} - others
    os.kill(pid, signal.SIGKILL)
    wait_until_gone(pid)
    reaper.register(second.pid)
    reaper.close()
    assert first.wait(60) == second.wait(60) == -signal.SIGTERM
    assert children_of(os.getpid()) <= others


def test_an_ordinary_run_leaves_no_process_and_no_descriptor(others: set[int]) -> None:
    before = {entry.name for entry in Path("/proc/self/fd").iterdir()}

    async def use() -> None:
        reaper = Reaper()
        child = await start_child(["cat"], cwd="/", env=ENV, reaper=reaper)
        result = await run_command(
            ["true"], cwd="/", env=ENV, timeout=60, limit_bytes=10, reaper=reaper
        )
        assert result.exit_code == 0
        assert await child.stop(60) == 0
        with pytest.raises(OSError, match="No such file"):
            await start_child(["/no/such"], cwd="/", env=ENV, reaper=reaper)
        reaper.close()
        reaper.close()

    anyio.run(use)
    assert children_of(os.getpid()) <= others
    assert {entry.name for entry in Path("/proc/self/fd").iterdir()} <= before
