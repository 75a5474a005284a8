import json
from typing import Any

import jsonschema
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from referencing import Registry
from work import work_of

from aish.core.json import JsonValue
from aish.system.files import schema_text
from aish.system.schema.check import (
    LOOP_STEPS,
    SchemaProblem,
    check,
    check_schema,
    is_simple,
    spell_path,
)
from aish.system.schema.worker_process import evaluate

READ: Any = {
    "type": "object",
    "properties": {
        "path": {"type": "string", "minLength": 1},
        "lines": {"type": "array", "items": {"type": "integer", "minimum": 1}, "maxItems": 2},
        "mode": {"enum": ["text", "bytes"]},
    },
    "required": ["path"],
    "additionalProperties": False,
}

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 3),
    st.sampled_from([0.5, 1.0, 2.0]),
    st.sampled_from(["", "a", "b", "ab", "aab", "k1"]),
)
KEYS = st.sampled_from(["a", "b", "k1", "k2"])
VALUES: st.SearchStrategy[Any] = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(KEYS, inner, max_size=3)),
    max_leaves=8,
)
CONSTANTS: st.SearchStrategy[Any] = st.one_of(
    SCALARS, st.lists(SCALARS, max_size=2), st.dictionaries(KEYS, SCALARS, max_size=2)
)
TYPES = ["null", "boolean", "integer", "number", "string", "array", "object"]
PATTERNS = ["^a", "b$", "^a+b?$", "^(a|b)$", "^k[0-9]{1,2}$", r"\d", "^[a-z]*$", "a|b", "^.{2}$"]


