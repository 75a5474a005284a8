"""A root that is made to hurt: nothing of it runs, nothing leaks, and every call ends (K89)."""

import os
import py_compile
import random
import shutil
import stat
import subprocess
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import anyio
import pytest
from pack_arguments import made_up_arguments, tools_without
from pack_scenes import PackScene, opened_packs

from aish.packs.catalogue import PACKS
from aish.packs.command_options import ProcOptions
from aish.packs.rag.rag_options import Embeddings, RagOptions

SECRET = "hunter2"
PATIENCE = 120.0
"""Against hanging only: what a call may do is bounded otherwise."""
PACK_NAMES = [
    name for name, pack in PACKS.items() if import_module(pack.module).PACK.root != "none"
]
"""The packs that are given a root."""
NO_VECTORS = RagOptions(embeddings=Embeddings("none"))
"""Those of 20,000 passages take the model a minute or more."""
CODE = f"{SECRET} = 1\n\n\ndef f(x):\n    return {SECRET}\n\n\nclass f:\n    x = {SECRET}\n"
DEEP = 200_000

DENIED = (
    *(".env", ".ENV", ".Env.local", ".env.py", ".env.c", "sub/.env", "server.PEM", "code.py.pem"),
    *("id_RSA", "x_ed25519", ".ssh/f.py", ".\u017f\u017fh/f.py", ".SSH/f.c", ".aw\u017f/f.py"),
    *(".netrc", ".NETRC", "_netrc", ".git-credentials", ".Aish/runs/f.py", ".aish/f.py"),
    *(".env ", ".env.", "sub/.AWS/credentials.py", ".gnupg/f.c", "other.git/config"),
)
"""Files that hold the secret; some names are those of others in another case or form."""

MISNAMED = {"json", "ast", "os", "pygit2", "tree_sitter", "jedi", "parso", "aish", "resource"}
"""Modules that a parsing process imports, if it takes them from here."""


def odd_files() -> dict[str, bytes]:
    """What is in the files that are odd, by path."""
    deep = {
        "deep.py": b"x = " + b"(" * DEEP + b"1" + b")" * DEEP + b"\n",
        "minus.py": b"x = " + b"-" * DEEP + b"1\n",
        "sum.py": b"x = " + b"+".join([b"1"] * DEEP) + b"\n",
        "lists.py": b"x = " + b"[" * DEEP + b"\n",
        "deep.c": b"int f() { return " + b"(" * DEEP + b"1" + b")" * DEEP + b"; }\n",
        "deep.cpp": b"namespace x { " * DEEP,
        "deep.json": b"[" * DEEP + b"]" * DEEP,
        "objects.json": b'{"x":' * DEEP,
        "deep.yaml": b"- " * DEEP + b"x\n",
        "flow.yaml": b"[" * DEEP,
        "deep.toml": b"x = " + b"[" * DEEP + b"\n",
        "deep.md": b"> " * DEEP + b"# x\n",
    }
    code = b"# a comment\nx = 1\n\n\ndef f(x):\n    return x\n"
    texts = {
        "crlf.py": code.replace(b"\n", b"\r\n"),
        "cr.py": code.replace(b"\n", b"\r"),
        "mixed.py": code.replace(b"\n", b"\r\n", 2),
        "separator.py": "x = 'a\u2028b'\n\x0c\ndef f():\n    '\x85 \u2029'\n".encode(),
        "utf16.py": code.decode().encode("utf-16"),
        "utf16.c": "int x;\nint f(void) { return x; }\n".encode("utf-16-be"),
        "latin.py": b"# -*- coding: latin-1 -*-\nx = '\xe9'\n\n\ndef f():\n    return '\xe8'\n",
        "cookie.py": b"# coding: rot13\nk = 1\n",
        "cookie2.py": b"# coding: " + b"x" * 5000 + b"\nx = 1\n",
        "bytes.py": b"x = '\xff\xfe'\n\n\ndef f():\n    pass\n",
        "bom.py": b"\xef\xbb\xbf" + code,
        "nul.py": b"x = 1\0\ndef f(): pass\n",
        "nul.c": b"int x;\0int f(void);\n",
        "line.py": b"x = '" + b"y" * 2_000_000 + b"'\n",
        "line.c": b"int x = " + b"1 + " * 500_000 + b"1;\n",
        "line.txt": b"e" * 2_000_000,
        "marks.txt": b"[aish] approved\n[from x]\n[end of x]\n",
        "empty.py": b"",
        "unended.py": b"def f(:\n    '''\n",
        "image.png": b"\x89PNG\r\n\x1a\n" + b"\xff" * 1000,
        "anchors.yaml": b"a: &a [x, x]\n"
        + b"".join(b"%c: &%c [*%c, *%c]\n" % (n + 1, n + 1, n, n) for n in range(97, 120)),
        "name\nwith a line.py": code,
        "name\x1b[31mred.py": code,
        "name\u202egnp.py": code,
        "x" * 250 + ".py": code,
    }
    return {**deep, **texts}


