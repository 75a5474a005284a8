"""Changes of Python code by symbol: data in, the changed part out.

Each change is a splice at byte offsets, and is checked: what parsed has to parse afterwards, and
the definitions that it is not about have to be there still. Runs in the child process that parses.
"""

import builtins
import keyword
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import starmap
from typing import TYPE_CHECKING, Any

from aish.core.text_diff import equal_start
from aish.packs.pack_error import PackError
from aish.packs.py.code_text import usages
from aish.packs.py.definitions import (
    CodeBlock,
    Module,
    Statement,
    compile_problem,
    find_definitions,
    find_statements,
    parse_module,
    problem_of,
    single,
    syntax_tree,
)
from aish.packs.py.readers import definition_span
from aish.packs.py.source_code import SourceCode

if TYPE_CHECKING:
    import symtable

_MOST_USES = 50
_LINE_END = re.compile(rb"\r\n|\r|\n")
_BLANK = re.compile(rb"[ \t\f]*(?:\r\n|\r|\n|\Z)")
_CODE = re.compile(rb"(?:\A|(?<=[\r\n]))([ \t]*)[^ \t\f\r\n]")
_COMMENT = re.compile(rb"([ \t]*)#[^\r\n]*")
_COOKIE = re.compile(rb"#.*coding[:=]|#!")
_REGION = re.compile(rb"#\s*(?:end)?region\b")
_MAIN = re.compile(
    rb"if[\s(]*(?:__name__[\s]*==[\s]*(['\"])__main__\1|(['\"])__main__\2[\s]*==[\s]*__name__)"
    rb"[\s)]*:"
)
_DUNDER = re.compile(r"__\w+__")
_STANDARD_INDENT = b"    "
_OF_MODULES = frozenset({
    *("__name__", "__file__", "__doc__", "__package__", "__spec__", "__loader__", "__path__"),
    *("__builtins__", "__annotations__", "__class__", "__module__", "__qualname__", "__debug__"),
})  # fmt: skip


def _edit(change: Callable[..., bytes]) -> Callable[..., dict[str, Any]]:
    """Let the worker call a change of a module; it gets what `part_to_replace` returns."""

    def edit(data: bytes, *, path: str, **options: Any) -> dict[str, Any]:
        module = parse_module(data, path, writing=True)
        return part_to_replace(module.source, change(module, **options))

    return edit


def move_definition(
    *sources: bytes,
    path: str,
    new_path: str,
    name: str,
    line: int | None,
    new_name: str | None,
    anchor_type: str,
    anchor_symbol: str | None,
) -> dict[str, Any]:
    """Move a definition within a file (one source) or to another one (two).

    Returns the `changes`, one a source, the names that are `unbound` in the new place, and the
    lines of the first file in which its old name is `still_used`.
    """
    module = parse_module(sources[0], path, writing=True)
    subject = single(module, find_definitions(module, name, line), name)
    moved = _Moved(module, subject, new_name)
    left = without_statement(module, subject)
    if len(sources) == 1:
        target = parse_module(left, path, writing=True)
    else:
        target = parse_module(sources[1], new_path, writing=True)
    place = _find_place(target, anchor_type, anchor_symbol)
    _check_free(place.module, place.block, moved.name, twins=moved.twins)
    result = _insert_lines(place, moved.text(place.indent, target))
    pairs = [(module.source, result)]
    if len(sources) > 1:
        pairs = [(module.source, left), (target.source, result)]
    is_away = len(sources) > 1 or moved.name != subject.name
    (uses,) = usages(pairs[0][1], name=subject.name, mode="identifier", limit=_MOST_USES)
    return {
        "changes": list(starmap(part_to_replace, pairs)),
        "unbound": _list_unbound_names(place.module, place.block, moved),
        "still_used": list(dict.fromkeys(f"{line}: {text}" for line, _, text in uses if is_away)),
    }


def part_to_replace(source: SourceCode, after: bytes) -> dict[str, Any]:
    """The change that makes one file another: the bytes kept before and after it.

    `new` has the new bytes, each as a character: JSON has no bytes. `texts` are those before and
    after where the file is in an encoding that only its cookie tells.
    """
    before = source.data
    most = min(len(before), len(after))
    start = equal_start(before[:most], after[:most])
    rest = most - start
    end = equal_start(before[len(before) - rest :][::-1], after[len(after) - rest :][::-1])
    new = after[start : len(after) - end]
    part = {"before": start, "after": end, "new": new.decode("latin-1"), "texts": None}
    if not source.bom and source.encoding != "utf-8":
        part["texts"] = [piece.decode(source.encoding) for piece in (before, after)]
        part["encoding"] = source.encoding
    return part


