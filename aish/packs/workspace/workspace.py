"""The context of a pack's tools: the root of its server (K1, K4)."""

from pathlib import Path

from aish.core.frozen import frozen
from aish.packs.workspace.confined_path import Folder
from aish.system.process.reaper import Reaper


@frozen
class Workspace:
    """The root of a server's packs, by descriptor and by path, and what ends its children."""

    folder: Folder
    root: Path
    reaper: Reaper | None = None
