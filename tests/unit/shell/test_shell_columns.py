"""Rows in columns: whole at any width (S5)."""

from hypothesis import given
from hypothesis import strategies as st

from aish.shell.outputs import columns

WORDS = st.text(alphabet="abcdef- ", min_size=1, max_size=40).map(str.strip).filter(bool)
ROWS = st.lists(st.tuples(WORDS, WORDS, WORDS).map(list), min_size=1, max_size=5)


def test_columns_are_as_wide_as_their_widest_cell() -> None:
    rows = [["a", "ready", "one"], ["longer", "no", "two"]]
    assert list(columns(rows, None)) == ["a       ready  one", "longer  no     two"]
    assert list(columns([], 80)) == []


def test_a_last_column_without_room_goes_below() -> None:
    assert list(columns([["a-long-name", "what it does, in words"]], 24)) == [
        "a-long-name",
        "    what it does, in",
        "    words",
    ]


@given(ROWS, st.integers(20, 100))
def test_nothing_is_cut_off(rows: list[list[str]], width: int) -> None:
    shown = "".join(columns(rows, width))
    given = "".join(cell for row in rows for cell in row)
    # A cell may be folded beside another one.
    assert sorted(shown.replace(" ", "")) == sorted(given.replace(" ", ""))
