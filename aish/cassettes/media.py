"""Pictures, sounds and other files in a body, in base64 (C8): as random as a key, and none.

It is where a server or a model says of it what it is: beside `data` or `blob`, or in a `data:` URL.
"""

import base64
import binascii
import re
from collections.abc import Iterable, Iterator

from aish.core.frozen import frozen

# A secret that was in it has been taken out by now.
_CODED = r"(?:[A-Za-z0-9+/=_\\-]++|<secret:[^<>\"]{1,99}>)++"
# In JSON within JSON, quotes and slashes have backslashes before them.
_URL = re.compile(
    rf"data:[\w.+-]+\\*/[\w.+-]+(?:;[\w.+-]+=[^;,\"\s]{{0,99}}){{0,9}};base64,({_CODED})"
)
_FIELD = re.compile(rf'"(?:data|blob)\\*"\s*:\s*\\*"({_CODED})(?=")')
_SAID = re.compile(
    r'"(?:mime_?type|media_?type)\\*"\s*:\s*\\*"(?:image|audio|video|font|application)\\*/'
    r'|"format\\*"\s*:\s*\\*"(?:wav|mp3|flac|ogg|opus|aac|m4a|pcm16|webm)\\*"',
    re.IGNORECASE,
)
_BRACES = re.compile(r"[{}]")
_NEAR = 400
_FEWEST = 32


@frozen
class Medium:
    """One file in base64: where it stands, and its text, if it is one that a person can read."""

    start: int
    end: int
    text: str


def media(text: str) -> Iterator[Medium]:
    """The files in a body, in their order."""
    found: list[tuple[int, int]] = []
    if ";base64," in text:
        found += (url.span(1) for url in _URL.finditer(text))
    if _SAID.search(text):
        found += (one.span(1) for one in _FIELD.finditer(text) if _is_said(text, *one.span()))
    last = 0
    for start, end in sorted(found):
        if start >= last and (medium := _read(text, start, end)):
            yield medium
            last = end


def without_media(text: str, found: Iterable[Medium]) -> str:
    """The text with blanks where files stand; everything else is where it was."""
    pieces: list[str] = []
    last = 0
    for one in found:
        pieces += (text[last : one.start], " " * (one.end - one.start))
        last = one.end
    return "".join((*pieces, text[last:])) if pieces else text


def _is_said(text: str, start: int, end: int) -> bool:
    """Whether the object that a field stands in says what kind of file it is."""
    before = _BRACES.split(text[max(0, start - _NEAR) : start])[-1]
    after = _BRACES.split(text[end : end + _NEAR], maxsplit=1)[0]
    return bool(_SAID.search(f"{before} {after}"))


def _read(text: str, start: int, end: int) -> Medium | None:
    if end - start < _FEWEST:
        return None
    if "<" in text[start:end]:
        return Medium(start, end, "")
    coded = text[start:end].replace("\\", "").replace("-", "+").replace("_", "/").rstrip("=")
    try:
        data = base64.b64decode(coded + "=" * (-len(coded) % 4), validate=True)
    except binascii.Error:
        return None
    try:
        return Medium(start, end, data.decode())
    except UnicodeDecodeError:
        return Medium(start, end, "")
