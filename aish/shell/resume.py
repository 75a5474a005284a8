"""Kept sessions: found, listed with a line each, and resumed exactly where they ended (S6)."""

import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

from aish.agent.restore import Restorer
from aish.config.model import Pipeline, ServerEntry
from aish.core.errors import AishError, UsageError, did_you_mean
from aish.core.events import (
    NOWHERE,
    PLACE,
    REFUSED,
    Notice,
    Place,
    ServerConnected,
    Stamped,
)
from aish.core.frozen import frozen
from aish.core.messages import AssistantTurn, ToolTurn, Turn, Usage, UserTurn
from aish.core.phrases import shorten
from aish.core.rules import RuleEntry
from aish.engine.resume_state import ResumeState
from aish.engine.run_folder import RunFolder, RunsPlace, kept_file, reopen_folder
from aish.features.history.run_store import (
    LATEST,
    RunStore,
    find_id,
    newest_first,
    newest_of,
    open_project,
    open_store,
)
from aish.features.history.summary import began
from aish.features.resume.scan import CONTEXT_FILES, Spending
from aish.journal.reader import JournalReading, event_of, read_journal, torn_tail
from aish.journal.writer import HeldJournal, hold_journal
from aish.output.event_log import Sink
from aish.policy.questions import PastQuestion
from aish.shell.pending_input import Asked, AskedBefore, Enclosure
from aish.shell.session import Session
from aish.system.file_lock import BeingWrittenError

_SHORT = 59
_OF_ITSELF = frozenset({"run.started", "model.chosen", "notice", "control.called", "run.finished"})
"""What a session tells in which nobody did anything."""
ANEW = "`aish shell` without `--resume` starts one; `:sessions` lists them"


@frozen
class PastSession:
    """A session: its start, its number of model requests, and its first line.

    It is `empty` if nothing was done in it.
    """

    id: str
    began: float
    questions: int
    first: str
    empty: bool = False


def session_store(place: RunsPlace, stack: ExitStack) -> RunStore | None:
    """The folder of sessions, if there is one.

    Raises:
        UsageError: it cannot be read, or a part of its path is a link.
    """
    try:
        if place.wanted is None:
            return stack.enter_context(open_project(place.project.resolve(), place.folder_name))
    except FileNotFoundError:
        return None
    if not place.wanted.is_dir():
        return None
    return stack.enter_context(open_store(place.wanted, place.wanted))


def find_session(
    place: RunsPlace, name: str, pipeline: str, stack: ExitStack
) -> tuple[RunStore, str]:
    """The session with this id or id suffix; `latest` is the newest on the pipeline.

    A session that was opened and left without input is `latest` only if there is no other.

    Raises:
        UsageError: there is no such session, or more than one.
    """
    store = session_store(place, stack)
    stores = [] if store is None else [store]
    found = newest_of(stores, pipeline) if name == LATEST else newest_first(stores)
    ids = [id for id, _ in found]
    if store is None or not ids:
        raise UsageError("there are no sessions to resume", hint=ANEW)
    if name == LATEST:
        return store, next((id for id in ids if not _is_empty(store, id)), ids[0])
    id = find_id(ids, name, "session")
    if id is None:
        raise UsageError(f"unknown session `{name}`", hint=did_you_mean(name, ids) or ANEW)
    return store, id


def past_sessions(place: RunsPlace, stack: ExitStack) -> list[PastSession]:
    """Every kept session, the newest first."""
    store = session_store(place, stack)
    return [] if store is None else [_told(store, id) for id, _ in newest_first([store])]


def _is_empty(store: RunStore, id: str) -> bool:
    try:
        with JournalReading(_open(store, id), id) as reading:
            return all(record.get("type") in _OF_ITSELF for record in reading)
    except (AishError, OSError):
        # The error is reported when the session is resumed.
        return False


def _told(store: RunStore, id: str) -> PastSession:
    found = PastSession(id, began(id), 0, "", empty=True)
    try:
        with JournalReading(_open(store, id), id) as reading:
            for record in reading:
                found = _with(found, record)
    except (AishError, OSError) as error:
        return replace(found, first=f"cannot be read: {error}", empty=False)
    return found


def _with(found: PastSession, record: Any) -> PastSession:
    kind = record.get("type")
    if kind in _OF_ITSELF:
        return found
    if kind == "question.asked" and not found.first:
        return replace(found, first=_first_line(str(record.get("text"))), empty=False)
    if kind == "turn.added" and _role(record) == "user":
        return replace(found, questions=found.questions + 1, empty=False)
    return replace(found, empty=False) if found.empty else found


def _open(store: RunStore, id: str) -> BinaryIO:
    return os.fdopen(store.open_journal(id), "rb", buffering=1 << 18)


def _role(record: Any) -> object:
    return record["added"].get("role")


def _first_line(text: str) -> str:
    return shorten(next(iter(text.strip().splitlines()), ""), _SHORT)


