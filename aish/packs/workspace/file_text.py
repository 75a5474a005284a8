"""Reads a text file by its descriptor: lines in bounded memory and time, or all.

It is written in the encoding, byte-order mark and line ends that it had.
"""

import codecs
import hashlib
import io
import os
from typing import BinaryIO

from aish.core.frozen import frozen, slotted
from aish.core.patterns import lazy_pattern
from aish.packs.byte_order_marks import byte_order_mark
from aish.packs.pack_error import PackError
from aish.packs.tool_results import TEXT_LIMIT, head_that_fits

SCAN_LIMIT = 64 * 1024 * 1024
"""Bytes of the largest file that is read or described."""
WHOLE_LIMIT = 8 * 1024 * 1024
"""Bytes of a file that is read as a whole: hashed, and converted if it is not in UTF-8."""

_PIECE = 64 * 1024
_SNIFFED = 8192
_PYTHON = (".py", ".pyi", ".pyw")
_COOKIE = lazy_pattern(rb"[ \t\f]*#.*?coding[:=][ \t]*([-\w.]+)")
_COOKIE_LIMIT = 400
_COOKIE_CODECS = ("ascii", "big5", "cp", "euc", "gb", "iso8859", "johab", "koi8", "mac-", "shift")
"""How the names of codecs begin that a coding cookie may name: those of characters, not of escapes
or compression."""


@frozen
class FileContent:
    """A regular file as it was opened: all its bytes if it has at most `WHOLE_LIMIT` of them."""

    stream: BinaryIO
    size: int
    whole: bytes | None

    @property
    def sha256(self) -> str | None:
        """The hash of the whole file, if it was read whole."""
        return None if self.whole is None else hashlib.sha256(self.whole).hexdigest()

    @property
    def start(self) -> bytes:
        here = self.stream.tell()
        self.stream.seek(0)
        head = self.stream.read(_SNIFFED)
        self.stream.seek(here)
        return head


IMAGE_LIMIT = 5 * 1024 * 1024
"""Bytes of an image in a result."""
_IMAGES = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
)


def image_type(start: bytes) -> str | None:
    """The media type of an image, by its first bytes; `None` for everything else."""
    if start.startswith(b"RIFF") and start[8:12] == b"WEBP":
        return "image/webp"
    return next((kind for begin, kind in _IMAGES if start.startswith(begin)), None)


def content_of(descriptor: int, path: str) -> FileContent:
    """The content of an open file; the caller closes its stream."""
    size = os.fstat(descriptor).st_size
    if size > SCAN_LIMIT:
        message = f"`{path}` has {size:,} bytes; {SCAN_LIMIT:,} are the most that are read"
        raise PackError("too_large", message, path=path, limit=SCAN_LIMIT)
    # A copy: the stream closes it, and the owner closes the original.
    stream = io.BufferedReader(io.FileIO(os.dup(descriptor)), _PIECE)
    if size > WHOLE_LIMIT:
        return FileContent(stream, size, None)
    with stream:
        whole = stream.read(WHOLE_LIMIT)
    return FileContent(io.BytesIO(whole), len(whole), whole)


@frozen
class FileLines:
    """Some lines of a file; `last` is 0 if there are none.

    `total` is `None` if the file is too large to count. `cut` says that the range has more than
    fits, `inside` that the text ends within a line.
    """

    text: str
    first: int
    last: int
    total: int | None
    encoding: str
    cut: bool = False
    inside: bool = False


def read_lines(content: FileContent, path: str, first: int, last: int | None) -> FileLines:
    """The lines `first` to `last`, both counted from 1 and included."""
    stream, encoding = text_stream(content, path)
    with stream:
        piece, reached = _read_lines(stream, first, last)
        total = reached + _rest(stream, piece.tail)
        known = stream.tell() < SCAN_LIMIT
    if first > max(total, 1):
        raise PackError(
            "out_of_range",
            f"`{path}` has {total} lines; there is no line {first}",
            total_lines=total,
        )
    text, exact = _decode_range(piece.content)
    if not exact:
        encoding = "utf-8 with bytes that are not text"
    excerpt, cut, inside = _cut_to_fit(text, cut=piece.cut)
    count = excerpt.count("\n") + (not excerpt.endswith("\n") and bool(excerpt))
    return FileLines(
        excerpt, first, first + count - 1, total if known else None, encoding, cut, inside
    )


