"""The interface of a wire: settings of a model entry in, an encoder and a decoder out.

What was encoded of a conversation is kept, so that only new turns are encoded. A wire derives its
own classes; the spelling of turns and tools is in its folder.
"""

from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar
from weakref import WeakKeyDictionary

from aish.core.events import Place
from aish.core.frozen import frozen
from aish.core.json import JsonObject, JsonValue
from aish.core.messages import AssistantTurn, History, ToolTurn, Turn
from aish.core.protocols import ModelRequest
from aish.core.tools import Media, MediaKinds, Tool
from aish.core.wires import CHAT, WIRES, Wire
from aish.wire.calls import short_id, unique_id
from aish.wire.json_text import dump

if TYPE_CHECKING:
    from aish.wire.answer_stream import AnswerStream
    from aish.wire.batches.types import BatchInterface

MOST_MARKED_TURNS: Final = 2
_MOST_TOOL_LISTS: Final = 32


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


def encode_json(value: Any) -> bytes:
    return dump(value).encode("utf-8", "replace")


def encode_element(value: Any, *, first: bool) -> bytes:
    """The element of a list; all but the first begin with a comma."""
    return encode_json(value) if first else b"," + encode_json(value)


def encode_base64(media: Media) -> str:
    import base64  # few turns have media

    return base64.b64encode(media.data).decode()


class WireTranscript:
    """Encodes turns as they are added, in the dialect of an endpoint."""

    __slots__ = ("_dialect", "_encoded", "_first", "_ids", "_last", "_parts", "_taken", "_turns")

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self._parts: list[bytes] = []
        self._encoded = 0
        self._turns: Sequence[Turn] = ()
        self._first: Turn | None = None
        self._last: Turn | None = None
        self._taken: set[str] = set()
        self._ids: defaultdict[str, deque[str]] = defaultdict(deque)

    def fits(self, turns: Sequence[Turn]) -> bool:
        """Return true if `turns` begin with those already encoded.

        They do not if they are in another list: a conversation that was shortened.
        """
        count = self._encoded
        return count == 0 or (
            turns is self._turns
            and len(turns) >= count
            and turns[0] is self._first
            and turns[count - 1] is self._last
        )

    def _add_new(self, turns: Sequence[Turn]) -> None:
        for turn in turns[self._encoded :]:
            self._add(turn)
        if turns:
            self._turns = turns
            self._encoded, self._first, self._last = len(turns), turns[0], turns[-1]

    def _add(self, turn: Turn) -> None:
        raise NotImplementedError

    def _wire_ids(self, turn: AssistantTurn, is_legal: Callable[[str], object]) -> tuple[str, ...]:
        """An id for each call that is legal and that no other call of the history has."""
        self._ids.clear()
        ids = []
        for call in turn.calls:
            make = unique_id if is_legal(call.id) else short_id
            id = make(call.id, self._taken)
            self._taken.add(id)
            self._ids[call.id].append(id)
            ids.append(id)
        return tuple(ids)

    def _result_id(self, turn: ToolTurn) -> str:
        """The id of the call that a result is of."""
        ids = self._ids.get(turn.call_id)
        return ids.popleft() if ids else turn.call_id

    def _is_own(self, turn: AssistantTurn) -> bool:
        """Return true if the extras of a turn may go to this endpoint."""
        return bool(turn.origin) and turn.origin == self._dialect.origin


T = TypeVar("T", bound=WireTranscript)


class WireEncoder(Generic[T]):
    """Encodes the requests of one model entry; what was encoded of a history is kept weakly."""

    make_transcript: type[T]

    def __init__(self, dialect: Dialect) -> None:
        self.dialect = dialect
        self._transcripts: WeakKeyDictionary[History, T] = WeakKeyDictionary()
        self._tools: dict[int, tuple[tuple[Tool, ...], bytes]] = {}

    def body(self, request: ModelRequest) -> bytes:
        raise NotImplementedError

    def max_tokens(self, request: ModelRequest) -> int | None:
        """The most tokens of the answer."""
        return self.dialect.wire.answer_limit({**self.dialect.params, **request.params})

    def _transcript(self, history: History) -> T:
        transcript = self._transcripts.get(history)
        if transcript is None or not transcript.fits(history.turns):
            transcript = self._transcripts[history] = self.make_transcript(self.dialect)
        return transcript

    def _tools_text(self, tools: tuple[Tool, ...], listed: Callable[[], list[Any]]) -> bytes:
        """The `tools` field with what `listed` returns, encoded once for each tuple."""
        kept = self._tools.get(id(tools))
        if kept is None:
            if len(self._tools) >= _MOST_TOOL_LISTS:
                self._tools.clear()
            spelled = listed()
            text = b',"tools":' + encode_json(spelled) if spelled else b""
            kept = self._tools[id(tools)] = (tools, text)  # holding it keeps its identity
        return kept[1]


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
    ) -> "AnswerStream": ...


def load_encoder(wire: Wire) -> Callable[[Dialect], WireEncoder[Any]]:
    made: Callable[[Dialect], WireEncoder[Any]] = _load(wire.encoder)
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
