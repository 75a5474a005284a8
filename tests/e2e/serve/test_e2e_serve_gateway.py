"""A gateway behind nginx, with the file and the server of the guide."""

from pathlib import Path

import pytest
from docs_pages import ROOT, blocks
from e2e_project import Project
from mcp_peers import free_port
from nginx_proxy import NGINX, nginx
from served_http import HttpClient, HttpHub
from served_hub import text_of
from tls_files import make_tls_files

ALICE, CI = "alice-token-" + "a1" * 20, "ci-token-" + "b2" * 20
GUIDE = ROOT / "docs" / "jobs" / "gateway.md"


@pytest.mark.skipif(NGINX is None, reason="nginx is not installed")
def test_a_team_is_served_through_the_proxy_of_the_guide(project: Project, tmp_path: Path) -> None:
    (text,) = (one.text for one in blocks(GUIDE) if one.options.get("file") == "gateway.yaml")
    served = text.replace("tools.example.org", "localhost").replace("/srv/project", "files")
    project.write("gateway.yaml", served)
    project.write("tokens/alice", f"{ALICE}\n").chmod(0o600)
    project.write("files/note.md", "hello\n")
    project.write("files/large.md", "x" * 3_000_000)
    project.aish.env["CI_TOKEN"] = CI
    port, proxy = free_port(), free_port()
    tls = make_tls_files(tmp_path)
    with (
        HttpHub(project, "gateway.yaml", listen=f"127.0.0.1:{port}", token=ALICE) as hub,
        nginx("gateway.md", project.folder, tls, port, proxy) as log,
    ):
        url = f"https://localhost:{proxy}/mcp"
        alice, ci, other = (
            HttpClient(hub.client(token, verify=tls.trusting).http, url)
            for token in (ALICE, CI, "x" * 40)
        )
        hub.until_listening(proxy)
        names = [tool["name"] for tool in ci.tools()]
        read = alice.call("repo__file_read", {"path": "note.md"})
        denied = alice.call("repo__file_write", {"path": "large.txt", "content": "y" * 3_000_000})
        refused = other.modern("tools/list")
        paths = ("/metrics", "/readyz", "/mcp/x")
        hidden = [alice.http.get(f"https://localhost:{proxy}{path}") for path in paths]
        wrong = alice.modern("tools/list", None, {"Host": "example.org"})
        alice.begin()
        listen = {"notifications": {"toolsListChanged": True}}
        with alice.stream() as events, ci.opened("subscriptions/listen", listen) as listened:
            # Nothing is held back: it has to arrive while the stream goes on.
            acknowledged = next(listened).message
            alice.http.delete(url, headers=alice.session)
            assert list(events) == []
        ready = alice.http.get(f"{hub.base}/readyz")
        clients = {one["client"] for one in hub.audit if one["event"] == "decided"}

    assert names == ["repo__file_read"]
    assert text_of(read) == "hello\n"
    assert denied["isError"] is True
    assert refused.status_code == 401
    assert {one.status_code for one in hidden} == {404}
    assert wrong.status_code == 421
    assert acknowledged["method"] == "notifications/subscriptions/acknowledged"
    assert ready.json()["status"] == "ready"
    assert clients == {"alice"}
    assert ALICE not in log.read_text() + project.everything_written() + hub.stderr
