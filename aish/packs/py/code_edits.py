"""Changes of Python code by symbol: data in, the changed part out (K29-K35).

Each change is a splice at byte offsets, and is checked: what parsed has to parse afterwards, and
the definitions that it is not about have to be there still. Runs in the child process that parses.
"""

import builtins
import keyword
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import starmap
from typing import TYPE_CHECKING, Any

from aish.packs.pack_error import PackError
from aish.packs.py.code_text import usages
from aish.packs.py.definitions import (
    AstModule,
    Block,
    Module,
    ParseError,
    Statement,
    TreeSitterModule,
    compile_problem,
    found,
    parse_with_tree_sitter,
    parsed,
    problem_of,
    single,
)
from aish.packs.py.readers import definition_span
from aish.packs.py.source_code import Source

if TYPE_CHECKING:
    import tokenize

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


def update_definition(
    data: bytes, *, path: str, tree_sitter: bool, name: str, line: int | None, content: str
) -> dict[str, Any]:
    """Replace a definition; the change, as `changed_part` gives it."""
    module = parsed(data, path, tree_sitter=tree_sitter, writing=True)
    return changed_part(module.source, updated(module, name, line, content))


def set_signature(
    data: bytes, *, path: str, tree_sitter: bool, name: str, line: int | None, content: str
) -> dict[str, Any]:
    """Replace a signature."""
    module = parsed(data, path, tree_sitter=tree_sitter, writing=True)
    return changed_part(module.source, with_signature(module, name, line, content))


def set_declaration(
    data: bytes, *, path: str, tree_sitter: bool, name: str, line: int | None, content: str
) -> dict[str, Any]:
    """Replace an assignment."""
    module = parsed(data, path, tree_sitter=tree_sitter, writing=True)
    return changed_part(module.source, with_declaration(module, name, line, content))


def add_definition(
    data: bytes,
    *,
    path: str,
    tree_sitter: bool,
    name: str,
    content: str,
    anchor_type: str,
    anchor_symbol: str | None,
) -> dict[str, Any]:
    """Add a definition at an anchor."""
    module = parsed(data, path, tree_sitter=tree_sitter, writing=True)
    return changed_part(module.source, added(module, name, content, anchor_type, anchor_symbol))


def remove_definition(
    data: bytes, *, path: str, tree_sitter: bool, name: str, line: int | None
) -> dict[str, Any]:
    """Remove a definition."""
    module = parsed(data, path, tree_sitter=tree_sitter, writing=True)
    return changed_part(
        module.source, removed(module, single(module, _named(module, name, line), name))
    )


def wrap_region(
    data: bytes, *, path: str, tree_sitter: bool, start_line: int, end_line: int, region_name: str
) -> dict[str, Any]:
    """Put region comments around lines."""
    module = parsed(data, path, tree_sitter=tree_sitter, writing=True)
    return changed_part(module.source, wrapped(module, start_line, end_line, region_name))


