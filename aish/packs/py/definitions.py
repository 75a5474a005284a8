"""The statements of a Python module with the bytes they span, by tree-sitter.

Only statements are examined, not their parts. A definition reaches from its first decorator to the
end of its last statement. Broken code and code of a newer Python are read too; whether an edit
leaves valid code is checked by Python itself. Runs in the child process that parses, so it imports
little.
"""

import re
import warnings
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from aish.core.normal_form import compatible_form
from aish.packs.pack_error import PackError
from aish.packs.py.source_code import SourceCode

if TYPE_CHECKING:
    import tree_sitter

_MOST_LISTED = 20
_MOST_BROKEN = 100
_NEWLINE = re.compile(rb"\r(?!\n)")
_NAME = re.compile(
    rb"(?:async(?:[ \t\f]|\\\r?\n|\\\r)+)?(?:def|class)(?:[ \t\f]|\\\r?\n|\\\r)+([^\s\\(:\[]+)"
)
_TAIL = re.compile(rb"[ \t\f]*(?:;[ \t\f]*)*(?:#[^\r\n]*)?(?=[\r\n]|\Z)")
_SEMICOLON = re.compile(rb"(?:[ \t\f]|\\\r?\n|\\\r)*;")


class Statement:
    """A statement; `start` is the first decorator's.

    `name`, `at` (where `def` or `class` begins) and `method` are those of definitions.
    """

    __slots__ = ("at", "block", "blocks", "end", "kind", "name", "node", "start")

    def __init__(self, kind: str, start: int, end: int, block: "CodeBlock", node: Any) -> None:
        self.kind = kind
        self.start = start
        self.at = start
        self.end = end
        self.block = block
        self.node = node
        self.name = ""
        self.blocks: list[CodeBlock] = []

    @property
    def dotted(self) -> str:
        """The names of the definitions around it, and its own."""
        return ".".join([*(scope.name for scope in reversed(self.block.scopes())), self.name])

    @property
    def is_class(self) -> bool:
        return self.kind == "class"

    @property
    def is_method(self) -> bool:
        scope = self.block.scope
        return self.kind == "function" and scope is not None and scope.kind == "class"


class CodeBlock:
    """Statements of one suite, what it belongs to, and the definition around it."""

    __slots__ = ("owner", "scope", "statements")

    def __init__(self, owner: Statement | None, scope: Statement | None) -> None:
        self.owner = owner
        self.scope = scope
        self.statements: list[Statement] = []

    def scopes(self) -> list[Statement]:
        """The definitions around it, the innermost first."""
        scopes = []
        scope = self.scope
        while scope is not None:
            scopes.append(scope)
            scope = scope.block.scope
        return scopes


_CLAUSES = frozenset({
    *("elif_clause", "else_clause", "except_clause", "except_group_clause", "finally_clause"),
    *("case_clause", "ERROR"),
})  # fmt: skip
_COMPOUND = frozenset({
    *("if_statement", "for_statement", "while_statement", "try_statement", "with_statement"),
    *("match_statement", "decorated_definition", "function_definition", "class_definition"),
})  # fmt: skip
_EXTRAS = frozenset({"comment", "line_continuation"})
_DEFINITIONS = {"function_definition": "function", "class_definition": "class"}
_STRINGS = frozenset({"string", "concatenated_string", "parenthesized_expression"})


def syntax_tree(code: bytes) -> "tree_sitter.Tree":
    """The tree of some code in UTF-8, of the same length; no code is refused."""
    import tree_sitter
    import tree_sitter_python

    parser = tree_sitter.Parser(tree_sitter.Language(tree_sitter_python.language()))
    return parser.parse(_NEWLINE.sub(b"\n", code) if b"\r" in code else code)


_Todo = tuple["tree_sitter.Node", CodeBlock, Statement | None]


def _suite_of(
    node: "tree_sitter.Node", suite: "tree_sitter.Node", block: CodeBlock, owner: Statement | None
) -> _Todo:
    """A suite of a statement, with the block for its statements."""
    if owner is None:
        return suite, block, None
    if node.type == "match_statement":
        # It has cases in it.
        return suite, block, owner
    inner = CodeBlock(owner, owner if owner.name else block.scope)
    owner.blocks.append(inner)
    return suite, inner, None


