"""Counts the items of a long journal that need no fold.

Nearly all items of a batch were asked, answered without calls, and ended well. A resumed run needs
no more of them than their number, their key and what they cost. So the lines of an item are held,
undecoded, until its end; whatever else is said about an item has its lines folded first, and what
is said about the run or a step has the lines of all items folded first.
"""

import json
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from operator import itemgetter

from aish.core.events import StepStatus
from aish.core.json import JsonObject
from aish.core.messages import Usage
from aish.engine.resume_state import DoneItem
from aish.features.resume.scan import Scan
from aish.journal.reader import ItemLine, JournalReading, is_simple_place, time_of

_ANSWER = b"turn.finished"
_TURNS = frozenset({b"turn.started", b"turn.added", _ANSWER})
_WELL: Mapping[bytes, StepStatus] = {b"ok": "ok", b"skipped": "skipped"}
_Match = Callable[[bytes, int], re.Match[bytes] | None]
# A key with escapes is in a place with escapes, whose lines are decoded.
_KEY = rb'"key":"[^"]*","index":(0|[1-9]\d{0,17}),'
_STARTED = re.compile(_KEY + rb'"digest":"([0-9a-f]*)",').match
_FINISHED = re.compile(_KEY + rb'"status":"(ok|skipped)",').match

# The last keys of a record. Of text, quotes are escaped; from a value within the record they do not
# reach to its end. Older journals do not say how many tokens were written to a cache.
_USAGE = (
    rb'"usage":{"input":([^,]*),"output":([^,]*),"cached":([^,]*),"reasoning":([^,}]*)'
    rb'(?:,"cache_written":([^}]*))?},'
)
_ANSWERED_FROM = b',"calls":[],"usage":{'
_ANSWERED = re.compile(
    rb',"calls":\[\],'
    + _USAGE
    + rb'"first_token_seconds":[^,"]*,"seconds":[^,"]*,"cost_usd":([^,]*),"purpose":"[a-z]*"'
    rb'(?:,"served":(?:null|{[^{}]*}))?}'
).fullmatch
_ALIAS = re.compile(rb'"model":"([^"\\]*)"').match
_SERVED_FROM = b',"served":'
_SERVED = re.compile(rb',"served":(?:null|{("model":[^\\]*),"id":(?:null|"[^"]*")})}').fullmatch
_ENDED_FROM = b',"usage":{'
_ENDED = re.compile(
    rb"," + _USAGE + rb'"cost_usd":([^,]*),"seconds":[^,"]*,"error":null(?:,"exit_code":[^,"]*)?}'
).fullmatch


def scan_journal(reading: JournalReading, scan: Scan) -> None:
    """Fold all records of a journal.

    Raises:
        JournalError: a record is damaged, or a newer aish wrote it.
    """
    items = _PlainItems(reading, scan)
    for line in reading.lines():
        items.take(line)
    items.release_all()


class _PlainItems:
    """The lines of the items in flight, by place."""

    def __init__(self, reading: JournalReading, scan: Scan) -> None:
        self._reading = reading
        self._scan = scan
        self._held: dict[bytes, list[ItemLine]] = {}
        self._last: ItemLine | None = None
        """The last line, if the scan has not seen it."""

    def take(self, line: ItemLine | JsonObject) -> None:
        """A line of an item, or another record."""
        if type(line) is not tuple:
            if self._held or self._last:
                self.release_all()
            self._scan.take(line)
            return
        kind, place = line[0], line[1]
        held = self._held.get(place)
        if held is None:
            if not is_simple_place(place):
                self.take(self._reading.decode(line[4]))
                return
            if kind == b"item.started":
                self._held[place] = [line]
                self._last = line
                return
        elif kind in _TURNS:
            held.append(line)
            self._last = line
            return
        else:
            del self._held[place]
            if kind == b"item.finished" and self._is_counted(held, line):
                self._last = line
                return
            self._fold(held)
        self._skip_to_last()
        self._scan.take(self._reading.decode(line[4]))

    def release_all(self) -> None:
        """Fold the lines of all items in flight, in their order."""
        lines = [line for held in self._held.values() for line in held]
        self._held.clear()
        self._fold(sorted(lines, key=itemgetter(2)))

    def _fold(self, lines: list[ItemLine]) -> None:
        self._skip_to_last()
        self._scan.take_late([self._reading.decode(line[4]) for line in lines])

    def _skip_to_last(self) -> None:
        if self._last is not None:
            self._scan.skip_to(self._last[2], time_of(self._last))
            self._last = None

    def _is_counted(self, held: list[ItemLine], end: ItemLine) -> bool:
        """Count an item by its lines; false if its records have to be folded."""
        _, place, began, after, line = held[0]
        started, finished = _STARTED(line, after), _FINISHED(end[4], end[3])
        if started is None or finished is None:
            return False
        try:
            step, _, key = place.decode().partition('","item":"')
            answers = [
                _read_usage(one[4], _ANSWERED_FROM, _ANSWERED) for one in held if one[0] == _ANSWER
            ]
            served = [_read_served(one) for one in held if one[0] == _ANSWER]
            total = _read_usage(end[4], _ENDED_FROM, _ENDED)
        except ValueError:
            return False
        if not self._scan.is_plain(step, key):
            return False
        for alias, names in filter(None, served):
            self._scan.add_served(step, alias, names)
        item = DoneItem(key, int(started[1]), started[2].decode(), _WELL[finished[2]])
        self._scan.add_plain_item(step, item, answers, total, (began, end[2]))
        return True


def _read_served(line: ItemLine) -> tuple[str, JsonObject | None] | None:
    """The alias of the model that has answered, with its own names; older journals say none.

    Raises:
        ValueError: they have another form.
    """
    text = line[4]
    begin = text.rfind(_SERVED_FROM)
    if begin < 0:
        return None
    alias, served = _ALIAS(text, line[3]), _SERVED(text, begin)
    if alias is None or served is None:
        raise ValueError(text)
    return alias[1].decode(), None if served[1] is None else _names(served[1])


@lru_cache(maxsize=64)
def _names(text: bytes) -> JsonObject:
    """The names of a model, which nearly all answers have in common."""
    names: JsonObject = json.loads(b"{%b}" % text)
    return names


def _read_usage(line: bytes, begin: bytes, tail: _Match) -> tuple[Usage, float | None]:
    """The usage and its price in the last keys of a record, which start with `begin`.

    Raises:
        ValueError: these keys have another form.
    """
    found = tail(line, max(line.rfind(begin), 0))
    if found is None:
        raise ValueError(line)
    *counts, price = found.groups()
    usage = Usage(*[None if one in _NOTHING else int(one) for one in counts])
    return usage, None if price == b"null" else float(price)


_NOTHING = frozenset({None, b"null"})
