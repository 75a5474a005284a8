"""A `prompt` step: a model with the tool loop; `continues` resumes an earlier conversation."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import starmap
from typing import TYPE_CHECKING

from aish.agent.conversation import Conversation, TurnObserver, add_system
from aish.agent.converse import Ask, converse
from aish.agent.runtime import Mask, UsedCall
from aish.agent.turn_recorder import TurnRecorder, request_recorder
from aish.agent.wording import server_instructions
from aish.config.model import Prompt, PromptStep, Step
from aish.core.errors import ExitCode, StepFailedError
from aish.core.events import Failure, Notice
from aish.core.frozen import replace
from aish.core.json import JsonObject, json_text
from aish.core.messages import History, Turn, UserTurn
from aish.core.phrases import and_more, shorten
from aish.core.protocols import AnswerSchema, Model
from aish.core.sources import CONTEXT_FILES, union
from aish.core.text import for_line
from aish.core.tools import FAILED_KINDS, Tool, ToolName
from aish.engine.answer_schema import instruction
from aish.engine.plan.order import prompt_sources, systems_of
from aish.engine.records import StepRecord
from aish.engine.resources.toolbox import AllTools
from aish.engine.steps.context import EXIT_OF_STATUS, StepContext
from aish.engine.steps.sources import base_sources, sources_of
from aish.engine.steps.structured_output import Answered, answer
from aish.policy.rules import matches_tool
from aish.system.schema.capacity import normal_value
from aish.templates.render import render

if TYPE_CHECKING:
    from aish.agent.compaction import Window
    from aish.engine.steps.context_files.conversation_files import ConversationFiles


def step_to_continue(step: Step) -> str | None:
    """The step whose conversation this one continues, if any."""
    return step.continues if isinstance(step, PromptStep) else None


def is_continued(step: Step, steps: Iterable[Step]) -> bool:
    """Return true if another step continues the conversation of this one."""
    return any(isinstance(other, PromptStep) and other.continues == step.id for other in steps)


def continuation_failure(step: Step, records: Mapping[str, StepRecord]) -> Failure | None:
    """The reason why the step cannot continue a conversation, if any; its needs have ended."""
    step_id = step_to_continue(step)
    if step_id is None or records[step_id].status == "ok":
        return None
    if records[step_id].status == "skipped":
        return Failure("need_skipped", f"it continues `{step_id}`, which was skipped")
    return Failure("need_failed", f"it continues `{step_id}`, which failed")


def initial_history(step: PromptStep, context: StepContext) -> History:
    """The initial turns of the step's conversation: a copy for each attempt.

    Raises:
        StepFailedError: an earlier part of the run did not record them.
    """
    if step.continues is None:
        return History()
    turns = context.records[step.continues].history
    if turns is None:
        message = f"the conversation of the step `{step.continues}` was not stored"
        raise StepFailedError(message, hint="start a new run, without `--resume`")
    return History(list(turns))


def conversation_recorder(step: PromptStep, context: StepContext) -> TurnObserver | None:
    """The recorder of the conversation: all of it if a resumed run may have to continue it.

    The same holds if it may have to continue after an answer to a question. Other conversations
    within an item are repeated with the item.
    """
    runtime, place = context.agent, context.place(step)
    continued = place.item is None and is_continued(step, context.plan.steps)
    if not continued and not context.asking(step).waits:
        return request_recorder(runtime, place, "answer")
    is_restorable = context.plan.secrets.is_restorable
    return TurnRecorder(runtime.emit, runtime.keep, place, is_restorable)


async def run_prompt(step: PromptStep, context: StepContext) -> StepRecord:
    """Ask the step's model until it answers without a tool call.

    Raises:
        UnavailableError: the model or a server is unreachable.
        StepFailedError: the endpoint refused, a template cannot be rendered, or what the prompt
            takes from elsewhere cannot be had.
        SuspendedError: the answer comes after hours, and the item `suspends`.
    """
    _require_named(step, context.resources.tools)
    model = context.resources.models[context.plan.model_of(step)]
    schema = AnswerSchema(f"{step.id}_answer", step.output.schema) if step.output else None
    heard = conversation_recorder(step, context)
    files = _files(step, context)
    try:
        return await _run_prompt(step, context, model, schema, heard, files)
    except BaseException:
        if files is not None and context.asking(step).waits:
            # It may be gone on with from here.
            files.keep()
        raise
    finally:
        if files is not None:
            files.close()


async def _run_prompt(
    step: PromptStep,
    context: StepContext,
    model: Model,
    schema: AnswerSchema | None,
    heard: TurnObserver | None,
    files: "ConversationFiles | None",
) -> StepRecord:
    unfinished = context.earlier_turns(step)
    if unfinished is None:
        history = await prepare_history(step, context, model, heard, files)
    else:
        history = History(list(unfinished.turns))
        watch, last = context.resources.tools.watch, unfinished.earlier.answer
        if watch is not None and last is not None:
            error = watch.check_served(last.finish.model, last.finish.served)
            if error is not None:
                raise error
        if files is not None:
            await files.go_on()
    ask = Ask(
        history=history,
        model=model,
        tools=visible_tools(step, context.resources.tools.listed()),
        tool_choice=wire_choice(step.tool_choice, context.resources.tools),
        params=step.params,
        schema=schema,
        place=replace(context.place(step), turn=context.turn or None),
        bound=_window(step, context),
        heard=heard,
        files=files,
        earlier=None if unfinished is None else unfinished.earlier,
        suspends=context.suspends,
    )
    runtime = context.runtime(step)
    if step.output is None or schema is None:
        outcome = await converse(ask, runtime)
        output = outcome.text if outcome.status == "ok" else None
        answered = Answered(outcome, output)
    else:
        answered = await answer(ask, schema, step.output.attempts, runtime)
    record = _check_calls(step, _record(step, answered), context)
    if runtime.flow is not None and step.output is not None and step.output.release:
        left = runtime.flow.policy.without_labels(record.sources, step.output.release)
        record = replace(record, output_sources=left)
    if record.status != "ok" or not is_continued(step, context.plan.steps):
        return record
    known = None if files is None else files.state()
    if files is not None and isinstance(heard, TurnRecorder):
        files.keep()
    return replace(record, history=tuple(ask.history.turns), files=known)


def _files(step: PromptStep, context: StepContext) -> "ConversationFiles | None":
    """The files that stay current in the step's conversation, if the file names any."""
    if not step.context.files:
        return None
    from aish.engine.steps.context_files.conversation_files import ConversationFiles

    place = replace(context.place(step), turn=context.turn or None)
    return ConversationFiles(
        step.context,
        context.plan.pipeline.file.parent,
        context.resources.files,
        context.agent,
        place,
        allow_broad_root=context.plan.allow_broad_root,
        earlier=_earlier_files(step, context),
    )


