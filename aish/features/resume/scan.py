"""Folds a journal into the state of a resumed run (B3): calls, owners of events, usage."""

from calendar import timegm
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import field, replace
from sys import intern
from time import strptime
from typing import Any

from aish.agent.dispatch import CALL_LOST
from aish.agent.restore import (
    HISTORY_REPLACED,
    RESUMABLE,
    TAKEN_OVER,
    TURN_ADDED,
    RecordedTurns,
    TurnsLostError,
)
from aish.agent.runtime import UsedCall
from aish.agent.turn_json import ReadFile, structured_from_event
from aish.core.errors import ExitCode
from aish.core.events import REFUSED, CallCounts
from aish.core.frozen import frozen, slotted
from aish.core.json import JsonObject, JsonValue, json_text
from aish.core.messages import Spent, Usage
from aish.core.tools import NOT_MADE_KINDS
from aish.engine.limits import scopes
from aish.engine.records import STOPPED, StepRecord
from aish.engine.resume_state import DoneItem, DoneItems
from aish.engine.steps.context import CALLS_UNTRACKED, ITEM_UNFINISHED
from aish.journal.questions import Question, Questions
from aish.journal.reader import event_of
from aish.journal.writer import JournalError
from aish.policy.questions import PastQuestion, QuestionEnd

Repeatable = Callable[[str], bool]
"""Whether a tool, `alias__name`, may be called again without asking anybody."""

CONTEXT_FILES = "context.files"
MEDIA_KEPT = "media_kept"
"""The code of a notice: the result of a call has more than its text, in a file."""
# Kinds of results that are the end of their call, whatever it led to.
_RESULTS = frozenset({"ok", "handler_error", "rpc_error"})

_Key = tuple[Any, ...]


@slotted
class Call:
    """A call; `began` is when it was sent to its server, if it was; `is_lost`: no answer came."""

    tool: str
    arguments: JsonValue = None
    verdict: Any = None
    rule: str = ""
    began: str | None = None
    finished: JsonObject | None = None
    is_lost: bool = False

    @property
    def unknown(self) -> bool:
        """Whether it may have been made, with an unknown outcome."""
        if self.began is None:
            return False
        return self.is_lost or self.finished is None or self.finished.get("kind") == "unknown"

    @property
    def was_made(self) -> bool:
        """Whether it may have taken effect, as nothing says that it was not made."""
        if self.began is None or self.finished is None or self.is_lost:
            return self.began is not None
        return self.finished.get("kind") not in NOT_MADE_KINDS


