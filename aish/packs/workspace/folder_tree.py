"""Files found by a glob, and a folder as an indented tree."""

from collections import deque
from collections.abc import Iterator
from dataclasses import field
from itertools import chain

from aish.core.frozen import frozen, slotted
from aish.packs.workspace.confined_path import segments_of
from aish.packs.workspace.folder_walk import (
    DEEPEST,
    FolderContent,
    FolderPlace,
    FolderWalk,
    Kind,
    format_name,
)
from aish.packs.workspace.path_glob import States, path_glob

MOST_SHOWN = 100
"""Entries of one folder that a tree shows."""


def find_files(walk: FolderWalk, path: str, glob: str) -> Iterator[str]:
    """The paths of the files below a folder that match, in no order.

    The glob is relative to the folder or to the root. Links count by their own names.
    """
    compiled = path_glob(glob)
    states = compiled.start | compiled.enter_all(segments_of(path))
    waiting: list[tuple[FolderPlace, States]] = [(walk.begin(path), states)]
    while waiting:
        place, states = waiting.pop()
        content = walk.read(place, in_order=False)
        if content is None:
            continue
        above = "".join(f"{segment}/" for segment in place.segments)
        test = compiled.file_test(states)
        if test is not None:
            links = (name for name, kind in content.others if kind == "link")
            yield from [above + name for name in filter(test, chain(content.files, links))]
        if len(place.segments) < DEEPEST:
            waiting.extend(
                (content.place.below(name), reached)
                for name in content.folders_to_enter(ignored=walk.ignored)
                if (reached := compiled.enter(states, name))
            )


@frozen
class Tree:
    """The tree as text, the number of its entries, and whether there were more."""

    text: str
    entries: int
    truncated: bool


@slotted
class _TreeNode:
    """An entry of the tree; `inside` is filled when its folder is read."""

    row: str
    inside: list["_TreeNode"] = field(default_factory=list)


def folder_tree(walk: FolderWalk, path: str, levels: int, room: int) -> Tree:
    """The entries below a folder, level by level until they fill the room."""
    top = _TreeNode("")
    waiting = deque([(walk.begin(path), top, 1)])
    entries = size = 0
    truncated = False
    while waiting:
        place, node, level = waiting.popleft()
        content = walk.read(place)
        if content is None:
            continue
        entered = frozenset(content.folders_to_enter(ignored=walk.ignored))
        rows = _rows(content)
        for name, kind in rows[:MOST_SHOWN]:
            row = "  " * (level - 1) + format_name(name, kind)
            size += len(row) + 1
            if size > room:
                return Tree(_text(top), entries, truncated=True)
            below = _TreeNode(row)
            node.inside.append(below)
            entries += 1
            if name in entered and kind == "folder" and level < levels:
                waiting.append((content.place.below(name), below, level + 1))
        if len(rows) > MOST_SHOWN:
            truncated = True
            row = "  " * (level - 1) + f"… {len(rows) - MOST_SHOWN:,} more"
            size += len(row) + 1
            node.inside.append(_TreeNode(row))
    return Tree(_text(top), entries, truncated or bool(walk.incomplete))


def _rows(content: FolderContent) -> list[tuple[str, Kind]]:
    rows: list[tuple[str, Kind]] = [
        *((name, "folder") for name in content.folders),
        *((name, "file") for name in content.files),
        *content.others,
    ]
    rows.sort()
    return rows


def _text(top: _TreeNode) -> str:
    rows: list[str] = []
    waiting = list(reversed(top.inside))
    while waiting:
        node = waiting.pop()
        rows.append(node.row + "\n")
        waiting.extend(reversed(node.inside))
    return "".join(rows)
