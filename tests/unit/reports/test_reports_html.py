"""The page: whole, in one file, and deaf to whatever stands in the data (B11, X2, X3)."""

import json
import math
import re
from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from report_pages import (
    MARKUP,
    RUN,
    batch_run,
    check_harmless,
    item_finished,
    item_started,
    own_file,
    page_of,
    sha256,
    timed,
    two_parts,
    valued_item,
    valued_run,
    without_end,
)
from scripted_events import (
    HOSTILE,
    answered,
    any_event,
    decided,
    ordinary_run,
    paused_run,
    run_finished,
    run_started,
    step_finished,
    troubled_run,
    turn_finished,
    unmet_run,
)
from syrupy.assertion import SnapshotAssertion

from aish.core.events import Event, Failure, Place, Stamped, StepStarted, ToolFinished
from aish.core.messages import Usage
from aish.core.text import for_terminal
from aish.reports.distribution import Distribution
from aish.reports.html.contents import PageBudget

# --- The file --------------------------------------------------------------------------------


@pytest.mark.parametrize("events", [ordinary_run(), troubled_run(), batch_run(3)])
def test_the_policy_allows_our_code_and_nothing_else(events: list[Stamped]) -> None:
    page = page_of(events)

    (style,) = page.styles
    assert page.policy.split("; ") == [
        "default-src 'none'",
        f"style-src {sha256(style)}",
        f"script-src {sha256(page.code)}",
        "base-uri 'none'",
        "form-action 'none'",
    ]
    assert (style, page.code) == (own_file("report.css"), own_file("report.js"))


def test_our_own_code_reaches_for_nothing_and_makes_no_markup_of_texts() -> None:
    code, style = own_file("report.js"), own_file("report.css")

    assert not re.search(r"https?:|url\(|@import", code + style)
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b", code)
    assert not re.search(r"\bfetch\b|XMLHttpRequest|WebSocket|\bimport\b|sendBeacon", code)
    assert "</" not in code + style


def test_the_page_of_a_small_run(snapshot: SnapshotAssertion) -> None:
    page = page_of(ordinary_run())

    body = page.text[page.text.index("<body>") :].replace(page.code, "")
    assert re.sub(r"(?<=>)(?=<(?!/))", "\n", body) == snapshot


# --- A stranger's text -----------------------------------------------------------------------


@pytest.mark.parametrize("mark", [MARKUP, HOSTILE], ids=["markup", "escapes"])
def test_hostile_data_is_text(mark: str) -> None:
    page = page_of(batch_run(4, failing=(1, 2), mark=mark))

    check_harmless(page)
    assert page.shown.count("is not as it should be") == 2
    assert [row[1] for row in page.rows] == [
        for_terminal(f"row-{n:05d}{mark}").replace("\n", "⏎") for n in (1, 2, 0, 3)
    ]


def test_a_run_of_strangers_is_text() -> None:
    check_harmless(page_of(troubled_run()))
    check_harmless(page_of(unmet_run()))


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(st.lists(any_event(), max_size=12))
def test_whatever_a_journal_holds_makes_a_page(events: list[Stamped]) -> None:
    check_harmless(page_of(events))


# --- What it tells ---------------------------------------------------------------------------


def test_the_head_tells_how_the_run_ended() -> None:
    shown = page_of(unmet_run()).shown

    assert "Exit 1 · failed" in shown
    assert "expected the text to contain `fix`; got `Hello`" in shown
    assert RUN in shown


def test_a_paused_run_shows_what_waits_and_how_to_answer() -> None:
    page = page_of(timed(*paused_run()))

    check_harmless(page)
    assert "1 call waits for an answer" in page.shown
    assert "aish approve 20261118T120640Z-quickstart-a1b2 1a2b3c4d" in page.shown
    assert "Exit 8 · paused" in page.shown


