"""`aish`, to whose run folder something happens while the run begins.

    python folder_driver.py NAME (gone|link) ARGUMENTS…

Right before the file NAME of the run folder is opened for the first time, the folder above all run
folders is deleted (`gone`), or moved and replaced by a link to where it is now (`link`).
"""

import shutil
import sys
from pathlib import Path

from aish.__main__ import main


def happens(name: str, what: str) -> None:
    """Watch for the file to be opened; the interpreter tells before it does that."""
    left = [name]

    def hear(event: str, arguments: tuple[object, ...]) -> None:
        if event != "open" or not left or not isinstance(arguments[0], (str, Path)):
            return
        path = Path(arguments[0])
        if path.name != name or ".aish" not in path.parts:
            return
        left.clear()
        runs = path.parent.parent
        if what == "gone":
            shutil.rmtree(runs)
        else:
            runs.rename(runs.with_name("moved"))
            Path(runs).symlink_to("moved")

    sys.addaudithook(hear)


if __name__ == "__main__":
    happens(sys.argv[1], sys.argv[2])
    sys.argv[1:] = sys.argv[3:]
    main()