_SECRET = re.compile(r"<secret:[^<>]*>")
_ENDED = "[aish] interrupted: the session had ended"
_TAKEN_BACK = (
    "the last question had no answer when the session ended: it is taken back, and `:retry`"
    " asks it again"
)


@frozen
class Earlier:
    """The state that the earlier parts of a session have left.

    `outputs` of local commands (L14) and what is `attached` wait for the next question. `questions`
    are those of the conversation, `taken_back` is one that was removed and can be repeated. `model`
    is the alias of the last model, `seconds` the time that answers took. `connected` are servers
    that a command had added, as `:mcp connect` and `:export` know them. `last_seq` is the number of
    the last record of the journal. `unanswered` are the questions about its calls that were open
    when it was killed. `denied` are globs that the person denied.
    """

    folder: RunFolder
    resume_state: ResumeState
    turns: tuple[Turn, ...]
    outputs: tuple[str, ...]
    attached: tuple[Enclosure, ...]
    questions: tuple[tuple[UserTurn, Asked], ...]
    taken_back: Asked | None
    model: str | None
    lines: int
    ran: int
    seconds: float
    last_seq: int
    journal: HeldJournal
    unanswered: tuple[PastQuestion, ...] = ()
    denied: tuple[str, ...] = ()
    connected: tuple[ServerEntry, ...] = ()
    notices: tuple[str, ...] = ()

    def go_on(self) -> Sink:
        """The journal, opened for appending."""
        return self.journal.go_on()

    def events(self, kinds: frozenset[str], last: int) -> Iterator[Stamped]:
        """Its events of these types, up to the number `last`."""
        with read_journal(self.journal.path) as reading:
            for record in reading:
                if record.get("type") not in kinds:
                    continue
                stamped = event_of(record)
                if stamped is not None and stamped.seq <= last:
                    yield stamped

    def carry_into(self, session: Session) -> None:
        """Restore a session from this state; what could not be restored is reported."""
        session.begin(self.turns, self.questions)
        if self.taken_back is not None:
            session.asked, session.stands = self.taken_back, False
        for glob in self.denied:
            # Approvals have to be given again; denials remain (X1).
            session.open.box.runtime.gate.add_rule("deny", RuleEntry(tool=glob))
        of_file = {server.entry.alias for server in session.open.plan.servers}
        session.connected |= {
            entry.alias: entry for entry in self.connected if entry.alias not in of_file
        }
        session.lines, session.seconds = self.lines, self.seconds
        if session.open.options.model is None:
            self._choose(session)
        for text in self.outputs:
            session.buffer.restore(text)
        session.attached.restore(self.attached)
        for lost in self.notices:
            session.emit(Notice(NOWHERE, "warning", "not_recalled", lost))
        self._end_last(session)

    def _choose(self, session: Session) -> None:
        if self.model in session.open.plan.pipeline.models:
            session.model = self.model
        elif self.model is not None:
            text = f"the model `{self.model}`, which was used last, is no longer in the file"
            session.emit(Notice(NOWHERE, "warning", "not_recalled", text))

    def _end_last(self, session: Session) -> None:
        """Leave a conversation that can be continued: the session may have been killed."""
        last = self.turns[-1] if self.turns else None
        if isinstance(last, UserTurn):
            session.put_back(list(self.turns[:-1]), "taken back")
            session.emit(Notice(NOWHERE, "warning", "not_recalled", _TAKEN_BACK))
        elif isinstance(last, ToolTurn):
            session.conversation().add(AssistantTurn(_ENDED))


def find_earlier(
    pipeline: Pipeline,
    place: RunsPlace,
    name: str,
    mask: Callable[[str], str],
    stack: ExitStack,
) -> Earlier:
    """The session with this id, or the newest; it is locked from now on.

    Raises:
        UsageError: there is none, another process writes it, or it belongs to another pipeline.
        JournalError: its journal is damaged.
    """
    store, id = find_session(place, name, pipeline.name, stack)
    path = (store.path / id).resolve()
    try:
        journal = stack.enter_context(hold_journal(path))
    except BeingWrittenError as error:
        said = f"this session is open elsewhere, by {error.writer}"
        raise UsageError(said, where=id, hint=f"close it there first; {ANEW}") from error
    folder = reopen_folder(path, mask)
    scan = _Scan(path, folder)
    with read_journal(journal.path) as reading:
        for record in reading:
            scan.take(record)
        if reading.torn is not None:
            scan.lost(torn_tail(reading.torn))
    if scan.pipeline != pipeline.name:
        said = f"this is a session on `{scan.pipeline}`, not on `{pipeline.name}`"
        hint = f"`aish shell FILE --resume {id}` with the file of `{scan.pipeline}` resumes it"
        raise UsageError(said, where=id, hint=hint)
    return scan.earlier(id, journal)


