from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pack_scenes import PackScene, opened_packs


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[PackScene]:
    root = tmp_path / "root"
    root.mkdir()
    with opened_packs(["py"], root) as scene:
        yield scene


def subclasses(scene: PackScene, name: str, path: str = ".", **more: Any) -> list[str]:
    rows = scene.data("py_get_hierarchy", path=path, name=name, **more)["classes"]
    return [f"{row['depth']} {row['path']}:{row['line']} {row['name']}" for row in rows]


@pytest.mark.requirement("K37")
def test_subclasses_are_followed_over_files_through_imports_and_aliases(scene: PackScene) -> None:
    scene.put("app/__init__.py", "from .base import *\nfrom .base import Base as Root\n")
    scene.put("app/base.py", "class Base:\n    pass\n\n\nOther = Base\n")
    scene.put("app/direct.py", "from .base import Base\n\n\nclass Direct(Base): pass\n")
    scene.put("app/module.py", "import app.base as b\n\nclass Module(b.Base, int): pass\n")
    scene.put(
        "app/alias.py", "from app.base import Other\nThird = Other\nclass Alias(Third): ...\n"
    )
    scene.put(
        "app/package.py", "import app\n\nclass Package(app.Root): ...\nclass Star(app.Base): ...\n"
    )
    scene.put("app/inner.py", "def make():\n    from app import Base\n    class Inner(Base): ...\n")
    scene.put(
        "app/generic.py",
        "from .base import (\n    Base,  # the base\n)\nclass G[T](Base[T]): ...\n",
    )
    scene.put(
        "app/far.py",
        "from .direct import Direct\nclass Far(\n    Direct,\n    metaclass=type,\n): ...\n",
    )
    # Not of the same Base.
    scene.put("tests/base.py", "class Base: ...\n\n\nclass Local(Base): ...\n")
    scene.put("app/text.py", '"""\nclass Doc(Base): ...\n"""\n# class Comment(Base): ...\n')
    direct = [
        "1 app/alias.py:3 Alias",
        "1 app/direct.py:4 Direct",
        "1 app/generic.py:4 G",
        "1 app/inner.py:3 make.Inner",
        "1 app/module.py:3 Module",
        "1 app/package.py:3 Package",
        "1 app/package.py:4 Star",
    ]
    assert subclasses(scene, "app.base.Base") == direct
    assert subclasses(scene, "app.base.Base", depth=2) == [*direct, "2 app/far.py:2 Far"]
    assert subclasses(scene, "Direct") == ["1 app/far.py:2 Far"]
    assert subclasses(scene, "Base", path="tests") == ["1 tests/base.py:4 Local"]
    text = scene.text("py_get_hierarchy", path="app", name="Direct", depth=3)
    assert text == "app/direct.py:4: class Direct(Base)\n  app/far.py:2: class Far(Direct)"


def test_classes_from_elsewhere_have_subclasses_here(scene: PackScene) -> None:
    scene.put("a.py", "class A(Exception): ...\nclass B(A): ...\n")
    scene.put(
        "t.py",
        "import unittest as u\nfrom unittest import TestCase as Case\n"
        "class One(u.TestCase): ...\nclass Two(Case): ...\nclass Three(TestCase): ...\n",
    )
    assert subclasses(scene, "Exception", depth=5) == ["1 a.py:1 A", "2 a.py:2 B"]
    assert subclasses(scene, "builtins.Exception") == ["1 a.py:1 A"]
    assert subclasses(scene, "unittest.TestCase") == ["1 t.py:3 One", "1 t.py:4 Two"]
    assert subclasses(scene, "int") == []
    # What cannot be followed is told, and not taken for one.
    assert scene.text("py_get_hierarchy", path=".", name="TestCase") == (
        "  t.py:3: class One(u.TestCase)\n  t.py:4: class Two(Case)\n"
        "not resolved:\n  t.py:5: Three(TestCase)"
    )


def test_what_derives_through_another_builtin_class_is_below_the_first(scene: PackScene) -> None:
    scene.put("a.py", "class A(ValueError): ...\nclass B(KeyError, A): ...\nclass C(int): ...\n")
    scene.put("b.py", "class ValueError: ...\nclass D(ValueError): ...\n")
    assert subclasses(scene, "Exception", depth=3) == ["1 a.py:1 A", "1 a.py:2 B"]
    assert subclasses(scene, "LookupError") == ["1 a.py:2 B"]
    assert subclasses(scene, "BaseException") == ["1 a.py:1 A", "1 a.py:2 B"]


