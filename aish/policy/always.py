"""What an "always" would store: the narrowest rule for calls like one that is asked about (P2)."""

from dataclasses import replace

from aish.core.json import JsonObject, JsonValue
from aish.core.rules import RuleEntry
from aish.core.tools import Tool
from aish.policy.rules import Command, command_of, is_command_tool, split_glob

_WILDCARDS = frozenset("*?")
_COMMAND_KEYS = frozenset({"argv", "command"})


def exact_entry(tool: Tool, arguments: JsonObject) -> RuleEntry | None:
    """The rule by the tool's exact name; of a command, with its exact words too.

    `None` where no rule can be that exact: what has a `*` in it is a wildcard in a rule.
    """
    glob = str(tool.name)
    if _has_wildcard(glob) or split_glob(glob) != (tool.name.server, tool.name.name):
        return None
    entry = RuleEntry(tool=glob)
    if not any(map(is_command_tool, tool.names)):
        return entry
    command = command_of(arguments)
    return None if command is None else _exact_command(entry, arguments, command)


def _exact_command(entry: RuleEntry, arguments: JsonObject, command: Command) -> RuleEntry | None:
    """The rule for a command as it is and where it is: in this folder, with this input."""
    around = {key: value for key, value in arguments.items() if key not in _COMMAND_KEYS}
    if any(map(_has_wildcard, (command.raw, *around.values()))):
        return None
    if isinstance(command.raw, str) and command.words is None:
        # Only a shell knows the words of this, so the rule has the text.
        return replace(entry, when={**around, "command": command.raw})
    words = command.words or command.raw
    assert isinstance(words, (tuple, list))
    return replace(entry, when=around, command=tuple(map(str, words)))


def _has_wildcard(value: JsonValue) -> bool:
    if isinstance(value, str):
        return not _WILDCARDS.isdisjoint(value)
    return isinstance(value, (tuple, list)) and any(map(_has_wildcard, value))
