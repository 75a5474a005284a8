"""`file_patch`: both forms of patches, applied as a whole or not at all."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pack_scenes import PackScene, opened_packs, sha256
from work import work_of

from aish.packs.workspace.patch_text import apply_hunks, parse_patch

NUMBERS = "".join(f"line {number}\n" for number in range(1, 41))


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[PackScene]:
    root = tmp_path / "root"
    root.mkdir()
    with opened_packs(["edit"], root) as opened:
        yield opened


def files_of(root: Path) -> dict[str, bytes]:
    return {
        str(each.relative_to(root)): each.read_bytes()
        for each in sorted(root.rglob("*"))
        if each.is_file()
    }


GIT = """\
From 0123 Mon Sep 17 00:00:00 2001
Subject: [PATCH] All at once
---
 a.txt | 2 +-
diff --git a/a.txt b/a.txt
index 1111..2222 100644
--- a/a.txt
+++ b/a.txt
@@ -1,3 +1,3 @@
 one
-two
+2
 three
diff --git a/new/b.txt b/new/b.txt
new file mode 100644
--- /dev/null
+++ b/new/b.txt
@@ -0,0 +1,2 @@
+x
+y
\\ No newline at end of file
diff --git a/gone.txt b/gone.txt
deleted file mode 100644
--- a/gone.txt
+++ /dev/null
@@ -1 +0,0 @@
-gone
diff --git a/old.sh b/new.sh
similarity index 100%
rename from old.sh
rename to new.sh
diff --git "a/caf\\303\\251.txt" "b/caf\\303\\251.txt"
--- "a/caf\\303\\251.txt"
+++ "b/caf\\303\\251.txt"
@@ -1 +1 @@
-before
+after
--\x20
2.40.0
"""


def test_a_patch_of_git_makes_changes_renames_and_deletes(scene: PackScene) -> None:
    scene.put("a.txt", "one\ntwo\nthree\n")
    scene.put("gone.txt", "gone\n")
    scene.put("old.sh", "#!/bin/sh\n").chmod(0o755)
    scene.put("café.txt", "before\n")
    data = scene.data("file_patch", patch=GIT)
    assert files_of(scene.root) == {
        "a.txt": b"one\n2\nthree\n",
        "café.txt": b"after\n",
        "new/b.txt": b"x\ny",
        "new.sh": b"#!/bin/sh\n",
    }
    assert os.access(scene.root / "new.sh", os.X_OK)
    rows = [(row["kind"], row["path"], row["added"], row["removed"]) for row in data["changes"]]
    assert rows == [
        ("changed", "a.txt", 1, 1),
        ("created", "new/b.txt", 2, 0),
        ("deleted", "gone.txt", 0, 1),
        ("renamed", "old.sh", 0, 0),
        ("changed", "café.txt", 1, 1),
    ]
    assert data["changes"][3]["new_path"] == "new.sh"
    assert data["changes"][0]["sha256"] == sha256(b"one\n2\nthree\n")
    assert "-two\n+2\n" in data["diffs"]["a.txt"]
    assert data["truncated"] is False


SECTIONS = """\
*** Begin Patch
*** Add File: new/b.txt
+x
+y
*** Update File: a.py
*** Move to: b.py
@@ class Two:
     def f(self):
-        return 1
+        return 2

     def g(self):
@@
 LAST = 1
+MORE = 2
*** End of File
*** Delete File: gone.txt
*** End Patch
"""
CLASSES = """\
class One:
    def f(self):
        return 1

    def g(self):
        return 0


class Two:
    def f(self):
        return 1

    def g(self):
        return 0


