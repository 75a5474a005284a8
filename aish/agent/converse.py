"""The tool-call loop: request, stream, call tools, reply, request again.

An answer without tool calls ends it; its meaning for the step is decided here too.
"""

from collections.abc import Mapping
from dataclasses import field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from aish.agent import wording
from aish.agent.assemble import Assembled, assemble
from aish.agent.conversation import Conversation, TurnObserver
from aish.agent.file_updates import FileUpdates, with_block
from aish.agent.runtime import AgentRuntime, Mask, UsedCall
from aish.agent.sampling import Sampling
from aish.agent.tool_round import RequestedCall, Round, make_legal
from aish.agent.turn_recorder import request_recorder
from aish.core.errors import BudgetError
from aish.core.events import (
    Asked,
    Failure,
    Notice,
    Place,
    SourceNames,
    StepStatus,
    TurnStarted,
)
from aish.core.frozen import frozen
from aish.core.json import JsonValue, strict_json
from aish.core.messages import AssistantTurn, History, Turn, Usage, add_usage
from aish.core.protocols import AnswerSchema, Model, ModelRequest, PendingAnswer, PendingError
from aish.core.sources import CONTEXT_FILES, NO_SOURCES, Sources, names_of, union
from aish.core.text import for_line, safe_utf8
from aish.core.tools import Tool, ToolCall

if TYPE_CHECKING:
    from aish.agent.compaction import Window

_SHOWN = 400
_NO_CALLS: Mapping[str, UsedCall] = MappingProxyType({})


@frozen
class Ending:
    """`failure` is `None` for a good answer; `notice` (code, text) is a warning about it."""

    text: str
    failure: Failure | None = None
    notice: tuple[str, str] | None = None


def classify_answer(answer: Assembled, mask: Mask, *, wants_schema: bool) -> Ending:
    """Classify an `answer`: refused, truncated and empty ones are distinguished.

    `mask` masks text of it before that is truncated.
    """
    match answer.finish.reason:
        case "refusal":
            text = answer.text or answer.finish.refusal or ""
            refusal = for_line(mask(text))[:_SHOWN]
            reason = f"the model refused: {refusal}" if refusal else "the model refused to answer"
            return Ending(text, Failure("refusal", reason))
        case "length" if wants_schema and _is_whole(answer.text):
            # Truncated white space: small models produce it until they are stopped.
            return Ending(answer.text, notice=("truncated", "the answer was cut off after its end"))
        case "length" if wants_schema or not answer.text.strip():
            return Ending(answer.text, _TRUNCATED)
        case "length":
            return Ending(answer.text, notice=("truncated", _TRUNCATED.message))
        case _:
            return _complete(answer, mask)


def _is_whole(text: str) -> bool:
    """Return true if a text is a JSON value that could not continue."""
    try:
        value = strict_json(text)
    except (ValueError, RecursionError):
        return False
    return isinstance(value, (dict, list, str))


def _complete(answer: Assembled, mask: Mask) -> Ending:
    """An answer that ended by itself, or for a reason that only its content can judge."""
    reason = f"`{for_line(mask(answer.finish.raw))[:_SHOWN] or answer.finish.reason}`"
    odd = answer.finish.reason == "other"
    if answer.text.strip():
        notice = ("odd_finish", f"the answer ended with {reason}") if odd else None
        return Ending(answer.text, notice=notice)
    if odd:
        return Ending(answer.text, Failure("empty_answer", f"no answer came, only {reason}"))
    return Ending(answer.text, notice=("empty_answer", "the model's answer is empty"))


_TRUNCATED = Failure(
    "truncated",
    "the answer was cut off at the token limit",
    hint="raise `params.max_tokens` of the step or its model",
)


_GO_ON = "let the model continue with `on_denied: continue`"


@frozen
class Earlier:
    """State of a conversation from an earlier part of the run, to continue it.

    `turns` and `rounds` of it are over, and `calls` were made in them. `answer` is the last one, if
    its calls or its end are left: then it counts in `turns`, and is the last turn of the history if
    `is_added`. `ended` are its calls that have a result, by their ids. `corrections` counts the
    requests for another answer, `attempt` the attempts at the step. `pending` is the answer to the
    last request, which was sent at the time `asked` of the clock.
    """

    turns: int = 0
    rounds: int = 0
    calls: tuple[UsedCall, ...] = ()
    answer: Assembled | None = None
    is_added: bool = False
    ended: Mapping[str, UsedCall] = field(default_factory=dict)
    corrections: int = 0
    attempt: int = 1
    pending: PendingAnswer | None = None
    asked: float | None = None


