"""What a run is given from outside."""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from aish.core.deltas import Usage
from aish.core.errors import AishError
from aish.core.events import CassetteInfo, CassetteUse, Notice, StepStatus
from aish.core.frozen import frozen
from aish.core.json import JsonObject
from aish.core.protocols import Approver, Clock, Emit
from aish.core.tools import ToolResult
from aish.policy.staging import Reviewed, Staging
from aish.run.final import FinalState
from aish.run.folder import RunFolder
from aish.run.records import StepRecord

if TYPE_CHECKING:
    # Not every run imports these.
    from aish.mcp.transports.adapter import CassetteAdapter
    from aish.models.retry import RetryTiming
    from aish.models.transport import MakeClient
    from aish.run.credentials import ResolvedModel


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


class AnyDone(Protocol):
    """An item that an earlier part of this run has finished: `resuming.items.DoneItem`."""

    @property
    def index(self) -> int:
        """Its place among the items."""
        ...

    @property
    def digest(self) -> str:
        """Of its value, then."""
        ...

    @property
    def status(self) -> StepStatus:
        """How it ended."""
        ...

    @property
    def record(self) -> StepRecord | None:
        """Its end, where anything reads it."""
        ...


class AnyDoneItems(Protocol):
    """All of them of one step: `resuming.items.DoneItems`."""

    def get(self, key: str) -> AnyDone | None:
        """The item of this key, if it is done."""
        ...

    @property
    def ok(self) -> int:
        """How many went well."""
        ...

    @property
    def failed(self) -> int:
        """How many did not."""
        ...

    @property
    def denied(self) -> int:
        """How many of these were denied a call."""
        ...

    @property
    def mendable(self) -> int:
        """How many of those that did not may come to another end when they are run once more."""
        ...

    @property
    def usage(self) -> Usage:
        """Their tokens."""
        ...

    @property
    def cost_usd(self) -> float | None:
        """What they cost together."""
        ...


class AnySpent(Protocol):
    """What a run has used before this part of it: `resuming.carried.SpentBefore`."""

    @property
    def turns(self) -> int:
        """Answers."""
        ...

    @property
    def tokens_in(self) -> int:
        """As far as they are known."""
        ...

    @property
    def tokens_out(self) -> int:
        """As far as they are known."""
        ...

    @property
    def cost_usd(self) -> float | None:
        """`None` where one part is not known."""
        ...

    @property
    def known_usd(self) -> float:
        """The parts that are."""
        ...

    @property
    def tool_calls(self) -> int:
        """Calls that were made."""
        ...

    @property
    def seconds(self) -> float:
        """How long all parts of it took together."""
        ...


class AnyCarried(Protocol):
    """What a resumed run takes over, `resuming.carried.Carried`: other runs do not import it."""

    @property
    def run(self) -> str:
        """The run's id."""
        ...

    @property
    def steps(self) -> Mapping[str, StepRecord]:
        """The steps that are done."""
        ...

    @property
    def items(self) -> Mapping[str, AnyDoneItems]:
        """The items that are done, by step."""
        ...

    @property
    def spent(self) -> AnySpent:
        """All that was used."""
        ...

    @property
    def by_step(self) -> Mapping[str, AnySpent]:
        """What each step has used."""
        ...

    @property
    def denials(self) -> tuple[str, ...]:
        """The calls that were denied in what is done."""
        ...

    @property
    def notices(self) -> tuple[Notice, ...]:
        """What is to be said of it."""
        ...


@frozen
class Surroundings:
    """Where events go, who is asked, what time it is, where things are kept.

    `tape` is the run's cassette, if it has one: opened by `recording.open_recorder`. `carried` is
    what a resumed run has done before. `staging` is where calls are put down that a rule stages,
    `reviewed` what a person applies of them.
    """

    emit: Emit
    approver: Approver
    clock: Clock
    folder: RunFolder
    environ: Mapping[str, str]
    tape: Recorder | None = None
    carried: AnyCarried | None = None
    staging: Staging | None = None
    reviewed: Reviewed | None = None

    def with_emit(self, emit: Emit) -> "Surroundings":
        """The same, with events going elsewhere."""
        return replace(self, emit=emit)
