"""The quick answer of `PlainPart`: what it admits fits the schema, as the evaluation has it."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aish.packs.framework.server import input_schema_of
from aish.system.schema.check import check, plain_part

SCHEMA: Any = {
    "type": "object",
    "properties": {
        "path": {"type": "string", "description": "A file."},
        "line": {"type": "integer", "default": 1},
        "all": {"type": "boolean"},
        "size": {"type": "integer", "minimum": 3},
        "word": {"type": ["string", "null"]},
        "any": {},
    },
    "required": ["path"],
    "additionalProperties": False,
}
VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(), st.just([])
)
OBJECTS = st.dictionaries(st.sampled_from(["path", "line", "all", "size", "word", "x", ""]), VALUES)


@given(OBJECTS)
def test_what_is_admitted_at_once_fits_the_schema(value: dict[str, Any]) -> None:
    assert not plain_part(SCHEMA).admits(value) or check(SCHEMA, value) == ()


@pytest.mark.parametrize(
    ("value", "admitted"),
    [
        ({"path": "a"}, True),
        ({"path": "a", "line": 3, "all": True}, True),
        ({}, False),
        ({"line": 3}, False),
        ({"path": "a", "line": True}, False),
        # These fit, and are evaluated.
        ({"path": "a", "line": 3.0}, False),
        ({"path": "a", "size": 5}, False),
    ],
)
def test_values_of_plain_types_are_admitted(value: dict[str, Any], *, admitted: bool) -> None:
    assert plain_part(SCHEMA).admits(value) is admitted


@pytest.mark.parametrize(
    "more",
    [
        {"minProperties": 2},
        {"$ref": "#/x"},
        {"anyOf": [False]},
        {"type": "array"},
        {"properties": {}},
        {"required": ["line"]},
    ],
)
def test_other_keywords_are_left_to_the_evaluation(more: Any) -> None:
    assert not plain_part({**SCHEMA, **more}).admits({"path": "a"})


def test_a_call_that_reads_a_file_is_admitted() -> None:
    schema = input_schema_of("file_read")
    assert schema is not None
    assert plain_part(schema).admits({"path": "note.txt", "start_line": 1})
