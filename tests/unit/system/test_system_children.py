import json
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import anyio
import pytest
from mcp_processes import is_alive
from portable_forms import PORTABLE
from waits import put_forward, waits_of

from aish.core.errors import UsageError
from aish.system.process import child
from aish.system.process.child import (
    CHILD_ENV_NAMES,
    STDERR_LIMIT,
    CommandResult,
    child_environment,
    run_command,
    start_child,
)
from aish.system.process.reaper_process import MARK
from aish.system.secrets.secrets import Secrets

T = TypeVar("T")
ENV = child_environment({}, os.environ)
LONG = 60.0
"""What no machine needs, and a test waits for only where the clock is put forward."""


def run(function: Callable[[], Awaitable[T]]) -> T:
    """Run with a deadline, so that a child that hangs is a failure."""

    async def limited() -> T:
        with anyio.fail_after(60):
            return await function()

    return anyio.run(limited)


def command(
    *argv: str, timeout: float | None = 20, limit: int = 10_000, data: bytes | None = None
) -> CommandResult:
    return run(
        lambda: run_command(argv, cwd="/", env=ENV, timeout=timeout, limit_bytes=limit, input=data)
    )


def python(code: str, timeout: float | None = 20, limit: int = 10_000) -> CommandResult:
    return command(sys.executable, "-I", "-S", "-c", code, timeout=timeout, limit=limit)


async def gone(pid: int) -> None:
    try:
        watched = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    await anyio.wait_readable(watched)
    os.close(watched)


def open_descriptors() -> set[str]:
    return {entry.name for entry in Path("/proc/self/fd").iterdir()}


# A grandchild that ignores SIGTERM and tells its number before anybody needs it.
STUBBORN = (
    "trap '' TERM; "
    f"{sys.executable} -I -S -c 'import os,signal,time;"
    "signal.signal(signal.SIGTERM, signal.SIG_IGN); print(os.getpid(), flush=True);"
    "time.sleep(1000)' & wait; sleep 1000"
)


def test_a_child_gets_six_names_and_what_is_named() -> None:
    environ = {**dict.fromkeys(CHILD_ENV_NAMES, "x"), "AWS_SECRET": "y", "PASSED": "z"}
    assert child_environment({}, environ) == dict.fromkeys(CHILD_ENV_NAMES, "x")
    assert child_environment({"A": "1", "PASSED": None, "MISSING": None}, {"PASSED": "z"}) == {
        "A": "1",
        "PASSED": "z",
    }
    assert set(CHILD_ENV_NAMES) == {"HOME", "LOGNAME", "PATH", "SHELL", "TERM", "USER"}


def test_a_child_sees_no_other_variable_and_no_other_descriptor() -> None:
    reading, writing = os.pipe()
    os.set_inheritable(writing, True)
    try:
        result = python(
            "import json, os; print(json.dumps([dict(os.environ), os.listdir('/proc/self/fd'),"
            " os.getpid() == os.getpgid(0) == os.getsid(0)]))"
        )
    finally:
        os.close(reading)
        os.close(writing)
    environ, descriptors, leads = json.loads(result.stdout)
    environ.pop("LC_CTYPE", None)  # Python sets it for itself
    if PORTABLE:  # a child is known by it there
        assert environ.pop(MARK)
    assert environ == ENV
    assert set(descriptors) <= {"0", "1", "2", "3"}  # 3 is the listing itself
    assert leads


def test_a_command_gives_its_code_and_both_streams() -> None:
    result = command("sh", "-c", "echo out; echo err >&2; exit 3")
    assert result == CommandResult(3, b"out\n", b"err\n", stdout_bytes=4, stderr_bytes=4)


def test_a_command_killed_by_a_signal_has_a_negative_code() -> None:
    assert command("sh", "-c", "kill -9 $$").exit_code == -9


def test_a_command_reads_its_input_or_nothing() -> None:
    assert command("cat", data=b"x" * 200_000, limit=300_000).stdout == b"x" * 200_000
    assert command("cat").stdout == b""
    assert command("true", data=b"x" * 200_000).exit_code == 0


