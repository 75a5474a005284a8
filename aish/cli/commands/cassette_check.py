"""`aish cassette check PATH…`."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

from aish.cassettes.format.file import shown
from aish.cli.options import Argument, Option, Report, ReportOption, VerboseOption
from aish.cli.printer import print_json, print_text
from aish.core.errors import ExitCode
from aish.core.json import JsonObject
from aish.core.phrases import counted
from aish.core.text import for_line
from aish.engine.plan.plan import load_checked
from aish.features.recording.lint import Checked, check, subjects


def command(
    paths: Annotated[
        list[Path],
        Argument(metavar="PATH...", help="Cassettes, folders, or pipelines that name some."),
    ],
    *,
    pipeline: Annotated[
        Path | None,
        Option("--pipeline", metavar="FILE", help="A pipeline whose `cassette.allow` counts too."),
    ] = None,
    allow: Annotated[
        list[str] | None,
        Option("--allow", metavar="GLOB", help="Text that looks like a secret but is not."),
    ] = None,
    format_: ReportOption = Report.TEXT,
    verbose: VerboseOption = False,
) -> int:
    """Check cassettes for damage and secrets.

    Ends with 1 if something was found, with 2 if a cassette cannot be read. Whether a recording
    still fits its pipeline is what `aish test` shows.

    Example: aish cassette check tests/cassettes pipelines/quickstart.yaml
    """
    del verbose
    played = None if pipeline is None else load_checked(pipeline, (), locked=False)
    found = [check(subject, allow or ()) for subject in subjects(paths, played)]
    if format_ is Report.JSON:
        print_json([_row(one) for one in found])
    else:
        print_text("\n".join(line for one in found for line in _lines(one)))
    return int(_code(found))


def _code(found: Sequence[Checked]) -> ExitCode:
    if any(one.unreadable is not None for one in found):
        return ExitCode.USAGE
    return ExitCode.FAILED if any(one.findings for one in found) else ExitCode.OK


def _lines(one: Checked) -> Iterator[str]:
    path = for_line(shown(one.path))
    if one.unreadable is not None:
        yield f"{path}: cannot be read"
        yield f"  {for_line(one.unreadable.message)}"
        if one.unreadable.where and one.unreadable.where != str(one.path):
            yield f"  at {for_line(one.unreadable.where)}"
        if one.unreadable.hint:
            yield f"  hint: {for_line(one.unreadable.hint)}"
        return
    told = [counted(len(one.findings), "finding") if one.findings else "ok"]
    told += [counted(one.exchanges, "exchange")] if one.exchanges else []
    yield f"{path}: {', '.join(told)}"
    yield from (f"  {for_line(text)}" for text in one.findings)


def _row(one: Checked) -> JsonObject:
    return {
        "cassette": shown(one.path),
        "exchanges": one.exchanges,
        "findings": list(one.findings),
        "unreadable": None if one.unreadable is None else str(one.unreadable),
    }
