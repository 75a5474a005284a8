"""Following names through a repository that wants to run, leak or never end (K89.5)."""

import os
import signal
import sys
from collections.abc import Iterator
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any

import pytest
from pack_scenes import PackScene, opened_packs
from parse_workers import stopped, wait_asked, workers_below
from portable_forms import PORTABLE
from samples import sampled

TRAP = "import os\nos.mkdir(os.path.join({folder!r}, 'ran'))\n"
CALLS: list[tuple[str, dict[str, Any]]] = [
    ("py_find_usages", {"path": ".", "name": "target"}),
    ("py_find_usages", {"path": ".", "name": "target", "mode": "text"}),
    ("py_find_usages", {"path": ".", "name": "target", "mode": "semantic"}),
    ("py_find_usages", {"path": ".", "name": "Target.run", "mode": "semantic"}),
    ("py_get_hierarchy", {"path": ".", "name": "Target", "depth": 100}),
    ("py_get_hierarchy", {"path": ".", "name": "object", "depth": 100}),
    ("py_derive_code_path", {"path": ".", "target": "target", "depth": 100}),
]


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[PackScene]:
    root = tmp_path / "root"
    root.mkdir()
    with opened_packs(["py"], root) as scene:
        yield scene


def results(scene: PackScene) -> str:
    """Everything that any of the tools says, failures among it."""
    return "\n".join(str(scene.call(tool, **arguments)) for tool, arguments in CALLS)


def test_nothing_of_the_repository_runs(scene: PackScene, tmp_path: Path) -> None:
    trap = TRAP.format(folder=str(tmp_path))
    for path in (
        ".ropeproject/config.py",
        "conftest.py",
        "sitecustomize.py",
        "usercustomize.py",
        "setup.py",
        "manage.py",
        "jedi/__init__.py",
        "parso/__init__.py",
        "json.py",
        "re.py",
        "_bisect.py",
        "aish/__init__.py",
        "pkg/__init__.py",
        "venv/bin/python",
        ".venv/bin/python",
        "buildout.cfg",
    ):
        (scene.root / path).parent.mkdir(parents=True, exist_ok=True)
        scene.put(path, f"{trap}\ndef target(): ...\n\n\nclass Target:\n    def run(self): ...\n")
        (scene.root / path).chmod(0o755)
    scene.put(".jedi/project.json", '[1, {"path": "/", "environment_path": "./venv/bin/python"}]')
    scene.put("setup.cfg", "[options]\n")
    scene.put("x.pth", f"import os; os.mkdir('{tmp_path}/ran')\n")
    # It would crash who loads it, as one that is no library does.
    scene.put(f"fast{EXTENSION_SUFFIXES[0]}", b"\x7fELF no library")
    scene.put("fast.pyi", "def target() -> int: ...\n")
    scene.put("pkg/fast.so", b"\x7fELF no library")
    scene.put(
        "use.py",
        "import sys\nsys.path.insert(0, 'pkg')\nfrom fast import target\nimport pkg.fast\n"
        "import json, re, conftest\nfrom pkg import target as t, Target\n\n\n"
        "def go():\n    target(); t(); pkg.fast.target(); conftest.target(); Target().run()\n"
        "    open('/etc/passwd'); exec('1'); eval('1'); __import__('json')\n",
    )
    text = results(scene)
    assert text.count("'isError': True") == text.count("'code': 'ambiguous'")
    assert not (tmp_path / "ran").exists()
    found = scene.data("py_find_usages", path=".", name="Target.run", mode="semantic")
    assert found["hits"]
    assert sys.modules.get("fast") is None


