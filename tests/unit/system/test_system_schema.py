import json
from functools import partial
from typing import Any

import jsonschema
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from referencing import Registry
from samples import each_case
from work import work_of

from aish.core.json import JsonValue
from aish.system.files import schema_text
from aish.system.schema.check import (
    LOOP_STEPS,
    TOO_LONG,
    SchemaProblem,
    check,
    check_here,
    spell_path,
)
from aish.system.schema.metaschema import check_schema
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


def of_schemas(inner: st.SearchStrategy[Any], *, common: bool) -> st.SearchStrategy[Any]:
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
        "additionalProperties": inner,
        "propertyNames": inner,
        "required": st.lists(KEYS, max_size=2, unique=True),
        "items": inner,
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
    if not common:
        keywords |= {
            "patternProperties": st.dictionaries(st.sampled_from(PATTERNS), inner, max_size=2),
            "dependentSchemas": st.dictionaries(KEYS, inner, max_size=2),
            "prefixItems": some,
            **dict.fromkeys(("if", "then", "else", "not", "contains", "unevaluatedItems"), inner),
            "unevaluatedProperties": inner,
        }
    return st.lists(st.sampled_from(sorted(keywords)), max_size=4, unique=True).flatmap(
        lambda words: st.fixed_dictionaries({word: keywords[word] for word in words})
    )


@st.composite
def whole_schemas(draw: st.DrawFn, *, common: bool = True) -> Any:
    of = partial(of_schemas, common=common)
    schemas = st.recursive(st.booleans(), of, max_leaves=8)
    schema = draw(of(schemas))
    plain = schemas.filter(lambda inner: "$ref" not in json.dumps(inner))
    definitions = {"one": draw(plain), "two": {"anyOf": [{"$ref": "#/$defs/one"}, draw(plain)]}}
    return {**schema, "$defs": definitions, "definitions": {"three": draw(plain)}}


def oracle(schema: Any) -> Any:
    return jsonschema.Draft202012Validator(schema, registry=Registry())


@settings(
    max_examples=4 * settings().max_examples, deadline=None, suppress_health_check=list(HealthCheck)
)
@given(whole_schemas(), VALUES)
def test_the_check_in_this_process_agrees_with_jsonschema(schema: Any, value: Any) -> None:
    assert check_schema(schema) == ()
    problems = check(schema, value)
    assert (not problems) == oracle(schema).is_valid(value)
    assert (not problems) == (not evaluate(schema, value))


@settings(
    max_examples=4 * settings().max_examples, deadline=None, suppress_health_check=list(HealthCheck)
)
@given(whole_schemas(common=False), VALUES)
def test_what_is_made_of_any_schema_for_jsonschema_means_the_same(schema: Any, value: Any) -> None:
    problems = evaluate(schema, value)
    assert (not problems) == oracle(schema).is_valid(value)
    here = check_here(schema, value)
    assert here is None or (not here) == (not problems)


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