def text_stream(content: FileContent, path: str) -> tuple[BinaryIO, str]:
    """The file as UTF-8 bytes without a byte-order mark, and its encoding."""
    start = content.start
    mark, marked = byte_order_mark(start)
    is_wide = marked not in {"", "utf-8"}
    if is_wide and content.whole is not None:
        text = content.whole[len(mark) :].decode(marked, "replace")
        # Which order the bytes have is told to nobody.
        return io.BytesIO(text.encode("utf-8", "replace")), marked.rpartition("-")[0]
    if is_wide or b"\0" in start:
        content.stream.close()
        message = f"`{path}` is not text ({content.size:,} bytes)"
        raise PackError("binary", message, size=content.size)
    if mark:
        content.stream.read(len(mark))
        return content.stream, "utf-8-sig"
    if content.whole is not None and (codec := cookie_codec(content.whole, path)):
        return io.BytesIO(content.whole.decode(codec).encode()), codec
    return content.stream, "utf-8"


def utf8_content(data: bytes, path: str) -> bytes | None:
    """All bytes of a file as UTF-8 without a byte-order mark; `None` if it is not text."""
    mark, marked = byte_order_mark(data)
    if mark and marked != "utf-8":
        return data[len(mark) :].decode(marked, "replace").encode("utf-8", "replace")
    if b"\0" in data[:_SNIFFED]:
        return None
    if mark:
        return data[len(mark) :]
    codec = cookie_codec(data, path)
    return data.decode(codec).encode() if codec else data


def cookie_codec(data: bytes, path: str) -> str | None:
    """The codec that the coding cookie of a Python file names, if all of the file is in it.

    `None` for UTF-8, for other files, and where the bytes would not become the same again.
    """
    if not path.lower().endswith(_PYTHON) or data.startswith(codecs.BOM_UTF8):
        return None
    for row in data[:_COOKIE_LIMIT].split(b"\n", 2)[:2]:
        if cookie := _COOKIE.match(row):
            return _lossless_codec(cookie[1].decode("ascii"), data)
        if row.strip() and not row.lstrip().startswith(b"#"):
            break
    return None


def _lossless_codec(name: str, data: bytes) -> str | None:
    try:
        codec = codecs.lookup(name).name
    except (LookupError, ValueError):
        return None
    if not codec.startswith(_COOKIE_CODECS):
        return None
    try:
        same = data.decode(codec).encode(codec) == data
    except UnicodeError:
        return None
    return codec if same else None


@slotted
class _KeptLines:
    content: bytes
    cut: bool
    tail: bytes


def _read_lines(stream: BinaryIO, first: int, last: int | None) -> tuple[_KeptLines, int]:
    """The bytes of a range of lines, and the number of line ends before its end."""
    pieces: list[bytes] = []
    size = ends = 0
    tail = b""
    # A character has at most four bytes.
    while size <= 4 * TEXT_LIMIT and (last is None or ends < last) and stream.tell() < SCAN_LIMIT:
        piece = stream.readline(_PIECE)
        if not piece:
            break
        if ends + 1 >= first:
            pieces.append(piece)
            size += len(piece)
        ends += piece.endswith(b"\n")
        tail = piece[-1:]
    return _KeptLines(b"".join(pieces), size > 4 * TEXT_LIMIT, tail), ends


def _rest(stream: BinaryIO, tail: bytes) -> int:
    """Number of further lines in the unread rest; an unfinished last line counts."""
    ends = 0
    while stream.tell() < SCAN_LIMIT and (piece := stream.read(_PIECE)):
        ends += piece.count(b"\n")
        tail = piece[-1:]
    return ends + (tail not in {b"", b"\n"})


