"""The processes, as `ps` tells where there is no `/proc`. Scripts of ours import it."""

import contextlib
import os
import sys

_PS = ("/bin/ps", "/usr/bin/ps")
_WORDS = ("ps", "-A", "-E", "-ww") if sys.platform == "darwin" else ("ps", "axeww")
_COLUMNS = ("-o", "pid=", "-o", "ppid=", "-o", "command=")


def read_processes() -> dict[int, tuple[int, bytes]]:
    """The parent of each process, and its words and environment in a line; without `ps` itself.

    What belongs to other users has no environment. It is empty where there is no `ps`.
    """
    own, output = run_program(_PS, (*_WORDS, *_COLUMNS))
    found: dict[int, tuple[int, bytes]] = {}
    for line in output.splitlines():
        words = line.split(None, 2)
        if len(words) > 1 and words[0].isdigit() and words[1].isdigit():
            found[int(words[0])] = (int(words[1]), words[2] if words[2:] else b"")
    found.pop(own, None)
    return found


def marked_processes(prefixes: list[bytes], spared: set[int]) -> set[int]:
    """Processes with one of the settings in their environment; a NUL ends one, as in `/proc`."""
    texts = [prefix.replace(b"\0", b" ") for prefix in prefixes]
    return {
        pid
        for pid, (_, line) in (read_processes() if texts else {}).items()
        if pid not in spared and any(text in line + b" " for text in texts)
    }


def run_program(paths: tuple[str, ...], words: tuple[str, ...]) -> tuple[int, bytes]:
    """Run the first of these programs that is there; its number and output, which may be empty."""
    path = next((path for path in paths if os.access(path, os.X_OK)), None)
    if path is None:
        return 0, b""
    reading, writing = os.pipe()
    offline = sys.modules.get("aish.system.offline")  # which would refuse it in a replay
    try:
        actions = [
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_DUP2, writing, 1),
            (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
        ]
        with offline.permit_attempts() if offline else contextlib.nullcontext():
            pid = os.posix_spawn(path, words, {}, file_actions=actions)
    except OSError:
        os.close(reading)
        return 0, b""
    finally:
        os.close(writing)
    with open(reading, "rb") as pipe:  # ruff: ignore[builtin-open, read-whole-file] - a descriptor
        output = pipe.read()
    with contextlib.suppress(ChildProcessError):  # SIGCHLD is ignored by inheritance
        os.waitpid(pid, 0)
    return pid, output
