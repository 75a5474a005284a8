"""Summaries of Python, TOML, YAML, JSON and Markdown.

Runs in the child that parses untrusted input, and imports a parser only for what it parses. Nothing
is constructed of YAML: its keys are read off the events, so that no alias is followed.
"""

import ast
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

_MOST_ROWS = 100
_MOST_NAMES = 40
_MOST_BELOW = 10_000
"""Keys that are counted below one key of YAML."""
_LEVELS = 2
_DEEPEST = 200
_TOO_DEEP = "nested too deeply"
_LONGEST = 200
"""Characters of a row, and of a name in it."""
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]+")


def python_summary(source: bytes) -> str:
    """Imports, classes, functions and constants."""
    try:
        with warnings.catch_warnings(action="ignore"):
            module = ast.parse(source)
    except SyntaxError as error:
        return f"not valid Python: line {error.lineno}: {_clip_name(error.msg)}"
    except (ValueError, RecursionError, MemoryError):
        return "not valid Python, or nested too deeply"
    imports: dict[str, None] = {}
    constants: dict[str, None] = {}
    rows: list[str] = []
    for node in _statements(module):
        match node:
            case ast.Import():
                imports |= dict.fromkeys(alias.name for alias in node.names)
            case ast.ImportFrom():
                imports["." * node.level + (node.module or "")] = None
            case ast.ClassDef():
                rows.append(_class_row(node))
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                rows.append(f"{_function(node)}, lines {node.lineno}-{node.end_lineno}")
            case ast.Assign() | ast.AnnAssign():
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                names = [target.id for target in targets if isinstance(target, ast.Name)]
                constants |= dict.fromkeys(name for name in names if name.isupper())
    head = [f"imports: {_join_names(imports)}"] if imports else []
    tail = [f"constants: {_join_names(constants)}"] if constants else []
    return _rows([*head, *tail, *rows])


def _statements(module: ast.Module) -> Iterator[ast.stmt]:
    """The statements of a module, and those that it runs on a condition."""
    pending: list[ast.stmt] = list(reversed(module.body))
    while pending:
        node = pending.pop()
        yield node
        inner: list[ast.stmt] = []
        if isinstance(node, ast.If | ast.Try | ast.TryStar):
            inner += node.body
            inner += [one for handler in getattr(node, "handlers", ()) for one in handler.body]
            inner += node.orelse
        elif isinstance(node, ast.With):
            inner += node.body
        pending.extend(reversed(inner))


def _class_row(node: ast.ClassDef) -> str:
    bases = ", ".join(_source_of(base) for base in node.bases[:_MOST_NAMES])
    methods = dict.fromkeys(
        one.name for one in node.body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)
    )
    head = f"class {node.name}({bases})" if bases else f"class {node.name}"
    suffix = f": {_join_names(methods)}" if methods else ""
    return f"{head}, lines {node.lineno}-{node.end_lineno}{suffix}"