def of_schemas(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    some = st.lists(inner, min_size=1, max_size=3)
    small = st.integers(0, 3)
    keywords = {
        "type": st.one_of(
            st.sampled_from(TYPES),
            st.lists(st.sampled_from(TYPES), min_size=1, max_size=3, unique=True),
        ),
        "enum": st.lists(CONSTANTS, min_size=1, max_size=3),
        "const": CONSTANTS,
        "properties": st.dictionaries(KEYS, inner, max_size=3),
        "patternProperties": st.dictionaries(st.sampled_from(PATTERNS), inner, max_size=2),
        "additionalProperties": inner,
        "propertyNames": inner,
        "required": st.lists(KEYS, max_size=2, unique=True),
        "items": inner,
        "prefixItems": some,
        "uniqueItems": st.booleans(),
        "anyOf": some,
        "oneOf": some,
        "allOf": some,
        "pattern": st.sampled_from(PATTERNS),
        "format": st.just("email"),
        "description": st.just("text"),
        "default": VALUES,
        "x-unknown": VALUES,
        "$ref": st.sampled_from(["#/$defs/one", "#/$defs/two", "#/definitions/three"]),
        "multipleOf": st.integers(1, 3),
        **dict.fromkeys(("minimum", "maximum"), st.integers(-1, 2)),
        **dict.fromkeys(("exclusiveMinimum", "exclusiveMaximum"), st.sampled_from([0, 0.5, 1])),
        **dict.fromkeys(("minLength", "maxLength", "minItems", "maxItems"), small),
        **dict.fromkeys(("minProperties", "maxProperties"), small),
    }
    return st.lists(st.sampled_from(sorted(keywords)), max_size=4, unique=True).flatmap(
        lambda words: st.fixed_dictionaries({word: keywords[word] for word in words})
    )


SCHEMAS = st.recursive(st.booleans(), of_schemas, max_leaves=8)


@st.composite
def whole_schemas(draw: st.DrawFn) -> Any:
    schema = draw(of_schemas(SCHEMAS))
    plain = SCHEMAS.filter(lambda inner: "$ref" not in json.dumps(inner))
    definitions = {"one": draw(plain), "two": {"anyOf": [{"$ref": "#/$defs/one"}, draw(plain)]}}
    return {**schema, "$defs": definitions, "definitions": {"three": draw(plain)}}


def oracle(schema: Any) -> Any:
    return jsonschema.Draft202012Validator(schema, registry=Registry())


@pytest.mark.requirement("L17")
@settings(
    max_examples=4 * settings().max_examples, deadline=None, suppress_health_check=list(HealthCheck)
)
@given(whole_schemas(), VALUES)
def test_the_simple_checker_agrees_with_jsonschema(schema: Any, value: Any) -> None:
    assert is_simple(schema)
    problems = check(schema, value)
    assert (not problems) == oracle(schema).is_valid(value)
    assert (not problems) == (not evaluate(schema, value))


@pytest.mark.requirement("L17")
@settings(
    max_examples=2 * settings().max_examples, deadline=None, suppress_health_check=list(HealthCheck)
)
@given(whole_schemas(), VALUES)
def test_each_problem_is_one_that_the_worker_would_find_too(schema: Any, value: Any) -> None:
    schema = {**schema, "$defs": {**schema["$defs"], "two": True}}
    spelled = json.dumps(schema)
    # Which branch is nearest depends on all of its problems, and we stop at a wrong type;
    # jsonschema has one word for both ends of `items`, and does not say where a `false` or the
    # key of `propertyNames` stands.
    words = ("anyOf", "oneOf", "items", "propertyNames")
    assume(not any(f'"{word}"' in spelled for word in words))
    theirs = {(p.path, p.message) for p in evaluate(schema, value)}
    ours = {(p.path, p.message) for p in check(schema, value) if p.keyword != "false"}
    assert ours <= theirs or len(theirs) >= 20


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({}, "path: is required"),
        ([], "an array is not of type 'object'"),
        ({"path": 7}, "path: 7 is not of type 'string'"),
        ({"path": ""}, "path: has 0 characters and may have at least 1"),
        ({"path": "a", "lines": ["x"]}, "lines[0]: 'x' is not of type 'integer'"),
        ({"path": "a", "lines": [0]}, "lines[0]: 0 is less than 1"),
        ({"path": "a", "lines": [1, 2, 3]}, "lines: has 3 items and may have at most 2"),
        ({"path": "a", "lines": [True]}, "lines[0]: true is not of type 'integer'"),
        ({"path": "a", "mode": "txt"}, "mode: 'txt' is not one of 'text', 'bytes'"),
        ({"path": "a", "odd key": 1}, '["odd key"]: is not a known key'),
    ],
)
@pytest.mark.requirement("L17")
def test_a_problem_tells_the_model_where_and_why(value: JsonValue, said: str) -> None:
    (problem,) = check(READ, value)
    assert str(problem).startswith(said)
    assert [str(p) for p in evaluate(READ, value)] == [str(problem)]


def test_all_problems_are_told_at_once() -> None:
    problems = check(READ, {"lines": ["x", 0], "mode": 1, "pth": "a"})
    assert [str(problem) for problem in problems] == [
        "path: is required",
        "lines[0]: 'x' is not of type 'integer'",
        "lines[1]: 0 is less than 1",
        "mode: 1 is not one of 'text', 'bytes'",
        "pth: is not a known key; known here: path, lines, mode",
    ]


def test_an_unknown_key_comes_with_the_known_ones() -> None:
    (problem,) = check(READ, {"path": "a", "mod": "text"})
    assert problem.path == ("mod",)
    assert problem.keyword == "additionalProperties"
    assert problem.key == "mod"
    assert problem.allowed == ("path", "lines", "mode")


def test_a_missing_key_is_pointed_at() -> None:
    (problem,) = check({"properties": {"a": {"required": ["b"]}}}, {"a": {}})
    assert (problem.path, problem.keyword, problem.key) == (("a", "b"), "required", "b")


