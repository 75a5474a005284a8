r"""Secrets whose letters are escaped individually, in too many ways to list.

JSON may write any letter as `\u0073`, a URL any as `%73`, in any mixture; base64 may be broken into
lines. Such spellings are matched by patterns: one per secret, used only on texts that contain
escapes.
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
# As many as three nested levels of JSON produce.
_SLASHES = r"\\{1,15}"
_SHORT = {"\n": "n", "\r": "r", "\t": "t", "\b": "b", "\f": "f"}
_BASIC_PLANE = 0xFFFF
_LONGEST_UTF8 = 4
# Minimum value of the first byte of a UTF-8 character, by its length.
_FIRST_OF_MORE, _FIRST_OF_THREE, _FIRST_OF_FOUR = 0xC0, 0xE0, 0xF0

# A URL character, escaped up to four times; an incomplete one; an escape of an escape.
_PERCENT = re.compile(r"%(?:25){0,3}[0-9a-fA-F]{2}")
_PERCENTS = re.compile(rf"(?:{_PERCENT.pattern})+")
_PERCENT_BEGUN = re.compile(r"%(?:25){0,3}[0-9a-fA-F]?\Z")
_AGAIN = re.compile(r"%(?:25){1,3}(?=[0-9a-fA-F]{2})")
_HEX = re.compile(r"%([0-9a-fA-F]{2})")
_DIGITS = string.hexdigits
_BYTES = {high + low: chr(int(high + low, 16)) for high in _DIGITS for low in _DIGITS}
# Characters that encode at most one byte.
_LONGEST_PERCENT = 9

_Span = tuple[int, int, str]


@frozen
class Unquoted:
    """A text after percent-decoding, with the original positions."""

    text: str
    values: list[int]
    spellings: list[int]

    def place(self, value: int) -> int:
        """The position of a character in the original, or the end of the text."""
        known = bisect_right(self.values, value) - 1
        return self.spellings[known] + value - self.values[known]


def percent_decode(text: str) -> str:
    """The percent-decoded text; invalid UTF-8 becomes lone surrogates."""
    # Bytewise without a Python loop: this is done for every text with an escape.
    raw = text.encode("utf-8", "surrogatepass").decode("latin-1")
    pieces = _HEX.split(_AGAIN.sub("%", raw) if "%25" in raw else raw)
    pieces[1::2] = map(_BYTES.__getitem__, pieces[1::2])
    return "".join(pieces).encode("latin-1").decode("utf-8", "surrogateescape")


def percent_decode_with_places(text: str) -> Unquoted:
    """The same, with the positions."""
    pieces: list[str] = []
    values, spellings = [0], [0]
    end = length = 0
    for run in _PERCENTS.finditer(text):
        letters = _bytes(run[0]).decode("utf-8", "surrogateescape")
        length += run.start() - end
        ends = [match.end() for match in _PERCENT.finditer(text, run.start(), run.end())]
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
    """Start of a final character of which the text has only the first bytes, or a part of one."""
    begun = _PERCENT_BEGUN.search(text, max(0, len(text) - _LONGEST_PERCENT))
    end = len(text) if begun is None else begun.start()
    # The preceding bytes, if they are the beginning of a character.
    near = max(0, end - _LONGEST_PERCENT * (_LONGEST_UTF8 - 1))
    last = None
    for run in _PERCENTS.finditer(text, near, end):
        last = run
    if last is None or last.end() != end:
        return end
    places = [match.start() for match in _PERCENT.finditer(text, last.start(), end)]
    data = _bytes(last[0])
    for count in range(1, min(len(data), _LONGEST_UTF8 - 1) + 1):
        first = data[-count]
        if first >= _FIRST_OF_MORE:
            length = 2 + (first >= _FIRST_OF_THREE) + (first >= _FIRST_OF_FOUR)
            return places[-count] if count < length else end
    return end


def _bytes(run: str) -> bytes:
    once = _AGAIN.sub("%", run) if "%25" in run else run
    return bytes.fromhex(once.replace("%", " "))


class Spellings:
    """Patterns of secrets; compiled when a text needs them."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}
        self._coded: dict[str, str] = {}
        self._patterns: list[tuple[re.Pattern[str], str]] | None = None
        self._broken: list[tuple[re.Pattern[str], str]] | None = None

    def add(self, tag: str, text: str, coded: Iterable[str]) -> None:
        self._texts.setdefault(text, tag)
        for spelling in coded:
            self._coded.setdefault(spelling, tag)
        self._patterns = self._broken = None

    def spans(self, text: str) -> Iterator[_Span]:
        """Positions of escaped secrets: start, end, tag; they may overlap."""
        # A substring search costs almost nothing, a pattern search does not.
        if any(sign in text for sign in _SIGNS) and _ESCAPES.search(text):
            if self._patterns is None:
                of_texts = [(_pattern_of_spellings(text), tag) for text, tag in self._texts.items()]
                of_coded = [(_base64_pattern(text), tag) for text, tag in self._coded.items()]
                self._patterns = of_texts + of_coded
            yield from _find_spans(self._patterns, text)
        if _WRAPPED.search(text):
            if self._broken is None:
                self._broken = [(_in_lines(text), tag) for text, tag in self._coded.items()]
            yield from _find_spans(self._broken, text)


def _find_spans(patterns: Iterable[tuple[re.Pattern[str], str]], text: str) -> Iterator[_Span]:
    for pattern, tag in patterns:
        for match in pattern.finditer(text):
            yield *match.span(), tag


def _pattern_of_spellings(text: str) -> re.Pattern[str]:
    """Each letter in any spelling. Atomic groups prevent backtracking."""
    first, *rest = map(_letter, re.findall(r"\\+|[^\\]", text, re.DOTALL))
    # The first alternative is plain: its first character limits where a match is tried.
    return re.compile(f"(?:{first})" + "".join(f"(?>{letter})" for letter in rest))


def _letter(text: str) -> str:
    """A letter, or a run of backslashes, in all its spellings."""
    coded = "".join(f"%(?:25)*{byte:02x}" for byte in text.encode("utf-8", "surrogatepass"))
    unicode = "".join(f"{_SLASHES}u{half:04x}" for letter in text for half in _halves(ord(letter)))
    ways = [f"(?i:{coded})", f"(?i:{unicode})"]
    if text[0] == "\\":
        # In pairs: an odd one belongs to what follows.
        return "|".join((*ways, rf"(?:\\\\){{{len(text)},{len(text) * 8}}}", rf"\\{{{len(text)}}}"))
    if text in _SHORT:
        ways.append(_SLASHES + _SHORT[text])
    if text in {'"', "/", "'"}:
        ways.append(_SLASHES + text)
    if text == " ":
        ways.append(r"\+")
    return "|".join((*ways, re.escape(text)))


def _base64_pattern(coded: str) -> re.Pattern[str]:
    """Base64 with letters as they are, and everything else in any spelling."""
    return re.compile("".join(one if one.isalnum() else f"(?>{_letter(one)})" for one in coded))


def _in_lines(text: str) -> re.Pattern[str]:
    return re.compile(_BREAK.join(re.escape(letter) for letter in text))


def _halves(code: int) -> tuple[int, ...]:
    """A character as JSON escapes it: a surrogate pair beyond the basic plane."""
    if code <= _BASIC_PLANE:
        return (code,)
    high, low = divmod(code - 0x10000, 0x400)
    return 0xD800 + high, 0xDC00 + low
