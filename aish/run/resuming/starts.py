"""The beginnings of a run, found without reading the rest of its journal."""

import json
import os
from pathlib import Path

from aish.core.json import JsonObject
from aish.journal.reader import read_journal
from aish.journal.writer import JournalError, opened
from aish.system.files import open_own

# `v`, `seq` and `time` stand before it.
_TYPE = b'"type":"run.started"'
_HEAD = 120


def starts(path: Path) -> list[JsonObject]:
    """Each `run.started` of a journal; nothing where there is none.

    What is damaged is left to the reader of all records, but for a first record that is none.

    Raises:
        JournalError: this is no journal of a run.
        UsageError: what stands there is no plain file of our own.
    """
    try:
        descriptor = open_own(path)
    except FileNotFoundError:
        return []
    found = []
    with os.fdopen(descriptor, "rb", buffering=1 << 18) as file:
        for number, line in enumerate(file):
            if _TYPE in line[:_HEAD]:
                body = opened(line.rstrip(b"\r\n"))
                if body is not None:
                    found.append(json.loads(body))
            if number == 0 and not found and line.endswith(b"\n"):
                raise _no_journal(path)
    return found


def _no_journal(path: Path) -> JournalError:
    with read_journal(path) as reading:
        # What is wrong with the first record is better told by who reads all of them.
        next(iter(reading), None)
    said = "this is no journal of a run: it does not begin with `run.started`"
    return JournalError(said, where=f"{path}:1")
