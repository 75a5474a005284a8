"""The options of the commands that run a pipeline, in groups (design 10.4)."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

from aish.cli.options import (
    AllowOption,
    AskOption,
    BroadRootOption,
    CsvRawOption,
    DenyOption,
    EphemeralOption,
    Format,
    GitHubOption,
    InputOption,
    InputsOption,
    KeepFailedOption,
    LockOption,
    LockUse,
    MaxCostOption,
    MaxTurnsOption,
    ModelOption,
    NoKeyCheckOption,
    Option,
    OtelContentOption,
    OtelEndpointOption,
    OtelOption,
    QuietOption,
    RunDirOption,
    SetOption,
    StagedOption,
    TableStepOption,
    TimeoutOption,
    VerboseOption,
)
from aish.core.frozen import frozen


class RecordMode(StrEnum):
    """What is played from a cassette and what is recorded to it (C7)."""

    NONE = "none"
    ONCE = "once"
    NEW_EPISODES = "new_episodes"
    ALL = "all"


class ReplayPace(StrEnum):
    """How fast a replay is."""

    FAST = "fast"
    RECORDED = "recorded"


@frozen
class Filling:
    """What fills the file in."""

    inputs: InputOption = None
    inputs_file: InputsOption = None
    overrides: SetOption = None
    model: ModelOption = None


@frozen
class Ruling:
    """What a run may do, for how long, and for how much."""

    allow: AllowOption = None
    deny: DenyOption = None
    broad_root: BroadRootOption = False
    lock: LockOption = LockUse.ENFORCE
    ask: AskOption = False
    timeout: TimeoutOption = None
    max_cost_usd: MaxCostOption = None
    max_turns: MaxTurnsOption = None


@frozen
class Telling:
    """How a run is told, and what it leaves behind."""

    format_: Annotated[Format, Option("--format", help="Output format.")] = Format.TEXT
    stream: Annotated[bool, Option("--stream", help="Stream the answer to stdout.")] = False
    run_dir: RunDirOption = None
    ephemeral: EphemeralOption = False
    staged: StagedOption = None
    quiet: QuietOption = False
    verbose: VerboseOption = False


@frozen
class Resuming:
    """A run that was interrupted, and what of it is run again."""

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
class Batching:
    """How many items at once, and which of them (B4, B6)."""

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
class Writing:
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
class Spreading:
    """Where items are run, if not here (B7)."""

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


def _report(flag: str, what: str) -> object:
    return Option(flag, metavar="FILE", help=what)


@frozen
class Reporting:
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
        """Whether anything is made of the journal when the run has ended."""
        files = (self.junit, self.html, self.sarif)
        return self.github or any(file is not None for file in files)

    @property
    def traced(self) -> bool:
        """Whether traces are sent."""
        return self.otel or self.otel_endpoint is not None


@frozen
class LiveTesting:
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
        """An option that was given, where there is one."""
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
class Taping:
    """Which cassette a run plays from or records to."""

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
