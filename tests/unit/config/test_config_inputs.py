import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from samples import each_case

from aish.config.inputs import collect_inputs, join_inputs
from aish.config.model import Pipeline
from aish.config.typed_text import argument_schema, as_typed, takes_text
from aish.core.errors import ExitCode, UsageError
from aish.core.json import JsonObject, JsonValue

PIPELINE = Pipeline(
    file=Path("p.yaml"),
    name="p",
    inputs={
        "since": {"type": "string", "default": "v1"},
        "count": {"type": "integer", "minimum": 1, "default": 1},
        "tone": {"enum": ["dry", "warm", 5], "default": "dry"},
        "rows": {"type": "array", "items": {"type": "integer"}, "default": []},
    },
)


def collected(
    *given: str, file: str | None = None, stdin: str = "", pipeline: Pipeline = PIPELINE
) -> JsonObject:
    return collect_inputs(pipeline, given, file, lambda: stdin)


def test_defaults_stand_where_nothing_is_given() -> None:
    assert collected() == {"since": "v1", "count": 1, "tone": "dry", "rows": []}


def test_given_values_are_of_the_type_the_schema_wants() -> None:
    assert collected("since=2", "count=3", "tone=5", "rows=[1, 2]") == {
        "since": "2",
        "count": 3,
        "tone": 5,
        "rows": [1, 2],
    }


@each_case(
    "schema, text, value",
    [
        ({"type": "string"}, "no", "no"),
        ({"type": "string"}, "", ""),
        ({"type": "boolean"}, "true", True),
        ({"type": "boolean"}, "yes", "yes"),
        ({"type": "number"}, "1e3", 1000.0),
        ({"type": "integer"}, "x", "x"),
        ({"type": "object"}, '{"a": [1]}', {"a": [1]}),
        ({"type": "object"}, "{a: [1]}", {"a": [1]}),
        ({"type": "array"}, "a, b", "a, b"),
        ({"type": ["integer", "string"]}, "7", 7),
        ({"type": ["integer", "string"]}, "7a", "7a"),
        ({"type": ["null", "string"]}, "null", None),
        ({"enum": ["1", 1]}, "1", "1"),
        ({"enum": [1, 2]}, "2", 2),
        ({"const": True}, "true", True),
        ({}, "1", "1"),
        ({"type": "integer"}, "{{ x }}", "{{ x }}"),
        ({"type": "object"}, "[" * 100_000, "[" * 100_000),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, "7", 7),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, "null", None),
        ({"oneOf": [{"type": "array"}, {"type": "string"}]}, "[a]", "[a]"),
        ({"oneOf": [{"type": "array"}, {"type": "string"}]}, '["a"]', ["a"]),
        ({"anyOf": [{"type": "object"}, {"type": "string"}]}, "a: b", "a: b"),
        ({"anyOf": [{"const": "auto"}, {"type": "number"}]}, "auto", "auto"),
        ({"anyOf": [{"const": "auto"}, {"type": "number"}]}, "1.5", 1.5),
        ({"allOf": [{"type": ["string", "integer"]}, {"type": "number"}]}, "7", 7),
        ({"allOf": [{"type": ["string", "integer"]}, {"minLength": 1}]}, "x", "x"),
        ({"$ref": "#/$defs/n", "$defs": {"n": {"type": "integer"}}}, "7", 7),
        ({"$ref": "#/$defs/a~1b%25", "$defs": {"a/b%": {"type": "integer"}}}, "7", 7),
        ({"$ref": "#"}, "7", "7"),
        ({"anyOf": [{"type": "integer"}, {"$ref": "#"}]}, "7", 7),
        ({"enum": ["7", "8", None]}, "null", None),
        ({"enum": ["7", "8", None]}, "7", "7"),
        ({"type": "null"}, "null", None),
    ],
)
def test_a_text_becomes_what_its_schema_wants(
    schema: JsonObject, text: str, value: JsonValue
) -> None:
    assert as_typed(text, schema) == value
    assert type(as_typed(text, schema)) is type(value)


