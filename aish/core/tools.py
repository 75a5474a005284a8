"""Tools, calls of tools and their results; resources and prompts of servers."""

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import field
from math import inf
from typing import Final, Literal

from aish.core.frozen import frozen
from aish.core.json import JsonObject, JsonValue
from aish.core.patterns import lazy_pattern

ResultKind = Literal[
    "ok",
    "handler_error",
    "rpc_error",
    "transport_error",
    "denied",
    "bad_arguments",
    "timeout",
    "interrupted",
    "unknown",
]
"""`timeout` and `interrupted`: a local command that we ended, as its time was over or the run was.
`unknown`: a call to a server that we did not wait for; it may have taken effect."""

FAILED_KINDS: Final[frozenset[ResultKind]] = frozenset(
    {"handler_error", "rpc_error", "transport_error", "bad_arguments"}
)
"""Kinds of calls that failed: a denied one did not, nor did a command that ended with 1."""

NOT_MADE_KINDS: Final[frozenset[ResultKind]] = frozenset(
    {"transport_error", "denied", "bad_arguments"}
)
"""Kinds of calls that were not made, unless it is told of a lost one that no answer came."""


RESULT_LIMIT: ContextVar[int] = ContextVar("RESULT_LIMIT", default=1 << 30)
"""Bytes of a result that the call in progress passes on whole: a pack cuts there itself."""


CALL_DEADLINE: ContextVar[float] = ContextVar("CALL_DEADLINE", default=inf)
"""When the call in progress times out, by the clock of the event loop: a pack answers before.

The time limit of a step is not in it: it ends the call, as it ends any other.
"""


@frozen
class ToolName:
    """The pair that names a tool: the server's alias and the server's own name for it."""

    server: str
    name: str

    def __str__(self) -> str:
        return f"{self.server}__{self.name}"

    # It is the key of many tables: these take a third of the time of those that all classes share.

    def __hash__(self) -> int:
        return hash((self.server, self.name))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ToolName):
            return NotImplemented
        return self.server == other.server and self.name == other.name


@frozen
class Annotations:
    """A server's claims about its own tool; may tighten approval, never loosen it."""

    title: str | None = None
    read_only: bool | None = None
    destructive: bool | None = None
    idempotent: bool | None = None
    open_world: bool | None = None


Reach = Literal["", "below", "anywhere"]
"""What a tool with a `path` shows beside it: what is below, or any file that it leads to."""


@frozen
class Tool:
    """A tool as a server offers it.

    `wire` is the name that models see (`alias__name`, or a shortened form with a hash suffix
    where that is not legal). `input_schema` is the server's, unchanged. `parallel` is true
    where a pack marks the tool as safe to run beside others. `builtin` tools are those of
    our packs, whose annotations are facts and not claims, and which may be called by older names;
    `root` has the spellings of the folder that their paths are relative to. `unlisted` tools can be
    called and are not shown to models. A result of a tool with `strict_output` that does not fit
    `output_schema` is an error. Where a tool `says_all`, the text of a result holds its data.
    """

    name: ToolName
    wire: str
    description: str
    input_schema: JsonObject
    output_schema: JsonObject | None = None
    annotations: Annotations = Annotations()
    parallel: bool = False
    unlisted: bool = False
    trusted: bool = False
    strict_output: bool = False
    says_all: bool = False
    builtin: bool = False
    root: tuple[str, ...] = ()
    reach: Reach = ""

    @property
    def only_reads(self) -> bool:
        """True if it is read-only by the mark of a pack, or of a server that the file trusts."""
        return (self.builtin or self.trusted) and self.annotations.read_only is True


@frozen
class ToolCall:
    """A complete tool call requested by a model.

    `name` is as the model wrote it, `arguments` the JSON text as sent (the tool round checks
    it), `extras` unknown fields that are sent back to the same endpoint verbatim.
    """

    id: str
    name: str
    arguments: str
    extras: JsonObject = field(default_factory=dict)


@frozen
class Media:
    """An image, audio or PDF from a tool: bytes for the run's folder, never for a terminal."""

    mime_type: str
    data: bytes


MediaKind = Literal["image", "pdf"]
"""Media that a model may take; none takes any other."""

