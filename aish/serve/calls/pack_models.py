"""The models of the file that packs may ask on the way of a call (H8, K13)."""

from collections.abc import Mapping

from aish.config.model import ServerEntry
from aish.core.events import Place
from aish.core.frozen import frozen
from aish.core.protocols import Clock, Emit, Model, Sampler


@frozen
class PackModels:
    """They are open from the start of the server to its end."""

    models: Mapping[str, Model]
    emit: Emit

    def sampler(self, entry: ServerEntry | None, place: Place, clock: Clock) -> Sampler | None:
        """Answers what a pack asks on the way of a call; `None` for another server."""
        alias = None if entry is None else entry.options.shell.explain
        model = None if alias is None else self.models.get(alias)
        if model is None:
            return None
        from aish.agent.sampling import Sampling

        return Sampling(model, self.emit, clock, place, None, self.models)
