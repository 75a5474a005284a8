"""A run as JUnit XML: a case for each step, item and expectation (B11, X3)."""

import json
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
    feed,
    item_finished,
    item_started,
    timed,
    two_parts,
    without_end,
)
from samples import each_case
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

from aish.core.events import (
    Event,
    ExpectChecked,
    Failure,
    Place,
    Retry,
    Stamped,
    StepFinished,
    StepStarted,
)
from aish.core.messages import Usage
from aish.core.text import for_xml
from aish.journal.history import RunHistory
from aish.output.formats.junit import CaseResult, CaseSuite, Trouble, junit_xml
from aish.reports.junit import JUnitReport

# What the schema that most readers go by (Jenkins, `junit-10.xsd`) allows, of what we write.
ATTRIBUTES = {
    "testsuites": {"name", "time", "tests", "failures", "errors"},
    "testsuite": {"name", "time", "tests", "failures", "errors", "skipped", "timestamp"},
    "testcase": {"name", "time", "classname"},
    "failure": {"type", "message"},
    "error": {"type", "message"},
    "skipped": {"type", "message"},
    "system-out": set(),
}
CHILDREN = {
    "testsuites": {"testsuite"},
    "testsuite": {"testcase"},
    "testcase": {"failure", "error", "skipped", "system-out"},
}
SECONDS = re.compile(r"[0-9]*(\.[0-9]*)?")


def written(events: Iterable[Stamped]) -> bytes:
    history = RunHistory()
    with JUnitReport(history) as report:
        feed(report, history, events)
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
    """Each case of a step with what befell it, and of what kind that is."""
    return {
        case.get("name", ""): next(
            ((one.tag, one.get("type", "")) for one in case if one.tag != "system-out"), None
        )
        for case in report_of(events).iter("testcase")
        if case.get("classname") != "run"
    }


def printed(events: Iterable[Stamped]) -> dict[str, str]:
    """What cases have as their output, of those that have some."""
    found = {
        case.get("name", ""): case.findtext("system-out")
        for case in report_of(events).iter("testcase")
    }
    return {name: text for name, text in found.items() if text is not None}


def test_the_report_of_a_run(snapshot: SnapshotAssertion) -> None:
    assert written(unmet_run()).decode() == snapshot


def test_one_unmet_expectation_is_one_failure_among_the_cases_of_a_batch() -> None:
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
        StepFinished(
            Place("sort"), "failed", None, None, Usage(), None, 2.0, Failure("items", "1 of 2")
        ),
        run_finished(),
    )

    assert cases(events) == {
        "a": None,
        "b": None,
        "b: contains 1": None,
        "b: contains 2": ("failure", "expectation"),
        "sort": None,
    }


def test_a_judge_that_could_not_be_asked_is_told_beside_what_is_not_met() -> None:
    place = Place("go")
    events = timed(
        run_started(),
        ExpectChecked(place, "contains", ok=False, message="expected `x`"),
        step_finished("go", status="failed", error=Failure("unavailable", "nobody there")),
        run_finished(),
    )

    assert cases(events) == {
        "go": ("error", "unavailable"),
        "go: contains 1": ("failure", "expectation"),
    }


def test_a_step_that_ends_as_a_part_of_it_did_is_no_second_failure() -> None:
    inner = Place("each/ask", "a")
    said = Failure("endpoint_error", "HTTP 400: no")
    whole = Failure("endpoint_error", "step `each/ask`: HTTP 400: no")
    events = timed(
        run_started(),
        StepStarted(Place("each"), "pipeline", 1),
        item_started("a", step="each"),
        StepStarted(inner, "prompt"),
        StepFinished(inner, "failed", None, None, Usage(), None, 1.0, said),
        item_finished("a", step="each", status="failed", error=whole),
        # What ends the run is the item's end again.
        StepFinished(Place("each"), "failed", None, None, Usage(), None, 2.0, whole),
        run_finished(),
    )

    report = report_of(events)
    (error,) = report.iter("error")
    assert error in {*report.iterfind("testsuite[@name='each/ask']/testcase/error")}


def test_the_answer_of_a_step_that_failed_is_what_its_case_printed() -> None:
    answer = {"verdict": "fail", "findings": ["the first row is left out"]}
    unmet = ExpectChecked(Place("gate"), "equals", ok=False, message="expected `pass`")
    events = timed(
        run_started(),
        StepStarted(Place("ask"), "prompt"),
        step_finished("ask", status="failed", text="Sure!", error=Failure("schema", "no JSON")),
        StepStarted(Place("gate"), "prompt"),
        ExpectChecked(Place("gate"), "max_seconds", ok=True, message="expected at most 3 s"),
        unmet,
        unmet,
        step_finished(
            "gate",
            status="failed",
            text=json.dumps(answer),
            output=answer,
            error=Failure("expectation", "expected `pass`"),
        ),
        StepStarted(Place("sh"), "run"),
        step_finished(
            "sh",
            status="failed",
            text="printed",
            output={"exit_code": 1, "stdout": "printed", "stderr": ""},
            error=Failure("handler_error", "it ended with 1"),
        ),
        StepStarted(Place("good"), "prompt"),
        step_finished("good"),
        run_finished(),
    )

    found = printed(events)
    assert found == {
        "ask": "Sure!",
        "gate: equals 1": json.dumps(answer, indent=2),
        "sh": "printed",
    }


