"""A browser from its start to a picture of a page of this machine, by the pack and by raw CDP.

    python benchmarks/browser_load.py ROUNDS

Prints the seconds of each round as JSON: the calls `browser_navigate` and `browser_screenshot` of a
pack that was just opened, and the same commands over a WebSocket to the same program.
"""

import asyncio
import base64
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import anyio
from websockets.asyncio.client import connect

from aish.packs.browser.browser_options import BrowserOptions
from aish.packs.browser.chromium import find_chromium
from aish.packs.framework.pack import PackServices
from aish.packs.framework.server import open_packs
from aish.packs.parse_worker import ParseWorker
from aish.system.process.reaper import Reaper

PAGE = b"<!doctype html><title>Page</title><h1>Page</h1>" + b"<p>Some text of it.</p>" * 200


class Pages(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/html")
        self.send_header("content-length", str(len(PAGE)))
        self.end_headers()
        self.wfile.write(PAGE)

    def log_message(self, *_: object) -> None:
        """Says nothing."""


async def by_pack(url: str) -> float:
    """Start, open, take a picture: the browser is started by the first call."""
    allow = (url.removeprefix("http://"),)
    options = {"browser": BrowserOptions(allow=allow)}
    reaper = Reaper()
    try:
        async with anyio.create_task_group() as tasks:
            worker = ParseWorker(reaper)
            services = PackServices(
                tasks=tasks, reaper=reaper, worker=worker, environ=dict(os.environ)
            )
            pack = open_packs(["browser"], None, services, options=options)
            await pack.start()
            begun = time.perf_counter()
            went = await pack.call("browser_navigate", {"url": url})
            shot = await pack.call("browser_screenshot", {})
            seconds = time.perf_counter() - begun
            assert not went["isError"], went
            assert not shot["isError"], shot
            await pack.shutdown()
            await worker.close()
    finally:
        reaper.close()
    return seconds


async def by_hand(program: str, url: str) -> float:
    """The same page and picture with nothing but the protocol."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        argv = [program, "--headless=new", "--remote-debugging-port=0", "--no-sandbox"]
        begun = time.perf_counter()
        with subprocess.Popen(  # ruff: ignore[create-subprocess-in-async-function] - nothing else runs
            [*argv, "--disable-gpu", "--no-first-run", f"--user-data-dir={folder}", "about:blank"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        ) as browser:
            assert browser.stderr is not None
            told = next(line for line in browser.stderr if b"DevTools listening on" in line)
            drain = threading.Thread(target=browser.stderr.read)
            drain.start()
            address = told.decode().rpartition(" ")[2].strip()
            async with connect(address, max_size=None, proxy=None) as socket:
                await _pictured(socket, url)
                seconds = time.perf_counter() - begun
                await socket.send(json.dumps({"id": 99, "method": "Browser.close"}))
            browser.wait()
            drain.join()
    return seconds


async def _pictured(socket: Any, url: str) -> None:
    count = 0
    loaded = False

    async def call(method: str, session: str = "", **given: object) -> Any:
        nonlocal count, loaded
        count += 1
        sent: dict[str, Any] = {"id": count, "method": method, "params": given}
        await socket.send(json.dumps(sent | ({"sessionId": session} if session else {})))
        while True:
            message = json.loads(await socket.recv())
            loaded = loaded or message.get("method") == "Page.loadEventFired"
            if message.get("id") == count:
                return message["result"]

    target = (await call("Target.createTarget", url="about:blank"))["targetId"]
    session = (await call("Target.attachToTarget", targetId=target, flatten=True))["sessionId"]
    await call("Page.enable", session)
    size = {"width": 1280, "height": 800, "deviceScaleFactor": 1, "mobile": False}
    await call("Emulation.setDeviceMetricsOverride", session, **size)
    loaded = False
    await call("Page.navigate", session, url=url)
    while not loaded:
        loaded = json.loads(await socket.recv()).get("method") == "Page.loadEventFired"
    shot = await call("Page.captureScreenshot", session, format="png")
    assert base64.b64decode(shot["data"]).startswith(b"\x89PNG")


def main() -> None:
    program = find_chromium("", os.environ)
    assert program is not None
    server = HTTPServer(("127.0.0.1", 0), Pages)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}"
    rounds = [  # the first fills the caches
        (asyncio.run(by_pack(url)), asyncio.run(by_hand(program, url)))
        for _ in range(int(sys.argv[1]) + 1)
    ]
    print(json.dumps(rounds[1:]))
    server.shutdown()


if __name__ == "__main__":
    main()
