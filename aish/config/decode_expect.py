"""`expect`, `tests` and `cassette` into what is checked and replayed (F12, C12, design 2.1)."""

from typing import cast

from aish.config.documents import Documents
from aish.config.expected import (
    Case,
    CaseRows,
    CassetteSettings,
    Expectation,
    ExpectKind,
    ToolMatch,
)
from aish.config.nodes import MappingNode, Node, ScalarNode
from aish.config.reading import Table

_ONE_KIND = "an expectation is a mapping with one kind"
# The kinds that look at a text or a value, by the key of the longer form that holds what they want.
_WANTED = {
    "contains": "value",
    "not_contains": "value",
    "equals": "value",
    "matches": "regex",
    "schema": "schema",
    "snapshot": "file",
}
# What the templates of expectations call something else.
_TAKEN = frozenset(
    [
        "inputs",
        "env",
        "steps",
        "stdin",
        "outputs",
        "index",
        "key",
        "text",
        "output",
        "status",
        "tool_calls",
        "usage",
        "cost_usd",
        "seconds",
    ]
)
_LONG_FORM = frozenset({"path", "schema"})


def decode_expect(table: Table, documents: Documents) -> tuple[Expectation, ...]:
    """The items of the `expect` in `table`."""
    found = (
        _expectation(Table(node, path, table.problems), documents)
        for path, node in table.items("expect")
        if isinstance(node, MappingNode)
    )
    return tuple(expectation for expectation in found if expectation is not None)


def decode_tests(top: Table, documents: Documents) -> tuple[Case, ...]:
    """The items of `tests`."""
    return tuple(
        _case(Table(node, path, top.problems), documents)
        for path, node in top.items("tests")
        if isinstance(node, MappingNode)
    )


def decode_cassette(table: Table) -> CassetteSettings | None:
    """The `cassette` in `table`, if there is one."""
    path = table.absolute("cassette")
    if path is not None:
        return CassetteSettings(path, name=table.text("cassette") or "")
    settings = table.child("cassette")
    path = None if settings is None else settings.absolute("path")
    if settings is None or path is None:
        return None
    return CassetteSettings(
        path=path,
        ignore=settings.texts("ignore"),
        strict=settings.flag("strict", default=True) if settings.has("strict") else None,
        allow=settings.texts("allow"),
        name=settings.text("path") or "",
    )


def _case(table: Table, documents: Documents) -> Case:
    return Case(
        name=table.text("name") or "",
        inputs=table.mapping("inputs"),
        stdin=table.text("stdin"),
        cassette=decode_cassette(table),
        expect=decode_expect(table, documents),
        where=table.path,
        rows=_rows(table),
    )


def _rows(table: Table) -> CaseRows | None:
    source = table.child("foreach")
    file = None if source is None else source.text("file")
    if source is None or file is None:
        broken = source is not None or table.is_broken("foreach")
        for key in ("as", "key"):
            if table.has(key) and not broken:
                table.problem(key, f"`{key}` is for tests with `foreach`")
        return None
    name = table.text("as") or "item"
    if name in _TAKEN:
        table.problem("as", f"`{name}` is what templates call something else")
    folder = source.folder_of("file")
    return CaseRows(file, folder, name, table.text("key"), source.text("delimiter"))


def _expectation(table: Table, documents: Documents) -> Expectation | None:
    kinds = [key for key in table.node.entries if table.has(key)]
    if len(kinds) != 1:
        if kinds:
            named = " and ".join(f"`{key}`" for key in kinds)
            table.problem(kinds[1], f"{_ONE_KIND}, and this has {named}", "make two items of it")
        else:
            table.problem(None, f"{_ONE_KIND}, and this has none")
        return None
    kind = cast("ExpectKind", kinds[0])
    if kind in _WANTED:
        return _about_a_value(kind, table, documents)
    if kind == "judge":
        form = table.part(kind)
        rubric, path, model = form.text("rubric"), form.text("path"), form.text("model")
        return Expectation(kind, rubric, where=table.path, path=path, model=model)
    if kind == "tool_sequence":
        return _sequence(table)
    if kind in {"tool_called", "tool_not_called"}:
        node = table.node.entries[kind]
        tool = _tool_match(node, table.place(kind), table)
        return Expectation(kind, where=table.path, tools=(tool,))
    value = table.data(kind)
    if kind.startswith("max_") and isinstance(value, str) and "{{" not in value:
        table.problem(kind, f"expected a number or a template of one, found `{value}`")
    return Expectation(kind, value, where=table.path)


def _about_a_value(kind: ExpectKind, table: Table, documents: Documents) -> Expectation:
    inner, key, path = table, str(kind), None
    form = table.child(kind)
    # A JSON Schema that stands here itself may have any keys, but not these two and no other.
    if form is not None and (kind != "schema" or set(form.node.entries) == _LONG_FORM):
        inner, key, path = form, _WANTED[kind], form.text("path")
    if kind == "snapshot":
        file = inner.absolute(key)
        return Expectation(kind, inner.text(key), where=table.path, path=path, file=file)
    if kind == "schema":
        value = documents.schema(inner, key)
        return Expectation(kind, value, where=table.path, path=path, file=inner.absolute(key))
    return Expectation(kind, inner.data(key), where=table.path, path=path)


def _sequence(table: Table) -> Expectation:
    form = table.child("tool_sequence")
    inner, key = (table, "tool_sequence") if form is None else (form, "tools")
    tools = tuple(_tool_match(node, path, table) for path, node in inner.items(key))
    exact = form is not None and form.flag("exact", default=False)
    return Expectation("tool_sequence", where=table.path, tools=tools, exact=exact)


def _tool_match(node: Node, path: str, table: Table) -> ToolMatch:
    if isinstance(node, MappingNode):
        form = Table(node, path, table.problems)
        return ToolMatch(form.text("tool") or "", form.mapping("with"))
    assert isinstance(node, ScalarNode)
    return ToolMatch(str(node.value))
