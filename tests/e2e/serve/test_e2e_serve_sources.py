"""What clients of a hub have read counts in all their sessions, until a person says otherwise."""

import os
from collections.abc import Iterator

import pytest
from e2e_project import Project
from served_hub import ServedHub, SocketClient, text_of
from tool_server import ToolServer, tool


@pytest.fixture
def servers() -> Iterator[ToolServer]:
    with ToolServer() as servers:
        servers.add("out", tool("post", "text"), lambda _: "sent")
        yield servers


def serving(project: Project, servers: ToolServer) -> None:
    project.pipeline(
        f"""
        mcp:
          exfiltration: deny
          labels: {{"out__*": []}}
          servers:
            repo: {{pack: [fs], root: .}}
            out: {{url: "{servers.url("out")}", trust: true}}
          auto_approve: [repo__file_read, "out__*"]
        """
    )


@pytest.mark.requirement("T28")
def test_what_a_client_has_read_counts_in_all_its_sessions_until_it_is_forgotten(
    project: Project, servers: ToolServer
) -> None:
    serving(project, servers)
    (project.folder / "note.txt").write_text("a customer", "utf-8")
    with ServedHub(project, "p.yaml", "--control", "--unix", "run/s") as hub:
        (address,) = hub.addresses()
        (state,) = project.served_state().glob("hub-*")
        first, second = SocketClient(address), SocketClient(address)
        for client in (first, second):
            client.begin()
        before = first.call("out__post", {"text": "one"})
        read = first.call("repo__file_read", {"path": "note.txt"})
        held = second.call("out__post", {"text": "two"})
        forgotten = project.aish("approve", state.name, "--forget-sources", f"uid:{os.getuid()}")
        after = second.call("out__post", {"text": "four"})
        for client in (first, second):
            client.socket.close()
    assert forgotten.code == 0, forgotten.stderr
    assert "repo__file_read" in forgotten.stdout
    assert [text_of(one) for one in (before, read, after)] == ["sent", "a customer", "sent"]
    assert (
        "denied by mcp.exfiltration: read repo__file_read (private), client (untrusted)"
        in text_of(held)
    )
    assert [call.arguments.get("text") for call in servers.calls] == ["one", "four"]
