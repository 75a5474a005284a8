import json
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from jsonschema import Draft202012Validator
from scripted_events import HOSTILE, any_event, ordinary_run, stamped, troubled_run
from syrupy.assertion import SnapshotAssertion

from aish.core.events import (
    Fallback,
    Notice,
    Place,
    Stamped,
    TextDelta,
    ToolProgress,
    rfc3339,
    to_line,
    to_object,
)
from aish.core.json import JsonValue, json_text
from aish.core.text import for_terminal
from aish.system.files import schema_text

SCHEMA = Draft202012Validator(json.loads(schema_text("events.schema.json")))


@given(any_event())
def test_any_event_is_one_line_that_the_schema_allows(event: Stamped) -> None:
    line = to_line(event)

    assert line.count(b"\n") == 1
    assert line.endswith(b"\n")
    SCHEMA.validate(json.loads(line, parse_constant=_no_constant))


@given(any_event())
def test_no_line_can_steer_a_terminal_or_a_ci_runner(event: Stamped) -> None:
    text = to_line(event).decode("utf-8", "strict")

    assert for_terminal(text) == text
    assert "##[" not in text
    assert "##vso[" not in text


@given(any_event())
def test_the_fast_spelling_says_what_the_general_one_says(event: Stamped) -> None:
    assert json.loads(to_line(event)) == json.loads(json_text(to_object(event)))


def test_lines_of_a_run(snapshot: SnapshotAssertion) -> None:
    run = [*ordinary_run(), *troubled_run()]

    assert "".join(to_line(event).decode() for event in run) == snapshot


def test_a_place_is_spelled_as_keys_and_what_does_not_apply_is_left_out() -> None:
    event = TextDelta(Place("read", item="7", turn=1), "x")

    line = json.loads(to_line(Stamped(3, 0.0, event)))

    assert line == {
        "v": 1,
        "seq": 3,
        "time": "1970-01-01T00:00:00.000Z",
        "type": "text.delta",
        "step": "read",
        "item": "7",
        "turn": 1,
        "text": "x",
    }


def test_a_fallback_goes_from_and_to() -> None:
    line = to_object(stamped(Fallback(Place("a"), "cloud", "local", "down"))[0])

    assert (line["from"], line["to"]) == ("cloud", "local")


def test_numbers_json_does_not_have_become_null() -> None:
    event = ToolProgress(Place("a"), "b__c", float("inf"), float("nan"), None)

    line = json.loads(to_line(Stamped(1, 0.0, event)), parse_constant=_no_constant)

    assert (line["progress"], line["total"]) == (None, None)


def test_what_is_nested_without_end_is_cut_and_says_so() -> None:
    value: JsonValue = "core"
    for _ in range(100_000):
        value = [value]

    assert "nested too deeply" in json_text(value)


def test_text_survives_except_for_what_is_no_text() -> None:
    text = f"{HOSTILE} käse 日本 👍🏽 \U000e0041"

    assert json.loads(json_text(text)) == text.replace("\ud800", "\ufffd")


def test_letters_stay_readable() -> None:
    assert json_text({"käse": "日本"}) == '{"käse":"日本"}'


def test_any_kind_of_mapping_is_an_object() -> None:
    assert json_text(MappingProxyType({"a": (1, MappingProxyType({}))})) == '{"a":[1,{}]}'


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(1_795_000_000.9996, "2026-11-18T11:06:40.999Z"), (0, "1970-01-01T00:00:00.000Z")],
)
def test_times_are_utc_to_the_millisecond(seconds: float, text: str) -> None:
    assert rfc3339(seconds) == text


def test_a_lone_surrogate_does_not_crash_a_writer() -> None:
    line = to_line(Stamped(1, 0.0, Notice(Place(), "info", "x", "\ud800\udfff")))

    assert json.loads(line)["text"] == "\ufffd\ufffd"


def _no_constant(name: str) -> Any:
    raise AssertionError(f"{name} is not JSON")
