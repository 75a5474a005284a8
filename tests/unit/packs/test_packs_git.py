import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pack_scenes import PackScene, opened_packs, pack_services
from samples import sampled

from aish.core.errors import UsageError
from aish.packs.framework.server import open_packs
from aish.packs.workspace.file_options import FilesOptions

_HEADS = ("+++", "---")


def git(root: Path, *words: str | bytes) -> str:
    """The real git, with nobody's settings."""
    environ = {
        "PATH": os.environ["PATH"],
        "GIT_CONFIG_GLOBAL": "/dev/null",
        "GIT_CONFIG_SYSTEM": "/dev/null",
        **{f"GIT_{who}_NAME": "Ada" for who in ("AUTHOR", "COMMITTER")},
        **{f"GIT_{who}_EMAIL": "ada@example.org" for who in ("AUTHOR", "COMMITTER")},
        **{f"GIT_{who}_DATE": "2026-01-02T03:04:05Z" for who in ("AUTHOR", "COMMITTER")},
    }
    done = subprocess.run(["git", *words], cwd=root, env=environ, capture_output=True, check=True)
    return done.stdout.decode().strip()


@pytest.fixture
def pack_scene(tmp_path: Path) -> Iterator[PackScene]:
    root = tmp_path / "root"
    root.mkdir()
    git(root, "init", "-q", "-b", "main")
    with opened_packs(["git"], root) as made:
        made.put("a.txt", "one\n")
        made.put(".env", "SECRET=1\n")
        git(root, "add", "-f", "a.txt", ".env")
        git(root, "commit", "-q", "-m", "First change")
        yield made


def test_names_that_the_file_denies_are_in_no_answer(pack_scene: PackScene) -> None:
    for name in ("a.txt", "b.key"):
        pack_scene.put(name, "two\n")
    git(pack_scene.root, "add", "b.key")
    git(pack_scene.root, "commit", "-q", "-m", "Second")
    pack_scene.put("b.key", "three\n")
    options = {"git": FilesOptions(("*.key",))}
    with opened_packs(["git"], pack_scene.root, options) as scene:
        texts = [scene.text("git_status"), scene.text("git_diff"), scene.text("git_show")]
        for tool in ("git_diff", "git_show", "git_log"):
            assert scene.code(tool, path="b.key") == "not_found"
    assert not any("b.key" in text or "three" in text for text in texts)
    assert "a.txt" in texts[0]


@pytest.mark.requirement("K8")
def test_a_repository_is_described(pack_scene: PackScene) -> None:
    pack_scene.put("a.txt", "two\n")
    pack_scene.put("b.txt", "new\n")
    pack_scene.put("c.txt", "new\n")
    git(pack_scene.root, "add", "c.txt")
    assert pack_scene.data("git_status") == {
        "text": "branch: main\nstaged: A c.txt\nunstaged: M a.txt\nunstaged: ? b.txt",
        "branch": "main",
        "staged": [{"status": "A", "path": "c.txt"}],
        "unstaged": [{"status": "M", "path": "a.txt"}, {"status": "?", "path": "b.txt"}],
        "truncated": False,
    }
    assert "-one\n+two\n" in pack_scene.text("git_diff")
    assert "c.txt" not in pack_scene.text("git_diff")
    assert "+new\n" in pack_scene.text("git_diff", staged=True)
    assert pack_scene.text("git_diff", path="b.txt") == "no changes"
    git(pack_scene.root, "commit", "-q", "-a", "-m", "Second change")
    assert "Ada: Second change\n" in pack_scene.text("git_log")
    assert "First change" in pack_scene.text("git_log", path="a.txt", revision="HEAD~1")
    assert pack_scene.data("git_log", count=1)["truncated"] is True
    assert "-one\n+two\n" in pack_scene.text("git_show")
    assert "+one\n" in pack_scene.text("git_show", revision="HEAD~1")
    assert pack_scene.text("git_show", revision="HEAD~1", path="a.txt") == "one\n"
    # The root folder is no file: it is the commit.
    assert pack_scene.text("git_show", path=".") == pack_scene.text("git_show")
    assert "-one\n+two\n" in pack_scene.text("git_diff", revision="HEAD~1")


