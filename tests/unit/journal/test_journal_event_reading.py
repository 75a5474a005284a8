import json
import math
from typing import Any

import pytest
from hypothesis import given
from samples import each_case
from scripted_events import any_event, ordinary_run, run_started, stamped, troubled_run, unmet_run

from aish.core.events import Stamped, ToolProgress, to_line
from aish.journal.reader import event_of

RUNS = (ordinary_run, troubled_run, unmet_run)


def back(event: Stamped) -> Stamped | None:
    """The event of its own line."""
    return event_of(json.loads(to_line(event)))


@given(any_event())
def test_any_event_comes_back_from_its_line(event: Stamped) -> None:
    again = back(event)

    assert again is not None
    assert type(again.event) is type(event.event)
    # What is no text was replaced: the line is what counts.
    assert to_line(Stamped(again.seq, event.time, again.event)) == to_line(event)
    assert abs(again.time - event.time) < 0.0011


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.__name__)
def test_a_run_comes_back_as_it_was(run: Any) -> None:
    for event in run():
        if "\ud800" not in str(event) and "ud800" not in repr(event):
            assert back(event) == event


def test_a_number_that_json_does_not_have_comes_back_as_none_at_all() -> None:
    event = stamped(ToolProgress(ordinary_run()[1].event.place, "a__b", math.inf, None, None))[0]

    again = back(event)

    assert again is not None
    assert isinstance(again.event, ToolProgress)
    assert math.isnan(again.event.progress)


def record(**changes: Any) -> dict[str, Any]:
    line: dict[str, Any] = json.loads(to_line(stamped(run_started())[0]))
    return line | changes


def test_types_and_keys_that_are_not_known_are_left_out() -> None:
    assert event_of(record(type="item.paused")) is None
    assert event_of(record(newer={"a": 1})) == stamped(run_started())[0]


def test_keys_that_were_added_later_may_be_missing() -> None:
    line = record()
    del line["cassette"]

    assert event_of(line) == stamped(run_started())[0]


@each_case(
    "changes, named",
    [
        ({"pipeline": 3}, "pipeline"),
        ({"models": "all"}, "models"),
        ({"models": [{"alias": "a"}]}, "model"),
        ({"inputs": []}, "inputs"),
        ({"seq": "1"}, "seq"),
        ({"seq": True}, "seq"),
        ({"time": "yesterday"}, "yesterday"),
        ({"turn": "first"}, "turn"),
        ({"step": ["read"]}, "step"),
        ({"cassette": {"path": "a", "mode": "often"}}, "cassette"),
    ],
)
def test_what_is_no_such_event_is_refused_and_its_key_is_named(
    changes: dict[str, Any], named: str
) -> None:
    with pytest.raises(ValueError, match=named):
        event_of(record(**changes))
