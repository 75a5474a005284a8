"""The progress of a `foreach` step: counted from its events, in constant size.

What happens inside an item is counted and not reported one by one: there may be a million of them.
A log has a line at the start, one at intervals, one per failure up to a limit, and the result.
"""

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import field
from itertools import islice

from aish.core.events import (
    ApprovalAnswered,
    ApprovalAsked,
    Event,
    ItemFinished,
    ItemStarted,
    Notice,
    Place,
    Retry,
    StepStarted,
    StepStatus,
)
from aish.core.frozen import frozen, slotted
from aish.core.messages import Usage
from aish.core.phrases import dollars
from aish.output.status import seconds_text, tokens_text

KEPT_CAUSES = 10
LAST_FAILURES = 3
SLOWEST = 3
_SAMPLE_SECONDS = 1.0
_SAMPLES = 30


@frozen
class ItemFailure:
    """An item that failed, and why."""

    key: str
    status: StepStatus
    message: str


@slotted
class Cause:
    """The reason why items failed: the message, the number of items, and two of them."""

    first: str
    last: str
    count: int = 1


@slotted
class Batch:
    """A running `foreach` step; all times are seconds of the same clock.

    `total` is `None` if unknown; `before` items were done by an earlier run.
    """

    step: str
    total: int | None
    began: float
    before: int = 0
    done: int = 0
    ok: int = 0
    skipped: int = 0
    paused: int = 0
    retries: int = 0
    unpriced: int = 0
    cost: float | None = None
    limit: str | None = None
    in_flight: dict[int, tuple[str, float]] = field(default_factory=dict)
    causes: dict[str, Cause] = field(default_factory=dict)
    last_causes: dict[str, Cause] = field(default_factory=dict)
    _tokens: list[int | None] = field(default_factory=lambda: [None, None])
    _samples: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=_SAMPLES))

    @property
    def failed(self) -> int:
        return self.done - self.ok - self.skipped

    @property
    def over(self) -> int:
        """The number of items that ended, in this run or before."""
        return self.before + self.done

    @property
    def usage(self) -> Usage:
        """The tokens of all items that ended, as far as they are known."""
        return Usage(*self._tokens)

    def start(self, event: ItemStarted, now: float) -> None:
        self.in_flight[event.index] = (event.key, now)

    def finish(self, event: ItemFinished, now: float) -> ItemFailure | None:
        """An item has ended; returns the failure to report, if any."""
        self.in_flight.pop(event.index, None)
        if not self._samples or now - self._samples[-1][0] >= _SAMPLE_SECONDS:
            self._samples.append((now, self.done))
        # One that is paused is not over.
        self.done += event.status != "paused"
        for place, count in enumerate((event.usage.input, event.usage.output)):
            if count is not None:
                self._tokens[place] = (self._tokens[place] or 0) + count
        if event.cost_usd is not None:
            self.cost = (self.cost or 0.0) + event.cost_usd
        elif event.usage.input or event.usage.output:
            self.unpriced += 1
        if event.status in {"ok", "skipped", "paused"}:
            self.ok += event.status == "ok"
            self.skipped += event.status == "skipped"
            self.paused += event.status == "paused"
            return None
        message = event.error.message if event.error else event.status
        failure = ItemFailure(event.key, event.status, message)
        self._explain(failure)
        return failure

    def _explain(self, failure: ItemFailure) -> None:
        """Equal failures are grouped; of the others the first and the last few are kept."""
        message = failure.message
        cause = self.causes.get(message) or self.last_causes.get(message)
        if cause is None:
            cause = Cause(failure.key, failure.key)
            if len(self.causes) < KEPT_CAUSES:
                self.causes[message] = cause
        else:
            cause.last = failure.key
            cause.count += 1
        self.last_causes.pop(message, None)
        self.last_causes[message] = cause
        if len(self.last_causes) > LAST_FAILURES:
            del self.last_causes[next(iter(self.last_causes))]

    def rate(self, now: float) -> float | None:
        """Recent items per second; `None` if there are none yet."""
        since, done = self._samples[0] if len(self._samples) > 1 else (self.began, 0)
        seconds = now - since
        return (self.done - done) / seconds if self.done and seconds > 0 else None

    def eta(self, now: float) -> float | None:
        """Estimated seconds until the end."""
        rate = self.rate(now)
        if self.total is None or not rate or self.over >= self.total:
            return None
        return (self.total - self.over) / rate

    def slowest(self, now: float) -> Sequence[tuple[str, float]]:
        """The items that have been in flight longest, with their age."""
        oldest = islice(list(self.in_flight.values()), SLOWEST)
        return [(key, now - since) for key, since in oldest]


