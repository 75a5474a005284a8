"""The only way to a tool: check, decide, emit, redeem, call, truncate, emit.

Every path that runs a tool goes through here: the loop, `call` and `run` steps, and `aish
call`. Nothing is sent without a decision, and the decision is emitted first.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from contextvars import ContextVar
from dataclasses import replace
from functools import partial
from math import inf
from types import TracebackType
from typing import Self

import anyio
from anyio.abc import TaskGroup

from aish.agent import wording
from aish.agent.result_limit import Cut, cut, describe, what, with_data
from aish.agent.runtime import AgentRuntime, UsedCall
from aish.agent.turn_json import Structured, structured_to_event
from aish.core.errors import BudgetError
from aish.core.events import (
    Notice,
    Place,
    SourceNames,
    ToolFinished,
    ToolProgress,
    ToolStarted,
)
from aish.core.frozen import frozen
from aish.core.json import JsonObject, JsonValue, json_text
from aish.core.protocols import Progress, Sampler
from aish.core.sources import NO_SOURCES, Sources, names_of
from aish.core.text import safe_utf8
from aish.core.tools import (
    NO_MEDIA,
    RESULT_LIMIT,
    Media,
    MediaKinds,
    ResultKind,
    Tool,
    ToolResult,
    definition_of,
    media_kind,
)
from aish.policy.gate import NOT_KEPT, STAGED, Decision, Proposal
from aish.policy.rules import LOCAL_COMMAND
from aish.system.process.child import CUT_OFF, CommandResult
from aish.system.schema.check import UNCHECKED, SchemaProblem, spell_path
from aish.system.task_group import task_group

CALLS: ContextVar[dict[Place, UsedCall | None] | None] = ContextVar("calls", default=None)
"""The calls of this task as they were asked for, for who has no result of it; `None` until told."""

CALL_LOST = "call_lost"
"""The code of a notice: a call that may not be made again unasked was sent, and not answered."""

# Limit on the progress reports of a server.
_MAX_PROGRESS = 1000


@frozen
class Approved:
    """A call that may be made, once."""

    proposal: Proposal
    decision: Decision


async def call_tool(
    tool: Tool,
    arguments: JsonObject,
    runtime: AgentRuntime,
    place: Place,
    sampler: Sampler | None = None,
    *,
    sources: Sources = NO_SOURCES,
    source: str = "",
    by_file: bool = False,
) -> UsedCall:
    """Call `tool` if the gate allows it; every failure is a `UsedCall` too.

    `sources` are those of its arguments, `source` names its result where that is not the tool.
    `by_file`: no rule has to approve it.

    Raises:
        BudgetError: a limit would be exceeded by another call.
    """
    async with Proposals(runtime) as proposals:
        proposal = Proposal(tool, arguments, place, sources, by_file)
        approved = await proposals.get(proposals.begin(proposal))
        approved = await proposals.ask_if_changed(approved)
        if isinstance(approved, UsedCall):
            return approved
        try:
            return await dispatch(approved, runtime, sampler, source=source)
        except BudgetError:
            no_more(approved, runtime)
            raise


class Proposed:
    """A call that the gate is asked about; `asked` is set once somebody has to answer."""

    def __init__(self, proposal: Proposal) -> None:
        self.proposal = proposal
        self.asked = anyio.Event()
        self.decided = anyio.Event()
        self.result: Approved | UsedCall | None = None


class Proposals:
    """Asks the gate about the calls of a round; use it in an `async with`.

    If questions stay open, all questions of a round are open at the same time, and the step waits
    for each when its turn comes. Questions that are still open at the end are withdrawn.
    """

    def __init__(self, runtime: AgentRuntime) -> None:
        self._runtime = runtime
        self._ahead = runtime.asking.waits
        self._stack = AsyncExitStack()
        self._tasks: TaskGroup | None = None
        self._all: list[Proposed] = []

    async def __aenter__(self) -> Self:
        if self._ahead:
            self._tasks = await self._stack.enter_async_context(task_group())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Withdraw open questions, and revoke approvals that were not used."""
        for proposed in self._all:
            if isinstance(proposed.result, Approved):
                self._runtime.gate.drop(proposed.result.decision)
        if self._tasks is not None:
            self._tasks.cancel_scope.cancel()
        await self._stack.__aexit__(kind, error, trace)
        if error is None:
            left = {one.proposal.place for one in self._all if one.result is None}
            self._runtime.gate.questions.withdraw(left.__contains__)

    def begin(self, proposal: Proposal) -> Proposed:
        proposed = Proposed(proposal)
        self._all.append(proposed)
        if self._tasks is not None:
            self._tasks.start_soon(self._ask, proposed)
        return proposed

    async def get(self, proposed: Proposed) -> Approved | UsedCall:
        """The result; waits for it.

        Raises:
            PausedError: the run is paused before it.
        """
        if self._tasks is None:
            await self._ask(proposed)
        elif proposed.result is None:
            await proposed.asked.wait()
            if proposed.result is None:
                await self._runtime.park(proposed.decided)
        assert proposed.result is not None, "it was waited for"
        return proposed.result

    async def ask_if_changed(self, found: Approved | UsedCall) -> Approved | UsedCall:
        """Return the approval, or ask again if its tool or sources changed while the call waited.

        Whoever approved it was shown another definition, or no text that was written since.

        Raises:
            PausedError: the run is paused before the new answer.
        """
        while isinstance(found, Approved):
            proposal = found.proposal
            if self._is_held_now(proposal):
                found = await self.get(self.begin(proposal))
                continue
            if found.decision.approval is None:
                break
            tool, place = proposal.tool, proposal.place
            now = self._runtime.tools.by_name(tool.name)
            if now is None or now is tool or definition_of(now) == definition_of(tool):
                break
            text = f"{tool.name} changed after its call was asked about: this is asked again"
            self._runtime.emit(Notice(place, "warning", "tool_changed", text))
            found = await self.get(self.begin(replace(proposal, tool=now)))
        return found

    def _is_held_now(self, proposal: Proposal) -> bool:
        """Return true if text that was written since the approval holds the call."""
        flow = self._runtime.flow
        if flow is None:
            return False
        now = flow.of_call(proposal.tool, proposal.sources)
        changed = now != proposal.sources
        return changed and self._runtime.gate.is_held(replace(proposal, sources=now))

    async def _ask(self, proposed: Proposed) -> None:
        result = await propose(proposed.proposal, self._runtime, proposed.asked.set)
        proposed.result = result
        proposed.asked.set()
        proposed.decided.set()


