"""Each failure that a tool declares: a call that ends so, or the reason why none is here (K89)."""

import json
import os
import stat
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from pack_arguments import declared_tools, made_up_arguments, tools_without
from pack_scenes import PackScene, opened_packs
from web_server import WebServer, answer

from aish.packs.browser.browser_options import BrowserOptions
from aish.packs.catalogue import PACKS, tool_marks
from aish.packs.command_options import ProcOptions
from aish.packs.metrics_options import MetricsOptions
from aish.packs.rag.rag_options import Embeddings, RagOptions
from aish.packs.web.web_options import SearchBackend, WebOptions

Call = tuple[str, dict[str, Any]]

CODE = b"""x = 1
y = 1
y = 2


def f(a):
    return a


def g():
    return f(x)


def twice():
    return 1


def twice():
    return 2


class C:
    def f(self):
        return f(1)


class D:
    pass


class D:
    pass
"""
C_CODE = b"""int f(int a) {
    return a;
}
#ifdef X
int twice(void) { return 1; }
#else
int twice(void) { return 2; }
#endif
"""
NEW = "def f(a):\n    return 2\n"
CHANGED = {"expect_sha256": "0" * 64}

GOOD: dict[str, dict[str, Any]] = {
    "file_read": {},
    "file_write": {"content": "x = 2\n"},
    "file_delete": {},
    "file_rename": {"new_path": "new.py"},
    "file_exists": {},
    "file_find": {"glob": "*"},
    "file_search": {"query": "x"},
    "file_summary": {},
    "dir_list": {},
    "dir_create": {},
    "dir_tree": {},
    "file_edit": {"old_text": "x = 1", "new_text": "x = 2"},
    "file_set_lines": {"start_line": 1, "end_line": 1, "content": "x = 2\n"},
    "lang_detect": {},
    "py_get_skeleton": {},
    "py_get_code_outline": {},
    "py_get_definition": {"name": "f"},
    "py_get_signature": {"name": "f"},
    "py_get_docstring": {"name": "f"},
    "py_get_class_summary": {"name": "C"},
    "py_get_var_declaration": {"name": "x"},
    "py_get_imports": {},
    "py_check_syntax": {},
    "py_find_usages": {"name": "x"},
    "py_get_hierarchy": {"name": "C"},
    "py_derive_code_path": {"target": "g"},
    "py_update_definition": {"name": "f", "content": NEW},
    "py_set_signature": {"name": "f", "signature": "def f()"},
    "py_set_var_declaration": {"name": "x", "declaration": "x = 2"},
    "py_add_def": {"name": "h", "content": "def h(): ...\n"},
    "py_remove_def": {"name": "f"},
    "py_move_def": {"name": "f", "new_path": "other.py"},
    "py_region_wrap": {"start_line": 1, "end_line": 1, "region_name": "r"},
    "c_get_skeleton": {},
    "c_get_code_outline": {},
    "c_get_definition": {"name": "f"},
    "c_get_signature": {"name": "f"},
    "c_update_definition": {"name": "f", "content": "int f(int a) {\n    return 0;\n}\n"},
    "git_diff": {},
    "git_log": {},
    "git_show": {},
    "rag_ingest": {},
}
"""A good call of each tool that has a `path`, without it."""

PATHS = (
    *("line\nbreak", "../x", "missing", "folder", "a.EXT/x", "socket", "binary", "big", "larger"),
    *(".git/x", "latin", "read-only", "broken", "out", "cookie", "huge", ".env.x", "a"),
)
"""What is given as `path`, with `.py` or `.c` at its end."""


def files(end: str) -> Mapping[str, bytes]:
    code = C_CODE if end == ".c" else CODE
    cookie = b"/* \xe9 */\n" if end == ".c" else b"# coding: latin-1\n# \xe9\n"
    return {
        "a": code,
        "other": b"k = 1\n",
        "binary": b"\0\1" + code,
        "cookie": b"# coding: rot13\n" + code,
        "latin": cookie + code,
        "read-only": code,
        "broken": b"def f(:\n" + code if end == ".py" else b"int f( {{{\n" + code,
    }


