"""A question and its answer, with all tool rounds that it needs, then its proposals."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import takewhile

import anyio

from aish.agent.converse import Ask, Outcome, converse
from aish.agent.runtime import AgentRuntime
from aish.agent.wording import INTERRUPTED as CALL_INTERRUPTED
from aish.agent.wording import NOT_RUN_INTERRUPTED
from aish.core.errors import AishError, BudgetError, PipelineError, UnavailableError
from aish.core.events import NOWHERE, Failure, Notice, Place, QuestionAsked, StepStarted, StepStatus
from aish.core.frozen import frozen
from aish.core.messages import AssistantTurn, ToolTurn, Turn, UserTurn
from aish.core.phrases import first_of
from aish.core.protocols import Model
from aish.core.sources import NO_SOURCES, Sources
from aish.engine.final import failure_of
from aish.engine.plan.order import models_of_packs
from aish.engine.resources.resources import missing_server, require_lock
from aish.engine.steps.context import EXIT_OF_STATUS
from aish.shell.pending_input import QuestionInput
from aish.shell.recording import settle
from aish.shell.session import ShellSession
from aish.shell.steps import finish

_SOON = 1.0
"""Seconds that a question may wait for servers before that is told."""
INTERRUPTED = "[aish] interrupted by the user"
_CUT_SHORT = frozenset({"failed", "budget"})
_TAKEN_BACK = Failure(
    "interrupted",
    "interrupted before any answer: the question is taken back",
    hint="`:retry` asks it again",
)
_STOPPED = "the answer so far is kept"
_SHOWN_CALLS = 3


@frozen
class ExchangeResult:
    """Result of an exchange; `text` is the model's last text, `cut` whether it was cut off."""

    status: StepStatus
    text: str = ""
    cut: bool = False
    failure: Failure | None = None
    error: AishError | None = None


async def exchange(
    session: ShellSession, text: str, sources: Sources = NO_SOURCES
) -> ExchangeResult:
    """Send `text` with everything queued for it to the model, and report the result.

    Ctrl-C ends the answer (`Interrupts.cancellable` around this), and is not an error.
    """
    place, clock = session.next_line(), session.open.environment.clock
    session.asked, session.stands = QuestionInput(text, sources=sources), False
    session.emit(StepStarted(place, "prompt"))
    begun = clock.monotonic()
    question = _UserTurn(session, text, sources)
    # Of Ctrl-C, or the end of the session; the cancelled scope decides which.
    answer = ExchangeResult("failed")
    try:
        outcome = await question.ask(place)
        cut = outcome.finish == "length"
        answer = ExchangeResult(outcome.status, outcome.text, cut, outcome.failure)
    except AishError as error:
        answer = ExchangeResult(
            "budget" if isinstance(error, BudgetError) else "failed", error=error
        )
    finally:
        _finish(session, place, question, answer, clock.monotonic() - begun)
    return answer


class _UserTurn:
    """A user turn being answered; it can be removed as long as the model has not answered."""

    def __init__(self, session: ShellSession, text: str, sources: Sources) -> None:
        self._session = session
        self._text = text
        self._sources = sources
        self._turn: UserTurn | None = None

    async def ask(self, place: Place) -> Outcome:
        session, opened = self._session, self._session.open
        await _wait_for_servers(session, place)
        _require(session)
        model = await opened.models.get(session.model_alias())
        bound = await session.window_limit()
        await session.attach_files(place)
        self._add()
        ask = Ask(
            history=session.history,
            model=model,
            tools=session.tools(),
            place=place,
            bound=bound,
            heard=session.heard,
            files=None if session.files is None else session.files.current,
        )
        limit = session.time_limit
        left = None if limit is None else max(0.0, limit - session.seconds)
        with anyio.move_on_after(left) as scope:
            return await converse(ask, await _runtime(session))
        assert scope.cancelled_caught, "nothing else ends it"
        raise BudgetError(
            f"the time limit of {limit or 0:g} s is exceeded",
            hint="`limits.time` in the file counts the time that answers take",
        )

    def _add(self) -> None:
        session = self._session
        session.prepare()
        asked, self._turn = session.send(self._text, self._sources)
        tools = tuple(str(tool.name) for tool in session.tools())
        session.emit(QuestionAsked(session.heard.place, asked.text, asked.names, tools))
        session.conversation().add(self._turn)

    def settle(self, said: str, why: str) -> bool:
        """Make the conversation continuable; return true if the question stays in it."""
        session, turns = self._session, self._session.history.turns
        if self._turn is None:
            return False
        last = turns[-1]
        if last is self._turn and not said:
            session.put_back(turns[:-1], "taken back")
            return False
        if isinstance(last, UserTurn | ToolTurn):
            text = f"{said}\n\n{why}" if said else why
            session.conversation().add(AssistantTurn(text))
        return True


