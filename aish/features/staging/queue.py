"""Writes calls as they are staged, and answers the gate's questions about them."""

from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path

from aish.config.documents import parse_json
from aish.config.model import Pipeline
from aish.core.events import ItemStarted, Retry, Stamped, StepStarted, ToolDecided, rfc3339
from aish.core.json import JsonObject, canonical, json_text
from aish.core.text import safe_utf8
from aish.core.tools import Tool, ToolName
from aish.engine.plan.lock import pin_now
from aish.engine.plan.plan import Plan
from aish.engine.run_folder import RunFolder
from aish.features.staging.file import (
    StagedCall,
    StagedFile,
    StagedHead,
    open_staged,
    pins_of,
    with_digest,
)
from aish.policy.lock import ServerPin, can_be_kept
from aish.system.files import display_path
from aish.system.secrets.secrets import Secrets

NAME = "staged.json"
PinsOf = Callable[[str | None], Mapping[str, ServerPin | None]]
"""Where the servers are that a step may call."""

_Page = tuple[str | None, str | None]


class StagingQueue:
    """A sink of events and a `policy.gate.Staging`.

    `opened` creates the file when the first call is staged; without it nothing is stored, as when
    testing a pipeline.
    """

    name = "the staged calls"
    deltas = False

    def __init__(
        self,
        head: StagedHead,
        pins: PinsOf,
        secrets: Secrets,
        opened: Callable[[], StagedFile] | None = None,
        path: Path | None = None,
    ) -> None:
        self._head = head
        self._pins = pins
        self._secrets = secrets
        self._opened = opened
        self._file: StagedFile | None = None
        self._held: set[str] = set()
        self._pages: dict[_Page, list[StagedCall]] = defaultdict(list)
        self.path = path

    @property
    def count(self) -> int:
        return len(self._held)

    @property
    def shown(self) -> str:
        return "" if self.path is None else display_path(self.path.absolute())

    def begin(self) -> None:
        """Create the file now, or continue that of the same run.

        Raises:
            UsageError: it cannot be written, or has the calls of another run.
        """
        if self._opened is None:
            return
        self._file = self._opened()
        for call in self._file.calls:
            self._held.add(call.decision)
            self._pages[call.step, call.item].append(call)

    def __call__(self, stamped: Stamped) -> None:
        """Process an event; a call is synced to disk on return."""
        match stamped.event:
            case ToolDecided(verdict="staged") as decided:
                self._put_down(decided, rfc3339(stamped.time))
            case StepStarted(place=place) | ItemStarted(place=place):
                self._forget((place.step, place.item))
            case Retry(place=place) if place.turn is None:
                # Of the whole step or item, not of a request.
                self._forget((place.step, place.item))

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def refusal(self, tool: Tool, arguments: JsonObject) -> str | None:
        """Why this call cannot be staged, if so."""
        del tool
        text = json_text(arguments)
        if not can_be_kept(arguments) or canonical(parse_json(text)) != canonical(arguments):
            return "its arguments cannot be written to a file as they are"
        if self._secrets and (
            self._secrets.mask_json(arguments) != arguments
            or any(self._secrets.spans_in_any_spelling(text))
        ):
            return (
                "an argument contains a secret of this run, and staged calls are stored in a file"
            )
        return None

    def definition(self, tool: Tool) -> str:
        """The SHA-256 of the server's definition of a tool, as in a lock."""
        return pin_now(tool, self._secrets).sha256

    def holds(self, digest: str) -> bool:
        return self._opened is None or digest in self._held

    def release(self, digest: str, states: Mapping[str, str]) -> None:
        """Let the call of this digest be staged again, if none of its equals is still open.

        `states` are the results of calls that were applied, by their own digests.
        """
        calls = (call for page in self._pages.values() for call in page)
        if all(call.digest in states for call in calls if call.decision == digest):
            self._held.discard(digest)

    def _put_down(self, decided: ToolDecided, time: str) -> None:
        # The same call of the same step and item is one call: a model that is told that nothing was
        # executed may repeat it.
        if decided.digest in self._held:
            return
        assert isinstance(decided.arguments, Mapping)
        place = decided.place
        call = with_digest(
            StagedCall(
                time=time,
                step=None if place.step is None else safe_utf8(place.step),
                item=None if place.item is None else safe_utf8(place.item),
                name=ToolName(decided.server, decided.name),
                server=self._pins(place.step).get(decided.server),
                arguments=decided.arguments,
                definition=decided.definition or "",
                rule=safe_utf8(decided.rule),
                decision=decided.digest,
            ),
            self._head,
        )
        if self._opened is not None:
            if self._file is None:
                self.begin()
            assert self._file is not None
            self._file.add(call)
        self._held.add(decided.digest)
        self._pages[call.step, call.item].append(call)

    def _forget(self, page: _Page) -> None:
        """Calls staged by an earlier attempt of the same step or item do not count."""
        gone = self._pages.pop(page, None)
        if gone:
            self._held.difference_update(call.decision for call in gone)
            if self._file is not None:
                self._file.forget(frozenset(call.digest for call in gone))


def open_queue(plan: Plan, folder: RunFolder, wanted: Path | None) -> StagingQueue:
    """The queue of a run: in its folder, or at the `wanted` path.

    Raises:
        UsageError: it cannot be created, or it has the calls of another run.
    """
    path = wanted or (folder.path and folder.path / NAME)
    assert path is not None, "who leaves no folder names a file"
    head = head_of(plan.pipeline, folder.id)

    def open_file() -> StagedFile:
        return open_staged(path, head)

    book = StagingQueue(head, _pins(plan), plan.secrets, open_file, path)
    if wanted is not None or path.exists():
        book.begin()
    return book


def unkept_queue(plan: Plan, run: str) -> StagingQueue:
    """A queue for a run without a folder: a case of `aish test`."""
    head = head_of(plan.pipeline, run)
    return StagingQueue(head, _pins(plan), plan.secrets)


def _pins(plan: Plan) -> PinsOf:

    def of(step: str | None) -> Mapping[str, ServerPin | None]:
        inner = plan
        for id in (step or "").split("/")[:-1]:
            inner = inner.inner[id]
        return pins_of(inner.pipeline, plan.secrets)

    return of


def head_of(pipeline: Pipeline, run: str) -> StagedHead:
    """The data that binds staged calls to a run of this pipeline."""
    return StagedHead(run, pipeline.name, display_path(pipeline.file.absolute()), pipeline.digest)