def prepare(root: Path) -> None:
    """The files as they are before each call that may change some."""
    for end in (".py", ".c"):
        for name, data in files(end).items():
            path = root / f"{name}{end}"
            path.unlink(missing_ok=True)
            path.write_bytes(data)
        for name, size in (("big", 3 << 20), ("larger", 9 << 20), ("huge", 65 << 20)):
            with (root / f"{name}{end}").open("wb") as sparse:
                sparse.write(b"\x89PNG\r\n\x1a\n" if name == "larger" else CODE)
                sparse.truncate(size)
        (root / f"read-only{end}").chmod(0o444)
        (root / f"folder{end}").mkdir(exist_ok=True)
        (root / f"folder{end}" / "inner.txt").write_text("x", "utf-8")
        if not (root / f"socket{end}").exists():
            os.mknod(root / f"socket{end}", stat.S_IFSOCK | 0o600)
        if not (root / f"out{end}").is_symlink():
            (root / f"out{end}").symlink_to("/etc/hostname")
        if (made := root / f"missing{end}").is_dir():
            made.rmdir()
        made.unlink(missing_ok=True)
    (root / "new.py").unlink(missing_ok=True)


def of_paths() -> Iterator[Call]:
    """Every tool with every odd path."""
    for name in [*GOOD, *tools_without(set(GOOD), list(PACKS))]:
        if "path" not in made_up_arguments(name, "a.py"):
            continue
        good = GOOD.get(name, {**made_up_arguments(name, "a.py")})
        end = ".c" if name.startswith("c_") else ".py"
        # A process for each call: three of them answer before it starts.
        for path in PATHS if not name.startswith("git_") else ("line\nbreak", "../x", ".env.x"):
            yield name, {**good, "path": path.replace(".EXT", end) + end}
        if not tool_marks()[name].read_only and name != "dir_create":
            yield name, {**good, "path": f"a{end}", **CHANGED}
        yield name, {**good, "path": f"a{end}", "odd": 1}
        if "name" in good:
            for symbol in ("missing", "twice", "f..g"):
                changed = {
                    key: value.replace("f(", f"{symbol}(") if isinstance(value, str) else value
                    for key, value in good.items()
                }
                yield name, {**changed, "path": f"a{end}", "name": symbol}


BEADS: list[Call] = [
    ("bd_list", {}),
    ("bd_ready", {}),
    ("bd_create", {"title": "x"}),
    ("bd_update", {"bead_id": "app-1", "status": "open"}),
]
IDE = [name for name, marks in tool_marks().items() if marks.pack == "ide"]
IDE_FINDS = (
    *(("chat_history", "session_id"), ("plan_status", "session_id")),
    *(("build_status", "build_id"), ("build_logs", "build_id")),
)