class Module:
    """The statements of a file, also of broken code; `broken` has the lines with an error."""

    def __init__(self, source: SourceCode) -> None:
        self.source = source
        self.top = CodeBlock(None, None)
        self.definitions: list[Statement] = []
        self.root = root = syntax_tree(source.code).root_node
        self._has_error = root.has_error
        self._compound: list[Statement] = []
        # Nodes whose children are statements, or suites and clauses; for these, their statement.
        stack: list[_Todo] = [(root, self.top, None)]
        while stack:
            node, block, owner = stack.pop()
            for child in node.named_children:
                kind = child.type
                if kind == "block":
                    stack.append(_suite_of(node, child, block, owner))
                elif kind in _CLAUSES:
                    stack.append((child, block, owner))
                elif owner is None or kind in _COMPOUND:
                    if kind not in _EXTRAS:
                        stack += self._statement(child, kind, block)
                elif self._has_error and child.has_error:
                    stack.append((child, block, owner))
        self._find_ends()
        self.definitions.sort(key=lambda definition: definition.at)
        self.broken = _error_lines(root) if self._has_error else []

    def _statement(self, node: "tree_sitter.Node", kind: str, block: CodeBlock) -> "list[_Todo]":
        """Add a statement; returns where its suites are."""
        statement = Statement("other", node.start_byte, node.end_byte, block, node)
        block.statements.append(statement)
        if kind not in _COMPOUND:
            # A definition may be in what is broken.
            return [(node, block, statement)] if self._has_error and node.has_error else []
        if kind == "decorated_definition":
            node = node.child_by_field_name("definition") or node
            kind = node.type
            statement.at = node.start_byte
        if kind in _DEFINITIONS:
            statement.kind = _DEFINITIONS[kind]
            statement.name = _name_of(node.child_by_field_name("name"))
            statement.node = node
            self.definitions.append(statement)
        self._compound.append(statement)
        return [(node, block, statement)]

    def _find_ends(self) -> None:
        """Let compound statements end with their last one: comments below it are no part of it."""
        # Inner statements come later than those around them.
        for statement in reversed(self._compound):
            statement.blocks.sort(key=_first)
            suite = statement.blocks[-1].statements if statement.blocks else []
            if suite:
                last = max(suite, key=lambda each: each.end) if self._has_error else suite[-1]
                # A semicolon belongs to the statements that it ends, as for `ast`.
                end = last.end if last.blocks else _after_semicolon(self.source, last.end)
                statement.end = end

    def targets(self, statement: Statement) -> list[str]:  # ruff: ignore[no-self-use] - beside the others
        node = statement.node
        if node.type == "type_alias_statement":
            alias = _alias_name(node.child_by_field_name("left"))
            return [] if alias is None else [_name_of(alias)]
        if node.type != "expression_statement" or not node.named_child_count:
            return []
        stack: list[Any] = []
        value = node.named_children[0]
        while value is not None and value.type == "assignment":
            stack.insert(0, value.child_by_field_name("left"))
            value = value.child_by_field_name("right")
        names = []
        while stack:
            target = stack.pop()
            if target is None:
                continue
            if target.type == "identifier":
                names.append(_name_of(target))
            elif target.type in _PATTERNS:
                stack.extend(reversed(target.named_children))
        return names

    def import_rows(self, statement: Statement) -> list[dict[str, Any]]:
        node = statement.node
        line = self.source.line_of(statement.start)
        names = [_alias(child) for child in node.children_by_field_name("name")]
        if node.type == "import_statement":
            return [_import(name, None, alias, 0, line) for name, alias in names]
        if node.type == "future_import_statement":
            return [_import("__future__", name, alias, 0, line) for name, alias in names]
        if node.type != "import_from_statement":
            return []
        module = _text(node.child_by_field_name("module_name"))
        level = len(module) - len(module.lstrip("."))
        if not names and any(child.type == "wildcard_import" for child in node.named_children):
            names = [("*", None)]
        return [_import(module[level:], name, alias, level, line) for name, alias in names]

    def docstring(self, block: CodeBlock) -> tuple[str, Statement] | None:
        if not block.statements:
            return None
        first = block.statements[0]
        if first.node.type != "expression_statement" or first.node.named_child_count != 1:
            return None
        if first.node.named_children[0].type not in _STRINGS:
            return None
        # Imported here: an outline needs no `ast`.
        import ast

        try:
            with warnings.catch_warnings(action="ignore"):
                value = ast.literal_eval(self.source.text(first.start, first.end))
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return None
        return (value, first) if isinstance(value, str) else None

    def colon(self, definition: Statement) -> int:
        for child in definition.node.children:
            if child.type == ":":
                start: int = child.start_byte
                return start
        # It is broken: the suite begins where the colon should be.
        return self.body(definition).statements[0].start if definition.blocks else definition.end

    def bases(self, definition: Statement) -> list[str]:  # ruff: ignore[no-self-use] - beside the others
        superclasses = definition.node.child_by_field_name("superclasses")
        children = superclasses.named_children if superclasses is not None else []
        return [_text(child) for child in children if child.type not in _EXTRAS]

    def statements(self) -> Iterator[Statement]:
        stack = [iter(self.top.statements)]
        while stack:
            for statement in stack[-1]:
                yield statement
                if statement.blocks:
                    stack.append(iter([child for b in statement.blocks for child in b.statements]))
                    break
            else:
                stack.pop()

    def body(self, definition: Statement) -> CodeBlock:  # ruff: ignore[no-self-use] - beside the others
        return definition.blocks[0] if definition.blocks else CodeBlock(definition, definition)

    def end_with_tail(self, definition: Statement) -> int:
        """The end of a definition; what follows on its last line, such as a comment, included."""
        tail = _TAIL.match(self.source.code, definition.end)
        if tail is None:
            return definition.end
        return definition.end + len(tail.group().rstrip(b" \t\f"))

    def indent(self, statement: Statement) -> bytes | None:
        """The white space before a statement; `None` if other code is before it on its line."""
        code = self.source.code
        start = self.source.start_of_line(statement.start)
        before = code[start : statement.start]
        # A form feed counts as the beginning of a line.
        before = before[before.rfind(b"\f") + 1 :]
        return None if before.strip(b" \t") else before

    def name_span(self, definition: Statement) -> tuple[int, int]:
        match = _NAME.match(self.source.code, definition.at)
        assert match is not None
        return match.span(1)

    def signature_span(self, definition: Statement) -> tuple[int, int]:
        """From `def` or `class` to the last character before the colon."""
        colon = self.colon(definition)
        signature = self.source.code[definition.at : colon].rstrip(b" \t\f\\\r\n")
        return definition.at, definition.at + len(signature)

    def declarations(self) -> Iterator[tuple[str, Statement]]:
        """The assignments in the module and its classes, with the dotted names they declare."""
        for statement in self.statements():
            scope = statement.block.scope
            if scope is None or scope.kind == "class":
                prefix = "" if scope is None else scope.dotted + "."
                for name in self.targets(statement):
                    yield prefix + name, statement


