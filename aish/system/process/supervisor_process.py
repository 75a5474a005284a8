"""The supervisor's processes: start commands and end everything that they started.

Run as a script by `python -I -S`, with a socket as its standard input; it imports the standard
library only. The first process, warm, gets one byte and five descriptors for each command and forks
a guard: control socket, standard streams, working folder. The guard is a subreaper: whatever a
command starts stays below it, `setsid` and double forks included, so that it can be ended. The end
of its control socket, which only the run holds, ends the command too. If a guard is killed, what it
guarded falls to the first process, which ends it.

A request is its length in four bytes and JSON: `argv`, `env`, `wrapped` (the command is a sandbox's
own process, which gets no SIGTERM), with Landlock `write` and `read`, the paths that may be used,
with `seccomp` a filter of system calls in Base64, `sockets` to open in the network namespace of
bubblewrap, and `given`, paths with the device and inode that they must have. The guard says
`sockets`, with their descriptors, then `pid N`, or `error N` or `network WHY` (nothing was started;
an errno, or words), and `exit N` when the command ends (negative for a signal); the end of the
socket says that nothing of it is left. It takes `t` (SIGTERM to all) and `k` (SIGKILL to all, and
finish).

With `--portable`, where Linux's calls are not to be used, there is no subreaper: what left the
command is found by the mark in its environment, of which `ps` tells.
"""

import binascii
import contextlib
import ctypes
import errno
import json
import os
import resource
import select
import signal
import socket
import struct
import sys
import time

TYPE_CHECKING = False  # `typing` is too much to import
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NoReturn

GRACE = 1.0
"""Seconds between SIGTERM and SIGKILL where nobody says otherwise: the run has ended."""
_GIVE_UP = 5.0
_PREPARED_WITHIN = 10.0
_MOUNTING = 0.001
_PRIVATE_HOME = "/aish-home"  # `PRIVATE_HOME` of the sandbox, which this script cannot import
_POLL_SECONDS = 0.01
_PASSES = 50
_SUBREAPER = 36
_NO_NEW_PRIVILEGES = 38
_SECCOMP, _FILTER = 22, 2
_INSTRUCTION_BYTES = 8
_DESCRIPTORS = 5
_MARK = "AISH_PROCESS_MARK"  # `MARK` of `reaper_process`, which this script cannot import
_MARKS: list[bytes] = []
"""In a guard: what the environment of its command and of all below it has."""
_MARKED = -1
"""In the place of a parent: the processes that have the mark."""
_PORTABLE = __name__ == "__main__" and sys.argv[1:] == ["--portable"]
_FIRST_MS, _LAST_MS = 25, 1000


def main() -> None:
    """Fork a guard for each message, until the run has gone and the guards with it."""
    if _is_portable():
        _import_process_table()
    os.closerange(3, 65536)
    os.chdir("/")
    # It imports a module, which may be out of sight once a command is confined.
    os.get_exec_path()
    library = ctypes.CDLL(None, use_errno=True)
    _become_subreaper(library)
    wakeup = _woken_by_children()
    requests = socket.socket(fileno=0)
    guards: set[int] = set()
    poll = select.poll()
    poll.register(0, select.POLLIN)
    poll.register(wakeup, select.POLLIN)
    while True:
        ready = {descriptor for descriptor, _ in poll.poll()}
        if wakeup in ready:
            _drain(wakeup)
            _adopt(guards, wakeup)
        if 0 not in ready:
            continue
        message, descriptors, _, _ = socket.recv_fds(requests, 1, _DESCRIPTORS)
        if not message:
            break
        with contextlib.suppress(OSError):  # no more processes: the run sees the control socket end
            guard = os.fork()
            if guard == 0:
                code = 1
                try:
                    code = _guard(descriptors, library)
                finally:
                    os._exit(code)
            guards.add(guard)
        for descriptor in descriptors:
            os.close(descriptor)
    deadline = time.monotonic() + GRACE + _GIVE_UP
    while guards and time.monotonic() < deadline:
        _adopt(guards, wakeup)
        if guards:
            select.select([wakeup], [], [], 0.1)
            _drain(wakeup)
    _adopt(guards, wakeup)


def _adopt(guards: set[int], wakeup: int) -> None:
    """Reap what has ended; if a guard was killed, end what it guarded."""
    orphaned = False
    for pid, status in _reap_children():
        if pid in guards:
            guards.discard(pid)
            orphaned = orphaned or status != 0
        else:
            orphaned = True
    if orphaned:
        _end_all(guards, wakeup)


