"""Commands of other programs to a session over its socket, beside answers.

`say`, `connect` and `reset`, another model, another conversation. All but the model is done between
two lines, in the order in which it comes. What is said is text for the model and never a line of
the session: neither a command of it nor one of the local shell, whatever it begins with.
"""

import json
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from aish.agent.conversation import IllegalTurnError
from aish.core.errors import AishError, UsageError
from aish.core.events import NOWHERE, Notice
from aish.core.json import JsonObject, JsonValue
from aish.core.messages import AssistantTurn, SystemTurn, ToolTurn, Turn, UserTurn
from aish.core.phrases import backticked, shorten
from aish.core.sources import NO_SOURCES, UNKNOWN
from aish.core.text import for_line, safe_utf8
from aish.core.tools import ToolCall
from aish.engine.environment import ControlCommand
from aish.engine.limits import RunMeter
from aish.engine.plan.plan import Plan
from aish.engine.plan.validation.validate import limit_check
from aish.engine.run_values import SettableValue, limit_values, seconds_of
from aish.shell.commands.conversation import CLEAR
from aish.shell.commands.mcp import connect_for
from aish.shell.exchange import ask
from aish.shell.request_queue import RequestQueue
from aish.shell.session import ShellSession
from aish.shell.session_models import PlanFor, model_if_in_file

_MOST_SHOWN = 4000
_ROLES = ("system", "user", "assistant", "tool")
_ENTRY = frozenset({"role", "text", "calls", "tool", "characters", "time", "step", "item"})


class ControlCommands:
    """The commands and values of one session, which may not have begun yet.

    `plan_for` makes the plan of a model, which fails if its key is missing.
    """

    def __init__(
        self,
        plan: Plan,
        plan_for: PlanFor,
        meter: RunMeter,
        requests: RequestQueue,
        session: Callable[[], ShellSession | None],
    ) -> None:
        self._plan = plan
        self._plan_for = plan_for
        self._meter = meter
        self._requests = requests
        self._session = session

    @property
    def commands(self) -> Mapping[str, ControlCommand]:
        return {"say": self._say, "connect": self._connect, "reset": self._reset}

    @property
    def values(self) -> Mapping[str, SettableValue]:
        limits = limit_values(self._plan, self._meter)
        return {
            "model": SettableValue("string", self._model, self._choose),
            "limits.time": SettableValue("number", self._time, self._limit_time),
            **{path: replace(one, set=partial(self._limit, path)) for path, one in limits.items()},
        }

    async def replace_conversation(self, entries: Sequence[JsonObject], by: str) -> None:
        turns = list(_turns(entries))

        async def put(session: ShellSession) -> JsonObject:  # ruff: ignore[unused-async] - the type of those that wait
            system = [SystemTurn(session.open.frame)] if turns and session.open.frame else []
            # Nobody says where another program has the entries from.
            is_followed = session.open.box.runtime.flow is not None
            unknown = frozenset({UNKNOWN}) if is_followed else NO_SOURCES
            told = [replace(turn, sources=unknown) for turn in turns]
            try:
                session.continue_with([*system, *told])
            except IllegalTurnError as error:
                raise UsageError(f"the entries are not a conversation: {error}") from error
            _tell(session, f"{by} has replaced the conversation")
            return {}

        await self._wait_for(put)

    async def _say(self, arguments: JsonObject, by: str) -> JsonObject:
        text = safe_utf8(str(arguments["text"]))
        if not text.strip():
            raise UsageError("there is no text to say")

        async def say(session: ShellSession) -> JsonObject:
            _tell(session, f"{by} says: {shorten(self._plan.secrets.mask(text), _MOST_SHOWN)}")
            try:
                with session.autonomous.suspend():
                    await ask(session, text)
            except AishError as error:
                # Nobody waits for it: it is told as that of a line.
                session.tell_failure(error)
            return {}

        return self._queue(say)

    async def _connect(self, arguments: JsonObject, by: str) -> JsonObject:
        url, argv, alias = (arguments.get(key) for key in ("url", "argv", "alias"))
        words = tuple(map(str, argv)) if isinstance(argv, Sequence) else ()
        named = None if alias is None else str(alias)

        async def connect(session: ShellSession) -> JsonObject:
            info = await connect_for(session, by, named, str(url or ""), words)
            return {"alias": info.alias, "tools": info.tools, "address": info.address}

        return await self._wait_for(connect)

    async def _reset(self, _arguments: JsonObject, by: str) -> JsonObject:
        async def reset(session: ShellSession) -> JsonObject:
            await CLEAR.run(session, "")
            _tell(session, f"{by} has reset the conversation")
            return {}

        return self._queue(reset)

    def _queue(self, work: Callable[[ShellSession], Awaitable[JsonObject]]) -> JsonObject:
        """Queue work without waiting for it, and return its position."""
        self._requests.put(partial(self._within, work))
        return {"queued": len(self._requests)}

    async def _wait_for(self, work: Callable[[ShellSession], Awaitable[JsonObject]]) -> JsonObject:
        """Return the result of work once it is its turn; secrets in it are masked."""
        secrets = self._plan.secrets
        try:
            answer = await self._requests.put(partial(self._within, work)).result()
        except AishError as error:
            hint = None if error.hint is None else secrets.mask(error.hint)
            raise UsageError(secrets.mask(str(error)), hint=hint) from error
        return {key: secrets.mask_json(value) for key, value in answer.items()}

    async def _within(self, work: Callable[[ShellSession], Awaitable[JsonObject]]) -> JsonObject:
        session = self._session()
        assert session is not None, "requests are taken by the session"
        return await work(session)

    def _model(self) -> JsonValue:
        session = self._session()
        return self._plan.default_model if session is None else session.model

    def _require_session(self) -> ShellSession:
        session = self._session()
        if session is None:
            raise ValueError("the session has not begun yet")
        return session

    def _time(self) -> JsonValue:
        session = self._session()
        return self._plan.time_limit if session is None else session.time_limit

    def _limit_time(self, value: JsonValue) -> None:
        self._require_session().time_limit = seconds_of(value)

    def _limit(self, path: str, value: JsonValue) -> None:
        """Set a limit; with one on tokens or money the worst case of the model must be known."""
        alias, kind = self._require_session().model, path.removeprefix("limits.")
        plan = self._plan if alias is None else self._plan_for(alias)
        if alias is not None and value is not None and kind in {"cost_usd", "tokens"}:
            limits = replace(plan.limits, **{kind: 1})
            if problems := limit_check(plan.pipeline, limits, (), None, (alias,)):
                raise ValueError(problems[0].message)
        limit_values(plan, self._meter)[path].set(value)

    def _choose(self, value: JsonValue) -> None:
        session = self._require_session()
        alias = value if isinstance(value, str) else ""
        try:
            # Its key is looked up now, so that a missing one is told before anything is asked.
            self._plan_for(model_if_in_file(alias, self._plan))
        except AishError as error:
            raise ValueError(error.message) from error
        session.choose(alias)
        session.open.lines.refresh()


