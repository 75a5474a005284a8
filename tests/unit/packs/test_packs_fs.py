import base64
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pack_scenes import PackScene, opened_packs, sha256
from portable_forms import PORTABLE
from samples import each_case

from aish.packs.c.c_options import COptions
from aish.packs.workspace.deny_list import is_denied
from aish.packs.workspace.file_options import FilesOptions


@pytest.fixture
def pack_scene(tmp_path: Path) -> Iterator[PackScene]:
    root = tmp_path / "root"
    root.mkdir()
    with opened_packs(["fs"], root) as scene:
        yield scene


def test_a_file_is_read_by_its_path_alone(pack_scene: PackScene) -> None:
    pack_scene.put("README.md", "# Title\n\ntext\n")
    assert pack_scene.text("file_read", path="README.md") == "# Title\n\ntext\n"
    assert pack_scene.data("file_read", path="README.md") == {
        "path": "README.md",
        "content": "# Title\n\ntext\n",
        "start_line": 1,
        "end_line": 3,
        "total_lines": 3,
        "encoding": "utf-8",
        "language": "markdown",
        "sha256": sha256(b"# Title\n\ntext\n"),
        "truncated": False,
    }


@pytest.mark.requirement("K22")
def test_the_hash_is_of_the_whole_file_whatever_lines_are_read(pack_scene: PackScene) -> None:
    pack_scene.put("a", b"\xff\xfe#\x00!\x00\n\x00")
    pack_scene.put("run", "#!/usr/bin/env python3\nprint()\n")
    assert pack_scene.data("file_read", path="a")["sha256"] == sha256(pack_scene.get("a"))
    data = pack_scene.data("file_read", path="run", start_line=2)
    assert (data["content"], data["language"]) == ("print()\n", "python")
    assert data["sha256"] == sha256(pack_scene.get("run"))
    pack_scene.put("long", "x" * 79 + "\n")
    (pack_scene.root / "long").write_bytes(b"x" * 8 * 1024 * 1024 + b"\n")
    assert pack_scene.data("file_read", path="long", end_line=1)["sha256"] is None
    assert len(pack_scene.data("file_summary", path="long")["sha256"]) == 64


IMAGES = {
    "image/png": b"\x89PNG\r\n\x1a\n rest",
    "image/jpeg": b"\xff\xd8\xff\xe0 rest",
    "image/gif": b"GIF89a rest",
    "image/webp": b"RIFF\x10\0\0\0WEBPVP8 rest",
}


@pytest.mark.parametrize("kind", IMAGES)
def test_an_image_is_returned_as_one_whatever_its_name(pack_scene: PackScene, kind: str) -> None:
    pack_scene.put("picture.txt", IMAGES[kind])
    result = pack_scene.call("file_read", path="picture.txt")
    text, image = result["content"]
    assert text["text"] == f"`picture.txt`: {kind}, {len(IMAGES[kind])} bytes"
    assert image == {
        "type": "image",
        "data": base64.b64encode(IMAGES[kind]).decode(),
        "mimeType": kind,
    }
    assert result["structuredContent"]["sha256"] == sha256(IMAGES[kind])


def test_an_image_that_is_too_large_is_refused(pack_scene: PackScene) -> None:
    pack_scene.put("a.png", IMAGES["image/png"] + bytes(5 * 1024 * 1024))
    assert pack_scene.code("file_read", path="a.png") == "too_large"
    pack_scene.put("b.png", "not an image")
    assert pack_scene.text("file_read", path="b.png") == "not an image"


@pytest.mark.parametrize(
    ("first", "last", "expected"),
    [
        (1, 1, "1\n"),
        (2, 3, "2\n3\n"),
        (3, None, "3\n4"),
        (None, 2, "1\n2\n"),
        (4, 4, "4"),
        (4, 99, "4"),
    ],
)
def test_a_range_of_lines_is_read(
    pack_scene: PackScene, first: int | None, last: int | None, expected: str
) -> None:
    pack_scene.put("a", "1\n2\n3\n4")
    wanted = {"start_line": first, "end_line": last}
    given = {name: value for name, value in wanted.items() if value is not None}
    data = pack_scene.data("file_read", path="a", **given)
    assert (data["content"], data["total_lines"]) == (expected, 4)