class SuspendedError(Exception):
    """A conversation goes on later, from `turns` and `earlier`, as its answer comes after hours.

    `made` is a call that it has made, if any, and that may not be made again unasked. `turn` counts
    the requests before the attempt at the step, which began at the time `began` of the clock.
    """

    def __init__(self, turns: tuple[Turn, ...], earlier: Earlier, pending: PendingAnswer) -> None:
        super().__init__("the conversation waits for a batch")
        self.turns = turns
        self.earlier = earlier
        self.pending = pending
        self.made: UsedCall | None = None
        self.turn = 0
        self.began = 0.0


@frozen
class Ask:
    """A request of a prompt step, or of a line typed by the user, to a model.

    `history` already ends with the user turn to be answered. `tools` are those shown to the model;
    no other can be called. `tool_choice` is `auto`, `required`, `none` or a tool's name. Turns are
    numbered from `place.turn`, and `rounds` counts earlier tool rounds of the same question.
    `bound` belongs to `history` and limits its length; `heard` observes its changes. `files` are
    those that stay current in it. With `earlier` the history has more than the user turn. If it
    `suspends`, a request that is answered after hours raises `SuspendedError`.
    """

    history: History
    model: Model
    tools: tuple[Tool, ...] = ()
    tool_choice: str = "auto"
    params: Mapping[str, JsonValue] = field(default_factory=dict)
    schema: AnswerSchema | None = None
    place: Place = field(default_factory=Place)
    rounds: int = 0
    bound: "Window | None" = None
    heard: TurnObserver | None = None
    files: FileUpdates | None = None
    earlier: Earlier | None = None
    suspends: bool = False


@frozen
class Outcome:
    """The result. `text` is the last answer, `finish` the last finish reason."""

    status: StepStatus
    text: str
    calls: tuple[UsedCall, ...]
    usage: Usage
    finish: str
    failure: Failure | None
    turns: int
    sources: Sources = NO_SOURCES


async def converse(ask: Ask, runtime: AgentRuntime) -> Outcome:
    """Answer the last user turn of `ask.history`, with as many tool rounds as needed.

    The history is valid afterwards in any case, including cancellation.

    Raises:
        UnavailableError: the model's endpoint is unreachable, or refused the credentials.
        StepFailedError: the endpoint refused the request, or its answer is unusable.
        SuspendedError: the answer comes after hours, and the conversation `suspends`.
    """
    return await _Exchange(ask, runtime).run()


