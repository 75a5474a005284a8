"""Records the cassette of `pipelines/release-notes.yaml`: `make record`.

A scripted endpoint stands in for the cloud model and for the small one beside it, and an emulated
server for `boltzmann`; the tools, the repository and `mcp-server-time` are real. The pipeline runs
as it is shipped but for three addresses, which are put back in what was recorded.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from mcp_emulators import LuaServer
from mcp_peers import TOP
from model_endpoint import ModelEndpoint, Reply, text_reply, tool_reply

NAME = "release-notes.yaml"
TOKEN = "boltzmann-token-0123"
KEYS = {"OPENROUTER_API_KEY": "openrouter-key-012345", "BOLTZMANN_MCP_TOKEN": TOKEN}
HISTORY = (
    ("Read rows as a stream", "v0.9.0"),
    ("Resume a run that was killed", None),
    ("Fix the count of failed items", None),
    ("Write a guide on limits", "v1.0.0"),
    ("Draw the graph of a plan", None),
)
NOTES = {
    "sections": [
        {"title": "New", "changes": ["Runs that were killed go on", "Plans draw their graph"]},
        {"title": "Fixed", "changes": ["Failed items are counted right"]},
        {"title": "Documentation", "changes": ["A guide on limits"]},
    ],
    "markdown": "# Release notes\n\n## New\n\n- Runs that were killed go on\n"
    "- Plans draw their graph\n\n## Fixed\n\n- Failed items are counted right\n\n"
    "## Documentation\n\n- A guide on limits\n",
}


def answer(request: Mapping[str, Any]) -> Reply:
    """What a good model would say."""
    messages = request["messages"]
    if "A headline for:" in messages[-1]["content"]:
        title = messages[-1]["content"].rpartition(": ")[2]
        return text_reply(f"{title}: what changed")
    if messages[-1]["role"] != "tool":
        return tool_reply([("call_1", "repo__git_log", '{"count": 10}')], "Let me read the log.")
    return text_reply(json.dumps(NOTES))


def repository(folder: Path) -> None:
    """The pipeline in a small repository with a history."""
    environment = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull}
    for who in ("AUTHOR", "COMMITTER"):
        environment |= {f"GIT_{who}_NAME": "a", f"GIT_{who}_EMAIL": "a@example.org"}

    def git(*words: str, day: int = 1) -> None:
        date = f"2026-01-{day:02}T12:00:00Z"
        dated = {"GIT_AUTHOR_DATE": date, "GIT_COMMITTER_DATE": date}
        subprocess.run(["git", *words], cwd=folder, env={**environment, **dated}, check=True)

    git("init", "-q")
    for day, (subject, tag) in enumerate(HISTORY, 1):
        git("commit", "-q", "--allow-empty", "-m", subject, day=day)
        if tag is not None:
            git("tag", tag)


def record(tools: Mapping[str, str]) -> int:
    """Record with the variables of `tools`; the exit code of that."""
    source = TOP / "pipelines"
    cassette = TOP / "tests" / "cassettes" / NAME
    with ExitStack() as stack:
        model = stack.enter_context(ModelEndpoint(answer))
        lua = stack.enter_context(LuaServer(TOKEN))
        top = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        addresses = {
            model.base_url: "https://openrouter.ai/api/v1",
            model.base_url.replace("127.0.0.1", "localhost"): "http://127.0.0.1:8080/v1",
            lua.url: "http://boltzmann.lan:8080/mcp",
        }
        repository(top)
        text = (source / NAME).read_text()
        for here, there in addresses.items():
            assert text.count(there) == 1, there
            text = text.replace(there, here)
        (top / NAME).write_text(text)
        for name in ("prompts/notes.md.j2", "schemas/notes.json"):
            (top / name).parent.mkdir()
            (top / name).write_bytes((source / name).read_bytes())
        recorded = top / "recorded.yaml"
        command = [sys.executable, "-m", "aish", "record", NAME, "-i", "since=v0.9.0"]
        done = subprocess.run(
            [*command, "-o", str(recorded)],
            cwd=top,
            env={**os.environ, **tools, **KEYS},
            check=False,
        )
        if done.returncode == 0:
            text = recorded.read_text()
            for here, there in addresses.items():
                text = text.replace(here, there)
            cassette.write_text(text)
            cassette.chmod(0o644)
    return done.returncode