def with_update(module: Module, name: str, line: int | None, content: str) -> bytes:
    """The file with another definition in the place of one."""
    source = module.source
    subject = single(module, find_definitions(module, name, line), name)
    start, end = definition_span(module, subject)
    old = source.code[start:end]
    text = _content_bytes(source, content, "content")
    if text == _LINE_END.sub(b"\n", old):
        return source.data
    indent = module.indent(subject) or b""
    part = _InsertedCode(text, module, "content")
    first = next((each for each in part.statements if each.name == subject.name), None)
    if first is None:
        message = f"`content` does not define `{subject.name}`; it has to be a whole definition"
        raise PackError("bad_content", message, path=source.path, name=name)
    if subject.start < subject.at and not any(
        each.start < each.at for each in part.statements if each.name == subject.name
    ):
        # Decorators are kept, with what stands between them.
        prefix = _LINE_END.sub(b"\n", source.code[start : subject.at]).rstrip(b" \t\f")
        head = part.before(first)
        text = head + _reindent(prefix, indent, part.base) + text[len(head) :]
    text = _reindent(text, part.base, indent)
    new = source.code[:start] + _in_lines(text, source, start) + source.code[end:]
    return _reparse(module, new, [*_outside(module, subject), subject])[0]


def with_signature(module: Module, name: str, line: int | None, content: str) -> bytes:
    source = module.source
    subject = single(module, find_definitions(module, name, line), name)
    start, end = module.signature_span(subject)
    text = _content_bytes(source, content, "signature").strip(b" \t\f\n")
    text = text.removesuffix(b":").rstrip()
    if text == _LINE_END.sub(b"\n", source.code[start:end]):
        return source.data
    part = _InsertedCode(text + b":\n    pass", module, "signature")
    new = part.statements[0] if len(part.statements) == 1 else None
    if (
        new is None
        or (new.name, new.kind, new.start) != (subject.name, subject.kind, new.at)
        or part.module.colon(new) != len(text)
        or len(part.module.body(new).statements) != 1
    ):
        kind = "class" if subject.is_class else "def"
        message = f"`signature` has to be one signature, `{kind} {subject.name}…`, without a body"
        raise PackError("bad_content", message, path=source.path, name=name)
    code = source.code[:start] + _in_lines(text, source, start) + source.code[end:]
    return _reparse(module, code, module.definitions)[0]


def with_declaration(module: Module, name: str, line: int | None, content: str) -> bytes:
    source = module.source
    subject = single(module, find_statements(module, module.declarations(), name, line), name)
    text = _content_bytes(source, content, "declaration").strip(b" \t\f\n")
    if text == _LINE_END.sub(b"\n", source.code[subject.start : subject.end]):
        return source.data
    part = _InsertedCode(text, module, "declaration")
    last = name.strip().rpartition(".")[2]
    new = part.statements[0] if len(part.statements) == 1 else None
    if new is None or last not in part.module.targets(new):
        message = f"`declaration` has to be one assignment of `{last}`"
        raise PackError("bad_content", message, path=source.path, name=name)
    rest = source.code[subject.end : source.end_of_line(subject.end)].strip()
    # A comment would take in what follows on the line.
    tail = text[new.end :].lstrip(b" \t\f;")
    if rest or not tail:
        text = text[: new.end]
    code = source.code[: subject.start] + _in_lines(text, source, subject.start)
    return _reparse(module, code + source.code[subject.end :], module.definitions)[0]


