"""Events to draw and to write: a run that has a bit of everything, and any event at all."""

from collections import abc
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from hypothesis import strategies as st

from aish.core.events import (
    EVENT_TYPES,
    ApprovalAnswered,
    ApprovalAsked,
    Asked,
    AskEnded,
    AskReceived,
    CallCounts,
    CassetteInfo,
    CassetteUse,
    Counts,
    Event,
    Exit,
    ExpectChecked,
    Failure,
    Fallback,
    ModelInfo,
    Notice,
    Place,
    Retry,
    RuleInfo,
    RunFinished,
    RunStarted,
    ServerInfo,
    Stamped,
    StepFinished,
    StepStarted,
    TextDelta,
    TextWithdrawn,
    ToolDecided,
    ToolFinished,
    ToolProgress,
    ToolStarted,
    TurnFinished,
    TurnStarted,
)
from aish.core.json import JsonObject, JsonValue
from aish.core.messages import Usage

START = 1_795_000_000.25
# Clears the screen, sets the title, rings, overwrites the line, turns the text around, and asks a
# CI runner for a favour.
HOSTILE = "a\x1b[2Jb\x1b]0;owned\x07c\rd\x08e\x9bmf\u202eg\u200bh\n::error::no\n##[group]x\n\ud800!"


def stamped(*events: Event) -> list[Stamped]:
    """The events, numbered, a quarter of a second apart."""
    return [Stamped(n, START + n / 4, event) for n, event in enumerate(events, 1)]


def run_started(**changes: Any) -> RunStarted:
    given: dict[str, Any] = {
        "aish": "0.1.0",
        "pipeline": "quickstart",
        "digest": "d" * 64,
        "models": (ModelInfo("local", "smollm2", "embedded"),),
        "servers": (ServerInfo("repo", "pack", "ready", 6),),
        "rules": (RuleInfo("auto_approve", "repo__file_*"),),
        "limits": {"time": None},
        "inputs": {"since": "v2"},
        "folder": ".aish/runs/20261118T120640Z-quickstart-a1b2",
    }
    return RunStarted(**given | changes)


def run_finished(**changes: Any) -> RunFinished:
    given: dict[str, Any] = {
        "status": "ok",
        "exit": Exit(0, "ok", retryable=False, reason=""),
        "outputs": None,
        "usage": Usage(412, 96),
        "cost_usd": None,
        "seconds": 1.84,
        "denials": {},
        "folder": ".aish/runs/20261118T120640Z-quickstart-a1b2",
        "calls": CallCounts(1),
    }
    return RunFinished(**given | changes)


def step_finished(step: str = "read", **changes: Any) -> StepFinished:
    given: dict[str, Any] = {
        "place": Place(step),
        "status": "ok",
        "text": "done",
        "output": None,
        "usage": Usage(412, 96),
        "cost_usd": None,
        "seconds": 1.2,
    }
    return StepFinished(**given | changes)


def turn_finished(place: Place, text: str = "done", **changes: Any) -> TurnFinished:
    given: dict[str, Any] = {
        "model": "local",
        "finish": "stop",
        "calls": (),
        "usage": Usage(200, 48),
        "first_token_seconds": 0.2,
        "seconds": 0.7,
    }
    return TurnFinished(place=place, text=text, **given | changes)


def decided(place: Place, tool: str, arguments: JsonValue, **changes: Any) -> ToolDecided:
    server, _, name = tool.partition("__")
    given: dict[str, Any] = {"digest": "0" * 64, "verdict": "auto", "rule": "repo__*"}
    return ToolDecided(
        place=place, tool=tool, server=server, name=name, arguments=arguments, **given | changes
    )


WAITING = "1a2b3c4d" + "0" * 24
"""The id of the question of `paused_run`."""


def asked(place: Place, tool: str, arguments: JsonValue, **changes: Any) -> ApprovalAsked:
    server, _, name = tool.partition("__")
    given: dict[str, Any] = {
        "id": WAITING,
        "digest": "0" * 64,
        "reason": "no rule approves it",
        "expires": "2026-12-31T12:00:00.000Z",
        "always": None,
    }
    return ApprovalAsked(
        place=place, tool=tool, server=server, name=name, arguments=arguments, **given | changes
    )


def answered(place: Place, **changes: Any) -> ApprovalAnswered:
    given: dict[str, Any] = {"id": WAITING, "answer": "approve", "by": "mia", "way": "command"}
    return ApprovalAnswered(place=place, **given | changes)


def paused_run() -> list[Event]:
    """Two calls wait: one is answered while the run goes on, the other after it was paused."""
    turn = Place("fix", turn=1)
    first, second = (Place("fix", turn=1, call=f"c{n}") for n in (1, 2))
    other = "f" * 32
    return [
        run_started(),
        StepStarted(Place("fix"), "prompt"),
        TurnStarted(turn, "local", 2),
        turn_finished(
            turn,
            "",
            finish="tool_calls",
            calls=(Asked("c1", "repo__file_write", "{}"), Asked("c2", "repo__file_remove", "{}")),
        ),
        asked(first, "repo__file_write", {"path": "a.md"}, id=other),
        asked(second, "repo__file_remove", {"path": HOSTILE}, reason=f"it removes {HOSTILE}"),
        answered(first, id=other, by=HOSTILE, way="page", note=HOSTILE),
        decided(first, "repo__file_write", {"path": "a.md"}, verdict="ask-yes", approval=other),
        ToolStarted(first, "repo__file_write"),
        ToolFinished(first, "repo__file_write", "ok", "written", None, 0.01),
        step_finished(
            "fix",
            status="paused",
            text=None,
            error=Failure("paused", "1 call waits for an answer"),
        ),
        StepStarted(Place("tell"), "call"),
        step_finished("tell", status="skipped", text=None),
        run_finished(
            status="paused",
            exit=Exit(
                8,
                "paused",
                retryable=False,
                reason="step `fix`: 1 call waits for an answer",
                hint="aish run quickstart.yaml --resume",
            ),
        ),
    ]


def ordinary_run() -> list[Stamped]:
    """One step with two turns and a tool, one that classifies."""
    first, second, other = Place("read", turn=1), Place("read", turn=2), Place("sort", turn=1)
    call = Place("read", turn=1, call="c1")
    asked = Asked("c1", "repo__file_read", '{"path": "README.md"}')
    readme = "# aish\n\n" + "\n".join(f"Line {n} of the file" for n in range(3, 20))
    return stamped(
        run_started(),
        StepStarted(Place("read"), "prompt"),
        TurnStarted(first, "local", 2),
        TextDelta(first, "I will "),
        TextDelta(first, "read it."),
        turn_finished(first, "I will read it.", finish="tool_calls", calls=(asked,)),
        decided(call, "repo__file_read", {"path": "README.md"}),
        ToolStarted(call, "repo__file_read"),
        ToolFinished(call, "repo__file_read", "ok", readme, None, 0.012),
        TurnStarted(second, "local", 4),
        TextDelta(second, "It is about pipelines.\nNothing else."),
        turn_finished(second, "It is about pipelines.\nNothing else."),
        step_finished(text="It is about pipelines.\nNothing else."),
        StepStarted(Place("sort"), "prompt"),
        TurnStarted(other, "local", 2),
        TextDelta(other, '{"kind": "docs"}'),
        turn_finished(other, '{"kind": "docs"}'),
        step_finished("sort", text='{"kind": "docs"}', output={"kind": "docs"}),
        run_finished(),
    )


def recorded_run() -> list[Stamped]:
    """A run whose cassette is written."""
    path = "tests/cassettes/quickstart.yaml"
    return stamped(
        run_started(cassette=CassetteInfo(path, "all")),
        run_finished(cassette=CassetteUse(path, "recorded", 8)),
    )


def unmet_run() -> list[Stamped]:
    """One step that did what it should, but not all that is expected of it."""
    place = Place("notes")
    first = "expected the text to contain `fix`; got `Hello`"
    differs = (
        "expected the text to be `a ⏎ b`; got another text:\n  line 1:\n   a\n  -b\n  +" + HOSTILE
    )
    return stamped(
        run_started(models=(), servers=()),
        StepStarted(place, "run"),
        ExpectChecked(place, "max_seconds", ok=True, message="expected at most 3 s"),
        ExpectChecked(place, "contains", ok=False, message=first),
        ExpectChecked(place, "equals", ok=False, message=differs),
        step_finished(
            "notes", status="failed", error=Failure("expectation", f"{first} (and 1 more)")
        ),
        StepStarted(Place("other"), "run"),
        step_finished("other", status="failed", error=Failure("handler_error", "it ended with 1")),
        run_finished(
            status="failed",
            exit=Exit(1, "failed", retryable=False, reason=f"step `notes`: {first} (and 1 more)"),
        ),
    )