class _Exchange:
    def __init__(self, ask: Ask, runtime: AgentRuntime) -> None:
        self._ask = ask
        self._runtime = runtime
        self._conversation = Conversation(ask.history, ask.heard)
        self._visible = {tool.wire: tool for tool in ask.tools}
        self._sampler: Sampling | None = None
        self._first_turn = (ask.place.turn or 0) + 1
        self._turns = 0
        self._rounds = ask.rounds
        self._text = ""
        self._finish = ""
        self._usage: Usage | None = None
        self._calls: list[UsedCall] = []
        flow = runtime.flow
        self._descriptions = NO_SOURCES if flow is None else flow.descriptions(ask.tools)
        self._sources = NO_SOURCES
        """Those of the last request, and so of its answer."""
        if ask.earlier is not None:
            self._turns = ask.earlier.turns
            self._rounds += ask.earlier.rounds
            self._calls += ask.earlier.calls

    async def run(self) -> Outcome:
        """Repeat until an answer has no calls, or a limit or error ends it."""
        try:
            return await self._rounds_to_the_end()
        except BudgetError as error:
            return self._outcome("budget", self._text, _limit(error))

    async def _rounds_to_the_end(self) -> Outcome:
        ask = self._ask
        if ask.earlier is not None and ask.earlier.answer is not None:
            self._note_sources()
            ended = await self._take_over(ask.earlier, ask.earlier.answer)
            if ended is not None:
                return ended
        while True:
            place = self._next_place()
            request = self._next_request(place)
            if ask.bound is not None:
                failure = await ask.bound.fit(request, self._conversation, self._runtime)
                if failure is not None:
                    return self._outcome("failed", self._text, failure)
            answer = await self._answer_to(request)
            if not answer.calls or answer.finish.reason == "refusal":
                self._tell_turn(answer, place, tuple(call.id for call in answer.calls))
                return self._judge(answer, place)
            calls = self._add_answer(answer, place)
            ended = await self._run_round(calls, place)
            if ended is not None:
                return ended

    async def _take_over(self, earlier: Earlier, answer: Assembled) -> Outcome | None:
        """Continue after an answer of an earlier part; return the outcome if it was the last."""
        place = replace(self._next_place(), turn=self._first_turn + self._turns - 1)
        self._text, self._finish = answer.text, answer.finish.reason
        if not answer.calls or answer.finish.reason == "refusal":
            return self._judge(answer, place, is_added=earlier.is_added)
        used = () if earlier.is_added else self._conversation.used_ids
        calls = make_legal(answer.calls, self._visible, place, used, self._runtime.mask)
        if not earlier.is_added:
            self._add_assistant(answer, answer.text, tuple(call.call for call in calls))
        return await self._run_round(calls, place, earlier.ended)

    def _next_place(self) -> Place:
        place = self._ask.place
        return Place(place.step, place.item, self._first_turn + self._turns)

    def _next_request(self, place: Place) -> ModelRequest:
        ask = self._ask
        earlier = ask.earlier
        is_sent = earlier is not None and self._turns == earlier.turns
        return ModelRequest(
            history=ask.history,
            tools=ask.tools,
            tool_choice=self._tool_choice(),
            params=ask.params,
            schema=ask.schema,
            place=place,
            park=self._runtime.park_request,
            suspends=ask.suspends,
            pending=earlier.pending if earlier is not None and is_sent else None,
        )

    async def _answer_to(self, request: ModelRequest) -> Assembled:
        ask, runtime, place = self._ask, self._runtime, request.place
        begun = runtime.clock.monotonic()
        new = self._note_sources()
        if request.pending is None or ask.earlier is None or ask.earlier.asked is None:
            count = len(ask.history.turns)
            runtime.emit(TurnStarted(place, ask.model.alias, count, params=ask.params, sources=new))
        else:
            begun = ask.earlier.asked
        try:
            answer = await assemble(
                ask.model, request, place, runtime.emit, runtime.clock, runtime.every, begun
            )
        except PendingError as error:
            earlier = Earlier(self._turns, self._rounds, tuple(self._calls), asked=begun)
            raise SuspendedError(tuple(ask.history.turns), earlier, error.pending) from None
        if ask.bound is not None:
            ask.bound.record_usage(request, answer.asked)
        self._turns += 1
        self._text = answer.text or self._text
        self._finish = answer.finish.reason
        self._usage = add_usage(self._usage, answer.usage)
        return answer

    def _note_sources(self) -> SourceNames:
        """Note the sources of the next request; return those that the last one had not."""
        if self._runtime.flow is None:
            return None
        before, history = self._sources, self._ask.history
        self._sources = union((history.sources, self._descriptions))
        return names_of(self._sources - before)

    def _tool_choice(self) -> str:
        """The step's own choice; a required tool applies to the first request only."""
        choice = self._ask.tool_choice
        if not self._ask.tools:
            return "auto"
        if choice in {"auto", "none"}:
            return choice
        if self._turns:
            return "auto"
        named = (tool.wire for tool in self._ask.tools if str(tool.name) == choice)
        return next(named, choice)

    def _add_answer(self, answer: Assembled, place: Place) -> tuple[RequestedCall, ...]:
        """Add an answer with tool calls, after making the calls valid."""
        used, mask = self._conversation.used_ids, self._runtime.mask
        calls = make_legal(answer.calls, self._visible, place, used, mask)
        self._tell_turn(answer, place, tuple(call.call.id for call in calls))
        self._add_assistant(answer, answer.text, tuple(call.call for call in calls))
        return calls

    async def _run_round(
        self,
        calls: tuple[RequestedCall, ...],
        place: Place,
        ended: Mapping[str, UsedCall] = _NO_CALLS,
    ) -> Outcome | None:
        """Answer every call; returns an outcome if the conversation ends with this round.

        Those that have `ended` are not made again.
        """
        current = Round(
            calls,
            place,
            self._runtime,
            self._sampler_at(place),
            media_kinds=self._ask.model.media_kinds,
            ended=ended,
            sources=self._sources,
        )
        stop = self._stop(len(calls))
        block = ""
        try:
            if stop is None:
                await current.run()
                block = await self._changed_files(current, place)
            else:
                current.refuse_all(stop.reply)
        except BaseException:
            if not self._runtime.resumes_rounds:
                self._add_replies(current, "")
            # Else it is gone on with from here.
            raise
        self._add_replies(current, block)
        self._rounds += 1
        self._calls.extend(current.used)
        if stop is not None:
            return self._outcome(stop.status, self._text, stop.failure)
        if current.denied is not None:
            return self._outcome("denied", self._text, _denial(current.denied))
        if current.over is not None:
            return self._outcome("budget", self._text, _limit(current.over))
        return None

    def _sampler_at(self, place: Place) -> Sampling:
        """Answer servers that ask the model in a round; made at the first one, as few have any."""
        if self._sampler is None:
            ask, runtime = self._ask, self._runtime
            heard = request_recorder(runtime, ask.place, "sampling")
            self._sampler = Sampling(
                ask.model, runtime.emit, runtime.clock, ask.place, heard, runtime.models
            )
        self._sampler.place = place
        return self._sampler

    def _add_replies(self, current: Round, block: str) -> None:
        """Add a reply to each call: the history never ends with unanswered ones."""
        ended = current.ended
        *before, last = current.replies()
        reply_with_block = replace(last, content=with_block(last.content, block))
        if block and self._runtime.flow is not None:
            shown = (last.sources, frozenset({CONTEXT_FILES}), self._runtime.flow.local)
            reply_with_block = replace(reply_with_block, sources=union(shown))
        for reply in (*before, reply_with_block):
            # With an image or a block it contains more than the event of the call's end.
            more = reply.media or (block and reply is reply_with_block)
            self._conversation.add(reply, told=reply.call_id in ended and not more)

    async def _changed_files(self, current: Round, place: Place) -> str:
        """The block at the end of the round's last reply, if a request follows."""
        if self._ask.files is None or current.denied is not None or current.over is not None:
            return ""
        return await self._ask.files.after_round(place)

    def _stop(self, calls: int) -> "_Stop | None":
        """Why none of a turn's calls may be made, if so."""
        limits = self._runtime.limits
        if self._rounds >= limits.max_tool_depth:
            message = f"tool-call depth limit reached (`max_tool_depth: {limits.max_tool_depth}`)"
            failure = Failure("tool_depth", message, hint="raise `max_tool_depth`")
            return _Stop("budget", wording.DEPTH_REACHED, failure)
        if calls > limits.max_calls_per_turn:
            message = (
                f"the model asked for {calls} tool calls in one turn "
                f"(`max_calls_per_turn: {limits.max_calls_per_turn}`)"
            )
            failure = Failure("too_many_calls", message, hint="raise `max_calls_per_turn`")
            reply = wording.too_many(calls, limits.max_calls_per_turn)
            return _Stop("failed", reply, failure)
        return None

    def _judge(self, answer: Assembled, place: Place, *, is_added: bool = False) -> Outcome:
        wants_schema = self._ask.schema is not None
        ending = classify_answer(answer, self._runtime.mask, wants_schema=wants_schema)
        if not is_added:
            self._add_assistant(answer, ending.text or wording.EMPTY_ANSWER, ())
        if ending.notice is not None:
            self._runtime.emit(Notice(place, "warning", *ending.notice))
        status: StepStatus = "failed" if ending.failure else "ok"
        return self._outcome(status, ending.text, ending.failure)

    def _add_assistant(self, answer: Assembled, text: str, calls: tuple[ToolCall, ...]) -> None:
        finish = answer.finish
        origin = finish.origin or finish.model or self._ask.model.alias
        turn = AssistantTurn(safe_utf8(text), calls, answer.extras, origin, self._sources)
        asked = [(call.name, call.arguments) for call in answer.calls]
        same = [(call.name, call.arguments) for call in calls] == asked and turn.text == answer.text
        extras = bool(answer.extras) or any(call.extras for call in calls)
        self._conversation.add(turn, told=same and not extras)

    def _tell_turn(self, answer: Assembled, place: Place, ids: tuple[str, ...]) -> None:
        asked = zip(ids, answer.calls, strict=True)
        calls = [Asked(id, call.name, call.arguments) for id, call in asked]
        answer.tell(self._runtime.emit, place, self._ask.model.alias, calls=calls)

    def _outcome(self, status: StepStatus, text: str, failure: Failure | None) -> Outcome:
        usage, bound = self._usage, self._ask.bound
        sampled = None if self._sampler is None else self._sampler.usage
        for more in (sampled, None if bound is None else bound.take_usage()):
            usage = usage if more is None else add_usage(usage, more)
        return Outcome(
            status=status,
            text=text,
            calls=tuple(self._calls),
            usage=usage or Usage(),
            finish=self._finish,
            failure=failure,
            turns=self._turns,
            sources=self._sources,
        )


@frozen
class _Stop:
    """A limit that was reached: the reply to each call, and how the conversation ends."""

    status: StepStatus
    reply: str
    failure: Failure


def _limit(error: BudgetError) -> Failure:
    return Failure(error.code, error.message, error.hint)


def _denial(call: UsedCall) -> Failure:
    return Failure("denied", call.denial, f"{call.hint}; or {_GO_ON}" if call.hint else _GO_ON)
