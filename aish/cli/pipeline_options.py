"""From the options that every command shares to a loaded file and its inputs."""

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from aish.cli.boundary import say
from aish.cli.options import (
    ControlOptions,
    InputOptions,
    LiveOptions,
    LockUse,
    PolicyOptions,
    RuleOptions,
)
from aish.config.fields import duration
from aish.config.inputs import collect_inputs, join_inputs
from aish.config.model import ControlSettings, Pipeline
from aish.core.errors import PipelineError, Problem, UsageError
from aish.core.json import JsonValue
from aish.engine.plan.options import RunOptions
from aish.engine.plan.order import uses_stdin
from aish.engine.plan.plan import load_checked

if TYPE_CHECKING:
    from aish.features.control.run_services import ControlRequest

STDIN_LIMIT = 64 * 1024 * 1024


def load(
    file: Path,
    overrides: Sequence[str] | None,
    *,
    strict: bool = False,
    quiet: bool = False,
    lock: LockUse = LockUse.ENFORCE,
) -> Pipeline:
    """The pipeline of a file with all checks; warnings are printed unless `quiet`.

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
    data = sys.stdin.buffer.read(STDIN_LIMIT + 1)
    if len(data) > STDIN_LIMIT:
        raise UsageError(f"more than {STDIN_LIMIT // 1024**2} MiB of input", where="stdin")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(f"not UTF-8 at byte {error.start}", where="stdin") from error


def run_options(
    pipeline: Pipeline,
    given: InputOptions,
    rules: RuleOptions | PolicyOptions,
    earlier: Mapping[str, JsonValue] | None = None,
    earlier_stdin: str | None = None,
) -> RunOptions:
    """The options of one run, inputs checked against their schemas.

    A resumed run has those inputs from its start that are not given again.
    """
    wants_stdin = uses_stdin(pipeline)
    if wants_stdin and given.inputs_file == "-":
        raise UsageError(
            "the file reads `{{ stdin }}`, so `--inputs -` cannot read it too",
            hint="give the inputs as a file or with `-i`",
        )
    stdin = read_stdin() if wants_stdin and not sys.stdin.isatty() else None
    if not stdin and earlier_stdin is not None:
        stdin = earlier_stdin
    values = join_inputs(given.inputs, given.input_texts)
    return replace(
        look_options(rules),
        inputs=collect_inputs(pipeline, values, given.inputs_file, read_stdin, earlier),
        stdin=stdin,
        model=given.model,
    )


def seconds_of(
    text: str | None, where: str = "--timeout", hint: str | None = "for example 90s or 10m"
) -> float | None:
    if text is None:
        return None
    try:
        return duration(text)
    except ValueError as error:
        raise UsageError(str(error), where=where, hint=hint) from error


def control_request(
    wanted: ControlOptions, settings: ControlSettings, *, waits: bool, replays: bool = False
) -> "ControlRequest | None":
    """Return the addresses of a run; `None` if it has none and `waits` for no answer.

    Most runs have none, and import nothing for it.
    """
    is_named = bool(settings.listen)
    if wanted == ControlOptions() and not (is_named or waits):
        return None
    if wanted.control is None:
        if wanted != ControlOptions() and not is_named:
            hint = "`--control HOST:PORT` is what they are about"
            raise UsageError("`--allow-remote` and `--tls-cert` go with `--control`", hint=hint)
        if replays or not (is_named or waits):
            return None
    elif replays:
        hint = "a replay waits for nobody: it gives the recorded answers"
        raise UsageError("`--control` and a replay exclude each other", hint=hint)
    from aish.features.control.run_services import ControlRequest
    from aish.net.listen.addresses import Exposure

    exposure = Exposure(wanted.allow_remote, wanted.behind_proxy, wanted.tls_cert, wanted.tls_key)
    return ControlRequest(tuple(wanted.control or ()), exposure)


def look_options(rules: RuleOptions | PolicyOptions | LiveOptions) -> RunOptions:
    return RunOptions(
        allow=tuple(rules.allow or ()),
        deny=tuple(rules.deny or ()),
        allow_broad_root=rules.broad_root,
        lock=rules.lock.value,
        may_fetch=not rules.no_fetch,
        environ=dict(os.environ),
    )
