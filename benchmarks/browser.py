"""The page of a live run in a real Chromium: how soon it shows what happens, and itself.

And the pack `browser`: from the start of a Chromium to a picture of a page.

Left out where there is no Chromium, or nothing to drive it with: `make test-browser` installs that.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from datetime import datetime
from http.client import HTTPConnection
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

from endpoint import Endpoint, Script
from figures import AISH, PYTHON, ROOT, Bench, Row, against, at_most

LOAD = str(ROOT / "benchmarks" / "browser_load.py")
QUESTIONS = 40
DELTAS = 100
PACE = 0.03
# When each card, and each piece of text, was put into the document.
WATCH = """
    window.shown = [];
    window.words = new Map();
    const now = () => performance.timeOrigin + performance.now();
    addEventListener("DOMContentLoaded", () => {
      new MutationObserver((records) => {
        for (const record of records)
          for (const node of record.addedNodes) if (node.localName === "article") shown.push(now());
      }).observe(document.getElementById("cards"), { childList: true });
      new MutationObserver(() => {
        const length = document.querySelector("#texts pre").textContent.length;
        if (!words.has(length)) words.set(length, now());
      }).observe(document.getElementById("texts"), { childList: true, subtree: true });
    });
"""


@contextmanager
def _browser() -> Generator[Any]:
    """A Chromium, or nothing where it cannot be driven."""
    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
    if program is None or find_spec("playwright") is None:
        print("no Chromium, or no playwright: the page is not measured", file=sys.stderr)
        yield None
        return
    from playwright.sync_api import sync_playwright

    options = {"executable_path": program, "args": ["--no-sandbox"]}
    with sync_playwright() as playwright, playwright.chromium.launch(**options) as browser:
        yield browser


@contextmanager
def _live_run(bench: Bench, name: str, pipeline: dict[str, object]) -> Generator[Path]:
    """The folder of a run that listens on a port; ended with the block."""
    shutil.rmtree(bench.folder / ".aish", ignore_errors=True)
    file = bench.folder / f"{name}.yaml"
    file.write_text(json.dumps({"aish": 1, "name": name, **pipeline}))
    argv = (AISH, "run", str(file), "--control", "127.0.0.1:0")
    with subprocess.Popen(
        argv, cwd=bench.folder, env=bench.env, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL
    ) as run:
        assert run.stderr is not None
        next(line for line in run.stderr if b"control_listening" in line)
        try:
            yield next((bench.folder / ".aish" / "runs").iterdir())
        finally:
            run.terminate()
            run.stderr.read()


def _link(bench: Bench) -> str:
    argv = (AISH, "control", "open", "latest")
    done = subprocess.run(argv, cwd=bench.folder, env=bench.env, capture_output=True, check=True)
    return done.stdout.decode().strip()


def _named(run: Path) -> Any:
    """Where the run with this folder listens, as it says in the user's runtime folder."""
    folders = [Path(f"/run/user/{os.geteuid()}/aish"), Path(f"/tmp/aish-{os.geteuid()}")]  # ruff: ignore[hardcoded-temp-file] - as aish does
    folders.append(run.parents[2] / ".local" / "state" / "aish" / "sockets")
    files = [folder / f"{run.name}.control.json" for folder in folders]
    return json.loads(next(filter(Path.exists, files)).read_text(encoding="utf-8"))


def _ask(folder: Path, method: str, path: str, body: object = None) -> Any:
    named = _named(folder)
    token = Path(named["token_file"]).read_text(encoding="utf-8").strip()
    connection = HTTPConnection(named["address"])
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    data = None if body is None else json.dumps(body)
    connection.request(method, f"/api/v1{path}", data, headers)
    found = json.loads(connection.getresponse().read())
    connection.close()
    return found


def event_to_page(bench: Bench) -> Iterator[Row]:
    with _browser() as browser:
        if browser is not None:
            cards, texts = _cards(bench, browser), _texts(bench, browser)
            yield at_most(
                f"{QUESTIONS} questions, one by one: asked to shown on the page, p50", cards, 0.02
            )
            yield at_most(f"{DELTAS} pieces of text: event to page, p50", texts, 0.02)


def _asking(bench: Bench) -> dict[str, object]:
    """The beginning of a pipeline whose calls wait for an answer."""
    root = bench.folder / "project"
    root.mkdir(exist_ok=True)
    servers = {"repo": {"pack": ["fs"], "root": str(root)}}
    return {"mcp": {"servers": servers}, "on_ask": "wait"}


