"""The questions of an MCP server about calls of its clients, a file for each (H10, H11, H28).

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
from aish.core.events import (
    ApprovalAnswered,
    ApprovalAsked,
    Event,
    Stamped,
    ToolDecided,
    to_line,
)
from aish.core.frozen import frozen
from aish.features.approvals.questions import HUB_ID
from aish.features.history.run_store import RunStore
from aish.journal.questions import Question, Questions
from aish.journal.reader import JournalReading, event_of
from aish.journal.writer import cut_torn_tail, sealed
from aish.system.file_lock import take
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

    question: Question
    given: bool = False
    events: tuple[Stamped, ...] = ()

    @property
    def id(self) -> str:
        """The question's id."""
        return self.question.id

    @property
    def client(self) -> str:
        """Who called."""
        return self.question.asked.place.step or ""

    @property
    def usable_until(self) -> float:
        """Until when the end may be given to a call: for as long again as it was waited for."""
        question = self.question
        expires = question.expires_at
        ended = expires if question.answer is None else question.answered_at
        return ended + max(0.0, expires - question.began)


def read_question(descriptor: int, name: str) -> HubQuestion | None:
    """The question in an open file; `None` if nothing whole is in it.

    Raises:
        JournalError: it is damaged.
    """
    fold, given, found = Questions(), False, []
    with os.fdopen(descriptor, "rb") as file, JournalReading(file, name) as reading:
        for record in reading:
            stamped = event_of(record)
            if stamped is None:
                continue
            found.append(stamped)
            fold.take(stamped)
            given = given or isinstance(stamped.event, ToolDecided)
    questions = fold.all(0.0)
    return HubQuestion(questions[0], given, tuple(found)) if questions else None


def hub_ids(store: RunStore) -> list[str]:
    """The servers whose questions are in a state folder."""
    return sorted(name for name in store.names() if HUB_ID.match(name))


@frozen
class HeldQuestions:
    """The questions of a server in the order of their beginnings, and what could not be read."""

    questions: Sequence[HubQuestion]
    problem: str | None


def read_questions(store: RunStore, hub: str) -> HeldQuestions:
    """All questions of a server; no link is followed.

    Raises:
        UsageError: its folder is a link.
        OSError: it cannot be read.
    """
    questions, problem = [], None
    with ExitStack() as stack:
        folder = store.open_folder(hub, stack)
        with os.scandir(folder) as entries:
            names = sorted(entry.name for entry in entries)
        for name in names:
            if not _FILE.match(name):
                continue
            try:
                descriptor = open_own(Path(name), folder)
                found = read_question(descriptor, str(store.path / hub / name))
            except FileNotFoundError:
                continue  # it has just been deleted
            except UsageError as error:
                problem = str(error)
                continue
            if found is not None:
                questions.append(found)
    return HeldQuestions(sorted(questions, key=lambda one: one.question.began), problem)


