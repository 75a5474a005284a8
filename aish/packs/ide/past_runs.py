"""Runs of a project, read from their journals, which the pack `ide` reports as builds."""

import json
import os
import stat
import time
from calendar import timegm
from collections import deque
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from aish.core.errors import AishError
from aish.core.events import RunFinished, RunStarted, StepFinished, StepStarted
from aish.core.frozen import frozen
from aish.core.json import JsonObject, JsonValue
from aish.core.patterns import lazy_pattern
from aish.core.phrases import shorten
from aish.core.text import for_line
from aish.journal.reader import JournalReading
from aish.system.file_lock import is_written
from aish.system.files import open_own

JOURNAL = "events.jsonl"
LATEST = "latest"
MOST_RUNS = 2_000
_ID = lazy_pattern(r"(\d{8}T\d{6}Z)-[a-z0-9-]{1,40}-[a-z0-9]{4}")
_ENDS = (RunStarted, RunFinished)
_STEPS = (*_ENDS, StepStarted, StepFinished)
_SAID = ("step", "item", "tool", "verdict", "status", "state", "code", "alias", "text", "reason")
_LONGEST = 200
_PLAN_SIZE = 4 << 20


@frozen
class RunSketch:
    """A run: the facts in its first and last event, and whether a process is writing it."""

    id: str
    folder: Path
    started: Mapping[str, Any]
    finished: Mapping[str, Any] | None
    is_running: bool

    @property
    def status(self) -> str:
        """`running`, `killed`, or its final status."""
        if self.finished is not None:
            return str(self.finished.get("status"))
        return "running" if self.is_running else "killed"

    @property
    def pipeline(self) -> str:
        return str(self.started.get("pipeline") or "")

    def row(self) -> dict[str, JsonValue]:
        end = self.finished or {}
        ended = end.get("exit") or {}
        return {
            "id": self.id,
            "pipeline": for_line(self.pipeline),
            "status": self.status,
            "exit_code": ended.get("code"),
            "started_at": self.started.get("time") or start_time(self.id),
            "seconds": end.get("seconds"),
            "cost_usd": end.get("cost_usd"),
        }


def run_ids(folders: Sequence[Path]) -> list[tuple[str, Path]]:
    """Return the runs below these folders, the newest first; links are not followed."""
    runs: dict[str, Path] = {}
    for folder in folders:
        with suppress(OSError), os.scandir(folder) as entries:
            for entry in entries:
                if _ID.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False):
                    runs.setdefault(entry.name, folder / entry.name)
    return sorted(runs.items(), key=lambda pair: (pair[0][:16], _plan_time(pair[1])), reverse=True)


def _plan_time(folder: Path) -> int:
    """Return the order of runs that began in the same second."""
    try:
        return (folder / "plan.json").lstat().st_mtime_ns
    except OSError:
        return 0


def start_time(id: str) -> str:
    """Return the start of a run, from its id."""
    match = _ID.fullmatch(id)
    stamp = "" if match is None else match[1]
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(start_seconds(id))) if stamp else ""


def start_seconds(id: str) -> float:
    """Return the start in seconds since the epoch; 0 without a date."""
    match = _ID.fullmatch(id)
    try:
        return 0.0 if match is None else float(timegm(time.strptime(match[1], "%Y%m%dT%H%M%SZ")))
    except ValueError:
        return 0.0


def past_run(id: str, folder: Path) -> RunSketch | None:
    """Return a run; `None` if it has no readable journal."""
    try:
        with _open_journal(folder) as reading:
            running = is_written(reading.descriptor)
            records = list(reading.journal.of_types(_ENDS))
    except (AishError, OSError, ValueError):
        return None
    started = next((record for record in records if record.get("type") == "run.started"), {})
    last = records[-1] if records else {}
    finished = last if last.get("type") == "run.finished" else None
    return RunSketch(id, folder, started, finished, running)


def steps_of(folder: Path) -> tuple[str, list[dict[str, JsonValue]]] | None:
    """Return the status of a run and of its steps, in order; `None` if it cannot be read."""
    run = past_run(folder.name, folder)
    if run is None:
        return None
    rows: dict[str, dict[str, JsonValue]] = {id: _row(id, "pending") for id in _plan_steps(folder)}
    try:
        with _open_journal(folder) as reading:
            for record in reading.journal.of_types(_STEPS):
                fold_step(rows, record)
    except (AishError, OSError, ValueError):
        return None
    return run.status, list(rows.values())


