"""Files of `aish test --live`: the JSON object, the suites of JUnit, and the result in one line."""

from collections.abc import Sequence

from aish.core.errors import ExitCode
from aish.core.events import plain
from aish.core.json import JsonObject, JsonValue
from aish.core.messages import sum_costs
from aish.core.phrases import counted
from aish.output.formats.junit import CaseResult, CaseSuite, Trouble
from aish.output.status import seconds_text
from aish.reports.figures import cost_text
from aish.reports.live_results import (
    CellVerdict,
    LiveCell,
    LiveColumn,
    LiveResults,
    LiveRun,
    Outcome,
)

VERSION = 1
_COUNTED: dict[str, CellVerdict] = {
    "passed": "passed",
    "failed": "failed",
    "errors": "error",
    "unreachable": "unreachable",
    "not_run": "not_run",
    "unmeasured": "unmeasured",
}
OUTCOMES: dict[Outcome, str] = {
    "worse": "worse",
    "better": "better",
    "no_difference": "no difference shown",
    "different": "different from itself",
    "same": "the same as itself",
    "undecided": "no verdict",
}


def model_name(model: str | None) -> str:
    """The name of a column; `None` is the one where none was named."""
    return "as in the file" if model is None else model


def share_text(cell: LiveCell) -> str:
    """`7 of 8`; empty for a case that runs once."""
    return f"{cell.passed} of {len(cell.tried)}" if cell.is_repeated else ""


def left_text(cells: Sequence[LiveCell]) -> str:
    """`2 runs left the recording`, or nothing."""
    left = sum(len(cell.left) for cell in cells)
    return f"{counted(left, 'run')} left the recording" if left else ""


def live_summary(results: LiveResults) -> str:
    """`5 passed, 2 failed, 1 unreachable, cost $0.0052 in 25 s`."""
    cells = results.cells
    verdicts = [cell.verdict for cell in cells]
    compared = [column for column in results.columns if column.comparison is not None]
    if compared:
        runs = sum(len(cell.tried) for cell in cells)
        parts = [f"{sum(cell.passed for cell in cells)} of {runs} runs passed"]
        verdicts = [cell.verdict for cell in cells if cell.fails or cell.verdict != "failed"]
    else:
        parts = [f"{verdicts.count('passed')} passed"]
    others: Sequence[CellVerdict] = ("unreachable", "not_run", "unmeasured", "failed")
    parts += [f"{verdicts.count(one)} {one.replace('_', ' ')}" for one in others if one in verdicts]
    if errors := verdicts.count("error") + len(results.broken):
        parts.append(counted(errors, "error"))
    if flaky := sum(cell.is_flaky for cell in cells):
        parts.append(f"{flaky} flaky")
    parts += filter(None, [left_text(cells)])
    if results.baseline is not None and not compared:
        parts.append(f"{sum(cell.change == 'worse' for cell in cells)} flipped")
    for column in compared:
        assert column.comparison is not None
        name = "" if len(results.columns) == 1 else f"{model_name(column.model)} "
        parts.append(f"{name}{OUTCOMES[column.comparison.outcome]}")
    parts.append(f"cost {cost_text(results.cost_usd)}")
    stop = "interrupted: " if results.interrupted else ""
    limit = f" ({results.limit})" if results.limit else ""
    return f"{stop}{', '.join(parts)} in {seconds_text(results.seconds)}{limit}"


def live_json(results: LiveResults, *, answers: bool = True) -> JsonObject:
    """All results; keys are only added in later versions. A baseline has it without `answers`."""
    count = range(len(results.columns))
    return {
        "v": VERSION,
        "kind": "live",
        "exit": results.exit,
        "seconds": results.seconds,
        "cost_usd": results.cost_usd,
        "interrupted": results.interrupted,
        "repeat": results.repeat,
        "seed": results.seed,
        "recorded_tools": results.recorded_tools,
        "pipelines": dict(results.pipelines),
        "models": [_model_json(results.columns[n], results.of_column(n)) for n in count],
        "cases": [
            {
                "id": case.id,
                "file": case.file,
                "name": case.name,
                "inputs_digest": case.inputs_digest,
                "expected_digest": case.expected_digest,
                "results": [_cell_json(cell, answers=answers) for cell in case.cells],
            }
            for case in results.cases
        ],
        "broken": [{"file": file, "problems": list(lines)} for file, lines in results.broken],
        "baseline": None
        if results.baseline is None
        else {
            "file": results.baseline,
            "worse": sum(cell.change == "worse" for cell in results.cells),
            "better": sum(cell.change == "better" for cell in results.cells),
            "gone": [{"id": id, "model": model} for id, model in results.gone],
        },
    }


