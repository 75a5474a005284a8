"""What a resumed run takes from a journal that was written by hand (B3)."""

import json
from collections.abc import Sequence
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted_events import (
    answered,
    asked,
    decided,
    run_finished,
    run_started,
    stamped,
    step_finished,
)
from scripted_events import turn_finished as turn

from aish.core.errors import UsageError
from aish.core.events import (
    Asked,
    Event,
    Exit,
    Failure,
    ItemFinished,
    ItemStarted,
    Notice,
    Place,
    Retry,
    Stamped,
    StepStarted,
    ToolFinished,
    ToolStarted,
    TurnAdded,
    TurnStarted,
    to_line,
)
from aish.core.messages import Spent, Usage
from aish.engine.execution.fingerprint import fingerprint
from aish.engine.plan.options import RunOptions
from aish.engine.plan.plan import Plan, load_checked, make_plan
from aish.engine.resume_state import (
    DoneItem,
    DoneItems,
    ResumeRefusedError,
    ResumeState,
)
from aish.features.resume.differences import check_same, differences, notices_of_differences
from aish.features.resume.find import starts
from aish.features.resume.replay_events import retold, retold_whole
from aish.features.resume.state import read_resume_state
from aish.journal.writer import JournalError, seal

RUN = "20261121T120000Z-p-abcd"
READS = """
steps:
  - {id: rows, foreach: "['a', 'b', 'c']", key: item, prompt: "{{ item }}"}
  - {id: last, prompt: "{{ steps.rows | length }}, {{ steps.note.text }}"}
  - {id: note, prompt: Hello}
"""
CALLS = """
mcp:
  servers: {s: {command: [server]}, files: {pack: fs, root: .}}
  auto_approve: ["*__*"]
  idempotent: [s__put]
  parallel: [s__get]
steps: [{id: one, prompt: Go}, {id: cmd, run: [ls]}, {id: two, on_denied: continue, prompt: Go}]
"""


def plan_of(folder: Path, text: str = READS, name: str = "p.yaml", **options: Any) -> Plan:
    path = folder / name
    models = "" if "models:" in text else "models: {m: {base_url: http://127.0.0.1:9, model: m}}\n"
    path.write_text(f"aish: 1\n{models}{text.lstrip()}", encoding="utf-8")
    return make_plan(load_checked(path, ()), RunOptions(**options))


def records(*events: Event) -> list[Any]:
    """The records of a journal with these events."""
    return [json.loads(to_line(one)) for one in stamped(*events)]


def taken(plan: Plan, *events: Event, **flags: Any) -> ResumeState:
    return read_resume_state(records(run_started(), *events), plan, RUN, **flags)


def item(key: str, index: int = 0, status: Any = "ok", step: str = "rows") -> Sequence[Event]:
    """An item from its beginning to its end."""
    place = Place(step, key)
    digest = f"{index:016x}"
    return (
        ItemStarted(place, key, index, digest),
        TurnStarted(Place(step, key, 1), "m", 1),
        turn(Place(step, key, 1), f"<{key}>", usage=Usage(10, 5)),
        ItemFinished(place, key, index, status, f"<{key}>", None, Usage(10, 5), 0.25, 1.5),
    )


def call(place: Place, tool: str, kind: Any = "ok", *, ended: bool = True) -> Sequence[Event]:
    """A call that was decided on and made."""
    begun = (decided(place, tool, {"n": 1}), ToolStarted(place, tool))
    return (*begun, ToolFinished(place, tool, kind, "done", None, 0.5)) if ended else begun


# --- What is done ----------------------------------------------------------------------------


def test_a_step_that_went_well_is_carried_with_its_calls(tmp_path: Path) -> None:
    first = Place("note", turn=1)
    one, two = Place("note", turn=1, call="c1"), Place("note", turn=1, call="c2")
    asked = (Asked("c1", "s__get", '{"n": 1}'), Asked("c2", "s__get", "{bad"))
    done = taken(
        plan_of(tmp_path),
        StepStarted(Place("note"), "prompt"),
        TurnStarted(first, "m", 1),
        turn(first, "", calls=asked, usage=Usage(7, 3), cost_usd=0.5),
        ToolFinished(two, "s__get", "bad_arguments", "no object", None, 0.0),
        decided(one, "s__get", {"n": 1}),
        ToolStarted(one, "s__get"),
        ToolFinished(one, "s__get", "ok", "two", "files/1", 0.5, structured={"n": 2}),
        step_finished("note", text="done", output={"a": 1}, usage=Usage(7, 3), seconds=2.5),
        read_file={"files/1": b"one, two and three"}.get,
    )

    record = done.steps["note"]

    assert (record.text, record.output, record.usage) == ("done", {"a": 1}, Usage(7, 3))
    assert (record.kind, record.status, record.seconds) == ("prompt", "ok", 2.5)
    good, bad = record.calls
    assert (good.arguments, good.verdict, good.structured, good.full) == (
        {"n": 1},
        "auto",
        {"n": 2},
        "files/1",
    )
    assert (good.content, good.whole) == ("two", "one, two and three")
    assert (bad.kind, bad.arguments, bad.verdict) == ("bad_arguments", "{bad", None)
    assert done.spent == Spent(1, Usage(7, 3), 0.5, 1, seconds=2.0, known_usd=0.5)
    assert done.by_step["note"].turns == 1
    assert (done.last_seq, done.segments) == (9, 1)