class _Scan:
    """The state of a session after the records so far."""

    def __init__(self, path: Path, folder: RunFolder) -> None:
        self.pipeline: object = None
        self._path = path
        self._folder = folder
        self._recalling = Restorer(self._read)
        self._asking = AskedBefore()
        self._spending = Spending()
        self._denials: Counter[str] = Counter()
        self._denied: list[str] = []
        self._connected: dict[str, ServerEntry] = {}
        self._model: str | None = None
        self._lines = self._ran = self._seq = 0
        self._seconds = 0.0
        self._lost: list[str] = []
        self._context_tag: str | None = None
        self._unanswered: dict[str, PastQuestion] = {}
        self._takes: Mapping[str, Callable[[Any], None]] = {
            "run.started": self._started,
            "step.started": self._step,
            "step.finished": self._ended,
            "model.chosen": self._chosen,
            "turn.finished": self._answered,
            "tool.decided": self._decided,
            "tool.started": self._called,
            "tool.finished": self._spending.call_ended,
            "rule.added": self._ruled,
            "server.connected": self._connected_to,
            "pipeline.spent": self._ran_elsewhere,
            "approval.asked": self._approval_asked,
            "approval.answered": self._approval_answered,
            CONTEXT_FILES: self._showed_files,
        }

    def take(self, record: Any) -> None:
        """Add a record."""
        self._seq = record["seq"]
        self._spending.now(record["time"])
        taken = self._takes.get(record.get("type"))
        if taken is not None:
            taken(record)
        self._asking.take(record)
        self._recalling.take(record)

    def _showed_files(self, record: Any) -> None:
        self._context_tag = str(record.get("tag"))

    def lost(self, said: str) -> None:
        """Record what could not be restored; `said` is a sentence."""
        self._lost.append(said)

    def earlier(self, id: str, journal: HeldJournal) -> Earlier:
        """The complete state."""
        recalled, asking = self._recalling.end(), self._asking
        lost = dict.fromkeys((*self._lost, *recalled.lost))
        attached = asking.attached(self._read, lost.setdefault)
        turns = tuple(recalled.history.turns)
        resume_state = ResumeState(
            id,
            spent=self._spending.spent(),
            denials=self._denials,
            calls=self._spending.calls,
            context_tag=self._context_tag,
        )
        return Earlier(
            folder=self._folder,
            resume_state=resume_state,
            turns=turns,
            outputs=asking.outputs,
            attached=attached,
            questions=tuple(asking.questions(turns)),
            taken_back=asking.taken_back,
            model=self._model,
            denied=tuple(dict.fromkeys(self._denied)),
            connected=tuple(self._connected.values()),
            lines=self._lines,
            ran=self._ran,
            seconds=self._seconds,
            last_seq=self._seq,
            journal=journal,
            unanswered=tuple(self._unanswered.values()),
            notices=tuple(lost),
        )

    def _started(self, record: Any) -> None:
        self.pipeline = record.get("pipeline")
        self._spending.begin()

    def _step(self, record: Any) -> None:
        kind, _, number = str(record.get("step")).rpartition("-")
        if number.isdecimal():
            if kind == "line":
                self._lines = max(self._lines, int(number))
            else:
                self._ran = max(self._ran, int(number))

    def _ended(self, record: Any) -> None:
        if str(record.get("step")).startswith("line-"):
            self._seconds += record.get("seconds") or 0.0

    def _answered(self, record: Any) -> None:
        self._spending.answer(str(record.get("step")), _usage(record), record.get("cost_usd"))

    def _chosen(self, record: Any) -> None:
        self._model = record.get("model")

    def _decided(self, record: Any) -> None:
        if record.get("verdict") in REFUSED:
            self._denials[str(record.get("tool"))] += 1

    def _called(self, record: Any) -> None:
        self._spending.call(str(record.get("step")))

    def _ran_elsewhere(self, record: Any) -> None:
        turns, calls = record.get("turns") or 0, record.get("tool_calls") or 0
        self._spending.elsewhere(turns, calls, _usage(record), record.get("cost_usd"))

    def _approval_asked(self, record: Any) -> None:
        place = Place(*(record.get(key) for key in PLACE))
        # Until when it is open does not matter: the call that it was about is not made any more.
        self._unanswered[record["id"]] = PastQuestion(record["id"], place, record["digest"], None)

    def _approval_answered(self, record: Any) -> None:
        self._unanswered.pop(record["id"], None)

    def _ruled(self, record: Any) -> None:
        if record.get("list") == "deny":
            self._denied.append(str(record.get("tool")))

    def _connected_to(self, record: Any) -> None:
        event = event_of(record)
        if event is None or not isinstance(connected := event.event, ServerConnected):
            return
        self._connected.pop(connected.alias, None)
        if _SECRET.search(" ".join((connected.url or "", *connected.command))) is None:
            # Of a masked secret only the name is known.
            self._connected[connected.alias] = ServerEntry(
                alias=connected.alias,
                url=connected.url,
                command=connected.command,
                cwd=None if connected.cwd is None else Path(connected.cwd),
                auth_env=connected.auth_env,
                required=False,
            )

    def _read(self, name: str) -> bytes | None:
        return kept_file(self._path, name)


def _usage(record: Any) -> Usage:
    told: Any = record.get("usage") or {}
    return Usage(told.get("input"), told.get("output"))
