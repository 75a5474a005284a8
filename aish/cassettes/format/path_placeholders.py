"""Placeholders in a cassette for folders that differ between machines.

A path occurs in a body as plain text, in JSON, escaped once or twice (a tool call's arguments are
JSON within JSON), or in a `file://` address. If it contains a quote, a backslash, a space or a
non-ASCII letter, these forms differ.
"""

import json
import re
from collections.abc import Iterable, Iterator
from urllib.parse import quote

from aish.cassettes.format.edits import Edit

ROOT, RUN, HOME = "<root>", "<run>", "<home>"
_TAGS = re.compile(f"{ROOT}|{RUN}|{HOME}")
_WHOLE = r"(?![\w-]|\.\w)"
_NEAR = 4096


class PathPlaceholders:
    """The current pipeline folder, run folder and home folder.

    A folder that is not given, or is the root of the file system, has no placeholder.
    """

    def __init__(self, *, root: str = "", run: str = "", home: str = "") -> None:
        named = ((home, HOME), (root, ROOT), (run, RUN))
        folders = [(path.rstrip("/"), tag) for path, tag in named]
        # Of two equal folders the last one is used.
        self._tags = {form: tag for path, tag in folders if path for form in _forms(path)}
        self._paths = {tag: path for path, tag in folders if path}
        self._usual = tuple(self._tags)
        # Some JSON writers escape the slash; always looking for that would be slow.
        self._tags |= {form.replace("/", "\\/"): tag for form, tag in self._tags.items()}
        self._patterns: dict[bool, re.Pattern[str]] = {}
        # Nearly all paths are the same text in JSON as outside of it.
        self._is_plain = all(_in_json(path) == path for path in self._paths.values())

    def __bool__(self) -> bool:
        return bool(self._tags)

    def hide(self, text: str) -> str:
        """The text with paths replaced by placeholders."""
        if not self._tags:
            return text
        return self._pattern_for(text).sub(lambda match: self._tags[match[0]], text)

    def spans(self, text: str) -> Iterator[tuple[int, int, str]]:
        """The positions of the folders' paths: start, end, placeholder."""
        for match in self._pattern_for(text).finditer(text) if self._tags else ():
            yield match.start(), match.end(), self._tags[match[0]]

    def _pattern_for(self, text: str) -> re.Pattern[str]:
        escaped = "\\/" in text
        if escaped not in self._patterns:
            # Only when needed: that takes a millisecond.
            self._patterns[escaped] = _pattern(self._tags if escaped else self._usual)
        return self._patterns[escaped]

    def show(self, text: str) -> str:
        """The text with placeholders replaced by the paths of this machine."""
        return _TAGS.sub(lambda match: self._paths.get(match[0], match[0]), text)

    def showings(self, text: str) -> Iterator[Edit]:
        """The same as edits, for a body: within JSON a path is escaped as JSON."""
        for match in _TAGS.finditer(text):
            if path := self._paths.get(match[0]):
                for _ in range(0 if self._is_plain else _depth(text, match.start())):
                    path = _in_json(path)
                yield Edit(match.start(), match.end(), path)


def _pattern(tags: Iterable[str]) -> re.Pattern[str]:
    longest_first = sorted(tags, key=len, reverse=True)
    return re.compile(f"(?:{'|'.join(map(re.escape, longest_first))}){_WHOLE}")


def _forms(path: str) -> set[str]:
    once = {json.dumps(path, ensure_ascii=ascii_only)[1:-1] for ascii_only in (True, False)}
    twice = {
        json.dumps(form, ensure_ascii=ascii_only)[1:-1]
        for form in once
        for ascii_only in (True, False)
    }
    return {path, *once, *twice, quote(path, safe="/", errors="replace")}


def _in_json(path: str) -> str:
    return json.dumps(path, ensure_ascii=False)[1:-1]


def _depth(text: str, place: int) -> int:
    """The number of JSON layers around a position, judged by the quote that opens its string."""
    before = text.rfind('"', max(0, place - _NEAR), place)
    if before < 0:
        return 0
    slashes = 0
    while before - slashes > 0 and text[before - slashes - 1] == "\\":
        slashes += 1
    return (slashes + 1).bit_length()


NOWHERE = PathPlaceholders()
