"""Templates to text and values; each is rendered once, what it puts in is never source (F6)."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from aish.core.json import JsonValue
from aish.templates.explain import explained
from aish.templates.limits import (
    MAX_EXPRESSION_SECONDS,
    MAX_OUTPUT,
    MAX_SECONDS,
    TemplateLimitError,
    collected,
)
from aish.templates.values import ProjectNames, is_template, look_up, parts_of, plain, rendered

Context = Mapping[str, JsonValue]
Result = TypeVar("Result")


def render(source: str, context: Context) -> str:
    """The text of a template; `readfile` reads where a context of `ProjectNames` says.

    A text without braces is no template and comes back as it is.

    Raises:
        TemplateError: a name is not defined, a bound is reached, the template is wrong.
        ComputationStoppedError: a signal or the deadline of the task has stopped it.
    """
    if not is_template(source):
        return source
    text = rendered(source, context)
    if text is not None and len(text) <= MAX_OUTPUT:
        return text
    from aish.templates.sandbox import compiled

    def text_of_all() -> str:
        return collected(compiled(source, _root(context)).generate(dict(context)))

    return _computed(text_of_all, MAX_SECONDS, source, context)


def render_value(source: str, context: Context) -> JsonValue:
    """As `render`, but a source that is exactly one `{{ … }}` keeps its type.

    Raises:
        TemplateError: as for `render`.
    """
    if not (source.startswith("{{") and source.endswith("}}")):
        return render(source, context)
    parts = parts_of(source)
    if parts is not None and len(parts) == 3 and not (parts[0] or parts[2]):  # ruff: ignore[magic-value-comparison] - nothing, the place, nothing
        assert isinstance(parts[1], tuple)
        found, value = look_up(parts[1], context)
        if found:
            return value
    expression = _only_expression(source, context)
    return render(source, context) if expression is None else _value(expression, context, source)


def render_tree(value: JsonValue, context: Context) -> JsonValue:
    """A value with every text in it rendered by `render_value`; keys stand as they are.

    Raises:
        TemplateError: as for `render`.
    """
    if isinstance(value, str):
        return render_value(value, context)
    if isinstance(value, Mapping):
        return {key: render_tree(inner, context) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [render_tree(inner, context) for inner in value]
    return value


def evaluate(expression: str, context: Context) -> JsonValue:
    """The value of an expression without braces, in JSON's own types.

    Raises:
        TemplateError: as for `render`.
    """
    return _value(expression, context, expression)


def _value(expression: str, context: Context, source: str) -> JsonValue:
    from aish.templates.sandbox import compiled_expression

    def value() -> JsonValue:
        return plain(compiled_expression(expression, _root(context))(dict(context)))

    return _computed(value, MAX_EXPRESSION_SECONDS, source, context)


def _only_expression(source: str, context: Context) -> str | None:
    from aish.templates.sandbox import only_expression

    try:
        return only_expression(source)
    except Exception as error:
        raise explained(error, source, context) from error


def _computed(work: Callable[[], Result], seconds: float, source: str, context: Context) -> Result:
    """What Jinja2 makes of a template, where it can be stopped."""
    from aish.system.computation import ComputationStoppedError, compute

    try:
        return compute(work, seconds)
    except ComputationStoppedError as stopped:
        if not stopped.is_late:
            raise
        error = TemplateLimitError(f"rendering takes longer than {seconds:g} s")
        raise explained(error, source, context) from stopped
    except Exception as error:
        raise explained(error, source, context) from error


def _root(context: Context) -> Path | None:
    return context.root if isinstance(context, ProjectNames) else None
