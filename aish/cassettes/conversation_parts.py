"""What a cassette tells, part by part, as `conversation` reads it (C10). Texts are a stranger's."""

from aish.core.deltas import Usage
from aish.core.frozen import frozen
from aish.core.json import JsonValue


@frozen
class AskedCall:
    """A tool call that a model asked for; `arguments` is the JSON text as it was sent."""

    id: str
    name: str
    arguments: str


@frozen
class Message:
    """A message in a request to a model; `call` is the id of the call that it replies to."""

    role: str
    text: str
    calls: tuple[AskedCall, ...] = ()
    call: str | None = None


@frozen
class Answer:
    """What a model answered, put together; `trouble` says why it is no whole answer.

    `cost_usd` is what the endpoint says of it.
    """

    text: str = ""
    thoughts: str = ""
    calls: tuple[AskedCall, ...] = ()
    finish: str = ""
    usage: Usage = Usage()
    trouble: str | None = None
    cost_usd: float | None = None


@frozen
class ModelTurn:
    """A request to a model and its answer.

    `news` are the messages that the conversation did not have before; `follows` is the number of
    the exchange that it goes on from, `again` that of the same request, sent before. `sampled` says
    that a tool server asked for it.
    """

    number: int
    endpoint: str
    model: str
    news: tuple[Message, ...]
    tools: tuple[str, ...]
    answer: Answer
    follows: int | None = None
    again: int | None = None
    sampled: bool = False
    seconds: float | None = None


@frozen
class ServerExchange:
    """A message to a tool server and what came back; `name` is a tool's, for `tools/call`.

    `beside` are the other things that the server said meanwhile.
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
    """What opened or closed a session with a tool server, in a few words each."""

    number: int
    server: str
    events: tuple[str, ...]


@frozen
class LocalCommand:
    """A command of a `run` step; `exit_code` is `None` where it is not known."""

    number: int
    step: str
    command: tuple[str, ...] | str
    exit_code: int | None
    stdout: str
    stderr: str
    trouble: str | None = None


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


Part = ModelTurn | ServerExchange | Handshake | LocalCommand | OtherExchange
