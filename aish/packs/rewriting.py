"""One change of one file, from what was read to what is answered (K6)."""

import hashlib
from collections.abc import Callable
from typing import TypeVar

import anyio.to_thread

from aish.core.frozen import frozen
from aish.core.json import JsonValue
from aish.core.text import for_line
from aish.packs.beneath import not_found
from aish.packs.changes import Diff, diff_of
from aish.packs.encoding import PLAIN, Spelling, check_fits, decoded, encoded, in_lines_of
from aish.packs.python_code import check_parses
from aish.packs.replacing import LARGEST, Original, check_unchanged, put, read_original
from aish.packs.results import Answer, PackError
from aish.packs.root import Workplace

T = TypeVar("T")


@frozen
class Draft:
    """A file's text before, its new text, and how it is spelled; `old` is `None` for a new file."""

    old: Original | None
    before: str
    after: str
    spelling: Spelling

    @property
    def data(self) -> bytes:
        """The bytes to be written."""
        return encoded(self.after, self.spelling)


async def in_thread(work: Callable[[], T]) -> T:
    """Work on the disk, which is waited for even where the run ends: no write goes on unseen."""
    return await anyio.to_thread.run_sync(work)


def read(place: Workplace, path: str, expected: str | None) -> Original | None:
    """The file as it is; `None` where there is none and none was expected.

    Raises:
        PackError: it is not the expected one, or may not be changed.
    """
    with place.folder.place_of(path) as (folder, name):
        original = read_original(folder, name, path)
    if original is not None:
        check_unchanged(original, expected, path)
    elif expected is not None:
        raise not_found(path)
    return original


def edited(
    place: Workplace, path: str, expected: str | None, change: Callable[[str, Spelling], str]
) -> Draft:
    """The draft of a change to a text that is there.

    Raises:
        PackError: there is no such text, or it cannot be changed so.
    """
    original = read(place, path, expected)
    if original is None:
        raise not_found(path)
    before, spelling = decoded(original.content, path)
    return Draft(original, before, change(before, spelling), spelling)


def replaced(place: Workplace, path: str, expected: str | None, content: str) -> Draft:
    """The draft of a whole new content, spelled as the old one was where there is one."""
    original = read(place, path, expected)
    if original is None:
        return Draft(None, "", content, PLAIN)
    before, spelling = decoded(original.content, path)
    check_fits(spelling, content, path)
    return Draft(original, before, in_lines_of(spelling, content, before), spelling)


async def finish(place: Workplace, path: str, draft: Draft) -> Answer:
    """Write a draft and say what has changed.

    Raises:
        PackError: it is too large, breaks code, or cannot be written.
    """
    data = draft.data
    if len(data) > LARGEST:
        message = f"`{path}` would have {len(data):,} bytes; {LARGEST:,} are the most"
        raise PackError("too_large", message, path=path, limit=LARGEST)
    if draft.old is not None:
        await check_parses(place, path, draft.old.content, data)

    def work() -> Diff:
        if draft.old is None or draft.old.content != data:
            with place.folder.place_of(path) as (folder, name):
                put(folder, name, path, data, draft.old)
        return diff_of(draft.before, draft.after, path)

    return _answer(path, draft, data, await in_thread(work))


def _answer(path: str, draft: Draft, data: bytes, diff: Diff) -> Answer:
    digest = hashlib.sha256(data).hexdigest()
    what = "created" if draft.old is None else "changed" if diff.text else "unchanged"
    text = f"{what} `{for_line(path)}` ({len(data):,} bytes, sha256 {digest})\n{diff.text}"
    if diff.truncated:
        text += "[truncated: true; the change is longer than shown, file_read shows the file]"
    described: dict[str, JsonValue] = {
        "path": path,
        "created": draft.old is None,
        "bytes": len(data),
        "sha256": digest,
        "encoding": draft.spelling.name,
        "diff": diff.text,
        "truncated": diff.truncated,
    }
    return Answer(text, described)
