import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import TypeVar

import anyio
import pytest
import stray_processes
from mcp_processes import is_alive
from samples import sampled
from stray_processes import STRAYS, Strays, children_of, gone, parent_of
from waits import put_forward, waits_of

from aish.system.process import supervisor_process
from aish.system.process.child import CommandResult, child_environment, follow
from aish.system.process.reaper import Reaper
from aish.system.process.sandbox import sandbox_report
from aish.system.process.supervisor import Command, Landlock, Supervised, Supervisor

T = TypeVar("T")
ROOT = Path(__file__).parents[3]
ENV = child_environment({}, os.environ)
LAST_STANDARD = 1 << 31
LONG = 60.0
"""What no machine needs, and a test waits for only where the clock is put forward."""


@pytest.fixture
def told(tmp_path: Path) -> Iterator[Strays]:
    yield from stray_processes.strays_in(tmp_path)


@pytest.fixture
def supervisor() -> Iterator[Supervisor]:
    found = Supervisor()
    yield found
    found.close()


def run(function: Callable[[], Awaitable[T]]) -> T:
    async def limited() -> T:
        with anyio.fail_after(60):
            return await function()

    return anyio.run(limited)


def shell(line: str) -> Command:
    return Command(("/bin/sh", "-c", line), ENV)


async def begin(supervisor: Supervisor, command: Command, folder: Path) -> Supervised:
    descriptors = [os.open(os.devnull, os.O_RDWR), os.open(folder, os.O_RDONLY)]
    try:
        null, place = descriptors
        return await supervisor.start(command, folder=place, streams=(null, null, null))
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


async def result_of(
    supervisor: Supervisor,
    line: str,
    folder: Path,
    seconds: float = LONG,
    began: Callable[[], object] = lambda: None,
) -> CommandResult:
    place = os.open(folder, os.O_RDONLY)

    async def start(streams: tuple[int, int, int]) -> Supervised:
        process = await supervisor.start(shell(line), folder=place, streams=streams)
        began()
        return process

    try:
        return await follow(start, timeout=seconds, limit_bytes=10_000, grace=1)
    finally:
        os.close(place)


async def after_told(supervisor: Supervisor, told: Strays, line: str) -> CommandResult:
    """The result of a command that goes on when a stray has told its number."""
    found: list[CommandResult] = []
    began = anyio.Event()

    async def keep() -> None:
        found.append(await result_of(supervisor, line, told.folder, began=began.set))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(keep)
        await told.next()
        # The command may be at work before its guard has said so, and kill it.
        await began.wait()
        told.go()
    return found[0]


def test_a_command_gives_its_code_and_both_streams(supervisor: Supervisor, tmp_path: Path) -> None:
    async def results() -> list[CommandResult]:
        lines = ("pwd; echo err >&2; exit 3", "kill -9 $$", "cat; true", "yes | head -c 9999999")
        return [await result_of(supervisor, line, tmp_path) for line in lines]

    plain, killed, empty, long = run(results)
    assert (plain.exit_code, plain.stderr) == (3, b"err\n")
    assert plain.stdout.decode() == f"{tmp_path.resolve()}\n"
    assert killed.exit_code == -9
    assert (empty.exit_code, empty.stdout) == (0, b"")
    assert (len(long.stdout), long.stdout_bytes, long.truncated) == (10_000, 9_999_999, True)


def test_a_command_has_default_signals_no_other_descriptor_and_a_session_of_its_own(
    supervisor: Supervisor, tmp_path: Path
) -> None:
    line = (
        "ls /proc/self/fd | tr '\\n' ' '; grep -E '^Sig(Blk|Ign)' /proc/self/status;"
        f" {sys.executable} -I -S -c 'import os; print(os.getsid(0) == os.getppid())'; :"
    )
    result = run(lambda: result_of(supervisor, line, tmp_path))
    *descriptors, _, blocked, _, ignored, leads = result.stdout.split()
    assert descriptors == [b"0", b"1", b"2", b"3"]  # the last is the listing itself
    assert (int(blocked, 16), int(ignored, 16) & LAST_STANDARD - 1, leads) == (0, 0, b"True")


@pytest.mark.parametrize("name", STRAYS)
def test_nothing_outlives_the_end_of_a_command(
    name: str, supervisor: Supervisor, told: Strays, tmp_path: Path
) -> None:
    async def used() -> CommandResult:
        result = await after_told(supervisor, told, f"{STRAYS[name]} read line < go; exit 4")
        await gone(*told.pids)
        return result

    assert run(used).exit_code == 4