def test_what_is_denied_or_outside_leaves_no_trace(scene: PackScene, tmp_path: Path) -> None:
    secret = "SECRET = 'hunter2'\n\n\ndef target(): hunter2()\n\n\nclass Target: ...\n\n\n"
    secret += "class Hidden(Target): ...\n"
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "leak.py").write_text(secret)
    for path in (".env.py", ".ENV.py", "deploy_rsa", ".ssh/id.py", ".aws/a.py", ".aish/x.py"):
        scene.put(path, secret)
    scene.put(".git/config.py", secret)
    scene.put("venv/lib.py", secret)
    (scene.root / "link.py").symlink_to(outside / "leak.py")
    (scene.root / "inner.py").symlink_to(".ssh/id.py")
    (scene.root / "folder").symlink_to(outside)
    os.mkfifo(scene.root / "pipe.py")
    with (scene.root / "sparse.py").open("wb") as file:
        file.truncate(10_000_000_000)
    scene.put("nul.py", "def target(): ...\n\0")
    scene.put("utf16.py", "def target(): ...\n".encode("utf-16"))
    scene.put("folder.py/__init__.py", "def target2(): ...\n")
    scene.put(
        "use.py",
        f"import sys\nsys.path[:0] = [{str(outside)!r}, '.ssh', 'venv']\nimport leak, id, lib\n"
        "from leak import SECRET, Target as Base\nimport link, inner, folder.leak\n\n\n"
        "def target():\n    leak.target(); id.target(); lib.target(); link.target()\n\n\n"
        "class Target(Base, leak.Target): ...\n",
    )
    text = results(scene)
    assert "hunter2" not in text
    assert "Hidden" not in text
    assert "'use.py'" in text
    inner = "outside" if PORTABLE else "not_found"  # no link is followed there
    for code, path in (("outside", "link.py"), (inner, "inner.py"), ("not_found", ".ssh")):
        for tool, name in (
            ("py_find_usages", "name"),
            ("py_get_hierarchy", "name"),
            ("py_derive_code_path", "target"),
        ):
            assert scene.code(tool, path=path, **{name: "target"}) == code
    data = scene.data("py_find_usages", path=".", name="target")
    assert {hit["path"] for hit in data["hits"]} == {"use.py", "utf16.py"}
    assert data["skipped"] == 2


# A quarter of it is far deeper than any stack already.
HUGE = 200_000 if os.environ.get("AISH_TEST_ALL") == "1" else 50_000
LINKS = HUGE // 4
HOSTILE = {
    "punycode": "# coding: punycode\ntarget" + "-a" * HUGE,
    "chains": "".join(f"def f{n}(): target{'()' * 2_000}\n" for n in range(400)),
    "minus": f"target = {'-' * HUGE}1\n",
    "brackets": f"target({'(' * HUGE}\n\n\ndef target(): ...\n",
    "closed brackets": f"target = {'(' * HUGE}1{')' * HUGE}\n",
    "attributes": f"target = a{'.b' * HUGE}()\n",
    "calls": f"target = a{'()' * HUGE}\n",
    "nested calls": f"target = {'f(' * HUGE}1{')' * HUGE}\n",
    "sum": f"target = {'1 + ' * HUGE}1\n",
    "f-strings": "target = " + 'f"{' * HUGE + "1\n",
    "one f-string": "target = f'''" + "{" * HUGE + "\n",
    "quotes": "target = " + '"' * HUGE + "\n",
    "backslashes": "target = '" + "\\" * HUGE + "\n",
    "withs": f"with {'target as a, ' * HUGE}b: pass\n",
    "as": f"with target {'as a ' * HUGE}: pass\n",
    "for": f"target = [{'for ' * HUGE}]\n",
    "spaces": f"import{' ' * HUGE}target{' ' * HUGE}as{' ' * HUGE}t\n" * 2,
    "names": f"target = ({' '.join(['a'] * HUGE)})\n",
    "semicolons": f"target = 1{';a' * HUGE}\n",
    "decorators": "@target\n" * HUGE,
    "bases": f"class Target({'Target, ' * HUGE}object): ...\n",
    "dedents": "".join(f"{' ' * n}if target:\n" for n in range(1_500)),
    "classes": "".join(f"{' ' * n}class Target:\n" for n in range(1_500)),
    "lambdas": f"target = {'lambda: ' * HUGE}1\n",
    "subscripts": f"target: {'a[' * HUGE}1{']' * HUGE} = 1\n",
    "long line": f"target = '{'x' * 2_000_000}'\n",
    "aliases": "".join(f"a{n} = a{n + 1}\n" for n in range(LINKS)) + "class Target(a0): ...\n",
    "calls in a chain": "".join(f"def a{n}(): a{n + 1}()\n" for n in range(LINKS))
    + "def target(): a0()\n",
    "classes in a chain": "".join(f"class A{n}(A{n + 1}): ...\n" for n in range(LINKS))
    + "class Target(A0):\n    def run(self): self.go()\n\n\ndef target(): Target().go()\n",
    "unions": f"def target(a: {'int | ' * HUGE}int): a.b()\n",
    "arguments": f"def target({'a=a(), ' * HUGE}): ...\n",
    "stars": "from x import *\n" * 10_000 + "def target(): a()\n",
    "letters": "\u0301" * HUGE + " target\n",
}


