"""The real program as a process: started, signalled, killed with everything it started.

done = run_aish("run", "pipeline.yaml", stdin="text")
assert done.code == 0, done.stderr

with run_aish.start("run", "slow.yaml") as running:
    running.wait_for_line("tool repo__file_read")
    running.interrupt()
    assert running.finish().code == 130

Unless a test asks for the real executable, it is a child of `fork_server.py`.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Self

import portable_forms
from fork_server import ForkedProcess, ForkServer
from patience import signal_until_end

PATIENCE = 60.0
DRIVERS = {
    str(Path(__file__).with_name(f"{name}_driver.py"))
    for name in ("clock", "failpoint", "folder", "moved_clock", "shell_editor", "short_pauses")
}
"""Programs that run `aish`, or a part of it, with something changed around it."""


@dataclass(frozen=True)
class Done:
    """How it ended; `code` is negative where a signal ended it."""

    code: int
    stdout: str
    stderr: str


class Running:
    """A process in a group of its own, read by two threads so that no pipe fills up."""

    def __init__(
        self,
        argv: Sequence[str],
        *,
        cwd: Path,
        env: Mapping[str, str],
        stdin: bytes | None,
        warm: ForkServer | None = None,
    ) -> None:
        self.process = start_process(argv, cwd=cwd, env=env, piped=stdin is not None, warm=warm)
        self._changed = threading.Condition()
        self._read = {"stdout": b"", "stderr": b""}
        self._ended: set[str] = set()
        self._threads = [
            threading.Thread(target=self._drain, args=(name, stream), daemon=True)
            for name, stream in (("stdout", self.process.stdout), ("stderr", self.process.stderr))
        ]
        for thread in self._threads:
            thread.start()
        if stdin is not None:
            self._write(stdin)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *details: object) -> None:
        self.kill()

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def stdout(self) -> str:
        """What has come so far."""
        return self._read["stdout"].decode("utf-8", "replace")

    @property
    def stderr(self) -> str:
        return self._read["stderr"].decode("utf-8", "replace")

    def wait_for_line(self, text: str, *, where: str = "stderr", timeout: float = PATIENCE) -> None:
        """Block until `text` has been printed."""
        wanted = text.encode()
        with self._changed:
            came = self._changed.wait_for(lambda: wanted in self._read[where], timeout)
        assert came, f"{text!r} was not printed on {where}\n{self.stdout}\n{self.stderr}"

    def prints(self, text: str, *, where: str = "stderr", timeout: float = PATIENCE) -> bool:
        """Block until `text` has been printed, or can be no more; whether it was."""
        wanted = text.encode()
        with self._changed:
            came = self._changed.wait_for(
                lambda: wanted in self._read[where] or where in self._ended, timeout
            )
        assert came, f"{text!r} was not printed on {where}\n{self.stdout}\n{self.stderr}"
        return wanted in self._read[where]

    def wait_for_lines(self, count: int, *, timeout: float = PATIENCE) -> None:
        """Block until so many lines have been printed on stdout."""
        with self._changed:
            came = self._changed.wait_for(
                lambda: self._read["stdout"].count(b"\n") >= count, timeout
            )
        assert came, f"no {count} lines were printed\n{self.stdout}\n{self.stderr}"

    def interrupt(self, kind: signal.Signals = signal.SIGINT) -> None:
        """Signal the program itself, not its group."""
        self.process.send_signal(kind)

    def interrupt_again(self, kind: signal.Signals = signal.SIGINT) -> None:
        """Signal it until it has ended: at first that is the same wish as the signal before."""
        signal_until_end(self.process, kind)

    def finish(self, timeout: float = PATIENCE) -> Done:
        """Wait for the end. A process that takes too long is killed, group and all, and fails."""
        try:
            code = self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(
                f"still running after {timeout} s\nstdout: {self.stdout}\nstderr: {self.stderr}"
            ) from None
        for thread in self._threads:
            thread.join(PATIENCE)
        self._close()
        return Done(code, self.stdout, self.stderr)

    def kill(self) -> None:
        """End it and its process group; harmless when it is gone."""
        if self.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(PATIENCE)
        for thread in self._threads:
            thread.join(PATIENCE)
        self._close()

    def _drain(self, name: str, stream: IO[bytes]) -> None:
        while piece := os.read(stream.fileno(), 65536):
            with self._changed:
                self._read[name] += piece
                self._changed.notify_all()
        with self._changed:
            self._ended.add(name)
            self._changed.notify_all()

    def _write(self, data: bytes) -> None:
        stream = self.process.stdin
        assert stream is not None
        with contextlib.suppress(BrokenPipeError):
            stream.write(data)
            stream.close()

    def _close(self) -> None:
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()


@dataclass
class Aish:
    """Runs `python -m aish` in `cwd` with a small environment of its own."""

    cwd: Path
    env: dict[str, str] = field(default_factory=dict)
    python: tuple[str, ...] = (sys.executable,)
    """What starts the interpreter; anything else, but a driver, starts a real one."""
    warm: ForkServer | None = None
    _started: list[Running] = field(default_factory=list)

    def __call__(
        self,
        *arguments: str | Path,
        stdin: str | bytes | None = None,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        timeout: float = PATIENCE,
    ) -> Done:
        with self.start(*arguments, stdin=stdin, env=env, cwd=cwd) as running:
            return running.finish(timeout)

    def start(
        self,
        *arguments: str | Path,
        stdin: str | bytes | None = None,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> Running:
        """Start it in the background; without `stdin` it reads from the null device."""
        running = Running(
            [*self.python, "-m", "aish", *map(str, arguments)],
            cwd=cwd or self.cwd,
            env={**self.env, **(env or {})},
            stdin=stdin.encode() if isinstance(stdin, str) else stdin,
            warm=self.warm,
        )
        self._started.append(running)
        return running

    def close(self) -> None:
        for running in self._started:
            running.kill()


def forked_arguments(
    argv: Sequence[str], env: Mapping[str, str], warm: ForkServer | None
) -> Sequence[str] | None:
    """The arguments of `aish`, if a child of `warm` is the same as what `argv` would start.

    For a driver of `aish` that is its path, and what follows.
    """
    if warm is None or not warm.same_interpreter(env) or argv[0] != sys.executable:
        return None
    if argv[1] in DRIVERS:
        return argv[1:]
    return argv[3:] if [*argv[1:3]] == ["-m", "aish"] else None


def start_process(
    argv: Sequence[str],
    *,
    cwd: Path,
    env: Mapping[str, str],
    piped: bool,
    warm: ForkServer | None,
) -> "subprocess.Popen[bytes] | ForkedProcess":
    """A process in a session of its own, `piped` to its standard input too."""
    stdin = subprocess.PIPE if piped else subprocess.DEVNULL
    arguments = forked_arguments(argv, env, warm)
    if arguments is not None and warm is not None:
        return warm.start(
            arguments, cwd=cwd, env=env, stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
    return subprocess.Popen(
        argv,
        cwd=cwd,
        env=dict(env),
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )


def clean_environment(home: Path) -> dict[str, str]:
    """What a process needs and nothing that would change what it does."""
    kept = ("PATH", "TMPDIR", "LD_LIBRARY_PATH", "XDG_RUNTIME_DIR")
    return {
        **{name: os.environ[name] for name in kept if name in os.environ},
        "HOME": str(home),
        "LANG": "C.UTF-8",
        "TERM": "xterm-256color",
        "PYTHONFAULTHANDLER": "1",
        **({"PYTHONPATH": str(portable_forms.FOLDER)} if portable_forms.PORTABLE else {}),
    }


def without_network() -> tuple[str, ...] | None:
    """The command that starts a program without any network interface, where that is allowed."""
    program = shutil.which("unshare")
    for flags in (["-n"], ["-rn"]):
        if program is None:
            return None
        done = subprocess.run([program, *flags, "true"], capture_output=True, check=False)
        if done.returncode == 0:
            return program, *flags
    return None


def heeding_modes() -> tuple[str, ...] | None:
    """The command that starts a program for which files can be read-only, root's too."""
    if os.geteuid() != 0:
        return ()
    program = shutil.which("setpriv")
    without = "-dac_override,-dac_read_search"
    if program is None:
        return None
    return program, f"--bounding-set={without}", f"--inh-caps={without}"
