"""The body of a `/v1/messages` request: turns and tools in, bytes out."""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from itertools import starmap
from typing import Any, Final, assert_never

from aish.core.json import JsonValue
from aish.core.messages import AssistantTurn, SystemTurn, ToolTurn, Turn, UserTurn
from aish.core.patterns import lazy_pattern
from aish.core.protocols import ModelRequest
from aish.core.tools import PDF, Media, MediaKinds, Tool, ToolCall, media_kind
from aish.wire.calls import legal_arguments
from aish.wire.dialect import (
    MOST_MARKED_TURNS,
    Dialect,
    WireEncoder,
    WireTranscript,
    encode_base64,
    encode_json,
)
from aish.wire.json_text import dump, parse_object
from aish.wire.messages.answer_schema import answer_format, tool_schema

Message = dict[str, Any]

_KEPT: Final = "content"
_IMAGES: Final = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
_ID: Final = lazy_pattern(r"[a-zA-Z0-9_-]{1,64}")
_NOTHING: Final = "(no text)"
_EFFORTS: Final[Mapping[str, str]] = {"minimal": "low"}


class Transcript(WireTranscript):
    __slots__ = ("_results", "_said", "system")

    def __init__(self, dialect: Dialect) -> None:
        super().__init__(dialect)
        self.system: list[str] = []
        self._results: list[Message] = []
        # The last user turns by their places, to be marked.
        self._said: deque[tuple[int, list[Message]]] = deque(maxlen=MOST_MARKED_TURNS)

    def messages(self, turns: Sequence[Turn], marked: int = 0) -> list[bytes]:
        """The messages of all turns; the last user turns, as many as `marked`, with a mark."""
        self._add_new(turns)
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
                self._parts.append(encode_json({"role": "assistant", "content": content}))
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
        content = self._content(turn.content, turn.media)
        block: Message = {
            "type": "tool_result",
            "tool_use_id": self._result_id(turn),
            "content": content,
        }
        # The endpoint refuses an error with an image.
        if turn.is_error and all(part["type"] == "text" for part in content):
            block["is_error"] = True
        return block

    def _assistant_content(self, turn: AssistantTurn) -> list[Message]:
        calls = deque(zip(turn.calls, self._wire_ids(turn, _ID.fullmatch), strict=True))
        kept = turn.extras.get(_KEPT) if self._is_own(turn) else None
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


class Encoder(WireEncoder[Transcript]):
    make_transcript = Transcript

    def __init__(self, dialect: Dialect) -> None:
        super().__init__(dialect)
        self._mark = _mark_of(dialect)

    def body(self, request: ModelRequest) -> bytes:
        transcript = self._transcript(request.history)
        messages = transcript.messages(request.history.turns, self._marked_turns(request))
        head = encode_json(self._head(request))[:-1]
        told = request.tools
        tools = self._tools_text(told, lambda: self._list_tools(told)) if told else b""
        system = self._system(request, transcript.system)
        return b"".join([head, tools, system, b',"messages":[', b",".join(messages), b"]}"])

    def max_tokens(self, request: ModelRequest) -> int:
        named = super().max_tokens(request)
        return self.dialect.answer_tokens if named is None else named

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

    def _list_tools(self, tools: tuple[Tool, ...]) -> list[Any]:
        listed = [_tool(tool) for tool in tools]
        listed[-1] |= self._mark
        return listed

    def _system(self, request: ModelRequest, texts: Sequence[str]) -> bytes:
        blocks = [_text_block(text) for text in texts if text.strip()]
        if request.schema is not None and self._is_in_words(request.schema.schema):
            schema = dump(request.schema.schema)
            blocks.append(_text_block(f"Answer with JSON alone that fits this schema: {schema}"))
        if blocks:
            blocks[-1] |= self._mark
        return b',"system":' + encode_json(blocks) if blocks else b""

    def _marked_turns(self, request: ModelRequest) -> int:
        """The number of user turns to mark; `auto` marks none that stays alone."""
        cache, turns = self.dialect.cache, request.history.turns
        goes_on = bool(request.tools) or any(isinstance(turn, AssistantTurn) for turn in turns)
        if not self._mark or (cache == "auto" and not goes_on):
            return 0
        # The endpoint allows four marks, and one that the file sets counts.
        is_own = "cache_control" in {**self.dialect.params, **request.params}
        return MOST_MARKED_TURNS - is_own

    def _is_in_words(self, schema: Mapping[str, JsonValue]) -> bool:
        """Return true if the vendor's own format cannot be used for a schema."""
        dialect = self.dialect
        return dialect.schema_in_words or (dialect.json_schema and answer_format(schema) is None)


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
    is_pdf = kind == "pdf"
    source = {
        "type": "base64",
        "media_type": PDF if is_pdf else media.mime_type,
        "data": encode_base64(media),
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
    return encode_json({"role": "user", "content": content})