def with_addition(
    module: Module, name: str, content: str, anchor_type: str, anchor_symbol: str | None
) -> bytes:
    """The file with one more definition."""
    source = module.source
    text = _content_bytes(source, content, "content")
    part = _InsertedCode(text, module, "content")
    scope, _, last = name.strip().rpartition(".")
    first = next((statement for statement in part.statements if statement.name == last), None)
    if not last or first is None:
        message = f"`content` does not define `{last or name}`; it has to be a whole definition"
        raise PackError("bad_content", message, path=source.path, name=name)
    if scope and anchor_symbol is None and anchor_type in {"top", "bottom"}:
        anchor_type, anchor_symbol = {"top": "start_of", "bottom": "end_of"}[anchor_type], scope
    place = _find_place(module, anchor_type, anchor_symbol)
    around = place.block.scope.dotted if place.block.scope is not None else ""
    if scope and scope != around:
        where = f"in `{around}`" if around else "in the module"
        message = f"`{name}` cannot be added there: the anchor is {where}"
        raise PackError("bad_arguments", message, path=source.path, name=name)
    _check_free(place.module, place.block, last, twins=_is_twin(part.code_before(first)))
    return _insert_lines(place, _reindent(text, part.base, place.indent))


def without_statement(module: Module, subject: Statement) -> bytes:
    """The file without a definition and the comments directly above it."""
    source = module.source
    code = source.code
    start, end = _whole_lines(module, subject)
    above, below = _blank_above(source, start), _blank_below(source, end)
    siblings = subject.block.statements
    place = siblings.index(subject)
    new = b""
    if len(siblings) == 1 and subject.block.owner is not None:
        new = (module.indent(subject) or b"") + b"pass"
        new += source.line_end(subject.start) if end < len(code) or _ends_line(code) else b""
    elif place + 1 == len(siblings):
        start = above
    elif place == 0 or source.line_of(start) - source.line_of(above) >= (
        source.line_of(below) - source.line_of(end)
    ):
        end = below
    else:
        start = above
    head = code[:start]
    if end == len(code) and not _ends_line(code) and not new:
        # The file ended without a line end, and does so still.
        head = _without_line_end(head)
    return _reparse(module, head + new + code[end:], _outside(module, subject))[0]


def with_region(module: Module, start_line: int, end_line: int, region_name: str) -> bytes:
    """The file with comments before and after some lines that make a region of them."""
    source = module.source
    code, starts = source.code, source.starts
    if not 1 <= start_line <= end_line <= source.line_count:
        message = (
            f"`{source.path}` has {source.line_count} lines; {start_line} to {end_line} are no "
            "range of it"
        )
        raise PackError("out_of_range", message, total_lines=source.line_count)
    start = starts[start_line - 1]
    end = starts[end_line] if end_line < len(starts) else len(code)
    if start == 0 and _COOKIE.match(code):
        message = "nothing was written: the first line has to stay the first"
        raise PackError("syntax", message, path=source.path)
    if not region_name.strip().isprintable():
        message = "`region_name` has to be on one line, without control characters"
        raise PackError("bad_arguments", message)
    newline = source.line_end(start)
    indent = next((match[1] for match in _CODE.finditer(code, start, end)), b"")
    name = _content_bytes(source, region_name, "region_name").strip()
    body = code[start:end] if _ends_line(code[start:end]) else code[start:end] + newline
    last = indent + b"# endregion " + name + (newline if _ends_line(code[start:end]) else b"")
    new = code[:start] + indent + b"# region " + name + newline + body + last + code[end:]
    data, after = _reparse(module, new, module.definitions)
    # Tree-sitter takes a comment within a continued line for what it is not.
    is_inside = any(_before_line(source, n).endswith(b"\\") for n in (start_line, end_line + 1))
    if _code_tokens(module) != _code_tokens(after) or (is_inside and problem_of(code)):
        message = "nothing was written: a comment would be inside of a string or a continued line"
        raise PackError("syntax", message, path=source.path)
    return data


def _remove_definition(module: Module, name: str, line: int | None) -> bytes:
    subject = single(module, find_definitions(module, name, line), name)
    return without_statement(module, subject)


update_definition = _edit(with_update)
set_signature = _edit(with_signature)
set_declaration = _edit(with_declaration)
add_definition = _edit(with_addition)
remove_definition = _edit(_remove_definition)
wrap_region = _edit(with_region)


def _before_line(source: SourceCode, line: int) -> bytes:
    if not 1 < line <= len(source.starts):
        return b""
    return source.code[source.starts[line - 2] : source.starts[line - 1]].rstrip(b"\r\n")


def _outside(module: Module, subject: Statement) -> list[Statement]:
    """The definitions of a module before, after and around `subject`."""
    return [
        definition
        for definition in module.definitions
        if definition.end <= subject.start or definition.start >= subject.end
    ] + subject.block.scopes()


