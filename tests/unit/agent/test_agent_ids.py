import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aish.agent.tool_round import unique_ids
from aish.core.events import Place
from aish.wire.calls import make_call_id

PLACE = Place(step="one", item="row 7", turn=3)


def test_good_ids_are_kept() -> None:
    assert unique_ids(["call_0", "toolu_01"], PLACE, set()) == ("call_0", "toolu_01")


@pytest.mark.parametrize("given_id", ["", " ", "a\nb", "ü", "\ud800"])
def test_missing_and_unsendable_ids_are_made(given_id: str) -> None:
    assert unique_ids([given_id], PLACE, set()) == (make_call_id(PLACE, 0, ()),)


def test_the_second_of_two_equal_ids_is_made() -> None:
    assert unique_ids(["a", "a"], PLACE, set()) == ("a", make_call_id(PLACE, 1, ()))


def test_an_id_of_an_earlier_turn_is_not_used_again() -> None:
    assert unique_ids(["call_0"], PLACE, {"call_0"}) == (make_call_id(PLACE, 0, ()),)


def test_an_id_that_a_model_took_from_us_is_passed_over() -> None:
    taken = make_call_id(PLACE, 1, ())
    first, second = unique_ids([taken, ""], PLACE, set())
    assert first == taken
    assert second == make_call_id(PLACE, 1, (taken,))


@pytest.mark.requirement("L16")
def test_made_ids_differ_by_step_item_turn_and_index() -> None:
    places = [
        PLACE,
        Place("two", "row 7", 3),
        Place("one", "row 8", 3),
        Place("one", "row 7", 4),
        Place("one", None, 3),
    ]
    made = {make_call_id(place, index, ()) for place in places for index in range(3)}
    assert len(made) == 15


def test_made_ids_are_the_same_in_another_process() -> None:
    program = (
        "from aish.agent.tool_round import unique_ids; from aish.core.events import Place;"
        "print(unique_ids(['a', 'b', ''], Place(step='one', item='row 7', turn=3), ())[2])"
    )
    other = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    )
    assert other.stdout.strip() == make_call_id(PLACE, 2, ())


@given(
    st.lists(st.sampled_from(["", "a", "b", "\n"]) | st.text(max_size=3)),
    st.sets(st.sampled_from("abc")),
)
def test_ids_are_always_unique_and_sendable(ids: list[str], used: set[str]) -> None:
    unique = unique_ids(ids, PLACE, used)
    assert len(set(unique)) == len(ids)
    assert used.isdisjoint(unique)
    assert all(id.strip() and id.isascii() and id.isprintable() for id in unique)
