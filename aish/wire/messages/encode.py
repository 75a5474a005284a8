"""The body of a `/v1/messages` request: turns and tools in, bytes out.

The messages of one history are kept encoded, so that only new turns are encoded, and what was sent
once is sent again byte for byte.
"""

from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from itertools import starmap
from typing import Any, Final, assert_never
from weakref import WeakKeyDictionary

from aish.core.json import JsonValue
from aish.core.messages import AssistantTurn, History, SystemTurn, ToolTurn, Turn, UserTurn
from aish.core.patterns import lazy_pattern
from aish.core.protocols import ModelRequest
from aish.core.tools import PDF, Media, MediaKinds, Tool, ToolCall, media_kind
from aish.wire.calls import legal_arguments, short_id, unique_id
from aish.wire.dialect import Dialect
from aish.wire.json_text import dump, parse_object
from aish.wire.messages.answer_schema import answer_format, tool_schema

Message = dict[str, Any]

_KEPT: Final = "content"
_IMAGES: Final = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
_ID: Final = lazy_pattern(r"[a-zA-Z0-9_-]{1,64}")
_NOTHING: Final = "(no text)"
_MOST_TOOL_LISTS: Final = 32
_MOST_MARKED_TURNS: Final = 2
_EFFORTS: Final[Mapping[str, str]] = {"minimal": "low"}


class Encoder:
    """Encodes the requests of one model entry; what was encoded of a history is kept weakly."""

    def __init__(self, dialect: Dialect) -> None:
        self.dialect = dialect
        self._transcripts: WeakKeyDictionary[History, Transcript] = WeakKeyDictionary()
        self._tools: dict[int, tuple[tuple[Tool, ...], bytes]] = {}
        self._mark = _mark_of(dialect)

    def body(self, request: ModelRequest) -> bytes:
        transcript = self._transcripts.get(request.history)
        if transcript is None or not transcript.fits(request.history.turns):
            transcript = self._transcripts[request.history] = Transcript(self.dialect)
        messages = transcript.messages(request.history.turns, self._marked_turns(request))
        head = _encode(self._head(request))[:-1]
        tools = self._tools_text(request.tools) if request.tools else b""
        system = self._system(request, transcript.system)
        return b"".join([head, tools, system, b',"messages":[', b",".join(messages), b"]}"])

    def max_tokens(self, request: ModelRequest) -> int:
        wire, dialect = self.dialect.wire, self.dialect
        named = wire.answer_limit({**dialect.params, **request.params})
        return dialect.answer_tokens if named is None else named

    def _head(self, request: ModelRequest) -> Message:
        """Everything but tools, system prompt and messages."""
        dialect = self.dialect
        params = {**dialect.params, **request.params}
        left_out = dialect.wire.own if request.tools else {*dialect.wire.own, "tool_choice"}
        head: Message = {
            "model": dialect.model,
            "stream": True,
            "max_tokens": self.max_tokens(request),
        }
        head |= {name: value for name, value in params.items() if name not in left_out}
        given = params.get("output_config")
        output: Message = dict(given) if isinstance(given, Mapping) else {}
        if dialect.effort == "none":
            head.setdefault("thinking", {"type": "disabled"})
        elif dialect.effort is not None:
            output.setdefault("effort", _EFFORTS.get(dialect.effort, dialect.effort))
        if request.schema is not None and dialect.json_schema:
            schema = answer_format(request.schema.schema)
            if schema is not None:
                output["format"] = {"type": "json_schema", "schema": schema}
        if output:
            head["output_config"] = output
        if request.tools and request.tool_choice != "auto":
            head["tool_choice"] = _tool_choice(request.tool_choice)
        return head

    def _tools_text(self, tools: tuple[Tool, ...]) -> bytes:
        """The `tools` field, encoded once for each tuple."""
        kept = self._tools.get(id(tools))
        if kept is None:
            told = [_tool(tool) for tool in tools]
            told[-1] |= self._mark
            if len(self._tools) >= _MOST_TOOL_LISTS:
                self._tools.clear()
            text = b',"tools":' + _encode(told)
            kept = self._tools[id(tools)] = (tools, text)  # holding it keeps its identity
        return kept[1]

    def _system(self, request: ModelRequest, texts: Sequence[str]) -> bytes:
        blocks = [_text_block(text) for text in texts if text.strip()]
        if request.schema is not None and self._is_in_words(request.schema.schema):
            schema = dump(request.schema.schema)
            blocks.append(_text_block(f"Answer with JSON alone that fits this schema: {schema}"))
        if blocks:
            blocks[-1] |= self._mark
        return b',"system":' + _encode(blocks) if blocks else b""

    def _marked_turns(self, request: ModelRequest) -> int:
        """The number of user turns to mark; `auto` marks none that stays alone."""
        cache, turns = self.dialect.cache, request.history.turns
        goes_on = bool(request.tools) or any(isinstance(turn, AssistantTurn) for turn in turns)
        if not self._mark or (cache == "auto" and not goes_on):
            return 0
        # The endpoint allows four marks, and one that the file sets counts.
        is_own = "cache_control" in {**self.dialect.params, **request.params}
        return _MOST_MARKED_TURNS - is_own

    def _is_in_words(self, schema: Mapping[str, JsonValue]) -> bool:
        """Return true if the vendor's own format cannot be used for a schema."""
        dialect = self.dialect
        return dialect.schema_in_words or (dialect.json_schema and answer_format(schema) is None)


