"""The tools of the pack `py`, called as a run calls them (K28-K35, K38)."""

import fcntl
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from jsonschema import Draft202012Validator
from pack_scenes import PackScene, opened_packs, sha256, started_packs
from samples import sampled

from aish.core.json import JsonObject
from aish.core.tools import RESULT_LIMIT

CODE = '''"""About it."""
import os.path as p, sys
from ..a import (b as c, d)
from . import *
LIMIT = 1; OTHER: int = 2


@deco(
    1)
class Box(p.Base, metaclass=M):
    """A box.

        Indented.
    """

    size, kind = 1, "a"  # both

    @property
    async def width(self) -> int: return self.size  # in cm

    @width.setter
    def width(
        self,
        value,  # new
    ):
        def inner():
            import late
        self.size = value


def main():
    "Runs it."
    return Box()
'''
BROKEN = "class A:\n    def f(self):\n        return (\n\n    def g(self): pass\n\n\ndef h(: pass\n"
READERS: dict[str, dict[str, Any]] = {
    "py_get_skeleton": {},
    "py_get_code_outline": {},
    "py_get_definition": {"name": "f"},
    "py_get_signature": {"name": "f"},
    "py_get_docstring": {"name": "f"},
    "py_get_class_summary": {"name": "A"},
    "py_get_var_declaration": {"name": "x"},
    "py_get_imports": {},
    "py_check_syntax": {},
}
EDITS: dict[str, dict[str, Any]] = {
    "py_update_definition": {"name": "f", "content": "def f(): return 1"},
    "py_set_signature": {"name": "f", "signature": "def f(a)"},
    "py_set_var_declaration": {"name": "x", "declaration": "x = 2"},
    "py_add_def": {"name": "new", "content": "def new(): pass"},
    "py_remove_def": {"name": "f"},
    "py_move_def": {"name": "f", "new_path": "b.py"},
    "py_region_wrap": {"start_line": 1, "end_line": 1, "region_name": "r"},
}
SMALL = "def f(): pass\nclass A: pass\nx = 1\n"


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[PackScene]:
    root = tmp_path / "root"
    root.mkdir()
    with opened_packs(["py"], root) as opened:
        yield opened


def data_of(scene: PackScene, name: str, /, **arguments: Any) -> dict[str, Any]:
    """The structured result, which has to be as the tool declares it."""
    data = scene.data(name, **arguments)
    Draft202012Validator(dict(scene.pack.tools[name].output_schema)).validate(data)
    known = scene.pack.tools[name].output_schema["properties"]
    assert isinstance(known, dict)
    assert set(data) <= {*known, "truncated"}
    return data


def test_an_outline_has_kinds_dotted_names_and_lines(scene: PackScene) -> None:
    scene.put("a.py", CODE)
    data = data_of(scene, "py_get_code_outline", path="a.py")
    keys = ("kind", "name", "start_line", "def_line", "end_line", "depth")
    assert [tuple(row[key] for key in keys) for row in data["items"]] == [
        ("class", "Box", 8, 10, 28, 0),
        ("property", "Box.width", 18, 19, 19, 1),
        ("setter", "Box.width", 21, 22, 28, 1),
        ("function", "Box.width.inner", 26, 26, 27, 2),
        ("function", "main", 31, 31, 33, 0),
    ]
    assert data["broken"] == []
    text = scene.text("py_get_code_outline", path="a.py")
    assert text.startswith("class Box  8-28\n  property Box.width  18-19\n")


def test_a_skeleton_leaves_bodies_out(scene: PackScene) -> None:
    scene.put("a.py", CODE)
    skeleton = data_of(scene, "py_get_skeleton", path="a.py")["skeleton"]
    assert skeleton == (
        CODE.replace("return self.size  # in cm", "...  # in cm")
        .replace(
            "        def inner():\n            import late\n        self.size = value",
            "        ...",
        )
        .replace("    return Box()", "    ...")
    )


