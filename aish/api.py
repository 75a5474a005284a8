"""Pipelines from Python: the same run as `aish run`, without a command line around it.

    import aish

    result = aish.run("task.yaml")

Nothing is printed, no signal is taken, stdin is not read. A run that has begun gives a `Result`,
however it ends; what keeps it from beginning is raised, as in `aish.core.errors`.
"""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, fields
from pathlib import Path
from typing import Literal, Self, TypedDict, Unpack, cast

import anyio
from anyio import to_thread

from aish.config.fields import duration
from aish.config.inputs import complete_inputs
from aish.config.model import Pipeline
from aish.core.errors import AishError, ExitCode, PipelineError, UsageError
from aish.core.events import Counts, Exit, Stamped, to_object
from aish.core.frozen import frozen
from aish.core.json import JsonObject, JsonValue
from aish.core.phrases import shorten
from aish.engine.cancellation import ShutdownRequests
from aish.engine.final import RunStatus
from aish.engine.plan.options import LockMode, RunOptions
from aish.engine.plan.order import require_stdin
from aish.engine.plan.plan import Plan, load_checked, make_plan, stages_calls
from aish.engine.plan.validation.validate import require_steps
from aish.engine.run_folder import RunsPlace, new_folder
from aish.features.hosted_run import HostedRun, Row, run_hosted
from aish.features.launch import Launch, with_key_surveys
from aish.features.recording.session import CassetteChoice, CassetteSession, load_session
from aish.system.clock import SystemClock
from aish.system.guest import as_guest

__all__ = [
    "AishError",
    "ExitCode",
    "Options",
    "PipelineError",
    "Result",
    "RunFailedError",
    "UsageError",
    "arun",
    "run",
]

PathLike = str | os.PathLike[str]
OnEvent = Callable[[JsonObject], None]
"""Receives each event as `--format jsonl` has it, secrets masked, from the thread of the run."""

_LONGEST = 80
_LIVE = "`replay=True` and `record=True` take the `cassette:` of the file"


@frozen
class Result:
    """Result of a run: the object of `aish run --format json`, field by field.

    `steps` has the result of each step, by its id, with `items` if it has any. `cost_usd` of `None`
    is unknown. `folder` is the run's own, `None` if nothing is kept. `pending` are the calls of a
    paused run that wait for an answer. `value` is what `aish run` prints, as a value: `outputs`, or
    the last step's text, its answer in a schema, or a list of these if the step has items.
    `output_sources` has the sources of each output; it is empty where the file follows none.
    """

    v: int
    run: str
    pipeline: str
    status: RunStatus
    exit: Exit
    outputs: JsonValue
    steps: Mapping[str, JsonObject]
    expectations: Sequence[JsonObject]
    usage: JsonObject
    cost_usd: float | None
    seconds: float
    denials: Counts
    notices: Sequence[JsonObject]
    annotations: Sequence[JsonObject]
    folder: str | None
    cassette: JsonObject | None
    call_counts: JsonObject
    served: Mapping[str, JsonObject]
    pending: Sequence[JsonObject] = ()
    output_sources: Mapping[str, Sequence[str]] = field(default_factory=dict)
    value: JsonValue = None

    def __repr__(self) -> str:
        told = repr(self.value) if self.ok else self.exit.reason
        return f"<Result of {self.pipeline}: {self.exit.name}, {shorten(told or '', _LONGEST)}>"

    @property
    def ok(self) -> bool:
        return self.exit.code == ExitCode.OK

    def raise_for_exit(self) -> Self:
        """The same result, if the exit code is 0.

        Raises:
            RunFailedError: it is not.
        """
        if not self.ok:
            raise RunFailedError(self)
        return self


class RunFailedError(AishError):
    code = "run_failed"

    def __init__(self, result: Result) -> None:
        super().__init__(result.exit.reason, where=result.pipeline, hint=result.exit.hint)
        self.result = result
        self.exit_code = ExitCode(result.exit.code)
        self.retryable = result.exit.retryable


class Options(TypedDict, total=False):
    """Options of `run` and `arun` besides file and inputs; each like the option of `aish run`.

    `stdin` is the value of `{{ stdin }}`. `overrides` are those of `--set`, `NAME=VALUE` each.
    `timeout` is in seconds, or `"10m"`. `replay` and `record` name a cassette; `True` is the file's
    own. `environ` replaces `os.environ`. `on_event` is called with every event; an exception from
    it ends the run and is raised again.
    """

    stdin: str | None
    model: str | None
    overrides: Sequence[str]
    allow: Sequence[str]
    deny: Sequence[str]
    allow_broad_root: bool
    lock: LockMode
    no_fetch: bool
    timeout: float | str | None
    max_cost_usd: float | None
    max_turns: int | None
    concurrency: int | None
    replay: PathLike | Literal[True] | None
    record: PathLike | Literal[True] | None
    run_dir: PathLike | None
    ephemeral: bool
    environ: Mapping[str, str] | None
    on_event: OnEvent | None


def run(
    file: PathLike, inputs: Mapping[str, object] | None = None, **options: Unpack[Options]
) -> Result:
    """Run a pipeline file to its end; `options` are those of `Options`.

    May be called from any thread; in a running event loop, use `await arun(…)`.

    Raises:
        PipelineError: the file cannot be run; `problems` has all that is wrong with it.
        UsageError: an input, an option or a cassette does not fit, or an event loop is running.
    """
    import asyncio

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        pass
    else:
        said = "`run` would block the running event loop of this thread"
        raise UsageError(said, hint="`await aish.arun(…)`")

    async def main() -> Result:
        return await arun(file, inputs, **options)

    return anyio.run(main)


