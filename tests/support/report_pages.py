"""Runs with items, and what stands in an HTML report of one."""

import base64
import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, Protocol

from scripted_events import START, decided, run_finished, run_started, turn_finished

from aish.core.events import (
    Asked,
    Event,
    Exit,
    Failure,
    ItemFinished,
    ItemStarted,
    Place,
    RunFinished,
    Stamped,
    StepFinished,
    StepStarted,
    ToolFinished,
    ToolStarted,
    TurnStarted,
)
from aish.core.messages import Usage
from aish.core.text import for_terminal
from aish.journal.history import Ended, RunHistory
from aish.reports.html.contents import Gathering, PageBudget
from aish.reports.html.page import page
from aish.reports.live_results import (
    LiveCall,
    LiveCase,
    LiveCell,
    LiveColumn,
    LiveComparison,
    LiveResults,
    LiveRun,
)

RUN = "20261118T120640Z-triage-a1b2"
MARKUP = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'&amp;<!-- \u202egnp\x00"


def timed(*events: Event, start: float = START, after: int = 0) -> list[Stamped]:
    """The events, numbered, a tenth of a second apart."""
    return [Stamped(after + n, start + n / 10, event) for n, event in enumerate(events, 1)]


def item_started(key: str, index: int = 0, step: str = "sort") -> ItemStarted:
    return ItemStarted(Place(step, key), key, index, "ab" * 8)


def item_finished(key: str, index: int = 0, step: str = "sort", **changes: Any) -> ItemFinished:
    given: dict[str, Any] = {
        "status": "ok",
        "text": f"about {key}",
        "output": None,
        "usage": Usage(100, 10),
        "cost_usd": 0.001,
        "seconds": 0.5,
        "error": None,
    }
    return ItemFinished(Place(step, key), key, index, **given | changes)


def item_events(key: str, index: int, failure: Failure | None = None) -> list[Event]:
    """An item with two turns and a tool call."""
    first, second = (Place("sort", key, turn) for turn in (1, 2))
    call = Place("sort", key, 1, "c1")
    asked = Asked("c1", "repo__find", json.dumps({"id": index}))
    text = f"about {key}: " + "words of an answer of some length " * 6
    return [
        item_started(key, index),
        TurnStarted(first, "cloud", 2),
        turn_finished(first, "", finish="tool_calls", calls=(asked,)),
        decided(call, "repo__find", {"id": index}),
        ToolStarted(call, "repo__find"),
        ToolFinished(call, "repo__find", "ok", f"row {index}\n" + "found text " * 40, None, 0.1),
        TurnStarted(second, "cloud", 4),
        turn_finished(second, text),
        item_finished(key, index, text=text, status="failed" if failure else "ok", error=failure),
    ]


def batch_run(count: int, failing: Iterable[int] = (), mark: str = "") -> list[Stamped]:
    """One step over `count` items; `mark` stands in every key."""
    bad = {n: Failure("schema", f"row {n} is not as it should be {mark}") for n in failing}
    events: list[Event] = [
        run_started(pipeline="triage"),
        StepStarted(Place("sort"), "prompt", count),
    ]
    for n in range(count):
        events += item_events(f"row-{n:05d}{mark}", n, bad.get(n))
    status: Any = "failed" if bad else "ok"
    end = Exit(1, "failed", retryable=False, reason="items failed") if bad else None
    events.append(
        StepFinished(Place("sort"), status, None, None, Usage(100 * count, 10 * count), None, 9.0)
    )
    events.append(run_finished(status=status, **({"exit": end} if end else {})))
    return timed(*events)


ANSWERS: dict[str, Any] = {
    "type": "object",
    "properties": {
        "kind": {"$ref": "#/$defs/kind"},
        "urgent": {"type": "boolean"},
        "score": {"type": "number"},
        "note": {"type": "string"},
        "tags": {"type": "array"},
        "extra": {"type": "object"},
    },
    "$defs": {"kind": {"enum": ["defect", "praise", "question"]}},
}