LAST = 1
"""


@pytest.mark.parametrize("wrap", ["{}", "Here it is:\n```diff\n{}```\n"])
def test_a_patch_in_sections_finds_its_places_by_what_is_around_them(
    scene: PackScene, wrap: str
) -> None:
    scene.put("a.py", CLASSES)
    scene.put("gone.txt", b"\x89PNG\0")
    first, _, second = CLASSES.partition("class Two:")
    text = scene.text("file_patch", patch=wrap.format(SECTIONS))
    assert files_of(scene.root) == {
        "b.py": f"{first}class Two:{second.replace('return 1', 'return 2')}MORE = 2\n".encode(),
        "new/b.txt": b"x\ny\n",
    }
    assert text.startswith("created `new/b.txt` (+2 -0)\nrenamed `a.py` to `b.py` (+2 -1)\n")


def hunk(*rows: str, header: str = "") -> str:
    """A patch of the file `a` with one hunk; its header has the right counts."""
    old, new = (sum(row[:1] not in {sign, "\\"} for row in rows) for sign in "+-")
    header = header or f"@@ -1,{old} +1,{new} @@"
    return "--- a/a\n+++ b/a\n" + "".join(f"{row}\n" for row in (header, *rows))


@pytest.mark.parametrize(
    ("before", "patch", "after"),
    [
        # The number of a line is a hint, and the hunk may have more lines than are counted.
        (NUMBERS, hunk(" line 7", "-line 8", "+8", header="@@ -3,1 +3,1 @@"), ("line 8\n", "8\n")),
        (NUMBERS, hunk(" line 7", "-line 8", "+8", header="@@ ... @@"), ("line 8\n", "8\n")),
        ("x\ny\n" * 9, hunk(" x", "-y", "+z", header="@@ -5,2 +5,2 @@"), None),
        # An editor has taken the space of an empty line away.
        ("a\n\nb\n", hunk(" a", "", "-b", "+c"), ("b", "c")),
        ("a\nb", hunk(" a", "-b", "+c"), ("b", "c")),
        ("a\nb", hunk(" a", "-b", "\\ No newline at end of file", "+b"), ("b", "b\n")),
        ("a\nb\n", hunk(" a", "-b", "+b", "\\ No newline at end of file"), ("b\n", "b")),
        ("a\r\nb\r\n", hunk(" a", "-b", "+c"), ("b", "c")),
        ("a\r\nb\r\n", hunk(" a\r", "-b\r", "+c\r"), ("b", "c")),
        ("a\r\nb\nc\n", hunk(" a\r", "-b", "+d\r", " c"), ("b\n", "d\r\n")),
        ("-- x\n++ y\nz\n", hunk("--- x", "+-- y", " ++ y", " z"), ("-- x", "-- y")),
        ("a\u2028b\fc\nd\n", hunk(" a\u2028b\fc", "-d", "+e"), ("d\n", "e\n")),
        ("", hunk("+a", header="@@ -0,0 +1 @@"), ("", "a\n")),
    ],
)
def test_lines_are_found_exactly(
    scene: PackScene, before: str, patch: str, after: tuple[str, str] | None
) -> None:
    scene.put("a", before)
    scene.text("file_patch", patch=patch)
    expected = before.replace(*after, 1) if after else before[:8] + "x\nz\n" + before[12:]
    assert scene.get("a") == expected.encode()


@pytest.mark.parametrize(
    ("header", "counted", "blanks"),
    [
        ("@@ -1,3 +1,2 @@", "3 and 2", 0),
        ("@@ -1,2 +1,3 @@", "2 and 3", 0),
        ("@@ -1,9 +1,9 @@", "9 and 9", 2),
    ],
)
def test_a_hunk_with_fewer_lines_than_its_header_counts_is_refused(
    scene: PackScene, header: str, counted: str, blanks: int
) -> None:
    scene.put("a", NUMBERS)
    good = hunk("-line 1", "+1")
    rows = "".join(f"{row}\n" for row in (header, " line 7", "-line 8", "+8", *[""] * blanks))
    # Blank lines may be lines of the hunk, as far as the header counts them.
    patch = good + rows + "--- /dev/null\n+++ b/b\n@@ -0,0 +1 @@\n+b\n"
    error = scene.error("file_patch", patch=patch)
    assert error["code"] == "bad_arguments"
    assert error["message"] == (
        f"line 6 of the patch: hunk 2 has 2 old and 2 new lines, and its header counts {counted}: "
        "add the lines that are missing, or begin the hunk with `@@` alone"
    )
    assert error["details"] == {"patch_line": 6, "hunk": 2}
    assert scene.get("a") == NUMBERS.encode()
    scene.text("file_patch", patch=good + rows.replace(header, "@@", 1))


def test_encoding_mark_and_mode_of_a_file_are_kept(scene: PackScene) -> None:
    scene.put("a", b"\xef\xbb\xbfone\r\ntwo\r\n").chmod(0o751)
    scene.text("file_patch", patch=hunk(" one", "-two", "+zwei"))
    assert scene.get("a") == b"\xef\xbb\xbfone\r\nzwei\r\n"
    assert (scene.root / "a").stat().st_mode & 0o777 == 0o751
    scene.put("a", b"caf\xe9\ntwo\n")
    scene.text("file_patch", patch=hunk("-two", "+2", header="@@ -2 +2 @@"))
    assert scene.get("a") == b"caf\xe9\n2\n"
    assert scene.code("file_patch", patch=hunk("-2", "+\u20ac", header="@@ -2 +2 @@")) == "encoding"


def test_a_hunk_that_does_not_fit_is_named_with_what_stands_there(scene: PackScene) -> None:
    scene.put("a", NUMBERS)
    good = hunk("-line 1", "+1")
    rows = ("@@ -9,2 +9,2 @@", " line 9", "-line ten", "+10")
    error = scene.error("file_patch", patch=good + "".join(f"{row}\n" for row in rows))
    assert error["code"] == "no_match"
    assert error["message"] == (
        "hunk 2 of `a` (line 7 of the patch) does not fit: line 10 is `line 10`, and line 8 of the "
        "patch has `line ten`"
    )
    assert error["details"] == {
        "path": "a",
        "hunk": 2,
        "patch_line": 7,
        "line": 10,
        "expected": "line ten",
        "actual": "line 10",
    }
    error = scene.error("file_patch", patch=hunk(" line 7", "-line  8", "+8"))
    assert error["message"].endswith("has `line  8` (only the spaces differ)")
    error = scene.error("file_patch", patch=hunk(" line 40", "-line 41", "+8"))
    assert "line 41 is the end of the file" in error["message"]
    error = scene.error("file_patch", patch=hunk("-nowhere", "+8", header="@@ -90 +90 @@"))
    assert "there is no line `nowhere` in the file" in error["message"]
    error = scene.error("file_patch", patch=hunk("-line 9", "+9") + "@@ -2 +2 @@\n-line 2\n+2\n")
    assert "are at line 2, above those of the hunk before it" in error["message"]
    assert scene.get("a") == NUMBERS.encode()


def test_a_hunk_that_fits_at_several_places_is_ambiguous(scene: PackScene) -> None:
    scene.put("a", "x\ny\n" * 9)
    error = scene.error("file_patch", patch=hunk(" x", "-y", "+z", header="@@ -40,2 +40,2 @@"))
    assert error["code"] == "ambiguous"
    assert error["details"]["lines"] == [*range(1, 18, 2)]
    section = "*** Begin Patch\n*** Update File: a\n@@ {}\n x\n-y\n+z\n*** End Patch\n"
    assert scene.code("file_patch", patch=section.format("")) == "ambiguous"
    error = scene.error("file_patch", patch=section.format("class Missing:"))
    assert error["code"] == "no_match"
    assert "no line `class Missing:`" in error["message"]


def section(*rows: str) -> str:
    return "\n".join(("*** Begin Patch", *rows, "*** End Patch", ""))


RENAMED = "diff --git a/a b/n\nrename from a\nrename to n\n"
REFUSED = {
    "nothing": ("bad_arguments", "see below"),
    "a NUL": ("bad_arguments", hunk("-a", "+\0")),
    "no hunk in a diff": ("bad_arguments", "--- a/a\n+++ b/a\n"),
    "no hunk of git": ("bad_arguments", "diff --git a/a b/a\n--- a/a\n+++ b/a\n"),
    "no lines to delete": ("no_match", "--- a/a\n+++ /dev/null\n"),
    "no lines to delete in git": (
        "no_match",
        "diff --git a/a b/a\ndeleted file mode 100644\n--- a/a\n+++ /dev/null\n",
    ),
    "renamed and deleted": (
        "bad_arguments",
        f"{RENAMED}--- a/a\n+++ /dev/null\n@@ -1,3 +0,0 @@\n-a\n-b\n-c\n",
    ),
    "renamed and new": (
        "bad_arguments",
        f"{RENAMED}--- /dev/null\n+++ b/n\n@@ -0,0 +1 @@\n+x\n",
    ),
    "part of a name": (
        "bad_arguments",
        "diff --git a/a b/a\n--- a/a\n+++ zza\n@@ -1 +1 @@\n-a\n+b\n",
    ),
    "a hunk alone": (
        "bad_arguments",
        hunk("-a", "+b") + "```\nand\n```diff\n@@ -3 +3 @@\n-c\n+d\n",
    ),
    "other form below": (
        "bad_arguments",
        hunk("-a", "+b") + "```\n" + section("*** Delete File: b.py"),
    ),
    "half": ("bad_arguments", section("*** Delete File: a").replace("*** End Patch\n", "")),
    "an escape": (
        "bad_path",
        hunk("-a", "+b").replace("a/a", '"a/a\\v"').replace("b/a", '"b/a\\v"'),
    ),
    "a long name": ("unwritable", section(f"*** Add File: made/{300 * 'x'}/x", "+x")),
    "no place": ("no_match", hunk("+b", header="@@ -1,0 +2 @@")),
    "no rows": ("bad_arguments", hunk()),
    "other form": ("bad_arguments", hunk("-a", "+b") + section("*** Delete File: b")),
    "text between": ("bad_arguments", hunk("-a", "+b") + "and then\n" + "@@ -3 +3 @@\n-c\n+d\n"),
    "text after": ("bad_arguments", section("*** Delete File: a") + "and then\n"),
    "no sign": ("bad_arguments", section("*** Update File: a", "@@", "-a", "b")),
    "no hunk": ("bad_arguments", section("*** Update File: a")),
    "twice": ("bad_arguments", hunk("-a", "+b") + hunk("-b", "+c").replace("a/a", "a/./a")),
    "two names": ("bad_arguments", "--- a/a\n+++ b/b\n@@ -1 +1 @@\n-a\n+b\n"),
    "other name": (
        "bad_arguments",
        "diff --git a/b b/b\n--- a/a\n+++ b/a\n@@ -1 +1 @@\n-a\n+b\n",
    ),
    "there": ("exists", section("*** Add File: a", "+b")),
    "there too": ("exists", section("*** Update File: a", "*** Move to: b.py")),
    "not all": ("no_match", "--- a/a\n+++ /dev/null\n@@ -1 +0,0 @@\n-a\n"),
    "not empty": ("no_match", "diff --git a/a b/a\ndeleted file mode 100644\n"),
    "missing": ("not_found", section("*** Delete File: missing")),
    "missing folder": ("not_found", section("*** Delete File: no/where")),
    "binary": ("binary", hunk("-a", "+b").replace("/a\n", "/image\n")),
    "binary patch": ("binary", "diff --git a/a b/a\nindex 1..2\nGIT binary patch\nliteral 1\n"),
    "mode": ("unsupported", "diff --git a/a b/a\nold mode 100644\nnew mode 100755\n"),
    "a link": ("unsupported", "diff --git a/l b/l\nnew file mode 120000\n"),
    "a merge": ("unsupported", hunk("-a", "+b") + "@@@ -1 -1 +1 @@@\n"),
    "a folder": ("not_a_file", section("*** Delete File: folder")),
    "through a link": ("not_a_file", section("*** Update File: link", "@@", "-a", "+b")),
    "below a link": ("not_a_folder", section("*** Add File: up/x", "+b")),
    "the root": ("bad_path", section("*** Delete File: .")),
    "control characters": ("bad_path", section("*** Delete File: a\x01b")),
    "outside": ("outside", section("*** Add File: ../x", "+b")),
    "absolute": ("outside", section("*** Add File: /tmp/x", "+b")),
    "denied": ("protected", section("*** Update File: .env", "@@", "-a", "+b")),
    "of git": ("protected", section("*** Add File: .git/hooks/x", "+b")),
    "by itself": ("protected", section("*** Add File: .github/workflows/x.yml", "+b")),
    "no code": ("syntax", hunk("-x = 1", "+x = (").replace("/a\n", "/b.py\n")),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_patch_that_is_refused_in_its_last_part_changes_nothing(
    scene: PackScene, case: str
) -> None:
    scene.put("a", "a\nb\nc\n")
    scene.put("b.py", "x = 1\n")
    scene.put("image", b"a\0\n")
    scene.put(".env", "a\n")
    scene.put("folder/x", "")
    (scene.root / "link").symlink_to("a")
    (scene.root / "up").symlink_to("folder")
    before = files_of(scene.root)
    code, patch = REFUSED[case]
    assert scene.code("file_patch", patch=patch) == code
    first = "--- /dev/null\n+++ b/made/here/x\n@@ -0,0 +1 @@\n+x\n"
    if patch.startswith("*** "):
        first = "*** Begin Patch\n*** Add File: made/here/x\n+x\n"
        patch = patch.partition("\n")[2]
    if case != "nothing":
        assert scene.code("file_patch", patch=first + patch) == code
    assert files_of(scene.root) == before
    assert not (scene.root / "made").exists()


def test_a_hunk_above_all_headers_is_no_free_text(scene: PackScene) -> None:
    scene.put("a", "a\nb\nc\n")
    patch = "@@ -3 +3 @@\n-c\n+d\n" + hunk("-a", "+b")
    error = scene.error("file_patch", patch=patch)
    assert (error["code"], error["details"]) == ("bad_arguments", {"patch_line": 1})
    assert scene.get("a") == b"a\nb\nc\n"


def test_all_files_of_a_patch_are_below_its_path(scene: PackScene) -> None:
    scene.put("src/a", "a\n")
    patch = hunk("-a", "+b").replace("/a\n", "/src/a\n")
    assert scene.code("file_patch", patch=patch, path="docs") == "outside"
    assert scene.code("file_patch", patch=patch, path="sr") == "outside"
    scene.text("file_patch", patch=patch, path="./src/")
    assert scene.get("src/a") == b"b\n"
    name = ".github/workflows/x.yml"
    made = section(f"*** Add File: {name}", "+x")
    assert scene.code("file_patch", patch=made, path=".github") == "protected"
    scene.text("file_patch", patch=made, path=name)
    assert scene.get(name) == b"x\n"


def test_a_file_has_to_be_the_expected_one(scene: PackScene) -> None:
    scene.put("a", "a\n")
    patch = hunk("-a", "+b")
    wrong: dict[str, Any] = {"expect_sha256": {"a": "0" * 64}}
    assert scene.code("file_patch", patch=patch, **wrong) == "changed"
    other: dict[str, Any] = {"expect_sha256": {"b": sha256(b"a\n")}}
    assert scene.code("file_patch", patch=patch, **other) == "bad_arguments"
    both: dict[str, Any] = {"expect_sha256": {"./a": "0" * 64, "a": sha256(b"a\n")}}
    assert scene.code("file_patch", patch=patch, **both) == "bad_arguments"
    made = hunk("-a", "+b") + "--- /dev/null\n+++ b/b\n@@ -0,0 +1 @@\n+x\n"
    assert scene.code("file_patch", patch=made, **other) == "not_found"
    scene.text("file_patch", patch=patch, expect_sha256={"./a": sha256(b"a\n")})
    assert scene.get("a") == b"b\n"


def test_what_was_written_is_taken_back_if_a_later_file_cannot_be(
    scene: PackScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk fails at the last file."""
    scene.put("a", "a\n").chmod(0o640)
    scene.put("old", "x\n")
    scene.put("gone/file", "g\n")
    patch = section(
        *("*** Update File: a", "@@", "-a", "+b", "*** Add File: made/b", "+x"),
        *("*** Update File: old", "*** Move to: new", "*** Delete File: gone/file"),
    )
    before = files_of(scene.root)
    unlink = os.unlink

    def fail(path: str, *, dir_fd: int | None = None) -> None:
        kept = scene.root / "gone" / str(path)
        if kept.exists() and kept.read_bytes() == b"g\n":
            raise OSError(5, "Input/output error")
        unlink(path, dir_fd=dir_fd)

    monkeypatch.setattr("os.unlink", fail)
    assert scene.code("file_patch", patch=patch) == "unwritable"
    monkeypatch.undo()
    assert files_of(scene.root) == before
    assert not (scene.root / "made").exists()
    assert (scene.root / "a").stat().st_mode & 0o777 == 0o640