@pytest.mark.parametrize("status", ["failed", "denied", "budget", "skipped"])
def test_a_step_that_did_not_go_well_is_run_again(tmp_path: Path, status: Any) -> None:
    started = StepStarted(Place("note"), "prompt")

    assert taken(plan_of(tmp_path), started, step_finished("note", status=status)).steps == {}


def test_a_step_that_bears_a_denial_is_done_after_one(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, CALLS)
    events = (StepStarted(Place("two"), "prompt"), step_finished("two", status="denied"))

    assert taken(plan, *events).steps["two"].status == "denied"


def test_items_are_carried_with_their_results_where_a_later_step_reads_them(
    tmp_path: Path,
) -> None:
    events = (StepStarted(Place("rows"), "prompt"), *item("b", 1), *item("a", 0))

    done = taken(plan_of(tmp_path), *events).items["rows"]

    found = done.get("b")
    assert found is not None
    assert (found.index, found.digest, found.status) == (1, f"{1:016x}", "ok")
    assert found.record is not None
    assert found.record.text == "<b>"
    assert [one.key for one in done.records()] == ["a", "b"]
    assert done.get("c") is None
    assert (done.ok, done.failed, len(done)) == (2, 0, 2)
    assert done.spent.usage == Usage(20, 10)
    assert done.spent.cost_usd == pytest.approx(0.5)

    unread = plan_of(tmp_path, READS.replace("steps.rows | length", "1"))
    assert taken(unread, *events).items["rows"].get("b") == DoneItem("b", 1, f"{1:016x}", "ok")


def test_a_finished_step_over_items_has_them_in_their_order(tmp_path: Path) -> None:
    started = StepStarted(Place("rows"), "prompt")

    done = taken(plan_of(tmp_path), started, *item("b", 1), *item("a"), step_finished("rows"))

    items = done.steps["rows"].items
    assert items is not None
    assert [(one.key, one.index, one.record.text) for one in items] == [
        ("a", 0, "<a>"),
        ("b", 1, "<b>"),
    ]


def test_failed_items_stay_failed_unless_they_are_to_be_tried_again(tmp_path: Path) -> None:
    plan = plan_of(tmp_path)
    events = (StepStarted(Place("rows"), "prompt"), *item("a"), *item("b", 1, "failed"))

    done = taken(plan, *events).items["rows"]
    assert (done.ok, done.failed) == (1, 1)

    again = taken(plan, *events, retry_failed=True).items["rows"]
    assert (len(again), again.get("b")) == (1, None)


def test_an_item_that_a_limit_ended_is_run_again(tmp_path: Path) -> None:
    events = (StepStarted(Place("rows"), "prompt"), *item("a", status="budget"))

    assert taken(plan_of(tmp_path), *events).items == {}


def test_an_item_that_was_being_tried_again_is_not_done(tmp_path: Path) -> None:
    retried = ItemStarted(Place("rows", "b"), "b", 1, f"{1:016x}")
    events = (StepStarted(Place("rows"), "prompt"), *item("b", 1, "failed"), retried)

    done = taken(plan_of(tmp_path), *events).items["rows"]

    assert done.get("b") is None
    assert done.failed == 0


def test_an_item_is_found_by_its_key_though_the_journal_has_it_masked(tmp_path: Path) -> None:
    plan = plan_of(
        tmp_path, "secrets: [TOKEN]\n" + READS.lstrip(), environ={"TOKEN": "swordfish-1"}
    )
    key = "<secret:TOKEN>"

    done = taken(plan, StepStarted(Place("rows"), "prompt"), *item(key)).items["rows"]

    assert done.get("swordfish-1") is not None


def test_calls_of_an_earlier_attempt_are_no_part_of_the_result(tmp_path: Path) -> None:
    place = Place("note", turn=1, call="c1")
    again = Place("note", turn=2, call="c2")
    done = taken(
        plan_of(tmp_path, CALLS.replace("id: one", "id: note")),
        StepStarted(Place("note"), "prompt"),
        *call(place, "s__put"),
        Retry(Place("note"), "step note", 2, 0.1, "failed"),
        *call(again, "s__get"),
        step_finished("note"),
    )

    assert [used.tool for used in done.steps["note"].calls] == ["s__get"]


