"""Long results, cut in the middle at a line boundary (L18); images and sounds of a reply (M7)."""

import re
from collections.abc import Callable, Iterable

from aish.core.frozen import frozen
from aish.core.patterns import lazy_pattern
from aish.core.text import for_line
from aish.core.tools import Media

# The bytes of UTF-8 that never begin a character.
_CONTINUATION = range(0x80, 0xC0)


@frozen
class Cut:
    """A text as the model sees it; `full` names the file with all of it, if one was kept.

    `whole` is what that file has.
    """

    text: str
    full: str | None = None
    whole: str = ""


Spans = Callable[[str], Iterable[tuple[int, int, str]]]
"""Where paths stand in a text that differ from machine to machine: start, end, name."""


def no_spans(_text: str) -> Iterable[tuple[int, int, str]]:
    """Where there is no cassette, every path counts as it is."""
    return ()


def cut(
    text: str,
    limit: int,
    keep: Callable[[bytes], str | None],
    mask: Callable[[str], str] = str,
    spans: Spans = no_spans,
) -> Cut:
    """`text` in at most `limit` bytes of UTF-8, a line in its middle saying what is missing.

    `keep` is given the whole where something is left out. A limit too small for that line gives
    the line alone. `mask` takes the secrets out of a text that is cut: half of one would not be
    known for one later, and a replay, which has them masked, has to cut at the same place. For that
    a path of `spans` counts as its name in the cassette does, however long it is here.
    """
    # A character is at most four bytes: most texts need not be encoded to be known short.
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
    first = named.before(len(_text(_head(data, max(room, 0) // 2))))
    head = named.text[:first].encode()
    last = named.behind(len(named.text) - len(_text(_tail(data, max(room, 0) - len(head)))))
    tail = named.text[last:].encode()
    marker = _marker(len(data) - len(head) - len(tail), len(data))
    parts = (whole[: named.place(first)], marker if _ends_line(head) else f"\n{marker}")
    return Cut("".join(parts) + (f"\n{whole[named.place(last) :]}" if tail else ""), full, whole)


class _Named:
    """A text with names in place of paths, and where its places are in the text with paths."""

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
        """The place, or the start of the name that it is in."""
        return next((start for start, end, _ in self._names if start < place < end), place)

    def behind(self, place: int) -> int:
        """The place, or the end of the name that it is in."""
        return next((end for start, end, _ in self._names if start < place < end), place)

    def place(self, place: int) -> int:
        """Where a place outside of names is in the text with paths."""
        further = [more for _, end, more in self._names if end <= place]
        return place + (further[-1] if further else 0)


def _ends_line(head: bytes) -> bool:
    return not head or head.endswith(b"\n")


def _marker(missing: int, total: int) -> str:
    # Not where the rest is kept: that depends on the run, and a replay has to send the same.
    return f"[aish] {missing} of {total} bytes left out here"


def _head(data: bytes, size: int) -> bytes:
    """At most `size` first bytes: whole lines, or whole characters where a line is too long."""
    end = data.rfind(b"\n", size // 2, size) + 1
    if not end:
        end = size
        while end and data[end] in _CONTINUATION:
            end -= 1
    return data[:end]


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


# A stranger's word that goes into a URL: an endpoint refuses what is no type, in every turn after.
_IMAGE = lazy_pattern(r"image/[A-Za-z0-9.+-]{1,80}", re.ASCII)

_LONGEST_TYPE = 80


def can_be_attached(media: Media) -> bool:
    """Whether a model that sees can be sent it: chat completions know images only."""
    return _IMAGE.fullmatch(media.mime_type) is not None


def describe(media: Media, *, attached: bool) -> str:
    """The line that stands for `media` in a reply, whether or not the model gets the media.

    Where it is kept is not said: that depends on the run, and a replay has to send the same.
    """
    return f"[aish] {'attached' if attached else 'not shown to this model'}: {what(media)}"


def what(media: Media) -> str:
    """Its kind and size in words."""
    # Never a part of it, which might be half a secret that nothing would mask then.
    kind = media.mime_type if len(media.mime_type) <= _LONGEST_TYPE else ""
    kind = for_line(kind) or "unknown type"
    return f"{kind}, {len(media.data)} bytes"