def test_definitions_and_signatures_of_one_name_are_all_returned(scene: PackScene) -> None:
    scene.put("a.py", CODE)
    data = data_of(scene, "py_get_definition", path="a.py", name="Box.width")
    lines = CODE.split("\n")
    assert data["definitions"] == [
        {"source": "\n".join(lines[17:19]), "start_line": 18, "end_line": 19},
        {"source": "\n".join(lines[20:28]), "start_line": 21, "end_line": 28},
    ]
    text = scene.text("py_get_definition", path="a.py", name="Box.width", line=24)
    assert text == "\n".join(lines[20:28])
    data = data_of(scene, "py_get_signature", path="a.py", name="Box.width")
    assert data["signatures"] == [
        {"signature": "async def width(self) -> int", "start_line": 19},
        {
            "signature": "def width(\n        self,\n        value,  # new\n    )",
            "start_line": 22,
        },
    ]
    assert scene.code("py_get_signature", path="a.py", name="width") == "no_match"
    assert scene.code("py_get_docstring", path="a.py", name="Box.width") == "ambiguous"


def test_docstrings_summaries_declarations_and_imports(scene: PackScene) -> None:
    scene.put("a.py", CODE)
    data = data_of(scene, "py_get_docstring", path="a.py")
    assert (data["docstring"], data["start_line"], data["end_line"]) == ("About it.", 1, 1)
    data = data_of(scene, "py_get_docstring", path="a.py", name="Box")
    assert (data["docstring"], data["end_line"]) == ("A box.\n\nIndented.", 14)
    data = data_of(scene, "py_get_docstring", path="a.py", name="Box.width", line=19)
    assert data["docstring"] is None
    data = data_of(scene, "py_get_class_summary", path="a.py", name="Box")
    assert (data["name"], data["bases"]) == ("Box", ["p.Base", "metaclass=M"])
    assert [row["name"] for row in data["methods"]] == ["width", "width"]
    assert data["attributes"] == [
        {"name": name, "source": 'size, kind = 1, "a"', "start_line": 16}
        for name in ("size", "kind")
    ]
    data = data_of(scene, "py_get_var_declaration", path="a.py", name="OTHER")
    assert data["declarations"] == [{"source": "OTHER: int = 2", "start_line": 5, "end_line": 5}]
    data = data_of(scene, "py_get_imports", path="a.py")
    assert data["modules"] == ["os.path", "sys", "..a", ".", "late"]
    keys = ("kind", "module", "name", "alias", "level", "line")
    assert [tuple(row[key] for key in keys) for row in data["items"]] == [
        ("import", "os.path", None, "p", 0, 2),
        ("import", "sys", None, None, 0, 2),
        ("from", "a", "b", "c", 2, 3),
        ("from", "a", "d", None, 2, 3),
        ("from", "", "*", None, 1, 4),
        ("import", "late", None, None, 0, 27),
    ]


def test_broken_and_newer_code_is_read(scene: PackScene) -> None:
    scene.put("a.py", BROKEN)
    data = data_of(scene, "py_get_code_outline", path="a.py")
    assert [row["name"] for row in data["items"]] == ["A", "A.f", "A.g", "h"]
    assert data["broken"]
    assert "[does not parse at line" in scene.text("py_get_code_outline", path="a.py")
    assert data_of(scene, "py_get_skeleton", path="a.py")["broken"]
    data = data_of(scene, "py_get_definition", path="a.py", name="A.g")
    assert data["definitions"][0]["source"] == "    def g(self): pass"
    scene.put("newer.py", "type X[T] = list[T]\ndef f[T](a: T) -> X: ...\n")
    data = data_of(scene, "py_get_signature", path="newer.py", name="f")
    assert data["signatures"][0]["signature"] == "def f[T](a: T) -> X"


@pytest.mark.requirement("K38")
@pytest.mark.parametrize(
    ("code", "line", "column", "message"),
    [
        ("x = (1\n", 1, 5, "never closed"),
        ("if a:\npass\n", 2, 1, "indented block"),
        ("return 1\n", 1, 1, "outside function"),
        ("x = 1\n\0\n", 2, 1, "null byte"),
        ("# coding: nonsense\n", 1, 1, "encoding"),
        ("x = " + "-" * 200_000 + "1\n", 1, 1, "nested"),
    ],
)
def test_a_syntax_check_says_where_and_by_which_grammar(
    scene: PackScene, code: str, line: int, column: int, message: str
) -> None:
    scene.put("a.py", code)
    data = data_of(scene, "py_check_syntax", path="a.py")
    assert data["grammar"] == f"Python {sys.version_info.major}.{sys.version_info.minor}"
    assert data["ok"] is False
    (error,) = data["errors"]
    assert (error["line"], error["column"]) == (line, column)
    assert message in error["message"]
    scene.put("a.py", 'x = "\\d"\n')
    assert data_of(scene, "py_check_syntax", path="a.py")["errors"] == []


