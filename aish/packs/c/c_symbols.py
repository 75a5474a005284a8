"""Types and functions of C and C++ code: outline, skeleton, definitions, and replacing them.

Runs in the child that parses untrusted input. Function bodies are skipped, so that the work beside
parsing is proportional to a file's declarations. Spans are byte offsets of the source.
"""

import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Any

from aish.packs.c.c_parser import Parse, error_lines, error_nodes, parse, parse_alike, problem_of
from aish.packs.pack_error import PackError

_DEEPEST = 100
"""Scopes within scopes that are looked into."""
_LONGEST_NAME = 1000
_LONGEST_INDENT = 1000
_MOST = 20_000
"""Symbols of one file."""
_MOST_SUMMARIZED = 100
_MOST_SOURCE = 2 * 1024 * 1024
"""Bytes of the definitions that one call returns."""
_SHOWN = 10
"""Lines and names that an error names."""

_TYPES = {
    "class_specifier": "class",
    "struct_specifier": "struct",
    "union_specifier": "union",
    "enum_specifier": "enum",
}
_NAMED = {"alias_declaration": "alias", "concept_definition": "concept"}
_CONTAINERS = frozenset(
    {
        "ERROR",
        "preproc_if",
        "preproc_ifdef",
        "preproc_else",
        "preproc_elif",
        "preproc_elifdef",
        "declaration_list",
    }
)
_WRAPPERS = frozenset({"template_declaration", "friend_declaration"})
_DECLARATIONS = frozenset({"declaration", "field_declaration"})
_DECLARATORS = frozenset(
    {
        "pointer_declarator",
        "reference_declarator",
        "parenthesized_declarator",
        "array_declarator",
        "init_declarator",
        "attributed_declarator",
        "ms_call_modifier",
    }
)
_BODIES = frozenset({"compound_statement", "try_statement"})


class Symbol:
    """A type, a function or a namespace, and the span of its whole declaration.

    `plain` is its name without template arguments. `body` is the start of the part that a signature
    omits, `defines` says whether there is one.
    """

    __slots__ = (
        "body",
        "defines",
        "depth",
        "end",
        "kind",
        "last",
        "line",
        "name",
        "plain",
        "start",
    )

    def __init__(self, kind: str, name: str, plain: str, depth: int, *, defines: bool) -> None:
        self.kind = kind
        self.name = name
        self.plain = plain
        self.depth = depth
        self.defines = defines
        self.start = self.end = self.body = self.line = self.last = 0


class _DeclarationScope:
    """The scope of a declaration: the enclosing names, and whether it is a class."""

    __slots__ = ("depth", "name", "namespace", "plain")

    def __init__(
        self, name: str, plain: str, depth: int, namespace: "_DeclarationScope | None"
    ) -> None:
        self.name = name
        self.plain = plain
        self.depth = depth
        self.namespace = namespace
        """Of a class: the scope in which its friends are."""


_Pending = list[tuple[Any, _DeclarationScope]]
"""Nodes whose children are looked at next, and the scopes that they are in."""


def outline(source: bytes, *, language: str, macros: Sequence[str] = ()) -> dict[str, object]:
    """Return types and functions with their lines."""
    parsed = parse(source, language, macros)
    rows = [
        {
            "kind": symbol.kind,
            "name": symbol.name,
            "start_line": symbol.line,
            "end_line": symbol.last,
            "depth": symbol.depth,
        }
        for symbol in symbols_of(parsed)
    ]
    return {"language": parsed.language, "items": rows, "broken": error_lines(parsed)}


def summary(source: bytes, *, language: str, macros: Sequence[str] = ()) -> str:
    """Return the outline as a few lines of text."""
    symbols = symbols_of(parse(source, language, macros))
    rows = [
        f"{'  ' * symbol.depth}{symbol.kind} {symbol.name}, lines {symbol.line}-{symbol.last}"
        for symbol in symbols[:_MOST_SUMMARIZED]
    ]
    rest = len(symbols) - len(rows)
    return "\n".join([*rows, f"… {rest:,} more"] if rest else rows)


