"""Servers in a sandbox: the kinds that this machine has, a pipeline with a probe, and its calls."""

import contextlib
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from e2e_project import REPO, Project

from aish.system.process.sandbox import sandbox_report

PROBE = REPO / "tests" / "support" / "mcp_probe_server.py"
REPORT = sandbox_report(os.environ)
KINDS = [
    pytest.param("bubblewrap", marks=pytest.mark.skipif(bool(REPORT.bubblewrap), reason="none")),
    pytest.param("landlock", marks=pytest.mark.skipif(bool(REPORT.landlock), reason="none")),
]
BUBBLEWRAP = pytest.mark.skipif(bool(REPORT.bubblewrap), reason="there is no bubblewrap")


def add_probe(project: Project, sandbox: Mapping[str, Any] | str | None, **keys: Any) -> None:
    """A pipeline `p.yaml` whose server `probe` is in this sandbox, and a folder `data` with a file.

    Its default `mcp.sandbox` is a key of `keys`, as all others of the server are.
    """
    project.write("probe.py", PROBE.read_text("utf-8"))
    project.write("data/shown.txt", "what it was given")
    project.write("kept/secret.txt", "what it was not given")
    default = keys.pop("default", None)
    server = {"command": [sys.executable, "probe.py"], "protocol": "legacy", **keys}
    if sandbox is not None:
        server["sandbox"] = sandbox
    mcp: dict[str, Any] = {"servers": {"probe": server}, "auto_approve": ["probe__*"]}
    if default is not None:
        mcp["sandbox"] = default
    project.pipeline(f"mcp: {json.dumps(mcp)}\nsteps: [{{id: look, call: probe__about}}]\n")


def call(project: Project, tool: str, **arguments: Any) -> Any:
    """What a tool of the probe answers, as JSON where it is."""
    done = project.aish("call", "p.yaml", f"probe__{tool}", "--args", json.dumps(arguments))
    assert done.code == 0, done.stderr
    text = done.stdout.rstrip("\n")
    return json.loads(text) if text.startswith("{") else text


def refused(project: Project, tool: str, **arguments: Any) -> str:
    """The error of a call that fails."""
    done = project.aish("call", "p.yaml", f"probe__{tool}", "--args", json.dumps(arguments))
    assert done.code != 0, done.stdout
    return done.stderr + done.stdout


def described(project: Project) -> str:
    """The sandbox of the probe as the journal of a run has it."""
    done = project.run()
    assert done.code == 0, done.stderr
    (started,) = [event for event in project.journal if event["type"] == "run.started"]
    (server,) = started["servers"]
    return str(server["sandbox"])


def folder_of_logs(project: Project) -> Path:
    (folder,) = project.run_folders
    return folder / "logs"


def processes_called(word: str) -> list[int]:
    """The processes with a word of their command line."""
    pids = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and word.encode() in (entry / "cmdline").read_bytes():
                pids.append(int(entry.name))
    return pids