STEPS: Any = {
    "anyOf": [
        {"type": "string"},
        {
            "type": "object",
            "properties": {"kind": {"const": "prompt"}, "prompt": {"type": "string"}},
            "required": ["kind", "prompt"],
            "additionalProperties": False,
        },
        {
            "type": "object",
            "properties": {"kind": {"const": "call"}, "call": {"type": "string"}},
            "required": ["kind", "call"],
            "additionalProperties": False,
        },
    ]
}


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (7, ["7 is not of type 'string' or 'object'"]),
        ({"kind": "call", "call": 1}, ["call: 1 is not of type 'string'"]),
        ({"kind": "prompt"}, ["prompt: is required"]),
        (
            {"kind": "call", "call": "x", "prompt": "y"},
            ["prompt: is not a known key; known here: kind, call"],
        ),
    ],
)
def test_of_several_forms_the_one_that_was_meant_is_judged(
    value: JsonValue, said: list[str]
) -> None:
    assert [str(problem) for problem in check(STEPS, value)] == said
    assert [str(problem) for problem in evaluate(STEPS, value)] == said


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("atuo", "'atuo' is not one of 'auto', 'none'"),
        (7, "7 is not one of 'auto', 'none' or of type 'object'"),
        ({"a": 1}, "a: is not a known key"),
    ],
)
def test_constants_among_the_forms_are_listed_together(value: JsonValue, said: str) -> None:
    forms: Any = [
        {"const": "auto"},
        {"const": "none"},
        {"type": "object", "additionalProperties": False},
    ]
    assert [str(problem) for problem in check({"anyOf": forms}, value)] == [said]


def test_a_value_that_fits_two_forms_of_one_of_is_refused() -> None:
    schema: Any = {"oneOf": [{"type": "integer"}, {"minimum": 0}]}
    (problem,) = check(schema, 1)
    assert evaluate(schema, 1) == [problem]
    assert str(problem) == "fits more than one form, of which only one is allowed"


def test_a_path_is_spelled_as_it_would_be_written() -> None:
    assert spell_path(("steps", 0, "prompt")) == "steps[0].prompt"
    assert spell_path((0, "a b", "c-d", "")) == '[0]["a b"].c-d[""]'
    assert str(SchemaProblem((), "is wrong")) == "is wrong"


def test_a_huge_value_is_shown_in_a_few_characters() -> None:
    (problem,) = check({"type": "integer"}, "x" * 100_000)
    assert len(str(problem)) < 200


def test_the_schema_of_pipelines_is_simple() -> None:
    assert is_simple(json.loads(schema_text("pipeline.schema.json")))


def nested_any_of(depth: int) -> Any:
    schema: Any = {"type": "integer"}
    for _ in range(depth):
        schema = {"anyOf": [schema, schema]}
    return schema


def doubling_references(depth: int) -> Any:
    definitions: Any = {
        f"d{n}": {"anyOf": [{"$ref": f"#/$defs/d{n + 1}"}, {"$ref": f"#/$defs/d{n + 1}"}]}
        for n in range(depth)
    }
    return {"$ref": "#/$defs/d0", "$defs": {**definitions, f"d{depth}": {"type": "integer"}}}


def deep(depth: int) -> Any:
    schema: Any = {"type": "integer"}
    for _ in range(depth):
        schema = {"items": schema}
    return schema


