"""A small MCP server over stdio that says what it may do where it runs.

    python mcp_probe_server.py

`try {names, ...}` tries ways out of a sandbox, each harmless, and answers with an object: `null`
for each that worked, else why it did not. `read {path}` and `write {path, text}` are single files,
`fetch {host, port}` is what that answers to a request by HTTP.
`about {}` is what the server sees of itself. `fail {}` is a failed call, `refuse {}` an error of
the protocol, `hang {}` never answers, `die {}` ends the process; `leave {name}` leaves a process
behind, and `steal {folders}` looks for canaries. It imports the standard library only, and stands
alone: a sandbox shows it no other file of the tests.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import json
import os
import re
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

LIBC = ctypes.CDLL(None, use_errno=True)
ANYTHING = {"type": "object"}
TOOLS = (
    *("try", "read", "write", "fetch", "about", "fail", "refuse", "hang", "die", "leave", "steal"),
)
CALLS = {
    "x86_64": {"io_uring_setup": 425, "keyctl": 250, "memfd": 319, "add_key": 248},
    "aarch64": {"io_uring_setup": 425, "keyctl": 219, "memfd": 279, "add_key": 217},
}[os.uname().machine]
X32_GETPID = 0x40000000 + 39
PRIVATE = 1 << 18
INHERITED = [number for number in range(3, 1024) if Path(f"/proc/self/fd/{number}").is_symlink()]
"""What was open in the program that started it."""
CLONE = {"user": 0x10000000, "mount": 0x00020000, "net": 0x40000000, "pid": 0x20000000}


def check(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def syscall(number: int, *arguments: Any) -> int:
    return check(LIBC.syscall(ctypes.c_long(number), *arguments))


def in_child(action: Callable[[], None]) -> None:
    """Do it in a child, which may change itself; its failure is ours."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 0
        try:
            action()
        except OSError as error:
            code = error.errno or errno.EIO
        except BaseException:
            code = errno.EIO
        os.write(writing, b"%d" % code)
        os._exit(0)
    os.close(writing)
    code = int(os.read(reading, 20) or b"5")
    os.close(reading)
    os.waitpid(pid, 0)
    if code:
        raise OSError(code, os.strerror(code))


def connect_abstract(told: dict[str, Any]) -> None:
    with socket.socket(socket.AF_UNIX) as peer:
        peer.connect("\0" + told["abstract"])


def connect_path(told: dict[str, Any]) -> None:
    with socket.socket(socket.AF_UNIX) as peer:
        peer.connect(told["socket"])


def send_datagram_of_pair(told: dict[str, Any]) -> None:
    one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with one, other:
        one.sendto(b"out", told["datagrams"])


def connect_tcp(told: dict[str, Any]) -> None:
    socket.create_connection(("127.0.0.1", told["port"]), 5).close()


def send_udp(told: dict[str, Any]) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as peer:
        peer.connect(("127.0.0.1", told["port"]))
        peer.send(b"out")
        peer.settimeout(1)
        if not peer.recv(10):  # nobody is reached
            raise OSError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))


def make_raw(_: dict[str, Any]) -> None:
    socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP).close()


def make_packet(_: dict[str, Any]) -> None:
    socket.socket(socket.AF_PACKET, socket.SOCK_RAW).close()


def make_netlink(_: dict[str, Any]) -> None:
    audit = 9
    socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, audit).close()


def make_vsock(_: dict[str, Any]) -> None:
    socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM).close()


def make_ring(_: dict[str, Any]) -> None:
    syscall(CALLS["io_uring_setup"], ctypes.c_uint(1), ctypes.create_string_buffer(120))


def call_x32(_: dict[str, Any]) -> None:
    syscall(X32_GETPID)


def read_keys(_: dict[str, Any]) -> None:
    get_id, session = ctypes.c_long(0), ctypes.c_long(-3)
    syscall(CALLS["keyctl"], get_id, session, ctypes.c_long(1))


def push_input(_: dict[str, Any]) -> None:
    fcntl.ioctl(os.open("/dev/tty", os.O_RDWR), 0x5412, b"x")


def push_input_of_pty(_: dict[str, Any]) -> None:
    """Into a terminal of its own: what a filter refuses, whoever has the terminal."""
    ours, theirs = os.openpty()
    os.close(ours)
    fcntl.ioctl(theirs, 0x5412, b"x")


def trace(told: dict[str, Any]) -> None:
    attach = 16
    check(LIBC.ptrace(attach, told["pid"], None, None))


def read_root_of(told: dict[str, Any]) -> None:
    next(Path(f"/proc/{told['pid']}/root/").iterdir())


def read_environment_of(told: dict[str, Any]) -> None:
    Path(f"/proc/{told['pid']}/environ").read_bytes()


