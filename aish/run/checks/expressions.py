"""Expressions without braces: do they parse, and is everything they read there (F11)."""

from collections.abc import Iterator, Sequence

from aish.config.pipeline import Pipeline
from aish.core.errors import UsageError
from aish.run.checks.complaint import Complaint
from aish.run.checks.reading import undefined
from aish.templates.references import references_of_expression


def expression_complaints(
    expression: str, path: str, pipeline: Pipeline, names: Sequence[str] = ()
) -> Iterator[Complaint]:
    """About an expression at `path`; `names` are known beside those of templates."""
    try:
        read = references_of_expression(expression)
    except UsageError as error:
        yield no_expression(expression, path, error)
        return
    for name in sorted(read):
        yield from undefined(name, path, pipeline, names)


def no_expression(expression: str, path: str, error: UsageError) -> Complaint:
    """About what is no expression at all."""
    said = "an expression stands without braces" if "{{" in expression else error.hint
    # The engine was given the expression in braces.
    early = "end of print statement" in error.message
    why = "it ends too early" if early else error.message
    return Complaint(path, f"not an expression: {why}", said)
