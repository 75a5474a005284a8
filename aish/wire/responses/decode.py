"""Decodes a response of `/responses`: bytes in, deltas out.

Items are told apart by their ids, not by their places, which some servers leave out or give twice.
What the end of an item brings counts for more than its pieces, and the last event has the order.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
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
    TextPiece,
    Usage,
    Withdrawn,
)
from aish.core.tools import ToolCall
from aish.wire.answer_stream import AnswerStream
from aish.wire.calls import as_text, canonical, is_whole, looks_leaked, make_call_id
from aish.wire.counts import (
    ServedReader,
    cache_miss_text,
    first_count,
    read_cost,
    whole_input,
)
from aish.wire.errors import (
    EmptyStreamError,
    InBandError,
    IncompleteStreamError,
    LimitError,
    MalformedToolCallError,
    TruncatedToolCallError,
    UnreadableStreamError,
)
from aish.wire.in_band import find_error, in_band_error
from aish.wire.json_text import Mask, excerpt
from aish.wire.speech import Speech, repair_fields, repair_text

OUTPUT: Final = "output"
"""The field of a turn with the items of an answer, for the endpoint that sent them."""

_APART: Final = "\n\n"
_MOST_ITEMS: Final = 4096
_MOST_NOTICES: Final = 16
_OWN: Final = frozenset({"call_id", "name", "arguments"})
_NEEDED: Final = frozenset({"type", "id", "role", "content", *_OWN})
_REASONING: Final = frozenset({"summary", "content"})
# They wait for an output that nothing here gives, and a conversation with them would be refused.
_UNANSWERED: Final = frozenset(
    {"custom_tool_call", "computer_call", "local_shell_call", "apply_patch_call",
     "mcp_approval_request", "item_reference"}
)  # fmt: skip
# What a message or a call has that says nothing: it need not go back.
_PLAIN: Final = frozenset({"type", "id", "status", "role", "content", *_OWN})
_PLAIN_PART: Final = frozenset({"type", "text"})
# Events of items whose end says it all, and of tools of the vendor.
_PASSED_OVER: Final = (
    "response.in_progress", "response.queued", "response.content_part.",
    "response.output_text.annotation", "response.reasoning_text.done",
    "response.reasoning_summary_text.done", "response.reasoning_summary_part.done",
    "response.web_search_call.", "response.file_search_call.", "response.code_interpreter_call",
    "response.image_generation_call.", "response.mcp_", "response.shell_call",
    "response.custom_tool_call_input.", "response.compaction.", "response.audio.",
    "response.heartbeat", "keepalive", "ping", "heartbeat",
)  # fmt: skip
_COUNTS: Final[Mapping[str, tuple[str, ...]]] = {
    "input": ("input_tokens",),
    "output": ("output_tokens",),
    "cached": ("input_tokens_details", "cached_tokens"),
    "reasoning": ("output_tokens_details", "reasoning_tokens"),
    "cache_written": ("input_tokens_details", "cache_write_tokens"),
}
_LONG_WRITTEN: Final = ("input_tokens_details", "cache_write_tokens_details", "ttl_12h_tokens")
_WORSE: Final[Mapping[str, int]] = {"incomplete": 1, "cancelled": 2, "failed": 2}


@slotted
class OutputItem:
    """An item of the output; `fields` are as the server sent them last."""

    kind: str
    id: str = ""
    at: int | None = None
    fields: dict[str, Any] = field(default_factory=dict)
    said: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    arguments: list[str] = field(default_factory=list)
    has_thought: bool = False
    is_told: bool = False
    """Whether the pieces of it seem to be over: those without an id are of another item."""
    is_done: bool = False

    @property
    def call_id(self) -> str:
        return _text(self.fields.get("call_id"))

    @property
    def text(self) -> str:
        return "".join(_parts(self.fields, "text")) or "".join(self.said)

    @property
    def refusal(self) -> str:
        return "".join(_parts(self.fields, "refusal")) or "".join(self.refused)

    @property
    def thought(self) -> str:
        parts = [text for name in _REASONING for text in _texts(self.fields.get(name))]
        return _APART.join(filter(None, parts))

    def whole_arguments(self) -> str:
        told = self.fields.get("arguments")
        told = "" if told is None else as_text(told)
        return told if told.strip() else "".join(self.arguments)

    def take(self, fields: Mapping[str, Any], *, is_done: bool = False) -> None:
        """Take what an event says of it; what is empty replaces nothing.

        Its end replaces its beginning, of which only what is needed may be left.
        """
        content = self.fields.get("content")
        if is_done and not self.is_done:
            self.is_done = True
            needed = self.fields.keys() & _NEEDED
            self.fields = {name: self.fields[name] for name in self.fields if name in needed}
        for name, value in fields.items():
            if value not in (None, "", [], {}) or name not in self.fields:
                self.fields[name] = value
        if self.kind == "message" and content and not self.text and not self.refusal:
            self.fields["content"] = content
        self.id = self.id or _text(fields.get("id"))


class ResponsesDecoder(AnswerStream):
    """Decodes one response with status 200; use one decoder for each try.

    `known_tools` are the wire names of the tools in the request, `required` says which of them
    have required arguments. `finish_optional` accepts an answer that ends with a marker alone.
    """

    __slots__ = (
        "_end", "_finish_optional", "_has_begun", "_id", "_is_whole", "_items",
        "_marked", "_notices", "_place", "_response", "_served", "_speech", "_spoke", "_tools",
    )  # fmt: skip

    reads_on = True

    def __init__(
        self,
        *,
        place: Place,
        known_tools: Collection[str] = (),
        required: Mapping[str, bool] | None = None,  # ruff: ignore[unused-method-argument] - as the other decoders
        mask: Mask = str,
        finish_optional: bool = False,
    ) -> None:
        super().__init__(mask)
        self._place = place
        self._tools = frozenset(known_tools)
        self._finish_optional = finish_optional
        self._speech = Speech()
        self._items: list[OutputItem] = []
        self._spoke: OutputItem | None = None
        self._notices: set[str] = set()
        self._has_begun = False
        self._is_whole = False
        self._marked = False
        self._id = ""
        self._end = ""
        """How it ended: `completed`, `incomplete` and so on; empty before the end."""
        self._response: dict[str, Any] = {}
        """The response as the last event describes it."""
        self._served = ServedReader()

    @property
    def complete(self) -> bool:
        return bool(self._end)

    @property
    def counted(self) -> bool:
        return bool(self._response.get("usage"))

    @property
    def _begun(self) -> bool:
        return self._has_begun

    @property
    def _whole(self) -> bool:
        return self._is_whole

    def _notice(self, code: str, text: str) -> None:
        self._notice_of(code, code, text)

    def _notice_of(self, kind: str, code: str, text: str) -> None:
        """Notice something once for each of its kinds."""
        if kind not in self._notices and len(self._notices) < _MOST_NOTICES:
            self._notices.add(kind)
            self._speech.remark(StreamNotice(code, text))

    def _take_deltas(self) -> list[Delta]:
        return self._speech.take()

    def _take_marker(self) -> None:
        self._marked = True

    def _take_object(self, value: dict[str, Any]) -> None:
        kind = _text(value.get("type"))
        take = _EVENTS.get(kind)
        if kind == "error":
            raise in_band_error(value, self._mask)
        if take is not None:
            self._has_begun = True
            if self._end and kind not in _ENDS:
                self._notice("after_the_end", "events come after the end of the answer")
            else:
                take(self, value)
        elif kind.startswith(_PASSED_OVER):
            self._has_begun = self._has_begun or kind.startswith("response.")
        elif value.get("object") == "response" or isinstance(value.get("output"), list):
            self._take_whole(value)
        elif "choices" in value:
            message = "a chat completion, not a response: the endpoint may want `api: chat`"
            raise UnreadableStreamError(message, retryable=False)
        elif error := find_error(value, self._mask):
            raise error
        else:
            name = excerpt(kind, self._mask) or "without a type"
            self._notice_of(f"event {kind}", "unknown_event", f"an event `{name}` was left out")

    # Events, by their types.

    def on_created(self, event: dict[str, Any]) -> None:
        response = _object(event.get("response"))
        id = _text(response.get("id"))
        if self._items and self._id and id and id != self._id:
            raise IncompleteStreamError("another answer begins inside the stream")
        self._id = self._id or id
        self._read_served(response)
        self._response = {**self._response, **response, "usage": None}

    def on_added(self, event: dict[str, Any]) -> None:
        if fields := _object(event.get("item")):
            item = self._find(event, fields)
            if not item.is_done:
                item.take(fields)
            self.progress += 1

    def on_done(self, event: dict[str, Any]) -> None:
        if fields := _object(event.get("item")):
            item = self._find(event, fields)
            item.take(fields, is_done=True)
            self._tell(item)
            self.progress += 1

    def on_text(self, event: dict[str, Any]) -> None:
        if text := _text(event.get("delta")):
            self._say(self._item_of(event, "message"), text)
            self.progress += 1

    def on_text_done(self, event: dict[str, Any]) -> None:
        item = self._item_of(event, "message")
        if (text := _text(event.get("text"))) and not item.said:
            self._say(item, text)
            self.progress += 1
        item.is_told = True

    def on_refusal(self, event: dict[str, Any]) -> None:
        item = self._item_of(event, "message")
        text = _text(event.get("delta"))
        if not text and not item.refused:
            text = _text(event.get("refusal"))
        item.refused.append(text)
        self.progress += bool(text)

    def on_thought(self, event: dict[str, Any]) -> None:
        if text := _text(event.get("delta")):
            self._item_of(event, "reasoning").has_thought = True
            self._speech.think(text)
            self.progress += 1

    def on_thought_part(self, event: dict[str, Any]) -> None:
        if self._item_of(event, "reasoning").has_thought:
            self._speech.think(_APART)

    def on_arguments(self, event: dict[str, Any]) -> None:
        item = self._item_of(event, "function_call")
        delta = event.get("delta")
        if delta:
            if not item.is_done:
                # A beginning such as `{}` only holds the place.
                item.fields.pop("arguments", None)
            item.arguments.append(as_text(delta))
            self.progress += 1

    def on_arguments_done(self, event: dict[str, Any]) -> None:
        item = self._item_of(event, "function_call")
        named = {name: event.get(name) for name in ("name", "arguments")}
        if not item.is_done:
            item.take({name: value for name, value in named.items() if value})
        item.is_told = True
        self.progress += 1

    def on_end(self, event: dict[str, Any]) -> None:
        name = _text(event.get("type")).removeprefix("response.")
        self._finish(_object(event.get("response")) or event, name)

    def _take_whole(self, response: dict[str, Any]) -> None:
        """Take a response that came in one piece."""
        self._has_begun = self._is_whole = True
        status = _text(response.get("status")) or "completed"
        if status in {"in_progress", "queued"}:
            raise IncompleteStreamError(f"the response is not finished: its status is `{status}`")
        self._finish(response, status)

    def _finish(self, response: dict[str, Any], name: str) -> None:
        """Take the end of the answer; of two words for it the worse one counts."""
        status = _text(response.get("status"))
        words = [name, status] if status in _WORSE else [name]
        if response.get("error"):
            words.append("failed")
        elif _object(response.get("incomplete_details")).get("reason"):
            words.append("incomplete")
        worst = max(words, key=lambda word: _WORSE.get(word, 0))
        if worst != name or (status and status != name):
            told = excerpt(status, self._mask) or worst
            self._notice("ends_disagree", f"the answer ends as `{name}` and as `{told}`")
        if self._end and _WORSE.get(worst, 0) <= _WORSE.get(self._end, 0):
            self._notice("after_the_end", "events come after the end of the answer")
            return
        self._end, self.done = worst, True
        self.progress += 1
        if self._id and (id := _text(response.get("id"))) and id != self._id:
            self._notice("id_changed", "the id of the answer changes in its stream")
        self._read_served(response)
        self._response = {**self._response, **response}
        self._take_output(response.get("output"))

    def _read_served(self, response: dict[str, Any]) -> None:
        if (changed := self._served.take(response)) is not None:
            self._notice("served_changed", changed)

    # Items.

    def _find(self, event: dict[str, Any], fields: dict[str, Any]) -> OutputItem:
        """The item that an event brings whole, or a new one."""
        kind, id, at = _text(fields.get("type")), _text(fields.get("id")), event.get("output_index")
        call_id = _text(fields.get("call_id"))
        alike = [item for item in self._items if item.kind == kind]
        for item in alike:
            if id and item.id == id:
                return item
        for item in alike:
            if call_id and item.call_id == call_id and not (item.is_done and id):
                return item
        for item in alike:
            same_place = type(at) is int and item.at == at
            if same_place and not item.is_done and not (call_id and item.call_id):
                return item
        if not id and type(at) is not int:
            for item in alike:
                if not item.is_done and not (call_id and item.call_id):
                    return item
        return self._open(kind, id, at)

    def _item_of(self, event: dict[str, Any], kind: str) -> OutputItem:
        """The item that an event brings a piece of, or a new one."""
        id, at = _text(event.get("item_id")), event.get("output_index")
        alike = [item for item in self._items if item.kind == kind]
        for item in alike:
            if id and id in {item.id, item.call_id}:
                return item
        has_place = type(at) is int
        for item in reversed(alike):
            if has_place and item.at == at:
                return item
        if alike and not id and not has_place:
            return next((one for one in alike if not (one.is_done or one.is_told)), alike[-1])
        for item in alike:
            # It began without what its pieces have.
            if not (item.is_done or (id and item.id) or (has_place and item.at is not None)):
                item.id, item.at = item.id or id, at if has_place else item.at
                return item
        return self._open(kind, id, at)

    def _open(self, kind: str, id: str, at: Any) -> OutputItem:
        if len(self._items) >= _MOST_ITEMS:
            raise LimitError(f"the answer has over {_MOST_ITEMS} items")
        for item in self._items:
            item.is_told = item.is_told or bool(item.said or item.arguments)
        item = OutputItem(kind, id, at if type(at) is int else None)
        self._items.append(item)
        return item

    def _take_output(self, output: Any) -> None:
        """Take the items of the last event, and their order."""
        listed = (
            [one for one in output if isinstance(one, dict)] if isinstance(output, list) else []
        )
        known = list(self._items)
        order: list[OutputItem] = []
        for fields in listed:
            item = _match(fields, known)
            if item is None:
                if any(fields.get("id") == one.id and fields == one.fields for one in order):
                    continue
                item = self._open(_text(fields.get("type")), _text(fields.get("id")), None)
            else:
                known.remove(item)
            item.take(fields, is_done=True)
            order.append(item)
        if listed and not known:
            self._items = order
        else:
            places = [item.at for item in self._items]
            if len(set(places)) == len(places) and None not in places:
                self._items.sort(key=lambda item: item.at or 0)
        for item in self._items:
            self._tell(item)

    def _tell(self, item: OutputItem) -> None:
        """Tell what an item says, if no pieces of it came."""
        if item.kind == "message" and not item.said and (text := item.text):
            self._say(item, text)
        elif item.kind == "reasoning" and not item.has_thought and (thought := item.thought):
            item.has_thought = True
            self._speech.think(thought)

    def _say(self, item: OutputItem, text: str) -> None:
        if self._spoke is not None and self._spoke is not item and not item.said:
            self._speech.say(_APART)
        self._spoke = item
        item.said.append(text)
        self._speech.say(text)

    # The end.

    def _last_deltas(self) -> list[Delta]:
        self._check_end()
        reason = self._reason()
        refusal = "".join(item.refusal for item in self._items if item.kind == "message")
        reason = "refusal" if refusal else reason
        self._speech.finish()
        calls = self._calls(reason)
        if calls and reason == "refusal":
            self._notice("calls_despite_refusal", "the calls of a refused answer were left out")
            calls = []
        kept = self._items_to_keep(calls)
        self._tell_cache_miss()
        self._correct_text()
        self._check_content(reason, calls)
        if not calls and looks_leaked(self._speech.heard, self._tools):
            text = "the answer has a tool call as text; text is never executed"
            self._notice("leaked_call", text)
        return [
            *self._speech.take(),
            *calls,
            *([Extras({OUTPUT: kept})] if kept else []),
            Finish(
                "tool_calls" if calls else reason,
                self._usage(),
                raw=repair_text(self._raw()),
                refusal=repair_text(refusal) or None,
                cost_usd=read_cost(self._response.get("usage")),
                served=self._served.served,
                long_written=first_count(self._response.get("usage"), (_LONG_WRITTEN,)),
                in_batch=True if self._response.get("service_tier") == "batch" else None,
            ),
        ]

    def _check_end(self) -> None:
        if self._end in {"failed", "cancelled"}:
            if error := self._response.get("error"):
                raise in_band_error(error, self._mask)
            raise InBandError(f"the response {_ENDED_AS[self._end]}", code=self._end)
        if self._end:
            return
        if self._finish_optional and self._marked and self._items:
            self._notice("no_finish_reason", "the answer ended without `response.completed`")
            return
        raise IncompleteStreamError("the stream ended before the answer did")

    def _raw(self) -> str:
        reason = _object(self._response.get("incomplete_details")).get("reason")
        return _text(reason) if self._end == "incomplete" and reason else self._end

    def _reason(self) -> FinishReason:
        if self._end == "incomplete":
            return "refusal" if self._raw() == "content_filter" else "length"
        if any(item.fields.get("status") == "incomplete" for item in self._items):
            return self._cut("the server calls an item of it incomplete")
        limit, count = self.limit or self._response.get("max_output_tokens"), self._usage().output
        if type(limit) is int and count is not None and count >= limit > 0:
            return self._cut(f"it has all {limit} tokens that it may have")
        return "stop" if self._end in {"completed", "done", ""} else "other"

    def _cut(self, why: str) -> FinishReason:
        self._notice("cut_though_completed", f"the answer is `completed` and yet cut off: {why}")
        return "length"

    def _usage(self) -> Usage:
        told = self._response.get("usage")
        usage = Usage(**{name: first_count(told, (path,)) for name, path in _COUNTS.items()})
        usage = whole_input(usage)
        # An answer to nothing there is not: whoever counts zero does not count.
        return usage if usage.input else Usage(output=usage.output or None)

    def _calls(self, reason: FinishReason) -> list[ToolCall]:
        """The calls, one for each id: what has the same id has the same output."""
        merged: dict[str, tuple[OutputItem, list[str]]] = {}
        for index, item in enumerate(self._items):
            if item.kind != "function_call":
                continue
            name, arguments = _text(item.fields.get("name")), item.whole_arguments()
            if reason == "length" and not (name and is_whole(arguments)):
                message = "truncated tool call: the token limit came in its arguments"
                raise TruncatedToolCallError(message)
            if not name and reason != "refusal":
                raise MalformedToolCallError("malformed tool call: its name was never sent")
            id = repair_text(item.call_id)
            if not id.strip():
                others = {*merged, *(other.call_id for other in self._items)}
                id = make_call_id(self._place, index, others)
                item.fields["call_id"] = id
            if (known := merged.get(id)) is None:
                merged[id] = (item, [arguments])
            elif _text(known[0].fields.get("name")) != name or canonical(known[1][0]) != canonical(
                arguments
            ):
                # Two values are no arguments: the model is told so, and neither call is made.
                known[1].append(arguments or "{}")
                self._notice("repeated_call", "two calls of the answer have the same id")
        return [
            ToolCall(id, repair_text(_text(item.fields["name"])), repair_text("".join(arguments)))
            for id, (item, arguments) in merged.items()
            if item.fields.get("name")
        ]

    def _items_to_keep(self, calls: list[ToolCall]) -> list[dict[str, Any]]:
        """The items for later requests, if they say more than text and calls do.

        A call has only a place here, and what its server wants to see again: ids, arguments and
        names are those of the turn.
        """
        waiting = {call.id for call in calls}
        kept: list[dict[str, Any]] = []
        is_torn = False
        for item in self._items:
            kind, fields = item.kind, _whole_fields(item)
            if kind in _UNANSWERED or not kind:
                self._notice_item(kind)
                is_torn |= _drop_last_thoughts(kept)
            elif kind == "function_call":
                if item.call_id in waiting:
                    waiting.remove(item.call_id)
                    kept.append({key: fields[key] for key in fields if key not in _OWN})
                else:
                    is_torn |= _drop_last_thoughts(kept)
            elif kind == "reasoning":
                # Its status is told, and refused if it comes back, as nulls are.
                whole = {
                    key: value
                    for key, value in fields.items()
                    if key != "status" and (value is not None or key == "encrypted_content")
                }
                if item.is_done and (whole.get("encrypted_content") or whole.get("content")):
                    kept.append(whole)
                else:
                    is_torn = True
            else:
                if kind != "message":
                    self._notice_item(kind)
                kept.append(fields)
        _drop_last_thoughts(kept)
        if is_torn:
            # The endpoint does not know what it did not store: no id may lead to it.
            kept = [{key: fields[key] for key in fields if key != "id"} for fields in kept]
        return [] if all(map(_is_plain, kept)) else list(map(repair_fields, kept))

    def _notice_item(self, kind: str) -> None:
        name = excerpt(kind, self._mask) or "without a type"
        fate = "left out" if kind in _UNANSWERED or not kind else "kept for its endpoint"
        self._notice_of(f"item {kind}", "other_item", f"an item `{name}` was {fate}")

    def _tell_cache_miss(self) -> None:
        """Tell why the cache was not used, where `params.prompt_cache_options` asked for that."""
        told = _object(self._response.get("prompt_cache_diagnostics"))
        if told.get("type") not in {None, "cache_hit"}:
            reason = excerpt(_text(told.get("reason") or told["type"]), self._mask)
            count = first_count(told, (("cache_missed_tokens",),))
            self._notice("cache_miss", cache_miss_text(reason, count))

    def _correct_text(self) -> None:
        """Say what the items say in the end, if the pieces were something else."""
        messages = [item for item in self._items if item.kind == "message"]
        is_final = any(item.fields.get("phase") == "final_answer" for item in messages)
        aside = [one for one in messages if is_final and one.fields.get("phase") == "commentary"]
        told = [item.text for item in messages if item not in aside]
        again = Speech()
        again.say(_APART.join(filter(None, told)))
        again.finish()
        heard, whole = self._speech.heard, again.heard
        if whole == heard:
            return
        if heard and whole.startswith(heard):
            self._speech.adopt([TextPiece(whole[len(heard) :])])
            return
        if heard:
            why = "is only on the way to the answer" if aside else "is not what it says in the end"
            self._speech.remark(Withdrawn(f"some of the text {why}"))
        thoughts = [item.thought for item in self._items if item.kind == "reasoning"]
        for thought in filter(None, (*thoughts, *(item.text for item in aside))):
            self._speech.remark(ReasoningPiece(repair_text(thought)))
        for delta in again.take():
            self._speech.remark(delta)

    def _check_content(self, reason: FinishReason, calls: list[ToolCall]) -> None:
        """Refuse an empty answer, unless the model was plainly done."""
        if calls or reason in {"refusal", "length"} or self._speech.said:
            return
        kinds = {item.kind for item in self._items}
        if unanswered := sorted(kinds & _UNANSWERED):
            message = f"malformed tool call: nothing here answers a `{unanswered[0]}`"
            raise MalformedToolCallError(message)
        if not kinds and not self._usage().output:
            raise EmptyStreamError("the stream ended without an answer")


_ENDED_AS: Final = {"failed": "failed", "cancelled": "was cancelled"}
_ENDS: Final = frozenset(f"response.{end}" for end in ("completed", "done", *_WORSE))
_EVENTS: Final[Mapping[str, Callable[[ResponsesDecoder, dict[str, Any]], None]]] = {
    "response.created": ResponsesDecoder.on_created,
    "response.output_item.added": ResponsesDecoder.on_added,
    "response.output_item.done": ResponsesDecoder.on_done,
    "response.output_text.delta": ResponsesDecoder.on_text,
    "response.output_text.done": ResponsesDecoder.on_text_done,
    "response.refusal.delta": ResponsesDecoder.on_refusal,
    "response.refusal.done": ResponsesDecoder.on_refusal,
    "response.reasoning_text.delta": ResponsesDecoder.on_thought,
    "response.reasoning_summary_text.delta": ResponsesDecoder.on_thought,
    "response.reasoning_summary_part.added": ResponsesDecoder.on_thought_part,
    "response.function_call_arguments.delta": ResponsesDecoder.on_arguments,
    "response.function_call_arguments.done": ResponsesDecoder.on_arguments_done,
    **dict.fromkeys(_ENDS, ResponsesDecoder.on_end),
}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _texts(value: Any) -> Iterable[str]:
    """The texts of parts, whatever their types."""
    if isinstance(value, str):
        yield value
    for part in value if isinstance(value, list) else ():
        if isinstance(part, dict):
            yield _text(part.get("text"))


def _parts(fields: Mapping[str, Any], name: str) -> Iterable[str]:
    """The texts, or the refusals, in the content of a message."""
    content = fields.get("content")
    if isinstance(content, str):
        content = [{"text": content}]
    for part in content if isinstance(content, list) else ():
        if isinstance(part, dict):
            yield _text(part.get(name))


def _match(fields: dict[str, Any], known: list[OutputItem]) -> OutputItem | None:
    """The item that the last event describes: by its id, else the next of its kind."""
    kind, id, call_id = (_text(fields.get(key)) for key in ("type", "id", "call_id"))
    alike = [item for item in known if item.kind == kind]
    for item in alike:
        if (id and item.id == id) or (call_id and item.call_id == call_id):
            return item
    if kind == "function_call" and call_id:
        alike = [item for item in alike if not item.call_id]
    return alike[0] if alike else None


def _whole_fields(item: OutputItem) -> dict[str, Any]:
    """The fields of an item, with its text where no end of it came."""
    if item.kind != "message" or item.is_done or not (text := item.text):
        return item.fields
    part = {"type": "output_text", "text": text, "annotations": []}
    return {"role": "assistant", **item.fields, "type": "message", "status": "completed",
            "content": [part]}  # fmt: skip


def _drop_last_thoughts(kept: list[dict[str, Any]]) -> bool:
    """Drop the reasoning at the end, which is refused without what followed it; true if any."""
    count = len(kept)
    while kept and kept[-1].get("type") == "reasoning":
        kept.pop()
    return len(kept) < count


def _is_plain(fields: dict[str, Any]) -> bool:
    if fields.get("type") not in {"message", "function_call"} or fields.keys() - _PLAIN:
        return False
    parts = fields.get("content")
    return not isinstance(parts, list) or not any(
        value for part in parts if isinstance(part, dict) for name, value in part.items()
        if name not in _PLAIN_PART
    )  # fmt: skip
