"""Refuses edits after which a Python file that parsed would not (K6)."""

import json
import sys
from pathlib import Path

from aish.packs import parsing
from aish.packs.results import PackError
from aish.packs.root import Workplace
from aish.system.process.child import child_environment, run_command

SECONDS = 10.0
_SUFFIXES = (".py", ".pyi")
_OUTPUT_LIMIT = 4096


async def check_parses(place: Workplace, path: str, before: bytes, after: bytes) -> None:
    """That code which parsed still does.

    Raises:
        PackError: it no longer would; nothing was written.
    """
    if not path.endswith(_SUFFIXES) or before == after:
        return
    result = await run_command(
        (sys.executable, "-I", "-S", str(Path(parsing.__file__))),
        cwd=Path("/"),
        env=child_environment({}, {}),
        timeout=SECONDS,
        limit_bytes=_OUTPUT_LIMIT,
        input=b"%d\n%s%s" % (len(before), before, after),
        reaper=place.reaper,
    )
    answers = [json.loads(row) for row in result.stdout.splitlines()]
    if not answers or answers[0]:
        # It did not parse before: any edit may be the one that mends it.
        return
    problem = answers[1] if len(answers) > 1 else "it is too deep or too long to be parsed"
    if problem:
        message = f"nothing was written: `{path}` would no longer be Python code ({problem})"
        raise PackError("syntax", message, path=path, problem=problem)
