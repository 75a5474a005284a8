"""Options and arguments of commands; those that several commands share are declared once.

A command's parameter is `Annotated[TYPE, Option(...)] = DEFAULT`. The declarations are data, which
both parsers of the command line read: `arguments` and, for everything else, `typer_parser`. The
commands that run a pipeline take theirs in groups: a parameter whose type is one of the dataclasses
below means an option for each of its fields.
"""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypedDict, Unpack

from aish.core.errors import UsageError
from aish.core.frozen import frozen
from aish.system.files import PROJECT_FILE

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager


class Details(TypedDict, total=False):
    """More of an option or argument; `completes` names a function of `completion`."""

    min: float
    hidden: bool
    completes: str


class Option:
    """An option by its names, with that of its value unless it is a flag: `-o --output FILE`."""

    def __init__(self, spelled: str, text: str, **details: Unpack[Details]) -> None:
        words = spelled.split()
        self.names = tuple(word for word in words if word.startswith("-"))
        self.details: dict[str, object] = {"help": text, **details}
        if len(words) > len(self.names):
            self.details["metavar"] = words[-1]


class Argument:
    """A positional argument; the last one of a command may be a list."""

    def __init__(self, metavar: str, text: str, **details: Unpack[Details]) -> None:
        self.details: dict[str, object] = {"metavar": metavar, "help": text, **details}


class Format(StrEnum):
    TEXT = "text"
    JSON = "json"
    JSONL = "jsonl"


class Report(StrEnum):
    TEXT = "text"
    JSON = "json"


class LockUse(StrEnum):
    ENFORCE = "enforce"
    WARN = "warn"
    NONE = "none"


FileArgument = Annotated[Path, Argument("FILE", "The pipeline file.")]
ProjectFileArgument = Annotated[Path, Argument("[FILE]", "The pipeline file.")]
OWN_FILE = Path(PROJECT_FILE)
_LONGEST_NUMBER = 4
CassetteArgument = Annotated[Path, Argument("CASSETTE", "The cassette.")]
SetOption = Annotated[
    list[str] | None,
    Option("--set PATH=VALUE", "Override one value: models.cloud.params.temperature=0"),
]
AllowOption = Annotated[
    list[str] | None,
    Option("--allow GLOB", "Add a rule that approves: alias__tool.", completes="tool_globs"),
]
DenyOption = Annotated[
    list[str] | None,
    Option("--deny GLOB", "Add a rule that denies: alias__tool.", completes="tool_globs"),
]
TimeoutOption = Annotated[
    str | None, Option("--timeout DURATION", "Maximum duration of the run: 90s, 10m.")
]
MaxCostOption = Annotated[
    float | None, Option("--max-cost-usd USD", "Maximum cost of models in US dollars: 0.50", min=0)
]
MaxTurnsOption = Annotated[
    int | None, Option("--max-turns N", "Maximum number of model turns.", min=1)
]
QuietOption = Annotated[bool, Option("-q --quiet", "Only errors on stderr.")]
VerboseOption = Annotated[bool, Option("-v --verbose", "Show a bug's traceback.")]
StrictOption = Annotated[bool, Option("--strict", "Warnings are errors.")]
ControlOption = Annotated[
    list[str] | None,
    Option(
        "--control [ADDRESS]",
        "Let other programs connect, at unix:PATH or HOST:PORT; may be repeated.",
    ),
]
RunArgument = Annotated[
    str, Argument("ID", "The run: its id, the end of its id, or `latest`.", completes="run_ids")
]
AskingArgument = Annotated[
    str,
    Argument(
        "RUN",
        "The run or server: its id, or its end; `latest`: the newest run, or the only server.",
        completes="run_ids",
    ),
]
ReportOption = Annotated[Report, Option("--format", "Output format.")]
AskOption = Annotated[
    bool, Option("--ask", "Ask at the terminal about calls that no rule decides.")
]
RunDirOption = Annotated[Path | None, Option("--run-dir DIR", "The folder for run folders.")]
PastRunDirOption = Annotated[
    Path | None, Option("--run-dir DIR", "The folder of the runs; default: `.aish/runs`.")
]
NoKeyCheckOption = Annotated[
    bool,
    Option(
        "--no-key-check",
        "Skip the check for duplicate keys, which reads all items before the first request: "
        "for"
        " files that are large or slow to read. Pipes are refused as items either way.",
    ),
]
TableStepOption = Annotated[
    str | None, Option("--step ID", "With `-o FILE.csv`: which step's items.")
]
CsvRawOption = Annotated[
    bool,
    Option("--csv-raw", "With `-o FILE.csv`: no apostrophe before text that looks like a formula."),
]
BroadRootOption = Annotated[
    bool, Option("--allow-broad-root", "Allow a tool pack to have `/` or your home as its root.")
]
KeepFailedOption = Annotated[
    bool, Option("--keep-failed", "Write the recording of a failed run to CASSETTE.failed.")
]
LockOption = Annotated[
    LockUse, Option("--lock", "Differences from the lock file: exit 7, a warning, or no lock file.")
]
NoFetchOption = Annotated[
    bool, Option("--no-fetch", "Fetch no server from a registry: exit 5 if one is missing.")
]
GitHubOption = Annotated[
    bool, Option("--github", "Write the step summary and annotations of GitHub Actions.")
]
OtelOption = Annotated[bool, Option("--otel", "Send traces to an OpenTelemetry collector.")]
OtelEndpointOption = Annotated[
    str | None,
    Option("--otel-endpoint URL", "Send traces there; default: OTEL_EXPORTER_OTLP_ENDPOINT."),
]
OtelContentOption = Annotated[
    bool, Option("--otel-content", "Include answers, arguments and results in traces.")
]


