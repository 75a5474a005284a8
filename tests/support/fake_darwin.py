"""Takes from an interpreter what Python 3.11 on a Mac lacks, as `sitecustomize` of a folder.

`make_folder(tmp_path)` makes the folder, for `PYTHONPATH`. What is not taken: the kernel is still
that of Linux, and so are the programs.
"""

import os
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

MISSING = {
    "os": "pidfd_open|PIDFD_.*|memfd_create|MFD_.*|sched_.*|SCHED_.*|waitid|P_PID|P_ALL|P_PGID"
    "|P_PIDFD|fdatasync|posix_fadvise|posix_fallocate|POSIX_FADV_.*|copy_file_range|getrandom"
    "|GRND_.*|eventfd.*|EFD_.*|splice|SPLICE_.*|O_PATH|O_TMPFILE|O_DIRECT|O_NOATIME|O_LARGEFILE"
    "|O_RSYNC|[gs]etres[ug]id|RWF_.*|pipe2|[a-z]+xattr|XATTR_.*|setns|unshare|CLONE_.*",
    "socket": "AF_(?:NETLINK|PACKET|CAN|ALG|VSOCK|TIPC|QIPCRTR)|NETLINK_.*|SO_PEERCRED|SO_PASSCRED"
    "|SO_BINDTODEVICE|SO_DOMAIN|SO_PROTOCOL|SO_MARK|TCP_KEEPIDLE|TCP_USER_TIMEOUT|TCP_QUICKACK"
    "|TCP_CORK|TCP_DEFER_ACCEPT|MSG_CMSG_CLOEXEC|SOCK_CLOEXEC|SOCK_NONBLOCK",
    "fcntl": "F_[GS]ETPIPE_SZ|F_OFD_.*|F_(?:ADD|GET)_SEALS|F_SEAL_.*|F_NOTIFY|F_[GS]ETLEASE",
    "signal": "sigtimedwait|sigwaitinfo|SIGPWR|SIGSTKFLT|SIGRTMIN|SIGRTMAX|SIGPOLL|SIGCLD",
    "time": "CLOCK_BOOTTIME|CLOCK_TAI",
    "resource": "prlimit|RUSAGE_THREAD",
}
_LIBRARY = frozenset({"prctl", "syscall", "syncfs", "renameat2", "setns"})


def make_folder(folder: Path) -> Path:
    made = folder / "darwin"
    made.mkdir()
    lines = (
        "import sys",
        f"sys.path.append({str(Path(__file__).parent)!r})",
        "import fake_darwin",
        "fake_darwin.install()",
        "sys.path.pop()",
    )
    (made / "sitecustomize.py").write_text("\n".join(lines), "utf-8")
    return made


def install() -> None:
    """Take it away from this process, for good."""
    for name, pattern in MISSING.items():
        module = __import__(name)
        for one in [one for one in vars(module) if re.fullmatch(pattern, one)]:
            delattr(module, one)
    proxies = ModuleType("_scproxy")  # what `urllib` imports on a Mac
    vars(proxies).update(_get_proxies=dict, _get_proxy_settings=dict)
    sys.modules["_scproxy"] = proxies
    sys.platform = "darwin"
    sys.addaudithook(_refuse)


def _refuse(event: str, args: tuple[Any, ...]) -> None:
    if event in {"open", "os.listdir", "os.scandir"}:
        if isinstance(args[0], str) and args[0].startswith("/proc"):
            raise FileNotFoundError(2, os.strerror(2), args[0])
    elif event == "ctypes.dlsym" and args[1] in _LIBRARY:
        raise AttributeError(args[1])
