"""Output of `aish test --live`: the table, the JSON object, the JUnit and HTML files.

One row for each case, one column for each model. Names, answers and messages come from files and
models; each passes `for_ci_log`, `for_html` or the function for its output (X2, B13).
"""

import base64
import hashlib
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TextIO

from aish.cli.boundary import say
from aish.cli.case_report import Manners, explanation, manners_for, rule
from aish.cli.options import LiveOptions
from aish.cli.output_setup import check_writable
from aish.cli.pipeline_options import look_options, seconds_of
from aish.cli.printer import print_json, write_line
from aish.cli.tool_preview import beginnings
from aish.core.errors import ExitCode
from aish.core.frozen import frozen
from aish.core.json import JsonObject, JsonValue, json_text
from aish.core.messages import Usage
from aish.core.phrases import counted
from aish.core.text import for_ci_log, for_line
from aish.engine.final import PRECEDENCE
from aish.features.testing.baseline import (
    VERSION,
    CellKey,
    Comparison,
    compare,
    counts_as_failed,
    read_baseline,
)
from aish.features.testing.discovery import find_files
from aish.features.testing.live import Cell, LiveWish, Matrix, cost_of, live_exit, run_live
from aish.features.testing.outcome import PipelineFile
from aish.features.testing.session import find_cases
from aish.output.formats.junit import CaseResult, Suite, Trouble, junit_xml
from aish.output.status import seconds_text
from aish.output.style import Style
from aish.reports.figures import cost_text
from aish.reports.markup import Markup, block, joined, tag
from aish.system.files import atomic_write

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
class LiveAsked:
    """The command-line options of the whole."""

    paths: Sequence[Path]
    keyword: str
    wish: LiveWish
    json: bool = False
    junit: Path | None = None
    html: Path | None = None
    github: bool = False
    baseline: Path | None = None
    write_baseline: Path | None = None
    quiet: bool = False
    verbose: bool = False


@frozen
class LiveReport:
    """All results; `broken` are files that could not be loaded."""

    matrix: Matrix
    broken: tuple[PipelineFile, ...] = ()
    comparison: Comparison | None = None

    @property
    def code(self) -> ExitCode:
        """The exit code: the first that applies, in the order of design 11."""
        codes = set(live_exit(self.matrix))
        if self.broken:
            codes.add(ExitCode.USAGE)
        if any(counts_as_failed(cell, self.comparison) for cell in self.matrix.cells):
            codes.add(ExitCode.FAILED)
        return next((code for code in PRECEDENCE if code in codes), ExitCode.OK)


def live_wish(given: LiveOptions, *, width: int | None, stop_first: bool) -> LiveWish:
    """The requested runs.

    Raises:
        UsageError: a duration is invalid.
    """
    options = look_options(
        given.allow, given.deny, allow_broad_root=given.broad_root, lock=given.lock
    )
    return LiveWish(
        models=tuple(dict.fromkeys(given.models or ())),
        options=options,
        width=width,
        max_cost_usd=given.max_cost_usd,
        timeout=seconds_of(given.timeout),
        stop_first=stop_first,
        ask=given.ask,
    )


def test_live(asked: LiveAsked) -> int:
    """Run the cases on the models, report them, and return the exit code.

    Raises:
        UsageError: there is no case, no such model, or a file cannot be read or written.
    """
    for option, path in (
        ("--junit", asked.junit),
        ("--html", asked.html),
        ("--write-baseline", asked.write_baseline),
    ):
        if path is not None:
            check_writable(path, option)
    baseline = None if asked.baseline is None else read_baseline(asked.baseline)
    # In this case only the object goes to stdout, and text for people to stderr.
    out = sys.stderr if asked.json else sys.stdout
    manners = manners_for(out, os.environ, quiet=asked.quiet, verbose=asked.verbose)
    found = find_cases(find_files(asked.paths), asked.keyword)
    lines = _Lines(out, manners)
    opening = None if asked.quiet else beginnings()
    matrix = run_live(found.chosen, asked.wish, lines, opening)
    whole = len(found.chosen) == len(found.jobs) and not found.broken
    report = LiveReport(
        matrix,
        found.broken,
        None if baseline is None else compare(matrix, baseline, whole=whole),
    )
    lines.close(report)
    if asked.json:
        print_json(live_json(report))
    if asked.github:
        _tell_github(report)
    return int(_written(asked, report))