def parse_module(data: bytes, path: str, *, writing: bool = False) -> Module:
    """The module of a file.

    Raises:
        PackError: the file is not text; or an edit may not change it, as neither Python nor
            tree-sitter parses it (`syntax`).
    """
    module = Module(SourceCode(data, path, writing=writing))
    if writing and module.broken:
        try:
            check_parses(module.source.code)
        except ParseError as error:
            message = f"`{path}` does not parse: {error}"
            raise PackError("syntax", message, path=path, line=error.line) from None
    return module


class ParseError(Exception):
    """Python does not parse some code."""

    def __init__(self, message: str, line: int | None) -> None:
        super().__init__(f"line {line}: {message}" if line else message)
        self.line = line


def check_parses(code: bytes) -> None:
    """Check that Python parses some code in UTF-8.

    Raises:
        ParseError: it does not.
    """
    from ast import PyCF_ONLY_AST

    try:
        with warnings.catch_warnings(action="ignore"):
            # As text, so that a cookie for another encoding is not obeyed again.
            compile(code.decode("utf-8"), "<file>", "exec", PyCF_ONLY_AST, dont_inherit=True)
    except SyntaxError as error:
        raise ParseError(error.msg, error.lineno) from None
    except UnicodeDecodeError as error:
        line = code.count(b"\n", 0, error.start) + 1
        raise ParseError("not valid UTF-8", line) from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise ParseError(f"too deeply nested ({type(error).__name__})", None) from None


def problem_of(code: bytes) -> str:
    """Return why Python does not parse some code; empty if it does."""
    try:
        check_parses(code)
    except ParseError as error:
        return str(error)
    return ""


def compile_problem(code: bytes) -> str:
    """Return why Python does not compile code that it parses; empty if it does."""
    try:
        with warnings.catch_warnings(action="ignore"):
            compile(code.decode("utf-8"), "<file>", "exec", dont_inherit=True)
    except SyntaxError as error:
        return f"line {error.lineno}: {error.msg}"
    except (ValueError, RecursionError, MemoryError):
        return ""  # too deep for the compiler, which is no mistake of an edit
    return ""


