"""Decides which form of a call is in force: that of Linux, or the one that every Unix has.

A module of this room asks `sys.platform == "linux" and not is_portable()`: the first half is for
type checkers, which then know what a Mac lacks, the second one decides.
"""

import sys

_FORCED = "aish_portable"
"""An attribute of `sys` that tests set before anything runs. Nothing that a user writes sets it: no
variable of the environment, no option and no file weakens a run on Linux."""
PORTABLE_WORD = "--portable"
"""The word that tells our own scripts, which import nothing of ours."""
NOT_ON_WINDOWS = "Windows is not supported; install WSL (`wsl --install`) and run aish in it"


def is_portable() -> bool:
    """Return true if calls that only Linux has are not used."""
    return sys.platform != "linux" or getattr(sys, _FORCED, False)
