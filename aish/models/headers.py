"""Headers of requests, validated before anything is sent."""

from collections.abc import Mapping
from urllib.parse import urlsplit

import aish
from aish.config.model import ModelEntry
from aish.core.errors import UsageError
from aish.core.patterns import lazy_pattern
from aish.core.wires import WIRES, wire_at

_NAME = lazy_pattern(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE = lazy_pattern(r"(?:[\x21-\x7e](?:[\t\x20-\x7e]*[\x21-\x7e])?)?")
_BEARER = "authorization"
# These describe the encoded body, which only the transport knows.
_OURS = frozenset({"host", "content-length", "transfer-encoding", "connection", "accept-encoding"})


def headers_of(entry: ModelEntry, key: str | None) -> Mapping[str, str]:
    """The headers of a model's requests; those of the entry override the defaults."""
    headers = {
        "accept": "*/*",
        # A compressed stream arrives late, and 200 KB of it can be 67 MB of text.
        "accept-encoding": "identity",
        "content-type": "application/json",
        "user-agent": f"aish/{aish.__version__}",
    }
    wire = WIRES[entry.api]
    headers |= wire.headers
    if key:
        name = (entry.key_header or wire.key_header).lower()
        value = f"Bearer {key}" if name == _BEARER else key
        _check(entry, name, value, entry.key_env or "key_env")
        headers[name] = value
    for name, value in entry.headers.items():
        _check(entry, name, value, f"headers.{name}")
        headers[name.lower()] = value
    return headers


def check_endpoint(entry: ModelEntry, key: str | None) -> None:
    """Check that an entry with expanded variables can be used.

    Raises:
        UsageError: it cannot be used; the message says why.
    """
    if entry.embedded is None:
        check_base_url(entry)
    if entry.proxy is not None:
        try:
            legal = urlsplit(entry.proxy or "").scheme in {"http", "https"}
        except ValueError:
            legal = False
        if not legal or not _has_host(entry.proxy or ""):
            raise UsageError(
                "this is not the URL of a proxy",
                where=f"models.{entry.alias}.proxy",
                hint="it looks like `http://host:3128`; other kinds of proxy are not known",
            )
    headers_of(entry, key)


def check_base_url(entry: ModelEntry) -> None:
    where = f"models.{entry.alias}.base_url"
    url = entry.base_url or ""
    try:
        parts = urlsplit(url)
        legal = parts.scheme in {"http", "https"} and parts.port != 0 and _has_host(url)
    except ValueError:
        legal = False
    if not legal:
        raise UsageError(
            "this is not the URL of an endpoint",
            where=where,
            hint=f"it looks like `https://host/v1`; `{WIRES[entry.api].leaf}` is added to it",
        )
    if "@" in parts.netloc:
        raise UsageError(
            "a URL with a user or a password in it would be shown in logs",
            where=where,
            hint="name the variable that holds the key with `key_env`, or use `headers`",
        )
    if parts.fragment:
        raise UsageError("a fragment (`#…`) is never sent to an endpoint", where=where)
    if (wire := wire_at(parts.path.rstrip("/"))) is not None:
        added = f"{wire.root}{wire.leaf}"
        apart = "" if wire.api == entry.api else f", and write `api: {wire.api}`"
        raise UsageError(
            f"this URL ends with `{added}`, and `{WIRES[entry.api].leaf}` is added to it",
            where=where,
            hint=f"leave `{added}` out{apart}",
        )


def _has_host(url: str) -> bool:
    """Return true if it contains a host name that can be looked up."""
    name = urlsplit(url).hostname or ""
    # `urlsplit` silently drops line ends and tabs.
    if not name or not url.isprintable() or " " in name:
        return False
    if name.isascii() and "xn--" not in name:
        return True
    # Only internationalized names need this import.
    from aish.models.transport import is_sendable

    return is_sendable(url)


def _check(entry: ModelEntry, name: str, value: str, where: str) -> None:
    if not _NAME.fullmatch(name) or name.lower() in _OURS:
        raise UsageError(f"`{name}` is not a header to be set", where=f"models.{entry.alias}")
    if not _VALUE.fullmatch(value):
        raise UsageError(
            f"the value for the header `{name}` has characters that HTTP does not allow",
            where=f"models.{entry.alias}.{where}",
            hint="a line end at the end of the value is the usual cause",
        )