def test_every_edit_writes_the_file_and_tells_the_change(scene: PackScene) -> None:
    expected = {
        "py_update_definition": SMALL.replace("f(): pass", "f(): return 1"),
        "py_set_signature": SMALL.replace("f()", "f(a)"),
        "py_set_var_declaration": SMALL.replace("x = 1", "x = 2"),
        "py_add_def": f"{SMALL}def new(): pass\n",
        "py_remove_def": "class A: pass\nx = 1\n",
        "py_region_wrap": f"# region r\n{SMALL}".replace(
            "f(): pass\n", "f(): pass\n# endregion r\n"
        ),
    }
    for name, options in EDITS.items():
        if name == "py_move_def":
            continue
        scene.put("a.py", SMALL)
        digest = sha256(SMALL.encode())
        data = data_of(scene, name, path="a.py", expect_sha256=digest, **options)
        assert scene.get("a.py").decode() == expected[name]
        assert data["sha256"] == sha256(scene.get("a.py"))
        assert (data["created"], data["encoding"], data["truncated"]) == (False, "utf-8", False)
        assert data["diff"].startswith("--- a/a.py\n+++ b/a.py\n@@ ")
        assert scene.code(name, path="a.py", expect_sha256=digest, **options) in {
            "changed",
            "no_match",
        }


def test_a_move_changes_both_files(scene: PackScene) -> None:
    scene.put("a.py", "import os\n\n\ndef f(): return os, g\n")
    scene.put("b.py", "x = 1\n")
    data = data_of(scene, "py_move_def", path="a.py", new_path="./b.py", name="f", new_name="h")
    assert scene.get("a.py") == b"import os\n"
    assert scene.get("b.py") == b"x = 1\n\n\ndef h(): return os, g\n"
    assert data["unbound"] == ["g", "os"]
    assert data["sha256"] == {
        "a.py": sha256(scene.get("a.py")),
        "./b.py": sha256(scene.get("b.py")),
    }
    assert "+def h(): return os, g\n" in data["diffs"]["./b.py"]
    text = scene.text("py_move_def", path="b.py", new_path="b.py", name="h", anchor_type="top")
    assert text.startswith("moved `h` from `b.py` to `b.py`\n--- a/b.py\n")
    assert scene.get("b.py") == b"def h(): return os, g\n\n\nx = 1\n"
    assert scene.code("py_move_def", path="b.py", new_path="c.py", name="h") == "not_found"