class Calls:
    """The calls of one attempt at a step or item.

    `whole` keeps repeatable ones too: a later step may read them.
    """

    def __init__(self, repeatable: Repeatable, read_file: ReadFile, *, whole: bool) -> None:
        self._repeatable = repeatable
        self._read_file = read_file
        self._whole = whole
        self._calls: dict[_Key, Call] = {}
        self._replaced: dict[_Key, Call] = {}
        self.has_media = False
        self._asked: dict[_Key, JsonValue] = {}

    def emptied(self) -> "Calls":
        """Those of another attempt at the same step or item: none so far."""
        return Calls(self._repeatable, self._read_file, whole=self._whole)

    def asked(self, turn: JsonObject) -> None:
        """`turn.finished`: calls requested by a model, in its order."""
        calls: Any = turn.get("calls") or ()
        for call in calls if self._whole else ():
            self._asked[_place_of({**turn, "call": call.get("id")})] = call.get("arguments")

    def decided(self, record: JsonObject) -> None:
        """`tool.decided`."""
        tool = str(record.get("tool"))
        if self._whole or not self._repeatable(tool):
            key = _place_of(record)
            before = self._calls.get(key)
            if before is not None and before.unknown:
                # Until the call is really made again.
                self._replaced[key] = before
            call = self._calls[key] = Call(tool)
            call.arguments = record.get("arguments")
            call.verdict, call.rule = record.get("verdict"), str(record.get("rule"))

    def started(self, record: JsonObject) -> None:
        """`tool.started`."""
        call = self._of(record)
        if call is not None:
            call.began = str(record.get("time"))
            self._replaced.pop(_place_of(record), None)

    def lost(self, record: JsonObject) -> None:
        """The notice that no answer came to a call."""
        call = self._of(record)
        if call is not None:
            call.is_lost = True

    def finished(self, record: JsonObject) -> None:
        """`tool.finished`."""
        call = self._of(record)
        if call is not None:
            call.finished = record

    def made(self) -> Iterator[Call]:
        """Those that may have taken effect, and may not be repeated without consent."""
        for call in (*self._replaced.values(), *self._calls.values()):
            if call.was_made and not self._repeatable(call.tool):
                yield call

    def first_made(self) -> UsedCall | None:
        """The first of these."""
        call = next(self.made(), None)
        return (
            None if call is None else self._used(call, call.finished or {"kind": "unknown"}, None)
        )

    def __bool__(self) -> bool:
        return bool(self._calls)

    def result(self) -> UsedCall | None:
        """The result of a step's only call, if it came to its end and all of it is known."""
        call = next(iter(self._calls.values()), None)
        if call is None or call.began is None or call.finished is None or self.has_media:
            return None
        used = self._used(call, call.finished, None)
        if used.full is not None:
            data = self._read_file(used.full)
            if data is None:
                return None
            used = replace(used, whole=data.decode("utf-8", "replace"))
        told = (used.whole, json_text(used.structured), json_text(call.finished))
        is_lost = call.finished.get("structured_in") is not None and used.structured is None
        return None if used.kind not in _RESULTS or is_lost or tags(told) else used

    def used(self, output: JsonValue) -> tuple[UsedCall, ...]:
        """The ended calls, in the order of the requests; `output` is that of the step or item."""
        return tuple(used for _, _, used in self.used_by_turn(output))

    def used_by_turn(self, output: JsonValue = None) -> Iterator[tuple[Any, Any, UsedCall]]:
        """The same with the turn and the id of each."""
        order = {key: place for place, key in enumerate(self._asked)}
        for key in sorted(self._calls, key=lambda one: order.get(one, -1)):
            call = self._calls[key]
            if call.finished is not None:
                yield *key[2:], self._used(call, call.finished, output)

    def _used(self, call: Call, finished: Any, output: JsonValue) -> UsedCall:
        content = str(finished.get("content") or "")
        full = finished.get("full")
        return UsedCall(
            tool=call.tool,
            arguments=call.arguments,
            verdict=call.verdict,
            rule=call.rule,
            kind=finished.get("kind"),
            content=content,
            structured=structured_from_event(finished, output, self._read_file),
            seconds=float(finished.get("seconds") or 0.0),
            full=None if full is None else str(full),
            whole=content,
            exit_code=finished.get("exit_code"),
            repeatable=call.began is None or self._repeatable(call.tool),
        )

    def _of(self, record: JsonObject) -> Call | None:
        key = _place_of(record)
        call = self._calls.get(key)
        if call is None:
            tool = str(record.get("tool"))
            if not self._whole and self._repeatable(tool):
                return None
            # Refused before any rule was evaluated: only the model's text is known.
            call = self._calls[key] = Call(tool, self._asked.get(key))
        return call


Unit = tuple[Any, Any]
"""The step, and the item if it is one."""


def owners(step: Any, item: Any) -> Iterator[Unit]:
    """A unit, and each that may contain it, innermost first.

    A step of a sub-pipeline is `outer/inner`; if that runs for an item, its own items have the
    outer item's key before theirs.
    """
    yield step, item
    while isinstance(step, str) and "/" in step:
        step = step.rpartition("/")[0]
        if item is None:
            yield step, None
        else:
            yield from ((step, key) for key in _keys(item))


def _keys(item: str) -> Iterator[str]:
    """The key, and its prefixes that may be outer keys: keys contain slashes too."""
    yield item
    while "/" in item:
        item = item.rpartition("/")[0]
        yield item