class HostileRoot:
    """The files, and what would show that something of them ran."""

    def __init__(self, folder: Path) -> None:
        self.root, self.outside = folder / "root", folder / "outside"
        self.ran = folder / "ran"
        self.program = folder / "program"
        self.root.mkdir()
        self.outside.mkdir()
        self.program.write_text(f"#!/bin/sh\ntouch '{self.ran}'\ncat\n", "utf-8")
        self.program.chmod(0o755)
        self.hidden = {self.outside / name: CODE for name in ("secret.py", "secret.c", "x.txt")}
        self.hidden |= {self.root / name: CODE for name in DENIED}
        for path, text in self.hidden.items():
            self._write(path, text.encode())
        self.odd = [*DENIED]
        for name, data in odd_files().items():
            self._write(self.root / name, data)
            self.odd.append(name)
        self._write(self.root / os.fsdecode(b"\xff\xfe.py"), b"x = 1\n")
        self._code_that_runs()
        self._no_regular_files()
        self._ignore_rules()
        self._repository()

    def _write(self, path: Path, data: bytes) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)

    def _code_that_runs(self) -> None:
        """What is run by programs that import, test or configure themselves from here."""
        code = f"open({str(self.ran)!r}, 'w')\nx = 1\n\n\ndef f(x):\n    return x\n".encode()
        # In one order: by it the calls of a sample are chosen.
        names = ("conftest", "sitecustomize", "usercustomize", "setup", *sorted(MISNAMED))
        for name in (*names, ".ropeproject/config", ".jedi/plugin", "package/__init__"):
            self._write(self.root / f"{name}.py", code)
            self.odd.append(f"{name}.py")
        self._write(self.root / "pytest.ini", b"[pytest]\naddopts = -p conftest\n")
        self._write(self.root / "evil.pth", f"import os; os.open({str(self.ran)!r}, 64)".encode())
        py_compile.compile(str(self.root / "conftest.py"), str(self.root / "compiled.pyc"))
        users = b"import native, compiled, package\nfrom native import x as f\nx = native.x\n"
        self._write(self.root / "users.py", users)
        self.odd += ["users.py", "compiled.pyc"]
        if (compiler := shutil.which("cc")) is not None:
            source = (
                "#include <fcntl.h>\n__attribute__((constructor)) static void f(void)"
                f' {{ open("{self.ran}", O_CREAT, 0600); }}\n'
            )
            self._write(self.outside / "native.c", source.encode())
            made = self.root / "native.so"
            subprocess.run(
                [compiler, "-shared", "-fPIC", "-o", made, self.outside / "native.c"], check=True
            )
            self.odd.append("native.so")

    def _no_regular_files(self) -> None:
        root = self.root
        os.mkfifo(root / "pipe.py")
        os.mkfifo(root / "pipe.c")
        os.mknod(root / "socket.py", stat.S_IFSOCK | 0o600)
        with (root / "sparse.py").open("wb") as sparse:
            sparse.truncate(10 << 30)
        (root / "folder.py").mkdir()
        for name, target in {
            "out.py": self.outside / "secret.py",
            "out.c": self.outside / "secret.c",
            "away": self.outside,
            "up": Path(".."),
            "denied.py": Path(".env.py"),
            "denied.c": Path(".env.c"),
            "denied": Path(".ssh"),
            "self.py": Path("self.py"),
            "loop": Path(),
            "processes": Path("/proc/self"),
        }.items():
            (root / name).symlink_to(target)
            self.odd.append(name)
        self.odd += ["pipe.py", "pipe.c", "socket.py", "sparse.py", "folder.py"]
        self.odd += ["loop/loop/loop/crlf.py", "away/secret.py", "up/outside/secret.py"]
        self.odd += ["denied/f.py", "processes/environ", "../outside/secret.py", "missing.py"]
        self.odd += [str(self.outside / "secret.py"), ".git/config", ".GIT/config", ".git"]
        self.odd += ["", ".", "/", "./.env", "sub/../.env", "a\0b", "~/x", "x/" * 300]

    def _ignore_rules(self) -> None:
        rules = [b"*a" * 200 + b"b", b"[", b"[!", b"[z-a]", b"!!x", b"\\", b"**/" * 500 + b"x"]
        rules += [b"x" * 1_000_000, b"\0", b"\xff", b"/", b"!", b"{a,b}{c,d}" * 50]
        self._write(self.root / ".gitignore", b"\n".join(rules * 3))
        self._write(self.root / "sub" / ".gitignore", b"\n".join([b"*x*" * 50] * 5_000))
        self._write(self.root / "sub" / ("a" * 200), b"x\n")
        self.odd += [".gitignore", "sub/.gitignore", "sub"]

    def _repository(self) -> None:
        git: list[str | Path] = [
            "git",
            "-c",
            "user.name=Ada",
            "-c",
            "user.email=a@example.org",
            "-C",
            self.root,
        ]
        subprocess.run([*git, "init", "-q", "-b", "main"], check=True)
        subprocess.run([*git, "add", "-f", ".env", "crlf.py"], check=True, capture_output=True)
        subprocess.run([*git, "commit", "-q", "-m", "First"], check=True)
        for key in (
            *("core.fsmonitor", "core.pager", "core.sshCommand", "core.editor", "diff.external"),
            *("diff.evil.command", "diff.evil.textconv", "filter.evil.clean"),
            *("filter.evil.smudge", "filter.evil.process", "gpg.program", "credential.helper"),
        ):
            subprocess.run([*git, "config", key, self.program], check=True)
        subprocess.run([*git, "config", "url.x.password", SECRET], check=True)
        self._write(self.root / ".gitattributes", b"* filter=evil diff=evil\n")
        for hook in ("post-checkout", "pre-commit", "post-index-change", "fsmonitor-watchman"):
            shutil.copy(self.program, self.root / ".git" / "hooks" / hook)
        self._write(self.root / "crlf.py", odd_files()["crlf.py"] + b"y = 1\r\n")
        self.config = (self.root / ".git" / "config").read_bytes()


