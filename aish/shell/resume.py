"""Kept sessions: found, listed with a line each, and resumed exactly where they ended."""

import os
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

from aish.agent.restore import Restorer
from aish.config.model import Pipeline, ServerEntry
from aish.core.errors import AishError, UsageError, did_you_mean
from aish.core.events import (
    NOWHERE,
    ApprovalAnswered,
    ApprovalAsked,
    ContextFiles,
    Event,
    ModelChosen,
    Notice,
    PipelineSpent,
    RuleAdded,
    RunStarted,
    ServerConnected,
    Stamped,
    StepFinished,
    StepStarted,
    ToolDecided,
    ToolFinished,
    ToolStarted,
    TurnFinished,
)
from aish.core.frozen import frozen
from aish.core.messages import AssistantTurn, Spent, ToolTurn, UserTurn
from aish.core.phrases import shorten
from aish.core.rules import RuleEntry
from aish.engine.limits import Spending, answer_usage
from aish.engine.resume_state import ResumeState
from aish.engine.run_folder import RunFolder, RunsPlace, read_kept, reopen_folder
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
from aish.features.resume.scan import GivenText, RunTime
from aish.journal.reader import JournalReading, parse_event, read_journal, torn_tail
from aish.journal.writer import HeldJournal, hold_journal
from aish.net.oauth.settings import OAuthSettings
from aish.output.event_log import Sink
from aish.policy.questions import PastQuestion
from aish.shell.pending_input import AskedBefore
from aish.shell.session import ShellSession
from aish.system.file_lock import BeingWrittenError

