"""Keys in the URLs that a person types: found, so that they are not shown and not kept (X4)."""

import re
from collections.abc import Iterator
from urllib.parse import parse_qsl, urlsplit

_WORDS = "key|token|secret|auth|sig|pass|cred"
# Bounded, so that no line takes long.
_PART = r"[^=&#\s]{0,64}"
_KEY = re.compile(_WORDS, re.IGNORECASE)
_TYPED = re.compile(rf"([?&]({_PART}(?:{_WORDS}){_PART})=)[^&#\s]+", re.IGNORECASE)
_CREDENTIALS = re.compile(r"(?<=://)[^/?#\s]+(?=@)")


def keys_in(url: str) -> Iterator[tuple[str, str]]:
    """The keys in a URL's query, each with its name."""
    return (pair for pair in parse_qsl(urlsplit(url).query) if _KEY.search(pair[0]))


def without_keys(line: str) -> str:
    """What is kept of a typed line: of a command, such as `:mcp connect URL`, no key in a URL."""
    if not line.lstrip().startswith(":"):
        return line
    return _TYPED.sub(r"\1<secret:\2>", _CREDENTIALS.sub("<secret:credentials>", line))
