"""`-k`: which cases are meant, in pytest's simple form."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aish.core.errors import UsageError
from aish.features.testing.discovery import parse_selection

NAME = "pipelines/notes.yaml::writes One section per type"


@pytest.mark.requirement("C12")
@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("", True),
        ("   ", True),
        ("notes", True),
        ("NOTES", True),
        ("one", True),
        ("review", False),
        ("not review", True),
        ("not notes", False),
        ("notes and section", True),
        ("notes and review", False),
        ("review or section", True),
        ("review or notes and review", False),
        ("(review or notes) and section", True),
        ("not (review or notes)", False),
        ("not not notes", True),
        ("not review and notes", True),
        ('"one section"', True),
        ("'section one'", False),
        ("'and' or notes", True),
        ("notes.yaml::writes", True),
        ("android or orange", False),
    ],
)
def test_an_expression_selects_by_words_in_the_name(text: str, *, meant: bool) -> None:
    assert parse_selection(text)(NAME) is meant


@pytest.mark.requirement("C12", "exit-2")
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("one section", "expected `and`, `or` or the end, found `section`"),
        ("and", "expected a word, found `and`"),
        ("notes and", "expected a word, found the end"),
        ("not", "expected a word, found the end"),
        ("(notes", "expected `)`, found the end"),
        ("notes)", "expected `and`, `or` or the end, found `)`"),
        ("()", "expected a word, found `)`"),
        ("'open", "a quote that is not closed"),
        ("(" * 5000, "nested too deeply"),
        ("not " * 2000, "nested too deeply"),
        ("x" * 20_000, "longer than 10000 characters"),
    ],
)
def test_what_is_no_expression_is_a_mistake_with_a_hint(text: str, said: str) -> None:
    with pytest.raises(UsageError) as raised:
        parse_selection(text)

    assert raised.value.message == said
    assert raised.value.where == "-k"
    assert raised.value.hint


@given(st.text(alphabet="ab()'\" \tnotandr", max_size=60))
def test_any_text_selects_or_is_a_mistake(text: str) -> None:
    try:
        selection = parse_selection(text)
    except UsageError:
        return
    assert selection(NAME) in {True, False}


WORDS = st.sampled_from(["notes", "review", "One section", "x"])
Tree = tuple[str, Callable[[str], bool]]


def _quoted(word: str) -> Tree:
    return f'"{word}"', lambda name: word.casefold() in name.casefold()


def _grown(inner: st.SearchStrategy[Tree]) -> st.SearchStrategy[Tree]:
    pairs = st.tuples(inner, inner)
    return st.one_of(
        inner.map(lambda a: (f"not ({a[0]})", lambda name: not a[1](name))),
        pairs.map(lambda p: (f"({p[0][0]}) and ({p[1][0]})", lambda n: p[0][1](n) and p[1][1](n))),
        pairs.map(lambda p: (f"({p[0][0]}) or ({p[1][0]})", lambda n: p[0][1](n) or p[1][1](n))),
    )


@given(st.recursive(WORDS.map(_quoted), _grown, max_leaves=8))
def test_every_expression_means_what_it_says(tree: Tree) -> None:
    text, wanted = tree

    assert parse_selection(text)(NAME) is wanted(NAME)
