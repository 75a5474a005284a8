"""Which character set a page is in: its mark, its header, what it says of itself, UTF-8."""

import codecs

import pytest
from hypothesis import given
from hypothesis import strategies as st
from samples import each_case

from aish.packs.web.charset import decode_body

HTML = "text/html"


def html(body: bytes, header: str = HTML) -> str:
    return decode_body(body, header, is_markup=True)


@each_case(
    "label, text",
    [
        ("utf-8", "äöü €"),
        ("UTF8", "äöü €"),
        ("windows-1252", "äöü €"),
        ("ISO-8859-15", "äöü €"),
        ("koi8-r", "привет"),
        ("windows-1251", "привет"),
        ("iso-8859-7", "αβγ"),
        ("Shift_JIS", "日本語①"),
        ("euc-jp", "日本語"),
        ("iso-2022-jp", "日本語"),
        ("gb2312", "汉语"),
        ("gbk", "汉语"),
        ("gb18030", "汉语😀"),
        ("big5", "漢語"),
        ("euc-kr", "한국어"),
        ("macintosh", "äöü"),
        ("utf-16le", "äöü"),
        ("utf-16", "äöü"),
        ("tis-620", "ไทย"),
    ],
)
def test_a_label_of_the_header_is_understood(label: str, text: str) -> None:
    named = {"utf-16": "utf-16-le", "Shift_JIS": "cp932", "macintosh": "mac-roman"}
    body = text.encode(named.get(label, label))
    for header in (f"{HTML}; charset={label}", f'{HTML};  Charset="{label}"; x=y'):
        assert html(body, header) == text
    if not label.startswith("utf-16"):
        for said in (
            f'<meta charset="{label}">',
            f"<META http-equiv=x content='a; charset={label}'>",
        ):
            assert html(said.encode() + body) == said + text
        declared = f"<?xml version='1.0' encoding='{label}'?>"
        assert html(declared.encode() + body, "application/xml") == declared + text


def test_labels_mean_what_browsers_take_them_for() -> None:
    assert html(b"\x80\x93\x94", f"{HTML}; charset=iso-8859-1") == "€“”"
    assert html(b"\x80", f"{HTML}; charset=us-ascii") == "€"


@pytest.mark.parametrize(
    ("mark", "codec"),
    [
        (codecs.BOM_UTF8, "utf-8"),
        (codecs.BOM_UTF16_LE, "utf-16-le"),
        (codecs.BOM_UTF16_BE, "utf-16-be"),
        (codecs.BOM_UTF32_LE, "utf-32-le"),
        (codecs.BOM_UTF32_BE, "utf-32-be"),
    ],
)
def test_a_byte_order_mark_counts_most_and_is_no_text(mark: bytes, codec: str) -> None:
    page = mark + '<meta charset="koi8-r">ä'.encode(codec)
    assert html(page, f"{HTML}; charset=iso-8859-1") == '<meta charset="koi8-r">ä'


def test_the_header_counts_more_than_the_page() -> None:
    body = '<meta charset="utf-8">привет'.encode("koi8-r")
    assert html(body, f"{HTML}; charset=koi8-r").endswith("привет")


@each_case(
    "label",
    [
        *("", "none", "zlib", "zip", "bz2", "rot13", "hex", "unicode_escape", "raw_unicode_escape"),
        *("utf-7", "punycode", "idna", "undefined", "mbcs", "../x", "x" * 10_000, "\udc80", "ä"),
        *("utf-16be;", "replacement", "x-user-defined", "os", "aliases"),
    ],
)
def test_a_label_that_is_no_character_set_is_utf_8(label: str) -> None:
    body = "ä +AGE- \\u0041".encode()
    meta = f'<meta charset="{label}">'.encode("utf-8", "surrogateescape")
    assert html(meta + body).endswith("ä +AGE- \\u0041")
    if label != "utf-16be;":
        assert html(body, f"{HTML}; charset={label}") == "ä +AGE- \\u0041"


def test_a_page_cannot_say_that_it_is_utf_16() -> None:
    page = '<meta charset="utf-16">ä'
    assert html(page.encode()) == page


def test_what_is_not_valid_is_replaced() -> None:
    assert html(b"a\xff\xfeb") == "a\ufffd\ufffdb"
    assert html(b"\xd8\x00", f"{HTML}; charset=utf-16be") == "\ufffd"
    assert not decode_body(b"", "", is_markup=True)


def test_a_text_says_nothing_of_itself() -> None:
    body = '<meta charset="koi8-r">ä'.encode()
    assert decode_body(body, "text/plain", is_markup=False).endswith("ä")
    assert decode_body(b"<?xml version='1.0' encoding='koi8-r'?>", "", is_markup=False)


@given(
    body=st.binary(max_size=200),
    header=st.text(max_size=60)
    | st.sampled_from(["utf-8", "gbk", "iso-2022-jp", "big5"]).map(
        lambda label: f"text/html; charset={label}"
    ),
    is_markup=st.booleans(),
)
def test_any_bytes_are_some_text(body: bytes, header: str, *, is_markup: bool) -> None:
    text = decode_body(body, header, is_markup=is_markup)
    assert text.encode().decode() == text
