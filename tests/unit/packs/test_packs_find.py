"""Finding files, searching in them and showing trees, with what `.gitignore` excludes left out."""

import os
import threading
from collections.abc import Iterator
from functools import partial
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import anyio
import anyio.to_thread
import pytest
from pack_scenes import PackScene, opened_packs
from samples import each_case

from aish.packs.workspace import folder_walk
from aish.packs.workspace.confined_path import Folder
from aish.packs.workspace.deny_list import ANYWHERE, is_denied, is_denied_name, may_have_denied
from aish.packs.workspace.folder_walk import FolderWalk
from aish.packs.workspace.text_search import required_text


@pytest.fixture
def pack_scene(tmp_path: Path) -> Iterator[PackScene]:
    root = tmp_path / "root"
    root.mkdir()
    with opened_packs(["fs"], root) as scene:
        yield scene


@pytest.fixture
def project(pack_scene: PackScene) -> PackScene:
    for path in (
        "README.md",
        "src/app.py",
        "src/app_test.py",
        "src/deep/er/util.py",
        "docs/a.md",
        "build/out.py",
        "node_modules/x/index.py",
        ".git/hooks/x.py",
        ".env/x.py",
        "sub/debug.log",
        "sub/keep.log",
    ):
        pack_scene.put(path, "needle\n")
    pack_scene.put(".gitignore", "build/\n*.log\n")
    pack_scene.put("sub/.gitignore", "!keep.log\n")
    return pack_scene


@pytest.mark.requirement("K23")
@pytest.mark.parametrize(
    ("arguments", "paths"),
    [
        ({"glob": "*.py"}, ["src/app.py", "src/app_test.py", "src/deep/er/util.py"]),
        ({"glob": "src/*.py"}, ["src/app.py", "src/app_test.py"]),
        ({"glob": "**/er/*"}, ["src/deep/er/util.py"]),
        ({"glob": "*.md", "path": "docs"}, ["docs/a.md"]),
        ({"glob": "docs/*", "path": "docs"}, ["docs/a.md"]),
        ({"glob": "er/*", "path": "src/deep"}, ["src/deep/er/util.py"]),
        ({"glob": "*.log"}, ["sub/keep.log"]),
        ({"glob": "*.log", "path": "sub"}, ["sub/keep.log"]),
        ({"glob": "*.log", "ignored": True}, ["sub/debug.log", "sub/keep.log"]),
        (
            {"glob": "*.py", "ignored": True},
            [
                "build/out.py",
                "node_modules/x/index.py",
                "src/app.py",
                "src/app_test.py",
                "src/deep/er/util.py",
            ],
        ),
        ({"glob": "*.py", "path": "node_modules"}, ["node_modules/x/index.py"]),
        ({"glob": "*.py", "path": "build"}, ["build/out.py"]),
        ({"glob": "../*"}, []),
        ({"glob": "APP.py"}, []),
    ],
)
def test_files_are_found_by_a_glob_over_their_names(
    project: PackScene, arguments: dict[str, object], paths: list[str]
) -> None:
    data = project.data("file_find", **arguments)
    assert data == {"paths": paths, "count": len(paths), "truncated": False}
    assert project.text("file_find", **arguments).splitlines()[: len(paths)] == paths


def test_more_paths_than_wanted_are_counted(pack_scene: PackScene) -> None:
    for number in range(30):
        pack_scene.put(f"{number % 3}/{number:02}.txt", "")
    data = pack_scene.data("file_find", glob="*.txt", limit=5)
    assert data["paths"] == ["0/00.txt", "0/03.txt", "0/06.txt", "0/09.txt", "0/12.txt"]
    assert (data["count"], data["truncated"]) == (30, True)
    assert "30 files\n[truncated: true, 5 of them are shown" in pack_scene.text(
        "file_find", glob="*.txt", limit=5
    )
    assert pack_scene.text("file_find", glob="*.none") == "no file matches"
    assert pack_scene.code("file_find", glob="/") == "bad_arguments"
    assert pack_scene.code("file_find", glob="*", path="0/00.txt") == "not_a_folder"
    assert pack_scene.code("file_find", glob="*", path="none") == "not_found"


def test_links_are_found_by_name_and_not_followed(pack_scene: PackScene) -> None:
    pack_scene.put("a/x.py", "")
    (pack_scene.root / "a" / "loop").symlink_to("..")
    (pack_scene.root / "out.py").symlink_to("/etc/passwd")
    os.mkfifo(pack_scene.root / "pipe.py")
    assert pack_scene.data("file_find", glob="*.py")["paths"] == ["a/x.py", "out.py"]


def test_lines_around_a_match_are_shown_once(pack_scene: PackScene) -> None:
    lines = [f"line {number}" for number in range(1, 21)]
    for number in (3, 5, 15):
        lines[number - 1] = f"needle {number}"
    pack_scene.put("a", "\n".join(lines) + "\n")
    pack_scene.put("b", "needle\n")
    for regex in (False, True):
        text = pack_scene.text("file_search", query="needle", context=1, regex=regex)
        assert text.splitlines() == [
            "a-2- line 2",
            "a:3: needle 3",
            "a-4- line 4",
            "a:5: needle 5",
            "a-6- line 6",
            "--",
            "a-14- line 14",
            "a:15: needle 15",
            "a-16- line 16",
            "--",
            "b:1: needle",
            "4 lines in 2 files searched",
        ]


