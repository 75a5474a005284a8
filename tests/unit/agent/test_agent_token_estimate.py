"""Tokens of a request, before an endpoint has counted them (L19)."""

import pytest
from agent_fakes import tool
from hypothesis import given
from hypothesis import strategies as st

from aish.agent.compaction import TokenEstimator, weigh, weigh_rest
from aish.core.messages import AssistantTurn, SystemTurn, ToolTurn, Turn, Usage, UserTurn
from aish.core.protocols import AnswerSchema
from aish.core.tools import Media, ToolCall


def estimator(*turns: Turn) -> TokenEstimator:
    made = TokenEstimator()
    made.add(turns)
    return made


def test_four_bytes_are_a_token_where_nobody_counted() -> None:
    assert 1000 <= estimator(UserTurn("x" * 4000)).tokens(0) <= 1020
    assert 3000 <= estimator(UserTurn("字" * 4000)).tokens(0) <= 3020
    assert estimator(UserTurn("x")).tokens(4000) - estimator(UserTurn("x")).tokens(0) == 1000


def test_what_the_endpoint_counted_is_believed() -> None:
    one = UserTurn("x" * 4000)
    made = estimator(one)
    made.calibrate(Usage(2500, 1), 100)

    assert made.tokens(100) == 2500

    made.add([one, ToolTurn("c", "a__b", "y" * 400)])

    assert 2600 <= made.tokens(100) <= 2620


@pytest.mark.parametrize("usage", [Usage(), Usage(input=0), Usage(input=12)])
def test_an_endpoint_that_counts_nothing_or_only_what_is_new_changes_nothing(usage: Usage) -> None:
    made = estimator(UserTurn("x" * 4000))
    before = made.tokens(500)
    made.calibrate(usage, 500)

    assert made.tokens(500) == before


def test_what_is_taken_out_weighs_what_it_was_counted_for() -> None:
    turns: list[Turn] = [UserTurn(""), AssistantTurn("x" * 3960), ToolTurn("c", "a__b", "x" * 3960)]
    made = estimator(*turns)
    made.calibrate(Usage(8040, 1), 0)
    made.put(2, ToolTurn("c", "a__b", ""))

    assert made.tokens(0) == 4080

    made.drop(1, 2)

    assert made.tokens(0) == 80


def test_an_image_weighs_as_an_image_and_not_as_its_bytes() -> None:
    image = Media("image/png", b"\0" * 1_000_000)

    assert estimator(UserTurn("look", (image,))).tokens(0) < 2000


def test_everything_that_goes_out_is_weighed() -> None:
    call = ToolCall("c", "a__b", '{"text": "' + "x" * 100 + '"}', {"signature": "y" * 50})

    assert weigh(AssistantTurn("", (call,))) > 170
    assert weigh(AssistantTurn("", extras={"reasoning_details": [{"data": "z" * 500}]})) > 500
    assert weigh(SystemTurn("x" * 99)) > 99
    shown = (tool("look", {"type": "object", "properties": {"x" * 100: {}}}),)
    assert weigh_rest(shown, None) > 100
    assert weigh_rest((), AnswerSchema("a", {"const": "x" * 100})) > 100
    assert weigh_rest((), None) == 0


turns = st.lists(st.builds(UserTurn, st.text(max_size=60)), min_size=1, max_size=12)


@given(
    turns=turns,
    heard=st.integers(0, 12),
    counted=st.integers(1, 10_000),
    changes=st.lists(st.tuples(st.integers(0, 11), st.integers(0, 11), st.booleans())),
)
def test_changes_come_to_the_same_as_weighing_all_anew(
    turns: list[Turn], heard: int, counted: int, changes: list[tuple[int, int, bool]]
) -> None:
    made = estimator(*turns[:heard])
    if turns[:heard]:
        made.calibrate(Usage(input=counted), 7)
    made.add(turns)
    marked = [(turn, at < heard) for at, turn in enumerate(turns)]
    bytes_then = sum(weigh(turn) for turn, old in marked if old) + 7
    for begin, end, put in changes:
        if put and begin < len(marked):
            marked[begin] = (UserTurn("!"), marked[begin][1])
            made.put(begin, UserTurn("!"))
        elif begin <= end <= len(marked):
            del marked[begin:end]
            made.drop(begin, end)
    old = sum(weigh(turn) for turn, old in marked if old) + 7
    new = sum(weigh(turn) for turn, old in marked if not old)
    if turns[:heard] and counted * 8 >= bytes_then:
        known = old * counted // bytes_then
    else:
        # Nothing was counted that can be believed.
        old, new, known = 7, old + new - 7, 7 // 4

    assert made.tokens(7) == known + -(-new // 4)
