"""HTTP headers that repeat parts of a body in the stateless era. Pure.

https://modelcontextprotocol.io/specification/2026-07-28/basic/transports/streamable-http
"""

import base64
import re
from collections.abc import Iterator, Mapping, Sequence

from aish.core.frozen import frozen
from aish.core.json import JsonObject, JsonValue
from aish.mcp.protocol.messages import HEADER_MISMATCH, RpcError

ANNOTATION = "x-mcp-header"
TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
PLAIN = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?")
VISIBLE = re.compile(r"[\x21-\x7e]+")
MAX_ECHOED = 1024
MIRRORED_TYPES = frozenset({"string", "integer", "boolean"})
SAFE_INTEGER = 2**53 - 1
MAX_DEPTH = 32
NAMED_BY = {
    **dict.fromkeys(("tools/call", "prompts/get"), "name"),
    "resources/read": "uri",
    **dict.fromkeys(("tasks/get", "tasks/update", "tasks/cancel"), "taskId"),
}
"""Which parameter becomes `Mcp-Name`."""
_ENCODED, _ENCODED_END = "=?base64?", "?="
_WHOLE = re.compile(r"(-?(?:0|[1-9]\d{0,15}))(?:\.0{1,16})?", re.ASCII)


@frozen
class Mirrored:
    """A parameter that goes into `Mcp-Param-<name>`; `path` leads to it in the arguments."""

    name: str
    path: tuple[str, ...]


def header_parameters(schema: JsonObject) -> tuple[Mirrored, ...]:
    """The annotated parameters of an input schema.

    Raises:
        ValueError: an annotation breaks the rules, so that the whole tool is to be left out.
    """
    reachable = tuple(_reachable(schema, (), 0))
    if len(reachable) != _count(schema, 0):
        raise ValueError(f"`{ANNOTATION}` stands where it is not reachable by `properties` alone")
    names: set[str] = set()
    for parameter, kind in reachable:
        if not TOKEN.fullmatch(parameter.name):
            raise ValueError(f"`{ANNOTATION}` is not a legal header name")
        if not isinstance(kind, str) or kind not in MIRRORED_TYPES:
            raise ValueError(f"`{ANNOTATION}` stands on a parameter that is not a primitive")
        if parameter.name.lower() in names:
            raise ValueError(f"`{ANNOTATION}` is used twice for `{parameter.name}`")
        names.add(parameter.name.lower())
    return tuple(parameter for parameter, _ in reachable)


def _reachable(
    schema: JsonObject, path: tuple[str, ...], depth: int
) -> Iterator[tuple[Mirrored, JsonValue]]:
    properties = schema.get("properties")
    if depth > MAX_DEPTH or not isinstance(properties, Mapping):
        return
    for key, value in properties.items():
        if not isinstance(value, Mapping):
            continue
        here = (*path, key)
        if ANNOTATION in value:
            name = value[ANNOTATION]
            yield Mirrored(name if isinstance(name, str) else "", here), value.get("type")
        yield from _reachable(value, here, depth + 1)


def _count(value: JsonValue, depth: int, *, names: bool = False) -> int:
    """Count the annotations; `names` says that keys are names of properties."""
    if depth > MAX_DEPTH:
        return 0
    if isinstance(value, Mapping):
        here = int(ANNOTATION in value and not names)
        return here + sum(
            _count(item, depth + 1, names=key == "properties" and not names)
            for key, item in value.items()
        )
    if isinstance(value, Sequence) and not isinstance(value, str):
        return sum(_count(item, depth + 1) for item in value)
    return 0


def header_value(text: str) -> str:
    """Text as a valid header value; encoded as marked base64 if it is not valid as it is."""
    sentinel = text.startswith(_ENCODED) and text.endswith(_ENCODED_END)
    if (not text or PLAIN.fullmatch(text)) and not sentinel:
        return text
    coded = base64.b64encode(text.encode("utf-8", "replace")).decode()
    return f"{_ENCODED}{coded}{_ENCODED_END}"


def parameter_headers(
    wanted: Sequence[Mirrored], arguments: JsonObject
) -> Iterator[tuple[str, str]]:
    """`Mcp-Param-*` for the arguments of one call; absent and null arguments have none."""
    for parameter in wanted:
        text = _as_text(_argument(parameter, arguments))
        if text is not None:
            yield f"Mcp-Param-{parameter.name}", header_value(text)


def _argument(parameter: Mirrored, arguments: JsonObject) -> JsonValue:
    value: JsonValue = arguments
    for key in parameter.path:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def _as_text(value: JsonValue) -> str | None:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, int):
        return str(value) if abs(value) <= SAFE_INTEGER else None
    return value if isinstance(value, str) else None


def is_header_value(text: str) -> bool:
    """Return true if a name from a server may be sent back to it in a header unchanged."""
    return 0 < len(text) <= MAX_ECHOED and VISIBLE.fullmatch(text) is not None


def standard_headers(method: str, params: JsonObject) -> Iterator[tuple[str, str]]:
    """`Mcp-Method` and, where the method has one, `Mcp-Name`."""
    yield "Mcp-Method", method
    name = params.get(NAMED_BY.get(method, ""))
    if isinstance(name, str):
        yield "Mcp-Name", header_value(name)


def check_standard(method: str, params: JsonObject, headers: Mapping[str, Sequence[str]]) -> None:
    """Compare `Mcp-Method` and `Mcp-Name` with the body; the names of `headers` are in lower case.

    Raises:
        RpcError: one of them is missing, is there twice, or differs.
    """
    _check("Mcp-Method", headers, method, is_encoded=False)
    name = params.get(NAMED_BY.get(method, ""))
    if isinstance(name, str):
        _check("Mcp-Name", headers, name, is_encoded=True)


def check_parameters(
    wanted: Sequence[Mirrored], arguments: JsonObject, headers: Mapping[str, Sequence[str]]
) -> None:
    """Compare the `Mcp-Param-*` of a tool with the arguments of its call.

    Raises:
        RpcError: one of them is missing, is there twice, differs, or stands for no argument.
    """
    for parameter in wanted:
        text = _as_text(_argument(parameter, arguments))
        name = f"Mcp-Param-{parameter.name}"
        if text is not None:
            _check(name, headers, text, is_encoded=True)
        elif headers.get(name.lower()):
            raise RpcError(HEADER_MISMATCH, f"header mismatch: `{name}` stands for no argument")


def _check(name: str, headers: Mapping[str, Sequence[str]], text: str, *, is_encoded: bool) -> None:
    values = headers.get(name.lower(), ())
    if not values:
        raise RpcError(HEADER_MISMATCH, f"header mismatch: `{name}` is missing")
    value = _decode_value(values[0]) if is_encoded else values[0]
    if len(values) > 1 or value is None or not _are_equal(value, text):
        raise RpcError(HEADER_MISMATCH, f"header mismatch: `{name}` differs from the body")


def _decode_value(value: str) -> str | None:
    """Decode a header; `None` if it is not encoded as it has to be."""
    if not (value.startswith(_ENCODED) and value.endswith(_ENCODED_END)):
        return value if not value or PLAIN.fullmatch(value) else None
    coded = value[len(_ENCODED) : -len(_ENCODED_END)]
    try:
        return base64.b64decode(coded, validate=True).decode("utf-8")
    except ValueError:
        return None


def _are_equal(value: str, text: str) -> bool:
    """Compare a header with a value; whole numbers as numbers, `42.0` for `42`."""
    if value == text or value == text.encode("utf-8", "replace").decode():
        return True
    number = _WHOLE.fullmatch(value)
    return number is not None and _WHOLE.fullmatch(text) is not None and number[1] == text