def _model_json(column: LiveColumn, cells: Sequence[LiveCell]) -> JsonValue:
    verdicts = [cell.verdict for cell in cells]
    return {
        "model": column.model,
        **{key: verdicts.count(verdict) for key, verdict in _COUNTED.items()},
        "flaky": sum(cell.is_flaky for cell in cells),
        "left": sum(len(cell.left) for cell in cells),
        "cost_usd": sum_costs(cell.cost_usd for cell in cells),
        "seconds": sum(cell.seconds for cell in cells),
        "median_seconds": column.median_seconds,
        "rate": column.rate,
        "interval": _pair(column.interval),
        "pass_power": {str(k): power for k, power in column.pass_power},
        "variance_between_cases": column.variances[0] if column.variances else None,
        "variance_between_runs": column.variances[1] if column.variances else None,
        "endpoints": column.endpoints,
        "served": list(column.served),
        "comparison": plain(column.comparison),
    }


def _cell_json(cell: LiveCell, *, answers: bool) -> JsonValue:
    run = cell.decisive
    row = _run_json(run)
    return {
        "model": cell.model,
        "verdict": cell.verdict,
        "change": cell.change,
        "code": run.code,
        "reason": run.reason,
        "hint": run.hint,
        "seconds": cell.seconds,
        "cost_usd": cell.cost_usd,
        "usage": row["usage"],
        "folder": run.folder,
        "answer": run.answer if answers else None,
        "expectations": list(run.expectations) if answers else [],
        "passed": cell.passed,
        "tried": len(cell.tried),
        "needed": cell.needed,
        "left": len(cell.left),
        "first_left": cell.left[0].reason if cell.left else None,
        "flaky": cell.is_flaky,
        "interval": _pair(cell.interval),
        "stopped": cell.stopped,
        "fixed": cell.fixed,
        "distinct_answers": cell.answers,
        "same_calls": cell.same_calls,
        "runs": [
            {**_run_json(one), **({"answer": one.answer} if answers and cell.is_repeated else {})}
            for one in cell.runs
        ],
    }


def _run_json(run: LiveRun) -> JsonObject:
    return {
        "verdict": run.verdict,
        "code": run.code,
        "reason": run.reason,
        "seconds": run.seconds,
        "cost_usd": run.cost_usd,
        "usage": {"input": run.usage.input, "output": run.usage.output},
        "folder": run.folder,
        "digest": run.digest,
        "served": list(run.served),
        "calls": [one.tool for one in run.calls],
    }


def _pair(interval: tuple[float, float] | None) -> JsonValue:
    return None if interval is None else list(interval)


def live_suites(results: LiveResults) -> list[CaseSuite]:
    """A suite for each file and model; a comparison that fails is a case of its own."""
    suites: dict[tuple[str, str | None], list[CaseResult]] = {}
    for case in results.cases:
        for cell in case.cells:
            name = f"{case.name} [{model_name(cell.model)}]"
            row = CaseResult(
                name,
                case.file,
                cell.seconds,
                case.file,
                troubles=tuple(_troubles(cell)),
                system_out=_output(cell),
            )
            suites.setdefault((case.file, cell.model), []).append(row)
    rows = [
        CaseSuite(f"{file} [{model_name(model)}]", tuple(cases))
        for (file, model), cases in suites.items()
    ]
    for column in results.columns:
        comparison = column.comparison
        if comparison is not None and comparison.fails:
            trouble = Trouble("failure", comparison.outcome, comparison.sentence)
            name = f"{comparison.against} [{model_name(column.model)}]"
            whole = CaseResult(name, "comparison", 0.0, troubles=(trouble,))
            rows.append(CaseSuite(f"comparison [{model_name(column.model)}]", (whole,)))
    for file, problems in results.broken:
        text = "\n".join(problems)
        trouble = Trouble("error", "usage", text.partition("\n")[0], text)
        whole = CaseResult("(the file)", file, 0.0, file, (trouble,))
        rows.append(CaseSuite(file, (whole,)))
    return rows


def _output(cell: LiveCell) -> str:
    answer = cell.decisive.answer or ""
    passed = f"{share_text(cell)} passed" if cell.is_repeated else ""
    left = f"{left_text([cell])}: {cell.left[0].reason}" if cell.left else ""
    return "\n".join(filter(None, (passed, left, answer)))


def _troubles(cell: LiveCell) -> Sequence[Trouble]:
    run = cell.decisive
    text = "\n".join(run.reasons)
    first = ": ".join(filter(None, (share_text(cell), text.partition("\n")[0])))
    match cell.verdict:
        case "passed":
            return ()
        case "failed" if cell.fails:
            kind = "run" if run.code != ExitCode.OK else "expectation"
            trouble = Trouble("failure", kind, first, text)
        case "failed":
            known = "failed as in the baseline" if cell.change == "same" else "compared"
            trouble = Trouble("skipped", "known_failure", f"{known}: {first}", text)
        case "not_run":
            trouble = Trouble("skipped", "not_run", run.reason or "not run")
        case _:
            kind = {"error": "usage", "unreachable": "unavailable"}.get(cell.verdict, cell.verdict)
            trouble = Trouble("error", kind, first, text)
    return (trouble,)
