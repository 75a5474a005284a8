"""What it means that a host has no address: a name that DNS does not know."""

import socket
from urllib.parse import urlsplit


def unknown_host(error: BaseException, origin: str) -> str | None:
    """What to say where the look-up of an address is what failed, by whatever it was wrapped."""
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        if isinstance(cause, socket.gaierror):
            host = urlsplit(origin).hostname or origin
            if cause.errno == socket.EAI_AGAIN:
                return f"DNS gave no answer for `{host}`"
            return f"DNS has no address for `{host}`"
        seen.add(id(cause))
        cause = cause.__cause__ or cause.__context__
    return None