@slotted
class _Sum:
    turns: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    cost_usd: float | None = 0.0
    tool_calls: int = 0
    known_usd: float = 0.0

    def answer(self, usage: Usage, cost_usd: float | None, turns: int = 1) -> None:
        self.turns += turns
        self.tokens_in += usage.input or 0
        self.tokens_out += usage.output or 0
        self.known_usd += cost_usd or 0.0
        if self.cost_usd is not None:
            # If the cost of one answer is unknown, so is the sum (B8).
            self.cost_usd = None if cost_usd is None else self.cost_usd + cost_usd

    def spent(self, seconds: float) -> Spent:
        return Spent(
            turns=self.turns,
            usage=Usage(self.tokens_in, self.tokens_out) if self.turns else None,
            cost_usd=self.cost_usd,
            tool_calls=self.tool_calls,
            seconds=seconds,
            known_usd=self.known_usd,
        )


class Spending:
    """Counts the usage of each turn and call, for the run and for each step."""

    def __init__(self) -> None:
        self.calls = CallCounts()
        self._whole = _Sum()
        self._steps: dict[str, _Sum] = {}
        self._began: str | None = None
        self._before = ""
        self._last = ""
        self._seconds = 0.0

    def now(self, time: str) -> None:
        """The time of the current record."""
        self._before, self._last = self._last, time

    def begin(self) -> None:
        """A part of the run begins: the time between two parts does not count."""
        self._seconds += self._until(self._before)
        self._began = self._last

    def answer(self, step: str, usage: Usage, cost_usd: float | None) -> None:
        """A model has answered."""
        for total in (self._whole, *map(self._of, scopes(step))):
            total.answer(usage, cost_usd)

    def call(self, step: str) -> None:
        """A tool was called."""
        for total in (self._whole, *map(self._of, scopes(step))):
            total.tool_calls += 1

    def call_ended(self, record: JsonObject) -> None:
        """A call has a result."""
        self.calls = self.calls.plus(str(record.get("kind")), record.get("exit_code"))

    def elsewhere(self, turns: int, tool_calls: int, usage: Usage, cost_usd: float | None) -> None:
        """Usage of a nested run, which counts for the whole."""
        self._whole.answer(usage, cost_usd, turns)
        self._whole.tool_calls += tool_calls

    def spent(self) -> Spent:
        """The total."""
        return self._whole.spent(self._seconds + self._until(self._last))

    def by_step(self) -> dict[str, Spent]:
        """The same for each step, without durations."""
        return {step: total.spent(0.0) for step, total in self._steps.items()}

    def _of(self, step: str) -> _Sum:
        total = self._steps.get(step)
        if total is None:
            total = self._steps[step] = _Sum()
        return total

    def _until(self, time: str) -> float:
        return 0.0 if self._began is None else max(0.0, seconds(time) - seconds(self._began))


def seconds(time: str) -> float:
    """A time of a record, in seconds since the epoch."""
    whole, _, part = time.rstrip("Z").partition(".")
    return timegm(strptime(whole, "%Y-%m-%dT%H:%M:%S")) + float(f"0.{part or 0}")


# Statuses of units that ended by themselves, with a result.
_WELL = frozenset({"ok", "skipped"})
_BADLY = frozenset({"failed", "denied"})
# Error codes of interrupted units.
_CUT_OFF = frozenset({"interrupted", "time", "run_ended"})


_ANSWER = frozenset({"answer", RESUMABLE})
"""The purposes of records that belong to the conversation itself."""


