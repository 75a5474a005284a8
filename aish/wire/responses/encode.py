"""The body of a `/responses` request: turns and tools in, bytes out.

Nothing is stored at the endpoint: each request has the whole conversation as typed items. What an
answer of the same endpoint consisted of goes back as it came, in its order; see `decode`.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, assert_never

from aish.core.json import JsonValue
from aish.core.messages import AssistantTurn, SystemTurn, ToolTurn, Turn, UserTurn
from aish.core.patterns import lazy_pattern
from aish.core.protocols import AnswerSchema, ModelRequest
from aish.core.tools import NO_MEDIA, PDF, Media, MediaKinds, Tool, ToolCall, media_kind
from aish.wire.calls import legal_arguments
from aish.wire.dialect import (
    MOST_MARKED_TURNS,
    Dialect,
    WireEncoder,
    WireTranscript,
    encode_base64,
    encode_element,
    encode_json,
)
from aish.wire.json_text import dump
from aish.wire.responses.decode import OUTPUT
from aish.wire.responses.strict_schema import to_strict, to_tool_schema

Item = dict[str, Any]

_LONGEST_ID: Final = 64
# Lifetimes in a cache for which marks are set; otherwise the endpoint chooses.
_MARKED_FOR: Final = frozenset({"30m", "12h"})


class Transcript(WireTranscript):
    __slots__ = ("_said", "instructions")

    def __init__(self, dialect: Dialect) -> None:
        super().__init__(dialect)
        self.instructions: list[str] = []
        """What the system says before anybody else does."""
        # The last user turns by their places, to be marked; the results of a round are one.
        self._said: deque[tuple[int, Item]] = deque(maxlen=MOST_MARKED_TURNS)

    def items(self, turns: Sequence[Turn]) -> list[bytes]:
        """The items of all turns; all but the first begin with a comma."""
        self._add_new(turns)
        if not self._said:
            return self._parts
        parts = list(self._parts)
        for place, item in self._said:
            parts[place] = encode_element(_with_mark(item), first=place == 0)
        return parts

    def _add(self, turn: Turn) -> None:
        match turn:
            case SystemTurn():
                if self._parts:
                    self._put(_message("system", turn.text))
                else:
                    self.instructions.append(turn.text)
            case UserTurn():
                self._put(_message("user", turn.text, turn.media, self._dialect.media_kinds))
            case AssistantTurn():
                self._add_assistant(turn)
            case ToolTurn():
                self._add_result(turn)
            case _:
                assert_never(turn)

    def _add_assistant(self, turn: AssistantTurn) -> None:
        calls = deque(
            zip(turn.calls, self._wire_ids(turn, lambda id: len(id) <= _LONGEST_ID), strict=True)
        )
        output = turn.extras.get(OUTPUT) if self._is_own(turn) else None
        if not isinstance(output, list | tuple):
            output = ()
            if turn.text or not calls:
                self._put(self._own_message(turn.text))
        for item in output:
            if not isinstance(item, Mapping):
                continue
            if item.get("type") != "function_call":
                self._put(self._with_id(item))
            elif calls:
                self._put({**item, **_call(*calls.popleft())})
        for call, id in calls:
            self._put(_call(call, id))

    def _add_result(self, turn: ToolTurn) -> None:
        kinds = self._dialect.media_kinds
        id = self._result_id(turn)
        # An error has no field of its own.
        content = dump({"error": turn.content}) if turn.is_error else turn.content
        is_text = not (turn.media and kinds)
        output: Any = content if is_text else _content(content, turn.media, kinds)
        self._put({"type": "function_call_output", "call_id": id, "output": output})

    def _own_message(self, text: str) -> Item:
        """A text of the model, in the form of an answer: servers take no other from it."""
        part = {"type": "output_text", "text": text, "annotations": []}
        message = {"type": "message", "role": "assistant", "status": "completed"}
        return self._with_id({**message, "content": [part]})

    def _with_id(self, item: Mapping[str, Any]) -> Item:
        """The item as it came; a message without an id gets one, since some servers want it."""
        if item.get("type") == "message" and not item.get("id"):
            return {**item, "id": f"msg_{len(self._parts)}"}
        return dict(item)

    def _put(self, item: Item) -> None:
        if self._dialect.cache in _MARKED_FOR:
            item = self._note_said(item)
        self._parts.append(encode_element(item, first=not self._parts))

    def _note_said(self, item: Item) -> Item:
        """The item with content that can be marked, and is spelled the same without a mark."""
        is_result = item.get("type") == "function_call_output"
        if is_result and isinstance(item["output"], str):
            item = {**item, "output": _content(item["output"], (), NO_MEDIA)}
        if is_result or item.get("role") == "user":
            place = len(self._parts)
            if self._said and is_result and self._said[-1][0] == place - 1:
                self._said.pop()
            self._said.append((place, item))
        return item


def _with_mark(item: Item) -> Item:
    key = "output" if "output" in item else "content"
    *others, last = item[key]
    return {**item, key: [*others, {**last, "prompt_cache_breakpoint": {"mode": "explicit"}}]}


def _message(
    role: str, text: str, media: Sequence[Media] = (), kinds: MediaKinds = NO_MEDIA
) -> Item:
    return {"type": "message", "role": role, "content": _content(text, media, kinds)}


def _content(text: str, media: Sequence[Media], kinds: MediaKinds) -> list[Item]:
    shown = media if kinds else ()
    said = [{"type": "input_text", "text": text}] if text or not shown else []
    return [*said, *(_part(medium, kinds) for medium in shown)]


def _part(media: Media, kinds: MediaKinds) -> Item:
    """An image or a PDF as a data URL; other media as a line that says what is missing."""
    kind = media_kind(media)
    if kind not in kinds:
        return {"type": "input_text", "text": f"[{media.mime_type} not sent]"}
    data = encode_base64(media)
    if kind == "pdf":
        url = f"data:{PDF};base64,{data}"
        return {"type": "input_file", "filename": "document.pdf", "file_data": url}
    url = f"data:{media.mime_type};base64,{data}"
    return {"type": "input_image", "image_url": url, "detail": "auto"}


def _call(call: ToolCall, id: str) -> Item:
    arguments = legal_arguments(call.arguments)
    return {"type": "function_call", "call_id": id, "name": call.name, "arguments": arguments}


# Decided here alone: a parameter of the same name would break the contract with the decoder.
_RESERVED: Final = frozenset({"input", "instructions", "stream", "store", "tools"})
# Endpoints refuse these where there are no tools.
_NEEDS_TOOLS: Final = frozenset({"tool_choice", "parallel_tool_calls"})
_ENCRYPTED: Final = "reasoning.encrypted_content"
# Other models refuse to be asked for what they do not have.
_REASONS: Final = lazy_pattern(r"(?i)(?:^|[/:.])(?:o[0-9]|gpt-(?:[5-9]|1[0-9]|oss)|codex)")
_CHATS: Final = lazy_pattern(r"(?i)-chat\b")
_IN_WORDS: Final = "Answer with JSON alone, as this JSON Schema describes it:\n"


class Encoder(WireEncoder[Transcript]):
    make_transcript = Transcript

    def body(self, request: ModelRequest) -> bytes:
        transcript = self._transcript(request.history)
        items = transcript.items(request.history.turns)
        head = encode_json(self._head(request, transcript.instructions))[:-1]
        own = self.dialect.params
        tools = self._tools_text(
            request.tools, lambda: [*map(_tool, request.tools), *_vendor_tools(own)]
        )
        return b"".join([head, tools, b',"input":[', *items, b"]}"])

    def _head(self, request: ModelRequest, instructions: Sequence[str]) -> Item:
        """Everything but tools and input."""
        dialect = self.dialect
        params = {**dialect.params, **request.params}
        has_tools = bool(request.tools) or any(_vendor_tools(dialect.params))
        left_out = _RESERVED if has_tools else _RESERVED | _NEEDS_TOOLS
        # Said in so many words, since some servers stream by default and others do not.
        head: Item = {"model": dialect.model, "stream": True, "store": False}
        head |= {name: value for name, value in params.items() if name not in left_out}
        if dialect.cache != "auto":
            asked, kept = params.get("prompt_cache_options"), {"mode": "explicit"}
            kept |= {"ttl": dialect.cache} if dialect.cache in _MARKED_FOR else {}
            head["prompt_cache_options"] = {**kept, **(asked if isinstance(asked, Mapping) else {})}
        if dialect.effort is not None:
            given = params.get("reasoning")
            given = given if isinstance(given, Mapping) else {}
            head["reasoning"] = {"effort": dialect.effort, **given}
        if params.get("include") != [] and self._reasons(head.get("reasoning")):
            asked = params.get("include")
            others = list(asked) if isinstance(asked, list | tuple) else []
            head["include"] = list(dict.fromkeys([*others, _ENCRYPTED]))
        if request.tools and request.tool_choice != "auto":
            head["tool_choice"] = _tool_choice(request.tool_choice)
        described = _text_format(request.schema) if dialect.json_schema else {}
        if described:
            text = params.get("text")
            head["text"] = {**(text if isinstance(text, Mapping) else {}), "format": described}
        elif request.schema and (dialect.json_schema or dialect.schema_in_words):
            instructions = [*instructions, _IN_WORDS + dump(request.schema.schema)]
        if instructions:
            head["instructions"] = "\n\n".join(instructions)
        return head

    def _reasons(self, reasoning: JsonValue) -> bool:
        """Return true if a reasoning model answers."""
        if isinstance(reasoning, Mapping):
            return reasoning.get("effort") != "none"
        name = self.dialect.model
        return _REASONS.search(name) is not None and _CHATS.search(name) is None


def _vendor_tools(params: Mapping[str, JsonValue]) -> Iterator[JsonValue]:
    """The tools of the vendor that the file asks for; functions are never among them."""
    tools = params.get("tools")
    for tool in tools if isinstance(tools, list | tuple) else ():
        if isinstance(tool, Mapping) and tool.get("type") not in {"function", "custom", None}:
            yield tool


def _tool(tool: Tool) -> Item:
    return {
        "type": "function",
        "name": tool.wire,
        "description": tool.description,
        "parameters": to_tool_schema(tool.input_schema),
        # The default is true, and then most schemas of servers are refused.
        "strict": False,
    }


def _tool_choice(choice: str) -> JsonValue:
    if choice in {"required", "none"}:
        return choice
    return {"type": "function", "name": choice}


def _text_format(schema: AnswerSchema | None) -> Item:
    """The format of an answer with a schema; empty if the schema cannot be brought into it."""
    strict = None if schema is None else to_strict(schema.schema)
    if schema is None or strict is None:
        return {}
    return {"type": "json_schema", "name": schema.name, "strict": True, "schema": strict}
