"""Tool calls as a model wrote them, made fit for the history and for a tool (L12, L16, L17).

What an argument text is worth (an object, or a reason why not), and ids for calls whose own id is
missing, repeats, or cannot be sent back.
"""

import json
import re
from collections.abc import Container, Mapping, Sequence
from dataclasses import replace

from aish.agent import wording
from aish.agent.runtime import Mask
from aish.core.events import Place
from aish.core.frozen import frozen
from aish.core.json import JsonObject, JsonValue, strict_json
from aish.core.tools import Tool, ToolCall
from aish.wire.chat.tool_calls import made_id

# Deeper than any real call, and far from where encoders and validators give up.
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
    """Parsed arguments: `value` is `None` where they are broken, and `why` then says how.

    `legal` is the JSON text of an object, to stand in the history in place of what was sent.
    """

    value: JsonObject | None
    legal: str
    why: str = ""


def read_arguments(text: str, schema: JsonObject) -> Arguments:
    """The object that `text` stands for under a tool's `inputSchema`."""
    try:
        value, as_sent = _read(text, schema)
    except ValueError as error:
        return Arguments(None, "{}", str(error))
    except RecursionError:
        return Arguments(None, "{}", "nested too deeply")
    return Arguments(value, text if as_sent else _spell(value))


def _read(text: str, schema: JsonObject) -> tuple[JsonObject, bool]:
    """The object, and whether `text` is already a legal spelling of it."""
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
        # An escaped half of a pair is JSON, but no encoder can send it on.
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
    """Whether containers nest deeper than they may."""
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
    """`value`, with text decoded once where the schema wants an object and nothing else."""
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


def _spell(value: JsonObject) -> str:
    return json.dumps(value, ensure_ascii=False)


def unique_ids(ids: Sequence[str], place: Place, used: Container[str]) -> tuple[str, ...]:
    """The ids of one turn's calls: each kept where it is fit and new, else made.

    A made id follows from step, item, turn and index alone, so that a replayed run makes the same.
    """
    unique: dict[str, None] = {}
    # Those of earlier turns are only looked at, never copied: that would cost more each turn.
    taken = _Either(unique, used)
    for index, given in enumerate(ids):
        fit = _is_fit(given) and given not in taken
        unique[given if fit else made_id(place, index, taken)] = None
    return tuple(unique)


class _Either:
    """What is in one of two containers."""

    def __init__(self, one: Container[str], other: Container[str]) -> None:
        self._one = one
        self._other = other

    def __contains__(self, id: object) -> bool:
        return id in self._one or id in self._other


def _is_fit(id: str) -> bool:
    return bool(id.strip()) and id.isascii() and id.isprintable()


_MAX_NAME = 64
_ILLEGAL_IN_NAME = re.compile(r"[^a-zA-Z0-9_-]")


@frozen
class Wanted:
    """A call as it stands in the history, and what is known of it.

    `asked` is the call as it came, but that a name which no tool has is masked, as `why` is: they
    are cut before they are shown or sent back, and half a secret would not be known for one.
    `tool` is `None` for a name that no visible tool has, `arguments` where they are broken, and
    `why` then says how; `known` are the right names.
    """

    call: ToolCall
    asked: ToolCall
    tool: Tool | None
    arguments: JsonObject | None
    why: str
    known: tuple[str, ...]

    @property
    def tool_name(self) -> str:
        """`alias__name`, or what is fit to show of a name that no tool has."""
        return str(self.tool.name) if self.tool else self.call.name

    def refusal(self) -> str:
        """The reply where the call cannot be made."""
        if self.tool is None:
            return wording.unknown_tool(self.asked.name, self.known)
        return wording.not_parseable(self.why)


def make_legal(
    calls: Sequence[ToolCall],
    visible: Mapping[str, Tool],
    place: Place,
    used: Container[str],
    mask: Mask,
) -> tuple[Wanted, ...]:
    """The calls of one turn, with unique ids, sendable names and object arguments.

    `mask` takes the secrets out of what is told of a call that cannot be made.
    """
    ids = unique_ids([call.id for call in calls], place, used)
    known = tuple(visible)
    return tuple(
        _wanted(call, id, visible, known, mask) for call, id in zip(calls, ids, strict=True)
    )


def _wanted(
    call: ToolCall, id: str, visible: Mapping[str, Tool], known: tuple[str, ...], mask: Mask
) -> Wanted:
    tool = visible.get(call.name)
    if tool is None:
        call = replace(call, name=mask(call.name))
    read = read_arguments(call.arguments, tool.input_schema if tool else {})
    legal = ToolCall(id, _sendable(call.name), read.legal, call.extras)
    return Wanted(legal, call, tool, read.value, mask(read.why), known)


def _sendable(name: str) -> str:
    """A name that endpoints take back: a right one as it is, a wrong one made harmless."""
    return _ILLEGAL_IN_NAME.sub("_", name)[:_MAX_NAME] or "unknown"
