"""The hub of events of a real run: its clients, its page, and a run that is killed (K75, K76)."""

import json
import os
import re
import signal
import threading
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from browser_pages import open_browser
from cli_process import Running
from docs_pages import ROOT, blocks
from e2e_project import Project
from served_hub import ServedHub
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

SCREENSHOTS = os.environ.get("AISH_SCREENSHOTS")
HELD = """
name: held
mcp:
  servers:
    hub:
      pack: [ws, shell]
      root: work
      options: {ws: {origins: ["ORIGIN"]}, shell: {sandbox: "off"}}
  auto_approve: [hub__ws_start, hub__shell_run]
steps:
  - {id: start, call: hub__ws_start}
  - id: hold
    needs: [start]
    call: hub__shell_run
    with: {command: "until test -e go; do sleep 0.02; done; echo '<b>bold</b> gone on'"}
"""


@contextmanager
def held(
    project: Project, origin: str = "http://127.0.0.1:1"
) -> Generator[tuple[Running, str, str]]:
    """A run whose hub listens and that waits for the file `work/go`; its address and token."""
    project.write("work/here", "")
    project.pipeline(HELD.replace("ORIGIN", origin))
    with project.aish.start("run", "p.yaml", "--format", "jsonl") as running:
        running.wait_for_line("token: ", where="stdout")
        found = re.search(r"at (ws://[^;]+); token: ([^\"\\]+)", running.stdout)
        assert found is not None
        yield running, found[1], found[2]


def client_of(url: str, token: str, stack: ExitStack) -> ClientConnection:
    headers = {"Authorization": f"Bearer {token}"}
    client = stack.enter_context(connect(url, additional_headers=headers, proxy=None))
    client.send('{"type": "subscribe", "channel": "events"}')
    assert json.loads(client.recv(timeout=60))["type"] == "subscribed"
    return client


def until_closed(client: ClientConnection) -> list[dict[str, Any]]:
    messages = []
    while True:
        try:
            messages.append(json.loads(client.recv(timeout=60)))
        except ConnectionClosed:
            return messages


@pytest.mark.requirement("K75")
def test_clients_get_the_events_that_a_run_prints_and_a_killed_one_leaves_nothing(
    project: Project, tmp_path: Path
) -> None:
    project.aish.env["XDG_RUNTIME_DIR"] = str(tmp_path)
    with ExitStack() as stack:
        with held(project) as (running, url, file):
            token = Path(file).read_text("utf-8").strip()
            client = client_of(url, token, stack)
            project.write("work/go", "")
            assert running.finish().code == 0
            printed = [json.loads(line) for line in running.stdout.splitlines()]
        messages = until_closed(client)
        assert client.close_code == 1001
        got = [one["data"] for one in messages]
        assert got
        assert {one["type"] for one in messages} == {"event"}
        assert got == [one for one in printed if one["seq"] in {data["seq"] for data in got}]
        assert "tool.finished" in {one["type"] for one in got}
        assert token not in running.stdout + running.stderr + project.everything_written()
        assert not Path(file).exists()

        (project.folder / "work" / "go").unlink()
        with held(project) as (running, url, file):
            token = Path(file).read_text("utf-8").strip()
            clients = [client_of(url, token, stack) for _ in range(8)]
            os.kill(running.pid, signal.SIGKILL)
            for client in clients:
                assert {one["type"] for one in until_closed(client)} <= {"event"}
        assert Path(file).exists(), "nobody could remove it"
        project.write("work/go", "")
        assert project.run().code == 0
        assert list((tmp_path / "aish").glob("ws-*")) == []


@pytest.mark.requirement("K76")
def test_in_a_server_the_events_are_its_own(project: Project, tmp_path: Path) -> None:
    project.aish.env["XDG_RUNTIME_DIR"] = str(tmp_path)
    project.pipeline(
        "mcp:\n  servers: {hub: {pack: ws}}\n  auto_approve: [hub__ws_start, hub__ws_info]\n"
    )
    with ServedHub(project, "p.yaml") as hub, ExitStack() as stack:
        hub.begin()
        started = hub.call("hub__ws_start")["structuredContent"]
        token = Path(started["token_file"]).read_text("utf-8").strip()
        client = client_of(started["url"], token, stack)
        info = hub.call("hub__ws_info")["structuredContent"]
        assert (info["clients"], info["channels"]) == (1, [{"name": "events", "clients": 1}])
        got = [json.loads(client.recv(timeout=60))["data"] for _ in range(3)]
    assert [one["type"] for one in got] == ["tool.decided", "tool.started", "tool.finished"]
    assert {one["tool"] for one in got} == {"hub__ws_info"}


@pytest.mark.browser
def test_the_page_of_the_guide_shows_the_events_of_a_run(project: Project, tmp_path: Path) -> None:
    source = next(
        block
        for block in blocks(ROOT / "docs" / "reference" / "tool-packs.md")
        if block.options.get("file") == "dashboard.html"
    )
    (tmp_path / "dashboard.html").write_text(source.text, "utf-8")
    handler = partial(SilentHandler, directory=str(tmp_path))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server, ExitStack() as stack:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        stack.callback(thread.join)
        stack.callback(server.shutdown)
        origin = f"http://127.0.0.1:{server.server_port}"
        with held(project, origin) as (running, url, file), open_browser() as browser:
            page = browser.new_page(viewport={"width": 1000, "height": 500})
            page.goto(f"{origin}/dashboard.html")
            page.fill("[name=url]", url)
            page.fill("[name=token]", "wrong")
            page.click("button")
            page.get_by_text("refused: is there a run").wait_for()
            page.fill("[name=token]", Path(file).read_text("utf-8"))
            page.click("button")
            page.get_by_text("connected", exact=True).wait_for()
            project.write("work/go", "")
            page.get_by_text("the server has ended").wait_for()
            rows = page.locator("#events tr").all_inner_texts()
            if SCREENSHOTS is not None:
                page.screenshot(path=f"{SCREENSHOTS}/dashboard.png")
            assert page.locator("b").count() == 0, "nothing becomes markup"
            assert running.finish().code == 0
    assert any("tool.finished" in row and "hold" in row for row in rows)
    assert any("step.finished" in row and "<b>bold</b> gone on" in row for row in rows)


class SilentHandler(SimpleHTTPRequestHandler):
    """Serves a folder, and logs nothing."""

    def log_message(self, format: str, *args: Any) -> None:  # ruff: ignore[builtin-argument-shadowing] - overrides
        """Nobody reads it."""