def test_all_that_can_be_is_taken_back_if_one_file_cannot(
    scene: PackScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b", "c", "d"):
        scene.put(name, "a\n")
    before = files_of(scene.root)
    unlink = os.unlink

    def fail(path: str, *, dir_fd: int | None = None) -> None:
        left = [each for each in scene.root.glob("*.tmp") if each.read_bytes() == b"a\n"]
        if left and scene.get("c") == b"b\n" and not (scene.root / "d").exists():
            # Another program has its own text in one of the files meanwhile.
            scene.put("c", "theirs\n")
            raise OSError(5, "Input/output error")
        unlink(path, dir_fd=dir_fd)

    monkeypatch.setattr("os.unlink", fail)
    patch = "".join(hunk("-a", "+b").replace("/a\n", f"/{name}\n") for name in "abc")
    error = scene.error("file_patch", patch=patch + "--- a/d\n+++ /dev/null\n@@ -1 +0,0 @@\n-a\n")
    monkeypatch.undo()
    assert error["code"] == "unwritable"
    assert error["message"].count("is changed already") == 1
    assert "`c` is changed already" in error["message"]
    assert files_of(scene.root) == {**before, "c": b"theirs\n"}


def test_what_diff_and_git_write_is_applied(scene: PackScene, tmp_path: Path) -> None:
    old, new = tmp_path / "a", tmp_path / "b"
    for folder, middle in ((old, "four\nfive"), (new, "4\n\nfive\nsix")):
        folder.mkdir()
        (folder / "x y.txt").write_text(f"{NUMBERS}{middle}\n{NUMBERS}", "utf-8")
        (folder / "end.txt").write_text(f"{NUMBERS}{middle}", "utf-8")
        (folder / f"{middle[:1]}.txt").write_text(NUMBERS + middle, "utf-8")
    for command in (
        ["diff", "-ruN", "a", "b"],
        ["git", "diff", "--no-index", "--no-color", "a", "b"],
        ["git", "diff", "--no-index", "--no-color", "-M", "a", "b"],
    ):
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.stdout
        # git names the folders in a patch of two folders after its own prefix.
        patch = done.stdout.replace("a/a/", "a/").replace("b/b/", "b/")
        patch = patch.replace("rename from a/", "rename from ").replace(
            "rename to b/", "rename to "
        )
        for path in scene.root.iterdir():
            path.unlink()
        for name, data in files_of(old).items():
            scene.put(name, data)
        scene.text("file_patch", patch=patch)
        assert files_of(scene.root) == files_of(new), command


def test_a_long_patch_takes_linear_time() -> None:
    def lines_for(count: int, *, hinted: bool) -> int:
        text = "".join(f"line {number}\nsame\nsame\n" for number in range(count))
        rows = [
            f"@@ -{3 * number + 1 if hinted else 1},2 +1,2 @@\n line {number}\n-same\n+other\n"
            for number in range(count)
        ]

        def work() -> None:
            (patch,) = parse_patch("--- a/a\n+++ b/a\n" + "".join(rows))
            assert apply_hunks(text, patch).added == count

        return work_of(work).steps

    for hinted in (True, False):
        assert lines_for(1000, hinted=hinted) < 5 * lines_for(250, hinted=hinted)


def test_a_patch_with_endless_places_ends(scene: PackScene) -> None:
    scene.put("a", "x\n" * 400_000)
    rows = [" x"] * 2_000 + ["-y"]
    assert scene.code("file_patch", patch=hunk(*rows, header="@@")) == "no_match"
    scene.put("a", ("x\n" * 999 + "y\n") * 400)
    rows = [" x"] * 999 + [" y"] + [" x"] * 998 + ["-z"]
    assert scene.code("file_patch", patch=hunk(*rows, header="@@")) == "no_match"
    scene.put("a", "x\ny\n" * 200_000)
    rows = [" x", " y"] * 999 + ["-x", " x"]
    assert scene.code("file_patch", patch=hunk(*rows, header="@@")) in {"no_match", "too_slow"}
    many = "".join(section(f"*** Add File: f{number}", "+x")[16:-14] for number in range(1_001))
    assert scene.code("file_patch", patch=f"*** Begin Patch\n{many}*** End Patch\n") == "too_large"
    anchors = section("*** Update File: a", *["@@ x"] * 100_000, "-x", "+y")
    assert scene.code("file_patch", patch=anchors) == "bad_arguments"
    assert scene.code("file_patch", patch=hunk("-x" * (1 << 20), "+y")) == "too_large"
    blanks = hunk(*[""] * 50_000, header="@@")
    assert scene.code("file_patch", patch=blanks) == "bad_arguments"
