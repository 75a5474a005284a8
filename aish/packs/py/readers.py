"""What the tools of `py` tell of one file: data in, JSON out (K28, K30, K31).

Runs in the child process that parses, so it imports little.
"""

import re
import sys
import warnings
from bisect import bisect_right
from typing import Any

from aish.packs.pack_error import PackError
from aish.packs.py.definitions import (
    Block,
    Module,
    Statement,
    TreeSitterModule,
    found,
    parsed,
    single,
)
from aish.packs.py.source_code import Source, encoding_of, line_starts

_PLAIN_NEWLINE = re.compile(rb"(?<!\\)(?:\r\n|\r|\n)")


_ROLE = re.compile(
    rb"@[ \t]*(?:\w+\.)*(property|cached_property|getter|setter|deleter|classmethod|staticmethod)\b"
)
_KINDS = {"cached_property": "property", "getter": "property"}


def outline(data: bytes, *, path: str, tree_sitter: bool) -> dict[str, Any]:
    """The definitions of a file, in their order."""
    module = _read(data, path, tree_sitter=tree_sitter)
    line_of = module.source.line_of
    items = []
    names: dict[Statement, tuple[str, int]] = {}
    for each in module.definitions:
        scope = each.block.scope
        if scope is None:
            name, depth = each.name, 0
        else:
            prefix, level = names[scope]
            name, depth = f"{prefix}.{each.name}", level + 1
        names[each] = name, depth
        items.append({
            "kind": _kind(module, each) if each.is_method else each.kind,
            "name": name,
            "start_line": line_of(each.start),
            "def_line": line_of(each.at),
            "end_line": line_of(max(each.end - 1, each.at)),
            "depth": depth,
        })  # fmt: skip
    return _found(module, items=items, broken=_broken(module, data))


def skeleton(data: bytes, *, path: str, tree_sitter: bool) -> dict[str, Any]:
    """The code with the bodies of functions left out; docstrings stay."""
    module = _read(data, path, tree_sitter=tree_sitter)
    code = module.source.code
    pieces = []
    end = 0
    for each in module.definitions:
        if each.kind == "function" and each.at >= end and each.blocks:
            start, text = _left_out(module, each)
            if start < each.end:
                pieces += [code[end:start], text]
                end = each.end
    pieces.append(code[end:])
    whole = b"".join(pieces).decode("utf-8", "replace")
    return _found(module, skeleton=whole, broken=_broken(module, data))


def _broken(module: Module, data: bytes) -> list[int]:
    """The lines of errors: what Python finds, and where tree-sitter had to mend."""
    found = syntax(data, path=module.source.path, tree_sitter=False)["errors"]
    return sorted({*module.broken, *(each["line"] for each in found)}) if found else []


def _left_out(module: Module, function: Statement) -> tuple[int, bytes]:
    """Where the part of a function begins that a skeleton leaves out, and what replaces it."""
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


def definition(
    data: bytes, *, path: str, tree_sitter: bool, name: str, line: int | None
) -> dict[str, Any]:
    """The code of the definitions of a name, whole lines where nothing else is before it."""
    module = _read(data, path, tree_sitter=tree_sitter)
    rows = []
    for each in _named(module, name, line):
        start, end = definition_span(module, each)
        rows.append({
            "source": module.source.text(start, end),
            "start_line": module.source.line_of(each.start),
            "end_line": module.source.line_of(max(each.end - 1, each.at)),
        })  # fmt: skip
    return _found(module, definitions=rows)


def definition_span(module: Module, each: Statement) -> tuple[int, int]:
    """The bytes of a definition: with the indentation of its first line, and all of its last."""
    return each.start - len(module.indent(each) or b""), module.end_with_tail(each)


def signature(
    data: bytes, *, path: str, tree_sitter: bool, name: str, line: int | None
) -> dict[str, Any]:
    """The signatures of the definitions of a name, without the colon."""
    module = _read(data, path, tree_sitter=tree_sitter)
    rows = [_signature(module, each) for each in _named(module, name, line)]
    return _found(module, signatures=rows)


def _signature(module: Module, each: Statement) -> dict[str, Any]:
    start, end = module.signature_span(each)
    return {
        "signature": module.source.text(start, end),
        "start_line": module.source.line_of(start),
    }


def docstring(
    data: bytes, *, path: str, tree_sitter: bool, name: str, line: int | None
) -> dict[str, Any]:
    """The docstring of a module or definition, without its indentation; null if there is none."""
    module = _read(data, path, tree_sitter=tree_sitter)
    block = module.body(single(module, _named(module, name, line), name)) if name else module.top
    text, lines = _docstring(module, block)
    return _found(module, docstring=text, start_line=lines[0], end_line=lines[1])


def _docstring(module: Module, block: Block) -> tuple[str | None, tuple[int | None, int | None]]:
    value = module.docstring(block)
    if value is None:
        return None, (None, None)
    text, statement = value
    line_of = module.source.line_of
    return cleaned(text), (line_of(statement.start), line_of(statement.end - 1))


