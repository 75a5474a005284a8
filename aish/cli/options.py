"""Options that several commands share, each written once."""

from collections.abc import Callable
from enum import StrEnum
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from aish import __version__


def completes(name: str) -> Callable[[typer.Context, str], Any]:
    """A function of `completion`, imported when a shell asks it what a word may be."""

    def complete(ctx: typer.Context, incomplete: str) -> Any:
        return getattr(import_module("aish.cli.completion"), name)(ctx, incomplete)

    return complete


class Format(StrEnum):
    """Output format."""

    TEXT = "text"
    JSON = "json"
    JSONL = "jsonl"


class Report(StrEnum):
    """What a command that only looks prints."""

    TEXT = "text"
    JSON = "json"


class LockUse(StrEnum):
    """What it means that something is not as the lock file pins it."""

    ENFORCE = "enforce"
    WARN = "warn"


def _print_version(value: bool) -> None:  # ruff: ignore[boolean-type-hint-positional-argument] - typer calls it with the flag's value
    if value:
        typer.echo(f"aish {__version__}")
        raise typer.Exit


VersionOption = Annotated[
    bool,
    typer.Option(
        "--version", "-V", callback=_print_version, is_eager=True, help="Print the version."
    ),
]
FileArgument = Annotated[Path, typer.Argument(metavar="FILE", help="The pipeline file.")]
CassetteArgument = Annotated[Path, typer.Argument(metavar="CASSETTE", help="The cassette.")]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="PATH=VALUE", help="Override one value: models.cloud.params.temperature=0"
    ),
]
InputOption = Annotated[
    list[str] | None,
    typer.Option(
        "-i", "--input", metavar="NAME=VALUE", help="Set an input; NAME=@FILE reads a file."
    ),
]
InputsOption = Annotated[
    str | None,
    typer.Option(
        "--inputs", metavar="FILE", help="Read inputs from a JSON or YAML file; `-` reads stdin."
    ),
]
ModelOption = Annotated[
    str | None,
    typer.Option(
        "-m",
        "--model",
        metavar="ALIAS",
        help="Use this model for every step.",
        autocompletion=completes("model_aliases"),
    ),
]
AllowOption = Annotated[
    list[str] | None,
    typer.Option(
        "--allow",
        metavar="GLOB",
        help="Add a rule that approves: alias__tool.",
        autocompletion=completes("tool_globs"),
    ),
]
DenyOption = Annotated[
    list[str] | None,
    typer.Option(
        "--deny",
        metavar="GLOB",
        help="Add a rule that denies: alias__tool.",
        autocompletion=completes("tool_globs"),
    ),
]
TimeoutOption = Annotated[
    str | None,
    typer.Option("--timeout", metavar="DURATION", help="Maximum duration of the run: 90s, 10m."),
]
MaxCostOption = Annotated[
    float | None,
    typer.Option(
        "--max-cost-usd", metavar="USD", min=0, help="Maximum cost of models in US dollars: 0.50"
    ),
]
MaxTurnsOption = Annotated[
    int | None,
    typer.Option("--max-turns", metavar="N", min=1, help="Maximum number of model turns."),
]
QuietOption = Annotated[bool, typer.Option("-q", "--quiet", help="Only errors on stderr.")]
VerboseOption = Annotated[bool, typer.Option("-v", "--verbose", help="Show a bug's traceback.")]
StrictOption = Annotated[bool, typer.Option("--strict", help="Warnings are errors.")]
ReportOption = Annotated[Report, typer.Option("--format", help="Output format.")]
AskOption = Annotated[
    bool, typer.Option("--ask", help="Ask at the terminal about calls that no rule decides.")
]
RunDirOption = Annotated[
    Path | None, typer.Option("--run-dir", metavar="DIR", help="The folder for run folders.")
]
PastRunDirOption = Annotated[
    Path | None,
    typer.Option("--run-dir", metavar="DIR", help="The folder of the runs; default: `.aish/runs`."),
]
EphemeralOption = Annotated[bool, typer.Option("--ephemeral", help="Keep no run folder.")]
StagedOption = Annotated[
    Path | None,
    typer.Option(
        "--staged", metavar="FILE", help="Write staged calls to this file, not into the run folder."
    ),
]
NoKeyCheckOption = Annotated[
    bool,
    typer.Option(
        "--no-key-check",
        help="Do not read the items once more, before the first request, for keys that are there"
        " twice: for files that are large or slow to read. Pipes are refused as items either way.",
    ),
]
TableStepOption = Annotated[
    str | None,
    typer.Option("--step", metavar="ID", help="With `-o FILE.csv`: which step's items."),
]
CsvRawOption = Annotated[
    bool,
    typer.Option(
        "--csv-raw", help="With `-o FILE.csv`: no apostrophe before text that looks like a formula."
    ),
]
BroadRootOption = Annotated[
    bool,
    typer.Option(
        "--allow-broad-root", help="Allow a tool pack to have `/` or your home as its root."
    ),
]
KeepFailedOption = Annotated[
    bool,
    typer.Option(
        "--keep-failed",
        help="Write the recording of a failed run to CASSETTE.failed.",
    ),
]
LockOption = Annotated[
    LockUse,
    typer.Option("--lock", help="Differences from the lock file: exit 7, or continue without."),
]
GitHubOption = Annotated[
    bool,
    typer.Option("--github", help="Write the step summary and annotations of GitHub Actions."),
]
OtelOption = Annotated[
    bool, typer.Option("--otel", help="Send traces to an OpenTelemetry collector.")
]
OtelEndpointOption = Annotated[
    str | None,
    typer.Option(
        "--otel-endpoint",
        metavar="URL",
        help="Send traces there; default: OTEL_EXPORTER_OTLP_ENDPOINT.",
    ),
]
OtelContentOption = Annotated[
    bool, typer.Option("--otel-content", help="Include answers, arguments and results in traces.")
]