def test_what_is_denied_is_not_shown_from_the_past_either(pack_scene: PackScene) -> None:
    pack_scene.put(".env", "SECRET=2\n")
    blob = git(pack_scene.root, "rev-parse", "HEAD:.env")
    shown = (
        pack_scene.text("git_diff") + pack_scene.text("git_show") + pack_scene.text("git_status")
    )
    assert "SECRET" not in shown
    assert ".env" not in shown
    for path in (".env", "./.env", ".env.none"):
        assert pack_scene.code("git_show", path=path) == "not_found"
        assert pack_scene.code("git_diff", path=path) == "not_found"
    for revision in ("HEAD:.env", blob, "HEAD^{tree}", "HEAD..HEAD", ":.env", "", "none"):
        assert pack_scene.code("git_show", revision=revision) == "refused"


def test_nothing_that_stands_in_a_repository_is_run(pack_scene: PackScene) -> None:
    mark = pack_scene.root.parent / "was-run"
    program = pack_scene.put("evil", f"#!/bin/sh\ntouch '{mark}'\ncat\n")
    program.chmod(0o755)
    for key in (
        "core.fsmonitor",
        "core.pager",
        "core.sshCommand",
        "diff.external",
        "diff.evil.command",
        "diff.evil.textconv",
        "filter.evil.clean",
        "filter.evil.smudge",
        "filter.evil.process",
    ):
        git(pack_scene.root, "config", key, str(program))
    git(pack_scene.root, "config", "filter.evil.required", "true")
    pack_scene.put(".gitattributes", "* filter=evil diff=evil\n")
    for hook in ("post-checkout", "pre-commit", "post-index-change", "fsmonitor-watchman"):
        pack_scene.put(f".git/hooks/{hook}", program.read_bytes()).chmod(0o755)
    pack_scene.put("a.txt", "two\n")
    for tool in ("git_status", "git_diff", "git_log", "git_show"):
        pack_scene.text(tool)
    assert "+two\n" in pack_scene.text("git_diff")
    assert not mark.exists()


@pytest.mark.parametrize(
    "kind",
    sampled(
        ["worktree", "link", "gitfile", "alternates", "objects", "commondir", "none"],
        often={0, 3, 6},
        reason="other ways out than those of the cases that always run",
    ),
)
def test_a_repository_that_leads_out_of_the_root_is_refused(
    pack_scene: PackScene, kind: str
) -> None:
    outside = pack_scene.root.parent / "outside"
    outside.mkdir()
    folder = pack_scene.root / ".git"
    if kind == "worktree":
        git(pack_scene.root, "config", "core.worktree", str(outside))
    elif kind == "alternates":
        pack_scene.put(".git/objects/info/alternates", f"{outside}\n")
    elif kind == "commondir":
        pack_scene.put(".git/commondir", f"{outside}\n")
    elif kind == "objects":
        (folder / "objects").rename(outside / "objects")
        (folder / "objects").symlink_to(outside / "objects")
    else:
        folder.rename(outside / "git")
        if kind == "link":
            folder.symlink_to(outside / "git")
        elif kind == "gitfile":
            folder.write_text(f"gitdir: {outside / 'git'}\n")
    for tool in ("git_status", "git_diff", "git_log", "git_show"):
        assert pack_scene.code(tool) == "refused"


@pytest.mark.slow(reason="makes huge files")
def test_huge_files_and_odd_names_are_bounded(pack_scene: PackScene) -> None:
    pack_scene.put("huge.txt", "x" * 5_000_000)
    pack_scene.put("long.txt", "line\n" * 100_000)
    (pack_scene.root / os.fsdecode(b"caf\xe9\x1b[2J")).write_text("odd\n")
    (pack_scene.root / "out").symlink_to("/etc/passwd")
    git(pack_scene.root, "add", "-A")
    assert "too large to be compared" in pack_scene.text("git_diff", staged=True, path="huge.txt")
    assert pack_scene.data("git_diff", staged=True)["truncated"] is True
    assert "root:" not in pack_scene.text("git_diff", staged=True, path="out")
    assert "\x1b" not in pack_scene.text("git_status")
    git(pack_scene.root, "commit", "-q", "-m", "Odd\x1b[2J")
    assert "\x1b" not in pack_scene.text("git_log")
    assert pack_scene.code("git_show", path="huge.txt") == "refused"
    assert pack_scene.data("git_show", path="long.txt")["truncated"] is True


