"""Rules for calls as they were made: one call exactly, or several with globs (S8).

A rule names every argument and has room for no other. What looks like a glob and was a plain text
is pinned by a schema, since `when` would read it as a glob.
"""

from collections.abc import Iterator, Mapping, Sequence

from aish.core.frozen import frozen
from aish.core.json import JsonObject, JsonValue
from aish.core.rules import RuleEntry
from aish.core.tools import ToolName
from aish.policy.commands import Command, command_of, has_metacharacter, is_command_tool
from aish.policy.digest import canonical
from aish.policy.rules import LOCAL_COMMAND
from aish.policy.suggest_globs import family, glob_of, has_wildcard

_COMMAND_KEYS = ("argv", "command")
# `when` on a path speaks for `new_path` too, and a command has to be spelled out in `when`.
_IN_WHEN_TOO = frozenset({"new_path", *_COMMAND_KEYS})


@frozen
class Made:
    """A call of a tool with its arguments; `unknown` says why these are not what was sent."""

    tool: ToolName
    arguments: JsonObject
    unknown: str = ""


Group = tuple[Made, ...]
_Fields = Mapping[str, JsonValue]


def exact_rules(call: Made) -> Iterator[RuleEntry]:
    """Rules that approve this call and no other, the most readable first."""
    if not is_command_tool(call.tool):
        yield _by_arguments(call.tool, call.arguments)
        return
    command = command_of(call.arguments)
    if command is None:
        return
    words = _spelled_words(command)
    if words is not None:
        yield _by_words(call.tool, words, _beside(call.arguments))
    yield _by_arguments(call.tool, call.arguments)


def groups(calls: Sequence[Made]) -> Iterator[tuple[Group, RuleEntry | None]]:
    """The calls of one tool, in groups that one rule with globs can have; `None` for single ones.

    Which rule may be used is for the caller to find out.
    """
    parts: dict[object, list[Made]] = {}
    for call in calls:
        parts.setdefault(_kind(call), []).append(call)
    for part in parts.values():
        yield from _split(part)


def _split(part: list[Made]) -> Iterator[tuple[Group, RuleEntry | None]]:
    """A part whose arguments are of the same families, split where they share too little."""
    fields = [_fields(call) for call in part]
    first = fields[0]
    globs: dict[str, str | None] = {
        name: glob_of([str(one[name]) for one in fields])
        for name in first
        if any(canonical(one[name]) != canonical(first[name]) for one in fields)
    }
    if not globs:
        yield from (((call,), None) for call in part)
        return
    stuck = [name for name, glob in globs.items() if glob is None]
    if not stuck:
        yield tuple(part), _rule(part[0], {**first, **globs})
        return
    smaller: dict[str, list[Made]] = {}
    for call, one in zip(part, fields, strict=True):
        smaller.setdefault(canonical([one[name] for name in stuck]), []).append(call)
    for rest in smaller.values():
        yield from _split(rest)


def _kind(call: Made) -> object:
    """What calls have in common that one rule may have: families of texts, all else as it is."""
    fields = _fields(call)
    words = _plain_words(call)
    fixed = {"0"} if words is not None else set()

    def kind(name: str, value: JsonValue) -> object:
        found = None if name in fixed else family(value)
        return canonical(value) if found is None else found

    kinds = tuple(sorted((name, repr(kind(name, value))) for name, value in fields.items()))
    return (words is not None, len(fields), kinds)


def _fields(call: Made) -> _Fields:
    """What may vary: the words of a command, by their numbers, or the arguments."""
    words = _plain_words(call)
    if words is None:
        return call.arguments
    numbered = {str(number): word for number, word in enumerate(words)}
    return {**numbered, **{f" {name}": one for name, one in _beside(call.arguments).items()}}


def _rule(call: Made, fields: _Fields) -> RuleEntry:
    words = _plain_words(call)
    if words is None:
        return _by_arguments(call.tool, call.arguments, fields)
    pattern = tuple(str(fields[str(number)]) for number in range(len(words)))
    beside = {name[1:]: one for name, one in fields.items() if name.startswith(" ")}
    return _by_words(call.tool, pattern, beside)


def _plain_words(call: Made) -> tuple[str, ...] | None:
    """The words of a command that no shell would read otherwise."""
    command = command_of(call.arguments) if is_command_tool(call.tool) else None
    words = None if command is None else command.words
    if words is None or any(map(has_metacharacter, words)):
        return None
    return words


def _spelled_words(command: Command) -> tuple[str, ...] | None:
    """The words as a pattern that has nothing but them."""
    raw = command.raw
    if command.words is not None:
        words = command.words
    elif isinstance(raw, Sequence) and not isinstance(raw, str):
        words = tuple(map(str, raw))
    else:
        return None
    return None if any(map(has_wildcard, words)) else words


def _beside(arguments: JsonObject) -> JsonObject:
    return {name: value for name, value in arguments.items() if name not in _COMMAND_KEYS}


def _by_words(tool: ToolName, words: tuple[str, ...], beside: JsonObject) -> RuleEntry:
    if tool == LOCAL_COMMAND:
        # It has no further arguments: its own schema, checked before any rule, sees to that.
        return RuleEntry(str(tool), command=words)
    conditions = _by_arguments(tool, beside)
    schema: JsonObject = {**(conditions.schema or {}), "maxProperties": len(beside) + 1}
    return RuleEntry(str(tool), when=conditions.when, schema=schema, command=words)


def _by_arguments(
    tool: ToolName, arguments: JsonObject, patterns: _Fields | None = None
) -> RuleEntry:
    """Each argument with its value, or with the pattern that stands for it."""
    pinned = {
        name: value
        for name, value in arguments.items()
        if isinstance(value, str)
        and has_wildcard(value)
        and (patterns is None or patterns[name] == value)
    }
    when = {
        name: value
        for name, value in (patterns or arguments).items()
        if name not in pinned or name in _IN_WHEN_TOO
    }
    schema: dict[str, JsonValue] = {}
    if pinned:
        schema["required"] = list(pinned)
        schema["properties"] = {name: {"const": value} for name, value in pinned.items()}
    schema["maxProperties"] = len(arguments)
    return RuleEntry(str(tool), when=when, schema=schema)
