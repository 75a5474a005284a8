"""Files on disk, looked at again: which are read, which are found, and which never are (K83)."""

import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from open_descriptors import opened_below
from work import work_of

from aish.config.model import ContextFile
from aish.core.errors import StepFailedError
from aish.engine.steps.context_files.watch import (
    GONE,
    GlobListing,
    Watch,
    WatchedContent,
    WatchedPart,
)
from aish.packs.workspace.confined_path import Folder

FAR = 10**12
"""Nanoseconds after which no file is young."""


class Later:
    """A clock that is ahead of the one of the files."""

    def __init__(self, ahead: int = 0) -> None:
        self.ahead = ahead

    def __call__(self) -> int:
        return time.time_ns() + self.ahead


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A project beside a folder that nobody may see."""
    for name in ("src/a.py", "src/lib/b.py", "docs/c.md", "docs/.hidden/d.md", ".env", "id_rsa"):
        path = tmp_path / "root" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("inside")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "a.py").write_text("outside")
    return tmp_path / "root"


@pytest.fixture
def watching(root: Path) -> Iterator[list[Watch]]:
    opened: list[Watch] = []
    yield opened
    for watch in opened:
        watch.close()


def watch_of(
    watching: list[Watch], root: Path, *patterns: str, clock: Later | None = None
) -> Watch:
    entries = [ContextFile(one, root, is_glob="*" in one or "?" in one) for one in patterns]
    watch = Watch(entries, root, clock or Later())
    watching.append(watch)
    return watch


def labels(found: list[tuple[WatchedPart, WatchedContent]]) -> list[str]:
    return [f"{part.label}{' (deleted)' if content is GONE else ''}" for part, content in found]


@pytest.mark.parametrize(
    ("pattern", "wanted"),
    [
        ("src/**/*.py", ["src/a.py", "src/lib/b.py"]),
        ("**/*.py", ["src/a.py", "src/lib/b.py"]),
        ("src/*.py", ["src/a.py"]),
        ("**", ["docs/c.md", "src/a.py", "src/lib/b.py"]),
        ("docs/**/*.md", ["docs/c.md"]),
        ("docs/.hidden/*", ["docs/.hidden/d.md"]),
        ("*", []),
        (".*", []),
        ("*_rsa", []),
        ("./src//?.py", ["src/a.py"]),
        ("../outside/*.py", []),
        ("linked/*.py", []),
        ("node_modules/*.py", ["node_modules/e.py"]),
        ("nothing/*.py", []),
    ],
)
def test_a_glob_matches_visible_files_below_the_folder(
    root: Path, pattern: str, wanted: list[str]
) -> None:
    (root / "linked").symlink_to("../outside")
    (root / "src" / "link.py").symlink_to("../../outside/a.py")
    (root / "node_modules").mkdir()
    (root / "node_modules" / "e.py").write_text("e")
    folder = Folder(root)
    assert ["/".join(one) for one in GlobListing(folder, pattern).files()] == wanted
    folder.close()


def test_files_that_did_not_change_are_not_opened(root: Path, watching: list[Watch]) -> None:
    for number in range(100):
        (root / "src" / f"{number}.py").write_text("x")
    watch = watch_of(watching, root, "src/**/*.py", "docs/c.md", clock=Later(FAR))
    assert len(watch.begin()) == 103

    work = work_of(watch.check)

    assert watch.check() == []
    assert not {name for name in work.calls if name in {"open", "scandir", "listdir", "openat2"}}
    # One status for each file and for each folder that was listed.
    assert work.calls["stat"] <= 103 + 4


def test_a_young_file_is_read_again_whatever_its_times_say(
    root: Path, watching: list[Watch]
) -> None:
    path = root / "src" / "a.py"
    watch = watch_of(watching, root, "src/a.py", "src/lib/*.py")
    watch.begin()
    assert watch.check() == []
    before = path.stat()
    # The same size, the same inode, the same time of content: only a hash tells.
    with path.open("r+b") as file:
        file.write(b"INSIDE")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))

    assert labels(watch.check()) == ["src/a.py"]
    assert watch.check() == []


def test_the_same_content_is_no_change(root: Path, watching: list[Watch]) -> None:
    watch = watch_of(watching, root, "src/a.py", clock=Later(FAR))
    watch.begin()
    other = root / "src" / "new"
    other.write_text("inside")
    other.replace(root / "src" / "a.py")
    assert watch.check() == []


@pytest.mark.parametrize("ahead", [0, FAR])
def test_new_changed_and_deleted_files_are_found_once(
    root: Path, watching: list[Watch], ahead: int
) -> None:
    # A change in the tick of a coarse clock in which the folder was made would not show.
    for folder in (root, root / "src"):
        os.utime(folder, (0, 0))
    watch = watch_of(watching, root, "src/**/*.py", "later/*.py", clock=Later(ahead))
    assert labels(watch.begin()) == ["src/a.py", "src/lib/b.py"]
    (root / "src" / "a.py").write_text("changed")
    (root / "src" / "deep" / "er").mkdir(parents=True)
    (root / "src" / "deep" / "er" / "n.py").write_text("new")
    shutil.rmtree(root / "src" / "lib")
    (root / "later").mkdir()
    (root / "later" / "l.py").write_text("new")

    found = watch.check()

    assert labels(found) == [
        "src/a.py",
        "src/lib/b.py (deleted)",
        "src/deep/er/n.py",
        "later/l.py",
    ]
    assert [content.text for _, content in found] == ["changed", None, "new", "new"]
    assert watch.check() == []
    (root / "src" / "lib").mkdir()
    (root / "src" / "lib" / "b.py").write_text("back")
    assert labels(watch.check()) == ["src/lib/b.py"]


def test_more_files_than_are_followed_are_counted(root: Path, watching: list[Watch]) -> None:
    for number in range(250):
        (root / "src" / f"{number}.py").write_text("x")
    watch = watch_of(watching, root, "src/**/*.py")
    assert len(watch.begin()) == 252
    for number in range(250, 260):
        (root / "src" / f"{number}.py").write_text("x")

    assert len(watch.check()) == 4
    assert list(watch.newly_left_out()) == [("src/**/*.py", 6)]
    assert watch.check() == []
    assert list(watch.newly_left_out()) == []


def test_what_becomes_no_text_or_too_large_says_so(root: Path, watching: list[Watch]) -> None:
    watch = watch_of(watching, root, "src/*.py", "docs/c.md")
    watch.begin()
    (root / "src" / "a.py").write_bytes(b"\0")
    with (root / "docs" / "c.md").open("wb") as sparse:
        sparse.truncate(10 * 1024**3)

    found = watch.check()

    assert [(part.label, content.why) for part, content in found] == [
        ("src/a.py", "it is not text"),
        ("docs/c.md", "it has more than 8,388,608 bytes"),
    ]
    assert watch.check() == []


def test_a_pipe_in_the_place_of_a_file_blocks_nothing(root: Path, watching: list[Watch]) -> None:
    watch = watch_of(watching, root, "src/a.py")
    watch.begin()
    (root / "src" / "a.py").unlink()
    os.mkfifo(root / "src" / "a.py")
    assert labels(watch.check()) == ["src/a.py (deleted)"]
    with pytest.raises(StepFailedError, match="not a regular file"):
        watch_of(watching, root, "src/a.py").begin()


@pytest.mark.parametrize("target", ["../../outside/a.py", None])
def test_a_file_of_a_glob_that_becomes_a_link_while_it_is_read_is_left_out(
    root: Path, watching: list[Watch], target: str | None
) -> None:
    class Swapping(Later):
        """Is asked at each folder that is listed, three of them, and then at each file."""

        calls = 0

        def __call__(self) -> int:
            self.calls += 1
            path = root / "src" / "a.py"
            if self.calls == 4:
                path.unlink()
                if target is None:
                    os.mkfifo(path)
                else:
                    path.symlink_to(target)
            return super().__call__()

    found = watch_of(watching, root, "src/**/*.py", clock=Swapping()).begin()

    assert [part.label for part, _ in found] == ["src/a.py", "src/lib/b.py"]
    content = found[0][1]
    assert content.text is None
    assert content.why.startswith("left out: `src/a.py`")


def test_no_descriptor_of_a_watch_is_left_open(root: Path) -> None:
    entries = [ContextFile("src/*.py", root, is_glob=True), ContextFile("x", root / "docs")]
    watch = Watch(entries, root)
    with pytest.raises(StepFailedError, match="there is no file `docs/x`"):
        watch.begin()
    watch.close()
    with pytest.raises(StepFailedError, match="does not exist"):
        Watch([*entries, ContextFile("x", root / "missing")], root)
    assert opened_below(root) == []


SWAP_FOLDER = """
import os
print("swapping", flush=True)
while True:
    os.rename("src", "spare")
    os.rename("link", "src")
    os.rename("src", "link")
    os.rename("spare", "src")