@pytest.mark.parametrize(
    "name", sampled(STRAYS, often={0, 2}, reason="each leaves a process behind in another way")
)
def test_nothing_outlives_the_timeout_of_a_command(
    name: str, supervisor: Supervisor, told: Strays, tmp_path: Path
) -> None:
    async def used() -> CommandResult:
        line = f"echo begun; trap '' TERM; {STRAYS[name]} while :; do sleep 1000; done"
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(time_out)
            result = await result_of(supervisor, line, tmp_path, seconds=LONG)
        await gone(*told.pids)
        return result

    async def time_out() -> None:
        await told.next()
        put_forward(LONG)

    result, _ = waits_of(used)
    assert result.timed_out
    assert result.stdout.startswith(b"begun\n")


@pytest.mark.parametrize("name", STRAYS)
def test_nothing_outlives_a_command_that_is_cancelled(
    name: str, supervisor: Supervisor, told: Strays, tmp_path: Path
) -> None:
    async def cancelled() -> None:
        async with anyio.create_task_group() as tasks:
            line = f"{STRAYS[name]} sleep 1000"
            tasks.start_soon(result_of, supervisor, line, tmp_path)
            await told.next()
            tasks.cancel_scope.cancel()
        await gone(*told.pids)

    run(cancelled)


def test_a_command_may_end_orderly_when_it_is_stopped(
    supervisor: Supervisor, told: Strays, tmp_path: Path
) -> None:
    async def stopped() -> int:
        # The child tells, and not the shell: before its exec it would lose the signal.
        child = "sh -c 'echo $$ > told; exec sleep 1000'"
        line = f"trap 'kill $!; echo clean > end; exit 7' TERM; {child} & wait"
        process = await begin(supervisor, shell(line), tmp_path)
        await told.next()
        return await process.stop(10)

    assert run(stopped) == 7
    assert (tmp_path / "end").read_text() == "clean\n"


def test_a_parent_is_told_to_end_before_its_children(monkeypatch: pytest.MonkeyPatch) -> None:
    tree = {2: [72, 9], 72: [64, 8], 8: [1], 9: [3], 5: [4]}
    told: list[tuple[int, int]] = []
    monkeypatch.setattr(supervisor_process, "_children", lambda: tree)
    monkeypatch.setattr(os, "getpid", lambda: 2)
    monkeypatch.setattr(os, "kill", lambda pid, number: told.append((pid, number)))
    supervisor_process._terminate({3})
    order = [pid for pid, number in told if number == signal.SIGTERM]
    assert sorted(order) == [1, 8, 9, 64, 72]
    assert order.index(72) < order.index(64)
    assert order.index(72) < order.index(8) < order.index(1)


@pytest.mark.linux_forms  # `ps` is slower than it forks on a busy machine
@pytest.mark.requirement("K52")
def test_what_forks_all_the_time_is_ended(supervisor: Supervisor, tmp_path: Path) -> None:
    line = "f() { while :; do (setsid sh -c 'sleep 0.02' &) ; done; }; f & f & f & sleep 0.5"
    mark = "forks-all-the-time"

    async def used() -> None:
        await result_of(supervisor, f": {mark}; {line}", tmp_path)

    run(used)
    assert not [
        entry
        for entry in Path("/proc").iterdir()
        if entry.name.isdigit() and mark.encode() in content(entry / "cmdline")
    ]


def content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


@pytest.mark.linux_forms  # it clears its environment
def test_a_command_that_kills_its_guard_leaves_nothing(
    supervisor: Supervisor, told: Strays, tmp_path: Path
) -> None:
    async def used() -> None:
        stray = STRAYS["a cleared environment"]
        line = f"{stray} read line < go; kill -9 $PPID; sleep 1000"
        assert (await after_told(supervisor, told, line)).exit_code == -9
        await gone(*told.pids)
        # The next command has a guard again.
        assert (await result_of(supervisor, "exit 5", tmp_path)).exit_code == 5

    run(used)


def test_a_command_that_kills_the_whole_supervisor_is_found_by_its_mark(
    supervisor: Supervisor, told: Strays, tmp_path: Path
) -> None:
    async def used() -> None:
        others = children_of(os.getpid())
        stray = STRAYS["setsid"]
        above = "$(cut -d ' ' -f 4 /proc/$PPID/stat)"
        line = f"{stray} read line < go; kill -9 {above} $PPID; sleep 1000"
        await after_told(supervisor, told, line)
        # Its guard may be gone a moment before it, and until then it takes commands.
        await gone(*told.pids, *children_of(os.getpid()) - others)
        assert (await result_of(supervisor, "exit 5", tmp_path)).exit_code == 5

    run(used)