def test_a_move_whose_second_write_fails_takes_the_first_one_back(scene: PackScene) -> None:
    code, target = "def f(): pass\n", "x = 1\n"
    scene.put("from/a.py", code)
    scene.put("to/b.py", target).chmod(0o640)
    # Another program has the folder of the first file: that one is written last.
    descriptor = os.open(scene.root / "from", os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        error = scene.error("py_move_def", path="from/a.py", new_path="to/b.py", name="f")
    finally:
        os.close(descriptor)
    assert error["code"] in {"changed", "unwritable"}
    assert (scene.get("from/a.py").decode(), scene.get("to/b.py").decode()) == (code, target)
    assert (scene.root / "to/b.py").stat().st_mode & 0o777 == 0o640
    assert (scene.names("from"), scene.names("to")) == (["a.py"], ["b.py"])
    scene.text("py_move_def", path="from/a.py", new_path="to/b.py", name="f")


def test_no_edit_of_eight_at_once_is_lost(tmp_path: Path) -> None:
    names = [f"f{number}" for number in range(8)]
    (tmp_path / "a.py").write_text("".join(f"def {name}(): pass\n" for name in names))
    failed: list[Any] = []

    async def edit(pack: Any, name: str) -> None:
        arguments: JsonObject = {"path": "a.py", "name": name, "signature": f"def {name}(a)"}
        result = await pack.call("py_set_signature", arguments)
        failed.extend([result] if result["isError"] else [])

    async def edits() -> None:
        async with started_packs(["py"], tmp_path) as pack, anyio.create_task_group() as tasks:
            for name in names:
                tasks.start_soon(edit, pack, name)

    anyio.run(edits)
    assert failed == []
    assert (tmp_path / "a.py").read_text() == "".join(f"def {name}(a): pass\n" for name in names)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", [*READERS, *EDITS])
def test_each_failure_has_its_code(scene: PackScene, name: str) -> None:
    options = {**READERS, **EDITS}[name]
    scene.put("b.py", "y = 1\n")
    scene.put("folder/a.py", SMALL)
    os.mkfifo(scene.root / "pipe.py")
    (scene.root / "link.py").symlink_to("/etc/passwd")

    def code(path: str) -> str:
        return scene.code(name, path=path, **options)

    assert code("a\nb.py") == "bad_path"
    assert code("../a.py") == "outside"
    assert code("nothing.py") == "not_found"
    assert code("folder") == "not_a_file"
    assert code("pipe.py") == "not_a_file"
    assert code("link.py") in {"outside", "not_a_file"}
    assert code("b.py/a.py") in {"not_a_folder", "not_found"}
    with (scene.root / "large.py").open("wb") as sparse:
        sparse.truncate(10_000_000_000)
    assert code("large.py") == "too_large"
    scene.put("middle.py", "x = 1\n" * 400_000)
    assert code("middle.py") == "too_large"
    if name == "py_check_syntax":
        return
    writes = name in EDITS
    scene.put("nul.py", SMALL + "\0")
    assert code("nul.py") == ("binary" if writes else "unsupported")
    scene.put("cookie.py", "# coding: nonsense\n")
    assert code("cookie.py") == ("encoding" if writes else "unsupported")
    if "name" in options and name not in {"py_add_def", "py_get_docstring"}:
        scene.put("empty.py", "")
        assert code("empty.py") == "no_match"
        assert scene.code(name, path="b.py", **{**options, "name": " "}) == "bad_arguments"
    if writes:
        scene.put("broken.py", "def f(:\n")
        assert code("broken.py") == "syntax"
        assert code(".git/a.py") == "protected"
        scene.put("read-only.py", SMALL).chmod(0o444)
        assert code("read-only.py") == "unwritable"


def test_older_names_of_parameters_are_declared(scene: PackScene) -> None:
    older = {
        name: dict(tool.older_parameters)
        for name, tool in scene.pack.tools.items()
        if tool.older_parameters
    }
    assert older | {"py_get_hierarchy": {}} == {
        "py_get_hierarchy": {},
        "py_update_definition": {"new_content": "content"},
        "py_set_signature": {"new_signature": "signature"},
        "py_set_var_declaration": {"new_declaration": "declaration"},
        "py_add_def": {"new_content": "content"},
        "py_move_def": {"src_path": "path", "dest_path": "new_path", "dest_name": "new_name"},
    }


@pytest.mark.slow(reason="makes long results with each tool")
def test_long_results_are_cut_and_say_how_to_go_on(scene: PackScene) -> None:
    code = "".join(f"def function_{number}(a): return {number}\n" for number in range(5_000))
    scene.put("a.py", code + "class A:\n" + "    x = 'é'\n" * 20_000)
    data = data_of(scene, "py_get_code_outline", path="a.py")
    assert data["truncated"] is True
    assert len(data["items"]) < 5_000
    line = len(data["items"]) + 1
    assert f"from line {line} on" in scene.text("py_get_code_outline", path="a.py")
    data = data_of(scene, "py_get_skeleton", path="a.py")
    assert data["truncated"] is True
    assert data["skeleton"].endswith(": ...\n")
    assert "py_get_code_outline" in scene.text("py_get_skeleton", path="a.py")
    text = scene.text("py_get_definition", path="a.py", name="A")
    assert "start_line=5001" in text
    scene.put("b.py", "def f():\n    'é'\n\n\n@a\ndef f():\n" + "    pass\n" * 20_000)
    text = scene.text("py_get_definition", path="b.py", name="f")
    assert text.startswith("# lines 1-2\ndef f():\n    'é'\n\n# lines 5-20006\n@a\ndef f():\n")
    assert text.endswith("\n[truncated: true; file_read shows all of it, with start_line=1]")
    pieces = data_of(scene, "py_get_definition", path="b.py", name="f")["definitions"]
    assert sum(len(piece["source"]) for piece in pieces) <= 50_000
    token = RESULT_LIMIT.set(2_000)
    try:
        assert len(scene.text("py_get_code_outline", path="a.py")) <= 2_000
    finally:
        RESULT_LIMIT.reset(token)


@pytest.mark.parametrize(
    "deep",
    sampled(
        [
            piece
            for size in (50_000, 200_000)
            for piece in (
                "-" * size + "1",
                "(" * size + ")" * size,
                "+".join("1" * size),
                "f" + "(1)" * size,
            )
        ],
        often={0, 3},
        reason="deeper, as the cases before",
    ),
    ids=[f"{kind}-{size}k" for size in (50, 200) for kind in ("signs", "pairs", "sum", "calls")],
)
def test_deep_code_ends_in_a_result_or_an_error(scene: PackScene, deep: str) -> None:
    scene.put("b.py", "")
    some = [(name, {**READERS, **EDITS}[name]) for name in ("py_get_skeleton", "py_move_def")]
    for name, options in {**READERS, **EDITS}.items() if deep.startswith("-") else some:
        scene.put("a.py", f"{SMALL}y = {deep}\n")
        result = scene.call(name, path="a.py", **options)
        error = result["structuredContent"].get("error", {})
        assert error.get("code", "") in {"", "syntax", "too_slow"}
    # The worker lives, or another one does.
    scene.put("a.py", SMALL)
    assert scene.data("py_get_code_outline", path="a.py")["items"]


def test_nothing_of_the_folder_runs(scene: PackScene) -> None:
    trap = f"open({str(scene.root / 'ran')!r}, 'w')\n"
    for name in ("ast", "re", "aish/__init__", "tree_sitter", "tree_sitter_python", "tokenize"):
        scene.put(f"{name}.py", trap)
    for name in ("conftest", "sitecustomize", "usercustomize", "symtable", "encodings/evil"):
        scene.put(f"{name}.py", trap)
    scene.put("evil.py", trap)
    scene.put("evil.pth", "import evil\n")
    scene.put(".ropeproject/config.py", trap)
    scene.put("b.py", "")
    for head in ("", "# coding: evil\n", "# coding: encodings.evil\n"):
        for name, options in {**READERS, **EDITS}.items():
            scene.put("a.py", f"{head}import evil\n{trap}{SMALL}")
            scene.call(name, path="a.py", **options)
    assert not (scene.root / "ran").exists()


@pytest.mark.parametrize(
    "data",
    [
        "def f():\r\n    return 'é'\r\n".encode(),
        "# coding: latin-1\ndef f():\n    return 'é'\n".encode("latin-1"),
        "def f():\n    return 'é'\n".encode("utf-16"),
        "\ufeffdef f():\n    return '\u2028'\n".encode(),
        b"def f():\n    return '\x0c'\n\x0c\n",
        b"x = 1\rdef f():\r    return 2\r",
    ],
)
def test_reading_and_writing_back_changes_no_byte(scene: PackScene, data: bytes) -> None:
    scene.put("a.py", data)
    row = data_of(scene, "py_get_definition", path="a.py", name="f")["definitions"][0]
    changed = data_of(scene, "py_update_definition", path="a.py", name="f", content=row["source"])
    assert (scene.get("a.py"), changed["diff"]) == (data, "")
    changed = data_of(scene, "py_set_signature", path="a.py", name="f", signature="def f(a)")
    assert scene.get("a.py") == data.replace(b"f()", b"f(a)").replace(
        "f()".encode("utf-16-le"), "f(a)".encode("utf-16-le")
    )
    assert changed["diff"]


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("py_check_syntax", {}),
        ("py_get_code_outline", {}),
        ("py_find_usages", {"name": "main"}),
        ("py_find_usages", {"name": "main", "mode": "text"}),
        ("py_get_hierarchy", {"name": "A"}),
        ("py_add_def", {"name": "f", "content": "def f(): pass"}),
        ("py_region_wrap", {"start_line": 1, "end_line": 1, "region_name": "x"}),
        ("py_move_def", {"new_path": "b.py", "name": "main"}),
    ],
)
def test_what_is_no_python_file_is_refused(
    tmp_path: Path, tool: str, arguments: dict[str, Any]
) -> None:
    with opened_packs(["py"], tmp_path) as scene:
        scene.put("a.c", "x = 1\n")
        scene.put("b.py", "")
        error = scene.error(tool, path="a.c", **arguments)
        assert error["code"] == "unsupported"
        assert "`a.c` is not a Python file" in error["message"]
        assert scene.get("a.c") == b"x = 1\n"


