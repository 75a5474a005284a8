"""A server requests input from the user while a call of it runs: a flat form, its fields.

Everything in such a request is untrusted text: it is shown behind the bar, below a line of our own
that names the server. The input is shown once more before it is sent.
"""

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import date, datetime
from typing import Literal, TypeGuard
from urllib.parse import urlsplit

from aish.core.frozen import frozen
from aish.core.json import JsonObject, JsonValue, strict_json
from aish.core.phrases import counted
from aish.system.secrets.secrets import Secrets
from aish.terminal.approver import YES, Masks, arguments_with_bar
from aish.terminal.tty import Terminal, Turns
from aish.terminal.visible_text import text_with_bar, visible, with_label, words

Kind = Literal["text", "choice", "choices", "integer", "number", "yes or no"]
_YES = frozenset({"y", "yes", "true"})
_NO = frozenset({"n", "no", "false"})
_EMAIL = re.compile(r"[^@\s\x00-\x1f]+@[^@\s\x00-\x1f]+\.[^@\s\x00-\x1f.]+")


class FieldError(ValueError):
    """A form that cannot be filled in at a terminal, or an invalid value, in one sentence."""


@frozen
class ElicitationChoice:
    value: str
    title: str


@frozen
class Field:
    """A field; `schema` is that of its values, `default` is `None` if there is none."""

    name: str
    title: str
    description: str
    kind: Kind
    required: bool
    default: JsonValue
    choices: tuple[ElicitationChoice, ...]
    schema: JsonObject

    @property
    def wants(self) -> str:
        """A description of the expected value; the format's name is one we know."""
        form = self.schema.get("format")
        known = self.kind == "text" and isinstance(form, str) and form in _FORMATS
        return f"text, {form}" if known else self.kind


def value_of(field: Field, typed: str) -> JsonValue:
    """The value that a line represents.

    Raises:
        FieldError: it is invalid; the message says what is expected.
    """
    value = _READ[field.kind](field, typed)
    _check_bounds(field, value)
    return value


def check_value(field: Field, value: JsonValue) -> None:
    """Check that a value has the field's type and is within its bounds.

    Raises:
        FieldError: it is not.
    """
    _check_type(field, value)
    _check_bounds(field, value)


def _read_choices(field: Field, typed: str) -> JsonValue:
    parts = [part.strip() for part in typed.split(",")]
    return list(dict.fromkeys(_choose(field, part) for part in parts if part))


def _choose(field: Field, typed: str) -> str:
    """Selected by number or name; if a name is a number, the name is meant."""
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
    "choice": lambda field, typed: _choose(field, typed.strip()),
    "choices": _read_choices,
    "yes or no": _read_bool,
    "integer": _read_number,
    "number": _read_number,
}


def _check_type(field: Field, value: JsonValue) -> None:
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
    """Check that a value of the right type is within the bounds of the schema.

    What cannot be checked here is left to the server.
    """
    from aish.system.schema.check import LOOP_STEPS, TOO_LONG, check_here

    form = field.schema.get("format")
    is_known = field.kind == "text" and isinstance(form, str) and form in _FORMATS
    if is_known and not _FORMATS[str(form)](str(value)):
        raise FieldError(f"not a valid {form}")
    for problem in check_here(field.schema, value, steps=LOOP_STEPS) or ():
        if problem.keyword == "pattern":
            raise FieldError("that does not have the required form")
        if problem is not TOO_LONG:
            raise FieldError(problem.message)


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


def is_list(value: JsonValue) -> TypeGuard[Sequence[JsonValue]]:
    return isinstance(value, Sequence) and not isinstance(value, str)


MOST_FIELDS = 50
MOST_CHOICES = 200


def fields_of(schema: JsonValue, mode: str = "form") -> tuple[Field, ...]:
    """The fields of a `requestedSchema`, in its order.

    Raises:
        FieldError: it requests a value that cannot be typed in a line.
    """
    if mode != "form":
        raise FieldError("it asks in an unknown way")
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
    """The field with its default, if that is a valid value."""
    try:
        check_value(field, default)
    except FieldError:
        return field
    return replace(field, default=default)


def _kind(name: str, schema: JsonObject) -> tuple[Kind, tuple[ElicitationChoice, ...]]:
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


def _choices(schema: JsonObject) -> tuple[ElicitationChoice, ...]:
    names = schema.get("enumNames")
    listed = schema.get("enum")
    if is_list(listed):
        titles = names if is_list(names) and len(names) == len(listed) else listed
        pairs = zip(listed, titles, strict=True)
        found = [
            ElicitationChoice(value, str(title)) for value, title in pairs if isinstance(value, str)
        ]
    else:
        rows = schema.get("oneOf", schema.get("anyOf"))
        found = [one for row in (rows if is_list(rows) else ()) for one in _choices_of(row)]
    if len(found) > MOST_CHOICES:
        raise FieldError(f"the form has a list of more than {MOST_CHOICES}")
    return tuple(found)


def _choices_of(row: JsonValue) -> Iterator[ElicitationChoice]:
    value = row.get("const") if isinstance(row, Mapping) else None
    if isinstance(row, Mapping) and isinstance(value, str):
        yield ElicitationChoice(value, _text(row, "title") or value)


def _text(schema: JsonObject, key: str) -> str:
    found = schema.get(key)
    return found if isinstance(found, str) else ""


