"""Compares results with those of an earlier `aish test --live`."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, get_args

from aish.core.errors import UsageError
from aish.core.frozen import frozen
from aish.core.json import JsonValue, strict_json
from aish.features.testing.live import Cell, CellVerdict, Matrix

Change = Literal["worse", "better", "same", "new"]
"""Against the baseline; `new` where it knows nothing of the case on this model."""

CellKey = tuple[str, str | None]

VERSION = 1
_TRIED = frozenset({"passed", "failed", "error"})
_WRITE = "`aish test --live --write-baseline FILE` writes one"
_LARGEST = 64 * 1024 * 1024


@frozen
class Baseline:
    """The verdicts of an earlier run, and the cost of each model then."""

    file: Path
    verdicts: Mapping[CellKey, CellVerdict]
    costs: Mapping[str | None, float | None]


@frozen
class BaselineComparison:
    """The change of each cell, and the cells of the baseline that no longer exist."""

    baseline: Baseline
    changes: Mapping[CellKey, Change]
    gone: tuple[CellKey, ...] = ()

    def count(self, change: Change) -> int:
        return sum(other == change for other in self.changes.values())


def read_baseline(path: Path) -> Baseline:
    """The object that `--write-baseline` or `--format json` wrote."""
    where = f"--baseline {path}"
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
        return Baseline(path, dict(_verdicts(found)), dict(_costs(found)))
    except (KeyError, TypeError, AttributeError) as error:
        raise UsageError("lacks a part of it", where=where, hint=_WRITE) from error


def compare(matrix: Matrix, baseline: Baseline, *, whole: bool) -> BaselineComparison:
    """The changes; with `whole` also the cells that no longer exist."""
    changes = {
        cell.key: _change(cell.verdict, baseline.verdicts.get(cell.key))
        for cell in matrix.cells
        if cell.verdict in _TRIED
    }
    known = {cell.key for cell in matrix.cells}
    models = set(matrix.models)
    gone = tuple(key for key in baseline.verdicts if key not in known and key[1] in models)
    return BaselineComparison(baseline, changes, gone if whole else ())


def counts_as_failed(cell: Cell, comparison: BaselineComparison | None) -> bool:
    """Return true if a case makes the command fail: not if it failed before."""
    if cell.verdict != "failed":
        return False
    return comparison is None or comparison.changes[cell.key] != "same"


def _change(now: CellVerdict, before: CellVerdict | None) -> Change:
    if before not in _TRIED:
        return "new"
    if (now == "passed") == (before == "passed"):
        return "same"
    return "better" if now == "passed" else "worse"


def _verdicts(document: Mapping[str, JsonValue]) -> Sequence[tuple[CellKey, CellVerdict]]:
    rows: list[tuple[CellKey, CellVerdict]] = []
    for case in _list(document["cases"]):
        for result in _list(case["results"]):
            model, verdict = result["model"], result["verdict"]
            if not (model is None or isinstance(model, str)) or not isinstance(case["id"], str):
                raise TypeError
            known = (value for value in get_args(CellVerdict) if value == verdict)
            rows.extend(((case["id"], model), value) for value in known)
    return rows


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
