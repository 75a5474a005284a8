"""`call` and `run` steps, and `aish call`: one tool call through the gate, no model."""

from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from sys import maxsize

from aish.agent.dispatch import call_tool, tool_problems
from aish.agent.restore import TAKEN_OVER
from aish.agent.runtime import AgentRuntime, UsedCall
from aish.agent.sampling import Sampling
from aish.agent.turn_recorder import request_recorder
from aish.config.documents import parse_json
from aish.config.model import CallStep, OnToolError, RunStep
from aish.core.errors import ExitCode, StepFailedError, UsageError, did_you_mean
from aish.core.events import Failure, Notice, Place, StepKind, StepStatus
from aish.core.json import JsonObject, JsonValue, json_text
from aish.core.phrases import shorten
from aish.core.sources import union
from aish.core.text import for_line
from aish.core.tools import ResultKind, Tool, ToolName
from aish.engine.environment import RunEnvironment
from aish.engine.plan.plan import Plan
from aish.engine.records import StepRecord
from aish.engine.resources.resources import (
    Toolbox,
    open_models,
    open_toolbox,
    require_lock,
    require_servers,
)
from aish.engine.resources.toolbox import SHELL_RUN, command_arguments
from aish.engine.steps.context import CALLS_REPEATED, StepContext
from aish.engine.steps.sources import base_sources, sources_of, sources_of_tree
from aish.models.throttle import Throttles
from aish.policy.decide import tool_name
from aish.templates.render import render, render_tree

MEANING: Mapping[ResultKind, tuple[StepStatus, ExitCode]] = {
    "ok": ("ok", ExitCode.OK),
    "handler_error": ("failed", ExitCode.FAILED),
    "rpc_error": ("failed", ExitCode.FAILED),
    "bad_arguments": ("failed", ExitCode.FAILED),
    "transport_error": ("failed", ExitCode.UNAVAILABLE),
    "denied": ("denied", ExitCode.DENIED),
    "timeout": ("failed", ExitCode.FAILED),
    "interrupted": ("failed", ExitCode.FAILED),
    "unknown": ("failed", ExitCode.FAILED),
}
_LONGEST_SHOWN = 200


async def run_call(step: CallStep, context: StepContext) -> StepRecord:
    """Call the step's tool with its rendered arguments.

    Raises:
        LockDiffersError: the lock excludes the tool.
        StepFailedError: no server offers the tool, or a template cannot be rendered.
    """
    server, _, name = step.call.partition("__")
    tool = context.resources.tools.by_name(ToolName(server, name))
    if tool is None:
        context.resources.tools.require(ToolName(server, name))
        raise StepFailedError(
            f"no server offers the tool `{step.call}`", hint="`aish tools FILE` lists what there is"
        )
    arguments = render_tree(step.arguments, context.template_values())
    assert isinstance(arguments, dict)
    runtime = context.runtime(step)
    place = replace(context.place(step), call=f"{step.id}-1")
    sampler = pack_sampler(context.plan, server, runtime, place)
    used = _earlier_result(step, context, str(tool.name), arguments)
    sources = union((base_sources(step, context), sources_of_tree(step.arguments, context)))
    used = used or await call_tool(tool, arguments, runtime, place, sampler, sources=sources)
    output = output_of(used)
    record = tool_record(
        step.id,
        "call",
        used,
        on_denied=step.on_denied,
        output=output,
        on_tool_error=step.on_tool_error,
    )
    if sampler is None or sampler.usage is None:
        return record
    return replace(record, usage=sampler.usage)


def pack_sampler(plan: Plan, server: str, runtime: AgentRuntime, place: Place) -> Sampling | None:
    """Answers the questions of a pack that may ask models; other servers ask in prompt steps.

    The model of the step is the default one of the file.
    """
    entry = plan.pipeline.servers.get(server)
    if entry is None or not entry.model_consent.given:
        return None
    model = None if plan.default_model is None else runtime.models.get(plan.default_model)
    heard = request_recorder(runtime, place, "sampling")
    return Sampling(model, runtime.emit, runtime.clock, place, heard, runtime.models)


async def run_command_step(step: RunStep, context: StepContext) -> StepRecord:
    """Run the step's command as the tool `shell__run`."""
    values = context.template_values()
    run = (
        render(step.run, values)
        if isinstance(step.run, str)
        else tuple(render(word, values) for word in step.run)
    )
    arguments: JsonObject = command_arguments(run)
    runtime = replace(
        context.runtime(step), tools=context.resources.tools.of_step(context.name(step))
    )
    place = replace(context.place(step), call=f"{step.id}-1")
    used = _earlier_result(step, context, str(SHELL_RUN.name), arguments)
    words = (step.run,) if isinstance(step.run, str) else step.run
    sources = union((base_sources(step, context), sources_of(words, context)))
    name = f"steps.{step.id}"
    used = used or await call_tool(
        SHELL_RUN, arguments, runtime, place, sources=sources, source=name
    )
    return tool_record(step.id, "run", used, on_denied=step.on_denied, output=used.structured)