def read_words_of(told: dict[str, Any]) -> None:
    Path(f"/proc/{told['pid']}/cmdline").read_bytes()


def kill_other(told: dict[str, Any]) -> None:
    os.kill(told["pid"], 0)


def mount(_: dict[str, Any]) -> None:
    target = os.environ["HOME"].encode()
    check(LIBC.mount(b"none", target, b"tmpfs", 0, None))


def unmount_hidden(told: dict[str, Any]) -> None:
    """Take away in namespaces of its own what hides a file."""

    def act() -> None:
        check(LIBC.unshare(CLONE["user"] | CLONE["mount"]))
        check(LIBC.mount(None, b"/", None, PRIVATE | 0x4000, None))
        check(LIBC.umount2(os.fsencode(told["hidden"]), 2))
        if not Path(told["hidden"]).read_bytes():
            raise OSError(errno.EACCES, "it is still empty")

    in_child(act)


def remount_root(_: dict[str, Any]) -> None:
    """Make the system's folders writable in namespaces of its own."""

    def act() -> None:
        check(LIBC.unshare(CLONE["user"] | CLONE["mount"]))
        remount_bind = 0x20 | 0x1000
        check(LIBC.mount(None, b"/usr", None, remount_bind, None))
        Path("/usr/probe").write_text("in", "utf-8")

    in_child(act)


def enter_namespace(told: dict[str, Any]) -> None:
    with Path(f"/proc/{told['pid']}/ns/net").open("rb") as namespace:
        check(LIBC.setns(namespace.fileno(), 0))


def become_root(_: dict[str, Any]) -> None:
    def act() -> None:
        # A program that changes the user, for whoever starts it.
        done = subprocess.run(
            ["su", "nobody", "-s", "/bin/sh", "-c", "id -u"], capture_output=True, check=False
        )
        if done.returncode:
            raise OSError(errno.EPERM, done.stderr.decode("utf-8", "replace"))

    in_child(act)


def set_user(_: dict[str, Any]) -> None:
    in_child(lambda: os.setuid(12345))


def make_device(_: dict[str, Any]) -> None:
    os.mknod(f"{os.environ['HOME']}/disk", 0o60600, os.makedev(254, 0))


def write_system(_: dict[str, Any]) -> None:
    Path("/usr/probe").write_text("in", "utf-8")


def write_sysctl(_: dict[str, Any]) -> None:
    Path("/proc/sys/kernel/hostname").write_text("probe", "utf-8")


def change_folder_above(told: dict[str, Any]) -> None:
    """Swap a folder that it was given by a link to another one."""
    given = Path(told["given"])
    given.rename(given.with_name("moved"))
    given.symlink_to(told["outside"])


def use_descriptor(_: dict[str, Any]) -> None:
    if not INHERITED:
        raise OSError(errno.EBADF, "there are none")


def write_core(_: dict[str, Any]) -> None:
    if resource.getrlimit(resource.RLIMIT_CORE)[0] <= 1:
        raise OSError(errno.EPERM, "cores are not written")


def regain(_: dict[str, Any]) -> None:
    status = Path("/proc/self/status").read_text("utf-8")
    sets = [line.split()[1] for line in status.splitlines() if line.startswith("Cap")]
    if not any(int(one, 16) for one in sets[1:3]) and "NoNewPrivs:\t1" in status:
        raise OSError(errno.EPERM, "it has no capabilities, and gets none")


WAYS: dict[str, Callable[[dict[str, Any]], None]] = {
    "abstract socket": connect_abstract,
    "socket of a path": connect_path,
    "datagrams of a pair": send_datagram_of_pair,
    "tcp": connect_tcp,
    "udp": send_udp,
    "raw": make_raw,
    "packet": make_packet,
    "netlink": make_netlink,
    "vsock": make_vsock,
    "io_uring": make_ring,
    "x32": call_x32,
    "keys": read_keys,
    "terminal": push_input,
    "own terminal": push_input_of_pty,
    "ptrace": trace,
    "root of a process": read_root_of,
    "environment of a process": read_environment_of,
    "words of a process": read_words_of,
    "signal": kill_other,
    "mount": mount,
    "unmount": unmount_hidden,
    "remount": remount_root,
    "namespace": enter_namespace,
    "setuid program": become_root,
    "setuid": set_user,
    "device": make_device,
    "system folder": write_system,
    "sysctl": write_sysctl,
    "swap": change_folder_above,
    "descriptor": use_descriptor,
    "core": write_core,
    "capabilities": regain,
}


