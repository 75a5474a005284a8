"""References of answer schemas in the vendors' subsets, and what tools' schemas lose."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from jsonschema import Draft202012Validator
from samples import each_case

from aish.wire.messages.answer_schema import answer_format
from aish.wire.responses.strict_schema import to_strict
from aish.wire.schema_subset import without_generated

BOTH = (to_strict, answer_format)


def branching(depth: int) -> dict[str, Any]:
    """A tree of definitions, each with two references to the next one."""
    defs: dict[str, Any] = {
        f"n{level}": {
            "type": "object",
            "properties": {
                side: {"$ref": f"#/$defs/n{level + 1}", "description": f"The {side} one."}
                for side in ("left", "right")
            },
            "required": ["left", "right"],
        }
        for level in range(depth)
    }
    leaf = {"type": "object", "properties": {"v": {"type": "string"}}, "required": ["v"]}
    root = {"$ref": "#/$defs/n0", "description": "The root."}
    return {
        "type": "object",
        "properties": {"tree": root},
        "required": ["tree"],
        "$defs": {**defs, f"n{depth}": leaf},
    }


def tree(depth: int, value: Any) -> Any:
    return {side: tree(depth - 1, value) for side in ("left", "right")} if depth else {"v": value}


def references(part: Any) -> Iterator[str]:
    if isinstance(part, Mapping):
        if "$ref" in part:
            yield part["$ref"]
        part = list(part.values())
    if isinstance(part, list):
        for inner in part:
            yield from references(inner)


@each_case("convert", BOTH)
def test_a_schema_of_branching_definitions_grows_with_their_number_and_not_by_doubling(
    convert: Any,
) -> None:
    sizes = [len(json.dumps(convert(branching(depth)))) for depth in (20, 40, 60)]
    made = convert(branching(20))

    # The second step adds as much as the first, but for longer numbers.
    assert sizes[2] - sizes[1] < 1.1 * (sizes[1] - sizes[0])
    known = {f"#/$defs/{name}" for name in made["$defs"]}
    assert set(references(made)) <= known
    assert set(branching(20)["$defs"]) < set(made["$defs"])


@each_case("convert", BOTH)
def test_a_large_part_is_a_definition_that_means_the_same(convert: Any) -> None:
    schema = branching(7)
    made = convert(schema)
    validator = Draft202012Validator(made)

    assert made["$defs"].keys() - schema["$defs"].keys()
    assert validator.is_valid({"tree": tree(7, "a")})
    assert not validator.is_valid({"tree": tree(7, 1)})
    assert not validator.is_valid({"tree": tree(6, "a")})


@each_case("convert", BOTH)
def test_small_parts_are_written_out_where_they_are(convert: Any) -> None:
    made = convert(branching(2))

    assert made["$defs"].keys() == branching(2)["$defs"].keys()
    assert made["properties"]["tree"]["properties"]["left"]["description"] == "The left one."
    assert list(references(made)) == []


@each_case("convert", BOTH)
def test_a_name_of_the_schema_is_not_taken(convert: Any) -> None:
    schema = branching(9)
    schema["$defs"]["part_1"] = {"type": "string", "description": "Mine."}

    assert convert(schema)["$defs"]["part_1"]["description"] == "Mine."


@each_case("convert", BOTH)
def test_definitions_that_all_lead_to_each_other_are_not_written_out_in_every_order(
    convert: Any,
) -> None:
    names = [f"n{number}" for number in range(12)]
    properties = {name: {"$ref": f"#/$defs/{name}", "description": "One."} for name in names}
    defs = {name: {"type": "object", "properties": properties, "required": names} for name in names}
    schema = {"type": "object", "properties": properties, "required": names, "$defs": defs}

    assert len(json.dumps(convert(schema))) < 2 * len(json.dumps(schema))


def test_generated_keywords_are_dropped_and_properties_of_their_names_are_not() -> None:
    text = {"type": "string", "$schema": "https://json-schema.org/draft/2020-12/schema"}
    schema: Any = {
        "properties": {
            "$schema": text,
            "maximum": {"type": "integer", "maximum": 2**63, "minimum": 0},
        }
    }

    assert without_generated(schema) == {
        "properties": {
            "$schema": {"type": "string"},
            "maximum": {"type": "integer", "minimum": 0},
        }
    }
