"""Quotes, looked up in passages: what is the same text, and what is not."""

# ruff: file-ignore[ambiguous-unicode-character-string] - typography is what is tested

import random
import string
import unicodedata
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from samples import each_case

from aish.agent.runtime import UsedCall
from aish.config.model import Quoted
from aish.core.json import JsonValue
from aish.engine.expectations.quoted import (
    Passage,
    Quote,
    QuoteSearch,
    TooMuchError,
    call_passages,
    describe,
    diff_passages,
    evidence_of,
    normalise,
    quotes_of,
)

CLAUSE = "The buyer may not return goods – unless “faulty” – after fourteen (14) days, see § 3…"


def call(tool: str, arguments: JsonValue, content: str, **more: Any) -> UsedCall:
    return UsedCall(tool, arguments, "auto", "", "ok", content, **more)


def states(texts: Sequence[str | Passage], *quotes: str, **settings: Any) -> list[str]:
    passages = [Passage(text) if isinstance(text, str) else text for text in texts]
    search = QuoteSearch(passages, Quoted(**settings))
    found = search.look_up([Quote(f"q[{n}]", quote) for n, quote in enumerate(quotes)])
    told = [evidence_of(one, search, [call("s__any", {}, "")] * 2) for one in found]
    assert describe(found, told, search)
    return [one.state for one in found]


@pytest.mark.requirement("V17")
@each_case(
    "quote, state",
    [
        ("The buyer may not return goods", "found"),
        ('goods - unless "faulty" - after', "found"),
        ("goods\n   \u2014\u00a0unless\u200b 'faulty", "missing"),
        ("goods \u2014\u00a0un\u00adless \u201cfaulty\u201d", "found"),
        ("'The buyer may not return'", "found"),
        ("\u00abmay not return goods\u00bb", "found"),
        ("fourteen (14) days, see § 3...", "found"),
        ("the buyer may not return goods", "missing"),
        ("The buyer may return goods", "missing"),
        ("fourteen (15) days", "missing"),
        ("fourteen 14 days, see", "missing"),
        ("may not", "short"),
        ("  'may not'      ", "short"),
        ("The buyer ... after fourteen (14)", "missing"),
    ],
)
def test_only_white_space_and_typography_make_no_difference(quote: str, state: str) -> None:
    assert states([CLAUSE], quote) == [state]


@pytest.mark.requirement("V18")
@each_case(
    "quote, most, state",
    [
        ("The buyer may not ... after fourteen (14)", 40, "found"),
        ("The buyer may not [...] after fourteen (14)", 40, "found"),
        ("The buyer may not ... after fourteen (14)", 20, "missing"),
        ("The buyer may not ... after fourteen (14)", 0, "missing"),
        ("after fourteen (14) ... The buyer may not", 90, "missing"),
        ("The buyer ... after fourteen (14)", 90, "short"),
        ("may ... not return goods", 90, "short"),
        ("... may not return goods", 1, "found"),
    ],
)
def test_an_ellipsis_stands_for_so_much_in_one_source(quote: str, most: int, state: str) -> None:
    assert states([CLAUSE], quote, ellipsis=most) == [state]


def test_parts_of_two_sources_are_no_quote() -> None:
    parts = ["The first half of a sentence", "and the second half of it"]

    assert states(
        parts, " ".join(parts), "half of a sentence ... the second half", ellipsis=99
    ) == [
        "missing",
        "missing",
    ]


WORDS = st.text(
    alphabet=string.ascii_letters + string.digits + "éßñΩж中‘’“”–—…ﬁ½ \n\t\u00a0", min_size=60
)
SPELLINGS = {"'": "'‘’", '"': '"“”', "-": "-–—‐", " ": [" ", "\n", "\t ", "\u00a0", " \u200b "]}


@given(WORDS, st.randoms(use_true_random=False))
@settings(max_examples=3 * settings().max_examples)
def test_a_slice_is_found_whatever_its_white_space_and_typography(
    text: str, chance: random.Random
) -> None:
    whole = normalise(text)
    if len(whole) < 40:
        return
    begin = chance.randrange(len(whole) - 20)
    end = chance.randrange(begin + 14, len(whole) + 1)
    piece = whole[begin:end].strip(" '\"")
    if len(piece) < 12:
        return
    written = "".join(chance.choice(SPELLINGS.get(sign, sign)) for sign in piece)
    written = chance.choice([written, unicodedata.normalize("NFD", written), f"“{written}”"])

    assert states([text, "another text"], written) == ["found"]

    places = [at for at, sign in enumerate(piece) if sign.isascii() and sign.isalnum()]
    if places:
        at = chance.choice(places)
        other = chance.choice([one for one in "abcXYZ0189" if one != piece[at]])
        changed = f"{piece[:at]}{other}{piece[at + 1 :]}"
        wanted = "found" if changed in whole else "missing"
        assert states([text, "another text"], changed) == [wanted]