def test_time_between_the_parts_of_a_run_is_not_used_up(tmp_path: Path) -> None:
    plan = plan_of(tmp_path)
    first = stamped(run_started(), StepStarted(Place("note"), "prompt"), step_finished("note"))
    later = [
        (number, seconds, event)
        for number, seconds, event in (
            (4, first[-1].time + 86_400, run_started()),
            (5, first[-1].time + 86_402, StepStarted(Place("rows"), "prompt")),
        )
    ]
    lines = [json.loads(to_line(one)) for one in first]
    lines += [
        json.loads(to_line(type(first[0])(number, seconds, event)))
        for number, seconds, event in later
    ]

    done = read_resume_state(lines, plan, RUN)

    assert done.segments == 2
    assert done.spent.seconds == pytest.approx(2.5)


def test_time_until_an_answer_is_not_used_up(tmp_path: Path) -> None:
    plan, place = plan_of(tmp_path), Place("note", turn=1, call="c1")
    first = stamped(
        run_started(),
        StepStarted(Place("note"), "prompt"),
        asked(place, "s__put", {}),
        run_finished(status="paused"),
    )
    end = first[-1].time
    later = [Stamped(5, end + 80_000, answered(place)), Stamped(6, end + 80_100, run_started())]

    done = read_resume_state([json.loads(to_line(one)) for one in (*first, *later)], plan, RUN)

    assert done.spent.seconds == pytest.approx(end - first[0].time)


def test_what_is_done_is_said_and_a_masked_result_is_warned_of(tmp_path: Path) -> None:
    started = StepStarted(Place("note"), "prompt")
    done = taken(
        plan_of(tmp_path), started, step_finished("note", text="it is <secret:TOKEN>"), *item("a")
    )

    first, second = done.notices
    assert f"run {RUN} is resumed: 1 step and 1 item are done" in first.text
    failing = taken(plan_of(tmp_path), *item("a"), *item("b", status="failed")).notices[0]
    assert f"run {RUN} is resumed: 2 items (1 failed) are done" in failing.text
    assert (second.place.step, second.level, second.code) == ("note", "warning", "resumed_masked")


def test_a_run_without_a_beginning_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ResumeRefusedError, match="killed before it started"):
        read_resume_state([], plan_of(tmp_path), RUN)


@pytest.mark.parametrize(("code", "ended"), [(0, True), (1, False)])
def test_a_run_that_ended_well_is_known_as_ended(tmp_path: Path, code: int, ended: bool) -> None:  # ruff: ignore[boolean-type-hint-positional-argument] - a row of a table
    end = run_finished(exit=Exit(code, "x", retryable=False, reason=""))

    assert taken(plan_of(tmp_path), end).ended is ended


# --- Calls that are not made twice -----------------------------------------------------------

MADE = Place("one", turn=1, call="c1")
BEGUN = StepStarted(Place("one"), "prompt")
CUT_OFF = step_finished("one", status="failed", error=Failure("interrupted", "the run ended"))
FAILED = step_finished("one", status="failed", error=Failure("unavailable", "no connection"))


@pytest.mark.parametrize("end", [(), (CUT_OFF,), (FAILED,)])
def test_a_call_without_an_end_is_refused_wherever_its_step_runs_again(
    tmp_path: Path, end: Sequence[Event]
) -> None:
    plan = plan_of(tmp_path, CALLS)
    events = (BEGUN, *call(MADE, "s__send", ended=False), *end)

    with pytest.raises(ResumeRefusedError) as refused:
        taken(plan, *events)

    assert "1 call started, with unknown outcome" in refused.value.message
    assert "`s__send` in step `one`, at 20" in refused.value.message
    assert 'with {"n": 1}' in refused.value.message
    assert "--retry-unknown" in str(refused.value.hint)
    assert taken(plan, *events, retry_unknown=True).steps == {}


@pytest.mark.parametrize("end", [(), (CUT_OFF,), (FAILED,)])
@pytest.mark.parametrize("kind", ["ok", "handler_error", "rpc_error", "timeout", "interrupted"])
def test_a_call_that_would_be_made_again_is_refused_however_it_ended(
    tmp_path: Path, end: Sequence[Event], kind: Any
) -> None:
    with pytest.raises(ResumeRefusedError, match="1 call would be made again"):
        taken(plan_of(tmp_path, CALLS), BEGUN, *call(MADE, "s__send", kind), *end)