def test_a_file_is_python_by_its_ending_or_its_first_line(tmp_path: Path) -> None:
    with opened_packs(["py"], tmp_path) as scene:
        scene.put("tool", "#!/usr/bin/env python3\ndef main(): pass\n")
        scene.put("sh", "#!/bin/sh\ndef main(): pass\n")
        assert scene.data("py_check_syntax", path="tool")["ok"] is True
        assert scene.code("py_check_syntax", path="sh") == "unsupported"
        for name in ("a.py", "a.pyi", "a.pyw"):
            scene.put(name, "def main(): pass\n")
            assert scene.data("py_get_code_outline", path=name)["items"]


def test_properties_setters_class_and_static_methods_are_told_apart(tmp_path: Path) -> None:
    code = """
class A:
    @property
    def size(self): ...
    @size.setter
    def size(self, value): ...
    @size.deleter
    def size(self): ...
    @functools.cached_property
    def area(self): ...
    @classmethod
    def make(cls): ...
    @staticmethod
    @cache
    def check(): ...
    @property_of(1)
    def plain(self): ...
    def f(self):
        @property
        def inner(self): ...
"""
    kinds = ["property", "setter", "deleter", "property", "classmethod", "staticmethod"]
    with opened_packs(["py"], tmp_path) as scene:
        scene.put("a.py", code)
        items = scene.data("py_get_code_outline", path="a.py")["items"]
        assert [one["kind"] for one in items] == [
            *("class", *kinds, "method", "method", "function")
        ]
        summary = scene.data("py_get_class_summary", path="a.py", name="A")
        assert [one["kind"] for one in summary["methods"]] == [*kinds, "method", "method"]
        text = scene.text("py_get_class_summary", path="a.py", name="A")
        assert "    4: property: def size(self)\n" in text
        assert "    12: classmethod: def make(cls)\n" in text
        assert "    17: def plain(self)\n" in text


