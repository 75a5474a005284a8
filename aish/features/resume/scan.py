"""Folds a journal into the state of a resumed run: calls, owners of events, usage."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import field, replace
from datetime import datetime
from functools import reduce
from sys import intern
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
from aish.core.events import EVENT_TYPES, REFUSED, ApprovalAnswered, ApprovalAsked, Place
from aish.core.frozen import slotted
from aish.core.json import JsonObject, JsonValue, json_text
from aish.core.messages import Served, Spent, SpentSum, Usage
from aish.core.sources import NO_SOURCES, OWN_COMMANDS, UNKNOWN, Sources, is_alias, union
from aish.core.tools import NOT_MADE_KINDS
from aish.engine.limits import Spending, answer_usage
from aish.engine.records import STOPPED, StepRecord
from aish.engine.resume_state import DoneItem, DoneItems
from aish.engine.steps.context import CALLS_UNTRACKED, ITEM_UNFINISHED
from aish.features.resume.rules import Repeatable, Rules
from aish.journal.batches import EVENTS as BATCH_EVENTS
from aish.journal.batches import BatchFold
from aish.journal.questions import QuestionFold, RecordedQuestion
from aish.journal.reader import parse_event
from aish.policy.questions import PastQuestion, QuestionEnd

CONTEXT_FILES = "context.files"
MEDIA_KEPT = "media_kept"
"""The code of a notice: the result of a call has more than its text, in a file."""
# Kinds of results that are the end of their call, whatever it led to.
_RESULTS = frozenset({"ok", "handler_error", "rpc_error"})

_ONE_CALL = Spent(tool_calls=1)

_Key = tuple[Any, ...]


@slotted
class ScannedCall:
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
        """True if it may have been made, with an unknown outcome."""
        if self.began is None:
            return False
        return self.is_lost or self.finished is None or self.finished.get("kind") == "unknown"

    @property
    def was_made(self) -> bool:
        """True if it may have taken effect: nothing says that it was not made."""
        if self.began is None or self.finished is None or self.is_lost:
            return self.began is not None
        return self.finished.get("kind") not in NOT_MADE_KINDS


class AttemptCalls:
    """The calls of one attempt at a step or item.

    `whole` keeps repeatable ones too: a later step may read them.
    """

    def __init__(self, repeatable: Repeatable, read_file: ReadFile, *, whole: bool) -> None:
        self._repeatable = repeatable
        self._read_file = read_file
        self._whole = whole
        self._calls: dict[_Key, ScannedCall] = {}
        self._replaced: dict[_Key, ScannedCall] = {}
        self.has_media = False
        self._asked: dict[_Key, JsonValue] = {}

    def empty_copy(self) -> "AttemptCalls":
        """The calls of another attempt at the same step or item: none so far."""
        return AttemptCalls(self._repeatable, self._read_file, whole=self._whole)

    def add_requests(self, turn: JsonObject) -> None:
        """`turn.finished`: calls requested by a model, in its order."""
        calls: Any = turn.get("calls") or ()
        for call in calls if self._whole else ():
            self._asked[_place_of({**turn, "call": call.get("id")})] = call.get("arguments")

    def add_decision(self, record: JsonObject) -> None:
        tool = str(record.get("tool"))
        if self._whole or not self._repeatable(tool):
            key = _place_of(record)
            before = self._calls.get(key)
            if before is not None and before.unknown:
                # Until the call is really made again.
                self._replaced[key] = before
            call = self._calls[key] = ScannedCall(tool)
            call.arguments = record.get("arguments")
            call.verdict, call.rule = record.get("verdict"), str(record.get("rule"))

    def mark_started(self, record: JsonObject) -> None:
        call = self._of(record)
        if call is not None:
            call.began = str(record.get("time"))
            self._replaced.pop(_place_of(record), None)

    def mark_lost(self, record: JsonObject) -> None:
        """The notice that no answer came to a call."""
        call = self._of(record)
        if call is not None:
            call.is_lost = True

    def set_result(self, record: JsonObject) -> None:
        call = self._of(record)
        if call is not None:
            call.finished = record

    def unrepeatable(self) -> Iterator[ScannedCall]:
        """The calls that may have taken effect, and may not be repeated without consent."""
        for call in (*self._replaced.values(), *self._calls.values()):
            if call.was_made and not self._repeatable(call.tool):
                yield call

    def first_made(self) -> UsedCall | None:
        for call in self.unrepeatable():
            return self._make_used_call(call, call.finished or {"kind": "unknown"}, None)
        return None

    def __bool__(self) -> bool:
        return bool(self._calls)

    def result(self) -> UsedCall | None:
        """The result of a step's only call, if it came to its end and all of it is known."""
        call = next(iter(self._calls.values()), None)
        if call is None or call.began is None or call.finished is None or self.has_media:
            return None
        used = self._make_used_call(call, call.finished, None)
        if used.full is not None and used.whole == used.content:
            return None
        told = (used.whole, json_text(used.structured), json_text(call.finished))
        is_lost = call.finished.get("structured_in") is not None and used.structured is None
        return None if used.kind not in _RESULTS or is_lost or tags(told) else used

    def results(self, output: JsonValue) -> tuple[UsedCall, ...]:
        """The ended calls, in the order of the requests; `output` is that of the step or item."""
        return tuple(used for _, _, used in self.results_by_turn(output))

    def results_by_turn(self, output: JsonValue = None) -> Iterator[tuple[Any, Any, UsedCall]]:
        """The same with the turn and the id of each."""
        order = {key: place for place, key in enumerate(self._asked)}
        for key in sorted(self._calls, key=lambda one: order.get(one, -1)):
            call = self._calls[key]
            if call.finished is not None:
                yield *key[2:], self._make_used_call(call, call.finished, output)

    def _make_used_call(self, call: ScannedCall, finished: Any, output: JsonValue) -> UsedCall:
        content = str(finished.get("content") or "")
        full = finished.get("full")
        data = None if full is None else self._read_file(str(full))
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
            whole=content if data is None else data.decode("utf-8", "replace"),
            exit_code=finished.get("exit_code"),
            repeatable=call.began is None or self._repeatable(call.tool),
            sources=_sources_of(finished),
            place=Place(*(finished.get(key) for key in ("step", "item", "turn", "call"))),
        )

    def _of(self, record: JsonObject) -> ScannedCall | None:
        key = _place_of(record)
        call = self._calls.get(key)
        if call is None:
            tool = str(record.get("tool"))
            if not self._whole and self._repeatable(tool):
                return None
            # Refused before any rule was evaluated: only the model's text is known.
            call = self._calls[key] = ScannedCall(tool, self._asked.get(key))
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