@pytest.mark.slow(reason="makes many repositories")
def test_submodules_empty_and_damaged_repositories_are_answered(pack_scene: PackScene) -> None:
    pack_scene.put(".gitmodules", '[submodule "s"]\n\tpath = s\n\turl = ext::sh -c touch% x\n')
    head = git(pack_scene.root, "rev-parse", "HEAD")
    git(pack_scene.root, "update-index", "--add", "--cacheinfo", f"160000,{head},s")
    pack_scene.put("s/.git", "gitdir: /\n")
    pack_scene.text("git_status")
    pack_scene.text("git_diff")
    pack_scene.put(".git/HEAD", "ref: refs/heads/unborn\n")
    assert pack_scene.data("git_status")["branch"] == "unborn"
    assert pack_scene.code("git_log") == "refused"
    pack_scene.put(".git/index", "damaged")
    assert pack_scene.code("git_status") == "refused"
    pack_scene.put(".git/config", "[core\n")
    assert pack_scene.code("git_log") == "refused"


def test_without_its_library_the_pack_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pygit2", None)
    missing = pytest.raises(UsageError, match="needs `pygit2`")
    with pack_services() as services, missing as caught:
        open_packs(["git"], tmp_path, services)
    assert caught.value.hint == "pip install 'aish-pipelines[git]'"


@pytest.mark.requirement("K27")
def test_a_diff_is_between_a_revision_and_another_the_index_or_the_files(
    pack_scene: PackScene,
) -> None:
    root = pack_scene.root
    pack_scene.put("a.txt", "two\n")
    pack_scene.put(".env", "SECRET=2\n")
    git(root, "commit", "-q", "-a", "-m", "Second")
    pack_scene.put("a.txt", "three\n")
    git(root, "add", "a.txt")
    pack_scene.put("a.txt", "four\n")
    pack_scene.put(".env", "SECRET=4\n")

    def changed(**arguments: Any) -> list[str]:
        text = pack_scene.text("git_diff", **arguments)
        assert text == pack_scene.data("git_diff", **arguments)["text"]
        assert "SECRET" not in text
        return [line for line in text.splitlines() if line[:1] in "+-" and line[:3] not in _HEADS]

    assert changed() == ["-three", "+four"]
    assert changed(staged=True) == ["-two", "+three"]
    assert changed(revision="HEAD~1") == ["-one", "+four"]
    assert changed(revision="HEAD~1", staged=True) == ["-one", "+three"]
    assert changed(revision="HEAD~1", to="HEAD") == ["-one", "+two"]
    assert changed(revision="HEAD", to="HEAD~1") == ["-two", "+one"]
    assert changed(to="HEAD~1") == ["-two", "+one"]
    assert pack_scene.code("git_diff", to="HEAD", staged=True) == "bad_arguments"
    assert pack_scene.code("git_diff", to="nothing") == "refused"


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("context", "shown"), [(0, 2), (1, 4), (-5, 2), (1_000_000, 21)])
def test_a_diff_shows_as_many_lines_around_as_are_asked_for(
    pack_scene: PackScene, context: int, shown: int
) -> None:
    lines = [f"line {number}\n" for number in range(20)]
    pack_scene.put("a.txt", "".join(lines))
    git(pack_scene.root, "commit", "-q", "-a", "-m", "Many")
    pack_scene.put("a.txt", "".join(["other\n" if line == "line 9\n" else line for line in lines]))
    text = pack_scene.text("git_diff", context=context)
    rows = text.splitlines()
    (hunk,) = [number for number, row in enumerate(rows) if row.startswith("@@ ")]
    assert len(rows[hunk + 1 :]) == shown
