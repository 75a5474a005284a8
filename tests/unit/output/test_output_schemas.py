"""The published schemas and the dataclasses say the same, both ways."""

import json
from dataclasses import fields, is_dataclass
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import pytest
from samples import each_case
from schema_form import in_form

from aish.core.events import EVENT_TYPES, ONLY_WITH_VALUE, Event, Fallback, Place, TurnAdded
from aish.core.json import JsonValue
from aish.system.files import schema_text

EVENTS = json.loads(schema_text("events.schema.json"))
RESULT = json.loads(schema_text("result.schema.json"))
DEFINITIONS = EVENTS["$defs"]
SPELLED: dict[type[Event], dict[str, str]] = {
    Fallback: {"source": "from", "target": "to"},
    TurnAdded: {"turn": "added"},
}


def resolved(schema: dict[str, Any]) -> dict[str, Any]:
    if "$ref" in schema:
        return resolved(DEFINITIONS[schema["$ref"].removeprefix("#/$defs/")])
    options = [option for option in schema.get("anyOf", ()) if option != {"type": "null"}]
    return resolved(options[0]) if options else schema


def disagreements(hint: Any, schema: dict[str, Any], path: str) -> list[str]:
    """Where a type and a schema differ: closed words, keys of objects, items of lists."""
    schema = resolved(schema)
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Literal:
        return _differ(path, set(arguments), set(schema.get("enum", ())))
    if origin in {Union, UnionType}:
        present = [argument for argument in arguments if argument is not type(None)]
        if all(get_origin(argument) is Literal for argument in present):
            words = {word for argument in present for word in get_args(argument)}
            return _differ(path, words, set(schema.get("enum", ())))
        return disagreements(present[0], schema, path) if len(present) == 1 else []
    if origin is tuple:
        return disagreements(arguments[0], schema["items"], f"{path}[]")
    if is_dataclass(hint):
        hints = get_type_hints(hint, localns={"JsonValue": JsonValue})
        names = {field.name for field in fields(hint)}
        found = _differ(path, names, set(schema["properties"]))
        found += _differ(f"{path} required", names, set(schema["required"]))
        for name in names & set(schema["properties"]):
            found += disagreements(hints[name], schema["properties"][name], f"{path}.{name}")
        return found
    return []


def _differ(path: str, ours: set[str], theirs: set[str]) -> list[str]:
    return [f"{path}: {sorted(ours ^ theirs)}"] if ours != theirs else []


def test_the_schema_has_exactly_the_event_types() -> None:
    names = set(EVENT_TYPES.values())

    assert set(EVENTS["properties"]["type"]["enum"]) == names
    assert {option["$ref"].removeprefix("#/$defs/") for option in EVENTS["oneOf"]} == names
    assert names < set(DEFINITIONS)


@each_case("kind", list(EVENT_TYPES))
def test_an_event_and_its_schema_have_the_same_keys(kind: type[Event]) -> None:
    schema = DEFINITIONS[EVENT_TYPES[kind]]
    hints = get_type_hints(kind, localns={"JsonValue": JsonValue})
    keys = {
        SPELLED.get(kind, {}).get(field.name, field.name): hints[field.name]
        for field in fields(kind)
        if field.name != "place"
    }
    place = {field.name for field in fields(Place)}

    assert set(schema["properties"]) == {"type", *keys}
    assert set(schema["required"]) - place == set(keys) - ONLY_WITH_VALUE
    assert [
        line
        for key, hint in keys.items()
        for line in disagreements(hint, schema["properties"][key], f"{EVENT_TYPES[kind]}.{key}")
    ] == []


def test_a_place_is_four_common_keys() -> None:
    place = {field.name for field in fields(Place)}

    assert set(EVENTS["properties"]) == {"v", "seq", "time", "type", "mac", "crc"} | place


def test_both_schemas_share_their_definitions() -> None:
    shared = set(RESULT["$defs"]) & set(DEFINITIONS)

    assert {"usage", "failure", "exit", "verdict", "result_kind"} <= shared
    assert {name: RESULT["$defs"][name] for name in shared} == {
        name: DEFINITIONS[name] for name in shared
    }


@pytest.mark.parametrize("name", ["events.schema.json", "result.schema.json"])
def test_a_schema_is_in_form_and_describes_each_key(name: str) -> None:
    text = schema_text(name)

    assert in_form(text) == text
    assert list(_undescribed(json.loads(text), name)) == []


def _undescribed(schema: Any, path: str) -> Any:
    if isinstance(schema, dict):
        for key, value in schema.get("properties", {}).items():
            if not value.keys() & {"description", "$ref", "const"}:
                yield f"{path}.{key}"
        for key, value in schema.items():
            yield from _undescribed(value, f"{path}.{key}")
    elif isinstance(schema, list):
        for item in schema:
            yield from _undescribed(item, path)