def test_an_answer_after_the_end_is_on_the_page_and_takes_no_time() -> None:
    events = timed(*paused_run())
    late = Stamped(99, events[-1].time + 86_400, answered(Place("fix", turn=1, call="c2")))
    before, after = page_of(events).shown, page_of([*events, late]).shown

    assert "aish approve" not in after
    assert "repo__file_remove (1a2b3c4d) approved by mia (command)" in after
    assert before.partition("Duration")[2][:20] == after.partition("Duration")[2][:20]


def test_what_is_unknown_is_not_told_as_nothing() -> None:
    events = timed(run_started(), run_finished(usage=Usage(412, None), cost_usd=None))
    shown = page_of(events).shown

    assert "Tokens unknown 412 in" in shown
    assert "Cost unknown" in shown


def test_where_no_model_was_asked_nothing_is_said_of_tokens_and_cost() -> None:
    without = timed(run_started(), run_finished(usage=Usage(), cost_usd=0.0))
    free = timed(run_started(), run_finished(usage=Usage(412, 96), cost_usd=0.0))

    assert "Tokens" not in page_of(without).shown
    assert "Cost" not in page_of(without).shown
    assert "Cost $0" in page_of(free).shown


def test_a_step_tells_of_its_turns_calls_and_results() -> None:
    shown = page_of(troubled_run()).shown

    for word in (
        "Turn 1", "repo__file_read", "auto", "by repo__*", "transport_error", "deny",
        "by *__delete*", "retry", "fallback", "withdrawn", "protocol_mismatch",
        "the whole result: files/0001-result.txt", "hint: raise `max_tokens`",
    ):  # fmt: skip
        assert word in shown, word


def test_a_denied_call_has_its_hint() -> None:
    place = Place("one", turn=1, call="c1")
    call = decided(place, "box__run", {"run": "rm x"}, verdict="ask-no", hint="approve it by …")
    steps = (StepStarted(Place("one"), "prompt"), call, step_finished("one"))

    assert "hint: approve it by …" in page_of(timed(run_started(), *steps, run_finished())).shown


def test_expectations_are_shown_with_their_differences() -> None:
    page = page_of(unmet_run())

    kinds = Counter(tag for tag, _ in page.tags)
    assert (kinds["ins"], kinds["del"]) == (1, 1)
    assert page.shown.count("not met") == 2


def test_a_run_without_an_end_says_so() -> None:
    page = page_of(without_end(batch_run(3)))

    assert "The journal has no end" in page.shown
    assert "cut off" in page.shown
    assert len(page.rows) == 3


def test_of_a_run_in_parts_the_last_end_of_each_item_stands() -> None:
    page = page_of(two_parts())

    assert [(row[1], row[2], row[3]) for row in page.rows] == [
        ("a", "ok", "about a"),
        ("b", "ok", "b at last"),
        ("c", "ok", "about c"),
    ]
    assert "Duration 1.3 s in 2 parts" in page.shown
    assert "resumed 2026-11-18 12:06:40 UTC" in page.shown


def test_long_texts_are_cut_with_a_note_of_how_much() -> None:
    place = Place("read", turn=1, call="c1")
    events = timed(
        run_started(),
        StepStarted(Place("read"), "call"),
        ToolFinished(place, "repo__file_read", "ok", "x" * 250_000, None, 0.1),
        step_finished(),
        run_finished(),
    )
    page = page_of(events)

    assert len(page.text) < 100_000
    assert "… and 230000 characters more, left out here" in page.shown


def test_the_answer_is_not_told_twice() -> None:
    text = "An answer that stands for itself"
    events = timed(
        run_started(),
        StepStarted(Place("read"), "prompt"),
        turn_finished(Place("read", turn=1), text),
        step_finished(text=text),
        run_finished(),
    )

    assert page_of(events).shown.count(text) == 1


# --- Items -----------------------------------------------------------------------------------


def test_every_row_finds_its_body() -> None:
    page = page_of(batch_run(400, failing=(7,)))

    blocks = [re.split(r"(?=<div><h4>|<div><div)", body.text)[1:] for body in page.bodies]
    assert len(blocks) > 1
    for row in page.rows:
        assert f"about {row[1]}" in blocks[row[-2]][row[-1]]