def definitions(
    source: bytes, *, name: str, line: int | None, language: str, macros: Sequence[str] = ()
) -> dict[str, object]:
    """Return the source of each definition of a name, with its lines."""
    parsed = parse(source, language, macros)
    matching = _find_symbols(parsed, name, line)
    if sum(symbol.end - symbol.start for symbol in matching) > _MOST_SOURCE:
        lines = [symbol.line for symbol in matching]
        message = f"{len(matching)} definitions are too long together; give one `line`"
        raise PackError("too_large", message, lines=lines[:_SHOWN])
    rows = [
        {
            "source": _text(source[_line_start(source, symbol.start) : symbol.end]),
            "start_line": symbol.line,
            "end_line": symbol.last,
        }
        for symbol in matching
    ]
    return {"language": parsed.language, "definitions": rows}


def signatures(
    source: bytes, *, name: str, line: int | None, language: str, macros: Sequence[str] = ()
) -> dict[str, object]:
    """Return the declarations of a name up to their bodies."""
    parsed = parse(source, language, macros)
    rows = [
        {
            "signature": _text(source[symbol.start : symbol.body].rstrip(b" \t\r\n;")),
            "start_line": symbol.line,
        }
        for symbol in _find_symbols(parsed, name, line)
    ]
    return {"language": parsed.language, "signatures": rows}


def skeleton(source: bytes, *, language: str, macros: Sequence[str] = ()) -> dict[str, object]:
    """Return the code without function bodies, long initializers and long macros."""
    parsed = parse(source, language, macros)
    pieces: list[bytes] = []
    position = 0
    for start, end, instead in sorted(_omissions(parsed.root, source)):
        if start >= position:
            pieces += (source[position:start], instead)
            position = end
    pieces.append(source[position:])
    return {
        "language": parsed.language,
        "skeleton": _text(b"".join(pieces)),
        "broken": error_lines(parsed),
    }


def update(
    source: bytes,
    content: bytes,
    *,
    name: str,
    line: int | None,
    language: str,
    macros: Sequence[str] = (),
) -> dict[str, object]:
    """Return a splice that replaces a definition: `start`, `end` and `content`.

    Raises:
        PackError: there is no such definition, or several; the result would have more errors, or
            would take in what stands around it (`syntax`); it does not define the name
            (`bad_content`).
    """
    before = parse(source, language, macros)
    matching = _find_symbols(before, name, line)
    if len(matching) > 1:
        lines = [symbol.line for symbol in matching]
        message = (
            f"`{name}` is defined {len(matching)} times, at lines {_few(lines)}; give a `line`"
        )
        raise PackError("ambiguous", message, lines=lines)
    symbol = matching[0]
    start, end = _line_start(source, symbol.start), symbol.end
    replacement = _reindent(content, source, start, symbol.start)
    if content == source[symbol.start : end]:
        # As `definitions` returns it, also where a file is so broken that line ends belong to it.
        replacement = source[start:end]
    splice = {"start": start, "end": end, "content": _text(replacement)}
    if replacement == source[start:end]:
        return splice
    edited = source[:start] + replacement + source[end:]
    after = parse(edited, before.language, macros)
    if after.errors > before.errors:
        raise PackError("syntax", f"nothing was written: {_problem(before, after)}")
    _check_apart(source, after, (start, end), len(replacement), macros)
    _check_defines(symbols_of(after), symbol, name, (start, start + len(replacement)))
    return splice


def symbols_of(found: Parse) -> list[Symbol]:
    """Return the types and functions of some code in order, without those within functions."""
    return _SymbolFinder(found).symbols()


