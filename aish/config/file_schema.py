"""Validates the file against its schema; problems have positions and clear messages (F10)."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from aish.config.yaml_tree import (
    BrokenNode,
    ListNode,
    MappingNode,
    Node,
    ScalarNode,
    at,
    is_whole,
    join,
    to_data,
)
from aish.core.errors import Position, Problem, did_you_mean
from aish.core.frozen import frozen
from aish.core.json import JsonObject, JsonValue
from aish.core.patterns import lazy_pattern
from aish.core.phrases import backticked
from aish.system.files import schema_text
from aish.system.schema.check import SchemaProblem, check, show


@frozen
class SchemaPlace:
    """One location in a schema: follows references and the form that is meant for mappings."""

    root: JsonValue
    schema: JsonValue

    def along(self, path: Iterable[str | int]) -> "SchemaPlace":
        """The location that a path leads to."""
        place = self
        for part in path:
            place = place.item() if isinstance(part, int) else place.entry(part)
        return place

    def resolved(self) -> Mapping[str, JsonValue]:
        """The schema itself, or its form for mappings."""
        schema = self.schema
        while isinstance(schema, Mapping) and "$ref" in schema:
            assert isinstance(self.root, Mapping)
            definitions = self.root["$defs"]
            assert isinstance(definitions, Mapping)
            schema = definitions[str(schema["$ref"]).rpartition("/")[2]]
        if isinstance(schema, Mapping) and isinstance(schema.get("anyOf"), Sequence):
            forms = schema["anyOf"]
            assert isinstance(forms, Sequence)
            for form in forms:
                inner = SchemaPlace(self.root, form).resolved()
                if inner.get("type") == "object":
                    return inner
        return schema if isinstance(schema, Mapping) else {}

    def names(self) -> tuple[str, ...]:
        """The known keys."""
        properties = self.resolved().get("properties")
        return tuple(properties) if isinstance(properties, Mapping) else ()

    def takes(self, key: str, *, last: bool) -> bool:
        """Whether a new entry `key` is allowed here."""
        if key in self.names():
            return True
        # A new model or server made of one value would be a misspelt one.
        others = self.resolved().get("additionalProperties", True)
        return others is True or (last and isinstance(others, Mapping))

    def entry(self, key: str) -> "SchemaPlace":
        """The schema of an entry."""
        schema = self.resolved()
        properties = schema.get("properties")
        if isinstance(properties, Mapping) and key in properties:
            return SchemaPlace(self.root, properties[key])
        others = schema.get("additionalProperties", True)
        return SchemaPlace(self.root, others if isinstance(others, Mapping) else {})

    def item(self) -> "SchemaPlace":
        """The schema of an item."""
        return SchemaPlace(self.root, self.resolved().get("items", {}))


SCHEMA = "pipeline.schema.json"

_KINDS: Mapping[str, str] = {
    "string": "text",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "array": "a list",
    "object": "a mapping",
    "null": "nothing",
}
# How what people write there in another form is written.
_MEANT: Mapping[str, str] = {
    "foreach": "a list is an expression, as text: `foreach: \"['a', 'b']\"`",
    "retry": "`retry: {attempts: 3}`",
    "deny_names": "only `*` and `?` have a meaning, and `?` stands for any one character: write "
    "an entry for each choice, and a name instead of a path",
}
_MODEL_NAME = lazy_pattern(r"[A-Za-z0-9][A-Za-z0-9_./-]*(?::[A-Za-z0-9_.-]+)?")


def model_entry(alias: str, name: str) -> str:
    """The lines of an entry of `models`, to be copied; the name is what somebody wrote for it."""
    from aish.system.secrets.literal_keys import looks_like_key

    alias = alias if _MODEL_NAME.fullmatch(alias) else "main"
    model = name if _MODEL_NAME.fullmatch(name) and not looks_like_key(name) else "NAME"
    lines = ("base_url: https://host/v1", f"model: {model}", "key_env: VARIABLE")
    return "\n  ".join((f"{alias}:", *lines))


# How the keys of a model are called elsewhere.
_OTHER_NAMES: Mapping[str, str] = {
    **dict.fromkeys(
        ("api_key", "apikey", "apiKey", "key", "api_key_env"),
        "`key_env: VARIABLE` names the environment variable that holds the key",
    ),
    **dict.fromkeys(
        ("provider", "url", "endpoint", "api_base", "host"),
        "`base_url: https://host/v1` is the address of an endpoint for chat completions",
    ),
}


@cache
def pipeline_schema() -> JsonObject:
    """`schemas/pipeline.schema.json`."""
    schema: JsonObject = json.loads(schema_text(SCHEMA))
    return schema


@cache
def known_keys() -> frozenset[str]:
    """Every key that a pipeline file may have somewhere."""
    found = (entry.get("properties") for entry in _mappings(pipeline_schema()))
    return frozenset(key for keys in found if isinstance(keys, Mapping) for key in keys)


def is_unknown_key(problem: Problem) -> bool:
    """Whether the error is about a key that the schema does not have."""
    return problem.message.startswith("unknown key ")


def shape_problems(root: MappingNode) -> list[Problem]:
    """Every mismatch between the file and the schema.

    What does not fit, or is missing, is a `BrokenNode` in the tree from now on.
    """
    wrong = check(pipeline_schema(), to_data(root), is_ours=True)
    found = [one for one in wrong if not _is_known(root, one.path)]
    # A pattern for a text also limits its length; of an empty text that alone is said.
    patterns = {one.path for one in found if one.keyword == "pattern"}
    empty = {one.path for one in found if one.keyword == "minLength"}
    found = [
        one
        for one in found
        if not (one.keyword == "maxLength" and one.path in patterns)
        and not (one.keyword == "pattern" and one.path in empty)
    ]
    problems = [_worded(one, root) for one in found]
    for one in found:
        if one.keyword != "additionalProperties":
            _break(root, one.path)
    return problems


def _is_known(root: MappingNode, path: Sequence[str | int]) -> bool:
    """Whether the value at a path is broken already, or may be in an unreadable part."""
    node: Node | None = root
    for part in path:
        if isinstance(node, MappingNode):
            if part not in node.entries:
                return not is_whole(node)
            node = node.entries[str(part)]
        elif isinstance(node, ListNode) and isinstance(part, int):
            node = node.items[part]
        if isinstance(node, BrokenNode):
            return True
    return False


def _break(root: MappingNode, path: Sequence[str | int]) -> None:
    """Put a broken node at a path; nothing changes inside a broken node."""
    node: Node = root
    for index, part in enumerate(path):
        last = index == len(path) - 1
        if isinstance(node, ListNode) and isinstance(part, int):
            if last:
                node.items[part] = BrokenNode(node.items[part].position, None)
            node = node.items[part]
        elif isinstance(node, MappingNode):
            key = str(part)
            if last:
                place = node.keys.get(key, node.position)
                there = node.entries.get(key)
                position = place if there is None else there.position
                node.put(key, BrokenNode(position, None), place)
            if key not in node.entries:
                return
            node = node.entries[key]


def _worded(found: SchemaProblem, root: MappingNode) -> Problem:
    node, key, path = _find(root, found.path)
    if found.keyword == "additionalProperties" and found.key is not None:
        if (spelling := _without_gap(found.key)) is not None:
            # What is behind the colon may be a key of a service.
            _, _, above = _find(root, found.path[:-1])
            name, meant = spelling
            return Problem(key, join(above, name), f"unknown key `{name}:…`", meant)
        return Problem(key, path, f"unknown key `{found.key}`", _unknown_hint(found))
    if found.keyword == "required" and found.key is not None:
        outer = path[: -len(found.key) - 1] if "." in path else ""
        hint = "write `aish: 1` at the top" if found.path == ("aish",) else None
        if found.key == "token_env":
            hint = "or `token_file`, a file that only its owner can read"
        if found.key == "uri":
            hint = "or `query`, a question that passages are searched for"
        return Problem(key, outer, f"the key `{found.key}` is missing", hint)
    position = key if node is None else node.position
    if (position.file, position.line) != (key.file, key.line):
        position = key
    return Problem(position, path, *_value_words(found, node))


def _without_gap(text: str) -> tuple[str, str] | None:
    """The key in a text that is one with its value, `key:value`, and how it is written."""
    name, colon, rest = text.partition(":")
    if not (colon and rest and name in known_keys()):
        return None
    return name, f"write `{name}: …`, with a space after the colon"


def _meant(found: SchemaProblem, node: Node | None) -> str | None:
    """How what has the wrong type is written."""
    if not found.path:
        return None
    text = node.value if isinstance(node, ScalarNode) and isinstance(node.value, str) else ""
    if (meant := _without_gap(text)) is not None:
        return meant[1]
    if found.path[:-1] == ("models",):
        return f"an entry of `models` is\n{model_entry(str(found.path[-1]), text)}"
    return _MEANT.get(str(found.path[-1]))


def _value_words(found: SchemaProblem, node: Node | None) -> tuple[str, str | None]:
    if found.keyword == "type":
        schema = SchemaPlace(pipeline_schema(), pipeline_schema()).along(found.path).resolved()
        expected = schema.get("title") or " or ".join(
            _KINDS.get(str(name), str(name)) for name in found.allowed
        )
        meant = _meant(found, node)
        is_number = isinstance(node, ScalarNode) and type(node.value) in {int, float}
        kind = "a number" if is_number and expected == _variable_title() else _kind(node)
        return f"{expected} is expected here, and this is {kind}", meant
    if found.keyword in {"enum", "const"} and isinstance(node, ScalarNode):
        given = node.value if isinstance(node.value, str) else json.dumps(node.value)
        choices = [choice.strip("'\"") for choice in found.allowed]
        listed = backticked(choices)
        message = f"`{given}` is not {'one of ' if len(choices) > 1 else ''}{listed}"
        return message, did_you_mean(given, choices)
    if found.keyword == "pattern" and found.path:
        wanted = _titles().get(found.message.partition(" does not match ")[2])
        if found.path[-1] == "max_failures":
            wanted = "a number, or a percentage such as `5%`"
        # In place of a variable's name there may be its value.
        is_name = wanted == _variable_title() and isinstance(node, ScalarNode)
        given = "this" if is_name else f"`{_given(node, found)}`"
        hint = "export the value, and write the variable's name here" if is_name else None
        if "deny_names" in found.path:
            hint = _MEANT["deny_names"]
        if wanted is not None:
            return f"{given} is not {wanted}", hint
    if found.keyword == "minLength":
        return "the text must not be empty", None
    if found.keyword == "minItems":
        return "the list must not be empty", None
    return found.message, None


def _given(node: Node | None, found: SchemaProblem) -> str:
    """The text that does not match a pattern: the value, or the name of its key."""
    if isinstance(node, ScalarNode) and found.message.startswith(show(node.value) + " "):
        return str(node.value)
    return str(found.path[-1])


def _variable_title() -> str:
    return str(SchemaPlace(pipeline_schema(), {"$ref": "#/$defs/variable"}).resolved()["title"])


@cache
def _titles() -> Mapping[str, str]:
    """What the patterns of the schema mean, by their text in problems."""
    return {
        show(entry["pattern"]): str(entry["title"])
        for entry in _mappings(pipeline_schema())
        if isinstance(entry.get("pattern"), str) and "title" in entry
    }


def _mappings(schema: Any) -> Iterator[Mapping[str, Any]]:
    """Every mapping within a schema, starting with itself."""
    if isinstance(schema, Mapping):
        yield schema
    inner = schema.values() if isinstance(schema, Mapping) else schema
    if isinstance(inner, str) or not isinstance(inner, Iterable):
        return
    for one in inner:
        yield from _mappings(one)


def _unknown_hint(found: SchemaProblem) -> str | None:
    assert found.key is not None
    if "key_env" in found.allowed and found.key in _OTHER_NAMES:
        return _OTHER_NAMES[found.key]
    near = did_you_mean(found.key, found.allowed)
    listed = backticked(found.allowed)
    return near or (f"known here: {listed}" if listed else None)


def _find(root: MappingNode, path: Sequence[str | int]) -> tuple[Node | None, Position, str]:
    """The node at `path`, the position of its key, and the path as text."""
    node: Node | None = root
    position, words = root.position, ""
    for part in path:
        words = at(words, part) if isinstance(part, int) else join(words, part)
        if isinstance(node, MappingNode) and part in node.entries:
            key = str(part)
            position, node = node.keys[key], node.entries[key]
        elif isinstance(node, ListNode) and isinstance(part, int) and part < len(node.items):
            node = node.items[part]
            position = node.position
        else:
            node = None
    return node, position, words


def _kind(node: Node | None) -> str:
    match node:
        case MappingNode():
            return "a mapping"
        case ListNode():
            return "a list"
        case ScalarNode(value=None) | None:
            return "nothing"
        case ScalarNode(value=str()):
            return "text"
        case ScalarNode(value=bool()):
            return f"`{str(node.value).lower()}`"
        case ScalarNode():
            return f"the number {node.value}"