async def tool_problems(
    tool: Tool, schema: JsonObject, value: JsonValue, runtime: AgentRuntime, place: Place
) -> tuple[SchemaProblem, ...]:
    """The problems of arguments or data by a schema of their tool.

    What cannot be checked here is left to the server, with one notice for each pattern.
    """
    problems = await runtime.check_arguments(schema, value)
    for problem in problems:
        text = runtime.mask(f"{tool.name}: {problem.message}, and is left to the server")
        if problem.keyword == UNCHECKED and text not in runtime.unchecked:
            runtime.unchecked.add(text)
            runtime.emit(Notice(place, "warning", "schema_unchecked", text))
    return tuple(problem for problem in problems if problem.keyword != UNCHECKED)


async def propose(
    proposal: Proposal, runtime: AgentRuntime, asked: Callable[[], None] = lambda: None
) -> Approved | UsedCall:
    """Ask the gate about a call; a `UsedCall` is the reason why it is not made.

    `asked` is called once somebody has to answer.
    """
    tool, arguments, place = proposal.tool, proposal.arguments, proposal.place
    _note(place, None)
    problems = await tool_problems(tool, tool.input_schema, arguments, runtime, place)
    if problems:
        path, why = spell_path(problems[0].path), problems[0].message
        # Masked before truncation: a truncated secret would not be recognized.
        reply = wording.does_not_fit(runtime.mask(path), runtime.mask(why))
        return refuse(
            str(tool.name),
            arguments,
            "bad_arguments",
            reply,
            runtime,
            place,
            sources=proposal.sources,
        )
    if runtime.flow is not None:
        # Parallel calls may have written meanwhile.
        proposal = replace(proposal, sources=runtime.flow.of_call(tool, proposal.sources))
    decision = await runtime.gate.decide(proposal, runtime.asking, asked)
    runtime.emit(decision.event(proposal, runtime.gate.level(proposal, decision)))
    if decision.allowed:
        _warn(decision, proposal, runtime)
        return Approved(proposal, decision)
    if decision.verdict == "staged":
        # Staged by the sink of decisions; the model is told the actual result.
        is_stored = await runtime.gate.is_put_down(decision)
        kind: ResultKind = "ok" if is_stored else "transport_error"
        reply = STAGED if is_stored else NOT_KEPT
        return _refuse_decided(proposal, decision, kind, reply, runtime)
    message = decision.reply or f"[aish] tool call denied: no rule approves {tool.name}"
    used = _refuse_decided(proposal, decision, "denied", message, runtime)
    arguments_text = runtime.mask(json_text(arguments, spaced=True))
    return replace(used, denial=wording.denial(runtime.mask(message), arguments_text))