def _reparse(module: Module, code: bytes, definitions: Iterable[Statement]) -> tuple[bytes, Module]:
    """The bytes of the changed file, and its statements."""
    source = module.source
    data = source.encode(code)
    after = Module(SourceCode(code, source.path, encoding="utf-8"))
    problem = problem_of(code)
    if problem and problem_of(source.code):
        # It is for a newer Python.
        problem = f"line {after.broken[0]}" if after.broken else ""
    if problem:
        message = f"nothing was written: `{source.path}` would no longer parse ({problem})"
        raise PackError("syntax", message, path=source.path, problem=problem)
    problem = compile_problem(code)
    if problem and not compile_problem(source.code):
        message = f"nothing was written: `{source.path}` would no longer compile ({problem})"
        raise PackError("syntax", message, path=source.path, problem=problem)
    lost = Counter(definition.dotted for definition in definitions)
    lost -= Counter(definition.dotted for definition in after.definitions)
    if lost:
        names = ", ".join(f"`{name}`" for name in sorted(lost)[:3])
        message = f"nothing was written: {names} would no longer be defined"
        raise PackError("syntax", message, path=source.path)
    return data, after


def _content_bytes(source: SourceCode, text: str, what: str) -> bytes:
    r"""Code from a caller, with `\n` at the end of lines and none around it."""
    lines = text.replace("\r\n", "\n").replace("\r", "\n").rstrip(" \t\n\f").split("\n")
    first = next((number for number, line in enumerate(lines) if line.strip()), len(lines))
    lines = lines[first:]
    if not lines:
        raise PackError("bad_arguments", f"`{what}` is empty")
    joined = "\n".join(lines)
    try:
        code = joined.encode("utf-8")
    except UnicodeEncodeError:
        code = b"\0"
    if b"\0" in code:
        raise PackError("bad_arguments", f"`{what}` has characters in it that no text file has")
    if not joined.isascii() and not source.is_utf8():
        message = f"`{source.path}` is not in UTF-8, and only ASCII can be put into it"
        raise PackError("encoding", message, path=source.path)
    return code


class _InsertedCode:
    """Code from a caller: its statements, and the indentation of all of it.

    Raises:
        PackError: it does not parse.
    """

    def __init__(self, text: bytes, module: Module, what: str) -> None:
        self.text = text
        self.base = text[: len(text) - len(text.lstrip(b" \t\f"))].rpartition(b"\f")[2]
        # Indented code is the suite of something.
        self._offset = len(b"if 1:\n") if self.base else 0
        code = b"if 1:\n" + text if self.base else text
        self.module = _standalone(code, module, what)
        self.statements = self.module.top.statements
        if self.base:
            owner = self.statements[0]
            if len(self.statements) > 1 or len(owner.blocks) != 1:
                message = f"`{what}` has lines that are indented less than its first one"
                raise PackError("syntax", message, path=module.source.path)
            self.statements = owner.blocks[0].statements

    def before(self, statement: Statement) -> bytes:
        source = self.module.source
        return source.code[self._offset : source.start_of_line(statement.at)]

    def code_before(self, statement: Statement) -> bytes:
        """The decorators of a definition."""
        return self.module.source.code[statement.start : statement.at]


def _standalone(code: bytes, module: Module, what: str) -> Module:
    path = module.source.path
    part = Module(SourceCode(code, path, encoding="utf-8"))
    problem = problem_of(code)
    if problem and (part.broken or not problem_of(module.source.code)):
        raise PackError("syntax", f"`{what}` does not parse: {problem}", path=path, problem=problem)
    return part


def _reindent(text: bytes, base: bytes, indent: bytes) -> bytes:
    """Code with another indentation; what is inside of strings stays, but for docstrings."""
    if base == indent:
        return text
    inside, docstrings = _lines_in_strings(text)
    lines = []
    for number, line in enumerate(text.split(b"\n"), 1):
        if number in inside or not line.strip():
            lines.append(line)
        elif line.startswith(base):
            lines.append(indent + line[len(base) :])
        else:
            lines.append(line if number in docstrings else indent + line.lstrip(b" \t"))
    return b"\n".join(lines)


