"""Requests to models in a past run: the new messages of each, and its answer."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from aish.core.events import RunFinished, RunStarted, Stamped, TurnFinished
from aish.core.frozen import frozen
from aish.core.json import JsonObject
from aish.journal.history import Ended, RunHistory, SentRequest, TurnRecord, Unanswered

ReadFile = Callable[[str], bytes | None]
"""A file that a message names -> its content; `None` where it is not there any more."""

Answered = tuple[SentRequest, TurnFinished | None]
"""A request and its answer; `None` where none came."""


@frozen
class RequestFilter:
    """Selects requests: of a step and its parts, of one item; all without either."""

    step: str | None = None
    item: str | None = None

    def has(self, step: str, item: str | None) -> bool:
        inside = self.step is None or step == self.step or step.startswith(f"{self.step}/")
        if self.item is None or not inside:
            return inside
        # The steps of an item's own pipeline are `outer/inner`.
        return item is not None and (item == self.item or item.startswith(f"{self.item}/"))


def requests(
    events: Iterable[Stamped], wanted: RequestFilter, read_file: ReadFile
) -> Iterator[Answered]:
    """The selected requests of a run, in order of their ends.

    Those without an end, because the run was interrupted, come last. Memory is proportional to the
    open conversations.
    """
    history = RunHistory()
    for stamped in events:
        place = stamped.event.place
        if place.step is None:
            is_wanted = isinstance(stamped.event, RunStarted | RunFinished)
        else:
            is_wanted = wanted.has(place.step, place.item)
        if is_wanted:
            yield from _answers(history.take(stamped), read_file)
    yield from _answers(history.rest(), read_file)


def _answers(ended: Iterable[Ended], read_file: ReadFile) -> Iterator[Answered]:
    for entry in ended:
        if isinstance(entry, TurnRecord | Unanswered) and entry.request is not None:
            messages = tuple(
                [whole_message(message, read_file) for message in entry.request.messages]
            )
            answer = entry.said if isinstance(entry, TurnRecord) else None
            yield replace(entry.request, messages=messages), answer


def whole_message(message: JsonObject, read_file: ReadFile) -> JsonObject:
    """A message with its full text, if the file with it still exists."""
    file = message.get("file")
    if not isinstance(file, str):
        return message
    content = read_file(file)
    if content is None:
        return message
    key = "content" if message.get("role") == "tool" else "text"
    return {**message, key: content.decode("utf-8", "replace")}