def count_text(batch: Batch) -> str:
    """`412/2,000`, or `412` if the total is not known."""
    return f"{batch.over:,}" if batch.total is None else f"{batch.over:,}/{batch.total:,}"


def rate_text(rate: float) -> str:
    """Items per second; per minute or per hour if that is less than one."""
    for seconds, unit in ((1, "s"), (60, "min")):
        if rate * seconds >= 1:
            return f"{rate * seconds:.1f}/{unit}"
    return f"{rate * 3600:.1f}/h"


def eta_text(seconds: float) -> str:
    """A readable estimate: `12 s`, `3 min 20 s`, `2 h 5 min`."""
    whole = max(1, round(seconds))
    minutes, rest = divmod(whole, 60)
    hours, left = divmod(minutes, 60)
    if hours:
        return f"{hours} h {left} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def pace_parts(batch: Batch, now: float) -> list[str]:
    """The rate and the remaining time."""
    rate, eta = batch.rate(now), batch.eta(now)
    parts = [] if rate is None else [rate_text(rate)]
    return parts if eta is None else [*parts, f"ETA {eta_text(eta)}"]


def trouble_parts(batch: Batch) -> list[str]:
    """The items that did not succeed, and the retries, if any."""
    retries = "retry" if batch.retries == 1 else "retries"
    named = (
        (batch.failed, "failed"),
        (batch.paused, "paused"),
        (batch.skipped, "skipped"),
        (batch.retries, retries),
    )
    return [f"{number:,} {name}" for number, name in named if number]


def usage_parts(batch: Batch) -> list[str]:
    """Tokens and cost, if there are any; unknown values are named."""
    tokens = tokens_text(batch.usage)
    if not tokens:
        return []
    if batch.cost is None or (batch.unpriced and not batch.cost):
        return [tokens, "cost unknown"]
    if not batch.cost:
        return [tokens]
    money = dollars(batch.cost)
    return [tokens, f"{money} ({batch.unpriced:,} unpriced)" if batch.unpriced else money]


def summary_parts(batch: Batch, seconds: float) -> list[str]:
    of = "" if batch.total in {None, batch.ok} else f" of {batch.total or 0:,}"
    rate = batch.done / seconds if seconds > 0 else 0.0
    parts = [f"{batch.ok:,}{of} ok", *trouble_parts(batch)]
    if batch.before:
        parts.insert(0, f"{batch.before:,} done before")
    unfinished = (batch.total or batch.over) - batch.over - batch.paused
    if unfinished > 0:
        parts.append(f"{unfinished:,} not run")
    parts.append(seconds_text(seconds))
    if rate:
        parts.append(rate_text(rate))
    return [*parts, *usage_parts(batch)]


TOLD = 3
"""How many notices of one kind are told; the others are counted."""