class Transcript:
    """Encodes turns as they are added."""

    __slots__ = (
        "_dialect", "_encoded", "_first", "_ids", "_last", "_parts", "_results", "_said", "_taken",
        "_turns", "system",
    )  # fmt: skip

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self.system: list[str] = []
        self._parts: list[bytes] = []
        self._encoded = 0
        self._turns: Sequence[Turn] = ()
        self._first: Turn | None = None
        self._last: Turn | None = None
        self._taken: set[str] = set()
        self._ids: defaultdict[str, deque[str]] = defaultdict(deque)
        self._results: list[Message] = []
        # The last user turns by their places, to be marked.
        self._said: deque[tuple[int, list[Message]]] = deque(maxlen=_MOST_MARKED_TURNS)

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

    def messages(self, turns: Sequence[Turn], marked: int = 0) -> list[bytes]:
        """The messages of all turns; the last user turns, as many as `marked`, with a mark."""
        for turn in turns[self._encoded :]:
            self._add(turn)
        if turns:
            self._turns = turns
            self._encoded, self._first, self._last = len(turns), turns[0], turns[-1]
        parts = [*self._parts, _user(self._results)] if self._results else list(self._parts)
        said = [*self._said, *([(len(self._parts), self._results)] if self._results else [])]
        for place, content in said[max(0, len(said) - marked) :]:
            last = {**content[-1], **_mark_of(self._dialect)}
            parts[place] = _user([*content[:-1], last])
        return parts

    def _add(self, turn: Turn) -> None:
        match turn:
            case SystemTurn():
                self.system.append(turn.text)
            case UserTurn():
                # What a person says beside the results of a round stands after them.
                blocks = [*self._results, *self._content(turn.text, turn.media)]
                self._results = []
                self._put_user(blocks or [_text_block(_NOTHING)])
            case AssistantTurn():
                if self._results:
                    self._put_user(self._results)
                    self._results = []
                content = self._assistant_content(turn)
                self._parts.append(_encode({"role": "assistant", "content": content}))
            case ToolTurn():
                self._results.append(self._result(turn))
            case _:
                assert_never(turn)

    def _put_user(self, content: list[Message]) -> None:
        self._said.append((len(self._parts), content))
        self._parts.append(_user(content))

    def _content(self, text: str, media: Iterable[Media]) -> list[Message]:
        kinds = self._dialect.media_kinds
        shown = [_media_block(medium, kinds) for medium in media] if kinds else []
        return [*([_text_block(text)] if text.strip() else []), *shown]

    def _result(self, turn: ToolTurn) -> Message:
        ids = self._ids.get(turn.call_id)
        content = self._content(turn.content, turn.media)
        block: Message = {
            "type": "tool_result",
            "tool_use_id": ids.popleft() if ids else turn.call_id,
            "content": content,
        }
        # The endpoint refuses an error with an image.
        if turn.is_error and all(part["type"] == "text" for part in content):
            block["is_error"] = True
        return block

    def _assistant_content(self, turn: AssistantTurn) -> list[Message]:
        calls = deque(zip(turn.calls, self._wire_ids(turn), strict=True))
        is_own = bool(turn.origin) and turn.origin == self._dialect.origin
        kept = turn.extras.get(_KEPT) if is_own else None
        blocks: list[Message] = []
        if isinstance(kept, list | tuple):
            for block in kept:
                if not isinstance(block, Mapping):
                    continue
                if block.get("type") == "tool_use":
                    blocks += [{**block, **_call(*calls.popleft())}] if calls else []
                elif _may_go_back(block):
                    blocks.append(dict(block))
        elif turn.text.strip():
            blocks.append(_text_block(turn.text))
        blocks += list(starmap(_call, calls))
        if all(block["type"] in {"thinking", "redacted_thinking"} for block in blocks):
            blocks.append(_text_block(turn.text if turn.text.strip() else _NOTHING))
        return blocks

    def _wire_ids(self, turn: AssistantTurn) -> tuple[str, ...]:
        """An id for each call that is legal and that no other call of the history has."""
        self._ids.clear()
        ids = []
        for call in turn.calls:
            make = unique_id if _ID.fullmatch(call.id) else short_id
            id = make(call.id, self._taken)
            self._taken.add(id)
            self._ids[call.id].append(id)
            ids.append(id)
        return tuple(ids)