FOLDERS = ("a\nb", "../x", "missing.py", "a.py", "out.py")
EURO = "x = '\u20ac'\n"
BROWSER: list[Call] = [
    ("browser_click", {"selector": "a"}),
    ("browser_type", {"selector": "a", "text": "x"}),
    ("browser_wait", {"selector": "a"}),
    ("browser_eval", {"script": "1"}),
    *((name, {}) for name in ("browser_query", "browser_console", "browser_screenshot")),
    *(("browser_connect", given) for given in ({}, {"debug_url": "http://127.0.0.1:1"})),
    *(("browser_navigate", {"url": url}) for url in ("about:blank", "file:///etc/passwd")),
    *((name, {"path": "x"}) for name, marks in tool_marks().items() if marks.pack == "browser"),
]
SPECIAL: list[Call] = [
    *BROWSER,
    ("file_read", {"path": "a.py", "start_line": 9, "end_line": 3}),
    ("file_write", {"path": "latin.py", "content": EURO}),
    ("file_write", {"path": "a.py", "content": "x" * (9 << 20)}),
    ("file_write", {"path": "missing/x", "content": "x", "create_folders": False}),
    ("file_rename", {"path": "a.py", "new_path": "other.py"}),
    ("file_search", {"path": "a.py", "query": "(x|xx)+$", "regex": True}),
    ("file_edit", {"path": "latin.py", "old_text": "x = 1\n", "new_text": EURO}),
    ("file_edit", {"path": "a.py", "old_text": "nothing", "new_text": ""}),
    ("file_edit", {"path": "a.py", "old_text": "y", "new_text": ""}),
    ("file_edit", {"path": "a.py", "old_text": "x = 1", "new_text": "x = ("}),
    ("file_set_lines", {"path": "latin.py", "start_line": 2, "end_line": 2, "content": EURO}),
    ("file_set_lines", {"path": "a.py", "start_line": 1, "end_line": 1, "content": "x = ("}),
    ("file_set_lines", {"path": "a.py", "start_line": 99, "end_line": 99, "content": ""}),
    ("py_find_usages", {"path": "missing.py", "name": "x", "mode": "text"}),
    ("py_derive_code_path", {"path": "a.py", "target": "missing"}),
    ("py_derive_code_path", {"path": "a.py", "target": "twice"}),
    ("py_derive_code_path", {"path": ".", "target": "g"}),
    ("py_get_class_summary", {"path": "a.py", "name": "D"}),
    ("py_get_hierarchy", {"path": "a.py", "name": "D"}),
    ("py_update_definition", {"path": "a.py", "name": "f", "content": "def g(): ...\n"}),
    ("py_update_definition", {"path": "latin.py", "name": "f", "content": f"def f():\n    {EURO}"}),
    ("py_set_signature", {"path": "a.py", "name": "f", "signature": "def g()"}),
    ("py_set_signature", {"path": "latin.py", "name": "f", "signature": "def f(a='\u20ac')"}),
    ("py_set_var_declaration", {"path": "a.py", "name": "x", "declaration": "z = 1"}),
    ("py_set_var_declaration", {"path": "a.py", "name": "y", "declaration": "y = 3"}),
    ("py_set_var_declaration", {"path": "latin.py", "name": "x", "declaration": EURO}),
    ("py_add_def", {"path": "a.py", "name": "f", "content": NEW}),
    ("py_add_def", {"path": "a.py", "name": "h", "content": "x = 1\n"}),
    ("py_add_def", {"path": "latin.py", "name": "h", "content": f"def h():\n    {EURO}"}),
    *(
        (
            "py_add_def",
            {
                "path": "a.py",
                "name": "h",
                "content": "def h(): ...\n",
                "anchor_type": "before",
                "anchor_symbol": symbol,
            },
        )
        for symbol in ("missing", "twice")
    ),
    ("py_move_def", {"path": "a.py", "new_path": "broken.py", "name": "f"}),
    ("py_move_def", {"path": "a.py", "new_path": "a.py", "name": "f", "new_name": "g"}),
    ("py_region_wrap", {"path": "a.py", "start_line": 99, "end_line": 99, "region_name": "r"}),
    (
        "py_region_wrap",
        {"path": "latin.py", "start_line": 3, "end_line": 3, "region_name": "\u20ac"},
    ),
    ("c_update_definition", {"path": "a.c", "name": "f", "content": "int g(void) { return 0; }"}),
    ("c_update_definition", {"path": "a.c", "name": "f", "content": "int f(int a) { return (; }"}),
    ("c_get_skeleton", {"path": "other.py"}),
    ("c_update_definition", {"path": "a.py", **GOOD["c_update_definition"]}),
    ("git_status", {"odd": 1}),
    ("git_status", {}),
    *((f"git_{name}", {"revision": "missing"}) for name in ("diff", "log", "show")),
    ("lang_list", {"odd": 1}),
    *(("shell_run", {"command": "true", "cwd": cwd}) for cwd in FOLDERS),
    *(("process_start", {"command": "true", "cwd": cwd}) for cwd in FOLDERS),
    ("shell_run", {"command": ""}),
    ("shell_run", {"command": "sleep 100", "timeout_seconds": 1}),
    ("shell_run", {"command": "true", "shell": "pwsh"}),
    ("process_start", {"command": ""}),
    ("process_start", {"command": "no-such-program"}),
    ("process_start", {"command": "./a.py"}),
    ("process_start", {"command": "sleep", "args": ["100"]}),
    ("process_start", {"command": "sleep", "args": ["100"]}),
    ("process_list", {"odd": 1}),
    *((f"process_{name}", {"id": 1}) for name in ("stop", "kill", "output", "input")),
    *((f"process_{name}", {"id": "p9"}) for name in ("stop", "kill", "output", "input")),
    (
        "c_update_definition",
        {
            "path": "latin.c",
            **GOOD["c_update_definition"],
            "content": "int f(int a) {\n    return '\u20ac';\n}\n",
        },
    ),
    ("web_fetch", {"odd": 1}),
    ("web_fetch", {"url": "http://127.0.0.1:1/"}),
    ("web_fetch", {"url": "URL/missing"}),
    ("web_fetch", {"url": "URL/binary"}),
    ("web_fetch", {"url": "URL/large"}),
    ("web_fetch", {"url": "URL/gone"}),
    ("web_search", {"query": ""}),
    ("web_search", {"query": "x"}),
    ("web_search", {"query": "x", "backend": "brave"}),
    ("metrics_record", {"type": ""}),
    ("metrics_record", {"type": "a"}),
    ("metrics_record", {"type": "a", "data": {"x": "y" * 9_000}}),
    ("metrics_query", {"since": "soon"}),
    ("metrics_query", {}),
    *((name, {"odd": 1}) for name in IDE),
    *((f"ide_{name}", {key: "missing"}) for name, key in IDE_FINDS),
    ("ide_session_create", {"name": ""}),
    ("ide_chat_send", {"session_id": "missing", "message": "x"}),
    *[("ide_session_create", {"name": "x"})] * 33,
    ("ide_chat_send", {"session_id": "chat-1", "message": "x"}),
    ("ws_start", {"address": "nowhere"}),
    ("ws_start", {"address": "0.0.0.0:0"}),
    ("ws_start", {}),
    ("ws_start", {"address": "127.0.0.2:0"}),
    ("ws_info", {"odd": 1}),
    ("ml_generate", {"prompt": ""}),
    ("ml_generate", {"prompt": "x"}),
    ("ml_score", {"prompt": "x"}),
    ("ml_score", {"prompt": "x", "response": "y", "suite": "semantic"}),
    ("ml_probe", {"categories": ["odd"]}),
    ("ml_probe", {"categories": ["logic"]}),
    ("ml_status", {"since": "soon"}),
    ("ml_status", {}),
    ("ml_backends", {"odd": 1}),
    ("rag_query", {"question": ""}),
    ("rag_query", {"question": "x", "collection": "missing"}),
    ("rag_query", {"question": "x", "collection": "damaged"}),
    ("rag_ingest", {"path": "a.py", "collection": "damaged"}),
    ("rag_ingest", {"path": "a.py", "collection": "lexical"}),
    ("rag_ingest", {"path": "a.py", "collection": "linked"}),
    ("rag_collections", {"odd": 1}),
    ("perf_stats", {"odd": 1}),
    *((f"bd_{name}", {"odd": 1}) for name in ("list", "ready", "create", "update")),
    *BEADS,
    ("dir_create", {"path": ".beads"}),
    BEADS[-1],
    ("dir_create", {"path": ".beads/issues.jsonl"}),
    *BEADS,
    ("dir_create", {"path": ".beads/dolt"}),
    *BEADS,
]


