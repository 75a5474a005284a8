"""The models of the file that packs may ask during a call."""

from collections.abc import Mapping

from aish.core.events import Place
from aish.core.frozen import frozen
from aish.core.protocols import Clock, Emit, Model, Sampler


@frozen
class PackModels:
    """Models that are open from the start of the server to its end.

    `default` is the alias for requests without one, because there is no step with a model.
    """

    models: Mapping[str, Model]
    emit: Emit
    default: str | None = None

    def sampler(self, place: Place, clock: Clock) -> Sampler:
        """Return the sampler for requests of a pack during a call."""
        from aish.agent.sampling import Sampling

        model = None if self.default is None else self.models.get(self.default)
        return Sampling(model, self.emit, clock, place, None, self.models)
