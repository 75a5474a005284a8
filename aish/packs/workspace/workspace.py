"""The root of a server's packs (K4): what tools that read and write files are called with."""

from pathlib import Path

from aish.core.frozen import frozen
from aish.packs.parse_worker import ParseWorker
from aish.packs.workspace.confined_path import Folder
from aish.system.process.reaper import Reaper


@frozen
class Workspace:
    """A root by descriptor and by path, what ends its children, and what parses its files.

    `own_files` are the files that the run is made of, as absolute and resolved paths: no tool
    writes them (K19). `macros` are words that the parser of C may ignore (K41). `runs` is one of
    `own_files`: the folder of runs, if it is below the root and no hidden one (T36).
    """

    folder: Folder
    root: Path
    worker: ParseWorker
    reaper: Reaper | None = None
    own_files: frozenset[Path] = frozenset()
    macros: tuple[str, ...] = ()
    runs: Path | None = None
