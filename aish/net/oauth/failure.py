"""The failure of a login."""

import httpx

from aish.core.text import for_line

_SHOWN = 300


class LoginError(httpx.TransportError):
    """No token could be had for a request, or the server refuses it with a new one.

    Its text is one sentence that says what failed, where, and what to do next. The request has not
    been carried out. It is a failure of a transport, so that a cassette records and replays it.
    """


def quote(text: str) -> str:
    """A text of a server for a message: one line, cut."""
    line = for_line(" ".join(text.split()))
    return line if len(line) <= _SHOWN else f"{line[:_SHOWN]}…"
