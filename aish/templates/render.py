"""Templates to text and values; each is rendered once, what it puts in is never source (F6)."""

from collections.abc import Mapping
from pathlib import Path

from aish.templates.context import ProjectNames
from aish.templates.explain import explained
from aish.templates.limits import MAX_OUTPUT, collected
from aish.templates.plain import is_template, look_up, parts_of, rendered
from aish.templates.values import plain
from aish.vocab.json import JsonValue

Context = Mapping[str, JsonValue]


def render(source: str, context: Context) -> str:
    """The text of a template; `readfile` reads where a context of `ProjectNames` says.

    A text without braces is no template and comes back as it is.

    Raises:
        TemplateError: a name is not defined, a bound is reached, the template is wrong.
    """
    if not is_template(source):
        return source
    text = rendered(source, context)
    if text is not None and len(text) <= MAX_OUTPUT:
        return text
    from aish.templates.sandbox import compiled

    try:
        return collected(compiled(source, _root(context)).generate(dict(context)))
    except Exception as error:
        raise explained(error, source, context) from error


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
    from aish.templates.sandbox import sandbox

    try:
        compiled = sandbox(_root(context)).compile_expression(expression, undefined_to_none=False)
        return plain(compiled(dict(context)))
    except Exception as error:
        raise explained(error, source, context) from error


def _only_expression(source: str, context: Context) -> str | None:
    """What stands between the braces, if nothing else stands beside them."""
    from jinja2 import nodes

    from aish.templates.sandbox import sandbox

    try:
        body = sandbox(None).parse(source).body
    except Exception as error:
        raise explained(error, source, context) from error
    if len(body) != 1 or not isinstance(body[0], nodes.Output):
        return None
    parts = body[0].nodes
    if len(parts) != 1 or isinstance(parts[0], nodes.TemplateData):
        return None
    # `{{-` and `-}}` trim what stands beside, and here there is nothing.
    inner = source[2:-2]
    return inner.removeprefix("-").removesuffix("-")


def _root(context: Context) -> Path | None:
    return context.root if isinstance(context, ProjectNames) else None
