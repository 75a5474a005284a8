import os
import re
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pack_scenes
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pack_scenes import PackScene, descriptors, opened_packs, sha256
from swap_programs import SWAP_FOLDER, swapped_rounds

from aish.core.json import JsonObject
from aish.packs.parse_worker import ParseWorker
from aish.packs.workspace.deny_list import is_protected
from aish.packs.workspace.file_change import diff_of
from aish.packs.workspace.file_text import decode_text, encode_text

PROTECTED = [
    ".git/config",
    ".git/hooks/pre-commit",
    ".GIT/hooks/pre-commit",
    ".git",
    "sub/.git/HEAD",
    "git~1/hooks/x",
    "bare.git/hooks/x",
    ".aish/runs/x",
    ".aish",
    ".env",
    "a/.env.local",
    "key.pem",
    ".ssh/authorized_keys",
    ".netrc",
]


@pytest.fixture
def pack_scene(tmp_path: Path) -> Iterator[PackScene]:
    root = tmp_path / "root"
    root.mkdir()
    with opened_packs(["fs"], root) as scene:
        yield scene


def test_a_new_file_is_written_and_described(pack_scene: PackScene) -> None:
    data = pack_scene.data("file_write", path="a.txt", content="one\ntwo\n")
    assert pack_scene.get("a.txt") == b"one\ntwo\n"
    assert data == {
        "path": "a.txt",
        "created": True,
        "bytes": 8,
        "sha256": sha256(b"one\ntwo\n"),
        "encoding": "utf-8",
        "diff": "--- a/a.txt\n+++ b/a.txt\n@@ -0,0 +1,2 @@\n+one\n+two\n",
        "truncated": False,
    }
    assert pack_scene.names() == ["a.txt"]


def test_what_is_replaced_keeps_its_mode_and_shows_what_changed(pack_scene: PackScene) -> None:
    script = pack_scene.put("run.sh", "echo one\necho two\n")
    script.chmod(0o754)
    data = pack_scene.data("file_write", path="run.sh", content="echo one\necho 2\n")
    assert stat.S_IMODE(script.stat().st_mode) == 0o754
    assert data["created"] is False
    assert data["diff"].endswith("@@ -1,2 +1,2 @@\n echo one\n-echo two\n+echo 2\n")
    assert pack_scene.text("file_write", path="run.sh", content="echo one\necho 2\n").startswith(
        "unchanged `run.sh`"
    )


def test_new_content_does_not_inherit_the_rights_of_its_owner(pack_scene: PackScene) -> None:
    program = pack_scene.put("tool", "old")
    program.chmod(0o4755)
    pack_scene.data("file_write", path="tool", content="new")
    assert stat.S_IMODE(program.stat().st_mode) == 0o755


@pytest.mark.parametrize(
    ("before", "content", "after"),
    [
        (b"a\r\nb\r\n", "x\ny\n", b"x\r\ny\r\n"),
        (b"a\r\nb\r\n", "x\r\ny\n", b"x\r\ny\r\n"),
        (b"a\nb\n", "x\r\ny\r\n", b"x\ny\n"),
        (b"a\r\nb\n", "x\ny\r\n", b"x\ny\r\n"),
        (b"\xef\xbb\xbfa\r\n", "\u00e9\n", b"\xef\xbb\xbf\xc3\xa9\r\n"),
        ("\ufeffa\n".encode("utf-16-le"), "\u00e9\n", "\ufeff\u00e9\n".encode("utf-16-le")),
        ("\ufeffa\r\n".encode("utf-16-be"), "b\n", "\ufeffb\r\n".encode("utf-16-be")),
        ("\ufeffa\n".encode("utf-32-le"), "b\n", "\ufeffb\n".encode("utf-32-le")),
        (b"caf\xe9\n", "cafe\n", b"cafe\n"),
    ],
)
def test_encoding_mark_and_line_ends_are_kept(
    pack_scene: PackScene, before: bytes, content: str, after: bytes
) -> None:
    pack_scene.put("a", before)
    data = pack_scene.data("file_write", path="a", content=content)
    assert pack_scene.get("a") == after
    assert data["sha256"] == sha256(after)