MACHINE = {"failed", "system"}
"""What no call is to provoke."""
READ_PY = {
    f"py_get_{name}"
    for name in (
        *("skeleton", "code_outline", "definition", "signature", "docstring", "class_summary"),
        *("var_declaration", "imports", "hierarchy"),
    )
} | {"py_find_usages", "py_derive_code_path"}
EDIT_PY = {
    "py_update_definition",
    "py_set_signature",
    "py_set_var_declaration",
    "py_add_def",
    "py_remove_def",
    "py_move_def",
}
READ_C = {"c_get_skeleton", "c_get_code_outline", "c_get_definition", "c_get_signature"}
READ_FILE = {"file_read", "file_exists", "file_search", "file_summary"}
GIT = {"git_status", "git_diff", "git_log", "git_show"}

ASK = {"ml_generate", "ml_score", "ml_probe"}

IN_PAGE = {"browser_click", "browser_type", "browser_screenshot"}
"""What these do in a page: test_packs_browser."""
NOT_HERE: Mapping[str, tuple[str, set[str]]] = {
    "changed": ("only if another program changes a file that it has just read", {"py_rename"}),
    "ambiguous": (
        "readers return all of several definitions (K30); the catalogue gives the group of codes",
        READ_C | READ_PY - {"py_get_docstring", "py_get_class_summary", "py_derive_code_path"},
    ),
    "no_match": (
        "these name nothing, or find nothing, which is no failure",
        {
            *("c_get_skeleton", "c_get_code_outline", "py_find_usages"),
            *("py_get_skeleton", "py_get_code_outline", "py_get_imports"),
        }
        | IN_PAGE,
    ),
    "not_a_file": (
        "these take folders",
        {
            *("dir_create", "dir_list", "dir_tree", "file_exists", "file_find", "file_search"),
            *("py_find_usages", "py_get_hierarchy", "py_derive_code_path", "py_rename"),
        },
    ),
    "not_a_folder": (
        "what is below a file is not there, for one that reads",
        READ_FILE | READ_C | READ_PY | {"py_check_syntax", "py_rename", "rag_ingest"},
    ),
    "not_found": ("what is missing is their answer, or made", {"dir_create", "file_exists"}),
    "not_installed": (
        "only without the libraries of an extra: test_e2e_every_tool, test_packs_rag",
        {"rag_query", "rag_ingest", "perf_stats"},
    ),
    "syntax": (
        "broken code is read; `file_write` writes it, and `py_rename` keeps what it is",
        READ_C | READ_PY | {"file_write", "py_rename"},
    ),
    "limit": (
        "needs a model that answers: test_packs_ml, test_e2e_ml, test_packs_ide",
        {"ide_chat_send", *ASK},
    ),
    "timeout": (
        "takes its whole time: test_packs_(proc, web, rag, ml, browser)",
        {
            "ide_chat_send",
            "web_fetch",
            "web_search",
            "process_input",
            "rag_query",
            "rag_ingest",
            *ASK,
        }
        | {"browser_connect", "browser_navigate", "browser_query", "browser_eval", "browser_wait"}
        | IN_PAGE,
    ),
    "too_large": ("in a page: test_packs_browser", {"browser_eval", "browser_screenshot"}),
    "too_slow": (
        "takes its whole time, or a killed process: test_packs_(parse_worker, find, issues)",
        READ_C
        | READ_PY
        | EDIT_PY
        | GIT
        | {"c_update_definition", "file_search", "file_summary", "py_check_syntax", "web_fetch"}
        | {"py_rename"}
        | {name for name, _ in BEADS},
    ),
    "unavailable": (
        "a shell that cannot be started; what is down or taken: test_packs_rag, _ws, _ide",
        {"shell_run", "rag_ingest", "ws_start", "browser_connect", "browser_navigate", *IDE}
        - {"ide_chat_send", "ide_dashboard_overview"},
    ),
    "unsupported": (
        "what is no Python file: test_packs_py",
        EDIT_PY | {"py_check_syntax", "py_region_wrap"},
    ),
    "unwritable": (
        "a folder without rights, or a full disk: test_packs_writing",
        {"dir_create", "file_delete", "file_rename"},
    ),
}
"""Codes that no call here ends with: why, and of which tools."""