def troubled_run() -> list[Stamped]:
    """Everything that can go wrong, told by strangers who mean harm."""
    turn, again = Place("fix", turn=1), Place("fix", turn=2)
    one, two, three = (Place("fix", turn=1, call=f"c{n}") for n in (1, 2, 3))
    failed = ServerInfo("evil", "stdio", "failed", 0, f"died: {HOSTILE}")
    kept = "files/0001-result.txt"
    return stamped(
        run_started(servers=(ServerInfo("repo", "pack", "ready", 1), failed)),
        StepStarted(Place("fix"), "prompt"),
        Notice(turn, "warning", "protocol_mismatch", f"mcp evil: {HOSTILE}"),
        TurnStarted(turn, "cloud", 2),
        TextDelta(turn, "half an ans"),
        TextWithdrawn(turn, "half an ans"),
        Retry(turn, "http://127.0.0.1:9", 2, 1.5, "connection reset"),
        Fallback(turn, "cloud", "local", "unavailable after 4 attempts"),
        TextDelta(turn, HOSTILE),
        turn_finished(turn, HOSTILE, finish="tool_calls"),
        decided(one, "repo__file_read", {"path": HOSTILE}),
        decided(two, "evil__search", {"query": "x" * 90}),
        decided(three, "evil__delete_all", {}, verdict="deny", rule="*__delete*"),
        ToolFinished(
            three,
            "evil__delete_all",
            "denied",
            "[aish] tool call denied by rule *__delete*",
            None,
            0.0,
        ),
        ToolStarted(one, "repo__file_read"),
        ToolStarted(two, "evil__search"),
        ToolProgress(two, "evil__search", 3, 10, "looking\x1b[31m"),
        ToolFinished(two, "evil__search", "transport_error", f"[aish] {HOSTILE}", None, 61.0),
        ToolFinished(
            one, "repo__file_read", "ok", f"{HOSTILE}\n日本語のとても長い行" * 9, kept, 0.5
        ),
        TurnStarted(again, "local", 7),
        turn_finished(again, "", finish="length", usage=Usage()),
        step_finished(
            "fix",
            status="failed",
            text=None,
            error=Failure("truncated", f"the answer was cut off {HOSTILE}", "raise `max_tokens`"),
        ),
        StepStarted(Place("late"), "call"),
        step_finished("late", status="skipped", text=None),
        run_finished(
            status="failed",
            exit=Exit(1, "failed", retryable=False, reason=f"step `fix`: {HOSTILE}"),
            usage=Usage(412, None),
            cost_usd=0.0123,
            denials={"evil__delete_all": 1},
            calls=CallCounts(3, failed=1, denied=1),
            folder=None,
        ),
    )


_TEXT = st.text(st.characters(exclude_categories=()), max_size=20)
_JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | _TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXT, inner, max_size=3),
    max_leaves=5,
)
_SCALARS: Mapping[Any, st.SearchStrategy[Any]] = {
    str: _TEXT,
    int: st.integers(1, 2**60),
    float: st.floats(min_value=0, allow_nan=False, allow_infinity=False),
    bool: st.booleans(),
    NoneType: st.none(),
    Place: st.builds(
        Place, st.text("ab", min_size=1), st.none() | _TEXT, st.integers(0, 99), _TEXT
    ),
    Exit: st.builds(
        Exit, st.sampled_from([0, 1, 2, 3, 4, 5, 8, 70, 130, 143]), _TEXT, st.booleans(), _TEXT
    ),
}


def _strategy(hint: Any) -> st.SearchStrategy[Any]:
    if hint == JsonValue:
        return _JSON
    if hint == JsonObject:
        return st.dictionaries(_TEXT, _JSON, max_size=3)
    if hint == Counts:
        return st.dictionaries(_TEXT, st.integers(1, 2**60), max_size=3)
    if get_origin(hint) is abc.Mapping:
        return st.dictionaries(_TEXT, _strategy(get_args(hint)[1]), max_size=3)
    if hint in _SCALARS:
        return _SCALARS[hint]
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Literal:
        return st.sampled_from(arguments)
    if origin in {Union, UnionType}:
        return st.one_of(*map(_strategy, arguments))
    if origin is tuple:
        return st.lists(_strategy(arguments[0]), max_size=2).map(tuple)
    assert is_dataclass(hint), hint
    return _built(hint)


def _built(kind: Any) -> st.SearchStrategy[Any]:
    given = {field.name: _strategy(field.type) for field in fields(kind)}
    for name in {"id", "request_id"} & given.keys():
        if kind in {ApprovalAsked, ApprovalAnswered, AskReceived, AskEnded}:
            given[name] = st.text("0123456789abcdef", min_size=32, max_size=32)
    return st.builds(kind, **given)


def any_event() -> st.SearchStrategy[Stamped]:
    """Any event there can be, with the worst of texts and values in it."""
    events = st.one_of(*map(_built, EVENT_TYPES))
    times = st.floats(0, 4e9, allow_nan=False)
    return st.builds(Stamped, st.integers(1, 2**40), times, events)
