"""Templates to text and values; each is rendered once, what it puts in is never source (F6)."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from aish.errors import StepFailedError
from aish.templates.limits import MAX_OUTPUT, TemplateLimitError, collected
from aish.templates.plain import is_template, look_up, parts_of, rendered
from aish.vocab.json import JsonValue

Context = Mapping[str, JsonValue]
_UNDEFINED = re.compile(r"^'(?P<name>[^']+)' is undefined$|attribute '(?P<attribute>[^']+)'$")


class TemplateError(StepFailedError):
    """A template that cannot be rendered: which, and why."""

    code = "template"


def render(source: str, context: Context, root: Path | None = None) -> str:
    """The text of a template; `root` is where `readfile` may read.

    Raises:
        TemplateError: a name is not defined, a bound is reached, the template is wrong.
    """
    if not is_template(source):
        return source
    text = rendered(source, context)
    if text is not None and len(text) <= MAX_OUTPUT:
        return text
    from aish.templates.sandbox import sandbox

    try:
        template = sandbox(root).from_string(source)
        return collected(template.generate(dict(context)))
    except Exception as error:
        raise _explained(error, source) from error


def render_value(source: str, context: Context, root: Path | None = None) -> JsonValue:
    """As `render`, but a source that is exactly one `{{ … }}` keeps its type.

    Raises:
        TemplateError: as for `render`.
    """
    if not (source.startswith("{{") and source.endswith("}}")):
        return render(source, context, root)
    parts = parts_of(source)
    if parts is not None and len(parts) == 3 and isinstance(parts[1], tuple):  # ruff: ignore[magic-value-comparison] - nothing, the place, nothing
        found, value = look_up(parts[1], context)
        if found:
            return value
    expression = _only_expression(source, root)
    if expression is None:
        return render(source, context, root)
    return evaluate(expression, context, root)


def render_tree(value: JsonValue, context: Context, root: Path | None = None) -> JsonValue:
    """A value with every text in it rendered by `render_value`; keys stand as they are.

    Raises:
        TemplateError: as for `render`.
    """
    if isinstance(value, str):
        return render_value(value, context, root)
    if isinstance(value, Mapping):
        return {key: render_tree(inner, context, root) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [render_tree(inner, context, root) for inner in value]
    return value


def evaluate(expression: str, context: Context, root: Path | None = None) -> JsonValue:
    """The value of an expression without braces, in JSON's own types.

    Raises:
        TemplateError: as for `render`.
    """
    from aish.templates.filters import plain
    from aish.templates.sandbox import sandbox

    try:
        compiled = sandbox(root).compile_expression(expression, undefined_to_none=False)
        found: Any = compiled(**context)
        # A name that is not defined is an object that says so when it is used.
        str(found)
        value: JsonValue = plain(found)
    except Exception as error:
        raise _explained(error, expression) from error
    return value


def _only_expression(source: str, root: Path | None) -> str | None:
    """What stands between the braces, if nothing else stands beside them."""
    from jinja2 import TemplateSyntaxError, nodes

    from aish.templates.sandbox import sandbox

    try:
        body = sandbox(root).parse(source).body
    except TemplateSyntaxError as error:
        raise _explained(error, source) from error
    if len(body) != 1 or not isinstance(body[0], nodes.Output):
        return None
    parts = body[0].nodes
    if len(parts) != 1 or isinstance(parts[0], nodes.TemplateData):
        return None
    return source[2:-2].strip("+-")


def _explained(error: Exception, source: str) -> TemplateError:
    """Jinja2's and Python's errors as a sentence about the template."""
    line = getattr(error, "lineno", None)
    if isinstance(error, TemplateLimitError):
        why = str(error)
    elif isinstance(error, RecursionError | MemoryError):
        why = "it is too deep or too large"
    else:
        why = str(error) or type(error).__name__
    shown = source.strip().partition("\n")[0]
    shown = shown if len(shown) <= 60 else f"{shown[:59]}…"  # ruff: ignore[magic-value-comparison] - a line's worth
    place = f", line {line}" if line and line > 1 else ""
    return TemplateError(f"the template `{shown}`{place}: {why}")