def move_definition(
    *sources: bytes,
    path: str,
    new_path: str,
    tree_sitter: bool,
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
    module = parsed(sources[0], path, tree_sitter=tree_sitter, writing=True)
    subject = single(module, _named(module, name, line), name)
    moved = _Moved(module, subject, new_name)
    left = removed(module, subject)
    if len(sources) == 1:
        target = parsed(left, path, tree_sitter=tree_sitter, writing=True)
    else:
        target = parsed(sources[1], new_path, tree_sitter=tree_sitter, writing=True)
    place = _place(target, anchor_type, anchor_symbol)
    _check_free(place.module, place.block, moved.name, twins=moved.twins)
    result = _inserted(place, moved.text(place.indent, target))
    pairs = [(module.source, result)]
    if len(sources) > 1:
        pairs = [(module.source, left), (target.source, result)]
    is_away = len(sources) > 1 or moved.name != subject.name
    (uses,) = usages(pairs[0][1], name=subject.name, mode="identifier", limit=_MOST_USES)
    return {
        "changes": list(starmap(changed_part, pairs)),
        "unbound": _unbound(place.module, place.block, moved),
        "still_used": list(dict.fromkeys(f"{line}: {text}" for line, _, text in uses if is_away)),
    }


def changed_part(source: Source, after: bytes) -> dict[str, Any]:
    """What to replace of a file to get another one: the bytes kept before and after it.

    `new` has the new bytes, each as a character: JSON has no bytes. `texts` are those before and
    after where the file is in an encoding that only its cookie tells.
    """
    before = source.data
    most = min(len(before), len(after))
    start = _common(before[:most], after[:most])
    rest = most - start
    end = _common(before[len(before) - rest :][::-1], after[len(after) - rest :][::-1])
    new = after[start : len(after) - end]
    part = {"before": start, "after": end, "new": new.decode("latin-1"), "texts": None}
    if not source.bom and source.encoding != "utf-8":
        part["texts"] = [each.decode(source.encoding) for each in (before, after)]
        part["encoding"] = source.encoding
    return part


def _common(one: bytes, other: bytes) -> int:
    """Length of what two texts of one length begin with in common."""
    low, high = 0, len(one)
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def updated(module: Module, name: str, line: int | None, content: str) -> bytes:
    """The file with another definition in the place of one."""
    source = module.source
    subject = single(module, _named(module, name, line), name)
    start, end = definition_span(module, subject)
    old = source.code[start:end]
    text = _given(source, content, "content")
    if text == _LINE_END.sub(b"\n", old):
        return source.data
    indent = module.indent(subject) or b""
    part = _Part(text, module, "content")
    first = next((each for each in part.statements if each.name == subject.name), None)
    if first is None:
        message = f"`content` does not define `{subject.name}`; it has to be a whole definition"
        raise PackError("bad_content", message, path=source.path, name=name)
    if subject.start < subject.at and not any(
        each.start < each.at for each in part.statements if each.name == subject.name
    ):
        # Decorators are kept, with what stands between them.
        kept = _LINE_END.sub(b"\n", source.code[start : subject.at]).rstrip(b" \t\f")
        head = part.before(first)
        text = head + _moved(kept, indent, part.base) + text[len(head) :]
    text = _moved(text, part.base, indent)
    new = source.code[:start] + _in_lines(text, source, start) + source.code[end:]
    return _checked(module, new, [*_outside(module, subject), subject])


def with_signature(module: Module, name: str, line: int | None, content: str) -> bytes:
    """The file with another signature of a definition."""
    source = module.source
    subject = single(module, _named(module, name, line), name)
    start, end = module.signature_span(subject)
    text = _given(source, content, "signature").strip(b" \t\f\n")
    text = text.removesuffix(b":").rstrip()
    if text == _LINE_END.sub(b"\n", source.code[start:end]):
        return source.data
    part = _Part(text + b":\n    pass", module, "signature")
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
    return _checked(module, code, module.definitions)


def with_declaration(module: Module, name: str, line: int | None, content: str) -> bytes:
    """The file with another assignment of a variable."""
    source = module.source
    subject = single(module, found(module, module.declarations(), name, line), name)
    text = _given(source, content, "declaration").strip(b" \t\f\n")
    if text == _LINE_END.sub(b"\n", source.code[subject.start : subject.end]):
        return source.data
    part = _Part(text, module, "declaration")
    last = name.strip().rpartition(".")[2]
    new = part.statements[0] if len(part.statements) == 1 else None
    if new is None or last not in part.module.assigned(new):
        message = f"`declaration` has to be one assignment of `{last}`"
        raise PackError("bad_content", message, path=source.path, name=name)
    rest = source.code[subject.end : source.end_of_line(subject.end)].strip()
    # A comment would take in what follows on the line.
    tail = text[new.end :].lstrip(b" \t\f;")
    if rest or not tail:
        text = text[: new.end]
    code = source.code[: subject.start] + _in_lines(text, source, subject.start)
    return _checked(module, code + source.code[subject.end :], module.definitions)


def added(
    module: Module, name: str, content: str, anchor_type: str, anchor_symbol: str | None
) -> bytes:
    """The file with one more definition."""
    source = module.source
    text = _given(source, content, "content")
    part = _Part(text, module, "content")
    scope, _, last = name.strip().rpartition(".")
    first = next((each for each in part.statements if each.name == last), None)
    if not last or first is None:
        message = f"`content` does not define `{last or name}`; it has to be a whole definition"
        raise PackError("bad_content", message, path=source.path, name=name)
    if scope and anchor_symbol is None and anchor_type in {"top", "bottom"}:
        anchor_type, anchor_symbol = {"top": "start_of", "bottom": "end_of"}[anchor_type], scope
    place = _place(module, anchor_type, anchor_symbol)
    around = place.block.scope.dotted if place.block.scope is not None else ""
    if scope and scope != around:
        where = f"in `{around}`" if around else "in the module"
        message = f"`{name}` cannot be added there: the anchor is {where}"
        raise PackError("bad_arguments", message, path=source.path, name=name)
    _check_free(place.module, place.block, last, twins=_is_twin(part.code_before(first)))
    return _inserted(place, _moved(text, part.base, place.indent))


def removed(module: Module, subject: Statement) -> bytes:
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
    kept = code[:start]
    if end == len(code) and not _ends_line(code) and not new:
        # The file ended without a line end, and does so still.
        kept = _without_line_end(kept)
    return _checked(module, kept + new + code[end:], _outside(module, subject))


def wrapped(module: Module, start_line: int, end_line: int, region_name: str) -> bytes:
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
    indent = next((found[1] for found in _CODE.finditer(code, start, end)), b"")
    name = _given(source, region_name, "region_name").strip()
    body = code[start:end] if _ends_line(code[start:end]) else code[start:end] + newline
    last = indent + b"# endregion " + name + (newline if _ends_line(code[start:end]) else b"")
    new = code[:start] + indent + b"# region " + name + newline + body + last + code[end:]
    data, after = _reparsed(module, new, module.definitions)
    # Tree-sitter takes a comment within a continued line for what it is not.
    if not _is_same_code(module, after) or (
        isinstance(module, TreeSitterModule)
        and any(_before_line(source, n).endswith(b"\\") for n in (start_line, end_line + 1))
    ):
        message = "nothing was written: a comment would be inside of a string or a continued line"
        raise PackError("syntax", message, path=source.path)
    return data


def _before_line(source: Source, line: int) -> bytes:
    """The line before one, without its end."""
    if not 1 < line <= len(source.starts):
        return b""
    return source.code[source.starts[line - 2] : source.starts[line - 1]].rstrip(b"\r\n")


def _named(module: Module, name: str, line: int | None) -> list[Statement]:
    return found(module, ((each.dotted, each) for each in module.definitions), name, line)


def _outside(module: Module, subject: Statement) -> list[Statement]:
    """The definitions of a module that are not in one of them."""
    return [
        each
        for each in module.definitions
        if each.end <= subject.start or each.start >= subject.end
    ] + _around(subject.block)


def _around(block: Block) -> list[Statement]:
    """The definitions around a suite."""
    scopes = []
    scope = block.scope
    while scope is not None:
        scopes.append(scope)
        scope = scope.block.scope
    return scopes


def _parser(module: Module) -> type[AstModule] | type[TreeSitterModule]:
    return AstModule if isinstance(module, AstModule) else TreeSitterModule


def _checked(module: Module, code: bytes, kept: Iterable[Statement]) -> bytes:
    """The bytes of the changed file; `PackError` as with `_reparsed`."""
    return _reparsed(module, code, kept)[0]


def _reparsed(module: Module, code: bytes, kept: Iterable[Statement]) -> tuple[bytes, Module]:
    """The bytes of the changed file, and its statements.

    Raises:
        PackError: it no longer parses, or does not have all of these definitions any more.
    """
    source = module.source
    data = source.encoded(code)
    changed = Source(code, source.path, encoding="utf-8")
    after: Module | None = None
    problem = ""
    if isinstance(module, AstModule):
        try:
            after = AstModule(changed)
        except ParseError as error:
            problem = str(error)
    else:
        after = TreeSitterModule(changed)
        problem = f"line {after.broken[0]}" if after.broken else ""
    if problem or after is None:
        message = f"nothing was written: `{source.path}` would no longer parse ({problem})"
        raise PackError("syntax", message, path=source.path, problem=problem)
    problem = compile_problem(code) if isinstance(after, AstModule) else ""
    if problem and not compile_problem(source.code):
        message = f"nothing was written: `{source.path}` would no longer compile ({problem})"
        raise PackError("syntax", message, path=source.path, problem=problem)
    lost = Counter(each.dotted for each in kept)
    lost -= Counter(each.dotted for each in after.definitions)
    if lost:
        names = ", ".join(f"`{name}`" for name in sorted(lost)[:3])
        message = f"nothing was written: {names} would no longer be defined"
        raise PackError("syntax", message, path=source.path)
    return data, after


def _given(source: Source, text: str, what: str) -> bytes:
    r"""Code from a caller, with `\n` at the end of lines and none around it.

    Raises:
        PackError: it is empty, or cannot be part of the file.
    """
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


class _Part:
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

    def before(self, each: Statement) -> bytes:
        """The text before the line of a definition."""
        source = self.module.source
        return source.code[self._offset : source.start_of_line(each.at)]

    def code_before(self, each: Statement) -> bytes:
        """The decorators of a definition."""
        return self.module.source.code[each.start : each.at]


def _standalone(code: bytes, module: Module, what: str) -> Module:
    path = module.source.path
    source = Source(code, path, encoding="utf-8")
    problem = problem_of(code)
    if not problem:
        return AstModule(source)
    if isinstance(module, TreeSitterModule):
        part = TreeSitterModule(source)
        if not part.broken:
            return part
    raise PackError("syntax", f"`{what}` does not parse: {problem}", path=path, problem=problem)


def _moved(text: bytes, base: bytes, indent: bytes) -> bytes:
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
    import tokenize

    inside: set[int] = set()
    docstrings: set[int] = set()
    # From Python 3.12 on, what is in an f-string is tokens of its own.
    opening = {getattr(tokenize, f"{kind}STRING_START", -1) for kind in "FT"}
    closing = {getattr(tokenize, f"{kind}STRING_END", -1) for kind in "FT"}
    open_lines: list[int] = []
    before, string = tokenize.NEWLINE, range(0)
    for token in _tokens(text):
        if token.type in opening:
            open_lines.append(token.start[0])
        elif token.type in closing:
            inside.update(range(open_lines.pop() + 1, token.end[0] + 1))
        elif token.type == tokenize.STRING:
            lines = range(token.start[0] + 1, token.end[0] + 1)
            inside.update(lines)
            begins = before in {tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}
            string = lines if begins else range(0)
        elif token.type == tokenize.NEWLINE and before == tokenize.STRING:
            docstrings.update(string)
        if token.type not in {tokenize.COMMENT, tokenize.NL}:
            before = token.type
    return inside - docstrings, docstrings


def _tokens(text: bytes) -> "Iterator[tokenize.TokenInfo]":
    """The tokens of some code; of that of a newer Python, as far as they are understood."""
    import io
    import tokenize

    # The result of an edit is parsed anyway.
    with suppress(tokenize.TokenError, SyntaxError):
        yield from tokenize.generate_tokens(io.StringIO(text.decode("utf-8")).readline)


def _in_lines(text: bytes, source: Source, offset: int) -> bytes:
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


def _blank_above(source: Source, offset: int) -> int:
    """Where the blank lines begin that are directly above a line."""
    line = source.line_of(offset)
    if offset > source.starts[line - 1]:
        # The end of a last line without a line end: nothing blank is there.
        return offset
    while line > 1 and _is_blank(source, line - 1):
        line -= 1
    return source.starts[line - 1]


def _blank_below(source: Source, offset: int) -> int:
    """Where the blank lines end that begin at a line."""
    place = offset
    while place < len(source.code) and _BLANK.match(source.code, place):
        place = source.next_line(place)
    return place


def _is_blank(source: Source, line: int) -> bool:
    return _BLANK.match(source.code, source.starts[line - 1]) is not None


def _ends_line(code: bytes) -> bool:
    return code.endswith((b"\n", b"\r"))


def _without_line_end(code: bytes) -> bytes:
    if code.endswith(b"\r\n"):
        return code[:-2]
    return code[:-1] if _ends_line(code) else code


class _Place:  # ruff: ignore[class-as-data-structure] - a dataclass takes long to import
    """Where lines are put in: before the line at `offset`, into `block`."""

    def __init__(
        self, module: Module, offset: int, block: Block, indent: bytes, *, is_first: bool
    ) -> None:
        self.module = module
        self.offset = offset
        self.block = block
        self.indent = indent
        self.is_first = is_first


def _place(module: Module, anchor_type: str, anchor_symbol: str | None) -> _Place:
    """The place that an anchor names.

    Raises:
        PackError: the symbol is missing, there is none or there are several of it.
    """
    path = module.source.path
    if anchor_type in {"top", "bottom"}:
        if anchor_symbol is not None:
            message = "`anchor_symbol` goes with before, after, start_of and end_of"
            raise PackError("bad_arguments", message, path=path)
        return _top(module) if anchor_type == "top" else _bottom(module)
    if not anchor_symbol:
        raise PackError("bad_arguments", f"`{anchor_type}` needs an `anchor_symbol`", path=path)
    anchors = _anchors(module, anchor_symbol, anchor_type)
    anchor = single(module, anchors, anchor_symbol, "name another anchor")
    if anchor_type in {"before", "after"}:
        return _beside(module, anchor, anchor_type)
    return _within(module, anchor, anchor_type)


def _anchors(module: Module, symbol: str, anchor_type: str) -> list[Statement]:
    definitions = [(each.dotted, each) for each in module.definitions]
    if anchor_type in {"before", "after"} and not any(
        dotted == symbol.strip() for dotted, _ in definitions
    ):
        definitions += list(module.declarations())
    return found(module, definitions, symbol, None)


def _top(module: Module) -> _Place:
    """After the docstring and the imports that the module begins with."""
    statements = module.top.statements
    count = 1 if module.docstring(module.top) else 0
    for number, statement in enumerate(statements[count:], count + 1):
        if _has_imports(module, statement):
            count = number
        elif not all(map(_DUNDER.fullmatch, module.assigned(statement) or [""])):
            break
    if count:
        offset = _line_after(module, statements[count - 1])
    elif statements:
        offset = _whole_lines(module, statements[0])[0]
    else:
        return _bottom(module)
    return _Place(module, offset, module.top, b"", is_first=False)


def _has_imports(module: Module, statement: Statement) -> bool:
    """Whether a statement imports; or imports on conditions, and defines nothing."""
    if module.imported(statement):
        return True
    inner = [each for block in statement.blocks for each in block.statements]
    if statement.name or any(each.name for each in inner):
        return False
    return any(module.imported(each) for each in inner)


def _bottom(module: Module) -> _Place:
    """At the end, but before what runs where the module is the program."""
    source = module.source
    statements = module.top.statements
    if statements and _MAIN.match(source.code, statements[-1].start):
        offset = _whole_lines(module, statements[-1])[0]
        return _Place(module, offset, module.top, b"", is_first=len(statements) == 1)
    end = len(source.code)
    offset = _blank_above(source, end) if _ends_line(source.code) else end
    return _Place(module, offset, module.top, b"", is_first=False)


def _beside(module: Module, anchor: Statement, anchor_type: str) -> _Place:
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
    return _Place(module, offset, anchor.block, indent, is_first=first)


def _within(module: Module, anchor: Statement, anchor_type: str) -> _Place:
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
        return _Place(module, offset, block, indent, is_first=False)
    has_docstring = module.docstring(block) is not None
    offset = source.next_line(module.colon(anchor))
    if has_docstring:
        offset = _line_after(module, statements[0])
    return _Place(module, offset, block, indent, is_first=not has_docstring)


def _with_own_lines(module: Module, anchor: Statement) -> tuple[Module, Statement]:
    """The module with the body of a definition on lines of its own."""
    source = module.source
    colon = module.colon(anchor)
    first = module.body(anchor).statements[0]
    indent = (module.indent(anchor) or b"") + _indent_unit(module)
    code = source.code[: colon + 1] + source.line_end(colon) + indent + source.code[first.start :]
    changed = Source(source.data, source.path, writing=True)
    changed.code = code
    after = _parser(module)(changed)
    return after, next(each for each in after.definitions if each.at == anchor.at)


def _indent_unit(module: Module) -> bytes:
    """What the first indented suite of the file is indented with."""
    for statement in module.top.statements:
        for block in statement.blocks:
            if block.statements:
                indent = module.indent(block.statements[0])
                if indent:
                    return indent
    return _STANDARD_INDENT


def _line_after(module: Module, statement: Statement) -> int:
    """Where the line begins after a statement, what follows on its line, and its last comments."""
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


def _inserted(place: _Place, text: bytes) -> bytes:
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
    return _checked(module, before + new + after, module.definitions)


def _usual_gap(module: Module, block: Block) -> int:
    """How many blank lines are between definitions here: most often, or usually in Python."""
    source = module.source
    gaps: Counter[int] = Counter()
    for one, other in zip(block.statements, block.statements[1:], strict=False):
        if one.name and other.name:
            start = _whole_lines(module, other)[0]
            above = _blank_above(source, start)
            gaps[source.line_of(start) - source.line_of(above)] += 1
    if gaps:
        return gaps.most_common(1)[0][0]
    return 2 if block.scope is None else 1


def _check_free(module: Module, block: Block, name: str, *, twins: bool) -> None:
    """Check that a scope does not bind a name yet, other than to what it is a twin of.

    Raises:
        PackError: it does.
    """
    scope = block.scope.dotted if block.scope is not None else ""
    for each in module.statements():
        around = each.block.scope
        if (around.dotted if around is not None else "") != scope:
            continue
        names = (each.name, *module.assigned(each), *map(_bound_by, module.imported(each)))
        if name in names and not (twins and each.name == name):
            line = module.source.line_of(each.start)
            where = f"`{scope}` of `{module.source.path}`" if scope else f"`{module.source.path}`"
            message = f"{where} has a `{name}` already, at line {line}"
            raise PackError("exists", message, path=module.source.path, name=name, line=line)


def _bound_by(row: dict[str, Any]) -> str:
    """The name that a row of an import binds."""
    return str(row["alias"] or (row["name"] or row["module"]).partition(".")[0])


def _is_twin(decorators: bytes) -> bool:
    """Whether decorators say that there is another definition of the name."""
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
        text = _moved(self._text, self.base, indent)
        if not text.isascii() and not target.source.is_utf8():
            path = target.source.path
            message = f"`{path}` is not in UTF-8, and only ASCII can be put into it"
            raise PackError("encoding", message, path=path)
        return text

    def free_names(self) -> set[str]:
        """The names that the definition uses and does not bind itself."""
        import symtable

        text = _moved(self._text, self.base, b"")
        if problem_of(text):
            return _free_by_tree_sitter(text) - {self.name}
        try:
            table = symtable.symtable(text.decode("utf-8"), "moved", "exec")
        except (SyntaxError, RecursionError):
            # Such as a `nonlocal` whose function was left behind.
            return _free_by_tree(text) - {self.name}
        names: set[str] = set()
        tables = [table]
        while tables:
            scope = tables.pop()
            tables += scope.get_children()
            for symbol in scope.get_symbols():
                is_global = symbol.is_global() or scope is table
                if is_global and symbol.is_referenced() and not _binds(table, symbol.get_name()):
                    names.add(symbol.get_name())
        return names


def _binds(table: Any, name: str) -> bool:
    try:
        symbol = table.lookup(name)
    except KeyError:
        return False
    return bool(symbol.is_assigned() or symbol.is_imported() or symbol.is_namespace())


def _free_by_tree(text: bytes) -> set[str]:
    import ast

    used: set[str] = set()
    bound: set[str] = set()
    outer: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Name):
            (used if isinstance(node.ctx, ast.Load) else bound).add(node.id)
        elif isinstance(node, ast.arg):
            bound.add(node.arg)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            bound.add(node.name)
        elif isinstance(node, ast.Nonlocal):
            outer.update(node.names)
    return used - bound | outer


