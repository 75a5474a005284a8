"""A round of tool calls: their order, and one reply to each.

In any case `replies` has exactly one valid turn per call. Calls come as a model wrote them: an
argument text is an object or a reason why not, and a call whose id is missing, repeated or unusable
gets a new one.
"""

import json
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from types import MappingProxyType

import anyio

from aish.agent import wording
from aish.agent.dispatch import Approved, Proposals, Proposed, dispatch, no_more, refuse
from aish.agent.runtime import AgentRuntime, Mask, UsedCall
from aish.core.errors import BudgetError
from aish.core.events import Place
from aish.core.frozen import frozen
from aish.core.json import JsonObject, JsonValue, strict_json
from aish.core.messages import ToolTurn
from aish.core.patterns import lazy_pattern
from aish.core.protocols import Sampler
from aish.core.sources import NO_SOURCES, Sources
from aish.core.tools import NO_MEDIA, MediaKinds, ResultKind, Tool, ToolCall
from aish.policy.gate import THE_LOCK, Proposal
from aish.system.task_group import task_group
from aish.wire.calls import make_call_id

# Deeper than any real call, and well below the limits of encoders and validators.
_MAX_DEPTH = 64

_NOTHING = {"", "null"}
_OPENING = frozenset('{["')

_KINDS: Mapping[type, str] = {
    list: "an array",
    str: "a string",
    bool: "a boolean",
    int: "a number",
    float: "a number",
    type(None): "null",
}


@frozen
class Arguments:
    """Parsed arguments: `value` is `None` if they are invalid; `why` has the reason.

    `legal` is the JSON text of an object, which replaces the original in the history.
    """

    value: JsonObject | None
    legal: str
    why: str = ""


def read_arguments(text: str, schema: JsonObject) -> Arguments:
    """The object that `text` represents under a tool's `inputSchema`."""
    try:
        value, as_sent = _read(text, schema)
    except ValueError as error:
        return Arguments(None, "{}", str(error))
    except RecursionError:
        return Arguments(None, "{}", "nested too deeply")
    return Arguments(value, text if as_sent else json.dumps(value, ensure_ascii=False))


def _read(text: str, schema: JsonObject) -> tuple[JsonObject, bool]:
    """The object, and whether `text` is already a valid encoding of it."""
    value = _decode(text, schema)
    if isinstance(value, dict):
        decoded = _with_decoded_properties(value, schema)
        return decoded, decoded is value and text.strip() not in _NOTHING
    if isinstance(value, str) and _wants_object(schema):
        inner = _decode(value, schema)
        if isinstance(inner, dict):
            return _with_decoded_properties(inner, schema), False
    kind = _KINDS.get(type(value), "something else")
    raise ValueError(f"not an object but {kind}")


def _decode(text: str, schema: JsonObject) -> JsonValue:
    stripped = text.strip()
    if stripped in _NOTHING:
        required = schema.get("required")
        if not required:
            return {}
        names = ", ".join(map(str, required)) if isinstance(required, list | tuple) else "some"
        raise ValueError(f"{stripped or 'empty'}, and the schema requires {names}")
    return _strict(stripped)


def _strict(text: str) -> JsonValue:
    try:
        value: JsonValue = strict_json(text)
        # An escaped lone surrogate is valid JSON, but cannot be encoded again.
        (json.dumps(value, ensure_ascii=False) if "\\u" in text else text).encode()
    except json.JSONDecodeError as error:
        at = f"at line {error.lineno} column {error.colno}"
        if error.msg == "Extra data" and text[error.pos] in _OPENING:
            raise ValueError(f"a second value begins {at}, and only one is taken") from None
        raise ValueError(f"{error.msg} {at}") from None
    except UnicodeEncodeError:
        raise ValueError("half of a surrogate pair") from None
    if text.count("{") + text.count("[") > _MAX_DEPTH and _is_deep(value):
        raise ValueError("nested too deeply")
    return value


