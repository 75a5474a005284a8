"""Questions with known answers: 16 categories of two, each answer checked by code."""

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from math import isclose

from aish.core.frozen import frozen
from aish.core.patterns import lazy_pattern

Check = Callable[[str], bool]

_NUMBER = lazy_pattern(r"-?\d[\d,]*(?:\.\d+)?")
_SHORT = 15
_WORD = lazy_pattern(r"[^\W_]+")


@frozen
class ProbeQuestion:
    """A question, and a check of the answer."""

    id: str
    category: str
    text: str
    accepts: Check


def number(expected: float) -> Check:
    """Check the last number of the answer, in digits."""

    def check(reply: str) -> bool:
        numbers = _NUMBER.findall(reply)
        return bool(numbers) and isclose(float(numbers[-1].replace(",", "")), expected)

    return check


def words(expected: str) -> Check:
    """Check for exactly these words, ignoring case and separators."""
    expected_words = _words(expected)
    return lambda reply: _words(reply) == expected_words


def word(expected: str, *others: str) -> Check:
    """Check that a short answer has the right word, and none of the wrong ones."""

    def check(said: str) -> bool:
        found = _words(said)
        is_short = len(found) <= _SHORT
        return is_short and expected in found and not any(other in found for other in others)

    return check


def text(expected: str) -> Check:
    """Check for exactly this text, ignoring surrounding white space."""
    return lambda reply: reply.strip() == expected


def value(expected: object) -> Check:
    """Check for this JSON value, possibly in a code fence."""

    def check(reply: str) -> bool:
        inner = reply.strip()
        if inner.startswith("```") and inner.endswith("```"):
            inner = inner[3:-3].partition("\n")[2]
        try:
            return bool(json.loads(inner) == expected)
        except (ValueError, RecursionError):
            return False

    return check


def _words(reply: str) -> list[str]:
    return [word.lower() for word in _WORD.findall(reply)]


_NUMBER_ONLY = "Answer with the number only."
_WORD_ONLY = "Answer with one word only."
_YES_OR_NO = "Answer yes or no."
_LIST_ONLY = "Answer with the list only."
_OUTPUT_ONLY = "Answer with the output only."

# The question, how to answer it, and the check.
_ALL: Mapping[str, Sequence[tuple[str, str, Check]]] = {
    "arithmetic": (
        ("What is 17 + 26?", _NUMBER_ONLY, number(43)),
        ("What is 12 * 11 - 7?", _NUMBER_ONLY, number(125)),
    ),
    "word_problems": (
        (
            "A box holds 6 eggs. Ann buys 4 boxes and breaks 5 eggs. How many whole eggs are left?",
            _NUMBER_ONLY,
            number(19),
        ),
        (
            "A train leaves at 14:20 and arrives at 16:05. How many minutes does it travel?",
            _NUMBER_ONLY,
            number(105),
        ),
    ),
    "counting": (
        ("How many words are in this sentence: The cat sat down.", _NUMBER_ONLY, number(4)),
        ("How many times is the letter r in the word strawberry?", _NUMBER_ONLY, number(3)),
    ),
    "comparison": (
        ("Which number is larger: 9.9 or 9.11?", _NUMBER_ONLY, number(9.9)),
        ("Which weighs more: 2 kg or 1500 g?", "Answer with one of: 2 kg, 1500 g.", words("2 kg")),
    ),
    "sorting": (
        (
            "Sort these numbers from small to large, separated by commas: 8, 3, 11, 5.",
            _LIST_ONLY,
            words("3 5 8 11"),
        ),
        (
            "Sort these words by the alphabet, separated by commas: pear, apple, plum.",
            _LIST_ONLY,
            words("apple pear plum"),
        ),
    ),
    "spelling": (
        ("Write the word level backwards, then the word stop backwards.", "", words("level pots")),
        (
            "Which of these is spelled right: recieve, receive?",
            _WORD_ONLY,
            word("receive", "recieve"),
        ),
    ),
    "extraction": (
        (
            "Text: Order 4711 was shipped to Oslo on Monday. Which city was it shipped to?",
            _WORD_ONLY,
            word("oslo"),
        ),
        (
            "Text: Ask Eve (eve@example.org) or Bob (bob@example.org). What is Bob's mail address?",
            "Answer with the address only.",
            text("bob@example.org"),
        ),
    ),
    "json": (
        (
            'Return only a JSON object with the key "name" and the value "Ada".',
            "",
            value({"name": "Ada"}),
        ),
        ("Return only a JSON array of the numbers from 1 to 4.", "", value([1, 2, 3, 4])),
    ),
    "instructions": (
        ("Reply with exactly this text and nothing else: READY", "", text("READY")),
        ("Reply with the word blue three times, separated by spaces.", "", words("blue blue blue")),
    ),
    "logic": (
        (
            "All birds in the yard are hens. Rex is a bird in the yard. Is Rex a hen?",
            _YES_OR_NO,
            word("yes", "no"),
        ),
        (
            "Tom is taller than Ann. Ann is taller than Eve. Who is the shortest?",
            _WORD_ONLY,
            word("eve", "tom", "ann"),
        ),
    ),
    "dates": (
        ("Which day comes two days after Friday?", _WORD_ONLY, word("sunday")),
        ("How many days has February in 2024?", _NUMBER_ONLY, number(29)),
    ),
    "units": (
        ("How many metres are 2.5 kilometres?", _NUMBER_ONLY, number(2500)),
        ("How many seconds are in three minutes?", _NUMBER_ONLY, number(180)),
    ),
    "code": (
        ("What does this Python code print? print(len([1, 2, 3]) * 2)", _OUTPUT_ONLY, number(6)),
        ("What does this Python code print? print('abc'[1])", _OUTPUT_ONLY, words("b")),
    ),
    "sentiment": (
        (
            "Is this review positive or negative: I love this phone, it works very well.",
            _WORD_ONLY,
            word("positive", "negative"),
        ),
        (
            "Is this review positive or negative: It broke after one day and nobody helped me.",
            _WORD_ONLY,
            word("negative", "positive"),
        ),
    ),
    "translation": (
        ("Translate the German word Wasser into English.", _WORD_ONLY, word("water")),
        ("Translate the French word rouge into English.", _WORD_ONLY, word("red")),
    ),
    "knowledge": (
        ("What is the capital of France?", _WORD_ONLY, word("paris")),
        ("How many planets does the solar system have?", _NUMBER_ONLY, number(8)),
    ),
}
CATEGORIES = tuple(_ALL)
"""Their names, in the order in which they are asked."""


def questions_of(categories: Collection[str] | None) -> list[ProbeQuestion]:
    """Return the questions of these categories, of all if none are named."""
    return [
        ProbeQuestion(f"{category}-{at}", category, f"{asked} {form}".strip(), accepts)
        for category, questions in _ALL.items()
        if not categories or category in categories
        for at, (asked, form, accepts) in enumerate(questions, 1)
    ]