def _earlier_files(step: PromptStep, context: StepContext) -> JsonObject | None:
    """The files that the conversation has already."""
    unfinished = context.earlier_turns(step)
    if unfinished is not None:
        return unfinished.files
    return None if step.continues is None else context.records[step.continues].files


def _window(step: PromptStep, context: StepContext) -> "Window | None":
    """The limit on the conversation's length, if the file sets one."""
    if step.context.max_tokens is None:
        return None
    from aish.agent.compaction import Window

    alias = step.context.summary_model
    summarizer = context.resources.models[alias] if alias else None
    return Window(step.context, summarizer, context.resources.files.tag)


async def prepare_history(
    step: PromptStep,
    context: StepContext,
    model: Model,
    heard: TurnObserver | None = None,
    files: "ConversationFiles | None" = None,
) -> History:
    """The conversation up to the first request."""
    values = context.template_values()
    history = initial_history(step, context)
    systems = [render(text, values) for text in systems_of(step)]
    # All turns of the beginning have the sources of all of it.
    sources = union((base_sources(step, context), sources_of(prompt_sources(step), context)))
    if not history.turns:
        tools = context.resources.tools
        instructions = tools.instructions(visible_tools(step, tools.listed()))
        systems += starmap(server_instructions, instructions.items())
        if context.agent.flow is not None:
            sources |= frozenset(instructions)
    if systems:
        add_system(history, "\n\n".join(systems), heard, sources)
    before: tuple[Turn, ...] = ()
    if isinstance(step.prompt, Prompt) and not step.attach:
        asked = UserTurn(render(step.prompt.user, values), sources=sources)
    else:
        from aish.engine.steps.prompt_inputs import opening_turns

        before, asked = await opening_turns(
            step, context, media_kinds=model.media_kinds, sources=sources
        )
    opening = "" if files is None else await files.opening()
    if opening:
        asked = replace(asked, text=f"{opening}\n\n{asked.text}")
        if context.agent.flow is not None:
            shown = (asked.sources, frozenset({CONTEXT_FILES}), context.agent.flow.local)
            asked = replace(asked, sources=union(shown))
    if step.output is not None and not model.enforces_schema:
        asked = replace(asked, text=f"{asked.text}\n\n{instruction(step.output.schema)}")
    conversation = Conversation(history, heard)
    for turn in (*before, asked):
        conversation.add(turn)
    return history


