"""What a run changes in git work trees, against repositories of the real git."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from aish.core.events import ChangedFile, FilesChanged
from aish.engine.run_folder import RunFolder
from aish.features import file_changes
from aish.features.file_changes import FileChanges

pytestmark = pytest.mark.anyio


def git(root: Path, *words: str) -> str:
    environ = {
        "PATH": os.environ["PATH"],
        "GIT_CONFIG_GLOBAL": "/dev/null",
        "GIT_CONFIG_SYSTEM": "/dev/null",
        "GIT_ALLOW_PROTOCOL": "file",
        **{f"GIT_{who}_NAME": "Ada" for who in ("AUTHOR", "COMMITTER")},
        **{f"GIT_{who}_EMAIL": "ada@example.org" for who in ("AUTHOR", "COMMITTER")},
    }
    done = subprocess.run(["git", *words], cwd=root, env=environ, capture_output=True, check=True)
    return done.stdout.decode().strip()


@pytest.fixture
def repo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    # No test fails because the machine is slow.
    monkeypatch.setattr(file_changes, "SECONDS", 120.0)
    root = tmp_path / "repo"
    (root / "src").mkdir(parents=True)
    git(root, "init", "-q", "-b", "main")
    for name in ("a.txt", "gone.txt", "src/b.txt", ".env"):
        (root / name).write_text("one\n")
    git(root, "add", "-f", ".")
    git(root, "commit", "-q", "-m", "First")
    return root


async def changes(
    root: Path, change: Callable[[], object], *, kept: Path | None = None, path: str | None = None
) -> FilesChanged:
    """The one event about a run that does `change`."""
    environ = {"PATH": os.environ["PATH"] if path is None else path}
    watch = FileChanges([root], RunFolder("run", kept), environ)
    await watch.begin()
    change()
    (found,) = await watch.end()
    return found


def counts(found: FilesChanged) -> dict[str, tuple[str, int | None, int | None]]:
    assert found.problem is None
    return {file.path: (file.change, file.added, file.removed) for file in found.files}


@pytest.mark.requirement("V38")
async def test_what_a_run_changes_is_told_apart_from_what_was_changed_before(
    repo: Path, tmp_path: Path
) -> None:
    def change() -> None:
        (repo / "a.txt").write_text("one\nbefore\nnow\n")
        (repo / "gone.txt").unlink()
        (repo / "new.txt").write_text("new\n")
        (repo / "committed.txt").write_text("x\n")
        (repo / ".env").write_text("KEY=planted\n")
        (repo / "we`ird\n<b>.txt").write_text("```\n</pre>\n")
        (repo / "bytes").write_bytes(b"\0\xff")
        (repo / "large.txt").write_text("x\n" * file_changes.LARGEST_FILE)
        git(repo, "add", "committed.txt")
        git(repo, "commit", "-q", "-m", "By the run")

    (repo / "a.txt").write_text("one\nbefore\n")
    (repo / "old.txt").write_text("untracked, and left alone\n")
    before = {path: path.read_bytes() for path in (repo / ".git").rglob("*") if path.is_file()}
    kept = tmp_path / "run"
    kept.mkdir()
    found = await changes(repo / "src", change, kept=kept)

    assert counts(found) == {
        "a.txt": ("changed", 1, 0),
        "gone.txt": ("deleted", 0, 1),
        "new.txt": ("added", 1, 0),
        "committed.txt": ("added", 1, 0),
        ".env": ("changed", None, None),
        "we`ird\n<b>.txt": ("added", 2, 0),
        "bytes": ("added", None, None),
        "large.txt": ("added", None, None),
    }
    assert found.dirty
    assert "+now\n" in found.patch
    assert "+before" not in found.patch
    assert "planted" not in found.patch
    assert found.kept == "files/changes.diff"
    assert (kept / found.kept).read_text() == found.patch
    again = await changes(repo, lambda: (repo / "new.txt").write_text("2\n"), kept=kept)
    assert again.kept == "files/changes-2.diff"
    # Nothing of the repository was written by looking at it.
    assert {path: path.read_bytes() for path in before if path.exists()}.items() >= {
        path: content for path, content in before.items() if "objects" in path.parts
    }.items()


async def test_the_log_that_the_shell_writes_into_the_work_tree_is_no_change(repo: Path) -> None:
    def change() -> None:
        os.write(2, b"a line of the log\n")
        (repo / "new.txt").write_text("new\n")

    kept = os.dup(2)
    try:
        with (repo / "err").open("wb") as log:
            os.dup2(log.fileno(), 2)
        found = await changes(repo, change)
    finally:
        os.dup2(kept, 2)
        os.close(kept)

    assert counts(found) == {"new.txt": ("added", 1, 0)}
    assert not found.dirty


async def test_every_kind_of_work_tree_is_compared(repo: Path, tmp_path: Path) -> None:
    git(repo, "worktree", "add", "-q", "../other")
    other = tmp_path / "other"
    found = await changes(other, lambda: (other / "a.txt").write_text("two\n"))
    assert counts(found) == {"a.txt": ("changed", 1, 1)}
    assert not found.dirty

    # A submodule, seen from within and from the outside.
    outer = tmp_path / "outer"
    outer.mkdir()
    git(outer, "init", "-q")
    empty = await changes(outer, lambda: None)
    assert (counts(empty), empty.dirty) == ({}, False)
    git(outer, "submodule", "--quiet", "add", str(repo), "sub")
    found = await changes(outer / "sub", lambda: (outer / "sub/a.txt").write_text("two\n"))
    assert counts(found) == {"a.txt": ("changed", 1, 1)}
    found = await changes(outer, lambda: git(outer / "sub", "commit", "-q", "-a", "-m", "Next"))
    assert counts(found) == {"sub": ("changed", 1, 1)}
    assert found.dirty

    # Without a commit, with a folder that becomes a link, with SHA-256, split index and autocrlf.
    plain = tmp_path / "plain"
    (plain / "folder").mkdir(parents=True)
    (plain / "folder/x").write_text("x\n")
    git(plain, "init", "-q", "--object-format=sha256")
    git(plain, "config", "core.autocrlf", "true")
    git(plain, "add", ".")
    git(plain, "update-index", "--split-index")

    def change() -> None:
        (plain / "folder/x").unlink()
        (plain / "folder").rmdir()
        (plain / "folder").symlink_to("/")

    found = await changes(plain, change)
    assert counts(found) == {"folder": ("added", 1, 0), "folder/x": ("deleted", 0, 1)}
    assert found.dirty


async def test_nothing_of_the_repository_is_run(repo: Path, tmp_path: Path) -> None:
    told = tmp_path / "told"
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\ntouch {told}\ncat\n")
    program.chmod(0o755)
    (repo / ".gitattributes").write_text("* diff=mine filter=mine\n")
    git(repo, "add", ".")
    git(repo, "commit", "-q", "-m", "Attributes")
    for name in (
        *("core.fsmonitor", "diff.external", "diff.mine.command", "diff.mine.textconv"),
        *("filter.mine.clean", "filter.mine.process", "core.sshCommand", "core.pager"),
    ):
        git(repo, "config", name, str(program))
    hooks = repo / ".git/hooks"
    hooks.mkdir(exist_ok=True)
    for name in ("post-index-change", "reference-transaction", "pre-commit"):
        (hooks / name).symlink_to(program)

    found = await changes(repo, lambda: (repo / "a.txt").write_text("two\n"))

    assert counts(found) == {"a.txt": ("changed", 1, 1)}
    assert not told.exists()


async def test_what_is_not_known_is_told_and_nothing_fails(
    repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (await changes(repo, lambda: None, path="")).problem == "git is not installed"
    monkeypatch.setattr(file_changes, "SECONDS", 0.2)
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin/git"
    program.write_text("#!/bin/sh\nexec /bin/sleep 600\n")
    program.chmod(0o755)
    hanging = await changes(repo, lambda: None, path=f"{tmp_path}/bin:/usr/bin:/bin")
    assert hanging.problem == "git took longer than 0.2 s"
    program.write_text("#!/bin/sh\necho no luck >&2\nexit 9\n")
    monkeypatch.setattr(file_changes, "SECONDS", 120.0)
    failing = await changes(repo, lambda: None, path=f"{tmp_path}/bin")
    assert failing.problem == "`git ls-files` failed: no luck"
    # Older ones fetch missing objects whatever `GIT_NO_LAZY_FETCH` says.
    program.write_text('#!/bin/sh\necho "allowed: ${GIT_ALLOW_PROTOCOL-all}" >&2\nexit 9\n')
    failing = await changes(repo, lambda: None, path=f"{tmp_path}/bin")
    assert failing.problem == "`git ls-files` failed: allowed:"

    for content in ("", "nonsense", "gitdir: ", "gitdir: /nowhere"):
        folder = tmp_path / "bare"
        folder.mkdir(exist_ok=True)
        (folder / ".git").write_text(content)
        assert (await changes(folder, lambda: None)).problem == "`.git` is not a git folder"

    # What nobody writes into is not waited for.
    (repo / ".git/config").unlink()
    os.mkfifo(repo / ".git/config")
    os.mkfifo(repo / ".git/commondir")
    program.write_text("#!/bin/sh\nexit 9\n")
    waiting = await changes(repo, lambda: None, path=f"{tmp_path}/bin")
    assert waiting.problem == "`git ls-files` failed: 9"

    watch = FileChanges([tmp_path], RunFolder("run", None), {"PATH": os.environ["PATH"]})
    await watch.begin()
    assert not await watch.end()


async def test_a_large_change_is_cut_and_counted(
    repo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_changes, "MOST_FILES", 5)
    monkeypatch.setattr(file_changes, "LARGEST_PATCH", 10_000)

    def change() -> None:
        for number in range(7):
            (repo / f"{number:04}.txt").write_text("line\n" * 600)

    found = await changes(repo, change)

    assert found.problem is None
    assert (len(found.files), found.more, found.cut) == (5, 2, True)
    assert found.files[0] == ChangedFile("0000.txt", "added", 600, 0)
    assert 9_900 < len(found.patch) <= 10_000
    assert found.patch.endswith("\n")