@each_case(
    "value, said",
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


def test_a_reference_leads_to_any_part_of_the_schema() -> None:
    parts: Any = {"a/b ~": {"type": "null"}, "list": [{}, {"type": "null"}]}
    for reference in ("#/$defs/a~1b%20~0", "#/$defs/list/1", "#/properties/x"):
        schema: Any = {"$ref": reference, "$defs": parts, "properties": {"x": {"type": "null"}}}
        assert check_here(schema, None) == ()
        assert [problem.keyword for problem in check_here(schema, 1) or ()] == ["type"]
        assert len(evaluate(schema, 1)) == 1


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


@each_case(
    "schema, value",
    [
        *(
            ({"pattern": pattern}, "a" * 30 + "!")
            for pattern in (
                *("^(a+)+$", "(a|a)*b", "a*a*a*b", "^a?a?a?a?a?a?aaaaaa$", "^(a|b)*$", r"^(a)\1$"),
                *("(?=a)b", "^[a--b]$", "[", "a++", r"^\p{L}$", "^[^]$", "(?<n>a)", r"\u{61}"),
                *(r"\ca", "[]", "[]a]", "a{,2}", r"\Z", "(?i)a", r"[\d-z]"),
            )
        ),
        ({"patternProperties": {"^a": {}}}, {"a": 1}),
        (nested_any_of(18), "x"),
        (doubling_references(18), "x"),
        ({"$ref": "#"}, 1),
        ({"$ref": "http://127.0.0.1/x"}, 1),
        ({"$ref": "#/$defs/missing"}, 1),
        ({"$ref": "#/$defs/a/b", "$defs": {"a": {"$id": "http://127.0.0.1/", "b": {}}}}, 1),
        ({"$ref": "#name", "$defs": {"name": {}}}, 1),
        ({"properties": {"a": {"$id": "http://127.0.0.1/x"}}}, {"a": 1}),
        ({"$dynamicRef": "#a"}, 1),
        ({"enum": list(range(200_000))}, -1),
        ({"not": {}}, 1),
        ({"if": True}, 1),
        ({"type": "strng"}, 1),
        ({"properties": []}, {"a": 1}),
        ({"minimum": "1"}, 1),
        ({"exclusiveMinimum": True}, 1),
        ({"enum": "abc"}, "b"),
        ({"additionalProperties": "no"}, {"a": 1}),
        ({"$schema": "http://json-schema.org/draft-04/schema#"}, 1),
        ({"$schema": "http://json-schema.org/draft-07/schema#", "$ref": "#", "type": "object"}, 1),
        ({"$schema": 7}, 1),
        ({"items": [{}]}, [1]),
        (["not a schema"], 1),
    ],
)
def test_what_could_run_away_is_left_to_the_worker(schema: Any, value: Any) -> None:
    told: list[Any] = []
    work_of(lambda: told.append(check_here(schema, value, steps=LOOP_STEPS)), most=3_000_000)
    assert told in ([None], [(TOO_LONG,)])
    if told == [None]:
        with pytest.raises(ValueError, match="check_any"):
            check(schema, value)


def choices_of(value: Any, count: int) -> Any:
    return {"anyOf": [{"const": [value, n]} for n in range(count)]}


COSTLY: list[tuple[Any, Any]] = [
    ({"pattern": "^[a-z]+[a-z]+$"}, "a" * 100_000 + "!"),
    ({"pattern": "a+b"}, "a" * 100_000),
    ({"items": nested_any_of(9)}, ["x"] * 100_000),
    ({"items": {"enum": list(range(50_000))}}, [-1] * 10_000),
    ({"items": {"enum": [str(n) for n in range(50_000)]}}, ["x"] * 1_000),
    ({"uniqueItems": True}, list(range(100_000))),
    ({"allOf": [{"uniqueItems": True}] * 1_000}, [list(range(1_000))]),
    (choices_of([list(range(1_000))], 1_000), [[list(range(1_000))], -1]),
    (
        {"properties": {str(n): {} for n in range(5_000)}, "additionalProperties": False},
        {f"x{n}": 0 for n in range(5_000)},
    ),
    ({"anyOf": [{"required": [str(n) for n in range(1_000)]}] * 1_000}, {}),
]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("schema", "value"), COSTLY, ids=range(len(COSTLY)))
def test_a_common_schema_never_holds_the_loop_for_long(schema: Any, value: Any) -> None:
    problems: list[Any] = []
    work = work_of(lambda: problems.append(check_here(schema, value, steps=LOOP_STEPS)))
    assert work.steps < 150 * LOOP_STEPS  # a step of ours is a few microseconds of Python
    assert problems == [(TOO_LONG,)]


def test_a_value_nested_without_end_is_refused() -> None:
    value: JsonValue = 1
    for _ in range(100_000):
        value = [value]
    assert check({"uniqueItems": True}, [value]) != ()


ELSEWHERE: Any = {"$ref": "https://host.example/x"}


@each_case(
    "schema",
    [
        *(True, {}, READ, {"not": {"type": "string"}}, {"$ref": "#"}, {"type": "object", "if": {}}),
        {"pattern": r"^\p{Script=Greek}(?<n>\u{1f600}|[^])\k<n>\cA(?<=a+)$"},
        {"$id": "https://host.example/a", "items": {"$ref": "https://host.example/a#/$defs/b"}}
        | {"$defs": {"b": {"$anchor": "c"}}, "not": {"$ref": "#c"}},
        {"$defs": {"b": {"$id": "https://host.example/b"}}, "$ref": "https://host.example/b"},
        {"$ref": "https://json-schema.org/draft/2020-12/schema"},
        {"if": True, "default": ELSEWHERE, "const": ELSEWHERE},
        {"if": True, "examples": [ELSEWHERE], "enum": [ELSEWHERE]},
        {"properties": {"$ref": {"type": "string"}}, "if": True},
        {"items": [{"type": "string"}], "additionalItems": False},
        {"minimum": 1, "exclusiveMinimum": True},
        {"$schema": "https://json-schema.org/draft-07/schema#", "items": [True]},
    ],
)
def test_a_schema_of_a_file_is_accepted(schema: Any) -> None:
    assert check_schema(schema) == ()


