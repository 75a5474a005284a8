"""`aish fetch FILE`."""

import os
import sys
from collections.abc import Iterator
from functools import partial
from itertools import starmap
from pathlib import Path
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
from aish.config.model import Pipeline
from aish.core.errors import ExitCode, LockDiffersError
from aish.core.json import JsonObject
from aish.core.phrases import counted
from aish.engine.plan.lock import lock_of
from aish.engine.plan.validation.validate import check_file
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
    fetched exactly. Those of the files that it runs or serves are fetched too.

    Example: aish fetch pipelines/review.yaml
    """
    if clean:
        return _clean(output_format)
    results: list[tuple[Pipeline, PackageResult]] = []
    for pipeline in _with_others(load(file, overrides, lock=lock), set()):
        pinned = None if lock is LockUse.NONE else lock_of(pipeline)
        pins = {} if pinned is None else pinned.packages
        on_fetch = say if sys.stderr.isatty() else lambda _: None
        take = partial(fetch_packages, pipeline, pins, dict(os.environ), on_fetch=on_fetch)
        for result in anyio.run(take):
            results.append((pipeline, result))
            if result.error is not None:
                report(result.error)
            elif output_format is Report.TEXT:
                print_text(f"{result.alias}: {_describe(result)}")
    if output_format is Report.JSON:
        print_json({"servers": list(starmap(_row, results))})
    if not results:
        say(f"no server of {file} is written as `npx PACKAGE` or `uvx PACKAGE`")
    errors = [result.error for _, result in results if result.error is not None]
    return int(max((error.exit_code for error in errors), default=ExitCode.OK))


def _with_others(pipeline: Pipeline, files: set[Path]) -> Iterator[Pipeline]:
    """A pipeline with those that it runs or serves, and those that they run."""
    files.add(pipeline.file.resolve())
    yield pipeline
    for file in pipeline.other_files:
        if file.resolve() not in files:
            inner, _ = check_file(file, locked=False)
            if inner is not None:
                yield from _with_others(inner, files)


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


def _row(pipeline: Pipeline, result: PackageResult) -> JsonObject:
    return {
        "file": str(pipeline.file),
        "server": result.alias,
        "packages": None if result.entry is None else result.entry.pin.row,
        "seconds": result.seconds,
        "problem": None if result.error is None else result.error.message,
        "differs": isinstance(result.error, LockDiffersError),
    }
