"""The page: one HTML file that reaches for nothing and runs no script but its own (X3)."""

import base64
import hashlib
from collections import Counter
from collections.abc import Iterator
from importlib import resources

from aish.core.deltas import Usage
from aish.core.events import ItemFinished, StepFinished
from aish.core.text import for_line
from aish.reports.axis import Axis
from aish.reports.conversation import Room, unit_body
from aish.reports.figures import cost_text, tokens_text, took_text
from aish.reports.gathering import Gathering, StepPart
from aish.reports.items import chip, items
from aish.reports.markup import NOTHING, Markup, tag
from aish.reports.overview import annotations, head, ingredients, states_text
from aish.reports.timeline import timeline
from aish.reports.verdicts import state_of

_LONG = 12
_TITLE = 100
_ROOMY = 5_000_000
_NARROW = Room(4_000, 1_000, 40)


def page(gathering: Gathering, run: str) -> Iterator[bytes]:
    """The whole file, piece by piece; `gathering` is finished."""
    style, script = _own("report.css"), _own("report.js")
    segments = gathering.segments
    name = for_line(segments[0].started.pipeline if segments else run)[:_TITLE]
    yield b"<!doctype html>\n"
    yield b'<html lang="en">\n<head>\n<meta charset="utf-8">\n'
    for piece in _head(f"{name} · aish", style, script):
        yield f"{piece}\n".encode()
    yield f"<style>{style}</style>\n</head>\n<body>\n".encode()
    for part in _body(gathering, run):
        yield f"{part}\n".encode()
    yield f"<script>{script}</script>\n</body>\n</html>\n".encode()


def _own(name: str) -> str:
    return resources.files("aish.reports").joinpath(name).read_text("utf-8")


def _head(title: str, style: str, script: str) -> Iterator[Markup]:
    policy = (
        f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}';"
        " base-uri 'none'; form-action 'none'"
    )
    yield tag("meta", http_equiv="Content-Security-Policy", content=policy)
    yield tag("meta", name="viewport", content="width=device-width, initial-scale=1")
    yield tag("meta", name="color-scheme", content="light dark")
    yield tag("meta", name="referrer", content="no-referrer")
    yield tag("title", title)


def _hash(code: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()}"


def _body(gathering: Gathering, run: str) -> Iterator[Markup]:
    parts = list(gathering.steps.values())
    anchors = {part.id: f"step-{n}" for n, part in enumerate(parts, 1)}
    yield tag("a", "Skip to the steps", href="#steps", class_="skip")
    yield head(gathering, run)
    yield Markup("<main>")
    yield annotations(gathering)
    chart = timeline(parts, Axis(gathering.segments), anchors)
    if chart:
        yield tag("section", tag("h2", "Timeline"), chart, id="timeline")
    yield Markup('<section id="steps">')
    yield tag("h2", "Steps")
    spent = 0
    for part in parts:
        room = Room() if spent < _ROOMY else _NARROW
        shown = _step(part, anchors[part.id], gathering.budget.rows, room, few=len(parts) <= _LONG)
        yield shown
        spent += len(shown) if not part.rows else 0
    yield Markup("</section>")
    yield ingredients(gathering)
    yield Markup("</main>")
    yield tag("footer", f"Made by aish from the journal of {run}. It needs no network.")


def _spent(end: StepFinished | ItemFinished) -> Iterator[str]:
    """Tokens and cost of a step; nothing where it asked no model."""
    if end.usage != Usage() or end.cost_usd != 0:
        yield f"{tokens_text(end.usage)} tokens"
        yield f"cost {cost_text(end.cost_usd)}"


def _step(part: StepPart, anchor: str, most: int, room: Room, *, few: bool) -> Markup:
    unit = part.unit
    title = tag("h3", for_line(part.id))
    facts: list[str] = []
    state = None
    if unit is not None:
        state = state_of(unit)
        if unit.kind is not None:
            facts.append(unit.kind)
        end = unit.finished
        if end is not None and end.status != "skipped":
            facts += [took_text(end.seconds)]
            if unit.kind == "prompt":
                facts += _spent(end)
    if part.rows:
        facts.append(_items_text(part))
    summary = tag(
        "summary",
        title,
        chip(state) if state is not None else None,
        tag("span", " · ".join(facts), class_="facts"),
    )
    body = unit_body(unit, room) if unit is not None else NOTHING
    table = items(part, anchor, most) if part.rows else None
    opened = few or bool(part.rows) or state not in {"ok", "skipped"}
    return tag(
        "details",
        summary,
        tag("div", body, table, class_="body"),
        id=anchor,
        class_="step",
        open=opened,
    )


def _items_text(part: StepPart) -> str:
    states = Counter(row.state for row in part.rows.values())
    total = states.total()
    count = part.unit.count if part.unit is not None else None
    of = (
        f"{total:,} of {count:,} items"
        if count is not None and count > total
        else f"{total:,} items"
    )
    told = states_text(states)
    return f"{of}, {told}" if told else of