def _guard(descriptors: list[int], library: ctypes.CDLL) -> int:
    control_number, stdin, stdout, stderr, folder = descriptors
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)  # the socket of the first process
    os.close(null)
    _become_subreaper(library)
    control = socket.socket(fileno=control_number)
    request = _receive_request(control)
    if request is None:
        return 0
    if mark := request["env"].get(_MARK):
        _MARKS.append(f"{_MARK}={mark}\0".encode())
    wakeup = _woken_by_children()
    failed, failing = os.pipe()
    pipes = _pipes_of_bubblewrap(request)
    command = os.fork()
    if command == 0:
        _run((stdin, stdout, stderr, folder, failing), pipes[2:], request, library)
    for descriptor in (stdin, stdout, stderr, folder, failing, *pipes[2:]):
        os.close(descriptor)
    problem = os.read(failed, 20)
    os.close(failed)
    if problem:
        os.waitpid(command, 0)
        _say(control, b"error %s\n" % problem)
        return 0
    if pipes and not _let_run(control, pipes[:2], request, library):
        # Its pipe stays open until then: its end would let the command run.
        _end_all(set(), wakeup)
        return 0
    _say(control, b"pid %d\n" % command)
    _watch(control, command, wakeup, {command} if request["wrapped"] else set())
    return 0


def _pipes_of_bubblewrap(request: "dict[str, Any]") -> "tuple[int, ...]":
    """Pipes by which it tells its child, and waits before the command runs: our ends, then its.

    There are none if it need not wait.
    """
    if not request["wrapped"] or not request.keys() & {"sockets", "given"}:
        return ()
    (told, telling), (waiting, going) = os.pipe(), os.pipe()
    request["argv"][1:1] = ["--info-fd", str(telling), "--block-fd", str(waiting)]
    return told, going, telling, waiting


def _let_run(
    control: socket.socket,
    pipes: "tuple[int, ...]",
    request: "dict[str, Any]",
    library: ctypes.CDLL,
) -> bool:
    """Check and complete the sandbox that bubblewrap has made; false if nothing may run in it."""
    info, going = pipes
    if "sockets" in request:
        # While bubblewrap mounts, and behind the folders of the standard library.
        sys.path.append(os.path.abspath(f"{__file__}/../../../.."))  # ruff: ignore[os-path-abspath] - pathlib is too much to import
        with contextlib.suppress(ImportError):  # said by the process that needs it
            __import__("aish.system.process.namespace_sockets")
    child = _child_of_bubblewrap(info)
    if not child:
        if "sockets" in request:
            _say(control, b"network bubblewrap ended before its network was prepared\n")
            return False
    elif not _sees(child, request.get("given", {})):
        _say(control, b"error %d\n" % errno.ESTALE)
        return False
    if "sockets" in request and not _pass_sockets(control, child, request["sockets"], library):
        return False
    with contextlib.suppress(OSError):  # bubblewrap has ended: its exit code says more
        os.write(going, b"+")
    os.close(info)
    os.close(going)
    return True


def _child_of_bubblewrap(info: int) -> int:
    """The process whose namespaces bubblewrap has made, as it says; 0 if it has ended."""
    text = b""
    while select.select([info], [], [], _PREPARED_WITHIN)[0] and (piece := os.read(info, 4096)):
        text += piece
        if text.rstrip().endswith(b"}"):
            return int(json.loads(text)["child-pid"])
    return 0


def _sees(child: int, given: "dict[str, list[int]]") -> bool:
    """Return true if a sandbox shows the very files and folders that were given.

    A link that was put in the way of bubblewrap would have shown others.
    """
    deadline = time.monotonic() + _PREPARED_WITHIN
    while given and time.monotonic() < deadline:
        # It is the root once everything is mounted.
        if not os.path.exists(f"/proc/{child}/root{_PRIVATE_HOME}"):  # ruff: ignore[os-path-exists] - pathlib is too much to import
            if not os.path.exists(f"/proc/{child}"):  # ruff: ignore[os-path-exists] - the same
                return True  # nothing runs: its exit code says more
            time.sleep(_MOUNTING)
            continue
        with contextlib.suppress(OSError):
            return all(
                [status.st_dev, status.st_ino] == identity
                for path, identity in given.items()
                for status in (os.stat(f"/proc/{child}/root{path}"),)  # ruff: ignore[os-stat] - the same
            )
        return False
    return not given