def fold_step(rows: dict[str, dict[str, JsonValue]], record: Mapping[str, Any]) -> None:
    """Update the rows of steps with an event; steps of sub-pipelines are not rows."""
    step = record.get("step")
    if not isinstance(step, str) or record.get("item") is not None or "/" in step:
        return
    if record.get("type") == "step.started":
        rows[step] = _row(step, "running")
    elif record.get("type") == "step.finished":
        rows[step] = _row(step, str(record.get("status")), record.get("seconds"))


def _row(id: str, status: str, seconds: JsonValue = None) -> dict[str, JsonValue]:
    return {"id": id, "status": status, "seconds": seconds}


def _plan_steps(folder: Path) -> list[str]:
    """Return the steps of a run from its plan, if the plan names them."""
    with suppress(AishError, OSError, ValueError, RecursionError):
        with os.fdopen(open_own(folder / "plan.json"), "rb") as stream:
            plan = json.loads(stream.read(_PLAN_SIZE))
        steps = plan.get("steps") if isinstance(plan, dict) else None
        if isinstance(steps, list):
            return [str(step["id"]) for step in steps if isinstance(step, dict) and "id" in step]
    return []


def last_lines(folder: Path, count: int) -> list[str] | None:
    """Return the last events of a run, one line each; `None` if it cannot be read."""
    kept: deque[JsonObject] = deque(maxlen=count)
    try:
        with _open_journal(folder) as reading:
            kept.extend(reading.journal)
    except (AishError, OSError, ValueError):
        return None
    return [f"{one.get('time')} {one.get('type')} {event_text(one)}".rstrip() for one in kept]


def event_text(record: Mapping[str, Any]) -> str:
    words = [record.get(key) for key in _SAID]
    text = " ".join(str(word) for word in words if word not in {None, ""})
    return shorten(for_line(text), _LONGEST)


def metrics_since(folders: Sequence[Path], since: float) -> dict[str, JsonValue]:
    """Return counts of the runs since a time: status, tokens, cost, durations."""
    runs = list(_since(folders, since))
    ended = [run.finished for run in runs if run.finished is not None]
    seconds = sorted(float(one.get("seconds") or 0) for one in ended)
    costs = [one["cost_usd"] for one in ended if isinstance(one.get("cost_usd"), int | float)]
    tokens = [one.get("usage") or {} for one in ended]
    return {
        "runs": len(runs),
        "ok": sum(run.status == "ok" for run in runs),
        "failed": sum(run.finished is not None and run.status != "ok" for run in runs),
        "running": sum(run.status == "running" for run in runs),
        "input_tokens": sum(int(usage.get("input") or 0) for usage in tokens),
        "output_tokens": sum(int(usage.get("output") or 0) for usage in tokens),
        "cost_usd": round(sum(costs), 6) if costs else None,
        "median_seconds": seconds[len(seconds) // 2] if seconds else None,
        "longest_seconds": seconds[-1] if seconds else None,
    }


def _since(folders: Sequence[Path], since: float) -> Iterator[RunSketch]:
    for id, folder in run_ids(folders)[:MOST_RUNS]:
        if start_seconds(id) < since:
            return
        run = past_run(id, folder)
        if run is not None:
            yield run


@frozen
class _JournalReading:
    journal: JournalReading
    descriptor: int


@contextmanager
def _open_journal(folder: Path) -> Generator[_JournalReading]:
    descriptor = open_own(folder / JOURNAL)
    file = os.fdopen(descriptor, "rb")
    with JournalReading(file, str(folder / JOURNAL)) as journal:
        yield _JournalReading(journal, descriptor)


def branch_of(project: Path) -> tuple[Path, str] | None:
    """Return the repository of a folder and its branch, without running a program."""
    for folder in (project, *project.parents):
        git = folder / ".git"
        if git.is_file():
            # Of a second working tree: it names a folder, which may be anywhere.
            return folder, ""
        if git.is_dir():
            return folder, _branch(git / "HEAD")
    return None


def _branch(head: Path) -> str:
    """Return the branch that a file `HEAD` names; nothing else in it is read."""
    try:
        descriptor = os.open(head, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        is_file = stat.S_ISREG(os.fstat(descriptor).st_mode)
        text = os.read(descriptor, _SMALL).decode("utf-8", "replace") if is_file else ""
    finally:
        os.close(descriptor)
    named = _HEAD.fullmatch(text)
    return named[1] if named else ""


_SMALL = 4_096
_HEAD = lazy_pattern(r"(?:ref: refs/heads/)?([^\x00-\x20]+)\n?")
