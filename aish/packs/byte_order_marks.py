"""Byte-order marks: the encoding that the first bytes of a text tell."""

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
    """The mark that a text begins with, and the codec of what follows it; both empty without."""
    return next(((mark, codec) for mark, codec in _MARKS if data.startswith(mark)), (b"", ""))