def _earlier_result(
    step: CallStep | RunStep, context: StepContext, tool: str, arguments: JsonObject
) -> UsedCall | None:
    """The result of this very call, if an earlier part of the run has made it.

    If that made another one, as the file is a different one now, it is told before the call.
    """
    unfinished = context.earlier_turns(step)
    if unfinished is None:
        return None
    (used,) = unfinished.earlier.calls
    place, emit = context.place(step), context.emit
    if (used.tool, used.arguments) == (tool, context.plan.secrets.mask_json(arguments)):
        message = "its call was made before this part of the run, which takes over the result"
        emit(Notice(place, "info", TAKEN_OVER, message))
        return used
    before = shorten(for_line(json_text(used.arguments, spaced=True)), _LONGEST_SHOWN)
    message = f"`{used.tool}` was called before this part of the run with {before}"
    message += "; the call of this step is a different one now, and is made"
    emit(Notice(place, "warning", CALLS_REPEATED, message))
    return None


def tool_record(
    id: str,
    kind: StepKind,
    used: UsedCall,
    *,
    on_denied: str,
    output: JsonValue,
    on_tool_error: OnToolError = "fail",
) -> StepRecord:
    status, code = MEANING[used.kind]
    if used.exit_code and on_tool_error != "continue":
        status, code = "failed", ExitCode.FAILED
    if used.kind == "denied" and on_denied == "continue":
        # Nothing ran, and the file says to continue: shown as denied, without failing the run.
        code = ExitCode.OK
    failure = None
    if status != "ok":
        code_of = "handler_error" if used.exit_code else used.kind
        failure = Failure(code_of, _why(used), used.hint)
    # The reply to a model about a call that reached no tool is not a result.
    answered = used.kind in {"ok", "handler_error"} and used.verdict != "staged"
    return StepRecord(
        id=id,
        kind=kind,
        status=status,
        text=_text(used) if answered else None,
        output=output if answered else None,
        calls=(used,),
        failure=failure,
        exit_code=code,
    )


def output_of(used: UsedCall) -> JsonValue:
    """The structured content, else the text, parsed if it is JSON."""
    if used.structured is not None:
        return used.structured
    try:
        return parse_json(used.whole)
    except ValueError:
        return used.whole


def _text(used: UsedCall) -> str | None:
    """A command's text is its output, empty if it could not be started."""
    if used.tool != str(SHELL_RUN.name):
        return used.whole
    return str(used.structured["stdout"]) if isinstance(used.structured, dict) else None


def _why(used: UsedCall) -> str:
    if used.exit_code and isinstance(used.structured, dict):
        lines = str(used.structured.get("stderr", "")).strip().splitlines()
        tail = f": {lines[-1]}" if lines else ""
        return f"the command ended with exit code {used.exit_code}{tail}"
    return used.denial or used.content.removeprefix("[aish] ")


async def direct_call(
    plan: Plan,
    name: str,
    assignments: Sequence[str],
    environment: RunEnvironment,
    given: JsonObject | None = None,
) -> UsedCall:
    """Call the tool `alias__tool` with the arguments `given`, and over them the assignments.

    `key=value` is typed by the tool's input schema, `key:=value` is JSON.

    Raises:
        UnavailableError: a required server is missing.
        LockDiffersError: something differs from the lock.
        UnavailableError: an embedded model that the tool may ask could not be started.
    """
    async with open_toolbox(plan, environment) as box, AsyncExitStack() as stack:
        require_servers(plan, box.servers)
        require_lock(box.tools)
        tool = _require_tool(name, box)
        arguments = _own(name, tool, {**(given or {}), **_arguments(tool, assignments)})
        place = Place(step="call", call="call-1")
        problems = await tool_problems(tool, tool.input_schema, arguments, box.runtime, place)
        if problems:
            raise UsageError(
                "; ".join(str(problem) for problem in problems[:3]),
                where=name,
                hint="`aish tools FILE --json` shows the schema",
            )
        # The user asked for the result, so it is not truncated.
        whole = replace(box.runtime, limits=replace(box.runtime.limits, result_limit=maxsize))
        if plan.models:
            models = await open_models(plan, environment, box, Throttles(), stack)
            whole = replace(whole, models=models)
        sampler = pack_sampler(plan, tool.name.server, whole, place)
        return await call_tool(tool, arguments, whole, place, sampler)


def _require_tool(name: str, box: Toolbox) -> Tool:
    tool = box.tools.by_name(tool_name(name))
    if tool is None:
        box.tools.require(tool_name(name))
        near = did_you_mean(name, [str(tool.name) for tool in box.tools.listed()])
        hint = near or "`aish tools FILE` lists what there is"
        raise UsageError(f"no server offers the tool `{name}`", hint=hint)
    return tool


def _own(name: str, tool: Tool, arguments: JsonObject) -> JsonObject:
    """The arguments of a built-in tool as rules and the tool see them."""
    if not tool.builtin:
        return arguments
    from aish.packs.catalogue import call_arguments

    try:
        return call_arguments(name, tool, arguments)
    except ValueError as error:
        raise UsageError(str(error), where=name) from error


def _arguments(tool: Tool, assignments: Sequence[str]) -> JsonObject:
    from aish.config.typed_text import argument_schema, as_typed

    schema = tool.input_schema
    arguments: dict[str, JsonValue] = {}
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        if not equals or key in {"", ":"}:
            raise UsageError(f"`{assignment}` is neither KEY=VALUE nor KEY:=JSON")
        if not key.endswith(":"):
            typed = as_typed(text, argument_schema(schema, key), schema, untyped=True)
            arguments[key] = typed
            continue
        try:
            arguments[key[:-1]] = parse_json(text)
        except ValueError as error:
            hint = f"`{key[:-1]}={text}` gives the text"
            raise UsageError(f"not JSON: {error}", where=f"{key}=", hint=hint) from error
    return arguments
