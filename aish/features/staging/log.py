"""The result of each staged call, in a file next to theirs: no call is made twice.

The start of a call is synced to disk before it is sent, and its end right after. A call that was
begun and has no end has an unknown outcome.
"""

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Literal, Self

from aish.core.errors import UsageError
from aish.core.events import VERSION, rfc3339
from aish.core.json import JsonValue, json_text
from aish.core.protocols import Clock
from aish.core.tools import ResultKind
from aish.features.staging.file import StagedCall
from aish.journal.reader import read_journal
from aish.journal.writer import cut_torn_tail, seal
from aish.system.durable import THE_DISK, Disk, DurableFile
from aish.system.file_lock import take
from aish.system.files import open_append

State = Literal["open", "applied", "failed", "unknown"]
ENDING = ".applied.jsonl"

# The connection to the server failed: the call may have been executed.
_UNCERTAIN = frozenset({"transport_error", "timeout", "interrupted", "unknown"})


def log_path(staged: Path) -> Path:
    whole = staged.resolve()
    return whole.with_name(whole.name + ENDING)


def states_in(path: Path) -> Mapping[str, State]:
    """The result of each call, by digest; calls that were never begun are not included.

    Raises:
        UsageError: the log is damaged, or is not a regular file owned by the user.
    """
    return _read(path)[0]


class AppliedLog:
    """The open log, locked by this process."""

    def __init__(self, path: Path, clock: Clock, disk: Disk = THE_DISK) -> None:
        self._clock = clock
        try:
            descriptor = open_append(path)
        except OSError as error:
            raise UsageError(
                f"cannot be written: {error.strerror}",
                where=str(path),
                hint="it keeps calls from being made twice: apply a file in a folder of your own",
            ) from error
        try:
            take(descriptor, path)
            cut_torn_tail(path)
            self.states, self._seq = _read(path)
        except (OSError, UsageError):
            os.close(descriptor)
            raise
        self._file = DurableFile(descriptor, disk)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *details: object) -> None:
        self._file.close()

    def begin(self, call: StagedCall, run: str) -> None:
        """This run is about to send the call; synced to disk on return.

        Raises:
            OSError: it is not, and the call must not be made.
        """
        self._append(call, run, "begun", None)

    def end(self, call: StagedCall, run: str, kind: ResultKind) -> None:
        self._append(call, run, "ended", kind)

    def _append(self, call: StagedCall, run: str, what: str, kind: ResultKind | None) -> None:
        self._seq += 1
        record: Mapping[str, JsonValue] = {
            "v": VERSION,
            "seq": self._seq,
            "time": rfc3339(self._clock.now()),
            "type": f"call.{what}",
            "call": call.digest,
            "tool": str(call.name),
            "run": run,
            **({} if kind is None else {"kind": kind}),
        }
        self._file.append(seal(f"{json_text(record)}\n".encode()), "now")


def _read(path: Path) -> tuple[dict[str, State], int]:
    states: dict[str, State] = {}
    seq = 0
    with suppress(FileNotFoundError), read_journal(path) as reading:
        for record in reading:
            seq += 1
            states[str(record.get("call"))] = _state(record.get("type"), record.get("kind"))
    return states, seq


def _state(what: JsonValue, kind: JsonValue) -> State:
    if what != "call.ended" or kind in _UNCERTAIN:
        return "unknown"
    return "applied" if kind == "ok" else "failed"
