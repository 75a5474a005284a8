"""Checks of options that several packs share: addresses of services, hosts with ports."""

from collections.abc import Iterator, Sequence

_LAST_PORT = 65_535


def is_plain_address(url: str) -> bool:
    """Return true for an HTTP URL with a host, and without a user, a password or a query."""
    from urllib.parse import urlsplit

    try:
        parts = urlsplit(url)
        port = 1 if parts.port is None else parts.port
    except ValueError:
        return False
    return (
        parts.scheme in {"http", "https"}
        and bool(parts.hostname)
        and parts.username is None
        and not (parts.query or parts.fragment)
        and port > 0
    )


def destination_problems(allow: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield entries of the option `allow` with an invalid port."""
    for index, text in enumerate(allow):
        port = text.rpartition(":")[2]
        # What is no host and port at all is a problem of the schema.
        if port.isdecimal() and not 0 < int(port[:9]) <= _LAST_PORT:
            yield "allow", f"entry {index + 1}, `{text}`, has no valid port"
