"""Twelve real servers of npm and PyPI in each kind of sandbox: an answer, or an error that tells.

What is expected was seen: a server that is listed as failing cannot work in that kind.
"""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest
from cli_process import Aish
from confined_servers import KINDS
from e2e_project import Project
from package_registry import HAS_NPM, HAS_UV, UV
from web_server import WebServer, answer

pytestmark = [
    pytest.mark.peers,
    pytest.mark.slow(reason="fetches 700 packages, and starts browsers"),
    HAS_NPM,
    HAS_UV,
]

CHROMIUM = shutil.which("chromium") or "/usr/bin/chromium"
AZURE = "@azure/mcp@2.0.5"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a call comes to, and a part of what is said: a refused server lists no tools."""

    kind: Literal["answers", "fails", "refused"]
    text: str


@dataclass(frozen=True, slots=True)
class Server:
    """A server, a call of one of its tools, and what that comes to.

    FOLDER, INSTALLED and PORT stand for the project, for what npm has installed, and for our page.
    """

    command: tuple[str, ...]
    tools: int
    tool: str
    arguments: Mapping[str, Any]
    bubblewrap: Outcome
    landlock: Outcome
    sandbox: Mapping[str, Any] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    program: str = ""
    """It needs this one of the machine."""

    @property
    def is_fetched(self) -> bool:
        return self.command[0] in {"npx", "uvx"}


def answers(text: str) -> Outcome:
    return Outcome("answers", text)


def fails(text: str) -> Outcome:
    return Outcome("fails", text)


def refused(text: str) -> Outcome:
    return Outcome("refused", text)


SERVERS = {
    "time": Server(
        ("uvx", "mcp-server-time==2026.10.19"),
        tools=2,
        tool="convert_time",
        arguments={"source_timezone": "UTC", "time": "12:00", "target_timezone": "Asia/Tokyo"},
        bubblewrap=answers("+9.0h"),
        landlock=answers("+9.0h"),
    ),
    "files": Server(
        ("npx", "-y", "@modelcontextprotocol/server-filesystem@2026.8.31", "data"),
        tools=14,
        tool="read_text_file",
        arguments={"path": "x.txt"},
        bubblewrap=answers("a file"),
        landlock=answers("a file"),
        sandbox={"read": ["data"]},
    ),
    "memory": Server(
        ("npx", "-y", "@modelcontextprotocol/server-memory@2026.8.31"),
        tools=9,
        tool="create_entities",
        arguments={"entities": [{"name": "tea", "entityType": "drink", "observations": ["green"]}]},
        bubblewrap=answers("green"),
        landlock=answers("green"),
        sandbox={"write": ["state"]},
        env={"MEMORY_FILE_PATH": "FOLDER/state/memory.jsonl"},
    ),
    # Without a folder its data would be beside its program, which nobody may write.
    "memory without a folder": Server(
        ("npx", "-y", "@modelcontextprotocol/server-memory@2026.8.31"),
        tools=9,
        tool="create_entities",
        arguments={"entities": [{"name": "tea", "entityType": "drink", "observations": ["green"]}]},
        bubblewrap=fails("server-memory/dist/memory.jsonl"),
        landlock=fails("server-memory/dist/memory.jsonl"),
    ),
    "thinking": Server(
        ("npx", "-y", "@modelcontextprotocol/server-sequential-thinking@2026.8.31"),
        tools=1,
        tool="sequentialthinking",
        arguments={
            "thought": "one",
            "nextThoughtNeeded": False,
            "thoughtNumber": 1,
            "totalThoughts": 1,
        },
        bubblewrap=answers("thoughtHistoryLength"),
        landlock=answers("thoughtHistoryLength"),
    ),
    "everything": Server(
        ("npx", "-y", "@modelcontextprotocol/server-everything@2026.8.31"),
        tools=13,
        tool="echo",
        arguments={"message": "hello"},
        bubblewrap=answers("Echo: hello"),
        landlock=answers("Echo: hello"),
    ),
    "git": Server(
        ("uvx", "mcp-server-git==2026.10.19"),
        tools=12,
        tool="git_log",
        arguments={"repo_path": "repo"},
        bubblewrap=answers("The first commit"),
        landlock=refused("`repo/.git/config` must stay hidden or unchanged"),
        sandbox={"read": ["repo"]},
        program="git",
    ),
    "fetch": Server(
        ("uvx", "mcp-server-fetch==2026.10.24", "--allow-private-ips"),
        tools=1,
        tool="fetch",
        arguments={"url": "http://localhost:PORT/"},
        bubblewrap=answers("What the page says"),
        landlock=refused("a list of hosts in `network` needs bubblewrap"),
        sandbox={"network": ["localhost:PORT"]},
    ),
    "fetch without a network": Server(
        ("uvx", "mcp-server-fetch==2026.10.24", "--allow-private-ips"),
        tools=1,
        tool="fetch",
        arguments={"url": "https://www.example.com/"},
        bubblewrap=fails("`network: [www.example.com]` permits that"),
        landlock=fails("robots.txt"),
    ),
    "excel": Server(
        ("uvx", "excel-mcp-server==2.2.2", "stdio"),
        tools=46,
        tool="create_workbook",
        arguments={"path": "FOLDER/state/made.xlsx"},
        bubblewrap=answers("made.xlsx"),
        landlock=answers("made.xlsx"),
        sandbox={"write": ["state"]},
    ),
    # Node starts .NET, which cannot read its own entries of `/proc` under Landlock.
    "azure": Server(
        ("node", "INSTALLED/node_modules/@azure/mcp/index.js", "server", "start"),
        tools=61,
        tool="get_azure_bestpractices",
        arguments={"intent": "a list", "learn": True},
        bubblewrap=answers("get_azure_bestpractices_get"),
        landlock=refused("no `/proc` of its child processes"),
    ),
    "playwright": Server(
        (
            *("npx", "-y", "@playwright/mcp@0.0.83", "--headless", "--isolated", "--no-sandbox"),
            *("--executable-path", CHROMIUM),
        ),
        tools=25,
        tool="browser_navigate",
        arguments={"url": "data:text/html,<title>A title</title>text"},
        bubblewrap=answers("Page Title: A title"),
        landlock=fails("no Unix sockets"),
        program=CHROMIUM,
    ),
    "devtools": Server(
        (
            *("npx", "-y", "chrome-devtools-mcp@1.11.0", "--headless", "--isolated"),
            *("--executablePath", CHROMIUM, "--chromeArg=--no-sandbox"),
        ),
        tools=32,
        tool="new_page",
        arguments={"url": "about:blank"},
        bubblewrap=answers("about:blank [selected]"),
        landlock=fails("no Unix sockets"),
        program=CHROMIUM,
    ),
    # It answers that it could not ask, which is no error of the call.
    "context7": Server(
        ("npx", "-y", "@upstash/context7-mcp@4.1.1"),
        tools=2,
        tool="resolve-library-id",
        arguments={"libraryName": "react", "query": "hooks"},
        bubblewrap=answers("it looked up `context7.com`"),
        landlock=answers("fetch failed"),
    ),
}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The cache folder of all tests, filled by the first."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """The port of a page."""
    page = answer("<html><body><p>What the page says</p></body></html>", connection="close")
    robots = answer(status="404 Not Found", connection="close")
    with WebServer({"/": page, "/robots.txt": robots}) as server:
        yield server.port


@pytest.fixture
def project(tmp_path: Path, run_aish: Aish, store: Path) -> Project:
    project = Project(tmp_path, run_aish)
    path = f"{UV.parent}{os.pathsep}{os.environ['PATH']}"
    run_aish.env |= {"PATH": path, "XDG_CACHE_HOME": str(store), "UV_SYSTEM_CERTS": "1"}
    # The certificates of a machine that reaches the registries through a proxy.
    certificates = ("NODE_EXTRA_CA_CERTS", "SSL_CERT_FILE")
    run_aish.env |= {name: os.environ[name] for name in certificates if name in os.environ}
    project.write("data/x.txt", "a file")
    (tmp_path / "state").mkdir()
    if not (store / "aish").exists():
        fetched = {
            f"s{number}": {"command": list(server.command)}
            for number, server in enumerate(SERVERS.values())
            if server.is_fetched
        }
        write(project, fetched)
        done = project.aish("fetch", "p.yaml", timeout=600)
        assert done.code == 0, done.stderr
    return project


@pytest.fixture(scope="module")
def installed(store: Path) -> Path:
    """A folder in which npm has installed what runs scripts to be installed, without these."""
    folder = store / "installed"
    folder.mkdir()
    words = ["npm", "install", "--ignore-scripts", "--no-audit", "--no-fund", AZURE]
    subprocess.run(words, cwd=folder, check=True, capture_output=True, timeout=300)
    return folder


def write(project: Project, servers: Mapping[str, Any]) -> None:
    steps = [{"id": "nothing", "run": ["true"]}]
    project.pipeline(f"mcp: {json.dumps({'servers': servers})}\nsteps: {json.dumps(steps)}\n")


def add_repository(project: Project) -> None:
    """A repository `repo` with one commit."""
    project.write("repo/x.txt", "a file")
    author = ("-c", "user.name=A", "-c", "user.email=a@example.com")
    message = ("--allow-empty", "-m", "The first commit")
    for words in (("init", "-q"), (*author, "commit", "-q", *message)):
        subprocess.run(["git", *words], cwd=project.folder / "repo", check=True)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", SERVERS)
def test_a_real_server_answers_in_its_sandbox_or_says_why_not(
    project: Project, installed: Path, port: int, name: str, kind: str
) -> None:
    server = SERVERS[name]
    if server.program and shutil.which(server.program) is None:
        pytest.skip(f"{server.program} is missing")
    if server.program == "git":
        add_repository(project)
    entry = {
        "command": server.command,
        "sandbox": {**server.sandbox, "kind": kind},
        "env": server.env,
        "timeout": {"connect": "120s"},
    }
    values = {"FOLDER": str(project.folder), "INSTALLED": str(installed), "PORT": str(port)}
    text = json.dumps([{"real": entry}, server.arguments])
    for word, value in values.items():
        text = text.replace(word, value)
    servers, arguments = json.loads(text)
    write(project, servers)
    expected = server.bubblewrap if kind == "bubblewrap" else server.landlock
    tool = f"real__{server.tool}"

    listed = project.aish("tools", "p.yaml", "--no-fetch", "--json", timeout=180)
    words = ["--args", json.dumps(arguments), "--allow", tool, "--no-fetch"]
    called = project.aish("call", "p.yaml", tool, *words, timeout=180)

    said = called.stdout + called.stderr
    assert expected.text in said
    assert (called.code == 0) == (expected.kind == "answers"), said
    if expected.kind == "refused":
        assert called.code == 5, said
        assert "sandbox" in said
    else:
        assert len(json.loads(listed.stdout)) == server.tools, listed.stderr
    if expected.kind == "fails":
        shown = "bubblewrap" if kind == "bubblewrap" else "Landlock"
        assert f"\nin its sandbox: {shown}, " in said


def test_a_real_package_that_runs_scripts_to_be_installed_is_refused(project: Project) -> None:
    write(project, {"azure": {"command": ["npx", "-y", AZURE, "server", "start"]}})

    done = project.aish("fetch", "p.yaml", timeout=180)

    assert done.code == 5
    assert "`@azure/mcp` runs scripts to be installed" in done.stderr
    assert "install the server yourself, and name its program in `command`" in done.stderr
