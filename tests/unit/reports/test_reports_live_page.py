"""The page of `aish test --live`: cases by models, with the runs of each cell."""

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from report_pages import MARKUP, Page, check_harmless, live_results
from scripted_events import HOSTILE

from aish.reports.html.cases import cases_page
from aish.reports.live_results import LiveCall, LiveCase, LiveCell, LiveColumn, LiveResults, LiveRun


def page_of(results: LiveResults) -> Page:
    page = Page(cases_page(results).decode())
    check_harmless(page)
    return page


@pytest.mark.requirement("V37")
def test_a_cell_shows_its_runs_and_what_was_worse_comes_first() -> None:
    page = page_of(live_results())

    assert [row[:2] for row in page.rows] == [
        ["p.yaml: worse", "worse"],
        ["p.yaml: flaky", "flaky"],
        ["p.yaml: good", "passed"],
    ]
    for text in (
        "80% → 60% (41% to 77%)", "pass^1 60%", "p50 1.5 s", "answered by gpt-4o-2024-11-20",
        "worse: 80% → 60%", "1 of 4", "4 of 4", "against base.json",
    ):  # fmt: skip
        assert text in page.shown, text
    labels = [one.get("aria-label") or "" for _, one in page.tags]
    assert "passed, failed, failed, failed" in labels
    assert "25%, between 5% and 70%, 100% before" in labels
    flaky = next(body for body in page.bodies if "Run 2" in body.shown)
    for text in ("question What is it?", "contains: yes", "against run 1:", "repo__find", "exit 1"):
        assert text in flaky.shown, text
    kinds = [tag for tag, _ in flaky.tags]
    assert "ins" in kinds
    assert "del" in kinds


def test_the_same_answer_is_shown_once_and_a_long_one_is_cut() -> None:
    runs = tuple(LiveRun("passed", answer="x" * 9_000, folder=".aish/runs/1") for _ in range(8))
    cell = LiveCell("m", "passed", runs)
    page = page_of(LiveResults((LiveColumn("m"),), (LiveCase("c", "p.yaml", "c", (cell,)),)))

    body = page.bodies[-1]
    assert "and 5000 characters more" in body.shown
    assert body.shown.count("the answer of run 1") == 7


@pytest.mark.slow(reason="writes six megabytes")
def test_fifty_cases_on_four_models_eight_times_are_six_megabytes() -> None:
    """Answers of 5 kB, all of them different."""

    def runs(case: int, model: int) -> tuple[LiveRun, ...]:
        return tuple(
            LiveRun("passed" if n else "failed", answer=f"{case}{model}{n} <text> & more\n" * 250)
            for n in range(8)
        )

    models = [f"model-{n}" for n in range(4)]
    cases = tuple(
        LiveCase(
            f"p.yaml: {case}",
            "p.yaml",
            str(case),
            tuple(LiveCell(name, "failed", runs(case, n)) for n, name in enumerate(models)),
        )
        for case in range(50)
    )
    results = LiveResults(tuple(map(LiveColumn, models)), cases)

    assert len(cases_page(results)) <= 6_000_000


TEXTS = st.sampled_from([MARKUP, HOSTILE]) | st.text(max_size=20)


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(st.lists(TEXTS, min_size=12, max_size=12), st.sampled_from(["passed", "failed", "error"]))
def test_whatever_models_and_files_say_is_text(texts: list[str], verdict: Any) -> None:
    call = LiveCall(texts[0], texts[1], 0.1)
    run = LiveRun(
        verdict,
        reasons=(texts[2],),
        answer=texts[3],
        folder=texts[4],
        served=(texts[5],),
        calls=(call,),
    )
    cell = LiveCell(texts[6], verdict, (run, LiveRun("passed", answer=texts[7])))
    case = LiveCase(
        texts[8], "p.yaml", "c", (cell,), {"a": texts[9]}, texts[10], (texts[11],), texts[0]
    )

    page_of(LiveResults((LiveColumn(texts[6]),), (case,), broken=((texts[0], (texts[1],)),)))