def test_text_that_does_not_fit_the_files_encoding_is_refused(pack_scene: PackScene) -> None:
    pack_scene.put("old.txt", b"caf\xe9\n")
    assert pack_scene.code("file_write", path="old.txt", content="na\u00efve\n") == "encoding"
    pack_scene.put("image", b"\x89PNG\0\0")
    assert pack_scene.code("file_write", path="image", content="x") == "binary"
    for content in ("\ud800", "a\0b"):
        assert pack_scene.code("file_write", path="new", content=content) == "bad_arguments"
    assert pack_scene.get("old.txt") == b"caf\xe9\n"
    assert pack_scene.names() == ["image", "old.txt"]


@pytest.mark.parametrize("tool", ["file_write", "file_delete", "file_rename"])
def test_a_file_that_is_not_the_expected_one_is_left_alone(
    pack_scene: PackScene, tool: str
) -> None:
    pack_scene.put("a", "mine")
    more = {
        "file_write": {"content": "x"},
        "file_delete": {},
        "file_rename": {"new_path": "b"},
    }[tool]
    error = pack_scene.error(tool, path="a", expect_sha256=sha256(b"other"), **more)
    assert error["code"] == "changed"
    assert error["details"]["sha256"] == sha256(b"mine")
    assert pack_scene.get("a") == b"mine"
    assert pack_scene.code(tool, path="none", expect_sha256=sha256(b""), **more) == "not_found"
    pack_scene.data(tool, path="a", expect_sha256=sha256(b"mine").upper(), **more)
    assert pack_scene.names() != ["a"] or pack_scene.get("a") == b"x"


@pytest.mark.parametrize("path", PROTECTED)
def test_what_is_protected_is_never_written_and_looks_the_same(
    pack_scene: PackScene, path: str
) -> None:
    def attempts() -> list[dict[str, object]]:
        return [
            pack_scene.error("file_write", path=path, content="x"),
            pack_scene.error("file_delete", path=path),
            pack_scene.error("file_rename", path=path, new_path="elsewhere"),
            pack_scene.error("file_rename", path="free", new_path=path, overwrite=True),
            pack_scene.error("dir_create", path=path),
        ]

    pack_scene.put("free", "x")
    missing = attempts()
    pack_scene.put(path if not path.endswith((".git", ".aish")) else f"{path}/HEAD", "secret")
    assert attempts() == missing
    assert {error["code"] for error in missing} == {"protected"}
    assert pack_scene.get("free") == b"x"


@given(st.lists(st.sampled_from([".git", ".GIT ", "\uff0egit", "a", ".aish.", "b"]), min_size=1))
def test_no_spelling_of_our_folders_is_writable(segments: list[str]) -> None:
    assert is_protected(segments) is bool(set(segments) - {"a", "b"})


@pytest.mark.requirement("K19")
def test_no_tool_writes_what_the_run_is_made_of(tmp_path: Path) -> None:
    root = tmp_path.resolve() / "root"
    (root / "sub").mkdir(parents=True)
    (tmp_path / "way").symlink_to("root")
    own = [root / "pipeline.yaml", root / "sub" / "reply.json", root / "new" / "tape.jsonl"]
    own[0].write_text("steps: []\n")
    own[1].write_text("{}\n")
    with opened_packs(["fs", "edit"], tmp_path / "way", own_files=frozenset(own)) as scene:
        (root / "free").write_text("x")
        for path in ("pipeline.yaml", "./Pipeline.YAML", "sub//reply.json", "new/tape.jsonl"):
            attempts: list[tuple[str, JsonObject]] = [
                ("file_write", {"content": "x"}),
                ("file_delete", {}),
                ("file_rename", {"new_path": "elsewhere"}),
                ("file_edit", {"old_text": "s", "new_text": "t"}),
                ("file_set_lines", {"start_line": 1, "end_line": 1, "content": ""}),
                ("dir_create", {}),
            ]
            for tool, more in attempts:
                assert scene.code(tool, path=path, **more) == "protected", (tool, path)
            assert (
                scene.code("file_rename", path="free", new_path=path, overwrite=True) == "protected"
            )
        with opened_packs(["fs"], root / "sub", own_files=frozenset(own)) as inner:
            assert inner.code("file_delete", path="reply.json") == "protected"
        assert scene.text("file_read", path="pipeline.yaml") == "steps: []\n"
        assert sorted(each.name for each in root.iterdir()) == ["free", "pipeline.yaml", "sub"]