PARENT = """
import os, sys, anyio
from aish.system.process.child import child_environment, follow
from aish.system.process.reaper import Reaper
from aish.system.process.supervisor import Command, Supervisor
async def main():
    supervisor = Supervisor(Reaper())
    place = os.open(sys.argv[1], os.O_RDONLY)
    command = Command(("/bin/sh", "-c", sys.argv[2]), child_environment({}, os.environ))
    start = lambda streams: supervisor.start(command, folder=place, streams=streams)
    await follow(start, timeout=None, limit_bytes=10)
anyio.run(main)
"""


def started(folder: Path, line: str) -> "subprocess.Popen[bytes]":
    argv = [sys.executable, "-c", PARENT, str(folder), line]
    return subprocess.Popen(argv, cwd=ROOT, start_new_session=True)


@pytest.mark.parametrize(
    "name", sampled(STRAYS, often={0, 2}, reason="each leaves a process behind in another way")
)
def test_nothing_outlives_a_killed_parent(name: str, told: Strays, tmp_path: Path) -> None:
    async def killed() -> None:
        with started(
            tmp_path, f"{STRAYS[name]} trap '' TERM; while :; do sleep 1000; done"
        ) as parent:
            stray = await told.next()
            ours = children_of(parent.pid)
            parent.kill()
            parent.wait()
        await gone(stray, *ours)

    run(killed)


def test_after_a_kill_of_parent_and_supervisor_the_mark_is_left(
    told: Strays, tmp_path: Path
) -> None:
    async def killed() -> None:
        with started(tmp_path, f"{STRAYS['setsid that ignores SIGTERM']} sleep 1000") as parent:
            stray = await told.next()
            guard = next(
                pid for pid in ancestors(stray) if children_of(parent.pid) & {parent_of(pid)}
            )
            warm = parent_of(guard)
            for pid in (parent.pid, warm, guard):
                os.kill(pid, signal.SIGKILL)
            parent.wait()
        await gone(stray)

    run(killed)


def ancestors(pid: int) -> Iterator[int]:
    while pid > 1:
        yield pid
        pid = parent_of(pid)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (("/no/such/command",), "No such file"),
        (("/etc",), "Permission denied"),
        (("nul\0",), "cannot be passed"),
        (("\ud800",), "cannot be passed"),
        ((), "cannot be passed"),
        (("true", "x" * 3_000_000), "Argument list too long"),
    ],
)
def test_a_command_that_cannot_start_is_an_os_error(
    argv: tuple[str, ...], message: str, supervisor: Supervisor, tmp_path: Path
) -> None:
    before = {entry.name for entry in Path("/proc/self/fd").iterdir()}

    async def refused() -> None:
        with pytest.raises(OSError, match=message):
            await begin(supervisor, Command(argv, ENV), tmp_path)

    run(refused)
    supervisor.close()
    assert {entry.name for entry in Path("/proc/self/fd").iterdir()} <= before


def test_an_ordinary_use_leaves_no_process_and_no_descriptor(tmp_path: Path) -> None:
    others = children_of(os.getpid())
    before = {entry.name for entry in Path("/proc/self/fd").iterdir()}

    async def use() -> None:
        reaper = Reaper()
        supervisor = Supervisor(reaper)
        async with anyio.create_task_group() as tasks:
            for _ in range(20):
                tasks.start_soon(result_of, supervisor, "sleep 0.05", tmp_path)
        left = await begin(supervisor, shell("sleep 1000"), tmp_path)
        supervisor.close()
        assert not is_alive(left.pid)
        await left.stop(0)
        reaper.close()

    run(use)
    assert children_of(os.getpid()) <= others
    assert {entry.name for entry in Path("/proc/self/fd").iterdir()} <= before


def test_nothing_is_started_before_there_is_a_command() -> None:
    before = children_of(os.getpid())
    supervisor = Supervisor(Reaper())
    supervisor.close()
    assert children_of(os.getpid()) <= before


@pytest.mark.skipif(bool(sandbox_report(os.environ).landlock), reason="there is no Landlock")
def test_a_program_is_found_by_its_name_where_python_is_out_of_sight(
    supervisor: Supervisor, tmp_path: Path
) -> None:
    libraries = map(str, Path("/lib").glob("*-linux-gnu"))
    rules = Landlock(write=(), read=("/usr/bin", "/bin", "/lib64", *libraries))
    command = Command(("true",), {"PATH": "/usr/bin:/bin"}, landlock=rules)

    async def act() -> int:
        process = await begin(supervisor, command, tmp_path)
        try:
            return await process.wait()
        finally:
            await process.stop(0)

    assert run(act) == 0
