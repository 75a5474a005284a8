"""Options and arguments of commands; those that several commands share are declared once.

A command's parameter is `Annotated[TYPE, Option(...)] = DEFAULT`. The declarations are data, which
both parsers of the command line read: `arguments` and, for everything else, `typer_parser`. The
commands that run a pipeline take theirs in groups: a parameter whose type is one of the dataclasses
below means an option for each of its fields.
"""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypedDict, Unpack

from aish.core.frozen import frozen
from aish.system.files import PROJECT_FILE

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager


class Details(TypedDict, total=False):
    """Help of an option or argument; `completes` names a function of `completion`."""

    metavar: str
    help: str
    min: float
    hidden: bool
    completes: str


class Option:
    """An option with its names; if its type is a flag, it takes no value."""

    def __init__(self, *names: str, **details: Unpack[Details]) -> None:
        self.names = names
        self.details = details


class Argument:
    """A positional argument; the last one of a command may be a list."""

    def __init__(self, **details: Unpack[Details]) -> None:
        self.details = details


class Format(StrEnum):
    """Output format."""

    TEXT = "text"
    JSON = "json"
    JSONL = "jsonl"


class Report(StrEnum):
    """Output format of commands that only inspect."""

    TEXT = "text"
    JSON = "json"


class LockUse(StrEnum):
    """Handling of differences from the lock file."""

    ENFORCE = "enforce"
    WARN = "warn"
    NONE = "none"