@each_case(
    "schema, path",
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
        ({"items": {"not": {"$ref": "#/$defs/none"}}}, ("items", "not", "$ref")),
        ({"$defs": {"a": {"$dynamicRef": "#none"}}}, ("$defs", "a", "$dynamicRef")),
        ({"patternProperties": {"(?i)a": {}}}, ("patternProperties",)),
        ({"pattern": r"\A(?P<n>a)"}, ("pattern",)),
    ],
)
def test_a_broken_schema_of_a_file_is_pointed_at(schema: Any, path: tuple[str, ...]) -> None:
    assert [problem.path for problem in check_schema(schema)] == [path]


def test_a_schema_of_a_file_that_is_too_deep_is_a_problem() -> None:
    assert [str(problem) for problem in check_schema(deep(5000))] == ["is nested too deeply"]


SPACES = "\t\n\v\f\r \xa0\u1680\u2000\u200a\u2028\u2029\u202f\u205f\u3000\ufeff"


@each_case(
    "pattern, fitting, others",
    [
        ("^[a-z]+$", ["abc"], ["abc\n", "abc-", "\nabc"]),
        ("a$", ["ba"], ["a\n", "a\r"]),
        (r"^\d+$", ["42"], ["٤٢", "\uff14\uff12"]),
        (r"^\w+$", ["ab_1"], ["été", "\u017f"]),
        (r"^\W$", ["é", "-", "😀"], ["a", "_"]),
        (r"^\D$", ["٤"], ["4"]),
        (r"^\s$", list(SPACES), ["\x1c", "\x85", "\u200b", "a"]),
        (r"^\S$", ["\x1c", "\x85", "\u200b", "a", "😀"], list(SPACES)),
        (r"^[\s-]$", [*SPACES, "-"], ["\x85", "a"]),
        (r"^[^\s/]+$", ["a\x85"], ["a\ufeff", "/"]),
        (r"^[\S\n]$", ["\n", "a", "😀"], [" ", "\ufeff"]),
        (r"^[\\s]$", ["\\", "s"], [" ", "a"]),
        (r"^[\d\D]$", ["٤", "\n"], [""]),
        ("^a.c$", ["abc", "a😀c", "a\x85c"], ["a\nc", "a\rc", "a\u2028c", "a\u2029c"]),
        (r"^\.\$\/\-$", [".$/-"], ["a$/-"]),
        (r"^[\]\-\\]+$", ["]-\\"], ["a"]),
        (r"^\t\v$", ["\t\v"], ["tv"]),
        (r"^[^\x41\u00e9\\\]]\u0061$", ["aa"], ["Aa", "éa", "\\a", "]a"]),
        ("^(/.+|[^/]+)$", ["/a/b", "ab"], ["a/b", "/"]),
        (r"^\p{L}+$", ["Zoë", "日本"], ["a1", "a\n", ""]),
        (r"^\P{L}$", ["1"], ["a"]),
        (r"^\p{Script=Greek}$", ["\u03b1"], ["a"]),
        (r"^[\p{Lu}\d]$", ["É", "1"], ["é", "٤"]),
        (r"^(?<year>\d{4})-\k<year>$", ["2026-2026"], ["2026-2025"]),
        (r"(?<=a+)b", ["aab"], ["b"]),
        (r"(?<!\$)\d$", ["a1"], ["$1"]),
        (r"^\u{1f600}$", ["😀"], ["u"]),
        (r"^\ud83d\ude00$", ["😀"], ["\ud83d"]),
        (r"^\cA$", ["\x01"], ["A", "cA"]),
        ("^[^]$", ["\n", "😀"], ["", "ab"]),
        ("^[]$", [], ["", "a"]),
        (r"^\0$", ["\0"], ["0"]),
        ("^{a}$", ["{a}"], ["a"]),
        (r"^\@\_\ \"$", ['@_ "'], ["@_"]),
        (r"^\p{L}\_\-$", ["é_-"], ["pL_-"]),
        (r"^(a)?b\1$", ["aba", "b"], ["ab"]),
        ("^😀{2}$", ["😀😀"], ["😀"]),
    ],
)
def test_patterns_are_those_of_ecma_262(
    pattern: str, fitting: list[str], others: list[str]
) -> None:
    for text, fits in [*((text, True) for text in fitting), *((text, False) for text in others)]:
        schema: Any = {"pattern": pattern}
        keys: Any = {"patternProperties": {pattern: {}}, "additionalProperties": False}
        assert (not evaluate(schema, text)) == fits, text
        assert (not evaluate(keys, {text: 1, "another": 2} if not fits else {text: 1})) == fits, (
            text
        )
        here = check_here(schema, text)
        assert here is None or (not here) == fits, text
    assert check_schema({"pattern": pattern}) == ()