_PATTERNS = frozenset({"pattern_list", "tuple_pattern", "list_pattern", "list_splat_pattern"})


def _first(block: CodeBlock) -> int:
    return block.statements[0].start if block.statements else -1


def _after_semicolon(source: SourceCode, end: int) -> int:
    semicolon = _SEMICOLON.match(source.code, end)
    return semicolon.end() if semicolon else end


def _text(node: Any) -> str:
    return "" if node is None else node.text.decode("utf-8", "replace")


def _name_of(node: Any) -> str:
    """A name in the form in which Python compares it."""
    return compatible_form(_text(node))


def _alias_name(node: Any) -> Any:
    """The name of a type alias; `type(x).y = z` is taken for one too and has none."""
    while node is not None and node.type in {"type", "generic_type"}:
        node = node.named_children[0] if node.named_child_count else None
    return node if node is not None and node.type == "identifier" else None


def _alias(node: Any) -> tuple[str, str | None]:
    if node.type == "aliased_import":
        name = node.child_by_field_name("name")
        return _compact_name(name), _name_of(node.child_by_field_name("alias"))
    return _compact_name(node), None


def _compact_name(node: Any) -> str:
    return "".join(_name_of(node).split())


def _import(
    module: str, name: str | None, alias: str | None, level: int, line: int
) -> dict[str, Any]:
    kind = "import" if name is None else "from"
    row = {"kind": kind, "module": module, "name": name, "alias": alias}
    return {**row, "level": level, "line": line}


def _error_lines(root: "tree_sitter.Node") -> list[int]:
    """The lines in which something is wrong or missing; the first hundred."""
    lines: set[int] = set()
    stack = [root]
    while stack and len(lines) < _MOST_BROKEN:
        node = stack.pop()
        if node.is_error or node.is_missing:
            lines.add(node.start_point.row + 1)
        stack.extend(each for each in reversed(node.children) if each.has_error or each.is_missing)
    return sorted(lines)


def find_statements(
    module: Module, candidates: Iterable[tuple[str, Statement]], name: str, line: int | None
) -> list[Statement]:
    """The statements of a dotted name; with a line the innermost one that the line lies in.

    Raises:
        PackError: there is none.
    """
    target = compatible_form(name.strip())
    if not target:
        raise PackError("bad_arguments", "`name` is empty")
    every = list(candidates)
    several = [statement for dotted, statement in every if dotted == target]
    source = module.source
    if line is not None:
        several = [
            each
            for each in several
            if source.line_of(each.start) <= line <= source.line_of(max(each.end - 1, each.start))
        ][-1:]
    if several:
        return several
    raise _no_match(module, every, target, line)


def find_definitions(module: Module, name: str, line: int | None) -> list[Statement]:
    """Find classes and functions by name."""
    return find_statements(module, ((each.dotted, each) for each in module.definitions), name, line)


def single(
    module: Module, several: list[Statement], name: str, hint: str = "give `line`"
) -> Statement:
    """The only statement of a name."""
    if len(several) == 1:
        return several[0]
    lines = [module.source.line_of(statement.start) for statement in several[:_MOST_LISTED]]
    listing = ", ".join(map(str, lines)) + (" and more" if len(several) > _MOST_LISTED else "")
    message = f"`{module.source.path}` has several `{name}`, at lines {listing}; {hint}"
    raise PackError("ambiguous", message, path=module.source.path, lines=lines)


def _no_match(
    module: Module, every: list[tuple[str, Statement]], name: str, line: int | None
) -> PackError:
    path = module.source.path
    lines = [module.source.line_of(each.start) for dotted, each in every if dotted == name]
    if line is not None and lines:
        listing = ", ".join(map(str, lines[:_MOST_LISTED]))
        message = f"no `{name}` of `{path}` is at line {line}; it begins at {listing}"
        return PackError("no_match", message, path=path, lines=lines[:_MOST_LISTED])
    last = name.rpartition(".")[2]
    names = list(dict.fromkeys(dotted for dotted, _ in every))
    alike = [candidate for candidate in names if candidate.rpartition(".")[2] == last]
    if not alike:
        import difflib

        alike = difflib.get_close_matches(name, names[:2000], n=3)
    hint = "; there is " + ", ".join(f"`{candidate}`" for candidate in alike[:3]) if alike else ""
    message = f"`{path}` has no `{name}`{hint}; py_get_code_outline lists what it defines"
    return PackError("no_match", message, path=path, alike=[*alike[:3]])
