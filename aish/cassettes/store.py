"""A cassette in memory: found by hash, each interaction used once, in order among equals (C5)."""

from collections import deque
from collections.abc import Iterable

from aish.cassettes.errors import CassetteMissError
from aish.cassettes.interaction import Interaction, Request, Response
from aish.cassettes.matching import Canonical, Matching
from aish.cassettes.miss import Recorded, explain
from aish.cassettes.renumber import renumbered


class Store:
    """What was recorded, and what of it was used."""

    def __init__(self, interactions: Iterable[Interaction], matching: Matching) -> None:
        self._matching = matching
        self._interactions: list[Interaction] = []
        self._forms: list[Canonical] = []
        self._waiting: dict[bytes, deque[int]] = {}
        self._used: set[int] = set()
        self._last = -1
        for interaction in interactions:
            self.add(interaction)

    @property
    def interactions(self) -> tuple[Interaction, ...]:
        """Everything, in the order of the run."""
        return tuple(self._interactions)

    @property
    def leftovers(self) -> tuple[tuple[int, Interaction], ...]:
        """What nobody asked for, with its number, counted from 1."""
        return tuple(
            (number, interaction)
            for number, interaction in enumerate(self._interactions, 1)
            if number - 1 not in self._used
        )

    @property
    def last_taken(self) -> Interaction:
        """The interaction that was taken last."""
        return self._interactions[self._last]

    def add(self, interaction: Interaction, *, used: bool = False) -> None:
        """Put an interaction at the end; `used` for one that has just been recorded."""
        index = len(self._interactions)
        form = self._matching.canonical(interaction.request)
        self._interactions.append(interaction)
        self._forms.append(form)
        if used:
            self._used.add(index)
        else:
            self._waiting.setdefault(form.digest, deque()).append(index)

    def holds(self, request: Request) -> bool:
        """Whether there is an unused answer to the request."""
        return bool(self._waiting.get(self._matching.canonical(request).digest))

    def take(self, request: Request) -> Response:
        """The answer to a request, with the ids of JSON-RPC that this request has.

        Raises:
            CassetteMissError: no unused interaction matches.
        """
        form = self._matching.canonical(request)
        waiting = self._waiting.get(form.digest)
        if not waiting:
            raise self._miss(form)
        index = waiting.popleft()
        self._used.add(index)
        self._last = index
        recorded = self._interactions[index]
        return renumbered(recorded.response, recorded.request.body, request.body)

    def _miss(self, form: Canonical) -> CassetteMissError:
        recorded = [
            Recorded(number, known, number - 1 in self._used)
            for number, known in enumerate(self._forms, 1)
        ]
        return CassetteMissError(
            explain(form, recorded),
            hint="record it again if the change is meant",
        )
