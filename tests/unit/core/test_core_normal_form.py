"""The form NFKC in time in proportion to the text."""

import unicodedata
from collections.abc import Callable
from itertools import pairwise
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from work import work_of

from aish.core.normal_form import compatible_form
from aish.core.text import suspicious
from aish.policy.rules import fit_forbidden_text
from aish.system.globs import comparable_name, is_autorun

MARKS = st.characters(categories=["Mn", "Mc"]) | st.sampled_from(
    "aeu\u1100\u1161\u11a8\u0f73\ufb01─"
)


@settings(max_examples=6 * settings().max_examples)
@given(st.text(st.characters() | MARKS) | st.text(MARKS, max_size=100))
def test_a_text_has_the_form_that_unicode_gives_it(text: str) -> None:
    assert compatible_form(text) == unicodedata.normalize("NFKC", text)
    repeated = text * 40
    assert compatible_form(repeated) == unicodedata.normalize("NFKC", repeated)


@pytest.mark.parametrize(
    "use",
    [
        compatible_form,
        comparable_name,
        suspicious,
        is_autorun,
        lambda text: fit_forbidden_text("a*", text),
    ],
)
def test_marks_reach_the_normalization_of_python_in_its_order(
    use: Callable[[str], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    normalize = unicodedata.normalize

    def checked(form: Literal["NFC", "NFD", "NFKC", "NFKD"], text: str) -> str:
        orders = [unicodedata.combining(letter) for letter in text]
        # Marks are sorted one by one where they are not in their order.
        falls = sum(0 < after < before for before, after in pairwise(orders))
        assert falls <= 1
        return normalize(form, text)

    monkeypatch.setattr(unicodedata, "normalize", checked)
    use("a" + "\u0301\u0327" * 1_000)


def test_a_path_longer_than_any_is_not_matched_letter_by_letter() -> None:
    def steps(count: int) -> int:
        return work_of(lambda: is_autorun("a/" * count + ".envrc")).steps

    steps(1)
    assert is_autorun("a/" * 50_000 + ".envrc")
    assert not is_autorun("a/" * 50_000 + "b")
    assert steps(50_000) < 30 * 50_000
