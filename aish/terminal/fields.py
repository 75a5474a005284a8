"""One field of a form that a server asks a person to fill in (M11), and what fits into it.

Pure. A field is text, one or some of a list, a number, or yes or no.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime
from typing import Literal, TypeGuard
from urllib.parse import urlsplit

from aish.core.frozen import frozen
from aish.core.json import JsonObject, JsonValue, strict_json

Kind = Literal["text", "choice", "choices", "integer", "number", "yes or no"]
_YES = frozenset({"y", "yes", "true"})
_NO = frozenset({"n", "no", "false"})
_EMAIL = re.compile(r"[^@\s\x00-\x1f]+@[^@\s\x00-\x1f]+\.[^@\s\x00-\x1f.]+")


class FieldError(ValueError):
    """A form that cannot be filled in at a terminal, or a value that does not fit; a sentence."""


@frozen
class Choice:
    """One of the values of a list, and how it is called."""

    value: str
    title: str


@frozen
class Field:
    """One field; `schema` is what a value has to fit, `default` is `None` where there is none."""

    name: str
    title: str
    description: str
    kind: Kind
    required: bool
    default: JsonValue
    choices: tuple[Choice, ...]
    schema: JsonObject

    @property
    def wants(self) -> str:
        """What it takes, in words of ours; the format's name is one we know."""
        form = self.schema.get("format")
        known = self.kind == "text" and isinstance(form, str) and form in _FORMATS
        return f"text, {form}" if known else self.kind


def value_of(field: Field, typed: str) -> JsonValue:
    """The value that a line stands for.

    Raises:
        FieldError: it does not fit; the text says what would.
    """
    value = _READ[field.kind](field, typed)
    _check_bounds(field, value)
    return value


def check_value(field: Field, value: JsonValue) -> None:
    """Whether a value is of the field's kind and within its bounds.

    Raises:
        FieldError: it is not.
    """
    _check_type(field, value)
    _check_bounds(field, value)


def _read_choice(field: Field, typed: str) -> JsonValue:
    return _chosen(field, typed.strip())


def _read_choices(field: Field, typed: str) -> JsonValue:
    parts = [part.strip() for part in typed.split(",")]
    return list(dict.fromkeys(_chosen(field, part) for part in parts if part))


def _chosen(field: Field, typed: str) -> str:
    """By its number or its name; where a name is a number, the name is meant."""
    for choice in field.choices:
        if typed in {choice.value, choice.title}:
            return choice.value
    if typed.isascii() and typed.isdecimal() and 1 <= int(typed[:9]) <= len(field.choices):
        return field.choices[int(typed[:9]) - 1].value
    raise FieldError(f"that is not one of them: 1 to {len(field.choices)}, or the name")


def _read_bool(_: Field, typed: str) -> JsonValue:
    said = typed.strip().lower()
    if said not in _YES | _NO:
        raise FieldError("what is wanted: y or n")
    return said in _YES


def _read_number(field: Field, typed: str) -> JsonValue:
    try:
        value = strict_json(typed.strip())
    except (ValueError, RecursionError):
        value = None
    _check_type(field, value)
    return value


_READ: Mapping[Kind, Callable[[Field, str], JsonValue]] = {
    "text": lambda _, typed: typed,
    "choice": _read_choice,
    "choices": _read_choices,
    "yes or no": _read_bool,
    "integer": _read_number,
    "number": _read_number,
}


def _check_type(field: Field, value: JsonValue) -> None:
    """Whether a value is of the field's kind."""
    values = {choice.value for choice in field.choices}
    match field.kind:
        case "text":
            fits = isinstance(value, str)
        case "choice":
            fits = isinstance(value, str) and value in values
        case "choices":
            fits = is_list(value) and all(isinstance(v, str) and v in values for v in value)
        case "yes or no":
            fits = isinstance(value, bool)
        case "integer":
            fits = isinstance(value, int) and not isinstance(value, bool)
        case "number":
            fits = isinstance(value, (int, float)) and not isinstance(value, bool)
            fits = fits and (not isinstance(value, float) or math.isfinite(value))
    if not fits:
        raise FieldError(f"what is wanted: {field.kind}")


def _check_bounds(field: Field, value: JsonValue) -> None:
    """Whether a value of the right kind is within what the schema says."""
    if isinstance(value, bool):
        return
    if isinstance(value, str) and field.kind == "text":
        _check_size(field, len(value), "minLength", "maxLength", "characters")
        form = field.schema.get("format")
        if isinstance(form, str) and form in _FORMATS and not _FORMATS[form](value):
            raise FieldError(f"that is no {form}")
        _check_pattern(field, value)
    elif isinstance(value, (int, float)):
        _check_size(field, value, "minimum", "maximum", "")
        low, high = field.schema.get("exclusiveMinimum"), field.schema.get("exclusiveMaximum")
        if (_is_number(low) and value <= low) or (_is_number(high) and value >= high):
            raise FieldError("that is out of bounds")
    elif is_list(value):
        _check_size(field, len(value), "minItems", "maxItems", "of them")


def _check_size(field: Field, size: float, least: str, most: str, noun: str) -> None:
    low, high = field.schema.get(least), field.schema.get(most)
    if _is_number(low) and size < low:
        raise FieldError(f"at least {low} {noun}".rstrip())
    if _is_number(high) and size > high:
        raise FieldError(f"at most {high} {noun}".rstrip())


def _check_pattern(field: Field, value: str) -> None:
    """By the bounded checker; a pattern that it does not know cannot be said to be met."""
    pattern = field.schema.get("pattern")
    if pattern is None:
        return
    from aish.system.schema.check import LOOP_STEPS, check, is_simple

    schema: JsonObject = {"type": "string", "pattern": pattern}
    if not is_simple(schema):
        raise FieldError("what fits cannot be told: the form's pattern is too complex")
    if check(schema, value, steps=LOOP_STEPS):
        raise FieldError("that does not have the form that is asked for")


def _is_date(text: str) -> bool:
    try:
        return date.fromisoformat(text).isoformat() == text
    except ValueError:
        return False


def _is_time(text: str) -> bool:
    try:
        return "T" in text.upper() and datetime.fromisoformat(text).tzinfo is not None
    except ValueError:
        return False


def _is_uri(text: str) -> bool:
    try:
        parts = urlsplit(text)
    except ValueError:
        return False
    return bool(parts.scheme and (parts.netloc or parts.path)) and not re.search(r"\s", text)


_FORMATS: Mapping[str, Callable[[str], bool]] = {
    "email": lambda text: _EMAIL.fullmatch(text) is not None,
    "uri": _is_uri,
    "date": _is_date,
    "date-time": _is_time,
}


def _is_number(value: JsonValue) -> TypeGuard[int | float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def is_list(value: JsonValue) -> TypeGuard[Sequence[JsonValue]]:
    """Whether a value is a list of JSON."""
    return isinstance(value, Sequence) and not isinstance(value, str)
