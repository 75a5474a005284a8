"""Staged calls as they come: the output that writes them, and what the gate asks of it (B16)."""

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
    sealed,
)
from aish.policy.lock import ServerPin, can_be_kept
from aish.system.secrets.secrets import Secrets

NAME = "staged.json"
PinsOf = Callable[[str | None], Mapping[str, ServerPin | None]]
"""Where the servers are that a step may call."""

_Page = tuple[str | None, str | None]


class StagingQueue:
    """A sink of events and a `policy.gate.Staging`.

    `opened` makes the file when the first call is put down; without it nothing is kept, as where a
    pipeline is only tested.
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
        """How many calls wait for review."""
        return len(self._held)

    @property
    def shown(self) -> str:
        """Its file, as a person would type it."""
        return "" if self.path is None else shown(self.path)

    def begin(self) -> None:
        """Make the file now, or go on with that of the same run.

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
        """Take an event; a call is on the disk on return."""
        match stamped.event:
            case ToolDecided(verdict="staged") as decided:
                self._put_down(decided, rfc3339(stamped.time))
            case StepStarted(place=place) | ItemStarted(place=place):
                self._forget((place.step, place.item))
            case Retry(place=place) if place.turn is None:
                # Not of a request but of the whole step or item.
                self._forget((place.step, place.item))

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()

    def refusal(self, tool: Tool, arguments: JsonObject) -> str | None:
        """Why this call cannot be put down, if so."""
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
        """The SHA-256 of what its server says of a tool, as a lock has it."""
        return pin_now(tool, self._secrets).sha256

    def holds(self, digest: str) -> bool:
        """Whether the call of this digest was put down."""
        return self._opened is None or digest in self._held

    def _put_down(self, decided: ToolDecided, time: str) -> None:
        # The same call of the same step and item is one call: a model that hears that nothing was
        # executed may well ask again.
        if decided.digest in self._held:
            return
        assert isinstance(decided.arguments, Mapping)
        place = decided.place
        call = sealed(
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
        """What an earlier try of the same step or item has put down does not count."""
        gone = self._pages.pop(page, None)
        if gone:
            self._held.difference_update(call.decision for call in gone)
            if self._file is not None:
                self._file.forget(frozenset(call.digest for call in gone))


def open_queue(plan: Plan, folder: RunFolder, wanted: Path | None) -> StagingQueue:
    """The book of a run: in its folder, or where a person `wanted` it.

    Raises:
        UsageError: there is no place for it, or it has the calls of another run.
    """
    path = wanted or (folder.path and folder.path / NAME)
    assert path is not None, "who leaves no folder names a file"
    head = head_of(plan.pipeline, folder.id)

    def opened() -> StagedFile:
        return open_staged(path, head)

    book = StagingQueue(head, _pins(plan), plan.secrets, opened, path)
    if wanted is not None or path.exists():
        book.begin()
    return book


def unkept_queue(plan: Plan, run: str) -> StagingQueue:
    """A book for a run of which nothing is kept: a case of `aish test`."""
    head = head_of(plan.pipeline, run)
    return StagingQueue(head, _pins(plan), plan.secrets)


def _pins(plan: Plan) -> PinsOf:
    """The servers of the sub-pipeline that a step is in: each has its own."""

    def of(step: str | None) -> Mapping[str, ServerPin | None]:
        inner = plan
        for id in (step or "").split("/")[:-1]:
            inner = inner.inner[id]
        return pins_of(inner.pipeline, plan.secrets)

    return of


def head_of(pipeline: Pipeline, run: str) -> StagedHead:
    """What the calls of a run of this pipeline are bound to."""
    return StagedHead(run, pipeline.name, shown(pipeline.file), pipeline.digest)


def shown(file: Path) -> str:
    """A file as it is found from the working directory; whole where it is not beneath."""
    whole = file.absolute()
    try:
        return str(whole.relative_to(Path.cwd()))
    except ValueError:
        return str(whole)
