"""The questions of an MCP server about calls of its clients, a file for each.

They are in its state folder, which several processes may share, and in which `aish approve` answers
too. So each change is made under one lock, checked against what is on disk, and synced before it
counts. A file is a journal of one question: it was asked, answered, and then given to a call.
"""

import errno
import os
import re
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from aish.core.errors import UsageError
from aish.core.events import ApprovalAnswered, ApprovalAsked, Event, Stamped, ToolDecided, to_line
from aish.core.frozen import frozen
from aish.features.approvals.questions import HUB_ID
from aish.features.history.run_store import RunStore
from aish.journal.questions import QuestionFold, RecordedQuestion
from aish.journal.reader import JournalReading, event_of
from aish.journal.writer import cut_torn_tail, seal
from aish.system.file_lock import hold_lock
from aish.system.files import open_append, open_own

KEPT_SECONDS = 7 * 86_400.0
"""How long a question that has ended is kept."""
MOST_KEPT = 1000
"""How many of those are kept, at most."""
_FILE = re.compile(r"[0-9a-f]{32}\.jsonl\Z")
_LOCK = "questions.lock"
_PATIENCE = 5.0


@frozen
class HubQuestion:
    """A question of a client's call, as its file has it; `given` once a call had its answer."""

    question: RecordedQuestion
    given: bool
    events: tuple[Stamped, ...]

    @property
    def id(self) -> str:
        return self.question.id

    @property
    def usable_until(self) -> float:
        """The time until which a call may use the answer: as long again as it was waited for."""
        question = self.question
        expires = question.expires_at
        ended = expires if question.answer is None else question.answered_at
        return ended + max(0.0, expires - question.began)


def _fold(events: Sequence[Stamped]) -> HubQuestion | None:
    """The question of these events; `None` if there is none."""
    fold = QuestionFold()
    for event in events:
        fold.take(event)
    is_decided = any(isinstance(one.event, ToolDecided) for one in events)
    questions = fold.all(0.0)
    return HubQuestion(questions[0], is_decided, tuple(events)) if questions else None


def hub_ids(store: RunStore) -> list[str]:
    return sorted(name for name in store.names() if HUB_ID.match(name))


def read_questions(store: RunStore, hub: str) -> tuple[Sequence[HubQuestion], str | None]:
    """All questions of a server in the order of their beginnings, and what could not be read.

    Raises:
        UsageError: its folder is a link.
        OSError: it cannot be read.
    """
    folder, problems = open_hub_folder(store, hub), list[str]()
    folder.on_problem = problems.append
    folder.look()
    return sorted(folder.all(), key=lambda entry: entry.question.began), max(problems, default=None)