class RunTime:
    """The seconds of all parts of a run, without those between two parts."""

    def __init__(self) -> None:
        self.before = self.last = ""
        """The times of the last two records."""
        self._began: str | None = None
        self._seconds = 0.0

    def begin(self) -> None:
        """A part of the run begins with the latest record."""
        self._seconds += self._until(self.before)
        self._began = self.last

    @property
    def seconds(self) -> float:
        return self._seconds + self._until(self.last)

    def _until(self, time: str) -> float:
        if self._began is None:
            return 0.0
        taken = datetime.fromisoformat(time) - datetime.fromisoformat(self._began)
        return max(0.0, taken.total_seconds())


# Statuses of units that ended by themselves, with a result.
_WELL = frozenset({"ok", "skipped"})
_BADLY = frozenset({"failed", "denied"})
# Error codes of interrupted units.
_CUT_OFF = frozenset({"interrupted", "time", "run_ended"})


_ANSWER = frozenset({"answer", RESUMABLE})
"""The purposes of records that belong to the conversation itself."""


@slotted
class ScannedConversation:
    """The conversation of a unit in one attempt, for a later part to go on with.

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

    @property
    def sources(self) -> Sources:
        """The sources of all that was said in it."""
        return union(map(_sources_of, self.records))

    def turns(self, read_file: ReadFile) -> RecordedTurns | None:
        """All of its turns; `None` if one of them is lost."""
        if self._found[0] != len(self.records):
            self._found = len(self.records), self._read_turns(read_file)
        return self._found[1]

    def _read_turns(self, read_file: ReadFile) -> RecordedTurns | None:
        try:
            found = RecordedTurns(self.records, read_file)
            told = json_text((*found.unfinished, *self.records))
        except (TurnsLostError, LookupError, ValueError):
            return None
        kept = (one for one in self.records if one["type"] in {TURN_ADDED, HISTORY_REPLACED})
        is_whole = all(one.get("purpose", RESUMABLE) == RESUMABLE for one in kept)
        return found if is_whole or not tags([told]) else None


@slotted
class OpenAttempt:
    """An attempt at a step or an item that is not known to be completed.

    `begun` numbers its first record. `ended` is the record of its end, if it has one: it is run
    again anyway. `talk` is the conversation of a prompt; `before` is the attempt before it. `parts`
    is what an item has done that is a pipeline. `changed`: the step is gone or of another kind.
    """

    calls: AttemptCalls
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
    talk: ScannedConversation | None = None
    used: list[Spent] = field(default_factory=list)
    before: "OpenAttempt | None" = None
    parts: "Scan | None" = None
    changed: bool = False

    def attempts(self) -> Iterator["OpenAttempt"]:
        one: OpenAttempt | None = self
        while one is not None:
            yield one
            one = one.before

    @property
    def latest(self) -> "OpenAttempt":
        """The last attempt that has done anything, if one has; else this one."""
        if self.parts is not None:
            return self
        begun = (one for one in self.attempts() if one.calls or (one.talk and one.talk.records))
        return next(begun, self)

    @property
    def goes_on(self) -> bool:
        """True if it continues where it was: it has waited, or was interrupted.

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
    def spent(self) -> Spent:
        return reduce(Spent.plus, self.used, Spent())

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
        """True if it is a call and nothing else."""
        return self.kind in {"call", "run"}

    @property
    def cut_off(self) -> bool:
        """True if it was interrupted, or has no end."""
        if self.ended is None or self.ended.get("status") == "budget":
            return True
        error: Any = self.ended.get("error") or {}
        return error.get("code") in _CUT_OFF