class _SymbolFinder:
    """Walks over the declarations of one file, with an explicit stack for any depth."""

    def __init__(self, found: Parse) -> None:
        self._source = found.source
        self._is_c = found.language == "c"
        self._root = found.root
        self._words = [row for row in found.blanked if found.source[row[0] : row[1]] != b"Q_OBJECT"]
        self._ends = [end for _, end in self._words]
        self._found: list[Symbol] = []

    def symbols(self) -> list[Symbol]:
        pending: _Pending = [(self._root, _DeclarationScope("", "", 0, None))]
        while pending and len(self._found) < _MOST:
            node, scope = pending.pop()
            inner: _Pending = []
            children = node.children
            for index, child in enumerate(children):
                self._child(child, children, index, scope, inner)
            pending.extend(reversed(inner))
        self._found.sort(key=lambda symbol: (symbol.start, -symbol.end, symbol.depth))
        return self._found[:_MOST]

    def _child(
        self,
        outer: Any,
        siblings: Sequence[Any],
        index: int,
        scope: _DeclarationScope,
        inner: _Pending,
    ) -> None:
        node, scope = _unwrap(outer, scope)
        kind = "" if node is None else node.type
        if kind in _CONTAINERS:
            inner.append((node, scope))
        elif kind == "function_definition":
            self._function(node, outer, scope, inner)
        elif kind in _DECLARATIONS:
            self._declaration(node, outer, scope, inner)
        elif kind == "type_definition":
            self._typedef(node, outer, scope, inner)
        elif kind in _TYPES:
            self._type(node, outer, _declaration_end(outer, siblings, index), scope, inner)
        elif kind == "namespace_definition":
            self._namespace(node, outer, scope, inner)
        elif kind in _NAMED:
            named = node.child_by_field_name("name")
            if named is not None:
                self._add(_NAMED[kind], named, outer, outer.end_byte, scope, None, defines=True)
        elif kind == "compound_statement" and self._is_c:
            self._old_style(siblings, index, scope)

    def _function(self, node: Any, outer: Any, scope: _DeclarationScope, inner: _Pending) -> None:
        declarator = node.child_by_field_name("declarator")
        kind_node = node.child_by_field_name("type")
        body = node.child_by_field_name("body")
        named = None if declarator is None else _function_name(declarator)
        what = "function"
        if named is None and kind_node is not None and declarator is not None:
            if declarator.type == "parenthesized_declarator":
                # `static f(a) { }`: without a type the name is taken for it.
                named = kind_node
            elif kind_node.type in _TYPES and declarator.type == "identifier":
                # `class EXPORT Name { }`, where the macro was not blanked.
                named, what = declarator, _TYPES[kind_node.type]
        elif kind_node is not None and kind_node.type in _TYPES:
            self._type(kind_node, outer, outer.end_byte, scope, inner)
        if named is None:
            return
        cut = next((c for c in node.children if c.type == "field_initializer_list"), body)
        has_body = body is not None
        if not has_body:
            # `= default` and `= delete` are definitions that are shown whole.
            has_body = any(c.type.endswith("_method_clause") for c in node.children)
        self._add(what, named, outer, outer.end_byte, scope, cut, defines=has_body)

    def _declaration(
        self, node: Any, outer: Any, scope: _DeclarationScope, inner: _Pending
    ) -> None:
        end = outer.end_byte
        kind_node = node.child_by_field_name("type")
        declarators = node.children_by_field_name("declarator")
        if kind_node is not None and kind_node.type in _TYPES:
            has_body = kind_node.child_by_field_name("body") is not None
            if has_body or (not declarators and outer.type != "friend_declaration"):
                self._type(kind_node, outer, end, scope, inner)
        value = node.child_by_field_name("default_value")
        for declarator in declarators:
            declared, body = _empty_body(declarator, value)
            named = None if declared is None else _function_name(declared)
            if named is not None:
                has_body = body is not None
                self._add("function", named, outer, end, scope, body, defines=has_body)

    def _typedef(self, node: Any, outer: Any, scope: _DeclarationScope, inner: _Pending) -> None:
        end = outer.end_byte
        kind_node = node.child_by_field_name("type")
        declarators = node.children_by_field_name("declarator")
        body = None if kind_node is None else kind_node.child_by_field_name("body")
        if kind_node is not None and kind_node.type in _TYPES and body is not None:
            self._type(kind_node, outer, end, scope, inner, next(iter(declarators), None))
        for declarator in declarators:
            named = _innermost(declarator)
            if named is not None:
                self._add("typedef", named, outer, end, scope, body, defines=True)

    def _type(
        self,
        node: Any,
        outer: Any,
        end: int,
        scope: _DeclarationScope,
        inner: _Pending,
        alias: Any = None,
    ) -> None:
        """Add a type and its members; an anonymous one gets the name of its `typedef`."""
        named = node.child_by_field_name("name")
        body = node.child_by_field_name("body")
        if named is not None:
            kind = _TYPES[node.type]
            self._add(kind, named, outer, end, scope, body, defines=body is not None)
        if body is not None and node.type != "enum_specifier":
            named = named if named is not None or alias is None else _innermost(alias)
            namespace = scope.namespace or scope
            below = scope if named is None else self._below(scope, named, namespace)
            if below is not None:
                inner.append((body, below))

    def _namespace(self, node: Any, outer: Any, scope: _DeclarationScope, inner: _Pending) -> None:
        named = node.child_by_field_name("name")
        body = node.child_by_field_name("body")
        if named is not None:
            self._add("namespace", named, outer, outer.end_byte, scope, body, defines=True)
        if body is not None:
            below = scope if named is None else self._below(scope, named, None)
            if below is not None:
                inner.append((body, below))

    def _below(
        self, scope: _DeclarationScope, named: Any, namespace: _DeclarationScope | None
    ) -> _DeclarationScope | None:
        if scope.depth >= _DEEPEST:
            return None
        name, plain = self._names(named, scope)
        return _DeclarationScope(name, plain, scope.depth + 1, namespace)

    def _old_style(self, siblings: Sequence[Any], index: int, scope: _DeclarationScope) -> None:
        """Add a K&R definition, which the grammar parses as declarations and a block."""
        for position in range(index - 1, max(-1, index - 100), -1):
            head = siblings[position]
            if head.type not in {"declaration", "ERROR", "expression_statement"}:
                return
            named = _old_style_name(head)
            if named is not None:
                block = siblings[index]
                symbols = self._found
                while symbols and symbols[-1].start >= head.start_byte and not symbols[-1].defines:
                    symbols.pop()
                self._add("function", named, head, block.end_byte, scope, block, defines=True)
                return

    def _add(
        self,
        kind: str,
        named: Any,
        outer: Any,
        end: int,
        scope: _DeclarationScope,
        body: Any,
        *,
        defines: bool,
    ) -> None:
        name, plain = self._names(named, scope)
        if not name:
            return
        if kind == "function" and (scope.namespace is not None or _has_scope(named)):
            kind = "method"
        if not defines:
            kind += " declaration"
        symbol = Symbol(kind, name, plain, scope.depth, defines=defines)
        symbol.start = self._with_macros(outer.start_byte)
        symbol.end = end
        symbol.body = end if body is None else body.start_byte
        row: int = outer.start_point[0]
        if symbol.start != outer.start_byte:
            row -= self._source.count(b"\n", symbol.start, outer.start_byte)
        symbol.line = row + 1
        after = self._source.count(b"\n", outer.end_byte, end)
        symbol.last = int(outer.end_point[0]) + 1 + after
        self._found.append(symbol)

    def _with_macros(self, start: int) -> int:
        """Return the start of a declaration, with blanked macros directly before it."""
        index = bisect_left(self._ends, start + 1) - 1
        while index >= 0 and start - self._ends[index] <= _LONGEST_INDENT:
            between = self._source[self._ends[index] : start]
            if between.strip():
                break
            word = self._source[self._words[index][0] : self._ends[index]]
            if b"#" in word:
                break
            # On a line of its own only an export macro belongs to what follows.
            if b"\n" in between and not word.endswith((b"_API", b"_EXPORT")):
                break
            start = self._words[index][0]
            index -= 1
        return start

    def _names(self, named: Any, scope: _DeclarationScope) -> tuple[str, str]:
        """Return the full name, with and without template arguments."""
        name = normalize_name(_text(self._source[named.start_byte : _name_end(named)]))
        plain = name if "<" not in name else _plain(named, self._source)
        if not name:
            return "", ""
        if scope.name:
            name, plain = f"{scope.name}::{name}", f"{scope.plain}::{plain}"
        return name[:_LONGEST_NAME], plain[:_LONGEST_NAME]


