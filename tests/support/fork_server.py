"""A warm process that has imported `aish`, and forks a child for each `aish` that a test starts.

    with ForkServer(clean_environment(home)) as server:
        process = server.start(["run", "p.yaml"], cwd=folder, env=env, stdout=PIPE, stderr=PIPE)
        assert process.wait(60) == 0

Starting an interpreter and importing takes five times as long as what most tests are about. A child
is the same as a process of its own in all that a test sees: it is a child of the test (not of the
server), leads a session of its own, and has its own arguments, environment, folder, umask, standard
streams and seed of random numbers; it runs `aish/__main__.py` and ends as an interpreter ends.

What differs: modules are there before they are asked for, all children of a server hash strings
alike, `/proc/PID/cmdline` and `environ` are the server's, and what an interpreter is told at its
start (`PYTHON*`, locale, options) cannot be told any more: `same_interpreter` says whether an
environment is fit. Tests of those things start the real program (`@pytest.mark.real_process`).
Without `syncs` no child waits for the disk (`quick_syncs.py`).
"""

import atexit
import ctypes
import fcntl
import functools
import gc
import importlib
import io
import json
import os
import pkgutil
import random
import re
import runpy
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import IO, Any, Self, TextIO

import kill_points
import quick_syncs
from model_endpoint import ModelEndpoint, text_reply
from patience import is_ready

PATIENCE = 60.0
_PIPE, _NULL = subprocess.PIPE, subprocess.DEVNULL
_LENGTH = struct.Struct("!I")
_CLONE_PARENT = 0x8000
_SYS_CLONE = {"x86_64": 56, "aarch64": 220}
# What an interpreter and the C library read when they start.
_STARTING = re.compile(r"PYTHON.*|LC_.*|LANG|LANGUAGE|LD_.*|MALLOC_.*|GLIBC_.*")
# Not imported beforehand: what starts threads, or hardly any test needs.
_COLD = re.compile(r"__main__|pytest_plugin|cluster|git_child")
# What functions of ours import when they need it.
_LATE = (
    *("anyio._backends._asyncio", "asyncio", "concurrent.futures.thread", "multiprocessing"),
    *("httpcore", "httpx", "jinja2", "jsonschema", "referencing", "ruamel.yaml", "typer"),
    *("rich.console", "rich.progress", "rich.table", "markdown_it", "vcr", "yaml", "difflib"),
    *("email.utils", "sqlite3", "ssl", "statistics", "uuid", "zoneinfo", "h11", "stringprep"),
    *("encodings.idna", "encodings.punycode", "html", "xml.etree.ElementTree", "csv", "hmac"),
    *("_strptime", "encodings.utf_8_sig", "jinja2.meta", "platformdirs"),
)


_PIPELINE = """\
aish: 1
model: m
models: {m: {base_url: "http://127.0.0.1:9/v1", model: a}}
inputs: {rows: {default: [1, 2]}, said: {type: string, default: hi}}
mcp: {servers: {repo: {pack: fs, root: .}}, auto_approve: [repo__file_read, shell__run]}
limits: {turns: 9}
steps:
  - {id: list, run: [echo, "{{ inputs.said }}"], when: "inputs.said != ''"}
  - {id: each, foreach: inputs.rows, prompt: "{{ item }} {{ steps.list.text | trim }}"}
  - {id: last, prompt: "{% for one in steps.each %}{{ one.text }}{% endfor %}"}
"""


_REHEARSED = """\
aish: 1
model: m
models: {m: {base_url: "%s", model: a}}
steps:
  - {id: first, prompt: hi}
  - {id: last, prompt: "{{ steps.first.text }}"}
"""


