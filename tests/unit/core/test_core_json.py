import json
import math
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aish.core.events import Failure
from aish.core.json import json_text, strict_json, writable

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=12,
)


@given(VALUES)
def test_what_json_writes_comes_back_as_it_was(value: object) -> None:
    assert strict_json(json.dumps(value)) == value


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"a": {"b": 1, "c": 2, "b": 3}}', "duplicate key `b`"),
        ("[NaN]", "`NaN` is not a JSON number"),
        ("-Infinity", "`-Infinity` is not a JSON number"),
        ("[1e999]", "`1e999` is too large a number"),
        (f"[{'9' * 5000}]", "a number of 5000 digits is too large"),
        ("{} {}", "Extra data"),
        ("", "Expecting value"),
    ],
)
def test_what_would_have_to_be_guessed_is_refused(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=f"^{said}"):
        strict_json(text)


@given(st.text())
def test_any_text_is_a_value_or_is_refused(text: str) -> None:
    try:
        value = strict_json(text)
    except (ValueError, RecursionError):
        return
    assert json.loads(text) == value


@pytest.mark.parametrize("number", [1.5, math.nan])
def test_a_frozen_class_is_written_as_its_fields(number: float) -> None:
    failure = Failure("c", "m", None)
    value: Any = {"of": (failure, failure), "number": number}
    text = json_text(value)

    fields = {"code": "c", "message": "m", "hint": None}
    known = None if math.isnan(number) else number
    assert json.loads(text) == {"of": [fields, fields], "number": known}


def test_read_only_values_are_written_as_what_they_hold() -> None:
    value = MappingProxyType({"a": (1, MappingProxyType({"b": range(2)}))})

    assert json.dumps(value, default=writable) == '{"a": [1, {"b": [0, 1]}]}'
    with pytest.raises(TypeError, match="not JSON: set"):
        json.dumps({1}, default=writable)
