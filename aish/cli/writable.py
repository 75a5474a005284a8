"""Files that a person names for results and reports: found out before the run, not after it."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from aish.cli.option_groups import Reporting
from aish.core.errors import UsageError
from aish.core.text import safe_utf8
from aish.engine.plan.plan import Played
from aish.output.formats.text import DATA, manner_of
from aish.system.secrets.secrets import Secrets

_PIECE = 1 << 20


def check_writable(path: Path, option: str = "-o") -> None:
    """See that a file can be written.

    Raises:
        UsageError: no file can be written there.
    """
    if str(path) == "-":
        raise UsageError("names no file", where=f"{option} -", hint="give it a path")
    if path.is_dir():
        raise UsageError("is a folder", where=f"{option} {path}")
    parent = path.parent
    if not parent.is_dir():
        raise UsageError(
            "its folder does not exist", where=f"{option} {path}", hint=f"mkdir -p {parent}"
        )
    if not os.access(path if path.exists() else parent, os.W_OK):
        raise UsageError("cannot be written", where=f"{option} {path}")


def pieces_for(path: Path, result: BinaryIO) -> Iterator[bytes]:
    """A result as it may go to `path`: as it is to a file, as on a screen to `/dev/stdout`."""
    try:
        mode = path.stat().st_mode
    except OSError:
        mode = stat.S_IFREG
    manner = DATA
    if not stat.S_ISREG(mode):
        manner = manner_of(mode, os.environ, is_terminal=stat.S_ISCHR(mode))
    if manner is DATA:
        return iter(lambda: result.read(_PIECE), b"")
    return (safe_utf8(manner.clean(line.decode("utf-8", "replace"))).encode() for line in result)


def check_reports(asked: Reporting, film: Played | None, secrets: Secrets) -> None:
    """Find out before the run whether its reports can be written and its traces sent.

    Raises:
        UsageError: one cannot.
    """
    if asked.otel_content and not asked.traced:
        raise UsageError("`--otel-content` sets what is in traces", hint="add `--otel`")
    if asked.traced:
        from aish.cli.traces import check_traces

        check_traces(asked, film, secrets)
    files = (("--junit", asked.junit), ("--html", asked.html), ("--sarif", asked.sarif))
    for option, path in files:
        if path is not None:
            check_writable(path, option)
