"""The optional libraries that children of packs can import, and their folders.

The children run isolated (`-I`): neither `PYTHONPATH` nor the working directory of aish can bring
them a module. They get the folders of installed packages of this process, including the user's. A
library that is in none of these counts as not installed, here and in the children.
"""

import sys
from importlib.machinery import PathFinder
from pathlib import Path

import aish

_INSTALLED = ("site-packages", "dist-packages")
_AISH = str(Path(aish.__file__).parents[1])


def library_folders() -> tuple[str, ...]:
    """Return the folders of installed packages in the order of this process; that of aish last."""
    return (*(path for path in sys.path if Path(path).name in _INSTALLED), _AISH)


def is_installed(*libraries: str) -> bool:
    """Return true if children can find these libraries; imports nothing.

    A library whose entry in `sys.modules` is `None` must not be imported, and counts as missing.
    """
    folders = library_folders()
    barred = {name for name in libraries if sys.modules.get(name, sys) is None}
    return not barred and all(PathFinder.find_spec(name, folders) for name in libraries)


def child_command(script: str) -> tuple[str, ...]:
    """Return the words that start a script; the folders to import from are its arguments."""
    return (sys.executable, "-I", script, *library_folders())
