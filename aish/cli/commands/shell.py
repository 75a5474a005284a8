"""`aish shell [FILE]`: a session on the same file, at a terminal."""

import errno
import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated

from aish.cli.boundary import say
from aish.cli.options import (
    Argument,
    ControlOptions,
    MaxCostOption,
    MaxTurnsOption,
    Option,
    QuietOption,
    RuleOptions,
    SetOption,
    VerboseOption,
)
from aish.cli.pipeline_options import control_request, load, look_options
from aish.core.frozen import frozen, slotted
from aish.output.event_log import Sink
from aish.shell.app import run_shell
from aish.shell.outputs import SessionOutput
from aish.shell.prepared_session import SessionOptions, session_file


@frozen
class Beginning:
    """Options for the start of a session."""

    model: Annotated[
        str | None, Option("-m --model ALIAS", "The model at the start.", completes="model_aliases")
    ] = None
    overrides: SetOption = None
    resume: Annotated[
        str | None,
        Option(
            "--resume [ID]",
            "Resume a session: the newest, or the one with this id.",
            completes="run_ids",
        ),
    ] = None


@frozen
class Showing:
    plain: Annotated[bool, Option("--plain", "Do not render Markdown.")] = False
    run_dir: Annotated[Path | None, Option("--run-dir DIR", "The folder for session folders.")] = (
        None
    )
    ephemeral: Annotated[bool, Option("--ephemeral", "Keep no session folder.")] = False
    quiet: QuietOption = False
    verbose: VerboseOption = False


def command(
    file: Annotated[
        Path | None, Argument("[FILE]", "The pipeline file; default: ./aish.yaml, then your own.")
    ] = None,
    *,
    beginning: Beginning,
    rules: RuleOptions,
    max_cost_usd: MaxCostOption = None,
    max_turns: MaxTurnsOption = None,
    showing: Showing,
    controlling: ControlOptions,
) -> int:
    """Talk with the models of a pipeline file, at a terminal.

    Lines are for the model, `:help` lists commands. Without a terminal lines come from stdin,
    answers go to stdout, and calls that need an approval are denied.

    Example: aish shell pipelines/enrich.yaml
    """
    path = session_file(file)
    pipeline = load(path, beginning.overrides, quiet=showing.quiet, lock=rules.lock)
    options = replace(
        look_options(rules),
        model=beginning.model,
        max_cost_usd=max_cost_usd,
        max_turns=max_turns,
        servers_required=False,
    )
    output = SessionOutput(
        is_attended(os.environ), plain=showing.plain, quiet=showing.quiet, verbose=showing.verbose
    )
    lost = _LostOutput()
    session_options = SessionOptions(
        output,
        lost,
        showing.run_dir,
        showing.ephemeral,
        beginning.resume,
        control_request(controlling, pipeline.control, waits=pipeline.asking.on_ask != "deny"),
    )
    end = run_shell(pipeline, options, session_options)
    return end.code or int(lost.any)


def is_attended(environ: Mapping[str, str]) -> bool:
    """Return true if a person is present: both ends are terminals, and this is not a CI job.

    A terminal without escape sequences is handled like a pipe.
    """
    terminals = all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stdout))
    able = environ.get("TERM", "") not in {"", "dumb"}
    return terminals and able and environ.get("CI", "") in {"", "0", "false"}


@slotted
class _LostOutput:
    any: bool = False

    def __call__(self, sink: Sink, error: OSError) -> None:
        if error.errno == errno.EPIPE:
            say(f"note: {sink.name}: output closed early (broken pipe)")
        else:
            self.any = True
            say(f"error: cannot write {sink.name}: {error.strerror or error}")