class ScannedApprovals:
    """The questions of a run, and which of their answers still allow a call."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._questions = QuestionFold()
        self._of_calls: dict[_Key, str] = {}
        self._used: set[str] = set()
        self._unsigned: set[str] = set()
        self.asked_here: set[str] = set()
        """The questions that this user asked on this machine."""

    @property
    def past(self) -> tuple[PastQuestion, ...]:
        """The questions so far, each with the first answer that it got.

        Without those whose answer a call has used: it allows no other call. Nor those that
        somebody approved elsewhere: they are asked again.
        """
        left = self._used | self._unsigned
        return tuple(_past_question(one) for one in self._questions.all(0.0) if one.id not in left)

    @property
    def unsigned(self) -> set[str]:
        """The questions with an approval that cannot be verified, and that no call has used."""
        return self._unsigned - self._used

    def take(self, record: JsonObject) -> None:
        """Fold a question, or an answer to one."""
        stamped = parse_event(record)
        if stamped is None:
            return
        self._questions.take(stamped)
        event, is_signed = stamped.event, self._rules.is_signed(record)
        if isinstance(event, ApprovalAsked) and is_signed:
            self.asked_here.add(event.id)
        elif isinstance(event, ApprovalAnswered) and event.answer in {"approve", "always"}:
            question = self._questions.get(event.id)
            if question is None or question.answered is not event:
                return
            if not is_signed or event.digest != question.asked.digest:
                self._unsigned.add(event.id)

    def add_decision(self, record: JsonObject) -> None:
        approval = record.get("approval")
        if approval is not None:
            self._of_calls[_place_of(record)] = str(approval)

    def use(self, record: JsonObject) -> None:
        """A call has started: the approval that it had allows no other one."""
        approval = self._of_calls.pop(_place_of(record), None)
        if approval is not None:
            self._used.add(approval)


class Scan:
    """The state after the records so far; `read_file` reads files of the run's folder."""

    def __init__(self, rules: Rules, read_file: ReadFile = lambda _: None) -> None:
        self.rules = rules
        self._read_file = read_file
        self._open: dict[Unit, OpenAttempt] = {}
        self._kinds: dict[str, Any] = {}
        self._on_workers: set[Any] = set()
        self._has_parts = False
        self._failed: dict[Unit, OpenAttempt] = {}
        self._untracked: dict[Unit, set[int]] = {}
        self.steps: dict[str, StepRecord] = {}
        self.begun: dict[str, int] = {}
        self.items: dict[str, DoneItems] = {}
        self.talks: dict[str, ScannedConversation] = {}
        """The conversation of each step that is completed."""
        self.context_tag: str | None = None
        self.context_states: dict[str, str] = {}
        """The file with what the conversation of a step has of its files."""
        self._spending = Spending()
        self._answers: dict[str, SpentSum] = {}
        """Of each step the answers of plain items, which are not in `_spending` yet."""
        self.time = RunTime()
        self.denials: Counter[str] = Counter()
        self.approvals = ScannedApprovals(rules)
        self.batches = BatchFold()
        self.given = GivenText(rules.asks_servers)
        self.started: JsonObject | None = None
        self.finished: JsonObject | None = None
        self.segments = 0
        self.last_seq = 0
        self.part_seq = 0
        self._take: Mapping[str, Callable[[JsonObject], None]] = {
            "run.started": self._on_run_started,
            "run.finished": self._on_run_finished,
            "step.started": self._on_step_started,
            "step.finished": self._on_step_finished,
            "item.started": self._on_item_started,
            "item.finished": self._on_item_finished,
            "item.moved": self._on_item_moved,
            "notice": self._on_notice,
            "retry": self._on_retry,
            "turn.started": self._add_to_talk,
            "turn.finished": self._on_turn_finished,
            **dict.fromkeys(map(EVENT_TYPES.__getitem__, BATCH_EVENTS), self._on_batch),
            "approval.asked": self.approvals.take,
            "approval.answered": self.approvals.take,
            TURN_ADDED: self._add_to_talk,
            HISTORY_REPLACED: self._add_to_talk,
            CONTEXT_FILES: self._on_context_files,
            "tool.decided": self._on_tool_decided,
            "tool.started": self._on_tool_started,
            "tool.finished": self._on_tool_finished,
        }

    def take(self, record: Any) -> None:
        self.last_seq = record["seq"]
        if record["type"] != "approval.answered":
            # It may be appended long after the end: the time between two parts does not count.
            self.time.before, self.time.last = self.time.last, record["time"]
        take = self._take.get(record["type"])
        if take is None:
            return
        if self.rules.follows:
            self.given.take(record)
        if self._has_parts:
            self._hand_down(record)
        take(record)

    def skip_to(self, seq: int, time: str) -> None:
        """The record of this number was read without being folded."""
        self.last_seq = seq
        self.time.before = self.time.last = time

    def take_late(self, records: Iterable[JsonObject]) -> None:
        """Fold records that stand before others that were folded or skipped."""
        last_seq, before, last = self.last_seq, self.time.before, self.time.last
        for record in records:
            self.take(record)
        self.last_seq, self.time.before, self.time.last = last_seq, before, last

    def is_plain(self, step: str, key: str) -> bool:
        """True if of such an item nothing is kept but that it is done, if it has ended well.

        Then it can be counted with `add_plain_item`, unless it has made calls.
        """
        unit = step, key
        return (
            self._kinds.get(step) == "prompt"
            and step not in self._on_workers
            and not (unit in self._open or unit in self._failed or unit in self._untracked)
            and not self.rules.needs_results(step)
            and not (self.rules.follows and self.rules.asks_servers(step))
        )

    def add_plain_item(
        self,
        step: str,
        item: DoneItem,
        answers: Iterable[tuple[Usage, float | None]],
        total: tuple[Usage, float | None],
        records: tuple[int, int],
    ) -> None:
        """An item that has begun and ended with these records, and the usage that these have."""
        for usage, cost in answers:
            answered = self._answers.get(step)
            if answered is None:
                answered = self._answers[step] = SpentSum()
            answered.add(usage, cost, turns=1)
        done = self._done(step)
        done.stopped = None
        done.add(item, None if item.status == "skipped" else total[0], total[1], records)

    @property
    def spending(self) -> Spending:
        """Usage of the run so far."""
        answers, self._answers = self._answers, {}
        for step, answered in answers.items():
            self._spending.add(answered.spent, step)
        return self._spending

    def calls_to_repeat(self) -> Iterator[tuple[OpenAttempt, ScannedCall, bool]]:
        """The calls of units that are run again, each with its owner.

        With them stands whether the owner goes on with their results.
        """
        for unit in self._open.values():
            latest = unit.latest
            for one in unit.attempts():
                goes_on = one is latest and one.goes_on
                if goes_on and one.parts is not None:
                    for part, call, part_goes_on in one.parts.calls_to_repeat():
                        yield replace(part, item=within(one.item, part.item)), call, part_goes_on
                    continue
                for call in one.calls.unrepeatable():
                    yield one, call, goes_on

    @property
    def untracked(self) -> Iterable[Unit]:
        """Items that have not come back from workers: nobody knows which calls they made."""
        return self._untracked

    def _on_run_started(self, record: JsonObject) -> None:
        self.segments += 1
        self.part_seq = self.last_seq
        self.started, self.finished = record, None
        self._on_workers.clear()
        self.time.begin()

    def _on_run_finished(self, record: JsonObject) -> None:
        self.finished = record

    def _on_batch(self, record: JsonObject) -> None:
        if (stamped := parse_event(record)) is not None:
            self.batches.take(stamped)

    def _on_step_started(self, record: Any) -> None:
        step, item = record.get("step"), record.get("item")
        self._kinds[step] = record.get("kind")
        if self._is_part(step, item):
            return
        self._begin(self._attempt(step, item, whole=True))
        self.steps.pop(step, None)
        self.begun.pop(step, None)
        self.talks.pop(step, None)

    def _on_step_finished(self, record: Any) -> None:
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

    def _on_item_started(self, record: Any) -> None:
        step, key = record.get("step"), record.get("item")
        if step in self._on_workers:
            self._untracked.setdefault((step, key), set()).add(self.segments)
        if self._is_part(step, key):
            return
        self._begin_again(step, key)
        unit = self._attempt(step, key, whole=self.rules.needs_results(step))
        unit.index, unit.digest = record.get("index"), str(record.get("digest"))
        if unit.kind == "pipeline":
            self._has_parts = True
            unit.parts = Scan(self.rules, self._read_file)
        self._begin(unit)

    def _on_item_finished(self, record: Any) -> None:
        step, key, status = record.get("step"), record.get("item"), record.get("status")
        self._came_back(step, key)
        unit = self._open.get((step, key))
        if unit is None:
            return
        unit.ended = record
        well = self._went_well(step, status)
        if not well and (status not in _BADLY or self.rules.retry_failed):
            return
        del self._open[step, key]
        self._untracked.pop((step, key), None)
        if not well and any(call for one in unit.attempts() for call in one.calls.unrepeatable()):
            self._failed[step, key] = unit
        self.denials.update(unit.denials)
        item = DoneItem(
            key,
            unit.index,
            unit.digest,
            status,
            self._record(unit, record) if self.rules.needs_results(step) else None,
            _code_of(record),
            ExitCode.OK if well else _exit_code_of(record),
        )
        asks = self._kinds.get(step) in {"prompt", "pipeline"}
        used = _item_usage(record) if asks else Spent()
        self._done(step).add(item, used.usage, used.cost_usd, (unit.begun, self.last_seq))

    def _begin_again(self, step: str, key: str) -> None:
        """An item that is done has begun anew: what it was before no longer counts."""
        done = self.items.get(step)
        if done is not None:
            done.remove(key)
            done.stopped = None

    def _done(self, step: str) -> DoneItems:
        done = self.items.get(step)
        if done is None:
            done = self.items[step] = DoneItems(self.rules.mask, tolerant=self.rules.tolerant(step))
        return done

    def _on_item_moved(self, record: Any) -> None:
        if (done := self.items.get(record.get("step"))) is not None:
            done.move(record.get("item"), record.get("index"), self.last_seq)

    def _on_notice(self, record: JsonObject) -> None:
        step, code = record.get("step"), record.get("code")
        if code == TAKEN_OVER:
            self._take_over(step, record.get("item"), record)
        elif code in {MEDIA_KEPT, CALL_LOST} and (unit := self._unit(record)) is not None:
            if code == CALL_LOST:
                unit.calls.mark_lost(record)
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

    def _on_retry(self, record: JsonObject) -> None:
        # A request that is sent again has its turn; this is a step or an item that begins anew.
        if record.get("turn") is None:
            key = record.get("step"), record.get("item")
            unit = self._open.get(key)
            if unit is not None:
                unit.ended = record
                self._open[key] = replace(
                    unit,
                    calls=unit.calls.empty_copy(),
                    ended=None,
                    talk=None
                    if unit.talk is None
                    else ScannedConversation(attempt=unit.talk.attempt + 1),
                    before=unit,
                    parts=None if unit.parts is None else Scan(self.rules, self._read_file),
                )

    def _add_to_talk(self, record: Any) -> None:
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
            self._add_to_talk(record)

    def units_to_continue(self) -> Iterator[OpenAttempt]:
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

    def _on_context_files(self, record: Any) -> None:
        self.context_tag = str(record.get("tag"))
        if record.get("state") is None:
            return
        unit = self._open.get((record.get("step"), record.get("item")))
        if unit is not None and unit.talk is not None:
            unit.talk.files = str(record.get("state"))
        if record.get("item") is None:
            self.context_states[record.get("step")] = str(record.get("state"))

    def _on_turn_finished(self, record: Any) -> None:
        used = answer_usage(_usage(record), record.get("cost_usd"))
        self._spending.add(used, record.get("step"))
        if "served" in record:  # which older journals do not say
            self.add_served(record.get("step"), str(record.get("model")), record["served"])
        unit = self._unit(record)
        if unit is not None:
            unit.calls.add_requests(record)
            unit.used.append(used)
        self._add_to_talk(record)

    def add_served(self, step: str | None, alias: str, named: Any) -> None:
        """Count the name of the model that has answered, as its record tells it."""
        served = None if named is None else Served(named.get("model"), named.get("fingerprint"))
        self._spending.served.add(step, alias, served)

    def _on_tool_decided(self, record: JsonObject) -> None:
        unit = self._unit(record)
        if unit is not None:
            unit.calls.add_decision(record)
            if record.get("verdict") in REFUSED:
                unit.denials += (intern(str(record.get("tool"))),)
        self.approvals.add_decision(record)

    def _on_tool_started(self, record: Any) -> None:
        self.approvals.use(record)
        self._spending.add(_ONE_CALL, record.get("step"))
        unit = self._unit(record)
        if unit is not None:
            unit.calls.mark_started(record)

    def _on_tool_finished(self, record: JsonObject) -> None:
        calls = self._spending.calls
        self._spending.calls = calls.plus(str(record.get("kind")), record.get("exit_code"))
        unit = self._unit(record)
        if unit is not None:
            unit.calls.set_result(record)
        self._add_to_talk(record)

    def _went_well(self, step: str, status: object) -> bool:
        return status in _WELL or (status == "denied" and self.rules.tolerant(step))

    def _begin(self, unit: OpenAttempt) -> None:
        key = unit.step, unit.item
        before = unit.before = self._open.get(key) or self._failed.pop(key, None)
        if before is not None and before.parts is not None and before.goes_on:
            # Taken over as a whole, with the first record of the item.
            unit.parts, unit.calls, unit.before = before.parts, before.calls, before.before
            unit.denials, unit.used = before.denials, before.used
        self._open[unit.step, unit.item] = unit

    def _attempt(self, step: str, item: str | None, *, whole: bool) -> OpenAttempt:
        kind = str(self._kinds.get(step))
        calls = AttemptCalls(
            self.rules.repeatable(step), self._read_file, whole=whole or kind != "pipeline"
        )
        talk = ScannedConversation() if kind == "prompt" else None
        return OpenAttempt(
            calls,
            self._read_file,
            self.last_seq,
            step,
            kind,
            self.rules.retry_failed,
            item,
            talk=talk,
            changed=self.rules.kind(step) != kind,
        )

    def _is_part(self, step: str, item: str | None) -> bool:
        """True for a part of an item, which is completed or run again as a whole."""
        if item is None or "/" not in step:
            return False
        return any(unit in self._open for unit in owners(step, item) if unit[0] != step)

    def _unit(self, record: JsonObject) -> OpenAttempt | None:
        unit = self._open.get((record.get("step"), record.get("item")))
        if unit is not None:
            return unit
        found = owners(record.get("step"), record.get("item"))
        return next((self._open[unit] for unit in found if unit in self._open), None)

    def _record(self, unit: OpenAttempt, record: Any) -> StepRecord:
        output: Any = record.get("output_sources")
        return StepRecord(
            id=unit.step,
            kind=self._kinds.get(unit.step, "prompt"),
            status=record.get("status"),
            text=record.get("text"),
            output=record.get("output"),
            calls=unit.calls.results(record.get("output")),
            usage=_usage(record),
            cost_usd=record.get("cost_usd"),
            seconds=float(record.get("seconds") or 0.0),
            sources=_sources_of(record),
            output_sources=None if output is None else frozenset(output),
        )


