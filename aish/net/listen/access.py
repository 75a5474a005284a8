"""Settings of a server (who may connect, and its bounds), and its reports of answers.

Imports nothing of the extra `serve`: it is paid for at the start of a run that listens.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Literal, Protocol

from aish.core.frozen import frozen
from aish.core.json import JsonObject
from aish.net.listen.tokens import Tokens


@frozen
class Peer:
    """Sender of a request: the name and scopes of its token, or the user of a socket file.

    `key` tells two tokens of one name apart, and is not a secret. Without a credential, on a public
    route, the name is empty and there are no scopes. A token of an issuer has more to say of its
    owner (`about`), and an end: `until` is a time of the event loop.
    """

    transport: Literal["tcp", "unix"]
    address: str
    name: str = ""
    scopes: frozenset[str] = frozenset()
    uid: int | None = None
    pid: int | None = None
    key: str = ""
    about: JsonObject | None = None
    until: float | None = None


@frozen
class Bearer:
    """The owner of a token of an issuer: what a `Peer` gets of it."""

    name: str
    scopes: frozenset[str]
    key: str
    about: JsonObject | None = None
    until: float | None = None


@frozen
class Target:
    """The target of a request, as its client spells it; `host` may be any text."""

    path: str
    host: str
    is_tls: bool


class Authority(Protocol):
    """Judges tokens that an issuer has made, beside our own; then sockets need a token too."""

    def judge(
        self, values: Sequence[str], target: Target
    ) -> Bearer | Callable[[], Awaitable[Bearer]]:
        """The owner of the token in `Authorization`, or what finds it by asking the issuer.

        Raises:
            HttpError: nobody is let in by that.
        """


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
    authority: Authority | None = None


@frozen
class AccessRecord:
    """A request and how it was answered, for a log; it holds no credential.

    `path` has no query; it is empty where the URL held a token, and with `method` where the request
    was refused before it was read. `code` is the word of an error, `reason` its text.
    """

    method: str
    path: str
    scope: str
    peer: Peer
    status: int
    code: str
    reason: str = ""


@frozen
class ServerLimits:
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
