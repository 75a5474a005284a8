"""The body of a `/chat/completions` request: turns and tools in, bytes out."""

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Final, assert_never

from aish.core.json import JsonValue
from aish.core.messages import AssistantTurn, SystemTurn, ToolTurn, Turn, UserTurn
from aish.core.protocols import ModelRequest
from aish.core.tools import NO_MEDIA, PDF, Media, MediaKinds, Tool, ToolCall, media_kind
from aish.wire.calls import legal_arguments
from aish.wire.chat.answer_text import REASONING_FIELDS
from aish.wire.dialect import (
    MOST_MARKED_TURNS,
    Dialect,
    WireEncoder,
    WireTranscript,
    encode_base64,
    encode_element,
    encode_json,
)


def fits_strict(schema: JsonValue) -> bool:
    """Return true if all object schemas in `schema` are closed and require every property."""
    if isinstance(schema, Mapping):
        return _is_closed(schema) and all(map(fits_strict, schema.values()))
    if isinstance(schema, Sequence) and not isinstance(schema, str):
        return all(map(fits_strict, schema))
    return True


def _is_closed(schema: Mapping[str, JsonValue]) -> bool:
    kind = schema.get("type")
    if kind != "object" and not (isinstance(kind, list | tuple) and "object" in kind):
        return True
    properties, required = schema.get("properties"), schema.get("required")
    names = set(properties) if isinstance(properties, Mapping) else set()
    listed = required if isinstance(required, list | tuple) else ()
    return schema.get("additionalProperties") is False and all(name in listed for name in names)


Message = dict[str, Any]

_OWN_FIELDS: Final = frozenset({"role", "content", "tool_calls"})


def text_message(
    role: str, text: str, media: Sequence[Media] = (), kinds: MediaKinds = NO_MEDIA
) -> Message:
    """A message of text, or of parts where there is media; those of `kinds` are sent."""
    if not media:
        return {"role": role, "content": text}
    parts = [{"type": "text", "text": text}] if text else []
    return {"role": role, "content": [*parts, *(_media_part(medium, kinds) for medium in media)]}


def tool_message(id: str, content: str) -> Message:
    return {"role": "tool", "tool_call_id": id, "content": content}


def call_as_text(call: ToolCall) -> str:
    """A call as text of the assistant turn, for templates without a tool role."""
    return f"[call: {call.name}]\n{call.arguments.strip() or '{}'}"


def assistant_message(turn: AssistantTurn, ids: Sequence[str], *, same_origin: bool) -> Message:
    """Encode a model's turn, with a call for each of `ids`; without ids the calls are text.

    Content without text is `null` beside calls, as the documentation has it, and empty otherwise.
    """
    calls = [
        _call(call, id, turn_extras=same_origin) for call, id in zip(turn.calls, ids, strict=False)
    ]
    told = () if calls else map(call_as_text, turn.calls)
    text = "\n\n".join(filter(None, (turn.text, *told)))
    message: Message = {"role": "assistant", "content": text or (None if calls else "")}
    if same_origin:
        message |= {key: value for key, value in turn.extras.items() if key not in _OWN_FIELDS}
    if calls:
        message["tool_calls"] = calls
    return message


def _call(call: ToolCall, id: str, *, turn_extras: bool) -> Message:
    extras = dict(call.extras) if turn_extras else {}
    inner = extras.pop("function", None)
    function = dict(inner) if isinstance(inner, Mapping) else {}
    function |= {"name": call.name, "arguments": legal_arguments(call.arguments)}
    return {**extras, "id": id, "type": "function", "function": function}


def _media_part(media: Media, kinds: MediaKinds) -> Message:
    """An image or a PDF as a data URL; other media as a line that says what is missing."""
    kind = media_kind(media)
    if kind not in kinds:
        return {"type": "text", "text": f"[{media.mime_type} not sent]"}
    data = encode_base64(media)
    if kind == "pdf":
        file = {"filename": "document.pdf", "file_data": f"data:{PDF};base64,{data}"}
        return {"type": "file", "file": file}
    return {"type": "image_url", "image_url": {"url": f"data:{media.mime_type};base64,{data}"}}


