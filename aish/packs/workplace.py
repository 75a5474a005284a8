"""How a pack declares its tools (K1)."""

from collections.abc import Awaitable, Callable

from aish.core.frozen import frozen
from aish.core.json import JsonObject
from aish.packs.results import Answer
from aish.packs.signature import description_of, schema_of

ToolFunction = Callable[..., Awaitable[Answer]]
"""An async function whose first parameter is the `Workplace`."""


@frozen
class Marks:
    """The four annotations of MCP, always all of them, and whether calls may run side by side."""

    read_only: bool
    destructive: bool
    idempotent: bool
    open_world: bool
    parallel: bool = False


READS = Marks(read_only=True, destructive=False, idempotent=True, open_world=False, parallel=True)


@frozen
class PackTool:
    """A tool of a pack, as a server would describe it, and the function behind it."""

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
    """The tool that a function is; its name is the function's."""
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