@pytest.mark.parametrize("end", [(), (CUT_OFF,), (FAILED,)])
@pytest.mark.parametrize("kind", ["transport_error", "denied", "bad_arguments"])
def test_a_call_that_is_known_not_to_have_been_made_is_not_named(
    tmp_path: Path, end: Sequence[Event], kind: Any
) -> None:
    done = taken(plan_of(tmp_path, CALLS), BEGUN, *call(MADE, "s__send", kind), *end)

    assert done.repeated.calls == ()


def test_a_call_to_which_no_answer_came_is_named_though_its_step_failed(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, CALLS)
    events = call(MADE, "s__send", "transport_error")
    lost = Notice(MADE, "warning", "call_lost", "no answer came")

    assert taken(plan, BEGUN, *events, FAILED).steps == {}
    with pytest.raises(ResumeRefusedError, match="1 call started, with unknown outcome"):
        taken(plan, BEGUN, *events[:2], lost, events[2], FAILED)


@pytest.mark.parametrize("kind", ["ok", "handler_error"])
def test_who_retries_what_failed_has_agreed_to_its_calls_which_are_named(
    tmp_path: Path, kind: Any
) -> None:
    plan = plan_of(tmp_path, CALLS)
    events = (BEGUN, *call(MADE, "s__send", kind))

    done = taken(plan, *events, FAILED, retry_failed=True)

    (notice,) = (one for one in done.notices if one.code == "calls_repeated")
    assert notice.level == "warning"
    assert "1 call may be made again, as `--retry-failed` allows" in notice.text
    assert "`s__send` in step `one`, at 20" in notice.text
    assert [one["tool"] for one in done.repeated.calls] == ["s__send"]
    with pytest.raises(ResumeRefusedError):
        taken(plan, *events, CUT_OFF, retry_failed=True)


@pytest.mark.parametrize(
    ("kind", "code", "by_it"),
    [
        ("handler_error", "handler_error", True),
        ("rpc_error", "rpc_error", True),
        ("timeout", "timeout", True),
        ("ok", "timeout", False),
        ("ok", "expectation", False),
        ("handler_error", "call_unknown", False),
    ],
)
def test_a_command_that_failed_is_named_and_run_again_and_refused_if_its_step_failed_otherwise(
    tmp_path: Path,
    kind: Any,
    code: str,
    by_it: bool,  # ruff: ignore[boolean-type-hint-positional-argument] - a row of a table
) -> None:
    place = Place("cmd", call="cmd-1")
    plan = plan_of(tmp_path, CALLS)
    events = (
        StepStarted(Place("cmd"), "run"),
        *call(place, "shell__run", kind),
        step_finished("cmd", status="failed", error=Failure(code, "not as expected")),
    )

    if by_it:
        assert "as their step failed by them" in taken(plan, *events).repeated.message
    else:
        with pytest.raises(ResumeRefusedError, match="1 call would be made again"):
            taken(plan, *events)
    assert len(taken(plan, *events, retry_failed=True).repeated.calls) == 1


def test_a_call_before_an_attempt_that_failed_otherwise_is_named_as_well(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, CALLS)
    answer = turn(Place("one", turn=1), "", calls=(Asked("c1", "s__send", '{"n": 1}'),))
    asked = TurnStarted(Place("one", turn=2), "m", 3)
    go = TurnAdded(Place("one"), {"role": "user", "text": "Go"}, "answer")
    paid = (BEGUN, go, answer, *call(MADE, "s__send"), asked, FAILED)
    other = (run_started(), BEGUN, turn(Place("one", turn=1), "no"), FAILED)

    # The first attempt would have gone on after its call; the second one begins anew.
    assert taken(plan, *paid, retry_failed=True).repeated.calls == ()
    assert len(taken(plan, *paid, *other, retry_failed=True).repeated.calls) == 1


@pytest.mark.parametrize(
    "tool", ["s__put", "s__get", "files__file_read", "files__read_file", "files__dir_list"]
)
@pytest.mark.parametrize("ended", [True, False])
def test_what_only_reads_or_may_be_repeated_is_called_again(
    tmp_path: Path,
    tool: str,
    ended: bool,  # ruff: ignore[boolean-type-hint-positional-argument] - a row of a table
) -> None:
    done = taken(plan_of(tmp_path, CALLS), BEGUN, *call(MADE, tool, ended=ended))

    assert done.steps == {}


def test_calls_of_what_is_done_do_not_matter(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, CALLS)

    assert "one" in taken(plan, BEGUN, *call(MADE, "s__send"), step_finished("one")).steps
    refused = call(MADE, "s__send")[0]
    denied = ToolFinished(MADE, "s__send", "denied", "no", None, 0.0)
    assert taken(plan, BEGUN, refused, denied).steps == {}