class DeliveryUse(StrEnum):
    SINGLE = "single"
    BATCH = "batch"


class RecordMode(StrEnum):
    """The parts of a cassette that are replayed or recorded."""

    NONE = "none"
    ONCE = "once"
    NEW_EPISODES = "new_episodes"
    ALL = "all"


class ReplayPace(StrEnum):
    FAST = "fast"
    RECORDED = "recorded"


@frozen
class InputOptions:
    """Values for the inputs and variables of the file."""

    inputs: Annotated[
        list[str] | None, Option("-i --input NAME=VALUE", "Set an input; NAME=@FILE reads a file.")
    ] = None
    input_texts: Annotated[
        list[str] | None,
        Option(
            "--input-text NAME=VALUE",
            "Set an input to a text that others wrote; it is never the name of a file.",
        ),
    ] = None
    inputs_file: Annotated[
        str | None,
        Option("--inputs FILE", "Read inputs from a JSON or YAML file; `-` reads stdin."),
    ] = None
    overrides: SetOption = None
    model: Annotated[
        str | None,
        Option("-m --model ALIAS", "Use this model for every step.", completes="model_aliases"),
    ] = None


@frozen
class RuleOptions:
    allow: AllowOption = None
    deny: DenyOption = None
    broad_root: BroadRootOption = False
    lock: LockOption = LockUse.ENFORCE
    no_fetch: NoFetchOption = False


@frozen
class PolicyOptions:
    allow: AllowOption = None
    deny: DenyOption = None
    broad_root: BroadRootOption = False
    lock: LockOption = LockUse.ENFORCE
    no_fetch: NoFetchOption = False
    ask: AskOption = False
    timeout: TimeoutOption = None
    max_cost_usd: MaxCostOption = None
    max_turns: MaxTurnsOption = None


@frozen
class OutputOptions:
    output_format: Annotated[Format, Option("--format", "Output format.")] = Format.TEXT
    stream: Annotated[bool, Option("--stream", "Stream the answer to stdout.")] = False
    run_dir: RunDirOption = None
    ephemeral: Annotated[bool, Option("--ephemeral", "Keep no run folder.")] = False
    staged: Annotated[
        Path | None,
        Option("--staged FILE", "Write staged calls to this file, not into the run folder."),
    ] = None
    quiet: QuietOption = False
    verbose: VerboseOption = False


@frozen
class ResumeOptions:
    """An interrupted run, and which parts of it are repeated."""

    resume: Annotated[
        str | None,
        Option(
            "--resume [ID]",
            "Resume a run: the newest of the file, or the one with this id.",
            completes="run_ids",
        ),
    ] = None
    retry_failed: Annotated[
        bool, Option("--retry-failed", "With `--resume`: run failed items again.")
    ] = False
    retry_unknown: Annotated[
        bool, Option("--retry-unknown", "With `--resume`: retry calls with unknown outcome.")
    ] = False
    force: Annotated[
        bool, Option("--force", "With `--resume`: continue although the file or inputs changed.")
    ] = False


@frozen
class BatchOptions:
    """The number of items at once, and the choice of items."""

    concurrency: Annotated[
        int | None,
        Option("--concurrency N", "Maximum number of steps and items at the same time.", min=1),
    ] = None
    delivery: Annotated[
        DeliveryUse | None,
        Option("--delivery HOW", "How requests go to models: single, or batch (at half price)."),
    ] = None
    shard: Annotated[str | None, Option("--shard I/N", "Run one shard of the items: 2/8.")] = None
    no_key_check: NoKeyCheckOption = False


