"""Pipelines as tools: each call is a run with a folder, a journal and limits of its own.

The hub's gate decides about the call, the pipeline's file about what the run does. A client that
repeats a call while its run continues gets the result of that run.
"""

from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Generator,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import field, replace
from typing import TYPE_CHECKING, TypeVar
from weakref import WeakValueDictionary

import anyio
from anyio import to_thread
from anyio.abc import TaskGroup

from aish.config.inputs import complete_inputs
from aish.config.model import (
    ControlSettings,
    Pipeline,
    PipelineStep,
    PromptStep,
    ServedPipeline,
    Step,
)
from aish.core.errors import AishError, ExitCode, UsageError
from aish.core.events import Exit, ItemFinished, Notice, Place, Stamped, StepFinished, StepStarted
from aish.core.frozen import frozen, slotted
from aish.core.json import JsonObject, JsonValue, canonical, json_text
from aish.core.patterns import lazy_pattern
from aish.core.protocols import Emit, Progress
from aish.core.sources import names_of, union
from aish.core.text import safe_utf8
from aish.core.tools import Annotations, ResultKind, Tool, ToolName, ToolResult
from aish.engine.cancellation import ShutdownRequests
from aish.engine.environment import RunEnvironment
from aish.engine.plan.options import RunOptions
from aish.engine.plan.plan import (
    Plan,
    Played,
    load_checked,
    make_plan,
    most_patient,
)
from aish.engine.plan.validation.names import SERVED
from aish.engine.plan.validation.served_pipelines import served_name
from aish.engine.run_folder import new_folder
from aish.features.control.run_services import ControlRequest
from aish.features.hosted_run import HostedRun, Row, resume_run, run_hosted
from aish.features.launch import Launch
from aish.mcp.client.server_requests import Call
from aish.mcp.protocol.convert import LISTS, MAPS, SCHEMAS, wire_name
from aish.output.event_log import Sink
from aish.system.secrets.secrets import Secrets

if TYPE_CHECKING:
    from aish.policy.flow import RunFlow

RUN_KEY = "aish/run"
"""The key of a result's `_meta` with the id of the run."""
SOURCES_KEY = "aish/sources"
"""The key with the sources of the result, if the file of the pipeline follows them."""
_END_SECONDS = 10.0
"""How long runs have to end once they were told to; then they are cancelled."""
_MAX_TOOL_NAME = 64
_MOST_LEVELS = 128
"""How deep an input may be nested."""
_STEP_OUTPUT = lazy_pattern(
    r"\{\{\s*steps(?:\.([a-z][a-z0-9_]*)|\[['\"]([a-z][a-z0-9_-]*)['\"]\])\.output\s*\}\}"
)
_SUBSCHEMAS = SCHEMAS | {"items"}
_SUBSCHEMA_LISTS = LISTS | {"items"}

Report = Callable[[Progress], None]
Other = TypeVar("Other", ToolResult, Row)
OnRun = Callable[[str], None]
"""Hears the id of the run that a call has begun."""
Recheck = Callable[[], Awaitable[ToolResult | None]]
"""Decides again about a call that has waited: why it is not made any more, if it is not."""


@frozen
class OfferedPipeline:
    """A pipeline that can be called: its tool, and its plan."""

    entry: ServedPipeline
    tool: Tool
    row: JsonObject
    plan: Plan
    options: RunOptions


def load_pipelines(
    pipeline: Pipeline, options: RunOptions, secrets: Secrets, session: Played | None = None
) -> tuple[OfferedPipeline, ...]:
    """Load the pipelines that a file serves, each with the plan for its runs.

    Raises:
        PipelineError: one of the files cannot be run.
        UsageError: a variable or a lock file that one needs is missing.
    """
    pipelines = []
    for entry in pipeline.serve.pipelines:
        own = load_checked(entry.file, (), locked=options.lock != "none")
        # Each run has a socket of its own while it waits for an answer, whatever the file says.
        own = replace(own, control=replace(own.control, listen=ControlSettings().listen))
        asked = RunOptions(
            lock=options.lock,
            allow_broad_root=options.allow_broad_root,
            may_fetch=options.may_fetch,
            environ=options.environ,
        )
        plan = _wait_instead_of_pausing(make_plan(own, asked, secrets=secrets, session=session))
        row = _row(entry, own)
        pipelines.append(OfferedPipeline(entry, _tool(entry, own, row), row, plan, asked))
    return tuple(pipelines)


