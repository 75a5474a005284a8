"""What other programs may do in a session over its socket, beside answers about calls (A3, A4).

`say`, `connect` and `reset`, another model, another conversation. All but the model is done between
two lines, in the order in which it comes. What is said is text for the model and never a line of
the session: neither a command of it nor one of the local shell, whatever it begins with.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial

from aish.agent.conversation import IllegalTurnError
from aish.core.errors import AishError, UsageError
from aish.core.events import NOWHERE, Notice
from aish.core.json import JsonObject, JsonValue
from aish.core.messages import AssistantTurn, SystemTurn, Turn, UserTurn
from aish.core.phrases import shorten
from aish.core.text import safe_utf8
from aish.engine.environment import ControlCommand
from aish.engine.plan.plan import Plan
from aish.engine.run_values import RunValue
from aish.shell.commands.conversation import CLEAR
from aish.shell.commands.mcp import connect_for
from aish.shell.exchange import ask
from aish.shell.session import PlanFor, RequestQueue, Session, known_model

_MOST_SHOWN = 4000
_ENTRY = frozenset({"role", "text", "calls", "time"})


class ControlCommands:
    """The commands and values of one session, which may not have begun yet.

    `plan_for` makes the plan of a model, which fails if its key is missing.
    """

    def __init__(
        self,
        plan: Plan,
        plan_for: PlanFor,
        requests: RequestQueue,
        session: Callable[[], Session | None],
    ) -> None:
        self._plan = plan
        self._plan_for = plan_for
        self._requests = requests
        self._session = session

    @property
    def commands(self) -> Mapping[str, ControlCommand]:
        """The commands, by name."""
        return {"say": self._say, "connect": self._connect, "reset": self._reset}

    @property
    def values(self) -> Mapping[str, RunValue]:
        """What may be changed, by path."""
        return {"model": RunValue("string", self._model, self._choose)}

    async def replace_conversation(self, entries: Sequence[JsonObject], by: str) -> None:
        """Continue with another conversation.

        Raises:
            UsageError: it is none that a model could be shown.
        """
        turns = list(_turns(entries))

        async def replace(session: Session) -> JsonObject:  # ruff: ignore[unused-async] - the type of those that wait
            system = [SystemTurn(session.open.frame)] if turns and session.open.frame else []
            try:
                session.continue_with([*system, *turns])
            except IllegalTurnError as error:
                raise UsageError(f"the entries are not a conversation: {error}") from error
            _tell(session, f"{by} has replaced the conversation")
            return {}

        await self._done(replace)

    async def _say(self, arguments: JsonObject, by: str) -> JsonObject:
        text = safe_utf8(str(arguments["text"]))
        if not text.strip():
            raise UsageError("there is no text to say")

        async def say(session: Session) -> JsonObject:
            _tell(session, f"{by} says: {shorten(self._plan.secrets.mask(text), _MOST_SHOWN)}")
            try:
                with session.autonomous.suspended():
                    await ask(session, text)
            except AishError as error:
                # Nobody waits for it: it is told as that of a line.
                session.tell_failure(error)
            return {}

        self._requests.put(partial(self._within, say))
        return {"queued": len(self._requests)}

    async def _connect(self, arguments: JsonObject, by: str) -> JsonObject:
        url, argv, alias = (arguments.get(key) for key in ("url", "argv", "alias"))
        words = tuple(map(str, argv)) if isinstance(argv, Sequence) else ()
        named = None if alias is None else str(alias)

        async def connect(session: Session) -> JsonObject:
            info = await connect_for(session, by, named, str(url or ""), words)
            return {"alias": info.alias, "tools": info.tools, "address": info.address}

        return await self._done(connect)

    async def _reset(self, arguments: JsonObject, by: str) -> JsonObject:
        del arguments

        async def reset(session: Session) -> JsonObject:
            await CLEAR.run(session, "")
            _tell(session, f"{by} has reset the conversation")
            return {}

        return await self._done(reset)

    async def _done(self, work: Callable[[Session], Awaitable[JsonObject]]) -> JsonObject:
        """What came of something, once it is its turn; secrets in it are masked."""
        secrets = self._plan.secrets
        try:
            answer = await self._requests.put(partial(self._within, work)).result()
        except AishError as error:
            hint = None if error.hint is None else secrets.mask(error.hint)
            raise UsageError(secrets.mask(str(error)), hint=hint) from error
        return {key: secrets.mask_json(value) for key, value in answer.items()}

    async def _within(self, work: Callable[[Session], Awaitable[JsonObject]]) -> JsonObject:
        session = self._session()
        assert session is not None, "requests are taken by the session"
        return await work(session)

    def _model(self) -> JsonValue:
        session = self._session()
        return self._plan.default_model if session is None else session.model

    def _choose(self, value: JsonValue) -> None:
        session = self._session()
        if session is None:
            raise ValueError("the session has not begun yet")
        alias = value if isinstance(value, str) else ""
        try:
            # Its key is looked up now, so that a missing one is told before anything is asked.
            self._plan_for(known_model(alias, self._plan))
        except AishError as error:
            raise ValueError(error.message) from error
        session.choose(alias)
        session.open.lines.refresh()


def _tell(session: Session, text: str) -> None:
    session.emit(Notice(NOWHERE, "info", "control", text))


def _turns(entries: Sequence[JsonObject]) -> Sequence[Turn]:
    """The turns of a conversation as `GET /session` tells it.

    Raises:
        UsageError: it is not a conversation, or ends in a question.
    """
    turns: list[Turn] = []
    for number, entry in enumerate(entries, 1):
        if unknown := [key for key in entry if key not in _ENTRY]:
            raise UsageError(f"entry {number} has the unknown key `{unknown[0]}`")
        role, text = entry.get("role"), entry.get("text")
        if not isinstance(text, str):
            raise UsageError(f"`text` of entry {number} is not a text")
        match role:
            case "system":
                continue  # that of the session stays
            case "user":
                turns.append(UserTurn(safe_utf8(text)))
            case "assistant":
                turns.append(AssistantTurn(safe_utf8(text)))
            case _:
                raise UsageError(f"`role` of entry {number} is neither `user` nor `assistant`")
    if turns and not isinstance(turns[-1], AssistantTurn):
        raise UsageError("the last entry is a question without an answer", hint="`say` asks it")
    return turns
