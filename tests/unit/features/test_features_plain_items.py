"""Items of a journal that are counted without a fold leave the state that the fold leaves (B3)."""

import re
from collections.abc import Iterator, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scripted_events import asked, decided, run_finished, run_started, step_finished
from scripted_events import turn_finished as answer

from aish.agent.dispatch import CALL_LOST
from aish.agent.restore import TAKEN_OVER
from aish.core.errors import UsageError
from aish.core.events import (
    ApprovalAnswered,
    Asked,
    ContextFiles,
    Event,
    Exit,
    Failure,
    Fallback,
    HistoryReplaced,
    ItemFinished,
    ItemMoved,
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
from aish.core.messages import Usage
from aish.engine.plan.options import RunOptions
from aish.engine.plan.plan import Plan, load_checked, make_plan
from aish.engine.resume_state import DoneItems, ResumeState
from aish.engine.steps.context import CALLS_UNTRACKED, ITEM_UNFINISHED
from aish.features.resume.state import read_resume_state
from aish.journal.reader import JournalReading
from aish.journal.writer import seal

PIPELINE = """
aish: 1
models: {m: {base_url: http://127.0.0.1:9, model: m}}
mcp: {servers: {s: {command: [server]}}, auto_approve: ["*__*"]}
steps:
  - {id: rows, foreach: "['a']", key: item, prompt: Go, on_error: continue}
  - {id: read, foreach: "['a']", key: item, prompt: Go}
  - {id: parts, foreach: "['a']", key: item, pipeline: inner.yaml}
  - {id: last, prompt: "{{ steps.read | length }}"}
"""
INNER = """
aish: 1
models: {m: {base_url: http://127.0.0.1:9, model: m}}
steps: [{id: one, prompt: Go}]
"""


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    path: Path = tmp_path_factory.mktemp("plain") / "p.yaml"
    path.write_text(PIPELINE.lstrip(), encoding="utf-8")
    path.with_name("inner.yaml").write_text(INNER.lstrip(), encoding="utf-8")
    return make_plan(load_checked(path, ()), RunOptions())


def finished(place: Place, index: int, status: Any, **more: Any) -> ItemFinished:
    usage = more.pop("usage", Usage(3, 1))
    key = str(place.item)
    return ItemFinished(place, key, index, status, "yes", {"a": 1}, usage, 0.25, 0.5, **more)


def events_of(step: str, key: str, index: int, word: str) -> Iterator[Event]:
    """What `word` names, of the item with this key."""
    place, turn = Place(step, key), Place(step, key, 1)
    failure = Failure("items", 'said "usage":{', None)
    match word:
        case "begin":
            yield ItemStarted(place, key, index, f"{index:016x}", {"usage": {"input": 1}})
        case "turn":
            yield TurnAdded(place, {"role": "user", "text": key}, "answer")
            yield TurnStarted(turn, "m", 1)
            yield answer(turn, "yes", usage=Usage(3, 1, None, index), cost_usd=0.25)
        case "judge":
            yield answer(
                turn, ',"calls":[],"usage":{', purpose="judge", usage=Usage(), cost_usd=None
            )
        case "call":
            call = Place(step, key, 1, "c1")
            yield decided(call, "s__t", {})
            yield ToolStarted(call, "s__t")
            yield ToolFinished(call, "s__t", "ok", "done", None, 0.1)
        case "retry":
            yield Retry(place, f"step {step}", 2, 0.0, "failed")
        case "again":
            yield Retry(turn, "m", 2, 0.0, "failed")
        case "request":
            calls = (Asked("c1", "s__t", '{"calls":['),)
            yield answer(turn, "", finish="tool_calls", calls=calls, cost_usd=0.5)
        case "lost":
            yield Notice(Place(step, key, 1, "c1"), "warning", CALL_LOST, "no answer")
        case "asked":
            yield asked(Place(step, key, 1, "c1"), "s__t", {})
        case "answered":
            call = Place(step, key, 1, "c1")
            yield ApprovalAnswered(call, asked(call, "s__t", {}).id, "approve", "me", "page")
        case "moved":
            yield ItemMoved(place, key, index + 7)
        case "goes on":
            yield Notice(place, "info", TAKEN_OVER, "resumed")
        case "files":
            yield ContextFiles(place, "tag", (), "state")
        case "shortened":
            yield HistoryReplaced(place, ({"role": "user", "text": "x"},), "short")
        case "other model":
            yield Fallback(turn, "m", "n", "busy")
        case "cut":
            yield TurnStarted(turn, "m", 1)
        case "inner":
            inner = Place(f"{step}/one", key)
            yield from (StepStarted(inner, "prompt"), step_finished(place=inner))
        case "interrupted":
            yield finished(place, index, "failed", error=Failure("interrupted", "stop", None))
        case "odd":
            yield finished(place, index, "ok", error=Failure("budget", "x", None), exit_code=0)
        case "unfinished":
            yield Notice(place, "info", ITEM_UNFINISHED, "back")
        case "ok" | "skipped" | "denied" | "budget" | "paused":
            yield finished(place, index, word)
        case "free":
            yield finished(place, index, "ok", usage=Usage(None, 2, 1))
        case _:
            yield finished(place, index, "failed", error=failure, exit_code=1)


def events_of_run(word: str) -> Iterator[Event]:
    match word:
        case "resume":
            yield run_started()
        case "workers":
            yield Notice(Place("rows"), "info", CALLS_UNTRACKED, "on workers")
        case "end":
            yield step_finished("rows")
        case "stopped":
            end = Exit(130, "interrupted", retryable=True, reason="stop")
            yield run_finished(status="interrupted", exit=end)
        case _:
            yield from (StepStarted(Place("rows"), "prompt"), StepStarted(Place("read"), "prompt"))
            yield StepStarted(Place("parts"), "pipeline")


WORDS = [
    *["begin", "turn", "ok"] * 8,
    *("judge", "call", "retry", "unfinished", "skipped", "denied", "budget", "free", "failed"),
    *("again", "request", "lost", "asked", "answered", "moved", "goes on", "files", "shortened"),
    *("other model", "cut", "inner", "interrupted", "odd", "paused"),
]
KEYS = [
    *("a", "b", "", "a/b", "x/y", "long key of an item, which is hashed", 'quo"te', "back\\slash"),
    *("é", "\u202e", "\U0001f600", "##[group]", "\ud800", '","item":"b'),
]
STEPS = ["rows", "rows", "rows", "read", "gone", "sub/rows", "parts"]
ITEM = st.tuples(st.sampled_from(STEPS), st.sampled_from(KEYS), st.sampled_from(WORDS))
RUN = st.sampled_from(["resume", "workers", "end", "begin", "begin", "stopped"])


def facts(state: ResumeState) -> Any:
    """A state as something that can be compared."""
    names = [name for name in state.__dataclass_fields__ if name != "items"]
    items = {step: _facts_of_items(done) for step, done in state.items.items()}
    return {name: getattr(state, name) for name in names}, items


def _facts_of_items(done: DoneItems) -> Any:
    hidden = {**vars(done), "_mask": None, "_spent": None}
    return {key: hidden[key] for key in sorted(hidden)}, done.spent


def state_of(records: Any, plan: Plan, *, retry_failed: bool = False) -> Any:
    try:
        state = read_resume_state(
            records, plan, "run", retry_unknown=True, retry_failed=retry_failed
        )
    except UsageError as error:
        # A line that is decoded late is not named by its own number.
        return re.sub(r"\d+", "", str(error))
    return facts(state)


def lines_of(events: Sequence[Event]) -> list[bytes]:
    return [
        to_line(Stamped(2 * number + 1, 1.8e9 + number, event))
        for number, event in enumerate((run_started(), *events_of_run("begin"), *events))
    ]


def compare(plan: Plan, lines: Sequence[bytes], *, retry_failed: bool = False) -> Any:
    """The state of a journal of these lines, which is that of its decoded records."""
    data = b"".join(map(seal, lines))
    with JournalReading(BytesIO(data), "journal") as reading:
        of_journal = state_of(reading, plan, retry_failed=retry_failed)
    with JournalReading(BytesIO(data), "journal") as reading:
        assert of_journal == state_of(iter(reading), plan, retry_failed=retry_failed)
    return of_journal


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.one_of(ITEM, ITEM, ITEM, ITEM, RUN), max_size=40), st.booleans())
def test_state_of_a_journal_is_that_of_its_records(
    plan: Plan,
    words: Sequence[Any],
    retry_failed: bool,  # ruff: ignore[boolean-type-hint-positional-argument] - hypothesis gives it
) -> None:
    events: list[Event] = []
    for word in words:
        if isinstance(word, str):
            events += events_of_run(word)
        else:
            step, key, what = word
            events += events_of(step, key, KEYS.index(key), what)
    compare(plan, lines_of(events), retry_failed=retry_failed)


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        (rb'"seq":\d+', b'"seq":' + b"9" * 5000),
        (rb'"seq":\d+', b'"seq":007'),
        (rb'"index":\d+', b'"index":' + b"9" * 5000),
        (rb'"index":\d+', b'"index":03'),
        (rb'"item":"a"', b'"item":"\xff"'),
        (rb'"cost_usd":0.25', b'"cost_usd":0.25,"odd":"\xff"'),
        (rb'"calls":\[\]', b'"calls":[' + b"[" * 100_000 + b"]" * 100_000 + b"]"),
        (rb',"usage":\{[^}]*\}', b""),
        (rb'"usage":\{[^}]*\}', b'"usage":null'),
        (rb'"usage":\{[^}]*\}', b'"usage":{}'),
        (rb'"usage":\{[^}]*\}', b'"usage":{"output":2}'),
        (rb'"input":3', b'"input":3.5'),
        (rb'"input":3', b'"input":' + b"3" * 5000),
        (rb',"cache_written":null', b""),
        (rb'"cost_usd":0.25', b'"cost_usd":2e-05'),
        (rb',"cost_usd":0.25', b""),
        (rb'"served":null', b'"served":{"model":"m-1","fingerprint":null,"id":"{"}'),
        (rb'"served":null', b'"served":{"model":"m-1","fingerprint":null,"id":"x"}'),
        (rb'("calls":\[\]),("usage":\{[^}]*\})', rb"\2,\1"),
    ],
)
@pytest.mark.parametrize("number", [0, 3, 4])
def test_lines_of_another_form_are_read_like_their_records(
    plan: Plan, pattern: bytes, text: bytes, number: int
) -> None:
    words = ("begin", "turn", "ok")
    lines = lines_of([event for word in words for event in events_of("rows", "a", 0, word)])
    changed = -5 + number
    lines[changed] = re.sub(pattern, text, lines[changed])
    compare(plan, lines)
