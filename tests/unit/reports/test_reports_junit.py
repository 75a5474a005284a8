"""A run as JUnit XML: a case for each step, item and expectation (B11, X3)."""

import re
import tracemalloc
from collections.abc import Iterable, Iterator
from xml.etree import ElementTree as ET  # ruff: ignore[suspicious-xml-etree-import] - reads what we wrote

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from report_pages import (
    MARKUP,
    batch_run,
    item_finished,
    item_started,
    timed,
    two_parts,
    without_end,
)
from scripted_events import (
    HOSTILE,
    any_event,
    ordinary_run,
    run_finished,
    run_started,
    step_finished,
    troubled_run,
    unmet_run,
)
from syrupy.assertion import SnapshotAssertion

from aish.reports.junit_report import JUnitReport
from aish.text import for_xml
from aish.vocab.deltas import Usage
from aish.vocab.event_parts import Failure, Place
from aish.vocab.events import (
    Event,
    ExpectChecked,
    Retry,
    Stamped,
    StepFinished,
    StepStarted,
)

# What the schema that most readers go by (Jenkins, `junit-10.xsd`) allows, of what we write.
ATTRIBUTES = {
    "testsuites": {"name", "time", "tests", "failures", "errors"},
    "testsuite": {"name", "time", "tests", "failures", "errors", "skipped", "timestamp"},
    "testcase": {"name", "time", "classname"},
    "failure": {"type", "message"},
    "error": {"type", "message"},
    "skipped": {"type", "message"},
}
CHILDREN = {
    "testsuites": {"testsuite"},
    "testsuite": {"testcase"},
    "testcase": {"failure", "error", "skipped"},
}
SECONDS = re.compile(r"[0-9]*(\.[0-9]*)?")


def written(events: Iterable[Stamped]) -> bytes:
    with JUnitReport() as report:
        for stamped in events:
            report.take(stamped)
        return b"".join(report.xml())


def report_of(events: Iterable[Stamped]) -> ET.Element:
    """The report, which is as the schema says."""
    root = ET.fromstring(written(events))  # ruff: ignore[suspicious-xml-element-tree-usage] - the same
    assert root.tag == "testsuites"
    for element in root.iter():
        assert set(element.attrib) <= ATTRIBUTES[element.tag]
        assert {child.tag for child in element} <= CHILDREN.get(element.tag, set())
        assert SECONDS.fullmatch(element.get("time", ""))
    for suite in root:
        for name in ("tests", "failures", "errors", "skipped"):
            tag = {"tests": ".//testcase", "failures": ".//failure", "errors": ".//error"}
            assert suite.get(name) == str(len(suite.findall(tag.get(name, ".//skipped"))))
    return root


def cases(events: Iterable[Stamped]) -> dict[str, tuple[str, str] | None]:
    """Each case with what befell it, and of what kind that is."""
    return {
        case.get("name", ""): None if not len(case) else (case[0].tag, case[0].get("type", ""))
        for case in report_of(events).iter("testcase")
    }


@pytest.mark.requirement("B11")
def test_the_report_of_a_run(snapshot: SnapshotAssertion) -> None:
    assert written(unmet_run()).decode() == snapshot


@pytest.mark.requirement("B11")
def test_a_case_for_each_step_item_and_expectation() -> None:
    place = Place("sort", "b")
    events = timed(
        run_started(),
        StepStarted(Place("sort"), "prompt", 2),
        item_started("a"),
        item_finished("a"),
        item_started("b"),
        ExpectChecked(place, "contains", ok=True, message="expected `x`"),
        ExpectChecked(place, "contains", ok=False, message="expected `y`"),
        item_finished("b", status="failed", error=Failure("expectation", "expected `y`")),
        StepFinished(Place("sort"), "failed", None, None, Usage(), None, 2.0),
        run_finished(),
    )

    assert cases(events) == {
        "a": None,
        "b": ("failure", "expectation"),
        "b: contains 1": None,
        "b: contains 2": ("failure", "expectation"),
        "sort": ("failure", "failed"),
    }


