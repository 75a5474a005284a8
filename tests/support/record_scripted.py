"""Records the cassettes of `fix-test.yaml` and `ask-page.yaml`: `make record`.

A scripted endpoint stands in for the model; the tools are real, and so are the project that is
fixed and the page that is read. The files that tools change are copies.
"""

import functools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Generator, Mapping
from contextlib import ExitStack, contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from mcp_peers import TOP
from model_endpoint import ModelEndpoint, Reply, text_reply, tool_reply

PAGE_PORT = 8421
FIXED = '''    def total(self, discount: float = 0.0) -> float:
        """The sum of all prices, less a discount between 0 and 1."""
        return round(sum(self.prices) * (1 - discount), 2)
'''


def fix(request: Mapping[str, Any]) -> Reply:
    """What a good model would do about the failing test."""
    total = {"path": "prices.py", "name": "Basket.total"}
    made = sum(message["role"] == "tool" for message in request["messages"])
    calls: list[tuple[str, Mapping[str, str], str]] = [
        ("code__py_get_code_outline", {"path": "prices.py"}, "Let me see what is in the file."),
        ("code__py_get_definition", total, "`Basket.total` computes the discount."),
        (
            "code__py_update_definition",
            {**total, "content": FIXED},
            "It multiplies by the discount and not by what remains.",
        ),
        ("box__shell_run", {"command": "python3 -m unittest -q"}, "Now the tests."),
    ]
    if made < len(calls):
        name, arguments, said = calls[made]
        return tool_reply([(f"call_{made + 1}", name, json.dumps(arguments))], said)
    return text_reply(
        "`Basket.total` multiplied by the discount instead of by one minus the discount."
    )


def answer(request: Mapping[str, Any]) -> Reply:
    """What a good model would say about the manual."""
    page = f"http://127.0.0.1:{PAGE_PORT}/manual.html"
    if request["messages"][-1]["role"] != "tool":
        return tool_reply([("call_1", "net__web_fetch", json.dumps({"url": page}))])
    return text_reply(json.dumps({"answer": "After 200 cups.", "sources": [page]}))


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Nothing: the recorder says how it went."""


@contextmanager
def served(folder: Path, port: int = 0) -> Generator[int]:
    """A web server for the files of a folder; yields its port."""
    handler = functools.partial(_Quiet, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", port), handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()


SCRIPTED: Mapping[str, tuple[Callable[[Mapping[str, Any]], Reply], str, str]] = {
    "fix-test.yaml": (fix, "FIX_URL", "http://127.0.0.1:8080/v1"),
    "ask-page.yaml": (answer, "ASK_URL", "http://127.0.0.1:8080/v1"),
}


def record(name: str) -> int:
    """Record one of them; the exit code of that."""
    reply, variable, address = SCRIPTED[name]
    cassette = TOP / "tests" / "cassettes" / name
    with ExitStack() as stack:
        model = stack.enter_context(ModelEndpoint(reply))
        top = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        stack.enter_context(served(TOP / "pipelines" / "data", PAGE_PORT))
        shutil.copytree(TOP / "pipelines", top / "pipelines")
        recorded = top / "recorded.yaml"
        done = subprocess.run(
            [sys.executable, "-m", "aish", "record", name, "-o", str(recorded)],
            cwd=top / "pipelines",
            env={**os.environ, variable: model.base_url},
            check=False,
        )
        if done.returncode == 0:
            cassette.write_text(recorded.read_text().replace(model.base_url, address))
            cassette.chmod(0o644)
    return done.returncode
