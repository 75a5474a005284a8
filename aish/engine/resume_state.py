"""State that a resumed run takes over; the engine's only knowledge of resuming.

Completed items are stored compactly, so that a million of them costs little.
"""

from array import array
from collections.abc import Callable, Mapping
from dataclasses import field, replace
from hashlib import blake2b

from aish.agent.converse import Earlier
from aish.agent.runtime import UsedCall
from aish.core.errors import ExitCode, UsageError
from aish.core.events import CallCounts, Counts, Notice, ServedModels, StepStatus
from aish.core.frozen import frozen
from aish.core.json import JsonObject
from aish.core.messages import Spent, SpentSum, Turn, Usage
from aish.core.sources import Sources
from aish.engine.records import ItemRecord, StepRecord, may_be_mended
from aish.journal.batches import RecordedBatch
from aish.policy.questions import PastQuestion

_STATUSES: tuple[StepStatus, ...] = ("ok", "failed", "skipped", "denied", "budget")
# A longer key is identified by its hash, which takes less memory.
_LONGEST_KEY = 16
_DIGEST = 8
_REMOVED = 255


@frozen
class DoneItem:
    """An item with a result; `record` only if a later step reads the results.

    `digest` is that of the item's value, as in `item.started`, and `code` that of its error, which
    is not kept. `exit_code` is the one that it calls for.
    """

    key: str
    index: int
    digest: str
    status: StepStatus
    record: StepRecord | None = None
    code: str | None = None
    exit_code: ExitCode = ExitCode.OK


class DoneItems:
    """The completed items of one step, which are not run again.

    `mask` masks a key as the journal did. `tolerant`: an item with a denied call counts as
    successful. `stopped` says whether failed items have stopped the step before it was through,
    `None` if its end is not known.
    """

    def __init__(self, mask: Callable[[str], str] = str, *, tolerant: bool = False) -> None:
        self._mask = mask
        self._bad: tuple[StepStatus, ...] = ("failed",) if tolerant else ("failed", "denied")
        self._rows: dict[str | bytes, int] = {}
        self._indices = array("q")
        self._digests = bytearray()
        self._statuses = bytearray()
        self._mendable = bytearray()
        self._exit_codes = bytearray()
        self.stopped: bool | None = None
        self._begun = array("q")
        self._ended = array("q")
        self.last = 0
        """The number of the last record of an item that is done."""
        self._spent = SpentSum()
        self._records: dict[int, ItemRecord] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def __contains__(self, key: str) -> bool:
        return _short_key(self._mask(key)) in self._rows

    def get(self, key: str) -> DoneItem | None:
        row = self._rows.get(_short_key(self._mask(key)))
        if row is None:
            return None
        digest = self._digests[row * _DIGEST : (row + 1) * _DIGEST].hex()
        status = _STATUSES[self._statuses[row]]
        item = self._records.get(row)
        return DoneItem(
            key, self._indices[row], digest, status, None if item is None else item.record
        )

    def records_of(self, key: str) -> tuple[int, int] | None:
        """The numbers of an item's first and last record, by its key as in the journal."""
        row = self._rows.get(_short_key(key))
        return None if row is None else (self._begun[row], self._ended[row])

    @property
    def spent(self) -> Spent:
        """Usage of all attempts at these items; no `usage` if none has asked a model."""
        return self._spent.spent

    @property
    def ok(self) -> int:
        return len(self._rows) - self.failed

    @property
    def failed(self) -> int:
        return sum(self._statuses.count(_STATUSES.index(status)) for status in self._bad)

    @property
    def exit_codes(self) -> frozenset[ExitCode]:
        return frozenset(map(ExitCode, set(self._exit_codes))) - {ExitCode.OK}

    @property
    def mendable(self) -> int:
        return self._mendable.count(1)

    def records(self) -> tuple[ItemRecord, ...]:
        return tuple(sorted(self._records.values(), key=lambda item: item.index))

    def add(
        self,
        item: DoneItem,
        usage: Usage | None = None,
        cost_usd: float | None = 0.0,
        records: tuple[int, int] = (0, 0),
    ) -> None:
        """Add an item; it replaces one with the same key, whose usage stays in the total.

        `records` are the numbers of its first and its last record in the journal.
        """
        known = _short_key(item.key)
        if known in self._rows:
            self.remove(item.key)
        row = self._rows[known] = len(self._indices)
        self._indices.append(item.index)
        self._begun.append(records[0])
        self._ended.append(records[1])
        try:
            packed = bytes.fromhex(item.digest)
        except ValueError:
            packed = b""
        # A digest of another form matches no item.
        self._digests += packed if len(packed) == _DIGEST else bytes(_DIGEST)
        self._statuses.append(_STATUSES.index(item.status))
        self._mendable.append(may_be_mended(item.status, item.code))
        self._exit_codes.append(item.exit_code)
        self.last = max(self.last, records[1])
        if item.record is not None:
            self._records[row] = ItemRecord(item.key, item.index, item.record)
        self._spent.add(usage, cost_usd)

    def move(self, key: str, index: int, number: int) -> None:
        """Another index for the item of this key, as in the journal's record of this number."""
        row = self._rows.get(_short_key(key))
        if row is not None:
            self._indices[row], self._ended[row], self.last = index, number, number
            if item := self._records.get(row):
                self._records[row] = replace(item, index=index)

    def remove(self, key: str) -> None:
        """Remove the item of this key, as in the journal; what it spent stays in the total."""
        row = self._rows.pop(_short_key(key), None)
        if row is not None:
            self._statuses[row] = _REMOVED
            self._mendable[row] = False
            self._exit_codes[row] = ExitCode.OK
            self._records.pop(row, None)


