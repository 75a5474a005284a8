"""The files of one conversation: put before its prompt, then kept current (K82 to K86).

What the model has of each file is known here, so that it is shown what differs from that. A replay
takes what was found from its cassette, and reads no file.
"""

import json
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Final

import anyio.to_thread

from aish.agent.file_updates import announcement
from aish.agent.runtime import AgentRuntime
from aish.config.model import Context
from aish.core.errors import StepFailedError
from aish.core.events import ContextFiles, FileShown, Notice, Place
from aish.core.frozen import frozen, slotted
from aish.core.json import JsonObject, JsonValue
from aish.core.phrases import counted
from aish.engine.resources.resources import RunFiles
from aish.engine.steps.context_files.slices import Span, found_again, lines_of, slice_of, within
from aish.engine.steps.context_files.update_text import (
    Change,
    Kind,
    Limits,
    Update,
    named_only,
    shown,
    update_of,
)
from aish.engine.steps.context_files.watch import GONE, Content, Part, Watch, check_size
from aish.packs.pack_error import PackError

if TYPE_CHECKING:
    from aish.engine.steps.context_files.code_parts import CodePart

MOST_KEPT: Final = 4 * 1024 * 1024
"""Characters of texts that are kept to be compared; a change of any further one is shown whole."""


@slotted
class _PartState:
    """What is known of a part: its last text, its lines, and whether the model has that text.

    `digest` is that of the text, also where a journal has the text with its secrets masked.
    """

    text: str
    span: Span
    told: bool = True
    state: Kind = "changed"
    digest: str = ""
    whole: bool = True


@frozen
class _Parsed:
    """A part with the content of its file, and with its code where it is a definition or skeleton.

    `problem` says why there is none.
    """

    part: Part
    content: Content
    code: "CodePart | None" = None
    problem: str = ""


@frozen
class _Found:
    """What was found, here or in a cassette: a text for the model, and what it shows.

    `notices` tell people of files that are left out.
    """

    text: str
    files: tuple[FileShown, ...]
    notices: tuple[str, ...] = ()