def _cards(bench: Bench, browser: Any) -> float:
    steps = [
        {
            "id": f"write{number}",
            "needs": [f"write{number - 1}"] if number else [],
            "call": "repo__file_write",
            "with": {"path": f"out-{number}.txt", "content": "written"},
        }
        for number in range(QUESTIONS)
    ]
    with _live_run(bench, "asks", {**_asking(bench), "steps": steps}) as run:
        page = browser.new_page()
        page.add_init_script(WATCH)
        page.goto(_link(bench))
        asked = []
        for count in range(1, QUESTIONS + 1):
            page.wait_for_function("(count) => shown.length >= count", arg=count)
            (question,) = _ask(run, "GET", "/approvals")["pending"]
            asked.append(datetime.fromisoformat(question["asked"]).timestamp())
            if count < QUESTIONS:
                answer = {"answer": "approve", "digest": question["digest"]}
                _ask(run, "POST", f"/approvals/{question['id']}", answer)
        shown = [moment / 1000 for moment in page.evaluate("shown")]
        page.close()
    # The first was asked before the page was opened.
    found: float = median(late - early for early, late in zip(asked[1:], shown[1:], strict=True))
    return found


def _texts(bench: Bench, browser: Any) -> float:
    # Each piece is four characters; nobody waits for the first before the page is there.
    script = Script(text="word" * DELTAS, deltas=DELTAS, pause=PACE, first_byte=3)
    with Endpoint(script) as endpoint:
        models = {"m": {"base_url": endpoint.url, "model": "mock"}}
        steps = [{"id": "go", "prompt": "Go on."}]
        with _live_run(bench, "tells", {"models": models, "steps": steps}) as run:
            page = browser.new_page()
            page.add_init_script(WATCH)
            page.goto(_link(bench))
            came = list(_pieces(run))
            page.wait_for_function("(size) => words.has(size)", arg=len(script.text))
            words = {int(size): when / 1000 for size, when in page.evaluate("[...words]")}
            page.close()
    seen = [min(when for size, when in words.items() if size >= end) for end, _ in came]
    found: float = median(late - early for (_, early), late in zip(came, seen, strict=True))
    return found


def _pieces(folder: Path) -> Iterator[tuple[int, float]]:
    """How long the text was after each piece, and when that came."""
    named = _named(folder)
    token = Path(named["token_file"]).read_text(encoding="utf-8").strip()
    connection = HTTPConnection(named["address"])
    headers = {"Authorization": f"Bearer {token}", "Accept": "text/event-stream"}
    connection.request("GET", "/api/v1/events", headers=headers)
    size = 0
    for line in connection.getresponse():
        if line.startswith(b"data: "):
            event = json.loads(line[6:])
            if event["type"] == "text.delta":
                size += len(event["text"])
                yield size, datetime.fromisoformat(event["time"]).timestamp()
            elif event["type"] == "turn.finished":
                break
    connection.close()


def first_paint(bench: Bench) -> Iterator[Row]:
    call = {"call": "repo__file_write", "with": {"path": "out.txt", "content": "written"}}
    with _browser() as browser:
        if browser is None:
            return
        with _live_run(bench, "asks", {**_asking(bench), **call}):

            def painted() -> float:
                context = browser.new_context(viewport={"width": 360, "height": 640})
                page = context.new_page()
                page.goto(_link(bench))
                page.locator("article.question").wait_for()
                paint = "performance.getEntriesByName('first-contentful-paint')[0].startTime"
                page.wait_for_function("performance.getEntriesByType('paint').length > 1")
                found: float = page.evaluate(paint)
                context.close()
                return found / 1000

            yield at_most("the page: first paint", bench.alone(painted), 0.3)


def pack_browser(bench: Bench) -> Iterator[Row]:
    if not any(map(shutil.which, ("chromium", "chromium-browser"))):
        print("no Chromium: the pack `browser` is not measured", file=sys.stderr)
        return
    argv = [PYTHON, LOAD, str(bench.rounds)]
    done = subprocess.run(argv, cwd=bench.folder, env=bench.env, stdout=subprocess.PIPE, check=True)
    mine, floor = map(median, zip(*json.loads(done.stdout), strict=True))
    yield against("`browser`: start, navigate, screenshot, and raw CDP", mine, floor, 2)