def _warn(decision: Decision, proposal: Proposal, runtime: AgentRuntime) -> None:
    """Tell once a run of a call that is made although it follows certain text."""
    flow = runtime.flow
    if decision.warning and flow and flow.warns_first(decision.flow, proposal.tool):
        runtime.emit(Notice(proposal.place, "security", "exfiltration", decision.warning))


def refuse(
    tool: str,
    arguments: JsonValue,
    kind: ResultKind,
    reply: str,
    runtime: AgentRuntime,
    place: Place,
    decision: Decision | None = None,
    *,
    sources: Sources = NO_SOURCES,
) -> UsedCall:
    """Emit the end of a call that is answered by aish and not made.

    `sources` are those of its arguments, which other steps may read.
    """
    used = UsedCall(
        tool=tool,
        arguments=arguments,
        verdict=decision.verdict if decision else None,
        rule=decision.rule if decision else "",
        kind=kind,
        content=reply,
        whole=reply,
        hint=decision.hint if decision else None,
        sources=sources,
        place=place,
    )
    return _end(used, runtime, place, known=sources)


def _refuse_decided(
    proposal: Proposal, decision: Decision, kind: ResultKind, reply: str, runtime: AgentRuntime
) -> UsedCall:
    name, arguments = str(proposal.tool.name), proposal.arguments
    place, sources = proposal.place, proposal.sources
    return refuse(name, arguments, kind, reply, runtime, place, decision, sources=sources)


def no_more(approved: Approved, runtime: AgentRuntime) -> UsedCall:
    """Emit the end of an approved call that would exceed a limit of the run or step."""
    proposal, reply = approved.proposal, wording.NO_MORE_CALLS
    return _refuse_decided(proposal, approved.decision, "denied", reply, runtime)


async def dispatch(
    approved: Approved,
    runtime: AgentRuntime,
    sampler: Sampler | None = None,
    *,
    media_kinds: MediaKinds = NO_MEDIA,
    source: str = "",
) -> UsedCall:
    """Make an approved call and emit its end; `source` names its result, if not the tool.

    Raises:
        ApprovalError: the approval is not for this call, or was used already.
        BudgetError: a limit would be exceeded by another call.
    """
    proposal, decision = approved.proposal, approved.decision
    name = str(proposal.tool.name)
    if runtime.meter is not None:
        await runtime.meter.count_call(proposal.place)
    runtime.gate.redeem(decision, proposal)
    if runtime.flow is not None:
        runtime.flow.begin(proposal.tool, proposal.sources)
    runtime.emit(ToolStarted(proposal.place, name))
    repeatable = runtime.gate.policy.is_repeatable(proposal.tool)
    if not repeatable:
        # For a step that ends before the result.
        _note(proposal.place, _unknown(approved))
    started = runtime.clock.monotonic()
    deadline = anyio.current_effective_deadline()
    commands: list[CommandResult] = []
    token = CUT_OFF.set(commands)
    try:
        result = await _call(proposal, runtime, sampler)
        result = await _check_data(result, proposal, runtime)
    except anyio.get_cancelled_exc_class():
        seconds = runtime.clock.monotonic() - started
        # Without a deadline if the run had ended already.
        late = -inf < deadline <= anyio.current_time()
        _tell_cut_off(approved, runtime, seconds, commands, late)
        raise
    finally:
        CUT_OFF.reset(token)
    seconds = runtime.clock.monotonic() - started
    attached = tuple([media for media in result.media if media_kind(media) in media_kinds])
    limited = _format_result(proposal.tool, result, attached, runtime, proposal.place)
    if result.kind == "rpc_error":
        text = f"{name}: {result.content.removeprefix('[aish] ')}"
        runtime.emit(Notice(proposal.place, "warning", "tool_dispatch_failed", text))
    used = UsedCall(
        tool=name,
        arguments=proposal.arguments,
        verdict=decision.verdict,
        rule=decision.rule,
        kind=result.kind,
        content=limited.text,
        structured=result.structured,
        seconds=seconds,
        media=attached,
        full=limited.full,
        whole=result.content,
        exit_code=_exit_code(proposal.tool, result),
        repeatable=repeatable or not result.began,
        sources=NO_SOURCES
        if runtime.flow is None
        else runtime.flow.of_result(proposal.tool, proposal.sources, source),
        place=proposal.place,
    )
    if result.kind == "transport_error" and not used.repeatable:
        text = f"{name}: no answer came; whether the call took effect is not known"
        runtime.emit(Notice(proposal.place, "warning", CALL_LOST, text))
    return _end(used, runtime, proposal.place, limited.whole, proposal.sources)


