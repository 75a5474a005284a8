"""The form that a server asks a person to fill in, as fields (M11). Pure; forms are flat."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from aish.core.json import JsonObject, JsonValue
from aish.terminal.fields import Choice, Field, FieldError, Kind, check_value, is_list

MOST_FIELDS = 50
MOST_CHOICES = 200


def fields_of(schema: JsonValue, mode: str = "form") -> tuple[Field, ...]:
    """The fields of a `requestedSchema`, in its order.

    Raises:
        FieldError: it asks for something that cannot be typed in a line.
    """
    if mode != "form":
        raise FieldError("it asks in a way that is not known here")
    if not isinstance(schema, Mapping):
        raise FieldError("the form has no schema")
    properties = schema.get("properties", {})
    if not isinstance(properties, Mapping) or len(properties) > MOST_FIELDS:
        raise FieldError(f"the form has no fields, or more than {MOST_FIELDS}")
    required = schema.get("required", ())
    names = required if isinstance(required, Sequence) and not isinstance(required, str) else ()
    if not all(isinstance(name, str) and name in properties for name in names):
        raise FieldError("the form requires a field that it does not have")
    return tuple(_field(name, one, required=name in names) for name, one in properties.items())


def _field(name: str, schema: JsonValue, *, required: bool) -> Field:
    if not isinstance(schema, Mapping):
        raise FieldError(f"the field {name} has no schema")
    kind, choices = _kind(name, schema)
    made = Field(
        name=name,
        title=_text(schema, "title"),
        description=_text(schema, "description"),
        kind=kind,
        required=required,
        default=None,
        choices=choices,
        schema=schema,
    )
    default = schema.get("default")
    return made if default is None else _with_default(made, default)


def _with_default(field: Field, default: JsonValue) -> Field:
    """The field with its default, where that is a value it takes."""
    try:
        check_value(field, default)
    except FieldError:
        return field
    return replace(field, default=default)


def _kind(name: str, schema: JsonObject) -> tuple[Kind, tuple[Choice, ...]]:
    match schema.get("type"):
        case "string":
            choices = _choices(schema)
            return ("choice", choices) if choices else ("text", ())
        case "array":
            items = schema.get("items")
            choices = _choices(items) if isinstance(items, Mapping) else ()
            if choices:
                return "choices", choices
        case "boolean":
            return "yes or no", ()
        case "integer":
            return "integer", ()
        case "number":
            return "number", ()
    raise FieldError(f"the field {name} takes something that cannot be typed in a line")


def _choices(schema: JsonObject) -> tuple[Choice, ...]:
    names = schema.get("enumNames")
    listed = schema.get("enum")
    if is_list(listed):
        titles = names if is_list(names) and len(names) == len(listed) else listed
        pairs = zip(listed, titles, strict=True)
        found = [Choice(value, str(title)) for value, title in pairs if isinstance(value, str)]
    else:
        rows = schema.get("oneOf", schema.get("anyOf"))
        found = [one for row in (rows if is_list(rows) else ()) for one in _titled(row)]
    if len(found) > MOST_CHOICES:
        raise FieldError(f"the form has a list of more than {MOST_CHOICES}")
    return tuple(found)


def _titled(row: JsonValue) -> Iterator[Choice]:
    value = row.get("const") if isinstance(row, Mapping) else None
    if isinstance(row, Mapping) and isinstance(value, str):
        yield Choice(value, _text(row, "title") or value)


def _text(schema: JsonObject, key: str) -> str:
    found = schema.get(key)
    return found if isinstance(found, str) else ""