async def arun(
    file: PathLike, inputs: Mapping[str, object] | None = None, **options: Unpack[Options]
) -> Result:
    """Like `run`, in the running event loop; any number of them at the same time.

    A task that is cancelled ends its run, and the children of it; its journal then ends without
    `run.finished`, and `aish run --resume` continues it.

    Raises:
        PipelineError: the file cannot be run; `problems` has all that is wrong with it.
        UsageError: an input, an option or a cassette does not fit.
    """
    unknown = options.keys() - Options.__annotations__.keys()
    if unknown:
        raise TypeError(f"unknown option: {', '.join(sorted(unknown))}")
    with as_guest():
        # Reading and checking a file takes time that the event loop needs.
        launch = await to_thread.run_sync(_prepared, Path(file), inputs or {}, options)
        ending = ShutdownRequests()
        hearer = _Hearer(options.get("on_event"), ending)
        row = await run_hosted(HostedRun(launch, ending, (hearer,)))
        if hearer.error is not None:
            raise hearer.error
        row["value"] = _value(launch.plan, row)
        return Result(**{one.name: row[one.name] for one in fields(Result) if one.name in row})


def _prepared(file: Path, inputs: Mapping[str, object], given: Options) -> Launch:
    """The run with its new folder; nothing else is open yet."""
    locked = given.get("lock") != "none"
    pipeline = load_checked(file, tuple(given.get("overrides") or ()), locked=locked)
    require_steps(pipeline)
    session = _session(pipeline, given)
    stdin, environ = given.get("stdin"), given.get("environ")
    require_stdin(pipeline, stdin, hint="give it as `stdin=…`")
    options = RunOptions(
        inputs=complete_inputs(pipeline.inputs, _as_json(inputs)),
        stdin=stdin,
        model=given.get("model"),
        allow=tuple(given.get("allow") or ()),
        deny=tuple(given.get("deny") or ()),
        timeout=_seconds(given.get("timeout")),
        max_cost_usd=given.get("max_cost_usd"),
        max_turns=given.get("max_turns"),
        allow_broad_root=given.get("allow_broad_root", False),
        lock=given.get("lock", "enforce"),
        may_fetch=not given.get("no_fetch", False),
        concurrency=given.get("concurrency"),
        environ=dict(os.environ if environ is None else environ),
    )
    plan = make_plan(pipeline, options, session=session)
    if given.get("ephemeral", False) and stages_calls(plan):
        said = "`mcp.stage` stores calls for review, and `ephemeral` stores nothing"
        raise UsageError(said, hint="leave out `ephemeral`")
    options = with_key_surveys(plan, options)
    wanted, clock = given.get("run_dir"), SystemClock()
    place = RunsPlace(pipeline.file.parent, None if wanted is None else Path(wanted))
    folder = new_folder(plan, options, clock, place, ephemeral=given.get("ephemeral", False))
    return Launch(plan, options, folder, clock, cassette=session)


def _as_json(inputs: Mapping[str, object]) -> dict[str, JsonValue]:
    """A Python value as JSON: tuples become lists, and nothing is shared with the caller."""
    values: dict[str, JsonValue] = {}
    for name, value in inputs.items():
        try:
            values[name] = json.loads(json.dumps(value, allow_nan=False))
        except (TypeError, ValueError, RecursionError) as error:
            said = f"the input `{name}` is not a JSON value: {error}"
            raise UsageError(said, where="inputs") from error
    return values


def _seconds(timeout: float | str | None) -> float | None:
    if not isinstance(timeout, str):
        return timeout
    try:
        return duration(timeout)
    except ValueError as error:
        raise UsageError(str(error), where="timeout", hint="for example `90s` or `10m`") from error


def _session(pipeline: Pipeline, given: Options) -> CassetteSession | None:
    replay, record = given.get("replay"), given.get("record")
    if replay is None and record is None:
        return None
    if replay is not None and record is not None:
        raise UsageError("`replay` and `record` exclude each other")
    wanted, own = replay if replay is not None else record, pipeline.cassette
    if wanted is True and own is None:
        raise UsageError("the file names no cassette", where=str(pipeline.file), hint=_LIVE)
    path = own.path if wanted is True and own is not None else Path(cast("PathLike", wanted))
    choice = CassetteChoice(
        path=path,
        mode="none" if replay is not None else "all",
        ignore=() if own is None else own.ignore,
        allow=() if own is None else own.allow,
        strict=own is not None and own.strict is True,
    )
    return load_session(choice)


def _value(plan: Plan, row: Row) -> JsonValue:
    """The result of the last step, unless the file has `outputs`."""
    if plan.pipeline.outputs is not None:
        value: JsonValue = row["outputs"]
        return value
    last = plan.steps[-1]
    has_schema = plan.answers_in_a_schema(last)

    def of(one: Mapping[str, JsonValue]) -> JsonValue:
        return one["output"] if has_schema or one["text"] is None else one["text"]

    found = row["steps"].get(last.id)
    if found is None:
        return None
    return of(found) if last.flow.foreach is None else [of(one) for one in found.get("items", ())]


class _Hearer:
    """A sink that passes events to the caller, whose exception ends the run."""

    name = "the caller's `on_event`"
    deltas = True

    def __init__(self, hear: OnEvent | None, ending: ShutdownRequests) -> None:
        self.deltas = hear is not None
        self.error: BaseException | None = None
        self._hear = hear
        self._ending = ending

    def __call__(self, stamped: Stamped) -> None:
        if self._hear is None or self.error is not None:
            return
        try:
            self._hear(to_object(stamped))
        except Exception as error:  # ruff: ignore[blind-except] - it is raised again for the caller
            self.error = error
            self._ending.arrive(ExitCode.INTERRUPTED)

    def close(self) -> None:
        """Nothing is buffered."""