def _lines_in_strings(text: bytes) -> tuple[set[int], set[int]]:
    """The lines that begin inside of a string; and those that begin inside of a docstring."""
    inside: set[int] = set()
    docstrings: set[int] = set()
    stack = [syntax_tree(text).root_node]
    while stack:
        node = stack.pop()
        first, last = node.start_point.row, node.end_point.row
        if first == last:
            continue
        if node.type != "string":
            stack += node.children
            continue
        statement = node.parent
        is_alone = statement is not None and statement.type == "expression_statement"
        has_fields = any(child.type == "interpolation" for child in node.children)
        lines = docstrings if is_alone and not has_fields else inside
        lines.update(range(first + 2, last + 2))
    return inside - docstrings, docstrings


def _in_lines(text: bytes, source: SourceCode, offset: int) -> bytes:
    """Code with the line ends that the file has from an offset on."""
    newline = source.line_end(offset)
    return text if newline == b"\n" else text.replace(b"\n", newline)


def _whole_lines(module: Module, subject: Statement) -> tuple[int, int]:
    """The lines of a definition, the comments directly above it and those at its end."""
    source = module.source
    code = source.code
    indent = module.indent(subject) or b""
    start = source.start_of_line(subject.start)
    line = source.line_of(start)
    while line > 1:
        above = source.starts[line - 2]
        comment = _COMMENT.match(code, above)
        bare = comment.group().lstrip() if comment else b""
        if comment is None or comment[1] != indent or _REGION.match(bare):
            break
        if line <= 3 and _COOKIE.match(bare):  # ruff: ignore[magic-value-comparison] - the second line
            break
        start = above
        line -= 1
    end = place = source.next_line(subject.end)
    while place < len(code):
        comment = _COMMENT.match(code, place)
        if comment is not None:
            if len(comment[1]) <= len(indent) or _REGION.match(comment.group().lstrip()):
                break
            end = source.next_line(place)
        elif not _BLANK.match(code, place):
            break
        place = source.next_line(place)
    return start, end


def _blank_above(source: SourceCode, offset: int) -> int:
    """Find the start of the blank lines directly above a line."""
    line = source.line_of(offset)
    if offset > source.starts[line - 1]:
        # The end of a last line without a line end: nothing blank is there.
        return offset
    while line > 1 and _BLANK.match(source.code, source.starts[line - 2]):
        line -= 1
    return source.starts[line - 1]


def _blank_below(source: SourceCode, offset: int) -> int:
    """Find the end of the blank lines from a line on."""
    place = offset
    while place < len(source.code) and _BLANK.match(source.code, place):
        place = source.next_line(place)
    return place


def _ends_line(code: bytes) -> bool:
    return code.endswith((b"\n", b"\r"))


def _without_line_end(code: bytes) -> bytes:
    if code.endswith(b"\r\n"):
        return code[:-2]
    return code[:-1] if _ends_line(code) else code


class _InsertPlace:  # ruff: ignore[class-as-data-structure] - a dataclass takes long to import
    """A place for new lines: before the line at `offset`, in `block`."""

    def __init__(
        self, module: Module, offset: int, block: CodeBlock, indent: bytes, *, is_first: bool
    ) -> None:
        self.module = module
        self.offset = offset
        self.block = block
        self.indent = indent
        self.is_first = is_first


def _find_place(module: Module, anchor_type: str, anchor_symbol: str | None) -> _InsertPlace:
    """The place that an anchor names."""
    path = module.source.path
    if anchor_type in {"top", "bottom"}:
        if anchor_symbol is not None:
            message = "`anchor_symbol` goes with before, after, start_of and end_of"
            raise PackError("bad_arguments", message, path=path)
        return _place_at_top(module) if anchor_type == "top" else _place_at_bottom(module)
    if not anchor_symbol:
        raise PackError("bad_arguments", f"`{anchor_type}` needs an `anchor_symbol`", path=path)
    anchors = _anchors(module, anchor_symbol, anchor_type)
    anchor = single(module, anchors, anchor_symbol, "name another anchor")
    if anchor_type in {"before", "after"}:
        return _place_beside(module, anchor, anchor_type)
    return _place_within(module, anchor, anchor_type)


def _anchors(module: Module, symbol: str, anchor_type: str) -> list[Statement]:
    definitions = [(definition.dotted, definition) for definition in module.definitions]
    if anchor_type in {"before", "after"} and not any(
        dotted == symbol.strip() for dotted, _ in definitions
    ):
        definitions += list(module.declarations())
    return find_statements(module, definitions, symbol, None)