@pytest.mark.parametrize(
    "pattern", ["(", r"\Aa\Z", "(?P<n>a)", "(?i)a", "a++", r"\p{Klingon}", "[b-a]"]
)
def test_what_is_no_pattern_is_told_and_holds_up_nothing_else(pattern: str) -> None:
    def keywords(schema: Any, value: Any) -> list[str]:
        return [problem.keyword for problem in evaluate(schema, value)]

    odd: Any = {"pattern": pattern}
    assert check_here(odd, "b") is None
    assert keywords(odd, "b") == ["unchecked"]
    assert keywords(odd, 1) == []
    assert keywords({"properties": {"a": {**odd, "maxLength": 1}}}, {"a": "bb"}) == [
        *("maxLength", "unchecked")
    ]
    for schema in (
        {"not": odd},
        {"anyOf": [odd, {"maxLength": 0}]},
        {"oneOf": [odd, {"minLength": 1}]},
        {"if": odd, "then": False},
        {"contains": odd, "maxContains": 0},
    ):
        value: Any = ["b"] if "contains" in schema else "b"
        assert keywords(schema, value) == ["unchecked"]
    assert keywords({"anyOf": [{"minLength": 1}, odd]}, "b") == []
    named: Any = {"patternProperties": {pattern: False}, "additionalProperties": False}
    assert keywords(named, {"b": 1}) == ["unchecked"]
    assert keywords(named, {}) == []
    assert keywords({"unevaluatedProperties": False, **named}, {"b": 1}) == ["unchecked"]


@each_case(
    "value, factor, fits",
    [
        *((19.99, 0.01, True), (4.35, 0.01, True), (0.07, 0.01, True), (1.15, 0.01, True)),
        *((0.3, 0.1, True), (0.15, 0.05, True), (1.1, 0.01, True), (7, 0.5, True), (3.0, 1, True)),
        *((1.005, 0.01, False), (0.25, 0.1, False), (1e-7, 1e-8, True), (1.5, 1, False)),
        *((1e308, 0.5, True), (1e308, 0.123456789, False), (10**400, 0.1, True), (7, 2, False)),
        *((10**400 + 1, 2, False), (float("inf"), 0.1, False), (5e-324, 1e308, False)),
    ],
)
def test_multiples_are_those_of_decimals_as_they_are_written(
    value: float,
    factor: float,
    fits: bool,  # ruff: ignore[boolean-type-hint-positional-argument] - a column of the table
) -> None:
    schema: Any = {"multipleOf": factor}
    assert (check_here(schema, value) == ()) is fits
    assert (evaluate(schema, value) == []) is fits
    if fits:
        assert evaluate({**schema, "not": {"type": "string"}}, value) == []


LISTS: Any = {"items": [{"type": "number"}, {"type": "string"}], "additionalItems": False}


@each_case(
    "schema, fitting, other",
    [
        (LISTS, [1, "a"], ["a", 1]),
        (LISTS, [1], [1, "a", 2]),
        ({"$schema": "https://json-schema.org/draft-07/schema#", **LISTS}, [1, "a"], ["a"]),
        ({"$schema": "http://json-schema.org/draft-07/schema", **LISTS}, [1, "a"], ["a"]),
        ({"$schema": "http://json-schema.org/draft/2020-12/schema#", "items": False}, [], [1]),
        (
            {"$schema": "https://json-schema.org/draft-04/schema", "maximum": 1}
            | {"exclusiveMaximum": True},
            0,
            1,
        ),
        ({"maximum": 1, "exclusiveMaximum": True}, 0, 1),
        ({"$schema": "https://host.example/own", "prefixItems": [{"type": "null"}]}, [None], [1]),
        (
            {"$schema": "http://json-schema.org/draft-07/schema#", "type": ["object", "string"]}
            | {"pattern": r"^\d$", "properties": {"a": {"$ref": "#"}}},
            {"a": "1"},
            {"a": "٤"},
        ),
    ],
)
def test_a_schema_is_of_the_draft_that_it_names_or_else_is_valid_in(
    schema: Any, fitting: Any, other: Any
) -> None:
    assert evaluate(schema, fitting) == []
    assert evaluate(schema, other) != []
    for value in (fitting, other):
        here = check_here(schema, value)
        assert here is None or (here == ()) == (value == fitting)


def test_the_schemas_that_ship_need_no_library() -> None:
    for name in ("pipeline", "lock", "staged"):
        schema = json.loads(schema_text(f"{name}.schema.json"))
        assert check_here(schema, {}) not in {None, ()}
