import json
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st
from samples import each_case

from aish.agent.tool_round import read_arguments
from aish.core.json import JsonObject, JsonValue

ANY: JsonObject = {"type": "object"}
PATH: JsonObject = {
    "type": "object",
    "properties": {
        "path": {"type": "string"},
        "filter": {"type": "object"},
        "either": {"type": ["object", "string"]},
        "maybe": {"type": ["object", "null"]},
    },
    "required": ["path"],
}


@each_case(
    "text, why",
    [
        ('{"a": 1', "Expecting ',' delimiter at line 1 column 8"),
        ('{"a": 1} and more', "Extra data at line 1 column 10"),
        ('{"a": 1}{"a": 2}', "a second value begins at line 1 column 9, and only one is taken"),
        ("{'a': 1}", "Expecting property name enclosed in double quotes at line 1 column 2"),
        ('{"a": 1, "a": 2}', "duplicate key `a`"),
        ('{"b": {"a": 1, "a": 2}}', "duplicate key `a`"),
        ('{"a": NaN}', "`NaN` is not a JSON number"),
        ('{"a": -Infinity}', "`-Infinity` is not a JSON number"),
        ('{"a": 1e999}', "`1e999` is too large a number"),
        ("[1]", "not an object but an array"),
        ("3", "not an object but a number"),
        ("true", "not an object but a boolean"),
        ('"read it"', "Expecting value at line 1 column 1"),
        (json.dumps(json.dumps(json.dumps({}))), "not an object but a string"),
        ('{"a": "\\ud800"}', "half of a surrogate pair"),
        ('{"a": "\ud800"}', "half of a surrogate pair"),
        ('{"a":' * 100 + "1" + "}" * 100, "nested too deeply"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_what_is_no_object_is_refused_with_a_reason(text: str, why: str) -> None:
    read = read_arguments(text, ANY)
    assert read.value is None
    assert read.why == why
    assert read.legal == "{}"


def test_brackets_in_text_are_no_depth() -> None:
    value = {"text": "{[" * 500, "list": [[]] * 500}
    assert read_arguments(json.dumps(value), ANY).value == value


@pytest.mark.parametrize(("depth", "fits"), [(64, True), (65, False)])
def test_depth_is_counted_in_containers(depth: int, *, fits: bool) -> None:
    text = '{"a":' * depth + "1" + "}" * depth
    assert (read_arguments(text, ANY).value is not None) is fits


def test_a_number_too_long_to_read_is_refused() -> None:
    assert read_arguments('{"a": ' + "1" * 5000 + "}", ANY).value is None


@pytest.mark.parametrize("text", ["", "  \n", "null", " null ", '""', '"null"'])
def test_no_arguments_are_an_empty_object_only_if_nothing_is_required(text: str) -> None:
    read = read_arguments(text, ANY)
    assert (read.value, read.legal) == ({}, "{}")
    refused = read_arguments(text, PATH)
    assert refused.value is None
    assert "the schema requires path" in refused.why


def test_an_object_stays_in_the_history_as_it_was_sent() -> None:
    text = '{"path":  "a", "n": 1.50}'
    assert read_arguments(text, PATH).legal == text


def test_a_double_encoded_object_is_decoded_once() -> None:
    read = read_arguments(json.dumps('{"path": "a"}'), PATH)
    assert read.value == {"path": "a"}
    assert json.loads(read.legal) == {"path": "a"}


def test_a_double_encoded_object_is_left_where_the_schema_wants_no_object() -> None:
    assert read_arguments(json.dumps("{}"), {"type": "string"}).value is None


def test_a_double_encoded_property_is_decoded_where_the_schema_wants_only_an_object() -> None:
    inner = '{"a": 1}'
    sent = {"path": inner, "filter": inner, "either": inner, "maybe": inner, "other": inner}
    read = read_arguments(json.dumps(sent), PATH)
    assert read.value == {**sent, "filter": {"a": 1}, "maybe": {"a": 1}}
    assert json.loads(read.legal) == read.value


@pytest.mark.parametrize("inner", ["not json", "[1]", '{"a": 1, "a": 2}', ""])
def test_a_property_that_is_no_encoded_object_is_kept_for_the_schema_to_judge(inner: str) -> None:
    sent = {"path": "a", "filter": inner}
    assert read_arguments(json.dumps(sent), PATH).value == sent


@pytest.mark.parametrize(
    "schema",
    [{}, {"type": 3}, {"properties": []}, {"required": "path"}, {"properties": {"a": True}}],
)
def test_a_sloppy_schema_is_no_obstacle(schema: Mapping[str, JsonValue]) -> None:
    assert read_arguments('{"a": "{}"}', schema).value == {"a": "{}"}


def values(text: st.SearchStrategy[str]) -> st.SearchStrategy[JsonValue]:
    numbers = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    return st.recursive(
        st.none() | st.booleans() | numbers | text,
        lambda inner: st.lists(inner) | st.dictionaries(text, inner),
        max_leaves=20,
    )


# Lone surrogates come in through escapes, as some models write them.
ODD_TEXT = st.text(st.characters())


@given(ODD_TEXT | values(ODD_TEXT).map(json.dumps))
def test_whatever_is_sent_the_history_gets_an_object_that_can_be_sent(text: str) -> None:
    read = read_arguments(text, ANY)
    assert isinstance(json.loads(read.legal), dict)
    read.legal.encode()
    if read.value is not None:
        json.dumps(read.value, ensure_ascii=False, allow_nan=False).encode()
        assert json.loads(read.legal) == read.value
    else:
        assert read.why


@given(st.dictionaries(st.text(), values(st.text())))
def test_every_object_that_can_be_sent_is_understood(value: dict[str, JsonValue]) -> None:
    text = json.dumps(value, ensure_ascii=False)
    assert read_arguments(text, ANY).value == value
