"""Programs that put a link in the place of what is opened, and take it away, without end (K4).

Their working folder is a root with `docs/` and `link`, which leads outside.
"""

from collections.abc import Callable, Iterator

SWAP_FOLDER = """
import os
print("swapping", flush=True)
while True:
    os.rename("docs", "spare")
    os.rename("link", "docs")
    os.rename("docs", "link")
    os.rename("spare", "docs")
"""
SWAP_FILE = """
import os
print("swapping", flush=True)
while True:
    os.symlink("../../outside/a.md", "docs/new")
    os.rename("docs/new", "docs/a.md")
    with open("docs/new", "wb") as new:
        new.write(b"inside")
    os.rename("docs/new", "docs/a.md")
"""


def swapped_rounds(least: int, is_enough: Callable[[], object]) -> Iterator[int]:
    """So many rounds beside such a program, and more of them while what is wanted was not seen.

    On a busy machine the program may stand still for seconds, with the link in place or without.
    """
    for number in range(200 * least):
        if number >= least and is_enough():
            return
        yield number
