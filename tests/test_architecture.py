"""The floors and the rooms of design 10, held by reading the source."""

import ast
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "aish"

# Third-party packages a room may import (design 10.2); the longest matching path decides.
# `anyio` comes with async code and may be wherever there is I/O.
ALLOWED = {
    "": set(),
    "api.py": {"anyio"},
    "pytest_plugin.py": {"pytest"},
    "cli/": {"typer", "anyio"},
    "cli/importing/templates.py": {"jinja2"},
    "engine/": {"anyio"},
    "features/": {"anyio"},
    "features/cluster/": {"anyio", "dask", "distributed"},
    "agent/": {"anyio"},
    "models/": {"anyio"},
    "models/pricing.py": {"genai_prices"},
    "models/transport.py": {"anyio", "httpx"},
    "models/embedded_server.py": {"xllamacpp"},
    "mcp/": {"anyio"},
    "mcp/transports/http.py": {"anyio", "httpx"},
    "config/": {"ruamel", "jsonschema"},
    "templates/": {"jinja2"},
    "templates/sandbox.py": {"jinja2", "ruamel"},
    "policy/": {"anyio"},
    "packs/": {"anyio"},
    "packs/git_child.py": {"pygit2"},
    "cassettes/": {"anyio"},
    "cassettes/http.py": {"anyio", "httpx"},
    "cassettes/layout.py": {"yaml"},
    "cassettes/scrub.py": {"yaml"},
    "cassettes/reading.py": {"yaml"},
    "cassettes/vcrpy.py": {"vcr"},
    "items/": set(),
    "reports/": set(),
    "reports/otel/export.py": {"opentelemetry", "requests"},
    "shell/": {"anyio"},
    "shell/input/": {"anyio", "prompt_toolkit"},
    "journal/": set(),
    "output/": {"rich"},
    "output/markdown/": {"markdown_it"},
    "terminal/": {"anyio", "rich"},
    "system/": {"anyio", "jsonschema", "platformdirs"},
    "system/schema/worker_process.py": {"jsonschema", "referencing"},
    "core/": set(),
}
# Who may read a clock in tests: to give up a wait for what never comes, and for a log of times.
CLOCKS = {"monotonic", "perf_counter", "process_time", "thread_time", "clock_gettime", "getrusage"}
MAY_WAIT = {
    *("fork_server.py", "mcp_peers.py", "model_endpoint.py", "shell_demo.py"),
    "terminal_window.py",
}
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
    ]

    assert fuller == []


def test_no_module_has_a_name_that_says_nothing() -> None:
    vague = {"utils", "util", "helpers", "helper", "common", "manager", "misc"}

    assert [name_of(path) for path in modules() if path.stem in vague] == []


def test_no_task_outlives_its_scope() -> None:
    loose = [
        f"{name_of(path)}:{node.lineno}"
        for path in modules()
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Attribute) and node.attr in {"create_task", "ensure_future"}
    ]

    assert loose == []


@pytest.mark.requirement("L3")
def test_one_module_opens_sockets_to_models() -> None:
    rooms = {
        name_of(path)
        for path in modules()
        for _, name in imported_by(tree_of(path))
        if name.split(".")[0] == "httpx"
    }

    # The tape's transport wraps the others and opens nothing itself.
    wrapping = {"cassettes/http.py"}
    assert rooms - wrapping <= {"models/transport.py", "mcp/transports/http.py"}


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


def test_the_map_names_files_that_are_there() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")

    named = set(re.findall(r"(?<![\w/])(?:[a-z_0-9]+/)+[a-z_0-9]+\.py", text))

    assert len(named) > 40
    assert [
        name for name in named if not any((top / name).exists() for top in (ROOT, PACKAGE))
    ] == []


def test_no_test_judges_by_a_clock() -> None:
    """Work is counted (`tests/support/work.py`), waits are watched (`tests/support/waits.py`)."""
    read = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in sorted((ROOT / "tests").rglob("*.py"))
        if path.parent.name != "support" or path.name not in MAY_WAIT
        for node in ast.walk(tree_of(path))
        if isinstance(node, (ast.Call, ast.ImportFrom)) and not CLOCKS.isdisjoint(_clocks(node))
    ]

    assert read == []


def _clocks(node: ast.Call | ast.ImportFrom) -> set[str]:
    """The names that a call calls, or an import brings, without the `_ns` of a clock."""
    if isinstance(node, ast.ImportFrom):
        names = {alias.name for alias in node.names} if node.module in {"time", "resource"} else ()
    elif isinstance(node.func, ast.Attribute):
        own = isinstance(node.func.value, ast.Name) and node.func.value.id == "self"
        names = () if own else {node.func.attr}  # a twin's clock is told what time it is
    else:
        names = {node.func.id} if isinstance(node.func, ast.Name) else ()
    return {name.removesuffix("_ns") for name in names}


def test_every_suppression_says_why() -> None:
    bare = []
    for path in python_files():
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
