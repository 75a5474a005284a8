"""Decodes a recorded model answer with the decoder of live answers."""

from collections.abc import Iterable, Mapping

from aish.cassettes.format.edits import text_of
from aish.cassettes.format.interaction import Interaction, Response
from aish.cassettes.inspect.conversation import AskedCall, JoinedAnswer, break_text, tool_names
from aish.cassettes.record.recorder import LEFT
from aish.core.events import NOWHERE
from aish.core.json import JsonObject
from aish.core.messages import Delta, Finish, ReasoningPiece, TextPiece, Usage
from aish.core.tools import ToolCall
from aish.core.wires import CHAT, WIRES, wire_at
from aish.wire.dialect import load_decoder
from aish.wire.errors import StreamError

_OK = 200
_SHOWN = 400


def read_answer(body: JsonObject, interaction: Interaction) -> JoinedAnswer:
    """The answer to a request, as far as received; `body` is the request's in chat's form."""
    response = interaction.response
    if response.status != _OK:
        return JoinedAnswer(trouble=_refusal(response))
    wire = wire_at(interaction.request.uri.partition("?")[0]) or WIRES[CHAT]
    decoder = load_decoder(wire)(place=NOWHERE, known_tools=frozenset(tool_names(body)))
    deltas: list[Delta] = []
    trouble = None
    try:
        for piece, _ in response.pieces():
            deltas += decoder.feed(piece)
        # The client also leaves after the complete answer.
        if response.broken is None or (response.broken == LEFT and decoder.complete):
            deltas += decoder.close()
        else:
            trouble = break_text(response.broken)
    except StreamError as error:
        trouble = error.message
    return _answer(deltas, trouble)


def _answer(deltas: Iterable[Delta], trouble: str | None) -> JoinedAnswer:
    said = list(deltas)
    finish = next((delta for delta in said if isinstance(delta, Finish)), None)
    text = "".join(delta.text for delta in said if isinstance(delta, TextPiece))
    return JoinedAnswer(
        text=text or (finish.refusal if finish and finish.refusal else ""),
        thoughts="".join(delta.text for delta in said if isinstance(delta, ReasoningPiece)),
        calls=tuple(
            AskedCall(one.id, one.name, one.arguments) for one in said if isinstance(one, ToolCall)
        ),
        finish=finish.reason if finish else "",
        usage=finish.usage if finish else Usage(),
        trouble=trouble,
        cost_usd=finish.cost_usd if finish else None,
        served=finish.served if finish else None,
    )


def _refusal(response: Response) -> str:
    from aish.cassettes.format.json_body import at, json_object, word

    body = text_of(response.body[: 64 * 1024])
    data = json_object(body)
    error = data.get("error", data) if isinstance(data, Mapping) else None
    message = word(at(error, "message")) if isinstance(error, Mapping) else word(error)
    text = (message or body.strip())[:_SHOWN]
    broken = break_text(response.broken) if response.broken is not None else ""
    status = f"HTTP {response.status} {response.reason}".rstrip() if response.status != _OK else ""
    return ": ".join(part for part in (status, text, broken) if part)
