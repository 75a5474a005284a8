"""Patterns that are compiled when they are first used do what compiled ones do."""

import re

import pytest

from aish.core.patterns import lazy_pattern


def test_a_lazy_pattern_does_what_a_compiled_one_does() -> None:
    lazy, compiled = (
        lazy_pattern(r"(?P<key>[a-z]+)=(\d+)", re.IGNORECASE),
        re.compile(r"(?P<key>[a-z]+)=(\d+)", re.IGNORECASE),
    )
    text = "A=1, b=22"

    for _ in range(2):
        assert lazy.findall(text) == compiled.findall(text)
        assert lazy.sub(r"\g<key>", text) == compiled.sub(r"\g<key>", text)
        assert [one.span() for one in lazy.finditer(text)] == [(0, 3), (5, 9)]
        assert (lazy.match(text, 5) or [""])[0] == "b=22"
    assert (lazy.pattern, lazy.flags, lazy.groups) == (
        compiled.pattern,
        compiled.flags,
        compiled.groups,
    )


def test_bytes_are_matched_too() -> None:
    assert lazy_pattern(rb"[0-9]+").fullmatch(b"123")


def test_a_mistake_in_a_pattern_is_told_at_its_first_use() -> None:
    lazy = lazy_pattern("(")

    with pytest.raises(re.error):
        lazy.match("")
