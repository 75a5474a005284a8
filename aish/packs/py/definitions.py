"""The statements of a Python module with the bytes they span, by tree-sitter or by `ast` (K28).

Only statements are looked at, not what is inside of them. Both parsers give the same, so that
readers and edits do not ask which one it was. A definition goes from its first decorator to the end
of its last statement. Runs in the child process that parses, so it imports little.
"""

import re
import warnings
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from aish.core.normal_form import compatible_form
from aish.packs.pack_error import PackError
from aish.packs.py.source_code import Source

if TYPE_CHECKING:
    import ast

    import tree_sitter

_MOST_LISTED = 20
_MOST_BROKEN = 100
_NEWLINE = re.compile(rb"\r(?!\n)")
_NAME = re.compile(
    rb"(?:async(?:[ \t\f]|\\\r?\n|\\\r)+)?(?:def|class)(?:[ \t\f]|\\\r?\n|\\\r)+([^\s\\(:\[]+)"
)
_TAIL = re.compile(rb"[ \t\f]*(?:;[ \t\f]*)*(?:#[^\r\n]*)?(?=[\r\n]|\Z)")
_SEMICOLON = re.compile(rb"(?:[ \t\f]|\\\r?\n|\\\r)*;")
_UNTIL_COLON = re.compile(rb"(?:[^:#]|#[^\r\n]*)*")


class Statement:
    """One statement; `start` is the first decorator's.

    `name`, `at` (where `def` or `class` begins) and `method` are those of definitions.
    """

    __slots__ = ("at", "block", "blocks", "end", "kind", "name", "node", "start")

    def __init__(self, kind: str, start: int, end: int, block: "Block", node: Any) -> None:
        self.kind = kind
        self.start = start
        self.at = start
        self.end = end
        self.block = block
        self.node = node
        self.name = ""
        self.blocks: list[Block] = []

    @property
    def dotted(self) -> str:
        """The names of the definitions around it, and its own."""
        names = [self.name]
        scope = self.block.scope
        while scope is not None:
            names.append(scope.name)
            scope = scope.block.scope
        return ".".join(reversed(names))

    @property
    def depth(self) -> int:
        """Number of definitions around it."""
        depth = 0
        scope = self.block.scope
        while scope is not None:
            depth += 1
            scope = scope.block.scope
        return depth

    @property
    def is_class(self) -> bool:
        """Whether it defines a class."""
        return self.kind == "class"

    @property
    def is_method(self) -> bool:
        """Whether it defines a function in a class."""
        scope = self.block.scope
        return self.kind == "function" and scope is not None and scope.kind == "class"


class Block:
    """Statements of one suite, what it belongs to, and the definition around it."""

    __slots__ = ("owner", "scope", "statements")

    def __init__(self, owner: Statement | None, scope: Statement | None) -> None:
        self.owner = owner
        self.scope = scope
        self.statements: list[Statement] = []


class Module:
    """The statements of a file. `broken` has the lines in which tree-sitter found an error."""

    parser = ""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.top = Block(None, None)
        self.definitions: list[Statement] = []
        self.broken: list[int] = []

    def statements(self) -> Iterator[Statement]:
        """All statements, in their order."""
        stack = [iter(self.top.statements)]
        while stack:
            for statement in stack[-1]:
                yield statement
                if statement.blocks:
                    stack.append(iter([each for b in statement.blocks for each in b.statements]))
                    break
            else:
                stack.pop()

    # What only the parser's own nodes tell.

    def assigned(self, statement: Statement) -> list[str]:
        """The variables that an assignment declares; none where it is something else."""
        raise NotImplementedError

    def imported(self, statement: Statement) -> list[dict[str, Any]]:
        """What an import statement imports, as rows of `py_get_imports`."""
        raise NotImplementedError

    def docstring(self, block: Block) -> tuple[str, Statement] | None:
        """The value of the string that a suite begins with."""
        raise NotImplementedError

    def colon(self, definition: Statement) -> int:
        """Where the colon of a definition is."""
        raise NotImplementedError

    def bases(self, definition: Statement) -> list[str]:
        """The code of the arguments of a class."""
        raise NotImplementedError

    # What both tell.

    def body(self, definition: Statement) -> Block:  # ruff: ignore[no-self-use] - beside the others
        """The suite of a definition."""
        return definition.blocks[0] if definition.blocks else Block(definition, definition)

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
        """Where the name of a definition is."""
        found = _NAME.match(self.source.code, definition.at)
        assert found is not None
        return found.span(1)

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
                for name in self.assigned(statement):
                    yield prefix + name, statement


