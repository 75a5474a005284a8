"""What expectations read, as dotted names like those of templates (F3, F11)."""

from collections.abc import Iterable, Iterator

from aish.config.expected import Expectation
from aish.run.expectations.rendering import template_sources
from aish.run.expectations.result_path import parse_path
from aish.templates.plain import is_template
from aish.templates.references import references, references_of_expression


def names_read(expectation: Expectation) -> frozenset[str]:
    """The places that an expectation reads, its templates included; its path if it is one.

    Raises:
        UsageError: it is an expression that is none, or holds a template that is none.
    """
    if expectation.kind == "expression":
        return references_of_expression(str(expectation.value))
    in_templates = (references(source) for _, source in template_sources(expectation))
    return path_read(expectation).union(*in_templates)


def path_read(expectation: Expectation) -> frozenset[str]:
    """The place that its path leads to; nothing where that is none, or known only when it runs."""
    if expectation.path is None or is_template(expectation.path):
        return frozenset()
    try:
        path = parse_path(expectation.path)
    except ValueError:
        return frozenset()
    names: list[str] = []
    for key in path:
        if isinstance(key, int):
            break
        names.append(key)
    return frozenset({".".join(names)})


def all_names_read(expectations: Iterable[Expectation]) -> Iterator[str]:
    """The places that several read.

    Raises:
        UsageError: one is an expression that is none.
    """
    for expectation in expectations:
        yield from names_read(expectation)