MediaKinds = frozenset[MediaKind]
NO_MEDIA: Final[MediaKinds] = frozenset()
PDF: Final = "application/pdf"
PDF_SIGNATURE: Final = b"%PDF-"
_SIGNATURE_WITHIN: Final = 1024
# Untrusted text used in a URL: an endpoint would reject an invalid type in every later turn.
_IMAGE = lazy_pattern(r"image/[A-Za-z0-9.+-]{1,80}", re.ASCII)


def media_kind(media: Media) -> MediaKind | None:
    """The kind of media that a model may take: by their type, a PDF by its content too."""
    if _IMAGE.fullmatch(media.mime_type) is not None:
        return "image"
    kind = media.mime_type.partition(";")[0].strip().lower()
    is_pdf = kind == PDF and PDF_SIGNATURE in media.data[:_SIGNATURE_WITHIN]
    return "pdf" if is_pdf else None


@frozen
class ToolResult:
    """The result of a tool call; always usable as a valid tool reply.

    `content` is the text for the model, uncut. `structured` is `structuredContent`. `began` is
    false if the tool is known not to have begun: nothing was sent, or the server did not accept it.
    """

    kind: ResultKind
    content: str
    structured: JsonValue = None
    media: tuple[Media, ...] = ()
    began: bool = True


Capability = Literal["resources", "prompts"]


@frozen
class Resource:
    """A resource as a server lists it; the `uri` of a `template` has `{names}` to fill in."""

    server: str
    uri: str
    name: str
    description: str = ""
    mime: str = ""
    template: bool = False


@frozen
class Part:
    """A part of a resource: either text or media, never both or neither."""

    uri: str
    mime: str
    text: str | None = None
    media: Media | None = None


@frozen
class PromptArgument:
    name: str
    description: str = ""
    required: bool = False


@frozen
class ServerPromptInfo:
    """A prompt as a server lists it."""

    server: str
    name: str
    description: str = ""
    arguments: tuple[PromptArgument, ...] = ()


@frozen
class PromptMessage:
    """A message of a server's prompt; content without text has an empty `text`."""

    role: Literal["user", "assistant"]
    text: str
    media: tuple[Media, ...] = ()


SamplingFailure = Literal["unavailable", "limit", "timeout"]
"""Why a model did not answer: it cannot be asked, no more may be asked, or it took too long."""
SAMPLING_FAILURE: Final = "aish/failure"
"""The key of that in the data of an error in answer to a request of a pack."""
SAMPLING_SCHEMA: Final = "aish/schema"
"""The key of the JSON Schema of the answer in the `_meta` of a request of a pack."""
SAMPLING_USAGE: Final = "aish/usage"
"""The key of the tokens in the `_meta` of an answer to a request of a pack."""


class SamplingError(Exception):
    """A model that a tool asked did not answer; `code` says why."""

    def __init__(self, message: str, code: SamplingFailure = "unavailable") -> None:
        super().__init__(message)
        self.code: SamplingFailure = code


def model_hint(params: JsonObject) -> str:
    preferences = params.get("modelPreferences")
    hints = preferences.get("hints") if isinstance(preferences, Mapping) else None
    first = hints[0] if isinstance(hints, Sequence) and hints else None
    name = first.get("name") if isinstance(first, Mapping) else None
    return name if isinstance(name, str) else ""


Sample = Callable[[JsonObject], Awaitable[JsonObject]]
"""Asks a model: `CreateMessageRequest` params in, a `CreateMessageResult` out."""

SAMPLE: ContextVar[Sample | None] = ContextVar("SAMPLE", default=None)
"""How a tool of a pack asks a model during its call; it raises `SamplingError`."""


HINTS: Mapping[str, str] = {
    "title": "title",
    "read_only": "readOnlyHint",
    "destructive": "destructiveHint",
    "idempotent": "idempotentHint",
    "open_world": "openWorldHint",
}
"""The names of a server's hints about a tool in MCP."""


def definition_of(tool: Tool) -> JsonObject:
    """A tool's definition by its server, in MCP's terms: all that is pinned but the name."""
    claims = {
        word: value
        for name, word in HINTS.items()
        if (value := getattr(tool.annotations, name)) is not None
    }
    definition: dict[str, JsonValue] = {
        "description": tool.description,
        "inputSchema": tool.input_schema,
    }
    if tool.output_schema is not None:
        definition["outputSchema"] = tool.output_schema
    if claims:
        definition["annotations"] = claims
    return definition