class ConversationFiles:
    """The files of a conversation, from its prompt to its end.

    `earlier` is the state of the conversation that this one continues.
    """

    def __init__(
        self,
        settings: Context,
        folder: Path,
        run: RunFiles,
        runtime: AgentRuntime,
        place: Place,
        *,
        allow_broad_root: bool = False,
        earlier: JsonObject | None = None,
    ) -> None:
        self._settings = settings
        self._folder = folder
        self._run = run
        self._runtime = runtime
        self._place = place
        self._allow_broad_root = allow_broad_root
        self._watch: Watch | None = None
        self._since = ""
        self._known = {} if earlier is None else dict(_known_of(earlier))
        self._kept = sum(len(one.text) for one in self._known.values())

    def close(self) -> None:
        """Close the folders."""
        if self._watch is not None:
            self._watch.close()
            self._watch = None

    async def opening(self) -> str:
        """The files, and what has changed in those that the conversation has.

        Raises:
            StepFailedError: a named file cannot be read, or they are too many or too large.
            CassetteMissError: in a replay.
        """
        found = await self._found(self._place, "prompt", self._begin)
        for text in found.notices:
            self._runtime.emit(Notice(self._place, "warning", "file_left_out", text))
        self._tell(self._place, found.files)
        return found.text

    async def go_on(self) -> None:
        """Begin to follow the files of a conversation that is gone on with (A10).

        What has changed since is told after its next round.

        Raises:
            StepFailedError: as `opening`.
        """
        self._since = await self.opening()

    async def after_round(self, place: Place) -> str:
        """See `agent.file_updates.FileUpdates`."""
        if self._settings.refresh == "off":
            return ""
        found = await self._found(place, "round", self._check)
        if found.text:
            self._tell(place, found.files)
        since, self._since = self._since, ""
        return "\n\n".join(text for text in (since, found.text) if text)

    def state(self) -> JsonObject:
        """What a continued conversation has to know."""
        return {
            label: {
                "text": one.text,
                "lines": [one.span.first, one.span.after],
                "told": one.told,
                "state": one.state,
                "whole": one.whole,
                "sha256": one.digest or _digest(one.text),
            }
            for label, one in self._known.items()
        }

    def keep(self) -> None:
        """Record that state in the run's folder, for a resumed run."""
        data = json.dumps(self.state()).encode()
        # A full disk loses the file: then a resumed run shows the files again.
        with suppress(OSError):
            kept = self._runtime.keep("context-files.json", data)
            here = Place(self._place.step, self._place.item)
            self._runtime.emit(ContextFiles(here, self._run.tag, (), kept))

    def _tell(self, place: Place, files: Sequence[FileShown]) -> None:
        here = Place(place.step, place.item, place.turn)
        self._runtime.emit(ContextFiles(here, self._run.tag, tuple(files)))

    async def _found(
        self, place: Place, at: str, read: Callable[[], Awaitable[_Found | None]]
    ) -> _Found:
        recorder = self._run.recorder

        async def reading() -> JsonObject | None:
            found = await read()
            if found is None:
                return None
            files: list[JsonValue] = [{"path": f.path, "change": f.change} for f in found.files]
            notices = {"notices": found.notices} if found.notices else {}
            return {"tag": self._run.tag, "text": found.text, "files": files, **notices}

        if recorder is None:
            return await read() or _Found("", ())
        asked = {"item": place.item, "turn": place.turn, "at": at}
        held = await recorder.context_files(place.step or "", asked, reading)
        return _Found("", ()) if held is None else _found_in(held)

    async def _begin(self) -> _Found:
        found = await anyio.to_thread.run_sync(self._read_all)
        return await anyio.to_thread.run_sync(self._begun, await self._parsed(found))

    def _read_all(self) -> list[tuple[Part, Content]]:
        broad = self._allow_broad_root
        self._watch = Watch(self._settings.files, self._folder, allow_broad_root=broad)
        return self._watch.begin()

    def _begun(self, found: Sequence[_Parsed]) -> _Found:
        """All parts, where the conversation does not have them as they are."""
        pieces: list[str] = []
        files: list[FileShown] = []
        sizes: list[tuple[str, int]] = []
        changes: list[Change] = []
        notices: list[str] = []
        for one in found:
            part, content = one.part, one.content
            if content.left_out:
                notices.append(f"`{part.label}` of `context.files` is {content.why}")
            if part.label in self._known:
                change = self._change(one)
                changes += [] if change is None else [change]
                continue
            if content.text is None:
                self._add(part, "", Span(1, 1), told=False)
                pieces.append(named_only(part.label, content.why, content.size))
            else:
                text, span = _first_text(one, content.text)
                self._add(part, text, span)
                pieces.append(shown(part.label, part.source.path, text))
                sizes.append((part.label, len(text.encode("utf-8", "replace"))))
            if not content.left_out:
                files.append(FileShown(part.label, "shown"))
        check_size(sizes)
        changes += self._gone({one.part.label for one in found})
        if pieces and self._settings.refresh != "off":
            pieces.append(announcement(self._run.tag))
        if changes and self._settings.refresh != "off":
            update = self._update(changes)
            pieces.insert(0, update.block)
            files += [FileShown(one.label, one.kind) for one in changes]
        return _Found("\n\n".join(pieces), tuple(files), tuple(notices))

    def _gone(self, there: Collection[str]) -> Iterator[Change]:
        """Files of the conversation that this step would show, and that are deleted since."""
        assert self._watch is not None, "the files were read"
        for label, known in self._known.items():
            is_there = label in there or known.state == "deleted" or not known.whole
            if not is_there and self._watch.would_show(label):
                known.state = "deleted"
                yield Change(label, "deleted")

    async def _check(self) -> _Found | None:
        assert self._watch is not None, "`opening` comes first"
        found = await anyio.to_thread.run_sync(self._watch.check)
        if not found:
            # Nothing to compare; a glob may match more files than are followed.
            return self._checked(())
        return await anyio.to_thread.run_sync(self._checked, await self._parsed(found))

    async def _parsed(self, found: Sequence[tuple[Part, Content]]) -> Sequence[_Parsed]:
        """The same, with the definitions and skeletons that are shown of files."""
        return [await self._parsed_one(part, content) for part, content in found]

    async def _parsed_one(self, part: Part, content: Content) -> _Parsed:
        worker, entry = self._run.worker, part.entry
        is_code = entry.name is not None or entry.skeleton
        if worker is None or content.text is None or not is_code:
            return _Parsed(part, content)
        # Most runs show no code, and import no parser.
        from aish.engine.steps.context_files.code_parts import code_part

        try:
            code = await code_part(worker, entry, content.data, content.text)
        except PackError as error:
            return _Parsed(part, content, problem=error.message)
        return _Parsed(part, content, code)

    def _checked(self, found: Sequence[_Parsed]) -> _Found | None:
        """What is to be said of files that have changed; `None` if nothing is."""
        seen = map(self._change, found)
        changes = [change for change in seen if change is not None]
        update = self._update(changes)
        if not update.block:
            return None
        return _Found(update.block, tuple(FileShown(one.label, one.kind) for one in changes))

    def _update(self, changes: Sequence[Change]) -> Update:
        settings = self._settings
        more = () if self._watch is None else tuple(self._watch.newly_left_out())
        limits = Limits(settings.file_limit, settings.round_limit)
        mask = self._runtime.mask
        update = update_of(changes, more, self._run.tag, settings.refresh, limits, mask)
        for change in changes:
            known = self._known[change.label]
            known.told = change.label in update.known and not known.digest
        return update

    def _change(self, one: _Parsed) -> Change | None:
        """What is to be said of a part whose file has changed, if anything."""
        part, content = one.part, one.content
        label, known = part.label, self._known.get(part.label)
        if content is GONE:
            return None if known is None else _deleted(label, known)
        if content.text is None:
            return self._unreadable(part, content, known)
        if part.entry.lines is not None and known is not None:
            return self._sliced(label, content.text, known, part.entry.lines)
        if (one.code is not None or one.problem) and known is not None:
            return self._code(one, content.text, known)
        return self._whole(part, content.text, known)

    def _code(self, one: _Parsed, text: str, known: _PartState) -> Change | None:
        """A definition or a skeleton; a definition that is not found by name is sought as lines."""
        label, entry, code = one.part.label, one.part.entry, one.code
        if code is None and entry.name is not None:
            return self._sliced(label, text, known, None)
        if code is None:
            self._replace(known, "", known.span)
            return Change(label, "changed", why="it has no skeleton now")
        old, missed = known.span, known.state in {"lost", "deleted"}
        if _is_same(known, code.text):
            known.span, known.state = code.span, "changed"
            return Change(label, "found", None, code.text) if missed else None
        before = f"{known.text}\n" if known.told else None
        self._replace(known, code.text, code.span)
        return Change(
            label,
            "changed",
            before,
            f"{code.text}\n",
            place=code.span.shown if entry.name is not None else "",
            old_line=old.first,
            new_line=code.span.first,
        )

    def _whole(self, part: Part, after: str, known: _PartState | None) -> Change | None:
        """A whole file: its texts are compared."""
        label = part.label
        if known is None or known.state == "deleted":
            if known is None:
                self._add(part, after, Span(1, 1))
            else:
                self._replace(known, after, known.span)
            return Change(label, "added", None, after)
        if _is_same(known, after):
            return None
        before = known.text if known.told else None
        self._replace(known, after, known.span)
        return Change(label, "changed", before, after)

    def _unreadable(self, part: Part, content: Content, known: _PartState | None) -> Change | None:
        kind: Kind = "added" if known is None or known.state == "deleted" else "changed"
        if known is None:
            self._add(part, "", Span(1, 1), told=False)
        elif part.entry.lines is None:
            self._replace(known, "", known.span)
        else:
            known.state = "changed"
        return Change(part.label, kind, why=content.why)

    def _sliced(
        self, label: str, text: str, known: _PartState, declared: tuple[int, int] | None
    ) -> Change | None:
        """A part that is found again by its text, or by its first and last line."""
        old = known.span
        span = found_again(text, known.text, old)
        if span is None:
            if known.state == "lost":
                return None
            known.state = "lost"
            return Change(label, "lost")
        after, missed = within(lines_of(text), span), known.state in {"lost", "deleted"}
        place = "" if (span.first, span.after - 1) == declared else span.shown
        if after == known.text:
            known.span, known.state = span, "changed"
            return Change(label, "found", None, after, place=place) if missed else None
        before = f"{known.text}\n" if known.told else None
        self._replace(known, after, span)
        return Change(
            label,
            "changed",
            before,
            f"{after}\n",
            place=place,
            old_line=old.first,
            new_line=span.first,
        )

    def _add(self, part: Part, text: str, span: Span, *, told: bool = True) -> None:
        self._known[part.label] = known = _PartState("", span, told, whole=part.is_whole)
        self._replace(known, text, span)

    def _replace(self, known: _PartState, text: str, span: Span) -> None:
        """The text of a part now; not kept where there is too much of all of them."""
        self._kept += len(text) - len(known.text)
        known.text, known.span, known.state, known.digest = text, span, "changed", ""
        if self._kept > MOST_KEPT and known.whole:
            # All of a file: its hash is enough. Lines are found again by their text.
            known.digest = _digest(text)
            self._kept -= len(text)
            known.text, known.told = "", False


