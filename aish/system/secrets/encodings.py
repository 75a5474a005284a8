r"""Secrets whose single letters are escaped in ways that nobody can list (C8).

JSON may spell any letter as `\u0073`, a URL any as `%73`, mixed as one likes; base64 may be broken
into lines. Such spellings are no fixed texts but patterns: one a secret, used only on texts that
have escapes at all.
"""

import re
import string
from bisect import bisect_right
from collections.abc import Iterable, Iterator

from aish.core.frozen import frozen

_ESCAPES = re.compile(r"\\u[0-9a-fA-F]{4}|%[0-9a-fA-F]{2}|\\/")
_SIGNS = ("\\u", "%", "\\/")
_WRAPPED = re.compile(r"[\\\r\n](?<=[A-Za-z0-9+/_-]{40}.)", re.DOTALL)
_BREAK = r"(?:\\{1,15}[rn]|[\r\n]|%0[adAD])*+"
# As many as three layers of JSON make of one.
_SLASHES = r"\\{1,15}"
_SHORT = {"\n": "n", "\r": "r", "\t": "t", "\b": "b", "\f": "f"}
_BASIC_PLANE = 0xFFFF
_LONGEST_UTF8 = 4
# What the first byte of a letter of UTF-8 is at least, by how many it has.
_FIRST_OF_MORE, _FIRST_OF_THREE, _FIRST_OF_FOUR = 0xC0, 0xE0, 0xF0

# A letter of a URL, escaped up to four times; what may yet become one; an escape of an escape.
_PERCENT = re.compile(r"%(?:25){0,3}[0-9a-fA-F]{2}")
_PERCENTS = re.compile(rf"(?:{_PERCENT.pattern})+")
_PERCENT_BEGUN = re.compile(r"%(?:25){0,3}[0-9a-fA-F]?\Z")
_AGAIN = re.compile(r"%(?:25){1,3}(?=[0-9a-fA-F]{2})")
_HEX = re.compile(r"%([0-9a-fA-F]{2})")
_DIGITS = string.hexdigits
_BYTES = {high + low: chr(int(high + low, 16)) for high in _DIGITS for low in _DIGITS}
# Characters that stand for one byte at most.
_LONGEST_PERCENT = 9

_Span = tuple[int, int, str]


@frozen
class Unquoted:
    """A text without its percent-encoding, whatever of it was encoded, and where it stands."""

    text: str
    values: list[int]
    spellings: list[int]

    def place(self, value: int) -> int:
        """Where a character is spelled, or where the text ends."""
        known = bisect_right(self.values, value) - 1
        return self.spellings[known] + value - self.values[known]


def unquoted(text: str) -> str:
    """The text without its percent-encoding; what is no UTF-8 then stands as lone surrogates."""
    # Byte by byte, with no Python in between: this is done with every text that has an escape.
    raw = text.encode("utf-8", "surrogatepass").decode("latin-1")
    pieces = _HEX.split(_AGAIN.sub("%", raw) if "%25" in raw else raw)
    pieces[1::2] = map(_BYTES.__getitem__, pieces[1::2])
    return "".join(pieces).encode("latin-1").decode("utf-8", "surrogateescape")


def unquoted_places(text: str) -> Unquoted:
    """The same, with the places."""
    pieces: list[str] = []
    values, spellings = [0], [0]
    end = length = 0
    for run in _PERCENTS.finditer(text):
        letters = _bytes(run[0]).decode("utf-8", "surrogateescape")
        length += run.start() - end
        ends = [one.end() for one in _PERCENT.finditer(text, run.start(), run.end())]
        used = 0
        for letter in letters:
            used += len(letter.encode("utf-8", "surrogateescape"))
            length += 1
            values.append(length)
            spellings.append(ends[used - 1])
        pieces += (text[end : run.start()], letters)
        end = run.end()
    return Unquoted("".join((*pieces, text[end:])), values, spellings)


def percent_begun(text: str) -> int:
    """Where a letter begins of which the text has only the first bytes, or a part of one."""
    begun = _PERCENT_BEGUN.search(text, max(0, len(text) - _LONGEST_PERCENT))
    end = len(text) if begun is None else begun.start()
    # The bytes before it, as far as they are the beginning of one letter.
    near = max(0, end - _LONGEST_PERCENT * (_LONGEST_UTF8 - 1))
    last = None
    for run in _PERCENTS.finditer(text, near, end):
        last = run
    if last is None or last.end() != end:
        return end
    places = [one.start() for one in _PERCENT.finditer(text, last.start(), end)]
    data = _bytes(last[0])
    for count in range(1, min(len(data), _LONGEST_UTF8 - 1) + 1):
        first = data[-count]
        if first >= _FIRST_OF_MORE:
            wanted = 2 + (first >= _FIRST_OF_THREE) + (first >= _FIRST_OF_FOUR)
            return places[-count] if count < wanted else end
    return end


def _bytes(run: str) -> bytes:
    once = _AGAIN.sub("%", run) if "%25" in run else run
    return bytes.fromhex(once.replace("%", " "))


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