def parsed(data: bytes, path: str, *, tree_sitter: bool, writing: bool = False) -> Module:
    """The module of a file: for readers by tree-sitter, for edits by `ast` where it can.

    Where tree-sitter finds an error and `ast` none, or the other way around, that one holds.

    Raises:
        PackError: the file is not text, or does not parse (`syntax`); to readers, a broken file
            is none of these if there is tree-sitter.
    """
    source = Source(data, path, writing=writing)
    module: Module
    if tree_sitter and not writing:
        module = TreeSitterModule(source)
        if not module.broken:
            return module
        return _by_ast_or(source, module)
    try:
        return AstModule(source)
    except ParseError as error:
        if tree_sitter:
            module = TreeSitterModule(source)
            if not module.broken:
                return module
        message = f"`{path}` does not parse: {error}"
        raise PackError("syntax", message, path=path, line=error.line) from None


def _by_ast_or(source: Source, module: Module) -> Module:
    try:
        return AstModule(source)
    except ParseError:
        return module


class ParseError(Exception):
    """What `ast` says of code that it does not parse."""

    def __init__(self, message: str, line: int | None) -> None:
        super().__init__(f"line {line}: {message}" if line else message)
        self.line = line


def ast_of(code: bytes) -> "ast.Module":
    """The tree of some code in UTF-8.

    Raises:
        ParseError: it does not parse.
    """
    import ast

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            # As text, so that a cookie for another encoding is not obeyed again.
            return ast.parse(code.decode("utf-8"))
    except SyntaxError as error:
        raise ParseError(error.msg, error.lineno) from None
    except UnicodeDecodeError as error:
        line = code.count(b"\n", 0, error.start) + 1
        raise ParseError("not valid UTF-8", line) from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise ParseError(f"too deeply nested ({type(error).__name__})", None) from None


def problem_of(code: bytes) -> str:
    """Why `ast` does not parse some code; empty if it does."""
    try:
        ast_of(code)
    except ParseError as error:
        return str(error)
    return ""