def test_of_endless_output_the_beginning_is_kept_and_the_rest_counted() -> None:
    result = python("import os\nfor n in range(100): os.write(1, b'%04d' % n * 1000)", limit=4000)
    assert result.stdout == b"0000" * 1000
    assert result.truncated
    assert result.stdout_bytes == 400_000
    assert python("print('x' * 10)", limit=11).truncated is False


def test_a_timeout_kills_the_tree_and_returns_what_was_printed() -> None:
    heard: list[bytes] = []

    def hear(_: str, piece: bytes) -> None:
        heard.append(piece)
        if b"".join(heard).count(b"\n") == 2:  # both are there: now its time is over
            put_forward(LONG)

    async def timed_out() -> CommandResult:
        with anyio.fail_after(2 * LONG):
            argv = ["sh", "-c", f"echo begun; {STUBBORN}"]
            return await run_command(
                argv, cwd="/", env=ENV, timeout=LONG, limit_bytes=10_000, hear=hear
            )

    result, _ = waits_of(timed_out)
    begun, pid = result.stdout.split()
    assert begun == b"begun"
    assert result.timed_out
    assert result.exit_code == -9
    run(lambda: gone(int(pid)))


def test_what_a_command_leaves_in_the_background_ends_with_it() -> None:
    result = command("sh", "-c", "sleep 1000 & echo $!")
    assert result.exit_code == 0
    assert not result.timed_out
    run(lambda: gone(int(result.stdout)))


def test_last_words_of_a_command_are_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    # On a busy machine the command in the background may need longer.
    monkeypatch.setattr(child, "_LINGER", LONG)
    result = command("sh", "-c", "(cat < /dev/null; echo late) & echo early")
    assert set(result.stdout.split()) == {b"early", b"late"}


def test_a_daemon_that_keeps_the_output_open_is_not_waited_for() -> None:
    code = (
        "import os, time\ntold, tells = os.pipe()\nif os.fork() == 0:\n os.setsid()\n"
        " print(os.getpid(), flush=True)\n os.write(tells, b'.')\n time.sleep(1000)\n"
        "os.read(told, 1)"
    )
    result = python(code)
    assert result.exit_code == 0
    # What still holds the output at the end is ended.
    run(lambda: gone(int(result.stdout)))