def _pass_sockets(
    control: socket.socket, child: int, wanted: "list[Any]", library: ctypes.CDLL
) -> bool:
    """Let a process open sockets in the sandbox's network namespace, and pass them to the run."""
    helper = os.fork()
    if helper == 0:
        code = 1
        try:
            from aish.system.process.namespace_sockets import open_sockets

            opened = open_sockets(child, wanted, library)
            socket.send_fds(control, [b"sockets\n"], [one.fileno() for one in opened])
            code = 0
        except (OSError, ValueError, KeyError) as error:
            _say(control, b"network %s\n" % str(getattr(error, "strerror", error)).encode())
        finally:
            os._exit(code)
    return os.waitpid(helper, 0)[1] == 0


def _watch(control: socket.socket, command: int, wakeup: int, wrapper: set[int]) -> None:
    """Report the end of the command, and end what it leaves when told to."""
    poll = select.poll()
    poll.register(control, select.POLLIN)
    poll.register(wakeup, select.POLLIN)
    left_ms, is_over = None, False
    while True:
        ready = {descriptor for descriptor, _ in poll.poll(left_ms)}
        if wakeup in ready or not ready:
            _drain(wakeup)
            is_over = _report(control, command) or is_over
            if (is_over or not _is_portable()) and not _has_children():
                return
            if is_over and _is_portable():
                left_ms = _look_again(poll, wakeup, left_ms)
        if control.fileno() not in ready:
            continue
        byte = b""
        with contextlib.suppress(OSError):
            byte = control.recv(1)
        if not byte:
            _terminate(wrapper)
            _wait_for_all(GRACE, wakeup)
        if byte in {b"", b"k"}:
            _end_all(set(), wakeup, lambda: _report(control, command))
            return
        _terminate(wrapper)


def _look_again(poll: select.poll, wakeup: int, before: "int | None") -> int:
    """Return the time until it is looked again what is left, in the portable form.

    What is left need not be a child, and the one that looks is: no signal tells anything.
    """
    if before is None:
        poll.unregister(wakeup)
    return min(2 * (before or _FIRST_MS), _LAST_MS)


def _report(control: socket.socket, command: int) -> bool:
    """Tell of the end of the command, if it has just ended, and return true then."""
    ended = [status for pid, status in _reap_children() if pid == command]
    for status in ended:
        _say(control, b"exit %d\n" % os.waitstatus_to_exitcode(status))
    return bool(ended)


def _wait_for_all(seconds: float, wakeup: int) -> None:
    deadline = time.monotonic() + seconds
    while _has_children() and (left := deadline - time.monotonic()) > 0:
        select.select([wakeup], [], [], left)
        _drain(wakeup)
        for _ in _reap_children():
            pass


def _terminate(spared: set[int]) -> None:
    # A parent that heard of its child's end first could end before it gets its own signal.
    for pid in _descendants():
        if pid not in spared:
            _send(pid, signal.SIGTERM)
            _send(pid, signal.SIGCONT)


def _end_all(spared: set[int], wakeup: int, reap: "Callable[[], object] | None" = None) -> None:
    """Kill all descendants but `spared` and what is below them.

    They are stopped first, until no new one appears: nothing forks away meanwhile.
    """
    deadline = time.monotonic() + _GIVE_UP
    report = _reap_children if reap is None else reap
    while time.monotonic() < deadline:
        report()
        if not spared and not _has_children():
            return
        pids: set[int] = set()
        for _ in range(_PASSES):
            more = set(_descendants(spared)) - pids
            if not more:
                break
            for pid in more:
                _send(pid, signal.SIGSTOP)
            pids |= more
        if not pids and spared:
            return
        for pid in pids:
            _send(pid, signal.SIGKILL)
        report()
        if _has_children() or spared:
            select.select([wakeup], [], [], _POLL_SECONDS)
            _drain(wakeup)


def _descendants(spared: "set[int] | frozenset[int]" = frozenset()) -> list[int]:
    """All processes below this one, parents first, without `spared` and those below them."""
    children = _children()
    pids: dict[int, None] = {}
    waiting = [os.getpid()]
    if _MARKS and _is_portable():
        children[os.getpid()] = [*children.get(os.getpid(), ()), *children.get(_MARKED, ())]
    while waiting:
        for child in children.get(waiting.pop(), ()):
            if child not in spared and child not in pids:
                pids[child] = None
                waiting.append(child)
    return list(pids)