@frozen
class ResultOptions:
    output: Annotated[Path | None, Option("-o --output FILE", "Write the result to this file.")] = (
        None
    )
    step: TableStepOption = None
    csv_raw: CsvRawOption = False


@frozen
class ClusterOptions:
    """The machines that items run on, if not locally."""

    cluster: Annotated[
        str | None,
        Option(
            "--cluster WHERE",
            "Run items on workers: local:4 here, tls://host:8786 on a Dask cluster.",
        ),
    ] = None
    cluster_ca: Annotated[
        Path | None, Option("--cluster-ca FILE", "With `tls://`: the CA certificates.")
    ] = None
    cluster_cert: Annotated[
        Path | None, Option("--cluster-cert FILE", "With `tls://`: the client certificate.")
    ] = None
    cluster_key: Annotated[
        Path | None,
        Option("--cluster-key FILE", "With `tls://`: the key of the client certificate."),
    ] = None


@frozen
class ControlOptions:
    """The addresses at which a run is asked and answered while it runs."""

    control: ControlOption = None
    allow_remote: Annotated[
        bool, Option("--allow-remote", "With `--control`: allow addresses of other machines.")
    ] = False
    behind_proxy: Annotated[
        bool, Option("--behind-proxy", "With `--allow-remote`: a proxy in front does TLS.")
    ] = False
    tls_cert: Annotated[
        Path | None, Option("--tls-cert FILE", "With `--control HOST:PORT`: its certificate.")
    ] = None
    tls_key: Annotated[
        Path | None, Option("--tls-key FILE", "With `--tls-cert`: the key of the certificate.")
    ] = None


@frozen
class ReportOptions:
    """The reports of a run, made from its journal."""

    junit: Annotated[
        Path | None, Option("--junit FILE", "Write a JUnit XML report to this file.")
    ] = None
    html: Annotated[Path | None, Option("--html FILE", "Write an HTML report to this file.")] = None
    sarif: Annotated[
        Path | None, Option("--sarif FILE", "Write the run's annotations as SARIF to this file.")
    ] = None
    github: GitHubOption = False
    otel: OtelOption = False
    otel_endpoint: OtelEndpointOption = None
    otel_content: OtelContentOption = False

    @property
    def at_end(self) -> bool:
        """True if anything is generated from the journal at the end of the run."""
        files = (self.junit, self.html, self.sarif)
        return self.github or any(file is not None for file in files)

    @property
    def shows_changes(self) -> bool:
        """True if anything shows which files the run has changed."""
        return self.github or self.html is not None

    def files(self, name: str) -> "AbstractContextManager[Callable[[int], int]]":
        """The files while a command runs that makes them; see `report_files`."""
        from contextlib import nullcontext

        if self.junit is None and self.html is None and self.sarif is None:
            return nullcontext(int)
        from aish.cli.report_files import report_files

        return report_files(name, self.junit, self.html, self.sarif)

    @property
    def traced(self) -> bool:
        return self.otel or self.otel_endpoint is not None


