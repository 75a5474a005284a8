"""The text of a page: which character set its bytes are in.

Labels mean what browsers take them for (the Encoding standard): `iso-8859-1` is windows-1252, and
nothing that a label can name is more than a character set.
"""

import re
from functools import cache

from aish.core.patterns import lazy_pattern
from aish.packs.byte_order_marks import byte_order_mark

_DECLARED = lazy_pattern(r";\s*charset\s*=\s*[\"']?\s*([^\s;\"']{1,40})", re.IGNORECASE)
_META = lazy_pattern(
    rb"<meta\s[^>]{0,400}?charset\s*=\s*[\"']?\s*([a-zA-Z0-9_:.-]{1,40})", re.IGNORECASE
)
_XML = lazy_pattern(rb"\s*<\?xml\s[^>]{0,200}?encoding\s*=\s*[\"']([a-zA-Z0-9_:.-]{1,40})")
_LOOKED_AT = 4096

# Python's codec, and the labels that stand for it, without what `_label` takes off.
_LABELS = """
utf_8         unicode11utf8 unicode20utf8 utf8 xunicode20utf8
utf_16_le     csunicode iso10646ucs2 ucs2 unicode unicodefeff utf16 utf16le
utf_16_be     unicodefffe utf16be
cp1252        ansix3.41968 ascii cp1252 cp819 csisolatin1 ibm819 iso88591 isoir100 iso88591:1987 l1
cp1252        latin1 usascii windows1252 xcp1252
cp1250        cp1250 windows1250 xcp1250
cp1251        cp1251 windows1251 xcp1251
cp1253        cp1253 windows1253 xcp1253
cp1254        cp1254 csisolatin5 iso88599 isoir148 iso88599:1989 l5 latin5 windows1254 xcp1254
cp1255        cp1255 windows1255 xcp1255
cp1256        cp1256 windows1256 xcp1256
cp1257        cp1257 windows1257 xcp1257
cp1258        cp1258 windows1258 xcp1258
cp866         866 cp866 csibm866 ibm866
cp874         dos874 iso885911 tis620 windows874
iso8859_2     csisolatin2 iso88592 isoir101 iso88592:1987 l2 latin2
iso8859_3     csisolatin3 iso88593 isoir109 iso88593:1988 l3 latin3
iso8859_4     csisolatin4 iso88594 isoir110 iso88594:1988 l4 latin4
iso8859_5     csisolatincyrillic cyrillic iso88595 isoir144 iso88595:1988
iso8859_6     arabic asmo708 csiso88596e csiso88596i csisolatinarabic ecma114 iso88596 iso88596e
iso8859_6     iso88596i isoir127 iso88596:1987
iso8859_7     csisolatingreek ecma118 elot928 greek greek8 iso88597 isoir126 iso88597:1987
iso8859_7     suneugreek
iso8859_8     csiso88598e csiso88598i csisolatinhebrew hebrew iso88598 iso88598e iso88598i isoir138
iso8859_8     iso88598:1988 logical visual
iso8859_10    csisolatin6 iso885910 isoir157 l6 latin6
iso8859_13    iso885913
iso8859_14    iso885914
iso8859_15    csisolatin9 iso885915 l9
iso8859_16    iso885916
koi8_r        cskoi8r koi koi8 koi8r
koi8_u        koi8ru koi8u
mac_roman     csmacintosh mac macintosh xmacroman
mac_cyrillic  xmaccyrillic xmacukrainian
gb18030       chinese csgb2312 csiso58gb231280 gb2312 gb231280 gbk isoir58 xgbk gb18030
big5hkscs     big5 big5hkscs cnbig5 csbig5 xxbig5
euc_jp        cseucpkdfmtjapanese eucjp xeucjp
iso2022_jp    csiso2022jp iso2022jp
cp932         csshiftjis ms932 mskanji shiftjis sjis windows31j xsjis
cp949         cseuckr csksc56011987 euckr isoir149 korean ksc56011987 ksc56011989 ksc5601 windows949
"""


def decode_body(body: bytes, content_type: str, *, is_markup: bool) -> str:
    """The text of a body, with a replacement character for what is not valid.

    By its byte order mark, else the header, else what markup says of itself, else UTF-8. A mark
    counts more than the header because no text in another character set begins with one.
    """
    mark, codec = byte_order_mark(body)
    codec = codec or _codec_of_header(content_type) or _own(body, is_markup=is_markup)
    return body[len(mark) :].decode(codec, "replace")


def _codec_of_header(content_type: str) -> str | None:
    match = _DECLARED.search(content_type)
    return None if match is None else _codecs().get(_label(match[1]))


def _own(body: bytes, *, is_markup: bool) -> str:
    """The codec that markup names; not UTF-16, or nobody could have read that."""
    start = body[:_LOOKED_AT]
    match = (_XML.match(start) or _META.search(start)) if is_markup else None
    codec = None if match is None else _codecs().get(_label(match[1].decode("ascii")))
    return "utf_8" if codec is None or codec.startswith("utf_16") else codec


def _label(text: str) -> str:
    return text.lower().replace("-", "").replace("_", "")


@cache
def _codecs() -> dict[str, str]:
    rows = (line.split() for line in _LABELS.strip().splitlines())
    return {label: codec for codec, *labels in rows for label in labels}
