"""`aish fetch FILE`."""

import os
from typing import Annotated

import anyio

from aish.cli.boundary import report, say
from aish.cli.options import (
    OWN_FILE,
    LockOption,
    LockUse,
    Option,
    ProjectFileArgument,
    Report,
    ReportOption,
    SetOption,
)
from aish.cli.pipeline_options import load
from aish.cli.printer import print_json, print_text
from aish.core.errors import AishError, ExitCode, LockDiffersError, UnavailableError
from aish.core.json import JsonObject
from aish.core.phrases import counted
from aish.engine.plan.lock import lock_of
from aish.engine.resources.packages import PackageResult, fetch_packages
from aish.mcp.transports.package_store import UNUSED_DAYS, remove_unused


def command(
    file: ProjectFileArgument = OWN_FILE,
    *,
    clean: Annotated[
        bool,
        Option("--clean", f"Remove servers that were not started for {UNUSED_DAYS} days instead."),
    ] = False,
    overrides: SetOption = None,
    lock: LockOption = LockUse.ENFORCE,
    output_format: ReportOption = Report.TEXT,
) -> int:
    """Fetch the servers that `npx` and `uvx` would fetch.

    They start without a network then. No code of a package is run. What the lock file pins is
    fetched exactly.

    Example: aish fetch pipelines/review.yaml
    """
    if clean:
        return _clean(output_format)
    pipeline = load(file, overrides, lock=lock)
    pinned = None if lock is LockUse.NONE else lock_of(pipeline)
    pins = {} if pinned is None else pinned.packages
    results = anyio.run(fetch_packages, pipeline, pins, dict(os.environ))
    if output_format is Report.JSON:
        print_json({"servers": [_row(result) for result in results]})
    for result in results:
        if result.entry is None:
            report(_error(result))
        elif output_format is Report.TEXT:
            print_text(f"{result.alias}: {_describe(result)}")
    if not results:
        say(f"no server of {file} is written as `npx PACKAGE` or `uvx PACKAGE`")
    codes = [_error(result).exit_code for result in results if result.entry is None]
    return int(max(codes, default=ExitCode.OK))


def _clean(output_format: Report) -> int:
    removed = remove_unused()
    if output_format is Report.JSON:
        print_json({"removed": list(removed)})
    else:
        for spec in removed:
            print_text(f"{spec}: removed")
        say(f"{counted(len(removed), 'server')} removed")
    return int(ExitCode.OK)


def _describe(result: PackageResult) -> str:
    assert result.entry is not None, "it was fetched"
    packages = counted(len(result.entry.pin.resolved), "package")
    how = "in the store" if result.seconds is None else f"fetched in {result.seconds:.1f} s"
    return f"{result.spec.requirement}, {packages}, {how}"


def _error(result: PackageResult) -> AishError:
    kind = LockDiffersError if result.differs else UnavailableError
    message = f"`{result.spec.requirement}` is not fetched: {result.problem}"
    return kind(message, where=f"mcp server `{result.alias}`", hint=result.hint)


def _row(result: PackageResult) -> JsonObject:
    pin = None if result.entry is None else result.entry.pin.row
    return {
        "server": result.alias,
        "packages": pin,
        "seconds": result.seconds,
        "problem": result.problem or None,
        "differs": result.differs,
    }