def _free_by_tree_sitter(text: bytes) -> set[str]:
    """The identifiers of code of a newer Python that are neither bound in it nor attributes."""
    used: set[str] = set()
    bound: set[str] = set()
    stack = [(parse_with_tree_sitter(text).root_node, False)]
    while stack:
        node, binds = stack.pop()
        if node.type == "identifier":
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
    return used - bound


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
})  # fmt: skip


def _unbound(target: Module, block: Block, moved: _Moved) -> list[str]:
    """The names that a definition uses and that the module it moved to does not bind."""
    bound = {*dir(builtins), *_OF_MODULES, moved.name}
    scopes = _around(block)
    for around in scopes:
        if around.kind == "function" and isinstance(target, AstModule):
            bound.update(_parameters(around))
    for statement in target.statements():
        scope = statement.block.scope
        if scope is None or (scope in scopes and scope.kind == "function"):
            bound.update(_names_of(target, statement))
    return sorted(moved.free_names() - bound)


def _parameters(function: Statement) -> Iterator[str]:
    import ast

    return (each.arg for each in ast.walk(function.node.args) if isinstance(each, ast.arg))


def _names_of(target: Module, statement: Statement) -> Iterator[str]:
    """The names that a statement binds in its scope; of inner ones, what they declare global."""
    yield statement.name
    yield from target.assigned(statement)
    yield from map(_bound_by, target.imported(statement))
    if not isinstance(target, AstModule):
        return
    import ast

    stack: list[ast.AST] = [statement.node]
    while stack:
        node = stack.pop()
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            yield node.id
        elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and node.name:
            yield node.name
        elif isinstance(node, ast.MatchMapping) and node.rest:
            yield node.rest
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            for inner in ast.walk(node):
                if isinstance(inner, ast.Global):
                    yield from inner.names
        else:
            stack.extend(ast.iter_child_nodes(node))


