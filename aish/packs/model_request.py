"""Requests of packs to models of the file, during a call.

A pack asks as any server does: the run counts, limits, records and replays its requests.
"""

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Literal

import anyio

from aish.core.frozen import frozen
from aish.core.json import JsonObject, JsonValue
from aish.core.tools import CALL_DEADLINE, SAMPLE, SAMPLING_SCHEMA, SAMPLING_USAGE, SamplingError
from aish.packs.pack_error import PackError

ASKING_CODES = ("unavailable", "limit", "timeout")
"""The codes of a tool that asks a model."""
_FOR_ENDING = 1.0
"""Seconds of the call's own time-out that are kept to return what is known."""


@frozen
class Message:
    role: Literal["user", "assistant"]
    text: str


@frozen
class ToolModelRequest:
    """A request to a model; an empty `model` is that of the step.

    The last message is a user's. `temperature` and `max_tokens` of `None` are the model's own. The
    answer follows the JSON Schema `schema` only if the endpoint enforces it: check it.
    """

    messages: Sequence[Message]
    model: str = ""
    system: str = ""
    temperature: float | None = None
    max_tokens: int | None = None
    schema: JsonObject | None = None


@frozen
class ModelAnswer:
    """The text, the name of the model that wrote it, and the tokens if they are known.

    `is_whole` is false for an answer that was cut off or refused; `stop` says which.
    """

    text: str
    model: str
    stop: str
    usage: Mapping[str, JsonValue] = field(default_factory=dict)

    @property
    def is_whole(self) -> bool:
        return self.stop == "endTurn"


async def ask_model(request: ToolModelRequest) -> ModelAnswer:
    """Ask a model, within the time limit of the call.

    Raises:
        PackError: `unavailable`, `limit` or `timeout`: there is no answer.
    """
    sample = SAMPLE.get()
    name = f"model `{request.model}`" if request.model else "the model"
    if sample is None:
        raise PackError("unavailable", f"{name} cannot be asked outside of a call")
    answer: JsonObject | None = None
    left = CALL_DEADLINE.get() - anyio.current_time() - _FOR_ENDING
    try:
        with anyio.move_on_after(left):
            answer = await sample(_params(request)) if left > 0 else None
    except SamplingError as error:
        raise PackError(error.code, f"{name} did not answer: {error}") from error
    if answer is None:
        raise PackError("timeout", f"{name} did not answer in the time of the call")
    return _answer(answer)


def _params(request: ToolModelRequest) -> JsonObject:
    """Return the request as MCP params; without `maxTokens` the model's own limit applies."""
    params: dict[str, JsonValue] = {
        "messages": [
            {"role": message.role, "content": {"type": "text", "text": message.text}}
            for message in request.messages
        ]
    }
    if request.max_tokens is not None:
        params["maxTokens"] = request.max_tokens
    if request.model:
        params["modelPreferences"] = {"hints": [{"name": request.model}]}
    if request.system:
        params["systemPrompt"] = request.system
    if request.temperature is not None:
        params["temperature"] = request.temperature
    if request.schema is not None:
        params["_meta"] = {SAMPLING_SCHEMA: request.schema}
    return params


def _answer(answer: JsonObject) -> ModelAnswer:
    content, meta = answer.get("content"), answer.get("_meta")
    text = content.get("text") if isinstance(content, Mapping) else None
    usage = meta.get(SAMPLING_USAGE) if isinstance(meta, Mapping) else None
    return ModelAnswer(
        text=str(text or ""),
        model=str(answer.get("model") or ""),
        stop=str(answer.get("stopReason") or ""),
        usage=usage if isinstance(usage, Mapping) else {},
    )