def _is_deep(value: JsonValue) -> bool:
    level: list[JsonValue] = [value]
    for _ in range(_MAX_DEPTH + 1):
        inner: list[JsonValue] = []
        for item in level:
            if isinstance(item, dict):
                inner.extend(item.values())
            elif isinstance(item, list):
                inner.extend(item)
        level = inner
    return bool(level)


def _with_decoded_properties(value: dict[str, JsonValue], schema: JsonObject) -> JsonObject:
    """`value`, with text decoded once if the schema allows only an object."""
    properties = schema.get("properties")
    if not isinstance(properties, Mapping):
        return value
    decoded: dict[str, JsonValue] = {}
    for key, item in value.items():
        if isinstance(item, str) and _wants_only_object(properties.get(key)):
            inner = _object_in(item)
            if inner is not None:
                decoded[key] = inner
    return {**value, **decoded} if decoded else value


def _object_in(text: str) -> JsonObject | None:
    try:
        value = _strict(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _wants_object(schema: JsonObject) -> bool:
    kind = schema.get("type", "object")
    return kind == "object" or (isinstance(kind, list | tuple) and "object" in kind)


def _wants_only_object(schema: JsonValue) -> bool:
    if not isinstance(schema, Mapping):
        return False
    kind = schema.get("type")
    if isinstance(kind, list | tuple):
        return "object" in kind and "string" not in kind
    return kind == "object"


def unique_ids(ids: Sequence[str], place: Place, used: Container[str]) -> tuple[str, ...]:
    """The ids of one turn's calls: each kept if usable and new, else generated.

    A generated id depends only on step, item, turn and index, so that a replay generates the same.
    """
    unique: dict[str, None] = {}
    # Earlier ids are not copied: that would cost more each turn.
    taken = _Either(unique, used)
    for index, id in enumerate(ids):
        fit = _is_fit(id) and id not in taken
        unique[id if fit else make_call_id(place, index, taken)] = None
    return tuple(unique)


class _Either:
    def __init__(self, one: Container[str], other: Container[str]) -> None:
        self._one = one
        self._other = other

    def __contains__(self, id: object) -> bool:
        return id in self._one or id in self._other


def _is_fit(id: str) -> bool:
    return bool(id.strip()) and id.isascii() and id.isprintable()


_MAX_NAME = 64
_ILLEGAL_IN_NAME = lazy_pattern(r"[^a-zA-Z0-9_-]")


@frozen
class RequestedCall:
    """A call as recorded in the history, with its resolution.

    `asked` is the original call, except that an unknown name is masked, as `why` is: they are
    truncated for display, and a truncated secret would not be recognized. `tool` is `None` for a
    name that no visible tool has, `arguments` if they are invalid, and `why` has the reason;
    `known` are the right names.
    """

    call: ToolCall
    asked: ToolCall
    tool: Tool | None
    arguments: JsonObject | None
    why: str
    known: tuple[str, ...]

    @property
    def tool_name(self) -> str:
        """`alias__name`, or a displayable form of an unknown name."""
        return str(self.tool.name) if self.tool else self.call.name

    def refusal(self) -> str:
        """The reply if the call cannot be made."""
        if self.tool is None:
            return wording.unknown_tool(self.asked.name, self.known)
        return wording.not_parseable(self.why)


def make_legal(
    calls: Sequence[ToolCall],
    visible: Mapping[str, Tool],
    place: Place,
    used: Container[str],
    mask: Mask,
) -> tuple[RequestedCall, ...]:
    """The calls of one turn, with unique ids, valid names and object arguments.

    `mask` masks messages about a call that cannot be made.
    """
    ids = unique_ids([call.id for call in calls], place, used)
    known = tuple(visible)
    return tuple(
        _parse_call(call, id, visible, known, mask) for call, id in zip(calls, ids, strict=True)
    )


def _parse_call(
    call: ToolCall, id: str, visible: Mapping[str, Tool], known: tuple[str, ...], mask: Mask
) -> RequestedCall:
    tool = visible.get(call.name) or _by_older_name(call.name, visible)
    if tool is None:
        call = replace(call, name=mask(call.name))
    read = read_arguments(call.arguments, tool.input_schema if tool else {})
    if tool is not None and tool.builtin:
        read = _own_arguments(call.name, tool, read)
    legal = ToolCall(id, _sendable(call.name), read.legal, call.extras)
    return RequestedCall(legal, call, tool, read.value, mask(read.why), known)


def _by_older_name(wire: str, visible: Mapping[str, Tool]) -> Tool | None:
    """The built-in tool that an older name stands for."""
    server = wire.partition("__")[0]
    if not any(tool.builtin and tool.name.server == server for tool in visible.values()):
        return None
    from aish.packs.catalogue import own_public_name

    own = visible.get(own_public_name(wire))
    return own if own is not None and own.builtin else None


def _own_arguments(wire: str, tool: Tool, read: Arguments) -> Arguments:
    """The arguments as rules and the tool see them."""
    if read.value is None:
        return read
    from aish.packs.catalogue import call_arguments

    try:
        return replace(read, value=call_arguments(wire, tool, read.value))
    except ValueError as error:
        return Arguments(None, read.legal, str(error))


def _sendable(name: str) -> str:
    """A name that endpoints accept: a right one as it is, a wrong one sanitized."""
    return _ILLEGAL_IN_NAME.sub("_", name)[:_MAX_NAME] or "unknown"


MAX_PARALLEL = 8


class Round:
    """The calls of one assistant turn, until their replies.

    `denied` is the first denied call, if that ends the run, `over` the limit that one of them
    would exceed.
    """

    def __init__(
        self,
        wanted: Sequence[RequestedCall],
        place: Place,
        runtime: AgentRuntime,
        sampler: Sampler | None = None,
        *,
        media_kinds: MediaKinds = NO_MEDIA,
        ended: Mapping[str, UsedCall] = MappingProxyType({}),
        sources: Sources = NO_SOURCES,
    ) -> None:
        self._wanted = wanted
        self._places = [Place(place.step, place.item, place.turn, call.call.id) for call in wanted]
        self._runtime = runtime
        self._sampler = sampler
        self._media_kinds = media_kinds
        self._sources = sources
        self._begun: set[int] = set()
        self._used = [ended.get(call.call.id) for call in wanted]
        self._proposed: dict[int, Proposed] = {}
        self.denied: UsedCall | None = None
        self.over: BudgetError | None = None
        for used in self.used:
            self._note_denial(used)

    @property
    def used(self) -> tuple[UsedCall, ...]:
        return tuple(used for used in self._used if used is not None)

    def replies(self) -> Iterator[ToolTurn]:
        """Yield a reply per call, in the model's order; to be added however the round ended."""
        for index, (call, used) in enumerate(zip(self._wanted, self._used, strict=True)):
            if used is not None:
                yield ToolTurn(
                    call.call.id,
                    call.tool_name,
                    used.content,
                    used.media,
                    is_error=used.kind != "ok",
                    sources=used.sources,
                )
                continue
            begun = index in self._begun
            reply = wording.INTERRUPTED if begun else wording.NOT_RUN_INTERRUPTED
            yield ToolTurn(call.call.id, call.tool_name, reply, is_error=True)

    @property
    def ended(self) -> frozenset[str]:
        """The ids of the calls whose end was emitted."""
        pairs = zip(self._wanted, self._used, strict=True)
        return frozenset(call.call.id for call, used in pairs if used is not None)

    def refuse_all(self, reply: str) -> None:
        """Answer every call with `reply`, without making any."""
        for index in range(len(self._wanted)):
            self._refuse(index, "denied", reply)

    async def run(self) -> None:
        """Make the calls: consecutive parallel ones together, any other alone.

        Raises:
            PausedError: the run is paused before an answer to a question.
        """
        left = [index for index, used in enumerate(self._used) if used is None]
        async with Proposals(self._runtime) as proposals:
            for index in left if self._runtime.asking.waits and self.denied is None else ():
                self._begin(index, proposals)
            for _, group in groupby(left, self._group_key):
                await self._run_group(list(group), proposals)

    def _begin(self, index: int, proposals: Proposals) -> Proposed | None:
        """Begin to ask about a call that can be made."""
        call = self._wanted[index]
        if call.tool is None or call.arguments is None:
            return None
        if index not in self._proposed:
            place = self._places[index]
            self._proposed[index] = proposals.begin(
                Proposal(call.tool, call.arguments, place, self._sources)
            )
        return self._proposed[index]

    def _group_key(self, index: int) -> int:
        """Equal for consecutive calls that may run together: -1, else a unique number."""
        call = self._wanted[index]
        alone = (
            call.tool is not None
            and call.arguments is not None
            and not self._runtime.gate.policy.is_parallel(call.tool)
        )
        return index if alone else -1

    async def _run_group(self, group: Sequence[int], proposals: Proposals) -> None:
        # In the order of the model: what follows a denial is not made.
        approved: list[tuple[int, Approved]] = []
        for index in group:
            ready = await self._propose(index, proposals)
            if ready is not None:
                approved.append((index, ready))
        # An answer to the last one may have come long after the first.
        batch, approved = approved, []
        for index, ready in batch:
            if self.denied is not None:
                self._refuse(index, "denied", wording.NOT_RUN_AFTER_DENIAL)
                continue
            renewed = await proposals.ask_if_changed(ready)
            if isinstance(renewed, Approved):
                approved.append((index, renewed))
            else:
                self._used[index] = renewed
                self._note_denial(renewed)
        if len(approved) == 1:
            await self._dispatch(*approved[0])
        elif approved:
            await self._dispatch_together(approved)

    async def _propose(self, index: int, proposals: Proposals) -> Approved | None:
        call = self._wanted[index]
        if self.denied is not None:
            self._refuse(index, "denied", wording.NOT_RUN_AFTER_DENIAL)
            return None
        if self.over is not None:
            self._refuse(index, "denied", wording.NO_MORE_CALLS)
            return None
        proposed = self._begin(index, proposals)
        if proposed is None:
            self._refuse(index, "bad_arguments", call.refusal())
            return None
        ready = await proposals.get(proposed)
        if isinstance(ready, Approved):
            return ready
        self._used[index] = ready
        self._note_denial(ready)
        return None

    def _note_denial(self, used: UsedCall) -> None:
        # A denial by the lock is not a denial by the file's rules: the run reports it at its end.
        ours = used.rule != THE_LOCK
        if used.kind == "denied" and ours and self._runtime.on_denied == "fail":
            self.denied = self.denied or used

    async def _dispatch(self, index: int, approved: Approved) -> None:
        self._begun.add(index)
        try:
            self._used[index] = await dispatch(
                approved, self._runtime, self._sampler, media_kinds=self._media_kinds
            )
        except BudgetError as error:
            self.over = self.over or error
            self._used[index] = no_more(approved, self._runtime)

    async def _dispatch_together(self, approved: Sequence[tuple[int, Approved]]) -> None:
        slots = anyio.Semaphore(MAX_PARALLEL)

        async def one(index: int, ready: Approved) -> None:
            async with slots:
                await self._dispatch(index, ready)

        # A call's failure is a result: an exception here is a bug or a broken sink, and its class
        # determines the exit code.
        async with task_group() as tasks:
            for index, ready in approved:
                tasks.start_soon(one, index, ready)

    def _refuse(self, index: int, kind: ResultKind, reply: str) -> None:
        call = self._wanted[index]
        self._used[index] = refuse(
            call.tool_name,
            call.asked.arguments if call.arguments is None else call.arguments,
            kind,
            reply,
            self._runtime,
            self._places[index],
            sources=self._sources,
        )