@pytest.mark.requirement("L17", "X7")
@pytest.mark.parametrize(
    "schema",
    [
        {"pattern": "^(a+)+$"},
        {"pattern": "(a|a)*b"},
        {"pattern": "a*a*a*b"},
        {"pattern": "^a?a?a?a?a?a?aaaaaa$"},
        {"pattern": "^(a|b)*$"},
        {"pattern": r"^(a)\1$"},
        {"pattern": "(?=a)b"},
        {"pattern": "^[a--b]$"},
        {"pattern": "["},
        {"pattern": "a++"},
        {"patternProperties": {"^(a+)+$": {}}},
        nested_any_of(18),
        doubling_references(18),
        deep(500),
        {"$ref": "#"},
        {"$ref": "#/$defs/a", "$defs": {"a": {"items": {"$ref": "#/$defs/a"}}}},
        {"$ref": "http://127.0.0.1/x"},
        {"$ref": "#/$defs/missing"},
        {"$ref": "#/$defs/a~1b", "$defs": {"a/b": {}}},
        {"properties": {"a": {"$id": "http://127.0.0.1/x"}}},
        {"$dynamicRef": "#a"},
        {"enum": list(range(200_000))},
        {"const": [[[[[[1]]]]]]},
        {"not": {}},
        {"if": True},
        {"type": "strng"},
        {"type": []},
        {"properties": []},
        {"required": "a"},
        {"minimum": "1"},
        {"minLength": -1},
        {"anyOf": []},
        {"additionalProperties": "no"},
        {"$schema": "http://json-schema.org/draft-04/schema#"},
        {"$schema": "http://json-schema.org/draft-07/schema#", "prefixItems": [True]},
        {"$schema": 7},
        {"multipleOf": 0.1},
        {"items": [{}]},
        ["not a schema"],
    ],
    ids=lambda schema: str(schema)[:40],
)
def test_what_could_run_away_is_not_simple(schema: Any) -> None:
    told: list[bool] = []
    work_of(lambda: told.append(is_simple(schema)), most=3_000_000)
    assert told == [False]
    with pytest.raises(ValueError, match="check_any"):
        check(schema, 1)


COSTLY: list[tuple[Any, Any]] = [
    ({"pattern": "^[a-z]+[a-z]+$"}, "a" * 100_000 + "!"),
    ({"pattern": "a+b"}, "a" * 100_000),
    ({"items": nested_any_of(9)}, ["x"] * 100_000),
    ({"items": {"enum": list(range(50_000))}}, [-1] * 10_000),
    ({"patternProperties": {f"^a{n}": {} for n in range(100)}}, {str(n): 0 for n in range(9999)}),
    ({"uniqueItems": True}, list(range(100_000))),
]


@pytest.mark.requirement("L17", "X7")
@pytest.mark.parametrize(("schema", "value"), COSTLY, ids=range(6))
def test_a_simple_schema_never_holds_the_loop_for_long(schema: Any, value: Any) -> None:
    problems: list[SchemaProblem] = []
    assert is_simple(schema)
    work = work_of(lambda: problems.extend(check(schema, value, steps=LOOP_STEPS)))
    assert work.steps < 150 * LOOP_STEPS  # a step of ours is a few microseconds of Python
    assert [str(problem) for problem in problems] == ["schema took too long"]


@pytest.mark.requirement("X7")
def test_a_value_nested_without_end_is_refused() -> None:
    value: JsonValue = 1
    for _ in range(100_000):
        value = [value]
    assert check({"uniqueItems": True}, [value]) != ()


@pytest.mark.parametrize(
    "schema",
    [True, {}, READ, {"not": {"type": "string"}}, {"$ref": "#"}, {"type": "object", "if": {}}],
)
def test_a_schema_of_a_file_is_accepted(schema: Any) -> None:
    assert check_schema(schema) == ()


@pytest.mark.parametrize(
    ("schema", "path"),
    [
        ({"type": "strng"}, ("type",)),
        ({"properties": {"a": {"minimum": "1"}}}, ("properties", "a", "minimum")),
        ({"pattern": "("}, ("pattern",)),
        ({"properties": []}, ("properties",)),
        (["x"], ()),
        (
            {"properties": {"a": {"$ref": "https://host.example/x.json"}}},
            ("properties", "a", "$ref"),
        ),
    ],
)
def test_a_broken_schema_of_a_file_is_pointed_at(schema: Any, path: tuple[str, ...]) -> None:
    assert [problem.path for problem in check_schema(schema)] == [path]


@pytest.mark.requirement("X7")
def test_a_schema_of_a_file_that_is_too_deep_is_a_problem() -> None:
    assert [str(problem) for problem in check_schema(deep(5000))] == ["is nested too deeply"]