def _decode_range(content: bytes) -> tuple[str, bool]:
    """The text, and whether all of it was valid UTF-8."""
    try:
        return content.decode("utf-8"), True
    except UnicodeDecodeError as error:
        # A range that was cut off may end within a character, which is not an error of the file.
        exact = error.end == len(content) and error.start >= len(content) - 3
        return content.decode("utf-8", "ignore" if exact else "replace"), exact


def _cut_to_fit(text: str, *, cut: bool) -> tuple[str, bool, bool]:
    """As much as fits, to a line end if possible; whether it was cut, and inside a line."""
    head = head_that_fits(text)
    if len(head) == len(text):
        return text, cut, cut and not text.endswith("\n")
    whole = head.rfind("\n") + 1
    return (head[:whole], True, False) if whole else (head, True, True)


@frozen
class Spelling:
    """Encoding of a text; `crlf` if every line end is one, `exact` for plain UTF-8."""

    bom: bytes = b""
    codec: str = "utf-8"
    crlf: bool = False
    exact: bool = True

    @property
    def name(self) -> str:
        """The encoding, as `file_read` names it."""
        if not self.exact:
            return "utf-8 with bytes that are not text"
        return "utf-8-sig" if self.bom == codecs.BOM_UTF8 else self.codec


PLAIN = Spelling()


def decode_text(data: bytes, path: str) -> tuple[str, Spelling]:
    """The text, with plain line ends if all of them are CRLF, and its encoding.

    Bytes that are not valid UTF-8 become lone surrogates, which become the same bytes again.

    Raises:
        PackError: the file is binary.
    """
    bom, codec = byte_order_mark(data)
    codec = codec or cookie_codec(data, path) or "utf-8"
    try:
        text = data[len(bom) :].decode(codec, _errors(bom, codec))
    except UnicodeDecodeError:
        raise _binary(path) from None
    if "\0" in text:
        raise _binary(path)
    ends = text.count("\n")
    crlf = ends > 0 and "\r" in text and text.count("\r\n") == ends
    exact = bool(bom) or codec != "utf-8" or text.isascii() or not _has_surrogates(text)
    return (text.replace("\r\n", "\n") if crlf else text), Spelling(bom, codec, crlf, exact)


def plain_text(text: str, name: str) -> str:
    """Text written by a model, checked for use in a file."""
    if "\0" in text or _has_surrogates(text):
        raise PackError("bad_arguments", f"`{name}` has characters in it that no text file has")
    return text


def in_lines_of(spelling: Spelling, text: str, before: str) -> str:
    """Text written by a model, with the line ends of the decoded text."""
    # One character is found far faster than two.
    if spelling.crlf or ("\n" in before and ("\r" not in before or "\r\n" not in before)):
        return text.replace("\r\n", "\n")
    return text


def encode_text(text: str, spelling: Spelling) -> bytes:
    if spelling.crlf:
        text = text.replace("\n", "\r\n")
    return spelling.bom + text.encode(spelling.codec, _errors(spelling.bom, spelling.codec))


def _errors(bom: bytes, codec: str) -> str:
    """The handler of bytes that no character has: only UTF-8 without a mark is a guess."""
    return "strict" if bom or codec != "utf-8" else "surrogateescape"


def check_fits(spelling: Spelling, text: str, path: str) -> None:
    """Check that new text can be encoded like the rest of the file."""
    try:
        text.encode(spelling.codec)
    except UnicodeEncodeError:
        message = f"`{path}` is in {spelling.codec}, which has not all characters of the new text"
        raise PackError("encoding", message, path=path) from None
    if not spelling.exact and not text.isascii():
        message = f"`{path}` is not in UTF-8, and only ASCII can be put into it"
        raise PackError("encoding", message, path=path)


def _has_surrogates(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


def _binary(path: str) -> PackError:
    return PackError("binary", f"`{path}` is not text", path=path)