class Transcript(WireTranscript):
    __slots__ = ("_has_called", "_said", "_shown", "_system", "_told")

    def __init__(self, dialect: Dialect) -> None:
        super().__init__(dialect)
        # Whether the model has called a tool since somebody spoke to it.
        self._has_called = False
        self._told: list[str] = []
        self._shown: list[Media] = []
        # What is to be marked for a cache, by its place: the results of a round are one turn.
        self._said: deque[tuple[int, Message]] = deque(maxlen=MOST_MARKED_TURNS)
        self._system: tuple[int, Message] | None = None

    def messages(self, turns: Sequence[Turn]) -> list[bytes]:
        """The messages of all turns; all but the first begin with a comma."""
        self._add_new(turns)
        parts, said = self._parts, list(self._said)
        if self._told:
            last = self._in_parts(self._results_message())
            parts = [*parts, encode_element(last, first=False)]
            said = self._with_said(len(self._parts), last)[-MOST_MARKED_TURNS:]
        if self._dialect.cache == "off":
            return parts
        marked = [*([] if self._system is None else [self._system]), *said]
        parts = list(parts)
        for place, message in marked:
            marked_message = _with_mark(message, self._dialect.cache)
            parts[place] = encode_element(marked_message, first=place == 0)
        return parts

    def _add(self, turn: Turn) -> None:
        match turn:
            case SystemTurn():
                self._settle()
                self._put(text_message("system", turn.text))
            case UserTurn():
                self._has_called = False
                self._put(self._results_message(turn))
            case AssistantTurn():
                self._settle()
                self._add_assistant(turn)
            case ToolTurn():
                if self._dialect.tool_role:
                    self._put(tool_message(self._result_id(turn), turn.content))
                else:
                    # The reply to a call as text of a user turn, for templates without a tool role
                    self._told.append(f"[tool: {turn.tool}]\n{turn.content}")
                if self._dialect.media_kinds and turn.media:
                    if self._dialect.tool_role:
                        self._told.append(f"[media from {turn.tool}]")
                    self._shown.extend(turn.media)
            case _:
                assert_never(turn)

    def _add_assistant(self, turn: AssistantTurn) -> None:
        dialect = self._dialect
        ids = self._wire_ids(turn, lambda _: not dialect.short_ids) if dialect.tool_role else ()
        message = assistant_message(turn, ids, same_origin=self._is_own(turn))
        self._has_called = self._has_called or bool(ids)
        if not self._has_called:
            # Endpoints want what was thought around calls, in all later requests, and no other.
            message = {key: said for key, said in message.items() if key not in REASONING_FIELDS}
        self._put(message)

    def _results_message(self, turn: UserTurn | None = None) -> Message:
        """Merge tool results as text with the next user turn: never two user messages in a row."""
        if turn is None:
            kinds = self._dialect.media_kinds
            return text_message("user", "\n\n".join(self._told), self._shown, kinds)
        text = "\n\n".join([*self._told, turn.text])
        media = [*self._shown, *(turn.media if self._dialect.media_kinds else ())]
        self._told, self._shown = [], []
        return text_message("user", text, media, self._dialect.media_kinds)

    def _settle(self) -> None:
        """Add the results of a finished round of tool calls to the messages."""
        if self._told:
            self._put(self._results_message())
            self._told, self._shown = [], []

    def _put(self, message: Message) -> None:
        message, place = self._in_parts(message), len(self._parts)
        if self._dialect.cache != "off" and isinstance(message["content"], list):
            if message["role"] == "system" and not self._said:
                self._system = (place, message)
            elif message["role"] in {"user", "tool"}:
                self._said = deque(self._with_said(place, message), MOST_MARKED_TURNS)
        self._parts.append(encode_element(message, first=not self._parts))

    def _in_parts(self, message: Message) -> Message:
        """The message with content that can be marked, and is spelled the same without a mark."""
        text = message["content"]
        if self._dialect.cache == "off" or message["role"] == "assistant":
            return message
        is_text = isinstance(text, str) and text.strip()
        return {**message, "content": [{"type": "text", "text": text}]} if is_text else message

    def _with_said(self, place: int, message: Message) -> list[tuple[int, Message]]:
        """The last turns of the user with a message, which may be of the round of the last."""
        said = list(self._said)
        if said and said[-1][0] == place - 1:
            said.pop()
        return [*said, (place, message)]


def _with_mark(message: Message, cache: str) -> Message:
    """The message, up to which a gateway is to have its endpoint cache."""
    mark = {"type": "ephemeral", **({} if cache == "auto" else {"ttl": cache})}
    *others, last = message["content"]
    return {**message, "content": [*others, {**last, "cache_control": mark}]}


# Decided here alone: a parameter of the same name would break the contract with the decoder, or
# offer tools that no rule knows.
_RESERVED: Final = frozenset({"messages", "stream", "tools"})
# Endpoints refuse these where there are no tools.
_NEEDS_TOOLS: Final = frozenset({"tool_choice", "parallel_tool_calls"})


class Encoder(WireEncoder[Transcript]):
    make_transcript = Transcript

    def body(self, request: ModelRequest) -> bytes:
        head = encode_json(self._head(request))[:-1]
        tools = request.tools
        text = self._tools_text(tools, lambda: [*map(_tool, tools)]) if tools else b""
        messages = self._transcript(request.history).messages(request.history.turns)
        return b"".join([head, text, b',"messages":[', *messages, b"]}"])

    def _head(self, request: ModelRequest) -> dict[str, Any]:
        """Everything but tools and messages."""
        dialect = self.dialect
        left_out = _RESERVED if request.tools else _RESERVED | _NEEDS_TOOLS
        head: dict[str, Any] = {"model": dialect.model, "stream": True}
        if dialect.usage:
            head["stream_options"] = {"include_usage": True}
        if dialect.effort is not None:
            head["reasoning_effort"] = dialect.effort
        params = {**dialect.params, **request.params}
        head |= {name: value for name, value in params.items() if name not in left_out}
        if request.tools and request.tool_choice != "auto":
            head["tool_choice"] = _tool_choice(request.tool_choice)
        if request.schema and dialect.json_schema:
            described: dict[str, JsonValue] = {
                "name": request.schema.name,
                "strict": fits_strict(request.schema.schema),
                "schema": request.schema.schema,
            }
            head["response_format"] = {"type": "json_schema", "json_schema": described}
        return head


def _tool(tool: Tool) -> dict[str, Any]:
    return {
        "type": "function",
        "function": {
            "name": tool.wire,
            "description": tool.description,
            # Some endpoints refuse a request for a schema of an object without it.
            "parameters": {"properties": {}, **tool.input_schema},
        },
    }


def _tool_choice(choice: str) -> JsonValue:
    if choice in {"required", "none"}:
        return choice
    return {"type": "function", "function": {"name": choice}}
