"""The pack `browser` from the command line: recorded in a real Chromium, replayed without one."""

import json
import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
from browser_processes import browser_below, processes_of
from e2e_project import ModelEndpoints, Project, wait_gone
from model_endpoint import text_reply, tool_reply
from web_server import Visit, WebServer, answer

PAGE = """<title>Shop</title><p>It is 42.</p><input id=q>
<button onclick="alert('Thanks')">Buy</button>"""
CALLS: list[tuple[str, dict[str, Any], str]] = [
    ("browser_connect", {}, "started Chrome/"),
    ("webview_navigate", {"url": "URL"}, "title: Shop"),
    ("browser_query", {}, "It is 42."),
    ("browser_type", {"selector": "#q", "text": "pear"}, "the field has: pear"),
    ("browser_click", {"selector": "button"}, "note: dismissed a dialog (alert): Thanks"),
    ("browser_eval", {"script": "document.title"}, "Shop"),
    ("browser_wait", {"selector": "button", "timeout": 5}, "`button` is visible"),
    ("browser_console", {}, "[from the console]"),
    ("browser_screenshot", {}, "png, 1280 by 800 pixels"),
    ("browser_disconnect", {}, "closed the browser"),
]


@pytest.mark.browser
def test_every_tool_is_recorded_in_chromium_and_replayed_without_it(
    project: Project, model_endpoint: ModelEndpoints
) -> None:
    with WebServer({"/": answer(PAGE)}) as server:
        options = {"browser": {"allow": [server.destination]}}
        box = {"pack": ["browser"], "options": options}
        tools = [name.replace("webview", "browser") for name, *_ in CALLS]
        project.pipeline(
            "mcp:\n"
            f"  servers: {{box: {json.dumps(box)}}}\n"
            f"  auto_approve: {json.dumps([f'box__{name}' for name in tools])}\n"
            "prompt: Use your tools\n"
        )
        wire = [
            (f"c{number}", f"box__{name}", json.dumps(given).replace("URL", server.url))
            for number, (name, given, _) in enumerate(CALLS)
        ]
        endpoint = model_endpoint([tool_reply(wire), text_reply("done")])
        project.uses(endpoint)
        done = project.run("--record", "c.yaml", timeout=120)
        assert done.code == 0, done.stderr
        told = [one["content"] for one in endpoint.asked[-1]["messages"] if one["role"] == "tool"]
        for (name, _, found), text in zip(CALLS, told, strict=True):
            assert found in (text if isinstance(text, str) else json.dumps(text)), name
    # Neither the server, nor the model, nor a program is there any more.
    project.uses(model_endpoint())
    replayed = project.result("--replay", "c.yaml", env={"PATH": ""})
    calls = replayed["steps"]["main"]["tool_calls"]
    assert [one["content"] for one in calls] == [
        text if isinstance(text, str) else text[0]["text"] for text in told
    ]


@pytest.mark.browser
def test_a_killed_run_leaves_no_browser_and_the_next_no_profile(project: Project) -> None:
    arrived = threading.Event()

    def wait(visit: Visit) -> None:
        arrived.set()
        visit.gone.wait()

    with WebServer({"/": answer(PAGE), "/wait": wait}) as server:

        def opens(url: str) -> None:
            box = {"pack": "browser", "options": {"browser": {"allow": [server.destination]}}}
            project.pipeline(
                f"mcp:\n  servers: {{box: {json.dumps(box)}}}\n"
                "  auto_approve: [box__browser_navigate]\n"
                f"call: box__browser_navigate\nwith: {json.dumps({'url': url})}\n"
            )

        opens(f"{server.url}/wait")
        with project.aish.start("run", "p.yaml") as running:
            assert arrived.wait(60)
            browser = browser_below(running.pid)
            words = Path(f"/proc/{browser}/cmdline").read_text(encoding="utf-8").split("\0")
            profile = Path(next(word for word in words if "-data-dir=" in word).partition("=")[2])
            assert profile.exists()
            processes = processes_of(browser)
            assert len(processes) > 3
            os.kill(running.pid, signal.SIGKILL)
            # It may have started another one while it was looked at.
            while processes:
                for pid in processes:
                    wait_gone(pid)
                processes = processes_of(browser)
        opens(server.url)
        assert project.run(timeout=60).code == 0
        assert not profile.exists()
