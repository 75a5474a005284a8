"""`aish apply STAGED [FILE]`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from aish.cli.applying import (
    Applying,
    applied,
    applying,
    expected_code,
    named_pipeline,
    plans_of,
    reviewed_rows,
    width,
)
from aish.cli.applying_text import Row, attempt_line, attempt_row, review_lines, review_row
from aish.cli.boundary import say
from aish.cli.loading import load, look_options
from aish.cli.options import (
    Argument,
    BroadRootOption,
    DenyOption,
    LockOption,
    LockUse,
    Option,
    QuietOption,
    Report,
    ReportOption,
    RunDirOption,
    SetOption,
    VerboseOption,
)
from aish.cli.printing import print_json, print_text
from aish.core.events import plain
from aish.core.frozen import frozen
from aish.core.json import JsonObject
from aish.core.phrases import counted
from aish.features.staging.apply import Application, Wish
from aish.features.staging.file import read_staged
from aish.system.secrets.secrets import Secrets


def _ids(flag: str, what: str) -> object:
    return Option(flag, metavar="ID", help=what)


@frozen
class Choosing:
    """Which of the calls are made."""

    dry_run: Annotated[bool, Option("--dry-run", help="Only show the calls; start no server.")] = (
        False
    )
    only: Annotated[list[str] | None, _ids("--only", "Only this call; may be repeated.")] = None
    skip: Annotated[list[str] | None, _ids("--skip", "Not this call; may be repeated.")] = None
    retry_unknown: Annotated[
        bool, Option("--retry-unknown", help="Retry calls with unknown outcome.")
    ] = False
    retry_failed: Annotated[
        bool, Option("--retry-failed", help="Retry calls that failed before.")
    ] = False

    @property
    def wish(self) -> Wish:
        """The same, as it is applied."""
        ids = (tuple(self.only or ()), tuple(self.skip or ()))
        return Wish(*ids, retry_unknown=self.retry_unknown, retry_failed=self.retry_failed)


def command(
    staged: Annotated[Path, Argument(metavar="STAGED", help="The file of staged calls.")],
    choosing: Choosing,
    file: Annotated[
        Path | None,
        Argument(metavar="[FILE]", help="The pipeline; default: the one that was run."),
    ] = None,
    *,
    overrides: SetOption = None,
    deny: DenyOption = None,
    broad_root: BroadRootOption = False,
    lock: LockOption = LockUse.ENFORCE,
    run_dir: RunDirOption = None,
    format_: ReportOption = Report.TEXT,
    quiet: QuietOption = False,
    verbose: VerboseOption = False,
) -> int:
    """Execute staged calls after review, each once.

    Example: aish apply staged.json pipelines/release.yaml --dry-run
    """
    del verbose
    found = read_staged(staged)
    pipeline = load(file or named_pipeline(found, staged), overrides, quiet=quiet)
    asked = applying(staged, found, pipeline, choosing.wish, tuple(deny or ()))
    if choosing.dry_run:
        return _review(asked, format_)
    options = look_options(None, deny, allow_broad_root=broad_root, lock=lock)
    plans = plans_of(asked, options)
    secrets = plans[""].secrets
    rows = reviewed_rows(asked, secrets)
    if not quiet:
        say(secrets.mask("\n".join(review_lines(asked.heading, rows, width()))))
    done, folder = applied(asked, plans, options, run_dir, quiet=quiet)
    if format_ is Report.JSON:
        print_json(secrets.mask_json(_report(asked, rows, done, folder, done.end.code)))
    else:
        _print_end(rows, done, secrets)
    if quiet and done.end.code:
        say(f"error: {done.end.reason}")
    return done.end.code


def _review(asked: Applying, format_: Report) -> int:
    """Show the calls, and say how applying them would end as far as no server is asked."""
    rows = reviewed_rows(asked, Secrets())
    code = int(expected_code(asked, rows))
    if format_ is Report.JSON:
        print_json(_report(asked, rows, None, None, code))
    else:
        print_text("\n".join(review_lines(asked.heading, rows, width())))
    return code


def _print_end(rows: Sequence[Row], done: Application, secrets: Secrets) -> None:
    for attempt in done.attempts:
        print_text(secrets.mask(attempt_line(attempt)))
    before = sum(row.state == "applied" and not row.left_out for row in rows)
    if before:
        print_text(f"{counted(before, 'call')} applied before")


def _report(
    asked: Applying, rows: Sequence[Row], done: Application | None, folder: str | None, code: int
) -> JsonObject:
    attempts = {one.call.id: attempt_row(one) for one in done.attempts} if done else {}
    return {
        "v": 1,
        "staged": str(asked.path),
        "run": asked.staged.head.run,
        "pipeline": str(asked.pipeline.file),
        "dry_run": done is None,
        "calls": [{**review_row(row), **attempts.get(row.call.id, {})} for row in rows],
        "exit": {"code": code} if done is None else plain(done.end),
        "folder": folder,
    }