def cleaned(text: str) -> str:
    """A docstring without the indentation of its lines, as `inspect.cleandoc` gives it."""
    # That module takes 30 ms to import.
    lines = text.expandtabs().split("\n")
    margin = min(
        (len(line) - len(line.lstrip()) for line in lines[1:] if line.strip()),
        default=0,
    )
    lines = [lines[0].lstrip(), *(line[margin:] for line in lines[1:])]
    return "\n".join(lines).strip("\n")


def class_summary(
    data: bytes, *, path: str, tree_sitter: bool, name: str, line: int | None
) -> dict[str, Any]:
    """Bases, docstring, methods and attributes of a class."""
    module = _read(data, path, tree_sitter=tree_sitter)
    classes = [(each.dotted, each) for each in module.definitions if each.is_class]
    subject = single(module, found(module, classes, name, line), name)
    methods = [
        {"name": each.name, "kind": _kind(module, each), **_signature(module, each)}
        for each in module.definitions
        if each.kind == "function" and each.block.scope is subject
    ]
    return _found(
        module,
        name=subject.dotted,
        bases=module.bases(subject),
        docstring=_docstring(module, module.body(subject))[0],
        methods=methods,
        attributes=_attributes(module, subject),
    )


def _kind(module: Module, method: Statement) -> str:
    """The kind of a method, by its decorators."""
    roles = _ROLE.findall(module.source.code, method.start, method.at)
    return _KINDS.get(roles[-1].decode(), roles[-1].decode()) if roles else "method"


def _attributes(module: Module, subject: Statement) -> list[dict[str, Any]]:
    """The assignments in a class, outside of its methods."""
    source = module.source
    rows = []
    for statement in module.statements():
        if statement.block.scope is subject:
            for name in module.assigned(statement):
                text = source.text(statement.start, statement.end)
                line = source.line_of(statement.start)
                rows.append({"name": name, "source": text, "start_line": line})
    return rows


def declaration(
    data: bytes, *, path: str, tree_sitter: bool, name: str, line: int | None
) -> dict[str, Any]:
    """The assignments of a variable of a module or class."""
    module = _read(data, path, tree_sitter=tree_sitter)
    line_of = module.source.line_of
    rows = [
        {
            "source": module.source.text(each.start, each.end),
            "start_line": line_of(each.start),
            "end_line": line_of(each.end - 1),
        }
        for each in found(module, module.declarations(), name, line)
    ]
    return _found(module, declarations=rows)


def imports(data: bytes, *, path: str, tree_sitter: bool) -> dict[str, Any]:
    """What a file imports, in functions too."""
    module = _read(data, path, tree_sitter=tree_sitter)
    items = [row for each in module.statements() for row in module.imported(each)]
    items.sort(key=lambda row: int(row["line"]))
    modules = ["." * row["level"] + row["module"] for row in items]
    return _found(module, modules=list(dict.fromkeys(modules)), items=items)


def syntax(data: bytes, *, path: str, tree_sitter: bool) -> dict[str, Any]:
    """Whether the running Python compiles a file, and what it says if not."""
    errors = []
    error: SyntaxError | None = None
    null = data.find(b"\0")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(data, path, "exec", dont_inherit=True)
    except SyntaxError as caught:
        error = caught
        errors.append(_error(caught.lineno, caught.offset, caught.msg))
    except (ValueError, RecursionError, MemoryError) as caught:
        told = str(caught) if null >= 0 else f"too deeply nested ({type(caught).__name__})"
        errors.append(_error(1, 1, told))
    if errors and null >= 0 and not encoding_of(data)[0]:
        # Which no version of Python says by a line.
        line = bisect_right(line_starts(data), null)
        errors = [_error(line, 1, "source code cannot contain null bytes")]
    newer = error is not None and tree_sitter and _is_newer(data, path)
    version = f"Python {sys.version_info.major}.{sys.version_info.minor}"
    return {"ok": not errors, "errors": errors, "grammar": version, "newer": newer}


def _error(line: int | None, column: int | None, message: str) -> dict[str, Any]:
    return {"line": max(line or 1, 1), "column": max(column or 1, 1), "message": message}


def _is_newer(data: bytes, path: str) -> bool:
    """Whether tree-sitter reads the file all the same."""
    try:
        return not TreeSitterModule(Source(data, path)).broken
    except PackError:
        return False


def _read(data: bytes, path: str, *, tree_sitter: bool) -> Module:
    return parsed(data, path, tree_sitter=tree_sitter)


def _named(module: Module, name: str, line: int | None) -> list[Statement]:
    return found(module, ((each.dotted, each) for each in module.definitions), name, line)


def _found(module: Module, **data: Any) -> dict[str, Any]:
    return {"parser": module.parser, **data}