class ForkServer:
    """Started by the first `start`; ended by `close`, or with the process that has it."""

    def __init__(self, env: Mapping[str, str], *, syncs: bool = False) -> None:
        self.env = dict(env)
        self._options = ["--syncs"] if syncs else []
        self._lock = threading.Lock()
        self._stack = ExitStack()
        self._channel: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *details: object) -> None:
        self.close()

    def same_interpreter(self, env: Mapping[str, str]) -> bool:
        """Whether a program with this environment starts as the server has."""
        return _starting(env) == _starting(self.env)

    def start(
        self,
        arguments: Sequence[str],
        *,
        cwd: Path,
        env: Mapping[str, str],
        stdin: int = _NULL,
        stdout: int = _NULL,
        stderr: int = _NULL,
        terminal: bool = False,
    ) -> "ForkedProcess":
        """`aish ARGUMENTS` in a session of its own; streams are as `subprocess.Popen` has them.

        The first of the arguments may be the path of a driver of `aish` that is beside this file.
        With `terminal` its standard input becomes the terminal that controls it.
        """
        ours: list[IO[bytes] | None] = []
        with ExitStack() as stack:
            theirs: list[int] = []
            for number, wanted in enumerate((stdin, stdout, stderr)):
                if wanted == subprocess.STDOUT:
                    descriptor, stream = theirs[1], None
                else:
                    descriptor, stream = _stream(wanted, writing=number == 0, stack=stack)
                theirs.append(descriptor)
                ours.append(stream)
            request = {
                "arguments": list(arguments),
                "cwd": str(cwd),
                "env": dict(env),
                "umask": _umask(),
                "terminal": terminal,
            }
            pid = self._ask(json.dumps(request).encode(), theirs)
        return ForkedProcess(pid, *ours)

    def close(self) -> None:
        self._stack.close()
        self._channel = None

    def _ask(self, request: bytes, descriptors: list[int]) -> int:
        with self._lock:
            channel = self._channel or self._started()
            socket.send_fds(channel, [_LENGTH.pack(len(request))], descriptors)
            channel.sendall(request)
            answer = _receive(channel)
        assert answer, f"the fork server has ended\n{self._log()}"
        told = json.loads(answer)
        assert "error" not in told, told["error"]
        return int(told["pid"])

    def _started(self) -> socket.socket:
        ours, theirs = socket.socketpair()
        self._stack.enter_context(ours)
        ours.settimeout(PATIENCE)
        errors = tempfile.TemporaryFile()  # ruff: ignore[open-file-with-context-handler] - closed with the others
        self._errors = self._stack.enter_context(errors)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(theirs.fileno()), *self._options],
                cwd="/",
                env=self.env,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._errors,
                start_new_session=True,
            )
        self._stack.callback(self._end, self._process)
        assert _receive(ours) == b"ready", f"the fork server did not start\n{self._log()}"
        self._channel = ours
        return ours

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        process.kill()
        process.wait(PATIENCE)

    def _log(self) -> str:
        self._errors.seek(0)
        return self._errors.read().decode("utf-8", "replace")


