"""The page of `aish test --live`, cases by models: it loads nothing and runs no script."""

from collections.abc import Iterator, Sequence

from aish.core.messages import sum_costs
from aish.output.status import seconds_text
from aish.reports.figures import cost_text
from aish.reports.html.page import own_file, style_hash
from aish.reports.live_files import live_summary, model_name, share_text
from aish.reports.live_results import LiveCell, LiveResults, LiveRun
from aish.reports.markup import Markup, block, concat, tag

_TITLE = "aish test --live"
_LONGEST_ANSWER = 20_000


def cases_page(results: LiveResults) -> bytes:
    """The page: cases by models, with what each run answered and why it did not pass."""
    style = own_file("cases.css")
    policy = f"default-src 'none'; style-src '{style_hash(style)}'; base-uri 'none'"
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("title", _TITLE),
        Markup(f"<style>{style}</style>"),
    )
    heads = [model_name(column.model) for column in results.columns]
    columns = (tag("th", name, scope="col") for name in ("Case", *heads))
    body = [_row(case.id, list(map(_cell, case.cells))) for case in results.cases]
    foot = [_row(name, [tag("td", text) for text in texts]) for name, texts in _totals(results)]
    main = tag(
        "main",
        tag("h1", _TITLE),
        tag("p", live_summary(results)),
        tag("table", tag("thead", tag("tr", *columns)), tag("tbody", *body), tag("tfoot", *foot)),
        *(
            concat([tag("h2", file), tag("pre", "\n".join(problems))])
            for file, problems in results.broken
        ),
    )
    return f"<!doctype html>\n{tag('html', head, tag('body', main), lang='en')}\n".encode()


def _cell(cell: LiveCell) -> Markup:
    words = [share_text(cell), cost_text(cell.cost_usd), seconds_text(cell.seconds)]
    words += ["flaky"] if cell.is_flaky else []
    words += [cell.change] if cell.change in {"worse", "better"} else []
    parts = [
        tag("strong", cell.verdict.replace("_", " "), class_=cell.verdict),
        " ",
        tag("span", " · ".join(filter(None, words)), class_="facts"),
        *map(_run, cell.runs),
    ]
    return tag("td", *parts)


def _run(run: LiveRun) -> Markup:
    parts = []
    if run.verdict != "passed" and run.reasons:
        folder = f"\nrun: {run.folder}" if run.folder is not None else ""
        text = "\n".join(run.reasons)
        parts.append(tag("details", tag("summary", "why"), tag("pre", f"{text}{folder}")))
    if run.answer:
        answer = block(run.answer, _LONGEST_ANSWER)
        parts.append(tag("details", tag("summary", "answer"), answer))
    return concat(parts)


def _totals(results: LiveResults) -> Iterator[tuple[str, list[str]]]:
    columns = [results.of_column(number) for number in range(len(results.columns))]
    costs = (sum_costs(cell.cost_usd for cell in cells) for cells in columns)
    yield "cost", list(map(cost_text, costs))
    yield "time", [seconds_text(sum(cell.seconds for cell in cells)) for cells in columns]
    if any(column.comparison is not None for column in results.columns):
        sentences = (one.comparison for one in results.columns)
        yield "compared", ["" if one is None else one.sentence for one in sentences]


def _row(name: str, cells: Sequence[Markup]) -> Markup:
    return tag("tr", tag("th", name, scope="row"), *cells)
