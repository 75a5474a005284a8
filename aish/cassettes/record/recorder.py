"""The cassette of one run: what is replayed, goes live, and is recorded.

The first byte of a recorded run is not delayed by the code for replay, redaction and writing: it is
imported when needed.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal, get_args

import anyio

from aish.cassettes.format.edits import apply_to_response, text_of
from aish.cassettes.format.interaction import (
    CassetteFileError,
    CassetteMissError,
    Exchange,
    Interaction,
    RecordingMetadata,
    Request,
    Response,
    in_order,
)
from aish.cassettes.format.path_placeholders import PathPlaceholders
from aish.cassettes.format.rpc import message_of, peek
from aish.cassettes.record.file_writer import Recording
from aish.cassettes.record.repeated_secrets import Repeated
from aish.cassettes.replay.matching import Matching
from aish.cassettes.replay.store import Store
from aish.core.frozen import frozen
from aish.core.json import JsonValue
from aish.system.secrets.secrets import Secrets

Kind = Literal["model", "mcp", "exec", "context", "approval", "client"]
"""Whose exchange it is: a model's, a tool server's (packs included), a local command's; what was
found in the files of `context.files`; the answer to a question about a call; or that of a
client of `aish serve`."""

KINDS: Sequence[Kind] = get_args(Kind)

Way = Literal["live", "replay", "record", "extend"]
"""`live` passes by the cassette; `extend` records what the cassette does not hold."""

LEFT = "left"
"""`Response.broken` where the reader left before the end; to be replayed by never ending."""

_SOON = 0.05


@frozen
class RecorderRules:
    """The settings of a cassette from the file and the command line.

    `paced` replays at the recorded pace; `lenient` makes a missing tool call fail only that call
    (`--live-model`), not the run; `allow` are globs of text that only looks like a secret.
    `reuses` replays answers that only read as often as they are asked for.
    """

    ways: Mapping[Kind, Way]
    allow: tuple[str, ...] = ()
    paced: bool = False
    lenient: bool = False
    reuses: bool = False


class CassetteRecorder:
    """The cassette of one run, replayed, recorded, or both."""

    def __init__(
        self,
        rules: RecorderRules,
        recorded: Iterable[Interaction],
        matching: Matching,
        *,
        places: PathPlaceholders,
        secrets: Secrets,
        monotonic: Callable[[], float],
        recording: Recording | None = None,
        renewal: str = "aish record",
    ) -> None:
        self.rules = rules
        self.missed: list[CassetteMissError] = []
        self.on_played: list[Callable[[], None]] = []
        self._places = places
        self._secrets = secrets
        self._monotonic = monotonic
        self._recording = recording
        held = list(recorded)
        self._store = Store(held, matching, renewal, _readings(held) if rules.reuses else ())
        self._kept: list[Interaction | Exchange | None] = [*held]
        self._vacant: dict[bytes, deque[int]] = {}
        self._unsettled: list[Exchange] = []
        self._open: list[Exchange] = []
        self._early: dict[int, tuple[Interaction, Interaction]] = {}
        self._is_stuck = False
        self._harmless: set[str] = set()
        self._looked_through: set[int] = set()
        self._repeated = Repeated()
        self._latest = 0
        self._reached: set[int] = set()
        self._awaited: dict[int, anyio.Event] = {}

    def way(self, kind: Kind) -> Way:
        """The way in which exchanges of a kind are handled."""
        return self.rules.ways[kind]

    @property
    def offline(self) -> bool:
        """True if everything comes from the cassette, so that no connection is allowed."""
        return all(way == "replay" for kind, way in self.rules.ways.items() if kind != "client")

    def recorded(self, kind: Kind, request: Request, *, fresh: bool = False) -> Response | None:
        """The recorded response to a request, or nothing if it has to go live.

        `fresh` is for requests that open a session: if recordings are extended they always go live.

        Raises:
            CassetteMissError: this kind is replayed and the cassette does not hold the request;
                stored in `missed` as well, so that it cannot be suppressed.
        """
        way = self.way(kind)
        if way in {"live", "record"}:
            return None
        asked = self._as_held(request)
        if way == "extend" and not self._store.holds(asked):
            return None
        try:
            response = self._store.take(asked)
        except CassetteMissError as miss:
            if kind == "model" or not self.rules.lenient:
                self.missed.append(miss)
            raise
        number = self._store.last_taken
        if way == "extend" and fresh:
            # The live exchange is recorded in its place.
            self._kept[number - 1] = None
            self._vacant.setdefault(self._store.key_of(number), deque()).append(number - 1)
            return None
        self._pass(number)
        for callback in self.on_played:
            callback()
        return apply_to_response(response, self._places.showings(text_of(response.body)))

    def holds(self, request: Request) -> bool:
        """Return true if there is an unused response to a request."""
        return self._store.holds(self._as_held(request))

    def holds_any(self, kind: Kind) -> bool:
        """Return true if the cassette has exchanges of a kind."""
        return any(kind_of(one.request) == kind for one in self._store.interactions)

    def digest_of(self, request: Request, *, is_masked: bool = True) -> str:
        """The hash that a request has in every run, on every machine."""
        return self._store.key(self._as_written(request) if is_masked else request).hex()

    def begin(self, kind: Kind, request: Request) -> Exchange | None:
        """A live exchange begins, at this position in the order of the run."""
        if self.way(kind) in {"live", "replay"}:
            return None
        # If the process is killed now, everything up to here is next to the cassette.
        self.settle()
        self._write_answered()
        places = None
        if self._vacant:
            places = self._vacant.get(self._store.key(self._as_written(request)))
        place = places.popleft() if places else len(self._kept)
        take = Exchange(request, place + 1, self._monotonic, self._settle_soon)
        self._kept[place : place + 1] = [take]
        self._open.append(take)
        self._pass(take.number)
        return take

    @property
    def latest(self) -> int:
        """The number of the latest request; 0 before the first."""
        return self._latest

    async def wait_for_request(self, number: int) -> None:
        """Wait until the request of the interaction with this number was made (`Chunk.after`)."""
        if number not in self._reached:
            await self._awaited.setdefault(number, anyio.Event()).wait()

    def leftovers(self) -> tuple[tuple[int, Interaction], ...]:
        """The unused recordings, with numbers; without messages that are optional by nature."""
        return tuple(self._unused_interactions())

    def next_unused(self) -> tuple[int, Request] | None:
        """The next unused recording of all that is replayed, with its number."""
        return next(((number, one.request) for number, one in self._unused_interactions()), None)

    def spans(self, text: str) -> Iterator[tuple[int, int, str]]:
        """The positions of folders with a placeholder in the cassette: start, end, placeholder."""
        return self._places.spans(text)

    def cassette_uri(self, uri: str, *, is_masked: bool = True) -> str:
        """A uri as written in the cassette."""
        hidden = self._places.hide(uri)
        return self._secrets.mask(hidden) if is_masked else hidden

    def _unused_interactions(self) -> Iterator[tuple[int, Interaction]]:
        for number, interaction in self._store.unused():
            played = self.way(kind_of(interaction.request)) in {"replay", "extend"}
            if played and not _is_volatile(interaction):
                yield number, interaction

    def _settle_soon(self, take: Exchange) -> None:
        """Prepare an exchange for writing, after its response was delivered.

        A response may arrive whole: its last byte must not delay its first.
        """
        self._unsettled.append(take)
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            self.settle()
            return
        if len(self._unsettled) == 1:
            loop.call_later(_SOON, self.settle)

    def settle(self) -> None:
        """Prepare what has ended for writing, and write it next to the cassette."""
        takes, self._unsettled = self._unsettled, []
        for take in takes:
            snapshot, early = self._early.get(take.number, (None, None))
            is_known = early is not None and snapshot == take.interaction
            take.interaction = early if is_known and early else self._keep(take.interaction)

    def _write_answered(self) -> None:
        """Write complete responses although more may follow them: most often, nothing does."""
        self._open = [take for take in self._open if not take.ended]
        for take in self._open:
            if take.answered and take.number not in self._early:
                snapshot = take.so_far()
                self._early[take.number] = snapshot, self._keep(snapshot)

    def _keep(self, interaction: Interaction) -> Interaction:
        """The interaction, redacted; written next to the cassette if nothing looks like a secret.

        A failure is reported at the end, when everything is written again.
        """
        from aish.cassettes.record.secret_scan import scan

        clean = self.clean(interaction)
        recording = None if self._is_stuck else self._recording
        if recording is not None and not scan([clean], self.rules.allow, self._harmless):
            # It is referenced as long as this is, so that its identity is unique.
            self._looked_through.add(id(clean))
            try:
                recording.append(clean)
            except CassetteFileError:
                self._is_stuck = True
        return clean

    def clean(self, interaction: Interaction) -> Interaction:
        """The interaction, redacted."""
        from aish.cassettes.record.redact import hide_paths, redact

        # Secrets first: a placeholder in a secret would change its text.
        return hide_paths(redact(interaction, self._secrets, self._repeated), self._places)

    def finish(self, head: RecordingMetadata, place: Path | None = None) -> tuple[Interaction, ...]:
        """End all open exchanges, and write the cassette in the order of the run.

        `place` is the target if it is not the path that was opened.

        Raises:
            CassetteFileError: something looks like a secret, or it cannot be written.
        """
        from aish.cassettes.record.redact import redact_head
        from aish.cassettes.record.secret_scan import refuse_secrets

        for item in self._kept:
            if isinstance(item, Exchange):
                item.end(broken=LEFT)
        self.settle()
        done = in_order(self._kept)
        head = redact_head(head, self._secrets)
        if self._recording is not None:
            numbered = enumerate(done, 1)
            new = [(n, one) for n, one in numbered if id(one) not in self._looked_through]
            refuse_secrets(head, new, self.rules.allow, self._harmless)
            self._recording.finish(head, done, place)
        return done

    def discard(self) -> None:
        """Write no cassette, and leave nothing of the recording next to it."""
        if self._recording is not None:
            self._recording.discard()

    def _as_held(self, request: Request) -> Request:
        """A request as the cassette may contain it.

        That is without secrets, unless the secret is an ordinary word there: a key for tests, such
        as `replaced`.
        """
        asked = self._as_written(request)
        is_same = (asked.uri, asked.body) == (request.uri, request.body)
        if is_same or self._store.holds(asked) or not self._store.holds(request):
            return asked
        return request

    def _as_written(self, request: Request) -> Request:
        from aish.cassettes.record.redact import redact_request

        return redact_request(request, self._secrets, self._repeated)

    def _pass(self, number: int) -> None:
        self._latest = number
        self._reached.add(number)
        if event := self._awaited.pop(number, None):
            event.set()


def kind_of(request: Request) -> Kind:
    """The kind of a recorded request."""
    scheme = request.uri.partition(":")[0]
    if scheme == "exec":
        return "exec"
    if scheme == "context":
        return "context"
    if scheme == "approval":
        return "approval"
    if scheme == "mcp+serve":
        return "client"
    if scheme.startswith("mcp+") or request.method != "POST" or message_of(request.body):
        return "mcp"
    return "model"


def _readings(recorded: Sequence[Interaction]) -> frozenset[int]:
    """The indexes of interactions that change nothing, however often they are repeated.

    Of tool calls those of tools that are read-only by the recorded list, a pack's or a server's.
    """
    from aish.cassettes.format.json_body import at, items, json_messages

    messages = [message_of(one.request.body) or {} for one in recorded]
    reading: dict[tuple[str, JsonValue], bool] = {}
    for one, asked in zip(recorded, messages, strict=True):
        if asked.get("method") == "tools/list":
            for answer in json_messages(text_of(one.response.body)):
                for tool in items(at(answer, "result", "tools")):
                    hint = at(tool, "annotations", "readOnlyHint") is True
                    reading[one.request.uri, at(tool, "name")] = hint
    return frozenset(
        index
        for index, (one, asked) in enumerate(zip(recorded, messages, strict=True))
        if kind_of(one.request) in {"mcp", "approval"}
        if asked.get("method") != "tools/call"
        or reading.get((one.request.uri, at(asked, "params", "name")))
    )


def _is_volatile(interaction: Interaction) -> bool:
    """Return true if only timing decides that it is sent."""
    request = interaction.request
    if kind_of(request) == "approval":
        from aish.cassettes.format.json_body import at, json_object

        # The call was cancelled, or a new rule decided: either may come before the question.
        body = json_object(text_of(interaction.response.body))
        return interaction.response.broken == LEFT or at(body, "way") == "rule"
    if kind_of(request) != "mcp":
        return False
    said = peek(request)
    return said.is_volatile or (said.method == "initialize" and not _agrees(interaction.response))


def _agrees(response: Response) -> bool:
    """Return true if an `initialize` was answered successfully.

    Else it may have been the second request to a server that was slow to answer the first.
    """
    return response.broken is None and b'"result"' in response.body
