"""The options of the commands that run a pipeline, in groups (design 10.4)."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from aish.cli.options import (
    AllowOption,
    AskOption,
    BroadRootOption,
    DenyOption,
    EphemeralOption,
    Format,
    InputOption,
    InputsOption,
    LockOption,
    LockUse,
    ModelOption,
    QuietOption,
    RunDirOption,
    SetOption,
    TimeoutOption,
    VerboseOption,
)
from aish.vocab.frozen import frozen


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
    """What a run may do, and for how long."""

    allow: AllowOption = None
    deny: DenyOption = None
    broad_root: BroadRootOption = False
    lock: LockOption = LockUse.ENFORCE
    ask: AskOption = False
    timeout: TimeoutOption = None


@frozen
class Telling:
    """How a run is told, and what it leaves behind."""

    format_: Annotated[Format, typer.Option("--format", help="What stdout carries.")] = Format.TEXT
    stream: Annotated[
        bool, typer.Option("--stream", help="Write the answer to stdout as it comes.")
    ] = False
    run_dir: RunDirOption = None
    ephemeral: EphemeralOption = False
    quiet: QuietOption = False
    verbose: VerboseOption = False


def _cassette(flag: str, what: str) -> object:
    return typer.Option(flag, metavar="CASSETTE", help=what)


@frozen
class Taping:
    """Which cassette a run plays from or records to."""

    record: Annotated[Path | None, _cassette("--record", "Record the run there.")] = None
    replay: Annotated[
        Path | None, _cassette("--replay", "Replay the run from there: no network, no key.")
    ] = None
    cassette: Annotated[
        Path | None, _cassette("--cassette", "Record there, or replay from there if it is there.")
    ] = None
    record_mode: Annotated[
        RecordMode | None,
        typer.Option("--record-mode", help="What is recorded; without a path to the file's own."),
    ] = None
    live_tools: Annotated[
        bool, typer.Option("--live-tools", help="Replay the models only; tools run.")
    ] = False
    live_model: Annotated[
        str | None,
        typer.Option(
            "--live-model", metavar="ALIAS", help="Replay the tools only, and compare this model."
        ),
    ] = None
    pace: Annotated[ReplayPace, typer.Option("--pace", help="How fast recorded answers come.")] = (
        ReplayPace.FAST
    )