"""
SWAP_FILE = """
import os
os.symlink("../../outside/a.py", "src/link")
print("swapping", flush=True)
while True:
    os.rename("src/a.py", "src/spare")
    os.rename("src/link", "src/a.py")
    os.rename("src/a.py", "src/link")
    os.rename("src/spare", "src/a.py")
"""


@pytest.mark.parametrize("program", [SWAP_FOLDER, SWAP_FILE], ids=["folder", "file"])
@pytest.mark.parametrize(
    "rounds",
    [
        1_500,
        pytest.param(
            12_000, marks=pytest.mark.slow(reason="looks 12,000 times at what is swapped")
        ),
    ],
)
def test_no_look_at_what_is_swapped_for_a_link_shows_what_is_outside(
    root: Path, watching: list[Watch], program: str, rounds: int
) -> None:
    (root / "link").symlink_to("../outside")
    patterns = ("src/a.py", "src/*.py", "**/*.py")
    # Of two clocks, one lets every look read the file, the other only where it seems to differ.
    watches = [watch_of(watching, root, *patterns, clock=Later(ahead)) for ahead in (0, FAR)]
    for watch in watches:
        watch.begin()
    command = [sys.executable, "-I", "-S", "-c", program]
    seen: Counter[str] = Counter()
    with subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE) as swapping:
        try:
            assert swapping.stdout is not None
            swapping.stdout.readline()
            for number in range(rounds):
                for _, content in watches[number % 2].check():
                    seen["deleted" if content is GONE else content.text or content.why] += 1
        finally:
            swapping.kill()

    assert seen["deleted"] > 0
    assert set(seen) == {"deleted", "inside"}
