"""The page of `aish test --live`, cases by models: it loads nothing and runs no script."""

from collections.abc import Iterable, Sequence
from itertools import starmap

from aish.reports.html.page import own_file, style_hash
from aish.reports.markup import Markup, concat, tag

_TITLE = "aish test --live"


def cases_page(
    line: str,
    heads: Sequence[str],
    rows: Iterable[tuple[str, Sequence[Markup]]],
    totals: Iterable[tuple[str, Sequence[str]]],
    broken: Iterable[tuple[str, str]],
) -> bytes:
    """The page; `line` is the result in short, `broken` are files and what is wrong with them."""
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
    columns = (tag("th", name, scope="col") for name in ("Case", *heads))
    body = list(starmap(_row, rows))
    foot = [_row(name, [tag("td", text) for text in texts]) for name, texts in totals]
    main = tag(
        "main",
        tag("h1", _TITLE),
        tag("p", line),
        tag("table", tag("thead", tag("tr", *columns)), tag("tbody", *body), tag("tfoot", *foot)),
        *(concat([tag("h2", file), tag("pre", problems)]) for file, problems in broken),
    )
    return f"<!doctype html>\n{tag('html', head, tag('body', main), lang='en')}\n".encode()


def _row(name: str, cells: Sequence[Markup]) -> Markup:
    return tag("tr", tag("th", name, scope="row"), *cells)
