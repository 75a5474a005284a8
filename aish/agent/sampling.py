"""Answers a server's `sampling/createMessage` with the step's model.

Whether a server may ask at all (`sampling: allow`) is decided by the caller.
"""

import base64
import binascii
from collections.abc import Mapping, Sequence

from aish.agent.assemble import Assembled, assemble, without_text
from aish.agent.conversation import Conversation, IllegalTurnError, TurnObserver
from aish.agent.result_limit import describe
from aish.core.errors import BudgetError, StepFailedError, UnavailableError
from aish.core.events import Notice, Place, TurnStarted
from aish.core.frozen import frozen
from aish.core.json import JsonObject, JsonValue
from aish.core.messages import (
    AssistantTurn,
    FinishReason,
    History,
    SystemTurn,
    Usage,
    UserTurn,
    add_usage,
)
from aish.core.phrases import backticked
from aish.core.protocols import AnswerSchema, Clock, Emit, Model, ModelRequest
from aish.core.text import safe_utf8
from aish.core.tools import (
    SAMPLING_SCHEMA,
    SAMPLING_USAGE,
    Media,
    MediaKinds,
    media_kind,
    model_hint,
)

# Limits the cost that a server can cause.
MAX_REQUESTS = 32

_STOP_REASONS: Mapping[FinishReason, str] = {"stop": "endTurn", "length": "maxTokens"}
_MOST_STOPS = 16
_ENDLESS = 2**31


class Sampling:
    """`core.protocols.Sampler` over one model, if the step has one; counts its usage.

    `place` is that of the turn whose calls are in progress. `heard` observes the messages sent to
    the model. `models` are those that a request may name by their alias instead.
    """

    def __init__(
        self,
        model: Model | None,
        emit: Emit,
        clock: Clock,
        place: Place,
        heard: TurnObserver | None = None,
        models: Mapping[str, Model] | None = None,
    ) -> None:
        self._model = model
        self._models = models or {}
        self._emit = emit
        self._clock = clock
        self._heard = heard
        self.place = place
        self._requests = 0
        self.usage: Usage | None = None

    async def sample(self, params: JsonObject) -> JsonObject:
        """A `CreateMessageResult` for `CreateMessageRequest` params.

        Raises:
            StepFailedError: the request cannot be answered.
            BudgetError: no more may be asked.
            UnavailableError: there is no such model, or its endpoint is unreachable.
        """
        alias = model_hint(params)
        model = self._models.get(alias) if alias else self._model
        if model is None:
            raise UnavailableError(self._why_not(alias))
        conversation = _read_params(params, media_kinds=model.media_kinds)
        self._requests += 1
        if self._requests > MAX_REQUESTS:
            raise BudgetError(f"a step may ask a model {MAX_REQUESTS} times on behalf of servers")
        count = len(conversation.history.turns)
        messages = "a message" if count == 1 else f"{count} messages"
        text = f"a server asks model `{model.alias}` to answer {messages}"
        self._emit(Notice(self.place, "info", "sampling", text))
        if self._heard is not None:
            for turn in conversation.history.turns:
                self._heard.add_turn(turn, told=False)
        request = ModelRequest(
            conversation.history, params=_options(params), schema=_schema(params), place=self.place
        )
        self._emit(TurnStarted(self.place, model.alias, count, "sampling", request.params))
        quiet = without_text(self._emit)
        answer = await assemble(model, request, self.place, quiet, self._clock)
        self.usage = add_usage(self.usage, answer.usage)
        # So that its usage is counted.
        answer.tell(self._emit, self.place, model.alias, "sampling")
        return _result(answer, model.alias)

    def _why_not(self, alias: str) -> str:
        if alias:
            return f"model `{alias}` is not open"
        known = f"one of {backticked(self._models)}" if self._models else "one"
        return f"no model is named, and there is no default one: name {known}"


def _options(params: JsonObject) -> dict[str, JsonValue]:
    """The options requested by a server; invalid ones are ignored."""
    options: dict[str, JsonValue] = {}
    most, warmth, stops = (params.get(k) for k in ("maxTokens", "temperature", "stopSequences"))
    if isinstance(most, int) and 0 < most < _ENDLESS:
        options["max_tokens"] = int(most)
    if isinstance(warmth, int | float) and 0 <= warmth < _ENDLESS:
        options["temperature"] = float(warmth)
    if isinstance(stops, Sequence) and not isinstance(stops, str):
        texts = [safe_utf8(stop) for stop in stops if isinstance(stop, str) and stop]
        if texts:
            options["stop"] = texts[:_MOST_STOPS]
    return options


