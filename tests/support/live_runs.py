"""Runs that listen, and programs that ask and answer them over their sockets."""

import json
import os
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pexpect
import pytest
from cli_process import Running
from e2e_project import Project
from plain_http import PLAIN
from terminal_window import close_terminal

WAITS = "waits for an answer"


@contextmanager
def runtime_folder(project: Project) -> Generator[Path]:
    """The user's runtime folder, for sockets, also for clients in the process of the test."""
    name = project.aish.env["XDG_RUNTIME_DIR"]
    with pytest.MonkeyPatch.context() as own:
        own.setenv("XDG_RUNTIME_DIR", name)
        yield Path(name)


@contextmanager
def live_run(project: Project, *arguments: str) -> Generator[tuple[Running, httpx.Client]]:
    """A run that waits for an answer, and a client of its socket."""
    with project.aish.start("run", "p.yaml", *arguments) as running:
        running.wait_for_line(WAITS)
        with client_of(project) as client:
            yield running, client


@contextmanager
def client_of(project: Project) -> Generator[httpx.Client]:
    """A client of the only run, by what its folder says of it."""
    named = control_file(project)
    kind, _, rest = named["address"].partition(":")
    if kind == "unix":
        # However long it takes until the next request, the connection is the same.
        limits = httpx.Limits(keepalive_expiry=None)
        transport, headers, url = (
            httpx.HTTPTransport(uds=rest, limits=limits, verify=PLAIN),
            {},
            "http://aish",
        )
    else:
        token = Path(named["token_file"]).read_text(encoding="utf-8").strip()
        headers = {"Authorization": f"Bearer {token}"}
        transport, url = httpx.HTTPTransport(verify=PLAIN), f"http://{named['address']}"
    base = f"{url}/api/v1"
    with httpx.Client(transport=transport, base_url=base, headers=headers, timeout=60) as client:
        yield client


def control_file(project: Project) -> Any:
    """Where the newest run listens, as it says in the runtime folder."""
    return json.loads(control_path(project, project.run_folders[-1].name).read_text("utf-8"))


def control_path(project: Project, run: str) -> Path:
    """The file in which a run or a server says where it listens."""
    return Path(project.aish.env["XDG_RUNTIME_DIR"], "aish", f"{run}.control.json")


def pending(client: httpx.Client) -> list[Any]:
    """The open questions."""
    found = client.get("approvals")
    assert found.status_code == 200, found.text
    open_ones: list[Any] = found.json()["pending"]
    return open_ones


def answer(
    client: httpx.Client, question: Any, given: str = "approve", **more: Any
) -> httpx.Response:
    """Answer a question that was listed."""
    body = {"answer": given, "digest": question["digest"], **more}
    return client.post(f"approvals/{question['id']}", json=body)


def code_of(response: httpx.Response) -> tuple[int, str]:
    """The status of a refusal, and its word."""
    return response.status_code, response.json()["error"]["code"]


def ledger(project: Project) -> list[str]:
    """What the server of `mcp_ledger_server.py` was asked to write."""
    path = project.folder / "ledger.txt"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@contextmanager
def at_terminal(project: Project, line: str) -> Generator["pexpect.spawn[str]"]:
    """A shell line as a person at a terminal would type it; `aish` is called `$AISH`."""
    child = pexpect.spawn(
        "sh",
        ["-c", line],
        cwd=str(project.folder),
        env={**project.aish.env, "AISH": f"{sys.executable} -m aish"},
        encoding="utf-8",
        timeout=60,
        dimensions=(40, 100),
    )
    try:
        yield child
    finally:
        close_terminal(child)


def guessed_id() -> str:
    return os.urandom(16).hex()