@frozen
class LiveOptions:
    """`aish test` on the real models instead of cassettes."""

    live: Annotated[bool, Option("--live", "Run the cases on real models, and print a table.")] = (
        False
    )
    recorded_tools: Annotated[
        bool,
        Option(
            "--recorded-tools",
            "Live: ask the models only; the results of tools are those of the cassettes.",
        ),
    ] = False
    models: Annotated[
        list[str] | None, Option("-m --model ALIAS", "Live: a model, one column; may be repeated.")
    ] = None
    max_cost_usd: Annotated[
        float | None, Option("--max-cost-usd USD", "Live: maximum cost in US dollars: 0.50", min=0)
    ] = None
    timeout: Annotated[str | None, Option("--timeout DURATION", "Live: maximum duration: 10m.")] = (
        None
    )
    allow: AllowOption = None
    deny: DenyOption = None
    broad_root: BroadRootOption = False
    lock: LockOption = LockUse.ENFORCE
    no_fetch: NoFetchOption = False
    ask: AskOption = False
    html: Annotated[
        Path | None, Option("--html FILE", "Live: write the table as an HTML page.")
    ] = None
    baseline: Annotated[
        Path | None, Option("--baseline FILE", "Live: fail on results worse than in this file.")
    ] = None
    write_baseline: Annotated[
        Path | None, Option("--write-baseline FILE", "Live: write the results as a baseline.")
    ] = None
    extend_baseline: Annotated[
        Path | None,
        Option("--extend-baseline FILE", "Live: add the results, as a session, to a baseline."),
    ] = None
    against: Annotated[
        str | None,
        Option(
            "--against ALIAS",
            "Live: compare with this model, or with `itself`.",
        ),
    ] = None
    repeat: Annotated[
        int | None,
        Option("--repeat N", "Live: run each case so many times on each model.", min=1, max=100),
    ] = None
    all_runs: Annotated[
        bool, Option("--all-runs", "Live: do not stop repeated runs once the verdict is known.")
    ] = False

    def first_given(self) -> str | None:
        options = {
            "--recorded-tools": self.recorded_tools,
            "--model": self.models,
            "--max-cost-usd": self.max_cost_usd is not None,
            "--timeout": self.timeout,
            "--allow": self.allow,
            "--deny": self.deny,
            "--allow-broad-root": self.broad_root,
            "--lock": self.lock is not LockUse.ENFORCE,
            "--no-fetch": self.no_fetch,
            "--ask": self.ask,
            "--html": self.html,
            "--baseline": self.baseline,
            "--write-baseline": self.write_baseline,
            "--extend-baseline": self.extend_baseline,
            "--against": self.against,
            "--repeat": self.repeat is not None,
            "--all-runs": self.all_runs,
        }
        return next((option for option, value in options.items() if value), None)


@frozen
class CaseOptions:
    """The cases of `aish test`, and their reports."""

    paths: Annotated[
        list[Path] | None,
        Argument(
            "[PATH...]",
            "Pipeline files or folders; default: `pipelines/`, or this folder if that is missing "
            "or `aish.yaml` is here.",
        ),
    ] = None
    keyword: Annotated[str, Option("-k TEXT", "Cases whose names contain this text.")] = ""
    processes: Annotated[
        str | None, Option("-n N", "Run N cases at a time; `auto` is one for each core.")
    ] = None
    stop_first: Annotated[
        bool, Option("-x --exitfirst", "Stop at the first case that does not pass.")
    ] = False
    junit: Annotated[Path | None, Option("--junit FILE", "Write JUnit XML to this file.")] = None
    github: GitHubOption = False
    output_format: ReportOption = Report.TEXT

    @property
    def width(self) -> int | None:
        """The number of cases at a time, if one is given.

        Raises:
            UsageError: it is not a number.
        """
        text = self.processes
        if text is None:
            return None
        if text == "auto":
            from aish.system.platform.processes import count_processors

            return count_processors()
        if not (text.isascii() and text.isdigit() and len(text) <= _LONGEST_NUMBER and int(text)):
            message = f"`{text}` is not a number of processes"
            raise UsageError(message, where="-n", hint="2, or `auto`")
        return int(text)


@frozen
class CassetteOptions:
    """The cassette that a run replays from or records to."""

    record: Annotated[
        Path | None,
        Option("--record [CASSETTE]", "Record the run to this cassette, or to the file's own."),
    ] = None
    replay: Annotated[
        Path | None,
        Option(
            "--replay [CASSETTE]",
            "Replay the run from this cassette, or from the file's own: no network, no key.",
        ),
    ] = None
    cassette: Annotated[
        Path | None,
        Option("--cassette [CASSETTE]", "Replay from this cassette if it exists, else record it."),
    ] = None
    record_mode: Annotated[
        RecordMode | None,
        Option("--record-mode", "What to record; without a path, to the file's own cassette."),
    ] = None
    live_tools: Annotated[bool, Option("--live-tools", "Replay only the models; tools run.")] = (
        False
    )
    live_model: Annotated[
        str | None, Option("--live-model ALIAS", "Replay only the tools, and compare this model.")
    ] = None
    keep_failed: KeepFailedOption = False
    pace: Annotated[ReplayPace, Option("--pace", "Speed of replayed answers.")] = ReplayPace.FAST


@frozen
class RunRequest:
    """The options of a command that runs a pipeline; `model` answers every prompt."""

    inputs: InputOptions
    policy: PolicyOptions
    output: OutputOptions
    result: ResultOptions = ResultOptions()
    model: str | None = None
    resume: ResumeOptions = ResumeOptions()
    reports: ReportOptions = ReportOptions()
    batch: BatchOptions = BatchOptions()
    cluster: ClusterOptions = ClusterOptions()
    control: ControlOptions = ControlOptions()
