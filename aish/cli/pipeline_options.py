"""From the options that every command shares to a loaded file and its inputs."""

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from aish.cli.boundary import say
from aish.cli.options import LockUse
from aish.config.fields import duration
from aish.config.inputs import collect_inputs
from aish.config.model import Pipeline
from aish.core.errors import PipelineError, Problem, UsageError
from aish.core.frozen import frozen
from aish.core.json import JsonValue
from aish.engine.plan.options import RunOptions
from aish.engine.plan.order import uses_stdin
from aish.engine.plan.plan import load_checked


@frozen
class Given:
    """The values for a pipeline from the command line, as typed.

    `earlier` and `stdin` are what a resumed run was given when it started.
    """

    inputs: Sequence[str] | None
    inputs_file: str | None
    model: str | None
    allow_broad_root: bool = False
    earlier: Mapping[str, JsonValue] | None = None
    stdin: str | None = None


STDIN_LIMIT = 64 * 1024 * 1024


def load(
    file: Path,
    overrides: Sequence[str] | None,
    *,
    strict: bool = False,
    quiet: bool = False,
    lock: LockUse = LockUse.ENFORCE,
) -> Pipeline:
    """The pipeline of a file with all checks of F10 and F11; warnings are printed unless `quiet`.

    Raises:
        PipelineError: all that is wrong with it; with `strict` also warnings.
    """
    odd: list[Problem] = []
    pipeline = load_checked(
        file, tuple(overrides or ()), odd.append, locked=lock is not LockUse.NONE
    )
    if odd and strict:
        raise PipelineError(tuple(replace(problem, warning=False) for problem in odd))
    if not quiet:
        for problem in odd:
            say(f"warning: {problem}")
    return pipeline


def read_stdin() -> str:
    """Piped text.

    Raises:
        UsageError: it is too large, or not UTF-8.
    """
    data = sys.stdin.buffer.read(STDIN_LIMIT + 1)
    if len(data) > STDIN_LIMIT:
        raise UsageError(f"more than {STDIN_LIMIT // 1024**2} MiB of input", where="stdin")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(f"not UTF-8 at byte {error.start}", where="stdin") from error


def run_options(
    pipeline: Pipeline,
    given: Given,
    *,
    allow: Sequence[str] | None,
    deny: Sequence[str] | None,
    timeout: str | None,
    lock: LockUse = LockUse.ENFORCE,
) -> RunOptions:
    """The options of one run, inputs checked against their schemas (F9)."""
    wants_stdin = uses_stdin(pipeline)
    if wants_stdin and given.inputs_file == "-":
        raise UsageError(
            "the file reads `{{ stdin }}`, so `--inputs -` cannot read it too",
            hint="give the inputs as a file or with `-i`",
        )
    stdin = read_stdin() if wants_stdin and not sys.stdin.isatty() else None
    if not stdin and given.stdin is not None:
        stdin = given.stdin
    return RunOptions(
        inputs=collect_inputs(
            pipeline, given.inputs or (), given.inputs_file, read_stdin, given.earlier
        ),
        stdin=stdin,
        model=given.model,
        allow_broad_root=given.allow_broad_root,
        allow=tuple(allow or ()),
        deny=tuple(deny or ()),
        timeout=seconds_of(timeout),
        lock=lock.value,
        environ=dict(os.environ),
    )


def seconds_of(text: str | None) -> float | None:
    """The value of `--timeout`.

    Raises:
        UsageError: it is not a valid duration.
    """
    if text is None:
        return None
    try:
        return duration(text)
    except ValueError as error:
        raise UsageError(str(error), where="--timeout", hint="for example 90s or 10m") from error


def look_options(
    allow: Sequence[str] | None,
    deny: Sequence[str] | None,
    *,
    allow_broad_root: bool,
    lock: LockUse = LockUse.ENFORCE,
) -> RunOptions:
    """Options of a command that only inspects tools."""
    return RunOptions(
        allow=tuple(allow or ()),
        deny=tuple(deny or ()),
        allow_broad_root=allow_broad_root,
        lock=lock.value,
        environ=dict(os.environ),
    )