@pytest.mark.parametrize(("first", "last"), [(5, 9), (0, 1), (-1, 1), (3, 2)])
def test_lines_that_are_not_there_are_a_failure_that_says_so(
    pack_scene: PackScene, first: int, last: int
) -> None:
    pack_scene.put("a", "1\n2\n3\n4")
    assert pack_scene.code("file_read", path="a", start_line=first, end_line=last) == "out_of_range"


def test_an_empty_file_is_empty(pack_scene: PackScene) -> None:
    pack_scene.put("a", "")
    data = pack_scene.data("file_read", path="a")
    assert (data["content"], data["total_lines"], data["end_line"]) == ("", 0, 0)


def test_a_long_file_is_cut_at_a_line_and_can_be_read_on_to_its_end(pack_scene: PackScene) -> None:
    whole = "".join(f"line {number} é {'x' * (number % 90)}\n" for number in range(1, 4000))
    pack_scene.put("long", whole)
    first = pack_scene.data("file_read", path="long")
    assert first["truncated"] is True
    text = pack_scene.text("file_read", path="long")
    assert f"go on with start_line={first['end_line'] + 1}]" in text
    assert "truncated: true" in text
    gathered, start = "", 1
    while True:
        data = pack_scene.data("file_read", path="long", start_line=start)
        gathered += data["content"]
        if not data["truncated"]:
            break
        start = data["end_line"] + 1
    assert gathered == whole


def test_a_line_that_is_too_long_is_cut_and_said_to_be(pack_scene: PackScene) -> None:
    pack_scene.put("one", "é" * 300_000 + "\nnext\n")
    data = pack_scene.data("file_read", path="one")
    assert (data["truncated"], data["end_line"], data["total_lines"]) == (True, 1, 2)
    assert set(data["content"]) == {"é"}
    assert "within line 1 of 2" in pack_scene.text("file_read", path="one")
    assert pack_scene.data("file_read", path="one", start_line=2)["content"] == "next\n"


def test_a_huge_file_is_read_in_bounded_time(pack_scene: PackScene) -> None:
    pack_scene.put("huge", "top\n")
    os.truncate(pack_scene.root / "huge", 10 << 30)
    for tool in ("file_read", "file_summary"):
        error = pack_scene.error(tool, path="huge")
        assert (error["code"], error["details"]["limit"]) == ("too_large", 64 * 1024 * 1024)
    with (pack_scene.root / "log").open("wb") as log:
        log.write(b"first\n" + b"x" * 200_000 + b"\n" + b"y" * 60_000_000)
    data = pack_scene.data("file_read", path="log", start_line=1, end_line=1)
    assert (data["content"], data["total_lines"]) == ("first\n", 3)


@pytest.mark.parametrize(
    ("content", "expected", "encoding"),
    [
        (b"\xef\xbb\xbfa\nb", "a\nb", "utf-8-sig"),
        ("a é\nb".encode("utf-16"), "a é\nb", "utf-16"),
        ("a é\nb".encode("utf-32"), "a é\nb", "utf-32"),
        (b"caf\xe9\nb", "caf\ufffd\nb", "utf-8 with bytes that are not text"),
        (b"a\xc3", "a", "utf-8"),
        (b"a\r\nb\r\n", "a\r\nb\r\n", "utf-8"),
        ("a\u2028b\x0cc\n".encode(), "a\u2028b\x0cc\n", "utf-8"),
    ],
)
def test_files_that_are_not_plain_utf8_are_read_too(
    pack_scene: PackScene, content: bytes, expected: str, encoding: str
) -> None:
    pack_scene.put("a", content)
    data = pack_scene.data("file_read", path="a")
    assert (data["content"], data["encoding"]) == (expected, encoding)


@pytest.mark.requirement("K3")
def test_a_binary_file_is_a_failure_with_its_size(pack_scene: PackScene) -> None:
    pack_scene.put("a", b"\x7fELF\0\0\0")
    assert pack_scene.code("file_read", path="a") == "binary"
    assert pack_scene.code("file_summary", path="a") == "binary"
    result = pack_scene.call("file_read", path="a")
    assert result["structuredContent"]["error"]["details"] == {"size": 7}


