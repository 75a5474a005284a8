"""The body of a `/chat/completions` request: turns and tools in, bytes out (L2, L3, L12, L13)."""

from collections.abc import Mapping
from typing import Any, Final
from weakref import WeakKeyDictionary

from aish.core.frozen import frozen
from aish.core.json import JsonValue
from aish.core.messages import History
from aish.core.protocols import AnswerSchema, ModelRequest
from aish.core.tools import Tool
from aish.wire.json_text import dump
from aish.wire.strict_schema import fits_strict
from aish.wire.transcript import Transcript

# Decided here alone: a parameter of the same name would break the contract with the decoder, or
# offer tools that no rule knows.
_RESERVED: Final = frozenset({"messages", "stream", "tools"})
# Endpoints refuse these where there are no tools.
_NEEDS_TOOLS: Final = frozenset({"tool_choice", "parallel_tool_calls"})
_MOST_TOOL_LISTS: Final = 32
_MOST_TOKENS: Final = ("max_tokens", "max_completion_tokens")


@frozen
class Dialect:
    """How one model entry wants to be spoken to.

    `params` are merged into the body as they are. `usage` asks for token counts, `json_schema`
    sends answer schemas, `tool_role` and `vision` are the entry's own. `origin` is what
    `AssistantTurn.origin` says of turns whose extras may go to this endpoint. `short_ids` is for
    endpoints that take tool-call ids of nine letters and digits only (quirk 42).
    """

    model: str
    params: Mapping[str, JsonValue]
    usage: bool
    json_schema: bool
    tool_role: bool
    vision: bool
    origin: str
    short_ids: bool = False


class Encoder:
    """Encodes the requests of one model entry; what was encoded of a history is kept weakly."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self._transcripts: WeakKeyDictionary[History, Transcript] = WeakKeyDictionary()
        self._tools: dict[int, tuple[tuple[Tool, ...], bytes]] = {}

    def body(self, request: ModelRequest) -> bytes:
        """The request's body, UTF-8 JSON."""
        head = dump(self._head(request)).encode("utf-8", "replace")[:-1]
        tools = self._tools_text(request.tools) if request.tools else b""
        messages = self._transcript(request.history).messages(request.history.turns)
        return b"".join([head, tools, b',"messages":[', *messages, b"]}"])

    def max_tokens(self, request: ModelRequest) -> int | None:
        """The most tokens that the endpoint is asked to answer; `None` if nothing is said."""
        return answer_limit({**self._dialect.params, **request.params})

    def _head(self, request: ModelRequest) -> dict[str, Any]:
        """Everything but tools and messages."""
        dialect = self._dialect
        left_out = _RESERVED if request.tools else _RESERVED | _NEEDS_TOOLS
        head: dict[str, Any] = {"model": dialect.model, "stream": True}
        if dialect.usage:
            head["stream_options"] = {"include_usage": True}
        params = {**dialect.params, **request.params}
        head |= {name: value for name, value in params.items() if name not in left_out}
        if request.tools and request.tool_choice != "auto":
            head["tool_choice"] = _tool_choice(request.tool_choice)
        if request.schema and dialect.json_schema:
            head["response_format"] = _response_format(request.schema)
        return head

    def _tools_text(self, tools: tuple[Tool, ...]) -> bytes:
        """The `tools` field, encoded once for each tuple."""
        kept = self._tools.get(id(tools))
        if kept is None:
            if len(self._tools) >= _MOST_TOOL_LISTS:
                self._tools.clear()
            text = b',"tools":' + dump([_tool(tool) for tool in tools]).encode("utf-8", "replace")
            kept = self._tools[id(tools)] = (tools, text)  # holding it keeps its identity
        return kept[1]

    def _transcript(self, history: History) -> Transcript:
        transcript = self._transcripts.get(history)
        if transcript is None or not transcript.fits(history.turns):
            dialect = self._dialect
            transcript = self._transcripts[history] = Transcript(
                origin=dialect.origin,
                tool_role=dialect.tool_role,
                vision=dialect.vision,
                short_ids=dialect.short_ids,
            )
        return transcript


def answer_limit(params: Mapping[str, JsonValue]) -> int | None:
    """The most tokens of an answer that these parameters of a request allow."""
    # Where both are there, which of them an endpoint goes by is its own affair.
    said = [value for name in _MOST_TOKENS if type(value := params.get(name)) is int and value > 0]
    return max(said, default=None)


def _tool(tool: Tool) -> dict[str, Any]:
    return {
        "type": "function",
        "function": {
            "name": tool.wire,
            "description": tool.description,
            "parameters": tool.input_schema,
        },
    }


def _tool_choice(choice: str) -> JsonValue:
    if choice in {"required", "none"}:
        return choice
    return {"type": "function", "function": {"name": choice}}


def _response_format(schema: AnswerSchema) -> JsonValue:
    described: dict[str, JsonValue] = {
        "name": schema.name,
        "strict": fits_strict(schema.schema),
        "schema": schema.schema,
    }
    return {"type": "json_schema", "json_schema": described}
