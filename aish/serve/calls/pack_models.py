"""The models of the file that packs may ask on the way of a call."""

from collections.abc import Mapping

from aish.core.events import Place
from aish.core.frozen import frozen
from aish.core.protocols import Clock, Emit, Model, Sampler


@frozen
class PackModels:
    """They are open from the start of the server to its end.

    `default` is the alias that answers requests without one: there is no step with a model.
    """

    models: Mapping[str, Model]
    emit: Emit
    default: str | None = None

    def sampler(self, place: Place, clock: Clock) -> Sampler:
        """The sampler for requests of a pack during a call."""
        from aish.agent.sampling import Sampling

        model = None if self.default is None else self.models.get(self.default)
        return Sampling(model, self.emit, clock, place, None, self.models)