DIFF = """\
diff --git a/src/a.py b/src/a.py
--- a/src/a.py
+++ b/src/a.py\t2026-01-01
@@ -1,4 +1,4 @@ def first():
 def average(values):
-    if not values:
-        return zero
+    check_that_there_are(values)
+    # and nothing else
     return sum(values) / len(values)
@@ -90,2 +90 @@
-last = average([1, 2])
 print("the end of it")
--- /dev/null
+++ "b/src/\\\\\\"\\303\\266\\t\\001.py"
@@ -0,0 +1,2 @@
+first line of a new file
++ second line, with a plus
\\ No newline at end of file
"""


@pytest.mark.requirement("V19")
@each_case(
    "quote, file, line, state",
    [
        ("check_that_there_are(values)", "src/a.py", 2, "found"),
        ("check_that_there_are(values)", "./src/a.py", "5", "found"),
        ("check_that_there_are(values)", "src/a.py", 2.0, "found"),
        ("check_that_there_are(values)", "src/a.py", 6, "elsewhere"),
        ("check_that_there_are(values)", "a.py", 2, "elsewhere"),
        ("check_that_there_are(values)", None, 2, "elsewhere"),
        ("check_that_there_are(values)", "src/a.py", None, "elsewhere"),
        ("def average(values): check_that_there_are(values)", "src/a.py", 1, "found"),
        ("def average(values): if not values: return zero", "src/a.py", 1, "found"),
        ("return zero return sum(values)", "src/a.py", 2, "found"),
        ("return sum(values) / len(values)", "src/a.py", 4, "found"),
        ('print("the end of it")', "src/a.py", 90, "found"),
        ("first line of a new file + second line", 'src/\\"ö\t\x01.py', 1, "found"),
        ("+    check_that_there_are(values)", "src/a.py", 2, "missing"),
    ],
)
def test_a_diff_counts_lines_in_the_new_file(
    quote: str, file: str | None, line: float | str | None, state: str
) -> None:
    search = QuoteSearch(diff_passages("stdin", DIFF), Quoted(file="file", line="line"))
    (found,) = search.look_up([Quote("q", quote, file, line)])

    assert found.state == state


def test_a_broken_diff_has_what_can_be_read() -> None:
    broken = (
        '+++ "b/\\q\\377\\999"\n@@ -1 +1 @@\n-one\n+two\n'
        f"@@ -0,0 +{'9' * 5_000} @@\n+lost\n@@ -1,999999999 +1 @@\n three\n"
    )

    texts = [passage.text for passage in diff_passages("stdin", broken)]

    assert texts == ["one\ntwo", "two", "one", "three\n"]


def test_a_file_whose_middle_was_cut_off_has_its_lines() -> None:
    lines = [f"the line of number {n} is here" for n in range(1, 101)]
    text = "\n".join(lines)
    shown = "\n".join((*lines[:10], "[aish] 9 of 99 bytes left out here", *lines[-5:]))
    structured: JsonValue = {"path": "a.py", "start_line": 11, "content": text}
    read = call("repo__file_read", {}, shown, structured=structured, whole=text, full="files/1")
    quoted = Quoted(file="file", line="line", within=0)
    search = QuoteSearch(call_passages([read], None, lambda _: True), quoted)
    asked = [
        (3, "a.py", 13),
        (3, "a.py", 14),
        (97, "a.py", 107),
        (97, "b.py", 107),
        (50, "a.py", 60),
    ]

    found = search.look_up([Quote("q", lines[n - 1], file, line) for n, file, line in asked])

    assert [one.state for one in found] == [
        *("found", "elsewhere", "found", "elsewhere", "not_shown"),
    ]


def test_a_line_that_is_often_there_may_be_any_of_its_places() -> None:
    text = "x = compute_it(1)\n\n" * 50
    passage = Passage(text, path="a.py", lines=range(11, 11 + 101))
    search = QuoteSearch([passage], Quoted(file="file", line="line", within=0))
    lines = (11, 13, 109, 12, 10, 111)
    found = search.look_up([Quote("q", "x = compute_it(1)", "a.py", line) for line in lines])

    assert [one.state for one in found] == ["found"] * 3 + ["elsewhere"] * 3


