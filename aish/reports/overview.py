"""The head of the page: how the run ended, its figures, and what it was made of."""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import starmap

from aish.core.deltas import Usage
from aish.core.event_json import plain
from aish.core.events import RunFinished, RunStarted
from aish.core.json import JsonObject
from aish.core.json_text import json_text
from aish.core.text import counted, for_line
from aish.output.result import LEVELS, place_text
from aish.reports.figures import UNKNOWN, cost_text, tokens_figure, took_text, when_text
from aish.reports.gathering import Gathering
from aish.reports.markup import NOTHING, Markup, joined, tag
from aish.reports.units import Segment, Unit
from aish.reports.verdicts import State, state_of

_MOST = 200
_MOST_ANNOTATIONS = 1_000
_CHIPS: dict[str, State] = {
    "ok": "ok",
    "failed": "failed",
    "skipped": "skipped",
    "denied": "denied",
    "budget": "error",
    "interrupted": "cut_off",
}


def head(gathering: Gathering, run: str) -> Markup:
    """Name, status and figures of the run."""
    segments = gathering.segments
    first = segments[0] if segments else None
    end = segments[-1].finished if segments else None
    facts = [run]
    if first is not None:
        facts += [when_text(first.began), f"aish {first.started.aish}"]
    return tag(
        "header",
        tag(
            "h1",
            for_line(first.started.pipeline if first is not None else run),
            " ",
            run_chip(end),
        ),
        tag("p", " · ".join(facts), class_="facts"),
        _exit(end),
        _figures(gathering, end),
        class_="top",
    )


def run_chip(end: RunFinished | None) -> Markup:
    """The status of the run; one without an end may be going on."""
    if end is None:
        return tag("span", "no end", class_="chip cut_off")
    return tag("span", end.status, class_=f"chip {_CHIPS[end.status]}")


def _exit(end: RunFinished | None) -> Markup:
    if end is None:
        said = "The journal has no end: the run was killed, or it still goes on."
        return tag("div", tag("p", said), class_="note quiet")
    code = end.exit
    if not code.code:
        return NOTHING
    retry = "trying again may help" if code.retryable else None
    return tag(
        "div",
        tag("p", tag("strong", f"Exit {code.code} · {code.name}"), " ", retry),
        tag("pre", code.reason, class_="bare") if code.reason else None,
        tag("p", f"hint: {code.hint}", class_="hint") if code.hint else None,
        class_="note bad",
    )


def _figures(gathering: Gathering, end: RunFinished | None) -> Markup:
    usage = Usage() if end is None else end.usage
    shown = [
        ("Duration", took_text(_seconds(gathering.segments)), _parts(gathering.segments)),
        *_spent(usage, None if end is None else end.cost_usd),
        *_work(gathering),
        *_calls(gathering, end),
    ]
    return tag("dl", *starmap(_figure, shown), class_="figures")


def _spent(usage: Usage, cost: float | None) -> Iterator[tuple[str, str, str]]:
    """Tokens and cost; nothing where no model was asked."""
    if usage != Usage() or cost != 0:
        yield "Tokens", *tokens_figure(usage)
        yield "Cost", cost_text(cost), ""


def _figure(name: str, value: str, more: str) -> Markup:
    unknown = "unknown" if value == UNKNOWN else None
    return tag(
        "div",
        tag("dt", name),
        tag("dd", tag("span", value, class_=unknown), tag("small", more) if more else None),
    )


def _seconds(segments: Sequence[Segment]) -> float:
    if len(segments) == 1 and segments[0].finished is not None:
        return segments[0].finished.seconds
    return sum(segment.ended - segment.began for segment in segments)


def _parts(segments: Sequence[Segment]) -> str:
    return f"in {len(segments)} parts" if len(segments) > 1 else ""


def _work(gathering: Gathering) -> Iterator[tuple[str, str, str]]:
    """Steps and items, and how many of them did not go well."""
    parts = gathering.steps.values()
    plain = Counter(state_of(part.unit) for part in parts if part.unit is not None)
    yield "Steps", f"{plain.total():,}", states_text(plain)
    rows = Counter(row.state for part in parts for row in part.rows.values())
    if rows:
        yield "Items", f"{rows.total():,}", states_text(rows)