def test_a_move_says_which_uses_are_left_behind(tmp_path: Path) -> None:
    with opened_packs(["py"], tmp_path) as scene:
        scene.put("a.py", "def f(): ...\n\n\ndef g():\n    # f\n    return f() + a.f\n")
        scene.put("b.py", "")
        data = scene.data("py_move_def", path="a.py", new_path="b.py", name="f")
        assert data["still_used"] == ["3: return f() + a.f"]
        data = scene.data("py_move_def", path="b.py", new_path="b.py", name="f", new_name="h")
        assert data["still_used"] == []
        text = scene.text("py_move_def", path="a.py", new_path="b.py", name="g")
        assert "still uses" not in text


@pytest.mark.parametrize(
    ("code", "broken"),
    [
        ("def f(a, a): ...\n", [1]),
        ("x = 1\nreturn x\n", [2]),
        ("def f():\n    break\n", [2]),
        ("def f(): ...\n", []),
    ],
)
def test_what_python_does_not_compile_is_broken_in_outlines(
    tmp_path: Path, code: str, broken: list[int]
) -> None:
    with opened_packs(["py"], tmp_path) as scene:
        scene.put("a.py", code)
        assert scene.data("py_get_code_outline", path="a.py")["broken"] == broken
        assert scene.data("py_get_skeleton", path="a.py")["broken"] == broken