def _place_at_top(module: Module) -> _InsertPlace:
    """The place after the docstring and the imports of a module."""
    statements = module.top.statements
    count = 1 if module.docstring(module.top) else 0
    for number, statement in enumerate(statements[count:], count + 1):
        if _has_imports(module, statement):
            count = number
        elif not all(map(_DUNDER.fullmatch, module.targets(statement) or [""])):
            break
    if count:
        offset = _line_after(module, statements[count - 1])
    elif statements:
        offset = _whole_lines(module, statements[0])[0]
    else:
        return _place_at_bottom(module)
    return _InsertPlace(module, offset, module.top, b"", is_first=False)


def _has_imports(module: Module, statement: Statement) -> bool:
    """Return true for imports, and for conditions with imports and no definitions."""
    if module.import_rows(statement):
        return True
    inner = [child for block in statement.blocks for child in block.statements]
    if statement.name or any(child.name for child in inner):
        return False
    return any(module.import_rows(child) for child in inner)


def _place_at_bottom(module: Module) -> _InsertPlace:
    """The place at the end, but before code for the main program."""
    source = module.source
    statements = module.top.statements
    if statements and _MAIN.match(source.code, statements[-1].start):
        offset = _whole_lines(module, statements[-1])[0]
        return _InsertPlace(module, offset, module.top, b"", is_first=len(statements) == 1)
    end = len(source.code)
    offset = _blank_above(source, end) if _ends_line(source.code) else end
    return _InsertPlace(module, offset, module.top, b"", is_first=False)


def _place_beside(module: Module, anchor: Statement, anchor_type: str) -> _InsertPlace:
    indent = module.indent(anchor)
    siblings = anchor.block.statements
    if indent is None and anchor_type == "before":
        message = "the anchor is not at the beginning of its line"
        raise PackError("syntax", message, path=module.source.path)
    if indent is None:
        indent = module.indent(siblings[0])
    if indent is None:
        message = "the anchor is in a body on the line of its header; use start_of or end_of"
        raise PackError("syntax", message, path=module.source.path)
    first = siblings[0] is anchor and anchor_type == "before"
    if anchor_type == "before":
        offset = _whole_lines(module, anchor)[0]
    else:
        offset = _line_after(module, anchor)
    return _InsertPlace(module, offset, anchor.block, indent, is_first=first)


def _place_within(module: Module, anchor: Statement, anchor_type: str) -> _InsertPlace:
    statements = module.body(anchor).statements
    if not statements:
        raise PackError("syntax", "the anchor has no body", path=module.source.path)
    source = module.source
    if source.line_of(module.colon(anchor)) == source.line_of(statements[0].start):
        module, anchor = _with_own_lines(module, anchor)
        statements = module.body(anchor).statements
        source = module.source
    block = module.body(anchor)
    indent = module.indent(statements[0])
    if indent is None:
        raise PackError("syntax", "the anchor's body begins on a continued line", path=source.path)
    if anchor_type == "end_of":
        offset = _line_after(module, statements[-1])
        return _InsertPlace(module, offset, block, indent, is_first=False)
    has_docstring = module.docstring(block) is not None
    offset = source.next_line(module.colon(anchor))
    if has_docstring:
        offset = _line_after(module, statements[0])
    return _InsertPlace(module, offset, block, indent, is_first=not has_docstring)


def _with_own_lines(module: Module, anchor: Statement) -> tuple[Module, Statement]:
    """The module with the body of a definition on lines of its own."""
    source = module.source
    colon = module.colon(anchor)
    first = module.body(anchor).statements[0]
    indent = (module.indent(anchor) or b"") + _indent_unit(module)
    code = source.code[: colon + 1] + source.line_end(colon) + indent + source.code[first.start :]
    changed = SourceCode(source.data, source.path, writing=True)
    changed.code = code
    after = Module(changed)
    return after, next(definition for definition in after.definitions if definition.at == anchor.at)


def _indent_unit(module: Module) -> bytes:
    """The indentation of the first indented suite of the file."""
    for statement in module.top.statements:
        for block in statement.blocks:
            if block.statements:
                indent = module.indent(block.statements[0])
                if indent:
                    return indent
    return _STANDARD_INDENT


