"""Validates the file against its schema; problems have positions and clear messages."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
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
from aish.core.errors import Position, Problem, UnavailableError, UsageError, did_you_mean
from aish.core.frozen import frozen
from aish.core.json import JsonObject, JsonValue
from aish.core.patterns import lazy_pattern
from aish.core.phrases import backticked
from aish.system.files import schema_text
from aish.system.schema.check import SchemaProblem, check, show, unknown


@frozen
class SchemaPlace:
    """A location in a schema: follows references and the form that is meant for mappings."""

    root: JsonValue
    schema: JsonValue

    def along(self, path: Iterable[str | int]) -> "SchemaPlace":
        """The location that a path leads to."""
        place = self
        for part in path:
            place = place.item() if isinstance(part, int) else place.entry(part)
        return place

    def resolve(self) -> Mapping[str, JsonValue]:
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
                inner = SchemaPlace(self.root, form).resolve()
                if inner.get("type") == "object":
                    return inner
        return schema if isinstance(schema, Mapping) else {}

    def names(self) -> tuple[str, ...]:
        properties = self.resolve().get("properties")
        return tuple(properties) if isinstance(properties, Mapping) else ()

    def takes(self, key: str, *, last: bool) -> bool:
        """Return true if a new entry `key` is allowed here."""
        if key in self.names():
            return True
        # A new model or server made of one value would be a misspelt one.
        others = self.resolve().get("additionalProperties", True)
        return others is True or (last and isinstance(others, Mapping))

    def entry(self, key: str) -> "SchemaPlace":
        schema = self.resolve()
        properties = schema.get("properties")
        if isinstance(properties, Mapping) and key in properties:
            return SchemaPlace(self.root, properties[key])
        others = schema.get("additionalProperties", True)
        return SchemaPlace(self.root, others if isinstance(others, Mapping) else {})

    def item(self) -> "SchemaPlace":
        return SchemaPlace(self.root, self.resolve().get("items", {}))


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
    **dict.fromkeys(
        ("key_command", "key_file", "key_ttl"),
        "a pack takes its key from a variable, `key_env`; keys of models and servers are made",
    ),
}


@cache
def pipeline_schema() -> JsonObject:
    schema: JsonObject = json.loads(schema_text(SCHEMA))
    return schema


@cache
def all_keys() -> frozenset[str]:
    """Every key that a pipeline file may have somewhere."""
    properties = (entry.get("properties") for entry in _mappings(pipeline_schema()))
    return frozenset(key for keys in properties if isinstance(keys, Mapping) for key in keys)


def is_unknown_key(problem: Problem) -> bool:
    """Return true if the error is about a key that the schema does not have."""
    return problem.message.startswith("unknown key ")


def shape_problems(root: MappingNode) -> list[Problem]:
    """Every mismatch between the file and the schema.

    What does not fit, or is missing, is a `BrokenNode` in the tree from now on.
    """
    wrong = (*check(pipeline_schema(), to_data(root)), *_option_mismatches(root))
    found = [problem for problem in wrong if not _is_known(root, problem.path)]
    # A pattern for a text also limits its length; of an empty text that alone is said.
    patterns = {problem.path for problem in found if problem.keyword == "pattern"}
    empty = {problem.path for problem in found if problem.keyword == "minLength"}
    found = [
        problem
        for problem in found
        if not (problem.keyword == "maxLength" and problem.path in patterns)
        and not (problem.keyword == "pattern" and problem.path in empty)
    ]
    problems = [_problem_of(problem, root) for problem in found]
    for problem in found:
        if problem.keyword != "additionalProperties":
            _break(root, problem.path)
    return problems


def builtin_options() -> tuple[str, ...]:
    """The built-in packs that have options."""
    place = SchemaPlace(pipeline_schema(), pipeline_schema())
    return place.along(("mcp", "servers", "ALIAS", "options")).names()


def _option_mismatches(root: MappingNode) -> Iterator[SchemaProblem]:
    """Mismatches of options that the schema does not know: those of packs that are not built in."""
    servers = _mapping_at(_mapping_at(root, "mcp"), "servers")
    for alias in servers.entries:
        server = _mapping_at(servers, alias)
        options, known = _mapping_at(server, "options"), builtin_options()
        pack = to_data(server.entries["pack"]) if "pack" in server.entries else []
        packs = pack if isinstance(pack, list) else [pack]
        for name, node in options.entries.items():
            path = ("mcp", "servers", alias, "options", name)
            if name in packs and name not in known:
                yield from _offered_option_mismatches(name, path, to_data(node))
            elif name not in known and isinstance(node, MappingNode):
                yield unknown(path[:-1], name, known)


def _mapping_at(node: MappingNode, key: str) -> MappingNode:
    inner = node.entries.get(key)
    return inner if isinstance(inner, MappingNode) else MappingNode(node.position)


def _offered_option_mismatches(
    pack: str, path: tuple[str, ...], options: JsonValue
) -> Iterator[SchemaProblem]:
    from aish.system.pack_index import options_class, options_schema

    try:
        kind = options_class(pack)
        schema = {"type": "object"} if kind is None else options_schema(kind)
    except (UsageError, UnavailableError, TypeError):
        return  # Its server does not start, and says why.
    if kind is None and isinstance(options, Mapping):
        for key in options:
            yield unknown(path, key, {})
    for problem in check(schema, options):
        yield replace(problem, path=(*path, *problem.path))


def _is_known(root: MappingNode, path: Sequence[str | int]) -> bool:
    """Return true if the value at a path is broken already, or may be in an unreadable part."""
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


def _problem_of(problem: SchemaProblem, root: MappingNode) -> Problem:
    node, key, path = _find(root, problem.path)
    if problem.keyword == "additionalProperties" and problem.key is not None:
        if (spelling := _without_gap(problem.key)) is not None:
            # What is behind the colon may be a key of a service.
            _, _, above = _find(root, problem.path[:-1])
            name, meant = spelling
            return Problem(key, join(above, name), f"unknown key `{name}:…`", meant)
        return Problem(key, path, f"unknown key `{problem.key}`", _unknown_hint(problem))
    if problem.keyword == "required" and problem.key is not None:
        outer = path[: -len(problem.key) - 1] if "." in path else ""
        hint = "write `aish: 1` at the top" if problem.path == ("aish",) else None
        if problem.key == "token_env":
            hint = "or `token_file`, a file that only its owner can read"
        if problem.key == "uri":
            hint = "or `query`, a question that passages are searched for"
        return Problem(key, outer, f"the key `{problem.key}` is missing", hint)
    position = key if node is None else node.position
    if (position.file, position.line) != (key.file, key.line):
        position = key
    return Problem(position, path, *_value_words(problem, node))


def _without_gap(text: str) -> tuple[str, str] | None:
    """The key in a text that is one with its value, `key:value`, and how it is written."""
    name, colon, rest = text.partition(":")
    if not (colon and rest and name in all_keys()):
        return None
    return name, f"write `{name}: …`, with a space after the colon"


def _spelling_hint(problem: SchemaProblem, node: Node | None) -> str | None:
    """The right spelling of a value with the wrong type."""
    if not problem.path:
        return None
    text = node.value if isinstance(node, ScalarNode) and isinstance(node.value, str) else ""
    if (meant := _without_gap(text)) is not None:
        return meant[1]
    if problem.path[:-1] == ("models",):
        return f"an entry of `models` is\n{model_entry(str(problem.path[-1]), text)}"
    return _MEANT.get(str(problem.path[-1]))


def _value_words(problem: SchemaProblem, node: Node | None) -> tuple[str, str | None]:
    if problem.keyword == "type":
        schema = SchemaPlace(pipeline_schema(), pipeline_schema()).along(problem.path).resolve()
        expected = schema.get("title") or " or ".join(
            _KINDS.get(str(name), str(name)) for name in problem.allowed
        )
        meant = _spelling_hint(problem, node)
        is_number = isinstance(node, ScalarNode) and type(node.value) in {int, float}
        kind = "a number" if is_number and expected == _variable_title() else _kind(node)
        return f"{expected} is expected here, and this is {kind}", meant
    if problem.keyword in {"enum", "const"} and isinstance(node, ScalarNode):
        value = node.value if isinstance(node.value, str) else json.dumps(node.value)
        choices = [choice.strip("'\"") for choice in problem.allowed]
        listed = backticked(choices)
        message = f"`{value}` is not {'one of ' if len(choices) > 1 else ''}{listed}"
        return message, did_you_mean(value, choices)
    if problem.keyword == "pattern" and problem.path:
        title = _titles().get(problem.message.partition(" does not match ")[2])
        if problem.path[-1] == "max_failures":
            title = "a number, or a percentage such as `5%`"
        # In place of a variable's name there may be its value.
        is_name = title == _variable_title() and isinstance(node, ScalarNode)
        value = "this" if is_name else f"`{_text_of(node, problem)}`"
        hint = "export the value, and write the variable's name here" if is_name else None
        if "deny_names" in problem.path:
            hint = _MEANT["deny_names"]
        if title is not None:
            return f"{value} is not {title}", hint
    if problem.keyword == "minLength":
        return "the text must not be empty", None
    if problem.keyword == "minItems":
        return "the list must not be empty", None
    return problem.message, None


def _text_of(node: Node | None, problem: SchemaProblem) -> str:
    """The text that does not match a pattern: the value, or the name of its key."""
    if isinstance(node, ScalarNode) and problem.message.startswith(show(node.value) + " "):
        return str(node.value)
    return str(problem.path[-1])


def _variable_title() -> str:
    return str(SchemaPlace(pipeline_schema(), {"$ref": "#/$defs/variable"}).resolve()["title"])


@cache
def _titles() -> Mapping[str, str]:
    """The meaning of the schema's patterns, by their text in problems."""
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
    for value in inner:
        yield from _mappings(value)


def _unknown_hint(problem: SchemaProblem) -> str | None:
    assert problem.key is not None
    if "key_env" in problem.allowed and problem.key in _OTHER_NAMES:
        return _OTHER_NAMES[problem.key]
    near = did_you_mean(problem.key, problem.allowed)
    listed = backticked(problem.allowed)
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
