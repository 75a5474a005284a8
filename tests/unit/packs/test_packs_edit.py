from collections.abc import Iterator
from pathlib import Path

import pytest
from pack_scenes import PackScene, opened_packs, sha256


@pytest.fixture
def pack_scene(tmp_path: Path) -> Iterator[PackScene]:
    root = tmp_path / "root"
    root.mkdir()
    with opened_packs(["edit"], root) as scene:
        yield scene


def test_the_one_occurrence_of_a_text_is_replaced(pack_scene: PackScene) -> None:
    pack_scene.put("a.md", "one\ntwo\nthree\n")
    data = pack_scene.data("file_edit", path="a.md", old_text="two\n", new_text="2\n2b\n")
    assert pack_scene.get("a.md") == b"one\n2\n2b\nthree\n"
    assert data["sha256"] == sha256(b"one\n2\n2b\nthree\n")
    assert data["replacements"] == 1
    assert data["diff"] == (
        "--- a/a.md\n+++ b/a.md\n@@ -1,3 +1,4 @@\n one\n-two\n+2\n+2b\n three\n"
    )


def test_a_diff_counts_lines_from_the_begin_of_a_long_file(pack_scene: PackScene) -> None:
    lines = [f"line {number}\n" for number in range(1, 1001)]
    pack_scene.put("a.md", "".join(lines))
    arguments = {"old_text": "line 500\n", "new_text": "line 499\nline 501\n"}
    data = pack_scene.data("file_edit", path="a.md", **arguments)
    assert data["diff"] == (
        "--- a/a.md\n+++ b/a.md\n@@ -497,7 +497,8 @@\n line 497\n line 498\n line 499\n"
        "-line 500\n+line 499\n+line 501\n line 501\n line 502\n line 503\n"
    )
    data = pack_scene.data("file_edit", path="a.md", old_text="line 1000\n", new_text="the end")
    assert data["diff"] == (
        "--- a/a.md\n+++ b/a.md\n@@ -998,4 +998,4 @@\n line 997\n line 998\n line 999\n"
        "-line 1000\n+the end\n\\ No newline at end of file\n"
    )
    data = pack_scene.data("file_set_lines", path="a.md", start_line=1, end_line=2, content="")
    assert data["diff"] == (
        "--- a/a.md\n+++ b/a.md\n@@ -1,5 +1,3 @@\n-line 1\n-line 2\n line 3\n line 4\n line 5\n"
    )


def test_a_text_that_occurs_more_than_once_is_ambiguous_with_its_lines(
    pack_scene: PackScene,
) -> None:
    pack_scene.put("a", "x = 1\ny\nx = 1\nx = 1\n")
    error = pack_scene.error("file_edit", path="a", old_text="x = 1", new_text="z")
    assert error["code"] == "ambiguous"
    assert error["details"]["lines"] == [1, 3, 4]
    assert "lines 1, 3, 4" in error["message"]
    assert pack_scene.get("a") == b"x = 1\ny\nx = 1\nx = 1\n"
    data = pack_scene.data("file_edit", path="a", old_text="x = 1", new_text="z", replace_all=True)
    assert pack_scene.get("a") == b"z\ny\nz\nz\n"
    assert data["replacements"] == 3
    pack_scene.put("b", "aaa")
    assert pack_scene.error("file_edit", path="b", old_text="aa", new_text="b")["details"][
        "lines"
    ] == [
        1,
        1,
    ]


def test_very_many_occurrences_are_listed_in_bounded_length(pack_scene: PackScene) -> None:
    pack_scene.put("a", "x\n" * 1_000_000)
    error = pack_scene.error("file_edit", path="a", old_text="x", new_text="y")
    assert len(error["details"]["lines"]) == 20
    assert "and more" in error["message"]


def test_a_text_that_does_not_occur_is_a_failure_that_says_where_it_nearly_does(
    pack_scene: PackScene,
) -> None:
    pack_scene.put("a.txt", "def f():\n\treturn 1\n")
    error = pack_scene.error(
        "file_edit", path="a.txt", old_text="    return 1", new_text="return 2"
    )
    assert error["code"] == "no_match"
    assert error["details"]["lines"] == [2]
    assert pack_scene.code("file_edit", path="a.txt", old_text="", new_text="x") == "bad_arguments"
    assert pack_scene.code("file_edit", path="none", old_text="x", new_text="y") == "not_found"


@pytest.mark.parametrize(
    ("before", "old", "new", "after"),
    [
        (b"a\r\nb\r\nc\r\n", "a\nb\n", "x\ny\n", b"x\r\ny\r\nc\r\n"),
        (b"a\r\nb\r\n", "b\r\n", "x", b"a\r\nx"),
        (b"\xef\xbb\xbfa\n", "a", "\u00e9", b"\xef\xbb\xbf\xc3\xa9\n"),
        ("\ufeffa\r\nb\r\n".encode("utf-16"), "b", "c", None),
        (b"caf\xe9 a\n", "a\n", "b\n", b"caf\xe9 b\n"),
        (b"a\r\nb\nc\n", "b\n", "x\n", b"a\r\nx\nc\n"),
    ],
)
def test_an_edit_changes_nothing_else(
    pack_scene: PackScene, before: bytes, old: str, new: str, after: bytes | None
) -> None:
    pack_scene.put("a", before)
    pack_scene.text("file_edit", path="a", old_text=old, new_text=new)
    if after is not None:
        assert pack_scene.get("a") == after
    else:
        assert pack_scene.get("a")[2:].decode("utf-16-le") == "\ufeffa\r\nc\r\n"


