from hypothesis import given
from hypothesis import strategies as st
from samples import each_case

from aish.agent.result_limit import cut


def kept_as_a_file(data: bytes) -> str:
    return "files/0001-one.txt"


def not_kept(data: bytes) -> None:
    return None


LINES = "".join(f"line {number}\n" for number in range(1000))


def test_a_short_text_stays_as_it_is() -> None:
    assert cut("a\nb", 3, not_kept).text == "a\nb"
    assert cut("ää", 4, not_kept).text == "ää"


def test_a_long_text_is_cut_in_the_middle_between_lines() -> None:
    short = cut(LINES, 300, kept_as_a_file)
    assert short.full == "files/0001-one.txt"
    lines = short.text.splitlines()
    assert lines[0] == "line 0"
    assert lines[-1] == "line 999"
    assert len(short.text) <= 300
    assert len(short.text) > 200
    marks = [line for line in lines if line.startswith("[aish]")]
    assert all(line in LINES.splitlines() for line in lines if line not in marks)
    left_out = len(LINES) - len("".join(f"{line}\n" for line in lines if line not in marks))
    assert marks == [f"[aish] {left_out} of {len(LINES)} bytes left out here"]


def test_a_model_reads_the_same_wherever_the_full_text_is_kept() -> None:
    short = cut(LINES, 300, not_kept)
    assert short.full is None
    assert short.text == cut(LINES, 300, kept_as_a_file).text


def test_the_whole_text_is_kept_byte_by_byte() -> None:
    kept: list[bytes] = []
    cut(LINES, 300, kept.append)
    assert kept == [LINES.encode()]


def test_one_long_line_is_cut_between_characters() -> None:
    short = cut("ä€😀" * 1000, 500, not_kept).text
    head, mark, tail = short.split("\n")
    assert mark.startswith("[aish] ")
    assert head.startswith("ä€😀ä")
    assert tail.endswith("ä€😀")
    assert len(short.encode()) <= 500
    assert "\ufffd" not in short


@each_case("limit", range(300, 320))
def test_no_line_is_cut_where_the_limit_falls_anywhere_in_it(limit: int) -> None:
    lines = "123456789\n" * 100
    mark, *rest = sorted(set(cut(lines, limit, not_kept).text.splitlines()), reverse=True)
    assert mark.startswith("[aish] ")
    assert rest == ["123456789"]
    whole = cut(lines, limit, not_kept).text
    assert len(whole) > limit - 10 - 20


def test_a_limit_too_small_for_anything_leaves_the_mark() -> None:
    short = cut(LINES, 10, not_kept).text
    assert short == f"[aish] {len(LINES)} of {len(LINES)} bytes left out here"


@given(
    st.text(st.characters(exclude_categories=["Cs"]) | st.just("\n"), max_size=400),
    st.integers(min_value=120, max_value=300),
)
def test_every_cut_fits_and_its_numbers_are_true(text: str, limit: int) -> None:
    short = cut(text, limit, not_kept).text
    assert len(short.encode()) <= limit
    if len(text.encode()) <= limit:
        assert short == text
        return
    total = len(text.encode())
    _, _, rest = short.rpartition("[aish] ")
    left_out = int(rest.split(" ")[0])
    mark = f"[aish] {left_out} of {total} bytes left out here"
    head, _, tail = short.partition(mark)
    assert text.startswith(head.removesuffix("\n"))
    assert text.endswith(tail.removeprefix("\n"))
    assert total - len(short) + len(mark) - 2 <= left_out + len(short)
