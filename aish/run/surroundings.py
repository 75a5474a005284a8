"""What a run is given from outside."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Protocol

from aish.run.folder import RunFolder
from aish.vocab.frozen import frozen
from aish.vocab.protocols import Approver, Clock, Emit
from aish.vocab.run_parts import CassetteInfo


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

    def followed(self, emit: Emit) -> Emit:
        """The same `emit`; where another model answers, what it does is remembered."""
        ...


@frozen
class Surroundings:
    """Where events go, who is asked, what time it is, where things are kept.

    `tape` is the run's cassette, if it has one: made by `taping.open_tape`.
    """

    emit: Emit
    approver: Approver
    clock: Clock
    folder: RunFolder
    environ: Mapping[str, str]
    tape: AnyTape | None = None

    def with_emit(self, emit: Emit) -> "Surroundings":
        """The same, with events going elsewhere."""
        return replace(self, emit=emit)
