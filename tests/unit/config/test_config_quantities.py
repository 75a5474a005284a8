import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from samples import each_case

from aish.config.fields import duration, size


@pytest.mark.requirement("F13")
@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("10m", 600), ("1h30m", 5400), ("500ms", 0.5), ("1.5s", 1.5), ("2d", 172800)],
)
def test_a_duration_is_its_seconds(text: str, seconds: float) -> None:
    assert duration(text) == pytest.approx(seconds)


@each_case(
    "text", ["", "90", "s", "1x", "30m1h", "1m1m", "-5s", "1e3s", "90 s", "0s", "1h 30m", "٣s"]
)
def test_what_has_no_unit_or_no_sense_is_no_duration(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a duration|greater than zero"):
        duration(text)


@pytest.mark.parametrize(
    ("text", "count"),
    [("32KiB", 32768), ("1 MiB", 1048576), ("5kB", 5000), ("7B", 7), ("1GB", 10**9)],
)
def test_a_size_is_its_bytes(text: str, count: int) -> None:
    assert size(text) == count


@each_case("text", ["", "32", "32K", "32kib", "-1B", "1.5KiB", "0B", "KiB"])
def test_what_has_no_unit_is_no_size(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a size|greater than zero"):
        size(text)


@given(st.text(alphabet="0123456789.dhmsB KiGM", max_size=30))
def test_any_text_is_a_quantity_or_a_value_error(text: str) -> None:
    for read in (duration, size):
        with contextlib.suppress(ValueError):
            assert read(text) > 0
