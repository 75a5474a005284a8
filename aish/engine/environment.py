"""External dependencies of a run."""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Literal, Protocol

from aish.core.errors import AishError, ExitCode
from aish.core.events import CassetteInfo, CassetteUse, FilesChanged, Notice
from aish.core.frozen import frozen
from aish.core.json import JsonObject
from aish.core.protocols import Approver, Clock, Emit, Follow
from aish.core.tools import ToolResult
from aish.engine.final import FinalState
from aish.engine.run_folder import RunFolder
from aish.engine.run_values import SettableValue
from aish.policy.gate import Reviewed, Staging
from aish.policy.questions import AnswerRecording, Questions

if TYPE_CHECKING:
    # Not every run imports these.
    from aish.engine.plan.credentials import ResolvedModel
    from aish.engine.resume_state import ResumeState
    from aish.journal.batches import RecordedBatch
    from aish.mcp.transports.adapter import CassetteAdapter
    from aish.models.retry import RetryTiming
    from aish.models.transport import MakeClient
    from aish.net.renewed_secret import RenewedSecret
    from aish.policy.flow import RunFlow


_TAG_BYTES = 6


@frozen
class RecordingEnd:
    """The final state and the result of a cassette at the end of a run."""

    errors: tuple[AishError, ...]
    use: CassetteUse | None


class Recorder(Protocol):
    """The cassette of a run: `RunRecorder` of `features.recording`, which few runs import."""

    @property
    def offline(self) -> bool:
        """True if everything comes from a cassette, so that network access is forbidden."""

    @property
    def asks_only_models(self) -> bool:
        """True if everything but models does, so that these alone may be reached."""

    @property
    def info(self) -> CassetteInfo: ...

    @property
    def files(self) -> frozenset[Path]:
        """The resolved paths of the cassette, and of what is written in its place."""

    def spans(self, text: str) -> Iterable[tuple[int, int, str]]:
        """Positions of folders that are renamed in the cassette: start, end, name."""

    def followed(self, emit: Emit) -> Emit:
        """The same `emit`; if another model answers, its actions are collected."""

    def unstarted(self, model: "ResolvedModel") -> "ResolvedModel | None":
        """An embedded model as needed by a replay; `None` if it has to be started."""

    def make_client(self, model: "ResolvedModel", make: "MakeClient") -> "MakeClient":
        """Opens the connections of a model through the cassette, real ones by `make`."""

    def retry_timing(self) -> "RetryTiming":
        """The waits of models before a retry."""

    def server_adapter(self) -> "CassetteAdapter | None":
        """Records or replays servers; `None` if they are only called live."""

    async def command(
        self, step: str, arguments: JsonObject, run: Callable[[JsonObject], Awaitable[ToolResult]]
    ) -> ToolResult:
        """The result of a local command, recorded or replayed; `run` executes it.

        Raises:
            CassetteMissError: the cassette does not hold this command.
        """

    @property
    def context_tag(self) -> str | None:
        """The tag of the recorded run in its blocks of changed files, if it has any."""

    async def context_files(
        self, step: str, asked: JsonObject, read: Callable[[], Awaitable[JsonObject | None]]
    ) -> JsonObject | None:
        """Record or replay the files that a model is shown; `read` finds them on disk.

        `None` if nothing is shown.

        Raises:
            CassetteMissError: the cassette does not hold the files of this prompt.
        """

    @property
    def approvals(self) -> AnswerRecording:
        """The answers about calls, recorded or replayed."""

    def end(self, state: FinalState, emit: Emit) -> RecordingEnd:
        """Write the cassette, or report how well the replayed one matches."""


ControlSubject = Literal["run", "shell", "serve"]
ControlCommand = Callable[[JsonObject, str], Awaitable[JsonObject]]


