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


def tree(scene: PackScene, target: str, **more: Any) -> list[str]:
    return scene.text("py_derive_code_path", target=target, **more).splitlines()


def test_calls_are_followed_over_files(scene: PackScene) -> None:
    scene.put("app/__init__.py", "from .store import open_store\n")
    scene.put(
        "app/store.py",
        "from __future__ import annotations\nimport json\n\n\n"
        "class Base:\n    def close(self):\n        log('closed')\n\n\n"
        "class Store(Base):\n    def __init__(self, path):\n        self.path = path\n"
        "        self.codec = Codec()\n\n"
        "    def save(self, item):\n        self.codec.encode(item)\n        super().close()\n"
        "        json.dumps(item)\n\n\n"
        "class Codec:\n    def encode(self, item):\n        return len(item)\n\n\n"
        "def open_store(path) -> Store:\n    return Store(path)\n\n\n"
        "def log(text):\n    print(text)\n",
    )
    scene.put(
        "main.py",
        "import app\nimport app.store as st\nfrom app.store import log as say\n\n\n"
        "def main(hook, store: st.Store | None):\n    opened = app.open_store('x')\n"
        "    opened.save(1)\n    store.save(f'{say(2)}')\n    hook()\n    again = main\n"
        "    again(1, 2)\n",
    )
    assert tree(scene, "main") == [
        "main main.py:6",
        "  open_store app/store.py:26",
        "    Store.__init__ app/store.py:11",
        "      Codec app/store.py:21",
        "  Store.save app/store.py:15",
        "    Codec.encode app/store.py:22",
        "    Base.close app/store.py:6",
        "      log app/store.py:30",
        "  log app/store.py:30",
        "  main main.py:6 (cycle)",
        "not resolved:",
        "  json.dumps app/store.py:18",
        "  hook main.py:10",
    ]
    data = scene.data("py_derive_code_path", target="main", depth=1)
    assert [(row["name"], row["depth"], row["cycle"]) for row in data["nodes"]] == [
        ("main", 0, False),
        ("open_store", 1, False),
        ("Store.save", 1, False),
        ("log", 1, False),
        ("main", 1, True),
    ]
    assert data["unresolved"] == [{"name": "hook", "path": "main.py", "line": 10}]
    assert data["truncated"] is False


def test_what_an_object_is_decides_which_method_is_called(scene: PackScene) -> None:
    scene.put(
        "a.py",
        "class A:\n    def go(self): return one()\n    @classmethod\n"
        "    def make(cls): return cls()\n"
        "    def __call__(self): three()\n    @property\n    def twin(self) -> 'B': ...\n"
        "class B(A):\n    def go(self): return two()\n"
        "def one(): ...\ndef two(): ...\ndef three(): ...\n"
        "def local():\n    b = B()\n    b.go()\n"
        "def context():\n    with open('x') as f, B() as b:\n        b.go()\n"
        "def walrus():\n    if (b := B()):\n        b.go()\n"
        "def call():\n    a = A()\n    a()\n"
        "def prop(a: A):\n    a.twin.go()\n"
        "def chain():\n    B().go()\n"
        "def shadowed(one):\n    one()\n"
        "def string():\n    ','.join([])\n"
        "def nested():\n    def inner(): one()\n    inner()\n"
        "def unknown(x):\n    x.go()\n    (x or two)()\n    x[0].go()\n"
        "def reassigned():\n    b = 1 + 1\n    b.go()\n",
    )
    expected = {
        "local": ["B", "B.go", "two"],
        "context": ["B", "B.go", "two"],
        "walrus": ["B", "B.go", "two"],
        "call": ["A", "A.__call__", "three"],
        "prop": ["B.go", "two"],
        "chain": ["B", "B.go", "two"],
        "shadowed": [],
        "string": [],
        "nested": ["nested.inner", "one"],
        "unknown": [],
        "reassigned": [],
    }
    found = {}
    for name in expected:
        data = scene.data("py_derive_code_path", target=name)
        found[name] = [row["name"] for row in data["nodes"]][1:]
    assert found == expected
    data = scene.data("py_derive_code_path", target="unknown")
    assert [each["name"] for each in data["unresolved"]] == ["x.go", "…", "x[].go"]
    data = scene.data("py_derive_code_path", target="shadowed")
    assert [each["name"] for each in data["unresolved"]] == ["one"]