async def _runtime(session: ShellSession) -> AgentRuntime:
    """Return what the tool loop needs, with the models that packs may ask."""
    opened = session.open
    pipeline, chosen = opened.plan.pipeline, session.model_alias()
    aliases = models_of_packs(pipeline.servers.values(), pipeline.models, chosen)
    models: dict[str, Model] = {}
    for alias in aliases:
        try:
            models[alias] = await opened.models.get(alias)
        except (PipelineError, UnavailableError) as error:
            if any(alias in server.model_consent.named for server in pipeline.servers.values()):
                raise
            # A pack that asks it is told that it is not there.
            text = f"model `{alias}`, which only packs may ask, cannot be used: {error.message}"
            session.emit(Notice(NOWHERE, "warning", "model_unavailable", text))
    return replace(opened.box.runtime, models=models)


async def _wait_for_servers(session: ShellSession, place: Place) -> None:
    """Wait for servers that still connect, so that the question is sent with all tools."""
    dynamic_registry = session.open.servers.dynamic_registry
    with anyio.move_on_after(_SOON):
        await dynamic_registry.wait_until_settled()
        return
    late = [one.alias for one in dynamic_registry.registry.servers if one.state == "connecting"]
    if late:
        how = f"Ctrl-C stops that, and `:mcp disconnect {late[0]}` continues without it"
        text = f"waiting for {', '.join(late)} to connect; {how}"
        session.emit(Notice(place, "info", "connecting", text))
    await dynamic_registry.wait_until_settled()


def _require(session: ShellSession) -> None:
    """Refuse questions while a server that the file requires is missing."""
    opened = session.open
    server = missing_server(opened.plan, opened.servers.dynamic_registry.registry.servers)
    if server is not None:
        raise UnavailableError(
            server.error or "failed to connect",
            where=f"mcp server `{server.alias}`",
            hint=f"`:mcp disconnect {server.alias}` continues without it",
        )
    require_lock(opened.box.tools)


def _stop_failure(turns: Sequence[Turn]) -> Failure:
    """The result of an answer that Ctrl-C ended, with the state of calls that were open."""
    *before, _ours = turns
    calls = [turn for turn in takewhile(_is_call, reversed(before)) if isinstance(turn, ToolTurn)]
    unsent = [reply.tool for reply in reversed(calls) if reply.content == NOT_RUN_INTERRUPTED]
    begun = [reply.tool for reply in reversed(calls) if reply.content == CALL_INTERRUPTED]
    verb = "was" if len(unsent) == 1 else "were"
    reasons = (
        f"{first_of(unsent, _SHOWN_CALLS)} {verb} not sent" if unsent else "",
        f"outcome of {first_of(begun, _SHOWN_CALLS)} is unknown" if begun else "",
    )
    return Failure("interrupted", f"interrupted: {'; '.join(filter(None, reasons)) or _STOPPED}")


def _is_call(turn: Turn) -> bool:
    return isinstance(turn, ToolTurn)


def _finish(
    session: ShellSession, place: Place, question: _UserTurn, answer: ExchangeResult, seconds: float
) -> None:
    # Text that was shown is kept, also if a limit has ended the answer.
    text = session.following.said.rstrip() if answer.status in _CUT_SHORT else ""
    failure, error = answer.failure, answer.error
    if error is not None:
        failure = failure_of(error)
    why = INTERRUPTED if failure is None else f"[aish] stopped: {failure.message}"
    stays = question.settle(text, why)
    if failure is None and answer.status != "ok":
        failure = _stop_failure(session.history.turns) if stays else _TAKEN_BACK
    # Only what the journal records as answered can be exported.
    settle(session.open.environment.recorder)
    finish(session, place, answer.status, answer.text or text or None, seconds, failure)
    code = error.exit_code if error is not None else EXIT_OF_STATUS[answer.status]
    if code:
        session.note_failure(answer.status, failure, code)


async def ask(session: ShellSession, text: str, sources: Sources = NO_SOURCES) -> ExchangeResult:
    """Ask `text`; the `CMD:` lines of the answer are proposed once it is complete.

    `sources` are those of the text, if it is not typed.
    """
    answer = await exchange(session, text, sources)
    if answer.status == "ok" and session.open.plan.pipeline.shell.cmd_lines:
        # The last line of an answer that was cut off may be an incomplete command.
        whole = answer.text.rpartition("\n")[0] if answer.cut else answer.text
        for ran in await session.open.local.propose(whole, session.history.sources):
            session.note_command(ran.record, typed=False)
    return answer
