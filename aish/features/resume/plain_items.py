"""Counts the items of a long journal that need no fold.

Nearly all items of a batch were asked, answered without calls, and ended well. A resumed run needs
no more of them than their number, their key and what they cost. So the lines of an item are held,
undecoded, until its end; whatever else is said about an item has its lines folded first, and what
is said about the run or a step has the lines of all items folded first.
"""

import json
import re
from collections.abc import Mapping
from operator import itemgetter
from types import NoneType
from typing import Any

from aish.core.events import StepStatus
from aish.core.json import JsonObject
from aish.engine.resume_state import DoneItem
from aish.features.resume.scan import Scan
from aish.journal.reader import ItemLine, JournalReading, time_of

_ANSWER = b"turn.finished"
_TURNS = frozenset({b"turn.started", b"turn.added", _ANSWER})
_WELL: Mapping[bytes, StepStatus] = {b"ok": "ok", b"skipped": "skipped"}
_KEY = rb'"key":"[^"\\]*","index":(0|[1-9]\d{0,17}),'
_STARTED = re.compile(_KEY + rb'"digest":"([0-9a-f]*)",').match
_FINISHED = re.compile(_KEY + rb'"status":"(ok|skipped)",').match


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
        kind, place, *_ = line
        held = self._held.get(place)
        if held is None:
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
            tail = _tail(end[4], b',"usage":{')
            answers = [_tail(one[4], b',"calls":[') for one in held if one[0] == _ANSWER]
        except (ValueError, RecursionError):
            return False
        if not (self._scan.is_plain(step, key) and _has_usage(tail)):
            return False
        if not all(_has_usage(answer) and answer["calls"] == [] for answer in answers):
            return False
        status = tail["status"] = _WELL[finished[2]]
        item = DoneItem(key, int(started[1]), started[2].decode(), status)
        self._scan.add_plain_item(step, item, answers, tail, (began, end[2]))
        return True


def _tail(line: bytes, begin: bytes) -> Any:
    """The last keys of a record, from the one with which `begin` begins; `None` if unclear.

    Of text, quotes are escaped, and of a value within the record the braces do not match.

    Raises:
        ValueError: they are no JSON.
        RecursionError: they are nested without end.
    """
    at = line.rfind(begin)
    text = f"{{{line[at + 1 :].decode()}"
    value, end = _DECODE(text)
    return value if end == len(text) else None


def _has_usage(record: Any) -> bool:
    """True if the last keys of a record say what was used, in the form of this version."""
    try:
        usage = record["usage"]
        counts = usage["input"], usage["output"], usage["cached"], usage["reasoning"]
        cost = record["cost_usd"]
    except (KeyError, TypeError):
        return False
    return _COUNTS.issuperset(map(type, counts)) and type(cost) in _COSTS


_DECODE = json.JSONDecoder().raw_decode
_COUNTS = frozenset({int, NoneType})
_COSTS = frozenset({float, int, NoneType})