@pytest.mark.requirement("B11")
@pytest.mark.parametrize(
    ("status", "code", "told"),
    [
        ("failed", "expectation", "failure"),
        ("failed", "schema", "failure"),
        ("failed", "refusal", "failure"),
        ("failed", "handler_error", "failure"),
        ("failed", "unavailable", "error"),
        ("failed", "transport_error", "error"),
        ("failed", "internal", "error"),
        ("failed", "interrupted", "error"),
        ("failed", "cassette_miss", "error"),
        ("budget", "time", "error"),
        ("denied", "denied", "skipped"),
        ("skipped", "when", "skipped"),
    ],
)
def test_a_failure_is_an_answer_and_an_error_is_something_around_it(
    status: str, code: str, told: str
) -> None:
    end = step_finished("go", status=status, error=Failure(code, "so it is", "do this"))

    assert cases(timed(run_started(), end, run_finished())) == {"go": (told, code)}


@pytest.mark.requirement("B11")
def test_what_a_run_was_in_the_middle_of_is_an_error() -> None:
    found = cases(without_end(batch_run(2))[:-1])

    assert found["row-00001"] == ("error", "interrupted")
    assert found["sort"] == ("error", "interrupted")
    assert found["row-00000"] is None


@pytest.mark.requirement("B11", "B3")
def test_of_a_run_in_parts_the_last_end_of_each_item_counts() -> None:
    assert cases(two_parts()) == dict.fromkeys(("a", "b", "c", "sort"))


@pytest.mark.requirement("B11", "B5")
def test_what_is_expected_of_an_attempt_that_was_repeated_does_not_count() -> None:
    place = Place("go")
    events: list[Event] = [
        run_started(),
        StepStarted(place, "prompt"),
        ExpectChecked(place, "contains", ok=False, message="expected `x`"),
        Retry(place, "step go", 2, 0.5, "expected `x`"),
        ExpectChecked(place, "contains", ok=True, message="expected `x`"),
        step_finished("go"),
        run_finished(),
    ]

    assert cases(timed(*events)) == {"go": None, "go: contains 1": None}


@pytest.mark.requirement("B11", "X3")
@pytest.mark.parametrize("mark", [MARKUP, HOSTILE, "\ufffe\ud800\x0b"])
def test_hostile_texts_are_texts(mark: str) -> None:
    root = report_of(batch_run(2, failing=(1,), mark=mark))

    assert [case.get("name") for case in root.iter("testcase")][:2] == [
        ET.fromstring(f"<x>{for_xml(f'row-{n:05d}{mark}')}</x>").text  # ruff: ignore[suspicious-xml-element-tree-usage] - the same
        for n in range(2)
    ]


@pytest.mark.requirement("B11", "X3")
@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(st.lists(any_event(), max_size=12))
def test_whatever_a_journal_holds_makes_a_report(events: list[Stamped]) -> None:
    report_of(events)


@pytest.mark.parametrize("events", [ordinary_run(), troubled_run(), []])
def test_any_run_makes_a_report(events: list[Stamped]) -> None:
    report_of(events)


@pytest.mark.requirement("B11", "X6")
def test_the_texts_of_many_items_are_not_held_in_memory() -> None:
    def events() -> Iterator[Stamped]:
        yield Stamped(1, 1.8e9, run_started())
        for n in range(10_000):
            error = Failure("schema", "x" * 2_000)
            bad = item_finished(f"row-{n}", n, status="failed", error=error)
            yield Stamped(2 + n, 1.8e9, bad)

    with JUnitReport() as report:
        tracemalloc.start()
        for stamped in events():
            report.take(stamped)
        size = sum(len(piece) for piece in report.xml())
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()

    assert size > 40_000_000
    assert peak < 20_000_000
