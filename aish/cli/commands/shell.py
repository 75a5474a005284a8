"""`aish shell [FILE]`: a session on the same file, at a terminal."""

import os
from pathlib import Path
from typing import Annotated

import typer

from aish.cli.loading import load
from aish.cli.options import (
    AllowOption,
    BroadRootOption,
    DenyOption,
    LockOption,
    LockUse,
    MaxCostOption,
    MaxTurnsOption,
    QuietOption,
    SetOption,
    VerboseOption,
)
from aish.cli.shelling import Wanted, is_attended, run_shell
from aish.run.options import RunOptions
from aish.shell.outlets import Told
from aish.shell.place import session_file


def command(
    file: Annotated[
        Path | None,
        typer.Argument(metavar="[FILE]", help="The pipeline file; else ./aish.yaml, or your own."),
    ] = None,
    *,
    model: Annotated[
        str | None, typer.Option("-m", "--model", metavar="ALIAS", help="The model to begin with.")
    ] = None,
    overrides: SetOption = None,
    allow: AllowOption = None,
    deny: DenyOption = None,
    broad_root: BroadRootOption = False,
    lock: LockOption = LockUse.ENFORCE,
    max_cost_usd: MaxCostOption = None,
    max_turns: MaxTurnsOption = None,
    resume: Annotated[
        str | None,
        typer.Option(
            "--resume", metavar="[ID]", help="Go on with a session: the newest, or that of an id."
        ),
    ] = None,
    plain: Annotated[
        bool, typer.Option("--plain", help="Answers as they come, not drawn as Markdown.")
    ] = False,
    run_dir: Annotated[
        Path | None,
        typer.Option("--run-dir", metavar="DIR", help="Where session folders are made."),
    ] = None,
    ephemeral: Annotated[
        bool, typer.Option("--ephemeral", help="Leave no session folder behind.")
    ] = False,
    quiet: QuietOption = False,
    verbose: VerboseOption = False,
) -> int:
    """Talk with the models of a pipeline file, at a terminal.

    Lines are for the model, `:help` lists commands. Without a terminal lines come from stdin,
    answers go to stdout, and what needs asking is denied.

    Example: aish shell pipelines/quickstart.yaml
    """
    environ = dict(os.environ)
    pipeline = load(session_file(file), overrides, quiet=quiet)
    options = RunOptions(
        model=model,
        allow=tuple(allow or ()),
        deny=tuple(deny or ()),
        max_cost_usd=max_cost_usd,
        max_turns=max_turns,
        allow_broad_root=broad_root,
        lock=lock.value,
        servers_required=False,
        environ=environ,
    )
    told = Told(is_attended(environ), plain=plain, quiet=quiet, verbose=verbose)
    return run_shell(pipeline, options, Wanted(told, run_dir, ephemeral, resume))
