import io
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from scripted_events import (
    WAITING,
    answered,
    any_event,
    decided,
    ordinary_run,
    paused_run,
    run_finished,
    stamped,
    step_finished,
    troubled_run,
    turn_finished,
    unmet_run,
)
from syrupy.assertion import SnapshotAssertion

from aish.core.events import (
    Asked,
    Place,
    RunFinished,
    RunStarted,
    Stamped,
    StepStarted,
    ToolFinished,
)
from aish.output.result import ResultFold, ResultWriter
from aish.system.files import schema_text

SCHEMA = Draft202012Validator(json.loads(schema_text("result.schema.json")))
CALL = Place("read", turn=1, call="c1")


def result_text(run: list[Stamped]) -> str:
    out = io.BytesIO()
    result = ResultWriter(out, "20261118T120640Z-quickstart-a1b2")
    for event in run:
        result(event)
    result.close()
    return out.getvalue().decode()


def result_of(run: list[Stamped]) -> Any:
    found = json.loads(result_text(run))
    SCHEMA.validate({"pipeline": "p", **found})
    return found


def test_the_calls_of_a_paused_run_have_their_questions() -> None:
    found = result_of(stamped(*paused_run()))

    first, second = found["steps"]["fix"]["tool_calls"]
    assert (first["approval"]["answer"], first["approval"]["way"]) == ("approve", "page")
    assert second["approval"] == {
        "id": WAITING,
        "answer": None,
        "by": None,
        "way": None,
        "note": None,
    }
    (waiting,) = found["pending"]
    assert (waiting["id"], waiting["tool"], waiting["step"]) == (
        WAITING,
        "repo__file_remove",
        "fix",
    )


def test_an_answer_after_the_end_is_in_the_result_of_the_journal() -> None:
    fold = ResultFold("r")
    events = stamped(*paused_run(), answered(Place("fix", turn=1, call="c2"), answer="deny"))
    for one in events:
        fold.take(one)
    end = events[-2].event
    assert isinstance(end, RunFinished)

    found: Any = fold.result(end)

    assert "pending" not in found
    assert found["steps"]["fix"]["tool_calls"][1]["approval"]["answer"] == "deny"


@pytest.mark.parametrize("run", [ordinary_run, troubled_run], ids=["ordinary", "troubled"])
def test_a_run_as_one_object(run: Callable[[], list[Stamped]], snapshot: SnapshotAssertion) -> None:
    text = result_text(run())

    SCHEMA.validate(json.loads(text))
    assert text == snapshot


@given(st.lists(any_event(), max_size=6))
def test_any_events_fold_into_what_the_schema_allows(events: list[Stamped]) -> None:
    ends = [event for event in events if "RunFinished" in str(type(event.event))]
    middle = [event for event in events if event not in ends]
    started = [event for event in middle if not isinstance(event.event, RunStarted)]

    result_of([*started, *stamped(run_finished())])


def test_nothing_is_printed_before_the_run_has_ended() -> None:
    assert not result_text(ordinary_run()[:-1])


def test_calls_stand_with_their_step_in_the_order_they_were_asked_for() -> None:
    other = Place("read", turn=1, call="c2")
    found = result_of(
        stamped(
            decided(CALL, "repo__a", {"n": 1}),
            decided(other, "repo__b", {"n": 2}),
            ToolFinished(other, "repo__b", "ok", "two", None, 0.2),
            ToolFinished(CALL, "repo__a", "handler_error", "one", None, 0.1),
            step_finished(),
            run_finished(),
        )
    )

    calls = found["steps"]["read"]["tool_calls"]
    assert [(call["tool"], call["kind"], call["content"]) for call in calls] == [
        ("repo__a", "handler_error", "one"),
        ("repo__b", "ok", "two"),
    ]


def test_a_call_that_reached_no_rule_has_the_arguments_the_model_wrote() -> None:
    asked = Asked("c1", "repo__a", "{broken")
    found = result_of(
        stamped(
            turn_finished(Place("read", turn=1), calls=(asked,)),
            ToolFinished(CALL, "repo__a", "bad_arguments", "[aish] no", None, 0.0),
            step_finished(),
            run_finished(),
        )
    )

    assert found["steps"]["read"]["tool_calls"] == [
        {
            "tool": "repo__a",
            "arguments": "{broken",
            "verdict": None,
            "kind": "bad_arguments",
            "exit_code": None,
            "content": "[aish] no",
            "seconds": 0.0,
        }
    ]


def test_a_call_that_never_ended_is_there_with_its_verdict() -> None:
    found = result_of(
        stamped(
            StepStarted(Place("read"), "prompt"),
            decided(CALL, "repo__a", {}),
            step_finished(status="failed"),
            run_finished(status="interrupted"),
        )
    )

    call = found["steps"]["read"]["tool_calls"][0]
    assert (call["verdict"], call["kind"], call["seconds"]) == ("auto", None, None)


def test_what_was_expected_is_in_the_order_in_which_it_was_looked_at() -> None:
    found = result_of(unmet_run())["expectations"]

    assert [(row["step"], row["kind"], row["ok"]) for row in found] == [
        ("notes", "max_seconds", True),
        ("notes", "contains", False),
        ("notes", "equals", False),
    ]
    assert found[1]["message"] == "expected the text to contain `fix`; got `Hello`"
