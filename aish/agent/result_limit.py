"""Truncates long results in the middle at a line boundary; data and media of a reply."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from aish.core.frozen import frozen
from aish.core.json import JsonValue, canonical, strict_json_at
from aish.core.patterns import lazy_pattern
from aish.core.phrases import counted
from aish.core.text import for_line, safe_utf8
from aish.core.tools import Media, media_kind

# UTF-8 continuation bytes.
_CONTINUATION = range(0x80, 0xC0)


@frozen
class Cut:
    """A text as the model sees it; `full` names the file with the whole text, if stored.

    `whole` is the content of that file.
    """

    text: str
    full: str | None = None
    whole: str = ""


Spans = Callable[[str], Iterable[tuple[int, int, str]]]
"""Where paths stand in a text that differ from machine to machine: start, end, name."""


def no_spans(_text: str) -> Iterable[tuple[int, int, str]]:
    """Without a cassette, every path counts with its own length."""
    return ()


def cut(
    text: str,
    limit: int,
    keep: Callable[[bytes], str | None],
    mask: Callable[[str], str] = str,
    spans: Spans = no_spans,
) -> Cut:
    """`text` in at most `limit` bytes of UTF-8, with a line in the middle about the omission.

    `keep` stores the whole text if something is omitted. A limit too small for that line gives the
    line alone. `mask` is applied to a text before it is truncated: a truncated secret would not be
    recognized later, and a replay, where secrets are masked, has to cut at the same place. For the
    same reason a path of `spans` counts with the length of its name in the cassette.
    """
    # A character is at most four bytes: most texts need no encoding to be known as short.
    if len(text) * 4 <= limit:
        return Cut(text)
    masked = mask(text)
    whole = _text(masked.encode("utf-8", "replace"))
    named = _Named(whole, spans(whole))
    data = named.text.encode()
    if len(data) <= limit:
        is_short = masked == text or len(text.encode("utf-8", "replace")) <= limit
        return Cut(text if is_short else masked)
    full = keep(whole.encode())
    room = limit - len(_marker(len(data), len(data))) - 2
    # At most `size` first bytes: whole lines, or whole characters if a line is too long
    size = max(room, 0) // 2
    end = data.rfind(b"\n", size // 2, size) + 1
    if not end:
        end = size
        while end and data[end] in _CONTINUATION:
            end -= 1
    first = named.before(len(_text(data[:end])))
    head = named.text[:first].encode()
    last = named.behind(len(named.text) - len(_text(_tail(data, max(room, 0) - len(head)))))
    tail = named.text[last:].encode()
    marker = _marker(len(data) - len(head) - len(tail), len(data))
    parts = (whole[: named.place(first)], marker if _ends_line(head) else f"\n{marker}")
    return Cut("".join(parts) + (f"\n{whole[named.place(last) :]}" if tail else ""), full, whole)


class _Named:
    """A text with names in place of paths, and the mapping of positions to the original text."""

    def __init__(self, whole: str, spans: Iterable[tuple[int, int, str]]) -> None:
        parts: list[str] = []
        self._names: list[tuple[int, int, int]] = []
        """Of each name its start and end here, and how much further behind it is in the other."""
        size = since = 0
        for start, end, name in spans:
            parts += (whole[since:start], name)
            begin = size + start - since
            size, since = begin + len(name), end
            self._names.append((begin, size, end - size))
        self.text = "".join((*parts, whole[since:])) if parts else whole

    def before(self, place: int) -> int:
        """The position, or the start of the name that contains it."""
        return next((start for start, end, _ in self._names if start < place < end), place)

    def behind(self, place: int) -> int:
        """The position, or the end of the name that contains it."""
        return next((end for start, end, _ in self._names if start < place < end), place)

    def place(self, place: int) -> int:
        """The original position of a position outside of names."""
        further = [more for _, end, more in self._names if end <= place]
        return place + (further[-1] if further else 0)


def _ends_line(head: bytes) -> bool:
    return not head or head.endswith(b"\n")


def _marker(missing: int, total: int) -> str:
    # Without the path of the stored text: it depends on the run, and a replay must send the same.
    return f"[aish] {missing} of {total} bytes left out here"


def _tail(data: bytes, size: int) -> bytes:
    """At most `size` last bytes, likewise."""
    start = len(data) - size
    newline = data.find(b"\n", start - 1, start + size // 2)
    if newline >= 0:
        return data[newline + 1 :]
    while start < len(data) and data[start] in _CONTINUATION:
        start += 1
    return data[start:]


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


_LONGEST_TYPE = 80


def describe(media: Media, *, attached: bool) -> str:
    """The line for `media` in a reply, whether or not the model receives the media.

    Without its path: that depends on the run, and a replay must send the same.
    """
    return f"[aish] {'attached' if attached else 'not shown to this model'}: {what(media)}"


def media_count(media: Sequence[Media]) -> str:
    """The numbers of pictures and of PDFs."""
    pdfs = sum(media_kind(medium) == "pdf" for medium in media)
    counts = ((len(media) - pdfs, "picture"), (pdfs, "PDF"))
    return ", ".join(counted(count, name) for count, name in counts if count)


def what(media: Media) -> str:
    """Its type and size in words."""
    # Never a part of it, which might be a truncated secret that could not be masked.
    kind = media.mime_type if len(media.mime_type) <= _LONGEST_TYPE else ""
    kind = for_line(kind) or "unknown type"
    return f"{kind}, {len(media.data)} bytes"


# Where an object or a list of JSON may begin.
_BEGINNING = lazy_pattern(r"[{\[]")
_MOST_TRIES = 100
"""How many places of a text that may begin one are looked at."""


def with_data(text: str, data: JsonValue) -> str:
    """The text of a result, followed by its structured content unless the text contains it.

    Many servers put a summary into the text and the data beside it, others the same JSON into both,
    and some libraries a text into the one and `{"result": text}` into the other.
    """
    if not text.strip():
        text = ""
    if data is None:
        return safe_utf8(text)
    try:
        if not text:
            return json.dumps(data)
        result = text if _holds(text, data) else f"{text}\n{json.dumps(data, ensure_ascii=False)}"
    except RecursionError:
        result = f"{text}\n[structured content that is nested too deeply]"
    return safe_utf8(result)


def _holds(text: str, data: JsonValue) -> bool:
    """Return true if a text holds all data: as JSON in any form, or its only value as it is."""
    lone = next(iter(data.values())) if isinstance(data, Mapping) and len(data) == 1 else data
    # A list may come as one block of text for each of its parts.
    parts = lone if isinstance(lone, list) and lone else [lone]
    lines = [part if isinstance(part, str) else canonical(part) for part in parts]
    if text.strip() == "\n".join(lines).strip():
        return True
    values = [canonical(value) for value in _values(text)]
    return not {canonical(data), canonical(lone)}.isdisjoint(values) or values == lines


def _values(text: str) -> Iterator[JsonValue]:
    """The objects and lists in a text that are JSON, one behind another."""
    place = 0
    for _ in range(_MOST_TRIES):
        match = _BEGINNING.search(text, place)
        if match is None:
            return
        try:
            value, place = strict_json_at(text, match.start())
        except ValueError:
            place = match.end()
        else:
            yield value
