"""Requests to models, as messages, and what is new in each (C10)."""

from collections.abc import Mapping, Sequence

from aish.cassettes.conversation_parts import AskedCall, Message
from aish.cassettes.interaction import Request
from aish.cassettes.json_body import at, items, json_object, word
from aish.core.frozen import frozen
from aish.core.json import JsonObject, JsonValue

_PLACE = "/chat/completions"


def chat_request(request: Request) -> JsonObject | None:
    """The body of a request to a model; nothing if it is no such request."""
    path = request.uri.partition("?")[0]
    if request.method.upper() != "POST" or not path.endswith(_PLACE):
        return None
    body = json_object(request.body.decode("utf-8", "replace"))
    return body if body is not None and isinstance(body.get("messages"), list) else None


def endpoint_of(request: Request) -> str:
    """Where a model is, as a file names it: without a user and a query."""
    scheme, _, rest = request.uri.partition("?")[0].removesuffix(_PLACE).partition("://")
    return f"{scheme}://{rest.rpartition('@')[2]}"


def tool_names(body: JsonObject) -> tuple[str, ...]:
    """The tools that a model is shown."""
    names = (at(tool, "function", "name") for tool in items(body.get("tools")))
    return tuple(name for name in names if isinstance(name, str))


def messages_of(body: JsonObject) -> tuple[Message, ...]:
    """The messages of a request."""
    return tuple(_message(one) for one in items(body["messages"]) if isinstance(one, Mapping))


@frozen
class Heard:
    """What is new in a request; `follows` is the exchange before it in the same conversation."""

    news: tuple[Message, ...]
    follows: int | None = None
    again: int | None = None


class Conversations:
    """Remembers every conversation so far, to tell what a request adds to one."""

    def __init__(self) -> None:
        self._known: dict[int, int] = {}

    def hear(self, number: int, model: str, messages: Sequence[Message]) -> Heard:
        """What request `number` says that no request before it did."""
        # Each message is hashed once, with all that stands before it.
        chain = hash(model)
        shared, before = 0, None
        for length, message in enumerate(messages, 1):
            chain = hash((chain, message))
            if chain in self._known:
                shared, before = length, self._known[chain]
        self._known[chain] = number
        if before is not None and shared == len(messages):
            return Heard((), again=before)
        news = tuple(messages[shared:])
        # The answer to the request before is shown there.
        if before is not None and news[0].role == "assistant":
            news = news[1:]
        return Heard(news, follows=before)


def _message(value: JsonObject) -> Message:
    role = value.get("role")
    call = value.get("tool_call_id")
    return Message(
        role if isinstance(role, str) else "?",
        content_text(value.get("content")),
        tuple(_call(one) for one in items(value.get("tool_calls"))),
        call if isinstance(call, str) else None,
    )


def _call(value: JsonValue) -> AskedCall:
    return AskedCall(
        word(at(value, "id")),
        word(at(value, "function", "name")),
        word(at(value, "function", "arguments")),
    )


def content_text(content: JsonValue) -> str:
    """The text of a content; of a part that is none, its type."""
    if not isinstance(content, list):
        return word(at(content, "text")) if isinstance(content, Mapping) else word(content)
    return "\n".join(_part(part) for part in content)


def _part(part: JsonValue) -> str:
    text = at(part, "text")
    if isinstance(text, str):
        return text
    if isinstance(part, str):
        return part
    kind = word(at(part, "type")) or "unknown"
    data = at(part, "data") or at(part, "image_url", "url")
    size = f", {len(data)} characters" if isinstance(data, str) else ""
    about = word(at(part, "mimeType")) or word(at(part, "uri"))
    return f"[{kind}{' ' if about else ''}{about}{size}]"
