"""Options and arguments, as commands declare them; those that several commands share, once.

A command's parameter is `Annotated[TYPE, Option(...)] = DEFAULT`. The declarations are data, which
both parsers of the command line read: `plain_arguments` and, for everything else, `typer_parser`.
"""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, TypedDict, Unpack


class Details(TypedDict, total=False):
    """What is said of an option or argument; `completes` names a function of `completion`."""

    metavar: str
    help: str
    min: float
    hidden: bool
    completes: str


class Option:
    """An option with its names; where it has a type of flag, it takes no value."""

    def __init__(self, *names: str, **details: Unpack[Details]) -> None:
        self.names = names
        self.details = details


class Argument:
    """A word that has no name; the last one of a command may be a list."""

    def __init__(self, **details: Unpack[Details]) -> None:
        self.details = details


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


FileArgument = Annotated[Path, Argument(metavar="FILE", help="The pipeline file.")]
CassetteArgument = Annotated[Path, Argument(metavar="CASSETTE", help="The cassette.")]
SetOption = Annotated[
    list[str] | None,
    Option(
        "--set", metavar="PATH=VALUE", help="Override one value: models.cloud.params.temperature=0"
    ),
]
InputOption = Annotated[
    list[str] | None,
    Option("-i", "--input", metavar="NAME=VALUE", help="Set an input; NAME=@FILE reads a file."),
]
InputsOption = Annotated[
    str | None,
    Option(
        "--inputs", metavar="FILE", help="Read inputs from a JSON or YAML file; `-` reads stdin."
    ),
]
ModelOption = Annotated[
    str | None,
    Option(
        "-m",
        "--model",
        metavar="ALIAS",
        help="Use this model for every step.",
        completes="model_aliases",
    ),
]
AllowOption = Annotated[
    list[str] | None,
    Option(
        "--allow",
        metavar="GLOB",
        help="Add a rule that approves: alias__tool.",
        completes="tool_globs",
    ),
]
DenyOption = Annotated[
    list[str] | None,
    Option(
        "--deny",
        metavar="GLOB",
        help="Add a rule that denies: alias__tool.",
        completes="tool_globs",
    ),
]
TimeoutOption = Annotated[
    str | None,
    Option("--timeout", metavar="DURATION", help="Maximum duration of the run: 90s, 10m."),
]
MaxCostOption = Annotated[
    float | None,
    Option(
        "--max-cost-usd", metavar="USD", min=0, help="Maximum cost of models in US dollars: 0.50"
    ),
]
MaxTurnsOption = Annotated[
    int | None,
    Option("--max-turns", metavar="N", min=1, help="Maximum number of model turns."),
]
QuietOption = Annotated[bool, Option("-q", "--quiet", help="Only errors on stderr.")]
VerboseOption = Annotated[bool, Option("-v", "--verbose", help="Show a bug's traceback.")]
StrictOption = Annotated[bool, Option("--strict", help="Warnings are errors.")]
ReportOption = Annotated[Report, Option("--format", help="Output format.")]
AskOption = Annotated[
    bool, Option("--ask", help="Ask at the terminal about calls that no rule decides.")
]
RunDirOption = Annotated[
    Path | None, Option("--run-dir", metavar="DIR", help="The folder for run folders.")
]
PastRunDirOption = Annotated[
    Path | None,
    Option("--run-dir", metavar="DIR", help="The folder of the runs; default: `.aish/runs`."),
]
EphemeralOption = Annotated[bool, Option("--ephemeral", help="Keep no run folder.")]
StagedOption = Annotated[
    Path | None,
    Option(
        "--staged", metavar="FILE", help="Write staged calls to this file, not into the run folder."
    ),
]
NoKeyCheckOption = Annotated[
    bool,
    Option(
        "--no-key-check",
        help="Do not read the items once more, before the first request, for keys that are there"
        " twice: for files that are large or slow to read. Pipes are refused as items either way.",
    ),
]
TableStepOption = Annotated[
    str | None,
    Option("--step", metavar="ID", help="With `-o FILE.csv`: which step's items."),
]
CsvRawOption = Annotated[
    bool,
    Option(
        "--csv-raw", help="With `-o FILE.csv`: no apostrophe before text that looks like a formula."
    ),
]
BroadRootOption = Annotated[
    bool,
    Option("--allow-broad-root", help="Allow a tool pack to have `/` or your home as its root."),
]
KeepFailedOption = Annotated[
    bool,
    Option(
        "--keep-failed",
        help="Write the recording of a failed run to CASSETTE.failed.",
    ),
]
LockOption = Annotated[
    LockUse,
    Option("--lock", help="Differences from the lock file: exit 7, or continue without."),
]
GitHubOption = Annotated[
    bool,
    Option("--github", help="Write the step summary and annotations of GitHub Actions."),
]
OtelOption = Annotated[bool, Option("--otel", help="Send traces to an OpenTelemetry collector.")]
OtelEndpointOption = Annotated[
    str | None,
    Option(
        "--otel-endpoint",
        metavar="URL",
        help="Send traces there; default: OTEL_EXPORTER_OTLP_ENDPOINT.",
    ),
]
OtelContentOption = Annotated[
    bool, Option("--otel-content", help="Include answers, arguments and results in traces.")
]