def test_a_name_that_a_package_imports_with_a_star_is_found(scene: PackScene) -> None:
    scene.put("pkg/__init__.py", "from ._api import *\n")
    scene.put("pkg/_api.py", "from .deep import *\n")
    scene.put("pkg/deep.py", "class Base: ...\ndef go(): step()\ndef step(): ...\n")
    scene.put("use.py", "import pkg\nclass A(pkg.Base): ...\n")
    for name in ("Base", "pkg.Base", "pkg.deep.Base"):
        assert subclasses(scene, name) == ["1 use.py:2 A"]
    assert scene.code("py_get_hierarchy", path=".", name="pkg.Nothing") == "no_match"
    tree = scene.text("py_derive_code_path", path=".", target="pkg.go", depth=3)
    assert "step" in tree


def test_the_text_is_a_tree(scene: PackScene) -> None:
    scene.put(
        "a.py",
        "class A: ...\nclass B(A): ...\nclass C(A): ...\nclass D(B): ...\nclass E(C, B): ...\n"
        "class F(D): ...\n",
    )
    assert scene.text("py_get_hierarchy", path=".", name="A", depth=5) == (
        "a.py:1: class A\n"
        "  a.py:2: class B(A)\n"
        "    a.py:4: class D(B)\n"
        "      a.py:6: class F(D)\n"
        "  a.py:3: class C(A)\n"
        "    a.py:5: class E(C, B)"
    )


def test_circles_of_classes_and_imports_come_to_an_end(scene: PackScene) -> None:
    scene.put("a.py", "from b import B\nclass A(B): ...\n")
    scene.put("b.py", "from a import A\nclass B(A): ...\n")
    scene.put("c.py", "X = Y\nY = X\nclass C(X): ...\nclass D(D): ...\n")
    scene.put("d.py", "from d import *\nfrom e import *\n")
    scene.put("e.py", "from d import *\nclass E(Z): ...\n")
    assert subclasses(scene, "A", depth=50) == ["1 b.py:2 B"]
    assert subclasses(scene, "D", depth=50) == []
    assert scene.code("py_get_hierarchy", path=".", name="Z") == "no_match"


def test_several_classes_of_a_name_are_all_taken_unless_a_line_says_which(scene: PackScene) -> None:
    scene.put(
        "a.py",
        "if x:\n    class A: ...\n    class B(A): ...\nelse:\n    @final\n    class A:\n"
        "        class A: ...\n\n    class C(A): ...\n    class D(A.A): ...\n",
    )
    # A name of a module has one meaning at a time: the last.
    assert subclasses(scene, "A") == ["1 a.py:3 B", "1 a.py:9 C"]
    assert subclasses(scene, "A", line=5) == ["1 a.py:3 B", "1 a.py:9 C"]
    assert subclasses(scene, "A.A") == ["1 a.py:10 D"]
    assert scene.code("py_get_hierarchy", path=".", name="A", line=4) == "no_match"
    assert scene.code("py_get_hierarchy", path=".", name="E") == "no_match"
    assert scene.code("py_get_hierarchy", path=".", name="A", depth=0) == "bad_arguments"
    assert scene.code("py_get_hierarchy", path=".", name="A(") == "bad_arguments"


def test_at_most_500_classes_are_listed(scene: PackScene) -> None:
    scene.put("a.py", "class A: ...\n" + "".join(f"class A{n}(A): ...\n" for n in range(600)))
    data = scene.data("py_get_hierarchy", path=".", name="A", depth=9)
    assert len(data["classes"]) == 500
    assert data["truncated"] is True
    assert scene.text("py_get_hierarchy", path=".", name="A").endswith(
        "[truncated: true; cut after 500 classes; ask with a smaller `path` or `depth`]"
    )
    # A long chain, in the other direction.
    scene.put(
        "a.py", "class A0: ...\n" + "".join(f"class A{n + 1}(A{n}): ...\n" for n in range(600))
    )
    data = scene.data("py_get_hierarchy", path=".", name="A0", depth=100)
    assert [row["depth"] for row in data["classes"]] == list(range(1, 101))


def test_the_older_parameter_is_known(scene: PackScene) -> None:
    scene.put("a.py", "class A: ...\nclass B(A): ...\n")
    from aish.packs.py.hierarchy import py_get_hierarchy

    assert py_get_hierarchy.older_parameters == {"class_name": "name"}