def _first_text(one: _Parsed, text: str) -> tuple[str, Span]:
    """What is shown of a file before the prompt.

    Raises:
        StepFailedError: it has no such lines or definitions.
    """
    part = one.part
    if one.problem:
        said = f"`{part.source.label}` of `context.files`: {one.problem}"
        raise StepFailedError(said)
    if one.code is not None:
        return one.code.text, one.code.span
    if part.entry.lines is None:
        return text, Span(1, 1)
    found = slice_of(text, *part.entry.lines)
    if found is None:
        first, count = part.entry.lines[0], len(lines_of(text))
        said = f"`{part.source.path}` has {counted(count, 'line')}, and `lines` begins at {first}"
        raise StepFailedError(said, hint="correct its `lines` in `context.files`")
    return found


def _deleted(label: str, known: _PartState) -> Change | None:
    if known.state == "deleted":
        return None
    known.state = "deleted"
    return Change(label, "deleted")


def _is_same(known: _PartState, text: str) -> bool:
    return _digest(text) == known.digest if known.digest else text == known.text


def _digest(text: str) -> str:
    return sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


def _found_in(held: JsonObject) -> _Found:
    """What a cassette has.

    Raises:
        StepFailedError: it has another form.
    """
    text, files = held.get("text"), held.get("files")
    if not isinstance(text, str) or not isinstance(files, list):
        raise StepFailedError("the cassette has no files of `context.files` here")
    notices = held.get("notices")
    told = notices if isinstance(notices, list) else ()
    return _Found(text, tuple(map(_file_shown, files)), tuple(map(str, told)))


def _file_shown(one: JsonValue) -> FileShown:
    match one:
        case {
            "path": str(path),
            "change": ("shown" | "added" | "changed" | "deleted" | "lost" | "found") as change,
        }:
            return FileShown(path, change)
    raise StepFailedError("the cassette says of a file of `context.files` what is not known")


def _known_of(state: JsonObject) -> Mapping[str, _PartState]:
    """What an earlier conversation knew; a part of another form is shown again."""
    found: dict[str, _PartState] = {}
    for label, one in state.items():
        with suppress(TypeError, ValueError, LookupError):
            found[label] = _part_state(one)
    return found


def _part_state(one: JsonValue) -> _PartState:
    match one:
        case {
            "text": str(text),
            "lines": [int(first), int(after)],
            "told": bool(told),
            "state": "changed" | "deleted" | "lost" as state,
            "whole": bool(whole),
            "sha256": str(digest),
        }:
            same = _digest(text) == digest
            # A text whose secrets are masked is nothing to compare with.
            span, told = Span(first, after), told and same
            return _PartState(text, span, told, state, "" if same else digest, whole)
    raise ValueError("another form")
