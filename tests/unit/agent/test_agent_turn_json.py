import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from samples import each_case
from turn_files import IMAGE, Files

from aish.agent.turn_json import turn_from_json, turn_to_json
from aish.core.messages import AssistantTurn, SystemTurn, ToolTurn, Turn, UserTurn
from aish.core.tools import Media, ToolCall

TEXT = st.text(max_size=20)
MEDIA = st.lists(st.builds(Media, st.sampled_from(["image/png", "x"]), st.binary()), max_size=2)
JSON: Any = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=5,
)
FIELDS = st.dictionaries(TEXT, JSON, max_size=3)
CALLS = st.lists(st.builds(ToolCall, TEXT, TEXT, TEXT, FIELDS), max_size=3).map(tuple)
TURNS: st.SearchStrategy[Turn] = st.one_of(
    st.builds(SystemTurn, TEXT),
    st.builds(UserTurn, TEXT, MEDIA.map(tuple)),
    st.builds(AssistantTurn, TEXT, CALLS, FIELDS, TEXT),
    st.builds(ToolTurn, TEXT, TEXT, TEXT, MEDIA.map(tuple), is_error=st.booleans()),
)


def spelled(turn: Turn, files: Files) -> Any:
    """The turn as a journal has it."""
    return json.loads(json.dumps(turn_to_json(turn, files.keep)))


@given(TURNS)
def test_any_turn_comes_back_exactly(turn: Turn) -> None:
    files = Files()

    assert turn_from_json(spelled(turn, files), files.read) == turn


def test_an_image_is_a_file_with_a_digest_and_its_bytes_are_not_told() -> None:
    files = Files()

    told = spelled(UserTurn("look", (IMAGE,)), files)

    (one,) = told["media"]
    assert one["mime_type"] == "image/png"
    assert files.content[one["file"]] == IMAGE.data
    assert len(one["sha256"]) == 64


@pytest.mark.parametrize(
    ("keeps", "damage", "why"),
    [
        (True, {}, "is gone"),
        (True, {"files/0001-turn.png": b"other"}, "is not as it was"),
        (False, {}, "was not kept"),
    ],
)
def test_an_image_that_is_not_there_as_it_was_leaves_a_line(
    damage: dict[str, bytes], why: str, *, keeps: bool
) -> None:
    files, lost = Files(keeps=keeps), list[str]()
    told = spelled(ToolTurn("c1", "box__look", "a picture", (IMAGE,)), files)
    files.content = damage

    turn = turn_from_json(told, files.read, lost.append)

    reply = "a picture\n[aish] no longer there: image/png"
    assert turn == ToolTurn("c1", "box__look", reply)
    assert [why in said for said in lost] == [True]


def test_of_a_turn_of_nothing_but_an_image_a_line_is_left() -> None:
    files = Files(keeps=False)

    turn = turn_from_json(spelled(UserTurn("", (IMAGE,)), files), files.read)

    assert turn == UserTurn("[aish] no longer there: image/png")


@each_case(
    "told, named",
    [
        ({}, "role"),
        ({"role": "narrator", "text": "x"}, "role"),
        ({"role": "user"}, "text"),
        ({"role": "user", "text": 3}, "text"),
        ({"role": "user", "text": "x", "media": {}}, "media"),
        ({"role": "user", "text": "x", "media": [{"mime_type": "a"}]}, "sha256"),
        ({"role": "assistant", "text": "x", "calls": ["y"]}, "calls"),
        ({"role": "assistant", "text": "x", "calls": [{"id": "a"}]}, "name"),
        ({"role": "assistant", "text": "x", "extras": []}, "extras"),
        ({"role": "tool", "content": "x"}, "call_id"),
    ],
)
def test_what_is_no_turn_is_refused_and_its_key_is_named(told: Any, named: str) -> None:
    with pytest.raises(ValueError, match=f"`{named}`"):
        turn_from_json(told, Files().read)