_SPACES = re.compile(r"(?<!\w)\s+|\s+(?!\w)")


def normalize_name(name: str) -> str:
    """A name without insignificant white space and without leading `::`."""
    return re.sub(r"\s+", " ", _SPACES.sub("", name.strip())).lstrip(":")


def _find_symbols(code: Parse, name: str, line: int | None) -> list[Symbol]:
    """Return the definitions of a name, or its declarations if there are none.

    Outer scopes may be omitted if nothing has exactly that name. `line` is any line of the wanted
    one.
    """
    symbols = symbols_of(code)
    plain = normalize_name(name)
    if not plain:
        raise PackError("bad_arguments", "`name` is empty")
    matching = [symbol for symbol in symbols if plain in {symbol.name, symbol.plain}]
    if not matching:
        tail = "::" + plain
        ended = [one for one in symbols if one.name.endswith(tail) or one.plain.endswith(tail)]
        # The class is meant, and not the constructors in it.
        scopes = {symbol.plain for symbol in ended}
        matching = [symbol for symbol in ended if symbol.plain.rpartition("::")[0] not in scopes]
    if not matching:
        raise _no_match(code, symbols, plain)
    if line is not None:
        around = [symbol for symbol in matching if symbol.line <= line <= symbol.last]
        if not around:
            lines = [symbol.line for symbol in matching]
            message = f"no `{plain}` is at line {line}, but at {_few(lines)}"
            raise PackError("no_match", message, lines=lines[:_SHOWN])
        return [min(around, key=lambda symbol: symbol.end - symbol.start)]
    defined = [symbol for symbol in matching if symbol.defines] or matching
    # `typedef struct a { } a;` is one definition under one name twice.
    return list({(symbol.start, symbol.end): symbol for symbol in defined}.values())