@pytest.mark.parametrize("regex", [False, True])
def test_only_files_or_counts_are_shown(pack_scene: PackScene, *, regex: bool) -> None:
    pack_scene.put("a", "x\nneedle\nneedle\n")
    pack_scene.put("b/c", "needle")
    pack_scene.put("d", "nothing")

    def found(show: str) -> tuple[str, list[dict[str, object]]]:
        arguments = {"query": "needle", "show": show, "regex": regex}
        matches = pack_scene.data("file_search", **arguments)["matches"]
        return pack_scene.text("file_search", **arguments), matches

    text, matches = found("files")
    assert text == "a\nb/c\n2 matching files of 3 files searched"
    assert [(match["path"], match["line"]) for match in matches] == [("a", 2), ("b/c", 1)]
    text, matches = found("counts")
    assert text == "a: 2\nb/c: 1\n2 matching files of 3 files searched"
    assert [match["text"] for match in matches] == ["2", "1"]


def test_what_is_ignored_is_not_searched(project: PackScene) -> None:
    paths = {match["path"] for match in project.data("file_search", query="needle")["matches"]}
    assert paths == {
        "README.md",
        "docs/a.md",
        "src/app.py",
        "src/app_test.py",
        "src/deep/er/util.py",
        "sub/keep.log",
    }
    more = project.data("file_search", query="needle", ignored=True, show="files")["matches"]
    assert {match["path"] for match in more} - paths == {
        "build/out.py",
        "node_modules/x/index.py",
        "sub/debug.log",
    }


@pytest.mark.parametrize("regex", [False, True])
def test_a_line_of_two_megabytes_is_shown_around_the_match(
    pack_scene: PackScene, *, regex: bool
) -> None:
    pack_scene.put("a.js", "é" * 500_000 + " needle " + "y" * 1_000_000)
    (match,) = pack_scene.data("file_search", query="needle", regex=regex)["matches"]
    assert len(match["text"]) <= 310
    if not regex:
        assert " needle y" in match["text"]


@each_case(
    "pattern, text",
    [
        ("needle", "needle"),
        (r"def \w+\(self", "def "),
        (r"class\s+\w+Error\b", "class"),
        ("ab*c", "a"),
        ("abc?", "ab"),
        ("abc{0,2}def", "def"),
        ("a+b", "a"),
        ("[]x]y[^]z]foo", "foo"),
        (r"[\]a]bar", "bar"),
        ("(abc)?d", "d"),
        ("(ab(cd)e)?fg(h)", "fg"),
        ("ab|cd", ""),
        ("(?i)ab", ""),
        (r"\bfoo\.bar", "foo"),
        ("a.c$", "a"),
        ("", ""),
        ("[abc", ""),
        ("(abc", ""),
        ("abc\\", "abc"),
        ("ab{c", ""),
        (r"\x41bc", ""),
        (r"\101bc", ""),
    ],
)
def test_the_text_that_each_match_contains(pattern: str, text: str) -> None:
    assert required_text(pattern) == text


@pytest.mark.requirement("K24")
def test_a_tree_has_its_upper_levels_complete_and_a_hundred_entries_of_a_folder(
    pack_scene: PackScene,
) -> None:
    for number in range(912):
        pack_scene.put(f"a/{number:04}", "")
    pack_scene.put("z/y/x", "")
    data = pack_scene.data("dir_tree")
    rows = data["tree"].splitlines()
    assert rows[:2] == ["a/", "  0000"]
    assert rows[100:] == ["  0099", "  … 812 more", "z/", "  y/", "    x"]
    assert (data["entries"], data["truncated"]) == (104, True)


def test_a_tree_that_does_not_fit_loses_its_lower_levels(pack_scene: PackScene) -> None:
    for upper in range(40):
        for lower in range(50):
            pack_scene.put(f"{upper:02}-{'x' * 20}/{lower:02}-{'y' * 20}/z", "")
    data = pack_scene.data("dir_tree", depth=9)
    rows = data["tree"].splitlines()
    assert data["truncated"] is True
    assert sum(not row.startswith(" ") for row in rows) == 40
    assert not any(row.startswith("    ") for row in rows)


def test_a_tree_leaves_out_what_is_ignored(project: PackScene) -> None:
    assert project.text("dir_tree") == (
        ".git/\n.gitignore\nREADME.md\ndocs/\n  a.md\nnode_modules/\nsrc/\n  app.py\n"
        "  app_test.py\n  deep/\n    er/\nsub/\n  .gitignore\n  keep.log\n"
    )
    shown = project.text("dir_tree", ignored=True)
    assert "build/\n  out.py\n" in shown
    assert "  debug.log\n" in shown
    assert "node_modules/\n  x/\n" in shown
    assert ".git/\n.gitignore\n" in shown


