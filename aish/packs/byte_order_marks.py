"""Byte-order marks, which tell the encoding of a text."""

import codecs

_MARKS = (
    # Those of UTF-32 begin with those of UTF-16.
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
    (codecs.BOM_UTF8, "utf-8"),
)


def byte_order_mark(data: bytes) -> tuple[bytes, str]:
    """Return the mark at the beginning of a text and its codec; both are empty without one."""
    return next(((mark, codec) for mark, codec in _MARKS if data.startswith(mark)), (b"", ""))
