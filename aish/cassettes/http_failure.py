"""Failures of connections as words in a cassette, and back as the same failures."""

import httpx

_KINDS: tuple[type[httpx.TransportError], ...] = (
    httpx.CloseError,
    httpx.ConnectError,
    httpx.ConnectTimeout,
    httpx.LocalProtocolError,
    httpx.PoolTimeout,
    httpx.ProxyError,
    httpx.ReadError,
    httpx.ReadTimeout,
    httpx.RemoteProtocolError,
    httpx.UnsupportedProtocol,
    httpx.WriteError,
    httpx.WriteTimeout,
)
_KNOWN = {kind.__name__: kind for kind in _KINDS}


def in_words(error: httpx.HTTPError) -> str:
    """The failure as it stands in a cassette, such as `ConnectError: no route`."""
    return f"{type(error).__name__}: {error}"


def failure_of(words: str) -> httpx.TransportError:
    """The failure that the words are of; a broken connection where nothing else is said."""
    name, _, text = words.partition(": ")
    kind = _KNOWN.get(name)
    return httpx.ReadError(words) if kind is None else kind(text)
