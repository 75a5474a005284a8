"""`aish test --live`: options, lines and the table at the terminal, files, the exit code.

One row for each case, one column for each model. Names, answers and messages come from files and
models; each passes `for_ci_log` or the function for its output.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from secrets import randbelow
from typing import TextIO

from aish.cli.boundary import say
from aish.cli.case_report import CasePrinter, Manners, log_line, rule, tell_github, write_file
from aish.cli.options import CaseOptions, LiveOptions, Report
from aish.cli.output_setup import check_writable
from aish.cli.pipeline_options import look_options, seconds_of
from aish.cli.printer import print_json
from aish.cli.tool_preview import beginnings
from aish.core.errors import ExitCode, UsageError
from aish.core.messages import sum_costs
from aish.core.phrases import counted
from aish.core.text import for_ci_log
from aish.engine.final import PRECEDENCE
from aish.features.testing.baseline import (
    Baseline,
    baseline_file,
    read_baseline,
    require_same,
    require_same_tools,
)
from aish.features.testing.comparison import percent
from aish.features.testing.discovery import find_files
from aish.features.testing.forecast import forecast_line
from aish.features.testing.live import (
    CellDraft,
    LiveSettings,
    identity_of,
    prepare_session,
    run_live,
)
from aish.features.testing.session import FoundCases, find_cases
from aish.output.formats.junit import junit_xml
from aish.output.status import seconds_text, served_change
from aish.output.style import Style
from aish.reports.figures import cost_text
from aish.reports.html.cases import cases_page
from aish.reports.live_files import (
    live_json,
    live_suites,
    live_summary,
    model_name,
    share_text,
)
from aish.reports.live_results import (
    TRIED,
    CellVerdict,
    Interval,
    LiveCell,
    LiveColumn,
    LiveResults,
    LiveRun,
    RunVerdict,
)

_WORDS: Mapping[CellVerdict | RunVerdict, str] = {
    "passed": "passed",
    "failed": "FAILED",
    "error": "ERROR",
    "unreachable": "unreachable",
    "left": "left",
    "not_run": "not run",
    "unmeasured": "unmeasured",
}
_STYLES: Mapping[CellVerdict | RunVerdict, Style] = {
    "passed": "green",
    "failed": "red",
    "error": "red",
    "unreachable": "yellow",
    "left": "yellow",
    "not_run": "dim",
    "unmeasured": "yellow",
}
_SEEDS = 2**32


def test_live(live: LiveOptions, cases: CaseOptions, out: TextIO, manners: Manners) -> int:
    """Run the cases and write all that was asked for; the value is the exit code."""
    _check_options(live, cases)
    extended = live.extend_baseline
    earlier = None if extended is None else read_baseline(extended, "--extend-baseline")
    settings = LiveSettings(
        models=tuple(dict.fromkeys(live.models or ())),
        options=look_options(live),
        width=cases.width,
        max_cost_usd=live.max_cost_usd,
        timeout=seconds_of(live.timeout),
        stop_first=cases.stop_first,
        ask=live.ask,
        repeat=live.repeat,
        recorded_tools=live.recorded_tools,
        stops=not live.all_runs and live.write_baseline is None and extended is None,
        against=live.against,
        baseline=None if live.baseline is None else read_baseline(live.baseline),
    )
    for option, before in (("--baseline", settings.baseline), ("--extend-baseline", earlier)):
        if before is not None:
            require_same_tools(before, option, recorded=live.recorded_tools)
    found = find_cases(find_files(cases.paths or ()), cases.keyword)
    session = prepare_session(found.chosen, settings, randbelow(_SEEDS))
    if earlier is not None:
        require_same(earlier, identity_of(session), "--extend-baseline")
    if session.rounds > 1:
        say(forecast_line(session))
    lines = _ReportLines(out, manners)
    results = run_live(session, lines, None if manners.quiet else beginnings())
    results = _with_files(results, found)
    lines.close(results)
    if cases.output_format is Report.JSON:
        print_json(live_json(results))
    if cases.github:
        tell_github(live_summary(results), live_suites(results))
    code = results.exit
    for option, path, data in _files(live, cases.junit, results, earlier):
        if not write_file(option, path, data):
            code = code or ExitCode.FAILED
    return int(code)


def _with_files(results: LiveResults, found: FoundCases) -> LiveResults:
    """The results with the files that could not be loaded."""
    if len(found.chosen) < len(found.jobs) or found.broken:
        results = replace(results, gone=())
    if not found.broken:
        return results
    broken = tuple((file.name, tuple(file.problems)) for file in found.broken)
    codes = {ExitCode(results.exit), ExitCode.USAGE}
    return replace(results, broken=broken, exit=int(next(c for c in PRECEDENCE if c in codes)))


def _check_options(live: LiveOptions, cases: CaseOptions) -> None:
    """Check all that can be checked before anything is asked.

    Raises:
        UsageError: options contradict each other, or a file cannot be written.
    """
    for option, path in (
        ("--junit", cases.junit),
        ("--html", live.html),
        ("--write-baseline", live.write_baseline),
        ("--extend-baseline", live.extend_baseline),
    ):
        if path is not None:
            check_writable(path, option)
    pairs = (
        ("--write-baseline", live.write_baseline, "--extend-baseline", live.extend_baseline),
        ("--against", live.against, "--baseline", live.baseline),
    )
    for option, one, other_option, other in pairs:
        if one is not None and other is not None:
            raise UsageError(f"`{option}` and `{other_option}` exclude each other")
    of_tools = {
        "--ask": live.ask,
        "--allow-broad-root": live.broad_root,
        "--no-fetch": live.no_fetch,
    }
    given = [option for option, value in of_tools.items() if value and live.recorded_tools]
    if given:
        message = f"`{given[0]}` is about tools that run, and `--recorded-tools` runs none"
        raise UsageError(message, hint="answers about calls are in the cassettes too")


def _files(
    live: LiveOptions, junit: Path | None, results: LiveResults, earlier: Baseline | None
) -> Iterator[tuple[str, Path, bytes]]:
    if junit is not None:
        yield "--junit", junit, junit_xml("aish test --live", live_suites(results))
    if live.html is not None:
        yield "--html", live.html, cases_page(results)
    for option, path in (
        ("--write-baseline", live.write_baseline),
        ("--extend-baseline", live.extend_baseline),
    ):
        if path is not None and _is_complete(results, f"{option} {path}"):
            yield option, path, baseline_file(results, earlier)


def _is_complete(results: LiveResults, where: str) -> bool:
    """True if each case has a result; a baseline without one is not written, which is said."""
    unfinished = sum(cell.verdict not in TRIED for cell in results.cells)
    why = ""
    if results.interrupted or results.limit:
        why = "not all runs were made"
    elif unfinished or results.broken:
        why = counted(unfinished, "case") if unfinished else "a file that cannot be loaded"
        why += " without a result"
    if why:
        say(f"warning: {where}: not written: {why}")
    return not why


class _ReportLines(CasePrinter):
    def ended(self, draft: CellDraft, run: LiveRun, number: int) -> None:
        if self._manners.quiet:
            return
        word = self._manners.look.paint(_STYLES[run.verdict], _WORDS[run.verdict])
        count = f"run {number} of {draft.planned} " if draft.planned > 1 else ""
        figures = " ".join(_figures(run.cost_usd, run.seconds))
        if run.verdict == "not_run" and run.folder is None:
            figures = ""
        self._print(f"{log_line(_title(draft.key))} {count}{word} {figures}".rstrip())
        for check in run.expectations if self._manners.verbose else ():
            text = log_line(f"{check['kind']}: {check['message']}")
            self._print(f"  {'ok' if check['ok'] else 'no'} {text}")

    def close(self, results: LiveResults) -> None:
        for line in summary_lines(results, self._manners):
            self._print(line)


def summary_lines(results: LiveResults, manners: Manners) -> Iterator[str]:
    look = manners.look
    rows = [(case, cell) for case in results.cases for cell in case.cells]
    bad = [one for one in rows if _is_explained(one[1])]
    if bad or results.broken:
        yield ""
        yield look.paint("bold", rule(look, "failures", "="))
    for file, problems in results.broken:
        yield look.paint("red", rule(look, log_line(file), "_"))
        yield from map(for_ci_log, problems)
    for case, cell in bad:
        title = log_line(_title((case.id, cell.model)))
        yield look.paint(_STYLES[cell.verdict], rule(look, title, "_"))
        run = cell.decisive
        if cell.is_repeated and cell.tried:
            yield f"{share_text(cell)} runs passed; the first that did not:"
        yield from map(for_ci_log, run.reasons)
        if run.folder is not None:
            yield log_line(f"run: {run.folder}")
    yield ""
    table = list(_rows(results))
    widths = [max(len(row[column]) for row in table) for column in range(len(table[0]))]
    for number, row in enumerate(table):
        if number == len(results.cases) + 1:
            yield "  ".join(["-" * width for width in widths])
        yield "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()
    yield from _flaky(results)
    yield from _left(results)
    yield from _changes(results)
    yield ""
    yield look.paint("red" if results.exit else "green", live_summary(results))


def _is_explained(cell: LiveCell) -> bool:
    """True if the reasons of a case are shown; where a comparison decides, of those that fell."""
    if cell.verdict == "failed" and cell.is_compared:
        return cell.change == "worse"
    return cell.verdict not in {"passed", "not_run"}


def _flaky(results: LiveResults) -> Iterator[str]:
    """The cases that passed and failed, with the reason of the first run that failed."""
    flaky = [(case, cell) for case in results.cases for cell in case.cells if cell.is_flaky]
    if flaky:
        yield ""
        yield "flaky:"
    for case, cell in flaky:
        reason = cell.decisive.reasons[0] if cell.decisive.reasons else cell.decisive.reason
        yield f"  {log_line(_title((case.id, cell.model)))}: {share_text(cell)}"
        yield f"    {log_line(reason)}"


def _left(results: LiveResults) -> Iterator[str]:
    """The cases with runs that left the recording, with the first call that is not in it."""
    left = [(case, cell) for case in results.cases for cell in case.cells if cell.left]
    if left:
        yield ""
        yield "left the recording:"
    for case, cell in left:
        yield f"  {log_line(_title((case.id, cell.model)))}: {counted(len(cell.left), 'run')}"
        yield from (f"    {log_line(line)}" for line in cell.left[0].reason.splitlines())


def _rows(results: LiveResults) -> Iterator[tuple[str, ...]]:
    columns = results.columns
    yield ("case", *(log_line(model_name(column.model)) for column in columns))
    for case in results.cases:
        yield (log_line(case.id), *map(_cell_text, case.cells))
    cells = [results.of_column(number) for number in range(len(columns))]
    yield ("passed", *map(_share_passed, cells, columns))
    if results.repeat > 1:
        yield ("rate", *map(_rate, columns))
        for k in sorted({k for column in columns for k, _ in column.pass_power if k > 1}):
            powers = [dict(column.pass_power).get(k) for column in columns]
            yield (f"pass^{k}", *("" if one is None else percent(one) for one in powers))
    yield ("cost", *(cost_text(sum_costs(cell.cost_usd for cell in own)) for own in cells))
    yield ("answered", *(log_line(", ".join(column.served)) for column in columns))
    yield ("time", *(seconds_text(sum(cell.seconds for cell in own)) for own in cells))
    if results.baseline is not None:
        yield ("cost before", *(cost_text(column.cost_before) for column in columns))


def _rate(column: LiveColumn) -> str:
    if column.rate is None:
        return ""
    between = "" if column.interval is None else f" ({_interval(column.interval)})"
    return f"{percent(column.rate)}{between}"


def _interval(interval: Interval) -> str:
    return f"{100 * interval[0]:.0f} to {percent(interval[1])}"


def _share_passed(cells: Sequence[LiveCell], column: LiveColumn) -> str:
    """Passed of those that were tried; unreachable cases say nothing about the model's answers."""
    if column.comparison is not None:
        runs = sum(len(cell.tried) for cell in cells)
        return f"{sum(cell.passed for cell in cells)} of {runs} runs"
    tried = [cell for cell in cells if cell.verdict in TRIED]
    return f"{sum(cell.verdict == 'passed' for cell in tried)} of {len(tried)}"