@pytest.mark.parametrize(
    ("tool", "arguments", "code"),
    [
        ("file_read", {"path": "../x"}, "outside"),
        ("file_read", {"path": "/etc/passwd"}, "outside"),
        ("file_read", {"path": "none"}, "not_found"),
        ("file_read", {"path": "."}, "not_a_file"),
        ("file_read", {}, "bad_arguments"),
        ("file_read", {"path": 7}, "bad_arguments"),
        ("file_read", {"path": "a", "odd": 1}, "bad_arguments"),
        ("file_exists", {"path": "../x"}, "outside"),
        ("file_search", {"query": ""}, "bad_arguments"),
        ("file_search", {"query": "x", "path": "../x"}, "outside"),
        ("file_search", {"query": "x", "path": "none"}, "not_found"),
        ("file_summary", {"path": "none"}, "not_found"),
        ("dir_list", {"path": ".."}, "outside"),
        ("dir_list", {"path": "a"}, "not_a_folder"),
        ("dir_tree", {"path": "a"}, "not_a_folder"),
        ("file_find", {"path": "none", "glob": "*"}, "not_found"),
        ("dir_tree", {"path": "/"}, "outside"),
    ],
)
def test_failures_are_results_with_a_code(
    pack_scene: PackScene, tool: str, arguments: dict[str, Any], code: str
) -> None:
    pack_scene.put("a", "x")
    assert pack_scene.code(tool, **arguments) == code


def test_existence_is_told_of_files_and_folders(pack_scene: PackScene) -> None:
    pack_scene.put("docs/a", "")
    os.mkfifo(pack_scene.root / "pipe")
    assert pack_scene.data("file_exists", path="docs/a")["kind"] == "file"
    assert pack_scene.data("file_exists", path="docs")["kind"] == "folder"
    assert pack_scene.data("file_exists", path="pipe")["kind"] == "other"
    assert pack_scene.data("file_exists", path="b")["exists"] is False


def test_a_folder_is_listed_in_order(pack_scene: PackScene) -> None:
    pack_scene.put("b.txt", "xx")
    pack_scene.put("a/x", "")
    (pack_scene.root / "c").symlink_to("b.txt")
    os.mkfifo(pack_scene.root / "d")
    assert pack_scene.text("dir_list") == ("a/\nb.txt (2 bytes)\nc (link)\nd (not a file)\n")
    entries = pack_scene.data("dir_list", path="a")["entries"]
    assert entries == [{"name": "x", "path": "a/x", "kind": "file", "bytes": 0}]
    (pack_scene.root / "empty").mkdir()
    assert pack_scene.text("dir_list", path="empty") == "nothing here"


def test_a_long_list_goes_on_where_it_stopped(pack_scene: PackScene) -> None:
    names = [f"{number:05}-{'x' * 40}" for number in range(2500)]
    for name in names:
        pack_scene.put(name, "")
    first = pack_scene.data("dir_list")
    assert first["truncated"] is True
    shown = [entry["name"] for entry in first["entries"]]
    assert f"go on with after={shown[-1]}]" in pack_scene.text("dir_list")
    while True:
        data = pack_scene.data("dir_list", after=shown[-1])
        shown += [entry["name"] for entry in data["entries"]]
        if not data["truncated"]:
            break
    assert shown == names


def test_a_tree_is_indented_and_as_deep_as_asked(pack_scene: PackScene) -> None:
    pack_scene.put("a/b/c/d/e", "")
    pack_scene.put("z", "")
    pack_scene.put(".git/objects/x", "")
    assert pack_scene.text("dir_tree") == ".git/\na/\n  b/\n    c/\nz\n"
    assert pack_scene.text("dir_tree", depth=1) == ".git/\na/\nz\n"
    assert pack_scene.text("dir_tree", path="a/b", depth=99) == "c/\n  d/\n    e\n"


def test_a_tree_that_is_too_large_says_how_to_go_on(pack_scene: PackScene) -> None:
    for number in range(1200):
        pack_scene.put(f"{number:04}-{'x' * 60}", "")
    assert pack_scene.data("dir_tree")["truncated"] is True
    assert "[truncated: true" in pack_scene.text("dir_tree")


def test_a_tree_that_leads_into_itself_or_out_ends(pack_scene: PackScene) -> None:
    pack_scene.put("a/x", "")
    (pack_scene.root / "a" / "self").symlink_to(".")
    (pack_scene.root / "out").symlink_to("/etc")
    assert pack_scene.text("dir_tree", depth=16) == "a/\n  self (link)\n  x\nout (link)\n"