def _function(node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    kind = "async def" if isinstance(node, ast.AsyncFunctionDef) else "def"
    arguments = node.args
    names = [argument.arg for argument in (*arguments.posonlyargs, *arguments.args)]
    if arguments.vararg is not None:
        names.append(f"*{arguments.vararg.arg}")
    elif arguments.kwonlyargs:
        names.append("*")
    names += [argument.arg for argument in arguments.kwonlyargs]
    if arguments.kwarg is not None:
        names.append(f"**{arguments.kwarg.arg}")
    return f"{kind} {node.name}({_join_names(names)})"


def _source_of(base: ast.expr) -> str:
    """A base class, if it is a name."""
    parts: list[str] = []
    node = base.value if isinstance(base, ast.Subscript) else base
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else "…"


def toml_summary(source: bytes) -> str:
    """The keys of two levels."""
    import tomllib

    try:
        data = tomllib.loads(source.decode("utf-8", "replace"))
    except (ValueError, RecursionError) as error:
        return f"not valid TOML: {_clip_name(str(error))}"
    return _rows(_keys(data))


def json_summary(source: bytes) -> str:
    """The keys of two levels."""
    import json

    try:
        data = json.loads(source.decode("utf-8", "replace"))
    except (ValueError, RecursionError) as error:
        return f"not valid JSON: {_clip_name(str(error))}"
    return _rows(_keys(data))


_COMMENTS = re.compile(rb'"(?:\\.|[^"\\])*+"|//[^\n]*+|/\*(?:[^*]|\*(?!/))*+(?:\*/)?')
_COMMA = re.compile(rb'"(?:\\.|[^"\\])*+"|,(?=[ \t\r\n]*+[\]}])')


def jsonc_summary(source: bytes) -> str:
    """The keys of two levels of JSON with comments, and with commas behind the last of a list."""
    plain = _COMMENTS.sub(_strings_only, source)
    return json_summary(_COMMA.sub(_strings_only, plain))


def _strings_only(match: re.Match[bytes]) -> bytes:
    return match[0] if match[0].startswith(b'"') else b" "


def _keys(data: object) -> Iterator[str]:
    """A row for each key of the first level, with those below it."""
    if isinstance(data, Mapping):
        for name, value in data.items():
            yield f"{_clip_name(str(name))}{_below(value)}"
    elif isinstance(data, list):
        yield f"a list of {len(data):,}{_below(data[0] if data else None)}"
    else:
        yield "a single value"


def _below(value: object) -> str:
    if isinstance(value, Mapping):
        return f": {_join_names(str(name) for name in value)}"
    if isinstance(value, list):
        suffix = f" (list of {len(value):,})"
        names: dict[str, None] = {}
        for item in value[:_MOST_NAMES]:
            if isinstance(item, Mapping):
                names |= dict.fromkeys(str(name) for name in item)
        return f"{suffix}: {_join_names(names)}" if names else suffix
    return ""


def yaml_summary(source: bytes) -> str:
    """The keys of two levels, of each document."""
    import yaml

    loader: Any = getattr(yaml, "CLoader", yaml.SafeLoader)
    try:
        return _rows(_yaml_rows(yaml.parse(source, Loader=loader)))
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        problem = str(getattr(error, "problem", None) or error.args[0])
        # Newer parsers refuse deep nesting by themselves, before they report what is nested.
        if "nesting" in problem:
            return f"not valid YAML: {_TOO_DEEP}"
        mark = getattr(error, "problem_mark", None)
        where = "" if mark is None else f"line {mark.line + 1}: "
        return f"not valid YAML: {where}{_clip_name(problem)}"


def _yaml_rows(events: Iterable[Any]) -> Iterator[str]:
    import yaml

    keys = _YamlKeys()
    for event in events:
        if isinstance(event, yaml.DocumentEndEvent):
            yield from keys.rows()
            yield "---"
            keys = _YamlKeys()
        elif isinstance(event, yaml.CollectionStartEvent):
            keys.value("")
            keys.start(is_mapping=isinstance(event, yaml.MappingStartEvent))
        elif isinstance(event, yaml.CollectionEndEvent):
            keys.end()
        elif isinstance(event, yaml.NodeEvent):
            keys.value(event.value if isinstance(event, yaml.ScalarEvent) else "")


class _YamlKeys:
    """The keys of a document and those one level below, read off its events.

    Lists are looked through: the keys of what is in a list belong to the key of the list.
    """

    def __init__(self) -> None:
        self._keys: dict[str, dict[str, None]] = {}
        self._name = ""
        self._mappings = 0
        # For each open mapping whether a key comes next, and `None` for a list.
        self._open: list[bool | None] = []

    def start(self, *, is_mapping: bool) -> None:
        """A mapping or a list begins.

        Raises:
            RecursionError: it is nested too deeply; the parser needs time with the square of it.
        """
        if len(self._open) >= _DEEPEST:
            raise RecursionError(_TOO_DEEP)
        self._mappings += is_mapping
        self._open.append(True if is_mapping else None)

    def end(self) -> None:
        self._mappings -= self._open.pop() is not None

    def value(self, text: str) -> None:
        """A scalar, or whatever else is a key, a value or an entry of a list."""
        if not self._open or self._open[-1] is None:
            return
        if self._open[-1] and text and self._mappings <= _LEVELS:
            if self._mappings == 1:
                self._name = text[:_LONGEST]
            below = self._keys.setdefault(self._name, {})
            if self._mappings > 1 and len(below) <= _MOST_BELOW:
                below[text[:_LONGEST]] = None
        self._open[-1] = not self._open[-1]

    def rows(self) -> list[str]:
        return [
            f"{_clip_name(name)}: {_join_names(below)}" if below else _clip_name(name)
            for name, below in self._keys.items()
        ]


_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")
_HEADING = re.compile(r" {0,3}(#{1,6})(?:[ \t]+(.*))?$")
_UNDERLINE = re.compile(r" {0,3}(=+|-+)[ \t]*$")
_NO_PARAGRAPH = re.compile(r" {0,3}(?:[#>|<]|[-*+][ \t]|\d+[.)][ \t]|$)|[ \t]{4}|[ \t]*$")


def markdown_summary(source: bytes) -> str:
    """The headings with their lines, indented by their level."""
    lines = source.decode("utf-8", "replace").split("\n")
    start = 0
    if lines[0].rstrip() == "---":
        # What is before the text is YAML.
        ends = (number for number, line in enumerate(lines[1:], 1) if line.rstrip() == "---")
        start = next(ends, -1) + 1
    rows: list[str] = []
    fence = previous = ""
    for number, raw in enumerate(lines[start:], start + 1):
        line = raw.rstrip("\r")
        mark = _FENCE.match(line)
        if fence:
            if mark is not None and mark[1].startswith(fence) and not line.strip(" \t`~"):
                fence = ""
        elif mark is not None:
            fence, previous = mark[1], ""
        elif heading := _HEADING.match(line):
            title = re.sub(r"(?:^|[ \t])#+[ \t]*$", "", heading[2] or "")
            rows.append(_heading(number, len(heading[1]), title))
            previous = ""
        elif (under := _UNDERLINE.match(line)) and not _NO_PARAGRAPH.match(previous):
            rows.append(_heading(number - 1, 1 if under[1][0] == "=" else 2, previous))
            previous = ""
        else:
            previous = line
    return _rows(rows)


def _heading(number: int, level: int, title: str) -> str:
    return f"line {number}: {'#' * level} {_clip_name(title.strip())}"


def _clip_name(text: str) -> str:
    """A name on one line, and not too long."""
    clean = _CONTROL.sub(" ", text[: 2 * _LONGEST]).strip()
    return clean if len(clean) <= _LONGEST else clean[:_LONGEST] + "…"


def _join_names(names: Iterable[str]) -> str:
    parts: list[str] = []
    size = more = 0
    for name in names:
        size += min(len(name), _LONGEST) + 2
        if len(parts) < _MOST_NAMES and (size <= 2 * _LONGEST or not parts):
            parts.append(_clip_name(name))
        else:
            more += 1
    return ", ".join(parts) + (f" and {more:,} more" if more else "")


def _rows(rows: Iterable[str]) -> str:
    lines: list[str] = []
    more = 0
    for row in rows:
        if len(lines) < _MOST_ROWS:
            lines.append(row)
        else:
            more += 1
    # Documents end with a separator.
    if lines and lines[-1] == "---":
        lines.pop()
    return "\n".join([*lines, f"… {more:,} more"] if more else lines)
