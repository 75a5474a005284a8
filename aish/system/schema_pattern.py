"""Patterns whose cost can be foretold, so that they may run where they cannot be stopped (X7)."""

import re
from collections.abc import Mapping
from functools import lru_cache

from aish.core.frozen import frozen

_TOKEN = re.compile(
    r"""
      (?P<open>\((?:\?:)?)
    | (?P<close>\))
    | (?P<bar>\|)
    | (?P<anchor>[\^$])
    | (?P<atom>
          \\[dDwWsS]                       # a class
        | \\[^\w\s]                        # an escaped mark
        | \[\^?(?:\\[^\W\d_bB]|\\[^\w\s]|[^\]\\\[])+\]
        | \.
        | [^\\\[\](){}*+?|^$.]             # a letter that means itself
      )
    | (?P<repeat>\*|\+|\{[0-9]{1,3}(?:,[0-9]{0,3})?\})
    | (?P<optional>\?)
    """,
    re.VERBOSE,
)
_MOST_REPEATS = 2
_MOST_OPTIONAL = 4
_LONGEST = 200


@frozen
class Pattern:
    """A compiled pattern and what it may cost: about `factor * len(text) ** degree`."""

    compiled: re.Pattern[str]
    degree: int
    factor: int

    def cost(self, text: str) -> int:
        """An upper estimate of the steps of a search, in units of about a microsecond."""
        return 1 + int(len(text) ** self.degree) * self.factor // 50


@lru_cache(maxsize=256)
def bounded_pattern(source: str) -> Pattern | None:
    """The pattern, or `None` where it may cost more than the square of the text's length.

    Repeats count for themselves, are never nested, and one more is counted where the search may
    start anywhere.
    """
    if len(source) > _LONGEST or any(twin in source for twin in ("--", "&&", "||", "~~")):
        return None
    tokens = _tokens(source)
    if tokens is None:
        return None
    repeats = sum(kind == "repeat" and not _is_exact(text) for kind, text in tokens)
    optional = sum(kind == "optional" for kind, _ in tokens)
    anchored = bool(tokens) and tokens[0][1] == "^" and not _has_top_level_bar(tokens)
    degree = repeats + (not anchored)
    if degree > _MOST_REPEATS or optional > _MOST_OPTIONAL or not _is_flat(tokens):
        return None
    fixed = sum(int(text[1:-1]) for kind, text in tokens if kind == "repeat" and _is_exact(text))
    try:
        compiled = re.compile(source)
    except re.error:
        return None
    return Pattern(compiled, degree, 2**optional * (len(tokens) + fixed))


def _tokens(source: str) -> list[tuple[str, str]] | None:
    tokens: list[tuple[str, str]] = []
    place = 0
    while place < len(source):
        found = _TOKEN.match(source, place)
        if found is None or found.lastgroup is None:
            return None
        tokens.append((found.lastgroup, found[0]))
        place = found.end()
    return tokens


def _is_exact(repeat: str) -> bool:
    return repeat.startswith("{") and "," not in repeat


def _has_top_level_bar(tokens: list[tuple[str, str]]) -> bool:
    depth = 0
    for kind, _ in tokens:
        depth += _DEPTHS.get(kind, 0)
        if kind == "bar" and depth == 0:
            return True
    return False


_DEPTHS: Mapping[str, int] = {"open": 1, "close": -1}


def _is_flat(tokens: list[tuple[str, str]]) -> bool:
    """No group in a group; a group with a repeat in it is not repeated, nor is any but by `?`."""
    inside = repeated = False
    before = ""
    for kind, _ in tokens:
        if kind == "open":
            if inside:
                return False
            inside, repeated = True, False
        elif kind == "close":
            inside = False
        elif kind in {"repeat", "optional"}:
            if before not in {"atom", "close"}:
                return False
            if before == "close" and (kind == "repeat" or repeated):
                return False
            repeated = True
        before = kind
    return True