def _children() -> dict[int, list[int]]:
    """The children of each process of the machine."""
    children: dict[int, list[int]] = {}
    if _is_portable():
        for pid, (parent, line) in _import_process_table().read_processes().items():
            children.setdefault(parent, []).append(pid)
            if any(mark[:-1] + b" " in line + b" " for mark in _MARKS):
                children.setdefault(_MARKED, []).append(pid)
        return children
    try:
        entries = os.listdir("/proc")  # ruff: ignore[os-listdir] - pathlib is too much to import
    except OSError:
        return children
    for entry in entries:
        if entry.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError):
                descriptor = os.open(f"/proc/{entry}/stat", os.O_RDONLY)
                try:
                    parent = int(os.read(descriptor, 512).rpartition(b")")[2].split()[1])
                finally:
                    os.close(descriptor)
                children.setdefault(parent, []).append(int(entry))
    return children


def _reap_children() -> "list[tuple[int, int]]":
    """The children that have ended, with their status."""
    statuses = []
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            statuses.append((pid, status))
    return statuses


def _has_children() -> bool:
    if sys.platform != "linux" or _is_portable():
        return bool(_descendants())
    else:  # ruff: ignore[superfluous-else-return] - the type checker leaves it out elsewhere
        try:
            os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return False
        return True


def _is_portable() -> bool:
    """The same as `is_portable` of `aish.system.platform.forms`."""
    return sys.platform != "linux" or _PORTABLE


def _import_process_table() -> "Any":
    """The module that runs `ps`, which lies behind the folders of the standard library."""
    root = os.path.abspath(f"{__file__}/../../../..")  # ruff: ignore[os-path-abspath] - pathlib is too much to import
    if root not in sys.path:
        sys.path.append(root)
    from aish.system.platform import process_table

    return process_table


def _send(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def _say(control: socket.socket, line: bytes) -> None:
    """Tell the run; it may have gone."""
    with contextlib.suppress(OSError):
        control.sendall(line)


def _receive_request(control: socket.socket) -> "dict[str, Any] | None":
    head = _exactly(control, 4)
    body = _exactly(control, struct.unpack("!I", head)[0]) if head else None
    return None if body is None else json.loads(body)


def _exactly(control: socket.socket, size: int) -> "bytes | None":
    data = bytearray()
    while len(data) < size:
        chunk = control.recv(size - len(data))
        if not chunk:
            return None
        data += chunk
    return bytes(data)


def _run(
    descriptors: "tuple[int, int, int, int, int]",
    kept: "tuple[int, ...]",
    request: "dict[str, Any]",
    library: ctypes.CDLL,
) -> "NoReturn":
    """Become the command."""
    *streams, folder, failing = descriptors
    reporting = failing
    try:
        reporting = _prepare(streams, folder, failing, kept)
        _confine(library, request)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        os.execvpe(request["argv"][0], request["argv"], request["env"])  # ruff: ignore[start-process-with-no-shell] - that is the purpose
    except OSError as error:
        os.write(reporting, b"%d" % (error.errno or errno.EIO))
    finally:
        os._exit(127)


def _confine(library: ctypes.CDLL, request: "dict[str, Any]") -> None:
    """Put the limits of a request in force, for this process and all that it starts."""
    program = binascii.a2b_base64(request.get("seccomp", ""))
    if "write" in request:
        kept = 0 if program else _KEPT_CAPABILITIES
        _restrict(library, request["write"], request["read"], kept, request.get("given", {}))
    elif program:
        _scope_abstract_sockets(library)
    if program:
        # A limit of 0 does not keep a core from a program that the system pipes it to.
        resource.setrlimit(resource.RLIMIT_CORE, (1, 1))
        _filter_calls(library, program)


def _prepare(streams: "list[int]", folder: int, failing: int, kept: "tuple[int, ...]") -> int:
    """Leave the guard's session, folder and descriptors; returns where a failure is reported."""
    os.setsid()
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGCHLD, signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    os.fchdir(folder)
    for place, descriptor in enumerate(streams):
        os.dup2(descriptor, place)
    reporting = os.dup2(failing, 3, inheritable=False)
    first = 4
    for descriptor in sorted(kept):
        os.set_inheritable(descriptor, True)
        os.closerange(first, descriptor)
        first = descriptor + 1
    os.closerange(first, 65536)
    return reporting


# Landlock: https://docs.kernel.org/userspace-api/landlock.html
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = map(ctypes.c_long, (444, 445, 446))
_OF_FILES = (1 << 0) | (1 << 1) | (1 << 2) | (1 << 14) | (1 << 15)
_READING = (1 << 0) | (1 << 2) | (1 << 3)
_ABSTRACT_SOCKETS, _SIGNALS = 1 << 0, 1 << 1
_SCOPES = _ABSTRACT_SOCKETS | _SIGNALS
_VERSION_3, _VERSION_5, _VERSION_6 = 3, 5, 6
# CAP_CHOWN, CAP_DAC_OVERRIDE, CAP_FOWNER: as in bubblewrap, without which root could not write in a
# folder of another user.
_KEPT_CAPABILITIES = (1 << 0) | (1 << 1) | (1 << 3)
_CAPABILITIES_VERSION_3 = 0x20080522


def landlock_version(library: ctypes.CDLL) -> int:
    """The version of Landlock in this kernel, 0 if it has none or it is off."""
    version: int = library.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(1))
    return max(version, 0)


