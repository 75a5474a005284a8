"""`aish cassette check PATH…`."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

from aish.cassettes.format.file import show_path
from aish.cli.options import Argument, Option, Report, ReportOption
from aish.cli.printer import print_json, print_text
from aish.core.errors import ExitCode
from aish.core.json import JsonObject
from aish.core.phrases import counted
from aish.core.text import for_line
from aish.engine.plan.plan import load_checked
from aish.features.recording.lint import LintResult, check, subjects


def command(
    paths: Annotated[
        list[Path], Argument("PATH...", "Cassettes, folders, or pipelines that name some.")
    ],
    *,
    pipeline: Annotated[
        Path | None, Option("--pipeline FILE", "A pipeline whose `cassette.allow` counts too.")
    ] = None,
    allow: Annotated[
        list[str] | None, Option("--allow GLOB", "Text that looks like a secret but is not.")
    ] = None,
    output_format: ReportOption = Report.TEXT,
) -> int:
    """Check cassettes for damage and secrets.

    The exit code is 1 if something was found, and 2 if a cassette cannot be read. `aish test`
    shows whether a recording still fits its pipeline.

    Example: aish cassette check tests/cassettes pipelines/quickstart.yaml
    """
    played = None if pipeline is None else load_checked(pipeline, (), locked=False)
    checks = [check(subject, allow or ()) for subject in subjects(paths, played)]
    if output_format is Report.JSON:
        print_json([_row(row) for row in checks])
    else:
        print_text("\n".join(line for result in checks for line in _lines(result)))
    if any(result.unreadable is not None for result in checks):
        return int(ExitCode.USAGE)
    return int(ExitCode.FAILED if any(result.findings for result in checks) else ExitCode.OK)


def _lines(cassette: LintResult) -> Iterator[str]:
    path = for_line(show_path(cassette.path))
    if cassette.unreadable is not None:
        yield f"{path}: cannot be read"
        yield f"  {for_line(cassette.unreadable.message)}"
        if cassette.unreadable.where and cassette.unreadable.where != str(cassette.path):
            yield f"  at {for_line(cassette.unreadable.where)}"
        if cassette.unreadable.hint:
            yield f"  hint: {for_line(cassette.unreadable.hint)}"
        return
    parts = [counted(len(cassette.findings), "finding") if cassette.findings else "ok"]
    parts += [counted(cassette.exchanges, "exchange")] if cassette.exchanges else []
    yield f"{path}: {', '.join(parts)}"
    yield from (f"  {for_line(text)}" for text in cassette.findings)


def _row(cassette: LintResult) -> JsonObject:
    return {
        "cassette": show_path(cassette.path),
        "exchanges": cassette.exchanges,
        "findings": list(cassette.findings),
        "unreadable": None if cassette.unreadable is None else str(cassette.unreadable),
    }