def test_nothing_is_written_through_a_link(pack_scene: PackScene) -> None:
    outside = pack_scene.root.parent / "outside"
    outside.mkdir()
    (outside / "a").write_text("theirs")
    pack_scene.put(".git/HEAD", "ref")
    (pack_scene.root / "out").symlink_to(outside)
    (pack_scene.root / "file").symlink_to(outside / "a")
    (pack_scene.root / "new").symlink_to(outside / "new")
    (pack_scene.root / "repo").symlink_to(".git")
    for path in ("out/a", "repo/HEAD", "repo/hooks", "file", "new"):
        expected = "not_a_folder" if "/" in path else "not_a_file"
        assert pack_scene.code("file_write", path=path, content="x") == expected
        assert pack_scene.code("file_delete", path=path) == expected
        assert pack_scene.code("file_rename", path=path, new_path="b") == expected
    pack_scene.put("mine", "x")
    assert (
        pack_scene.code("file_rename", path="mine", new_path="file", overwrite=True) == "not_a_file"
    )
    assert pack_scene.code("file_rename", path="mine", new_path="out/b") == "not_a_folder"
    assert pack_scene.code("dir_create", path="out/folder") == "not_a_folder"
    assert pack_scene.code("dir_create", path="repo") == "not_a_folder"
    assert [each.name for each in outside.iterdir()] == ["a"]
    assert (outside / "a").read_text() == "theirs"
    assert pack_scene.get(".git/HEAD") == b"ref"


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("../x", "outside"),
        ("/tmp/x", "outside"),
        (".", "bad_path"),
        ("", "bad_path"),
        ("a\nb", "bad_path"),
        ("folder", "not_a_file"),
        ("pipe", "not_a_file"),
        ("file/x", "not_a_folder"),
        ("x" * 300, "unwritable"),
        ("d/" * 200 + "x", "bad_path"),
    ],
)
def test_paths_that_cannot_be_written_are_failures(
    pack_scene: PackScene, path: str, code: str
) -> None:
    (pack_scene.root / "folder").mkdir()
    pack_scene.put("file", "")
    os.mkfifo(pack_scene.root / "pipe")
    assert pack_scene.code("file_write", path=path, content="x") == code


def test_missing_folders_are_made_and_go_again_if_nothing_is_written(pack_scene: PackScene) -> None:
    pack_scene.data("file_write", path="a/b/c.txt", content="x")
    assert pack_scene.get("a/b/c.txt") == b"x"
    assert (
        pack_scene.code("file_write", path="n/x", content="", create_folders=False) == "not_found"
    )
    assert pack_scene.code("file_write", path="n/x", content="", expect_sha256="0") == "not_found"
    for path in ("a/n/m/" + "x" * 300, "a/n/m/big"):
        content = "x" * (8 * 1024 * 1024 + 1) if path.endswith("big") else "x"
        assert pack_scene.code("file_write", path=path, content=content) in {
            "unwritable",
            "too_large",
        }
    (pack_scene.root / "way").symlink_to("a")
    assert pack_scene.code("file_write", path="way/n/x", content="") == "not_a_folder"
    assert (pack_scene.names(), pack_scene.names("a")) == (["a", "way"], ["b"])


