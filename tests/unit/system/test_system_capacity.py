"""What a closed schema admits: the bits of an answer, and its one form."""

from itertools import permutations, product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from samples import each_case

from aish.core.json import JsonValue, canonical
from aish.system.schema.capacity import MOST_BITS, Capacity, OpenSchemaError, normal_value
from aish.system.schema.check import check


def closed(*required: str, **properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }


def listed(items: Any, most: int, least: int = 0) -> dict[str, Any]:
    return {"type": "array", "items": items, "maxItems": most, "minItems": least}


def between(low: float, high: float) -> dict[str, Any]:
    return {"type": "integer", "minimum": low, "maximum": high}


FLAG = {"type": "boolean"}
TEXT = {"type": "string"}


@each_case(
    "schema, bits",
    [
        (FLAG, 1),
        ({"type": "null"}, 0),
        ({"const": "a long text"}, 0),
        ({"enum": ["a", "b", "c"]}, 2),
        ({"type": "string", "enum": ["a", "b"]}, 1),
        (between(0, 255), 8),
        (between(-0.5, 3.5), 2),
        ({"type": "integer", "exclusiveMinimum": 0, "exclusiveMaximum": 3}, 1),
        ({"type": "integer", "minimum": 1, "maximum": 0}, 0),
        ({"type": ["boolean", "null"]}, 2),
        ({"anyOf": [between(1, 7), {"type": "null"}]}, 3),
        (closed("a", "b", a=FLAG, b=FLAG), 2),
        # An optional key has one value more.
        (closed(a=FLAG, b=FLAG), 4),
        (listed(FLAG, 3, 3), 3),
        (listed(FLAG, 3), 4),
        (listed({"const": 1}, 7), 3),
        (listed(False, 10**9), 0),
        ({"$ref": "#/$defs/a", "$defs": {"a": FLAG}}, 1),
        (closed("a", a=listed({"enum": [1, 2, 3, 4]}, 16, 16)), 32),
        (listed(FLAG, 10**9), MOST_BITS),
        (listed(between(0, 10**400), 10**9, 10**8), MOST_BITS),
    ],
)
def test_bits_of_a_closed_schema(schema: Any, bits: int) -> None:
    assert Capacity(schema).bits == bits


@each_case(
    "schema, why",
    [
        (closed("a", a=TEXT), "`a` is a string without `const` or `enum`"),
        (closed(rows=listed(closed(n=TEXT), 3)), "`rows[].n` is a string without `const`"),
        ({"type": "number", "minimum": 0, "maximum": 1}, "the answer is a number without"),
        ({"type": "integer", "minimum": 0}, "the answer is an integer without both bounds"),
        ({"type": "object"}, "the answer may have other keys"),
        ({**closed(), "patternProperties": {"^x": {"const": 1}}}, "may have other keys"),
        ({"type": "array", "items": FLAG}, "the answer has no `maxItems`"),
        ({"type": "array", "maxItems": 3}, "`[]` may be anything"),
        ({**listed(FLAG, 3), "prefixItems": [TEXT]}, "has `prefixItems`"),
        ({"properties": {}, "additionalProperties": False}, "has no `type`, `const` or `enum`"),
        ({"anyOf": [FLAG, TEXT]}, "the answer is a string"),
        (closed(a={"$ref": "#"}), "`a` may contain itself"),
        (closed(a={"$ref": "other.json"}), "`a` may be anything"),
        (closed(a={"$id": "x", **FLAG}), "the schema of `a` has an `$id` or `$schema`"),
        # `const` is no keyword of this draft.
        ({"$schema": "http://json-schema.org/draft-04/schema#", "const": 1}, "`$schema`"),
        ({"allOf": [FLAG]}, "has no `type`, `const` or `enum`"),
    ],
)
def test_an_open_part_is_named(schema: Any, why: str) -> None:
    with pytest.raises(OpenSchemaError) as raised:
        Capacity(schema)
    assert why in str(raised.value)


def test_the_largest_leaf_is_named() -> None:
    rows = listed(closed("line", "ok", line=between(0, 2**20), ok=FLAG), 2)
    schema = {**closed("a", "rows", a={"enum": [1, 2]}, rows={"$ref": "#/$defs/rows"})}
    found = Capacity({**schema, "$defs": {"rows": rows}})
    assert (found.bits > 32, found.largest_leaf()) == (True, "rows[].line")


def test_equal_values_have_one_form() -> None:
    values: list[JsonValue] = [{"a": 1, "b": [0, True]}, {"b": [-0.0, True], "a": 1.0}]
    assert [repr(normal_value(value)) for value in values] == ["{'a': 1, 'b': [0, True]}"] * 2


LEAVES = st.sampled_from(
    [FLAG, {"type": "null"}, {"const": 1}, {"enum": [0, True]}, between(0, 1), {"type": ["null"]}]
)
SCHEMAS = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.builds(listed, inner, st.integers(0, 2), st.integers(0, 1)),
        st.builds(lambda a, b: closed("a", a=a, b=b), inner, inner),
        st.builds(lambda a, b: {"oneOf": [a, b]}, inner, inner),
    ),
    max_leaves=3,
)


def values(depth: int) -> list[Any]:
    """All values with few keys and items, equal ones in each spelling."""
    found: list[Any] = [None, False, True, 0, 0.0, 1, 1.0, "x"]
    if depth:
        inner = values(depth - 1) if depth == 1 else [None, True, 0, 1.0, [], [0], {"a": 1}]
        found += [list(items) for count in range(3) for items in product(inner, repeat=count)]
        for keys in (("a",), *permutations("ab")):
            found += [dict(zip(keys, own, strict=True)) for own in product(inner, repeat=len(keys))]
    return found


UNIVERSE = [*values(1), *values(2)]


@given(SCHEMAS)
def test_no_more_values_fit_than_are_counted(schema: dict[str, Any]) -> None:
    fitting = {canonical(normal_value(value)) for value in UNIVERSE if not check(schema, value)}
    assert len(fitting) <= 2 ** Capacity(schema).bits