class QuestionFolder:
    """The questions in the folder at `path`, which is private to the user.

    `on_event` gets each event that this process or another one has written, and `on_problem` why a
    file cannot be read, once.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.on_event: Callable[[Stamped], None] = lambda _: None
        self.on_problem: Callable[[str], None] = lambda _: None
        self._known: dict[str, HubQuestion] = {}
        self._sizes: dict[str, int] = {}

    def all(self) -> Sequence[HubQuestion]:
        return tuple(self._known.values())

    def get(self, id: str) -> HubQuestion | None:
        return self._known.get(id)

    def look(self) -> None:
        """Read what other processes have written.

        Raises:
            OSError: the folder cannot be read.
        """
        there = set()
        with os.scandir(self.path) as entries:
            for entry in entries:
                if _FILE.match(entry.name):
                    id = entry.name.partition(".")[0]
                    there.add(id)
                    self._read(id, entry.stat(follow_symlinks=False).st_size)
        for id in self._known.keys() - there:
            self._forget(id)

    def look_at(self, id: str) -> HubQuestion | None:
        """Read what other processes have written about one question; that question.

        Raises:
            OSError: it cannot be read.
        """
        try:
            size = self._path(id).stat(follow_symlinks=False).st_size
        except FileNotFoundError:
            self._forget(id)
        else:
            self._read(id, size)
        return self._known.get(id)

    def note(self, id: str, event: Event, now: float) -> None:
        """Write down, synced, that a question was asked, or how that of another program ended.

        Raises:
            OSError: it could not be written, and nothing of it is left.
        """
        with self._lock():
            self._append(id, event, now)

    def answer(self, answered: ApprovalAnswered, now: float) -> HubQuestion | None:
        """Write an answer down, synced, if the question is open; `None`, or how it is instead.

        Raises:
            FileNotFoundError: there is none.
            OSError: it could not be written, and nothing of it is left.
        """
        with self._lock():
            known = self.look_at(answered.id)
            if known is None:
                raise FileNotFoundError(errno.ENOENT, "the question is gone")
            if not known.question.is_open:
                return known
            if answered.answer != "expired" and not known.question.at(now).is_open:
                return replace(known, question=known.question.at(now))
            self._append(answered.id, answered, now)
            return None

    def ask_again(self, asked: ApprovalAsked, now: float) -> bool:
        """Write down, synced, that a later call waits for the answer; `False` if there is one.

        Raises:
            OSError: it could not be written, and nothing of it is left.
        """
        with self._lock():
            known = self.look_at(asked.id)
            if known is None or not known.question.is_open:
                return False
            self._append(asked.id, replace(asked, expires=known.question.asked.expires), now)
            return True

    def give(self, id: str, decided: ToolDecided, now: float, *, waited: bool) -> bool:
        """Write down that the answer is given to a call, synced.

        `False` if another call has it, or if it is for a later one than this, which has `waited`.

        Raises:
            OSError: it could not be written, and nothing of it is left.
        """
        with self._lock():
            known = self.look_at(id)
            if known is None or known.given:
                return False
            if waited and known.question.asked.place != decided.place:
                return False
            self._append(id, decided, now)
            return True

    def clean(self, now: float, most: int = MOST_KEPT) -> None:
        """Delete questions that ended long ago, or are too many.

        Raises:
            OSError: one of them cannot be deleted.
        """
        with self._lock():
            self.look()
            ended = [entry for entry in self._known.values() if not entry.question.at(now).is_open]
            ended.sort(key=lambda entry: entry.question.answered_at or entry.question.began)
            for number, entry in enumerate(ended):
                question = entry.question
                since = question.answered_at or min(question.expires_at, now)
                if len(ended) - number > most or now - since > KEPT_SECONDS:
                    self._path(entry.id).unlink(missing_ok=True)
                    self._forget(entry.id)

    def _path(self, id: str) -> Path:
        return self.path / f"{id}.jsonl"

    def _read(self, id: str, size: int) -> None:
        if self._sizes.get(id) == size:
            return
        path = self._path(id)
        try:
            descriptor = open_own(path)
            with os.fdopen(descriptor, "rb") as file, JournalReading(file, str(path)) as reading:
                events = [event for event in map(event_of, reading) if event is not None]
        except FileNotFoundError:
            return
        except UsageError as error:
            # It is read again once it has changed; the others are not affected.
            self._sizes[id] = size
            self.on_problem(str(error))
            return
        self._sizes[id] = size
        self._learn(id, events)

    def _learn(self, id: str, events: Sequence[Stamped]) -> None:
        question, before = _fold(events), self._known.get(id)
        if question is None:
            return  # it is being written
        self._known[id] = question
        for stamped in question.events[0 if before is None else len(before.events) :]:
            self.on_event(stamped)

    def _forget(self, id: str) -> None:
        self._known.pop(id, None)
        self._sizes.pop(id, None)

    def _append(self, id: str, event: Event, now: float) -> None:
        known, path = self._known.get(id), self._path(id)
        before = () if known is None else known.events
        stamped = Stamped(len(before) + 1, now, event)
        if known is not None:
            cut_torn_tail(path)
        descriptor = open_append(path, readable=True)
        try:
            size = os.fstat(descriptor).st_size
            try:
                self._write(descriptor, seal(to_line(stamped)), is_new=known is None)
            except OSError:
                os.ftruncate(descriptor, size)
                if known is None:
                    path.unlink(missing_ok=True)
                raise
            self._sizes[id] = os.fstat(descriptor).st_size
        finally:
            os.close(descriptor)
        self._learn(id, (*before, stamped))

    def _write(self, descriptor: int, record: bytes, *, is_new: bool) -> None:
        if os.write(descriptor, record) < len(record):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.fsync(descriptor)
        if is_new:
            # Or else a crash of the machine takes the name away, and the question with it.
            folder = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)

    @contextmanager
    def _lock(self) -> Generator[None]:
        try:
            with hold_lock(self.path / _LOCK, _PATIENCE):
                yield
        except UsageError as error:
            raise OSError(errno.EIO, str(error)) from error


def open_hub_folder(store: RunStore, hub: str) -> QuestionFolder:
    """The folder of a server's questions, to answer one.

    Raises:
        UsageError: it is a link.
        FileNotFoundError: there is none.
    """
    with ExitStack() as stack:
        store.open_folder(hub, stack)
    return QuestionFolder((store.path / hub).resolve())