FileArgument = Annotated[Path, Argument(metavar="FILE", help="The pipeline file.")]
ProjectFileArgument = Annotated[Path, Argument(metavar="[FILE]", help="The pipeline file.")]
OWN_FILE = Path(PROJECT_FILE)
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
InputTextOption = Annotated[
    list[str] | None,
    Option(
        "--input-text",
        metavar="NAME=VALUE",
        help="Set an input to a text that others wrote; it is never the name of a file.",
    ),
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
        help="Skip the check for duplicate keys, which reads all items before the first request: "
        "for"
        " files that are large or slow to read. Pipes are refused as items either way.",
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
    Option("--lock", help="Differences from the lock file: exit 7, a warning, or no lock file."),
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


class RecordMode(StrEnum):
    """What is replayed from a cassette and what is recorded to it (C7)."""

    NONE = "none"
    ONCE = "once"
    NEW_EPISODES = "new_episodes"
    ALL = "all"


class ReplayPace(StrEnum):
    """Speed of a replay."""

    FAST = "fast"
    RECORDED = "recorded"


@frozen
class InputOptions:
    """Values for the inputs and variables of the file."""

    inputs: InputOption = None
    input_texts: InputTextOption = None
    inputs_file: InputsOption = None
    overrides: SetOption = None
    model: ModelOption = None


@frozen
class PolicyOptions:
    """Permissions and limits of a run."""

    allow: AllowOption = None
    deny: DenyOption = None
    broad_root: BroadRootOption = False
    lock: LockOption = LockUse.ENFORCE
    ask: AskOption = False
    timeout: TimeoutOption = None
    max_cost_usd: MaxCostOption = None
    max_turns: MaxTurnsOption = None


@frozen
class OutputOptions:
    """Output and files of a run."""

    format_: Annotated[Format, Option("--format", help="Output format.")] = Format.TEXT
    stream: Annotated[bool, Option("--stream", help="Stream the answer to stdout.")] = False
    run_dir: RunDirOption = None
    ephemeral: EphemeralOption = False
    staged: StagedOption = None
    quiet: QuietOption = False
    verbose: VerboseOption = False


@frozen
class ResumeOptions:
    """An interrupted run, and which parts of it are repeated."""

    resume: Annotated[
        str | None,
        Option(
            "--resume",
            metavar="[ID]",
            help="Resume a run: the newest of the file, or the one with this id.",
            completes="run_ids",
        ),
    ] = None
    retry_failed: Annotated[
        bool, Option("--retry-failed", help="With `--resume`: run failed items again.")
    ] = False
    retry_unknown: Annotated[
        bool,
        Option(
            "--retry-unknown",
            help="With `--resume`: retry calls with unknown outcome.",
        ),
    ] = False
    force: Annotated[
        bool,
        Option("--force", help="With `--resume`: continue although the file or inputs changed."),
    ] = False


@frozen
class BatchOptions:
    """How many items run at once, and which of them (B4, B6)."""

    concurrency: Annotated[
        int | None,
        Option(
            "--concurrency",
            metavar="N",
            min=1,
            help="Maximum number of steps and items at the same time.",
        ),
    ] = None
    shard: Annotated[
        str | None,
        Option("--shard", metavar="I/N", help="Run one shard of the items: 2/8."),
    ] = None
    no_key_check: NoKeyCheckOption = False


@frozen
class ResultOptions:
    """The file that the result goes to."""

    output: Annotated[
        Path | None,
        Option("-o", "--output", metavar="FILE", help="Write the result to this file."),
    ] = None
    step: TableStepOption = None
    csv_raw: CsvRawOption = False


def _certificate(flag: str, what: str) -> object:
    return Option(flag, metavar="FILE", help=what)


@frozen
class ClusterOptions:
    """Where items are run, if not locally (B7)."""

    cluster: Annotated[
        str | None,
        Option(
            "--cluster",
            metavar="WHERE",
            help="Run items on workers: local:4 here, tls://host:8786 on a Dask cluster.",
        ),
    ] = None
    cluster_ca: Annotated[
        Path | None, _certificate("--cluster-ca", "With `tls://`: the CA certificates.")
    ] = None
    cluster_cert: Annotated[
        Path | None, _certificate("--cluster-cert", "With `tls://`: the client certificate.")
    ] = None
    cluster_key: Annotated[
        Path | None,
        _certificate("--cluster-key", "With `tls://`: the key of the client certificate."),
    ] = None


@frozen
class ControlOptions:
    """Where a run can be asked about and answered while it runs (A1)."""

    control: Annotated[
        list[str] | None,
        Option(
            "--control",
            metavar="[ADDRESS]",
            help="Answer other programs, at unix:PATH or HOST:PORT; may be repeated.",
        ),
    ] = None
    allow_remote: Annotated[
        bool, Option("--allow-remote", help="With `--control`: allow addresses of other machines.")
    ] = False
    behind_proxy: Annotated[
        bool, Option("--behind-proxy", help="With `--allow-remote`: a proxy in front has TLS.")
    ] = False
    tls_cert: Annotated[
        Path | None,
        Option("--tls-cert", metavar="FILE", help="With `--control HOST:PORT`: its certificate."),
    ] = None
    tls_key: Annotated[
        Path | None,
        Option("--tls-key", metavar="FILE", help="With `--tls-cert`: the key of the certificate."),
    ] = None


def _report(flag: str, what: str) -> object:
    return Option(flag, metavar="FILE", help=what)


@frozen
class ReportOptions:
    """The reports of a run, made from its journal (B11)."""

    junit: Annotated[Path | None, _report("--junit", "Write a JUnit XML report to this file.")] = (
        None
    )
    html: Annotated[Path | None, _report("--html", "Write an HTML report to this file.")] = None
    sarif: Annotated[
        Path | None, _report("--sarif", "Write the run's annotations as SARIF to this file.")
    ] = None
    github: GitHubOption = False
    otel: OtelOption = False
    otel_endpoint: OtelEndpointOption = None
    otel_content: OtelContentOption = False

    @property
    def at_end(self) -> bool:
        """Whether anything is generated from the journal at the end of the run."""
        files = (self.junit, self.html, self.sarif)
        return self.github or any(file is not None for file in files)

    def files(self, name: str) -> "AbstractContextManager[Callable[[int], int]]":
        """The files while a command runs that makes them; see `report_files`."""
        from contextlib import nullcontext

        if self.junit is None and self.html is None and self.sarif is None:
            return nullcontext(int)
        from aish.cli.report_files import report_files

        return report_files(name, self.junit, self.html, self.sarif)

    @property
    def traced(self) -> bool:
        """Whether traces are sent."""
        return self.otel or self.otel_endpoint is not None


@frozen
class LiveOptions:
    """`aish test` on the real models instead of cassettes (C12)."""

    live: Annotated[
        bool, Option("--live", help="Run the cases on real models, and print a table.")
    ] = False
    models: Annotated[
        list[str] | None,
        Option(
            "-m", "--model", metavar="ALIAS", help="Live: a model, one column; may be repeated."
        ),
    ] = None
    max_cost_usd: Annotated[
        float | None,
        Option(
            "--max-cost-usd", metavar="USD", min=0, help="Live: maximum cost in US dollars: 0.50"
        ),
    ] = None
    timeout: Annotated[
        str | None,
        Option("--timeout", metavar="DURATION", help="Live: maximum duration: 10m."),
    ] = None
    allow: AllowOption = None
    deny: DenyOption = None
    broad_root: BroadRootOption = False
    lock: LockOption = LockUse.ENFORCE
    ask: AskOption = False
    html: Annotated[Path | None, _report("--html", "Live: write the table as an HTML page.")] = None
    baseline: Annotated[
        Path | None, _report("--baseline", "Live: fail on results worse than in this file.")
    ] = None
    write_baseline: Annotated[
        Path | None, _report("--write-baseline", "Live: write the results as a baseline.")
    ] = None

    def first_given(self) -> str | None:
        """The first option that was given, if any."""
        given = {
            "--model": self.models,
            "--max-cost-usd": self.max_cost_usd is not None,
            "--timeout": self.timeout,
            "--allow": self.allow,
            "--deny": self.deny,
            "--allow-broad-root": self.broad_root,
            "--lock": self.lock is not LockUse.ENFORCE,
            "--ask": self.ask,
            "--html": self.html,
            "--baseline": self.baseline,
            "--write-baseline": self.write_baseline,
        }
        return next((option for option, value in given.items() if value), None)


def _cassette(flag: str, what: str) -> object:
    return Option(flag, metavar="[CASSETTE]", help=what)


@frozen
class CassetteOptions:
    """The cassette that a run replays from or records to."""

    record: Annotated[
        Path | None, _cassette("--record", "Record the run to this cassette, or to the file's own.")
    ] = None
    replay: Annotated[
        Path | None,
        _cassette(
            "--replay",
            "Replay the run from this cassette, or from the file's own: no network, no key.",
        ),
    ] = None
    cassette: Annotated[
        Path | None,
        _cassette("--cassette", "Replay from this cassette if it exists, else record it."),
    ] = None
    record_mode: Annotated[
        RecordMode | None,
        Option("--record-mode", help="What to record; without a path, to the file's own cassette."),
    ] = None
    live_tools: Annotated[
        bool, Option("--live-tools", help="Replay only the models; tools run.")
    ] = False
    live_model: Annotated[
        str | None,
        Option(
            "--live-model", metavar="ALIAS", help="Replay only the tools, and compare this model."
        ),
    ] = None
    keep_failed: KeepFailedOption = False
    pace: Annotated[ReplayPace, Option("--pace", help="Speed of replayed answers.")] = (
        ReplayPace.FAST
    )