class ForkedProcess:
    """A child of this process, with what tests need of `subprocess.Popen`."""

    def __init__(
        self,
        pid: int,
        stdin: IO[bytes] | None,
        stdout: IO[bytes] | None,
        stderr: IO[bytes] | None,
    ) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self.stdin, self.stdout, self.stderr = stdin, stdout, stderr
        self._lock = threading.Lock()

    def poll(self) -> int | None:
        """How it ended, negative for a signal; `None` while it runs."""
        with self._lock:
            if self.returncode is None:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
                if pid:
                    self.returncode = os.waitstatus_to_exitcode(status)
            return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        until = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            left = None if until is None else until - time.monotonic()
            if left is not None and left <= 0:
                raise subprocess.TimeoutExpired(["aish"], timeout or 0)
            self._wait(left)
        return code

    def send_signal(self, number: int) -> None:
        """Signal it; harmless when it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _wait(self, seconds: float | None) -> None:
        """Until it has ended or so many seconds are over."""
        try:
            descriptor = os.pidfd_open(self.pid)
        except ProcessLookupError:  # waited for by another thread
            return
        try:
            is_ready(descriptor, seconds)
        finally:
            os.close(descriptor)


def _starting(env: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in env.items() if _STARTING.fullmatch(name)}


def _stream(wanted: int, *, writing: bool, stack: ExitStack) -> tuple[int, IO[bytes] | None]:
    """The descriptor that the child gets, and our end of it where it is a pipe."""
    if wanted == _NULL:
        descriptor = os.open(os.devnull, os.O_RDWR)
        stack.callback(os.close, descriptor)
        return descriptor, None
    if wanted != _PIPE:
        return wanted, None
    reading, written = os.pipe()
    theirs, ours = (reading, written) if writing else (written, reading)
    stack.callback(os.close, theirs)
    return theirs, os.fdopen(ours, "wb" if writing else "rb", 0 if writing else -1)


def _umask() -> int:
    told = Path("/proc/self/status").read_text("ascii", "replace")
    found = re.search(r"^Umask:\t(\d+)$", told, re.MULTILINE)
    assert found is not None
    return int(found[1], 8)


def _receive(channel: socket.socket) -> bytes:
    """A message with its length before it; nothing at the end."""
    head = _exactly(channel, _LENGTH.size)
    return _exactly(channel, *_LENGTH.unpack(head)) if head else b""


def _exactly(channel: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = channel.recv(size - len(data))
        if not piece:
            return b""
        data += piece
    return data


def _send(channel: socket.socket, data: bytes) -> None:
    channel.sendall(_LENGTH.pack(len(data)) + data)


# --- The server ---------------------------------------------------------------------------------


def serve(channel: socket.socket) -> None:
    """Fork for each request until the other end is closed; returns in the children only."""
    gc.disable()  # nearly all that is made here stays
    import_all()
    warm_up()
    rehearse()
    threads = list(Path("/proc/self/task").iterdir())
    assert len(threads) == 1, "a process with threads cannot be forked"
    gc.collect()
    gc.freeze()
    gc.enable()
    sys.dont_write_bytecode = True  # of a child with a limit it would be cut short, and stay
    _send(channel, b"ready")
    while True:
        head, descriptors, _, _ = socket.recv_fds(
            channel, _LENGTH.size, 3, socket.MSG_WAITALL | socket.MSG_CMSG_CLOEXEC
        )
        if not head:
            os._exit(0)
        request = json.loads(_exactly(channel, *_LENGTH.unpack(head)))
        if _fork_sibling() == 0:
            become(request, descriptors, channel)
            return
        for descriptor in descriptors:
            os.close(descriptor)


def import_all() -> None:
    """All of `aish`, and what it imports later."""
    import aish

    for module in pkgutil.walk_packages(aish.__path__, "aish."):
        if not _COLD.search(module.name):
            importlib.import_module(module.name)
    for name in _LATE:
        importlib.import_module(name)


def warm_up() -> None:
    """Make once what every run would make anew when it first needs it.

    That is the initializers of value classes, regular expressions, and what reading a pipeline with
    templates leaves in the libraries that do it.
    """
    from aish.cli.commands.validate import problems_of
    from aish.core.patterns import lazy_pattern
    from aish.net.http import tls_context

    lazy = type(lazy_pattern("x"))
    modules = [module for name, module in sys.modules.items() if name.partition(".")[0] == "aish"]
    for value in [value for module in modules for value in vars(module).values()]:
        if isinstance(value, lazy):
            for method in ("fullmatch", "match", "search", "finditer", "sub"):
                getattr(value, method)
        elif isinstance(value, type) and _is_lazy(value.__dict__.get("__init__")):
            with suppress(TypeError):  # no class has as many fields; the initializer is there now
                value(*range(999))
    tls_context(verify=False)
    signal.valid_signals = functools.cache(signal.valid_signals)  # an enum of 64, at each handler
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "pipeline.yaml"
        path.write_text(_PIPELINE, "utf-8")
        found = problems_of(path, ())
    assert not found, found


def rehearse() -> None:
    """Run a pipeline, as most children will: that saves each of them a tenth of its CPU time.

    The interpreter has adapted its code to it then, and what is made when first needed is made. It
    starts no process: that would hide this one and all children from those who look at them.
    """
    before, folder = dict(os.environ), Path.cwd()
    with (
        tempfile.TemporaryDirectory() as home,
        ModelEndpoint([text_reply("hello")] * 2) as endpoint,
    ):
        Path(home, "pipeline.yaml").write_text(_REHEARSED % endpoint.base_url, "utf-8")
        os.environ.update(HOME=home, XDG_RUNTIME_DIR=home)
        os.chdir(home)
        sys.argv = ["aish", "run", "pipeline.yaml"]
        try:
            _run_program()
        except SystemExit as leaving:
            if leaving.code != 0:
                raise
        finally:
            os.chdir(folder)
            os.environ.clear()
            os.environ.update(before)


def _is_lazy(initializer: Any) -> bool:
    """Whether it makes way for another one when it is first called (`aish/core/frozen.py`)."""
    return getattr(initializer, "__qualname__", "") == "_initializer.<locals>.fill"


def _fork_sibling() -> int:
    """`os.fork`, but the child is one of our parent's, who can wait for it and signal it."""
    api: Any = ctypes.pythonapi
    number = _SYS_CLONE[os.uname().machine]
    api.PyOS_BeforeFork()
    pid: int = api.syscall(number, _CLONE_PARENT | signal.SIGCHLD, 0, 0, 0, 0)
    if pid == 0:
        api.PyOS_AfterFork_Child()
    else:
        api.PyOS_AfterFork_Parent()
        if pid < 0:
            raise OSError("the kernel does not clone")
    return pid