def _tell(session: ShellSession, text: str) -> None:
    session.emit(Notice(NOWHERE, "info", "control", text))


def _turns(entries: Sequence[JsonObject]) -> Sequence[Turn]:
    """The turns of a conversation of `GET /session`; the session keeps its system prompt."""
    turns: list[Turn] = []
    calls: deque[str] = deque()
    for number, entry in enumerate(entries, 1):
        if unknown := [key for key in entry if key not in _ENTRY]:
            raise UsageError(f"entry {number} has the unknown key `{for_line(unknown[0])}`")
        text, length = _text(entry, "text", number), entry.get("characters")
        if isinstance(length, int) and length != len(text):
            raise UsageError(f"entry {number} has only the first part of its text")
        match entry.get("role"):
            case "system":
                continue
            case "user":
                if turns and not isinstance(turns[-1], AssistantTurn):
                    raise UsageError(f"entry {number} is a question before the answer to the last")
                turns.append(UserTurn(text))
            case "assistant":
                asked = [_call(call, number) for call in _list(entry.get("calls"), number)]
                calls.extend(call.id for call in asked)
                turns.append(AssistantTurn(text, tuple(asked)))
            case "tool":
                # Replies are told in the order of the calls, without their ids.
                tool = _text(entry, "tool", number)
                turns.append(ToolTurn(calls.popleft() if calls else "", tool, text))
            case _:
                raise UsageError(f"`role` of entry {number} is not one of {backticked(_ROLES)}")
    if turns and (not isinstance(turns[-1], AssistantTurn) or calls):
        hint = "`say` asks a question"
        raise UsageError("the conversation does not end with an answer", hint=hint)
    return turns


def _call(value: JsonValue, number: int) -> ToolCall:
    call = value if isinstance(value, Mapping) else {}
    arguments = _text(call, "arguments", number)
    try:
        is_object = isinstance(json.loads(arguments), dict)
    except (ValueError, RecursionError):
        is_object = False
    if not is_object:
        raise UsageError(f"`arguments` of a call of entry {number} is not the text of an object")
    return ToolCall(_text(call, "id", number), _text(call, "name", number), arguments)


def _list(value: JsonValue, number: int) -> Sequence[JsonValue]:
    if value is None or (isinstance(value, Sequence) and not isinstance(value, str)):
        return value or ()
    raise UsageError(f"`calls` of entry {number} is not a list")


def _text(of: JsonObject, key: str, number: int) -> str:
    value = of.get(key)
    if not isinstance(value, str):
        raise UsageError(f"`{key}` of entry {number} is not a text")
    return safe_utf8(value)
