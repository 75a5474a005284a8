"""What the journal of a run has and its results file lacks, added when the run goes on (B3).

The results file is written behind the journal, so after a crash what may be missing are lines at
its end; a line that is not as it was written was cut off when it was opened, with all after it.
"""

import json
import os
import re
from pathlib import Path

from aish.sinks.event_reading import event_of
from aish.sinks.items_file import ItemsFile
from aish.sinks.journal_reader import LONGEST
from aish.sinks.journal_record import JournalError, opened
from aish.system.files import open_own

_ITEM = re.compile(
    rb'\{"v":1,"seq":([0-9]+),"time":"[^"]*","type":"item\.(started|finished)"'
    rb',"step":"([^"\\]*)","item":("(?:[^"\\]|\\.)*"),'
)


def add_missing(items: ItemsFile, journal: Path) -> int:
    """Add the results that only the journal has; how many there were.

    The journal is one that was read before: only the records that are needed are checked here.

    Raises:
        JournalError: such a record is not as it was written.
        OSError: one of the two files fails.
    """
    begun: dict[tuple[bytes, bytes], bytes] = {}
    known, added = items.last, 0
    with os.fdopen(open_own(journal), "rb", buffering=1 << 18) as file:
        while line := file.readline(LONGEST):
            found = _ITEM.match(line)
            if found is None:
                continue
            key = (found[3], found[4])
            if found[2] == b"started":
                begun[key] = line
                continue
            start = begun.pop(key, None)
            if int(found[1]) > known and line.endswith(b"\n"):
                for record in (start, line):
                    if record is not None:
                        _add(items, record, journal)
                added += 1
    return added


def _add(items: ItemsFile, record: bytes, journal: Path) -> None:
    body = opened(record[:-1])
    try:
        stamped = None if body is None else event_of(json.loads(body))
    except (ValueError, RecursionError) as error:
        raise _damaged(journal) from error
    if stamped is None:
        raise _damaged(journal)
    items(stamped)


def _damaged(journal: Path) -> JournalError:
    return JournalError("a record of an item is damaged", where=str(journal))