def become(request: Mapping[str, Any], descriptors: Sequence[int], channel: socket.socket) -> None:
    """Be the process that was asked for; whoever asked is told once it can be signalled."""
    try:
        _settle(request, descriptors)
    except Exception as error:  # the test is told
        _send(channel, json.dumps({"error": repr(error)}).encode())
        os._exit(255)
    _send(channel, json.dumps({"pid": os.getpid()}).encode())
    channel.close()


def _settle(request: Mapping[str, Any], descriptors: Sequence[int]) -> None:
    os.setsid()
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
        os.close(descriptor)
    if request["terminal"]:
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    os.umask(request["umask"])
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    time.tzset()
    random.seed()
    _renew_streams()
    sys.path.insert(0, str(Path.cwd()))
    sys.argv = ["aish", *request["arguments"]]


def _renew_streams() -> None:
    """Standard streams as an interpreter makes them, on descriptors that are others now."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        before: TextIO = getattr(sys, name)
        binary: Any = os.fdopen(number, "wb" if number else "rb", closefd=False)
        binary.raw.name = f"<{name}>"
        text: Any = io.TextIOWrapper(
            binary,
            encoding=before.encoding,
            errors=before.errors,
            newline="\n",
            line_buffering=name == "stderr" or (name == "stdout" and binary.isatty()),
        )
        text.mode = "w" if number else "r"
        setattr(sys, name, text)
        setattr(sys, f"__{name}__", text)


def leave(codes: list[int]) -> None:
    """End at once with the code that was meant, after all other functions of `atexit`.

    What an interpreter does after that is to take apart every module, which costs more than most
    runs here. Where something cannot be written any more, or no code was meant, it does.
    """
    if codes:
        with suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(codes[0])


def _run_program() -> None:
    if sys.argv[1:] and Path(sys.argv[1]).parent == Path(__file__).parent:  # a driver
        sys.path.insert(0, str(Path(__file__).parent))
        del sys.argv[0]
        runpy.run_path(sys.argv[0], run_name="__main__")
    else:
        runpy.run_module("aish", run_name="__main__", alter_sys=True)


def main() -> None:
    codes: list[int] = []
    atexit.register(leave, codes)
    del sys.path[0]  # where this file is
    if "--syncs" not in sys.argv:
        quick_syncs.install()
    serve(socket.socket(fileno=int(sys.argv[1])))
    kill_points.arm(os.environ)
    try:
        _run_program()
    except SystemExit as leaving:
        if isinstance(leaving.code, int):
            codes.append(leaving.code)
        raise
    codes.append(0)


if __name__ == "__main__":
    main()
