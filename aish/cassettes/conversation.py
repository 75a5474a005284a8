"""A cassette as the conversation that it is: who said what, in the order of the run (C10).

How a model's stream is put together is the wire's business: `read_answer` is given.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import starmap

from aish.cassettes.conversation_parts import (
    Answer,
    Handshake,
    LocalCommand,
    ModelTurn,
    OtherExchange,
    Part,
    ServerExchange,
)
from aish.cassettes.edits import text_of
from aish.cassettes.interaction import Interaction, Response
from aish.cassettes.json_body import at, json_object, json_or_text, word
from aish.cassettes.model_requests import (
    Conversations,
    chat_request,
    endpoint_of,
    messages_of,
    tool_names,
)
from aish.cassettes.server_messages import (
    arguments_of,
    is_to_server,
    left_or_broken,
    message_of,
    opening_event,
    opens,
    reply_to,
    sampled_texts,
    server_of,
    trouble_of,
)
from aish.core.json import JsonObject, JsonValue

ReadAnswer = Callable[[JsonObject, Response], Answer]
"""What a model answered to the request whose body is given."""


def conversation(interactions: Iterable[Interaction], read_answer: ReadAnswer) -> tuple[Part, ...]:
    """What the exchanges tell; numbers count from 1."""
    reader = _Reader(read_answer)
    found = starmap(reader.read, enumerate(interactions, 1))
    return tuple(_joined(found))


class _Reader:
    def __init__(self, read_answer: ReadAnswer) -> None:
        self._read_answer = read_answer
        self._conversations = Conversations()
        self._sampled: set[str] = set()

    def read(self, number: int, interaction: Interaction) -> Part:
        request = interaction.request
        if request.uri.startswith("exec:"):
            return _command(number, interaction)
        if is_to_server(request):
            self._sampled.update(sampled_texts(interaction.response))
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
            answer=self._read_answer(body, interaction.response),
            follows=heard.follows,
            again=heard.again,
            sampled=bool(messages) and messages[-1].text in self._sampled,
            seconds=_seconds(interaction.response),
        )


def _exchange(number: int, interaction: Interaction) -> Part:
    request = interaction.request
    server = server_of(request.uri)
    if opens(request):
        event = opening_event(interaction)
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


def _argv(asked: JsonValue) -> tuple[str, ...] | str:
    found = asked if isinstance(asked, list) else at(asked, "argv")
    if isinstance(found, list):
        return tuple(word(one) for one in found)
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
        trouble=None if response.broken is None else left_or_broken(response.broken),
    )


def _readable(body: bytes) -> str:
    try:
        return body.decode()
    except UnicodeDecodeError:
        return f"[{len(body)} bytes that are no text]"


def _seconds(response: Response) -> float | None:
    return response.chunks[-1].seconds if response.chunks else None


def _joined(parts: Iterable[Part]) -> Iterator[Part]:
    """With the handshakes of one server in one, until something else is said to it."""
    made: list[Part] = []
    opening: dict[str, int] = {}
    for part in parts:
        if not isinstance(part, Handshake):
            if isinstance(part, ServerExchange):
                opening.pop(part.server, None)
            made.append(part)
        elif (place := opening.get(part.server)) is not None:
            first = made[place]
            assert isinstance(first, Handshake)
            made[place] = replace(first, events=first.events + part.events)
        else:
            opening[part.server] = len(made)
            made.append(part)
    return (one for one in made if not isinstance(one, Handshake) or one.events)
