"""A cassette as a conversation: all messages, in the order of the run.

Requests to models as messages and what is new in each, and messages to and from tool servers as
text. The wire joins a model's stream: `read_answer` is given. Texts are untrusted.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import starmap
from urllib.parse import unquote, urlsplit

from aish.cassettes.format.edits import text_of
from aish.cassettes.format.interaction import Interaction, Request, Response
from aish.cassettes.format.json_body import (
    at,
    items,
    json_messages,
    json_object,
    json_or_text,
    word,
)
from aish.cassettes.inspect.other_wires import messages_as_chat, responses_as_chat
from aish.core.frozen import frozen
from aish.core.json import JsonObject, JsonValue
from aish.core.messages import Served, Usage
from aish.core.phrases import counted
from aish.core.wires import wire_at


@frozen
class AskedCall:
    """A tool call that a model requested; `arguments` is the JSON text as it was sent."""

    id: str
    name: str
    arguments: str


@frozen
class RequestMessage:
    """A message in a request to a model; `call` is the id of the call that it replies to."""

    role: str
    text: str
    calls: tuple[AskedCall, ...] = ()
    call: str | None = None


@frozen
class JoinedAnswer:
    """The joined answer of a model; `trouble` says why it is incomplete.

    `cost_usd` is the value reported by the endpoint.
    """

    text: str = ""
    thoughts: str = ""
    calls: tuple[AskedCall, ...] = ()
    finish: str = ""
    usage: Usage = Usage()
    trouble: str | None = None
    cost_usd: float | None = None
    served: Served | None = None


@frozen
class ModelTurn:
    """A request to a model and its answer.

    `news` are the messages that the conversation did not have before; `follows` is the number of
    the exchange that it continues, `again` that of the same request, sent before. `sampled`: a tool
    server requested it.
    """

    number: int
    endpoint: str
    model: str
    news: tuple[RequestMessage, ...]
    tools: tuple[str, ...]
    answer: JoinedAnswer
    follows: int | None = None
    again: int | None = None
    sampled: bool = False
    seconds: float | None = None


@frozen
class ServerExchange:
    """A message to a tool server and its reply; `name` is a tool's, for `tools/call`.

    `beside` are the other messages of the server during the exchange.
    """

    number: int
    server: str
    method: str
    name: str
    arguments: JsonValue
    text: str
    failed: bool = False
    trouble: str | None = None
    beside: tuple[str, ...] = ()
    seconds: float | None = None


@frozen
class Handshake:
    """The start or end of a session with a tool server, summarized in a few words each."""

    number: int
    server: str
    events: tuple[str, ...]


@frozen
class LocalCommand:
    """A command of a `run` step; `exit_code` is `None` if unknown."""

    number: int
    step: str
    command: tuple[str, ...] | str
    exit_code: int | None
    stdout: str
    stderr: str
    trouble: str | None = None


@frozen
class ShownFiles:
    """The `context.files` shown to a model: names of files, each with what happened to it.

    `text` is what was sent, and is in the next request to the model too.
    """

    number: int
    step: str
    files: tuple[tuple[str, str], ...]
    text: str


@frozen
class AnsweredQuestion:
    """The answer to a question about a call; `digest` stands for the call, `count` for its turn.

    `answer` is empty if the call was cancelled before.
    """

    number: int
    step: str
    tool: str
    digest: str
    count: int
    answer: str
    by: str
    way: str
    note: str


@frozen
class OtherExchange:
    """Anything else, as plain vcrpy records it."""

    number: int
    method: str
    uri: str
    status: int
    reason: str
    body: str
    trouble: str | None = None


Part = (
    ModelTurn
    | ServerExchange
    | Handshake
    | LocalCommand
    | ShownFiles
    | AnsweredQuestion
    | OtherExchange
)


_IN_CHAT_FORM: Mapping[str, Callable[[JsonObject], JsonObject]] = {
    "messages": messages_as_chat,
    "responses": responses_as_chat,
}


def chat_request(request: Request) -> JsonObject | None:
    """The body of a request to a model, in chat's form; nothing if it is not one."""
    wire = wire_at(_place(request))
    if request.method.upper() != "POST" or wire is None:
        return None
    body = json_object(request.body.decode("utf-8", "replace"))
    if body is not None and wire.api in _IN_CHAT_FORM:
        body = _IN_CHAT_FORM[wire.api](body)
    return body if body is not None and isinstance(body.get("messages"), list) else None


def _place(request: Request) -> str:
    return request.uri.partition("?")[0]


def endpoint_of(request: Request) -> str:
    """The address of a model, as written in a file: without a user and a query."""
    place = _place(request)
    wire = wire_at(place)
    scheme, _, rest = place.removesuffix(wire.leaf if wire else "").partition("://")
    return f"{scheme}://{rest.rpartition('@')[2]}"


