"""`py_rename`: another name in all files, or in none."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from pack_scenes import PackScene, opened_packs, sha256

CORE = '''\
"""make things with make."""
__all__ = ("make", "Shape")


def make(x):
    # make it
    return x


class Shape:
    area = 0

    def draw(self):
        return make(1)

    def show(self):
        self.draw()


class Square(Shape):
    def draw(self):
        return super().draw()


def use(square: Square, thing):
    square.draw()
    return f"{make(2)} make {thing}"
'''
INIT = """\
from .core import make as build, make
from .core import Shape
__all__ = ["build", "make"]
"""
APP = """\
import kit
from kit import make
import kit.core as core
print(kit.make(1), make(2), core.make(3), kit.build(4))


def other():
    make = 3
    return make
"""


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[PackScene]:
    root = tmp_path / "root"
    root.mkdir()
    with opened_packs(["py"], root) as opened:
        opened.put("kit/__init__.py", INIT)
        opened.put("kit/core.py", CORE)
        opened.put("app.py", APP)
        yield opened


def rename(scene: PackScene, name: str, new_name: str, **more: Any) -> dict[str, Any]:
    return scene.data("py_rename", path=".", name=name, new_name=new_name, **more)


def refuse(scene: PackScene, name: str, new_name: str, **more: Any) -> dict[str, Any]:
    before = {path: path.read_bytes() for path in scene.root.rglob("*.py")}
    error = scene.error("py_rename", **{"path": ".", "name": name, "new_name": new_name, **more})
    assert {path: path.read_bytes() for path in scene.root.rglob("*.py")} == before
    return error


def test_a_function_is_renamed_with_its_imports_and_exports(scene: PackScene) -> None:
    data = rename(scene, "make", "create")
    core = scene.get("kit/core.py").decode()
    assert core == (
        CORE.replace('("make"', '("create"')
        .replace("def make(", "def create(")
        .replace("return make(", "return create(")
        .replace("{make(", "{create(")
    )
    assert scene.get("kit/__init__.py").decode() == (
        INIT.replace("import make as build, make", "import create as build, create").replace(
            '"make"]', '"create"]'
        )
    )
    assert scene.get("app.py").decode() == (
        APP.replace("import make", "import create")
        .replace("kit.make", "kit.create")
        .replace(" make(2)", " create(2)")
        .replace("core.make", "core.create")
    )
    assert data["mentions"] == 4
    assert [row["path"] for row in data["changes"]] == ["app.py", "kit/__init__.py", "kit/core.py"]
    assert data["changes"][2]["sha256"] == sha256(core.encode())
    assert "-def make(x):\n+def create(x):\n" in data["diffs"]["kit/core.py"]
    done = subprocess.run(
        [sys.executable, "app.py"], cwd=scene.root, capture_output=True, text=True, check=True
    )
    assert done.stdout == "1 2 3 4\n"


def test_a_method_is_renamed_with_those_that_override_it(scene: PackScene) -> None:
    for name in ("Shape.draw", "Square.paint"):
        new = "paint" if name == "Shape.draw" else "draw"
        data = rename(scene, name, new)
        assert [row["places"] for row in data["changes"]] == [5]
    assert scene.get("kit/core.py").decode() == CORE


def test_variables_attributes_and_parameters_are_renamed(scene: PackScene) -> None:
    scene.put(
        "more.py",
        "from dataclasses import dataclass\nLIMIT = 1\n\n@dataclass\nclass Row:\n    size: int\n\n"
        "def grow(row: Row, by: int = LIMIT) -> Row:\n    return Row(size=row.size + by)\n\n"
        "grow(Row(size=2), by=3)\n",
    )
    rename(scene, "LIMIT", "MOST")
    rename(scene, "Row.size", "width")
    rename(scene, "grow.by", "amount")
    assert (
        scene.get("more.py")
        .decode()
        .endswith(
            "class Row:\n    width: int\n\ndef grow(row: Row, amount: int = MOST) -> Row:\n"
            "    return Row(width=row.width + amount)\n\ngrow(Row(width=2), amount=3)\n"
        )
    )


def test_uncertain_uses_are_named_and_left_by_force(scene: PackScene) -> None:
    scene.put("more.py", "def f(x):\n    return x.draw()\n")
    error = refuse(scene, "Shape.draw", "paint")
    assert error["code"] == "ambiguous"
    assert error["details"]["places"] == [
        {"path": "more.py", "line": 2, "text": "return x.draw()"},
    ]
    assert "1 place may mean it:\nmore.py:2: return x.draw()\n" in error["message"]
    data = rename(scene, "Shape.draw", "paint", force=True)
    assert data["uncertain"] == error["details"]["places"]
    assert scene.get("more.py") == b"def f(x):\n    return x.draw()\n"
    assert b"def paint(self)" in scene.get("kit/core.py")


@pytest.mark.sampled(6)
@pytest.mark.parametrize(
    "code",
    [
        "import lib\nclass A(lib.Base):\n    def run(self): pass\n",
        "from missing import Base\nclass A(Base):\n    def run(self): pass\n",
        "class A(make_base()):\n    def run(self): pass\n",
        "class Mixin:\n    def go(self): self.run()\nclass A(Mixin):\n    def run(self): pass\n",
        "import copy\nclass A:\n    def run(self): pass\ncopy.copy(A()).run()\n",
        "class A:\n    def run(self): pass\n[A()][0].run()\n",
        "class A:\n    def run(self): pass\n    def go(self): type(self).run(self)\n",
        "class A:\n    def run(self): pass\nfor a in (A(),):\n    a.run()\n",
        "run = 1\nclass A:\n    run = run\n",
        "from lib import run\nclass A:\n    run: run = None\n",
        "run = 1\nclass A:\n    go = run\n    run = 2\n",
        "run = 1\nclass A:\n    run = 2\n    all = [run for _ in '']\n",
        "run = 1\nclass A:\n    run = 2\n    key = lambda: run\n",
        "import threading\nclass A(threading.Thread):\n    def run(self): pass\n",
        "class A(dict):\n    def keys(self): pass\n",
    ],
)
def test_what_may_be_used_from_elsewhere_is_uncertain(scene: PackScene, code: str) -> None:
    scene.put("more.py", code)
    name = "keys" if "keys" in code else "run"
    assert refuse(scene, f"A.{name}", "walk")["code"] == "ambiguous"


@pytest.mark.parametrize(
    ("name", "code", "renamed"),
    [
        (
            "f.old",
            "def f(*old, **more): return old, more\nf(1, old=2)\n",
            "def f(*new, **more): return new, more\nf(1, old=2)\n",
        ),
        (
            "f.old",
            "def f(old, /, a, **more): return old\nf(1, 2, old=3)\n",
            "def f(new, /, a, **more): return new\nf(1, 2, old=3)\n",
        ),
        (
            "A.old",
            "class A:\n    old = 1\nmatch A():\n    case A(old=1):\n        pass\n",
            "class A:\n    new = 1\nmatch A():\n    case A(new=1):\n        pass\n",
        ),
        (
            "A.old",
            "old = 1\nclass A:\n    old = 2\n    old = old + 1\n    more = old\n",
            "old = 1\nclass A:\n    new = 2\n    new = new + 1\n    more = new\n",
        ),
        (
            "A.old",
            "class A:\n    old = ''\n    more = [a for a in old]\n",
            "class A:\n    new = ''\n    more = [a for a in new]\n",
        ),
        (
            "A.old",
            "class A:\n    old = 1\nmatch A():\n    case A(old=1): pass\n",
            "class A:\n    new = 1\nmatch A():\n    case A(new=1): pass\n",
        ),
        (
            "f",
            "def f(): return 1\nx = f'{f()} {f()}' + f'f'\n",
            "def new(): return 1\nx = f'{new()} {new()}' + f'f'\n",
        ),
        ("case", "case = 1\ncase\n", "new = 1\nnew\n"),
    ],
)
def test_only_what_means_the_symbol_is_renamed(
    scene: PackScene, name: str, code: str, renamed: str
) -> None:
    scene.put("more.py", code)
    rename(scene, name, "new")
    assert scene.get("more.py").decode() == renamed


def test_a_star_takes_private_names_only_if_they_are_listed(scene: PackScene) -> None:
    scene.put("lib.py", "def make(): return 1\n")
    scene.put("more.py", "from lib import *\nmake()\n")
    assert refuse(scene, "lib.make", "_make")["code"] == "exists"
    scene.put("lib.py", "__all__ = ['make']\ndef make(): return 1\n")
    rename(scene, "lib.make", "_make")
    assert scene.get("more.py") == b"from lib import *\n_make()\n"


def test_things_from_elsewhere_are_not_ours(scene: PackScene) -> None:
    scene.put(
        "more.py",
        "import abc, os, enum\nclass A(abc.ABC):\n    def get(self): pass\n"
        "class B(enum.Enum):\n    X = 1\n"
        "os.environ.get('x')\n''.get\ndict(a=1).get('a')\nA().get()\n",
    )
    rename(scene, "A.get", "fetch")
    assert scene.get("more.py").count(b"fetch") == 2


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("name", "new_name", "code"),
    [
        ("make", "use", "bad"),
        ("make", "Shape", "bad"),
        ("make", "other", "bad"),
        ("make", "print", "bad"),
        ("make", "x", "bad"),
        ("make", "build", "bad"),
        ("Shape.draw", "area", "bad"),
        ("Shape.draw", "show", "bad"),
    ],
)
def test_a_name_that_is_taken_or_would_be_captured_is_refused(
    scene: PackScene, name: str, new_name: str, code: str
) -> None:
    scene.put("more.py", "from kit.core import make\n\ndef g(x):\n    return make(x)\n")
    error = refuse(scene, name, new_name)
    assert error["code"] == "exists", code
    assert error["details"]["places"]


@pytest.mark.parametrize("new_name", ["class", "None", "a.b", "", "1a", "make", "__x", "ﬁ", "a b"])
def test_a_new_name_has_to_be_a_plain_one(scene: PackScene, new_name: str) -> None:
    assert refuse(scene, "make", new_name)["code"] == "bad_arguments"


def test_line_ends_encodings_and_columns_are_kept(scene: PackScene) -> None:
    scene.put("a.py", "def f(): pass\r\nx = 'é'; f(); f()\r\n")
    scene.put("b.py", "# coding: latin-1\nfrom a import f\nx = '\xe9'; f()\n".encode("latin-1"))
    scene.put("c.py", b"\xef\xbb\xbffrom a import f as g\rf = 1\rg()\r")
    rename(scene, "a.f", "longer")
    assert scene.get("a.py").decode() == "def longer(): pass\r\nx = 'é'; longer(); longer()\r\n"
    assert scene.get("b.py").endswith(b"import longer\nx = '\xe9'; longer()\n")
    assert scene.get("c.py") == b"\xef\xbb\xbffrom a import longer as g\rf = 1\rg()\r"
    assert refuse(scene, "a.longer", "名前")["code"] == "encoding"


def test_nothing_is_renamed_where_a_file_cannot_be_changed(scene: PackScene) -> None:
    (scene.root / "app.py").chmod(0o444)
    assert refuse(scene, "make", "create")["code"] == "unwritable"
    (scene.root / "app.py").chmod(0o644)
    scene.put("sitecustomize.py", "from kit import make\n")
    assert refuse(scene, "make", "create")["code"] == "protected"
    (scene.root / "sitecustomize.py").unlink()
    scene.put("wide.py", b"\xff\xfe" + "from kit import make\n".encode("utf-16-le") + b"\0\xd8\n\0")
    assert refuse(scene, "make", "create")["code"] == "binary"
    (scene.root / "wide.py").unlink()
    scene.put("odd.py", "from kit import make\nmake(\n")
    scene.put("nul.py", "from kit import make\n\0")
    error = refuse(scene, "make", "create")
    assert error["code"] == "ambiguous"
    assert "not every file was read" in error["message"]
    rename(scene, "make", "create", force=True)
    assert scene.get("odd.py") == b"from kit import create\ncreate(\n"
    assert refuse(scene, "missing", "x")["code"] == "no_match"


def test_many_places_and_classes_take_no_quadratic_time(scene: PackScene) -> None:
    scene.put("many.py", "def f(): pass\n" + "f();" * 5_000 + "\n")
    data = rename(scene, "many.f", "longer")
    assert data["changes"][0]["places"] == 5_001
    chain = "".join(f"class C{n + 1}(C{n}):\n    def f(self): pass\n" for n in range(300))
    scene.put("chain.py", f"class C0:\n    def f(self): pass\n{chain}")
    assert rename(scene, "C7.f", "g")["changes"][0]["places"] == 301
    scene.put("most.py", "def f(): pass\n" + "f()\n" * 50_001)
    assert refuse(scene, "most.f", "g")["code"] == "too_large"


SMOKE = {
    "httpx": (
        {"get": "fetch", "codes": "statuses", "to_bytes": "as_bytes", "AsyncClient": "Background"},
        (
            "client = httpx.Client(transport=httpx.MockTransport(lambda _: httpx.Response(204)))\n"
            "assert client.get('http://x/').status_code == 204"
        ),
    ),
    "typer": (
        {"get_command": "command_of", "get_params_from_function": "params_of"},
        "app = typer.Typer(); app.command()(lambda: None); app(['--help'], standalone_mode=False)",
    ),
    "jinja2": (
        {"generate": "make_code", "Environment.from_string": "from_text"},
        (
            "e = jinja2.Environment(); make = getattr(e, 'from_string', None) or e.from_text\n"
            "assert make('{{ a|upper }}').render(a='b') == 'B'"
        ),
    ),
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("package", SMOKE)
def test_names_of_real_packages_are_renamed(tmp_path: Path, package: str) -> None:
    spec = find_spec(package)
    assert spec is not None
    assert spec.origin is not None
    root = tmp_path / "root"
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(Path(spec.origin).parent, root / package, ignore=ignored)

    def count(word: str) -> int:
        texts = (path.read_text("utf-8") for path in root.rglob("*.py"))
        return sum(len(re.findall(rf"(?<!\w){word}(?!\w)", text)) for text in texts)

    names, smoke = SMOKE[package]
    with opened_packs(["py"], root) as scene:
        for name, new_name in names.items():
            own = name.rpartition(".")[2]
            before = count(own), count(new_name)
            data = rename(scene, name, new_name)
            places = sum(row["places"] for row in data["changes"])
            assert (before[0] - count(own), count(new_name) - before[1]) == (places, places)
    code = f"import compileall, {package}; assert compileall.compile_dir('.', quiet=1)\n{smoke}"
    env = {**os.environ, "PYTHONPATH": str(root)}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=root, env=env, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr
