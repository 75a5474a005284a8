"""The interface of a wire: settings of a model entry in, an encoder and a decoder out."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

from aish.core.events import Place
from aish.core.frozen import frozen
from aish.core.json import JsonObject, JsonValue
from aish.core.messages import Delta
from aish.core.protocols import ModelRequest
from aish.core.tools import MediaKinds
from aish.core.wires import CHAT, WIRES, Wire

if TYPE_CHECKING:
    from aish.wire.batches.types import BatchInterface


@frozen
class Dialect:
    """The settings for requests of one model entry.

    `params` are merged into the body as they are. `usage` asks for token counts, `json_schema`
    sends answer schemas, `tool_role`, `vision` and `pdf` are the entry's own. `origin` is what
    `AssistantTurn.origin` says of turns whose extras may go to this endpoint. `short_ids` is for
    endpoints that take tool-call ids of nine letters and digits only. `api` names the wire,
    `effort` how much the model thinks. `answer_tokens` limits answers on wires that want a limit.
    `schema_in_words`: the endpoint has refused an answer schema, so that it is described.
    `cache` is how long what is sent again is kept by the endpoint, a value of `Wire.caches`.
    """

    model: str
    params: Mapping[str, JsonValue]
    usage: bool
    json_schema: bool
    tool_role: bool
    vision: bool
    origin: str
    short_ids: bool = False
    api: str = CHAT
    effort: str | None = None
    answer_tokens: int = 4096
    schema_in_words: bool = False
    cache: str = "off"
    pdf: bool = False

    @property
    def wire(self) -> Wire:
        return WIRES[self.api]

    @property
    def media_kinds(self) -> MediaKinds:
        """The media that are sent."""
        return _SENT_KINDS[self.vision, self.pdf]


_SENT_KINDS: Mapping[tuple[bool, bool], MediaKinds] = {
    (False, False): frozenset(),
    (True, False): frozenset({"image"}),
    (False, True): frozenset({"pdf"}),
    (True, True): frozenset({"image", "pdf"}),
}
"""The media that are sent, by whether images and PDF files are."""


def sets_marks(dialect: Dialect) -> bool:
    """Return true if requests mark what the endpoint is to cache."""
    return dialect.cache != "off" and (dialect.cache != "auto" or dialect.api != "responses")


def without_marks(dialect: Dialect) -> Dialect:
    """The dialect whose requests name no cache; `off` is a parameter too on `responses`."""
    return replace(dialect, cache="auto" if dialect.api == "responses" else "off")


class AnswerEncoder(Protocol):
    """Encodes the requests of one model entry."""

    @property
    def dialect(self) -> Dialect: ...

    def body(self, request: ModelRequest) -> bytes: ...

    def max_tokens(self, request: ModelRequest) -> int | None:
        """The most tokens of the answer."""


class AnswerDecoder(Protocol):
    """Decodes one response with status 200; one for each try. See `answer_stream`."""

    limit: int | None

    @property
    def progress(self) -> int: ...

    @property
    def done(self) -> bool: ...

    @property
    def complete(self) -> bool: ...

    @property
    def counted(self) -> bool: ...

    def feed(self, chunk: bytes) -> list[Delta]:
        """The deltas in a piece of the body.

        Raises:
            StreamError: the endpoint reports an error, or sends something other than an answer.
        """

    def close(self) -> list[Delta]:
        """The end of the body: the rest of the answer, `Finish` last.

        Raises:
            StreamError: the answer is incomplete.
        """


class MakeDecoder(Protocol):
    """The class of a decoder.

    `known_tools` are the wire names of the tools in the request, `required` says which of them
    have required arguments, `finish_optional` accepts an answer whose finish reason stays null.
    """

    def __call__(
        self,
        *,
        place: Place,
        known_tools: frozenset[str] = ...,
        required: Mapping[str, bool] | None = ...,
        mask: Callable[[str], str] = ...,
        finish_optional: bool = ...,
    ) -> AnswerDecoder: ...


def load_encoder(wire: Wire) -> Callable[[Dialect], AnswerEncoder]:
    made: Callable[[Dialect], AnswerEncoder] = _load(wire.encoder)
    return made


def load_decoder(wire: Wire) -> MakeDecoder:
    made: MakeDecoder = _load(wire.decoder)
    return made


def load_batches(wire: Wire) -> "BatchInterface":
    made: BatchInterface = _load(wire.batches)
    return made


def is_expressible(wire: Wire, schema: JsonObject) -> bool:
    """Return true if the wire can send an answer schema in the vendor's own form."""
    return wire.answer_schema is None or _load(wire.answer_schema)(schema) is not None


def _load(place: str) -> Any:
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)