LEXICAL = RagOptions(embeddings=Embeddings("none"))


@pytest.fixture
def box(tmp_path: Path) -> Iterator[tuple[PackScene, str]]:
    root = tmp_path / "root"
    root.mkdir()
    prepare(root)
    pages = {
        "/binary": answer(b"\0", "application/octet-stream"),
        "/large": answer(b"x" * (6 << 20)),
        "/gone": b"",
    }
    with WebServer(pages) as server:
        web = WebOptions(
            search=(SearchBackend("searxng", server.url),), allow=(server.destination,)
        )
        # A file is where the folder of events would be.
        (tmp_path / "metrics").touch()
        metrics = MetricsOptions(folder=tmp_path)
        # No browser is started here: test_packs_browser does that.
        browser = BrowserOptions(program="/nowhere/chromium")
        options = {
            "proc": ProcOptions(sandbox="off", most=1),
            "web": web,
            "browser": browser,
            "metrics": metrics,
        }
        with opened_packs(["rag"], root, {"rag": LEXICAL}) as scene:
            scene.data("rag_ingest", path="a.py", collection="lexical")
        store = root / ".aish" / "rag"
        (store / "damaged.sqlite").write_bytes(b"x" * 5000)
        (store / "linked.lock").symlink_to("/dev/null")
        with opened_packs(list(PACKS), root, options, environ=dict(os.environ)) as scene:
            yield scene, server.url


