"""Keys that are written in a text itself: known by their shape, their name, or their randomness.

A name in front of a value (`--api-key`, `?token=`, `Authorization:`) makes it one, whatever it
looks like; elsewhere only what has the shape of a service's keys, or is as random as a key.
"""

import math
import re
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from functools import cache

from aish.core.json import JsonValue
from aish.core.patterns import lazy_pattern
from aish.system.secrets.secrets import SHORTEST, names_credential, resembles_key

RANDOM_TEXT = "text as random as a key"
# An underscore may precede: `*__sk-…` is a rule with a key in it.
_SHAPES = {
    "a private key": r"-----BEGIN [A-Z ]*PRIVATE KEY-----"
    r"(?:[^-\"]*+-----END [A-Z ]*PRIVATE KEY-----)?",
    "an API key": r"(?<![^\W_])sk-[A-Za-z0-9_-]{20,}",
    "a GitHub token": r"(?<![^\W_])(?:gh[pousr]_[A-Za-z0-9]{36,}|github_pat_\w{40,})",
    "a GitLab token": r"(?<![^\W_])glpat-[\w-]{20,}",
    "an AWS access key": r"(?<![^\W_])(?:AKIA|ASIA)[A-Z0-9]{16}\b",
    "a Google API key": r"(?<![^\W_])AIza[\w-]{35}",
    "a Slack token": r"(?<![^\W_])xox[abeoprs]-[A-Za-z0-9-]{10,}",
    "a Hugging Face token": r"(?<![^\W_])hf_[A-Za-z0-9]{30,}",
    "a package registry token": r"(?<![^\W_])(?:npm_[A-Za-z0-9]{36}|pypi-[\w-]{50,})",
    "a payment key": r"(?<![^\W_])[rs]k_(?:live|test)_[A-Za-z0-9]{20,}",
    "a JSON web token": r"(?<![\w-])eyJ[\w-]{10,}\.eyJ[\w-]{10,}\.[\w-]{10,}",
    "a bearer token": r"(?i:\bbearer )[A-Za-z0-9._~+/-]{20,}=*",
}
_NAMES = tuple(_SHAPES)
# The prefix of each shape: searching for these takes a hundredth of the time.
_SIGNS = (
    *("-----BEGIN ", "sk-", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_", "glpat-"),
    *("AKIA", "ASIA", "AIza", "xox", "hf_", "npm_", "pypi-", "eyJ"),
    *("rk_live_", "rk_test_", "sk_live_", "sk_test_"),
)
_BEARER = lazy_pattern(r"[bB][eE][aA][rR][eE][rR] ")
# The same within one segment: the text before it cannot belong to it.
_WORD = lazy_pattern(r"(?<![A-Za-z0-9+_-])[A-Za-z0-9+_-]{32,}={0,2}")
_SHORTEST_WORD = 32
_PUBLIC = lazy_pattern(r"(?:chatcmpl|cmpl|call|toolu|msg|resp|req|run|fp|gen)[-_]")
_RANDOM = 4.2
_FEWEST_DIGITS = 3
# Possessive throughout: a file may hold a megabyte of anything.
_URL = lazy_pattern(r"(?<![A-Za-z0-9+.-])[0-9+.-]*+[A-Za-z][A-Za-z0-9+.-]*+://[^\s\"'<>]++")
_LOGIN = lazy_pattern(r"://(?:(?P<user>[^/@:?#]++)?(?::(?P<password>[^/@?#]++))?)@")
_PARAMETER = lazy_pattern(r"[?&#;](?P<name>[^=&#?;]++)=(?P<value>[^&#;]++)")
_FRAGMENT = lazy_pattern(r"#(?P<value>[^=&#?]++)\Z")
# `--name value`, `-name=value`, `NAME=value`, `Name: value`, up to the value.
_ASSIGNED = lazy_pattern(
    r"(?<![\w-])(?P<dash>--?)?(?P<name>[A-Za-z][\w-]*+)[\"']?"
    r"(?:\s*+[=:]\s*+|(?(dash)\s++(?!-)|(?!)))[\"']?"
)
_VALUE = lazy_pattern(r"(?:(?:bearer|basic|token)\s++)?(?P<value>[^\s\"',;&]++)", re.IGNORECASE)
_SCHEME = lazy_pattern(r"(?:bearer|basic|token)\s++", re.IGNORECASE)
_PATH = lazy_pattern(
    r"(?:~|\.{0,2})/[\w.~/ -]+|[\w.-]+\.(?:pem|key|crt|cer|p12|pfx|json|txt|env|ya?ml)"
)
_HEX = lazy_pattern(r"[0-9a-fA-F-]+")
_LONG_PART = 20
_LONGER_WORD = lazy_pattern(r"(?<![\w-])[A-Za-z0-9_-]{12,}")
_REFERENCES = ("$", "{{", "{%", "<")


@cache
def _shape_pattern() -> re.Pattern[str]:
    """Created on first use: that takes milliseconds."""
    shapes = enumerate(_SHAPES.values())
    return re.compile("|".join(f"(?P<shape{n}>{shape})" for n, shape in shapes))


def suspects(text: str) -> Iterator[tuple[int, str, str]]:
    """The position, the description and the text of each suspect."""
    known = list(find_shapes(text))
    yield from known
    rest = deque((start, start + len(key)) for start, _, key in known)
    for word in _WORD.finditer(text) if len(text) >= _SHORTEST_WORD else ():
        while rest and rest[0][1] <= word.start():
            rest.popleft()
        is_known = bool(rest) and rest[0][0] < word.end()
        if not is_known and _is_random(word[0]):
            yield word.start(), RANDOM_TEXT, word[0]


def find_shapes(text: str) -> Iterator[tuple[int, str, str]]:
    """The same for known shapes alone."""
    last = 0
    for start in sorted(_shape_starts(text)):
        match = _shape_pattern().match(text, start) if start >= last else None
        if match is not None:
            last = match.end()
            kind = _NAMES[int((match.lastgroup or "shape0").removeprefix("shape"))]
            yield start, kind, match[0]


def _shape_starts(text: str) -> Iterator[int]:
    """The positions at which a shape may begin."""
    for sign in _SIGNS:
        start = text.find(sign)
        while start >= 0:
            yield start
            start = text.find(sign, start + 1)
    # Patterns are compiled on first use, which takes a millisecond: most files need none of them.
    if "bearer " in text.lower():
        yield from (match.start() for match in _BEARER.finditer(text))


def _is_random(word: str) -> bool:
    if _PUBLIC.match(word) or sum(map(str.isdigit, word)) < _FEWEST_DIGITS:
        return False
    if word == word.lower() or word == word.upper():
        return False
    counts = Counter(word).values()
    return -sum(n / len(word) * math.log2(n / len(word)) for n in counts) > _RANDOM


def without_keys(text: str) -> str:
    """A message without what looks like a key in it; names of files and runs stay."""
    pieces: list[str] = []
    last = 0
    candidates = list(suspects(text))
    words = ((match.start(), "", match[0]) for match in _LONGER_WORD.finditer(text))
    candidates += (word for word in words if begins_like_key(word[2]))
    # The longest first where two begin.
    for start, kind, word in sorted(candidates, key=lambda item: (item[0], -len(item[2]))):
        is_name = kind == RANDOM_TEXT and max(map(len, re.split(r"[-_]", word))) < _LONG_PART
        if start >= last and not is_name:
            pieces += (text[last:start], "<key>")
            last = start + len(word)
    return "".join((*pieces, text[last:])) if last else text


def literal_keys(value: JsonValue) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """The keys that are written in the texts of a file, each with its path.

    Only what is long enough to be masked; a reference to a variable is none.
    """
    for path, text, name in _texts(value, (), ""):
        for key in dict.fromkeys(_keys_in(text, name, path)):
            if len(key) >= SHORTEST:
                yield path, key


_Path = tuple[str | int, ...]


def _texts(value: JsonValue, path: _Path, name: str) -> Iterator[tuple[_Path, str, str]]:
    """Each text, with its path and the key that it is the value of, and each key."""
    match value:
        case str():
            yield path, value, name
        case Mapping():
            for key, below in value.items():
                yield (*path, key), key, ""
                yield from _texts(below, (*path, key), key)
        case Sequence():
            if name in _COMMANDS:
                # An option and its value may be two words.
                yield path, " ".join(word for word in value if isinstance(word, str)), name
            for index, below in enumerate(value):
                yield from _texts(below, (*path, index), "" if name in _COMMANDS else name)


_COMMANDS = frozenset({"command", "args", "run"})
_NAMED_VALUES = frozenset({"headers", "env"})


def _keys_in(text: str, name: str, path: _Path) -> Iterator[str]:
    if len(text) < SHORTEST:
        return
    for _, kind, word in find_shapes(text):
        yield _SCHEME.sub("", word, 1) if kind == "a bearer token" else word
    if name in _COMMANDS:
        yield from _credential_values(text)
        yield from (word for _, _, word in suspects(text))
    elif len(path) > 1 and path[-2] in _NAMED_VALUES:
        value = _SCHEME.sub("", text, 1)
        if _is_key(name, value):
            yield value
    elif name and names_credential(name) and looks_like_key(text):
        yield text
    may_hold_key = len(text) >= _SHORTEST_WORD or any(sign in text for sign in "@?&#;")
    for url in _URL.finditer(text) if "://" in text and may_hold_key else ():
        # In a sentence an address is an example; in a command it is one of its words.
        if name in _COMMANDS or url[0] == text:
            yield from _keys_in_url(url[0])


def _credential_values(text: str) -> Iterator[str]:
    """The values of what is named like a credential in the words of a command."""
    match = _ASSIGNED.search(text)
    while match:
        end = match.end()
        if names_credential(match["name"]) and (value := _VALUE.match(text, end)):
            end = value.end()
            if _is_key(match["name"], value["value"]):
                yield value["value"]
        match = _ASSIGNED.search(text, end)


def _keys_in_url(url: str) -> Iterator[str]:
    if "@" in url and (login := _LOGIN.search(url)):
        user, password = login["user"] or "", login["password"] or ""
        yield from (part for part in (password,) if _is_key("password", part))
        yield from (part for part in (user,) if looks_like_key(part))
    has_more = any(sign in url for sign in "?&#;")
    for match in (*_PARAMETER.finditer(url), *_FRAGMENT.finditer(url)) if has_more else ():
        name = match.groupdict().get("name") or ""
        if _is_key(name, match["value"]) or looks_like_key(match["value"]):
            yield match["value"]
    yield from (word for _, _, word in suspects(url))


def _is_key(name: str, value: str) -> bool:
    """Return true if the value of something of this name is a key."""
    if any(sign in value for sign in _REFERENCES) or _PATH.fullmatch(value):
        return False
    return names_credential(name) or looks_like_key(value)


def begins_like_key(word: str) -> bool:
    """Return true if a word begins as a service's keys do and has a digit, whatever its length."""
    return word.startswith(_SIGNS) and any(map(str.isdigit, word))


def looks_like_key(value: str) -> bool:
    """Return true if a value is a key, whatever its name; a digest may be none."""
    if any(sign in value for sign in _REFERENCES):
        return False
    if begins_like_key(value):
        return True
    is_key = resembles_key(value) and not _HEX.fullmatch(value)
    return is_key or any(True for _ in suspects(value))