COOKIE = "# -*- coding: latin-1 -*-\nname = 'caf\u00e9'\n"


def test_the_coding_cookie_of_python_code_is_its_encoding(pack_scene: PackScene) -> None:
    pack_scene.put("a.py", COOKIE.encode("latin-1"))
    data = pack_scene.data("file_read", path="a.py")
    assert (data["content"], data["encoding"]) == (COOKIE, "iso8859-1")
    pack_scene.data("file_write", path="a.py", content=COOKIE.replace("caf", "\u00e0 caf"))
    assert pack_scene.get("a.py") == COOKIE.replace("caf", "\u00e0 caf").encode("latin-1")
    assert pack_scene.code("file_write", path="a.py", content=COOKIE + "\u20ac") == "encoding"
    matches = pack_scene.data("file_search", query="\u00e0 caf\u00e9")["matches"]
    assert [match["line"] for match in matches] == [2]


@pytest.mark.parametrize(
    "content",
    [
        COOKIE.replace("latin-1", "unicode_escape").encode("latin-1"),
        COOKIE.replace("latin-1", "no-such-codec").encode("latin-1"),
        COOKIE.replace("latin-1", "zlib").encode("latin-1"),
        b"x = 1\n# coding: latin-1\ncaf\xe9\n",
    ],
)
def test_a_cookie_that_names_no_character_set_is_not_followed(
    pack_scene: PackScene, content: bytes
) -> None:
    pack_scene.put("a.py", content)
    data = pack_scene.data("file_read", path="a.py")
    assert data["encoding"] == "utf-8 with bytes that are not text"
    assert pack_scene.code("file_write", path="a.py", content="\u00e9") == "encoding"


def test_a_hard_link_elsewhere_keeps_its_content(pack_scene: PackScene) -> None:
    pack_scene.put("a", "old")
    elsewhere = pack_scene.root.parent / "elsewhere"
    elsewhere.hardlink_to(pack_scene.root / "a")
    pack_scene.data("file_write", path="a", content="new")
    assert elsewhere.read_text() == "old"


def test_a_file_marked_as_read_only_is_not_replaced(pack_scene: PackScene) -> None:
    pack_scene.put("a", "old").chmod(0o444)
    assert pack_scene.code("file_write", path="a", content="new") == "unwritable"
    assert pack_scene.get("a") == b"old"


@pytest.mark.slow(reason="writes large files")
def test_content_and_files_that_are_too_large_are_refused(pack_scene: PackScene) -> None:
    assert (
        pack_scene.code("file_write", path="a", content="x" * (8 * 1024 * 1024 + 1)) == "too_large"
    )
    pack_scene.put("huge", "")
    os.truncate(pack_scene.root / "huge", 1 << 40)
    assert pack_scene.code("file_write", path="huge", content="x") == "too_large"
    assert pack_scene.names() == ["huge"]
    data = pack_scene.data("file_write", path="b", content="a line\n" * 1_000_000)
    assert (data["truncated"], data["bytes"]) == (True, 7_000_000)
    assert "[truncated: true" in pack_scene.text(
        "file_write", path="b", content="b line\n" * 1_000_000
    )


CHILD = """
import os, resource, sys
from pathlib import Path
from pack_scenes import opened_packs
mode, root = sys.argv[1:]
with opened_packs(["fs"], Path(root)) as scene:
    os.chdir(root)
    # What is imported late is imported here, before the rights to read it are gone.
    scene.call("file_exists", path="a")
    if mode == "full":
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
    else:
        os.chmod(".", 0o555)
        if os.getuid() == 0:
            os.setresuid(65534, 65534, 65534)
    for path in ("a", "new"):
        result = scene.call("file_write", path=path, content="x" * 5000)
        print(result["content"][0]["text"])
"""


@pytest.mark.requirement("K6")
def test_a_whole_new_content_may_be_code_that_does_not_parse(pack_scene: PackScene) -> None:
    pack_scene.put("a.py", "x = 1\n")
    pack_scene.text("file_write", path="a.py", content="x = (\n")
    assert pack_scene.get("a.py") == b"x = (\n"


