"""An exported pipeline as YAML that a person likes to review (S7). Pure."""

from collections.abc import Iterator, Sequence
from typing import Any

from aish.core.json import JsonObject, JsonValue
from aish.core.text import for_line
from aish.output.formats.text import yaml_text
from aish.policy.rule_yaml import rules_yaml
from aish.shell.exporting.pipeline import Draft
from aish.shell.exporting.steps import Step

_WIDEST = 100
_IN_LINE = frozenset({"needs", "tools", "attach", "run", "tool_sequence"})
_HEADER = """\
# Exported from a session of `aish shell`: each question is a step that goes on with the
# conversation. `aish test {name}` replays it, `aish run {name}` does it all again.
"""
_RULES = "  # The calls that were made, and no others.\n"


def layout(draft: Draft, name: str) -> str:
    """The file's text."""
    parts = (
        _HEADER.format(name=for_line(name)) + _block(draft.head[""]),
        _block(draft.head["models"]),
        _block(draft.head["bounds"]),
        _mcp(draft),
        "steps:\n" + "\n".join(map(_step, draft.steps)),
        _block(draft.tail),
    )
    return "\n".join(part for part in parts if part)


def _block(data: JsonObject, indent: int = 0) -> str:
    return "".join(_lines(data, " " * indent))


def _mcp(draft: Draft) -> str:
    rules = draft.suggestion.rules
    if not (draft.mcp or rules):
        return ""
    own = {key: value for key, value in draft.mcp.items() if key == "servers"}
    rest = {key: value for key, value in draft.mcp.items() if key != "servers"}
    text = "mcp:\n" + _block(own, 2)
    if rules:
        text += f"{_RULES}  auto_approve:\n{rules_yaml(rules, 4)}"
    return text + _block(rest, 2)


def _step(step: Step) -> str:
    remarks = "".join(f"  # {for_line(remark)}\n" for remark in step.remarks)
    text = _block(step.data, 4)
    return f"{remarks}  - {text[4:]}"


def _lines(data: JsonObject, margin: str) -> Iterator[str]:
    for key, value in data.items():
        yield from _pair(key, value, margin)


def _pair(key: str, value: JsonValue, margin: str) -> Iterator[str]:
    if key in _IN_LINE and isinstance(value, Sequence) and not isinstance(value, str):
        line = f"{margin}{key}: [{', '.join(yaml_text(one).strip() for one in value)}]\n"
        if len(line) <= _WIDEST:
            yield line
            return
    if key == "tests":
        yield f"{margin}tests:\n"
        yield from _tests(value, margin)
        return
    for line in yaml_text({key: value}).removesuffix("\n").split("\n"):
        yield f"{margin}{line}\n" if line else "\n"


def _tests(tests: Any, margin: str) -> Iterator[str]:
    for test in tests:
        yield f"{margin}  - name: {test['name']}\n"
        if "expect" not in test:
            continue
        yield f"{margin}    expect:\n"
        for one in test["expect"]:
            text = _block(one, len(margin) + 8)
            yield f"{margin}      - {text[len(margin) + 8 :]}"