@slotted
class Talk:
    """The conversation of a unit in one attempt, for a later part to go on with (A10).

    `answers` are the records of the models' answers, among all `records`. `corrections` counts the
    user turns after the first answer, `files` names the file with what it has of `context.files`.
    """

    records: list[JsonObject] = field(default_factory=list)
    answers: list[JsonObject] = field(default_factory=list)
    corrections: int = 0
    attempt: int = 1
    files: str | None = None
    _found: tuple[int, RecordedTurns | None] = (-1, None)

    def add(self, record: Any) -> None:
        """A record of the conversation."""
        kind = record["type"]
        if record.get("purpose", "answer") not in _ANSWER:
            return
        self.records.append(record)
        if kind == "turn.finished":
            self.answers.append(record)
        elif kind == TURN_ADDED:
            self.corrections += record["added"].get("role") == "user" and bool(self.answers)

    def turns(self, read_file: ReadFile) -> RecordedTurns | None:
        """All of its turns; `None` if one of them is lost."""
        if self._found[0] != len(self.records):
            self._found = len(self.records), self._recorded(read_file)
        return self._found[1]

    def _recorded(self, read_file: ReadFile) -> RecordedTurns | None:
        try:
            found = RecordedTurns(self.records, read_file)
            told = json_text((*found.unfinished, *self.records))
        except (TurnsLostError, LookupError, ValueError):
            return None
        kept = (one for one in self.records if one["type"] in {TURN_ADDED, HISTORY_REPLACED})
        is_whole = all(one.get("purpose", RESUMABLE) == RESUMABLE for one in kept)
        return found if is_whole or not tags([told]) else None


@slotted
class Open:
    """An attempt at a step or an item that is not known to be completed.

    `begun` numbers its first record. `ended` is the record of its end, if it has one: it is run
    again anyway. `talk` is the conversation of a prompt; `before` is the attempt before it. `parts`
    is what an item has done that is a pipeline. `changed`: the step is gone or of another kind.
    """

    calls: Calls
    read_file: ReadFile
    begun: int
    step: str
    kind: str
    retries: bool
    item: str | None = None
    index: int = 0
    digest: str = ""
    denials: tuple[str, ...] = ()
    ended: JsonObject | None = None
    talk: Talk | None = None
    spent: _Sum = field(default_factory=_Sum)
    before: "Open | None" = None
    parts: "Scan | None" = None
    changed: bool = False

    def attempts(self) -> Iterator["Open"]:
        """This one and all before it."""
        one: Open | None = self
        while one is not None:
            yield one
            one = one.before

    @property
    def latest(self) -> "Open":
        """The last attempt that has done anything, if one has; else this one."""
        if self.parts is not None:
            return self
        begun = (one for one in self.attempts() if one.calls or (one.talk and one.talk.records))
        return next(begun, self)

    @property
    def goes_on(self) -> bool:
        """Whether it goes on where it was: it has waited, or was interrupted.

        So does one that is tried again as it `failed`, if that was a request, not an answer.
        """
        if self.changed:
            return False
        if self.ended is not None and self.ended.get("status") != "paused":
            error: Any = self.ended.get("error") or {}
            if error.get("code") not in _CUT_OFF:
                retried = self.retries and self.ended.get("status") == "failed"
                return retried and self.turns is not None and self.turns.awaits_answer
        if self.parts is not None:
            return True
        if self.talk is None:
            return self.result is not None
        return bool(self.talk.answers) and self.turns is not None

    @property
    def turns(self) -> RecordedTurns | None:
        """Its conversation, if it has one and no turn of it is lost."""
        return None if self.talk is None else self.talk.turns(self.read_file)

    @property
    def result(self) -> UsedCall | None:
        """The result of a step's only call, if all of it is known."""
        return self.calls.result() if self.has_one_call else None

    @property
    def has_one_call(self) -> bool:
        """Whether it is a call and nothing else."""
        return self.kind in {"call", "run"}

    @property
    def cut_off(self) -> bool:
        """Whether it was interrupted, or has no end."""
        if self.ended is None or self.ended.get("status") == "budget":
            return True
        error: Any = self.ended.get("error") or {}
        return error.get("code") in _CUT_OFF


