"""Usage of runs: from their journals, and points of an InfluxDB."""

import time
from calendar import timegm
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import anyio
import anyio.to_thread

from aish.core.errors import UsageError
from aish.core.events import (
    Event,
    ItemFinished,
    ItemStarted,
    RunFinished,
    RunStarted,
    Stamped,
    StepFinished,
    StepStarted,
    TurnFinished,
    TurnStarted,
)
from aish.core.frozen import frozen
from aish.core.json import JsonValue, strict_json
from aish.core.patterns import lazy_pattern
from aish.core.phrases import counted, shorten
from aish.core.tools import CALL_DEADLINE
from aish.journal.history import Segment, TurnRecord, fold_records
from aish.journal.reader import event_of, read_journal
from aish.net.guarded_client import GuardedClient, GuardedRequestError, destination_of_url
from aish.packs.ml.ml_options import InfluxOptions
from aish.packs.pack_error import PackError

JOURNAL = "events.jsonl"
MOST_RUNS = 5_000
MOST_POINTS = 100
INFLUX_SECONDS = 10.0
_LOOK_SECONDS = 20.0
_FOR_ENDING = 3.0
_LONGEST_TEXT = 300
_MOST_COLUMNS = 50
_FIRST_ERROR = 300
_ID = lazy_pattern(r"(\d{8}T\d{6}Z)-.+")
_TYPES: tuple[type[Event], ...] = (
    *(RunStarted, RunFinished, StepStarted, StepFinished, ItemStarted, ItemFinished),
    *(TurnStarted, TurnFinished),
)


@frozen
class UsageStatus:
    """Counts of runs, and the usage of their models; `degraded` says what is missing."""

    runs: int
    ok: int
    failed: int
    models: Sequence[Mapping[str, JsonValue]]
    degraded: str = ""


async def runs_since(folder: Path, seconds: int, own: Path | None) -> UsageStatus:
    """Return the runs that began in the last seconds; `own` is the folder of the asking run."""
    left = CALL_DEADLINE.get() - anyio.current_time() - _FOR_ENDING
    until = time.monotonic() + max(min(left, _LOOK_SECONDS), 0)
    return await anyio.to_thread.run_sync(
        _read_runs, folder, time.time() - seconds, own, until, abandon_on_cancel=True
    )


class _ModelUse:
    """Turns and tokens of one model; its cost is unknown if a turn has no price."""

    def __init__(self) -> None:
        self.turns = 0
        self.tokens = 0
        self.cost: float | None = None

    def add(self, turn: TurnFinished) -> None:
        self.turns += 1
        if turn.usage is not None:
            self.tokens += (turn.usage.input or 0) + (turn.usage.output or 0)
        if turn.cost_usd is not None:
            self.cost = (self.cost or 0.0) + turn.cost_usd


def _read_runs(folder: Path, since: float, own: Path | None, until: float) -> UsageStatus:
    runs = ok = failed = unreadable = unread = 0
    uses: dict[str, _ModelUse] = {}
    ids = [id for id in _runs_since(folder, since) if own is None or id != own.name]
    for at, id in enumerate(ids):
        if at == MOST_RUNS or time.monotonic() > until:
            unread = len(ids) - at
            break
        try:
            finished, turns = _run(folder / id / JOURNAL)
        except FileNotFoundError:
            continue  # it was removed meanwhile, or has not begun
        except (UsageError, OSError, ValueError):
            unreadable += 1
            continue
        runs += 1
        if finished is not None:
            is_ok = finished.exit.code == 0
            ok, failed = ok + is_ok, failed + (not is_ok)
        for turn in turns:
            uses.setdefault(turn.model, _ModelUse()).add(turn)
    models = [
        {"model": name, "turns": use.turns, "tokens": use.tokens, "cost_usd": use.cost}
        for name, use in sorted(uses.items(), key=lambda pair: (-pair[1].tokens, pair[0]))
    ]
    notes = [f"{counted(unreadable, 'journal')} cannot be read"] if unreadable else []
    notes += [f"the {counted(unread, 'oldest run')} were not read in time"] if unread else []
    return UsageStatus(runs, ok, failed, models, "; ".join(notes))


def _run(journal: Path) -> tuple[RunFinished | None, list[TurnFinished]]:
    """Read the end of a run, if there is one, and its turns."""
    last: Segment | None = None
    turns: list[TurnFinished] = []
    for record in fold_records(_events(journal)):
        if isinstance(record, Segment):
            last = record
        elif isinstance(record, TurnRecord):
            turns.append(record.said)
    return None if last is None else last.finished, turns