def states_text(states: Counter[State]) -> str:
    """`3 failed · 1 skipped`; empty where all went well."""
    words = {"cut_off": "cut off"}
    return " · ".join(
        f"{count:,} {words.get(state, state)}" for state, count in states.items() if state != "ok"
    )


def _calls(gathering: Gathering, end: RunFinished | None) -> Iterator[tuple[str, str, str]]:
    count = sum(
        sum(row.calls for row in part.rows.values()) + _own_calls(part.unit)
        for part in gathering.steps.values()
    )
    denied = len(end.denials) if end is not None else 0
    yield "Tool calls", f"{count:,}", f"{denied:,} denied" if denied else ""


def _own_calls(unit: Unit | None) -> int:
    return 0 if unit is None else sum(1 for _ in unit.calls)


def annotations(gathering: Gathering) -> Markup:
    """What the pipeline has to say of files, those that matter most first."""
    found = sorted(gathering.annotations.found, key=lambda one: LEVELS.index(one.level))
    if not found:
        return NOTHING
    rows = [(one.level, place_text(one), one.message) for one in found[:_MOST_ANNOTATIONS]]
    left = len(found) - len(rows) + gathering.annotations.left_out
    more = tag("p", f"… and {left:,} more, left out here", class_="cut") if left else None
    head = ("Level", "Place", "Message")
    return tag("section", tag("h2", "Annotations"), _rows(head, rows), more, id="annotations")


def ingredients(gathering: Gathering) -> Markup:
    """What the run was made of: models, servers, rules, limits, inputs."""
    segments = gathering.segments
    if not segments:
        return NOTHING
    started, end = segments[-1].started, segments[-1].finished
    tables = [
        _table(
            "Models",
            ("Alias", "Model", "Endpoint"),
            [(one.alias, one.model, one.origin) for one in started.models],
        ),
        _servers(started),
        _table("Approval rules", ("List", "Rule"), [(one.list, one.rule) for one in started.rules]),
        _pairs("Inputs", started.inputs),
        _pairs("Limits", started.limits),
        _pairs("This run", _facts(started, end, segments)),
    ]
    return tag(
        "section",
        tag("h2", "What it was made of"),
        tag("div", *tables, class_="parts"),
        _notices(gathering),
        id="made-of",
    )


def _notices(gathering: Gathering) -> Markup:
    if not gathering.notices:
        return NOTHING
    shown = [
        tag("li", tag("code", one.code), " ", for_line(one.text), class_=one.level)
        for one in gathering.notices[:_MOST]
    ]
    return joined([tag("h2", "Notices"), tag("ul", *shown, class_="notices")])


def _servers(started: RunStarted) -> Markup:
    rows = [
        (one.alias, one.transport, one.state, counted(one.tools, "tool"), one.error or "")
        for one in started.servers
    ]
    return _table("Servers", ("Alias", "Transport", "State", "Tools", "Error"), rows)


def _facts(started: RunStarted, end: RunFinished | None, segments: Sequence[Segment]) -> JsonObject:
    facts: dict[str, str | None] = {
        "digest": started.digest,
        "folder": started.folder,
        "shard": None if started.shard is None else json_text(plain(started.shard), spaced=True),
        "applies": started.applies,
        "overrides": ", ".join(started.overrides) or None,
        "cassette": None
        if started.cassette is None
        else f"{started.cassette.path} ({started.cassette.mode})",
        "denied": None if end is None else ", ".join(end.denials) or None,
    }
    for number, segment in enumerate(segments[1:], 2):
        facts[f"part {number}"] = f"resumed {when_text(segment.began)}"
    return {name: value for name, value in facts.items() if value is not None}


def _pairs(title: str, values: JsonObject) -> Markup:
    rows = [
        (name, value if isinstance(value, str) else json_text(value, spaced=True))
        for name, value in values.items()
        if value is not None
    ]
    return _table(title, None, rows)


def _table(title: str, head: Sequence[str] | None, rows: Sequence[Sequence[str]]) -> Markup:
    return tag("div", tag("h3", title), _rows(head, rows)) if rows else NOTHING


def _rows(head: Sequence[str] | None, rows: Sequence[Sequence[str]]) -> Markup:
    cells = (tag("tr", *(tag("td", for_line(cell[:2000])) for cell in row)) for row in rows)
    top = (
        tag("thead", tag("tr", *(tag("th", name, scope="col") for name in head))) if head else None
    )
    return tag("div", tag("table", top, tag("tbody", *cells)), class_="wide")
