"""Text and thinking as they arrive: merged in a chunk, `<think>` split off, characters whole."""

import json
from collections.abc import Iterable
from typing import Any, Final

from aish.core.messages import Delta, ReasoningPiece, TextPiece, Withdrawn
from aish.wire.json_text import dump

_OPEN: Final = "<think>"
_CLOSE: Final = "</think>"
_QUOTES: Final = ("`", "'", '"')
# Between texts of different choices.
_APART: Final = "\n\n"


class Speech:
    """The text and thinking between two calls of `take`, in order.

    `texts` may be appended to directly while `thoughts` is empty: the usual case in a stream.
    """

    __slots__ = (
        "_deltas", "_heard", "_is_shown", "_may_close", "_tags", "_text", "_thought", "said",
        "texts", "thoughts",
    )  # fmt: skip

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.thoughts: list[str] = []
        self.said = False
        """Whether any text that is not thinking was said."""
        self._deltas: list[Delta] = []
        self._heard: list[str] = []
        self._tags = ThinkTags()
        self._text = WholeText()
        self._thought = WholeText()
        self._may_close = True
        self._is_shown = False

    def say(self, text: str) -> None:
        if self.thoughts:
            self._settle_thoughts()
        self.texts.append(text)

    def think(self, text: str) -> None:
        if self.texts:
            self._settle_texts()
        self._may_close = False
        self.thoughts.append(text)

    def remark(self, delta: Delta) -> None:
        self.settle()
        self._deltas.append(delta)

    def settle(self) -> None:
        """Convert the collected text into pieces."""
        if self.texts:
            self._settle_texts()
        if self.thoughts:
            self._settle_thoughts()

    def take(self) -> list[Delta]:
        self.settle()
        deltas, self._deltas = self._deltas, []
        self._is_shown = bool(self._heard)
        return deltas

    def finish(self) -> None:
        """The end of the text: held-back text is released."""
        self.settle()
        self._add(self._tags.flush())
        for text, kind in (
            (self._text.flush(), TextPiece),
            (self._thought.flush(), ReasoningPiece),
        ):
            if text:
                self._deltas.append(kind(text))

    def adopt(self, deltas: Iterable[Delta]) -> None:
        """Add the text of another choice of the same answer, once both are finished."""
        apart = self.said
        for delta in deltas:
            if isinstance(delta, TextPiece):
                if apart:
                    self._deltas.append(TextPiece(_APART))
                    apart = False
                self.said = True
                self._heard.append(delta.text)
            self._deltas.append(delta)

    @property
    def heard(self) -> str:
        return "".join(self._heard)

    def _settle_texts(self) -> None:
        texts = self.texts
        text = "".join(texts) if len(texts) > 1 else texts[0]
        texts.clear()
        if self._tags.over:
            self._say(text)
        else:
            self._add(self._tags.feed(text))

    def _settle_thoughts(self) -> None:
        text = self._thought.feed("".join(self.thoughts))
        self.thoughts.clear()
        if text:
            self._deltas.append(ReasoningPiece(text))

    def _add(self, pieces: list[tuple[str, bool]]) -> None:
        for text, thought in pieces:
            self._may_close = self._may_close and not thought
            if not thought:
                self._say(text)
            elif text := self._thought.feed(text):
                self._deltas.append(ReasoningPiece(text))

    def _say(self, text: str) -> None:
        if ">" in text and self._may_close and self._closes(text):
            return
        if self._text.half or not text.isascii():
            text = self._text.feed(text)
        if text:
            self.said = True
            self._deltas.append(TextPiece(text))
            self._heard.append(text)

    def _closes(self, text: str) -> bool:
        """Take all text so far as thinking if a template opened it and `text` closes it.

        Text that quotes the tag, or that has the opening one, only mentions it.
        """
        if _CLOSE not in "".join((*self._heard[-len(_CLOSE) :], text)):
            return False
        self._may_close = False
        thought, _, rest = (self.heard + self._text.half + text).partition(_CLOSE)
        if _OPEN in thought or thought.endswith(_QUOTES):
            return False
        self._deltas = [one for one in self._deltas if not isinstance(one, TextPiece)]
        if self._is_shown:
            self._deltas.append(Withdrawn(f"the text before `{_CLOSE}` is thinking"))
        if thought:
            self._deltas.append(ReasoningPiece(repair_text(thought)))
        self._heard.clear()
        self._text, self.said = WholeText(), False
        self._tags.trim()
        self._add(self._tags.feed(rest))
        return True


class ThinkTags:
    """Tells a leading `<think>…</think>` from the text after it, wherever it is cut.

    Anywhere else the tags are text.
    """

    __slots__ = ("_held", "_inside", "_trim", "over")

    def __init__(self) -> None:
        self.over = False
        self._held = ""
        self._inside = False
        self._trim = False

    def feed(self, text: str) -> list[tuple[str, bool]]:
        """Pieces of text, each with whether it is thinking."""
        held = self._held + text
        self._held = ""
        if self._inside:
            return self._split_thinking(held)
        bare = held.lstrip()
        if self._trim:
            self.over = bool(bare)
            return [(bare, False)] if bare else []
        if bare.startswith(_OPEN):
            self._inside = True
            return self._split_thinking(bare[len(_OPEN) :])
        if _OPEN.startswith(bare):
            self._held = held
            return []
        self.over = True
        return [(held, False)]

    def trim(self) -> None:
        """Leave out white space until the next text, as after the closing tag."""
        self._trim, self.over = True, False

    def flush(self) -> list[tuple[str, bool]]:
        """The held-back text, at the end."""
        held, self._held = self._held, ""
        return [(held, self._inside)] if held else []

    def _split_thinking(self, text: str) -> list[tuple[str, bool]]:
        thought, closed, rest = text.partition(_CLOSE)
        if closed:
            self._inside, self._trim = False, True
            return [*([(thought, True)] if thought else []), *self.feed(rest)]
        kept = next(n for n in range(len(_CLOSE) - 1, -1, -1) if text.endswith(_CLOSE[:n]))
        self._held = text[len(text) - kept :]
        said = text[: len(text) - kept]
        return [(said, True)] if said else []


class WholeText:
    r"""Puts together characters that were escaped in halves (`\ud83d`, then `\ude00`)."""

    __slots__ = ("half",)

    def __init__(self) -> None:
        self.half = ""
        """What waits for its other half."""

    def feed(self, text: str) -> str:
        """The text without half a character at its end, which is held back."""
        if self.half:
            text = self.half + text
            self.half = ""
        if text.isascii():
            return text
        if "\ud800" <= text[-1] <= "\udbff":
            self.half = text[-1]
            text = text[:-1]
        return repair_text(text)

    def flush(self) -> str:
        """The held-back text, at the end."""
        half, self.half = self.half, ""
        return repair_text(half)


def repair_text(text: str) -> str:
    """The text with halves of characters joined, or replaced where the other half is missing."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def repair_fields(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields as they came, unless they hold halves of characters."""
    text = dump(fields)
    whole = repair_text(text)
    if whole == text:
        return fields
    loaded: dict[str, Any] = json.loads(whole)
    return loaded
