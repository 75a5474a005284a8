"""The names of tools on the model's wire (M4).

A name depends on the pair (alias, tool) and the limit only, never on which server answered first.
"""

import hashlib
import re

from aish.core.errors import UsageError
from aish.core.tools import Tool, ToolName
from aish.mcp.protocol.convert import Definition

LEGAL = re.compile(r"[a-zA-Z0-9_-]+")
ILLEGAL = re.compile(r"[^a-zA-Z0-9_-]")
HASH_LENGTH = 8


def wire_name(name: ToolName, limit: int) -> str:
    """`alias__tool` where that is legal and fits, else a legal form with a stable hash suffix."""
    joined = str(name)
    if len(joined) <= limit and LEGAL.fullmatch(joined):
        return joined
    pair = f"{name.server}\0{name.name}".encode("utf-8", "surrogatepass")
    suffix = "_" + hashlib.sha256(pair).hexdigest()[:HASH_LENGTH]
    return ILLEGAL.sub("_", joined)[: limit - len(suffix)] + suffix


def tool_of(alias: str, one: Definition, limit: int, *, trusted: bool) -> Tool:
    """A tool as its server lists it, under its names."""
    name = ToolName(alias, one.name)
    return Tool(
        name=name,
        wire=wire_name(name, limit),
        description=one.description,
        input_schema=one.input_schema,
        output_schema=one.output_schema,
        annotations=one.annotations,
        parallel=one.parallel,
        unlisted=one.unlisted,
        older_of=one.older_of,
        trusted=trusted,
    )


def clash(wire: str, first: ToolName, second: ToolName) -> UsageError:
    """Two tools share a name: which, and what to do about it."""
    return UsageError(
        f"`{first.server}` and `{second.server}` both offer a tool that is called `{wire}`"
        if first.server != second.server
        else f"`{first.server}` offers two tools that are called `{wire}`",
        hint=f"leave one out with `exclude` under `mcp.servers.{second.server}`",
    )
