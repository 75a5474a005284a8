"""Rules as YAML in the form of a pipeline file."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence

from aish.core.json import JsonObject, JsonValue
from aish.core.rules import RuleEntry
from aish.core.text import for_ci_log, for_terminal

_WIDEST = 100
_PLAIN = re.compile(
    r"-{0,2}[A-Za-z][A-Za-z0-9_]*(?:[./*-]+[A-Za-z0-9_]+)*(?:[./-]*[*])?\Z", re.ASCII
)
# Words that some YAML parsers do not read as text.
_NO_TEXTS = frozenset({"true", "false", "null", "yes", "no", "on", "off", "y", "n"})
_BASIC_PLANE = 0xFFFF


def rules_yaml(rules: Iterable[RuleEntry], indent: int = 0) -> str:
    """The items of a list, one rule each; every line ends in a line break."""
    return "".join(f"{' ' * indent}{line}\n" for rule in rules for line in _lines(rule, indent))


def rule_flow(rule: RuleEntry) -> str:
    """A rule in one line."""
    return _flow(rule_data(rule))


def rule_data(rule: RuleEntry) -> JsonValue:
    """A rule as data of a file: its glob alone, or a mapping."""
    data: dict[str, JsonValue] = {"tool": rule.tool}
    if rule.when:
        data["when"] = rule.when
    if rule.schema is not None:
        data["schema"] = rule.schema
    if rule.command is not None:
        data["command"] = list(rule.command)
    return data if len(data) > 1 else rule.tool


def _lines(rule: RuleEntry, indent: int) -> list[str]:
    data = rule_data(rule)
    line = f"- {_flow(data)}"
    if len(line) + indent <= _WIDEST or not isinstance(data, Mapping):
        return [line]
    lines = [f"{name}: {_flow(value)}" for name, value in data.items()]
    return [f"- {lines[0]}", *(f"  {line}" for line in lines[1:])]


def _flow(value: JsonValue) -> str:
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, Mapping):
        return _flow_mapping(value)
    if isinstance(value, Sequence):
        return f"[{', '.join(map(_flow, value))}]"
    return json.dumps(value)


def _flow_mapping(value: JsonObject) -> str:
    return "{" + ", ".join(f"{_text(name)}: {_flow(one)}" for name, one in value.items()) + "}"


def _text(text: str) -> str:
    if _PLAIN.match(text) and text.lower() not in _NO_TEXTS:
        return text
    quoted = '"' + "".join(map(_character, text)) + '"'
    # `##[` may be a command to a CI runner anywhere in a line.
    return quoted if for_ci_log(quoted) == quoted else quoted.replace("#", "\\u0023")


def _character(character: str) -> str:
    """A character in double quotes; invisible characters are escaped."""
    if character in {'"', "\\"}:
        return "\\" + character
    if character == "\n":
        return "\\n"
    if character == "\t":
        return "\\t"
    if character.isprintable() and for_terminal(character) == character:
        return character
    code = ord(character)
    return f"\\U{code:08x}" if code > _BASIC_PLANE else f"\\u{code:04x}"