@frozen
class RunHandle:
    """Control of a run by another program: answer questions, add events, end it as a signal.

    `interrupt` takes the exit code of the signal; after the first time it does nothing. `values`
    are what may be changed, by path. A shell also has `commands` by name (`say`, `connect`,
    `reset`), each called with its checked arguments and who sends them, and returns what is
    answered; `replace_conversation` gets the entries of a conversation in the same way. Both raise
    `AishError` for what cannot be done. A server also has commands (`reload`), and `caller_waits`:
    the client of a question may be gone, or have been told to call again. Its `forget_sources`
    gets a client and who asks for it, and returns what that client had read. `approver` asks at the
    terminal of the run.
    """

    questions: Questions
    emit: Emit
    interrupt: Callable[[ExitCode], None]
    values: Mapping[str, SettableValue] = field(default_factory=dict)
    subject: ControlSubject = "run"
    commands: Mapping[str, ControlCommand] = field(default_factory=dict)
    replace_conversation: Callable[[Sequence[JsonObject], str], Awaitable[None]] | None = None
    caller_waits: Callable[[str], bool] | None = None
    forget_sources: Callable[[str, str], Sequence[str]] | None = None
    approver: Approver | None = None


Opening = Callable[[Sequence[str]], None]
"""Tells people what is done before a run has started."""


def mask_opening(opening: Opening | None, mask: Callable[[str], str]) -> Opening | None:
    """Mask secrets in what `opening` is told."""
    return None if opening is None else lambda doing: opening([mask(line) for line in doing])


class FilesWatch(Protocol):
    """Finds out what a run changes in files: `FileChanges` of `features`. Neither fails."""

    async def begin(self) -> None: ...

    async def end(self) -> Sequence[FilesChanged]: ...


@frozen
class RunEnvironment:
    """The surroundings of a run: sinks of events, approver, clock, folders.

    `recorder` is the run's cassette, if it has one: opened by `open_recorder`.
    `resume_state` is what a resumed run has done before, `questions` are those of the whole run.
    `staging` is where calls are put down that a rule stages, `reviewed` what a person applies of
    them. `own_files` are the files that the runs around a sub-pipeline are made of. `tag` marks
    what the run says of files that have changed, so that no text from outside can imitate it.
    `notices` are told at the start, and `attach` gets the handle of the run before that.
    `before_pause` is awaited before a run ends that waits for answers. `follow` tells others of the
    events as its sinks get them. `opening` is told what is done before `run.started`, and nothing
    once that is over; there `prefix` precedes the names of a sub-pipeline's servers. `keys` are
    those of the whole run that are made, by what makes them, `batches` all that it has submitted.
    `note_idle` is told how many more or fewer tasks wait for batches. `flow` follows the sources
    of text, where a file of the run asks for it; `around` is that of the server which executes it.
    `changes` finds out which files the run changes, where something shows that.
    """

    emit: Emit
    approver: Approver
    clock: Clock
    folder: RunFolder
    environ: Mapping[str, str]
    recorder: Recorder | None = None
    resume_state: "ResumeState | None" = None
    staging: Staging | None = None
    reviewed: Reviewed | None = None
    own_files: frozenset[Path] = frozenset()
    questions: Questions | None = None
    notices: tuple[Notice, ...] = ()
    attach: Callable[[RunHandle], None] | None = None
    before_pause: Callable[[], Awaitable[None]] | None = None
    follow: Follow | None = None
    opening: Opening | None = None
    prefix: str = ""
    tag: str = field(default_factory=lambda: token_hex(_TAG_BYTES))
    keys: "dict[tuple[object, ...], RenewedSecret]" = field(default_factory=dict)
    batches: "list[RecordedBatch]" = field(default_factory=list)
    note_idle: Callable[[int], None] = lambda _: None
    flow: "RunFlow | None" = None
    around: "RunFlow | None" = None
    changes: FilesWatch | None = None

    @property
    def context_tag(self) -> str:
        """The tag of the run, taken from its earlier part or its cassette if it has one."""
        earlier = None if self.resume_state is None else self.resume_state.context_tag
        held = None if self.recorder is None else self.recorder.context_tag
        return earlier or held or self.tag

    def with_emit(self, emit: Emit) -> "RunEnvironment":
        return replace(self, emit=emit)
