"""Globs over paths below the root, followed folder by folder while a tree is walked.

Nothing becomes a regular expression: a name is matched in time bounded by the product of its
length and the pattern's, a path by the segments of both, and a folder in which nothing can match is
not entered.
"""

from collections.abc import Callable, Iterable
from operator import methodcaller

from aish.core.frozen import frozen
from aish.system.globs import matches_word

States = frozenset[int]
NOWHERE: States = frozenset()


@frozen
class PathGlob:
    """A glob in segments; `None` is `**`, any number of folders.

    `*` and `?` stay within one segment. Without a `/` the glob is one for the name alone.
    """

    segments: tuple[str | None, ...]

    @property
    def start(self) -> States:
        """The states in the folder that the glob is relative to."""
        return self._closure({0})

    def enter(self, states: States, folder: str) -> States:
        """The states in a folder; empty if nothing below it can match."""
        reached = set()
        for state in states:
            segment = self.segments[state]
            if segment is None:
                reached.add(state)
            elif state + 1 < len(self.segments) and matches_word(segment, folder):
                reached.add(state + 1)
        return self._closure(reached)

    def enter_all(self, folders: Iterable[str]) -> States:
        """The states after several folders."""
        states = self.start
        for folder in folders:
            states = self.enter(states, folder)
        return states

    def file_test(self, states: States) -> Callable[[str], bool] | None:
        """Return a test of file names in this folder; `None` if none can match."""
        last = len(self.segments) - 1
        if last not in states:
            return None
        segment = self.segments[last]
        if segment is None or segment == "*":
            return lambda _name: True
        ending = segment[1:]
        if segment[0] == "*" and not set(ending) & set("*?"):
            # Most globs are of this form, and this is twenty times as fast.
            return methodcaller("endswith", ending)
        return lambda name: matches_word(segment, name)

    def matches(self, path: str) -> bool:
        *folders, name = path.split("/")
        test = self.file_test(self.enter_all(folders))
        return test is not None and test(name)

    def _closure(self, states: set[int]) -> States:
        """Add the states that `**` reaches by being no folder at all."""
        for state in sorted(states):
            after = state
            while after + 1 < len(self.segments) and self.segments[after] is None:
                after += 1
                states.add(after)
        return frozenset(states)


def path_glob(text: str) -> PathGlob:
    """The glob of a text; a `/` at its begin or end means nothing."""
    parts = [part for part in text.split("/") if part not in {"", "."}]
    if len(parts) == 1 and "/" not in text.rstrip("/"):
        parts.insert(0, "**")
    segments: list[str | None] = []
    for part in parts:
        folders = part == "**"
        if not (folders and segments and segments[-1] is None):
            segments.append(None if folders else part)
    return PathGlob(tuple(segments or [None]))
