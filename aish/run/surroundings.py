"""What a run is given from outside."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Protocol

from aish.core.deltas import Usage
from aish.core.events import CassetteInfo, Notice, StepStatus
from aish.core.frozen import frozen
from aish.core.protocols import Approver, Clock, Emit
from aish.policy.staging import Reviewed, Staging
from aish.run.folder import RunFolder
from aish.run.records import StepRecord


class AnyTape(Protocol):
    """A `taping.RunTape`, to who only hands it on: a plain run imports nothing of cassettes.

    `borders.tape_of` gives it back with its whole face.
    """

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

    `tape` is the run's cassette, if it has one: made by `taping.open_tape`. `carried` is what a
    resumed run has done before. `staging` is where calls are put down that a rule stages,
    `reviewed` what a person applies of them.
    """

    emit: Emit
    approver: Approver
    clock: Clock
    folder: RunFolder
    environ: Mapping[str, str]
    tape: AnyTape | None = None
    carried: AnyCarried | None = None
    staging: Staging | None = None
    reviewed: Reviewed | None = None

    def with_emit(self, emit: Emit) -> "Surroundings":
        """The same, with events going elsewhere."""
        return replace(self, emit=emit)