def tool_names(body: JsonObject) -> tuple[str, ...]:
    """The tools that are offered to the model."""
    names = (at(tool, "function", "name") for tool in items(body.get("tools")))
    return tuple(name for name in names if isinstance(name, str))


def messages_of(body: JsonObject) -> tuple[RequestMessage, ...]:
    """The messages of a request."""
    return tuple(_message(one) for one in items(body["messages"]) if isinstance(one, Mapping))


@frozen
class Heard:
    """The news of a request; `follows` is the exchange before it in the same conversation."""

    news: tuple[RequestMessage, ...]
    follows: int | None = None
    again: int | None = None


class Conversations:
    """Remembers every conversation so far, to tell what a request adds to one."""

    def __init__(self) -> None:
        self._known: dict[int, int] = {}

    def hear(self, number: int, model: str, messages: Sequence[RequestMessage]) -> Heard:
        """The messages of request `number` that no earlier request contained."""
        # Each message is hashed once, with all those before it.
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
        # The answer to the previous request is shown there.
        if before is not None and news[0].role == "assistant":
            news = news[1:]
        return Heard(news, follows=before)


def _message(value: JsonObject) -> RequestMessage:
    role = value.get("role")
    call = value.get("tool_call_id")
    return RequestMessage(
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
    """The text of a content part; of a part without text, its type."""
    if not isinstance(content, list):
        return word(at(content, "text")) if isinstance(content, Mapping) else word(content)
    return "\n".join(_part(part) for part in content)


# Where the parts of each wire, and of servers, have media.
_MEDIA = (
    ("data",), ("image_url", "url"), ("image_url",), ("source", "data"), ("file", "file_data"),
    ("file_data",),
)  # fmt: skip


def _part(part: JsonValue) -> str:
    text = at(part, "text")
    if isinstance(text, str):
        return text
    if isinstance(part, str):
        return part
    kind = word(at(part, "type")) or "unknown"
    data = next(filter(None, (at(part, *path) for path in _MEDIA)), None)
    size = f", {len(data)} characters" if isinstance(data, str) else ""
    about = word(at(part, "mimeType")) or word(at(part, "uri"))
    return f"[{kind}{' ' if about else ''}{about}{size}]"


_OPENING = {
    "initialize", "server/discover", "notifications/initialized", "tools/list", "ping",
    "logging/setLevel", "subscriptions/listen",
}  # fmt: skip
_REFUSALS = range(400, 500)
_LEFT = "left"
_SAMPLING = "sampling/createMessage"
_MCP_HEADERS = {"mcp-session-id", "mcp-protocol-version"}


@frozen
class MessageReply:
    """The reply to a message, as text; `beside` are the other messages that came with it."""

    text: str
    failed: bool
    beside: tuple[str, ...]
    found: JsonObject | None


def is_to_server(request: Request) -> bool:
    """Return true for an MCP request."""
    if request.uri.startswith("mcp+"):
        return True
    if b'"jsonrpc"' in request.body:
        return message_of(request) is not None
    names = {name.lower() for name, _ in request.headers}
    return request.method.upper() in {"GET", "DELETE"} and bool(names & _MCP_HEADERS)


def message_of(request: Request) -> JsonObject | None:
    """The JSON-RPC message in a request."""
    message = json_object(text_of(request.body))
    return message if message is not None and "jsonrpc" in message else None


def server_of(uri: str) -> str:
    """The alias if the uri has one, else host and path; never a user or a query."""
    try:
        parts = urlsplit(uri)
    except ValueError:
        return uri.partition("?")[0]
    if parts.scheme == "mcp+serve":
        return f"client {parts.netloc}"
    if parts.scheme.startswith("mcp+"):
        return parts.netloc or parts.path
    return parts.netloc.rpartition("@")[2] + parts.path


def opens(request: Request) -> bool:
    """Return true if a request belongs to the start or the end of a session."""
    message = message_of(request)
    if message is None:
        return request.method.upper() in {"GET", "DELETE"}
    return message.get("method") in _OPENING


def describe_opening(interaction: Interaction) -> str | None:
    """The result of an exchange of the session start; nothing if there is nothing to report."""
    request, response = interaction.request, interaction.response
    message = message_of(request)
    if message is None:
        what = "session ended" if request.method.upper() == "DELETE" else "listened"
        return what if response.status < 400 else f"{what}: HTTP {response.status}"  # ruff: ignore[magic-value-comparison] - HTTP errors begin here
    method = word(message.get("method"))
    reply = reply_to(message, interaction)
    result = at(reply.found, "result")
    if method == "subscriptions/listen" and not reply.failed:
        # It ends when the run leaves, or when the server has finished.
        trouble = None if response.broken == _LEFT else trouble_of(interaction)
        return ": ".join(("listened", *filter(None, (trouble or ", ".join(reply.beside),))))
    if method == "server/discover" and (reply.failed or response.status in _REFUSALS):
        return "knows no server/discover"
    if reply.failed or (reply.found is None and method != "notifications/initialized"):
        return f"{method}: {trouble_of(interaction) or reply.text or 'no answer'}"
    return _describe_opening_result(method, result)


def _describe_opening_result(method: str, result: JsonValue) -> str | None:
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
    """Describe how an exchange failed below the message level."""
    response = interaction.response
    if response.broken is not None:
        return break_text(response.broken)
    if response.status >= 400:  # ruff: ignore[magic-value-comparison] - HTTP errors begin here
        return f"HTTP {response.status} {response.reason}".rstrip()
    return None


def break_text(broken: str) -> str:
    """`Response.broken`, as text."""
    return "left before the end" if broken == _LEFT else f"broken off: {broken}"


def reply_to(message: JsonObject, interaction: Interaction) -> MessageReply:
    """The reply to a message."""
    reply: JsonObject | None = None
    beside: list[JsonObject] = []
    for item in json_messages(text_of(interaction.response.body)):
        if "method" not in item and ("result" in item or "error" in item):
            is_reply = str(item.get("id")) == str(message.get("id"))
            reply = reply if reply is not None and not is_reply else item
        elif "method" in item:
            beside.append(item)
    events = tuple(_describe_others(beside))
    if reply is None:
        return MessageReply("", failed=False, beside=events, found=None)
    if "error" in reply:
        code, message_text = at(reply, "error", "code"), word(at(reply, "error", "message"))
        return MessageReply(
            f"error {word(code)}: {message_text}", failed=True, beside=events, found=reply
        )
    failed = at(reply, "result", "isError") is True
    return MessageReply(_result_text(reply), failed=failed, beside=events, found=reply)


def texts_of_sampling(response: Response) -> Iterator[str]:
    """The last texts of a sampling request of a server."""
    if _SAMPLING.encode() not in response.body:
        return
    for message in json_messages(text_of(response.body)):
        waiting: list[JsonValue] = [message]
        while waiting:
            value = waiting.pop()
            if isinstance(value, Mapping):
                if value.get("method") == _SAMPLING:
                    messages = items(at(value, "params", "messages"))
                    yield content_text(at(messages[-1], "content")) if messages else ""
                waiting.extend(value.values())
            elif isinstance(value, list):
                waiting.extend(value)


def _result_text(reply: JsonObject) -> str:
    result = reply.get("result")
    content = at(result, "content")
    if isinstance(content, list) and content:
        return content_text(content)
    structured = at(result, "structuredContent")
    return word(structured if structured is not None else result)


def _describe_others(beside: Sequence[JsonObject]) -> Iterator[str]:
    """Other messages of a server during the exchange; progress reports are only counted."""
    progress = 0
    for message in beside:
        method = word(message.get("method"))
        if method == "notifications/progress":
            progress += 1
        elif "id" in message:
            yield f"the server asks: {method}"
        elif method == "notifications/message":
            level, data = word(at(message, "params", "level")), word(at(message, "params", "data"))
            yield f"log {level}: {data}"
        else:
            yield method
    if progress:
        yield f"{progress} reports of progress"


def arguments_of(message: JsonObject) -> JsonObject:
    """The parameters of a message, without those that the protocol adds."""
    params = message.get("params")
    if not isinstance(params, Mapping):
        return {}
    return {name: value for name, value in params.items() if name != "_meta"}


ReadAnswer = Callable[[JsonObject, Interaction], JoinedAnswer]
"""What a model answered to the request whose body is given."""


def conversation(interactions: Iterable[Interaction], read_answer: ReadAnswer) -> tuple[Part, ...]:
    """The entries of the exchanges; numbers count from 1."""
    reader = _Reader(read_answer)
    parts = starmap(reader.read, enumerate(interactions, 1))
    return tuple(_join_handshakes(parts))


class _Reader:
    def __init__(self, read_answer: ReadAnswer) -> None:
        self._read_answer = read_answer
        self._conversations = Conversations()
        self._sampled: set[str] = set()

    def read(self, number: int, interaction: Interaction) -> Part:
        request = interaction.request
        if request.uri.startswith("exec:"):
            return _command(number, interaction)
        if request.uri.startswith("context:"):
            return _files(number, interaction)
        if request.uri.startswith("approval:"):
            return _read_question(number, interaction)
        if is_to_server(request):
            self._sampled.update(texts_of_sampling(interaction.response))
            return _exchange(number, interaction)
        if (body := chat_request(request)) is not None:
            return self._turn(number, interaction, body)
        return _other(number, interaction)

    def _turn(self, number: int, interaction: Interaction, body: JsonObject) -> ModelTurn:
        model = word(body.get("model"))
        messages = messages_of(body)
        heard = self._conversations.hear(number, model, messages)
        return ModelTurn(
            number=number,
            endpoint=endpoint_of(interaction.request),
            model=model,
            news=heard.news,
            tools=tool_names(body),
            answer=self._read_answer(body, interaction),
            follows=heard.follows,
            again=heard.again,
            sampled=bool(messages) and messages[-1].text in self._sampled,
            seconds=_seconds(interaction.response),
        )


def _exchange(number: int, interaction: Interaction) -> Part:
    request = interaction.request
    server = server_of(request.uri)
    if opens(request):
        event = describe_opening(interaction)
        return Handshake(number, server, () if event is None else (event,))
    message = message_of(request) or {}
    method = word(message.get("method"))
    reply = reply_to(message, interaction)
    name, arguments = "", json_or_text(text_of(request.body))
    if method == "tools/call":
        name = word(at(message, "params", "name"))
        arguments = at(message, "params", "arguments")
    elif method:
        arguments = arguments_of(message)
    elif "result" in message or "error" in message:
        method, arguments = "answer", message.get("result", message.get("error"))
    return ServerExchange(
        number=number,
        server=server,
        method=method or request.method,
        name=name,
        arguments={} if arguments is None else arguments,
        text=reply.text if message else text_of(interaction.response.body),
        failed=reply.failed,
        trouble=trouble_of(interaction),
        beside=reply.beside,
        seconds=_seconds(interaction.response),
    )


def _command(number: int, interaction: Interaction) -> LocalCommand:
    request, response = interaction.request, interaction.response
    asked = json_or_text(text_of(request.body))
    result = json_object(text_of(response.body))
    code = at(result, "exit_code")
    return LocalCommand(
        number=number,
        step=request.uri.partition("://")[2],
        command=_argv(asked),
        exit_code=code if isinstance(code, int) else None,
        stdout=word(at(result, "stdout")) if result else text_of(response.body),
        stderr=word(at(result, "stderr")),
        trouble=word(at(result, "error")) or trouble_of(interaction),
    )


def _files(number: int, interaction: Interaction) -> ShownFiles:
    body = json_object(text_of(interaction.response.body))
    return ShownFiles(
        number=number,
        step=interaction.request.uri.partition("://")[2],
        files=tuple(
            (word(at(file, "path")), word(at(file, "change"))) for file in items(at(body, "files"))
        ),
        text=word(at(body, "text")),
    )


def _read_question(number: int, interaction: Interaction) -> AnsweredQuestion:
    request = interaction.request
    asked = json_object(text_of(request.body))
    body = json_object(text_of(interaction.response.body))
    count = at(asked, "number")
    return AnsweredQuestion(
        number=number,
        step=unquote(request.uri.partition("://")[2]),
        tool=word(at(asked, "tool")),
        digest=word(at(asked, "digest")),
        count=count if isinstance(count, int) else 1,
        answer=word(at(body, "answer")),
        by=word(at(body, "by")),
        way=word(at(body, "way")),
        note=word(at(body, "note")),
    )


def _argv(asked: JsonValue) -> tuple[str, ...] | str:
    words = asked if isinstance(asked, list) else at(asked, "argv")
    if isinstance(words, list):
        return tuple(word(part) for part in words)
    return word(at(asked, "command")) or word(asked)


def _other(number: int, interaction: Interaction) -> OtherExchange:
    request, response = interaction.request, interaction.response
    return OtherExchange(
        number=number,
        method=request.method,
        uri=request.uri,
        status=response.status,
        reason=response.reason,
        body=_readable(response.body),
        trouble=None if response.broken is None else break_text(response.broken),
    )


def _readable(body: bytes) -> str:
    try:
        return body.decode()
    except UnicodeDecodeError:
        return f"[{len(body)} bytes that are no text]"


def _seconds(response: Response) -> float | None:
    return response.chunks[-1].seconds if response.chunks else None


def _join_handshakes(parts: Iterable[Part]) -> Iterator[Part]:
    """Merges the handshake entries of a server, up to the next other message to it."""
    result: list[Part] = []
    opening: dict[str, int] = {}
    for part in parts:
        if not isinstance(part, Handshake):
            if isinstance(part, ServerExchange):
                opening.pop(part.server, None)
            result.append(part)
        elif (place := opening.get(part.server)) is not None:
            first = result[place]
            assert isinstance(first, Handshake)
            result[place] = replace(first, events=first.events + part.events)
        else:
            opening[part.server] = len(result)
            result.append(part)
    return (one for one in result if not isinstance(one, Handshake) or one.events)