def valued_item(n: int, mark: str = "", **changes: Any) -> ItemFinished:
    """An answer with a value for each property of its schema."""
    kind = {2: "question", 4: "praise"}.get(n, "defect")
    output = {"kind": kind, "urgent": n % 2 == 1, "score": n + 1, "tags": ["a", 1], **changes}
    output["note"] = f"about {n} {mark}"
    used: dict[str, Any] = {
        "seconds": n + 1.0,
        "cost_usd": (n + 1) / 1000,
        "usage": Usage(100 * n, 10),
    }
    return item_finished(f"k{n}", n, text=None, output=output, **used)


def valued_run(count: int, mark: str = "", again: Iterable[Event] = ()) -> list[Stamped]:
    """A step with a schema over rows of a table; the fourth item fails."""
    failure = Failure("schema", f"row 3 is not as it should be {mark}")
    events: list[Event] = [
        run_started(resume_command="aish run p.yaml --resume"),
        StepStarted(Place("sort"), "prompt", count, schema=ANSWERS),
    ]
    for n in range(count):
        value = {"city": "Ulm" if n % 2 == 0 else "Rom", "note": mark or "-"}
        events.append(ItemStarted(Place("sort", f"k{n}"), f"k{n}", n, "ab" * 8, value))
        bad = item_finished("k3", 3, status="failed", text=None, error=failure)
        events.append(bad if n == 3 else valued_item(n, mark))
    return timed(*events, *again, run_finished())


def two_parts() -> list[Stamped]:
    """A run that was killed, and gone on with an hour later."""
    failed = Failure("unavailable", "nobody answered")
    first = timed(
        run_started(),
        StepStarted(Place("sort"), "prompt", 3),
        item_started("a", 0),
        item_finished("a", 0),
        item_started("b", 1),
        item_finished("b", 1, status="failed", text=None, error=failed),
        item_started("c", 2),
    )
    second = timed(
        run_started(resumed_from=RUN),
        StepStarted(Place("sort"), "prompt", 3),
        item_started("b", 1),
        item_finished("b", 1, text="b at last"),
        item_started("c", 2),
        item_finished("c", 2),
        StepFinished(Place("sort"), "ok", None, None, Usage(), None, 1.0),
        run_finished(),
        start=START + 3600,
        after=len(first),
    )
    return [*first, *second]


@dataclass
class Page(HTMLParser):
    """An HTML file taken apart by a parser that is not ours."""

    text: str
    tags: list[tuple[str, dict[str, str | None]]] = field(default_factory=list)
    scripts: list[tuple[dict[str, str | None], str]] = field(default_factory=list)
    styles: list[str] = field(default_factory=list)
    words: list[str] = field(default_factory=list)
    _inside: str = ""

    def __post_init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.feed(self.text)
        self.close()

    def handle_starttag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._inside = tag

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside == "script":
            self.scripts.append((self.tags[-1][1], data))
        elif self._inside == "style":
            self.styles.append(data)
        else:
            self.words.append(data)

    def handle_comment(self, data: str) -> None:
        raise AssertionError(f"a comment: {data[:50]}")

    @property
    def shown(self) -> str:
        """What a reader without scripts sees."""
        return re.sub(r"\s+", " ", " ".join(self.words))

    @property
    def policy(self) -> str:
        """The content security policy."""
        found = [a for tag, a in self.tags if tag == "meta" and "http-equiv" in a]
        assert len(found) == 1
        return found[0]["content"] or ""

    @property
    def code(self) -> str:
        """The one script that runs."""
        (code,) = [text for attributes, text in self.scripts if "type" not in attributes]
        return code

    @property
    def rows(self) -> list[list[Any]]:
        """The data of the tables of items."""
        kind = "application/json"
        tables = [json.loads(text) for given, text in self.scripts if given.get("type") == kind]
        return [row for table in tables for row in table]

    @property
    def bodies(self) -> list["Page"]:
        """The blocks of bodies, each taken apart too."""
        return [Page(text) for given, text in self.scripts if given.get("type") == "text/html"]