ANY_OF_ITSELF: JsonObject = {"anyOf": [{"$ref": "#/$defs/x"}] * 9}


@each_case(
    "schema, text, value",
    [
        ({"properties": {"a": True}}, "x", "x"),
        ({"properties": {"a": True}}, "[1]", [1]),
        ({"properties": {"a": {}}}, "null", None),
        ({"properties": {"a": {}}}, "a: b", "a: b"),
        ({"properties": {"a": {"minimum": 1}}}, "2", 2),
        ({"properties": {"a": False}}, "[1]", "[1]"),
        ({"properties": {"a": {"type": "string"}}}, "[1]", "[1]"),
        ({"properties": {"a": {"type": None}}}, "2", 2),
        ({"properties": None, "anyOf": None, "$ref": 5}, "2", 2),
        (
            {"properties": {"a": {"$ref": "#/$defs/n"}}, "$defs": {"n": {"type": "array"}}},
            "[x]",
            ["x"],
        ),
        ({"properties": {"a": {"$ref": "#/properties/b"}, "b": {"type": "array"}}}, "[x]", ["x"]),
        ({"properties": {"a": {"$ref": "http://elsewhere"}}}, "2", 2),
        (
            {"$ref": "#/$defs/n", "$defs": {"n": {"properties": {"a": {"type": "array"}}}}},
            "[x]",
            ["x"],
        ),
        (
            {"oneOf": [{"properties": {"b": {}}}, {"properties": {"a": {"type": "string"}}}]},
            "2",
            "2",
        ),
        ({"additionalProperties": {"type": "integer"}}, "2", 2),
        ({"additionalProperties": {"type": "string"}}, "2", "2"),
        ({}, "2", 2),
        ({"properties": {"a": {"$ref": "#/$defs/x"}}, "$defs": {"x": ANY_OF_ITSELF}}, "2", "2"),
        ({"$ref": "#/$defs/x", "$defs": {"x": ANY_OF_ITSELF}}, "2", 2),
    ],
)
def test_an_argument_of_a_tool_is_typed_by_all_that_its_schema_says(
    schema: JsonObject, text: str, value: JsonValue
) -> None:
    """Issue 27, B1."""
    assert as_typed(text, argument_schema(schema, "a"), schema, untyped=True) == value


@pytest.mark.parametrize(
    ("schema", "is_taken"),
    [
        ({}, True),
        ({"type": "integer"}, False),
        ({"anyOf": [{"type": "integer"}, {"type": "string"}]}, True),
        ({"enum": ["a", 1]}, False),
        ({"enum": ["", 1]}, True),
    ],
)
def test_an_empty_cell_is_a_text_where_the_schema_allows_one(
    schema: JsonObject,
    is_taken: bool,  # ruff: ignore[boolean-type-hint-positional-argument] - a row of a table
) -> None:
    assert takes_text(schema) is is_taken


def test_files_give_values_and_the_command_line_wins(tmp_path: Path) -> None:
    note = tmp_path / "note.txt"
    note.write_text("a\nb\n")
    whole = tmp_path / "inputs.yaml"
    whole.write_text("count: 5\ntone: warm\n")
    found = collected(f"since=@{note}", "tone=dry", file=str(whole))
    assert (found["since"], found["count"], found["tone"]) == ("a\nb\n", 5, "dry")


@pytest.mark.parametrize("text", ["@note.txt", "@@x", "=@x", "-", "a=@x", "", "{{ env.HOME }}"])
def test_a_text_that_others_wrote_is_never_a_file(text: str) -> None:
    assert collected(*join_inputs(["count=2"], [f"since={text}"]))["since"] == text
    if text.startswith("@"):
        assert collected(f"since=@{text}")["since"] == text


@pytest.mark.requirement("F9")
@pytest.mark.parametrize("text", ['{"count": 5}', "count: 5", '{\n\t"count": 5\n}'])
def test_inputs_come_through_stdin_as_json_or_yaml(text: str) -> None:
    assert collected(file="-", stdin=text)["count"] == 5


