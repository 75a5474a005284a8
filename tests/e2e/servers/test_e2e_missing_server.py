"""A required server that is missing: each command that looks at servers ends as `run` does (M5)."""

import json
import sys

import pytest
from e2e_project import Project

SERVER = """
import json, sys
for line in sys.stdin:
    message = json.loads(line)
    answer = {"jsonrpc": "2.0", "id": message.get("id")}
    if message["method"] == sys.argv[1]:
        answer["error"] = {"code": -32603, "message": "boom"}
    elif message["method"] == "initialize":
        answer["result"] = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}}
    elif message["method"] == "tools/list":
        answer["result"] = {"tools": []}
    if "id" in message:
        print(json.dumps(answer), flush=True)
"""
LOOKS = (
    ("run", "p.yaml", "-q"),
    ("tools", "p.yaml"),
    ("tools", "p.yaml", "--json"),
    ("tools", "p.yaml", "--audit"),
    ("tools", "p.yaml", "--older"),
    ("plan", "p.yaml"),
    ("plan", "p.yaml", "--strict"),
    ("plan", "p.yaml", "--format", "json"),
    ("lock", "p.yaml"),
    ("lock", "p.yaml", "--diff"),
    ("call", "p.yaml", "s__x"),
)


def looking(project: Project, refused: str, *, required: bool = True) -> None:
    project.write("server.py", SERVER)
    command = json.dumps([sys.executable, "server.py", refused])
    need = str(required).lower()
    entry = f"{{command: {command}, protocol: legacy, required: {need}}}"
    project.pipeline(f"mcp: {{servers: {{s: {entry}}}}}\ncall: s__x\n")


@pytest.mark.sampled(5)
@pytest.mark.parametrize("command", LOOKS, ids=" ".join)
def test_each_command_says_the_error_and_ends_with_5(
    project: Project, command: tuple[str, ...]
) -> None:
    looking(project, "tools/list")

    done = project.aish(*command)

    assert done.code == 5, done.stdout + done.stderr
    told = "error: mcp server `s`: it answers `tools/list` with an error: boom\n"
    assert done.stderr.count("boom") == done.stderr.count(told) == 1
    assert "hint: `required: false` under `mcp.servers.s`" in done.stderr


def test_a_server_that_refuses_to_begin_is_told_as_that(project: Project) -> None:
    looking(project, "initialize")

    done = project.aish("tools", "p.yaml", "--audit")

    assert done.code == 5
    assert "mcp server `s`: it answers `initialize` with an error: boom" in done.stderr


def test_the_doctor_of_a_file_says_it_too(project: Project) -> None:
    looking(project, "tools/list")

    done = project.aish("doctor", "p.yaml")

    assert done.code == 5
    assert "bad   mcp server `s`: it answers `tools/list` with an error: boom" in done.stdout


@pytest.mark.parametrize("command", [look for look in LOOKS if look[0] in {"tools", "plan"}][:4])
def test_an_optional_server_is_a_warning(project: Project, command: tuple[str, ...]) -> None:
    looking(project, "tools/list", required=False)

    done = project.aish(*command)

    assert done.code == 0, done.stderr
    told = "warning: mcp server `s` is missing: it answers `tools/list` with an error: boom"
    assert told in done.stderr
