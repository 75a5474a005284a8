"""Two processes of one hub behind the balancer that the guide shows."""

import re
import shutil
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest
from docs_pages import ROOT, blocks
from e2e_project import Project
from mcp_peers import free_port
from served_http import HttpClient, HttpHub
from served_hub import text_of

HAPROXY = shutil.which("haproxy") or shutil.which("haproxy", path="/usr/sbin")
GUIDE = ROOT / "docs" / "jobs" / "gateway.md"


@contextmanager
def balanced(folder: Path, proxy: int, ports: dict[str, int]) -> Generator[None]:
    """The balancer of the guide at port `proxy`, before other ports than it shows."""
    assert HAPROXY is not None
    (text,) = (one.text for one in blocks(GUIDE) if one.options.get("file") == "haproxy.cfg")
    text = text.replace("bind 127.0.0.1:8080", f"bind 127.0.0.1:{proxy}")
    for name, port in ports.items():
        text = re.sub(rf"server {name} \S+", f"server {name} 127.0.0.1:{port}", text)
    (folder / "haproxy.cfg").write_text(text)
    with subprocess.Popen([HAPROXY, "-db", "-f", str(folder / "haproxy.cfg")]) as process:
        try:
            yield
        finally:
            process.terminate()


@pytest.mark.skipif(HAPROXY is None, reason="HAProxy is not installed")
def test_two_processes_behind_a_balancer_serve_sessions_and_stateless_clients(
    project: Project, tmp_path: Path
) -> None:
    proxy = free_port()
    project.write("files/note.md", "hello\n")
    project.pipeline(
        f"""
        mcp:
          servers: {{repo: {{pack: [fs], root: files}}}}
          auto_approve: [repo__file_read]
        serve: {{hosts: ["127.0.0.1:{proxy}"]}}
        """
    )
    with (
        HttpHub(project, "p.yaml") as first,
        HttpHub(project, "p.yaml") as second,
        balanced(tmp_path, proxy, {"a": first.port, "b": second.port}),
    ):
        first.until_listening(proxy)
        url = f"http://127.0.0.1:{proxy}/mcp"
        clients = [HttpClient(first.client().http, url) for _ in range(6)]
        read = []
        for client in clients[:4]:
            client.begin()
        for _ in range(3):
            read += [text_of(one.call("repo__file_read", {"path": "note.md"})) for one in clients]

    assert read == ["hello\n"] * 18
    logs = sorted((project.served_state() / "audit").glob("audit-*.jsonl"))
    assert len(logs) == 2
    assert all('"decided"' in log.read_text() for log in logs)