def _line_after(module: Module, statement: Statement) -> int:
    """Find the first line after a statement, the rest of its line, and its last comments."""
    source = module.source
    siblings = statement.block.statements
    place = siblings.index(statement)
    while place + 1 < len(siblings):
        following = siblings[place + 1]
        if source.line_of(following.start) > source.line_of(max(statement.end - 1, 0)):
            break
        statement = following
        place += 1
    if statement.blocks:
        return _whole_lines(module, statement)[1]
    return source.next_line(statement.end)


def _insert_lines(place: _InsertPlace, text: bytes) -> bytes:
    """The file with lines put in, and blank lines around them as around their neighbours."""
    module = place.module
    source = module.source
    code = source.code
    newline = source.line_end(max(place.offset - 1, 0))
    offset = place.offset
    before, after = code[:offset], code[offset:]
    gap = _usual_gap(module, place.block)
    line = source.line_of(offset)
    above = gap - (line - source.line_of(_blank_above(source, offset)))
    below = gap - (source.line_of(_blank_below(source, offset)) - line)
    if place.is_first or not before.strip():
        above = 0
    if not after.strip():
        below = 0
    new = newline * above + text.replace(b"\n", newline) + newline * below
    # A last line that has no line end leaves none behind.
    new = new + newline if _ends_line(before) or not before else newline + new
    return _reparse(module, before + new + after, module.definitions)[0]


def _usual_gap(module: Module, block: CodeBlock) -> int:
    """The usual number of blank lines between definitions, here or else in Python."""
    source = module.source
    gaps: Counter[int] = Counter()
    for statement, other in zip(block.statements, block.statements[1:], strict=False):
        if statement.name and other.name:
            start = _whole_lines(module, other)[0]
            above = _blank_above(source, start)
            gaps[source.line_of(start) - source.line_of(above)] += 1
    if gaps:
        return gaps.most_common(1)[0][0]
    return 2 if block.scope is None else 1


def _check_free(module: Module, block: CodeBlock, name: str, *, twins: bool) -> None:
    """Check that a scope does not bind a name yet, other than to what it is a twin of."""
    scope = block.scope.dotted if block.scope is not None else ""
    for statement in module.statements():
        around = statement.block.scope
        if (around.dotted if around is not None else "") != scope:
            continue
        if name in _names_of(module, statement) and not (twins and statement.name == name):
            line = module.source.line_of(statement.start)
            where = f"`{scope}` of `{module.source.path}`" if scope else f"`{module.source.path}`"
            message = f"{where} has a `{name}` already, at line {line}"
            raise PackError("exists", message, path=module.source.path, name=name, line=line)


def _name_of_import(row: dict[str, Any]) -> str:
    """The name that a row of an import binds."""
    return str(row["alias"] or (row["name"] or row["module"]).partition(".")[0])


def _is_twin(decorators: bytes) -> bool:
    """Return true if decorators imply another definition of the name."""
    return (
        re.search(rb"@[\w. \t]*\b(?:overload|setter|getter|deleter|register)\b", decorators)
        is not None
    )


class _Moved:
    """A definition on its way to another place, with the comments that go with it."""

    def __init__(self, module: Module, subject: Statement, new_name: str | None) -> None:
        code = module.source.code
        start, end = _whole_lines(module, subject)
        self.base = module.indent(subject) or b""
        self.name = subject.name
        self.twins = _is_twin(code[subject.start : subject.at])
        text = code[start:end]
        if new_name is not None:
            if not new_name.isidentifier() or keyword.iskeyword(new_name):
                raise PackError("bad_arguments", f"`new_name` is not a name: `{new_name}`")
            first, last = module.name_span(subject)
            text = code[start:first] + new_name.encode("utf-8") + code[last:end]
            self.name = new_name
        self._text = _LINE_END.sub(b"\n", text).rstrip(b"\n")

    def text(self, indent: bytes, target: Module) -> bytes:
        """The lines at another indentation."""
        text = _reindent(self._text, self.base, indent)
        if not text.isascii() and not target.source.is_utf8():
            path = target.source.path
            message = f"`{path}` is not in UTF-8, and only ASCII can be put into it"
            raise PackError("encoding", message, path=path)
        return text

    def free_names(self) -> set[str]:
        """The names that the definition uses and does not bind itself."""
        text = _reindent(self._text, self.base, b"")
        tables = _symbol_tables(text)
        if not tables:
            # For a newer Python, or with a `nonlocal` whose function was left behind.
            return _free_names(text) - {self.name}
        bound = {symbol.get_name() for symbol in tables[0].get_symbols() if _is_bound(symbol)}
        return {
            symbol.get_name()
            for table in tables
            for symbol in table.get_symbols()
            if (symbol.is_global() or table is tables[0]) and symbol.is_referenced()
        } - bound


