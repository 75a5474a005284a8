import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pack_scenes import PackScene, opened_packs

from aish.core.tools import RESULT_LIMIT

SHAPES = """\
import os.path


class Shape:
    \"\"\"A Shape has an area.\"\"\"

    def area(self):
        # area of a Shape
        return 0


def describe(shape):
    label = f"area {shape.area():>{shape.width}} {{area}}"
    return f'{label!r} {os . path.join("area", label)}'
"""
OTHERS = """\
from shapes import Shape as Base, describe


class Square(Base):
    def area(self):
        return self.side ** 2


class Account:
    def area(self):
        return "north"


def total():
    square = Square()
    print(Account().area())
    return square.area()
"""


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[PackScene]:
    root = tmp_path / "root"
    root.mkdir()
    with opened_packs(["py"], root) as scene:
        yield scene


def places(scene: PackScene, **arguments: Any) -> list[tuple[str, int, int]]:
    hits = scene.data("py_find_usages", **arguments)["hits"]
    return [(hit["path"], hit["line"], hit["column"]) for hit in hits]


@pytest.mark.requirement("K36")
def test_a_name_is_found_as_a_token_and_in_fields_of_f_strings(scene: PackScene) -> None:
    scene.put("shapes.py", SHAPES)
    assert places(scene, path=".", name="area") == [
        ("shapes.py", 7, 9),
        ("shapes.py", 13, 27),
    ]
    assert scene.text("py_find_usages", path="shapes.py", name="label") == (
        'shapes.py:13:5: label = f"area {shape.area():>{shape.width}} {{area}}"\n'
        "shapes.py:14:15: return f'{label!r} {os . path.join(\"area\", label)}'\n"
        "shapes.py:14:48: return f'{label!r} {os . path.join(\"area\", label)}'"
    )
    assert places(scene, path=".", name="os.path") == [("shapes.py", 1, 8), ("shapes.py", 14, 25)]
    assert places(scene, path=".", name="width") == [("shapes.py", 13, 42)]


def test_an_exact_text_is_found_anywhere(scene: PackScene) -> None:
    scene.put("shapes.py", SHAPES)
    assert places(scene, path=".", name="area of", mode="text") == [("shapes.py", 8, 11)]
    assert places(scene, path=".", name='"\n\n    def', mode="text") == [("shapes.py", 5, 30)]
    assert places(scene, path=".", name="ea", mode="text")[:2] == [
        ("shapes.py", 5, 25),
        ("shapes.py", 7, 11),
    ]


def test_a_semantic_search_follows_imports_types_and_inheritance(scene: PackScene) -> None:
    scene.put("shapes.py", SHAPES)
    scene.put("lib/others.py", OTHERS)
    found = places(scene, path=".", name="Square.area", mode="semantic")
    assert found == [("lib/others.py", 5, 9), ("lib/others.py", 17, 19)]
    # Without a class it is the first definition, by path.
    assert places(scene, path=".", name="describe", mode="semantic") == [
        ("lib/others.py", 1, 35),
        ("shapes.py", 12, 5),
    ]
    # Also after its module, and not what only ends like it.
    scene.put("more/others.py", "def call(others, total):\n    others.total = total\n")
    assert places(scene, path=".", name="others.total", mode="semantic") == [
        ("lib/others.py", 14, 5)
    ]
    (scene.root / "more/others.py").unlink()
    data = scene.data("py_find_usages", path=".", name="Account.area", mode="semantic")
    assert [hit["line"] for hit in data["hits"]] == [10, 16]
    assert data["hits"][1]["text"] == "print(Account().area())"
    assert (data["files"], data["skipped"], data["truncated"]) == (2, 0, False)


def test_the_definition_is_chosen_by_its_line(scene: PackScene) -> None:
    scene.put("a.py", "def go():\n    return 1\n\n\ngo()\n")
    scene.put("b.py", "if a:\n    def go(): ...\n    go()\n\n\ndef go():\n    return 2\n")
    assert places(scene, path=".", name="go", mode="semantic") == [("a.py", 1, 5), ("a.py", 5, 1)]
    found = places(scene, path="b.py", name="go", mode="semantic", line=7)
    assert ("b.py", 6, 5) in found
    assert scene.code("py_find_usages", path=".", name="went", mode="semantic") == "no_match"
    assert (
        scene.code("py_find_usages", path="a.py", name="go", mode="semantic", line=4) == "no_match"
    )


def test_variables_and_attributes_have_a_meaning_too(scene: PackScene) -> None:
    scene.put("conf.py", "LIMIT = 3\nOTHER = LIMIT\n")
    scene.put(
        "use.py",
        "import conf\nfrom conf import LIMIT as most\n\n\nclass A:\n    def __init__(self):\n"
        "        self.size = conf.LIMIT\n\n    def grow(self):\n        self.size += 1\n\n\n"
        "LIMITS = 1\n",
    )
    assert places(scene, path=".", name="LIMIT", mode="semantic") == [
        ("conf.py", 1, 1),
        ("conf.py", 2, 9),
        ("use.py", 2, 18),
        ("use.py", 7, 26),
    ]
    assert places(scene, path=".", name="size", mode="semantic") == [
        ("use.py", 7, 14),
        ("use.py", 10, 14),
    ]