def test_only_ascii_is_put_into_a_file_of_unknown_encoding(pack_scene: PackScene) -> None:
    pack_scene.put("a", b"caf\xe9 x\n")
    assert pack_scene.code("file_edit", path="a", old_text="x", new_text="\u00e9") == "encoding"
    assert (
        pack_scene.code("file_edit", path="a", old_text="\udce9", new_text="e") == "bad_arguments"
    )
    assert pack_scene.get("a") == b"caf\xe9 x\n"


def test_an_edit_of_another_file_than_the_expected_one_is_refused(pack_scene: PackScene) -> None:
    pack_scene.put("a", "x\n")
    wrong = {"path": "a", "expect_sha256": sha256(b"y\n")}
    assert pack_scene.code("file_edit", old_text="x", new_text="z", **wrong) == "changed"
    assert (
        pack_scene.code("file_set_lines", start_line=1, end_line=1, content="z", **wrong)
        == "changed"
    )
    assert pack_scene.get("a") == b"x\n"


@pytest.mark.parametrize(
    ("before", "first", "last", "content", "after"),
    [
        ("1\n2\n3\n", 2, 2, "x", "1\nx\n3\n"),
        ("1\n2\n3\n", 2, 3, "x\ny\nz\n", "1\nx\ny\nz\n"),
        ("1\n2\n3\n", 2, 1, "x", "1\nx\n2\n3\n"),
        ("1\n2\n3\n", 4, 3, "x", "1\n2\n3\nx\n"),
        ("1\n2\n3\n", 1, 3, "", ""),
        ("1\n2\n3", 3, 3, "x", "1\n2\nx"),
        ("1\n2\n3", 4, 3, "x", "1\n2\n3\nx"),
        ("1\n2", 1, 1, "", "2"),
        ("", 1, 0, "x", "x\n"),
        ("1\r\n2\r\n", 2, 2, "x\ny", "1\r\nx\r\ny\r\n"),
    ],
)
def test_lines_are_replaced_put_in_and_taken_out(
    pack_scene: PackScene, before: str, first: int, last: int, content: str, after: str
) -> None:
    pack_scene.put("a", before)
    pack_scene.text("file_set_lines", path="a", start_line=first, end_line=last, content=content)
    assert pack_scene.get("a").decode() == after


@pytest.mark.parametrize(("first", "last"), [(0, 1), (-1, 1), (3, 1), (4, 3), (1, 3), (1, -1)])
def test_lines_that_are_no_range_of_the_file_are_a_failure(
    pack_scene: PackScene, first: int, last: int
) -> None:
    pack_scene.put("a", "1\n2\n")
    arguments = {"path": "a", "start_line": first, "end_line": last, "content": "x"}
    assert pack_scene.code("file_set_lines", **arguments) == "out_of_range"
    assert pack_scene.get("a") == b"1\n2\n"


def test_python_code_that_would_no_longer_parse_is_not_written(pack_scene: PackScene) -> None:
    code = b"def f():\n    return 1\n"
    pack_scene.put("a.py", code)
    error = pack_scene.error("file_edit", path="a.py", old_text="f():", new_text="f(:")
    assert error["code"] == "syntax"
    assert "line 1" in error["message"]
    for broken in (
        "    return (",
        "return '",
        "\u00a0x",
        "    return " + "(" * 5000 + "1" + ")" * 5000,
    ):
        arguments = {"path": "a.py", "start_line": 2, "end_line": 2, "content": broken}
        assert pack_scene.code("file_set_lines", **arguments) == "syntax"
    assert pack_scene.get("a.py") == code
    pack_scene.text("file_edit", path="a.py", old_text="return 1", new_text="return '\\d'")


def test_python_code_that_did_not_parse_may_be_mended_step_by_step(pack_scene: PackScene) -> None:
    pack_scene.put("a.py", "def f(:\n    return (\n")
    pack_scene.text("file_edit", path="a.py", old_text="f(:", new_text="f():")
    pack_scene.text("file_edit", path="a.py", old_text="(\n", new_text="1\n")
    assert pack_scene.code("file_edit", path="a.py", old_text="1", new_text="(") == "syntax"
    pack_scene.put("latin.py", b"# -*- coding: latin-1 -*-\nx = '\xe9'\n")
    pack_scene.text("file_edit", path="latin.py", old_text="x =", new_text="y =")
    assert pack_scene.get("latin.py").endswith(b"y = '\xe9'\n")


@pytest.mark.parametrize("path", [".git/config", ".env", ".aish/x", "../a", "link"])
def test_what_is_protected_or_outside_is_not_edited(pack_scene: PackScene, path: str) -> None:
    outside = pack_scene.root.parent / "a"
    outside.write_text("x")
    (pack_scene.root / "link").symlink_to(outside)
    if path.startswith("."):
        pack_scene.put(path.removeprefix("../"), "x")
    code = pack_scene.code("file_edit", path=path, old_text="x", new_text="y")
    assert code in {"protected", "outside", "not_a_file"}
    assert code == pack_scene.code(
        "file_set_lines", path=path, start_line=1, end_line=1, content="y"
    )
    assert outside.read_text() == "x"