def _no_match(code: Parse, symbols: Sequence[Symbol], name: str) -> PackError:
    last = name.rpartition("::")[2].casefold()
    names = dict.fromkeys(
        one.name for one in symbols if one.plain.rpartition("::")[2].casefold() == last
    ) or dict.fromkeys(one.name for one in symbols if len(last) > 1 and last in one.name.casefold())
    near = list(names)[:_SHOWN]
    hint = f"; there is {_few([f'`{candidate}`' for candidate in near])}" if near else ""
    broken = error_lines(code, 1)
    if broken and re.search(rf"\b{re.escape(name.rpartition('::')[2])}\s*\(".encode(), code.source):
        hint += (
            f"; line {broken[0]} does not parse: name the macros in the head of a function in the "
            "option `c.macros` of the server"
        )
    return PackError("no_match", f"there is no `{name}`{hint}", names=near)


def _few(rows: Sequence[object]) -> str:
    listing = ", ".join(str(row) for row in rows[:_SHOWN])
    return listing + (f" and {len(rows) - _SHOWN} more" if len(rows) > _SHOWN else "")


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


def _unwrap(node: Any, scope: _DeclarationScope) -> tuple[Any, _DeclarationScope]:
    """Return the declaration inside a template, friend or linkage specification, and its scope."""
    while node is not None:
        kind = node.type
        if kind == "friend_declaration":
            scope = scope.namespace or scope
        if kind == "linkage_specification":
            node = node.child_by_field_name("body")
        elif kind in _WRAPPERS:
            # Its last part that is no punctuation.
            node = next(reversed(node.named_children), None)
        else:
            break
    return node, scope


def _declaration_end(node: Any, siblings: Sequence[Any], index: int) -> int:
    """Return the end of a declaration, with a `;` that the grammar does not include."""
    after = siblings[index + 1] if index + 1 < len(siblings) else None
    end: int = node.end_byte if after is None or after.type != ";" else after.end_byte
    return end


def _function_name(declarator: Any) -> Any:
    """Return the name node of a declared function; `None` if it is none."""
    node = declarator
    function = None
    for _ in range(_DEEPEST):
        kind = node.type
        if kind == "operator_cast":
            return node
        if kind == "qualified_identifier" and _last_name(node).type == "operator_cast":
            return node
        if kind == "function_declarator":
            function = node
        elif kind == "init_declarator" or (kind in _DECLARATORS and kind.startswith("par")):
            # `(*f)(int)` is a variable, `(f)(int)` a function.
            if kind == "init_declarator":
                return None
        elif kind in _DECLARATORS:
            function = None
        else:
            return node if function is not None else None
        below = _below_declarator(node)
        if below is None:
            return None
        node = below
    return None


def _empty_body(declarator: Any, value: Any) -> tuple[Any, Any]:
    """Return declarator and body of `void f() { };`, which the grammar takes for an initializer."""
    if declarator.type == "init_declarator":
        value = declarator.child_by_field_name("value")
        declarator = declarator.child_by_field_name("declarator")
        if value is None or value.type != "initializer_list" or value.prev_sibling.type == "=":
            return None, None
    return declarator, value if value is not None and value.type == "initializer_list" else None


def _below_declarator(node: Any) -> Any:
    below = node.child_by_field_name("declarator")
    if below is None:
        named = node.named_children
        # References and parentheses have no field for what they are around.
        below = named[-1] if named else None
    return below


