"""`aish lock FILE`."""

import os
from enum import Enum
from pathlib import Path
from typing import Annotated

import anyio

from aish.cli.boundary import report, say
from aish.cli.options import (
    OWN_FILE,
    BroadRootOption,
    LockUse,
    Option,
    ProjectFileArgument,
    Report,
    ReportOption,
    SetOption,
    VerboseOption,
)
from aish.cli.pipeline_options import load
from aish.cli.printer import print_json, print_text
from aish.cli.tool_preview import quiet_environment, tools_plan
from aish.config.model import Pipeline
from aish.core.errors import ExitCode, LockDiffersError, UsageError
from aish.core.json import JsonObject
from aish.core.phrases import counted
from aish.engine.plan.lock import (
    difference_lines,
    difference_row,
    is_ignored,
    lock_path,
    named,
    read_lock,
    write_lock,
)
from aish.engine.plan.options import RunOptions
from aish.features.lockfile import Taken, take_lock
from aish.policy.lock import Difference, Lock
from aish.system.secrets.secrets import Secrets


class _Way(Enum):
    """How the difference is handled."""

    WRITE = "write"
    CHECK = "--check"
    UPDATE = "--update"
    DIFF = "--diff"


def command(
    file: ProjectFileArgument = OWN_FILE,
    *,
    check: Annotated[
        bool, Option("--check", help="Write nothing; exit 7 if something differs.")
    ] = False,
    update: Annotated[
        bool, Option("--update", help="Accept the differences, and print them.")
    ] = False,
    diff: Annotated[
        bool, Option("--diff", help="Write nothing; print what `--update` would accept.")
    ] = False,
    overrides: SetOption = None,
    broad_root: BroadRootOption = False,
    format_: ReportOption = Report.TEXT,
    verbose: VerboseOption = False,
) -> int:
    """Pin tools, servers, models and prompts in a lock file.

    The file stands beside the pipeline, or where it says with `lock:`.

    Example: aish lock pipelines/review.yaml --check
    """
    del verbose
    way = _way(check=check, update=update, diff=diff)
    pipeline = load(file, overrides, lock=LockUse.NONE)
    path = lock_path(pipeline)
    older = _older(pipeline, path, way)
    plan = tools_plan(pipeline, _options(broad_root=broad_root))
    taken = anyio.run(take_lock, plan, older, quiet_environment(plan))
    differs = bool(_held(taken, pipeline))
    writes = way is _Way.UPDATE or (way is _Way.WRITE and older is None)
    if writes and (taken.differences or older is None):
        write_lock(path, taken.lock)
    if format_ is Report.JSON:
        print_json(plan.secrets.mask_json(_row(path, taken, older, wrote=writes)))
    else:
        _print(path, taken, older, way, plan.secrets)
    for server in taken.unasked:
        told = plan.secrets.mask(server.error or "")
        say(f"warning: mcp server `{server.alias}` is missing and was not compared: {told}")
    if not differs or writes:
        return int(ExitCode.OK)
    return _end(path, file, _held(taken, pipeline), way)


def _held(taken: Taken, pipeline: Pipeline) -> tuple[Difference, ...]:
    """The differences that the file does not ignore."""
    return tuple(found for found in taken.differences if not is_ignored(found, pipeline))


def _way(*, check: bool, update: bool, diff: bool) -> _Way:
    asked = {_Way.CHECK: check, _Way.UPDATE: update, _Way.DIFF: diff}
    chosen = [way for way, wanted in asked.items() if wanted]
    if len(chosen) > 1:
        raise UsageError(f"`{chosen[0].value}` and `{chosen[1].value}` exclude each other")
    return chosen[0] if chosen else _Way.WRITE


def _older(pipeline: Pipeline, path: Path, way: _Way) -> Lock | None:
    if way is not _Way.CHECK and not path.exists():
        return None
    return read_lock(path, pipeline.file)


def _options(*, broad_root: bool) -> RunOptions:
    return RunOptions(allow_broad_root=broad_root, lock="none", environ=dict(os.environ))


def _print(path: Path, taken: Taken, older: Lock | None, way: _Way, secrets: Secrets) -> None:
    if older is None and way is not _Way.DIFF:
        _print_new(path, taken)
        return
    for found in taken.differences:
        lines = (secrets.mask(line) for line in difference_lines(found))
        print_text("\n".join(lines))
    if not taken.differences and way is not _Way.DIFF:
        print_text(f"{path}: nothing differs")
    elif way is _Way.UPDATE:
        say(f"{path}: written, {counted(len(taken.differences), 'difference')} accepted")


def _print_new(path: Path, taken: Taken) -> None:
    servers = taken.lock.servers
    tools = sum(len(server.tools) for server in servers.values())
    parts = (
        f"{counted(tools, 'tool')} of {counted(len(servers), 'server')}",
        counted(len(taken.lock.models), "model"),
        counted(len(taken.lock.prompts), "prompt"),
    )
    print_text(f"{path}: {', '.join(parts)}")
    for found in taken.differences:
        signs = [line for line in difference_lines(found) if line.startswith("  suspicious: ")]
        for sign in signs:
            say(f"warning: `{found.name}` is {sign.strip()}")


def _row(path: Path, taken: Taken, older: Lock | None, *, wrote: bool) -> JsonObject:
    return {
        "lock": str(path),
        "written": wrote and (bool(taken.differences) or older is None),
        "same": not taken.differences,
        "differences": [difference_row(found) for found in taken.differences],
        "not_compared": [server.alias for server in taken.unasked],
    }


def _end(path: Path, file: Path, differences: tuple[Difference, ...], way: _Way) -> int:
    """The exit code for a difference that was not accepted."""
    if way is not _Way.DIFF:
        count = len(differences)
        verb = "differs" if count == 1 else "differ"
        report(
            LockDiffersError(
                f"{named(differences)} {verb} from the lock",
                where=str(path),
                hint=f"`aish lock {file} --update` accepts the changes, after a review",
            )
        )
    return int(ExitCode.LOCK)
