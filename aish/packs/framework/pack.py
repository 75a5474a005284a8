"""Declaration of packs and their tools.

A typed function becomes a tool: its schema and descriptions come from the signature and docstring,
the rest from the decorator.
"""

import inspect
import re
import types
import typing
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from aish.core.frozen import frozen
from aish.core.json import JsonObject, JsonValue
from aish.core.protocols import Follow
from aish.core.tools import Reach
from aish.packs.framework.channels import Channels
from aish.packs.tool_results import Answer

if TYPE_CHECKING:
    from anyio.abc import TaskGroup

    from aish.packs.parse_worker import ParseWorker
    from aish.packs.workspace.workspace import Workspace
    from aish.system.process.reaper import Reaper
    from aish.system.secrets.secrets import Secrets

_TYPES: Mapping[object, Mapping[str, JsonValue]] = {
    str: {"type": "string"},
    int: {"type": "integer"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
    dict: {"type": "object"},
}
_ARGUMENT = re.compile(r"^    (\w+):\s+(.*)$")


@frozen
class Bounds:
    """Lower and upper bound of a number: `Annotated[int, Bounds(1, 20)]`."""

    least: float | None = None
    most: float | None = None


def description_of(function: Callable[..., object]) -> str:
    """Return the docstring up to its `Args:`, each paragraph on one line."""
    text = inspect.getdoc(function) or ""
    paragraphs = text.partition("\nArgs:")[0].strip().split("\n\n")
    return "\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)


def schema_of(function: Callable[..., object]) -> dict[str, JsonValue]:
    """Return the JSON Schema of a function's parameters, without the first one (the state).

    Raises:
        TypeError: a parameter has no description, or a type without a JSON Schema; this is
            how a mistake in a pack shows in its tests.
    """
    hints = typing.get_type_hints(function, include_extras=True)
    described = _argument_descriptions(function)
    properties: dict[str, JsonValue] = {}
    required: list[JsonValue] = []
    for name, parameter in list(inspect.signature(function).parameters.items())[1:]:
        description = described.get(name) or _note_of(hints[name])
        if not description:
            raise TypeError(f"parameter `{name}` of `{function.__name__}` is not described")
        optional = parameter.default is not inspect.Parameter.empty
        schema = _type_schema(hints[name])
        schema["description"] = description
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


def _note_of(hint: object) -> str:
    """Return the description in a type: `Annotated[str, "The file."]`."""
    notes = getattr(hint, "__metadata__", ())
    return next((note for note in notes if isinstance(note, str)), "")


def _type_schema(hint: Any) -> dict[str, JsonValue]:
    """Return the schema of a type; `X | None` is `X`: omitting the parameter means `None`."""
    if isinstance(hint, types.UnionType):
        some = [choice for choice in hint.__args__ if choice is not types.NoneType]
        if len(some) == 1:
            return _type_schema(some[0])
    if hint in _TYPES:
        return dict(_TYPES[hint])
    if typing.is_typeddict(hint):
        return _object_schema(hint)
    return _generic_schema(hint, typing.get_args(hint))


def _generic_schema(hint: Any, arguments: tuple[Any, ...]) -> dict[str, JsonValue]:
    """Return the schema of a type with arguments, such as `list[str]`."""
    match typing.get_origin(hint):
        case typing.Annotated:
            return {**_type_schema(arguments[0]), **_bounds(arguments[1:])}
        case typing.Required | typing.NotRequired:
            return _type_schema(arguments[0])
        case typing.Literal:
            return {"type": "string", "enum": list(arguments)}
        case origin if origin is list:
            return {"type": "array", "items": _type_schema(arguments[0])}
        case origin if origin is dict and arguments[0] is str:
            return {"type": "object", "additionalProperties": _type_schema(arguments[1])}
    raise TypeError(f"`{hint}` has no JSON Schema here")


def _bounds(notes: Sequence[object]) -> dict[str, JsonValue]:
    found = [note for note in notes if isinstance(note, Bounds)]
    limits = [("minimum", one.least) for one in found] + [("maximum", one.most) for one in found]
    return {name: value for name, value in limits if value is not None}


def _object_schema(hint: Any) -> dict[str, JsonValue]:
    """Return the schema of a `TypedDict`, whose values may be objects too."""
    properties = {
        name: _type_schema(kind)
        for name, kind in typing.get_type_hints(hint, include_extras=True).items()
    }
    required: list[JsonValue] = [name for name in properties if name in hint.__required_keys__]
    return {
        "type": "object",
        "properties": properties,
        **({"required": required} if required else {}),
        "additionalProperties": False,
    }


def _argument_descriptions(function: Callable[..., object]) -> dict[str, str]:
    """Return the entries of the docstring's `Args:`, with continuation lines joined."""
    section = (inspect.getdoc(function) or "").partition("\nArgs:\n")[2]
    descriptions: dict[str, str] = {}
    name = ""
    for line in section.splitlines():
        if line and not line.startswith(" "):
            break
        if entry := _ARGUMENT.match(line):
            name = entry[1]
            descriptions[name] = entry[2]
        elif name and line.strip():
            descriptions[name] += " " + line.strip()
    return descriptions


ToolFunction = Callable[..., Awaitable[Answer]]
"""An async function whose first parameter is the state of its pack: what its lifespan yields."""


@frozen
class Marks:
    """The four annotations of MCP, all of them set, and whether calls may run in parallel.

    `passing` tools change only what the run itself has open, such as a page of a browser: a failed
    call leaves nothing half done. `reach` is what a tool shows beside its `path`. `sends` says
    whether it can carry data to anybody; by default that is true of tools that change something in
    an open world.
    """

    read_only: bool
    destructive: bool
    idempotent: bool
    open_world: bool
    parallel: bool = False
    passing: bool = False
    reach: Reach = ""
    sends: bool | None = None

    @property
    def changes(self) -> bool:
        return not (self.read_only or self.passing)

    @property
    def annotations(self) -> Mapping[str, bool]:
        return {
            "readOnlyHint": self.read_only,
            "destructiveHint": self.destructive,
            "idempotentHint": self.idempotent,
            "openWorldHint": self.open_world,
        }


READS = Marks(read_only=True, destructive=False, idempotent=True, open_world=False, parallel=True)
READS_BELOW = replace(READS, reach="below")
READS_ANYWHERE = replace(READS, reach="anywhere")
READS_WORLD = replace(READS, open_world=True)
ADDS = Marks(read_only=False, destructive=False, idempotent=True, open_world=False)
REPLACES = Marks(read_only=False, destructive=True, idempotent=True, open_world=False)
CHANGES = Marks(read_only=False, destructive=True, idempotent=False, open_world=False)
CHANGES_BELOW = replace(CHANGES, reach="below")

ALWAYS = ("bad_arguments", "failed", "system")
"""Codes that every tool may return."""
PATH_CODES = ("bad_path", "outside", "not_found", "not_a_file", "not_a_folder", "unreadable")
WRITE_CODES = (
    *PATH_CODES,
    *("protected", "unwritable", "changed", "binary", "encoding", "too_large", "syntax"),
)
PARSE_CODES = ("no_match", "ambiguous", "syntax", "unsupported", "too_large", "too_slow")


FilePath = Annotated[str, "The file, relative to the root folder."]
ExpectedHash = Annotated[
    str | None, "The SHA-256 that the file has to have now; with another one nothing is done."
]

FILE_CHANGE: Mapping[str, str] = {
    "path": "string",
    "created": "boolean",
    "bytes": "integer",
    "sha256": "string",
    "encoding": "string",
    "diff": "string",
    "truncated": "boolean",
}
"""The result of every tool that changes one file."""

OUTLINE_ROW: Mapping[str, str] = {
    "kind": "string",
    "name": "string",
    "start_line": "integer",
    "end_line": "integer",
    "depth": "integer",
}
"""A definition in an outline."""
SOURCE_ROW: Mapping[str, str] = {"source": "string", "start_line": "integer", "end_line": "integer"}
"""A piece of code."""
SIGNATURE_ROW: Mapping[str, str] = {"signature": "string", "start_line": "integer"}
"""A definition up to its body."""


@frozen
class Older:
    """An older name of a tool: the names of its parameters, and the values that it sets."""

    rename: Mapping[str, str] = field(default_factory=dict)
    set: Mapping[str, JsonValue] = field(default_factory=dict)


@frozen
class PackTool:
    """A tool of a pack as a server would describe it, with its function.

    `codes` are its failure codes beside those of every tool. `older` are its older names,
    `older_parameters` the older names of its parameters under any of its names.
    """

    name: str
    description: str
    input_schema: JsonObject
    output_schema: JsonObject
    marks: Marks
    codes: tuple[str, ...]
    older: Mapping[str, Older]
    older_parameters: Mapping[str, str]
    function: ToolFunction


def tool(
    marks: Marks,
    *,
    result: Mapping[str, str],
    rows: Mapping[str, Mapping[str, str]] | None = None,
    codes: Sequence[str] = (),
    older: Mapping[str, Older] | None = None,
    older_parameters: Mapping[str, str] | None = None,
) -> Callable[[ToolFunction], PackTool]:
    """Make a function a tool with the function's name.

    `result` are the keys of `structuredContent` with their JSON types, or `any`; `rows` are those
    of the objects in an array.
    """

    def make_tool(function: ToolFunction) -> PackTool:
        return PackTool(
            name=function.__name__,
            description=description_of(function),
            input_schema=schema_of(function),
            output_schema=_output_schema(result, rows or {}),
            marks=marks,
            codes=(*codes, *ALWAYS),
            older=older or {},
            older_parameters=older_parameters or {},
            function=function,
        )

    return make_tool


def _output_schema(
    result: Mapping[str, str], rows: Mapping[str, Mapping[str, str]]
) -> dict[str, JsonValue]:
    properties: dict[str, JsonValue] = {}
    for name, kind in result.items():
        # JSON Schema has no word for a value of any type.
        schema: dict[str, JsonValue] = {} if kind == "any" else {"type": [kind, "null"]}
        if name in rows:
            keys: dict[str, JsonValue] = {
                key: {"type": [inner, "null"]} for key, inner in rows[name].items()
            }
            schema["items"] = {"type": "object", "properties": keys}
        properties[name] = schema
    return {"type": "object", "properties": properties}


@frozen
class FileModel:
    """A model of the file for packs: its address, and the reason why it cannot be asked, if any.

    `origin` is scheme, host and port, or `embedded`. With a proxy, only the proxy is connected to.
    """

    origin: str
    problem: str = ""
    has_proxy: bool = False


@frozen
class PackServices:
    """Services of a run for its packs; the same for all servers.

    Packs run in `tasks`. `worker` parses untrusted input. `environ` is the environment of aish,
    `secrets` has the values of variables that options name. `run_folder` is private to the run.
    `notice` takes a code and a sentence, `mask` removes secrets; `run_secrets` is for texts that
    arrive in pieces. `own_files` are the files that the run uses, `recorded_files` those of them
    that it writes itself. `follow` passes on the events of the run, `channels` those of packs.
    `project` is the folder of the pipeline; `run_id`, `steps` and `servers` are those of the run,
    if it has any. `models` are those of the file by alias, `default_model` is for steps that name
    none; `runs` is the folder of past runs.
    """

    tasks: "TaskGroup"
    reaper: "Reaper"
    worker: "ParseWorker"
    environ: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, str] = field(default_factory=dict)
    run_folder: Path | None = None
    notice: Callable[[str, str], None] = lambda _code, _text: None
    mask: Callable[[str], str] = str
    run_secrets: "Secrets | None" = None
    own_files: frozenset[Path] = frozenset()
    recorded_files: frozenset[Path] = frozenset()
    follow: Follow | None = None
    channels: Channels = field(default_factory=Channels)
    project: Path | None = None
    run_id: str = ""
    steps: tuple[str, ...] = ()
    models: Mapping[str, FileModel] = field(default_factory=dict)
    default_model: str | None = None
    runs: Path | None = None
    servers: tuple[str, ...] = ()


