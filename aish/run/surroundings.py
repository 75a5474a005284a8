"""What a run is given from outside."""

from collections.abc import Mapping
from dataclasses import replace

from aish.run.folder import RunFolder
from aish.vocab.frozen import frozen
from aish.vocab.protocols import Approver, Clock, Emit


@frozen
class Surroundings:
    """Where events go, who is asked, what time it is, where things are kept."""

    emit: Emit
    approver: Approver
    clock: Clock
    folder: RunFolder
    environ: Mapping[str, str]

    def with_emit(self, emit: Emit) -> "Surroundings":
        """The same, with events going elsewhere."""
        return replace(self, emit=emit)
