"""Searches for undeclared keys: known shapes, and text as random as a key.

Text that looks like a secret is not written: the error names the places.
"""

import base64
import binascii
import re
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from itertools import islice

from aish.cassettes.format.edits import text_of
from aish.cassettes.format.interaction import (
    CassetteFileError,
    Headers,
    Interaction,
    RecordingMetadata,
)
from aish.cassettes.format.stream_text import strings_by_path
from aish.core.frozen import frozen
from aish.core.phrases import first_lines
from aish.system.secrets.literal_keys import RANDOM_TEXT, find_shapes, suspects

# A declared secret in it has been removed before.
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
    """A base64 file: its position, and its text, if it is readable."""

    start: int
    end: int
    text: str


def media(text: str) -> Iterator[Medium]:
    """The files in a body, in order."""
    spans: list[tuple[int, int]] = []
    if ";base64," in text:
        spans += (url.span(1) for url in _URL.finditer(text))
    if _SAID.search(text):
        spans += (match.span(1) for match in _FIELD.finditer(text) if _is_said(text, *match.span()))
    last = 0
    for start, end in sorted(spans):
        if start >= last and (medium := _read(text, start, end)):
            yield medium
            last = end


def without_media(text: str, found: Iterable[Medium]) -> str:
    """The text with spaces in place of files; all other positions are unchanged."""
    pieces: list[str] = []
    last = 0
    for medium in found:
        pieces += (text[last : medium.start], " " * (medium.end - medium.start))
        last = medium.end
    return "".join((*pieces, text[last:])) if pieces else text


def _is_said(text: str, start: int, end: int) -> bool:
    """Return true if the object of a field names the type of the file."""
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


_SHORTEST = 15
# The value of an `id` is a name: endpoints and servers generate random ones.
_NAMED = re.compile(r'(?<![A-Za-z])(?:tool_call_|call_)?id\\*"\s*:\s*\\*"$')
_NAMED_WITHIN = 24
_RUN = re.compile(r"\d{8}T\d{6}Z-[a-z0-9-]+")
_SHOWN = 6
_MOST = 100


@frozen
class Finding:
    """A suspected secret, and its place; `begins` is the part that may be shown."""

    place: str
    kind: str
    begins: str

    def __str__(self) -> str:
        return f"{self.place}: {self.kind} (`{self.begins}…`)"


def scan(
    interactions: Iterable[Interaction], allow: Sequence[str] = (), harmless: set[str] | None = None
) -> tuple[Finding, ...]:
    """The first hundred suspected secrets; without those that a glob in `allow` matches whole."""
    return scan_numbered(enumerate(interactions, 1), allow, harmless)


def scan_numbered(
    interactions: Iterable[tuple[int, Interaction]],
    allow: Sequence[str] = (),
    harmless: set[str] | None = None,
) -> tuple[Finding, ...]:
    """The same for interactions with their numbers.

    `harmless` stores what was searched already, for the same `allow`: each request of a
    conversation repeats all those before it.
    """
    harmless_hashes = set() if harmless is None else harmless
    findings = (
        finding
        for number, interaction in interactions
        for where, content in _texts(interaction)
        for finding in _findings(f"interaction {number}, {where}", content, allow, harmless_hashes)
    )
    return tuple(islice(findings, _MOST))


def scan_text(name: str, text: str, allow: Sequence[str] = ()) -> tuple[Finding, ...]:
    """The same for one text, such as a value of the head; `name` describes it."""
    return tuple(islice(_findings(name, text, allow, set()), _MOST))


def _texts(interaction: Interaction) -> Iterator[tuple[str, str]]:
    request, response = interaction.request, interaction.response
    yield "request uri", request.uri
    yield from _headers("request", request.headers)
    yield "request body", text_of(request.body)
    yield from _headers("response", response.headers)
    text = text_of(response.body)
    yield "response body", text
    for path, strand in strings_by_path(text).items():
        # A value that is the same in each event, such as an id, is no key.
        if len(set(strand.texts)) > 1:
            yield f"response stream `{'.'.join(map(str, path))}`", strand.text
    yield "response reason", response.reason
    yield "response error", response.broken or ""


def _headers(side: str, headers: Headers) -> Iterator[tuple[str, str]]:
    for name, value in headers:
        yield f"{side} header `{name}`", value


def _findings(where: str, text: str, allow: Sequence[str], harmless: set[str]) -> Iterator[Finding]:
    """Searches the text between quotes, which secrets do not contain."""
    files = list(media(text))
    for file in files:
        # Of text that is random by nature, only known shapes count.
        found_in = [*find_shapes(text[file.start : file.end]), *suspects(file.text)]
        for _, kind, word in found_in:
            if not any(fnmatchcase(word, glob) for glob in allow):
                yield Finding(_place(where, text, file.start), kind, word[:_SHOWN])
    text = without_media(text, files)
    place = 0
    for segment in text.split('"'):
        if len(segment) >= _SHORTEST and segment not in harmless:
            found_in = list(suspects(segment))
            for start, kind, word in found_in:
                before = text[max(0, place + start - _NAMED_WITHIN) : place + start]
                is_name = kind == RANDOM_TEXT and _is_name(before, word)
                if not is_name and not any(fnmatchcase(word, glob) for glob in allow):
                    yield Finding(_place(where, text, place + start), kind, word[:_SHOWN])
            # A name in one place is not a name in another.
            if not found_in:
                harmless.add(segment)
        place += len(segment) + 1


def _is_name(before: str, word: str) -> bool:
    return _NAMED.search(before) is not None or _RUN.fullmatch(word) is not None


def _place(where: str, text: str, start: int) -> str:
    if "\n" not in text:
        return f"{where}, column {start + 1}"
    line = text.count("\n", 0, start) + 1
    return f"{where}, line {line}, column {start - text.rfind(chr(10), 0, start)}"


_PLACES_SHOWN = 5


def refuse_secrets(
    head: RecordingMetadata,
    interactions: Iterable[tuple[int, Interaction]],
    allow: Sequence[str] = (),
    harmless: set[str] | None = None,
) -> None:
    """Search what is to be written, with its numbers; `harmless` as in `scan_numbered`.

    Raises:
        CassetteFileError: something in it looks like a secret that nobody declared.
    """
    findings = [*scan_numbered(interactions, allow, harmless)]
    for name, value in head.env.items():
        findings += scan_text(f"the value of `{name}`", value, allow)
    if not findings:
        return
    lines = "\n".join(first_lines([f"  {finding}" for finding in findings], _PLACES_SHOWN, "  "))
    raise CassetteFileError(
        f"the cassette is not written: it may contain an undeclared secret\n{lines}",
        hint="name its variable under `secrets:`, or text that is not a secret under "
        "`cassette.allow`",
    )