def _is_same_code(module: Module, other: Module) -> bool:
    """Whether two modules differ in nothing but comments."""
    if isinstance(module, AstModule) and isinstance(other, AstModule):
        return _is_same(module.tree, other.tree)
    if isinstance(module, TreeSitterModule) and isinstance(other, TreeSitterModule):
        return _leaves(module.root) == _leaves(other.root)
    return False


def _is_same(one: Any, other: Any) -> bool:
    """Whether two trees are equal, places apart; they may be deep."""
    import ast

    stack = [(one, other)]
    while stack:
        left, right = stack.pop()
        if type(left) is not type(right):
            return False
        if isinstance(left, ast.AST):
            stack += [(getattr(left, f, None), getattr(right, f, None)) for f in left._fields]
        elif isinstance(left, list):
            if len(left) != len(right):
                return False
            stack += zip(left, right, strict=True)
        # Complex numbers and bytes too; `nan` cannot be written as a constant.
        elif left != right:
            return False
    return True


def _leaves(root: Any) -> list[tuple[str, bytes]]:
    """The tokens of a tree, without comments."""
    leaves = []
    stack = [root]
    while stack:
        node = stack.pop()
        if node.type == "comment":
            continue
        if node.child_count:
            stack.extend(reversed(node.children))
        else:
            leaves.append((node.type, node.text or b""))
    return leaves
