import os
import stat
from pathlib import Path
from typing import Any

import pytest

from aish.core.errors import UsageError
from aish.system.files import (
    atomic_write,
    config_folder,
    open_append,
    open_own,
    private_folder,
    read_capped,
    schema_text,
    state_folder,
    write_private,
)


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def loose_umask() -> object:
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.requirement("X9")
@pytest.mark.usefixtures("loose_umask")
def test_our_folders_and_files_are_private(tmp_path: Path) -> None:
    folder = private_folder(tmp_path / "state" / "runs" / "1")
    write_private(folder / "a", b"text")
    atomic_write(folder / "b", b"text")
    os.close(open_append(folder / "c"))
    assert {mode_of(path) for path in [folder, folder.parent, folder.parent.parent]} == {0o700}
    assert {mode_of(folder / name) for name in "abc"} == {0o600}


@pytest.mark.parametrize("umask", [0o022, 0o027, 0o077])
def test_a_file_to_share_is_as_the_umask_says(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        atomic_write(tmp_path / "report", b"text", shared=True)
    finally:
        os.umask(before)
    assert mode_of(tmp_path / "report") == 0o666 & ~umask


def test_a_file_to_share_can_be_read_by_no_more_than_the_one_it_replaces(tmp_path: Path) -> None:
    path = tmp_path / "report"
    for mode in (0o600, 0o640, 0o664):
        path.write_bytes(b"old")
        path.chmod(mode)
        atomic_write(path, b"new", shared=True)
        assert (path.read_bytes(), mode_of(path)) == (b"new", mode)


def test_an_open_folder_of_ours_is_closed_to_others(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir(mode=0o755)
    private_folder(tmp_path / "runs")
    assert mode_of(tmp_path / "runs") == 0o700


def test_a_planted_link_is_not_entered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "target"
    target.mkdir(mode=0o755)
    project = tmp_path / "project"
    project.mkdir()
    (project / ".aish").symlink_to(target)
    monkeypatch.chdir(project)
    for folder, within in [
        (Path(".aish/runs/1"), None),
        (Path(".aish"), None),
        (project / ".aish", None),
        (project / ".aish/runs/1", project),
    ]:
        with pytest.raises(UsageError, match="is a link or no folder"):
            private_folder(folder, within)
    assert list(target.iterdir()) == []
    assert mode_of(target) == 0o755


def test_a_link_above_the_given_base_is_the_persons_own_business(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "home").symlink_to(tmp_path / "real")
    private_folder(tmp_path / "home" / ".aish" / "runs", tmp_path / "home")
    assert (tmp_path / "real" / ".aish" / "runs").is_dir()


def test_a_folder_cannot_lead_out_of_its_base(tmp_path: Path) -> None:
    (tmp_path / "base").mkdir()
    with pytest.raises(UsageError, match="leads out"):
        private_folder(tmp_path / "base" / ".." / "else", tmp_path / "base")
    assert not (tmp_path / "else").exists()


def test_a_file_in_the_place_of_a_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("")
    with pytest.raises(UsageError, match="is a link or no folder"):
        private_folder(tmp_path / "runs" / "1", tmp_path)


@pytest.mark.parametrize("there", ["victim", "missing"])
def test_nothing_is_written_through_a_planted_link(tmp_path: Path, there: str) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    planted = tmp_path / "events.jsonl"
    planted.symlink_to(tmp_path / there)
    with pytest.raises(FileExistsError):
        write_private(planted, b"x")
    with pytest.raises(UsageError, match="is a link"):
        open_append(planted)
    atomic_write(planted, b"x")
    assert not planted.is_symlink()
    assert victim.read_text() == "precious"
    assert not (tmp_path / "missing").exists()


def test_a_file_that_is_replaced_while_it_is_opened_is_read_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a"
    atomic_write(path, b"before")
    opened = os.open

    def replaced(name: Path, flags: int, *rest: Any, **more: Any) -> int:
        descriptor = opened(name, flags, *rest, **more)
        if name == path:
            atomic_write(path, b"after")
        return descriptor

    monkeypatch.setattr(os, "open", replaced)
    with os.fdopen(open_own(path), "rb") as file:
        assert file.read() == b"before"
    monkeypatch.undo()
    assert path.read_bytes() == b"after"
    (tmp_path / "hard").hardlink_to(path)
    with pytest.raises(UsageError, match="not a regular file of this user"):
        open_own(path)


def test_appending_to_a_hard_link_or_a_pipe_is_refused(tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("precious")
    (tmp_path / "hard").hardlink_to(tmp_path / "victim")
    with pytest.raises(UsageError, match="not a regular file"):
        open_append(tmp_path / "hard")
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    with pytest.raises(UsageError, match="not a regular file"):
        open_append(tmp_path / "pipe")
    os.close(reader)


def test_appended_bytes_follow_what_was_there(tmp_path: Path) -> None:
    for piece in (b"a", b"b"):
        descriptor = open_append(tmp_path / "log")
        os.write(descriptor, piece)
        os.close(descriptor)
    assert (tmp_path / "log").read_bytes() == b"ab"


def test_a_full_disk_leaves_no_half_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import resource
    import signal

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    (tmp_path / "old").write_bytes(b"old")
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        with pytest.raises(OSError, match="too large"):
            write_private(tmp_path / "new", bytes(10_000))
        with pytest.raises(OSError, match="too large"):
            atomic_write(tmp_path / "old", bytes(10_000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)
    assert [path.name for path in tmp_path.iterdir()] == ["old"]
    assert (tmp_path / "old").read_bytes() == b"old"


def test_a_file_is_read_up_to_its_cap(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"12345")
    assert read_capped(tmp_path / "file", 5) == b"12345"
    with pytest.raises(UsageError, match="is longer than 4 bytes"):
        read_capped(tmp_path / "file", 4)
    with pytest.raises(UsageError, match="is longer than 1000 bytes"):
        read_capped(Path("/dev/zero"), 1000)
    with pytest.raises(IsADirectoryError):
        read_capped(tmp_path, 10)


def test_a_device_is_written_to_and_not_replaced() -> None:
    atomic_write(Path("/dev/null"), b"x")
    assert Path("/dev/null").is_char_device()


def test_schemas_are_found_by_name() -> None:
    assert schema_text("pipeline.schema.json").lstrip().startswith("{")
    with pytest.raises(FileNotFoundError):
        schema_text("none.json")


def test_folders_follow_the_platform(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert state_folder() == tmp_path / "aish"
    assert config_folder().name == "aish"