@each_case(
    "given, file, stdin, said",
    [
        (["count=0"], None, "", "the input `count`: 0 is less than 1"),
        (["count=many"], None, "", "the input `count`: 'many' is not of type 'integer'"),
        (["rows=[1, x]"], None, "", "the input `rows` at [1]: 'x' is not of type 'integer'"),
        (["tone=loud"], None, "", "the input `tone`: 'loud' is not one of"),
        (["cuont=1"], None, "", "-i: unknown input `cuont`, did you mean `count`"),
        (["count"], None, "", "-i: `count` is not NAME=VALUE"),
        (["since=@nowhere"], None, "", "-i since: `nowhere`: no such file"),
        ([], "nowhere.yaml", "", "--inputs: `nowhere.yaml`: no such file"),
        ([], "-", "[1]", "--inputs: `stdin` does not contain a mapping"),
        ([], "-", "a: b: c", "--inputs: `stdin` is neither JSON nor YAML: line 1, column 5"),
        ([], "-", "cuont: 1", "--inputs: unknown input `cuont`, did you mean `count`"),
    ],
)
def test_what_does_not_fit_is_said(
    given: Sequence[str], file: str | None, stdin: str, said: str
) -> None:
    with pytest.raises(UsageError) as failed:
        collected(*given, file=file, stdin=stdin)
    assert said in str(failed.value)
    assert failed.value.exit_code is ExitCode.USAGE


def test_everything_that_is_missing_is_listed_at_once() -> None:
    pipeline = Pipeline(
        file=Path("p.yaml"),
        name="p",
        inputs={"a": {"type": "string"}, "b": {}, "c": {"default": 1}, "d": {"type": "integer"}},
    )
    with pytest.raises(UsageError) as failed:
        collected("d=x", pipeline=pipeline)
    assert failed.value.message.splitlines() == [
        "the input `d`: 'x' is not of type 'integer'",
        "the inputs are missing: `a`, `b`",
    ]
    assert failed.value.hint == "give each as -i NAME=VALUE, such as -i a=…"


def test_a_schema_that_is_not_simple_is_checked_all_the_same() -> None:
    pipeline = Pipeline(
        file=Path("p.yaml"),
        name="p",
        inputs={"a": {"type": "integer", "not": {"const": 5}}},
    )
    assert collected("a=4", pipeline=pipeline) == {"a": 4}
    with pytest.raises(UsageError, match="the input `a`"):
        collected("a=5", pipeline=pipeline)


@given(st.text(), st.sampled_from(["string", "integer", "array", "object", "boolean", "null"]))
def test_no_text_of_the_command_line_is_too_odd(text: str, kind: str) -> None:
    found = as_typed(text, {"type": kind})
    json.dumps(found)
    if kind == "string":
        assert found == text


@pytest.mark.parametrize(
    ("given", "hint"),
    [
        ("rows=a,b", "write a list as `-i rows='[A, B]'`"),
        ("options=a", "write a mapping as `-i options='{KEY: VALUE}'`"),
        ("dry=yes", "write `-i dry=true` or `-i dry=false`"),
        ("count=many", None),
        ("rows=[1]", None),
        ("cuont=1", "inputs of p.yaml: `rows`, `options`, `dry`, `count`"),
        ("@all.json", "`--inputs all.json` reads all inputs from a file"),
    ],
)
def test_the_hint_is_about_the_input_that_is_wrong(given: str, hint: str | None) -> None:
    pipeline = Pipeline(
        file=Path("p.yaml"),
        name="p",
        inputs={
            "rows": {"type": "array", "items": {"type": "string"}, "default": []},
            "options": {"type": "object", "default": {}},
            "dry": {"type": "boolean", "default": False},
            "count": {"type": "integer", "default": 1},
        },
    )

    with pytest.raises(UsageError) as failed:
        collected(given, pipeline=pipeline)

    assert failed.value.hint == hint