@slotted
class Batches:
    """The running batches by step, in the order they began."""

    running: dict[str, Batch] = field(default_factory=dict)
    _known: dict[str, tuple[int | None, float, int]] = field(default_factory=dict)
    _notices: Counter[tuple[str, str]] = field(default_factory=Counter)

    def of(self, place: Place) -> Batch | None:
        """The batch that contains this place; sub-steps belong to the batch of their step."""
        if place.item is None or place.step is None:
            return None
        step = place.step
        while (batch := self.running.get(step)) is None:
            step, cut, _ = step.rpartition("/")
            if not cut:
                return None
        return batch

    def step_started(self, event: StepStarted, now: float) -> None:
        """A step begins; whether it has items is known when the first of them begins."""
        if event.place.item is None and event.place.step is not None:
            self._known[event.place.step] = (event.count, now, event.done)

    def take(self, event: Event, now: float) -> tuple[Batch, ItemFailure | None] | None:
        """Count an event of an item or within it; returns its batch, if there is news.

        An item begins the batch of its step, unless it is part of another item.
        """
        batch, step = self.of(event.place), event.place.step or ""
        if batch is None and isinstance(event, ItemStarted):
            total, began, before = self._known.get(step, (None, now, 0))
            batch = self.running[step] = Batch(step, total, began, before)
        if batch is None:
            return None
        if not isinstance(event, ItemStarted | ItemFinished):
            return (batch, None) if self._count(batch, event) else None
        if batch.step != step:
            return None
        if isinstance(event, ItemFinished):
            return batch, batch.finish(event, now)
        batch.start(event, now)
        return batch, None

    def ended(self, step: str | None) -> Batch | None:
        """The batch of a step that has ended, if it was one."""
        self._known.pop(step or "", None)
        return self.running.pop(step or "", None)

    def _count(self, batch: Batch, event: Event) -> bool:
        """Count what happened inside an item; returns whether it needs a line all the same."""
        if isinstance(event, ApprovalAsked | ApprovalAnswered):
            # For each of them a person is asked: there are few.
            return True
        if isinstance(event, Retry):
            batch.retries += 1
        elif isinstance(event, Notice):
            if event.code in {"throttled", "unthrottled"}:
                batch.limit = event.text if event.code == "throttled" else None
            key = (batch.step, event.code)
            self._notices[key] += 1
            return self._notices[key] <= TOLD
        return False

    def untold(self, batch: Batch) -> Iterable[tuple[str, int]]:
        """Each kind of notice that was not reported every time, and how often it was not."""
        for (step, code), count in list(self._notices.items()):
            if step == batch.step:
                del self._notices[step, code]
                if count > TOLD:
                    yield code, count - TOLD


TOLD_FAILURES = 20
_AT_LEAST = 10.0
_AT_MOST = 300.0
_SHARE = 10


@slotted
class ItemLog:
    """Remembers for each running batch when its last line was written."""

    _told: dict[str, tuple[float, int]] = field(default_factory=dict)
    _failures: dict[str, int] = field(default_factory=dict)

    def lines(self, batch: Batch, failure: ItemFailure | None, now: float) -> Iterator[str]:
        if batch.step not in self._told:
            self._told[batch.step] = (now, 0)
            of = "items" if batch.total is None else f"{batch.total:,} items"
            of = "1 item" if batch.total == 1 else of
            before = f", {batch.before:,} done before" if batch.before else ""
            yield f"{batch.step}: {of}{before}"
        if failure is not None:
            count = self._failures[batch.step] = self._failures.get(batch.step, 0) + 1
            if count <= TOLD_FAILURES:
                yield f"{batch.step} {failure.key}: {failure.status}: {failure.message}"
            if count == TOLD_FAILURES:
                yield f"{batch.step}: other failures are counted from here on"
        if self._is_due(batch, now):
            self._told[batch.step] = (now, batch.done)
            share = f" ({100 * batch.over // batch.total} %)" if batch.total else ""
            parts = [f"{count_text(batch)}{share}", *pace_parts(batch, now)]
            parts += [f"{len(batch.in_flight):,} in flight", *trouble_parts(batch)]
            yield f"{batch.step}: {', '.join([*parts, *usage_parts(batch)])}"

    def ended(self, batch: Batch, seconds: float) -> Iterator[str]:
        self._told.pop(batch.step, None)
        more = self._failures.pop(batch.step, 0) - TOLD_FAILURES
        if more > 0:
            yield f"{batch.step}: {more:,} more failed"
        yield f"{batch.step}: {', '.join(summary_parts(batch, seconds))}"

    def _is_due(self, batch: Batch, now: float) -> bool:
        """After ten seconds and a tenth of the items, or of the time if the total is unknown."""
        since, done = self._told.get(batch.step, (batch.began, 0))
        waited = now - since
        if waited < _AT_LEAST or batch.over == batch.total:
            return False
        if batch.total is None:
            return waited >= (now - batch.began) / _SHARE
        return (batch.done - done) * _SHARE >= batch.total or waited >= _AT_MOST