def test_many_calls_are_counted_and_not_all_shown(tmp_path: Path) -> None:
    places = [Place("one", turn=1, call=f"c{n}") for n in range(25)]
    events = [event for place in places for event in call(place, "s__send", ended=False)]

    with pytest.raises(ResumeRefusedError) as refused:
        taken(plan_of(tmp_path, CALLS), BEGUN, *events)

    assert refused.value.message.startswith("25 calls started")
    assert refused.value.message.endswith("… and 15 more")


ROWS = """
mcp: {servers: {s: {command: [server]}}, auto_approve: ["*__*"]}
steps: [{id: rows, foreach: "['a', 'b']", key: item, prompt: "{{ item }}"}]
"""


@pytest.mark.parametrize("ended", [True, False])
@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("end", [(), (CUT_OFF,), (FAILED,)])
def test_a_call_of_a_part_before_is_known_however_often_its_step_was_begun_anew(
    tmp_path: Path,
    ended: bool,  # ruff: ignore[boolean-type-hint-positional-argument] - a row of a table
    parts: int,
    end: Sequence[Event],
) -> None:
    plan = plan_of(tmp_path, CALLS)
    events = (BEGUN, *call(MADE, "s__send", ended=ended), FAILED)
    events += parts * (run_started(), BEGUN, *end)

    with pytest.raises(ResumeRefusedError, match="1 call"):
        taken(plan, *events)
    assert taken(plan, *events, step_finished("one")).steps.keys() == {"one"}


@pytest.mark.parametrize(("kind", "again"), [("ok", False), ("unknown", True)])
def test_a_call_of_a_conversation_is_made_again_if_its_outcome_is_unknown(
    tmp_path: Path,
    kind: Any,
    again: bool,  # ruff: ignore[boolean-type-hint-positional-argument] - a row of a table
) -> None:
    go = TurnAdded(Place("one"), {"role": "user", "text": "Go"}, "answer")
    answer = turn(Place("one", turn=1), "", calls=(Asked("c1", "s__send", '{"n": 1}'),))
    events = (BEGUN, go, answer, *call(MADE, "s__send", kind), CUT_OFF)

    done = taken(plan_of(tmp_path, CALLS), *events, retry_unknown=True)

    assert ("c1" not in done.unfinished["one", None].earlier.ended) is again


def test_a_call_stays_known_though_a_later_part_did_not_begin_its_step(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, CALLS)
    skipped = step_finished("one", status="skipped", error=Failure("run_ended", "not started"))
    events = (BEGUN, *call(MADE, "s__send"), FAILED, run_started(), skipped)

    with pytest.raises(ResumeRefusedError, match="1 call would be made again"):
        taken(plan, *events)
    well = Exit(0, "ok", retryable=False, reason="")
    assert taken(plan, *events, run_finished(exit=well)).ended


@pytest.mark.parametrize("status", ["failed", "denied", None])
def test_a_call_of_an_item_is_known_until_the_item_is_finished(tmp_path: Path, status: Any) -> None:
    plan = plan_of(tmp_path, ROWS)
    begun, *_, end = item("a", status=status or "ok")
    made = call(Place("rows", "a", 1, "c1"), "s__send", ended=False)
    events = (begun, *made, *([end] if status else []), run_started(), begun)

    with pytest.raises(ResumeRefusedError, match="in step `rows`, item `a`"):
        taken(plan, *events, run_started(), begun)
    assert len(taken(plan, *events, *item("a")[1:]).items["rows"]) == 1


def test_an_item_that_a_worker_lost_is_known_until_the_item_is_finished(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, ROWS)
    rows = Place("rows")
    on_workers = Notice(rows, "info", "calls_untracked", "on workers")
    back = Notice(Place("rows", "a"), "info", "item_unfinished", "it came back")
    begun = item("a")[0]
    events = (StepStarted(rows, "prompt"), on_workers, begun)
    again = (run_started(), StepStarted(rows, "prompt"))

    for more in ((), (*again, begun), (*again, on_workers, begun, back)):
        with pytest.raises(ResumeRefusedError, match="1 item has not come back"):
            taken(plan, *events, *more)
    assert taken(plan, *events, back, *again, begun).segments == 2


def test_calls_of_a_sub_pipeline_belong_to_the_item_it_runs_for(tmp_path: Path) -> None:
    inner = Place("rows/send", "a", 1, "c1")
    started = ItemStarted(Place("rows", "a"), "a", 0, "0" * 16)
    nested = StepStarted(Place("rows/send", "a"), "prompt")

    with pytest.raises(ResumeRefusedError, match=r"in step `rows`, item `a`"):
        taken(plan_of(tmp_path), started, nested, *call(inner, "s__send"))


