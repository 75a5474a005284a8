"""The optional libraries that children of packs can import, and their folders.

The children run isolated (`-I`): neither `PYTHONPATH` nor the folder that aish was started in may
bring them a module. They get the folders of installed packages that this process has, the user's
among them; what is nowhere in these counts as not installed, here and in the children.
"""

import sys
from importlib.machinery import PathFinder
from pathlib import Path

import aish

_INSTALLED = ("site-packages", "dist-packages")
_AISH = str(Path(aish.__file__).parents[1])


def library_folders() -> tuple[str, ...]:
    """The folders of installed packages in the order of this process; last, that of aish."""
    return (*(path for path in sys.path if Path(path).name in _INSTALLED), _AISH)


def is_installed(*libraries: str) -> bool:
    """Return true if the children find these libraries; import nothing.

    One that this process may not import, `None` in `sys.modules`, is not there.
    """
    folders = library_folders()
    barred = {name for name in libraries if sys.modules.get(name, sys) is None}
    return not barred and all(PathFinder.find_spec(name, folders) for name in libraries)


def child_command(script: str) -> tuple[str, ...]:
    """The words that start a script; its arguments are folders to import from, last of all."""
    return (sys.executable, "-I", script, *library_folders())
