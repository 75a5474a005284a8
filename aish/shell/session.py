"""A session: the conversation, what is open, and what a line of the person does with them."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import field
from typing import Protocol

from aish.config.server_entry import ServerEntry
from aish.errors import AishError, ExitCode, UsageError
from aish.loop.conversation import Conversation
from aish.loop.equipment import Bound
from aish.loop.turn_teller import TurnTeller
from aish.run.final import failure_of
from aish.run.folder import RunFolder, RunsPlace
from aish.run.metering import RunMeter
from aish.run.options import RunOptions
from aish.run.plan import Plan
from aish.run.records import StepRecord
from aish.run.resources import Toolbox
from aish.run.servers import LiveServers
from aish.run.surroundings import AnyCarried, Surroundings
from aish.shell.following import Following
from aish.shell.interrupts import Interrupts
from aish.shell.lines import Lines
from aish.shell.local.shell import LocalShell
from aish.shell.models import Models
from aish.shell.norris import Norris
from aish.shell.waiting import SessionBuffer
from aish.vocab.event_parts import Failure, Place, StepStatus
from aish.vocab.events import Event, Notice
from aish.vocab.frozen import frozen, slotted
from aish.vocab.messages import History, SystemTurn, Turn
from aish.vocab.protocols import Clock, Emit
from aish.vocab.tools import Media, Tool

OutletsFor = Callable[[Plan, RunFolder, Clock], AbstractContextManager[Emit]]
"""Shows another run here, with a journal of its own."""


class Out(Protocol):
    """Where a session's own words go, beside its events."""

    def show(self, text: str) -> None:
        """Lines of a command's answer; made fit for where they go."""
        ...

    def error(self, error: AishError) -> None:
        """What could not be done, and what to do next."""
        ...

    def rows(self, rows: Sequence[Sequence[str]]) -> None:
        """Rows in columns, as wide as there is room."""
        ...


class Described(Protocol):
    """A command, as `:help` tells of it."""

    @property
    def title(self) -> str:
        """As it is typed."""
        ...

    @property
    def summary(self) -> str:
        """What it does, in a line."""
        ...

    @property
    def details(self) -> str:
        """What else there is to know."""
        ...


@frozen
class Opened:
    """What a session holds open."""

    plan: Plan
    options: RunOptions
    around: Surroundings
    box: Toolbox
    servers: LiveServers
    models: Models
    meter: RunMeter
    lines: Lines
    out: Out
    interrupts: Interrupts
    local: LocalShell
    frame: str
    """The static part of the system prompt (S3)."""
    attended: bool
    commands: Mapping[str, Described]
    place: RunsPlace
    outlets_for: OutletsFor
    carried: AnyCarried | None = None


@slotted
class Attached:
    """Texts and pictures that go out with the next question, and what they are called."""

    names: list[str] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    media: list[Media] = field(default_factory=list)

    def clear(self) -> None:
        """They have gone out."""
        self.names.clear()
        self.texts.clear()
        self.media.clear()


@frozen
class Asked:
    """A question, and what went out with it: output that `waited` (L14), and attachments."""

    text: str
    waited: str = ""
    texts: tuple[str, ...] = ()
    media: tuple[Media, ...] = ()
    names: tuple[str, ...] = ()


class Session:
    """The state that lines and commands change."""

    def __init__(
        self, opened: Opened, following: Following, heard: TurnTeller, buffer: SessionBuffer
    ) -> None:
        self.open = opened
        self.following = following
        self.heard = heard
        self.buffer = buffer
        self.history = History()
        self.model = opened.plan.default_model
        self.attached = Attached()
        self.connected: dict[str, ServerEntry] = {}
        """Servers that were connected by a command, by alias."""
        self.norris = Norris()
        self.over = False
        """Set by `:quit`."""
        self.resume: str | None = None
        """The session that is gone on with after this one."""
        self.asked: Asked | None = None
        """The last question, for `:retry`."""
        self.stands = False
        """Whether it is in the conversation."""
        self.records: list[StepRecord] = []
        """Lines that did not go well."""
        self.seconds = 0.0
        """How long answers took; a session's `limits.time` counts nothing else."""
        self.bound: Bound | None = None
        self.lines = 0

    def begin(self, turns: list[Turn] | None = None) -> None:
        """Begin a conversation, or go on with `turns` as they were journaled."""
        self.history = History(list(turns or ()))
        self.bound = self._window()

    def emit(self, event: Event) -> None:
        """Tell of something."""
        self.open.around.emit(event)

    def conversation(self) -> Conversation:
        """What adds to the history; each addition is journaled."""
        return Conversation(self.history, self.heard)

    def prepare(self) -> None:
        """See to it that the conversation begins with the system prompt."""
        if not self.history.turns and self.open.frame:
            self.conversation().add(SystemTurn(self.open.frame))

    def replace(self, turns: list[Turn], reason: str) -> None:
        """Go on with another conversation."""
        self.conversation().rewrite(turns, reason)
        self.bound = self._window()

    def put_back(self, turns: list[Turn], reason: str) -> None:
        """Go on with `turns`, in which the last question is not; what went out with it waits."""
        self.replace(turns, reason)
        self.give_back()

    def give_back(self) -> None:
        """Let what went out with the last question wait for the next one."""
        asked = self.asked
        if asked is None or not self.stands:
            return
        self.stands = False
        if asked.waited:
            self.buffer.add(asked.waited)
        self.attached.names[:0] = asked.names
        self.attached.texts[:0] = asked.texts
        self.attached.media[:0] = asked.media

    def send(self, text: str) -> Asked:
        """A question with all that waits to go out with it; nothing waits any more then."""
        waited = self.buffer.user_turn("").text
        of = self.attached
        asked = Asked(text, waited, tuple(of.texts), tuple(of.media), tuple(of.names))
        of.clear()
        self.asked, self.stands = asked, True
        return asked

    def next_line(self) -> Place:
        """The place of the next question's events."""
        self.lines += 1
        place = Place(f"line-{self.lines}")
        self.heard.place = place
        return place

    def note_failure(self, status: StepStatus, failure: Failure | None, code: ExitCode) -> None:
        """A line did not go well, which counts for the exit code where nobody is there."""
        record = StepRecord(
            id=f"line-{self.lines}", kind="prompt", status=status, failure=failure, exit_code=code
        )
        self.records.append(record)

    def tell_failure(self, error: AishError) -> None:
        """A line could not be done."""
        self.open.out.error(error)
        # What was typed wrong is no broken file: something may well have been contacted.
        usage = error.exit_code is ExitCode.USAGE
        code = ExitCode.FAILED if usage else error.exit_code
        self.note_failure("failed", failure_of(error), code)

    def model_alias(self) -> str:
        """The model that answers.

        Raises:
            UsageError: none is chosen.
        """
        if self.model is None:
            hint = "`:model ALIAS` chooses one, and `model:` in the file the first"
            raise UsageError("no model is chosen", hint=hint)
        return self.model

    def tools(self) -> tuple[Tool, ...]:
        """What the model is shown."""
        return self.open.box.tools.listed()

    def watch_keys(self) -> Callable[[], None] | None:
        """What any key does while a line is taken: it halts what goes on by itself (S5)."""
        return self._halt if self.norris.on else None

    def _halt(self) -> None:
        self.norris.left = 0
        self.emit(Notice(self.heard.place, "warning", "norris", "a key was pressed: norris is off"))
        self.open.interrupts.interrupt()

    def _window(self) -> Bound | None:
        context = self.open.plan.pipeline.context
        if context.max_tokens is None:
            return None
        from aish.loop.window import Window

        return Window(context)
