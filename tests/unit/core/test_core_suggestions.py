"""The closest of known names, as hints show it."""

import pytest
from work import work_of

from aish.core.errors import did_you_mean


def test_the_closest_name_is_suggested() -> None:
    assert did_you_mean("titel", ["text", "title"]) == "did you mean `title`"
    assert did_you_mean("xyz", ["text", "title"]) is None


@pytest.mark.parametrize("name", ["ab" * 50, "ab" * 5_000])
def test_many_and_long_names_are_compared_in_bounds(name: str) -> None:
    def steps(count: int) -> int:
        return work_of(lambda: did_you_mean(name, ["ba" * 49] * count)).steps

    steps(300)
    assert steps(3_000) <= steps(300)
