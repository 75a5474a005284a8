"""Which names a template reads, as dotted paths: `inputs.since`, `steps.notes.output` (F3, F11)."""

from collections.abc import Iterator
from functools import lru_cache
from itertools import takewhile

from aish.errors import UsageError
from aish.templates.plain import Path, is_template, parts_of

_INDEX = "[]"


@lru_cache(maxsize=512)
def references(source: str) -> frozenset[str]:
    """The places that `source` reads; a path ends where only running it could tell the rest.

    Raises:
        UsageError: it is not a template.
    """
    if not is_template(source):
        return frozenset()
    parts = parts_of(source)
    if parts is not None:
        return frozenset(_dotted(part) for part in parts if isinstance(part, tuple))
    return frozenset(_in_jinja(source))


@lru_cache(maxsize=512)
def references_of_expression(expression: str) -> frozenset[str]:
    """The places that an expression without braces reads.

    Raises:
        UsageError: it is not an expression.
    """
    return references("{{ " + expression + " }}")


def _dotted(path: Path) -> str:
    """Names up to the first index."""
    names: list[str] = []
    for key in path:
        if isinstance(key, int):
            break
        names.append(key)
    return ".".join(names)


def _in_jinja(source: str) -> Iterator[str]:
    from jinja2 import TemplateSyntaxError, meta, nodes

    from aish.templates.sandbox import sandbox

    try:
        tree = sandbox(None).parse(source)
    except (TemplateSyntaxError, RecursionError) as error:
        line = getattr(error, "lineno", None)
        where = f"line {line}" if line else None
        raise UsageError(str(error) or "the template is too deep", where=where) from error
    free = meta.find_undeclared_variables(tree)

    def chain(node: nodes.Node) -> tuple[str, ...] | None:
        """The names of `a.b["c"]`, or `None` for anything that begins otherwise."""
        if isinstance(node, nodes.Name):
            return (node.name,) if node.name in free else None
        if isinstance(node, nodes.Getattr):
            head = chain(node.node)
            return None if head is None else (*head, node.attr)
        if isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Const):
            head = chain(node.node)
            key = node.arg.value
            return None if head is None else (*head, key if isinstance(key, str) else _INDEX)
        return None

    inner = {id(node.node) for node in tree.find_all(nodes.Getattr) if chain(node)}
    inner |= {id(node.node) for node in tree.find_all(nodes.Getitem) if chain(node)}
    for node in tree.find_all((nodes.Name, nodes.Getattr, nodes.Getitem)):
        names = chain(node)
        if names is not None and id(node) not in inner:
            yield ".".join(takewhile(lambda name: name != _INDEX, names))