class Report(Protocol):
    def take(self, stamped: Stamped, ended: Iterable[Ended]) -> None: ...
    def add(self, ended: Iterable[Ended]) -> None: ...


def feed(report: Report, history: RunHistory, events: Iterable[Stamped]) -> None:
    """Hand a report the events of a run, and what ended with each."""
    for stamped in events:
        report.take(stamped, history.take(stamped))
    report.add(history.rest())


def page_of(events: Iterable[Stamped], budget: PageBudget | None = None) -> Page:
    """The HTML report of a run."""
    history = RunHistory()
    gathering = Gathering(history, budget)
    feed(gathering, history, events)
    return Page(b"".join(page(gathering, RUN)).decode())


def sha256(code: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()}'"


def own_file(name: str) -> str:
    return (Path(__file__).parents[2] / "aish" / "reports" / "html" / name).read_text()


def without_end(events: Sequence[Stamped]) -> list[Stamped]:
    """The same run, killed before its end."""
    return [one for one in events if not isinstance(one.event, (RunFinished, StepFinished))]


OURS = {
    "a", "b", "body", "code", "dd", "del", "details", "div", "dl", "dt", "footer", "h1", "h2", "h3",
    "h4", "head", "header", "html", "i", "ins", "li", "main", "meta", "ol", "p", "pre", "rect",
    "script", "section", "small", "span", "strong", "style", "summary", "svg", "table", "tbody",
    "td", "th", "thead", "title", "tr", "ul",
}  # fmt: skip


def check_harmless(page: Page) -> None:
    """Nothing in it is anybody's but ours, runs, or reaches out."""
    assert {tag for tag, _ in page.tags} <= OURS
    for _, attributes in page.tags:
        assert not [
            name for name in attributes if name.startswith("on") or name in {"style", "src"}
        ]
        assert (attributes.get("href") or "#").startswith("#")
    for body in page.bodies:
        assert not body.scripts
        check_harmless(body)
    assert for_terminal(page.text) == page.text


def live_results() -> LiveResults:
    """Three cases on a model, four runs each, against a baseline: one worse, one flaky."""

    def run(verdict: Any, answer: str) -> LiveRun:
        call = LiveCall("repo__find", "exit 1", 0.2)
        reasons = () if verdict == "passed" else ("contains: yes",)
        return LiveRun(
            verdict, reasons=reasons, seconds=1.5, cost_usd=0.01, answer=answer, calls=(call,)
        )

    yes, no = run("passed", "It is\nyes"), run("failed", "It is\nno, not at all")
    cells = {
        "good": LiveCell("cloud", "passed", (yes,) * 4, interval=(0.51, 1.0)),
        "flaky": LiveCell("cloud", "failed", (yes, no, yes, no), interval=(0.15, 0.85)),
        "worse": LiveCell(
            "cloud",
            "failed",
            (yes, no, no, no),
            interval=(0.05, 0.7),
            change="worse",
            before=(8, 8),
        ),
    }
    sentence = "worse: 80% → 60% (-20 points, -30 to -10)"
    comparison = LiveComparison("base.json", "worse", sentence, before=0.8, now=0.6)
    column = LiveColumn(
        "cloud", 0.6, (0.41, 0.77), ((1, 0.6), (4, 0.3)), None, 1.5, comparison=comparison,
        served=("gpt-4o-2024-11-20",),
    )  # fmt: skip
    return LiveResults(
        (column,),
        tuple(
            LiveCase(
                f"p.yaml: {name}",
                "p.yaml",
                name,
                (cell,),
                {"question": "What is it?"},
                expected=("contains: yes",),
            )
            for name, cell in cells.items()
        ),
        exit=1,
        repeat=4,
        seed=7,
    )
