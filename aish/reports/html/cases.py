"""The page of `aish test --live`: cases by models, each cell with its runs.

It is laid out like the page of a run, by the same style sheet, table and charts. Cases that are
worse than before or flaky come first.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from aish.core.json import JsonValue, json_text
from aish.core.messages import sum_costs
from aish.core.text import for_line
from aish.core.text_diff import hunks
from aish.reports.distribution import Distribution
from aish.reports.figures import cost_text, took_text
from aish.reports.html.charts import counts_chart, dots, interval_chart, numbers_chart
from aish.reports.html.conversation import diff_line
from aish.reports.html.page import document
from aish.reports.html.table import Column, TableRow, TableWords, chip, table
from aish.reports.live_files import live_summary, model_name
from aish.reports.live_results import LiveCase, LiveCell, LiveColumn, LiveResults, LiveRun
from aish.reports.markup import NOTHING, Markup, block, concat, pre, tag

_TITLE = "aish test --live"
_LONGEST_ANSWER, _SHORTEST_ANSWER = 4_000, 200
_ALL_ANSWERS = 4_500_000
_MOST_CALLS = 40
_AROUND, _MOST_LINES = 100, 300
# The worst first: a case has the state of its worst cell.
_STATES: Mapping[str, str] = {
    "worse": "worse",
    "flaky": "flaky",
    "failed": "failed",
    "error": "error",
    "unmeasured": "unmeasured",
    "unreachable": "unreachable",
    "left": "left",
    "not_run": "not run",
    "passed": "passed",
}
_ORDER = tuple(_STATES)


def cases_page(results: LiveResults) -> bytes:
    """The page: cases by models, with what each run answered and why it did not pass."""
    return b"".join(document(_TITLE, _body(results)))


def _body(results: LiveResults) -> Iterator[Markup]:
    code = results.exit
    title = tag("h1", _TITLE, " ", chip("failed" if code else "ok", f"exit {code}"))
    facts = [live_summary(results)]
    if results.repeat > 1:
        facts += [f"{results.repeat} runs of each case"]
        facts += [f"seed {results.seed}"] if results.seed is not None else []
    if results.recorded_tools:
        facts.append("tools from the cassettes")
    if results.limit:
        facts.append(results.limit)
    yield tag("header", title, tag("p", " · ".join(facts), class_="facts"), class_="top")
    yield Markup("<main>")
    yield tag("h2", "Models")
    yield tag("div", *(_model(results, n) for n in range(len(results.columns))), class_="models")
    yield tag("h2", "Cases")
    yield tag("section", _cases(results), class_="step plain")
    for file, problems in results.broken:
        yield concat([tag("h2", for_line(file)), tag("pre", "\n".join(problems))])
    yield Markup("</main>")
    yield tag("footer", "Made by aish. It needs no network.")


def _model(results: LiveResults, number: int) -> Markup:
    """The head of a column: its rate, and how it compares with the baseline."""
    column, cells = results.columns[number], results.of_column(number)
    passed, tried = sum(cell.passed for cell in cells), sum(len(cell.tried) for cell in cells)
    comparison = column.comparison
    facts = [f"{passed} of {tried} runs passed"]
    facts += [f"pass^{k} {power:.0%}" for k, power in column.pass_power]
    facts.append(f"cost {cost_text(sum_costs(cell.cost_usd for cell in cells))}")
    if column.median_seconds is not None:
        facts.append(f"p50 {took_text(column.median_seconds)}")
    if column.served:
        facts.append(f"answered by {', '.join(column.served)}")
    return tag(
        "div",
        tag("h3", for_line(model_name(column.model))),
        _rate(column, None if comparison is None else comparison.before),
        tag("p", for_line(" · ".join(facts)), class_="facts"),
        _sentences(column),
        class_="model",
    )


def _rate(column: LiveColumn, before: float | None) -> Markup:
    if column.rate is None:
        return NOTHING
    text = f"{column.rate:.0%}"
    if column.interval is not None:
        text += f" ({column.interval[0]:.0%} to {column.interval[1]:.0%})"
    if before is not None:
        text = f"{before:.0%} → {text}"
    drawn = interval_chart(column.rate, column.interval or (column.rate,) * 2, before)
    return concat([tag("p", text, class_="rate"), drawn])


def _sentences(column: LiveColumn) -> Markup:
    """The result of the comparison in words, with what limits it."""
    comparison = column.comparison
    if comparison is None:
        return NOTHING
    bad = comparison.outcome in {"worse", "different"}
    return tag(
        "div",
        tag("p", f"against {comparison.against}: ", tag("strong", comparison.sentence)),
        *(tag("p", note, class_="facts") for note in comparison.notes),
        class_="note bad" if bad else "note quiet",
    )


def _cases(results: LiveResults) -> Markup:
    runs = [run for cell in results.cells for run in cell.runs]
    room = max(_ALL_ANSWERS // max(len(runs), 1), _SHORTEST_ANSWER)
    states = [(case, min(map(_state, case.cells), key=_ORDER.index)) for case in results.cases]
    states.sort(key=lambda pair: _ORDER.index(pair[1]))
    columns = [Column("key", "Case", "key", 0), Column("state", "Status", "state", 1)]
    for n, column in enumerate(results.columns):
        name = model_name(column.model)
        columns.append(Column(f"model.{name}", name, "drawn", 4 + n))
    columns += [Column("cost", "Cost", "cost", 2), Column("seconds", "Time", "seconds", 3)]
    counts = Counter(state for _, state in states)
    words = {state: word for state, word in _STATES.items() if counts[state]}
    rows = [_row(results, case, state, room) for case, state in states]
    return concat(
        [_charts(words, counts, runs), *table("cases", columns, rows, TableWords("case", words))]
    )


def _charts(words: Mapping[str, str], counts: Mapping[str, int], runs: Sequence[LiveRun]) -> Markup:
    """The figures of all cases and runs."""
    seconds, cost = Distribution(), Distribution()
    for run in runs:
        if run.verdict in {"passed", "failed"}:
            seconds.add(run.seconds)
            cost.add(run.cost_usd or 0.0)
    charts = [
        counts_chart(
            "Status", [(word, state, counts[state]) for state, word in words.items()], "state"
        )
    ]
    if seconds.quantile(0) != seconds.quantile(1):
        charts.append(numbers_chart("Time of a run", seconds, took_text))
    if cost.quantile(0) != cost.quantile(1):
        charts.append(numbers_chart("Cost of a run", cost, cost_text))
    return tag("div", *charts, class_="charts")


def _state(cell: LiveCell) -> str:
    if cell.change == "worse":
        return "worse"
    return "flaky" if cell.is_flaky else cell.verdict


def _row(results: LiveResults, case: LiveCase, state: str, room: int) -> TableRow:
    longest = min(room, _LONGEST_ANSWER)
    values: list[JsonValue] = [
        for_line(case.id),
        state,
        sum_costs(cell.cost_usd for cell in case.cells),
        round(sum(cell.seconds for cell in case.cells), 3),
        *(cell.passed / len(cell.tried) if cell.tried else None for cell in case.cells),
    ]
    drawn = {4 + n: _cell(cell) for n, cell in enumerate(case.cells)}
    parts = [
        _texts("Inputs", [(name, _text(value)) for name, value in case.inputs.items()], longest),
        _texts("Input from stdin", [("", case.stdin)] if case.stdin else [], longest),
        _texts("Expected", [("", line) for line in case.expected], longest),
    ]
    for column, cell in zip(results.columns, case.cells, strict=True):
        parts += [
            tag(
                "h4",
                for_line(model_name(column.model)),
                " ",
                chip(_state(cell), _STATES[_state(cell)]),
            )
        ]
        parts.append(_runs(cell, case, room))
    return TableRow(values, concat(parts).encode(), state != "passed", drawn)


def _cell(cell: LiveCell) -> Markup:
    """The runs as dots, how many passed, and the interval of the rate."""
    tried = len(cell.tried)
    words = f"{cell.passed} of {tried}" if tried else _STATES[cell.verdict]
    before = cell.before[0] / cell.before[1] if cell.before and cell.before[1] else None
    chart = NOTHING
    if cell.interval is not None and tried:
        chart = interval_chart(cell.passed / tried, cell.interval, before)
    change = cell.change if cell.change in {"worse", "better"} else None
    words += f", {len(cell.left)} left" if cell.left else ""
    marks = tag("span", dots([run.verdict for run in cell.runs]), " ", words)
    return tag(
        "span", marks, tag("b", change, class_=change) if change else None, chart, class_="cell"
    )


def _texts(title: str, texts: Sequence[tuple[str, str]], longest: int) -> Markup:
    if not texts:
        return NOTHING
    shown = (
        concat([tag("p", tag("code", for_line(name))) if name else None, block(text, longest)])
        for name, text in texts
    )
    return concat([tag("h4", title), *shown])


def _text(value: JsonValue) -> str:
    return value if isinstance(value, str) else json_text(value, spaced=True)


def _runs(cell: LiveCell, case: LiveCase, room: int) -> Markup:
    """Each run, with `room` bytes for each answer; one that was given before is not shown again."""
    passed = next(
        (n for n, run in enumerate(cell.runs) if run.verdict == "passed" and run.answer), None
    )
    reference = case.expected_text
    name = "the expected text"
    if reference is None and passed is not None:
        reference, name = cell.runs[passed].answer, f"run {passed + 1}"
    seen: dict[str, int] = {}
    lines = []
    for number, run in enumerate(cell.runs, 1):
        facts = [cost_text(run.cost_usd), took_text(run.seconds)]
        facts += [f"answered by {', '.join(run.served)}"] if run.served else []
        facts += [f"run folder {run.folder}"] if run.folder else []
        head = tag(
            "p",
            tag("strong", f"Run {number}"),
            chip(run.verdict, _STATES[run.verdict]),
            tag("span", for_line(" · ".join(facts)), class_="facts"),
            class_="head",
        )
        reasons = (
            pre("\n".join(run.reasons)) if run.verdict != "passed" and run.reasons else NOTHING
        )
        answer = NOTHING
        if run.answer:
            earlier = seen.setdefault(run.answer, number)
            if earlier != number:
                answer = tag("p", f"the answer of run {earlier}", class_="quiet")
            else:
                other = None if number - 1 == passed else reference
                answer = _answer(run.answer, other, name, room)
        lines.append(tag("li", head, reasons, answer, _calls(run)))
    return tag("ol", *lines, class_="talk")


def _answer(answer: str, reference: str | None, name: str, room: int) -> Markup:
    """The answer, or how it differs from another text; cut until it takes at most `room` bytes."""
    longest = min(room, _LONGEST_ANSWER)
    while True:
        if reference is None:
            markup = block(answer, longest)
        else:
            markup = _difference(answer, reference, name, longest)
        if longest <= _SHORTEST_ANSWER or len(markup.encode()) <= room:
            return markup
        longest //= 2


def _difference(answer: str, reference: str, name: str, longest: int) -> Markup:
    """The answer against another text, line by line."""
    if answer == reference:
        return tag("p", f"the same as {name}", class_="quiet")
    old, new = (text[:longest].splitlines() for text in (reference, answer))
    lines = [diff_line(row) for hunk in hunks(old, new, _AROUND, _MOST_LINES) for row in hunk.rows]
    left = len(answer) - longest
    more = tag("p", f"… and {left} characters more, in the folder of the run", class_="cut")
    return concat(
        [
            tag("p", f"against {name}:", class_="quiet"),
            pre(answer[:longest], *lines, class_="diff"),
            more if left > 0 else None,
        ]
    )


def _calls(run: LiveRun) -> Markup:
    if not run.calls:
        return NOTHING
    lines = [
        tag(
            "li",
            tag("code", for_line(call.tool)),
            f" {for_line(call.outcome)}, {took_text(call.seconds)}",
        )
        for call in run.calls[:_MOST_CALLS]
    ]
    left = len(run.calls) - len(lines)
    more = tag("li", f"and {left} more", class_="quiet") if left else None
    return tag("ul", *lines, more, class_="calls")
