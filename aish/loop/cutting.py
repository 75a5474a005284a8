"""Long results, cut in the middle at a line boundary (L18)."""

from collections.abc import Callable

from aish.core.frozen import frozen

# The bytes of UTF-8 that never begin a character.
_CONTINUATION = range(0x80, 0xC0)


@frozen
class Cut:
    """A text as the model sees it; `full` names the file with all of it, if one was kept."""

    text: str
    full: str | None = None


def cut(
    text: str,
    limit: int,
    keep: Callable[[bytes], str | None],
    mask: Callable[[str], str] = str,
) -> Cut:
    """`text` in at most `limit` bytes of UTF-8, a line in its middle saying what is missing.

    `keep` is given the whole where something is left out. A limit too small for that line gives
    the line alone. `mask` takes the secrets out of a text that is cut: half of one would not be
    known for one later, and a replay, which has them masked, has to cut at the same place.
    """
    # A character is at most four bytes: most texts need not be encoded to be known short.
    if len(text) * 4 <= limit:
        return Cut(text)
    masked = mask(text)
    data = masked.encode("utf-8", "replace")
    if len(data) <= limit:
        is_short = len(text.encode("utf-8", "replace")) <= limit
        return Cut(text if is_short else masked)
    full = keep(data)
    room = limit - len(_marker(len(data), len(data))) - 2
    head = _head(data, max(room, 0) // 2)
    tail = _tail(data, max(room, 0) - len(head))
    marker = _marker(len(data) - len(head) - len(tail), len(data))
    parts = (_text(head), marker if not head or head.endswith(b"\n") else f"\n{marker}")
    return Cut("".join(parts) + (f"\n{_text(tail)}" if tail else ""), full)


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