_SHORT = 59
_OF_ITSELF = frozenset({"run.started", "model.chosen", "notice", "control.called", "run.finished"})
"""The records of a session in which nobody did anything."""
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
    """
    store = session_store(place, stack)
    stores = [] if store is None else [store]
    sessions = newest_of(stores, pipeline) if name == LATEST else newest_first(stores)
    ids = [id for id, _ in sessions]
    if store is None or not ids:
        raise UsageError("there are no sessions to resume", hint=ANEW)
    if name == LATEST:
        return store, next((id for id in ids if not _is_empty(store, id)), ids[0])
    id = find_id(ids, name, "session")
    if id is None:
        raise UsageError(f"unknown session `{name}`", hint=did_you_mean(name, ids) or ANEW)
    return store, id


def past_sessions(place: RunsPlace, stack: ExitStack) -> list[PastSession]:
    store = session_store(place, stack)
    return [] if store is None else [_tell(store, id) for id, _ in newest_first([store])]


def _is_empty(store: RunStore, id: str) -> bool:
    try:
        with JournalReading(_open(store, id), id) as reading:
            return all(record.get("type") in _OF_ITSELF for record in reading)
    except (AishError, OSError):
        # The error is reported when the session is resumed.
        return False


def _tell(store: RunStore, id: str) -> PastSession:
    session = PastSession(id, began(id), 0, "", empty=True)
    try:
        with JournalReading(_open(store, id), id) as reading:
            for record in reading:
                session = _with(session, record)
    except (AishError, OSError) as error:
        return replace(session, first=f"cannot be read: {error}", empty=False)
    return session


def _with(session: PastSession, record: Any) -> PastSession:
    kind = record.get("type")
    if kind in _OF_ITSELF:
        return session
    if kind == "question.asked" and not session.first:
        return replace(session, first=_first_line(str(record.get("text"))), empty=False)
    if kind == "turn.added" and record["added"].get("role") == "user":
        return replace(session, questions=session.questions + 1, empty=False)
    return replace(session, empty=False) if session.empty else session


def _open(store: RunStore, id: str) -> BinaryIO:
    return os.fdopen(store.open_journal(id), "rb", buffering=1 << 18)


def _first_line(text: str) -> str:
    return shorten(next(iter(text.strip().splitlines()), ""), _SHORT)


_SECRET = re.compile(r"<secret:[^<>]*>")
_ENDED = "[aish] interrupted: the session had ended"
_TAKEN_BACK = (
    "the last question had no answer when the session ended: it is taken back, and `:retry`"
    " asks it again"
)


class EarlierParts:
    """The state that the earlier parts of a session have left, after the records so far.

    `model` is the alias of the last model, `seconds` the time that answers took. `connected` are
    servers that a command had added, as `:mcp connect` and `:export` know them. `last_seq` is the
    number of the last record of the journal. `unanswered` are the questions about its calls that
    were open when it was killed. `denied` are globs that the person denied. `lost` are sentences
    about what could not be restored.
    """

    def __init__(
        self, id: str, path: Path, folder: RunFolder, journal: HeldJournal, *, follows: bool
    ) -> None:
        self.folder, self.journal = folder, journal
        self.pipeline: str | None = None
        self.model: str | None = None
        self.lines = self.ran = self.last_seq = 0
        self.seconds = 0.0
        self.unanswered: dict[str, PastQuestion] = {}
        self.denied: dict[str, None] = {}
        self.connected: dict[str, ServerEntry] = {}
        self.lost: dict[str, None] = {}
        self._id, self._path = id, path
        self.given = GivenText()
        self._recalling = Restorer(self._read, follows=follows)
        self._asking = AskedBefore()
        self._spending = Spending()
        self._time = RunTime()
        self._context_tag: str | None = None

    def take(self, record: Any) -> None:
        self.last_seq = record["seq"]
        self._time.before, self._time.last = self._time.last, record["time"]
        stamped = parse_event(record)
        if stamped is not None:
            self._follow(stamped.event)
            self._asking.take(stamped.event)
        self._recalling.take(record)
        self.given.take(record)

    def end(self) -> None:
        """Restore the conversation, after the last record.

        `outputs` of local commands and what is `attached` wait for the next question;
        `questions` are those of the conversation, `taken_back` is one that was removed and can be
        repeated.
        """
        asking, spending = self._asking, self._spending
        self.turns = tuple(self._recalling.end().turns)
        self.lost |= self._recalling.lost
        self.attached = asking.read_attachments(self._read, self.lost.setdefault)
        self.outputs, self.taken_back = asking.outputs, asking.taken_back
        self.questions = tuple(asking.questions(self.turns))
        self.resume_state = ResumeState(
            self._id,
            spent=replace(spending.whole, seconds=self._time.seconds),
            denials=spending.denials,
            calls=spending.calls,
            context_tag=self._context_tag,
        )

    def go_on(self) -> Sink:
        return self.journal.go_on()

    def events(self, kinds: frozenset[str], last: int) -> Iterator[Stamped]:
        with read_journal(self.journal.path) as reading:
            for record in reading:
                if record.get("type") not in kinds:
                    continue
                stamped = parse_event(record)
                if stamped is not None and stamped.seq <= last:
                    yield stamped

    def carry_into(self, session: ShellSession) -> None:
        """Restore a session from this state, and report the parts that could not be restored."""
        session.begin(self.turns, self.questions)
        if self.taken_back is not None:
            session.asked, session.stands = self.taken_back, False
        for glob in self.denied:
            # Approvals have to be given again; denials remain.
            session.open.box.runtime.gate.add_rule("deny", RuleEntry(tool=glob))
        of_file = {server.entry.alias for server in session.open.plan.servers}
        session.connected |= {
            entry.alias: entry for entry in self.connected.values() if entry.alias not in of_file
        }
        session.lines, session.seconds = self.lines, self.seconds
        if session.open.options.model is None:
            self._choose(session)
        for waits in self.outputs:
            session.buffer.restore(waits)
        session.attached.restore(self.attached)
        for lost in self.lost:
            session.emit(Notice(NOWHERE, "warning", "not_recalled", lost))
        last = self.turns[-1] if self.turns else None
        if isinstance(last, UserTurn):
            session.put_back(list(self.turns[:-1]), "taken back")
            session.emit(Notice(NOWHERE, "warning", "not_recalled", _TAKEN_BACK))
        elif isinstance(last, ToolTurn):
            session.conversation().add(AssistantTurn(_ENDED))

    def _choose(self, session: ShellSession) -> None:
        if self.model in session.open.plan.pipeline.models:
            session.model = self.model
        elif self.model is not None:
            text = f"the model `{self.model}`, which was used last, is no longer in the file"
            session.emit(Notice(NOWHERE, "warning", "not_recalled", text))

    def _follow(self, event: Event) -> None:  # ruff: ignore[complex-structure, too-many-branches] - a union
        step = event.place.step or ""
        match event:
            case RunStarted():
                self.pipeline = event.pipeline
                self._time.begin()
            case StepStarted():
                kind, _, number = step.rpartition("-")
                if number.isdecimal() and kind == "line":
                    self.lines = max(self.lines, int(number))
                elif number.isdecimal():
                    self.ran = max(self.ran, int(number))
            case StepFinished() if step.startswith("line-"):
                self.seconds += event.seconds
            case TurnFinished():
                self._spending.add(answer_usage(event.usage, event.cost_usd), step)
                self._spending.served.add(step, event.model, event.served)
            case ToolStarted():
                self._spending.add(Spent(tool_calls=1), step)
            case PipelineSpent():
                used = answer_usage(event.usage, event.cost_usd, event.turns)
                self._spending.add(replace(used, tool_calls=event.tool_calls), None)
            case ToolDecided() | ToolFinished():
                self._spending.take(event)
            case ModelChosen():
                self.model = event.model
            case ApprovalAsked():
                # Until when it is open does not matter: the call is not made any more.
                question = PastQuestion(event.id, event.place, event.digest, None)
                self.unanswered[event.id] = question
            case ApprovalAnswered():
                self.unanswered.pop(event.id, None)
            case RuleAdded(list="deny"):
                self.denied[event.tool] = None
            case ServerConnected():
                self.connected.pop(event.alias, None)
                if _SECRET.search(" ".join((event.url or "", *event.command))) is None:
                    # Of a masked secret only the name is known.
                    self.connected[event.alias] = ServerEntry(
                        alias=event.alias,
                        url=event.url,
                        command=event.command,
                        cwd=None if event.cwd is None else Path(event.cwd),
                        auth_env=event.auth_env,
                        oauth=OAuthSettings(login=True) if event.login else None,
                        required=False,
                    )
            case ContextFiles():
                self._context_tag = event.tag
            case _:
                pass

    def _read(self, name: str) -> bytes | None:
        return read_kept(self._path, name)


def find_earlier(
    pipeline: Pipeline, place: RunsPlace, name: str, mask: Callable[[str], str], stack: ExitStack
) -> EarlierParts:
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
        message = f"this session is open elsewhere, by {error.writer}"
        raise UsageError(message, where=id, hint=f"close it there first; {ANEW}") from error
    earlier = EarlierParts(
        id, path, reopen_folder(path, mask), journal, follows=pipeline.flows.is_used
    )
    with read_journal(journal.path) as reading:
        for record in reading:
            earlier.take(record)
        if reading.torn is not None:
            earlier.lost[torn_tail(reading.torn)] = None
    if earlier.pipeline != pipeline.name:
        message = f"this is a session on `{earlier.pipeline}`, not on `{pipeline.name}`"
        hint = f"`aish shell FILE --resume {id}` with the file of `{earlier.pipeline}` resumes it"
        raise UsageError(message, where=id, hint=hint)
    earlier.end()
    return earlier