def test_files_with_patterns_that_are_none_are_not_followed(pack_scene: PackScene) -> None:
    outside = pack_scene.root.parent / "patterns"
    outside.write_text("*\n")
    (pack_scene.root / ".gitignore").symlink_to(outside)
    (pack_scene.root / "sub").mkdir()
    os.mkfifo(pack_scene.root / "sub" / ".gitignore")
    pack_scene.put("sub/a", "")
    (pack_scene.root / "dir" / ".gitignore").mkdir(parents=True)
    pack_scene.put("dir/b", "")
    assert pack_scene.data("file_find", glob="?")["paths"] == ["dir/b", "sub/a"]


def test_hostile_patterns_do_not_make_a_walk_long(pack_scene: PackScene) -> None:
    rows = ["*a" * 400 + "b", "**/a" * 200, "!" + "[a-z]*" * 100]
    pack_scene.put(".gitignore", "\n".join(rows * 600))
    for number in range(40):
        pack_scene.put("a" * 150 + f"{number:02}", "")
    pack_scene.put("a/" * 60 + "z", "")
    data = pack_scene.data("file_find", glob="a*")
    assert data["count"] == 40 or data["truncated"]


def test_the_time_of_a_walk_is_looked_at_for_each_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".gitignore").write_text("x*y\n")
    for number in range(100):
        (tmp_path / f"{number}.txt").touch()
        (tmp_path / f"{number}.link").symlink_to("x")
    seconds = count(0.0, 0.1)
    clock = SimpleNamespace(monotonic=lambda: next(seconds))
    monkeypatch.setattr("aish.packs.workspace.folder_walk.time", clock)
    folder = Folder(tmp_path)
    walk = FolderWalk(folder, ignored=False)
    content = walk.read(walk.begin("."))
    folder.close()

    assert content is not None
    assert 0 < len(content.files) + len(content.others) <= folder_walk.SECONDS / 0.1
    assert walk.incomplete


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("file_find", {"glob": "*"}),
        ("file_search", {"query": "needle"}),
        ("dir_tree", {}),
        ("py_find_usages", {"path": ".", "name": "needle"}),
    ],
)
def test_patterns_that_are_not_followed_are_told(
    tmp_path: Path, tool: str, arguments: dict[str, object]
) -> None:
    with opened_packs(["fs", "py"], tmp_path) as scene:
        scene.put("sub/.gitignore", "a*b\n" * 2_002)
        assert "[2 patterns of sub/.gitignore not followed: too many or too long" in scene.text(
            tool, **arguments
        )
        scene.put("sub/deep/.gitignore", "a*b\n" * 10_000)
        scene.put("sub/.gitignore", "a*b\n")
        assert "[8000 patterns of sub/deep/.gitignore not followed" in scene.text(tool, **arguments)
        scene.put("sub/deep/.gitignore", "a*b\n")
        assert "not followed" not in scene.text(tool, **arguments)


def test_many_names_are_seen_to_have_no_denied_one() -> None:
    for glob in ANYWHERE:
        for name in (glob, glob.replace("*", "x"), glob.replace("*", "X").upper() + " "):
            assert is_denied_name(name), name
            assert may_have_denied(["a", name, "b"]), name
            assert is_denied(("a", name)), name
            assert is_denied((name, "b")), name
    assert not may_have_denied(["a.py", "README.md", "__init__.py", "rsa.py", "pem"])


@pytest.mark.slow(reason="makes a tree of 200,000 files")
def test_a_tree_of_200_000_files_is_answered_in_bounds(pack_scene: PackScene) -> None:
    for folder in range(200):
        (pack_scene.root / f"{folder:03}").mkdir()
        for number in range(1000):
            os.close(os.open(pack_scene.root / f"{folder:03}" / f"{number:03}.c", os.O_CREAT))
    assert pack_scene.data("file_find", glob="*.c")["count"] == 200_000
    tree = pack_scene.data("dir_tree", depth=16)
    assert tree["truncated"] is True
    found = pack_scene.data("file_search", query="x")
    assert found["truncated"] is True
    assert pack_scene.data("dir_list")["truncated"] is False


def test_a_walk_ends_once_its_call_is_cancelled(tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / f"{number}.txt").touch()
    folder = Folder(tmp_path)
    seen: list[str] = []
    first, cancelled, ended = threading.Event(), threading.Event(), threading.Event()

    def walked() -> None:
        try:
            for segments in FolderWalk(folder, ignored=False).files("."):
                seen.extend(segments)
                first.set()
                cancelled.wait()
        finally:
            ended.set()

    async def call() -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(partial(anyio.to_thread.run_sync, walked, abandon_on_cancel=True))
            await anyio.to_thread.run_sync(first.wait)
            tasks.cancel_scope.cancel()
        cancelled.set()
        await anyio.to_thread.run_sync(ended.wait)

    anyio.run(call)
    folder.close()

    assert seen == ["0.txt"]