def compile_problem(code: bytes) -> str:
    """What Python says of code that parses and that it does not compile; empty if it does."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(code.decode("utf-8"), "<file>", "exec", dont_inherit=True)
    except SyntaxError as error:
        return f"line {error.lineno}: {error.msg}"
    except (ValueError, RecursionError, MemoryError):
        return ""  # too deep for the compiler, which is no mistake of an edit
    return ""


class AstModule(Module):
    """By the parser of the running Python.

    Raises:
        ParseError: it does not parse.
    """

    parser = "ast"

    def __init__(self, source: Source) -> None:
        import ast

        super().__init__(source)
        self.tree = ast_of(source.code)
        starts = source.starts
        functions = (ast.FunctionDef, ast.AsyncFunctionDef)
        compound: list[Statement] = []
        stack: list[tuple[list[Any], Block]] = [(self.tree.body, self.top)]
        while stack:
            nodes, block = stack.pop()
            for node in nodes:
                start = starts[node.lineno - 1] + node.col_offset
                end = starts[node.end_lineno - 1] + node.end_col_offset
                statement = Statement("other", start, end, block, node)
                block.statements.append(statement)
                scope = block.scope
                if isinstance(node, (*functions, ast.ClassDef)):
                    scope = statement
                    statement.kind = "class" if isinstance(node, ast.ClassDef) else "function"
                    statement.name = node.name
                    if node.decorator_list:
                        first = node.decorator_list[0]
                        statement.start = self._decorator(first.lineno)
                    self.definitions.append(statement)
                for suite in _suites(node):
                    inner = Block(statement, scope)
                    statement.blocks.append(inner)
                    stack.append((suite, inner))
                if statement.blocks:
                    compound.append(statement)
        self.definitions.sort(key=lambda each: each.at)

    def _decorator(self, line: int) -> int:
        """Where the `@` of the decorator is whose expression begins in this line."""
        code, starts = self.source.code, self.source.starts
        while line > 1:
            start = starts[line - 1]
            bare = code[start : starts[line] if line < len(starts) else len(code)].lstrip(b" \t\f")
            if bare.startswith(b"@"):
                break
            line -= 1
        return code.index(b"@", starts[line - 1])

    def assigned(self, statement: Statement) -> list[str]:  # ruff: ignore[no-self-use] - of `Module`
        """The variables of an assignment."""
        import ast

        node = statement.node
        if isinstance(node, ast.Assign):
            stack: list[Any] = list(reversed(node.targets))
        elif isinstance(node, ast.AnnAssign):
            stack = [node.target]
        elif type(node).__name__ == "TypeAlias":
            stack = [node.name]
        else:
            return []
        names = []
        while stack:
            target = stack.pop()
            if isinstance(target, ast.Name):
                names.append(target.id)
            elif isinstance(target, ast.Starred):
                stack.append(target.value)
            elif isinstance(target, ast.Tuple | ast.List):
                stack.extend(reversed(target.elts))
        return names

    def imported(self, statement: Statement) -> list[dict[str, Any]]:
        """The rows of an import."""
        import ast

        node = statement.node
        line = self.source.line_of(statement.start)
        if isinstance(node, ast.Import):
            return [_import(each.name, each.asname, line) for each in node.names]
        if isinstance(node, ast.ImportFrom):
            return [
                _from(node.module or "", each.name, each.asname, node.level, line)
                for each in node.names
            ]
        return []

    def docstring(self, block: Block) -> tuple[str, Statement] | None:  # ruff: ignore[no-self-use] - of `Module`
        """The string at the beginning of a suite."""
        import ast

        if not block.statements or not isinstance(node := block.statements[0].node, ast.Expr):
            return None
        value = node.value
        if not isinstance(value, ast.Constant) or not isinstance(value.value, str):
            return None
        return value.value, block.statements[0]

    def colon(self, definition: Statement) -> int:
        """Where the colon is."""
        import ast

        node = definition.node
        if isinstance(node, ast.ClassDef):
            inner: list[Any] = [*node.bases, *(each.value for each in node.keywords)]
        else:
            arguments = node.args
            several = (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
            inner = [*several, *arguments.defaults, *arguments.kw_defaults]
            inner += [arguments.vararg, arguments.kwarg, node.returns]
        inner += getattr(node, "type_params", [])
        starts = self.source.starts
        last = max(
            (starts[each.end_lineno - 1] + each.end_col_offset for each in inner if each),
            default=self.name_span(definition)[1],
        )
        found = _UNTIL_COLON.match(self.source.code, last)
        assert found is not None
        return found.end()

    def bases(self, definition: Statement) -> list[str]:
        """The arguments of a class."""
        node, starts = definition.node, self.source.starts
        rows = []
        for each in [*node.bases, *node.keywords]:
            start = starts[each.lineno - 1] + each.col_offset
            end = starts[each.end_lineno - 1] + each.end_col_offset
            rows.append((start, self.source.text(start, end)))
        return [text for _, text in sorted(rows)]


def _suites(node: Any) -> Iterator[list[Any]]:
    """The suites of a statement, in their order."""
    if not hasattr(node, "body") and not hasattr(node, "cases"):
        return
    if cases := getattr(node, "cases", None):
        yield from (case.body for case in cases)
        return
    yield node.body
    yield from (handler.body for handler in getattr(node, "handlers", ()))
    for name in ("orelse", "finalbody"):
        if suite := getattr(node, name, None):
            yield suite


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


def parse_with_tree_sitter(code: bytes) -> "tree_sitter.Tree":
    """The tree of some code in UTF-8, of the same length; no code is refused."""
    import tree_sitter
    import tree_sitter_python

    parser = tree_sitter.Parser(tree_sitter.Language(tree_sitter_python.language()))
    return parser.parse(_NEWLINE.sub(b"\n", code) if b"\r" in code else code)


_Todo = tuple["tree_sitter.Node", Block, Statement | None]


def _suite_of(
    node: "tree_sitter.Node", suite: "tree_sitter.Node", block: Block, owner: Statement | None
) -> _Todo:
    """A suite of a statement, with the block for its statements."""
    if owner is None:
        return suite, block, None
    if node.type == "match_statement":
        # It has cases in it.
        return suite, block, owner
    inner = Block(owner, owner if owner.name else block.scope)
    owner.blocks.append(inner)
    return suite, inner, None


class TreeSitterModule(Module):
    """By tree-sitter: also broken code, and code of a newer Python."""

    parser = "tree-sitter"

    def __init__(self, source: Source) -> None:
        super().__init__(source)
        self.root = root = parse_with_tree_sitter(source.code).root_node
        self._has_error = root.has_error
        self._compound: list[Statement] = []
        # Nodes whose children are statements, or suites and clauses; for these, their statement.
        stack: list[_Todo] = [(root, self.top, None)]
        while stack:
            node, block, owner = stack.pop()
            for child in node.named_children:
                if child.type == "block":
                    stack.append(_suite_of(node, child, block, owner))
                elif child.type in _CLAUSES:
                    stack.append((child, block, owner))
                elif owner is None or child.type in _COMPOUND:
                    if child.type not in _EXTRAS:
                        stack += self._statement(child, block)
                elif self._has_error and child.has_error:
                    stack.append((child, block, owner))
        self._find_ends()
        self.definitions.sort(key=lambda each: each.at)
        if self._has_error:
            self.broken = _broken_lines(root)

    def _statement(self, node: "tree_sitter.Node", block: Block) -> "list[_Todo]":
        """Add a statement; returns where its suites are."""
        statement = Statement("other", node.start_byte, node.end_byte, block, node)
        block.statements.append(statement)
        if node.type not in _COMPOUND:
            # A definition may be in what is broken.
            return [(node, block, statement)] if self._has_error and node.has_error else []
        if node.type == "decorated_definition":
            node = node.child_by_field_name("definition") or node
            statement.at = node.start_byte
        if node.type in _DEFINITIONS:
            statement.kind = _DEFINITIONS[node.type]
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

    def assigned(self, statement: Statement) -> list[str]:  # ruff: ignore[no-self-use] - of `Module`
        """The variables of an assignment."""
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

    def imported(self, statement: Statement) -> list[dict[str, Any]]:
        """The rows of an import."""
        node = statement.node
        line = self.source.line_of(statement.start)
        names = [_alias(each) for each in node.children_by_field_name("name")]
        if node.type == "import_statement":
            return [_import(name, alias, line) for name, alias in names]
        if node.type == "future_import_statement":
            return [_from("__future__", name, alias, 0, line) for name, alias in names]
        if node.type != "import_from_statement":
            return []
        module = _text(node.child_by_field_name("module_name"))
        level = len(module) - len(module.lstrip("."))
        if not names and any(each.type == "wildcard_import" for each in node.named_children):
            names = [("*", None)]
        return [_from(module[level:], name, alias, level, line) for name, alias in names]

    def docstring(self, block: Block) -> tuple[str, Statement] | None:
        """The string at the beginning of a suite."""
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
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                value = ast.literal_eval(self.source.text(first.start, first.end))
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return None
        return (value, first) if isinstance(value, str) else None

    def colon(self, definition: Statement) -> int:
        """Where the colon is."""
        for child in definition.node.children:
            if child.type == ":":
                start: int = child.start_byte
                return start
        # It is broken: the suite begins where the colon should be.
        return self.body(definition).statements[0].start if definition.blocks else definition.end

    def bases(self, definition: Statement) -> list[str]:  # ruff: ignore[no-self-use] - of `Module`
        """The arguments of a class."""
        found = definition.node.child_by_field_name("superclasses")
        children = found.named_children if found is not None else []
        return [_text(each) for each in children if each.type not in _EXTRAS]


_PATTERNS = frozenset({"pattern_list", "tuple_pattern", "list_pattern", "list_splat_pattern"})


def _first(block: Block) -> int:
    return block.statements[0].start if block.statements else -1


def _after_semicolon(source: Source, end: int) -> int:
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
        return _dotted(name), _name_of(node.child_by_field_name("alias"))
    return _dotted(node), None


def _dotted(node: Any) -> str:
    return "".join(_name_of(node).split())


def _import(module: str, alias: str | None, line: int) -> dict[str, Any]:
    return {
        "kind": "import",
        "module": module,
        "name": None,
        "alias": alias,
        "level": 0,
        "line": line,
    }


def _from(module: str, name: str, alias: str | None, level: int, line: int) -> dict[str, Any]:
    return {
        "kind": "from",
        "module": module,
        "name": name,
        "alias": alias,
        "level": level,
        "line": line,
    }


def _broken_lines(root: "tree_sitter.Node") -> list[int]:
    """The lines in which something is wrong or missing; the first hundred."""
    lines: set[int] = set()
    stack = [root]
    while stack and len(lines) < _MOST_BROKEN:
        node = stack.pop()
        if node.is_error or node.is_missing:
            lines.add(node.start_point.row + 1)
        stack.extend(each for each in reversed(node.children) if each.has_error or each.is_missing)
    return sorted(lines)


def found(
    module: Module, candidates: Iterable[tuple[str, Statement]], name: str, line: int | None
) -> list[Statement]:
    """The statements of a dotted name; with a line the innermost one that the line lies in.

    Raises:
        PackError: there is none.
    """
    wanted = compatible_form(name.strip())
    if not wanted:
        raise PackError("bad_arguments", "`name` is empty")
    every = list(candidates)
    several = [statement for dotted, statement in every if dotted == wanted]
    source = module.source
    if line is not None:
        several = [
            each
            for each in several
            if source.line_of(each.start) <= line <= source.line_of(max(each.end - 1, each.start))
        ][-1:]
    if several:
        return several
    raise _no_match(module, every, wanted, line)


def single(
    module: Module, several: list[Statement], name: str, hint: str = "give `line`"
) -> Statement:
    """The only statement of a name.

    Raises:
        PackError: there are several (`ambiguous`).
    """
    if len(several) == 1:
        return several[0]
    lines = [module.source.line_of(each.start) for each in several[:_MOST_LISTED]]
    shown = ", ".join(map(str, lines)) + (" and more" if len(several) > _MOST_LISTED else "")
    message = f"`{module.source.path}` has several `{name}`, at lines {shown}; {hint}"
    raise PackError("ambiguous", message, path=module.source.path, lines=lines)


def _no_match(
    module: Module, every: list[tuple[str, Statement]], name: str, line: int | None
) -> PackError:
    path = module.source.path
    lines = [module.source.line_of(each.start) for dotted, each in every if dotted == name]
    if line is not None and lines:
        shown = ", ".join(map(str, lines[:_MOST_LISTED]))
        message = f"no `{name}` of `{path}` is at line {line}; it begins at {shown}"
        return PackError("no_match", message, path=path, lines=lines[:_MOST_LISTED])
    last = name.rpartition(".")[2]
    names = list(dict.fromkeys(dotted for dotted, _ in every))
    alike = [each for each in names if each.rpartition(".")[2] == last]
    if not alike:
        import difflib

        alike = difflib.get_close_matches(name, names[:2000], n=3)
    hint = "; there is " + ", ".join(f"`{each}`" for each in alike[:3]) if alike else ""
    message = f"`{path}` has no `{name}`{hint}; py_get_code_outline lists what it defines"
    return PackError("no_match", message, path=path, alike=[*alike[:3]])
