"""Settings of a server (who may connect, and its bounds), and its reports of answers.

Imports nothing of the extra `serve`: it is paid for at the start of a run that listens.
"""

from collections.abc import Callable
from typing import Literal

from aish.core.frozen import frozen
from aish.net.listen.tokens import Tokens


@frozen
class Peer:
    """Sender of a request: the name and scopes of its token, or the user of a socket file.

    `key` tells two tokens of one name apart, and is not a secret. Without a credential, on a public
    route, the name is empty and there are no scopes.
    """

    transport: Literal["tcp", "unix"]
    address: str
    name: str = ""
    scopes: frozenset[str] = frozenset()
    uid: int | None = None
    pid: int | None = None
    key: str = ""


@frozen
class Access:
    """Access rules: tokens over TCP, this user over a socket file.

    `hosts` and `origins` are allowed beside the listener's own, exactly as they are written.
    `is_refused` tells by its number which process may not connect.
    """

    tokens: Tokens
    socket_scopes: frozenset[str]
    is_refused: Callable[[int], bool]
    hosts: frozenset[str] = frozenset()
    origins: frozenset[str] = frozenset()


@frozen
class Call:
    """A request and how it was answered, for a log; it holds no credential.

    `path` has no query; it is empty where the URL held a token, and with `method` where the request
    was refused before it was read. `code` is the word of an error.
    """

    method: str
    path: str
    scope: str
    peer: Peer
    status: int
    code: str


@frozen
class Limits:
    """Bounds of a server: sizes in bytes, times in seconds."""

    connections: int = 64
    head: int = 16 << 10
    body: int = 1 << 20
    receive: float = 10.0
    """From the first byte of a request, or the start of the connection, to the last byte."""
    write: float = 30.0
    """How long a client may read nothing of an answer that waits for it."""
    idle: int = 60
    drain: float = 5.0
    """How long answers may take to end when the server does."""