def _exit_code(tool: Tool, result: ToolResult) -> int | None:
    """The exit code of a command, if a tool of ours ran one to its end."""
    data = result.structured
    if not (tool.builtin or tool.name == LOCAL_COMMAND) or not isinstance(data, Mapping):
        return None
    code = data.get("exit_code")
    # A background process that was looked at, or stopped, has no `stdout`.
    return code if isinstance(code, int) and "stdout" in data else None


def _unknown(approved: Approved) -> UsedCall:
    """The call while its outcome is unknown."""
    proposal, decision = approved.proposal, approved.decision
    return UsedCall(
        tool=str(proposal.tool.name),
        arguments=proposal.arguments,
        verdict=decision.verdict,
        rule=decision.rule,
        kind="unknown",
        content=wording.INTERRUPTED,
        whole=wording.INTERRUPTED,
        repeatable=False,
        sources=proposal.sources,
        place=proposal.place,
    )


def _end(
    used: UsedCall,
    runtime: AgentRuntime,
    place: Place,
    whole: str = "",
    known: Sources = NO_SOURCES,
) -> UsedCall:
    """Emit the end of a call; `whole` is the content of the file named by `used.full`.

    The sources of a call in a turn are `known`: what is added to them is told.
    """
    structured = _data_event(used, runtime, place, whole)
    runtime.emit(
        ToolFinished(
            place=place,
            tool=used.tool,
            kind=used.kind,
            content=used.content,
            full=used.full,
            seconds=used.seconds,
            structured=structured.value,
            structured_in=structured.place,
            structured_spans=structured.spans,
            exit_code=used.exit_code,
            sources=_new_sources(used, runtime, place, known),
        )
    )
    _note(place, used)
    return used


def _new_sources(
    used: UsedCall, runtime: AgentRuntime, place: Place, known: Sources
) -> SourceNames:
    if runtime.flow is None:
        return None
    if place.turn is None:
        return names_of(used.sources)
    return names_of(used.sources - known) or None


def _note(place: Place, used: UsedCall | None) -> None:
    calls = CALLS.get()
    if calls is not None:
        calls[place] = used


def _tell_cut_off(
    approved: Approved,
    runtime: AgentRuntime,
    seconds: float,
    commands: Sequence[CommandResult],
    late: bool,  # ruff: ignore[boolean-type-hint-positional-argument] - what the time says
) -> None:
    """Emit the end of a call that was cancelled.

    A local command was ended by aish. The outcome of a server's call is unknown, and nothing is
    emitted if the user ended the run: a step that timed out continues.
    """
    if not runtime.tells_cut_off or not (commands or late):
        return
    place = approved.proposal.place
    kind: ResultKind = ("timeout" if late else "interrupted") if commands else "unknown"
    text = wording.INTERRUPTED
    structured: JsonValue = None
    if commands:
        printed = b"".join(one.stdout + one.stderr for one in commands).decode("utf-8", "replace")
        text = wording.text_of_stopped_command(seconds, printed)
        if approved.proposal.tool.name == LOCAL_COMMAND:
            structured = {"exit_code": None} | {
                name: b"".join(getattr(one, name) for one in commands).decode("utf-8", "replace")
                for name in ("stdout", "stderr")
            }
    limited = _cut(safe_utf8(text), runtime, place)
    used = replace(
        _unknown(approved),
        kind=kind,
        content=limited.text,
        structured=structured,
        seconds=seconds,
        full=limited.full,
        whole=text,
        repeatable=runtime.gate.policy.is_repeatable(approved.proposal.tool),
    )
    _end(used, runtime, place)


async def _call(proposal: Proposal, runtime: AgentRuntime, sampler: Sampler | None) -> ToolResult:
    """Call the tool; retry once if the connection broke and its rule allows that."""
    tool = proposal.tool
    result = await _call_once(proposal, runtime, sampler)
    if result.kind != "transport_error" or not runtime.gate.policy.is_idempotent(tool):
        return result
    text = f"{tool.name}: called again after: {result.content.removeprefix('[aish] ')}"
    runtime.emit(Notice(proposal.place, "warning", "tool_called_again", text))
    return await _call_once(proposal, runtime, sampler)