def test_the_function_is_named_as_closely_as_needed(scene: PackScene) -> None:
    scene.put(
        "a/m.py", "def run(): ...\nclass App:\n    def run(self): ...\n    def only(self): ...\n"
    )
    scene.put("b/m.py", "def run(): ...\nclass App:\n    def __init__(self): run()\n")
    error = scene.error("py_derive_code_path", target="run")
    assert error["code"] == "ambiguous"
    assert error["details"]["candidates"] == ["a/m.py:1: run", "b/m.py:1: run"]
    assert tree(scene, "a.m.run") == ["run a/m.py:1"]
    assert tree(scene, "run", path="b") == ["run b/m.py:1"]
    assert tree(scene, "App.run") == ["App.run a/m.py:3"]
    assert tree(scene, "only") == ["App.only a/m.py:4"]
    # A class is what its call runs.
    assert tree(scene, "b.m.App") == ["App.__init__ b/m.py:3", "  run b/m.py:1"]
    assert scene.code("py_derive_code_path", target="gone") == "no_match"
    assert scene.code("py_derive_code_path", target="a b") == "bad_arguments"
    assert scene.code("py_derive_code_path", target="only", depth=0) == "bad_arguments"


def test_imports_mean_what_they_mean_to_python(scene: PackScene) -> None:
    scene.put("src/pkg/__init__.py", "")
    scene.put("src/pkg/sub/__init__.py", "from ..util import help_out\n")
    scene.put("src/pkg/util.py", "def help_out(): ...\ndef json(): ...\n")
    scene.put("src/pkg/json.py", "def dumps(): ...\n")
    scene.put(
        "src/pkg/sub/work.py",
        "from . import help_out\nfrom .. import util\nimport pkg.util\nimport json\n"
        "try:\n    import fast\nexcept ImportError:\n    from pkg import util as fast\n\n\n"
        "def work():\n    help_out()\n    util.json()\n    pkg.util.help_out()\n    json.dumps()\n"
        "    fast.json()\n",
    )
    scene.put(
        "scripts/tool.py",
        "import near\nfrom pkg.sub import help_out\n\n\ndef tool():\n"
        "    near.near()\n    help_out()\n",
    )
    scene.put("scripts/near.py", "def near(): ...\n")
    scene.put("space/deep/mod.py", "def far(): ...\n")
    scene.put("top.py", "from space.deep import mod\n\n\ndef top():\n    mod.far()\n")
    assert tree(scene, "work") == [
        "work src/pkg/sub/work.py:11",
        "  help_out src/pkg/util.py:1",
        "  json src/pkg/util.py:2",
        "not resolved:",
        "  json.dumps src/pkg/sub/work.py:15",
    ]
    assert tree(scene, "tool")[1:] == [
        "  near scripts/near.py:1",
        "  help_out src/pkg/util.py:1",
    ]
    assert tree(scene, "top")[1:] == ["  far space/deep/mod.py:1"]


def test_at_most_500_functions_are_listed(scene: PackScene) -> None:
    calls = "".join(f"    f{n}()\n" for n in range(600))
    functions = "".join(f"def f{n}(): ...\n" for n in range(600))
    scene.put("a.py", f"def main():\n{calls}{functions}")
    data = scene.data("py_derive_code_path", target="main")
    assert len(data["nodes"]) == 500
    assert data["truncated"] is True
    chain = "".join(f"def f{n}(): f{n + 1}()\n" for n in range(600))
    scene.put("a.py", chain)
    data = scene.data("py_derive_code_path", target="f0", depth=100)
    assert [row["depth"] for row in data["nodes"]] == list(range(101))
    assert scene.data("py_derive_code_path", target="f0")["nodes"][-1]["name"] == "f5"


def test_broken_and_newer_code_is_read(scene: PackScene) -> None:
    scene.put(
        "a.py",
        "def broken(:\n    pass\n\nx = (\ndef main[T](x: T) -> None:\n    match x:\n"
        "        case Point(x=1) if check(x):\n            found()\n\n"
        "def check(x): ...\ndef found(): ...\n",
    )
    assert tree(scene, "main")[1:] == ["  check a.py:10", "  found a.py:11"]


def test_the_older_name_is_known() -> None:
    from aish.packs.py.code_path import py_derive_code_path

    assert dict(py_derive_code_path.older["derive_code_path"].rename) == {"max_depth": "depth"}