def _wait_instead_of_pausing(plan: Plan) -> Plan:
    """Return the plan with `on_ask: wait` instead of `pause`: a caller waits for the run."""

    def patient(step: Step) -> Step:
        if isinstance(step, PipelineStep) or step.asking.on_ask != "pause":
            return step
        return replace(step, asking=replace(step.asking, on_ask="wait"))

    inner = {id: _wait_instead_of_pausing(inner_plan) for id, inner_plan in plan.inner.items()}
    return replace(plan, steps=tuple(map(patient, plan.steps)), inner=inner)


def _tool(entry: ServedPipeline, pipeline: Pipeline, row: JsonObject) -> Tool:
    name = ToolName(SERVED, served_name(entry, pipeline))
    schema, output = row["inputSchema"], row.get("outputSchema")
    assert isinstance(schema, Mapping)
    assert output is None or isinstance(output, Mapping)
    return Tool(
        name=name,
        wire=wire_name(name, _MAX_TOOL_NAME),
        description=str(row["description"]),
        input_schema=schema,
        output_schema=output,
        annotations=Annotations(
            read_only=entry.read_only,
            destructive=not entry.read_only,
            idempotent=False,
            open_world=True,
        ),
        trusted=True,
    )


def _row(entry: ServedPipeline, pipeline: Pipeline) -> JsonObject:
    name = served_name(entry, pipeline)
    row: dict[str, JsonValue] = {
        "name": name,
        "description": entry.description or pipeline.description or f"Runs the pipeline `{name}`.",
        "inputSchema": {
            "type": "object",
            "properties": {
                id: _embed_schema(schema, f"/properties/{_pointer(id)}")
                for id, schema in pipeline.inputs.items()
            },
            "required": [id for id, schema in pipeline.inputs.items() if "default" not in schema],
            "additionalProperties": False,
        },
        "annotations": {
            "readOnlyHint": entry.read_only,
            "destructiveHint": not entry.read_only,
            "idempotentHint": False,
            "openWorldHint": True,
        },
    }
    if pipeline.outputs is not None:
        row["outputSchema"] = {
            "type": "object",
            "properties": {
                output: _output_schema(value, pipeline, f"/properties/{_pointer(output)}")
                for output, value in pipeline.outputs.items()
            },
            "required": list(pipeline.outputs),
            "additionalProperties": False,
        }
    return row


def _output_schema(value: JsonValue, pipeline: Pipeline, place: str) -> JsonObject:
    """Return the schema of an output: that of the step whose answer it is."""
    match = _STEP_OUTPUT.fullmatch(value.strip()) if isinstance(value, str) else None
    id = None if match is None else match[1] or match[2]
    step = next((candidate for candidate in pipeline.steps if candidate.id == id), None)
    if not isinstance(step, PromptStep) or step.output is None or step.flow.foreach is not None:
        return {}
    if not any(one.flow.when is not None or one.flow.on_error != "fail" for one in pipeline.steps):
        return _embed_schema(step.output.schema, place)
    # A step that was left out has no answer.
    return {"anyOf": [_embed_schema(step.output.schema, f"{place}/anyOf/0"), {"type": "null"}]}


def _pointer(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")


def _embed_schema(schema: JsonObject, place: str) -> JsonObject:
    """Return a schema to embed in another one at `place`, with its references adjusted."""
    if "$id" in schema:
        return schema
    changed: dict[str, JsonValue] = {}
    for key, value in schema.items():
        if key == "$ref" and isinstance(value, str) and (value == "#" or value.startswith("#/")):
            changed[key] = f"#{place}{value[1:]}"
        elif key in _SUBSCHEMAS and isinstance(value, Mapping):
            changed[key] = _embed_schema(value, place)
        elif key in _SUBSCHEMA_LISTS and isinstance(value, Sequence) and not isinstance(value, str):
            changed[key] = [
                _embed_schema(item, place) if isinstance(item, Mapping) else item for item in value
            ]
        elif key in MAPS and isinstance(value, Mapping):
            changed[key] = {
                name: _embed_schema(item, place) if isinstance(item, Mapping) else item
                for name, item in value.items()
            }
        elif key != "$schema":
            changed[key] = value
    return changed


class _ProgressSink(Sink):
    """A sink that notifies the caller of each finished step and item."""

    name = "the progress"

    def __init__(self, plan: Plan, report: Report) -> None:
        self._report = report
        self._done = 0
        # What is in a sub-pipeline is known only once it runs.
        self._total = None if plan.inner else len(plan.steps)
        self._unknown = {step.id for step in plan.steps if step.flow.foreach is not None}

    def __call__(self, stamped: Stamped) -> None:
        match stamped.event:
            case StepStarted(place, count=count, done=done) if place.step in self._unknown:
                self._done += done
                if count is not None and self._total is not None:
                    self._total += count
                    self._unknown.discard(place.step)
            case StepFinished(place, status):
                if place.step in self._unknown and status == "skipped":
                    self._unknown.discard(place.step)
                self._tell(place, status)
            case ItemFinished(place, index=index, status=status, sources=sources):
                # A key may be text that a client has not been given so far.
                self._tell(replace(place, item=str(index)) if sources else place, status)
            case _:
                pass

    def _tell(self, place: Place, status: str) -> None:
        self._done += 1
        total = None if self._unknown or self._total is None else float(self._total)
        if total is not None and total < self._done:
            total = None
        what = f"step `{place.step}`" if place.item is None else f"`{place.step}` `{place.item}`"
        self._report(Progress(float(self._done), total, safe_utf8(f"{what}: {status}")))


@slotted
class _Run:
    """A run, its waiting calls, and its result once it has ended."""

    key: tuple[str, ...]
    id: str
    held: ExitStack
    ending: ShutdownRequests = field(default_factory=ShutdownRequests)
    done: anyio.Event = field(default_factory=anyio.Event)
    callers: list[Report] = field(default_factory=list)
    row: Row | None = None
    error: Exception | None = None

    def report(self, progress: Progress) -> None:
        """Send progress to all calls that wait for the run."""
        for report in tuple(self.callers):
            report(progress)


class PipelineRuns:
    """Runs pipelines for clients, a limited number at a time; a run outlives its caller's task.

    Equal calls of one client share a run. It ends when the last of them is cancelled.
    """

    def __init__(self, limit: int, environment: RunEnvironment, tasks: TaskGroup) -> None:
        self._places = anyio.Semaphore(limit, fast_acquire=True)
        self._clock = environment.clock
        self._emit = environment.emit
        self._recorder = environment.recorder
        self._live: list[_Run] = []
        self._joinable: dict[tuple[str, ...], _Run] = {}
        self._turns: WeakValueDictionary[tuple[str, ...], anyio.Lock] = WeakValueDictionary()
        """Of equal calls one at a time begins a run, and the others wait for that."""
        self._tasks = tasks

    async def end(self) -> None:
        """End all runs, as SIGTERM does, and wait for them."""
        live = tuple(self._live)
        for run in live:
            run.ending.arrive(ExitCode.TERMINATED)
        with anyio.move_on_after(_END_SECONDS, shield=True):
            for run in live:
                await run.done.wait()

    async def call(
        self,
        client: str,
        offered: OfferedPipeline,
        arguments: JsonObject,
        call: Call,
        on_run: OnRun,
        recheck: Recheck,
        around: "RunFlow | None",
    ) -> JsonObject | ToolResult:
        """Return the result of a call: of its own run, or of the run that an equal call began.

        A cancelled call leaves its run; the last one to leave ends it, as SIGTERM does. `around`
        are the sources that the server follows, with those of the call.
        """
        try:
            _check_depth(arguments)
            inputs = complete_inputs(offered.plan.pipeline.inputs, arguments)
        except UsageError as error:
            return _refusal(offered, "bad_arguments", error)
        about = str(offered.tool.name), call.run_key, canonical(inputs)
        told = () if around is None else names_of(around.inputs)
        key = client, *about, *told, *_digests(offered.plan)
        report = call.on_progress or (lambda _: None)

        async def begin() -> _Run | ToolResult:
            return await self._start_run(key, offered, inputs, recheck, around)

        try:
            async with self._join(key, report, begin) as (run, is_new):
                if isinstance(run, ToolResult):
                    return run
                on_run(run.id)
                refused = None if is_new else await recheck()
                return refused or result_of(offered, await _wait_for_row(run))
        except AishError as error:
            return _refusal(offered, "handler_error", error)

    @asynccontextmanager
    async def _join(
        self, key: tuple[str, ...], report: Report, begin: Callable[[], Awaitable[_Run | Other]]
    ) -> AsyncGenerator[tuple[_Run | Other, bool]]:
        """Return the run of this key, which `begin` starts if there is none, and whether it did.

        After the block the caller no longer waits for it.
        """
        turn = self._turns.setdefault(key, anyio.Lock())
        async with turn:
            found = self._joinable.get(key)
            run = await begin() if found is None else found
            if isinstance(run, _Run):
                run.callers.append(report)
        if not isinstance(run, _Run):
            yield run, True
            return
        try:
            yield run, found is None
        finally:
            run.callers.remove(report)
            if not run.callers and not run.done.is_set():
                run.ending.arrive(ExitCode.TERMINATED)
                self._forget(run)

    async def _start_run(
        self,
        key: tuple[str, ...],
        offered: OfferedPipeline,
        inputs: JsonObject,
        recheck: Recheck,
        around: "RunFlow | None",
    ) -> _Run | ToolResult:
        await self._places.acquire()
        with self._place() as stack:
            refused = await recheck()
            if refused is not None:
                return refused
            launch = await self._prepare(offered, inputs)
            return self._begin(key, replace(launch, around=around), stack)

    async def resume(
        self, offered: OfferedPipeline, id: str, report: Report, around: "RunFlow | None"
    ) -> JsonObject:
        """Resume an interrupted run, and return its result at its end.

        Raises:
            AishError: it cannot be resumed.
        """

        async def begin() -> _Run | Row:
            await self._places.acquire()
            with self._place() as stack:
                launch = await to_thread.run_sync(
                    resume_run, offered.plan, offered.options, id, self._clock, stack
                )
                if not isinstance(launch, Launch):
                    return launch
                return self._begin((id,), replace(launch, around=around), stack)

        # Several tasks may be about one run.
        async with self._join((id,), report, begin) as (run, _):
            row = await _wait_for_row(run) if isinstance(run, _Run) else run
            return result_of(offered, row)

    @contextmanager
    def _place(self) -> Generator[ExitStack]:
        """Reserve a place for a run; it is released unless the run has begun."""
        with ExitStack() as stack:
            stack.callback(self._places.release)
            yield stack

    def _begin(self, key: tuple[str, ...], launch: Launch, stack: ExitStack) -> _Run:
        run = _Run(key, launch.folder.id, stack.pop_all())
        self._live.append(run)
        self._joinable[key] = run
        self._tasks.start_soon(self._execute, run, self._host(launch, run))
        return run

    def _forget(self, run: _Run) -> None:
        """Let no further call join the run."""
        if self._joinable.get(run.key) is run:
            del self._joinable[run.key]

    async def _prepare(self, offered: OfferedPipeline, inputs: JsonObject) -> Launch:
        plan, options = offered.plan, replace(offered.options, inputs=inputs)
        if plan.has_keys:
            from aish.engine.execution.item_source import with_surveys

            # Reading items takes time that other clients need.
            options = await to_thread.run_sync(with_surveys, plan, options)
        folder = new_folder(plan, options, self._clock)
        return Launch(plan, options, folder, self._clock, recorder=self._recorder)

    def _host(self, launch: Launch, run: _Run) -> HostedRun:
        """Host a run; unless replayed, it has a control socket while it waits for approval."""
        plan, recorder = launch.plan, launch.recorder
        listens = recorder is None or not recorder.approvals.replays
        control = ControlRequest() if listens and most_patient(plan) != "deny" else None
        sinks = (_ProgressSink(plan, run.report), _Notices(self._emit))
        return HostedRun(replace(launch, control=control), run.ending, sinks, _item_steps(plan))

    async def _execute(self, run: _Run, prepared: HostedRun) -> None:
        try:
            run.row = await run_hosted(prepared)
        except Exception as error:  # ruff: ignore[blind-except] - raised for the caller of the run
            run.error = error
        finally:
            run.held.close()
            self._live.remove(run)
            self._forget(run)
            run.done.set()


class _Notices(Sink):
    """A sink that reports problems of a run to the person who runs the server."""

    name = "the notices"

    def __init__(self, emit: Emit) -> None:
        self._emit = emit

    def __call__(self, stamped: Stamped) -> None:
        if isinstance(stamped.event, Notice) and stamped.event.level != "info":
            self._emit(stamped.event)


def _check_depth(arguments: JsonObject) -> None:
    """Check that values are not nested too deeply for templates and the journal.

    Raises:
        UsageError: an input is nested too deeply.
    """
    for name, value in arguments.items():
        level = [value]
        for _ in range(_MOST_LEVELS):
            inner: list[JsonValue] = []
            for item in level:
                if isinstance(item, Mapping):
                    inner += item.values()
                elif isinstance(item, list):
                    inner += item
            level = inner
            if not level:
                break
        else:
            message = f"the input `{name}` is nested more than {_MOST_LEVELS} levels deep"
            raise UsageError(message)


def _digests(plan: Plan) -> Iterator[str]:
    """Return the digests of a file and of those that it runs, which a reload may change."""
    yield plan.pipeline.digest
    for inner in plan.inner.values():
        yield from _digests(inner)


async def _wait_for_row(run: _Run) -> Row:
    await run.done.wait()
    if run.error is not None:
        raise run.error
    assert run.row is not None, "a run has a result, or an error"
    return run.row


def _refusal(offered: OfferedPipeline, kind: ResultKind, error: AishError) -> ToolResult:
    hint = f" ({error.hint})" if error.hint else ""
    return ToolResult(kind, f"[aish] {offered.tool.name.name}: {error.message}{hint}")


def result_of(offered: OfferedPipeline, row: Row) -> JsonObject:
    """Return the `CallToolResult` of a finished run."""
    end: Exit = row["exit"]
    meta: JsonObject = {RUN_KEY: row["run"], **_sources_of(row)}
    if end.code != ExitCode.OK:
        name, run = offered.tool.name.name, row["run"]
        message = f"[aish] {SERVED}: {name}: {end.name}: {end.reason} (run {run})"
        return {"content": [_text(message)], "isError": True, "_meta": meta}
    if offered.plan.pipeline.outputs is not None:
        outputs = row["outputs"]
        return {
            "content": [_text(json_text(outputs))],
            "structuredContent": outputs,
            "isError": False,
            "_meta": meta,
        }
    return {"content": [_text(_last_text(offered.plan, row))], "isError": False, "_meta": meta}


def _sources_of(row: Row) -> JsonObject:
    """Return the sources of a result: those of its outputs, else all that the run has read."""
    if row["sources"] is None:
        return {}
    outputs = row.get("output_sources") if row["exit"].code == ExitCode.OK else None
    if outputs is None:
        return {SOURCES_KEY: names_of(row["sources"])}
    return {SOURCES_KEY: names_of(union(frozenset(names) for names in outputs.values()))}


def _last_text(plan: Plan, row: Row) -> str:
    last = plan.steps[-1]
    found = row["steps"].get(last.id)
    if found is None:
        return ""
    is_value = plan.answers_in_a_schema(last)
    if last.flow.foreach is None:
        return _text_of(found, is_value=is_value)
    texts = (
        _text_of(one, is_value=is_value) for one in found.get("items", ()) if one["status"] == "ok"
    )
    return "\n".join(texts)


def _item_steps(plan: Plan) -> frozenset[str]:
    """Return the step whose items are the result; others are not kept, they may have millions."""
    return frozenset() if plan.pipeline.outputs is not None else frozenset({plan.steps[-1].id})


def _text_of(record: Mapping[str, JsonValue], *, is_value: bool) -> str:
    text, output = record["text"], record["output"]
    if is_value or (text is None and output is not None):
        return json_text(output, spaced=True)
    return "" if text is None else str(text)


def _text(text: str) -> JsonObject:
    return {"type": "text", "text": safe_utf8(text)}