def test_a_sub_pipeline_has_rules_and_needs_of_its_own(tmp_path: Path) -> None:
    inner = CALLS.replace("idempotent: [s__put]", "idempotent: [s__send]")
    plan_of(tmp_path, inner, "inner.yaml")
    plan = plan_of(tmp_path, "steps: [{id: outer, pipeline: inner.yaml}]\n")
    begun = StepStarted(Place("outer/one"), "prompt")

    def done(tool: str) -> ResumeState:
        place = Place("outer/one", turn=1, call="c1")
        return taken(plan, begun, *call(place, tool, ended=False))

    assert done("s__send").steps == {}
    with pytest.raises(ResumeRefusedError, match=r"in step `outer/one`"):
        done("s__put")
    finished = step_finished("outer/one")
    assert set(taken(plan, begun, finished).steps) == {"outer/one"}


def test_items_within_an_item_that_is_not_done_are_not_done(tmp_path: Path) -> None:
    plan_of(tmp_path, READS, "inner.yaml")
    text = 'steps: [{id: rows, foreach: "[1]", key: "\'a\'", pipeline: inner.yaml}]\n'
    plan = plan_of(tmp_path, text)
    outer = ItemStarted(Place("rows", "a"), "a", 0, "0" * 16)
    within = item("a/b", step="rows/rows")
    made = call(Place("rows/rows", "a/b", 1, "c1"), "s__send")

    assert "rows/rows" not in taken(plan, outer, *within).items
    with pytest.raises(ResumeRefusedError, match="in step `rows`, item `a`"):
        taken(plan, outer, *within[:-1], *made, within[-1])
    whole = taken(plan, StepStarted(Place("rows"), "pipeline"), outer, *within, *item("a")[-1:])
    lines = records(run_started(), StepStarted(Place("rows"), "pipeline"), outer, *within)
    assert len(list(retold(lines, whole))) == 1 + len(within)


# --- What is told again ----------------------------------------------------------------------


def test_what_is_told_again_has_no_attempt_that_came_to_nothing(tmp_path: Path) -> None:
    events = (
        run_started(),
        StepStarted(Place("note"), "prompt"),
        run_started(),
        StepStarted(Place("note"), "prompt"),
        step_finished("note"),
        StepStarted(Place("rows"), "prompt"),
        *item("a"),
        ItemStarted(Place("rows", "b"), "b", 1, "0" * 16),
    )
    lines = records(*events)
    done = read_resume_state(lines, plan_of(tmp_path), RUN)

    told = [one.seq for one in retold(lines, done)]

    assert told == [4, 5, 7, 8, 9, 10]
    of_items = frozenset({"item.started", "item.finished"})
    assert [one.seq for one in retold(lines, done, of_items)] == [7, 10]
    assert list(retold(lines, done, of_items, known=10)) == []
    assert [one.seq for one in retold_whole(lines, done)] == list(range(3, len(events) + 1))


# --- Items in little memory ------------------------------------------------------------------

_KEYS = st.text("abcä😀 ", min_size=1, max_size=40)


@given(st.lists(st.tuples(_KEYS, st.sampled_from(["ok", "failed", "skipped", "denied"]))))
def test_done_items_are_found_as_they_were_put_in(rows: list[tuple[str, Any]]) -> None:
    done = DoneItems()
    wanted: dict[str, DoneItem] = {}
    for index, (key, status) in enumerate(rows):
        wanted[key] = DoneItem(key, index, f"{index:016x}", status)
        done.add(wanted[key], Usage(1, 1), 0.5)

    assert {key: done.get(key) for key in wanted} == wanted
    assert len(done) == len(wanted)
    bad = [one for one in wanted.values() if one.status in {"failed", "denied"}]
    assert done.failed == len(bad)
    for key in wanted:
        done.remove(key)
    assert (len(done), done.ok, done.failed) == (0, 0, 0)


# --- What may not change ---------------------------------------------------------------------