def try_ways(told: dict[str, Any]) -> dict[str, str | None]:
    results: dict[str, str | None] = {}
    for name in told["names"]:
        try:
            WAYS[name](told)
        except (OSError, KeyError) as error:
            results[name] = str(error)
        else:
            results[name] = None
    return results


def processes() -> list[Path]:
    try:
        return [entry for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    except OSError:  # then those that are guessed
        return [Path("/proc/self"), *(Path(f"/proc/{number}") for number in range(1, 32768))]


def steal(told: dict[str, Any]) -> dict[str, list[str]]:
    """Look for canaries in all that can be read: processes, and files below some folders."""
    pattern = re.compile(rb"canary-[0-9]+-[0-9a-f]+")
    found: dict[str, set[bytes]] = {"processes": set(), "files": set()}
    for entry in processes():
        for name in ("environ", "cmdline", "maps", "root/etc/hostname"):
            with contextlib.suppress(OSError):
                found["processes"].update(pattern.findall((entry / name).read_bytes()))
        with contextlib.suppress(OSError):
            for descriptor in (entry / "fd").iterdir():
                with contextlib.suppress(OSError):
                    if descriptor.is_file():
                        found["processes"].update(pattern.findall(descriptor.read_bytes()))
    for folder in told["folders"]:
        for above, _, names in os.walk(folder):
            for name in names:
                with contextlib.suppress(OSError):
                    if (Path(above) / name).is_file():
                        data = (Path(above) / name).read_bytes()
                        found["files"].update(pattern.findall(data))
    return {kind: sorted(map(bytes.decode, words)) for kind, words in found.items()}


def leave_child(told: dict[str, Any]) -> None:
    """Leave a process behind, by two forks, in a session of its own, without a word of ours."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            for number in range(3):
                os.close(number)
            os.execve("/bin/sleep", [told["name"], "600"], {})  # ruff: ignore[start-process-with-no-shell] - that is the purpose
        os._exit(0)
    os.wait()


def fetch(told: dict[str, Any]) -> str:
    with socket.create_connection((told["host"], told["port"]), 30) as peer:
        peer.sendall(b"GET / HTTP/1.0\r\n\r\n")
        data = b""
        while piece := peer.recv(65536):
            data += piece
    return data.rpartition(b"\r\n\r\n")[2].decode()


def writable(path: str) -> bool:
    probe = Path(path) / "probe"
    try:
        probe.write_text("x", "utf-8")
    except OSError:
        return False
    probe.unlink()
    return True


def about() -> dict[str, Any]:
    home, cwd = os.environ["HOME"], str(Path.cwd())
    return {
        "cwd": cwd,
        "environ": dict(os.environ),
        "home": sorted(entry.name for entry in Path(home).iterdir()),
        "writable": {path: writable(path) for path in (home, "/", "/etc", "/tmp", cwd)},
    }


def answer(name: str, told: dict[str, Any]) -> Any:
    if name == "read":
        return Path(told["path"]).read_text("utf-8", "replace")
    if name == "write":
        Path(told["path"]).write_text(told["text"], "utf-8")
        return "written"
    if name == "fetch":
        return fetch(told)
    if name == "try":
        return try_ways(told)
    if name == "steal":
        return steal(told)
    if name == "leave":
        leave_child(told)
        return "left"
    if name == "die":
        print("it was told to die", file=sys.stderr, flush=True)
        os._exit(4)
    if name == "hang":
        time.sleep(600)
    return about()


def call(name: str, told: dict[str, Any]) -> dict[str, Any]:
    if name == "fail":
        return {"content": [{"type": "text", "text": "it failed\nfor a reason"}], "isError": True}
    try:
        result = answer(name, told)
    except OSError as error:
        return {"content": [{"type": "text", "text": str(error)}], "isError": True}
    text = result if isinstance(result, str) else json.dumps(result)
    return {"content": [{"type": "text", "text": text}]}


def main() -> None:
    for line in sys.stdin:
        message = json.loads(line)
        method, params = message["method"], message.get("params") or {}
        reply: dict[str, Any] = {"jsonrpc": "2.0", "id": message.get("id")}
        if method == "initialize":
            reply["result"] = {
                "protocolVersion": "2025-11-25",
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "probe", "version": "1"},
            }
        elif method == "tools/list":
            reply["result"] = {"tools": [{"name": n, "inputSchema": ANYTHING} for n in TOOLS]}
        elif method == "tools/call" and params["name"] == "refuse":
            reply["error"] = {"code": -32000, "message": "it refused"}
        elif method == "tools/call":
            reply["result"] = call(params["name"], params.get("arguments") or {})
        else:
            reply["error"] = {"code": -32601, "message": "no such method"}
        if "id" in message:
            print(json.dumps(reply), flush=True)


if __name__ == "__main__":
    main()
