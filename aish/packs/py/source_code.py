r"""The bytes of a Python file as UTF-8 code, and back to bytes.

Lines end at `\n`, `\r\n` and `\r`, as they do for Python: a form feed or U+2028 ends none. Runs
in the child process that parses, so it imports little.
"""

import codecs
import re
from bisect import bisect_right

from aish.packs.byte_order_marks import byte_order_mark
from aish.packs.pack_error import PackError

_COOKIE = re.compile(rb"[ \t\f]*#[^\r\n]*?coding[:=][ \t]*([-\w.]+)")
_NO_CODE = re.compile(rb"[ \t\f]*(?:#[^\r\n]*)?(?:\r\n|\r|\n)")
_LINE_END = re.compile(rb"\r\n|\r|\n")
_UTF8 = frozenset({"utf-8", "utf8", "utf_8"})


class SourceCode:
    """A file: its code in UTF-8 without a byte-order mark, and its line starts.

    `encoding` is for code that is in no file: a cookie in it means nothing.

    Raises:
        PackError: it is not text, or not in the encoding that it names: `unsupported`, or what
            `code` says.
    """

    __slots__ = ("_starts", "bom", "code", "data", "encoding", "path")

    def __init__(
        self, data: bytes, path: str, *, writing: bool = False, encoding: str = ""
    ) -> None:
        self.data = data
        self.path = path
        self.bom, self.encoding = (b"", encoding) if encoding else encoding_of(data)
        self._starts: list[int] | None = None
        rest = data[len(self.bom) :]
        if self.encoding == "utf-8":
            self.code = rest
        else:
            self.code = self._to_utf8(rest, writing=writing)
        if b"\0" in self.code:
            message = f"`{path}` has NUL characters in it: it is not Python code"
            raise PackError("binary" if writing else "unsupported", message, path=path)

    def _to_utf8(self, rest: bytes, *, writing: bool) -> bytes:
        code = _as_utf8(rest, self.encoding, exact=writing)
        if code is None:
            message = f"`{self.path}` cannot be read in the encoding that it names"
            error = "encoding" if writing else "unsupported"
            raise PackError(error, message, path=self.path, encoding=self.encoding)
        return code

    @property
    def starts(self) -> list[int]:
        """The offset of each line; the last one is the end, where the code ends in a line end."""
        if self._starts is None:
            self._starts = line_starts(self.code)
        return self._starts

    def line_of(self, offset: int) -> int:
        """The line, counted from 1, that an offset lies in."""
        return bisect_right(self.starts, offset)

    def start_of_line(self, offset: int) -> int:
        return self.starts[self.line_of(offset) - 1]

    def end_of_line(self, offset: int) -> int:
        """The offset of the end of the line at `offset`, without its line break."""
        match = _LINE_END.search(self.code, offset)
        return match.start() if match else len(self.code)

    def next_line(self, offset: int) -> int:
        match = _LINE_END.search(self.code, offset)
        return match.end() if match else len(self.code)

    @property
    def line_count(self) -> int:
        """Number of lines; an unfinished last line counts."""
        return len(self.starts) - (self.starts[-1] == len(self.code))

    def text(self, start: int, end: int) -> str:
        """A part of the code as text; invalid bytes are replaced."""
        return self.code[start:end].decode("utf-8", "replace")

    def line_end(self, start: int = 0) -> bytes:
        r"""The kind of line end that is used from an offset on, or before it, or `\n`."""
        # An offset may be between the two bytes of one.
        start -= self.code[start - 1 : start + 1] == b"\r\n"
        match = _LINE_END.search(self.code, start) or _LINE_END.search(self.code)
        return match.group() if match else b"\n"

    def is_utf8(self) -> bool:
        """Return true if the code is valid UTF-8; else only ASCII can be put into it."""
        try:
            self.code.decode("utf-8")
        except UnicodeDecodeError:
            return False
        return True

    def encode(self, code: bytes) -> bytes:
        """The bytes of the file with other code."""
        try:
            if self.encoding == "utf-8":
                data = self.bom + code
            else:
                data = self.bom + code.decode("utf-8").encode(self.encoding)
        except UnicodeError:
            message = f"`{self.path}` is in {self.encoding}, which cannot hold the new text"
            raise PackError("encoding", message, path=self.path) from None
        if encoding_of(data) != (self.bom, self.encoding):
            message = f"nothing was written: the encoding that `{self.path}` names would be another"
            raise PackError("encoding", message, path=self.path)
        return data


def encoding_of(data: bytes) -> tuple[bytes, str]:
    """The byte-order mark and the encoding of a file: by its mark or its cookie, else UTF-8."""
    mark, codec = byte_order_mark(data)
    if mark:
        return mark, codec
    match = _COOKIE.match(data)
    if match is None:
        first = _NO_CODE.match(data)
        match = _COOKIE.match(data, first.end()) if first else None
    name = match[1].decode("ascii", "replace").lower() if match else "utf-8"
    return b"", "utf-8" if name in _UTF8 or name.startswith("utf-8-") else name


def _as_utf8(data: bytes, encoding: str, *, exact: bool) -> bytes | None:
    """Data of an encoding in UTF-8; `None` if it is not in it, or does not come back the same."""
    try:
        # What decodes to something else than text, such as `hex`, has no place in a cookie; there
        # is no public way to ask.
        if not getattr(codecs.lookup(encoding), "_is_text_encoding", False):
            return None
        text = data.decode(encoding)
        # An edit converts the whole file back: nothing but the edit may change by that.
        same = not exact or text.encode(encoding) == data
        return text.encode("utf-8") if same else None
    except (LookupError, UnicodeError, ValueError):
        return None


def line_starts(code: bytes) -> list[int]:
    if b"\r" in code:
        return [0, *(match.end() for match in _LINE_END.finditer(code))]
    starts = [0]
    place = code.find(b"\n") + 1
    while place:
        starts.append(place)
        place = code.find(b"\n", place) + 1
    return starts
