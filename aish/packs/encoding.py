"""A text file as text, and back in the encoding, byte-order mark and line ends it had (K6)."""

import codecs

from aish.core.frozen import frozen
from aish.packs.results import PackError

_BOMS = (
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
    (codecs.BOM_UTF8, "utf-8"),
)


@frozen
class Spelling:
    """How a text is kept in bytes; `crlf` where every line end is one, `exact` for plain UTF-8."""

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


def decoded(data: bytes, path: str) -> tuple[str, Spelling]:
    """The text, its line ends plain where all of them are CRLF, and how it was spelled.

    Bytes that are no UTF-8 become lone surrogates, which become the same bytes again.

    Raises:
        PackError: the file is binary.
    """
    bom, codec = next(((b, c) for b, c in _BOMS if data.startswith(b)), (b"", "utf-8"))
    try:
        text = data[len(bom) :].decode(codec, "strict" if bom else "surrogateescape")
    except UnicodeDecodeError:
        raise _binary(path) from None
    if "\0" in text:
        raise _binary(path)
    ends = text.count("\n")
    crlf = ends > 0 and text.count("\r\n") == ends
    exact = bool(bom) or text.isascii() or not _has_surrogates(text)
    return (text.replace("\r\n", "\n") if crlf else text), Spelling(bom, codec, crlf, exact)


def plain_text(text: str, name: str) -> str:
    """Text that a model wrote, as it can stand in a file.

    Raises:
        PackError: it has lone surrogates or NUL characters in it.
    """
    if "\0" in text or _has_surrogates(text):
        raise PackError("bad_arguments", f"`{name}` has characters in it that no text file has")
    return text


def in_lines_of(spelling: Spelling, text: str, before: str) -> str:
    """Text that a model wrote with the line ends that `decoded` text has."""
    if spelling.crlf or ("\n" in before and "\r\n" not in before):
        return text.replace("\r\n", "\n")
    return text


def encoded(text: str, spelling: Spelling) -> bytes:
    """The bytes of a text."""
    if spelling.crlf:
        text = text.replace("\n", "\r\n")
    errors = "strict" if spelling.bom else "surrogateescape"
    return spelling.bom + text.encode(spelling.codec, errors)


def check_fits(spelling: Spelling, text: str, path: str) -> None:
    """That new text can stand in a file beside what is there.

    Raises:
        PackError: the file is in an encoding that is not known, and the text is not ASCII.
    """
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