def _innermost(declarator: Any) -> Any:
    """Return the name node of a declarator."""
    node = declarator
    for _ in range(_DEEPEST):
        if node.type not in _DECLARATORS and node.type != "function_declarator":
            return node
        below = _below_declarator(node)
        if below is None:
            return None
        node = below
    return None


def _has_scope(named: Any) -> bool:
    return named.type == "qualified_identifier" and named.child_by_field_name("scope") is not None


def _last_name(node: Any) -> Any:
    for _ in range(_DEEPEST):
        below = node.child_by_field_name("name") if node.type == "qualified_identifier" else None
        if below is None:
            return node
        node = below
    return node


def _name_end(named: Any) -> int:
    """Return the end of a name; a conversion operator includes its parameters."""
    end: int = named.end_byte
    last = _last_name(named)
    if last.type == "operator_cast":
        node = last.child_by_field_name("declarator")
        for _ in range(_DEEPEST):
            if node is None:
                break
            if node.type == "abstract_function_declarator":
                parameters = node.child_by_field_name("parameters")
                return end if parameters is None else int(parameters.start_byte)
            node = _below_declarator(node)
    return end


def _plain(named: Any, source: bytes) -> str:
    """A name without template arguments."""
    parts: list[str] = []
    node = named
    for _ in range(_DEEPEST):
        if node.type != "qualified_identifier":
            break
        scope = node.child_by_field_name("scope")
        if scope is not None:
            parts.append(_without_arguments(scope, source))
        below = node.child_by_field_name("name")
        if below is None:
            return "::".join(parts)
        node = below
    parts.append(_without_arguments(node, source))
    return "::".join(parts)


def _without_arguments(node: Any, source: bytes) -> str:
    if node.type in {"template_type", "template_function", "template_method"}:
        node = node.child_by_field_name("name") or node
    return normalize_name(_text(source[node.start_byte : _name_end(node)]))


def _old_style_name(head: Any) -> Any:
    """Return the name in the head of a K&R definition that was parsed as something else."""
    if head.type == "declaration":
        declarator = head.child_by_field_name("declarator")
        while declarator is not None and declarator.type == "pointer_declarator":
            declarator = _below_declarator(declarator)
        if declarator is None or declarator.type != "function_declarator":
            return None
        named = declarator.child_by_field_name("declarator")
        listed = declarator.child_by_field_name("parameters")
    else:
        called = next((one for one in head.named_children if one.type == "call_expression"), None)
        if called is None or head.named_child_count != 1:
            return None
        named = called.child_by_field_name("function")
        listed = called.child_by_field_name("arguments")
    if named is None or named.type != "identifier" or listed is None:
        return None
    return named if all(_is_word(child) for child in listed.named_children) else None


def _is_word(parameter: Any) -> bool:
    """Return true for a bare name, which the grammar may take for a type."""
    if parameter.type == "parameter_declaration" and parameter.child_count == 1:
        parameter = parameter.children[0]
    return parameter.type in {"identifier", "type_identifier"}


_BODY = b"{ /* ... */ }"