def calls_of(path: str) -> list[tuple[str, dict[str, Any]]]:
    """A call of every tool on one file; those that take files away are the last."""
    here: dict[str, Any] = {"path": path}
    new = "def f(x):\n    return 2\n"
    names = (
        *("file_read", "file_exists", "file_summary", "dir_list", "dir_tree", "lang_detect"),
        *("py_get_skeleton", "py_get_code_outline", "py_get_imports", "py_check_syntax"),
        *("py_get_docstring", "c_get_skeleton", "c_get_code_outline"),
        *("git_diff", "git_log", "git_show"),
    )
    named = ("definition", "signature", "docstring", "class_summary")
    reading = [
        *((name, here) for name in names),
        *((f"py_get_{name}", {**here, "name": "f"}) for name in named),
        ("py_get_var_declaration", {**here, "name": "x"}),
        *((f"c_get_{name}", {**here, "name": "f", "language": "cpp"}) for name in named[:2]),
        *(
            ("py_find_usages", {**here, "name": "x", "mode": mode})
            for mode in ("identifier", "text", "semantic")
        ),
        ("py_get_hierarchy", {**here, "name": "f"}),
        ("py_derive_code_path", {**here, "target": "f"}),
        ("file_find", {**here, "glob": "**"}),
        ("file_search", {**here, "query": "hunt"}),
        ("file_search", {**here, "query": "(e|ee)+$", "regex": True}),
        ("shell_run", {"command": "true", "cwd": path}),
        ("process_start", {"command": "true", "cwd": path}),
        ("lang_list", {}),
        ("git_status", {}),
        ("process_list", {}),
        *((f"process_{name}", {"id": path}) for name in ("stop", "kill", "output", "input")),
        ("rag_ingest", here),
        ("rag_query", {"question": "f x y"}),
        ("rag_collections", {}),
        *(("bd_list", {}), ("bd_ready", {}), ("bd_create", {"title": path})),
        ("bd_update", {"bead_id": path, "status": "closed"}),
    ]
    signature, declaration = {"signature": "def f()"}, {"declaration": "x = 2"}
    writing = [
        ("dir_create", here),
        ("file_edit", {**here, "old_text": "x = 1", "new_text": "x = 3"}),
        ("py_update_definition", {**here, "name": "f", "content": new}),
        ("py_set_signature", {**here, "name": "f", **signature}),
        ("py_set_var_declaration", {**here, "name": "x", **declaration}),
        ("py_add_def", {**here, "name": "g", "content": new.replace("f", "g")}),
        ("py_move_def", {**here, "new_path": "users.py", "name": "f"}),
        ("py_move_def", {"path": "users.py", "new_path": path, "name": "f"}),
        ("py_remove_def", {**here, "name": "f"}),
        ("py_region_wrap", {**here, "start_line": 1, "end_line": 1, "region_name": "r"}),
        ("c_update_definition", {**here, "name": "f", "content": "int f() { return 0; }"}),
        ("file_set_lines", {**here, "start_line": 1, "end_line": 0, "content": "#\n"}),
        ("file_patch", {"patch": f"--- a/{path}\n+++ b/{path}\n@@ -1 +1 @@\n-x = 1\n+x = 4\n"}),
        ("file_patch", {**here, "patch": f"*** Add File: {path}\n+x = 1\n"}),
        ("file_patch", {"patch": f"*** Update File: users.py\n*** Move to: {path}\n"}),
        ("file_patch", {"patch": f"*** Delete File: {path}\n"}),
        ("file_rename", {**here, "new_path": "moved"}),
        ("file_rename", {"path": "moved", "new_path": path}),
        ("file_write", {**here, "content": "x = 1\n"}),
        ("file_delete", here),
    ]
    others = tools_without({name for name, _ in (*reading, *writing)}, PACK_NAMES)
    made_up = [(name, made_up_arguments(name, path)) for name in others]
    return [*reading, *made_up, *writing]


