"""Declaration of a pack's tools (K1).

A typed function becomes a tool: its schema and its descriptions come from the signature.
"""

import inspect
import re
import types
import typing
from collections.abc import Awaitable, Callable

from aish.core.frozen import frozen
from aish.core.json import JsonObject, JsonValue
from aish.packs.tool_results import Answer

_TYPES: dict[object, str] = {str: "string", int: "integer", float: "number", bool: "boolean"}
_ARGUMENT = re.compile(r"^    (\w+):\s+(.*)$")


def description_of(function: Callable[..., object]) -> str:
    """The docstring up to its `Args:`, each paragraph on one line."""
    text = inspect.getdoc(function) or ""
    paragraphs = text.partition("\nArgs:")[0].strip().split("\n\n")
    return "\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)


def schema_of(function: Callable[..., object]) -> dict[str, JsonValue]:
    """The JSON Schema of a function's parameters, without the first one (the workspace).

    Raises:
        TypeError: a parameter has no description or a type that JSON Schema cannot say; this is
            how a mistake in a pack shows in its tests.
    """
    hints = typing.get_type_hints(function)
    described = _argument_descriptions(function)
    properties: dict[str, JsonValue] = {}
    required: list[JsonValue] = []
    for name, parameter in list(inspect.signature(function).parameters.items())[1:]:
        if name not in described:
            raise TypeError(f"parameter `{name}` of `{function.__name__}` is not described")
        optional = parameter.default is not inspect.Parameter.empty
        schema = _type_schema(hints[name])
        schema["description"] = described[name]
        if optional and parameter.default is not None:
            schema["default"] = parameter.default
        if not optional:
            required.append(name)
        properties[name] = schema
    schema = {"type": "object", "properties": properties}
    if required:
        schema["required"] = required
    schema["additionalProperties"] = False
    return schema


def _type_schema(hint: object) -> dict[str, JsonValue]:
    """The schema of one type; `X | None` is `X`, because omitting the parameter means `None`."""
    if isinstance(hint, types.UnionType):
        some = [choice for choice in hint.__args__ if choice is not types.NoneType]
        if len(some) == 1:
            return _type_schema(some[0])
    origin, choices = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        return {"type": "string", "enum": list(choices)}
    if origin is list:
        return {"type": "array", "items": _type_schema(choices[0])}
    if hint in _TYPES:
        return {"type": _TYPES[hint]}
    raise TypeError(f"`{hint}` has no JSON Schema here")


def _argument_descriptions(function: Callable[..., object]) -> dict[str, str]:
    """The entries of the docstring's `Args:`, continuation lines joined."""
    section = (inspect.getdoc(function) or "").partition("\nArgs:\n")[2]
    found: dict[str, str] = {}
    name = ""
    for line in section.splitlines():
        if line and not line.startswith(" "):
            break
        if entry := _ARGUMENT.match(line):
            name = entry[1]
            found[name] = entry[2]
        elif name and line.strip():
            found[name] += " " + line.strip()
    return found


ToolFunction = Callable[..., Awaitable[Answer]]
"""An async function whose first parameter is the `Workplace`."""


@frozen
class Marks:
    """The four annotations of MCP, always all of them, and whether calls may run in parallel."""

    read_only: bool
    destructive: bool
    idempotent: bool
    open_world: bool
    parallel: bool = False


READS = Marks(read_only=True, destructive=False, idempotent=True, open_world=False, parallel=True)


@frozen
class PackTool:
    """A tool of a pack, as a server would describe it, with its function."""

    name: str
    description: str
    input_schema: JsonObject
    output_schema: JsonObject | None
    annotations: JsonObject
    parallel: bool
    unlisted: bool
    function: ToolFunction
    older_of: str = ""
    """The tool's own name, where this is an older one (K2)."""


def tool_of(function: ToolFunction, marks: Marks) -> PackTool:
    """The tool of a function, with the function's name."""
    return PackTool(
        name=function.__name__,
        description=description_of(function),
        input_schema=schema_of(function),
        output_schema=None,
        annotations={
            "readOnlyHint": marks.read_only,
            "destructiveHint": marks.destructive,
            "idempotentHint": marks.idempotent,
            "openWorldHint": marks.open_world,
        },
        parallel=marks.parallel,
        unlisted=False,
        function=function,
    )