def test_without_scripts_the_first_items_and_every_failure_can_be_read() -> None:
    page = page_of(batch_run(200, failing=(3, 150, 199)))

    assert page.shown.rindex("row-00199") < page.shown.rindex("row-00000")
    for n in (3, 150, 199):
        assert f"row {n} is not as it should be" in page.shown
    assert ">row-00100<" not in page.text
    assert "175 more are shown if scripts are enabled" in page.shown


def test_what_there_is_no_room_for_is_left_out_of_what_went_well() -> None:
    page = page_of(batch_run(60, failing=(50, 51)), PageBudget(well=20_000, rows=30))

    assert len(page.rows) == 30
    assert {row[1] for row in page.rows if row[2] == "failed"} == {"row-00050", "row-00051"}
    assert "30 successful items are counted and have no row" in page.shown
    assert re.search(r"\d+ items have no conversation here", page.shown)
    assert "60 items, 2 failed" in page.shown


@pytest.mark.requirement("V35")
def test_a_row_has_the_columns_of_its_table_and_of_the_schema_of_the_answers() -> None:
    page = page_of(valued_run(6, mark=MARKUP))
    check_harmless(page)

    (settings,) = [
        json.loads(one["data-settings"] or "") for _, one in page.tags if "data-settings" in one
    ]
    titles = [title for _, title, *_, shown in settings["columns"] if shown]
    assert titles == [
        "Item", "Status", "city", "kind", "urgent", "score", "output.note", "tags", "extra",
        "Answer or reason", "Cost", "Time",
    ]  # fmt: skip
    assert sorted(title for _, title, *_, shown in settings["columns"] if not shown) == [
        "#", "Calls", "Tokens", "Turns", "item.note"
    ]  # fmt: skip
    by_title = {title: at for _, title, _, at, _ in settings["columns"]}
    failed, first = page.rows[0], page.rows[1]
    assert [failed[by_title[name]] for name in ("Item", "Status", "kind")] == ["k3", "failed", None]
    assert [first[by_title[name]] for name in ("city", "kind", "urgent", "score", "tags")] == [
        "Ulm", "defect", False, 1, '["a", 1]'
    ]  # fmt: skip
    assert settings["retry"] == "aish run p.yaml --resume --retry-failed"
    assert page.shown.count("aish run p.yaml --resume --retry-failed") == 1


@pytest.mark.requirement("V36")
def test_above_the_table_are_the_counts_and_quantiles_of_all_items() -> None:
    """Also of those that have no row; an item that was run again counts once."""
    again: list[Event] = [item_started("k1", 1), valued_item(1, kind="praise")]
    page = page_of(valued_run(60, again=again), PageBudget(rows=5))

    assert len(page.rows) == 5
    for text in (
        "defect 56", "praise 2", "question 1", "false 30", "true 29", "ok 59", "failed 1",
    ):  # fmt: skip
        assert text in page.shown, text
    histograms = [
        one["aria-label"] or "" for name, one in page.tags if one.get("class") == "histogram"
    ]
    assert [one.partition(":")[0] for one in histograms] == ["score", "Time", "Cost", "Tokens"]
    assert re.fullmatch(r"Time: p50 3[01] s · p90 5\d s · p99 (1 min 0|5\d) s", histograms[1])


@given(st.lists(st.floats() | st.integers(-(10**30), 10**30), max_size=200))
def test_quantiles_are_six_per_cent_exact_and_removing_leaves_nothing(numbers: list[float]) -> None:
    distribution = Distribution()
    for number in numbers:
        distribution.add(number)

    finite = sorted(one for one in map(float, numbers) if math.isfinite(one))
    assert distribution.count == len(finite) == sum(count for *_, count in distribution.bars())
    assert len(distribution.bars()) <= 49
    for share in (0.0, 0.5, 0.9, 1.0) if finite else ():
        value = finite[int(share * (len(finite) - 1))]
        if not value or 1e-9 < abs(value) < 1e15:
            assert distribution.quantile(share) == pytest.approx(value, rel=0.06)
    for number in numbers:
        distribution.add(number, -1)
    assert distribution.counts == {}