def visible_tools(step: PromptStep, listed: tuple[Tool, ...]) -> tuple[Tool, ...]:
    """The tools shown to the step's model: all, or those its globs match."""
    if step.tools is None:
        return listed
    globs = step.tools
    return tuple(tool for tool in listed if any(matches_tool(glob, tool.name) for glob in globs))


def _require_named(step: PromptStep, tools: AllTools) -> None:
    """Raise if a tool named by the step is listed twice by its server.

    Raises:
        StepFailedError: one is.
    """
    for glob in step.tools or ():
        server, _, name = glob.partition("__")
        named = ToolName(server, name)
        if tools.servers is not None and tools.servers.omission_reason(named) is not None:
            tools.require(named)


def wire_choice(choice: str, tools: AllTools) -> str:
    """`tool_choice` as sent: a tool's name becomes its wire name."""
    if "__" not in choice:
        return choice
    server, _, name = choice.partition("__")
    tool = tools.by_name(ToolName(server, name))
    if tool is None:
        tools.require(ToolName(server, name))
        raise StepFailedError(f"`tool_choice` names the tool `{choice}`, which no server offers")
    return tool.wire


def _record(step: PromptStep, answered: Answered) -> StepRecord:
    outcome, output = answered.outcome, answered.output
    if step.output is not None and step.output.release:
        # The order of keys could say more than was counted.
        output = normal_value(output)
    status = "failed" if answered.failure else outcome.status
    return StepRecord(
        id=step.id,
        kind="prompt",
        status=status,
        text=outcome.text,
        output=output,
        calls=outcome.calls,
        usage=outcome.usage,
        failure=answered.failure or outcome.failure,
        exit_code=EXIT_OF_STATUS[status],
        sources=outcome.sources,
    )


_LONGEST_SHOWN = 200
_ACCEPT = "`on_tool_error: continue` accepts failed calls"


def _check_calls(step: PromptStep, record: StepRecord, context: StepContext) -> StepRecord:
    """The record of a successful step, changed to failed if its tool calls do not allow success.

    A failed call that changes something is mended by a later one that succeeds.
    """
    if record.status != "ok" or not record.calls:
        return record
    changing = [
        call
        for call in record.calls
        if call.kind != "denied" and _changes(call, context.resources.tools)
    ]
    failed = [call for call in changing if call.kind in FAILED_KINDS]
    if step.on_tool_error == "fail":
        bad = [call for call in record.calls if call.kind in FAILED_KINDS or call.exit_code]
    elif step.on_tool_error == "unmended":
        bad = [call for call in changing[-1:] if call in failed]
    else:
        bad = []
    runtime, place = context.agent, context.place(step)
    if not bad:
        if failed:
            mended = changing[-1] not in failed
            message = _describe_failures(failed, runtime.mask)
            message += "; a later call mended it" if mended else ", and the file accepts that"
            runtime.emit(Notice(place, "warning", "tool_failed", message))
        return record
    answer = for_line(runtime.mask((record.text or "").strip()).partition("\n")[0])
    message = f"{_describe_failures(bad, runtime.mask)}; the model answered: "
    message += f"`{shorten(answer, _LONGEST_SHOWN)}`" if answer else "nothing"
    failure = Failure("tool_failed", message, _ACCEPT)
    return replace(record, status="failed", failure=failure, exit_code=ExitCode.FAILED)


def _describe_failures(calls: Sequence[UsedCall], mask: Mask) -> str:
    """The last of some calls that failed, its error, and the number of others."""
    call = calls[-1]
    arguments = shorten(for_line(mask(json_text(call.arguments, spaced=True))), _LONGEST_SHOWN)
    error = for_line(mask(call.content.removeprefix("[aish] ").strip().partition("\n")[0]))
    how = f"failed: {shorten(error, _LONGEST_SHOWN)}"
    if call.exit_code:
        how = f"ended with exit code {call.exit_code}"
    return f"`{call.tool}` with `{arguments}` {how}{and_more(len(calls) - 1)}"


def _changes(call: UsedCall, tools: AllTools) -> bool:
    """Return true if a tool changes something, by the mark of its pack or server.

    A server is believed, because a lie could only hide a failure of its own.
    """
    server, _, name = call.tool.partition("__")
    tool = tools.by_name(ToolName(server, name))
    if tool is None:
        return False
    if tool.builtin:
        from aish.packs.catalogue import tool_marks

        return tool_marks()[name].changes
    claims = tool.annotations
    return claims.read_only is False or (claims.destructive is True and not claims.read_only)