def _mark_of(dialect: Dialect) -> Message:
    """The field of a block up to which the endpoint is to cache."""
    if dialect.cache == "off":
        return {}
    kind = {"type": "ephemeral"}
    return {"cache_control": kind if dialect.cache == "auto" else {**kind, "ttl": dialect.cache}}


def _may_go_back(block: Mapping[str, Any]) -> bool:
    """Return false for what the endpoint refuses: empty text, and thought that nobody signed."""
    match block.get("type"):
        case "text":
            return bool(str(block.get("text", "")).strip())
        case "thinking":
            return bool(str(block.get("signature") or "").strip())
        case _:
            return True


def _call(call: ToolCall, id: str) -> Message:
    given = parse_object(legal_arguments(call.arguments))
    return {"type": "tool_use", "id": id, "name": call.name, "input": given or {}}


def _text_block(text: str) -> Message:
    return {"type": "text", "text": text}


def _media_block(media: Media, kinds: MediaKinds) -> Message:
    """An image or a PDF; other media as a line that says what is missing."""
    kind = media_kind(media)
    if kind not in kinds or (kind == "image" and media.mime_type not in _IMAGES):
        return _text_block(f"[{media.mime_type} not sent]")
    import base64  # few turns have media

    data = base64.b64encode(media.data).decode()
    is_pdf = kind == "pdf"
    source = {
        "type": "base64",
        "media_type": PDF if is_pdf else media.mime_type,
        "data": data,
    }
    return {"type": "document" if is_pdf else "image", "source": source}


def _tool(tool: Tool) -> Message:
    description, schema = tool_schema(tool.description, tool.input_schema)
    return {"name": tool.wire, "description": description, "input_schema": schema}


def _tool_choice(choice: str) -> JsonValue:
    match choice:
        case "required":
            return {"type": "any"}
        case "none":
            return {"type": "none"}
        case _:
            return {"type": "tool", "name": choice}


def _user(content: Sequence[Message]) -> bytes:
    return _encode({"role": "user", "content": content})


def _encode(value: Any) -> bytes:
    return dump(value).encode("utf-8", "replace")
