"""Folders that differ from machine to machine, by the names they have in a cassette (C4)."""

import re
from collections.abc import Iterator

from aish.cassettes.edits import Edit

ROOT, RUN, HOME = "<root>", "<run>", "<home>"
_TAGS = re.compile(f"{ROOT}|{RUN}|{HOME}")
_WHOLE = r"(?![\w-]|\.\w)"


class Places:
    """The pipeline's folder, the run's folder and the home folder, here and now.

    A folder that is not given, or is the root of the file system, has no name.
    """

    def __init__(self, *, root: str = "", run: str = "", home: str = "") -> None:
        named = ((run, RUN), (root, ROOT), (home, HOME))
        folders = [(path.rstrip("/"), tag) for path, tag in named]
        self._tags = {path: tag for path, tag in reversed(folders) if path}
        self._paths = {tag: path for path, tag in folders if path}
        longest_first = sorted(self._tags, key=len, reverse=True)
        self._pattern = re.compile(f"(?:{'|'.join(map(re.escape, longest_first))}){_WHOLE}")

    def hide(self, text: str) -> str:
        """The text with the folders' names in place of their paths."""
        if not self._tags:
            return text
        return self._pattern.sub(lambda found: self._tags[found[0]], text)

    def show(self, text: str) -> str:
        """The text with the paths of this machine in place of the folders' names."""
        return _TAGS.sub(lambda found: self._paths.get(found[0], found[0]), text)

    def hidings(self, text: str) -> Iterator[Edit]:
        """The edits that `hide` makes, for a body that is cut into chunks."""
        for found in self._pattern.finditer(text) if self._tags else ():
            yield Edit(found.start(), found.end(), self._tags[found[0]])

    def showings(self, text: str) -> Iterator[Edit]:
        """The edits that `show` makes."""
        for found in _TAGS.finditer(text):
            if path := self._paths.get(found[0]):
                yield Edit(found.start(), found.end(), path)


NOWHERE = Places()
