"""What a tool call's argument text is worth (L17): an object, or a reason why not.

Nothing here repairs: what is not JSON is refused with a reason the model can act on. The check
against the tool's schema comes later, where the call is dispatched.
"""

import json
from collections.abc import Mapping

from aish.core.frozen import frozen
from aish.core.json import JsonObject, JsonValue, strict_json

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