def _written(asked: LiveAsked, report: LiveReport) -> ExitCode:
    """Write the requested files."""
    code = report.code
    files: list[tuple[str, Path | None, bytes]] = []
    if asked.junit is not None:
        files.append(("--junit", asked.junit, junit_xml("aish test --live", suites(report))))
    if asked.html is not None:
        files.append(("--html", asked.html, live_html(report)))
    if asked.write_baseline is not None:
        unfinished = sum(cell.verdict in {"unreachable", "not_run"} for cell in report.matrix.cells)
        if unfinished or report.broken:
            why = counted(unfinished, "case") if unfinished else "a file that cannot be loaded"
            say(
                f"warning: --write-baseline {asked.write_baseline}: not written:"
                f" {why} without a result"
            )
        else:
            text = json_text(live_json(report), indent=2)
            files.append(("--write-baseline", asked.write_baseline, f"{text}\n".encode()))
    for option, path, data in files:
        assert path is not None
        try:
            atomic_write(path, data, shared=True)
        except OSError as error:
            say(f"error: {option} {path}: cannot be written: {error.strerror or error}")
            code = code or ExitCode.FAILED
    return code


def model_name(model: str | None) -> str:
    """The name of a column."""
    return _OF_FILE if model is None else model


class _Lines:
    """Prints each case as it ends, and the summary at the end."""

    def __init__(self, out: TextIO, manners: Manners) -> None:
        self._out = out
        self._manners = manners

    def ended(self, cell: Cell) -> None:
        """A case has ended on a model."""
        if self._manners.quiet:
            return
        look = self._manners.look
        word = look.paint(_STYLES[cell.verdict], _WORDS[cell.verdict])
        self._print(f"{_line(_title(cell))} {word} {' '.join(_figures(cell))}".rstrip())
        if self._manners.verbose:
            for one in cell.outcome.checked:
                self._print(f"  {'ok' if one.ok else 'no'} {_line(f'{one.kind}: {one.message}')}")

    def close(self, report: LiveReport) -> None:
        """All cases have ended."""
        for line in closing_lines(report, self._manners):
            self._print(line)

    def _print(self, line: str) -> None:
        write_line(self._out, f"{line}\n")


def closing_lines(report: LiveReport, manners: Manners) -> Iterator[str]:
    """The table, the failures and the summary."""
    look, matrix = manners.look, report.matrix
    bad = [cell for cell in matrix.cells if cell.verdict in {"failed", "error", "unreachable"}]
    if bad or report.broken:
        yield ""
        yield look.paint("bold", rule(look, "failures", "="))
    for file in report.broken:
        yield look.paint("red", rule(look, _line(file.name), "_"))
        yield from (for_ci_log(problem) for problem in file.problems)
    for cell in bad:
        yield look.paint(_STYLES[cell.verdict], rule(look, _line(_title(cell)), "_"))
        for line in explanation(cell.outcome, verbose=manners.verbose):
            yield for_ci_log(line)
        if cell.folder is not None:
            yield _line(f"run: {cell.folder}")
    yield ""
    yield from _table(report)
    yield from _changes(report)
    yield ""
    yield look.paint("red" if report.code else "green", live_summary(report))


def _table(report: LiveReport) -> Iterator[str]:
    """Cases by models, with the totals of each model."""
    rows = list(_rows(report))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for number, row in enumerate(rows):
        if number == len(by_case(report.matrix)) + 1:
            yield "  ".join(["-" * width for width in widths])
        yield "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()


def _rows(report: LiveReport) -> Iterator[tuple[str, ...]]:
    matrix = report.matrix
    yield ("case", *(_line(model_name(model)) for model in matrix.models))
    for id, cells in by_case(matrix).items():
        yield (_line(id), *(_cell_text(cell, report.comparison) for cell in cells))
    columns = [of_model(matrix, model) for model in matrix.models]
    yield ("passed", *(_passed_text(cells) for cells in columns))
    yield ("cost", *(cost_text(cost_of(cells)) for cells in columns))
    yield ("time", *(seconds_text(_seconds(cells)) for cells in columns))
    if report.comparison is not None:
        before = report.comparison.baseline.costs
        yield ("cost before", *(cost_text(before.get(model)) for model in matrix.models))


def _changes(report: LiveReport) -> Iterator[str]:
    if report.comparison is None:
        return
    by_key = {cell.key: cell for cell in report.matrix.cells}
    for change in ("worse", "better"):
        keys = [key for key, one in report.comparison.changes.items() if one == change]
        if keys:
            yield ""
            yield f"{change} than in {_line(str(report.comparison.baseline.file))}:"
            yield from (f"  {_line(_title(by_key[key]))}" for key in keys)
    if report.comparison.gone:
        yield ""
        yield f"in {_line(str(report.comparison.baseline.file))} but not run now:"
        yield from (f"  {_line(_key_text(key))}" for key in report.comparison.gone)