@pytest.mark.parametrize(
    ("mode", "why"), [("full", "file too large"), ("shut", "permission denied")]
)
def test_a_write_that_fails_leaves_everything_as_it_was(
    pack_scene: PackScene, mode: str, why: str
) -> None:
    pack_scene.put("a", "old").chmod(0o666)
    command = [sys.executable, "-c", CHILD, mode, str(pack_scene.root)]
    environ = {**os.environ, "PYTHONPATH": str(Path(pack_scenes.__file__).parent)}
    done = subprocess.run(
        command, env=environ, capture_output=True, text=True, check=False, timeout=60
    )
    pack_scene.root.chmod(0o755)
    assert done.stdout.splitlines() == [
        f"ERROR: `a` cannot be written: {why}",
        f"ERROR: `new` cannot be written: {why}",
    ], done.stderr
    assert pack_scene.names() == ["a"]
    assert pack_scene.get("a") == b"old"


# By six: three tools, and two kinds of races.
ROUNDS = 2_000 if os.environ.get("AISH_TEST_ALL") == "1" else 700

SWAP_FILE = """
import os
print("swapping", flush=True)
while True:
    os.symlink("../../outside/a", "docs/swap")
    os.rename("docs/swap", "docs/a")
    with open("docs/swap", "wb") as new:
        new.write(b"inside")
    os.rename("docs/swap", "docs/a")
"""


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(SWAP_FOLDER, id="folder"),
        pytest.param(SWAP_FILE, id="file", marks=pytest.mark.slow(reason="swaps for a second")),
    ],
)
def test_what_is_swapped_while_it_is_written_never_lets_a_write_out(
    pack_scene: PackScene, program: str
) -> None:
    outside = pack_scene.root.parent / "outside"
    outside.mkdir()
    (outside / "a").write_bytes(b"theirs")
    pack_scene.put("docs/a", "inside")
    (pack_scene.root / "link").symlink_to("../outside")
    command = [sys.executable, "-I", "-S", "-c", program]

    ways: tuple[tuple[str, JsonObject], ...] = (
        ("file_write", {"content": "mine"}),
        ("file_rename", {"new_path": "docs/b", "overwrite": True}),
        ("file_delete", {}),
    )

    async def attempts() -> set[str]:
        seen: set[str] = set()
        for _ in swapped_rounds(ROUNDS, lambda: seen & {"ok", "changed"}):
            for tool, more in ways:
                result = await pack_scene.pack.call(tool, {"path": "docs/a", **more})
                data = result["structuredContent"]
                assert isinstance(data, dict)
                error = data.get("error")
                seen.add(str(error["code"]) if isinstance(error, dict) else "ok")
        return seen

    with subprocess.Popen(command, cwd=pack_scene.root, stdout=subprocess.PIPE) as swapping:
        try:
            assert swapping.stdout is not None
            swapping.stdout.readline()
            seen = pack_scene.portal.call(attempts)
        finally:
            swapping.kill()
    # Either is a file that was got at; which one, is a matter of luck.
    assert seen & {"ok", "changed"}
    assert seen <= {"ok", "changed", "not_found", "not_a_folder", "not_a_file"}
    assert [each.name for each in outside.iterdir()] == ["a"]
    assert (outside / "a").read_bytes() == b"theirs"


class ReplacingWorker(ParseWorker):
    """Parses a file after somebody has put another folder in the place of its folder."""

    def __init__(self, root: Path) -> None:
        super().__init__(None)
        self._root = root

    async def run(self, call: str, *sources: bytes, **options: Any) -> Any:
        if not (self._root / "old").exists():
            (self._root / "docs").rename(self._root / "old")
            (self._root / "docs").mkdir()
            (self._root / "docs" / "a.py").write_bytes(b"x = 1\n")
        return await super().run(call, *sources, **options)