@frozen
class Rules:
    """Settings of the pipeline and the command line for resuming.

    `kind` is that of a step now; `needed` says of it whether a later one reads the results of its
    items, `tolerant` whether it accepts a denied call; `mask` masks a key as the journal does.
    """

    repeatable: Callable[[str], Repeatable]
    kind: Callable[[str], str | None]
    needed: Callable[[str], bool]
    tolerant: Callable[[str], bool]
    retry_failed: bool = False
    mask: Callable[[str], str] = str


class Scan:
    """The state after the records so far; `read_file` reads files of the run's folder."""

    def __init__(self, rules: Rules, read_file: ReadFile = lambda _: None) -> None:
        self._rules = rules
        self._read_file = read_file
        self._open: dict[Unit, Open] = {}
        self._kinds: dict[str, Any] = {}
        self._on_workers: set[Any] = set()
        self._has_parts = False
        self._failed: dict[Unit, Open] = {}
        self._untracked: dict[Unit, set[int]] = {}
        self.steps: dict[str, StepRecord] = {}
        self.begun: dict[str, int] = {}
        self.items: dict[str, DoneItems] = {}
        self.talks: dict[str, Talk] = {}
        """The conversation of each step that is completed."""
        self.context_tag: str | None = None
        self.context_states: dict[str, str] = {}
        """The file with what the conversation of a step has of its files."""
        self.spending = Spending()
        self.denials: Counter[str] = Counter()
        self._questions = Questions()
        self._approved: dict[tuple[Any, ...], str] = {}
        self._spent: set[str] = set()
        self.started: JsonObject | None = None
        self.finished: JsonObject | None = None
        self.segments = 0
        self.last_seq = 0
        self.part_seq = 0
        self._take: Mapping[str, Callable[[JsonObject], None]] = {
            "run.started": self._run_started,
            "run.finished": self._run_finished,
            "step.started": self._step_started,
            "step.finished": self._step_finished,
            "item.started": self._item_started,
            "item.finished": self._item_finished,
            "item.moved": self._item_moved,
            "notice": self._noticed,
            "retry": self._retried,
            "turn.started": self._talked,
            "turn.finished": self._turn_finished,
            "approval.asked": self._question,
            "approval.answered": self._question,
            TURN_ADDED: self._talked,
            HISTORY_REPLACED: self._talked,
            CONTEXT_FILES: self._files_shown,
            "tool.decided": self._tool_decided,
            "tool.started": self._tool_started,
            "tool.finished": self._tool_finished,
        }

    def take(self, record: Any) -> None:
        """Process a record of the journal."""
        self.last_seq = record["seq"]
        if record["type"] != "approval.answered":
            # It may be appended long after the end: the time between two parts does not count.
            self.spending.now(record["time"])
        take = self._take.get(record["type"])
        if take is None:
            return
        if self._has_parts:
            self._hand_down(record)
        take(record)

    def left(self) -> Iterator[tuple[Open, Call, bool]]:
        """The calls of units that are run again, each with its owner.

        With them stands whether the owner goes on with their results.
        """
        for unit in self._open.values():
            latest = unit.latest
            for one in unit.attempts():
                goes_on = one is latest and one.goes_on
                if goes_on and one.parts is not None:
                    for part, call, part_goes_on in one.parts.left():
                        yield replace(part, item=within(one.item, part.item)), call, part_goes_on
                    continue
                for call in one.calls.made():
                    yield one, call, goes_on

    @property
    def untracked(self) -> Iterable[Unit]:
        """Items that have not come back from workers: nobody knows which calls they made."""
        return self._untracked

    def _run_started(self, record: JsonObject) -> None:
        self.segments += 1
        self.part_seq = self.last_seq
        self.started, self.finished = record, None
        self._on_workers.clear()
        self.spending.begin()

    def _run_finished(self, record: JsonObject) -> None:
        self.finished = record

    def _step_started(self, record: Any) -> None:
        step, item = record.get("step"), record.get("item")
        self._kinds[step] = record.get("kind")
        if self._is_part(step, item):
            return
        self._begin(self._attempt(step, item, whole=True))
        self.steps.pop(step, None)
        self.begun.pop(step, None)
        self.talks.pop(step, None)

    def _step_finished(self, record: Any) -> None:
        step, item, status = record.get("step"), record.get("item"), record.get("status")
        unit = self._open.get((step, item))
        if unit is None or status == "skipped":
            # Not begun in this part of the run: what it did before stays known.
            return
        unit.ended = record
        if item is None and step in self.items:
            self.items[step].stopped = _code_of(record) in STOPPED
        if not self._went_well(step, status):
            return
        del self._open[step, item]
        if item is None:
            self.denials.update(unit.denials)
            self.steps[step] = self._record(unit, record)
            self.begun[step] = unit.begun
            if unit.talk is not None:
                self.talks[step] = unit.talk

    def _item_started(self, record: Any) -> None:
        step, key = record.get("step"), record.get("item")
        if step in self._on_workers:
            self._untracked.setdefault((step, key), set()).add(self.segments)
        if self._is_part(step, key):
            return
        done = self.items.get(step)
        if done is not None:
            # Retried: the previous attempt no longer counts.
            done.remove(key)
            done.stopped = None
        unit = self._attempt(step, key, whole=self._rules.needed(step))
        unit.index, unit.digest = record.get("index"), str(record.get("digest"))
        if unit.kind == "pipeline":
            self._has_parts = True
            unit.parts = Scan(self._rules, self._read_file)
        self._begin(unit)

    def _item_finished(self, record: Any) -> None:
        step, key, status = record.get("step"), record.get("item"), record.get("status")
        self._came_back(step, key)
        unit = self._open.get((step, key))
        if unit is None:
            return
        unit.ended = record
        well = self._went_well(step, status)
        if not well and (status not in _BADLY or self._rules.retry_failed):
            return
        del self._open[step, key]
        self._untracked.pop((step, key), None)
        if not well and any(call for one in unit.attempts() for call in one.calls.made()):
            self._failed[step, key] = unit
        self.denials.update(unit.denials)
        done = self.items.get(step)
        if done is None:
            done = self.items[step] = DoneItems(
                self._rules.mask, tolerant=self._rules.tolerant(step)
            )
        record_of = self._record(unit, record) if self._rules.needed(step) else None
        asks = self._kinds.get(step) in {"prompt", "pipeline"}
        done.add(
            DoneItem(
                key,
                unit.index,
                unit.digest,
                status,
                record_of,
                _code_of(record),
                ExitCode.OK if well else _exit_code_of(record),
            ),
            _usage(record) if asks and not _spent_nothing(record) else None,
            record.get("cost_usd") if asks else 0.0,
            float(record.get("seconds") or 0.0),
            (unit.begun, self.last_seq),
        )

    def _item_moved(self, record: Any) -> None:
        if (done := self.items.get(record.get("step"))) is not None:
            done.move(record.get("item"), record.get("index"), self.last_seq)

    def _noticed(self, record: JsonObject) -> None:
        step, code = record.get("step"), record.get("code")
        if code == TAKEN_OVER:
            self._take_over(step, record.get("item"), record)
        elif code in {MEDIA_KEPT, CALL_LOST} and (unit := self._unit(record)) is not None:
            if code == CALL_LOST:
                unit.calls.lost(record)
            else:
                unit.calls.has_media = True
        elif code == CALLS_UNTRACKED:
            self._on_workers.add(step)
        elif code == ITEM_UNFINISHED:
            self._came_back(step, record.get("item"))

    def _came_back(self, step: Any, item: Any) -> None:
        """An item has come back from a worker with the calls that it has made in this part."""
        parts = self._untracked.get((step, item))
        if parts is not None:
            parts.discard(self.segments)
            if not parts:
                del self._untracked[step, item]

    def _retried(self, record: JsonObject) -> None:
        # A request that is sent again has its turn; this is a step or an item that begins anew.
        if record.get("turn") is None:
            key = record.get("step"), record.get("item")
            unit = self._open.get(key)
            if unit is not None:
                unit.ended = record
                self._open[key] = replace(
                    unit,
                    calls=unit.calls.emptied(),
                    ended=None,
                    talk=None if unit.talk is None else Talk(attempt=unit.talk.attempt + 1),
                    before=unit,
                    parts=None if unit.parts is None else Scan(self._rules, self._read_file),
                )

    def _talked(self, record: Any) -> None:
        unit = self._open.get((record.get("step"), record.get("item")))
        if unit is not None and unit.talk is not None:
            unit.talk.add(record)

    def _take_over(self, step: Any, item: Any, record: JsonObject) -> None:
        unit = self._open.get((step, item))
        if unit is not None and unit.before is not None:
            before = unit.before.latest
            before.begun, before.index, before.digest = unit.begun, unit.index, unit.digest
            before.ended = None
            self._open[step, item] = before
            self._talked(record)

    @property
    def questions(self) -> tuple[PastQuestion, ...]:
        """The questions so far, each with the first answer that it got.

        Without those whose answer a call has used: it allows no other call (P6).
        """
        unspent = (one for one in self._questions.all(0.0) if one.id not in self._spent)
        return tuple(map(_past_question, unspent))

    def _question(self, record: JsonObject) -> None:
        try:
            stamped = event_of(record)
        except ValueError as error:
            said = f"a record of type {record.get('type')!r} is not a valid event: {error}"
            raise JournalError(said, where=f"record {record.get('seq')}") from error
        if stamped is not None:
            self._questions.take(stamped)

    def unfinished(self) -> Iterator[Open]:
        """The units that go on, within their conversations or with their `parts`."""
        for unit in self._open.values():
            if unit.latest.goes_on:
                yield unit.latest

    def _hand_down(self, record: Any) -> None:
        """Tell the item that a record is of, if it is kept what that has done."""
        step, item = record.get("step"), record.get("item")
        if item is None or "/" not in step:
            return
        found = [
            unit
            for key in owners(step, item)
            if key[0] != step and (unit := self._open.get(key)) is not None
            if unit.parts is not None
        ]
        if len(found) > 1:
            # `a/b` may be an item of `a`, or the item `a/b` itself: neither goes on.
            for unit in found:
                unit.parts = None
        for unit in found:
            if unit.parts is not None:
                rest = item.removeprefix(str(unit.item)).removeprefix("/") or None
                unit.parts.take({**record, "item": rest})

    def _files_shown(self, record: Any) -> None:
        self.context_tag = str(record.get("tag"))
        if record.get("state") is None:
            return
        unit = self._open.get((record.get("step"), record.get("item")))
        if unit is not None and unit.talk is not None:
            unit.talk.files = str(record.get("state"))
        if record.get("item") is None:
            self.context_states[record.get("step")] = str(record.get("state"))

    def _turn_finished(self, record: Any) -> None:
        self.spending.answer(str(record.get("step")), _usage(record), record.get("cost_usd"))
        unit = self._unit(record)
        if unit is not None:
            unit.calls.asked(record)
            unit.spent.answer(_usage(record), record.get("cost_usd"))
        self._talked(record)

    def _tool_decided(self, record: JsonObject) -> None:
        unit = self._unit(record)
        if unit is not None:
            unit.calls.decided(record)
            if record.get("verdict") in REFUSED:
                unit.denials += (intern(str(record.get("tool"))),)
        approval = record.get("approval")
        if approval is not None:
            self._approved[_place_of(record)] = str(approval)

    def _tool_started(self, record: JsonObject) -> None:
        approval = self._approved.pop(_place_of(record), None)
        if approval is not None:
            self._spent.add(approval)
        self.spending.call(str(record.get("step")))
        unit = self._unit(record)
        if unit is not None:
            unit.calls.started(record)

    def _tool_finished(self, record: JsonObject) -> None:
        self.spending.call_ended(record)
        unit = self._unit(record)
        if unit is not None:
            unit.calls.finished(record)
        self._talked(record)

    def _went_well(self, step: str, status: object) -> bool:
        return status in _WELL or (status == "denied" and self._rules.tolerant(step))

    def _begin(self, unit: Open) -> None:
        key = unit.step, unit.item
        before = unit.before = self._open.get(key) or self._failed.pop(key, None)
        if before is not None and before.parts is not None and before.goes_on:
            # Taken over as a whole, with the first record of the item.
            unit.parts, unit.calls, unit.before = before.parts, before.calls, before.before
            unit.denials, unit.spent = before.denials, before.spent
        self._open[unit.step, unit.item] = unit

    def _attempt(self, step: str, item: str | None, *, whole: bool) -> Open:
        kind = str(self._kinds.get(step))
        calls = Calls(
            self._rules.repeatable(step), self._read_file, whole=whole or kind != "pipeline"
        )
        talk = Talk() if kind == "prompt" else None
        return Open(
            calls,
            self._read_file,
            self.last_seq,
            step,
            kind,
            self._rules.retry_failed,
            item,
            talk=talk,
            changed=self._rules.kind(step) != kind,
        )

    def _is_part(self, step: str, item: str | None) -> bool:
        """Whether this is a part of an item, which is completed or run again as a whole."""
        if item is None or "/" not in step:
            return False
        return any(unit in self._open for unit in owners(step, item) if unit[0] != step)

    def _unit(self, record: JsonObject) -> Open | None:
        """The unit of a record."""
        unit = self._open.get((record.get("step"), record.get("item")))
        if unit is not None:
            return unit
        found = owners(record.get("step"), record.get("item"))
        return next((self._open[unit] for unit in found if unit in self._open), None)

    def _record(self, unit: Open, record: Any) -> StepRecord:
        return StepRecord(
            id=unit.step,
            kind=self._kinds.get(unit.step, "prompt"),
            status=record.get("status"),
            text=record.get("text"),
            output=record.get("output"),
            calls=unit.calls.used(record.get("output")),
            usage=_usage(record),
            cost_usd=record.get("cost_usd"),
            seconds=float(record.get("seconds") or 0.0),
        )