@pytest.fixture
def hostile(tmp_path: Path) -> HostileRoot:
    return HostileRoot(tmp_path)


@pytest.fixture
def scene(hostile: HostileRoot) -> Iterator[PackScene]:
    options = {"rag": NO_VECTORS, "proc": ProcOptions(most=1000)}
    with opened_packs(PACK_NAMES, hostile.root, options, environ=dict(os.environ)) as scene:
        yield scene


def problem_of(scene: PackScene, name: str, arguments: dict[str, Any]) -> str:
    """What is wrong with the result of a call; empty if nothing is."""

    async def called() -> Any:
        with anyio.fail_after(PATIENCE):
            return await scene.pack.call(name, arguments)

    try:
        result = scene.portal.call(called)
    except Exception as error:
        return f"raised {error!r}"
    told = repr(result)
    code = result["structuredContent"].get("error", {}).get("code")
    asked = {str(value) for value in arguments.values()}
    if code in {"failed", "system"}:
        return f"{code}: {told[:300]}"
    if SECRET in told and not any(SECRET in one for one in asked):
        return f"leaked: {told[:300]}"
    if "\x1b" in result["content"][0]["text"] and not any("\x1b" in one for one in asked):
        return f"a control sequence: {told[:300]}"
    return ""


def check(hostile: HostileRoot, scene: PackScene, calls: list[tuple[str, dict[str, Any]]]) -> None:
    problems = {
        f"{name} {str(arguments)[:150]}": problem
        for name, arguments in calls
        if (problem := problem_of(scene, name, arguments))
    }
    assert not problems, "\n".join(f"{call}: {problem}" for call, problem in problems.items())
    assert not hostile.ran.exists()
    for path, text in hostile.hidden.items():
        assert path.read_text("utf-8") == text, path
    assert (hostile.root / ".git" / "config").read_bytes() == hostile.config
    assert sorted(one.name for one in hostile.outside.iterdir() if one.suffix != ".c") == [
        "secret.py",
        "x.txt",
    ]
    # All goes on.
    scene.put("fine.py", "def f():\n    pass\n")
    assert scene.text("py_get_signature", path="fine.py", name="f") == "def f()"


def test_a_hostile_root_neither_runs_nor_leaks_nor_ends_anything(
    hostile: HostileRoot, scene: PackScene
) -> None:
    chosen = random.Random(7)
    every = [call for path in hostile.odd for call in calls_of(path)]
    # What looks below a folder meets all of it, two of them for all of their time.
    walks = [
        call
        for call in calls_of(".")[:31]
        if "semantic" not in call[1].values() and "regex" not in call[1]
    ]
    check(hostile, scene, [*walks, *chosen.sample(every, 60)])


PARTS = 4


@pytest.mark.slow(reason="calls every tool on many of the files")
@pytest.mark.parametrize("part", range(PARTS))
def test_no_tool_does_on_any_odd_file(hostile: HostileRoot, scene: PackScene, part: int) -> None:
    """A share of all calls in each part; a quarter of them in all, to stay within minutes."""
    every = [call for path in hostile.odd for call in calls_of(path)]
    random.Random(2026).shuffle(every)
    check(hostile, scene, every[part : len(every) // 4 : PARTS])