def _symbol_tables(code: bytes) -> "list[symtable.SymbolTable]":
    """The scopes of some code, the outermost first; none if Python does not take it."""
    import symtable

    try:
        waiting = [symtable.symtable(code.decode("utf-8"), "<file>", "exec")]
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    tables = []
    while waiting:
        tables.append(waiting.pop())
        waiting += tables[-1].get_children()
    return tables


def _is_bound(symbol: "symtable.Symbol") -> bool:
    return (
        symbol.is_assigned()
        or symbol.is_imported()
        or symbol.is_namespace()
        or symbol.is_parameter()
    )


def _free_names(text: bytes) -> set[str]:
    """The identifiers of some code that are neither bound in it nor attributes."""
    used: set[str] = set()
    bound: set[str] = set()
    outer: set[str] = set()
    stack = [(syntax_tree(text).root_node, False)]
    while stack:
        node, binds = stack.pop()
        if node.type == "nonlocal_statement":
            outer.update((child.text or b"").decode("utf-8") for child in node.named_children)
        elif node.type == "identifier":
            name = (node.text or b"").decode("utf-8", "replace")
            (bound if binds else used).add(name)
        passed_on = binds and node.type in _BINDING_PARTS
        for number, child in enumerate(node.children):
            field = node.field_name_for_child(number)
            if field != "attribute" and (node.type != "keyword_argument" or field != "name"):
                binding = passed_on or node.type in _LISTS_OF_BOUND
                stack.append((child, binding or field in _BINDING_FIELDS.get(node.type, _NAMES)))
                if node.type in {"typed_parameter", "constrained_type"}:
                    # What follows the name is its type.
                    passed_on = False
    return used - bound | outer


_NAMES = ("name", "alias")
_BINDING_FIELDS = {
    "assignment": ("left",),
    "for_statement": ("left",),
    "for_in_clause": ("left",),
    "type_alias_statement": ("left",),
}
_LISTS_OF_BOUND = frozenset({"parameters", "lambda_parameters", "type_parameter"})
_BINDING_PARTS = frozenset({
    *("typed_parameter", "list_splat_pattern", "dictionary_splat_pattern", "pattern_list"),
    *("tuple_pattern", "list_pattern", "type", "constrained_type", "generic_type"),
    "as_pattern_target",
})  # fmt: skip


def _list_unbound_names(target: Module, block: CodeBlock, moved: _Moved) -> list[str]:
    """The names that a definition uses and that the module it moved to does not bind."""
    bound = {*dir(builtins), *_OF_MODULES, moved.name}
    scopes = [scope for scope in block.scopes() if scope.kind == "function"]
    tables = _symbol_tables(target.source.code)
    headers = {(scope.name, target.source.line_of(scope.at)) for scope in scopes}
    for table in tables:
        if table is tables[0] or (table.get_name(), table.get_lineno()) in headers:
            bound.update(
                symbol.get_name()
                for symbol in table.get_symbols()
                if _is_bound(symbol) or symbol.is_declared_global()
            )
    for statement in () if tables else target.statements():
        if statement.block.scope is None or statement.block.scope in scopes:
            bound.update(_names_of(target, statement))
    return sorted(moved.free_names() - bound)


def _names_of(module: Module, statement: Statement) -> Iterator[str]:
    """The names that a statement binds in its scope."""
    yield statement.name
    yield from module.targets(statement)
    yield from map(_name_of_import, module.import_rows(statement))


def _code_tokens(module: Module) -> list[tuple[str, bytes]]:
    """The tokens of a module, without comments."""
    leaves = []
    stack = [module.root]
    while stack:
        node = stack.pop()
        if node.type == "comment":
            continue
        if node.child_count:
            stack.extend(reversed(node.children))
        else:
            leaves.append((node.type, node.text or b""))
    return leaves