def test_a_folder_that_is_replaced_while_its_file_is_edited_is_a_change(tmp_path: Path) -> None:
    with opened_packs(["edit"], tmp_path, worker=ReplacingWorker(tmp_path)) as scene:
        scene.put("docs/a.py", "x = 1\n")
        edit = {"path": "docs/a.py", "old_text": "x = 1", "new_text": "x = 2"}
        error = scene.error("file_edit", **edit)

        assert error["code"] == "changed"
        assert "the folder of `docs/a.py` was replaced" in error["message"]
        assert scene.get("docs/a.py") == scene.get("old/a.py") == b"x = 1\n"
        assert sorted(scene.names()) == ["docs", "old"]


def test_a_file_is_renamed_and_replaces_only_when_told_to(pack_scene: PackScene) -> None:
    pack_scene.put("a", "first")
    pack_scene.put("b", "second")
    assert pack_scene.code("file_rename", path="a", new_path="b") == "exists"
    assert (pack_scene.get("a"), pack_scene.get("b")) == (b"first", b"second")
    pack_scene.text("file_rename", path="a", new_path="b", overwrite=True)
    assert (pack_scene.names(), pack_scene.get("b")) == (["b"], b"first")
    (pack_scene.root / "folder").mkdir()
    assert (
        pack_scene.code("file_rename", path="b", new_path="folder", overwrite=True) == "not_a_file"
    )
    assert pack_scene.code("file_rename", path="folder", new_path="c") == "not_a_file"
    assert pack_scene.code("file_rename", path="b", new_path="none/b") == "not_found"
    assert pack_scene.code("file_rename", path="none", new_path="c") == "not_found"
    assert pack_scene.data("file_rename", path="b", new_path="folder/b") == {
        "path": "folder/b",
        "old_path": "b",
    }
    assert pack_scene.get("folder/b") == b"first"


def test_a_file_is_deleted_and_a_folder_if_it_is_empty(pack_scene: PackScene) -> None:
    pack_scene.put("folder/a", "x")
    (pack_scene.root / "link").symlink_to("folder")
    assert pack_scene.code("file_delete", path="folder") == "not_empty"
    assert pack_scene.code("file_delete", path="link") == "not_a_file"
    pack_scene.text("file_delete", path="folder/a")
    assert pack_scene.code("file_delete", path="folder/a") == "not_found"
    assert pack_scene.code("file_delete", path="folder", expect_sha256="0" * 64) == "not_a_file"
    pack_scene.text("file_delete", path="folder")
    assert pack_scene.names() == ["link"]


def test_folders_are_made_with_those_above_them(pack_scene: PackScene) -> None:
    pack_scene.put("file", "")
    (pack_scene.root / "a").mkdir()
    assert pack_scene.data("dir_create", path="a/b/c")["created"] == ["a/b", "a/b/c"]
    assert pack_scene.data("dir_create", path="a/b/c")["created"] == []
    assert pack_scene.code("dir_create", path="file") == "not_a_folder"
    assert pack_scene.code("dir_create", path="file/x") == "not_a_folder"
    assert pack_scene.code("dir_create", path="a/.git/hooks") == "protected"
    assert pack_scene.names("a") == ["b"]


def test_no_descriptor_is_left_open_by_writes(pack_scene: PackScene) -> None:
    pack_scene.put("a", "x")
    pack_scene.text("file_write", path="a", content="y")
    before = descriptors()
    for path in ("a", "none/a", "a/b", ".git/x", "folder/b"):
        pack_scene.call("file_write", path=path, content="x")
        pack_scene.call("file_rename", path=path, new_path="a/c")
        pack_scene.call("dir_create", path=path)
    assert descriptors() <= before


@given(st.binary(max_size=60))
def test_what_was_not_changed_becomes_the_same_bytes_again(data: bytes) -> None:
    if b"\0" not in data and not data.startswith((b"\xff\xfe", b"\xfe\xff")):
        assert encode_text(*decode_text(data, "a")) == data