_TELL_SOURCES = frozenset({"turn.started", "step.finished", "item.finished"})
"""Records that tell of sources, if anybody followed them."""


def _sources_of(record: Any) -> Sources:
    """The sources that a record tells of; those of an older journal are unknown.

    Of a call in a turn it tells what is new, if there is anything.
    """
    told = record.get("sources")
    if told is None and record.get("type") == TURN_ADDED:
        told = record["added"].get("sources")
    if told is not None:
        return frozenset(told)
    is_alone = record.get("type") == "tool.finished" and record.get("turn") is None
    return frozenset({UNKNOWN}) if is_alone or record.get("type") in _TELL_SOURCES else NO_SOURCES


class GivenText:
    """The sources of what each tool was given: it may be read again at the place of the tool.

    So may what a prompt or a resource of a server was asked with, in steps that `asks_servers`.
    """

    def __init__(self, asks_servers: Callable[[str], bool] = lambda _: False) -> None:
        self._asks_servers = asks_servers
        self._units: dict[Unit, Sources] = {}
        self._given: dict[str, Sources] = {}
        self._open: dict[_Key, str] = {}

    def take(self, record: Any) -> None:
        """Follow a record; only some types tell of it."""
        if record["type"] not in _OF_GIVEN:
            return
        unit = record.get("step"), record.get("item")
        in_turn = record.get("turn") is not None
        match record["type"]:
            case "tool.started" if in_turn:
                self._give(record["tool"], self._units.get(unit, NO_SOURCES))
            case "tool.started":
                self._open[_place_of(record)] = record["tool"]
            case "tool.finished" if not in_turn:
                # One that was refused was given nothing, nor was a person's own command.
                is_made = self._open.pop(_place_of(record), None) is not None
                sources = _sources_of(record)
                if is_made and sources != frozenset({OWN_COMMANDS}):
                    self._give(record["tool"], sources)
            case "step.finished" | "item.finished":
                self._units.pop(unit, None)
            case "pipeline.spent":
                # What the run of a session has written is in the journal of that run.
                self._give(_A_COMMAND, frozenset({UNKNOWN}))
            case _ if record.get("purpose", "answer") == "answer":
                self._add_request(unit, _sources_of(record))
            case _:
                pass

    def _add_request(self, unit: Unit, sources: Sources) -> None:
        """A request of a conversation, which may have begun with text of servers."""
        known = self._units.get(unit)
        whole = self._units[unit] = union((known or NO_SOURCES, sources))
        if known is None and self._asks_servers(str(unit[0])):
            for alias in filter(is_alias, whole):
                self._give(f"{alias}__get", whole)

    def _give(self, tool: str, sources: Sources) -> None:
        self._given[tool] = union((self._given.get(tool, NO_SOURCES), sources))

    @property
    def all(self) -> Mapping[str, Sources]:
        """By the name of the tool; a call without an end was given nobody knows what."""
        unknown = dict.fromkeys(self._open.values(), frozenset({UNKNOWN}))
        tools = self._given.keys() | unknown.keys()
        sets = (self._given, unknown)
        return {tool: union(given.get(tool, NO_SOURCES) for given in sets) for tool in tools}