class QuestionFolder:
    """The questions in the folder at `path`, which is private to the user.

    `on_event` gets what other processes have written, once it is seen here, and `on_problem` why a
    file cannot be read, once.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.on_event: Callable[[Stamped], None] = lambda _: None
        self.on_problem: Callable[[str], None] = lambda _: None
        self._known: dict[str, HubQuestion] = {}
        self._sizes: dict[str, int] = {}

    def all(self) -> Sequence[HubQuestion]:
        """All that are known, as of the last look."""
        return tuple(self._known.values())

    def get(self, id: str) -> HubQuestion | None:
        """The question of this id, as of the last look."""
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

    def ask(self, asked: ApprovalAsked, now: float) -> HubQuestion:
        """Write a new question down, synced.

        Raises:
            OSError: it could not be written, and nothing of it is left.
        """
        return self.note(asked.id, asked, now)

    def note(self, id: str, event: Event, now: float) -> HubQuestion:
        """Write down, synced, that a question was asked, or how that of another program ended.

        Raises:
            OSError: it could not be written, and nothing of it is left.
        """
        with self._locked():
            return self._append(id, event, now)

    def answer(self, answered: ApprovalAnswered, now: float) -> HubQuestion | None:
        """Write an answer down, synced, if the question is open; `None`, or how it is instead.

        Raises:
            FileNotFoundError: there is none.
            OSError: it could not be written, and nothing of it is left.
        """
        with self._locked():
            known = self.look_at(answered.id)
            if known is None:
                raise FileNotFoundError(errno.ENOENT, "the question is gone")
            if not known.question.is_open:
                return known
            if answered.answer != "expired" and not known.question.at(now).is_open:
                return replace(known, question=known.question.at(now))
            self._append(answered.id, answered, now)
            return None

    def give(self, id: str, decided: ToolDecided, now: float) -> bool:
        """Write down that the answer is given to a call, synced; `False` if it was before.

        Raises:
            OSError: it could not be written, and nothing of it is left.
        """
        with self._locked():
            known = self.look_at(id)
            if known is None or known.given:
                return False
            self._append(id, decided, now)
            return True

    def clean(self, now: float, most: int = MOST_KEPT) -> None:
        """Delete questions that ended long ago, or are too many.

        Raises:
            OSError: one of them cannot be deleted.
        """
        with self._locked():
            self.look()
            ended = [one for one in self._known.values() if not one.question.at(now).is_open]
            ended.sort(key=lambda one: one.question.answered_at or one.question.began)
            for number, one in enumerate(ended):
                question = one.question
                since = question.answered_at or min(question.expires_at, now)
                if len(ended) - number > most or now - since > KEPT_SECONDS:
                    self._path(one.id).unlink(missing_ok=True)
                    self._forget(one.id)

    def _path(self, id: str) -> Path:
        return self.path / f"{id}.jsonl"

    def _read(self, id: str, size: int) -> None:
        if self._sizes.get(id) == size:
            return
        path = self._path(id)
        try:
            found = read_question(open_own(path), str(path))
        except FileNotFoundError:
            return
        except UsageError as error:
            # It is read again once it has changed; the others are not affected.
            self._sizes[id] = size
            self.on_problem(str(error))
            return
        before = self._known.get(id)
        self._sizes[id] = size
        if found is None:
            return  # it is being written
        self._known[id] = found
        for stamped in found.events[0 if before is None else len(before.events) :]:
            self.on_event(stamped)

    def _forget(self, id: str) -> None:
        self._known.pop(id, None)
        self._sizes.pop(id, None)

    def _append(self, id: str, event: Event, now: float) -> HubQuestion:
        known = self._known.get(id)
        seq = 1 if known is None else len(known.events) + 1
        stamped = Stamped(seq, now, event)
        path = self._path(id)
        if known is not None:
            cut_torn_tail(path)
        descriptor = open_append(path, readable=True)
        try:
            size = os.fstat(descriptor).st_size
            try:
                self._write(descriptor, sealed(to_line(stamped)), is_new=known is None)
            except OSError:
                os.ftruncate(descriptor, size)
                if known is None:
                    path.unlink(missing_ok=True)
                raise
            size = os.fstat(descriptor).st_size
        finally:
            os.close(descriptor)
        fold = Questions()
        events = (*(() if known is None else known.events), stamped)
        for one in events:
            fold.take(one)
        given = isinstance(event, ToolDecided) or (known is not None and known.given)
        found = HubQuestion(fold.all(0.0)[0], given, events)
        self._known[id], self._sizes[id] = found, size
        return found

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
    def _locked(self) -> Generator[None]:
        path = self.path / _LOCK
        descriptor = open_append(path)
        try:
            take(descriptor, path, _PATIENCE)
            yield
        except UsageError as error:
            raise OSError(errno.EIO, str(error)) from error
        finally:
            os.close(descriptor)


def open_hub_folder(store: RunStore, hub: str) -> QuestionFolder:
    """The folder of a server's questions, to answer one.

    Raises:
        UsageError: it is a link.
        FileNotFoundError: there is none.
    """
    with ExitStack() as stack:
        store.open_folder(hub, stack)
    return QuestionFolder((store.path / hub).resolve())
