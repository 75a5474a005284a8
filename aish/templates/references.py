"""Which names a template reads, as dotted paths: `inputs.since`, `steps.notes.output` (F3, F11)."""

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from aish.core.errors import UsageError
from aish.templates.explain import syntax_reason
from aish.templates.values import NamePath, is_template, parts_of


@lru_cache(maxsize=512)
def references(source: str) -> frozenset[str]:
    """The places that `source` reads; a path ends where only running it could tell the rest.

    Raises:
        UsageError: it is not a template, or wants something that there is not.
    """
    if not is_template(source):
        return frozenset()
    parts = parts_of(source)
    if parts is not None:
        return frozenset(_dotted(part) for part in parts if isinstance(part, tuple))
    return frozenset(_in_jinja(source))


def references_of_expression(expression: str) -> frozenset[str]:
    """The places that an expression without braces reads.

    Raises:
        UsageError: it is not an expression.
    """
    return references("{{ " + expression + " }}")


def _dotted(path: NamePath) -> str:
    """Names up to the first index."""
    names: list[str] = []
    for key in path:
        if isinstance(key, int):
            break
        names.append(key)
    return ".".join(names)


def _in_jinja(source: str) -> set[str]:
    from jinja2 import meta, nodes

    from aish.templates.sandbox import compiled, sandbox

    environment = sandbox(None)
    try:
        tree = environment.parse(source)
        free = meta.find_undeclared_variables(tree)
        compiled(source, None)
    except Exception as error:
        line = getattr(error, "lineno", None)
        why, hint = syntax_reason(error, environment.filters)
        raise UsageError(why, where=f"line {line}" if line else None, hint=hint) from error
    if tree.find((nodes.Include, nodes.Import, nodes.FromImport, nodes.Extends)):  # type: ignore[arg-type]  # a tuple will do
        raise UsageError("a template cannot load another one", hint="use the filter `readfile`")
    return set(_chains(tree, free))


def _chains(tree: Any, free: set[str]) -> Iterator[str]:
    """The longest chain of names from each use of a free name."""
    ahead: list[tuple[Any, bool]] = [(tree, False)]
    while ahead:
        node, called = ahead.pop()
        names, rest = _chain(node)
        if names and names[0] in free:
            # The last name of what is called is a method.
            yield ".".join(names[:-1] if called and len(names) > 1 else names)
            ahead += [(inner, False) for inner in rest]
        else:
            is_call = type(node).__name__ == "Call"
            ahead += [(inner, is_call and inner is node.node) for inner in node.iter_child_nodes()]


def _chain(node: Any) -> tuple[tuple[str, ...], list[Any]]:
    """The names of `a.b["c"]`, and the other nodes in it; no names where it begins otherwise."""
    steps: list[str | None] = []
    rest: list[Any] = []
    while type(node).__name__ in {"Getattr", "Getitem"}:
        if type(node).__name__ == "Getattr":
            steps.append(node.attr)
        else:
            value = getattr(node.arg, "value", None)
            steps.append(value if isinstance(value, str) else None)
            rest.append(node.arg)
        node = node.node
    if type(node).__name__ != "Name" or node.ctx != "load":
        return (), []
    names = [node.name]
    for step in reversed(steps):
        if step is None:
            break
        names.append(step)
    return tuple(names), rest