def _restrict(
    library: ctypes.CDLL,
    write: "list[str]",
    read: "list[str]",
    capabilities: int = _KEPT_CAPABILITIES,
    given: "dict[str, list[int]] | None" = None,
) -> None:
    """Allow this process and its children to write below some paths, and to read below others.

    Version 3 of Landlock is the first that covers truncation. Abstract sockets and signals do not
    reach out from version 6 on. The environment and memory of processes outside cannot be read, by
    root neither: Landlock allows no `ptrace` of them, and what root could do without is dropped.
    """
    version = landlock_version(library)
    if version < _VERSION_3:
        raise OSError(errno.ENOSYS, "Landlock is too old")
    handled = (1 << (16 if version >= _VERSION_5 else 15)) - 1
    attributes = struct.pack("=QQQ", handled, 0, _SCOPES if version >= _VERSION_6 else 0)
    # An older kernel takes the fields that it knows, the others are 0.
    ruleset = library.syscall(
        _CREATE_RULESET, attributes, ctypes.c_size_t(len(attributes)), ctypes.c_uint32(0)
    )
    _check(ruleset)
    for paths, rights in ((write, handled), (read, _READING & handled)):
        for path in paths:
            _allow(library, ruleset, path, rights, (given or {}).get(path))
    _forbid_privileges(library)
    _drop_capabilities(library, capabilities)
    _check(library.syscall(_RESTRICT_SELF, ctypes.c_int(ruleset), ctypes.c_uint32(0)))
    os.close(ruleset)


def _scope_abstract_sockets(library: ctypes.CDLL) -> None:
    """Let this process and its children reach no abstract socket of others.

    Where the network is the machine's, no namespace does it. A kernel before version 6 cannot.
    """
    if landlock_version(library) < _VERSION_6:
        return
    attributes = struct.pack("=QQQ", 0, 0, _ABSTRACT_SOCKETS)
    ruleset = library.syscall(
        _CREATE_RULESET, attributes, ctypes.c_size_t(len(attributes)), ctypes.c_uint32(0)
    )
    _check(ruleset)
    _forbid_privileges(library)
    _check(library.syscall(_RESTRICT_SELF, ctypes.c_int(ruleset), ctypes.c_uint32(0)))
    os.close(ruleset)


def _filter_calls(library: ctypes.CDLL, program: bytes) -> None:
    """Put a filter of system calls in force, for this process and all that it starts."""
    _forbid_privileges(library)
    code = ctypes.create_string_buffer(program, len(program))
    count = len(program) // _INSTRUCTION_BYTES
    header = struct.pack("@HP", count, ctypes.addressof(code))
    words = (ctypes.c_ulong(_FILTER), header, ctypes.c_ulong(0), ctypes.c_ulong(0))
    _check(library.prctl(_SECCOMP, *words))


def _forbid_privileges(library: ctypes.CDLL) -> None:
    _check(library.prctl(_NO_NEW_PRIVILEGES, *map(ctypes.c_ulong, (1, 0, 0, 0))))