def tags(texts: Iterable[str | None]) -> bool:
    """Whether a text was changed by masking."""
    return any(text is not None and "<secret:" in text for text in texts)


def within(outer: str | None, own: str | None) -> str | None:
    """The key of an item, or of no item, within an outer one."""
    return "/".join(key for key in (outer, own) if key is not None) or None


def _place_of(record: JsonObject) -> tuple[Any, ...]:
    return tuple(record.get(key) for key in ("step", "item", "turn", "call"))


def _past_question(question: Question) -> PastQuestion:
    asked, given = question.asked, question.answered
    expires = None if asked.expires is None else seconds(asked.expires)
    end = None if given is None else QuestionEnd(given.answer, given.by, given.way, given.note)
    return PastQuestion(asked.id, asked.place, asked.digest, expires, end)


def _spent_nothing(record: Any) -> bool:
    """See `records.spent_nothing`."""
    unanswered = record.get("status") == "failed" and record.get("cost_usd") == 0
    return (unanswered and _usage(record) == Usage()) or record.get("status") == "skipped"


def _usage(record: JsonObject) -> Usage:
    told: Any = record.get("usage") or {}
    get = told.get
    return Usage(get("input"), get("output"), get("cached"), get("reasoning"))


def _exit_code_of(record: Any) -> ExitCode:
    """The exit code that a failed item calls for; older journals do not say it."""
    plain = ExitCode.DENIED if record.get("status") == "denied" else ExitCode.FAILED
    return ExitCode(record.get("exit_code") or plain)


def _code_of(record: JsonObject) -> str | None:
    """The error code in the record of an end."""
    error: Any = record.get("error")
    return error.get("code") if isinstance(error, Mapping) else None