@frozen
class PackContext:
    """The arguments that open a pack: the root of its server, if any, and its options."""

    services: PackServices
    workspace: "Workspace | None"
    options: Any
    """An instance of the class that the pack declares, or `None` for a pack without options."""


Lifespan = Callable[..., AbstractAsyncContextManager[Any]]
"""Yields the state that the pack's tools are called with; runs in a task of its own.

A built-in one is called with a `PackContext`, another one with the services that it names.
"""


@frozen
class Pack:
    """The tools of a module, and the lifespan of their shared state.

    `reads` says whether its read-only tools return what is in `files`, or `collected` texts, which
    anybody may have written. `options` is a frozen dataclass in a module of its own, which does not
    load the pack: files are checked with it.
    """

    tools: tuple[PackTool, ...]
    root: Literal["needed", "optional", "none"] = "needed"
    lifespan: Lifespan | None = None
    reads: Literal["", "files", "collected"] = ""
    options: type[Any] | None = None

    def manifest_row(self, tool: PackTool) -> dict[str, JsonValue]:
        """Return the facts that are needed without loading the pack: `catalogue.ToolMarks`."""
        marks = tool.marks
        is_untrusted = marks.open_world or self.reads == "collected"
        by_default = marks.open_world and not marks.read_only
        effects: dict[str, JsonValue] = {
            "reach": marks.reach,
            "reads_files": bool(self.reads) and marks.read_only,
            "reads_untrusted": is_untrusted and marks.read_only,
            "sends": by_default if marks.sends is None else marks.sends,
        }
        return {
            "read_only": marks.read_only,
            "destructive": marks.destructive,
            "open_world": marks.open_world,
            "parallel": marks.parallel,
            "changes": marks.changes,
            **{name: value for name, value in effects.items() if value},
        }
