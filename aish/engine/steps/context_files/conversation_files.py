"""The files of one conversation: put before its prompt, then kept current.

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
from aish.engine.steps.context_files.slices import LineSpan, find_again, lines_of, slice_of, within
from aish.engine.steps.context_files.update_text import (
    Kind,
    PartChange,
    Update,
    format_file,
    format_without_content,
    update_of,
)
from aish.engine.steps.context_files.watch import (
    GONE,
    Watch,
    WatchedContent,
    WatchedPart,
    check_size,
)
from aish.packs.pack_error import PackError

if TYPE_CHECKING:
    from aish.engine.steps.context_files.code_parts import CodePart

MOST_KEPT: Final = 4 * 1024 * 1024
"""Characters of texts that are kept to be compared; a change of any further one is shown whole."""


@slotted
class _PartState:
    """The state of a part: its last text, its lines, and whether the model has that text.

    `digest` is that of the text, also where a journal has the text with its secrets masked.
    """

    text: str
    span: LineSpan
    told: bool = True
    state: Kind = "changed"
    digest: str = ""
    whole: bool = True


@frozen
class _ParsedPart:
    """A part with the content of its file, and with its code where it is a definition or skeleton.

    `problem` says why there is none.
    """

    part: WatchedPart
    content: WatchedContent
    code: "CodePart | None" = None
    problem: str = ""


@frozen
class _FilesText:
    """A text for the model, and the files that it shows; read here or from a cassette.

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
        self._known = {} if earlier is None else dict(_parts_of(earlier))
        self._kept = sum(len(part.text) for part in self._known.values())

    def close(self) -> None:
        if self._watch is not None:
            self._watch.close()
            self._watch = None

    async def opening(self) -> str:
        """The files, and what has changed in those that the conversation has.

        Raises:
            StepFailedError: a named file cannot be read, or they are too many or too large.
            CassetteMissError: in a replay.
        """
        opening = await self._find(self._place, "prompt", self._begin)
        for text in opening.notices:
            self._runtime.emit(Notice(self._place, "warning", "file_left_out", text))
        self._tell(self._place, opening.files)
        return opening.text

    async def go_on(self) -> None:
        """Begin to follow the files of a conversation that is gone on with.

        What has changed since is told after its next round.

        Raises:
            StepFailedError: as `opening`.
        """
        self._since = await self.opening()

    async def after_round(self, place: Place) -> str:
        if self._settings.refresh == "off":
            return ""
        update = await self._find(place, "round", self._check)
        if update.text:
            self._tell(place, update.files)
        since, self._since = self._since, ""
        return "\n\n".join(text for text in (since, update.text) if text)

    def state(self) -> JsonObject:
        """The state that a continued conversation needs."""
        return {
            label: {
                "text": part.text,
                "lines": [part.span.first, part.span.after],
                "told": part.told,
                "state": part.state,
                "whole": part.whole,
                "sha256": part.digest or _digest(part.text),
            }
            for label, part in self._known.items()
        }

    def keep(self) -> None:
        """Record that state in the run's folder, for a resumed run."""
        data = json.dumps(self.state()).encode()
        # A full disk loses the file: then a resumed run shows the files again.
        with suppress(OSError):
            file = self._runtime.keep("context-files.json", data)
            here = Place(self._place.step, self._place.item)
            self._runtime.emit(ContextFiles(here, self._run.tag, (), file))

    def _tell(self, place: Place, files: Sequence[FileShown]) -> None:
        here = Place(place.step, place.item, place.turn)
        self._runtime.emit(ContextFiles(here, self._run.tag, tuple(files)))

    async def _find(
        self, place: Place, at: str, read: Callable[[], Awaitable[_FilesText | None]]
    ) -> _FilesText:
        recorder = self._run.recorder

        async def read_json() -> JsonObject | None:
            update = await read()
            if update is None:
                return None
            files: list[JsonValue] = [{"path": f.path, "change": f.change} for f in update.files]
            notices = {"notices": update.notices} if update.notices else {}
            return {"tag": self._run.tag, "text": update.text, "files": files, **notices}

        if recorder is None:
            return await read() or _FilesText("", ())
        asked = {"item": place.item, "turn": place.turn, "at": at}
        held = await recorder.context_files(place.step or "", asked, read_json)
        return _FilesText("", ()) if held is None else _from_cassette(held)

    async def _begin(self) -> _FilesText:
        parts = await anyio.to_thread.run_sync(self._read_all)
        parsed = [await self._parse(part, content) for part, content in parts]
        return await anyio.to_thread.run_sync(self._opening_text, parsed)

    def _read_all(self) -> list[tuple[WatchedPart, WatchedContent]]:
        broad = self._allow_broad_root
        self._watch = Watch(self._settings.files, self._folder, allow_broad_root=broad)
        return self._watch.begin()

    def _opening_text(self, parts: Sequence[_ParsedPart]) -> _FilesText:
        """All parts, where the conversation does not have them as they are."""
        pieces: list[str] = []
        files: list[FileShown] = []
        sizes: list[tuple[str, int]] = []
        changes: list[PartChange] = []
        notices: list[str] = []
        for entry in parts:
            part, content = entry.part, entry.content
            if content.left_out:
                notices.append(f"`{part.label}` of `context.files` is {content.why}")
            if part.label in self._known:
                change = self._change(entry)
                changes += [] if change is None else [change]
                continue
            if content.text is None:
                self._add(part, "", LineSpan(1, 1), told=False)
                pieces.append(format_without_content(part.label, content.why, content.size))
            else:
                text, span = _first_text(entry, content.text)
                self._add(part, text, span)
                pieces.append(format_file(part.label, part.source.path, text))
                sizes.append((part.label, len(text.encode("utf-8", "replace"))))
            if not content.left_out:
                files.append(FileShown(part.label, "shown"))
        check_size(sizes)
        changes += self._deletions({entry.part.label for entry in parts})
        if pieces and self._settings.refresh != "off":
            pieces.append(announcement(self._run.tag))
        if changes and self._settings.refresh != "off":
            update = self._update(changes)
            pieces.insert(0, update.block)
            files += [FileShown(one.label, one.kind) for one in changes]
        return _FilesText("\n\n".join(pieces), tuple(files), tuple(notices))

    def _deletions(self, there: Collection[str]) -> Iterator[PartChange]:
        """Files of the conversation that this step would show, and that are deleted since."""
        assert self._watch is not None, "the files were read"
        for label, known in self._known.items():
            is_there = label in there or known.state == "deleted" or not known.whole
            if not is_there and self._watch.would_show(label):
                known.state = "deleted"
                yield PartChange(label, "deleted")

    async def _check(self) -> _FilesText | None:
        assert self._watch is not None, "`opening` comes first"
        parts = await anyio.to_thread.run_sync(self._watch.check)
        if not parts:
            # Nothing to compare; a glob may match more files than are followed.
            return self._changes_text(())
        parsed = [await self._parse(part, content) for part, content in parts]
        return await anyio.to_thread.run_sync(self._changes_text, parsed)

    async def _parse(self, part: WatchedPart, content: WatchedContent) -> _ParsedPart:
        """The same, with the definition or skeleton that is shown of a file."""
        worker, entry = self._run.worker, part.entry
        is_code = entry.name is not None or entry.skeleton
        if worker is None or content.text is None or not is_code:
            return _ParsedPart(part, content)
        # Most runs show no code, and import no parser.
        from aish.engine.steps.context_files.code_parts import code_part

        try:
            code = await code_part(worker, entry, content.data, content.text)
        except PackError as error:
            return _ParsedPart(part, content, problem=error.message)
        return _ParsedPart(part, content, code)

    def _changes_text(self, parts: Sequence[_ParsedPart]) -> _FilesText | None:
        """The update about files that have changed; `None` if there is nothing to say."""
        differences = map(self._change, parts)
        changes = [change for change in differences if change is not None]
        update = self._update(changes)
        if not update.block:
            return None
        return _FilesText(update.block, tuple(FileShown(one.label, one.kind) for one in changes))

    def _update(self, changes: Sequence[PartChange]) -> Update:
        more = () if self._watch is None else tuple(self._watch.newly_left_out())
        update = update_of(changes, more, self._run.tag, self._settings, self._runtime.mask)
        for change in changes:
            known = self._known[change.label]
            known.told = change.label in update.known and not known.digest
        return update

    def _change(self, entry: _ParsedPart) -> PartChange | None:
        """The change of a part whose file has changed, if there is one to be told."""
        part, content = entry.part, entry.content
        label, known = part.label, self._known.get(part.label)
        if content is GONE:
            return None if known is None else _delete(label, known)
        if content.text is None:
            return self._unreadable(part, content, known)
        if part.entry.lines is not None and known is not None:
            return self._slice(label, content.text, known, part.entry.lines)
        if (entry.code is not None or entry.problem) and known is not None:
            return self._code(entry, content.text, known)
        return self._whole(part, content.text, known)

    def _code(self, item: _ParsedPart, text: str, known: _PartState) -> PartChange | None:
        """A definition or a skeleton; a definition that is not found by name is sought as lines."""
        label, entry, code = item.part.label, item.part.entry, item.code
        if code is None and entry.name is not None:
            return self._slice(label, text, known, None)
        if code is None:
            self._replace(known, "", known.span)
            return PartChange(label, "changed", why="it has no skeleton now")
        place = code.span.shown if entry.name is not None else ""
        change = PartChange(label, "found", None, code.text)
        return self._compare(known, code.text, code.span, change, place)

    def _whole(self, part: WatchedPart, after: str, known: _PartState | None) -> PartChange | None:
        """A whole file: its texts are compared."""
        label = part.label
        if known is None or known.state == "deleted":
            if known is None:
                self._add(part, after, LineSpan(1, 1))
            else:
                self._replace(known, after, known.span)
            return PartChange(label, "added", None, after)
        if _is_same(known, after):
            return None
        before = known.text if known.told else None
        self._replace(known, after, known.span)
        return PartChange(label, "changed", before, after)

    def _unreadable(
        self, part: WatchedPart, content: WatchedContent, known: _PartState | None
    ) -> PartChange | None:
        kind: Kind = "added" if known is None or known.state == "deleted" else "changed"
        if known is None:
            self._add(part, "", LineSpan(1, 1), told=False)
        elif part.entry.lines is None:
            self._replace(known, "", known.span)
        else:
            known.state = "changed"
        return PartChange(part.label, kind, why=content.why)

    def _slice(
        self, label: str, text: str, known: _PartState, declared: tuple[int, int] | None
    ) -> PartChange | None:
        """A part that is found again by its text, or by its first and last line."""
        span = find_again(text, known.text, known.span)
        if span is None:
            if known.state == "lost":
                return None
            known.state = "lost"
            return PartChange(label, "lost")
        after = within(lines_of(text), span)
        place = "" if (span.first, span.after - 1) == declared else span.shown
        change = PartChange(label, "found", None, after, place=place)
        return self._compare(known, after, span, change, place)

    def _compare(
        self, known: _PartState, text: str, span: LineSpan, change: PartChange, place: str
    ) -> PartChange | None:
        """The change of a part that is there; `change` if it was missed and is as it was."""
        old, missed = known.span, known.state in {"lost", "deleted"}
        if _is_same(known, text):
            known.span, known.state = span, "changed"
            return change if missed else None
        before = f"{known.text}\n" if known.told else None
        self._replace(known, text, span)
        after = f"{text}\n"
        return PartChange(change.label, "changed", before, after, "", place, old.first, span.first)

    def _add(self, part: WatchedPart, text: str, span: LineSpan, *, told: bool = True) -> None:
        self._known[part.label] = known = _PartState("", span, told, whole=part.is_whole)
        self._replace(known, text, span)

    def _replace(self, known: _PartState, text: str, span: LineSpan) -> None:
        """The text of a part now; not kept where there is too much of all of them."""
        self._kept += len(text) - len(known.text)
        known.text, known.span, known.state, known.digest = text, span, "changed", ""
        if self._kept > MOST_KEPT and known.whole:
            # All of a file: its hash is enough. Lines are found again by their text.
            known.digest = _digest(text)
            self._kept -= len(text)
            known.text, known.told = "", False


