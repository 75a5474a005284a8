"""Baselines: results of earlier sessions of `aish test --live`, and what has changed since.

A file has the JSON object of the last session, and under `earlier` those of the ones before it,
without their answers. One without `runs` has one run of each case.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import get_args

from aish.core.errors import UsageError
from aish.core.frozen import frozen
from aish.core.json import JsonObject, JsonValue, json_text, strict_json
from aish.core.phrases import backticked
from aish.features.testing.repeat_statistics import Counts
from aish.reports.live_files import VERSION, live_json
from aish.reports.live_results import TRIED, CellVerdict, Change, LiveResults, LiveRun

CellKey = tuple[str, str | None]

_WRITE = "`aish test --live --write-baseline FILE` writes one"
_LARGEST = 64 * 1024 * 1024


@frozen
class BaselineRun:
    passed: bool
    digest: str | None = None
    cost_usd: float | None = None
    seconds: float = 0.0
    served: tuple[str, ...] = ()


@frozen
class BaselineCell:
    """A case on a model: the runs of each session, without those that could not be made.

    `fixed`: equal answers are copies. The digests are empty in a file that does not have them.
    """

    sessions: tuple[tuple[BaselineRun, ...], ...] = ()
    fixed: bool = False
    inputs_digest: str = ""
    expected_digest: str = ""

    @property
    def counts(self) -> tuple[Counts, ...]:
        """The counts of each session; copies count as one."""
        sides = (
            count_runs(((run.passed, run.digest) for run in runs), fixed=self.fixed)
            for runs in self.sessions
        )
        return tuple(one for one in sides if one.runs)

    @property
    def runs(self) -> Sequence[BaselineRun]:
        return [run for session in self.sessions for run in session]


@frozen
class Baseline:
    """The sessions of a file, the last one first; `costs` are those of its models."""

    file: Path
    sessions: tuple[JsonObject, ...]
    cells: Mapping[CellKey, BaselineCell]
    costs: Mapping[str | None, float | None]

    def names_before(self, model: str | None) -> tuple[str, ...]:
        """The names of the models that have answered in a column of the last session."""
        cells = (cell for (_, column), cell in self.cells.items() if column == model)
        runs = (run for cell in cells for session in cell.sessions[:1] for run in session)
        return tuple(dict.fromkeys(name for run in runs for name in run.served))


def count_runs(runs: Iterable[tuple[bool, str | None]], *, fixed: bool) -> Counts:
    """The counts of runs; with `fixed` those with the same answer count once."""
    found = list(dict.fromkeys(runs)) if fixed else list(runs)
    return Counts(sum(passed for passed, _ in found), len(found))


def count_live(runs: Sequence[LiveRun], *, fixed: bool) -> Counts:
    tried = [run for run in runs if run.verdict in TRIED]
    return count_runs(
        ((run.verdict == "passed", run.digest if fixed else None) for run in tried), fixed=fixed
    )


def read_baseline(path: Path, option: str = "--baseline") -> Baseline:
    """The sessions that `--write-baseline`, `--extend-baseline` or `--format json` wrote."""
    where = f"{option} {path}"
    try:
        with path.open("rb") as file:
            data = file.read(_LARGEST + 1)
    except OSError as error:
        why = f"cannot be read: {error.strerror or error}"
        raise UsageError(why, where=where, hint=_WRITE) from error
    try:
        found = strict_json(data.decode())
    except (ValueError, RecursionError) as error:
        raise UsageError("is not JSON", where=where, hint=_WRITE) from error
    if not isinstance(found, Mapping) or found.get("kind") != "live" or found.get("v") != VERSION:
        raise UsageError("is not a result of `aish test --live`", where=where, hint=_WRITE)
    try:
        sessions = (found, *_list(found.get("earlier", [])))
        cells: dict[CellKey, BaselineCell] = {}
        for session in sessions:
            for key, cell in _cells(session):
                before = cells.get(key, BaselineCell()).sessions
                cells[key] = BaselineCell(
                    (*before, *cell.sessions), cell.fixed, cell.inputs_digest, cell.expected_digest
                )
        return Baseline(path, sessions, cells, dict(_costs(found)))
    except (KeyError, TypeError, AttributeError) as error:
        raise UsageError("lacks a part of it", where=where, hint=_WRITE) from error


def baseline_file(results: LiveResults, before: Baseline | None = None) -> bytes:
    """The file of a baseline, with the sessions before."""
    earlier = () if before is None else before.sessions
    plain = [{key: one[key] for key in one if key != "earlier"} for one in earlier]
    session = live_json(results, answers=False)
    return f"{json_text({**session, 'earlier': plain}, indent=2)}\n".encode()


def require_same(baseline: Baseline, identity: JsonObject, option: str) -> None:
    """Refuse to add a session of other pipelines, cases or models.

    Raises:
        UsageError: they differ.
    """
    where, before = f"{option} {baseline.file}", baseline.sessions[0]
    if "pipelines" not in before:
        raise UsageError("does not say which pipelines it is of", where=where, hint=_WRITE)
    for what in ("pipelines", "models", "cases"):
        one, other = dict(_identities(before, what)), dict(_identities(identity, what))
        changed = [name for name in {**one, **other} if one.get(name) != other.get(name)]
        if changed:
            message = f"is of other {what}: {backticked(changed, 3)}"
            raise UsageError(message, where=where, hint=_WRITE)


def require_same_tools(baseline: Baseline, option: str, *, recorded: bool) -> None:
    """Refuse to compare runs on recorded tools with runs on live ones.

    Raises:
        UsageError: one side has recorded tools, the other has not.
    """
    if (baseline.sessions[0].get("recorded_tools") is True) != recorded:
        one, other = ("recorded", "live") if recorded else ("live", "recorded")
        message = f"was made with {other} tools, and these runs have {one} ones"
        hint = "a change of the tools would be taken for one of the model"
        raise UsageError(message, where=f"{option} {baseline.file}", hint=hint)


def _identities(session: JsonObject, key: str) -> Iterator[tuple[str, JsonValue]]:
    value = session[key]
    match key:
        case "pipelines" if isinstance(value, Mapping):
            yield from value.items()
        case "models":
            for row in _list(value):
                yield str(row["model"]), row.get("endpoints")
        case _:
            for row in _list(value):
                yield str(row["id"]), [row.get("inputs_digest"), row.get("expected_digest")]


def change_of_verdict(now: CellVerdict, before: Sequence[BaselineRun]) -> Change | None:
    """The change of a case with one run on each side."""
    if now not in TRIED:
        return None
    if not before:
        return "new"
    if (now == "passed") == before[0].passed:
        return "same"
    return "better" if now == "passed" else "worse"


def _cells(session: JsonObject) -> Iterator[tuple[CellKey, BaselineCell]]:
    for case in _list(session["cases"]):
        id, digests = case["id"], [case.get(f"{one}_digest", "") for one in ("inputs", "expected")]
        for result in _list(case["results"]):
            model = result["model"]
            if not (model is None or isinstance(model, str)) or not isinstance(id, str):
                raise TypeError
            rows = _list(result["runs"]) if "runs" in result else [result]
            runs = tuple(run for row in rows for run in _run(row))
            fixed = result.get("fixed") is True
            yield (id, model), BaselineCell((runs,), fixed, str(digests[0]), str(digests[1]))


def _run(row: Mapping[str, JsonValue]) -> Iterator[BaselineRun]:
    verdict = row["verdict"]
    if verdict not in get_args(CellVerdict) or verdict not in TRIED:
        return
    cost, seconds, digest = row.get("cost_usd"), row.get("seconds"), row.get("digest")
    served = row.get("served")
    yield BaselineRun(
        verdict == "passed",
        digest if isinstance(digest, str) else None,
        float(cost) if isinstance(cost, int | float) else None,
        float(seconds) if isinstance(seconds, int | float) else 0.0,
        tuple(map(str, served)) if isinstance(served, list) else (),
    )


def _costs(document: Mapping[str, JsonValue]) -> Sequence[tuple[str | None, float | None]]:
    rows: list[tuple[str | None, float | None]] = []
    for row in _list(document["models"]):
        model, cost = row["model"], row["cost_usd"]
        if not (model is None or isinstance(model, str)) or isinstance(cost, (str, bool)):
            raise TypeError
        rows.append((model, cost if isinstance(cost, int | float) else None))
    return rows


def _list(value: JsonValue) -> Sequence[Mapping[str, JsonValue]]:
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise TypeError
    return [item for item in value if isinstance(item, dict)]
