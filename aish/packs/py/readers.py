"""Readers of one file for the tools of `py`: data in, JSON out.

Runs in the child process that parses, so it imports little.
"""

import re
import sys
import warnings
from bisect import bisect_right
from collections.abc import Callable
from functools import lru_cache, wraps
from typing import Any

from aish.packs.pack_error import PackError
from aish.packs.py.definitions import (
    CodeBlock,
    Module,
    Statement,
    find_definitions,
    find_statements,
    parse_module,
    single,
)
from aish.packs.py.source_code import SourceCode, encoding_of, line_starts

_PLAIN_NEWLINE = re.compile(rb"(?<!\\)(?:\r\n|\r|\n)")
_ROLE = re.compile(
    rb"@[ \t]*(?:\w+\.)*(property|cached_property|getter|setter|deleter|classmethod|staticmethod)\b"
)
_KINDS = {"cached_property": "property", "getter": "property"}


# A file is asked about several times in a row: its outline, then what is in it.
_module = lru_cache(maxsize=1)(parse_module)


def _reader(function: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
    """Give a function the module of the bytes that the worker has."""

    @wraps(function)
    def read(data: bytes, *, path: str, **options: Any) -> dict[str, Any]:
        return function(_module(data, path), **options)

    return read


@_reader
def outline(module: Module) -> dict[str, Any]:
    line_of = module.source.line_of
    items = []
    names: dict[Statement, tuple[str, int]] = {}
    for statement in module.definitions:
        scope = statement.block.scope
        if scope is None:
            name, depth = statement.name, 0
        else:
            prefix, level = names[scope]
            name, depth = f"{prefix}.{statement.name}", level + 1
        names[statement] = name, depth
        items.append({
            "kind": _kind(module, statement) if statement.is_method else statement.kind,
            "name": name,
            "start_line": line_of(statement.start),
            "def_line": line_of(statement.at),
            "end_line": line_of(max(statement.end - 1, statement.at)),
            "depth": depth,
        })  # fmt: skip
    return {"items": items, "broken": _error_lines(module)}


@_reader
def skeleton(module: Module) -> dict[str, Any]:
    """The code with the bodies of functions left out; docstrings stay."""
    code = module.source.code
    pieces = []
    end = 0
    for statement in module.definitions:
        if statement.kind == "function" and statement.at >= end and statement.blocks:
            start, text = _omission(module, statement)
            if start < statement.end:
                pieces += [code[end:start], text]
                end = statement.end
    pieces.append(code[end:])
    whole = b"".join(pieces).decode("utf-8", "replace")
    return {"skeleton": whole, "broken": _error_lines(module)}


def _error_lines(module: Module) -> list[int]:
    """The lines of errors: what Python finds, and where tree-sitter had to mend."""
    errors, _ = _errors(module.source.data, module.source.path)
    return sorted({*module.broken, *(error["line"] for error in errors)}) if errors else []


def _omission(module: Module, function: Statement) -> tuple[int, bytes]:
    """Find the part of a function that a skeleton leaves out, and its replacement."""
    code = module.source.code
    statements = module.body(function).statements
    if not statements:
        return function.end, b""
    docstring = module.docstring(module.body(function))
    rest = statements[1:] if docstring else statements
    if not rest:
        return function.end, b""
    before = docstring[1].end if docstring else module.colon(function) + 1
    newline = _PLAIN_NEWLINE.search(code, before, rest[0].start)
    if newline is None:
        return rest[0].start, b"..."
    indent = module.indent(statements[0])
    return newline.start(), newline.group() + (indent or b"") + b"..."


@_reader
def definition(module: Module, name: str, line: int | None) -> dict[str, Any]:
    """The code of the definitions of a name, whole lines where nothing else is before it."""
    rows = []
    for statement in find_definitions(module, name, line):
        start, end = definition_span(module, statement)
        rows.append({
            "source": module.source.text(start, end),
            "start_line": module.source.line_of(statement.start),
            "end_line": module.source.line_of(max(statement.end - 1, statement.at)),
        })  # fmt: skip
    return {"definitions": rows}


def definition_span(module: Module, each: Statement) -> tuple[int, int]:
    """The bytes of a definition: with the indentation of its first line, and all of its last."""
    return each.start - len(module.indent(each) or b""), module.end_with_tail(each)


@_reader
def signature(module: Module, name: str, line: int | None) -> dict[str, Any]:
    """The signatures of the definitions of a name, without the colon."""
    rows = [_signature(module, statement) for statement in find_definitions(module, name, line)]
    return {"signatures": rows}


def _signature(module: Module, statement: Statement) -> dict[str, Any]:
    start, end = module.signature_span(statement)
    return {"signature": module.source.text(start, end), "start_line": module.source.line_of(start)}


@_reader
def docstring(module: Module, name: str, line: int | None) -> dict[str, Any]:
    """The docstring of a module or definition, without its indentation; null if there is none."""
    named = find_definitions(module, name, line) if name else []
    block = module.body(single(module, named, name)) if name else module.top
    text, lines = _docstring(module, block)
    return {"docstring": text, "start_line": lines[0], "end_line": lines[1]}


def _docstring(
    module: Module, block: CodeBlock
) -> tuple[str | None, tuple[int | None, int | None]]:
    value = module.docstring(block)
    if value is None:
        return None, (None, None)
    text, statement = value
    line_of = module.source.line_of
    return clean_docstring(text), (line_of(statement.start), line_of(statement.end - 1))


def clean_docstring(text: str) -> str:
    """A docstring without the indentation of its lines, as `inspect.cleandoc` gives it."""
    # That module takes 30 ms to import.
    lines = text.expandtabs().split("\n")
    margin = min((len(line) - len(line.lstrip()) for line in lines[1:] if line.strip()), default=0)
    lines = [lines[0].lstrip(), *(line[margin:] for line in lines[1:])]
    return "\n".join(lines).strip("\n")


@_reader
def class_summary(module: Module, name: str, line: int | None) -> dict[str, Any]:
    classes = [(each.dotted, each) for each in module.definitions if each.is_class]
    subject = single(module, find_statements(module, classes, name, line), name)
    methods = [
        {"name": statement.name, "kind": _kind(module, statement), **_signature(module, statement)}
        for statement in module.definitions
        if statement.kind == "function" and statement.block.scope is subject
    ]
    return {
        "name": subject.dotted,
        "bases": module.bases(subject),
        "docstring": _docstring(module, module.body(subject))[0],
        "methods": methods,
        "attributes": _attributes(module, subject),
    }


def _kind(module: Module, method: Statement) -> str:
    roles = _ROLE.findall(module.source.code, method.start, method.at)
    return _KINDS.get(roles[-1].decode(), roles[-1].decode()) if roles else "method"


def _attributes(module: Module, subject: Statement) -> list[dict[str, Any]]:
    """The assignments in a class, outside of its methods."""
    source = module.source
    rows = []
    for statement in module.statements():
        if statement.block.scope is subject:
            for name in module.targets(statement):
                text = source.text(statement.start, statement.end)
                line = source.line_of(statement.start)
                rows.append({"name": name, "source": text, "start_line": line})
    return rows


@_reader
def declaration(module: Module, name: str, line: int | None) -> dict[str, Any]:
    line_of = module.source.line_of
    rows = [
        {
            "source": module.source.text(statement.start, statement.end),
            "start_line": line_of(statement.start),
            "end_line": line_of(statement.end - 1),
        }
        for statement in find_statements(module, module.declarations(), name, line)
    ]
    return {"declarations": rows}


@_reader
def imports(module: Module) -> dict[str, Any]:
    """Imports of a file, in functions too."""
    items = [row for statement in module.statements() for row in module.import_rows(statement)]
    items.sort(key=lambda row: int(row["line"]))
    modules = ["." * row["level"] + row["module"] for row in items]
    return {"modules": list(dict.fromkeys(modules)), "items": items}


def syntax(data: bytes, *, path: str) -> dict[str, Any]:
    """Check that the running Python compiles a file, and list its errors."""
    errors, may_be_newer = _errors(data, path)
    newer = may_be_newer and _is_newer(data, path)
    version = f"Python {sys.version_info.major}.{sys.version_info.minor}"
    return {"ok": not errors, "errors": errors, "grammar": version, "newer": newer}


@lru_cache(maxsize=1)
def _errors(data: bytes, path: str) -> tuple[list[dict[str, Any]], bool]:
    """Ask the running Python for errors of a file, and tell if a newer one may accept it."""
    try:
        with warnings.catch_warnings(action="ignore"):
            compile(data, path, "exec", dont_inherit=True)
    except SyntaxError as error:
        problem, is_syntax = _error(error.lineno, error.offset, error.msg), True
    except (ValueError, RecursionError, MemoryError) as error:
        message = str(error) if b"\0" in data else f"too deeply nested ({type(error).__name__})"
        problem, is_syntax = _error(1, 1, message), False
    else:
        return [], False
    null = data.find(b"\0")
    if null >= 0 and not encoding_of(data)[0]:
        # Which no version of Python says by a line.
        line = bisect_right(line_starts(data), null)
        problem = _error(line, 1, "source code cannot contain null bytes")
    return [problem], is_syntax


def _error(line: int | None, column: int | None, message: str) -> dict[str, Any]:
    return {"line": max(line or 1, 1), "column": max(column or 1, 1), "message": message}


def _is_newer(data: bytes, path: str) -> bool:
    """Return true if tree-sitter reads the file."""
    try:
        return not Module(SourceCode(data, path)).broken
    except PackError:
        return False
