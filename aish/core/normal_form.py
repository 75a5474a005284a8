"""Text in the form in which Unicode counts letters as the same.

The time of `unicodedata.normalize` grows with the square of a run of combining marks, which it
sorts one by one; the rest of it is linear. So such runs are sorted before it gets them.
"""

import re
import unicodedata
from itertools import groupby

from aish.core.patterns import lazy_pattern

# No mark that is sorted is a letter or a space; shorter runs take no time.
_LONG_RUN = lazy_pattern(r"[^\w\s\x00-\x7f]{32,}")


def compatible_form(text: str) -> str:
    """The text in the form NFKC, in time in proportion to its length."""
    if text.isascii():
        return text
    parts = {ord(letter): unicodedata.normalize("NFKD", letter) for letter in set(text)}
    return unicodedata.normalize("NFKC", _LONG_RUN.sub(_sort_marks, text.translate(parts)))


def _sort_marks(run: re.Match[str]) -> str:
    """A run whose marks are in the order that Unicode gives them."""
    order = unicodedata.combining
    return "".join(
        "".join(sorted(marks, key=order) if are_marks else marks)
        for are_marks, marks in groupby(run[0], lambda letter: order(letter) > 0)
    )