@pytest.mark.slow(reason="writes five thousand items")
def test_five_thousand_items_make_a_page_of_bounded_size() -> None:
    page = page_of(batch_run(5000, failing=range(0, 5000, 50)))

    assert len(page.text.encode()) < 20_000_000
    assert len(page.rows) == 5000
    assert Counter(row[2] for row in page.rows) == {"ok": 4900, "failed": 100}


def test_an_attempt_that_was_superseded_gives_its_room_back() -> None:
    again = [
        event
        for _ in range(200)
        for event in (item_started("a"), item_finished("a", text="words " * 500))
    ]
    page = page_of(timed(run_started(), *again, run_finished()), PageBudget(well=5_000))

    assert len(page.rows) == 1
    assert "no conversation" not in page.shown


def test_a_failed_item_of_a_step_that_went_on_is_marked() -> None:
    failure = Failure("unavailable", "nobody answered")
    bad = item_finished("a", status="failed", text=None, error=failure)
    page = page_of(timed(run_started(), item_started("a"), bad, run_finished()))

    assert page.rows[0][2:4] == ["error", "nobody answered"]


TEXT = ("ink", "soft", "faint", "link", "ok", "bad", "warn", "calm", "deny")
GROUNDS = ("page", "card", "sunk")


@pytest.mark.parametrize("theme", [0, 1, 2])
def test_every_text_can_be_read_on_what_it_stands_on(theme: int) -> None:
    """WCAG 2.1, 1.4.3, light and dark (issue 27, C)."""
    css = page_of(ordinary_run()).styles[0]
    blocks = [one for one in re.findall(r"\{([^{}]*)\}", css) if "--page" in one]
    colors: dict[str, str] = dict(re.findall(r"--([a-z-]+): #([0-9a-f]{6})", blocks[theme]))
    pairs = [(colors[name], colors[ground]) for name in TEXT for ground in GROUNDS]
    pairs += [(colors[name], colors[f"{name}-bg"]) for name in TEXT if f"{name}-bg" in colors]

    assert [pair for pair in pairs if contrast(*pair) < 4.5] == []


def contrast(one: str, other: str) -> float:
    darker, lighter = sorted(map(luminance, (one, other)))
    return (lighter + 0.05) / (darker + 0.05)


def luminance(color: str) -> float:
    parts = [int(color[at : at + 2], 16) / 255 for at in (0, 2, 4)]
    linear = [one / 12.92 if one <= 0.03928 else ((one + 0.055) / 1.055) ** 2.4 for one in parts]
    return sum(share * one for share, one in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


@pytest.mark.parametrize(
    ("text", "scrolls"),
    [("short", False), ("a\n" * 30, True), ("x" * 600, True), (("x" * 50 + "\n") * 15, True)],
)
def test_what_scrolls_is_reached_by_the_keyboard_and_has_a_name(
    text: str, *, scrolls: bool
) -> None:
    """A label is read only where there is a role (issue 27, C)."""
    run = timed(
        run_started(),
        StepStarted(Place("one"), "prompt"),
        step_finished("one", text=text),
        run_finished(),
    )

    found = [attributes for name, attributes in page_of(run).tags if name == "pre"]

    assert [one.get("tabindex") == "0" for one in found] == [scrolls]
    assert all(("role" in one) == ("aria-label" in one) for one in found)


def test_no_label_stands_on_an_element_without_a_role() -> None:
    """And the tables, which scroll on a narrow screen, are reached."""
    tags = page_of(troubled_run()).tags

    assert all(
        "role" in one for name, one in tags if name in {"pre", "div"} and "aria-label" in one
    )
    wide = [one for name, one in tags if one.get("class") == "wide"]
    assert wide
    assert all(one.get("tabindex") == "0" for one in wide)
