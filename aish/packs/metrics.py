"""The pack `metrics`: events that models record, and their counts.

A file of JSON lines for each day. Several processes append to it: each line is one `os.write` under
the lock of the file, and a partly written line is removed again.
"""

import fcntl
import heapq
import os
import time
from collections import Counter
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from operator import itemgetter
from pathlib import Path

import anyio.lowlevel
import anyio.to_thread

from aish.core.errors import UsageError
from aish.core.events import rfc3339
from aish.core.frozen import frozen
from aish.core.json import JsonObject, JsonValue, json_text
from aish.core.patterns import lazy_pattern
from aish.core.phrases import counted, shorten
from aish.core.text import for_line, safe_utf8
from aish.packs.framework.pack import READS, Marks, Pack, PackContext, tool
from aish.packs.metrics_options import MetricsOptions
from aish.packs.pack_error import PackError
from aish.packs.time_span import seconds_of
from aish.packs.tool_results import Answer, count_that_fits
from aish.system.durable import write_whole
from aish.system.file_lock import BeingWrittenError, take
from aish.system.files import open_append, open_own, private_folder, state_folder
from aish.system.secrets.secrets import Secrets

FOLDER = "metrics"
DATA_LIMIT = 8 * 1024
"""Bytes of `data` as JSON, without secrets."""
NAME_LIMIT = 500
MOST_ROWS = 100
RECENT = 10
_LONGEST_DURATION = 1e15
_LOCK_SECONDS = 5.0
_PIECE = 1 << 20
_LONGEST_LINE = 1 << 16
_FILE = lazy_pattern(r"\d{4}-\d\d-\d\d\.jsonl")
_TIME = lazy_pattern(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")
_COUNTED = {"type": "by_type", "repo": "by_repo", "agent_id": "by_agent"}
_COUNT_ROW = {"name": "string", "count": "integer"}
_RECORDS = Marks(read_only=False, destructive=False, idempotent=False, open_world=False)


@frozen
class MetricsFolder:
    """The folder with the files, which each call opens, and the secrets to mask."""

    folder: Path | None
    secrets: Secrets | None

    def path(self) -> Path:
        """The folder of the files; it may not exist."""
        return (self.folder or state_folder()) / FOLDER


@asynccontextmanager
async def _open(context: PackContext) -> AsyncGenerator[MetricsFolder]:
    yield MetricsFolder(context.options.folder, context.services.run_secrets)


@tool(
    _RECORDS,
    result={"success": "boolean", "timestamp": "string"},
    codes=("too_large", "unwritable"),
)
async def metrics_record(
    metrics: MetricsFolder,
    type: str,  # ruff: ignore[builtin-argument-shadowing] - the parameter of the tool
    agent_id: str | None = None,
    repo: str | None = None,
    duration_ms: float | None = None,
    data: dict | None = None,  # type: ignore[type-arg]  # its type is `object` in the schema
) -> Answer:
    """Records an event, with the time of this machine.

    Args:
        type: What happened, such as `review` or `build`.
        agent_id: Who or what it happened to.
        repo: The repository that it belongs to.
        duration_ms: How long it took, in milliseconds.
        data: More about it, up to 8 KiB as JSON.
    """
    if not type.strip():
        raise PackError("bad_arguments", "`type` is empty")
    if duration_ms is not None and not 0 <= duration_ms <= _LONGEST_DURATION:
        raise PackError("bad_arguments", "`duration_ms` is less than zero, or too large")
    values: dict[str, JsonValue] = {
        "type": type,
        "agent_id": agent_id,
        "repo": repo,
        "duration_ms": duration_ms,
    }
    for name, text in values.items():
        if isinstance(text, str) and len(text) > NAME_LIMIT:
            message = f"`{name}` is longer than {NAME_LIMIT} characters"
            raise PackError("too_large", message, limit=NAME_LIMIT)
    record: dict[str, JsonValue] = {
        name: value for name, value in values.items() if value is not None
    }
    if data is not None:
        record["data"] = data
    masked = metrics.secrets.mask_json(record) if metrics.secrets is not None else record
    assert isinstance(masked, dict), "a mapping stays one"
    if len(json_text(masked.get("data")).encode("utf-8", "replace")) > DATA_LIMIT:
        message = f"`data` is longer than {DATA_LIMIT:,} bytes as JSON"
        raise PackError("too_large", message, limit=DATA_LIMIT)
    folder = metrics.path()
    try:
        # Faster than a thread, which is for the case that another process holds the file.
        await anyio.lowlevel.checkpoint()
        timestamp = _append(folder, masked, wait=False)
    except BlockingIOError:
        timestamp = await anyio.to_thread.run_sync(partial(_append, folder, masked, wait=True))
    text = f"recorded `{for_line(shorten(str(masked['type']), 80))}` at {timestamp}"
    return Answer(text, {"success": True, "timestamp": timestamp})


@tool(
    READS,
    result={
        "total": "integer",
        "by_type": "array",
        "by_repo": "array",
        "by_agent": "array",
        "recent": "array",
        "skipped": "integer",
        "truncated": "boolean",
    },
    rows={
        "by_type": _COUNT_ROW,
        "by_repo": _COUNT_ROW,
        "by_agent": _COUNT_ROW,
        "recent": {
            "type": "string",
            "timestamp": "string",
            "agent_id": "string",
            "repo": "string",
            "duration_ms": "number",
            "data": "object",
        },
    },
    codes=("unreadable",),
)
async def metrics_query(
    metrics: MetricsFolder,
    since: str = "7d",
    type: str = "",  # ruff: ignore[builtin-argument-shadowing] - the parameter of the tool
    repo: str = "",
    agent_id: str = "",
) -> Answer:
    """Counts recorded events since a time, by type, repository and agent, and shows the last ten.

    Args:
        since: How far back: `30m`, `24h` or `7d`, up to 400 days.
        type: Only events of this type.
        repo: Only events of this repository.
        agent_id: Only events of this agent.
    """
    seconds = seconds_of(since)
    filters = {"type": type, "repo": repo, "agent_id": agent_id}
    filters = {name: safe_utf8(text) for name, text in filters.items() if text}
    first = rfc3339(time.time() - seconds)
    counts = await anyio.to_thread.run_sync(
        partial(_count_events, metrics.path(), first, filters), abandon_on_cancel=True
    )
    return _answer(counts, since.strip())


def _append(folder: Path, record: JsonObject, *, wait: bool) -> str:
    """Append a record to the file of its day, and return its time.

    Raises:
        PackError: it cannot be written; the file is unchanged.
        BlockingIOError: another process is writing the file, and `wait` is false.
    """
    now = time.time()
    timestamp = rfc3339(now)
    line = f"{json_text({'timestamp': timestamp, **record})}\n".encode("utf-8", "replace")
    path = folder / f"{timestamp[:10]}.jsonl"
    try:
        private_folder(folder)
        descriptor = open_append(path, readable=True)
    except (OSError, UsageError) as error:
        raise _unwritable(error) from None
    try:
        if wait:
            take(descriptor, path, _LOCK_SECONDS)
        else:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _write_line(descriptor, line)
    except BlockingIOError:
        raise
    except (OSError, UsageError) as error:
        raise _unwritable(error) from None
    finally:
        os.close(descriptor)
    return timestamp


def _write_line(descriptor: int, line: bytes) -> None:
    """Append a line completely or not at all, under the lock of the file."""
    status = os.fstat(descriptor)
    if status.st_mode & 0o077:
        os.fchmod(descriptor, 0o600)
    # A process that was killed may have left a part of its line.
    if status.st_size and os.pread(descriptor, 1, status.st_size - 1) != b"\n":
        line = b"\n" + line
    write_whole(descriptor, line)


def _unwritable(error: Exception) -> PackError:
    return PackError("unwritable", f"the event cannot be recorded: {_why(error)}")


def _why(error: Exception) -> str:
    """Return the reason without a path, which would be outside of every root."""
    if isinstance(error, OSError):
        return (error.strerror or "input or output error").lower()
    if isinstance(error, BeingWrittenError):
        return f"the file of the day is being written by {error.writer}"
    return "its folder or file is a link, or belongs to another user"


class _Counts:
    """Counts of events, and the last events, kept in a heap."""

    def __init__(self) -> None:
        self.total = self.skipped = 0
        self.by: dict[str, Counter[str]] = {name: Counter() for name in _COUNTED}
        self._recent: list[tuple[str, int, JsonObject]] = []

    def add(self, record: JsonObject, timestamp: str) -> None:
        self.total += 1
        for name, counter in self.by.items():
            value = record.get(name)
            if isinstance(value, str):
                counter[value] += 1
        if len(self._recent) < RECENT:
            heapq.heappush(self._recent, (timestamp, self.total, record))
        elif timestamp >= self._recent[0][0]:
            heapq.heapreplace(self._recent, (timestamp, self.total, record))

    def recent(self) -> list[JsonObject]:
        return [record for *_, record in sorted(self._recent, key=itemgetter(0, 1))[::-1]]


def _count_events(folder: Path, first: str, filters: dict[str, str]) -> _Counts:
    import json

    decode = json.JSONDecoder().decode
    is_time = _TIME.fullmatch
    counts = _Counts()
    for line in _lines(folder, first[:10]):
        try:
            record = decode(line.decode())
        except (ValueError, RecursionError):
            record = None
        if not isinstance(record, dict) or not isinstance(record.get("type"), str):
            counts.skipped += 1
            continue
        timestamp = record.get("timestamp")
        if not isinstance(timestamp, str) or not is_time(timestamp):
            counts.skipped += 1
        elif timestamp >= first and all(record.get(key) == filters[key] for key in filters):
            counts.add(record, timestamp)
    return counts


def _lines(folder: Path, day: str) -> Iterator[bytes]:
    """Yield the lines of the files from a day on, without line ends; too long ones are empty."""
    try:
        for path in sorted(folder.iterdir()):
            if _FILE.fullmatch(path.name) and path.name[:10] >= day:
                yield from _lines_of(path)
    except FileNotFoundError:
        return
    except (OSError, UsageError) as error:
        raise PackError("unreadable", f"events cannot be read: {_why(error)}") from None


def _lines_of(path: Path) -> Iterator[bytes]:
    descriptor = open_own(path)
    try:
        # What is there under the lock are whole lines, and stays.
        take(descriptor, path, _LOCK_SECONDS)
        left = os.fstat(descriptor).st_size
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        rest, is_long = b"", False
        while left > 0 and (piece := os.read(descriptor, min(_PIECE, left))):
            left -= len(piece)
            *lines, rest = (rest + piece).split(b"\n")
            for line in lines:
                yield b"" if is_long else line
                is_long = False
            if len(rest) > _LONGEST_LINE:
                rest, is_long = b"", True
        if rest or is_long:
            yield b"" if is_long else rest
    finally:
        os.close(descriptor)


def _answer(counts: _Counts, since: str) -> Answer:
    data: dict[str, JsonValue] = {"total": counts.total}
    words = [f"{counted(counts.total, 'event')} in {since}"]
    truncated = False
    for name, key in _COUNTED.items():
        rows = sorted(counts.by[name].items(), key=lambda row: (-row[1], row[0]))
        truncated = truncated or len(rows) > MOST_ROWS
        listed: list[JsonValue] = [
            {"name": safe_utf8(value), "count": count} for value, count in rows[:MOST_ROWS]
        ]
        data[key] = listed
        words += [f"{name} {for_line(value)}: {count}" for value, count in rows[:MOST_ROWS]]
    recent = [_event_row(record) for record in counts.recent()]
    words += [f"recent: {for_line(json_text(record))}" for record in recent]
    data |= {"recent": recent, "skipped": counts.skipped}
    if counts.skipped:
        words.append(f"skipped {counted(counts.skipped, 'line')} that cannot be read")
    count = count_that_fits(words)
    truncated = truncated or count < len(words)
    notes = ["[truncated: true; ask with type, repo or agent_id]"] if truncated else []
    return Answer("\n".join([*words[:count], *notes]), {**data, "truncated": truncated})


def _event_row(record: JsonObject) -> JsonObject:
    """Return a record of a file as a row; values that do not fit the schema are omitted."""
    row: dict[str, JsonValue] = {}
    for name in ("type", "timestamp", "agent_id", "repo"):
        value = record.get(name)
        row[name] = safe_utf8(value) if isinstance(value, str) else None
    duration, data = record.get("duration_ms"), record.get("data")
    is_number = isinstance(duration, (int, float)) and not isinstance(duration, bool)
    row["duration_ms"] = duration if is_number else None
    row["data"] = data if isinstance(data, dict) else None
    return row


PACK = Pack(
    tools=(metrics_record, metrics_query), root="none", lifespan=_open, options=MetricsOptions
)