def test_a_cancelled_command_leaves_nothing_behind(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pid")
    script = f"trap '' TERM; echo $$ > {tmp_path / 'pid'}; sleep 1000"

    async def start() -> None:
        await run_command(["sh", "-c", script], cwd="/", env=ENV, timeout=None, limit_bytes=10)

    async def cancelled() -> int:
        told = os.open(tmp_path / "pid", os.O_RDONLY | os.O_NONBLOCK)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(start)
            await anyio.wait_readable(told)
            pid = int(os.read(told, 20))
            tasks.cancel_scope.cancel()
        os.close(told)
        return pid

    before = open_descriptors()
    pid = run(cancelled)
    run(lambda: gone(pid))
    assert open_descriptors() <= before


REFUSALS = "No such file|Permission denied|cannot be passed|there is no command"


@pytest.mark.parametrize(
    ("argv", "cwd"),
    [
        (["/no/such/command"], "/"),
        (["true"], "/no/such/folder"),
        (["/etc"], "/"),
        (["nul\0"], "/"),
        (["\ud800"], "/"),
        ([], "/"),
    ],
)
def test_a_command_that_cannot_start_is_an_os_error_and_leaks_nothing(
    argv: list[str], cwd: str
) -> None:
    before = open_descriptors()

    async def start() -> None:
        with pytest.raises(OSError, match=REFUSALS):
            await run_command(argv, cwd=cwd, env=ENV, timeout=5, limit_bytes=10, input=b"x")
        with pytest.raises(OSError, match=REFUSALS):
            await start_child(argv, cwd=cwd, env=ENV)

    run(start)
    assert open_descriptors() <= before


def test_a_child_is_talked_to_in_bytes() -> None:
    async def talk() -> int:
        child = await start_child(["cat"], cwd="/", env=ENV)
        await child.write(b"hello\n")
        assert await child.read() == b"hello\n"
        return await child.stop(1)

    before = open_descriptors()
    assert run(talk) == 0
    assert open_descriptors() <= before


def test_a_child_that_floods_is_held_back_and_a_slow_one_is_fed() -> None:
    async def talk() -> int:
        child = await start_child(["cat"], cwd="/", env=ENV)
        data = os.urandom(1 << 20)
        echoed = b""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(child.write, data)
            while len(echoed) < len(data):
                echoed += await child.read(5000)
        assert echoed == data
        return await child.stop(LONG)

    assert run(talk) == 0


def test_a_flooding_child_does_not_hold_the_loop() -> None:
    async def talk() -> None:
        child = await start_child(["yes"], cwd="/", env=ENV)
        turns = 0

        async def other() -> None:
            nonlocal turns
            while True:
                await anyio.lowlevel.checkpoint()
                turns += 1

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(other)
            for _ in range(1000):
                await child.read(10)
            tasks.cancel_scope.cancel()
        assert turns > 10
        assert await child.stop(0) == -9

    run(talk)


def test_writing_to_a_child_that_has_ended_is_a_broken_pipe() -> None:
    async def talk() -> None:
        child = await start_child(["true"], cwd="/", env=ENV)
        assert await child.wait() == 0
        with pytest.raises(BrokenPipeError):
            await child.write(b"x")
        await child.stop(0)
        with pytest.raises(BrokenPipeError):
            await child.write(b"x")
        assert await child.read() == b""

    run(talk)


@pytest.mark.parametrize(
    ("script", "code", "grace", "ignored"),
    [
        ("cat", 0, LONG, 0),
        ("trap 'exit 7' TERM; echo ready; while :; do sleep 0.01; done", 7, LONG, 1),
        ("trap '' TERM; echo ready; while :; do sleep 0.01; done", -9, 0.3, 0),
    ],
    ids=["end of input", "SIGTERM", "SIGKILL"],
)
def test_a_child_is_stopped_more_and_more_firmly(
    script: str, code: int, grace: float, ignored: int
) -> None:
    """The first so many graces are `ignored`, and over at once."""

    async def stop() -> int:
        child = await start_child(["sh", "-c", script], cwd="/", env=ENV)
        if code:
            assert await child.read() == b"ready\n"
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(over)
            assert await child.stop(grace) == code
        return await child.stop(grace)

    async def over() -> None:
        await anyio.wait_all_tasks_blocked()
        put_forward(ignored * grace)

    assert waits_of(stop)[0] == code


@pytest.mark.parametrize("leader_lives", [True, False])
def test_a_stubborn_grandchild_is_gone_after_stop(*, leader_lives: bool) -> None:
    script = STUBBORN if leader_lives else STUBBORN.replace("wait; sleep 1000", "exit")

    async def stop() -> None:
        child = await start_child(["sh", "-c", script], cwd="/", env=ENV)
        pid = int(await child.read())
        if not leader_lives:
            await child.wait()
        assert is_alive(pid)
        await child.stop(0.1)
        await gone(pid)

    run(stop)


def test_a_grandchild_in_a_session_of_its_own_is_gone_after_stop() -> None:
    script = STUBBORN.replace("import os,signal,time;", "import os,signal,time; os.setsid();")

    async def stop() -> None:
        child = await start_child(["sh", "-c", script], cwd="/", env=ENV)
        pid = int(await child.read())
        assert os.getpgid(pid) != child.pid
        await child.stop(0.1)
        await gone(pid)

    run(stop)


def test_stop_is_not_cut_short_by_cancellation() -> None:
    async def cancelled() -> int:
        child = await start_child(["sh", "-c", STUBBORN], cwd="/", env=ENV)
        pid = int(await child.read())
        with anyio.CancelScope() as scope:
            scope.cancel()
            try:
                await anyio.sleep_forever()
            finally:
                await child.stop(0.1)
        await gone(pid)
        return child.pid

    assert not is_alive(run(cancelled))


def test_a_reader_that_waits_reads_the_end_when_the_child_is_stopped() -> None:
    async def stop() -> list[bytes]:
        child = await start_child(["sleep", "1000"], cwd="/", env=ENV)
        read: list[bytes] = []

        async def reader() -> None:
            read.append(await child.read())

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(reader)
            await anyio.wait_all_tasks_blocked()
            await child.stop(0)
        return read

    assert run(stop) == [b""]


def test_standard_error_goes_to_a_private_log(tmp_path: Path) -> None:
    async def talk() -> str:
        child = await start_child(
            ["sh", "-c", "echo noise >&2; cat; echo more >&2"],
            cwd="/",
            env=ENV,
            stderr_to=tmp_path / "stderr.log",
        )
        await child.stop(1)
        return child.stderr_excerpt

    assert run(talk) == "noise\nmore\n"
    assert (tmp_path / "stderr.log").read_text() == "noise\nmore\n"
    assert stat.S_IMODE((tmp_path / "stderr.log").stat().st_mode) == 0o600


def test_the_log_of_a_noisy_child_is_bounded_and_does_not_stop_it(tmp_path: Path) -> None:
    async def talk() -> str:
        code = "import os\nfor n in range(3000): os.write(2, b'%04d' % n * 256)\nprint('done')"
        child = await start_child(
            [sys.executable, "-I", "-S", "-c", code],
            cwd="/",
            env=ENV,
            stderr_to=tmp_path / "stderr.log",
        )
        assert await child.read() == b"done\n"
        await child.stop(5)
        return child.stderr_excerpt

    tail = run(talk)
    assert tail.endswith("2999" * 256)
    log = (tmp_path / "stderr.log").read_bytes()
    assert len(log) <= STDERR_LIMIT + 100
    assert log.endswith(b"[aish] the log ends here: the limit is reached\n")


def test_a_secret_in_standard_error_is_masked_in_log_and_tail(tmp_path: Path) -> None:
    secrets = Secrets()
    secrets.add("TOKEN", "hunter2hunter2")

    async def talk() -> str:
        script = "printf 'bad token hunter2' >&2; sleep 0.05; printf 'hunter2 \\377' >&2"
        child = await start_child(
            ["sh", "-c", script],
            cwd="/",
            env=ENV,
            stderr_to=tmp_path / "stderr.log",
            secrets=secrets,
        )
        await child.wait()
        await child.stop(0)
        return child.stderr_excerpt

    assert run(talk) == "bad token <secret:TOKEN> \ufffd"
    assert (tmp_path / "stderr.log").read_text() == "bad token <secret:TOKEN> \ufffd"


def test_a_planted_link_in_the_place_of_the_log_is_refused(tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("precious")
    (tmp_path / "stderr.log").symlink_to(tmp_path / "victim")
    before = open_descriptors()

    async def start() -> None:
        with pytest.raises(UsageError):
            await start_child(["true"], cwd="/", env=ENV, stderr_to=tmp_path / "stderr.log")

    run(start)
    assert (tmp_path / "victim").read_text() == "precious"
    assert open_descriptors() <= before


LOOKER = """
import anyio, os
from aish.system.process.child import run_command
looked = ["cat", f"/proc/{os.getpid()}/environ"]
env = {"PATH": os.environ["PATH"]}
print(anyio.run(lambda: run_command(looked, cwd="/", env=env, timeout=60, limit_bytes=10_000)))
"""
WITHOUT_CAPABILITIES = ("setpriv", "--no-new-privs", "--bounding-set=-all", "--inh-caps=-all")


@pytest.mark.skipif(sys.platform != "linux", reason="`/proc` is a part of Linux")
def test_a_child_cannot_read_the_environment_of_aish() -> None:
    words = () if os.geteuid() else WITHOUT_CAPABILITIES  # root may look at everything
    if words and shutil.which(words[0]) is None:
        pytest.skip("there is no `setpriv` to drop the capabilities of root with")
    done = subprocess.run(
        [*words, sys.executable, "-c", LOOKER],
        env={**os.environ, "HIDDEN_KEY": "a key that nobody is to see"},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert "ermission denied" in done.stdout
    assert "a key that nobody" not in done.stdout
