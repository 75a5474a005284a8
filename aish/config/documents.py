"""The other files a pipeline names: prompts and schemas, read when it is loaded (F8)."""

from collections.abc import Mapping
from dataclasses import field
from hashlib import sha256
from json import JSONDecodeError

from aish.config.merge import parse_mapping
from aish.config.reading import Table
from aish.config.text_file import REFERENCED_LIMIT, UnreadableError, read_text, reason
from aish.config.yaml_tree import to_data
from aish.core.frozen import slotted
from aish.core.json import JsonObject, JsonValue, strict_json

MAX_DEPTH = 64


@slotted
class Documents:
    """Reads each file when it is asked for and remembers what was in it, for the digest."""

    hashes: dict[str, str] = field(default_factory=dict)

    def text(self, table: Table, key: str) -> str:
        """The text of the file an entry names; empty where it cannot be read."""
        path = table.absolute(key)
        assert path is not None
        try:
            text = read_text(path, REFERENCED_LIMIT)
        except UnreadableError as error:
            table.problem(key, f"the file `{table.text(key)}` {reason(error)}")
            return ""
        self.hashes[str(table.text(key))] = sha256(text.encode()).hexdigest()
        return text

    def schema(self, table: Table, key: str) -> JsonObject:
        """The JSON Schema that stands at an entry or in the file it names."""
        name = table.text(key)
        if name is None:
            return table.mapping(key)
        text = self.text(table, key)
        if not text.strip():
            if str(name) in self.hashes:
                table.problem(key, f"the file `{name}` is empty")
            return {}
        try:
            return as_object(text, name)
        except ValueError as error:
            table.problem(key, f"the file `{name}` does not contain a JSON Schema: {error}")
            return {}


def as_object(text: str, name: str) -> JsonObject:
    """A JSON object, or a YAML mapping.

    Raises:
        ValueError: it is neither.
    """
    value = parse_document(text, name)
    if not isinstance(value, Mapping):
        raise ValueError("a mapping is expected")  # ruff: ignore[type-check-without-type-error] - wrong text, not a wrong call
    return value


def parse_document(text: str, name: str) -> JsonValue:
    """JSON where it looks like JSON, which may be indented by tabs; else YAML, a mapping.

    Raises:
        ValueError: it is neither.
    """
    if text.lstrip()[:1] in {"{", "["}:
        try:
            return parse_json(text)
        except JSONDecodeError as error:
            if name.endswith(".json"):
                reason = f"line {error.lineno}, column {error.colno}: {error.msg}"
                raise ValueError(reason) from error
    root, problems = parse_mapping(text, name)
    if problems:
        found = problems[0]
        place = f"line {found.position.line}, column {found.position.column}"
        raise ValueError(f"{place}: {found.message}")
    assert root is not None
    return to_data(root)


def parse_json(text: str) -> JsonValue:
    """JSON as the standard has it: no key twice, no `NaN`, no number too large, and not too deep.

    Raises:
        ValueError: it is something else.
    """
    try:
        value = strict_json(text)
        if _depth(value) <= MAX_DEPTH:
            return value
    except RecursionError:
        pass
    raise ValueError(f"it is nested more than {MAX_DEPTH} deep")


def _depth(value: JsonValue) -> int:
    if isinstance(value, dict):
        return 1 + max(map(_depth, value.values()), default=0)
    if isinstance(value, list):
        return 1 + max(map(_depth, value), default=0)
    return 0