def _first_text(entry: _ParsedPart, text: str) -> tuple[str, LineSpan]:
    """The part of a file that is shown before the prompt.

    Raises:
        StepFailedError: it has no such lines or definitions.
    """
    part = entry.part
    if entry.problem:
        said = f"`{part.source.label}` of `context.files`: {entry.problem}"
        raise StepFailedError(said)
    if entry.code is not None:
        return entry.code.text, entry.code.span
    if part.entry.lines is None:
        return text, LineSpan(1, 1)
    lines = slice_of(text, *part.entry.lines)
    if lines is None:
        first, count = part.entry.lines[0], len(lines_of(text))
        said = f"`{part.source.path}` has {counted(count, 'line')}, and `lines` begins at {first}"
        raise StepFailedError(said, hint="correct its `lines` in `context.files`")
    return lines


def _delete(label: str, known: _PartState) -> PartChange | None:
    if known.state == "deleted":
        return None
    known.state = "deleted"
    return PartChange(label, "deleted")


def _is_same(known: _PartState, text: str) -> bool:
    return _digest(text) == known.digest if known.digest else text == known.text


def _digest(text: str) -> str:
    return sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


def _from_cassette(held: JsonObject) -> _FilesText:
    """The entry of a cassette.

    Raises:
        StepFailedError: it has another form.
    """
    # Only a run with a cassette needs it.
    from aish.journal.reader import value_of

    try:
        return value_of(_FilesText, held)
    except ValueError as error:
        raise StepFailedError("the cassette has no files of `context.files` here") from error


def _parts_of(state: JsonObject) -> Mapping[str, _PartState]:
    """The parts that an earlier conversation knew; one of another form is shown again."""
    parts: dict[str, _PartState] = {}
    for label, value in state.items():
        with suppress(TypeError, ValueError, LookupError):
            parts[label] = _part_state(value)
    return parts


def _part_state(value: JsonValue) -> _PartState:
    match value:
        case {
            "text": str(text),
            "lines": [int(first), int(after)],
            "told": bool(is_told),
            "state": "changed" | "deleted" | "lost" as state,
            "whole": bool(whole),
            "sha256": str(digest),
        }:
            same = _digest(text) == digest
            # A text whose secrets are masked is nothing to compare with.
            span, is_told = LineSpan(first, after), is_told and same
            return _PartState(text, span, is_told, state, "" if same else digest, whole)
    raise ValueError("another form")
