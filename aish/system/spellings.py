r"""Secrets whose single letters are escaped in ways that nobody can list (C8).

JSON may spell any letter as `\u0073`, a URL any as `%73`, mixed as one likes; base64 may be broken
into lines. Such spellings are no fixed texts but patterns: one a secret, used only on texts that
have escapes at all.
"""

import re
from collections.abc import Iterable, Iterator

_ESCAPES = re.compile(r"\\u[0-9a-fA-F]{4}|%[0-9a-fA-F]{2}|\\/")
_SIGNS = ("\\u", "%", "\\/")
_WRAPPED = re.compile(r"[\\\r\n](?<=[A-Za-z0-9+/_-]{40}.)", re.DOTALL)
_BREAK = r"(?:\\{1,15}[rn]|[\r\n]|%0[adAD])*+"
# As many as three layers of JSON make of one.
_SLASHES = r"\\{1,15}"
_SHORT = {"\n": "n", "\r": "r", "\t": "t", "\b": "b", "\f": "f"}
_BASIC_PLANE = 0xFFFF

_Span = tuple[int, int, str]


class Spellings:
    """Patterns of secrets; made when a text comes that may need them."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}
        self._coded: dict[str, str] = {}
        self._patterns: list[tuple[re.Pattern[str], str]] | None = None
        self._broken: list[tuple[re.Pattern[str], str]] | None = None

    def add(self, tag: str, text: str, coded: Iterable[str]) -> None:
        """Look for a text, and for what it is in base64, from now on."""
        self._texts.setdefault(text, tag)
        for one in coded:
            self._coded.setdefault(one, tag)
        self._patterns = self._broken = None

    def spans(self, text: str) -> Iterator[_Span]:
        """Where one stands with escapes in it: start, end, tag; they may overlap."""
        # Looking for a text takes next to nothing, and for a pattern does not.
        if any(one in text for one in _SIGNS) and _ESCAPES.search(text):
            if self._patterns is None:
                of_texts = [(_escaped(one), tag) for one, tag in self._texts.items()]
                of_coded = [(_slashed(one), tag) for one, tag in self._coded.items()]
                self._patterns = of_texts + of_coded
            yield from _found(self._patterns, text)
        if _WRAPPED.search(text):
            if self._broken is None:
                self._broken = [(_in_lines(one), tag) for one, tag in self._coded.items()]
            yield from _found(self._broken, text)


def _found(patterns: Iterable[tuple[re.Pattern[str], str]], text: str) -> Iterator[_Span]:
    for pattern, tag in patterns:
        for found in pattern.finditer(text):
            yield *found.span(), tag


def _escaped(text: str) -> re.Pattern[str]:
    """Each letter in any spelling. Atomic groups: no text makes this slow."""
    first, *rest = map(_letter, re.findall(r"\\+|[^\\]", text, re.DOTALL))
    # The first one is none: by how it begins, places are found where it is worth while to look.
    return re.compile(f"(?:{first})" + "".join(f"(?>{one})" for one in rest))


def _letter(one: str) -> str:
    """A letter, or a run of backslashes, in all its spellings."""
    coded = "".join(f"%(?:25)*{byte:02x}" for byte in one.encode("utf-8", "surrogatepass"))
    unicode = "".join(f"{_SLASHES}u{half:04x}" for letter in one for half in _halves(ord(letter)))
    ways = [f"(?i:{coded})", f"(?i:{unicode})"]
    if one[0] == "\\":
        # In pairs: one that is left over begins what comes next.
        return "|".join((*ways, rf"(?:\\\\){{{len(one)},{len(one) * 8}}}", rf"\\{{{len(one)}}}"))
    if one in _SHORT:
        ways.append(_SLASHES + _SHORT[one])
    if one in {'"', "/", "'"}:
        ways.append(_SLASHES + one)
    if one == " ":
        ways.append(r"\+")
    return "|".join((*ways, re.escape(one)))


def _slashed(coded: str) -> re.Pattern[str]:
    """Base64 whose letters stand as they are, and everything else in any spelling."""
    return re.compile("".join(one if one.isalnum() else f"(?>{_letter(one)})" for one in coded))


def _in_lines(text: str) -> re.Pattern[str]:
    return re.compile(_BREAK.join(re.escape(one) for one in text))


def _halves(code: int) -> tuple[int, ...]:
    """A character as JSON numbers it: beyond the basic plane it is two."""
    if code <= _BASIC_PLANE:
        return (code,)
    high, low = divmod(code - 0x10000, 0x400)
    return 0xD800 + high, 0xDC00 + low
