"""Decodes a response of `/v1/messages`: blocks that begin, grow and stop, between two events.

Only `message_stop` ends a stream. Blocks whose form tells more than text and calls do (thinking,
citations, what hosted tools said) are kept as they came, in `Extras`, and go back so.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import field
from typing import Any, Final

from aish.core.events import Place
from aish.core.frozen import slotted
from aish.core.messages import (
    Delta,
    Extras,
    Finish,
    FinishReason,
    ReasoningPiece,
    StreamNotice,
    Usage,
    Withdrawn,
)
from aish.core.tools import ToolCall
from aish.wire.answer_stream import AnswerStream
from aish.wire.calls import is_whole, looks_leaked, make_call_id
from aish.wire.counts import ServedReader, cache_miss_text, first_count
from aish.wire.errors import (
    EmptyStreamError,
    InBandError,
    IncompleteStreamError,
    MalformedToolCallError,
    TruncatedToolCallError,
    UnfinishedStreamError,
    UnreadableStreamError,
)
from aish.wire.in_band import find_error
from aish.wire.json_text import Mask, dump, excerpt, is_cut, parse_object
from aish.wire.speech import Speech, repair_fields, repair_text

CONTENT: Final = "content"
"""The key of `Extras` with the blocks of an answer."""

_TIERS: Final = {"batch": True, "standard": False, "priority": False}
_REASONS: Final[Mapping[str, FinishReason]] = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "tool_use": "tool_calls",
    "max_tokens": "length",
    "refusal": "refusal",
    # As gateways translate from chat.
    "stop": "stop",
    "tool_calls": "tool_calls",
    "length": "length",
    "content_filter": "refusal",
}
_HOUR: Final = ("cache_creation", "ephemeral_1h_input_tokens")
_SPLIT: Final = (_HOUR, ("cache_creation", "ephemeral_5m_input_tokens"))
_WINDOW: Final = "model_context_window_exceeded"
_CALL: Final = "tool_use"
# What an event may hold and an answer of text and calls does not need.
_PLAIN_FIELDS: Final[Mapping[str, frozenset[str]]] = {
    "text": frozenset({"type", "text"}),
    _CALL: frozenset({"type", "id", "name", "input"}),
}
_THOUGHTS: Final = frozenset({"thinking", "redacted_thinking"})
_EVENTS: Final = frozenset(
    {
        "message_start", "message", "content_block_start", "content_block_delta",
        "content_block_stop", "message_delta", "message_stop",
    }
)  # fmt: skip
_PIECES: Final[Mapping[str, str]] = {
    "text_delta": "text",
    "input_json_delta": "partial_json",
    "thinking_delta": "thinking",
}
# Of hosted tools, which are never asked for: such blocks go back as they came.
_HOSTED: Final = ("server_tool_use", "_tool_result", "container_upload")


@slotted
class AnswerBlock:
    """A block of an answer; `parts` are the pieces of its text, thought or arguments."""

    fields: dict[str, Any]
    parts: list[str] = field(default_factory=list)
    has_stopped: bool = False
    is_understood: bool = True

    @property
    def kind(self) -> str:
        return str(self.fields.get("type"))

    @property
    def text(self) -> str:
        if len(self.parts) > 1:
            self.parts[:] = ["".join(self.parts)]
        return self.parts[0] if self.parts else ""

    def takes(self, piece: str) -> bool:
        """Return true if such pieces belong to it: what is lost in another may be an argument."""
        own = "partial_json" if self.kind.endswith(_CALL) else self.kind
        return piece == own or not self.is_understood

    def arguments(self) -> str:
        """The arguments of a call, as JSON."""
        return self.text if self.text.strip() else dump(self.fields.get("input") or {})

    def whole(self) -> dict[str, Any]:
        """The block with all its pieces, as an answer in one piece would have it."""
        match self.kind:
            case "text" | "thinking":
                return {**self.fields, self.kind: self.text}
            case kind if kind.endswith(_CALL):
                given = parse_object(self.arguments())
                return {**self.fields, "input": {} if given is None else given}
            case _:
                return self.fields


class MessagesDecoder(AnswerStream):
    """Decodes one response with status 200; use one decoder for each try.

    `known_tools` are the wire names of the tools in the request. `finish_optional` accepts an
    answer whose stop reason stays null.
    """

    __slots__ = (
        "_blocks", "_details", "_finish_optional", "_is_mixed", "_known", "_noticed", "_place",
        "_raw", "_served", "_speech", "_spoke", "_started", "_usage", "_was_whole",
    )  # fmt: skip

    reads_on = True

    def __init__(
        self,
        *,
        place: Place,
        known_tools: Collection[str] = (),
        required: Mapping[str, bool] | None = None,  # ruff: ignore[unused-method-argument] - chat needs it to tell a call without arguments from a broken one
        mask: Mask = str,
        finish_optional: bool = False,
    ) -> None:
        super().__init__(mask)
        self._place = place
        self._known = frozenset(known_tools)
        self._finish_optional = finish_optional
        self._speech = Speech()
        self._spoke: AnswerBlock | None = None
        self._is_mixed = False
        """True if texts came in turns, so that what was told is none of them."""
        self._blocks: dict[Any, AnswerBlock] = {}
        self._usage: dict[str, Any] = {}
        self._raw = ""
        self._details: dict[str, Any] = {}
        self._served = ServedReader()
        self._started = False
        self._was_whole = False
        self._noticed: set[tuple[str, str]] = set()

    @property
    def complete(self) -> bool:
        return self.done or (self._was_whole and bool(self._raw))

    @property
    def counted(self) -> bool:
        return bool(self._usage)

    @property
    def _begun(self) -> bool:
        return self._started or bool(self._blocks)

    @property
    def _whole(self) -> bool:
        return self._was_whole

    def _notice(self, code: str, text: str) -> None:
        if (code, text) not in self._noticed:
            self._noticed.add((code, text))
            self._speech.remark(StreamNotice(code, text))

    def _take_marker(self) -> None:
        """`[DONE]` is of another wire: it ends nothing here."""

    def _take_deltas(self) -> list[Delta]:
        return self._speech.take()

    def _take_object(self, value: dict[str, Any]) -> None:
        told = value.get("type")
        kind = told if isinstance(told, str) else None
        if kind not in _EVENTS:
            self._take_other(value, kind)
            return
        if self.done:
            raise _broken_stream(f"`{kind}` after `message_stop`")
        match kind:
            case "content_block_delta":
                self._take_delta(value)
            case "content_block_start":
                self._take_block(value)
            case "content_block_stop":
                self._take_stop(value)
            case "message_start":
                self._take_start(value)
            case "message_delta":
                self._take_message_delta(value)
            case "message":
                self._take_message(value)
            case _:
                self.done = True
                self.progress += 1

    def _take_other(self, value: dict[str, Any], kind: str | None) -> None:
        """Take an error, or an event that nobody knows yet."""
        if kind == "ping":
            return
        if value.get("error") or kind in {None, "error"} or value.get("object") == "error":
            if (error := find_error(value, self._mask)) is not None:
                raise error
        elif self._kind == "events":
            self._notice("unknown_event", f"events of type `{self._show(kind)}` are skipped")

    def _take_start(self, value: dict[str, Any]) -> None:
        if self._started:
            raise _broken_stream("a second `message_start`")
        self._started = True
        message = value.get("message")
        if isinstance(message, dict):
            self._served.take(message)
            self._count(message.get("usage"))
            self._take_diagnostics(message)
            if message.get("content") or message.get("stop_reason"):
                self._take_content(message)

    def _take_diagnostics(self, message: dict[str, Any]) -> None:
        """Tell why the cache was not used, where `params.diagnostics` asked for that."""
        told = message.get("diagnostics")
        missed = told.get("cache_miss_reason") if isinstance(told, dict) else None
        if isinstance(missed, dict):
            count = first_count(missed, (("cache_missed_input_tokens",),))
            self._notice("cache_miss", cache_miss_text(self._show(missed.get("type")), count))

    def _take_message(self, value: dict[str, Any]) -> None:
        """Take an answer that was not streamed."""
        if self._begun:
            raise _broken_stream("a second message")
        self._started = self._was_whole = True
        self._served.take(value)
        self._take_diagnostics(value)
        self._count(value.get("usage"))
        self._take_content(value)
        self._take_reason(value)

    def _take_content(self, message: dict[str, Any]) -> None:
        content = message.get("content")
        if isinstance(content, str):
            content = [{"type": "text", "text": content}]
        for index, block in enumerate(content if isinstance(content, list) else ()):
            if isinstance(block, dict):
                self._open(index, block).has_stopped = True

    def _take_block(self, value: dict[str, Any]) -> None:
        index, block = _index_of(value), value.get("content_block")
        if not isinstance(block, dict):
            raise _broken_stream("a block that is no object")
        if index is None:
            index = len(self._blocks)
        if index in self._blocks:
            raise _broken_stream(f"a second block {self._show(index)}")
        self._open(index, block)

    def _open(self, index: Any, given: dict[str, Any]) -> AnswerBlock:
        block = self._blocks[index] = AnswerBlock(dict(given))
        self.progress += 1
        text = given.get(block.kind)
        if block.kind in {"text", "thinking"} and isinstance(text, str) and text:
            self._grow(block, text)
        elif block.kind.startswith(_HOSTED[0]) or block.kind.endswith(_HOSTED[1:]):
            said = f"a hosted tool was used (`{self._show(block.kind)}`): no rule saw that call"
            self._notice("hosted_tool", said)
        elif block.kind not in {*_PLAIN_FIELDS, *_THOUGHTS}:
            block.is_understood = False
            said = f"content of type `{self._show(block.kind)}` was left out"
            self._notice("unknown_content", said)
        return block

    def _grow(self, block: AnswerBlock, text: str) -> None:
        if block.kind == "text":
            self._is_mixed |= bool(block.parts) and block is not self._spoke
            self._spoke = block
            self._speech.say(text)
        elif block.kind == "thinking":
            self._speech.think(text)
        block.parts.append(text)

    def _take_delta(self, value: dict[str, Any]) -> None:
        delta = value.get("delta")
        if not isinstance(delta, dict):
            return
        block = self._blocks.get(_index_of(value))
        if block is None:
            block = self._begin_late(value, delta)
        if block.has_stopped:
            raise _broken_stream(f"more of block {self._show(value.get('index'))} after its end")
        kind = delta.get("type")
        text = delta.get(_PIECES.get(kind, "")) if isinstance(kind, str) else None
        if isinstance(text, str):
            if text:
                if not block.takes(_PIECES[str(kind)]):
                    shown = f"`{kind}` in a block of type `{self._show(block.kind)}`"
                    raise _broken_stream(f"a piece of type {shown}")
                self.progress += 1
                self._grow(block, text)
        elif kind == "signature_delta":
            block.fields["signature"] = delta.get("signature")
        elif kind == "citations_delta":
            known = block.fields.get("citations")
            known = known if isinstance(known, list) else []
            block.fields["citations"] = [*known, delta.get("citation")]
        elif not isinstance(kind, str) or kind not in _PIECES:
            block.is_understood = block.is_understood and block.kind == "text"
            self._notice("unknown_delta", f"pieces of type `{self._show(kind)}` are skipped")

    def _begin_late(self, value: dict[str, Any], delta: dict[str, Any]) -> AnswerBlock:
        """Begin a block that was not announced: only text can do without."""
        kind = str(delta.get("type")).removesuffix("_delta")
        if kind not in {"text", "thinking"}:
            raise _broken_stream(
                f"a piece of block {self._show(value.get('index'))}, which never began"
            )
        self._notice("missing_start", "pieces of blocks come without their beginning")
        return self._open(value.get("index"), {"type": kind})

    def _take_stop(self, value: dict[str, Any]) -> None:
        block = self._blocks.get(_index_of(value))
        if block is not None:
            block.has_stopped = True

    def _take_message_delta(self, value: dict[str, Any]) -> None:
        delta = value.get("delta")
        self.progress += 1
        self._take_diagnostics(value)
        self._count(value.get("usage"))
        if isinstance(delta, dict):
            self._take_reason(delta)

    def _take_reason(self, fields: dict[str, Any]) -> None:
        if isinstance(reason := fields.get("stop_reason"), str) and reason:
            self._raw = reason
        if isinstance(details := fields.get("stop_details"), dict):
            self._details = details

    def _count(self, usage: Any) -> None:
        """Counts are totals: later ones replace, but absent, null, 0 or less says nothing."""
        if isinstance(usage, dict):
            for name, count in usage.items():
                known = self._usage.get(name)
                if isinstance(known, dict) and isinstance(count, dict):
                    self._usage[name] = known | {part: n for part, n in count.items() if _counts(n)}
                elif name not in self._usage or _counts(count):
                    self._usage[name] = count

    def _show(self, value: Any) -> str:
        return excerpt(str(value), self._mask, 80)

    def _last_deltas(self) -> list[Delta]:
        if not self.complete and not self._was_whole:
            raise IncompleteStreamError("the stream ended before `message_stop`")
        if not self._raw and not self._finish_optional:
            raise UnfinishedStreamError("the answer ended without a `stop_reason`")
        if self._raw == _WINDOW:
            said = f"the conversation fills the context window of the model (`{_WINDOW}`)"
            raise InBandError(said, code=_WINDOW, retryable=False)
        self._speech.finish()
        if self._is_mixed:
            self._say_in_order()
        reason = _REASONS.get(self._raw, "other") if self._raw else "stop"
        calls = [] if reason == "refusal" else list(self._calls(reason))
        self._check(reason, calls)
        extras = [] if reason == "refusal" else self._kept_blocks()
        return [
            *self._speech.take(),
            *calls,
            *([Extras(repair_fields({CONTENT: extras}))] if extras else []),
            Finish(
                "tool_calls" if calls else reason,
                _usage_of(self._usage),
                raw=repair_text(self._raw),
                refusal=self._refusal() if reason == "refusal" else None,
                served=self._served.served,
                long_written=first_count(self._usage, (_HOUR,)),
                in_batch=_TIERS.get(str(self._usage.get("service_tier"))),
            ),
        ]

    def _say_in_order(self) -> None:
        """Tell the texts again, one block after the other."""
        again = Speech()
        self._speech.remark(Withdrawn("the texts of the answer came in turns"))
        for block in self._blocks.values():
            if block.kind == "thinking" and block.text:
                self._speech.remark(ReasoningPiece(repair_text(block.text)))
            elif block.kind == "text":
                again.say(block.text)
        again.finish()
        for delta in again.take():
            self._speech.remark(delta)

    def _calls(self, reason: FinishReason) -> Iterator[ToolCall]:
        blocks = [block for block in self._blocks.values() if block.kind == _CALL]
        ids = [_text(block.fields.get("id")) for block in blocks]
        taken: set[str] = set()
        for index, (block, given) in enumerate(zip(blocks, ids, strict=True)):
            name, arguments = _text(block.fields.get("name")), block.arguments()
            if reason == "length" and not (name and block.has_stopped and is_whole(arguments)):
                said = "truncated tool call: the token limit came in its arguments"
                raise TruncatedToolCallError(said)
            if not name:
                raise MalformedToolCallError("malformed tool call: its name was never sent")
            if not block.has_stopped and is_cut(arguments):
                raise MalformedToolCallError("malformed tool call: its arguments break off")
            id = given
            if not id.strip() or id in taken:
                id = make_call_id(self._place, index, taken.union(ids))
            taken.add(id)
            yield ToolCall(id, name, repair_text(arguments))

    def _check(self, reason: FinishReason, calls: list[ToolCall]) -> None:
        said = self._speech.said
        if reason == "tool_calls" and not calls:
            raise MalformedToolCallError("malformed tool call: `tool_use` without a call")
        if reason == "other" and not (said or calls or self._blocks):
            raise EmptyStreamError("the stream ended without an answer")
        if not self._raw:
            self._notice("no_finish_reason", "the answer ended without a `stop_reason`")
        if calls and reason != "tool_calls" and said:
            shown = self._show(self._raw)
            self._notice("calls_despite_finish", f"text and tool calls under `{shown}`")
        if reason == "refusal" and any(block.kind == _CALL for block in self._blocks.values()):
            said_so = "the tool calls of a refused answer were left out"
            self._notice("calls_despite_refusal", said_so)
        if not calls and said and looks_leaked(self._speech.heard, self._known):
            text = "the answer has a tool call as text; text is never executed"
            self._notice("leaked_call", text)

    def _kept_blocks(self) -> list[dict[str, Any]]:
        """The blocks, if they say more than one text and the calls after it."""
        blocks = [block for block in self._blocks.values() if block.is_understood]
        kinds = [block.kind for block in blocks]
        is_plain = kinds[: kinds.count("text")].count("text") == kinds.count("text") <= 1 and all(
            _is_plain(block) for block in blocks
        )
        return [] if is_plain else [block.whole() for block in blocks]

    def _refusal(self) -> str | None:
        told = (self._details.get(name) for name in ("category", "explanation"))
        return ": ".join(repair_text(text) for text in told if isinstance(text, str)) or None


def _is_plain(block: AnswerBlock) -> bool:
    allowed = _PLAIN_FIELDS.get(block.kind, frozenset())
    return all(name in allowed for name, value in block.fields.items() if value is not None)


def _counts(value: Any) -> bool:
    return bool(value) and not (isinstance(value, int | float) and value < 0)


def _usage_of(usage: dict[str, Any]) -> Usage:
    """The counts; what was read from the cache or written to it is input too."""
    read = first_count(usage, (("cache_read_input_tokens",),))
    written = first_count(usage, (("cache_creation_input_tokens",),))
    split = [count for path in _SPLIT if (count := first_count(usage, (path,))) is not None]
    # Some gateways send the split alone.
    written = written or (sum(split) if split else written)
    fresh = first_count(usage, (("input_tokens",),))
    output = first_count(usage, (("output_tokens",),))
    total = None if fresh is None else fresh + (read or 0) + (written or 0)
    if not (output or total):
        return Usage()  # some endpoints say 0 where they do not count
    return Usage(
        input=total or None,  # no request has 0
        output=output,
        cached=read,
        reasoning=first_count(usage, (("output_tokens_details", "thinking_tokens"),)),
        cache_written=written,
    )


def _index_of(event: dict[str, Any]) -> Any:
    index = event.get("index")
    if isinstance(index, list | dict):
        raise _broken_stream("the index of a block is no number")
    return index


def _text(value: Any) -> str:
    return repair_text(value) if isinstance(value, str) else ""


def _broken_stream(what: str) -> UnreadableStreamError:
    return UnreadableStreamError(f"the stream is broken: {what}")