def test_of_a_long_answer_the_beginning_is_printed() -> None:
    end = step_finished("go", status="failed", text="x" * 50_000, error=Failure("schema", "no"))

    text = printed(timed(run_started(), end, run_finished()))["go"]

    assert text == "x" * 20_000 + "\n… and 30000 more characters"


@each_case(
    "status, code, exit_code, told",
    [
        ("failed", "expectation", 1, "failure"),
        ("failed", "timeout", 1, "failure"),
        ("failed", "lock", 7, "failure"),
        ("denied", "denied", 3, "failure"),
        ("denied", "denied", 0, "skipped"),
        ("failed", "unavailable", 5, "error"),
        ("failed", "usage", 2, "error"),
        ("failed", "internal", 70, "error"),
        ("failed", "interrupted", 0, "error"),
        ("failed", "cassette_miss", 6, "error"),
        ("budget", "time", 4, "error"),
        ("paused", "paused", 8, "error"),
        ("skipped", "when", 0, "skipped"),
        # Journals of older versions.
        ("failed", "expectation", None, "failure"),
        ("failed", "transport_error", None, "error"),
        ("budget", "time", None, "error"),
        ("denied", "denied", None, "failure"),
        ("paused", "paused", None, "error"),
        ("skipped", "when", None, "skipped"),
    ],
)
def test_the_exit_code_of_a_step_tells_failures_from_errors(
    status: str, code: str, exit_code: int | None, told: str
) -> None:
    failure = Failure(code, "so it is", "do this")
    end = step_finished("go", status=status, error=failure, exit_code=exit_code)

    assert cases(timed(run_started(), end, run_finished())) == {"go": (told, code)}


def test_what_a_run_was_in_the_middle_of_is_an_error() -> None:
    found = cases(without_end(batch_run(2))[:-1])

    assert found["row-00001"] == ("error", "interrupted")
    assert found["sort"] == ("error", "interrupted")
    assert found["row-00000"] is None


def test_of_a_run_in_parts_the_last_end_of_each_item_counts() -> None:
    assert cases(two_parts()) == dict.fromkeys(("a", "b", "c", "sort"))


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


@pytest.mark.parametrize("mark", [MARKUP, HOSTILE, "\ufffe\ud800\x0b"])
def test_hostile_texts_are_texts(mark: str) -> None:
    root = report_of(batch_run(2, failing=(1,), mark=mark))

    assert [case.get("name") for case in root.iter("testcase")][1:3] == [
        ET.fromstring(f"<x>{for_xml(f'row-{n:05d}{mark}')}</x>").text  # ruff: ignore[suspicious-xml-element-tree-usage] - the same
        for n in range(2)
    ]


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(st.lists(any_event(), max_size=12))
def test_whatever_a_journal_holds_makes_a_report(events: list[Stamped]) -> None:
    report_of(events)


def test_numbers_of_a_journal_may_be_of_any_size() -> None:
    items: list[Event] = []
    for n in range(3):
        items += [item_started(f"row-{n}", 10**30 - n), item_finished(f"row-{n}", 10**30 - n)]

    found = cases(timed(run_started(), *items, run_finished()))

    assert list(found) == ["row-0", "row-1", "row-2"]


@pytest.mark.parametrize("events", [ordinary_run(), troubled_run(), []])
def test_any_run_makes_a_report(events: list[Stamped]) -> None:
    report_of(events)


@pytest.mark.slow(reason="writes many large texts")
def test_the_texts_of_many_items_are_not_held_in_memory() -> None:
    def events() -> Iterator[Stamped]:
        yield Stamped(1, 1.8e9, run_started())
        for n in range(10_000):
            error = Failure("schema", "x" * 2_000)
            bad = item_finished(f"row-{n}", n, status="failed", error=error)
            yield Stamped(2 + n, 1.8e9, bad)

    history = RunHistory()
    with JUnitReport(history) as report:
        tracemalloc.start()
        feed(report, history, events())
        size = sum(len(piece) for piece in report.xml())
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()

    assert size > 40_000_000
    assert peak < 20_000_000


def test_cases_of_equal_names_get_numbers() -> None:
    """Issue 27, C: also where only the XML has them equal."""
    told = Trouble("failure", "expectation", "no")
    names = ["a", "a", "a (2)", "b\x00", "b\ufffd", "x" * 200_000, "x" * 300_000]
    cases = tuple(CaseResult(name, "f.yaml", 0.0, troubles=(told,)) for name in names)

    root = ET.fromstring(junit_xml("aish test", [CaseSuite("f", cases), CaseSuite("g", cases[:1])]))  # ruff: ignore[suspicious-xml-element-tree-usage] - the same

    found = [case.get("name") for case in root.iter("testcase")]
    assert len(set(found)) == len(found) == 8
    assert found[:3] == ["a", "a (2)", "a (2) (2)"]


def test_an_item_that_is_run_again_keeps_its_name() -> None:
    again: list[Event] = [item_started("a"), item_finished("a")]
    events = timed(run_started(), *again, run_started(), *again, run_finished())

    assert list(cases(events)) == ["a"]
