"""What a page tries in a real Chromium with the guard of the pack `browser` (K71, K89.8).

The pages of `tests/data/browser_guard/` try each way out that a page has: by every spelling of this
machine, by redirects, rebinding, WebSockets, WebTransport, workers, prefetches, beacons. In a
browser without the guard they reach the server that stands for all other hosts. What WebRTC sends
is seen in `test_e2e_browser_webrtc.py`.
"""

import json
import os
import signal
import socket
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from browser_pages import chromium
from browser_processes import connections_of
from web_server import Visit, WebServer, answer

from aish.core.frozen import frozen
from aish.net.guarded_client import destination_of
from aish.net.guarded_proxy import open_guarded_proxy
from aish.packs.browser.confinement import PREFERENCES, confinement_flags

pytestmark = [pytest.mark.anyio, pytest.mark.browser]

PAGES = Path(__file__).parents[2] / "data" / "browser_guard"
HIDDEN = "secret of another server"


@frozen
class Seen:
    """What came of the page: what it says itself, and what was seen outside of the browser."""

    said: dict[str, Any]
    requests: Sequence[bytes]
    connections: int
    datagrams: int
    ends: set[str]
    proxy_end: str
    looked_up: Sequence[str]


def udp_socket() -> socket.socket:
    found = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    found.bind(("0.0.0.0", 0))
    found.setblocking(False)
    return found


def datagrams(waiting: socket.socket) -> int:
    count = 0
    with suppress(BlockingIOError):
        while True:
            waiting.recv(65536)
            count += 1
    return count


async def attacked() -> Seen:
    """Open the page in a browser with the guard."""
    looked_up: list[str] = []
    said: list[dict[str, Any]] = []

    async def resolve(host: str, port: int) -> Sequence[str]:  # ruff: ignore[unused-async] - a `Resolve`
        """Every name means this machine: as where the name of a page is bound anew."""
        looked_up.append(host)
        return ["127.0.0.1"]

    def report(visit: Visit) -> None:
        said.append(json.loads(visit.body()))
        visit.send(answer("ok"))

    with ExitStack() as stack:
        stun, quic = (stack.enter_context(udp_socket()) for _ in range(2))
        other = stack.enter_context(WebServer({"/": answer(HIDDEN)}))
        words = {
            "VICTIM": str(other.port),
            "STUN": str(stun.getsockname()[1]),
            "QUIC": str(quic.getsockname()[1]),
        }

        def page(name: str, kind: str) -> bytes:
            text = (PAGES / name).read_text(encoding="utf-8")
            for word, value in words.items():
                text = text.replace(word, value)
            return answer(text, kind)

        home = stack.enter_context(
            WebServer(
                {
                    "/": page("attack.html", "text/html"),
                    "/worker.js": page("worker.js", "text/javascript"),
                    "/service_worker.js": page("service_worker.js", "text/javascript"),
                    "/redir": answer(status="302 Found", location=f"{other.url}/redirected"),
                    "/redirfile": answer(status="302 Found", location="file:///etc/passwd"),
                    "/frame": answer("<h1>frame"),
                    "/done": report,
                }
            )
        )
        folder = stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True))
        default = Path(folder) / "Default"
        default.mkdir()
        allow = [destination_of(home.destination)]
        async with open_guarded_proxy(allow=allow, resolve=resolve) as proxy:
            (default / "Preferences").write_text(json.dumps(PREFERENCES))
            flags = confinement_flags(proxy.address)
            argv = [chromium(), "--headless=new", "--no-sandbox", f"--user-data-dir={folder}"]
            browser = subprocess.Popen(  # ruff: ignore[create-subprocess-in-async-function] - of the test's own thread
                [*argv, "--disable-gpu", "--no-first-run", *flags, f"{home.url}/"],
                start_new_session=True,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            try:
                proxy.admit(browser.pid)
                ends: set[str] = set()
                with anyio.fail_after(90):
                    # The page has sent its last beacons by then.
                    while not any(head.startswith(b"GET /bye") for head in home.heads):
                        await anyio.sleep(0.05)  # connections are seen while they are open
                        ends |= await anyio.to_thread.run_sync(connections_of, browser.pid)
            finally:
                os.killpg(browser.pid, signal.SIGKILL)
                browser.wait()
            return Seen(
                said[0],
                [head.split(b"\r\n")[0] for head in other.heads],
                other.connections,
                datagrams(stun) + datagrams(quic),
                ends - {"00000000:0000"},
                f"0100007F:{int(proxy.address.rpartition(':')[2]):04X}",
                looked_up,
            )


async def test_a_page_reaches_nothing_but_what_is_allowed() -> None:
    seen = await attacked()

    assert seen.connections == 0
    assert seen.datagrams == 0
    assert seen.ends <= {seen.proxy_end}
    assert HIDDEN not in json.dumps(seen.said)
    opened = {name for name, what in seen.said.items() if what == "open"}
    assert opened == set()
    for scheme in ("file:", "chrome:", "data:", "view-source:", "devtools:"):
        assert {what for name, what in seen.said.items() if name.startswith(f"open {scheme}")} == {
            "null"
        }
    assert seen.said["file"] == seen.said["redirect file"] == "TypeError: Failed to fetch"
    assert seen.said["wt"] != "ready"
    assert seen.said["worker"]["wws"] == "error"
    assert not {"google.com", "googleapis.com", "gstatic.com"} & {
        ".".join(host.split(".")[-2:]) for host in seen.looked_up
    }
    assert not any("prefetch" in host or "stunname" in host for host in seen.looked_up)