def live_summary(report: LiveReport) -> str:
    """`5 passed, 2 failed, 1 unreachable, $0.0052 in 25 s`."""
    matrix = report.matrix
    verdicts = [cell.verdict for cell in matrix.cells]
    words = {"unreachable": "unreachable", "not_run": "not run", "failed": "failed"}
    parts = [f"{verdicts.count('passed')} passed"]
    parts += [f"{count} {word}" for key, word in words.items() if (count := _count(verdicts, key))]
    if errors := verdicts.count("error") + len(report.broken):
        parts.append(counted(errors, "error"))
    if report.comparison is not None:
        parts.append(f"{report.comparison.count('worse')} worse than before")
    parts.append(f"cost {cost_text(matrix.cost_usd)}")
    stop = "interrupted: " if matrix.stopped is not None else ""
    over = next((one.outcome.reason for one in matrix.cells if one.verdict == "not_run"), "")
    tail = f" ({over})" if over and matrix.stopped is None else ""
    return f"{stop}{', '.join(parts)} in {seconds_text(matrix.seconds)}{tail}"


def live_json(report: LiveReport) -> JsonObject:
    """All results; keys are only added in later versions. A baseline has the same form."""
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
        "baseline": None if comparison is None else _baseline_json(comparison),
    }


def _model_json(matrix: Matrix, model: str | None) -> JsonValue:
    cells = of_model(matrix, model)
    verdicts = [cell.verdict for cell in cells]
    return {
        "model": model,
        **{key: verdicts.count(key) for key in ("passed", "failed")},
        "errors": verdicts.count("error"),
        "unreachable": verdicts.count("unreachable"),
        "not_run": verdicts.count("not_run"),
        "cost_usd": cost_of(cells),
        "seconds": _seconds(cells),
    }


def _cell_json(cell: Cell, comparison: Comparison | None) -> JsonValue:
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
        "usage": _usage_json(cell.usage),
        "folder": cell.folder,
        "answer": cell.answer,
        "expectations": [
            {"kind": one.kind, "ok": one.ok, "message": one.message, "where": one.where}
            for one in outcome.checked
        ],
    }


def _usage_json(usage: Usage) -> JsonValue:
    return {"input": usage.input, "output": usage.output}


def _baseline_json(comparison: Comparison) -> JsonValue:
    return {
        "file": str(comparison.baseline.file),
        "worse": comparison.count("worse"),
        "better": comparison.count("better"),
        "gone": [{"id": id, "model": model} for id, model in comparison.gone],
    }


def suites(report: LiveReport) -> list[Suite]:
    """One for each file and model."""
    groups: dict[tuple[str, str | None], list[CaseResult]] = {}
    for cell in report.matrix.cells:
        groups.setdefault((cell.job.file, cell.model), []).append(_case(cell, report.comparison))
    made = [Suite(f"{file} [{model_name(model)}]", tuple(c)) for (file, model), c in groups.items()]
    for file in report.broken:
        text = "\n".join(file.problems)
        trouble = Trouble("error", "usage", text.partition("\n")[0], text)
        whole = CaseResult("(the file)", file.name, 0.0, file.name, (trouble,))
        made.append(Suite(file.name, (whole,)))
    return made


def _case(cell: Cell, comparison: Comparison | None) -> CaseResult:
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


def _tell_github(report: LiveReport) -> None:
    from aish.cli.github import file_in_repository, job
    from aish.reports.github.report import case_annotations, cases_summary

    step, made = job(), suites(report)
    names = {cell.job.file: file_in_repository(cell.job.file) for cell in report.matrix.cells}
    step.annotate(case_annotations(made, names))
    step.summarise(lambda limit: cases_summary(live_summary(report), made, limit))


_CSS = """\
:root{color-scheme:light dark;--ok:#1c7c45;--bad:#b3261e;--warn:#8a5a00;--soft:#5b6068}
@media(prefers-color-scheme:dark){:root{--ok:#6cc68c;--bad:#f28b82;--warn:#e3b341;--soft:#a5abb3}}
body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:72rem;padding:0 1rem}
table{border-collapse:collapse;width:100%}th,td{text-align:left;padding:.4rem .7rem;
border-bottom:1px solid color-mix(in srgb,currentColor 20%,transparent);vertical-align:top}
tfoot th,tfoot td{border-top:2px solid currentColor;border-bottom:0}
.passed{color:var(--ok)}.failed,.error,.worse{color:var(--bad)}.unreachable{color:var(--warn)}
.not_run,.facts{color:var(--soft)}pre{white-space:pre-wrap;overflow-wrap:anywhere;margin:.3rem 0}
"""