async def _call_once(
    proposal: Proposal, runtime: AgentRuntime, sampler: Sampler | None
) -> ToolResult:
    name, place = str(proposal.tool.name), proposal.place
    left = _MAX_PROGRESS

    def report(progress: Progress) -> None:
        nonlocal left
        if left > 0:
            left -= 1
            runtime.emit(
                ToolProgress(place, name, progress.progress, progress.total, progress.message)
            )

    # A pack cuts its result itself, at the smaller limit.
    token = RESULT_LIMIT.set(runtime.limits.result_limit)
    try:
        return await runtime.tools.call(proposal.tool, proposal.arguments, report, sampler)
    finally:
        RESULT_LIMIT.reset(token)
        # Messages of a server about an ended call are ignored.
        left = 0


async def output_problem(
    tool: Tool, data: JsonValue, runtime: AgentRuntime, place: Place
) -> str | None:
    """Return what is said of data that does not fit the tool's `outputSchema`."""
    if tool.output_schema is None or tool.builtin:
        return None
    if data is None:
        return wording.odd_output(str(tool.name), "it has no `structuredContent`")
    problems = await tool_problems(tool, tool.output_schema, data, runtime, place)
    why = runtime.mask(str(problems[0])) if problems else None
    return None if why is None else wording.odd_output(str(tool.name), why)


async def _check_data(result: ToolResult, proposal: Proposal, runtime: AgentRuntime) -> ToolResult:
    """Report data that does not fit the tool's `outputSchema`, or return an error."""
    tool, data, text = proposal.tool, result.structured, None
    if result.kind == "ok":
        text = await output_problem(tool, data, runtime, proposal.place)
    if text is None:
        return result
    if tool.strict_output:
        return ToolResult("handler_error", f"[aish] {text}")
    runtime.emit(Notice(proposal.place, "warning", "odd_output", text))
    return result


def _format_result(
    tool: Tool, result: ToolResult, attached: tuple[Media, ...], runtime: AgentRuntime, place: Place
) -> Cut:
    """The result as the model sees it: never empty, length limited, media named."""
    says_all = tool.builtin or tool.says_all or tool.name == LOCAL_COMMAND
    whole = says_all and result.content.strip()
    lines = [with_data(result.content, None if whole else result.structured)]
    for number, media in enumerate(result.media, 1):
        kind = runtime.mask(media.mime_type)
        ending = "".join(filter(str.isalnum, kind.rpartition("/")[2])) or "bin"
        path = _keep(runtime, place, f"{_file_stem(place)}-{number}.{ending[:8]}", media.data)
        lines.append(describe(media, attached=media in attached))
        if path is not None:
            text = f"{what(media)}, saved as {path}"
            runtime.emit(Notice(place, "info", "media_kept", text))
    content = "\n".join(line for line in lines if line)
    return _cut(content or wording.NO_OUTPUT, runtime, place)


def _data_event(used: UsedCall, runtime: AgentRuntime, place: Place, whole: str) -> Structured:
    """The event form of its structured content: stored once, a long one in a file."""
    if used.structured is None:
        return Structured()
    return structured_to_event(
        used.structured,
        used.content if used.full is None else whole,
        used.full,
        limit=runtime.limits.result_limit,
        keep=partial(_keep, runtime, place, f"{_file_stem(place)}.json"),
        mask=runtime.mask,
    )


def _cut(text: str, runtime: AgentRuntime, place: Place) -> Cut:
    keep = partial(_keep, runtime, place, f"{_file_stem(place)}.txt")
    return cut(text, runtime.limits.result_limit, keep, runtime.mask, runtime.spans)


def _keep(runtime: AgentRuntime, place: Place, name: str, data: bytes) -> str | None:
    """Store `data` in the run's folder; a full disk loses the file, not the run."""
    try:
        return runtime.keep(name, data)
    except OSError as error:
        why = error.strerror or str(error)
        runtime.emit(Notice(place, "warning", "not_kept", f"{name} could not be kept: {why}"))
        return None


def _file_stem(place: Place) -> str:
    # Items and call ids are untrusted text: not used in file names.
    source = f"{place.item or ''}\0{place.call or ''}"
    digest = hashlib.sha256(source.encode("utf-8", "replace")).hexdigest()[:8]
    return f"{place.step or 'call'}-{place.turn or 0}-{digest}"
