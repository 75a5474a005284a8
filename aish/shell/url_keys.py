"""Finds keys in the URLs that a person types, so that they are not shown or kept."""

import re
from collections.abc import Iterator
from urllib.parse import parse_qsl, urlsplit

_WORDS = "key|token|secret|auth|sig|pass|cred"
# Bounded, so that every line is fast.
_PART = r"[^=&#\s]{0,64}"
_KEY = re.compile(_WORDS, re.IGNORECASE)
_TYPED = re.compile(rf"([?&]({_PART}(?:{_WORDS}){_PART})=)[^&#\s]+", re.IGNORECASE)
_CREDENTIALS = re.compile(r"(?<=://)[^/?#\s]+(?=@)")


def keys_in(url: str) -> Iterator[tuple[str, str]]:
    return (pair for pair in parse_qsl(urlsplit(url).query) if _KEY.search(pair[0]))


def without_keys(line: str) -> str:
    """A typed line for the history: commands, such as `:mcp connect URL`, without keys in URLs."""
    if not line.lstrip().startswith(":"):
        return line
    return _TYPED.sub(r"\1<secret:\2>", _CREDENTIALS.sub("<secret:credentials>", line))