WHOLE = """
inputs: {since: {type: string, default: v1}}
env: [BUILD]
models:
  m: {base_url: "http://127.0.0.1:9", model: small, params: {max_tokens: 9}}
  unused: {base_url: "http://127.0.0.1:9", model: other}
model: m
mcp:
  servers: {s: {url: "http://127.0.0.1:9/mcp", auth_env: KEY}}
  auto_approve: [s__get]
prompts: {notes: {file: notes.md.j2}, other: Unused}
steps:
  - {id: one, prompt: {name: notes}, output: {schema: one.json}}
  - {id: two, foreach: {file: rows.jsonl}, prompt: "{{ item.a }}", needs: [one]}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "notes.md.j2").write_text("Since {{ inputs.since }}", encoding="utf-8")
    (tmp_path / "one.json").write_text('{"type": "object"}', encoding="utf-8")
    (tmp_path / "rows.jsonl").write_text('{"a": 1}\n', encoding="utf-8")
    return tmp_path


def printed(folder: Path, text: str = WHOLE, **options: Any) -> tuple[Plan, dict[str, str]]:
    given: dict[str, Any] = {"inputs": {"since": "v1"}, "environ": {"BUILD": "7", "KEY": "k" * 9}}
    given |= options
    plan = plan_of(folder, text, **given)
    return plan, fingerprint(plan, RunOptions(**given))


def told(folder: Path, change: str, to: str, **options: Any) -> tuple[str, ...]:
    """The differences after a text of the file was changed, and options were given."""
    _, before = printed(folder)
    changed = WHOLE.replace(change, to)
    assert changed != WHOLE or options
    plan, now = printed(folder, changed, **options)
    return differences(before, now, plan.pipeline)


@pytest.mark.parametrize(
    ("change", "to", "where"),
    [
        ("max_tokens: 9", "max_tokens: 8", ":5:61: `models.m.params` changed"),
        ("model: small", "model: large", ":5:46: `models.m.model` changed"),
        ("s__get", "s__put", "`mcp.auto_approve` changed"),
        ("{{ item.a }}", "{{ item.b }}", "`steps[1].prompt` changed"),
        (", needs: [one]", "", "`steps[1].needs` is gone"),
        ("id: one,", "id: one, system: Be brief,", "`steps[0].system` is new"),
        ("http://127.0.0.1:9/mcp", "http://127.0.0.1:8/mcp", "`mcp.servers.s.url` changed"),
    ],
)
def test_a_change_of_the_file_is_named_with_its_place(
    folder: Path, change: str, to: str, where: str
) -> None:
    (line,) = told(folder, change, to)

    assert line.endswith(where) or where in line
    if "gone" not in where:
        assert line.startswith(str(folder / "p.yaml"))


@pytest.mark.parametrize(
    ("change", "to"),
    [
        ("id: two,", "id: two, concurrency: 3, max_failures: 5, retry: {attempts: 2},"),
        ("id: two,", "id: two, timeout: 5s, on_error: continue, limits: {turns: 9},"),
        ("inputs:", "description: Other\nlimits: {time: 5m}\ninputs:"),
        ("model: small,", "model: small, retry: {attempts: 9}, timeout: {idle: 5s},"),
        ("model: small,", "model: small, price: {input: 1, output: 2}, key_env: KEY,"),
        ("auth_env: KEY", "headers: {x-a: b}"),
        ("model: other", "model: another"),
        ("other: Unused", "other: Still unused"),
        ("auto_approve:", "idempotent: [s__put]\n  parallel: [s__get]\n  auto_approve:"),
        ("one.json}", "one.json, attempts: 9}"),
        ("inputs:", "cassette: a.yaml\ntests: [{name: a, expect: [{contains: a}]}]\ninputs:"),
    ],
)
def test_what_decides_no_result_may_change(folder: Path, change: str, to: str) -> None:
    assert told(folder, change, to) == ()


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"inputs": {"since": "v2"}}, "`inputs.since` changed"),
        ({"environ": {"BUILD": "8", "KEY": "k" * 9}}, "`env.BUILD` changed"),
        ({"stdin": "text"}, "what is piped in is new"),
        ({"model": "unused"}, "`--model` is new"),
        ({"allow": ("s__a",)}, "`--allow` is new"),
        ({"deny": ("s__a",)}, "`--deny` is new"),
    ],
)
def test_what_was_given_beside_the_file_may_not_change(
    folder: Path, options: dict[str, Any], line: str
) -> None:
    assert line in told(folder, "", "", **options)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("notes.md.j2", "Before {{ inputs.since }}"),
        ("one.json", '{"type": "array"}'),
        ("rows.jsonl", '{"a": 1}\n{"a": 2}\n'),
    ],
)
def test_a_file_that_the_pipeline_names_may_not_change(folder: Path, name: str, text: str) -> None:
    _, before = printed(folder)
    (folder / name).write_text(text, encoding="utf-8")
    plan, now = printed(folder)

    assert differences(before, now, plan.pipeline) == (f"the file `{name}` changed",)


def test_whole_steps_that_come_and_go_are_named_once(folder: Path) -> None:
    _, before = printed(folder)
    plan, now = printed(folder, WHOLE.replace("id: two,", "id: three,"))

    new, gone = differences(before, now, plan.pipeline)

    assert new.endswith("the step `three` is new")
    assert gone == "the step `two` is gone"


def test_a_sub_pipeline_may_not_change_either(folder: Path) -> None:
    inner = (
        "steps: [{id: a, prompt: {file: notes.md.j2}}, {id: b, prompt: B}]\ninputs: {since: {}}\n"
    )
    plan_of(folder, inner, "inner.yaml")
    text = "steps: [{id: outer, pipeline: inner.yaml, with: {since: v1}}]\n"
    _, before = printed(folder, text, inputs={})
    plan_of(folder, inner.replace("prompt: B", "prompt: C"), "inner.yaml")
    (folder / "notes.md.j2").write_text("{{ inputs.since }}", encoding="utf-8")
    plan, now = printed(folder, text, inputs={})

    assert set(differences(before, now, plan.pipeline)) == {
        "`steps.b.prompt` of the sub-pipeline `outer` changed",
        "the file `notes.md.j2 (outer)` changed",
    }


def test_an_attached_file_counts_unless_a_step_before_may_have_made_it(folder: Path) -> None:
    (folder / "style.md").write_text("Be kind.")
    text = WHOLE.replace("id: one,", "id: one, attach: style.md,")
    text = text.replace("id: two,", "id: two, attach: [made.md],")
    _, before = printed(folder, text)
    (folder / "style.md").write_text("Be cruel.")
    (folder / "made.md").write_text("by the first step")
    plan, now = printed(folder, text)

    assert differences(before, now, plan.pipeline) == ("the file `style.md` changed",)


def test_a_fingerprint_tells_nothing_of_a_secret(folder: Path) -> None:
    text = "secrets: [KEY]\n" + WHOLE.lstrip()
    one = printed(folder, text, inputs={"since": "k" * 9})[1]
    other = printed(
        folder, text, inputs={"since": "p" * 9}, environ={"BUILD": "7", "KEY": "p" * 9}
    )[1]

    assert one == other


def test_differences_are_refused_or_forced_and_told(folder: Path) -> None:
    _, before = printed(folder)
    plan, now = printed(folder, inputs={"since": "v2"})

    with pytest.raises(ResumeRefusedError, match=r"`inputs\.since` changed"):
        check_same(before, now, plan.pipeline)
    (notice,) = notices_of_differences(before, now, plan.pipeline)
    assert "although `inputs.since` changed" in notice.text
    assert notices_of_differences(now, now, plan.pipeline) == ()
    check_same(now, now, plan.pipeline)
    with pytest.raises(ResumeRefusedError, match="does not record"):
        check_same({}, now, plan.pipeline)


# --- Where a run begins ----------------------------------------------------------------------


def written(path: Path, *events: Event) -> bytes:
    data = b"".join(seal(to_line(one)) for one in stamped(*events))
    path.write_bytes(data)
    return data


def test_the_beginnings_of_a_run_are_found_in_its_journal(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    first = run_started(inputs={"since": "v1"})
    written(path, first, step_finished(), run_started(inputs={"since": "v2"}))

    assert [one["inputs"] for one in starts(path)] == [{"since": "v1"}, {"since": "v2"}]
    assert starts(tmp_path / "none.jsonl") == []


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (lambda _: b'{"a": 1}\n', "no checksum"),
        (lambda _: b"\0" * 512 + b"\n", "does not begin with `run.started`"),
        (lambda data: data.replace(b"\n", b"\r\n")[200:], "its checksum does not match"),
        (lambda data: data.split(b"\n", 1)[1], "does not begin with `run.started`"),
    ],
)
def test_what_is_no_journal_is_told_from_one(tmp_path: Path, harm: Any, said: str) -> None:
    path = tmp_path / "events.jsonl"
    data = written(path, run_started(), step_finished())
    path.write_bytes(harm(data))

    with pytest.raises(JournalError, match=said):
        starts(path)


def test_a_refusal_is_a_usage_error() -> None:
    assert issubclass(ResumeRefusedError, UsageError)


# --- Items that are pipelines, and go on ------------------------------------------------------


@pytest.mark.parametrize("keys", [("a", "a/c"), ("a", "a/b")])
def test_parts_that_may_be_of_two_items_are_of_none(tmp_path: Path, keys: Sequence[str]) -> None:
    """`a/b` may be an item within `a`, or the item `a/b`: what is not known is not gone on with."""
    inner = """
    aish: 1
    models: {m: {base_url: "http://127.0.0.1:9", model: m}}
    on_ask: pause
    steps: [{id: rows, foreach: "['b']", key: item, prompt: "{{ item }}"}]
    """
    (tmp_path / "inner.yaml").write_text(dedent(inner), encoding="utf-8")
    outer = "steps: [{id: each, foreach: \"['a', 'a/b']\", key: item, pipeline: inner.yaml}]"
    within = Place("each/rows", "a/b")
    state = taken(
        plan_of(tmp_path, outer),
        StepStarted(Place("each"), "pipeline"),
        *(ItemStarted(Place("each", key), key, 0, "00") for key in keys),
        ItemStarted(within, "b", 0, "00"),
        ItemFinished(within, "b", 0, "ok", "done", None, Usage(), None, 0.1),
    )

    known = keys[1] == "a/c"
    done = {key: len(part.items) for (_, key), part in state.parts.items()}
    assert done == ({"a": 1, "a/c": 0} if known else {})
