"""WebRTC in a real Chromium: what it sends without the guard of the pack `browser`, and with (K71).

The page makes peers in itself, in two frames of its own origin and in one of another. They ask
STUN and TURN servers, and dial addresses, that are sockets of this test.
"""

import fcntl
import ipaddress
import json
import os
import queue
import signal
import socket
import struct
import subprocess
import tempfile
import threading
from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import pytest
from browser_pages import chromium
from browser_processes import browser_below, connections_of
from pack_scenes import opened_packs
from web_server import Visit, WebServer, answer

from aish.core.json import JsonValue
from aish.packs.browser.browser_options import BrowserOptions
from aish.packs.browser.confinement import PREFERENCES, confinement_flags

pytestmark = pytest.mark.browser

PAGE = Path(__file__).parents[2] / "data" / "browser_guard" / "webrtc.html"
POLICY: Final = "--webrtc-ip-handling-policy"
SIOCGIFADDR: Final = 0x8915
LISTENS: Final = "00000000:0000"
"""What `/proc/net` has of a socket that is not connected."""


class Dialled:
    """A TCP port that hangs up on everybody, and knows whom the browser was connected to then."""

    def __init__(self, host: str) -> None:
        self._listener = socket.create_server((host, 0))
        self.port: int = self._listener.getsockname()[1]
        self.browser = 0
        self.count = 0
        self.seen: set[str] = set()
        self._thread = threading.Thread(target=self._accept)
        self._thread.start()

    def _accept(self) -> None:
        with suppress(OSError):  # `close`
            while True:
                connection, _ = self._listener.accept()
                with connection:
                    if self.browser:
                        self.seen |= connections_of(self.browser)
                    self.count += 1

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()


class Peers:
    """The page, and the sockets that its peers could reach."""

    def __init__(self, stack: ExitStack) -> None:
        self.address = own_address()
        self.udp = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        self.udp.bind(("0.0.0.0", 0))
        self.udp.setblocking(False)
        self.refused, self.permitted = Dialled("0.0.0.0"), Dialled("127.0.0.1")
        stack.callback(self.refused.close)
        stack.callback(self.permitted.close)
        self._told: queue.SimpleQueue[Mapping[str, Any]] = queue.SimpleQueue()
        words = {
            "ADDRESS": self.address,
            "UDP_PORT": self.udp.getsockname()[1],
            "TCP_PORT": self.refused.port,
            "PERMITTED_PORT": self.permitted.port,
        }
        text = PAGE.read_text(encoding="utf-8")
        for word, value in words.items():
            text = text.replace(word, str(value))
        self.server = stack.enter_context(WebServer({"/": answer(text), "/done": self._take}))

    def _take(self, visit: Visit) -> None:
        self._told.put(json.loads(visit.body()))
        visit.send(answer())

    def told(self) -> Sequence[Mapping[str, Any]]:
        """What each of the four pairs of peers saw, once they are through."""
        told = self._told.get(timeout=60)
        assert set(told) == {"page", "empty", "source", "site"}
        return [*told.values()]

    def datagrams(self) -> int:
        """How many came since the last time."""
        count = 0
        with suppress(BlockingIOError):
            while True:
                self.udp.recv(65536)
                count += 1
        return count


@pytest.fixture
def peers() -> Generator[Peers]:
    with ExitStack() as stack:
        yield Peers(stack)


def own_address() -> str:
    """The address of an interface that is not loopback's: WebRTC uses no others by itself."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        for _, name in socket.if_nameindex():
            with suppress(OSError):  # it has no address
                found = fcntl.ioctl(asking, SIOCGIFADDR, struct.pack("256s", name.encode()))
                address = ipaddress.IPv4Address(found[20:24])
                if not address.is_loopback:
                    return str(address)
    pytest.skip("this machine has no interface beside loopback")


@contextmanager
def browser(flags: Sequence[str], preferences: Mapping[str, JsonValue], url: str) -> Generator[int]:
    """A browser at an address; with the guard's flags its proxy is a port of nobody."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        default = Path(folder) / "Default"
        default.mkdir()
        (default / "Preferences").write_text(json.dumps(preferences))
        argv = [chromium(), "--headless=new", "--no-sandbox", f"--user-data-dir={folder}"]
        started = subprocess.Popen(
            [*argv, "--disable-gpu", "--no-first-run", *flags, url],
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            yield started.pid
        finally:
            os.killpg(started.pid, signal.SIGKILL)
            started.wait()


def flags_without(*names: str) -> list[str]:
    """The flags of the guard but these, and without the proxy: nothing else holds a page back."""
    left_out = ("--proxy", *names)
    return [flag for flag in confinement_flags("127.0.0.1:9") if not flag.startswith(left_out)]


# Each of the two suffices: where one has lost its meaning in some version, the other holds.
@pytest.mark.parametrize(
    ("flags", "preferences", "sends"),
    [
        ((), {}, True),
        (flags_without(POLICY, "--host-resolver-rules"), {}, True),
        (flags_without("--host-resolver-rules"), {}, False),
        (flags_without(POLICY, "--host-resolver-rules"), PREFERENCES, False),
    ],
    ids=["neither", "all other flags", "flag", "preference"],
)
def test_webrtc_sends_datagrams_without_its_policy_and_none_with_it(
    peers: Peers, flags: Sequence[str], preferences: Mapping[str, JsonValue], *, sends: bool
) -> None:
    # What is not to come is waited for shortly.
    late = 30_000 if sends else 3_000
    with browser(flags, preferences, f"{peers.server.url}/#{late}"):
        seen = peers.told()
        assert [one["opened"] for one in seen] == [sends] * 4
        assert [bool(one["candidates"]) for one in seen] == [sends] * 4
        count = peers.datagrams()
        assert count >= 4 if sends else count == 0


def test_webrtc_in_the_pack_goes_by_the_proxy_or_nowhere(peers: Peers) -> None:
    port = peers.server.port
    allow = (f"127.0.0.1:{port}", f"localhost:{port}", f"127.0.0.1:{peers.permitted.port}")
    options = {"browser": BrowserOptions(allow=allow)}
    with opened_packs(["browser"], None, options, environ=dict(os.environ)) as box:
        box.data("browser_connect")
        peers.permitted.browser = browser_below(os.getpid())
        # What was refused is told by the next call, and that may be this one.
        notes = box.data("browser_navigate", url=peers.server.url)["notes"]
        seen = peers.told()
        assert peers.datagrams() == 0
        assert {(one["opened"], tuple(one["candidates"])) for one in seen} == {(False, ())}
        # TURN over TCP is connected by the proxy, by its rules.
        assert peers.refused.count == 0
        assert peers.permitted.count >= 4
        assert len(peers.permitted.seen - {LISTENS}) == 1  # the proxy
        assert f"0100007F:{peers.permitted.port:04X}" not in peers.permitted.seen
        notes += box.data("browser_navigate", url="about:blank")["notes"]
        assert any(f"127.0.0.1:{peers.refused.port}" in note for note in notes), notes