def test_a_meaning_is_followed_through_arguments_stars_and_scopes(scene: PackScene) -> None:
    scene.put("pkg/__init__.py", "from .deep import *\n")
    scene.put("pkg/deep.py", "def make(size, *, shape=1):\n    return size, shape\n")
    scene.put(
        "use.py",
        "from pkg import make\nimport pkg\n\nsize = 1\nmake(size, shape=size)\n"
        "pkg.make(2, size=3)\n\n\ndef change(shape=size):\n    global size\n"
        "    size = shape\n    return lambda: make(1)\n\n\nclass Box:\n    make = 1\n",
    )
    assert places(scene, path=".", name="make", mode="semantic") == [
        ("pkg/deep.py", 1, 5),
        ("use.py", 1, 17),
        ("use.py", 5, 1),
        ("use.py", 6, 5),
        ("use.py", 12, 20),
    ]
    # A parameter, with the arguments that name it.
    assert places(scene, path=".", name="deep.make.shape", mode="semantic") == [
        ("pkg/deep.py", 1, 19),
        ("pkg/deep.py", 2, 18),
        ("use.py", 5, 12),
    ]
    assert places(scene, path=".", name="use.size", mode="semantic") == [
        ("use.py", 4, 1),
        ("use.py", 5, 6),
        ("use.py", 5, 18),
        ("use.py", 9, 18),
        ("use.py", 10, 12),
        ("use.py", 11, 5),
    ]


def test_what_is_cut_says_so_and_how_to_get_the_rest(scene: PackScene) -> None:
    scene.put("a.py", "x = 1\n" * 300)
    scene.put("b.py", "x\n")
    data = scene.data("py_find_usages", path=".", name="x")
    assert len(data["hits"]) == 200
    assert data["truncated"] is True
    assert scene.text("py_find_usages", path=".", name="x", limit=2) == (
        "a.py:1:1: x = 1\na.py:2:1: x = 1\n"
        "[truncated: true; cut after 2 places; name a smaller `path`, or a larger `limit`]"
    )
    assert scene.data("py_find_usages", path=".", name="x", limit=301)["truncated"] is False
    assert scene.code("py_find_usages", path=".", name="x", limit=0) == "bad_arguments"
    assert scene.code("py_find_usages", path=".", name="x", limit=5_001) == "bad_arguments"


def test_rows_are_cut_where_the_result_of_the_step_is(scene: PackScene) -> None:
    scene.put("a.py", "x = 1\n" * 300)

    async def call() -> dict[str, Any]:
        RESULT_LIMIT.set(1_000)
        return dict(await scene.pack.call("py_find_usages", {"path": ".", "name": "x"}))

    result = scene.portal.call(call)
    text = result["content"][0]["text"]
    assert len(text) <= 1_000
    assert text.count("\na.py:") + 1 == len(result["structuredContent"]["hits"])
    assert text.endswith("or a larger `limit`]")
    assert result["structuredContent"]["truncated"] is True


@pytest.mark.parametrize("mode", ["identifier", "semantic"])
@pytest.mark.parametrize("name", ["", "a b", "a.", "1a", "a(b", "import os;"])
def test_what_is_no_name_is_refused(scene: PackScene, name: str, mode: str) -> None:
    scene.put("a.py", "x = 1\n")
    assert scene.code("py_find_usages", path=".", name=name, mode=mode) == "bad_arguments"


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("../a.py", "outside"),
        ("/etc", "outside"),
        ("gone.py", "not_found"),
        (".env", "not_found"),
        ("pipe.py", "not_a_file"),
        ("nul.py", "unsupported"),
        ("large.py", "too_large"),
    ],
)
def test_a_path_that_cannot_be_read_is_a_failure(
    scene: PackScene, path: str, code: str, tmp_path: Path
) -> None:
    scene.put(".env", "x = 1\n")
    scene.put("nul.py", "x = 1\0\n")
    with (scene.root / "large.py").open("wb") as file:
        file.truncate(10_000_000_000)
    os.mkfifo(scene.root / "pipe.py")
    assert scene.code("py_find_usages", path=path, name="x") == code
    assert scene.code("py_get_hierarchy", path=path, name="x") == code
    assert scene.code("py_derive_code_path", path=path, target="x") == code


def test_lines_and_columns_are_those_of_python(scene: PackScene) -> None:
    scene.put("ends.py", b"a = '\xe2\x80\xa8'\r\nb = 1\rfound\n\x0cfound = 2\n")
    assert places(scene, path=".", name="found") == [("ends.py", 3, 1), ("ends.py", 4, 2)]
    scene.put("ends.py", b"# coding: latin-1\n\xe9 = 1; found = \xe9\n")
    assert places(scene, path=".", name="found") == [("ends.py", 2, 8)]
    assert places(scene, path=".", name="\xe9") == [("ends.py", 2, 1), ("ends.py", 2, 16)]
    # Python takes both for the same name.
    scene.put("ends.py", "\uff46ound = 1\n\ufb01n = 2\n")
    assert places(scene, path=".", name="found") == [("ends.py", 1, 1)]
    assert places(scene, path=".", name="fin") == [("ends.py", 2, 1)]


def test_broken_and_newer_code_is_searched_like_any_other(scene: PackScene) -> None:
    scene.put("newer.py", "type Found[T] = list[T]\nprint(f'{x['found']} {found}')\n")
    scene.put("open.py", "f(\n'''\nfound\n")
    scene.put("brackets.py", "x = (1,\n\ndef found(:\n    pass\n")
    assert places(scene, path=".", name="found") == [
        ("brackets.py", 3, 5),
        ("newer.py", 2, 23),
    ]
