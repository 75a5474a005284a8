"""What a run is given from outside."""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from aish.core.errors import AishError
from aish.core.events import CassetteInfo, CassetteUse
from aish.core.frozen import frozen
from aish.core.json import JsonObject
from aish.core.protocols import Approver, Clock, Emit
from aish.core.tools import ToolResult
from aish.engine.final import FinalState
from aish.engine.run_folder import RunFolder
from aish.policy.gate import Reviewed, Staging

if TYPE_CHECKING:
    # Not every run imports these.
    from aish.engine.plan.credentials import ResolvedModel
    from aish.engine.resume_state import ResumeState
    from aish.mcp.transports.adapter import CassetteAdapter
    from aish.models.retry import RetryTiming
    from aish.models.transport import MakeClient


@frozen
class RecordingEnd:
    """What the end of a cassette adds to a run's final state, and what became of it."""

    errors: tuple[AishError, ...]
    use: CassetteUse | None


class Recorder(Protocol):
    """The cassette of a run, `recording.RunRecorder`: a plain run imports nothing of cassettes."""

    @property
    def offline(self) -> bool:
        """Whether everything comes from a cassette, so that nothing may be reached (C6)."""
        ...

    @property
    def info(self) -> CassetteInfo:
        """For `run.started`."""
        ...

    def spans(self, text: str) -> Iterable[tuple[int, int, str]]:
        """Where folders stand that have another name in the cassette: start, end, name."""
        ...

    def followed(self, emit: Emit) -> Emit:
        """The same `emit`; where another model answers, what it does is remembered."""
        ...

    def unstarted(self, model: "ResolvedModel") -> "ResolvedModel | None":
        """An embedded model as a replay needs it; `None` where it has to be started."""
        ...

    def make_client(self, model: "ResolvedModel") -> "MakeClient":
        """What opens the connections of a model: through the cassette."""
        ...

    def retry_timing(self) -> "RetryTiming":
        """How models wait before they try again."""
        ...

    def server_adapter(self) -> "CassetteAdapter | None":
        """Where servers are recorded or replayed; `None` where they are only reached."""
        ...

    async def command(
        self, step: str, arguments: JsonObject, run: Callable[[JsonObject], Awaitable[ToolResult]]
    ) -> ToolResult:
        """A local command's end, recorded or played; `run` is what really runs it.

        Raises:
            CassetteMissError: the cassette does not hold this command.
        """
        ...

    def end(self, state: FinalState, emit: Emit) -> RecordingEnd:
        """Write the cassette, or say how the one that was played fits."""
        ...


@frozen
class RunEnvironment:
    """Where events go, who is asked, what time it is, where things are kept.

    `tape` is the run's cassette, if it has one: opened by `recording.open_recorder`. `resume_state`
    what a resumed run has done before. `staging` is where calls are put down that a rule stages,
    `reviewed` what a person applies of them.
    """

    emit: Emit
    approver: Approver
    clock: Clock
    folder: RunFolder
    environ: Mapping[str, str]
    tape: Recorder | None = None
    resume_state: "ResumeState | None" = None
    staging: Staging | None = None
    reviewed: Reviewed | None = None

    def with_emit(self, emit: Emit) -> "RunEnvironment":
        """The same, with events going elsewhere."""
        return replace(self, emit=emit)
