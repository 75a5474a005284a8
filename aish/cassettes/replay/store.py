"""A cassette in memory: indexed by hash, each interaction used once, in order among equals.

A model's requests are long, since each contains the conversation so far. Nearly all of them recur
byte by byte, so they are looked up by their bytes; their canonical forms are computed only when a
request has no such match.
"""

from collections import deque
from collections.abc import Collection, Iterable, Iterator

from aish.cassettes.format.interaction import CassetteMissError, Interaction, Request, Response
from aish.cassettes.replay.matching import Canonical, Matching

_Waiting = dict[bytes, deque[int]]


class Store:
    """The recorded interactions, and which of them were used."""

    def __init__(
        self,
        interactions: Iterable[Interaction],
        matching: Matching,
        renewal: str = "aish record",
        lasting: Collection[int] = (),
    ) -> None:
        """`renewal` is the command that records the cassette again.

        `lasting` are the indexes of interactions that may be used again: of several equal ones the
        last.
        """
        self._lasting = lasting
        self._matching = matching
        self._renewal = renewal
        self._interactions: list[Interaction] = []
        self._forms: dict[int, Canonical] = {}
        self._equal: _Waiting = {}
        self._alike: _Waiting = {}
        self._formless: list[int] = []
        self._used: set[int] = set()
        self._first_unused = 0
        self._last = -1
        for interaction in interactions:
            self.add(interaction)

    @property
    def interactions(self) -> tuple[Interaction, ...]:
        """All interactions, in the order of the run."""
        return tuple(self._interactions)

    @property
    def leftovers(self) -> tuple[tuple[int, Interaction], ...]:
        """The unused interactions, with their numbers, counted from 1."""
        return tuple(self.unused())

    def unused(self) -> Iterator[tuple[int, Interaction]]:
        """The same, as an iterator."""
        while self._first_unused in self._used:
            self._first_unused += 1
        for index in range(self._first_unused, len(self._interactions)):
            if index not in self._used:
                yield index + 1, self._interactions[index]

    @property
    def last_taken(self) -> int:
        """The number of the interaction that was used last."""
        return self._last + 1

    def add(self, interaction: Interaction, *, used: bool = False) -> None:
        """Append an interaction; `used` for one that has just been recorded."""
        index = len(self._interactions)
        self._interactions.append(interaction)
        if used:
            self._used.add(index)
            return
        spelling = self._matching.text_hash(interaction.request)
        if spelling is None:
            self._equal.setdefault(self._form(index).digest, deque()).append(index)
        else:
            self._alike.setdefault(spelling, deque()).append(index)
            self._formless.append(index)

    def holds(self, request: Request) -> bool:
        """Return true if there is an unused response to the request."""
        return self._next(request) is not None

    def key(self, request: Request) -> bytes:
        """The key that matching requests share."""
        return self._matching.canonical(request).digest

    def key_of(self, number: int) -> bytes:
        """The same for an interaction with a number."""
        return self._form(number - 1).digest

    def take(self, request: Request) -> Response:
        """The response to a request, with the JSON-RPC ids of this request.

        Raises:
            CassetteMissError: no unused interaction matches.
        """
        from aish.cassettes.replay.renumber import renumber_response

        index = self._next(request)
        if index is None:
            raise self._miss(self._matching.canonical(request))
        self._used.add(index)
        self._last = index
        recorded = self._interactions[index]
        return renumber_response(recorded.response, recorded.request.body, request.body)

    def _next(self, request: Request) -> int | None:
        spelling = self._matching.text_hash(request)
        if spelling is not None:
            index = self._first(self._alike, spelling)
            if index is not None:
                return index
            for formless in self._formless:
                self._equal.setdefault(self._form(formless).digest, deque()).append(formless)
            self._formless.clear()
        return self._first(self._equal, self.key(request))

    def _first(self, waiting: _Waiting, key: bytes) -> int | None:
        """The first that may be used, by either key; it is not removed."""
        queue = waiting.get(key)
        while queue and queue[0] in self._used and not self._is_lasting(queue):
            queue.popleft()
        return queue[0] if queue else None

    def _is_lasting(self, queue: deque[int]) -> bool:
        return len(queue) == 1 and queue[0] in self._lasting

    def _form(self, index: int) -> Canonical:
        if index not in self._forms:
            self._forms[index] = self._matching.canonical(self._interactions[index].request)
        return self._forms[index]

    def _miss(self, form: Canonical) -> CassetteMissError:
        from aish.cassettes.replay.mismatch import Recorded, explain

        recorded = [
            Recorded(index + 1, self._form(index), index in self._used)
            for index in range(len(self._interactions))
        ]
        return CassetteMissError(
            explain(form, recorded),
            hint=f"if the change is meant, `{self._renewal}` records it again",
        )
