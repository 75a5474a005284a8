"""The root of a server's packs: what tools that read and write files are called with."""

import os
from pathlib import Path

from aish.core.frozen import frozen
from aish.packs.pack_error import PackError
from aish.packs.parse_worker import LARGEST_SOURCE, ParseWorker
from aish.packs.workspace.confined_path import Folder
from aish.system.process.reaper import Reaper


@frozen
class Workspace:
    """A root by descriptor and by path, what ends its children, and what parses its files.

    `own_files` are the files that the run is made of, as absolute and resolved paths: no tool
    writes them. `macros` are words that the parser of C may ignore. `runs` is one of
    `own_files`: the folder of runs, if it is below the root and no hidden one.
    """

    folder: Folder
    root: Path
    worker: ParseWorker
    reaper: Reaper | None = None
    own_files: frozenset[Path] = frozenset()
    macros: tuple[str, ...] = ()
    runs: Path | None = None

    def read_source(self, path: str) -> bytes:
        """The bytes of a file for `worker`; `PackError` if there are too many."""
        with self.folder.file(path) as descriptor:
            size = os.fstat(descriptor).st_size
            if size > LARGEST_SOURCE:
                most = f"{LARGEST_SOURCE:,} are the most to be parsed"
                message = f"`{path}` has {size:,} bytes; {most}"
                raise PackError("too_large", message, path=path, limit=LARGEST_SOURCE)
            with os.fdopen(os.dup(descriptor), "rb") as stream:
                # It may grow meanwhile: the worker counts again.
                return stream.read(LARGEST_SOURCE + 1)