def _runs_since(folder: Path, since: float) -> list[str]:
    """Yield the runs of the folder by the time in their id, newest first."""
    try:
        names = [path.name for path in folder.iterdir()]
    except FileNotFoundError:
        return []
    except OSError as error:
        why = (error.strerror or "input or output error").lower()
        raise PackError("unavailable", f"the folder of runs cannot be read: {why}") from error
    return sorted((name for name in names if _began(name) >= since), reverse=True)


def _began(id: str) -> float:
    match = _ID.fullmatch(id)
    if match is None:
        return -1.0
    try:
        return float(timegm(time.strptime(match[1], "%Y%m%dT%H%M%SZ")))
    except ValueError:
        return -1.0


def _events(path: Path) -> Iterator[Stamped]:
    with read_journal(path) as reading:
        for record in reading.of_types(_TYPES):
            stamped = event_of(record)
            if stamped is not None:
                yield stamped


def influx_client(url: str) -> GuardedClient:
    """Return a client that may connect to this address and to public ones.

    Raises:
        PackError: `unavailable` if it is not an address.
    """
    try:
        destination = destination_of_url(url)
    except ValueError as error:
        raise PackError("unavailable", f"`influx.url`: {error}") from error
    return GuardedClient(allow=(destination,), hosts=(destination.host,))


async def points_since(
    client: GuardedClient, influx: InfluxOptions, token: str, seconds: int
) -> list[JsonValue]:
    """Return the newest points of the database, of the last seconds.

    Raises:
        PackError: `unavailable` if it does not answer, or not with a result.
    """
    from urllib.parse import urlencode

    newest = f"ORDER BY time DESC LIMIT {MOST_POINTS}"
    query = " ".join(("SELECT * FROM /.*/ WHERE time > now() -", f"{seconds}s", newest))
    asked = urlencode({"db": influx.database, "epoch": "ms", "q": query})
    headers = {"accept": "application/json"}
    if token:
        headers["authorization"] = f"Token {token}"
    left = CALL_DEADLINE.get() - anyio.current_time() - 1
    try:
        found = await client.get(
            f"{influx.url.rstrip('/')}/query?{asked}",
            headers=headers,
            seconds=max(min(left, INFLUX_SECONDS), 0.1),
            same_origin=True,
        )
    except GuardedRequestError as error:
        raise PackError("unavailable", f"InfluxDB: {error.message}") from error
    if found.status >= _FIRST_ERROR:
        raise PackError("unavailable", f"InfluxDB answers {found.status} {found.reason}".rstrip())
    try:
        return _points(strict_json(found.body.decode()))
    except (ValueError, OverflowError, RecursionError) as error:
        raise PackError("unavailable", "InfluxDB answers with what is no result") from error


def _points(answer: object) -> list[JsonValue]:
    """Return the rows of an answer, newest first, each with its measurement.

    Raises:
        ValueError: it is not a result.
    """
    rows: list[dict[str, JsonValue]] = []
    for result in _list(_table(answer).get("results")):
        if error := _table(result).get("error"):
            raise ValueError(str(error))
        for series in _list(_table(result).get("series", [])):
            name, columns = _table(series).get("name"), _list(_table(series).get("columns"))
            for values in _list(_table(series).get("values", [])):
                row: dict[str, JsonValue] = {"measurement": _plain(name)}
                pairs = zip(columns[:_MOST_COLUMNS], _list(values), strict=False)
                row |= {str(column)[:_LONGEST_TEXT]: _plain(value) for column, value in pairs}
                rows.append(row)
    rows.sort(key=_time, reverse=True)
    return [*rows[:MOST_POINTS]]


def _time(row: Mapping[str, JsonValue]) -> float:
    time = row.get("time")
    return float(time) if isinstance(time, int | float) else 0.0


def _plain(value: object) -> JsonValue:
    """Return a value of a point with texts cut to a limit."""
    if isinstance(value, str):
        return shorten(value, _LONGEST_TEXT)
    return value if isinstance(value, int | float | bool) else None


def _table(value: object) -> Mapping[str, object]:
    if not isinstance(value, dict):
        raise ValueError("an object is missing")  # ruff: ignore[type-check-without-type-error] - of an answer
    return value


def _list(value: object) -> list[object]:
    if not isinstance(value, list):
        raise ValueError("a list is missing")  # ruff: ignore[type-check-without-type-error] - of an answer
    return value