ACCEPTED = "accept"
DECLINED: JsonObject = {"action": "decline"}
CANCELLED: JsonObject = {"action": "cancel"}
BEGIN = "answer it? [y/N]"
SEND = "send this? [y/N/e]"
_AGAIN = frozenset({"e", "edit"})
_GIVE_UP = "Ctrl-C gives up"
_MOST_ROWS = 60


class TerminalElicitor:
    """The `Elicit` of `mcp`: the server's alias and its params in, the result out.

    `decline` is a refusal, also of a page that should be opened: none ever is. `cancel` is the end
    of input, Ctrl-C, or a closed terminal.
    """

    def __init__(self, turns: Turns, *, secrets: Secrets | None = None) -> None:
        self._turns = turns
        self._secrets = secrets

    async def __call__(self, server: str, params: JsonObject) -> JsonObject:
        """The `ElicitResult`; accepted content matches the requested schema."""
        if not self._turns.attended:
            return DECLINED
        try:
            async with self._turns.take(interrupts=False) as terminal:
                return await self._ask(terminal, server, params)
        except OSError:
            # Without a terminal there is no answer.
            return CANCELLED

    async def _ask(self, terminal: Terminal, server: str, params: JsonObject) -> JsonObject:
        said = params.get("message")
        message = Masks(self._secrets).text(said if isinstance(said, str) else "")
        mode = params.get("mode", "form")
        if mode == "url":
            url = params.get("url")
            shown = _page_rows(server, message, url if isinstance(url, str) else "", terminal.width)
            await terminal.show(shown)
            return DECLINED
        await terminal.show(_form_rows(server, message, terminal.width))
        try:
            fields = fields_of(params.get("requestedSchema"), str(mode))
        except FieldError as error:
            why = f"answered with a no: {error}"
            await terminal.show(with_label("aish", visible(why), terminal.width))
            return DECLINED
        return await _fill_in(terminal, fields)


async def _fill_in(terminal: Terminal, fields: Sequence[Field]) -> JsonObject:
    """The answers of a user who agrees to answer."""
    sent = f"{counted(len(fields), 'field')}; nothing is sent before you have confirmed it"
    await terminal.show(words(f"{sent}; {_GIVE_UP}", terminal.width))
    typed = await terminal.ask(BEGIN)
    while typed is not None and typed.strip().lower() in YES | _AGAIN:
        content: dict[str, JsonValue] = {}
        for number, one in enumerate(fields, 1):
            await terminal.show(_field_rows(one, number, len(fields), terminal.width))
            found = await _value(terminal, one)
            if found is None:
                return CANCELLED
            content.update(found)
        await terminal.show(("", *arguments_with_bar(content, terminal.width)))
        typed = await terminal.ask(SEND)
        said = "" if typed is None else typed.strip().lower()
        if said in YES:
            return {"action": ACCEPTED, "content": content}
        fields = [replace(one, default=content.get(one.name, one.default)) for one in fields]
        if said not in _AGAIN:
            break
    return CANCELLED if typed is None else DECLINED


async def _value(terminal: Terminal, one: Field) -> Mapping[str, JsonValue] | None:
    """The user's value for a field, nothing if it is left out; `None` at the end of input."""
    while True:
        typed = await terminal.fill(">")
        if typed is None:
            return None
        line = typed.rstrip("\r\n")
        if line:
            try:
                return {one.name: value_of(one, line)}
            except FieldError as error:
                await terminal.show(words(f"{error}; {_GIVE_UP}", terminal.width))
        elif one.default is not None:
            return {one.name: one.default}
        elif not one.required:
            return {}
        else:
            await terminal.show(words(f"it cannot be left out; {_GIVE_UP}", terminal.width))


def _form_rows(server: str, message: str, width: int) -> Iterator[str]:
    yield ""
    yield from words("a server asks for input, and gets your answer", width)
    yield from with_label("server", visible(server), width)
    yield from _some(text_with_bar(message, width), width)


def _page_rows(server: str, message: str, url: str, width: int) -> Iterator[str]:
    yield ""
    yield from words("a server wants to open a page; aish declines", width)
    yield from with_label("server", visible(server), width)
    yield from with_label("host", visible(_host(url)), width)
    yield from _some(text_with_bar(message, width), width)
    yield from text_with_bar(url, width)


def _field_rows(one: Field, number: int, count: int, width: int) -> Iterator[str]:
    """The question for one field, our own line first; untrusted text behind the bar."""
    yield ""
    need = "required" if one.required else "optional"
    yield from words(f"field {number} of {count}: {one.wants}, {need}", width)
    label = f"{one.title} ({one.name})" if one.title else one.name
    about = f"{label}: {one.description}" if one.description else label
    yield from _some(text_with_bar(about, width), width)
    for place, choice in enumerate(one.choices, 1):
        own = "" if choice.title == choice.value else f" ({choice.value})"
        yield from with_label(str(place), visible(choice.title + own), width)
    if one.kind == "choices":
        yield from words("some of them, with commas between", width)
    if one.default is not None:
        yield from with_label("Enter", visible(json.dumps(one.default, ensure_ascii=False)), width)
    elif not one.required:
        yield from with_label("Enter", "leaves it out", width)


def _some(rows: Iterator[str], width: int) -> Iterator[str]:
    """As many rows as are readable before a question, and the number of those left."""
    every = tuple(rows)
    yield from every[:_MOST_ROWS]
    if len(every) > _MOST_ROWS:
        yield from words(f"{len(every) - _MOST_ROWS:,} more rows are not shown", width)


def _host(url: str) -> str:
    try:
        return urlsplit(url).hostname or "none"
    except ValueError:
        return "none"