def is_shown_elsewhere(name: str, code: str) -> bool:
    """Whether a test of this folder has the names of the tool and of the failure in it."""
    return any(f'"{name}"' in text and f'"{code}"' in text for text in other_tests())


@cache
def other_tests() -> list[str]:
    here = Path(__file__)
    return [
        each.read_text("utf-8") for each in here.parent.glob("test_*.py") if each.name != here.name
    ]


@pytest.mark.requirement("K15")
def test_every_failure_that_a_tool_declares_occurs(box: tuple[PackScene, str]) -> None:
    scene, url = box
    seen: set[tuple[str, str]] = set()
    for name, arguments in [*of_paths(), *SPECIAL]:
        given = {
            key: value.replace("URL", url) if isinstance(value, str) else value
            for key, value in arguments.items()
        }
        result = scene.call(name, **given)
        if result["isError"]:
            seen.add((name, result["structuredContent"]["error"]["code"]))
        elif not tool_marks()[name].read_only:
            prepare(scene.root)
    missing: dict[str, set[str]] = {}
    for name, tool in declared_tools().items():
        for code in set(tool.codes) - {code for one, code in seen if one == name} - MACHINE:
            missing.setdefault(code, set()).add(name)
    known = {(name, code) for code, (_, tools) in NOT_HERE.items() for name in tools}
    lacking = {(name, code) for code, tools in missing.items() for name in tools}
    assert known <= lacking
    # Root, as which tests may run, reads what it has no rights to.
    lacking = {(name, code) for name, code in lacking - known if code != "unreadable"}
    assert not {one for one in lacking if not is_shown_elsewhere(*one)}
    # None of these calls meets a defect or a fault of the machine.
    assert not {one for one in seen if one[1] in MACHINE}


ODD_TEXTS = ("\ud800", "\udcff\0", "", "\u2028\n", "x" * 5_000)


def of_odd_texts() -> Iterator[Call]:
    """Every tool with texts in each of its parameters that are none, or no names."""
    others: dict[str, dict[str, Any]] = {
        **{name: {} for name in ("git_status", "lang_list", "process_list", "metrics_query")},
        "perf_stats": {},
        "metrics_record": {"type": "a"},
        **dict(BEADS),
    }
    others["rag_query"] = {"question": "x"}
    others["ml_score"] = {"prompt": "x", "response": "y"}
    others["ml_generate"] = {"prompt": "x"}
    for name, tool in declared_tools().items():
        good = {**GOOD.get(name, others.get(name, {"command": "true", "id": "p1"}))}
        properties: Any = tool.input_schema["properties"]
        good = {key: value for key, value in {"path": "a.py", **good}.items() if key in properties}
        for key, schema in properties.items():
            if schema.get("type") != "string" or "enum" in schema:
                continue
            # Of git, which starts a process for each call, only some.
            for odd in ODD_TEXTS if not name.startswith("git_") else ODD_TEXTS[:2]:
                yield name, {**good, key: odd}


@pytest.mark.slow(reason="calls each tool with odd texts")
def test_odd_texts_are_failures_that_can_be_sent(box: tuple[PackScene, str]) -> None:
    scene, _ = box
    for name, arguments in of_odd_texts():
        result = scene.call(name, **arguments)
        json.dumps(result, ensure_ascii=False).encode()
        code = result["structuredContent"].get("error", {}).get("code")
        # The process has ended, so its input is closed.
        assert code not in MACHINE or name == "process_input", (name, arguments, result)
        if code is None and not tool_marks()[name].read_only:
            prepare(scene.root)