@pytest.mark.parametrize(
    "kind", sampled(HOSTILE, often=range(0, len(HOSTILE), 6), reason="sources of the same sizes")
)
def test_no_nesting_and_no_length_ends_a_call(scene: PackScene, kind: str) -> None:
    scene.put("hostile.py", HOSTILE[kind])
    scene.put("plain.py", "def target(): ...\n\n\nclass Target: ...\nclass Sub(Target): ...\n")
    for tool, arguments in CALLS:
        result = scene.call(tool, **arguments)
        error = result["structuredContent"].get("error", {"code": ""})
        # Only which function is meant may be open, or that there is such a method.
        assert error["code"] in {"", "ambiguous", "no_match"}, (tool, arguments, error)


def test_circles_of_imports_come_to_an_end(scene: PackScene) -> None:
    scene.put("a.py", "from b import *\nfrom b import target, Target\nimport a\nx = a.b.a.b\n")
    scene.put(
        "b.py",
        "from a import *\nfrom a import target, Target\nimport b\nimport a\na = a.b\n",
    )
    scene.put(
        "c.py",
        "from a import target\nfrom .c import c\nfrom . import c\n\n\n"
        "def c():\n    target()\n    c.c.c()\n",
    )
    scene.put("link/d.py", "from .. import c\n")
    (scene.root / "link/loop").symlink_to("../link")
    results(scene)
    names = scene.data("py_derive_code_path", target="c")
    assert [row["name"] for row in names["nodes"]] == ["c"]
    assert {each["name"] for each in names["unresolved"]} == {"target", "c.c.c"}


def test_a_child_that_dies_of_some_file_is_asked_for_the_others(scene: PackScene) -> None:
    for number in range(5):
        scene.put(f"a{number}.py", "class Target: ...\nclass Sub(Target): ...\ndef target(): ...\n")
    scene.data("py_find_usages", path=".", name="target")
    (worker,) = workers_below(os.getpid())
    with stopped(worker) as given:
        call = scene.portal.start_task_soon(scene.pack.call, *CALLS[0])
        wait_asked(given)
    os.kill(worker, signal.SIGKILL)
    # It is asked again with fewer files at a time, so that one file does not cost the others.
    data = call.result(60)["structuredContent"]
    assert len(data["hits"]) == 5
    assert data["skipped"] == 0


@pytest.mark.slow(reason="waits for the whole time of a call")
def test_after_ten_seconds_there_is_what_was_found_till_then(scene: PackScene) -> None:
    scene.put("a.py", "class Target: ...\nclass Sub(Target): ...\ndef target(): ...\n")
    # Too much for one batch.
    for number in range(3):
        scene.put(f"b{number}.py", f"target = Target = '{'x' * 2_000_000}'\n")
    scene.data("py_find_usages", path="a.py", name="target")
    (worker,) = workers_below(os.getpid())
    with stopped(worker) as given:
        call = scene.portal.start_task_soon(scene.pack.call, *CALLS[0])
        wait_asked(given)
    data = call.result(60)["structuredContent"]
    assert data["truncated"] is True
    # The one that stood still was replaced.
    assert len(scene.data(CALLS[0][0], **CALLS[0][1])["hits"]) == 4
    assert workers_below(os.getpid()) != [worker]