def _changes(results: LiveResults) -> Iterator[str]:
    for one in results.columns:
        if text := served_change(model_name(one.model), one.served_before, one.served):
            yield log_line(text)
    compared = [column for column in results.columns if column.comparison is not None]
    for change in ("worse", "better"):
        keys = [
            (case.id, cell.model)
            for case in results.cases
            for cell in case.cells
            if cell.change == change
        ]
        if keys:
            flipped = f"flipped, {change} than in {log_line(results.baseline or '')}:"
            yield ""
            yield f"{change} by itself:" if compared else flipped
            yield from (f"  {log_line(_title(key))}" for key in keys)
    for column in compared:
        comparison = column.comparison
        assert comparison is not None
        yield ""
        yield f"{log_line(model_name(column.model))} against {log_line(comparison.against)}:"
        yield f"  {log_line(comparison.sentence)}"
        yield from (f"  {log_line(note)}" for note in comparison.notes)
    if results.gone:
        yield ""
        yield f"in {log_line(results.baseline or '')} but not run now:"
        yield from (f"  {log_line(_title(key))}" for key in results.gone)
    before = None if results.baseline is None else log_line(results.baseline)
    new = [
        column
        for number, column in enumerate(results.columns)
        if before and all(cell.change == "new" for cell in results.of_column(number))
    ]
    for column in new:
        yield ""
        yield f"{log_line(model_name(column.model))} has no run in {before}: nothing is compared"
    if before and not compared and len(new) < len(results.columns):
        yield ""
        yield "hint: one run a case proves little: `--repeat 8`"


def _cell_text(cell: LiveCell) -> str:
    parts = [share_text(cell) or _WORDS[cell.verdict]]
    if cell.interval is not None:
        parts.append(f"({_interval(cell.interval)})")
    if cell.is_repeated and cell.verdict not in {"passed", "failed"}:
        parts = [_WORDS[cell.verdict], share_text(cell)]
    if cell.before is not None:
        parts.append(f"(before {cell.before[0]} of {cell.before[1]})")
    if any(run.verdict != "not_run" or run.folder is not None for run in cell.runs):
        parts += _figures(cell.cost_usd, cell.seconds)
    if cell.change in {"worse", "better", "new"}:
        parts.append(f"({cell.change})")
    return " ".join(parts)


def _figures(cost: float | None, seconds: float) -> tuple[str, str]:
    return cost_text(cost), seconds_text(seconds)


def _title(key: tuple[str, str | None]) -> str:
    id, model = key
    return id if model is None else f"{id} [{model}]"
