"""Output of `aish test --live`: the table, the JSON object, the JUnit file, the cells of the page.

One row for each case, one column for each model. Names, answers and messages come from files and
models; each passes `for_ci_log`, `for_html` or the function for its output.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TextIO

from aish.cli.boundary import say
from aish.cli.case_report import (
    CasePrinter,
    Manners,
    explanation,
    log_line,
    rule,
    tell_github,
    write_file,
)
from aish.cli.options import CaseOptions, LiveOptions, Report
from aish.cli.output_setup import check_writable
from aish.cli.pipeline_options import look_options, seconds_of
from aish.cli.printer import print_json
from aish.cli.tool_preview import beginnings
from aish.core.errors import ExitCode
from aish.core.events import plain
from aish.core.frozen import frozen
from aish.core.json import JsonObject, JsonValue, json_text
from aish.core.phrases import counted
from aish.core.text import for_ci_log
from aish.engine.final import PRECEDENCE
from aish.features.testing.baseline import (
    VERSION,
    BaselineComparison,
    CellKey,
    compare,
    counts_as_failed,
    read_baseline,
)
from aish.features.testing.discovery import find_files
from aish.features.testing.live import Cell, LiveSettings, Matrix, cost_of, live_exit, run_live
from aish.features.testing.outcome import PipelineFile
from aish.features.testing.session import find_cases
from aish.output.formats.junit import CaseResult, CaseSuite, Trouble, junit_xml
from aish.output.status import seconds_text
from aish.output.style import Style
from aish.reports.figures import cost_text
from aish.reports.html.cases import cases_page
from aish.reports.markup import Markup, block, tag

# The model of a column if none was named.
_OF_FILE = "as in the file"
_WORDS: Mapping[str, str] = {
    "passed": "passed",
    "failed": "FAILED",
    "error": "ERROR",
    "unreachable": "unreachable",
    "not_run": "not run",
}
_STYLES: Mapping[str, Style] = {
    "passed": "green",
    "failed": "red",
    "error": "red",
    "unreachable": "yellow",
    "not_run": "dim",
}
_LONGEST_ANSWER = 20_000
_CHANGES = {"worse": "worse", "better": "better"}


@frozen
class LiveReport:
    """The results of all cases; `broken` are files that could not be loaded."""

    matrix: Matrix
    broken: tuple[PipelineFile, ...] = ()
    comparison: BaselineComparison | None = None

    @property
    def code(self) -> ExitCode:
        """The exit code: the first in the order of `PRECEDENCE` that applies."""
        codes = set(live_exit(self.matrix))
        if self.broken:
            codes.add(ExitCode.USAGE)
        if any(counts_as_failed(cell, self.comparison) for cell in self.matrix.cells):
            codes.add(ExitCode.FAILED)
        return next((code for code in PRECEDENCE if code in codes), ExitCode.OK)


def test_live(live: LiveOptions, cases: CaseOptions, out: TextIO, manners: Manners) -> int:
    settings = LiveSettings(
        models=tuple(dict.fromkeys(live.models or ())),
        options=look_options(live),
        width=cases.width,
        max_cost_usd=live.max_cost_usd,
        timeout=seconds_of(live.timeout),
        stop_first=cases.stop_first,
        ask=live.ask,
    )
    for option, path in (
        ("--junit", cases.junit),
        ("--html", live.html),
        ("--write-baseline", live.write_baseline),
    ):
        if path is not None:
            check_writable(path, option)
    baseline = None if live.baseline is None else read_baseline(live.baseline)
    found = find_cases(find_files(cases.paths or ()), cases.keyword)
    lines = _ReportLines(out, manners)
    matrix = run_live(found.chosen, settings, lines, None if manners.quiet else beginnings())
    whole = len(found.chosen) == len(found.jobs) and not found.broken
    report = LiveReport(
        matrix, found.broken, None if baseline is None else compare(matrix, baseline, whole=whole)
    )
    lines.close(report)
    if cases.output_format is Report.JSON:
        print_json(live_json(report))
    if cases.github:
        tell_github(live_summary(report), suites(report))
    code = report.code
    for option, path, data in _files(live, cases.junit, report):
        if not write_file(option, path, data):
            code = code or ExitCode.FAILED
    return int(code)


def _files(
    live: LiveOptions, junit: Path | None, report: LiveReport
) -> Iterator[tuple[str, Path, bytes]]:
    if junit is not None:
        yield "--junit", junit, junit_xml("aish test --live", suites(report))
    if live.html is not None:
        yield "--html", live.html, live_html(report)
    baseline = live.write_baseline
    if baseline is None:
        return
    unfinished = sum(cell.verdict in {"unreachable", "not_run"} for cell in report.matrix.cells)
    if unfinished or report.broken:
        why = counted(unfinished, "case") if unfinished else "a file that cannot be loaded"
        say(f"warning: --write-baseline {baseline}: not written: {why} without a result")
    else:
        text = json_text(live_json(report), indent=2)
        yield "--write-baseline", baseline, f"{text}\n".encode()


def model_name(model: str | None) -> str:
    return _OF_FILE if model is None else model


class _ReportLines(CasePrinter):
    def ended(self, cell: Cell) -> None:
        if self._manners.quiet:
            return
        word = self._manners.look.paint(_STYLES[cell.verdict], _WORDS[cell.verdict])
        self._print(f"{log_line(_title(cell.key))} {word} {' '.join(_figures(cell))}".rstrip())
        self._print_checks(cell.outcome)

    def close(self, report: LiveReport) -> None:
        for line in summary_lines(report, self._manners):
            self._print(line)


def summary_lines(report: LiveReport, manners: Manners) -> Iterator[str]:
    look, matrix = manners.look, report.matrix
    bad = [cell for cell in matrix.cells if cell.verdict in {"failed", "error", "unreachable"}]
    if bad or report.broken:
        yield ""
        yield look.paint("bold", rule(look, "failures", "="))
    for file in report.broken:
        yield look.paint("red", rule(look, log_line(file.name), "_"))
        yield from (for_ci_log(problem) for problem in file.problems)
    for cell in bad:
        yield look.paint(_STYLES[cell.verdict], rule(look, log_line(_title(cell.key)), "_"))
        yield from map(for_ci_log, explanation(cell.outcome, verbose=manners.verbose))
        if cell.folder is not None:
            yield log_line(f"run: {cell.folder}")
    yield ""
    rows = list(_rows(report))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for number, row in enumerate(rows):
        if number == len(by_case(report.matrix)) + 1:
            yield "  ".join(["-" * width for width in widths])
        yield "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()
    yield from _changes(report)
    yield ""
    yield look.paint("red" if report.code else "green", live_summary(report))


def _rows(report: LiveReport) -> Iterator[tuple[str, ...]]:
    matrix = report.matrix
    yield ("case", *(log_line(model_name(model)) for model in matrix.models))
    for id, cells in by_case(matrix).items():
        yield (log_line(id), *(_cell_text(cell, report.comparison) for cell in cells))
    yield from ((name, *texts) for name, texts in _totals(matrix))
    if report.comparison is not None:
        before = report.comparison.baseline.costs
        yield ("cost before", *(cost_text(before.get(model)) for model in matrix.models))


def _changes(report: LiveReport) -> Iterator[str]:
    if report.comparison is None:
        return
    for change in ("worse", "better"):
        keys = [key for key, state in report.comparison.changes.items() if state == change]
        if keys:
            yield ""
            yield f"{change} than in {log_line(str(report.comparison.baseline.file))}:"
            yield from (f"  {log_line(_title(key))}" for key in keys)
    if report.comparison.gone:
        yield ""
        yield f"in {log_line(str(report.comparison.baseline.file))} but not run now:"
        yield from (f"  {log_line(_title(key))}" for key in report.comparison.gone)


def live_summary(report: LiveReport) -> str:
    """`5 passed, 2 failed, 1 unreachable, $0.0052 in 25 s`."""
    matrix = report.matrix
    verdicts: list[str] = [cell.verdict for cell in matrix.cells]
    words = {"unreachable": "unreachable", "not_run": "not run", "failed": "failed"}
    parts = [f"{verdicts.count('passed')} passed"]
    parts += [f"{count} {word}" for key, word in words.items() if (count := verdicts.count(key))]
    if errors := verdicts.count("error") + len(report.broken):
        parts.append(counted(errors, "error"))
    if report.comparison is not None:
        parts.append(f"{report.comparison.count('worse')} worse than before")
    parts.append(f"cost {cost_text(matrix.cost_usd)}")
    stop = "interrupted: " if matrix.stopped is not None else ""
    over = next((cell.outcome.reason for cell in matrix.cells if cell.verdict == "not_run"), "")
    tail = f" ({over})" if over and matrix.stopped is None else ""
    return f"{stop}{', '.join(parts)} in {seconds_text(matrix.seconds)}{tail}"


def live_json(report: LiveReport) -> JsonObject:
    """Return all results; keys are only added in later versions. A baseline has the same form."""
    matrix, comparison = report.matrix, report.comparison
    return {
        "v": VERSION,
        "kind": "live",
        "exit": int(report.code),
        "seconds": matrix.seconds,
        "cost_usd": matrix.cost_usd,
        "interrupted": matrix.stopped is not None,
        "models": [_model_json(matrix, model) for model in matrix.models],
        "cases": [
            {
                "id": id,
                "file": cells[0].job.file,
                "name": cells[0].job.case.name,
                "results": [_cell_json(cell, comparison) for cell in cells],
            }
            for id, cells in by_case(matrix).items()
        ],
        "broken": [{"file": file.name, "problems": list(file.problems)} for file in report.broken],
        "baseline": None
        if comparison is None
        else {
            "file": str(comparison.baseline.file),
            "worse": comparison.count("worse"),
            "better": comparison.count("better"),
            "gone": [{"id": id, "model": model} for id, model in comparison.gone],
        },
    }


def _model_json(matrix: Matrix, model: str | None) -> JsonValue:
    cells = of_model(matrix, model)
    counts = Counter(cell.verdict for cell in cells)
    return {
        "model": model,
        "passed": counts["passed"],
        "failed": counts["failed"],
        "errors": counts["error"],
        "unreachable": counts["unreachable"],
        "not_run": counts["not_run"],
        "cost_usd": cost_of(cells),
        "seconds": _seconds(cells),
    }


def _cell_json(cell: Cell, comparison: BaselineComparison | None) -> JsonValue:
    outcome = cell.outcome
    return {
        "model": cell.model,
        "verdict": cell.verdict,
        "change": None if comparison is None else comparison.changes.get(cell.key),
        "code": int(outcome.code),
        "reason": outcome.reason,
        "hint": outcome.hint,
        "seconds": outcome.seconds,
        "cost_usd": cell.cost_usd,
        "usage": {"input": cell.usage.input, "output": cell.usage.output},
        "folder": cell.folder,
        "answer": cell.answer,
        "expectations": plain(outcome.checked),
    }


def suites(report: LiveReport) -> list[CaseSuite]:
    groups: dict[tuple[str, str | None], list[CaseResult]] = {}
    for cell in report.matrix.cells:
        groups.setdefault((cell.job.file, cell.model), []).append(_case(cell, report.comparison))
    rows = [
        CaseSuite(f"{file} [{model_name(model)}]", tuple(c)) for (file, model), c in groups.items()
    ]
    for file in report.broken:
        text = "\n".join(file.problems)
        trouble = Trouble("error", "usage", text.partition("\n")[0], text)
        whole = CaseResult("(the file)", file.name, 0.0, file.name, (trouble,))
        rows.append(CaseSuite(file.name, (whole,)))
    return rows


def _case(cell: Cell, comparison: BaselineComparison | None) -> CaseResult:
    text = "\n".join(explanation(cell.outcome, verbose=True))
    first = text.partition("\n")[0]
    troubles: tuple[Trouble, ...] = ()
    match cell.verdict:
        case "failed" if counts_as_failed(cell, comparison):
            kind = "run" if cell.outcome.code is not ExitCode.OK else "expectation"
            troubles = (Trouble("failure", kind, first, text),)
        case "failed":
            known = f"failed as in the baseline: {first}"
            troubles = (Trouble("skipped", "known_failure", known, text),)
        case "error":
            troubles = (Trouble("error", "usage", first, text),)
        case "unreachable":
            troubles = (Trouble("error", "unavailable", first, text),)
        case "not_run":
            troubles = (Trouble("skipped", "not_run", cell.outcome.reason or "not run"),)
        case _:
            pass
    name = f"{cell.job.case.name} [{model_name(cell.model)}]"
    return CaseResult(
        name,
        cell.job.file,
        cell.outcome.seconds,
        cell.job.file,
        troubles=troubles,
        system_out=cell.answer or "",
    )


def live_html(report: LiveReport) -> bytes:
    return cases_page(
        live_summary(report),
        [model_name(model) for model in report.matrix.models],
        (
            (id, [_html_cell(cell, report.comparison) for cell in cells])
            for id, cells in by_case(report.matrix).items()
        ),
        _totals(report.matrix),
        ((file.name, "\n".join(file.problems)) for file in report.broken),
    )


def _html_cell(cell: Cell, comparison: BaselineComparison | None) -> Markup:
    change = None if comparison is None else comparison.changes.get(cell.key)
    facts = " · ".join((*_figures(cell), *([change] if change in _CHANGES else [])))
    parts = [
        tag("strong", _WORDS[cell.verdict], class_=cell.verdict),
        " ",
        tag("span", facts, class_="facts"),
    ]
    reasons = "\n".join(explanation(cell.outcome, verbose=True))
    if cell.verdict != "passed" and reasons:
        run = f"\nrun: {cell.folder}" if cell.folder is not None else ""
        parts.append(tag("details", tag("summary", "why"), tag("pre", f"{reasons}{run}")))
    if cell.answer:
        answer = block(cell.answer, _LONGEST_ANSWER)
        parts.append(tag("details", tag("summary", "answer"), answer))
    return tag("td", *parts)


def _totals(matrix: Matrix) -> Iterator[tuple[str, list[str]]]:
    columns = [of_model(matrix, model) for model in matrix.models]
    yield "passed", [_share_passed(cells) for cells in columns]
    yield "cost", [cost_text(cost_of(cells)) for cells in columns]
    yield "time", [seconds_text(_seconds(cells)) for cells in columns]


def by_case(matrix: Matrix) -> dict[str, list[Cell]]:
    rows: dict[str, list[Cell]] = {}
    for cell in matrix.cells:
        rows.setdefault(cell.job.id, []).append(cell)
    return rows


def of_model(matrix: Matrix, model: str | None) -> list[Cell]:
    return [cell for cell in matrix.cells if cell.model == model]


def _share_passed(cells: Sequence[Cell]) -> str:
    """Passed of those that were tried; unreachable cases say nothing about the model's answers."""
    tried = [cell for cell in cells if cell.verdict in {"passed", "failed", "error"}]
    return f"{sum(cell.verdict == 'passed' for cell in tried)} of {len(tried)}"


def _seconds(cells: Sequence[Cell]) -> float:
    return sum(cell.outcome.seconds for cell in cells)


def _cell_text(cell: Cell, comparison: BaselineComparison | None) -> str:
    change = None if comparison is None else comparison.changes.get(cell.key)
    mark = (f"({change})",) if change in _CHANGES else ()
    return " ".join((_WORDS[cell.verdict], *_figures(cell), *mark))


def _figures(cell: Cell) -> tuple[str, ...]:
    if cell.verdict == "not_run" and cell.folder is None:
        return ()
    return cost_text(cell.cost_usd), seconds_text(cell.outcome.seconds)


def _title(key: CellKey) -> str:
    id, model = key
    return id if model is None else f"{id} [{model}]"
