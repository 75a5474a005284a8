"""A real Chromium that is killed in a call, and a page that opens windows (K21, K72, K74)."""

import os
import signal
import tempfile
import threading
from pathlib import Path

import pytest
from browser_processes import browser_below, processes_of
from pack_scenes import opened_packs
from web_server import Visit, WebServer, answer

from aish.core.options import PackOptions
from aish.packs.browser.browser_options import BrowserOptions

pytestmark = pytest.mark.browser

WINDOWS = """<title>windows</title><button id=b
onclick="for (let n = 0; n < 1000; n++) window.open('about:blank#' + n)">x</button>"""


def opened(server: WebServer) -> PackOptions:
    return {"browser": BrowserOptions(allow=(server.destination,))}


def test_a_browser_that_is_killed_in_a_call_is_unavailable_and_started_again() -> None:
    arrived = threading.Event()

    def wait(visit: Visit) -> None:
        arrived.set()
        visit.gone.wait()

    with (
        WebServer({"/": answer("<title>ok</title>"), "/wait": wait}) as server,
        opened_packs(["browser"], None, opened(server), environ=dict(os.environ)) as box,
    ):
        box.data("browser_navigate", url=server.url)
        killer = threading.Thread(target=kill_when, args=(arrived, browser_below(os.getpid())))
        killer.start()
        failed = box.error("browser_navigate", url=f"{server.url}/wait", timeout_seconds=60)
        killer.join()
        assert failed["code"] == "unavailable"
        assert box.code("browser_query") == "unavailable"
        assert box.data("browser_navigate", url=server.url)["title"] == "ok"


def kill_when(arrived: threading.Event, pid: int) -> None:
    arrived.wait(60)
    os.kill(pid, signal.SIGKILL)


def test_a_thousand_windows_do_not_stop_the_page() -> None:
    with (
        WebServer({"/": answer(WINDOWS)}) as server,
        opened_packs(["browser"], None, opened(server), environ=dict(os.environ)) as box,
    ):
        box.data("browser_navigate", url=server.url)
        box.call("browser_click", selector="#b")
        assert box.data("browser_navigate", url=server.url)["title"] == "windows"


OBJECTS = "for (let n = 0; n < 100; n++) kept.push(new Array(100000).fill(1.5))"
BUFFERS = (
    "try { kept.push(new Uint8Array(1 << 27).fill(1)) } catch (error) { said = String(error) }"
)


@pytest.mark.parametrize(
    ("takes", "crashes"), [(OBJECTS, True), (BUFFERS, False)], ids=["objects", "buffers"]
)
def test_a_page_that_takes_memory_without_end_has_an_error(
    takes: str, *, crashes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = f"<title>memory</title><script>let said=''; const kept=[]; function take() {{{takes}}}"
    with (
        tempfile.TemporaryDirectory() as folder,
        WebServer({"/": answer(page + "</script>"), "/ok": answer("<title>ok</title>")}) as server,
        opened_packs(["browser"], None, opened(server), environ=dict(os.environ)) as box,
    ):
        monkeypatch.setattr(tempfile, "tempdir", folder)
        box.data("browser_navigate", url=server.url)
        browser = browser_below(os.getpid())
        if crashes:
            box.data("browser_eval", script="setInterval(take); 0")
            failed = box.error("browser_wait", selector="nothing", timeout_seconds=90)
            assert (failed["code"], failed["message"][:20]) == (
                "unavailable",
                "the page has crashed",
            )
        else:
            given = {"script": "while (!said) { take(); } said", "timeout_seconds": 60}
            assert "RangeError" in str(box.data("browser_eval", **given))
        limits = Path(f"/proc/{browser}/limits").read_text(encoding="ascii")
        (line,) = [line for line in limits.splitlines() if line.startswith("Max data size")]
        assert line.split()[3:5] == [str(3 << 30)] * 2
        assert box.data("browser_navigate", url=f"{server.url}/ok")["title"] == "ok"
        box.data("browser_disconnect")
        assert processes_of(browser) == set()
        assert list(Path(folder).iterdir()) == []
