"""`expect`, `tests` and `cassette` as declared (C4, C12, F12)."""

from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import Literal

from aish.core.frozen import frozen
from aish.core.json import JsonValue

ExpectKind = Literal[
    "contains",
    "not_contains",
    "equals",
    "matches",
    "schema",
    "expression",
    "tool_called",
    "tool_not_called",
    "tool_sequence",
    "max_tool_calls",
    "max_tokens",
    "max_cost_usd",
    "max_seconds",
    "snapshot",
    "judge",
]


@frozen
class ToolMatch:
    """Calls that an expectation is about: a glob `alias__tool`, and arguments (`with` in the file).

    These are compared as those of a rule's `when`.
    """

    tool: str
    arguments: Mapping[str, JsonValue] = field(default_factory=dict)


@frozen
class Expectation:
    """One item of `expect` (F12). `where` is its place in the file: `tests[0].expect[1]`.

    `value` is the text, the regex, the expression, the number, or the JSON Schema (already read).
    `path` leads into the result (`outputs.notes`); `None` means the text. `tools` and `exact` are
    those of the `tool_*` kinds. `file` is where a `snapshot` is kept, or where a `schema` was read
    from, absolute. `model` is the alias of a `judge`, whose `value` is the rubric. Every text but
    an expression is a template, rendered when the expectation is checked.
    """

    kind: ExpectKind
    value: JsonValue = None
    where: str = ""
    path: str | None = None
    tools: tuple[ToolMatch, ...] = ()
    exact: bool = False
    file: Path | None = None
    model: str | None = None


@frozen
class CassetteSettings:
    """`cassette`, at the top or in a test: a path alone, or this; `path` is absolute (C4, C5, C8).

    `strict` of `None` means what the command has as its default. `name` is the path as the file
    has it, a template where it is that of a test with `foreach`.
    """

    path: Path
    ignore: tuple[str, ...] = ()
    strict: bool | None = None
    allow: tuple[str, ...] = ()
    name: str = ""


@frozen
class CaseRows:
    """`foreach` of a test: a file whose rows are cases, relative to `folder`.

    Templates call the row `name` (`as` in the file); `key` is an expression for a row's name.
    `delimiter` stands between the values of a CSV file.
    """

    file: str
    folder: Path
    name: str = "item"
    key: str | None = None
    delimiter: str | None = None


@frozen
class Case:
    """One item of `tests` (C12). `where` is its place in the file: `tests[0]`.

    `inputs` are those the file gives, without defaults. A `cassette` of `None` means the file's.
    With `rows` it stands for many cases, and its texts are templates; `names` are what those of a
    case that was made of a row see.
    """

    name: str
    inputs: Mapping[str, JsonValue] = field(default_factory=dict)
    stdin: str | None = None
    cassette: CassetteSettings | None = None
    expect: tuple[Expectation, ...] = ()
    where: str = ""
    rows: CaseRows | None = None
    names: Mapping[str, JsonValue] = field(default_factory=dict)