def _short_key(key: str) -> str | bytes:
    if len(key) <= _LONGEST_KEY:
        return key
    return blake2b(key.encode("utf-8", "surrogatepass"), digest_size=_LONGEST_KEY).digest()


@frozen
class Unfinished:
    """A step or an item that goes on within its conversation.

    `turn` is the number of requests before its attempt, `spent` what it has used so far, `turns`
    the conversation.
    """

    turns: tuple[Turn, ...]
    earlier: Earlier
    turn: int
    spent: Spent
    files: JsonObject | None = None


class ResumeRefusedError(UsageError):
    """A run that cannot be resumed; says what differs, or what is unknown."""

    code = "resume_refused"


@frozen
class NamedCalls:
    """Calls that might be made again; the `message` names the first few, the `lines` all."""

    calls: tuple[JsonObject, ...] = ()
    message: str = ""
    lines: tuple[str, ...] = ()


class CallsNamedError(ResumeRefusedError):
    """Calls might be made again without consent."""

    def __init__(self, named: NamedCalls, hint: str) -> None:
        super().__init__(named.message, hint=hint)
        self.named = named


@frozen
class ResumeState:
    """The run that is resumed.

    `steps` are those that succeeded, by their id in events (`outer/inner` in a sub-pipeline); a
    `foreach` step is included if all of its items are completed and none failed. `items` are the
    completed items of every `foreach` step, whether the step is finished or not. `spent` is the
    total usage, including parts that are run again; `by_step` the same for each step. Its `turns`
    are answers, its tokens those that were reported. `last_seq` numbers the last record of the
    journal, `part_seq` the first one of its last part, `begun` the first one of each step in
    `steps`; `segments` counts the parts. `notices` are to be emitted right after `run.started`.
    `questions` are those that were asked, `unfinished` the conversations to continue, by step and
    item as in the journal. `parts` are the states of items that are pipelines and continue, with
    their own steps, items and conversations. For each of these, `made` has a call, if any, that was
    made and may not be repeated without consent. `ended`: the run ended successfully, and nothing
    is left to do. `context_tag` is the tag of its blocks of changed files, if it has
    shown any. `repeated` are the calls that may be made again, as somebody allowed it.
    `given` has the sources of what each tool was given, by its name.
    """

    run: str
    steps: Mapping[str, StepRecord] = field(default_factory=dict)
    items: Mapping[str, DoneItems] = field(default_factory=dict)
    spent: Spent = Spent()
    by_step: Mapping[str | None, Spent] = field(default_factory=dict)
    denials: Counts = field(default_factory=dict)
    calls: CallCounts = CallCounts()
    served: tuple[ServedModels, ...] = ()
    begun: Mapping[str, int] = field(default_factory=dict)
    last_seq: int = 0
    part_seq: int = 0
    batches: tuple[RecordedBatch, ...] = ()
    segments: int = 0
    notices: tuple[Notice, ...] = ()
    ended: bool = False
    questions: tuple[PastQuestion, ...] = ()
    unfinished: Mapping[tuple[str, str | None], Unfinished] = field(default_factory=dict)
    parts: Mapping[tuple[str, str], "ResumeState"] = field(default_factory=dict)
    made: Mapping[tuple[str, str | None], UsedCall] = field(default_factory=dict)
    context_tag: str | None = None
    repeated: NamedCalls = NamedCalls()
    given: Mapping[str, Sources] = field(default_factory=dict)
