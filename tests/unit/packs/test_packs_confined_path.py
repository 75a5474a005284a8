import os
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pack_scenes import descriptors
from swap_programs import SWAP_FILE, SWAP_FOLDER, swapped_rounds

from aish.packs.pack_error import PackError
from aish.packs.workspace import confined_path
from aish.packs.workspace.confined_path import Folder, segments_of
from aish.system.platform.opens import has_openat2

SECRET = b"from outside"
# By two kinds of races, for each of the two ways to open a path.
ROUNDS = 50_000 if os.environ.get("AISH_TEST_ALL") == "1" else 10_000


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A root with a file in a folder, and a secret beside it."""
    inside = tmp_path / "root"
    (inside / "docs").mkdir(parents=True)
    (inside / "docs" / "a.md").write_bytes(b"inside")
    (inside / "README.md").write_bytes(b"inside")
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "a.md").write_bytes(SECRET)
    return inside


@pytest.fixture(params=[True, False], ids=["openat2", "walk"])
def folder(root: Path, request: pytest.FixtureRequest) -> Iterator[Folder]:
    """The root opened in both ways: with the system call, and as on older kernels."""
    if request.param and not has_openat2():
        pytest.skip("this kernel has no openat2")
    opened = Folder(root, kernel=request.param)
    yield opened
    opened.close()


def content(folder: Folder, path: str) -> bytes:
    with folder.file(path) as descriptor:
        return os.read(descriptor, 1000)


def attempt(folder: Folder, path: str) -> bytes | str:
    """The content, or the code of the failure."""
    try:
        return content(folder, path)
    except PackError as error:
        return error.code


def test_a_file_in_memory_is_read_at_once_and_nothing_else_is(
    root: Path, folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    content(folder, "docs/a.md")
    # On a kernel before 5.12, or on some file systems, nothing is.
    assert folder.file_at_once("docs/a.md", 6) in {b"inside", None}
    if folder.file_at_once("docs/a.md", 6) is None:
        pytest.skip("nothing is read at once here")
    (root / "empty").write_bytes(b"")
    assert folder.file_at_once("empty", 6) == b""
    assert folder.file_at_once("docs/a.md", 5) is None
    (root / "link").symlink_to("docs/a.md")
    (root / "out").symlink_to(root.parent / "outside")
    os.mkfifo(root / "pipe")
    (root / ".env").write_bytes(b"inside")
    for path in ("link", "out/a.md", "pipe", ".env", "docs", "", "none", "docs/a.md/x"):
        assert folder.file_at_once(path, 100) is None
    before = descriptors()
    folder.file_at_once("docs/a.md", 6)
    assert descriptors() == before
    with pytest.raises(PackError):
        folder.file_at_once("../outside/a.md", 100)
    monkeypatch.setattr(confined_path, "_NOWAIT", 0)  # as with a Python of an older C library
    assert folder.file_at_once("docs/a.md", 6) is None


def refusal(folder: Folder, path: str) -> str:
    with pytest.raises(PackError) as caught:
        content(folder, path)
    return caught.value.code


@pytest.mark.requirement("K4")
@pytest.mark.parametrize(
    "path", ["README.md", "./README.md", "docs/a.md", "docs//a.md", "docs/./a.md"]
)
def test_files_beneath_the_root_are_read(folder: Folder, path: str) -> None:
    assert content(folder, path) == b"inside"


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("..", "outside"),
        ("../outside/a.md", "outside"),
        ("docs/../../outside/a.md", "outside"),
        ("docs/..", "outside"),
        ("/etc/passwd", "outside"),
        ("//etc/passwd", "outside"),
        ("/", "outside"),
        ("/proc/self/root/etc/passwd", "outside"),
        ("a\0b", "bad_path"),
        ("README.md\0", "bad_path"),
        ("a\nb", "bad_path"),
        ("a\x1b[2J", "bad_path"),
        ("\ud800", "bad_path"),
        ("x" * 5000, "bad_path"),
        ("x" * 300, "not_found"),
        ("nothing", "not_found"),
        ("README.md/x", "not_found"),
        ("~/x", "not_found"),
        ("docs", "not_a_file"),
        (".", "not_a_file"),
        ("", "not_a_file"),
    ],
)
def test_paths_that_are_none_or_lead_out_are_refused(folder: Folder, path: str, code: str) -> None:
    assert refusal(folder, path) == code


def test_links_out_of_the_root_are_not_followed(folder: Folder, root: Path) -> None:
    outside = root.parent / "outside"
    (root / "file").symlink_to(outside / "a.md")
    (root / "relative").symlink_to("../outside/a.md")
    (root / "folder").symlink_to(outside)
    (root / "docs" / "up").symlink_to("../..")
    (root / "loop").symlink_to("loop")
    (root / "chain").symlink_to("docs/up/outside/a.md")
    for path in ("file", "relative", "folder/a.md", "docs/up/outside/a.md", "loop", "chain"):
        assert refusal(folder, path) in {"outside", "not_found"}


def test_magic_links_of_proc_are_not_followed(tmp_path: Path) -> None:
    for kernel in (True, False):
        folder = Folder(Path("/proc/self"), kernel=kernel)
        for path in ("root/etc/hostname", "cwd", "fd/0", "exe"):
            assert refusal(folder, path) in {"outside", "not_found"}
        folder.close()


def test_links_within_the_root_are_followed_where_the_kernel_makes_it_safe(root: Path) -> None:
    if not has_openat2():
        pytest.skip("this kernel has no openat2")
    (root / "link").symlink_to("docs/a.md")
    (root / "here").symlink_to(".")
    folder = Folder(root)
    assert content(folder, "link") == b"inside"
    assert content(folder, "here/here/docs/a.md") == b"inside"
    assert folder.kind("here") == "folder"
    folder.close()


def test_a_link_is_no_way_around_what_is_denied(folder: Folder, root: Path) -> None:
    (root / ".env").write_text("SECRET")
    (root / ".ssh").mkdir()
    (root / ".ssh" / "known").write_text("SECRET")
    (root / "notes.txt").symlink_to(".env")
    (root / "keys").symlink_to(".ssh")
    for path in ("notes.txt", "keys/known"):
        assert refusal(folder, path) in {"outside", "not_found"}


@pytest.mark.parametrize("make", ["fifo", "socket"])
def test_only_regular_files_are_read_and_nothing_waits(
    folder: Folder, root: Path, make: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if make == "fifo":
        os.mkfifo(root / "odd")
        assert refusal(folder, "odd") == "not_a_file"
    else:
        monkeypatch.chdir(root)
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind("odd")
            assert refusal(folder, "odd") in {"not_a_file", "unreadable"}


@pytest.mark.parametrize("kernel", [True, False])
def test_devices_are_not_read(*, kernel: bool) -> None:
    folder = Folder(Path("/dev"), kernel=kernel)
    assert refusal(folder, "zero") == "not_a_file"
    assert refusal(folder, "null") == "not_a_file"
    folder.close()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("program", [SWAP_FOLDER, SWAP_FILE], ids=["folder", "file"])
def test_what_is_swapped_for_a_link_while_it_is_read_never_shows_what_is_outside(
    folder: Folder, root: Path, program: str
) -> None:
    (root / "link").symlink_to("../outside")
    command = [sys.executable, "-I", "-S", "-c", program]
    seen: Counter[bytes | str] = Counter()

    def both_were_seen() -> bool:
        return seen[b"inside"] > 0 and seen["outside"] + seen["not_found"] > 0

    with subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE) as swapping:
        try:
            assert swapping.stdout is not None
            swapping.stdout.readline()
            for _ in swapped_rounds(ROUNDS, both_were_seen):
                seen[attempt(folder, "docs/a.md")] += 1
        finally:
            swapping.kill()
    assert both_were_seen()
    assert set(seen) <= {b"inside", "outside", "not_found"}


def test_the_root_stays_the_folder_that_was_opened(folder: Folder, root: Path) -> None:
    root.rename(root.parent / "moved")
    (root.parent / "outside").rename(root)
    assert content(folder, "docs/a.md") == b"inside"


def test_no_descriptor_is_left_open(folder: Folder, root: Path) -> None:
    (root / "file").symlink_to(root.parent / "outside" / "a.md")
    os.mkfifo(root / "pipe")
    before = descriptors()
    for path in ("README.md", "docs/a.md", "docs", "file", "pipe", "docs/x/y", "..", ".env"):
        with suppress(PackError):
            content(folder, path)
        with suppress(PackError):
            folder.kind(path)
    assert descriptors() <= before


@given(st.text(max_size=40))
def test_no_text_becomes_segments_that_go_up(text: str) -> None:
    try:
        segments = segments_of(text)
    except PackError:
        return
    assert not set(segments) & {"", ".", ".."}
    assert all("/" not in segment and "\0" not in segment for segment in segments)
