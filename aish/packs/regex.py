"""Searching by regular expression, in a child process that can be killed (X7)."""

import json
import sys
from pathlib import Path

import anyio.to_thread

from aish.packs import matching
from aish.packs.results import PackError
from aish.packs.root import Workplace
from aish.packs.searching import (
    LONGEST_SHOWN,
    MOST_MATCHES,
    Found,
    Match,
    Wanted,
    shown_line,
    texts,
)
from aish.system.process.child import child_environment, run_command

SECONDS = 5.0
_OUTPUT_LIMIT = 4 * 1024 * 1024


async def search_regex(
    place: Workplace, wanted: Wanted, pattern: str, *, ignore_case: bool
) -> Found:
    """The lines in which a regular expression matches.

    Raises:
        PackError: it is not one, or took too long.
    """
    found = Found()
    question = {
        "pattern": pattern,
        "ignore_case": ignore_case,
        "most": MOST_MATCHES,
        "longest": LONGEST_SHOWN + 1,
    }

    def gather() -> bytes:
        rows = [json.dumps(question)]
        pairs = texts(place.folder, wanted, found)
        rows.extend(json.dumps(pair, ensure_ascii=False) for pair in pairs)
        return "\n".join(rows).encode("utf-8", "surrogatepass")

    sent = await anyio.to_thread.run_sync(gather, abandon_on_cancel=True)
    result = await run_command(
        (sys.executable, "-I", "-S", str(Path(matching.__file__))),
        cwd=Path("/"),
        env=child_environment({}, {}),
        timeout=SECONDS,
        limit_bytes=_OUTPUT_LIMIT,
        input=sent,
        reaper=place.reaper,
    )
    if result.timed_out:
        message = f"the expression took more than {SECONDS:.0f} seconds; write a simpler one"
        raise PackError("too_slow", message)
    if result.exit_code != 0:
        raise PackError("failed", "the expression could not be searched for")
    for row in result.stdout.splitlines():
        _take(json.loads(row), found)
    if len(found.matches) >= MOST_MATCHES:
        found.stopped = f"after {MOST_MATCHES} matches"
    return found


def _take(row: object, found: Found) -> None:
    """One row of the child's answer."""
    if isinstance(row, dict):
        raise PackError("bad_arguments", f"`query` is not a regular expression: {row['error']}")
    assert isinstance(row, list)
    path, number, line = row
    found.matches.append(Match(path, number, shown_line(line)))
