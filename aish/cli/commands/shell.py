"""`aish shell [FILE]`: a session on the same file, at a terminal."""

import errno
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from aish.cli.boundary import say
from aish.cli.options import (
    AllowOption,
    Argument,
    BroadRootOption,
    ControlOptions,
    DenyOption,
    LockOption,
    LockUse,
    MaxCostOption,
    MaxTurnsOption,
    Option,
    QuietOption,
    SetOption,
    VerboseOption,
)
from aish.cli.pipeline_options import load
from aish.config.model import Pipeline
from aish.core.frozen import frozen, slotted
from aish.engine.plan.options import RunOptions
from aish.output.event_log import Sink
from aish.shell.app import run_shell
from aish.shell.outputs import SessionOutput
from aish.shell.prepared_session import SessionOptions, session_file

if TYPE_CHECKING:
    from aish.features.control.run_services import ControlRequest


@frozen
class Beginning:
    """Options for the start of a session."""

    model: Annotated[
        str | None,
        Option(
            "-m",
            "--model",
            metavar="ALIAS",
            help="The model at the start.",
            completes="model_aliases",
        ),
    ] = None
    overrides: SetOption = None
    resume: Annotated[
        str | None,
        Option(
            "--resume",
            metavar="[ID]",
            help="Resume a session: the newest, or the one with this id.",
            completes="run_ids",
        ),
    ] = None


@frozen
class Allowing:
    """Options for permissions and limits."""

    allow: AllowOption = None
    deny: DenyOption = None
    broad_root: BroadRootOption = False
    lock: LockOption = LockUse.ENFORCE
    max_cost_usd: MaxCostOption = None
    max_turns: MaxTurnsOption = None


@frozen
class Showing:
    """Options for output and files."""

    plain: Annotated[bool, Option("--plain", help="Do not render Markdown.")] = False
    run_dir: Annotated[
        Path | None,
        Option("--run-dir", metavar="DIR", help="The folder for session folders."),
    ] = None
    ephemeral: Annotated[bool, Option("--ephemeral", help="Keep no session folder.")] = False
    quiet: QuietOption = False
    verbose: VerboseOption = False


def command(
    file: Annotated[
        Path | None,
        Argument(metavar="[FILE]", help="The pipeline file; default: ./aish.yaml, then your own."),
    ] = None,
    *,
    beginning: Beginning,
    allowing: Allowing,
    showing: Showing,
    controlling: ControlOptions,
) -> int:
    """Talk with the models of a pipeline file, at a terminal.

    Lines are for the model, `:help` lists commands. Without a terminal lines come from stdin,
    answers go to stdout, and what needs asking is denied.

    Example: aish shell pipelines/enrich.yaml
    """
    environ = dict(os.environ)
    path = session_file(file)
    pipeline = load(path, beginning.overrides, quiet=showing.quiet, lock=allowing.lock)
    options = RunOptions(
        model=beginning.model,
        allow=tuple(allowing.allow or ()),
        deny=tuple(allowing.deny or ()),
        max_cost_usd=allowing.max_cost_usd,
        max_turns=allowing.max_turns,
        allow_broad_root=allowing.broad_root,
        lock=allowing.lock.value,
        servers_required=False,
        environ=environ,
    )
    output = SessionOutput(
        is_attended(environ), plain=showing.plain, quiet=showing.quiet, verbose=showing.verbose
    )
    lost = _LostOutput()
    wanted = SessionOptions(
        output,
        lost,
        showing.run_dir,
        showing.ephemeral,
        beginning.resume,
        _control_request(pipeline, controlling),
    )
    end = run_shell(pipeline, options, wanted)
    return end.code or int(lost.any)


def _control_request(pipeline: Pipeline, wanted: ControlOptions) -> "ControlRequest | None":
    """Where the session listens; `None` if it opens no socket.

    Raises:
        UsageError: the options do not fit together.
    """
    settings, waits = pipeline.control, pipeline.asking.on_ask != "deny"
    if wanted == ControlOptions() and not settings.listen and not waits:
        return None
    from aish.cli.control_options import control_request

    return control_request(wanted, settings, waits=waits)


def is_attended(environ: Mapping[str, str]) -> bool:
    """Whether a person is present: both ends are terminals, and this is not a CI job (1.2).

    A terminal without escape sequences is handled like a pipe.
    """
    terminals = all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stdout))
    able = environ.get("TERM", "") not in {"", "dumb"}
    return terminals and able and environ.get("CI", "") in {"", "0", "false"}


@slotted
class _LostOutput:
    """Reports output that could not be written; a closed output is not reported."""

    any: bool = False

    def __call__(self, sink: Sink, error: OSError) -> None:
        if error.errno == errno.EPIPE:
            say(f"note: {sink.name}: output closed early (broken pipe)")
        else:
            self.any = True
            say(f"error: cannot write {sink.name}: {error.strerror or error}")
