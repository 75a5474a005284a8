"""`aish test --github`: the cases that did not pass, for the page of the job (C12, B11)."""

from collections.abc import Iterator, Sequence
from itertools import islice

from aish.output.formats.junit import CaseResult, Suite
from aish.output.status import seconds_text
from aish.reports.github.commands import Spot, annotation
from aish.reports.github.job import LIMIT
from aish.reports.github.notes import MOST
from aish.reports.github.page import Page, code, pre
from aish.reports.markup import joined, tag

_PARTS = 100


def cases_summary(line: str, suites: Sequence[Suite], limit: int = LIMIT) -> str:
    """The page; `line` says in short what it came to."""
    page = Page(limit)
    bad = _bad(suites)
    sign = "❌" if bad else "✅"
    if not page.add("\n".join([tag("h3", f"{sign} aish test"), tag("p", line)])):
        return ""
    heads = ("File", "Passed", "Not passed", "Time")
    page.table(heads, map(_row, sorted(suites, key=lambda suite: not _bad([suite]))))
    for case in bad[:_PARTS]:
        title = joined(["❌ ", code(case.classname), " ", code(case.name)])
        texts = (pre(trouble.text or trouble.message) for trouble in case.troubles)
        page.details(title, texts, is_open=len(bad) <= MOST)
    return page.text()


def case_annotations(suites: Sequence[Suite], name: dict[str, str]) -> Iterator[str]:
    """Lines for the runner; `name` has each file as GitHub names it."""
    for case in islice(_bad(suites), MOST):
        spot = None if case.file is None else Spot(name.get(case.file, case.file), 1, 1)
        for trouble in case.troubles[:1]:
            yield annotation("error", case.name, trouble.text or trouble.message, spot)


def _bad(suites: Sequence[Suite]) -> list[CaseResult]:
    return [case for suite in suites for case in suite.cases if case.troubles]


def _row(suite: Suite) -> Sequence[str | None]:
    bad = len(_bad([suite]))
    took = seconds_text(suite.seconds)
    return code(suite.name), f"{len(suite.cases) - bad}", f"{bad}" if bad else None, took