def test_names_with_control_characters_cannot_break_a_list(pack_scene: PackScene) -> None:
    pack_scene.put("a\nb", "")
    pack_scene.put("c\x1b[2J\u202e", "")
    (pack_scene.root / os.fsdecode(b"d\xff")).write_text("needle")
    shown = "a⏎b\nc\\x1b[2J\\u202e\nd\\udcff\n"
    assert pack_scene.text("dir_tree") == shown
    assert re.sub(r" \(\d bytes\)", "", pack_scene.text("dir_list")) == shown
    assert "d\\udcff:1: needle" in pack_scene.text("file_search", query="needle")


def test_text_is_found_as_it_is_written(pack_scene: PackScene) -> None:
    pack_scene.put("a.py", "x = 1\ny.z(*)\n")
    pack_scene.put("docs/b.md", "Y.Z(*)\nnothing\n")
    pack_scene.put(".venv/c.py", "y.z(*)")
    assert (
        pack_scene.text("file_search", query="y.z(*)")
        == "a.py:2: y.z(*)\n1 line in 2 files searched"
    )
    matches = pack_scene.data("file_search", query="y.z(*)", ignore_case=True)["matches"]
    assert [(match["path"], match["line"]) for match in matches] == [("a.py", 2), ("docs/b.md", 1)]
    assert pack_scene.data("file_search", query="y.z", path=".venv")["matches"]
    assert pack_scene.data("file_search", query="y.z", path="a.py")["files"] == 1


@pytest.mark.parametrize(
    ("glob", "found"),
    [
        ("*.py", ["a.py", "src/b.py", "src/deep/c.py"]),
        ("src/*.py", ["src/b.py"]),
        ("src/**", ["src/b.py", "src/deep/c.py"]),
        ("**/*.py", ["a.py", "src/b.py", "src/deep/c.py"]),
        ("../*", []),
        ("/etc/*", []),
        ("[ab].py", []),
    ],
)
def test_a_glob_narrows_a_search_and_never_leaves_the_root(
    pack_scene: PackScene, glob: str, found: list[str]
) -> None:
    for path in ("a.py", "src/b.py", "src/deep/c.py", "d.md"):
        pack_scene.put(path, "needle")
    matches = pack_scene.data("file_search", query="needle", glob=glob)["matches"]
    assert [match["path"] for match in matches] == found


def test_a_regular_expression_is_searched_for(pack_scene: PackScene) -> None:
    pack_scene.put("a.py", "def one():\nDef two():\n\tdef three():\n")
    pack_scene.put("é.py", "def four\u2028():\n")
    rows = pack_scene.data("file_search", query=r"^def \w+", regex=True)["matches"]
    assert [(row["path"], row["line"]) for row in rows] == [("a.py", 1), ("é.py", 1)]
    rows = pack_scene.data("file_search", query=r"^def t", regex=True, ignore_case=True)["matches"]
    assert [row["line"] for row in rows] == [2]
    assert pack_scene.code("file_search", query="(", regex=True) == "bad_arguments"


@pytest.mark.slow(reason="computes for 5 s")
def test_a_catastrophic_expression_is_stopped(pack_scene: PackScene) -> None:
    pack_scene.put("a", "a" * 40 + "!\n")
    assert pack_scene.code("file_search", query="^(a+)+$", regex=True) == "too_slow"


@pytest.mark.parametrize("regex", [True, False])
def test_a_search_that_finds_too_much_says_so(pack_scene: PackScene, *, regex: bool) -> None:
    for number in range(10):
        pack_scene.put(f"{number}", ("needle " * 100 + "\n") * 100)
    data = pack_scene.data("file_search", query="needle", regex=regex)
    assert data["truncated"] is True
    assert len(data["matches"]) <= 200
    assert all(len(match["text"]) <= 301 for match in data["matches"])
    assert "[truncated: true" in pack_scene.text("file_search", query="needle", regex=regex)


def test_files_that_are_too_large_or_not_text_are_counted(pack_scene: PackScene) -> None:
    pack_scene.put("big", "needle" + "x" * 6_000_000)
    pack_scene.put("binary", b"needle\0")
    pack_scene.put("text", "needle")
    data = pack_scene.data("file_search", query="needle")
    assert (data["files"], data["skipped"], len(data["matches"])) == (1, 2, 1)
    assert "2 skipped" in pack_scene.text("file_search", query="needle")


