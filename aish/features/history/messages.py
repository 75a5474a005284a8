"""What models were sent in a past run, put together from its journal: each request, what is new."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import field

from aish.core.events import (
    Event,
    HistoryReplaced,
    ItemFinished,
    ItemStarted,
    Retry,
    Stamped,
    StepFinished,
    StepStarted,
    ToolFinished,
    TurnAdded,
    TurnFinished,
    TurnPurpose,
    TurnStarted,
)
from aish.core.frozen import frozen, slotted
from aish.core.json import JsonObject, JsonValue

ReadFile = Callable[[str], bytes | None]
"""A file that a message names -> its content; `None` where it is not there any more."""


@slotted
class Request:
    """One request: the messages that it adds to those of the one before it, and the answer.

    A message is as in `turn.added`, its text whole. `earlier` counts messages before the first
    one here, which another step has. `rewritten` says why the messages are all there are, and not
    only the new ones. `answer` is missing where none came.
    """

    step: str
    item: str | None
    attempt: int
    turn: int | None
    model: str
    purpose: TurnPurpose
    messages: Sequence[JsonObject]
    count: int
    earlier: int = 0
    rewritten: str | None = None
    answer: TurnFinished | None = None


@slotted
class _Talk:
    """A conversation so far; `new` begins what was not sent yet, `sent` says whether any was."""

    messages: list[JsonObject] = field(default_factory=list)
    new: int = 0
    sent: bool = False
    rewritten: str | None = None
    asked: list[str] = field(default_factory=list)


@slotted
class _Unit:
    """A step or an item in which requests are made."""

    step: str
    item: str | None
    attempt: int = 1
    talks: dict[str, _Talk] = field(default_factory=dict)
    under_way: dict[str, Request] = field(default_factory=dict)


@frozen
class Wanted:
    """Which requests: of a step and what is in it, and of one item; of all with neither."""

    step: str | None = None
    item: str | None = None

    def has(self, step: str, item: str | None) -> bool:
        """Whether a unit is one of those."""
        inside = self.step is None or step == self.step or step.startswith(f"{self.step}/")
        if self.item is None or not inside:
            return inside
        # What an item's own pipeline has items of is `outer/inner`.
        return item is not None and (item == self.item or item.startswith(f"{self.item}/"))


def requests(events: Iterable[Stamped], wanted: Wanted, read_file: ReadFile) -> Iterator[Request]:
    """Every request of a run that is wanted, in the order of their ends.

    Those that have no end, because the run was interrupted, come last. Memory is that of the
    conversations that are under way.
    """
    units: dict[tuple[str, str | None], _Unit] = {}
    for stamped in events:
        event = stamped.event
        step, item = event.place.step, event.place.item
        if step is None or not wanted.has(step, item):
            continue
        if isinstance(event, StepStarted | ItemStarted):
            yield from _unanswered(units.get((step, item)))
            units[step, item] = _Unit(step, item)
        elif isinstance(event, StepFinished | ItemFinished):
            yield from _unanswered(units.pop((step, item), None))
        else:
            unit = units.setdefault((step, item), _Unit(step, item))
            yield from _in_unit(unit, event, read_file)
    for unit in units.values():
        yield from _unanswered(unit)


def _in_unit(unit: _Unit, event: Event, read_file: ReadFile) -> Iterator[Request]:
    """The requests that end with this event."""
    match event:
        case Retry(place=place, endpoint=endpoint):
            if place.turn is None and endpoint == f"step {unit.step}":
                yield from _unanswered(unit)
                unit.talks.clear()
                unit.under_way.clear()
                unit.attempt += 1
        case TurnAdded():
            _add(unit, event, _whole(event.turn, read_file))
        case HistoryReplaced():
            _replace(unit, event, read_file)
        case TurnStarted(purpose=purpose):
            if purpose in unit.under_way:
                yield unit.under_way.pop(purpose)
            unit.under_way[purpose] = _request(unit, event)
        case TurnFinished(purpose=purpose):
            found = unit.under_way.pop(purpose, None)
            if found is not None:
                _answer(unit.talks[purpose], event)
                found.answer = event
                yield found
        case ToolFinished():
            _reply(unit, event)
        case _:
            pass


def _unanswered(unit: _Unit | None) -> Iterator[Request]:
    if unit is not None:
        yield from unit.under_way.values()


def _purpose(event: TurnAdded | HistoryReplaced) -> str:
    return "answer" if event.purpose == "conversation" else event.purpose


def _talk(unit: _Unit, purpose: str) -> _Talk:
    return unit.talks.setdefault(purpose, _Talk())


def _add(unit: _Unit, event: TurnAdded, message: JsonObject) -> None:
    purpose, role = _purpose(event), message.get("role")
    talk = _talk(unit, purpose)
    begins = purpose in {"summary", "sampling"} or (purpose == "judge" and role == "system")
    if begins and talk.sent:
        talk = unit.talks[purpose] = _Talk()
    # What was sent is not always what was said before: this stands in its place.
    if role == "assistant" and talk.messages and talk.messages[-1].get("role") == "assistant":
        talk.messages[-1] = message
        talk.asked = _ids(message)
        return
    if role == "tool":
        call = message.get("call_id")
        for at in range(talk.new, len(talk.messages)):
            if talk.messages[at].get("call_id") == call:
                talk.messages[at] = message
                return
    talk.messages.append(message)


def _replace(unit: _Unit, event: HistoryReplaced, read_file: ReadFile) -> None:
    talk = _talk(unit, _purpose(event))
    _in_order(talk)
    before = talk.messages
    talk.messages = []
    for one in event.turns:
        at = one.get("at")
        if isinstance(at, int) and 0 <= at < len(before):
            talk.messages.append(before[at])
        else:
            talk.messages.append(_whole(one, read_file))
    talk.new, talk.rewritten = 0, event.reason


def _request(unit: _Unit, event: TurnStarted) -> Request:
    talk = _talk(unit, event.purpose)
    _in_order(talk)
    new, known = talk.messages[talk.new :], len(talk.messages)
    found = Request(
        step=unit.step,
        item=unit.item,
        attempt=unit.attempt,
        turn=event.place.turn,
        model=event.model,
        purpose=event.purpose,
        messages=tuple(new),
        count=event.messages,
        earlier=max(0, event.messages - known),
        rewritten=talk.rewritten,
    )
    talk.new, talk.rewritten, talk.sent = known, None, True
    return found


def _answer(talk: _Talk, event: TurnFinished) -> None:
    """The answer is the next message of its conversation."""
    calls: list[JsonValue] = [
        {"id": call.id, "name": call.name, "arguments": call.arguments} for call in event.calls
    ]
    said: JsonObject = {"role": "assistant", "text": event.text}
    message: JsonObject = {**said, "calls": calls} if calls else said
    talk.messages.append(message)
    talk.asked = _ids(message)


def _ids(message: JsonObject) -> list[str]:
    calls = message.get("calls")
    found = calls if isinstance(calls, list) else []
    return [str(call.get("id")) for call in found if isinstance(call, dict)]


def _reply(unit: _Unit, event: ToolFinished) -> None:
    talk = unit.talks.get("answer")
    if talk is not None and event.place.call in talk.asked:
        reply = {"role": "tool", "call_id": event.place.call, "tool": event.tool}
        talk.messages.append({**reply, "content": event.content})


def _in_order(talk: _Talk) -> None:
    """Replies are told as calls end, and sent in the order of the calls."""
    order = {id: at for at, id in enumerate(talk.asked)}
    roles = [one.get("role") for one in talk.messages]
    at = len(roles) - roles[::-1].index("assistant") if "assistant" in roles else 0
    replies = [one for one in talk.messages[at:] if one.get("role") == "tool"]
    replies.sort(key=lambda one: order.get(str(one.get("call_id")), len(order)))
    following = iter(replies)
    talk.messages[at:] = [
        next(following) if one.get("role") == "tool" else one for one in talk.messages[at:]
    ]


def _whole(message: JsonObject, read_file: ReadFile) -> JsonObject:
    """A message with its text whole, where the file that has it is still there."""
    file = message.get("file")
    if not isinstance(file, str):
        return message
    content = read_file(file)
    if content is None:
        return message
    key = "content" if message.get("role") == "tool" else "text"
    return {**message, key: content.decode("utf-8", "replace")}
