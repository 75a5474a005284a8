"""The exported pipeline, run once on what was recorded: what it asks now is its cassette (S7).

Its requests may differ from those of the session by what was left out, and by who denied a call.
So each answer is given in its order, and the cassette holds the request that it answers now.
"""

from collections import deque
from collections.abc import Callable, Sequence

from aish.cassettes.conversation import chat_request, messages_of
from aish.cassettes.edits import edited_response, text_of
from aish.cassettes.errors import CassetteMissError
from aish.cassettes.interaction import Cassette, Head, Interaction, Request, Response
from aish.cassettes.matching import Matching
from aish.cassettes.numbering import numbered
from aish.cassettes.path_placeholders import PathPlaceholders
from aish.cassettes.recorder import Kind, RecorderRules
from aish.features.recording.session import CassetteChoice, CassetteSession, RunRecorder
from aish.shell.exporting.matched import Matched
from aish.system.secrets.secrets import Secrets


class Rehearsal(RunRecorder):
    """Gives each model's answer in its order, and everything else to the request that it is of."""

    def __init__(
        self,
        matched: Matched,
        head: Head,
        choice: CassetteChoice,
        places: PathPlaceholders,
        secrets: Secrets,
        monotonic: Callable[[], float],
    ) -> None:
        super().__init__(
            RecorderRules({"model": "replay", "mcp": "replay", "exec": "replay"}),
            matched.others,
            Matching(places=places),
            places=places,
            secrets=secrets,
            monotonic=monotonic,
        )
        self.session = CassetteSession(choice, Cassette(head, matched.others))
        self.head = head
        self._used: list[Interaction] = []
        self._numbers: dict[int, int] = {}
        self._asked: list[Request] = []
        self._others: Sequence[Interaction] = matched.others
        self._answers = deque(matched.answers)

    @property
    def offline(self) -> bool:
        """Not guarded: what is open in the session goes on beside it."""
        return False

    @property
    def used(self) -> tuple[Interaction, ...]:
        """What was asked, in that order."""
        return tuple(numbered(one, self._numbers) for one in self._used)

    @property
    def left(self) -> int:
        """How many answers nobody has asked for."""
        return len(self._answers)

    def asked_with(self, number: int, text: str) -> bool:
        """Whether the last message of a request for an answer, counted from 0, was `text`."""
        body = chat_request(self._asked[number])
        last = messages_of(body)[-1:] if body else ()
        wanted = self._secrets.mask(text)
        return any(self._secrets.mask(message.text) == wanted for message in last)

    def recorded(self, kind: Kind, request: Request, *, fresh: bool = False) -> Response | None:
        """The next answer, or what was recorded of this very request.

        Raises:
            CassetteMissError: there is none.
        """
        if kind != "model":
            found = super().recorded(kind, request, fresh=fresh)
            number = self._store.last_taken
            self._used.append(self._others[number - 1])
            self._numbers[number] = len(self._used)
            return found
        self._asked.append(request)
        if not self._answers:
            miss = CassetteMissError("the pipeline asks a model more often than the session did")
            self.missed.append(miss)
            raise miss
        response = self._answers.popleft().response
        self._used.append(self.clean(Interaction(request, response)))
        return edited_response(response, self._places.showings(text_of(response.body)))