def test_what_is_missing_is_shown_beside_what_is_nearest() -> None:
    search = QuoteSearch([Passage("Nothing here."), Passage(CLAUSE)], Quoted())
    found = search.look_up([Quote("output[0]", "The buyer may return goods - unless faulty")])

    assert describe(found, [evidence_of(one, search, ()) for one in found], search) == (
        "0 of 1 quote found\n"
        "  output[0]: not in the sources\n"
        "  - The buyer may return goods - unless faulty\n"
        '  + The buyer may not return goods - unless "faulty" - after'
    )


LONG = 10_000_000
HOSTILE = {
    "one letter": ("a" * LONG, ["a" * 40 + "b", "b" + "a" * 40, "a" * 1_000_000 + "b"]),
    "two letters": ("ab" * (LONG // 2), ["ab" * 30 + "b", "b" + "ab" * 30]),
    "marks": ("a" + "\u0300\u0316" * 500_000, ["a" + "\u0300\u0316" * 100]),
    "opened marks": ("a" + "\u0f73\u0f75\uff9e\u0300" * 250_000, ["not there at all"]),
    "ligatures": ("\ufdfa " * 400_000, ["not there at all, \ufdfa"]),
    "surrogates": ("\ud800 \udfff" * 300_000, ["\ud800 \udfff" * 10, "\ud800\udfff" * 10]),
    "many quotes": ("word " * 100_000, [f"word word {n} word word" for n in range(5_000)]),
    "parts": ("one two three four " * 20_000, ["one two three ... " * 200 + "five six seven"]),
}


@pytest.mark.slow(reason="texts of 10 MB")
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_text_takes_a_bounded_time(name: str) -> None:
    """A quadratic search of one of these takes hours: the limit of every test would end it."""
    text, quotes = HOSTILE[name]

    with suppress(TooMuchError):
        assert len(states([text], *quotes, ellipsis=100)) == len(quotes)


def test_an_entry_without_any_quote_is_not_met() -> None:
    entries: list[JsonValue] = [{"quote": []}, {"quote": None}, {}, {"quote": "The buyer may not"}]
    quoted = Quoted(text="quote")
    quotes = quotes_of(quoted, {"output": entries})

    found = QuoteSearch([Passage(CLAUSE)], quoted).look_up(quotes)

    assert [one.state for one in found] == ["short", "short", "short", "found"]


def test_too_much_is_refused() -> None:
    with pytest.raises(TooMuchError, match="are the most"):
        states(["a" * 17_000_000], "not there at all")
    with pytest.raises(TooMuchError, match="5,001 quotes"):
        QuoteSearch([Passage("a")], Quoted()).look_up([Quote("q", "a")] * 5_001)


@pytest.mark.requirement("V16")
def test_words_of_the_model_are_no_evidence_and_neither_is_what_it_was_not_shown() -> None:
    line = "the cache is never emptied"
    reads = {"repo__read": True, "repo__find": True, "repo__write": False}
    cases: list[tuple[list[UsedCall], str]] = [
        ([call("s__echo", {"text": line}, line)], "own_words"),
        ([call("s__echo", {"argv": ["the cache is", "never emptied"]}, line)], "own_words"),
        ([call("repo__find", {"query": line}, f"no match for {line}")], "own_words"),
        ([call("s__echo", {line: 1}, f"keys: {line}")], "own_words"),
        ([call("s__get", {"url": f"/?q={line.replace(' ', '+')}"}, line)], "own_words"),
        ([call("repo__find", {"query": line}, "a.py"), call("repo__read", {}, line)], "found"),
        ([call("s__find", {"query": line}, "a.py"), call("repo__read", {}, line)], "own_words"),
        ([call("repo__write", {"text": line}, ""), call("repo__read", {}, line)], "own_words"),
        ([call("repo__read", {}, line), call("repo__write", {"text": line}, line)], "found"),
        ([call("s__read", {}, "cut", whole=f"cut {line}", full="f.txt")], "not_shown"),
        ([call("s__read", {}, "cut", whole="cut", structured=[line], full="f.txt")], "not_shown"),
        ([call("s__read", {}, "{}", structured={"a": [1, {"b": line}]})], "found"),
        ([call("s__read", {}, '[{"a": "the cache\\nis never emptied"}]')], "found"),
        ([call("s__read", {}, "[" * 90_000), call("s__read", {}, line)], "found"),
        ([call("s__a", {}, "the cache is"), call("s__b", {}, "never emptied")], "missing"),
        ([replace(call("s__read", {}, line), kind="handler_error")], "missing"),
    ]

    found = [
        states([*call_passages(calls, None, lambda one: reads.get(one.tool))], line)[0]
        for calls, _ in cases
    ]

    assert found == [state for _, state in cases]