@given(st.text("ab\n", max_size=40), st.text("ab\n", max_size=40))
# Changes that are far from each other are two parts of the difference.
@example("a" + "\n" * 12 + "a", "b" + "\n" * 12 + "b")
def test_a_difference_leads_from_one_text_to_the_other(before: str, after: str) -> None:
    if before == after:
        return
    diff = diff_of(before, after, "a").text
    for part in re.split(r"^(?=@@)", diff, flags=re.MULTILINE)[1:]:
        rows = part.splitlines(keepends=True)[1:]
        for text, sign in ((before, "-"), (after, "+")):
            kept = [row for row in rows if row[0] in {" ", sign, "\\"}]
            shown = [row[1:] for row in kept if not row.startswith("\\")]
            assert "".join(shown).rstrip("\n") in text + "\n"


@given(
    st.lists(st.sampled_from(["a", "b", "c", ""]), max_size=30),
    st.lists(st.tuples(st.integers(0, 30), st.sampled_from(["x", "a", "\n", ""])), max_size=3),
)
def test_a_difference_makes_one_text_of_the_other(
    lines: list[str], edits: list[tuple[int, str]]
) -> None:
    """Also where the texts begin and end alike, which is skipped before lines are compared."""
    before = after = "\n".join(lines)
    for place, text in edits:
        after = after[:place] + text + after[place + 1 :]
    diff = diff_of(before, after, "a").text
    assert patched(before, diff) == after
    assert bool(diff) is (before != after)


_RANGES = re.compile(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")


def patched(before: str, diff: str) -> str:
    """A text after a unified diff, all of whose numbers and lines have to be right."""
    old = marked_lines(before)
    new: list[str] = []
    done = 0
    for part in re.split(r"^(?=@@)", diff, flags=re.MULTILINE)[1:]:
        head, *rows = re.sub(r"\n(?=\\)", "", part).splitlines()
        found = _RANGES.fullmatch(head)
        assert found
        first, count = _range(found[1], found[2])
        new += old[done:first]
        new_first, new_count = _range(found[3], found[4])
        assert len(new) == new_first
        done = first + count
        assert [row[1:] for row in rows if row[0] in " -"] == old[first:done]
        new += [row[1:] for row in rows if row[0] in " +"]
        assert len(new) == new_first + new_count
        marks = "".join(row[0] for row in rows)
        assert len(marks) - min(len(marks.lstrip()), len(marks.rstrip())) <= 3
    new += old[done:]
    return "".join(f"{line}\n" for line in new).replace(NO_END, "")


def _range(first: str, count: str | None) -> tuple[int, int]:
    """How many lines are before a range, and in it: an empty one is named by the line before it."""
    size = int(count or 1)
    return int(first) - (size > 0), size


NO_END = "\\ No newline at end of file\n"


def marked_lines(text: str) -> list[str]:
    """The lines of a text; a last one without an end has a mark, as in a diff."""
    *lines, last = text.split("\n")
    return [*lines, f"{last}{NO_END[:-1]}"] if last else lines


def test_a_difference_of_many_lines_is_found_in_bounded_time() -> None:
    before = "".join(f"{number % 7}\n" for number in range(200_000))
    after = "".join(f"{number % 5}\n" for number in range(200_000))
    diff = diff_of(before, after, "a")
    assert diff.truncated
    assert len(diff.text) <= 20_000


def test_no_folder_takes_the_place_of_a_file_of_the_run(tmp_path: Path) -> None:
    own = frozenset({tmp_path.resolve() / "p.lock"})
    with opened_packs(["fs"], tmp_path, own_files=own) as box:
        assert box.code("dir_create", path="p.lock/x") == "protected"
        assert box.code("file_write", path="p.lock/x/y", content="") == "protected"
        box.text("dir_create", path="p.lock.d/x")
    assert [each.name for each in tmp_path.iterdir()] == ["p.lock.d"]
