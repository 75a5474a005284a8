"""The context of a pack's tools: the root of its server (K1, K4)."""

from pathlib import Path

from aish.core.frozen import frozen
from aish.packs.workspace.confined_path import Folder
from aish.system.process.reaper import Reaper


@frozen
class Workspace:
    """The root of a server's packs, by descriptor and by path, and what ends its children.

    `own_files` are the files that the run is made of, as absolute and resolved paths: no tool
    writes them (K19).
    """

    folder: Folder
    root: Path
    reaper: Reaper | None = None
    own_files: frozenset[Path] = frozenset()