_OF_GIVEN = frozenset(
    {
        "turn.started",
        "tool.started",
        "tool.finished",
        "step.finished",
        "item.finished",
        "pipeline.spent",
    }
)
_A_COMMAND = "shell__run"


def tags(texts: Iterable[str | None]) -> bool:
    """True if a text was changed by masking."""
    return any(text is not None and "<secret:" in text for text in texts)


def within(outer: str | None, own: str | None) -> str | None:
    """The key of an item, or of no item, within an outer one."""
    return "/".join(key for key in (outer, own) if key is not None) or None


def _place_of(record: JsonObject) -> tuple[Any, ...]:
    get = record.get
    return get("step"), get("item"), get("turn"), get("call")


def _past_question(question: RecordedQuestion) -> PastQuestion:
    asked, given = question.asked, question.answered
    expires = None if asked.expires is None else question.expires_at
    end = None if given is None else QuestionEnd(given.answer, given.by, given.way, given.note)
    return PastQuestion(asked.id, asked.place, asked.digest, expires, end)


def _item_usage(record: Any) -> Spent:
    usage, cost, status = _usage(record), record.get("cost_usd"), record.get("status")
    nothing = status == "skipped" or (status == "failed" and cost == 0 and usage == Usage())
    return Spent(usage=None if nothing else usage, cost_usd=cost)


def _usage(record: JsonObject) -> Usage:
    told: Any = record.get("usage") or {}
    get = told.get
    counts = get("input"), get("output"), get("cached"), get("reasoning")
    return Usage(*counts, get("cache_written"))  # which older journals do not say


def _exit_code_of(record: Any) -> ExitCode:
    """The exit code that a failed item calls for; older journals do not say it."""
    plain = ExitCode.DENIED if record.get("status") == "denied" else ExitCode.FAILED
    return ExitCode(record.get("exit_code") or plain)


def _code_of(record: JsonObject) -> str | None:
    """The error code in the record of an end."""
    error: Any = record.get("error")
    return error.get("code") if isinstance(error, Mapping) else None
