"""Messages to and from tool servers, in words (C10)."""

from collections.abc import Iterator, Mapping, Sequence
from urllib.parse import urlsplit

from aish.cassettes.edits import text_of
from aish.cassettes.interaction import Interaction, Request, Response
from aish.cassettes.json_body import at, items, json_messages, json_object, word
from aish.cassettes.model_requests import content_text
from aish.core.frozen import frozen
from aish.core.json import JsonObject, JsonValue
from aish.core.text import counted

_OPENING = {
    "initialize", "server/discover", "notifications/initialized", "tools/list", "ping",
    "logging/setLevel", "subscriptions/listen",
}  # fmt: skip
_REFUSALS = range(400, 500)
_LEFT = "left"
_SAMPLING = "sampling/createMessage"
_MCP_HEADERS = {"mcp-session-id", "mcp-protocol-version"}


@frozen
class Reply:
    """The answer to a message, in words; `beside` are the other things that came with it."""

    text: str
    failed: bool
    beside: tuple[str, ...]
    found: JsonObject | None


def is_to_server(request: Request) -> bool:
    """Whether a request is one of MCP."""
    if request.uri.startswith("mcp+"):
        return True
    if b'"jsonrpc"' in request.body:
        return message_of(request) is not None
    names = {name.lower() for name, _ in request.headers}
    return request.method.upper() in {"GET", "DELETE"} and bool(names & _MCP_HEADERS)


def message_of(request: Request) -> JsonObject | None:
    """The JSON-RPC message that a request is."""
    found = json_object(text_of(request.body))
    return found if found is not None and "jsonrpc" in found else None


def server_of(uri: str) -> str:
    """An alias where the uri has one, else host and path; never a user or a query."""
    try:
        parts = urlsplit(uri)
    except ValueError:
        return uri.partition("?")[0]
    if parts.scheme.startswith("mcp+"):
        return parts.netloc or parts.path
    return parts.netloc.rpartition("@")[2] + parts.path


def opens(request: Request) -> bool:
    """Whether a request belongs to the opening or the end of a session."""
    message = message_of(request)
    if message is None:
        return request.method.upper() in {"GET", "DELETE"}
    return message.get("method") in _OPENING


def opening_event(interaction: Interaction) -> str | None:
    """What an exchange of the opening came to; nothing where there is nothing to say."""
    request, response = interaction.request, interaction.response
    message = message_of(request)
    if message is None:
        what = "session ended" if request.method.upper() == "DELETE" else "listened"
        return what if response.status < 400 else f"{what}: HTTP {response.status}"  # ruff: ignore[magic-value-comparison] - HTTP errors begin here
    method = word(message.get("method"))
    reply = reply_to(message, interaction)
    result = at(reply.found, "result")
    if method == "subscriptions/listen" and not reply.failed:
        # It ends with the run, which leaves, or where the server has no more to say.
        trouble = None if response.broken == _LEFT else trouble_of(interaction)
        return ": ".join(("listened", *filter(None, (trouble or ", ".join(reply.beside),))))
    if method == "server/discover" and (reply.failed or response.status in _REFUSALS):
        return "knows no server/discover"
    if reply.failed or (reply.found is None and method != "notifications/initialized"):
        return f"{method}: {trouble_of(interaction) or reply.text or 'no answer'}"
    return _opened(method, result)


def _opened(method: str, result: JsonValue) -> str | None:
    match method:
        case "initialize" | "server/discover":
            name = word(at(result, "serverInfo", "name"))
            version = word(at(result, "serverInfo", "version"))
            protocol = word(at(result, "protocolVersion"))
            return " ".join(part for part in (method, name, version, protocol) if part)
        case "tools/list":
            return counted(len(items(at(result, "tools"))), "tool")
        case _:
            return None


def trouble_of(interaction: Interaction) -> str | None:
    """How an exchange went wrong below the messages, in words."""
    response = interaction.response
    if response.broken is not None:
        return left_or_broken(response.broken)
    if response.status >= 400:  # ruff: ignore[magic-value-comparison] - HTTP errors begin here
        return f"HTTP {response.status} {response.reason}".rstrip()
    return None


def left_or_broken(broken: str) -> str:
    """`Response.broken`, in words."""
    return "left before the end" if broken == _LEFT else f"broken off: {broken}"


def reply_to(message: JsonObject, interaction: Interaction) -> Reply:
    """What came back for a message."""
    found: JsonObject | None = None
    beside: list[JsonObject] = []
    for one in json_messages(text_of(interaction.response.body)):
        if "method" not in one and ("result" in one or "error" in one):
            found = found if found is not None and not _answers(one, message) else one
        elif "method" in one:
            beside.append(one)
    told = tuple(_told(beside))
    if found is None:
        return Reply("", failed=False, beside=told, found=None)
    if "error" in found:
        code, said = at(found, "error", "code"), word(at(found, "error", "message"))
        return Reply(f"error {word(code)}: {said}", failed=True, beside=told, found=found)
    failed = at(found, "result", "isError") is True
    return Reply(_result_text(found), failed=failed, beside=told, found=found)


def sampled_texts(response: Response) -> Iterator[str]:
    """The last texts of what a server asks the model to answer."""
    if _SAMPLING.encode() not in response.body:
        return
    for message in json_messages(text_of(response.body)):
        waiting: list[JsonValue] = [message]
        while waiting:
            value = waiting.pop()
            if isinstance(value, Mapping):
                if value.get("method") == _SAMPLING:
                    said = items(at(value, "params", "messages"))
                    yield content_text(at(said[-1], "content")) if said else ""
                waiting.extend(value.values())
            elif isinstance(value, list):
                waiting.extend(value)


def _answers(one: JsonObject, message: JsonObject) -> bool:
    return str(one.get("id")) == str(message.get("id"))


def _result_text(found: JsonObject) -> str:
    result = found.get("result")
    content = at(result, "content")
    if isinstance(content, list) and content:
        return content_text(content)
    structured = at(result, "structuredContent")
    return word(structured if structured is not None else result)


def _told(beside: Sequence[JsonObject]) -> Iterator[str]:
    """What a server said meanwhile; reports of progress are counted only."""
    progress = 0
    for one in beside:
        method = word(one.get("method"))
        if method == "notifications/progress":
            progress += 1
        elif "id" in one:
            yield f"the server asks: {method}"
        elif method == "notifications/message":
            level, data = word(at(one, "params", "level")), word(at(one, "params", "data"))
            yield f"log {level}: {data}"
        else:
            yield method
    if progress:
        yield f"{progress} reports of progress"


def arguments_of(message: JsonObject) -> JsonObject:
    """The parameters of a message, without what a protocol adds of its own."""
    params = message.get("params")
    if not isinstance(params, Mapping):
        return {}
    return {name: value for name, value in params.items() if name != "_meta"}