def test_a_summary_has_what_one_needs_to_decide_what_to_read(pack_scene: PackScene) -> None:
    pack_scene.put("a", "".join(f"{number}\r\n" for number in range(30)))
    data = pack_scene.data("file_summary", path="a")
    assert (data["lines"], data["language"], data["bytes"]) == (30, "plaintext", 110)
    assert data["head"].count("\n") == 10
    assert len(data["sha256"]) == 64
    assert "lines: 30\n" in pack_scene.text("file_summary", path="a")


DENIED = (
    ".env",
    ".env.local",
    ".ENV",
    "sub/.Env",
    "key.pem",
    "KEY.PEM",
    "id_rsa",
    "id_ed25519",
    ".ssh/config",
    "sub/.ssh/known_hosts",
    ".SSH/x",
    ".aws/credentials",
    ".netrc",
    ".git/config",
    ".GIT/Config",
    "sub/.git/config",
    ".git/modules/x/config",
    "bare.git/config",
    ".git-credentials",
    ".aish/journal",
    "\uff49d_rsa",
    ".env.",
    ".e\u200dnv.production",
    "cafe\u0301.pem",
    ".netrc ",
)


def seen(pack_scene: PackScene, path: str) -> list[dict[str, Any]]:
    """What every tool says of a path."""
    tools = ("file_read", "file_exists", "file_summary", "dir_list", "dir_tree")
    results = [pack_scene.call(tool, path=path) for tool in tools]
    results.append(pack_scene.call("file_find", glob="*", path=path))
    return [*results, pack_scene.call("file_search", query="SECRET", path=path)]


@pytest.mark.requirement("K5")
@pytest.mark.sampled(8)
@pytest.mark.parametrize("path", DENIED)
def test_a_denied_file_looks_like_one_that_is_not_there(pack_scene: PackScene, path: str) -> None:
    absent = seen(pack_scene, path)
    pack_scene.put(path, "SECRET")
    present = seen(pack_scene, path)
    assert present == absent
    for result in (
        pack_scene.call("dir_tree", depth=16, ignored=True),
        pack_scene.call("file_find", glob=Path(path).name, ignored=True),
        pack_scene.call("file_search", query="SECRET"),
        pack_scene.call("file_search", query="SECRE.", regex=True),
        pack_scene.call("dir_list", path=str(Path(path).parent)),
    ):
        assert "SECRET\n" not in result["content"][0]["text"]
        assert f"{Path(path).name}\n" not in result["content"][0]["text"]
        assert not result.get("structuredContent", {}).get("matches")


@pytest.mark.parametrize("path", ["a.key", "sub/A.KEY", "private/x/notes.txt", "Private/yy"])
def test_a_name_that_the_file_denies_is_hidden_and_refused(tmp_path: Path, path: str) -> None:
    options = {"c": COptions(deny_names=("*.key",)), "fs": FilesOptions(("private",))}
    with opened_packs(["fs", "edit", "c"], tmp_path, options=options) as scene:
        scene.put("plain.txt", "SECRET in a key")
        absent = seen(scene, path)
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text("SECRET", "utf-8")
        assert seen(scene, path) == absent
        found = scene.call("file_search", query="SECRET")
        listed = [scene.call("dir_tree", depth=9), scene.call("file_find", glob="**/*"), found]
        for name in ("file_write", "file_delete"):
            more = {"content": "x"} if name == "file_write" else {}
            assert scene.code(name, path=path, **more) == "protected"
        (tmp_path / "link").symlink_to(path)
        refused = "outside" if PORTABLE else "not_found"  # no link is followed there
        assert scene.code("file_read", path="link") == refused
    assert [row["path"] for row in found["structuredContent"]["matches"]] == ["plain.txt"]
    for result in listed:
        assert path.rpartition("/")[2] not in result["content"][0]["text"]
    assert (tmp_path / path).read_text("utf-8") == "SECRET"


@each_case(
    "path",
    [
        "env",
        "a.env",
        "pem",
        "config",
        ".git/HEAD",
        ".gitignore",
        "rsa",
        "src/ssh/x",
        "netrc",
        ".envrc",
        ".environment",
        "sub/.env-example",
    ],
)
def test_files_with_harmless_names_are_not_denied(path: str) -> None:
    assert not is_denied(path.split("/"))
