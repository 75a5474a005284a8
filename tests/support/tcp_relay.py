"""A process that does not descend from the test, and connects for it to a port of this machine.

A run refuses connections of its own process, in which a test that holds it is a client too.
"""

import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager

PROGRAM = """
import os, socket, sys, threading
here = socket.create_server(("127.0.0.1", 0))
if os.fork():
    os._exit(0)
os.setsid()
print(here.getsockname()[1], flush=True)
os.close(1)
target = int(sys.stdin.readline())

def copy(source, sink):
    try:
        while piece := source.recv(65536):
            sink.sendall(piece)
        sink.shutdown(socket.SHUT_WR)
    except OSError:
        for end in (source, sink):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

def accept():
    while True:
        near = here.accept()[0]
        try:
            far = socket.create_connection(("127.0.0.1", target))
        except OSError:
            near.close()
            continue
        for pair in ((near, far), (far, near)):
            threading.Thread(target=copy, args=pair, daemon=True).start()

threading.Thread(target=accept, daemon=True).start()
sys.stdin.read()
"""


class Relay:
    """What listens at `port`; it connects once it is told where to."""

    def __init__(self, process: subprocess.Popen[str], port: int) -> None:
        self._process = process
        self.port = port

    def connect_to(self, port: int) -> None:
        """Connect everybody to this port of 127.0.0.1 from now on."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{port}\n")
        self._process.stdin.flush()


@contextmanager
def tcp_relay() -> Generator[Relay]:
    """A relay that ends with the block."""
    with subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", PROGRAM],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        process.wait()  # the parent of what listens: that belongs to `init` now
        yield Relay(process, port)