def _omissions(root: Any, source: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Yield ranges to omit, and their replacements."""
    pending: list[tuple[Any, int]] = [(root, 0)]
    while pending:
        node, depth = pending.pop()
        for child in node.children:
            kind = child.type
            if kind in _LOOKED_INTO:
                if depth < _DEEPEST:
                    pending.append((child, depth + 1))
                continue
            field = _OMITTED.get(kind)
            if field is None:
                continue
            part = child.child_by_field_name(field) if field else child
            if part is not None and _is_left_out(kind, part, source):
                instead = _LONG if kind in _MACROS else _BODY
                yield part.start_byte, part.end_byte, instead


def _is_left_out(kind: str, part: Any, source: bytes) -> bool:
    if kind == "function_definition" or kind in _BODIES:
        # An empty body is shown as one.
        return bool(part.named_child_count)
    if kind == "init_declarator" and part.type != "initializer_list":
        return False
    return b"\n" in source[part.start_byte : part.end_byte]


_LONG = b"/* ... */"
_MACROS = frozenset({"preproc_def", "preproc_function_def"})
# The field of a node that a skeleton leaves out; the whole node where there is none.
_OMITTED = {
    **dict.fromkeys(_BODIES, ""),
    **dict.fromkeys(_MACROS, "value"),
    "function_definition": "body",
    "init_declarator": "value",
}
_LOOKED_INTO = (
    _CONTAINERS
    | _WRAPPERS
    | _DECLARATIONS
    | frozenset(_TYPES)
    | {"linkage_specification", "namespace_definition", "field_declaration_list", "type_definition"}
)


def _line_start(source: bytes, start: int) -> int:
    """Return the start of a line if only white space precedes a definition on it."""
    line = source.rfind(b"\n", max(0, start - _LONGEST_INDENT), start) + 1
    is_first = bool(line) or start <= _LONGEST_INDENT
    return line if is_first and not source[line:start].strip(b" \t") else start


def _problem(before: Parse, after: Parse) -> str:
    known = set(error_lines(before, before.errors))
    for node in error_nodes(after.root):
        if node.start_point[0] + 1 not in known:
            return problem_of(node)
    return "it would no longer parse"


def _check_apart(
    source: bytes, after: Parse, span: tuple[int, int], size: int, macros: Sequence[str]
) -> None:
    """Check that no new node crosses the border of the replaced range.

    An unclosed comment, string or `#if` in the new text would swallow what follows.
    """
    start, end = span
    crossing = set(_nodes_across(after.root, start, start + size))
    if not crossing:
        return
    moved = size - (end - start)
    before = parse_alike(source, after, macros)
    known = {(kind, first, last + moved) for kind, first, last in _nodes_across(before.root, *span)}
    if any(row not in known and row[0] != "ERROR" for row in crossing):
        message = "nothing was written: the new text would take in what stands before or after it"
        raise PackError("syntax", message)


def _check_defines(
    symbols: Sequence[Symbol], replaced: Symbol, name: str, span: tuple[int, int]
) -> None:
    """Check that new text defines the name that was replaced."""
    start, end = span
    asked = normalize_name(name)
    by_plain = f"::{replaced.plain}".endswith(f"::{asked}")
    inside = [symbol for symbol in symbols if start <= symbol.start and symbol.end <= end]
    for symbol in inside:
        same = symbol.name == replaced.name or (by_plain and symbol.plain == replaced.plain)
        if same and symbol.defines >= replaced.defines:
            return
    names = list(dict.fromkeys(symbol.name for symbol in inside))
    listing = _few([f"`{name}`" for name in names]) if names else "nothing"
    message = f"nothing was written: `content` has to define `{replaced.name}`, and has {listing}"
    raise PackError("bad_content", message, names=names[:_SHOWN])


def _nodes_across(root: Any, start: int, end: int) -> Iterator[tuple[str, int, int]]:
    """Yield the nodes that cross a border of a range."""
    pending = [root]
    while pending:
        node = pending.pop()
        for child in node.children:
            first, last = child.start_byte, child.end_byte
            if last <= start or first >= end:
                continue
            if start <= first and last <= end:
                continue
            if first <= start and end <= last:
                pending.append(child)
            else:
                yield child.type, first, last


def _reindent(content: bytes, source: bytes, line: int, start: int) -> bytes:
    """Return new text with the indentation of the place that it replaces.

    The file from `line` to `start` is the white space before the definition.
    """
    text = content.strip(b"\n").rstrip()
    while text and not text.split(b"\n", 1)[0].strip():
        text = text.partition(b"\n")[2]
    indent = source[line:start]
    rows = text.split(b"\n")
    have = _indent(rows[0])
    if have == indent or line == start != source.rfind(b"\n", 0, start) + 1:
        return text
    others = [row for row in rows[1:] if row.strip() and not row.startswith(b"#")]
    if not have and others and all(row.startswith(indent) for row in others):
        # Only the first line came without its indentation.
        return indent + text
    fixed = _inside_literals(text)
    for index, row in enumerate(rows):
        if not row.strip() or index in fixed or row.startswith(b"#"):
            continue
        if row.startswith(have):
            rows[index] = indent + row[len(have) :]
    return b"\n".join(rows)


def _indent(row: bytes) -> bytes:
    return row[: len(row) - len(row.lstrip(b" \t"))]


def _inside_literals(text: bytes) -> set[int]:
    """Return the lines that begin inside a raw string."""
    rows: set[int] = set()
    if b'R"' in text:
        pending = [parse(text, "cpp").root]
        while pending:
            node = pending.pop()
            if node.type == "raw_string_literal":
                rows.update(range(node.start_point[0] + 1, node.end_point[0] + 1))
            elif node.end_point[0] > node.start_point[0]:
                pending.extend(node.children)
    return rows