def _schema(params: JsonObject) -> AnswerSchema | None:
    """The schema of the answer, which only requests of packs have here."""
    meta = params.get("_meta")
    schema = meta.get(SAMPLING_SCHEMA) if isinstance(meta, Mapping) else None
    return AnswerSchema("answer", schema) if isinstance(schema, Mapping) else None


def _read_params(params: JsonObject, *, media_kinds: MediaKinds) -> Conversation:
    """The conversation that a server wants to be answered."""
    if params.get("tools") or params.get("toolChoice"):
        raise _refusal("tools in sampling are not offered")
    conversation = Conversation(History())
    system = params.get("systemPrompt")
    if isinstance(system, str) and system:
        conversation.add(SystemTurn(safe_utf8(system)))
    try:
        for message in _merge_messages(params.get("messages"), media_kinds=media_kinds):
            is_user = message.role == "user"
            turn = UserTurn(message.text, message.media) if is_user else AssistantTurn(message.text)
            conversation.add(turn)
    except IllegalTurnError as error:
        # These turns are untrusted, so an invalid one is the server's mistake.
        raise _refusal(str(error)) from None
    turns = conversation.history.turns
    if not turns or not isinstance(turns[-1], UserTurn):
        raise _refusal("the last message is not a user's")
    return conversation


@frozen
class _Message:
    role: str
    text: str
    media: tuple[Media, ...]


def _merge_messages(messages: JsonValue, *, media_kinds: MediaKinds) -> list[_Message]:
    """The messages, with consecutive ones of one role merged."""
    merged: list[_Message] = []
    for message in _sequence(messages):
        role = message.get("role") if isinstance(message, Mapping) else None
        if not isinstance(message, Mapping) or str(role) not in {"user", "assistant"}:
            raise _refusal("a message without a role")
        content = message.get("content")
        blocks = _sequence(content) if not isinstance(content, Mapping) else [content]
        lines: list[str] = []
        media: list[Media] = []
        for block in blocks:
            piece = _block(block)
            if isinstance(piece, str):
                lines.append(safe_utf8(piece))
                continue
            attached = role == "user" and media_kind(piece) in media_kinds
            lines.append(describe(piece, attached=attached))
            if attached:
                media.append(piece)
        entry = _Message(str(role), "\n".join(lines), tuple(media))
        if merged and merged[-1].role == entry.role:
            before = merged.pop()
            text = f"{before.text}\n{entry.text}"
            entry = _Message(entry.role, text, (*before.media, *entry.media))
        merged.append(entry)
    return merged


def _block(block: JsonValue) -> str | Media:
    kind = block.get("type") if isinstance(block, Mapping) else None
    if isinstance(block, Mapping) and kind == "text":
        return str(block.get("text") or "")
    if isinstance(block, Mapping) and str(kind) in {"image", "audio"}:
        try:
            data = base64.b64decode(str(block.get("data") or ""), validate=True)
        except (binascii.Error, ValueError):
            raise _refusal(f"an {kind} that is not base64") from None
        return Media(str(block.get("mimeType") or ""), data)
    raise _refusal("a message block that is neither text, image nor audio")


def _sequence(value: JsonValue) -> Sequence[JsonValue]:
    if isinstance(value, Sequence) and not isinstance(value, str):
        return value
    raise _refusal("`messages` or their content are missing")


def _result(answer: Assembled, alias: str) -> JsonObject:
    reason = answer.finish.reason
    usage, tokens = answer.usage, {}
    if usage is not None:
        tokens = {"input": usage.input, "output": usage.output}
    return {
        "role": "assistant",
        "content": {"type": "text", "text": answer.text},
        "model": answer.finish.model or alias,
        "stopReason": _STOP_REASONS.get(reason, reason),
        "_meta": {SAMPLING_USAGE: tokens},
    }


def _refusal(why: str) -> StepFailedError:
    return StepFailedError(f"a sampling request cannot be answered: {why}")
