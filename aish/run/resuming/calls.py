"""The calls of a step or an item, as its journal has them."""

from collections.abc import Callable, Iterator
from typing import Any

from aish.agent.dispatch import CONTENT, STEP_OUTPUT
from aish.agent.runtime import UsedCall
from aish.agent.turn_json import ReadFile
from aish.config.documents import parse_json
from aish.core.frozen import slotted
from aish.core.json import JsonObject, JsonValue

Repeatable = Callable[[str], bool]
"""Whether a tool, `alias__name`, may be called again without asking anybody."""

_Key = tuple[int, Any, Any]


@slotted
class Call:
    """One call; `began` is when it left for its server, if it did."""

    tool: str
    arguments: JsonValue = None
    verdict: Any = None
    rule: str = ""
    began: str | None = None
    finished: JsonObject | None = None

    @property
    def unknown(self) -> bool:
        """Whether it was made, maybe, and nobody knows what came of it."""
        return self.began is not None and (
            self.finished is None or self.finished.get("kind") == "unknown"
        )


class Calls:
    """All calls of one step or item, in every attempt at it.

    `whole` keeps those that can be called again too: a later step may read them.
    """

    def __init__(self, repeatable: Repeatable, read_file: ReadFile, *, whole: bool) -> None:
        self._repeatable = repeatable
        self._read_file = read_file
        self._whole = whole
        self._calls: dict[_Key, Call] = {}
        self._asked: dict[_Key, JsonValue] = {}
        self._attempt = 0

    def begin(self) -> None:
        """Another attempt at the same step or item: what it calls is counted anew."""
        self._attempt += 1

    def asked(self, turn: JsonObject) -> None:
        """`turn.finished`: calls that a model asked for stand in its order."""
        calls: Any = turn.get("calls") or ()
        for call in calls if self._whole else ():
            key = (self._attempt, turn.get("turn"), call.get("id"))
            self._asked[key] = call.get("arguments")

    def decided(self, record: JsonObject) -> None:
        """`tool.decided`."""
        tool = str(record.get("tool"))
        if self._whole or not self._repeatable(tool):
            call = self._calls[self._key(record)] = Call(tool)
            call.arguments = record.get("arguments")
            call.verdict, call.rule = record.get("verdict"), str(record.get("rule"))

    def started(self, record: JsonObject) -> None:
        """`tool.started`."""
        call = self._of(record)
        if call is not None:
            call.began = str(record.get("time"))

    def finished(self, record: JsonObject) -> None:
        """`tool.finished`."""
        call = self._of(record)
        if call is not None:
            call.finished = record

    def made(self) -> Iterator[Call]:
        """Those that were sent, and may not be sent again just so."""
        for call in self._calls.values():
            if call.began is not None and not self._repeatable(call.tool):
                yield call

    def used(self, output: JsonValue) -> tuple[UsedCall, ...]:
        """Those of the last attempt that have ended, in the order they were asked for.

        `output` is that of the step or item.
        """
        now = self._attempt
        order = {key: place for place, key in enumerate(self._asked)}
        last = [(key, call) for key, call in self._calls.items() if key[0] == now]
        last.sort(key=lambda one: order.get(one[0], -1))
        return tuple(
            self._used(call, call.finished, output) for _, call in last if call.finished is not None
        )

    def _used(self, call: Call, finished: Any, output: JsonValue) -> UsedCall:
        content = str(finished.get("content") or "")
        full = finished.get("full")
        return UsedCall(
            tool=call.tool,
            arguments=call.arguments,
            verdict=call.verdict,
            rule=call.rule,
            kind=finished.get("kind"),
            content=content,
            structured=self._structured(finished, content, output),
            seconds=float(finished.get("seconds") or 0.0),
            full=None if full is None else str(full),
            whole=content,
        )

    def _structured(self, finished: Any, content: str, output: JsonValue) -> JsonValue:
        """The structured content; nothing where what holds it is gone, or a secret made it odd."""
        place = finished.get("structured_in")
        if place is None:
            structured: JsonValue = finished.get("structured")
            return structured
        if place == STEP_OUTPUT:
            return output
        data = content.encode() if place == CONTENT else self._read_file(str(place))
        try:
            return None if data is None else parse_json(data.decode())
        except ValueError:
            return None

    def _key(self, record: JsonObject) -> _Key:
        return self._attempt, record.get("turn"), record.get("call")

    def _of(self, record: JsonObject) -> Call | None:
        key = self._key(record)
        call = self._calls.get(key)
        if call is None:
            tool = str(record.get("tool"))
            if not self._whole and self._repeatable(tool):
                return None
            # Refused before any rule was asked: what the model wrote is all there is.
            call = self._calls[key] = Call(tool, self._asked.get(key))
        return call