def _drop_capabilities(library: ctypes.CDLL, kept: int) -> None:
    """Keep what writes files, if that; without new privileges no program gets the others back.

    Root could otherwise make a device beneath the root and reach the disk with it, for instance.
    """
    head = struct.pack("=Ii", _CAPABILITIES_VERSION_3, 0)
    data = ctypes.create_string_buffer(24)
    _check(library.capget(head, data))
    # Effective, permitted and inheritable ones, the lower 32 first.
    effective, permitted, *_ = struct.unpack("=6I", data.raw)
    sets = (effective & kept, permitted & kept, 0, 0, 0, 0)
    _check(library.capset(head, struct.pack("=6I", *sets)))


def _allow(
    library: ctypes.CDLL, ruleset: int, path: str, rights: int, identity: "list[int] | None"
) -> None:
    """Allow `rights` below a path, which may have to be a certain one.

    One that is not there needs none.
    """
    try:
        descriptor = os.open(path, getattr(os, "O_PATH", 0) | os.O_CLOEXEC)
    except OSError:
        return
    status = os.fstat(descriptor)
    if identity is not None and [status.st_dev, status.st_ino] != identity:
        raise OSError(errno.ESTALE, path)
    if not os.path.isdir(path):  # ruff: ignore[os-path-isdir] - pathlib is too much to import
        rights &= _OF_FILES
    rule = struct.pack("=Qi", rights, descriptor)
    _check(library.syscall(_ADD_RULE, ctypes.c_int(ruleset), 1, rule, ctypes.c_uint32(0)))
    os.close(descriptor)


def _check(result: int) -> None:
    if result < 0:
        raise OSError(ctypes.get_errno(), "the kernel refused it")


def _become_subreaper(library: ctypes.CDLL) -> None:
    if not _is_portable():
        library.prctl(_SUBREAPER, *map(ctypes.c_ulong, (1, 0, 0, 0)))


def _woken_by_children() -> int:
    """A pipe that is readable when a child has ended."""
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    return reading


def _drain(wakeup: int) -> None:
    with contextlib.suppress(BlockingIOError):
        while os.read(wakeup, 4096):
            pass


def _try_landlock() -> None:
    """Restrict this process and see that it is; says on stderr why that does not work."""
    library = ctypes.CDLL(None, use_errno=True)
    version = landlock_version(library)
    if version == 0:
        sys.exit("the kernel does not have it, or it is off")
    if version < _VERSION_3:
        sys.exit(f"version {version} does not cover truncation: Linux 6.2 is needed")
    try:
        _restrict(library, [], ["/usr"])
    except OSError as error:
        sys.exit(f"the kernel refuses it: {error}")
    with contextlib.suppress(PermissionError):
        os.close(os.open("/", os.O_RDONLY))
        sys.exit("it restricts nothing")


def _try_filter(program: str) -> None:
    """Put a filter without sockets in force and see that it is; says on stderr if it is not."""
    try:
        _filter_calls(ctypes.CDLL(None, use_errno=True), binascii.a2b_base64(program))
    except OSError as error:
        sys.exit(f"the kernel refuses it: {error}")
    with contextlib.suppress(PermissionError):
        socket.socket().close()
        sys.exit("it restricts nothing")


def _try_sockets(words: "list[str]") -> None:
    """Open a socket in the network namespace of a sandbox; says on stderr why it does not work."""
    library = ctypes.CDLL(None, use_errno=True)
    ours, theirs = socket.socketpair()
    streams = [os.open(os.devnull, os.O_RDWR) for _ in range(3)]
    guard = os.fork()
    if guard == 0:
        try:
            ours.close()
            _guard([theirs.detach(), *streams, os.open("/", os.O_RDONLY)], library)
        finally:
            os._exit(0)
    theirs.close()
    request = {"argv": words, "env": {"PATH": os.defpath}, "wrapped": True}
    body = json.dumps({**request, "sockets": [("tcp", "127.0.0.1", 1)]}).encode()
    ours.sendall(struct.pack("!I", len(body)) + body)
    answer = b"".join(iter(lambda: ours.recv(4096), b""))
    os.waitpid(guard, 0)
    if not answer.startswith(b"sockets\n"):
        sys.exit(answer.removeprefix(b"network ").decode("utf-8", "replace").strip())


if __name__ == "__main__":
    if sys.argv[1:] == ["--try-landlock"]:
        _try_landlock()
    elif sys.argv[1:2] == ["--try-filter"]:
        _try_filter(sys.argv[2])
    elif sys.argv[1:2] == ["--try-sockets"]:
        _try_sockets(sys.argv[2:])
    else:
        main()
