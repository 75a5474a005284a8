"""Standard streams, connected with a server at a socket file or a TCP port (a program of its own).

python line_bridge.py unix:PATH
python line_bridge.py tcp://HOST:PORT VARIABLE    # its token is added to the first message
"""

import json
import os
import socket
import sys
import threading


def connect(address: str) -> socket.socket:
    """A connection to the server."""
    kind, _, rest = address.partition(":")
    if kind == "unix":
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(rest)
        return connection
    host, _, port = rest.removeprefix("//").rpartition(":")
    return socket.create_connection((host, int(port)))


def with_token(line: bytes, token: str) -> bytes:
    """The message with a token in its `_meta`."""
    message = json.loads(line)
    params = message.setdefault("params", {})
    params["_meta"] = {**params.get("_meta", {}), "aish/token": token}
    return json.dumps(message).encode() + b"\n"


def copy_input(connection: socket.socket, token: str | None) -> None:
    """Send what comes in, then its end."""
    for line in sys.stdin.buffer:
        connection.sendall(line if token is None else with_token(line, token))
        token = None
    connection.shutdown(socket.SHUT_WR)


def main() -> None:
    """Copy in both directions until the server closes the connection."""
    connection = connect(sys.argv[1])
    token = os.environ[sys.argv[2]] if len(sys.argv) > 2 else None
    threading.Thread(target=copy_input, args=(connection, token), daemon=True).start()
    while piece := connection.recv(65536):
        sys.stdout.buffer.write(piece)
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
