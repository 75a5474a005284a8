"""Events of a live run by their number: those that memory keeps, and older ones from its journal.

A journal has the events as they are told, masked, and each is written before it is told. What is
missing in it are only pieces of answers and output, which are not kept anywhere.
"""

import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import BinaryIO, Final

from anyio import to_thread

from aish.core.errors import AishError
from aish.core.events import Stamped, to_line, to_object
from aish.core.frozen import frozen
from aish.core.json import JsonObject, json_text
from aish.features.control.run_state import EventsGoneError, RunState
from aish.journal.reader import JournalReading
from aish.journal.writer import JournalError
from aish.net.listen.http_error import HttpError
from aish.net.listen.routes import EventQueue, ServerEvent
from aish.system.files import open_own

MOST_EVENTS: Final = 1000
"""How many events one answer has at most."""
_MOST_BYTES = 8 << 20
_MOST_BEHIND = 1000
_HEAD = re.compile(rb'\{"v":\d+,"seq":(\d+),')
_LINE = 1 << 16
_HEAD_BYTES = 64


@frozen
class PastEventPage:
    """Events after a number, in order; `next` is the number to ask for what follows them."""

    events: Sequence[JsonObject]
    next: int


class PastEvents:
    """The events of a run that have happened; `journal` is its file, if it has one."""

    def __init__(self, state: RunState, journal: Path | None) -> None:
        self._state = state
        self._journal = journal
        self.streams = 0
        """How many readers there are that get what follows."""
        self._latest: tuple[Stamped, ServerEvent] | None = None

    async def page(self, after: int | None) -> PastEventPage:
        """The events after a number, or the oldest that memory keeps.

        Raises:
            HttpError: they are not kept any more.
        """
        while True:
            try:
                events, following = self._state.after(after, MOST_EVENTS)
            except EventsGoneError as error:
                assert after is not None, "the oldest are there"
                page = await self._read_journal_page(after, error)
            else:
                return PastEventPage([to_object(event) for event in events], following)
            if page.events:
                return page
            after = page.next

    async def stream(self, after: int | None) -> "PastAndLive":
        """The events after a number, or the oldest that memory keeps, and all that follow.

        Call `stop` of the result at its end.

        Raises:
            HttpError: they are not kept any more.
        """
        stream = PastAndLive(self, self._state, after)
        self.streams += 1
        try:
            await stream.begin()
        except BaseException:
            stream.stop()
            raise
        return stream

    def encode(self, stamped: Stamped) -> ServerEvent:
        """An event for a stream; all readers that follow hold the same one."""
        if self._latest is None or self._latest[0] is not stamped:
            line = to_line(stamped).decode().rstrip("\n")
            self._latest = stamped, ServerEvent(line, id=str(stamped.seq))
        return self._latest[1]

    async def _read_journal_page(self, after: int, gone: EventsGoneError) -> PastEventPage:
        if self._journal is None:
            raise _events_gone_error(gone)
        try:
            return await to_thread.run_sync(read_page, self._journal, after, gone.first)
        except (OSError, AishError) as error:
            raise _events_gone_error(gone) from error


class PastAndLive(EventQueue):
    """The events that a reader gets: older ones as it takes them, then each as it comes."""

    def __init__(self, past: PastEvents, state: RunState, after: int | None) -> None:
        super().__init__(_MOST_BEHIND)
        self._past = past
        self._state = state
        self._after = after
        self._is_live = False
        self._stop: Callable[[], None] = lambda: None

    async def begin(self) -> None:
        """Find the first events.

        Raises:
            HttpError: they are not kept any more.
        """
        await self._more()

    async def take(self) -> list[ServerEvent]:
        """The events that are there, at least one; none at the end."""
        while not self._events and not self._is_live and not self.overflowed.is_set():
            try:
                await self._more()
            except HttpError:
                # They cannot be read any more: who asks again is told so.
                self._closed = True
                self.overflowed.set()
        return await super().take()

    def stop(self) -> None:
        """Nobody reads any more."""
        self._past.streams -= 1
        self._stop()

    async def _more(self) -> None:
        """Some older events of the journal or of memory; behind the last of these, what follows.

        Never all at once: a reader that is slow holds little.
        """
        try:
            # Nothing comes between what is there and what follows: nobody else runs here.
            events, _ = self._state.after(self._after, MOST_EVENTS)
        except EventsGoneError:
            page = await self._past.page(self._after)
            self._after = page.next
            self._events.extend(
                ServerEvent(json_text(record), id=str(record["seq"])) for record in page.events
            )
            return
        text = 0
        for stamped in events:
            event = self._past.encode(stamped)
            self._events.append(event)
            self._after = stamped.seq
            text += len(event.data)
            if text > _MOST_BYTES:
                return
        if len(events) == MOST_EVENTS:
            return
        self._most = len(self._events) + _MOST_BEHIND
        self._is_live = True
        if self._state.is_finished:
            self.close()
        else:
            self._stop = self._state.follow(lambda one: self.put(self._past.encode(one)))


def _events_gone_error(error: EventsGoneError) -> HttpError:
    message = f"events up to number {error.first} are not kept any more"
    hint = f"`after={error.first}` gives all that follow them"
    return HttpError(410, "events_gone", message, hint=hint)


def read_page(path: Path, after: int, last: int) -> PastEventPage:
    """Events of a journal after a number, up to the `last` one.

    Raises:
        OSError: it cannot be read.
        AishError: it is damaged, or it is not a file of this user.
    """
    records: list[JsonObject] = []
    file = os.fdopen(open_own(path), "rb")
    with JournalReading(file, str(path)) as reading:
        begin = file.seek(_place_after(file, after))
        for record in reading:
            number = record["seq"]
            assert isinstance(number, int), "each record has one"
            if number > last:
                return PastEventPage(records, last)
            if number > after:
                records.append(record)
                after = number
            if len(records) == MOST_EVENTS or (records and file.tell() - begin > _MOST_BYTES):
                break
        else:
            # Memory keeps what follows, so that the journal would have it too.
            if not records:
                raise JournalError("the journal does not have all events", where=str(path))
    return PastEventPage(records, after)


def _place_after(file: BinaryIO, number: int) -> int:
    """A place in a journal at which a line begins, not behind the first record after a number.

    Records stand in the order of their numbers, so this halves what is left again and again.
    """
    low, high = 0, os.fstat(file.fileno()).st_size
    while high - low > _LINE:
        middle = (low + high) // 2
        file.seek(middle)
        file.readline(high - middle)
        place = file.tell()
        head = _HEAD.match(file.read(_HEAD_BYTES)) if place < high else None
        if head is None or int(head[1]) > number:
            high = middle
        else:
            low = place
    return low
