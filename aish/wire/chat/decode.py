"""Decodes a response of `/chat/completions`: bytes in, deltas out.

`answer` builds the turn.
"""

from collections.abc import Collection, Mapping
from typing import Any

from aish.core.events import Place
from aish.core.messages import Delta
from aish.wire.answer_stream import AnswerStream, parse_value
from aish.wire.chat.answer import ChatAnswer, Setting, last_deltas
from aish.wire.in_band import find_error
from aish.wire.json_text import Mask
from aish.wire.sse import Frame


def plain_text(value: Any) -> str | None:
    """The text of a chunk that holds only a piece of text and an open end, else `None`."""
    try:
        choices = value["choices"]
        choice = choices[0]
        end = choice["finish_reason"]
        delta = choice["delta"]
        text = delta["content"]
    except (KeyError, TypeError, IndexError):
        return None
    if type(text) is not str or len(choices) > 1:
        return None
    if len(delta) > 1 + ("role" in delta) and any(
        value for name, value in delta.items() if name not in {"role", "content"}
    ):
        return None
    more = end or choice.get("index") or choice.get("error")
    more = more or value.get("usage") or value.get("error") or value.get("x_groq")
    return None if more else text


class ChatDecoder(AnswerStream):
    """Decodes one response with status 200; use one decoder for each try.

    `known_tools` are the wire names of the tools in the request, `required` says which of them
    have required arguments. `finish_optional` accepts an answer whose finish reason stays null.
    """

    __slots__ = ("_answer", "_has_begun")

    def __init__(
        self,
        *,
        place: Place,
        known_tools: Collection[str] = (),
        required: Mapping[str, bool] | None = None,
        mask: Mask = str,
        finish_optional: bool = False,
    ) -> None:
        super().__init__(mask)
        tools = frozenset(known_tools)
        self._answer = ChatAnswer(Setting(place, tools, required or {}, mask, finish_optional))
        self._has_begun = False

    @property
    def complete(self) -> bool:
        return self.done or self._answer.over

    @property
    def counted(self) -> bool:
        return bool(self._answer.first.usage)

    @property
    def _begun(self) -> bool:
        if self._kind == "json":
            return self._answer.begun
        return self._has_begun or self._answer.first.has_finish_key

    @property
    def _whole(self) -> bool:
        return self._answer.whole

    def _notice(self, code: str, text: str) -> None:
        self._answer.notice(code, text)

    def _take_deltas(self) -> list[Delta]:
        return self._answer.speech.take()

    def _last_deltas(self) -> list[Delta]:
        return last_deltas(self._answer, done=self.done)

    def _take_frames(self, frames: list[Frame]) -> None:
        """Process events; nearly all are a piece of text without a name."""
        first, speech, served = self._answer.first, self._answer.speech, self._answer.served
        for data, event in frames:
            if event is not None or (value := parse_value(data)) is None:
                self._take_odd(data, event)
                if self.done:
                    return
            elif (text := plain_text(value)) is None:
                self._take_value(value)
                if self.done:
                    return
            else:
                self.progress += bool(text)
                first.has_finish_key = True
                if speech.thoughts:
                    speech.settle()
                speech.texts.append(text)
                if (model := value.get("model")) != served.told and model:
                    self._answer.read_served(value)

    def _take_object(self, value: dict[str, Any]) -> None:
        if error := find_error(value, self._mask):
            raise error
        self._has_begun = self._has_begun or "choices" in value or "usage" in value
        self.progress += self._answer.take(value)
