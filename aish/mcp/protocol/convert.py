"""Results of servers as typed values: the place where `Any` is checked. No I/O.

Lenient: a malformed tool is left out, an odd block of a result becomes a line of text. The name of
a tool on the model's wire depends on the pair (alias, tool) and the limit only, never on which
server answered first.
"""

import base64
import binascii
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import field
from typing import Any

from aish.config.model import ServerEntry
from aish.core.errors import UsageError
from aish.core.frozen import frozen
from aish.core.json import JsonObject
from aish.core.phrases import backticked
from aish.core.tools import HINTS, Annotations, Media, Reach, ResultKind, Tool, ToolName, ToolResult
from aish.mcp.protocol.mirrored_headers import Mirrored, header_parameters
from aish.system.globs import matches_word

MAPS = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
SCHEMAS = frozenset(
    {
        "additionalProperties",
        "propertyNames",
        "unevaluatedProperties",
        "unevaluatedItems",
        "contains",
        "contentSchema",
        "not",
        "if",
        "then",
        "else",
    }
)
LISTS = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
MAX_DEPTH = 64
NO_PARAMETERS: Mapping[str, Any] = {"type": "object", "properties": {}}


def mend_schema(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """The schema with `[]` replaced by `{}` where only an object is valid."""
    return _schema(schema, 0) if schema else NO_PARAMETERS


_READABLE: Mapping[str, Callable[[Any], bool]] = {
    "$schema": lambda value: isinstance(value, str),
    "required": lambda value: (
        isinstance(value, list) and all(isinstance(name, str) for name in value)
    ),
}
"""Keys at the root of a schema that official clients check, and that may be missing."""


def _of_object(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """An `inputSchema` that official clients can read, the very one if it is.

    They refuse all tools of all servers for one that they cannot.

    Raises:
        ValueError: it is not about an object.
    """
    kind, properties = schema.get("type", "object"), schema.get("properties", {})
    if kind is not None and "object" not in (kind if isinstance(kind, list) else [kind]):
        raise ValueError("its `inputSchema` is not the schema of an object")
    if not isinstance(properties, dict | None):
        raise ValueError("the `properties` of its `inputSchema` are not an object")  # ruff: ignore[type-check-without-type-error] - as below
    new = {key: one for key, one in schema.items() if key not in _READABLE or _READABLE[key](one)}
    new["type"] = "object"
    if "properties" in schema:
        new["properties"] = {name: _plain(value) for name, value in (properties or {}).items()}
    return schema if new == schema else new


def _plain(schema: Any) -> Any:
    """The schema of a property as an object."""
    if schema is False:
        return {"not": {}}
    return {} if schema is None or schema is True else schema


def _schema(value: Any, depth: int) -> Any:
    if isinstance(value, list) and not value:
        return {}
    if not isinstance(value, dict) or depth > MAX_DEPTH:
        return value
    new = {key: _keyword(key, item, depth + 1) for key, item in value.items()}
    return value if all(new[key] is value[key] for key in new) else new


def _keyword(key: str, value: Any, depth: int) -> Any:
    if key in MAPS:
        return _each(value, depth)
    if key in SCHEMAS or (key == "items" and isinstance(value, dict)):
        return _schema(value, depth)
    if key in LISTS and isinstance(value, list):
        new = [_schema(item, depth) for item in value]
        return value if all(a is b for a, b in zip(new, value, strict=True)) else new
    return value


def _each(value: Any, depth: int) -> Any:
    if isinstance(value, list) and not value:
        return {}
    if not isinstance(value, dict):
        return value
    new = {key: _schema(item, depth) for key, item in value.items()}
    return value if all(new[key] is value[key] for key in new) else new


# A schema goes out with every request; a larger one is an attack or a mistake.
MAX_SCHEMA = 256 * 1024
MAX_NAME = 512
MAX_DESCRIPTION = 64 * 1024
PARALLEL = "aish/parallel"
UNLISTED = "aish/unlisted"
"""Marks in `_meta` that our own packs may set; those of a stranger mean nothing.

Nothing sets `UNLISTED` now: recordings of earlier versions list older names of tools with it.
"""

Warn = Callable[[str, str], None]
"""Takes a code and a sentence."""


@frozen
class Definition:
    """A tool as its server lists it."""

    name: str
    description: str
    input_schema: JsonObject
    output_schema: JsonObject | None
    annotations: Annotations
    parallel: bool
    builtin: bool
    says_all: bool
    headers: tuple[Mirrored, ...]


@frozen
class ListTrust:
    """Trust in a list: `ours` is a pack, `mirrors` a server of the stateless HTTP era."""

    ours: bool = False
    mirrors: bool = False


def _rows(
    page: Any, reading: ListTrust, warn: Warn, entry: ServerEntry
) -> list[tuple[Definition, JsonObject]]:
    """Return the tools that the entry selects, each with what the server says of it."""
    listed = page.get("tools")
    if not isinstance(listed, list):
        if listed not in ({}, None):
            warn("malformed_tools", "its list of tools is not a list")
        return []
    rows = []
    changed = []
    for number, value in enumerate(listed):
        name = value.get("name") if isinstance(value, dict) else None
        if isinstance(name, str) and len(name) <= MAX_NAME and not _is_wanted(name, entry):
            continue
        try:
            if not (reading.ours and _is_unlisted(value)):
                definition = _definition(value, reading)
                rows.append((definition, value))
                if _is_mended(value.get("inputSchema"), definition.input_schema):
                    changed.append(definition.name)
        except ValueError as error:
            which = f"`{name}`" if isinstance(name, str) and name else f"number {number + 1}"
            warn("malformed_tool", f"tool {which} is left out: {error}")
    if changed:
        text = f"the input schema of {backticked(changed)} is mended: clients would refuse it"
        warn("mended_schema", text)
    return rows


def _is_mended(sent: Any, used: JsonObject) -> bool:
    """Return true if more had to be mended than `[]` or `true` for `{}`."""
    if not sent:
        return False
    before = dict(mend_schema(sent))
    properties = before.get("properties")
    if isinstance(properties, dict) and None not in properties.values():
        before["properties"] = used["properties"]
    return before != used


def _definition(value: Any, reading: ListTrust) -> Definition:
    if not isinstance(value, dict):
        raise ValueError("it is not an object")  # ruff: ignore[type-check-without-type-error] - all malformed input is one kind of error
    name = value.get("name")
    if not isinstance(name, str) or not name:
        raise ValueError("it has no name")
    if len(name) > MAX_NAME:
        raise ValueError(f"its name has more than {MAX_NAME} characters")
    execution = value.get("execution")
    if isinstance(execution, dict) and execution.get("taskSupport") == "required":
        raise ValueError("it can only be called as a task")
    schema = _schema_of(value, "inputSchema")
    meta = value.get("_meta")
    own_meta = meta if isinstance(meta, dict) else {}
    marks = own_meta if reading.ours else {}
    description = value.get("description")
    return Definition(
        name=name,
        description=description[:MAX_DESCRIPTION] if isinstance(description, str) else "",
        input_schema=NO_PARAMETERS if schema is None else schema,
        output_schema=_schema_of(value, "outputSchema"),
        annotations=_annotations(value),
        parallel=marks.get(PARALLEL) is True,
        builtin=reading.ours,
        # Also of a pack behind a hub. A stranger's mark is about nothing but its own results.
        says_all=PARALLEL in own_meta,
        headers=header_parameters(schema) if reading.mirrors and schema else (),
    )


def _is_unlisted(value: Any) -> bool:
    meta = value.get("_meta") if isinstance(value, dict) else None
    return isinstance(meta, dict) and meta.get(UNLISTED) is True


def _schema_of(value: dict[str, Any], key: str) -> JsonObject | None:
    schema = value.get(key)
    if schema is None:
        return None
    if schema == []:
        schema = {}
    if not isinstance(schema, dict):
        raise ValueError(f"its `{key}` is not an object")  # ruff: ignore[type-check-without-type-error] - as above
    mend = mend_schema(schema)
    if key == "inputSchema":
        mend = _of_object(mend)
    if len(json.dumps(mend)) > MAX_SCHEMA:
        raise ValueError(f"its `{key}` is larger than {MAX_SCHEMA // 1024} KiB")
    return mend


_KINDS: Mapping[str, type | tuple[type, ...]] = {
    "title": str,
    "description": str,
    "annotations": dict,
    "icons": list,
    "_meta": dict,
    # Both belong to the hop between the server and us, or are added below.
    "execution": (),
    "outputSchema": (),
}
"""What else of a row in a list of tools official clients check; it may be missing."""


def readable_row(row: JsonObject, one: Tool) -> JsonObject:
    """Return a tool's row in the server's list, as official clients can read it."""
    result = {key: v for key, v in row.items() if key not in _KINDS or isinstance(v, _KINDS[key])}
    result["inputSchema"] = one.input_schema
    if one.output_schema is not None and one.output_schema.get("type") == "object":
        # Before 2026 there are no others: a client leaves the whole list for one.
        result["outputSchema"] = one.output_schema
    if isinstance(hints := result.get("annotations"), dict):
        result["annotations"] = {
            key: v
            for key, v in hints.items()
            if key not in HINTS.values() or isinstance(v, str if key == "title" else bool)
        }
    if isinstance(icons := result.get("icons"), list):
        result["icons"] = [icon for icon in icons if _is_icon(icon)]
    return result


def _is_icon(icon: Any) -> bool:
    return isinstance(icon, dict) and isinstance(icon.get("src"), str) and None not in icon.values()


def _annotations(value: dict[str, Any]) -> Annotations:
    claims = value.get("annotations")
    if not isinstance(claims, dict):
        claims = {}

    def flag(key: str) -> bool | None:
        value = claims.get(key)
        return value if isinstance(value, bool) else None

    title = value.get("title") or claims.get("title")
    return Annotations(
        title=title if isinstance(title, str) else None,
        read_only=flag("readOnlyHint"),
        destructive=flag("destructiveHint"),
        idempotent=flag("idempotentHint"),
        open_world=flag("openWorldHint"),
    )


def read_result(result: Any) -> ToolResult:
    """A `CallToolResult` unchanged; `isError` decides its kind."""
    lines: list[str] = []
    media: list[Media] = []
    blocks = result.get("content")
    if isinstance(blocks, str):
        lines.append(blocks)
    for block in blocks if isinstance(blocks, list) else ():
        line, attachments = _block(block)
        if line is not None:
            lines.append(line)
        media.extend(attachments)
    structured = result.get("structuredContent")
    if not lines and not media and structured is not None:
        lines.append(_as_text(structured))
    kind: ResultKind = "handler_error" if result.get("isError") is True else "ok"
    return ToolResult(kind, "\n".join(lines), structured, tuple(media))


def with_explanation(result: JsonObject, explain: Callable[[str], str]) -> JsonObject:
    """A result, its first text explained."""
    content = result.get("content")
    blocks = list(content) if isinstance(content, list) else []
    for place, block in enumerate(blocks):
        if isinstance(block, Mapping) and isinstance(block.get("text"), str):
            blocks[place] = {**block, "text": explain(block["text"])}
            return {**result, "content": blocks}
    return result


def denial_result(reason: str) -> ToolResult:
    """The result of a call that was not made."""
    return ToolResult("denied", f"[aish] tool call denied: {reason}", began=False)


def loss_result(reason: str, *, sent: bool) -> ToolResult:
    """The result of a call that received no answer."""
    return ToolResult("transport_error", f"[aish] tool transport error: {reason}", began=sent)


def _as_text(structured: Any) -> str:
    try:
        return json.dumps(structured, ensure_ascii=False)
    except RecursionError:
        return "[structured content that is nested too deeply]"


def _block(block: Any) -> tuple[str | None, tuple[Media, ...]]:
    """Convert a content block: its text for the model, and its media, which the loop names."""
    kind = block.get("type") if isinstance(block, dict) else None
    match kind:
        case "text":
            text = block.get("text")
            return text if isinstance(text, str) else "[malformed text]", ()
        case "image" | "audio":
            return _media(kind, block.get("mimeType"), block.get("data"))
        case "resource":
            return _resource(block.get("resource"))
        case "resource_link":
            return link_line(block), ()
        case str():
            return f"[content of unknown type {kind}]", ()
    return "[malformed content]", ()


def _media(kind: str, mime_type: Any, data: Any) -> tuple[str | None, tuple[Media, ...]]:
    mime = mime_type if isinstance(mime_type, str) and mime_type else "application/octet-stream"
    try:
        content = base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError, TypeError):
        return f"[{kind}: {mime}, unreadable]", ()
    return None, (Media(mime, content),)


def _resource(resource: Any) -> tuple[str | None, tuple[Media, ...]]:
    """An embedded resource: its text, or its bytes as media."""
    if not isinstance(resource, dict):
        return "[malformed resource]", ()
    if isinstance(text := resource.get("text"), str):
        return text, ()
    uri = resource.get("uri")
    label = f"resource {uri}" if isinstance(uri, str) else "resource"
    unreadable, media = _media(label, resource.get("mimeType"), resource.get("blob"))
    return unreadable or f"[{label}]", media


def link_line(block: Mapping[str, Any]) -> str:
    """A link as one line; it is never fetched."""
    uri, name, about = (block.get(key) for key in ("uri", "name", "description"))
    line = f"[link: {uri}]" if isinstance(uri, str) else "[link without address]"
    words = [word for word in (name, about) if isinstance(word, str) and word and word != uri]
    return " ".join([line, " - ".join(words)]) if words else line


@frozen
class ToolList:
    """Tools by name; `ambiguous` names belong to two different tools, and are not offered.

    Only the server knows which of them a call would reach. `rows` are the tools as the server lists
    them, for those who pass them on.
    """

    definitions: Mapping[str, Definition]
    ambiguous: frozenset[str] = frozenset()
    rows: Mapping[str, JsonObject] = field(default_factory=dict)


def tool_list(
    pages: Iterable[JsonObject], reading: ListTrust, entry: ServerEntry, warn: Warn
) -> ToolList:
    definitions: dict[str, Definition] = {}
    rows: dict[str, JsonObject] = {}
    repeated: set[str] = set()
    ambiguous: set[str] = set()
    for page in pages:
        for definition, row in _rows(page, reading, warn, entry):
            earlier = definitions.setdefault(definition.name, definition)
            rows.setdefault(definition.name, row)
            if earlier != definition:
                ambiguous.add(definition.name)
            elif earlier is not definition:
                repeated.add(definition.name)
    for name in sorted(repeated - ambiguous):
        warn("duplicate_tool", f"it lists `{name}` more than once; the first is used")
    for name in ambiguous:
        del definitions[name], rows[name]
    return ToolList(definitions, frozenset(ambiguous), rows)


def _is_wanted(name: str, entry: ServerEntry) -> bool:
    globs = entry.tools
    return (not globs or any(matches_word(glob, name) for glob in globs)) and not any(
        matches_word(glob, name) for glob in entry.exclude
    )


def differences(before: Mapping[str, Definition], found: Mapping[str, Definition]) -> str:
    """Changes during a session, as text."""
    words = [f"added `{name}`" for name in found if name not in before]
    words += [f"removed `{name}`" for name in before if name not in found]
    words += [f"changed `{n}`" for n in found if n in before and found[n] != before[n]]
    return "its tools changed: " + ", ".join(words)


LEGAL = re.compile(r"[a-zA-Z0-9_-]+")
ILLEGAL = re.compile(r"[^a-zA-Z0-9_-]")
HASH_LENGTH = 8


def wire_name(name: ToolName, limit: int) -> str:
    """`alias__tool` if that is legal and fits, else a legal form with a stable hash suffix."""
    joined = str(name)
    if len(joined) <= limit and LEGAL.fullmatch(joined):
        return joined
    pair = f"{name.server}\0{name.name}".encode("utf-8", "surrogatepass")
    suffix = "_" + hashlib.sha256(pair).hexdigest()[:HASH_LENGTH]
    return ILLEGAL.sub("_", joined)[: limit - len(suffix)] + suffix


def tool_of(entry: ServerEntry, one: Definition, limit: int) -> Tool:
    """A tool as its server lists it, under its names."""
    name, root = ToolName(entry.alias, one.name), entry.root
    return Tool(
        name=name,
        wire=wire_name(name, limit),
        description=one.description,
        input_schema=one.input_schema,
        output_schema=one.output_schema,
        annotations=one.annotations,
        parallel=one.parallel,
        builtin=one.builtin,
        root=() if root is None or not one.builtin else (str(root), os.path.realpath(root)),
        trusted=entry.trust,
        strict_output=entry.strict_output,
        says_all=one.says_all,
        reach=_reach(one),
    )


def _reach(definition: Definition) -> Reach:
    if not definition.builtin:
        return ""
    from aish.packs.catalogue import tool_marks

    marks = tool_marks().get(definition.name)
    return "" if marks is None else marks.reach


def clash(wire: str, first: ToolName, second: ToolName) -> UsageError:
    """An error for two tools that share a name, with a hint."""
    return UsageError(
        f"`{first.server}` and `{second.server}` both offer a tool that is called `{wire}`"
        if first.server != second.server
        else f"`{first.server}` offers two tools that are called `{wire}`",
        hint=f"leave one out with `exclude` under `mcp.servers.{second.server}`",
    )