def live_html(report: LiveReport) -> bytes:
    """One file that loads nothing and runs no script (X3)."""
    digest = base64.b64encode(hashlib.sha256(_CSS.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'"
    head = joined(
        [
            tag("meta", charset="utf-8"),
            tag("meta", http_equiv="Content-Security-Policy", content=policy),
            tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
            tag("title", "aish test --live"),
            Markup(f"<style>{_CSS}</style>"),
        ]
    )
    body = joined(
        [
            tag("h1", "aish test --live"),
            tag("p", live_summary(report)),
            tag("table", _html_head(report), _html_body(report), _html_foot(report)),
            *(
                joined([tag("h2", file.name), tag("pre", "\n".join(file.problems))])
                for file in report.broken
            ),
        ]
    )
    page = tag("html", tag("head", head), tag("body", body), lang="en")
    return f"<!doctype html>\n{page}\n".encode()


def _html_head(report: LiveReport) -> Markup:
    names = (tag("th", model_name(model), scope="col") for model in report.matrix.models)
    return tag("thead", tag("tr", tag("th", "Case", scope="col"), *names))


def _html_body(report: LiveReport) -> Markup:
    return tag(
        "tbody",
        *(
            tag("tr", tag("th", id, scope="row"), *(_html_cell(cell, report) for cell in cells))
            for id, cells in by_case(report.matrix).items()
        ),
    )


def _html_cell(cell: Cell, report: LiveReport) -> Markup:
    change = None if report.comparison is None else report.comparison.changes.get(cell.key)
    facts = " · ".join((*_figures(cell), *([change] if change in _CHANGES else [])))
    parts = [
        tag("strong", _WORDS[cell.verdict], class_=cell.verdict),
        " ",
        tag("span", facts, class_="facts"),
    ]
    said = "\n".join(explanation(cell.outcome, verbose=True))
    if cell.verdict != "passed" and said:
        run = f"\nrun: {cell.folder}" if cell.folder is not None else ""
        parts.append(tag("details", tag("summary", "why"), tag("pre", f"{said}{run}")))
    if cell.answer:
        answer = block(cell.answer, _LONGEST_ANSWER)
        parts.append(tag("details", tag("summary", "answer"), answer))
    return tag("td", *parts)


def _html_foot(report: LiveReport) -> Markup:
    columns = [of_model(report.matrix, model) for model in report.matrix.models]
    rows = (
        ("passed", [_passed_text(cells) for cells in columns]),
        ("cost", [cost_text(cost_of(cells)) for cells in columns]),
        ("time", [seconds_text(_seconds(cells)) for cells in columns]),
    )
    return tag(
        "tfoot",
        *(
            tag("tr", tag("th", name, scope="row"), *(tag("td", text) for text in texts))
            for name, texts in rows
        ),
    )


def by_case(matrix: Matrix) -> dict[str, list[Cell]]:
    """The cells of each case, in the order of the models."""
    rows: dict[str, list[Cell]] = {}
    for cell in matrix.cells:
        rows.setdefault(cell.job.id, []).append(cell)
    return rows


def of_model(matrix: Matrix, model: str | None) -> list[Cell]:
    """The cells of a column."""
    return [cell for cell in matrix.cells if cell.model == model]


def _passed_text(cells: Sequence[Cell]) -> str:
    """Passed of those that were tried; unreachable cases say nothing about the model's answers."""
    tried = [cell for cell in cells if cell.verdict in {"passed", "failed", "error"}]
    return f"{sum(cell.verdict == 'passed' for cell in tried)} of {len(tried)}"


def _seconds(cells: Sequence[Cell]) -> float:
    return sum(cell.outcome.seconds for cell in cells)


def _cell_text(cell: Cell, comparison: Comparison | None) -> str:
    change = None if comparison is None else comparison.changes.get(cell.key)
    mark = (f"({change})",) if change in _CHANGES else ()
    return " ".join((_WORDS[cell.verdict], *_figures(cell), *mark))


def _figures(cell: Cell) -> tuple[str, ...]:
    """Cost and time of the cases that were run."""
    if cell.verdict == "not_run" and cell.folder is None:
        return ()
    return cost_text(cell.cost_usd), seconds_text(cell.outcome.seconds)


def _title(cell: Cell) -> str:
    return _key_text(cell.key)


def _key_text(key: CellKey) -> str:
    id, model = key
    return id if model is None else f"{id} [{model}]"


def _count(verdicts: Sequence[str], key: str) -> int:
    return sum(one == key for one in verdicts)


def _line(text: str) -> str:
    return for_ci_log(for_line(text))
