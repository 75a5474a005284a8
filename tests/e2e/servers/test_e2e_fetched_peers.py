"""Real servers of npm and PyPI, fetched and confined."""

import json
import os
from typing import Any

import pytest
from confined_servers import BUBBLEWRAP
from e2e_project import Project
from package_registry import HAS_NPM, HAS_UV, UV

pytestmark = [pytest.mark.peers, pytest.mark.slow(reason="fetches 140 packages"), BUBBLEWRAP]


def write(project: Project, *, confined: bool) -> None:
    server = "@modelcontextprotocol/server-filesystem@2026.8.31"
    servers: dict[str, dict[str, Any]] = {
        "files": {"command": ["npx", "-y", server, "data"], "sandbox": {"read": ["data"]}},
        "time": {"command": ["uvx", "mcp-server-time==2026.10.19"], "sandbox": "required"},
    }
    for entry in servers.values():
        entry["timeout"] = {"connect": "120s"}
        entry["sandbox"] = entry["sandbox"] if confined else "off"
    zones = {"source_timezone": "UTC", "time": "12:00", "target_timezone": "Asia/Tokyo"}
    steps = [
        {"id": "read", "call": "files__read_text_file", "with": {"path": "x.txt"}},
        {"id": "tree", "call": "files__list_allowed_directories", "with": {}},
        {"id": "time", "call": "time__convert_time", "with": zones},
    ]
    outputs = {"all": "{{ [steps.read.text, steps.tree.text, steps.time.output.time_difference] }}"}
    mcp = {"servers": servers, "auto_approve": ["*__*"]}
    project.pipeline(
        f"mcp: {json.dumps(mcp)}\nsteps: {json.dumps(steps)}\noutputs: {json.dumps(outputs)}\n"
    )


@pytest.mark.requirement("T42")
@HAS_NPM
@HAS_UV
def test_real_servers_answer_confined_what_they_answer_unconfined(project: Project) -> None:
    path = f"{UV.parent}{os.pathsep}{os.environ['PATH']}"
    cache = str(project.folder / "cache")
    project.aish.env |= {"PATH": path, "XDG_CACHE_HOME": cache, "UV_SYSTEM_CERTS": "1"}
    project.write("data/x.txt", "a file")
    write(project, confined=True)

    fetched = project.aish("fetch", "p.yaml", timeout=300)
    confined = project.run("-q", "--no-fetch", "--run-dir", "a", timeout=120)
    write(project, confined=False)
    unconfined = project.run("-q", "--no-fetch", "--run-dir", "b", timeout=120)

    assert fetched.code == confined.code == unconfined.code == 0, fetched.stderr + confined.stderr
    assert confined.stdout == unconfined.stdout
    assert "a file" in confined.stdout
    assert "+9.0h" in confined.stdout
