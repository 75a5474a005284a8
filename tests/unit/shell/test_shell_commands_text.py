"""Where a line goes, and how rows fit a width: both pure (S1, S5)."""

from hypothesis import given
from hypothesis import strategies as st
from samples import each_case

from aish.output.style import cells
from aish.shell.loop import CommandLine, LocalLine, Route, TypedQuestion, route
from aish.shell.outputs import columns, fold

WORDS = st.text("abcdefg xyz-/中é", min_size=0, max_size=60)


@each_case(
    "line, wanted",
    [
        ("what is this", TypedQuestion("what is this")),
        ("  :help me", TypedQuestion(":help me")),
        (" !no", TypedQuestion("!no")),
        (":help", CommandLine("help", "")),
        (":mcp tools  a__b ", CommandLine("mcp", "tools  a__b")),
        (":mcp\ttools", CommandLine("mcp", "tools")),
        (":", CommandLine("", "")),
        (": help", CommandLine("help", "")),
        ("!ls -l", LocalLine("ls -l", hand_over=True)),
        ("! ls", LocalLine("ls", hand_over=True)),
        ("$ls", LocalLine("ls", hand_over=False)),
        ("!a\nb", LocalLine("a\nb", hand_over=True)),
        ("!", None),
        ("$ ", None),
        ("", None),
        (" \n\t", None),
    ],
)
def test_the_first_character_says_where_a_line_goes(line: str, wanted: Route | None) -> None:
    assert route(line) == wanted


@given(st.lists(st.tuples(WORDS, WORDS, WORDS), min_size=1, max_size=5), st.integers(20, 120))
def test_rows_fit_the_width_and_lose_nothing(rows: list[tuple[str, ...]], width: int) -> None:
    lines = list(columns(rows, width))

    assert all(cells(line) <= width for line in lines)
    shown = sorted("".join(lines).replace(" ", ""))
    assert shown == sorted("".join(cell for row in rows for cell in row).replace(" ", ""))


@given(st.text("ab cd-中", max_size=120), st.integers(10, 60))
def test_folded_text_fits_and_keeps_its_indent(text: str, room: int) -> None:
    rows = fold(f"  {text}", room)

    assert all(cells(row) <= room for row in rows)
    assert "".join(rows).replace(" ", "") == text.replace(" ", "")
    assert len(rows) == 1 or all(row.startswith("  ") for row in rows)


def test_columns_are_aligned_by_what_a_terminal_shows() -> None:
    assert list(columns([("中", "a"), ("b", "c")], None)) == ["中  a", "b   c"]
