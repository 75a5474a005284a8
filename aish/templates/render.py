"""Renders templates to text and values; each once, inserted text is never source.

Also the names that a template reads, as dotted paths: `inputs.since`, `steps.notes.output`.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from aish.core.errors import UsageError
from aish.core.json import JsonValue
from aish.templates.limits import (
    MAX_EXPRESSION_SECONDS,
    MAX_OUTPUT,
    MAX_SECONDS,
    TemplateLimitError,
    collect,
    syntax_reason,
    template_error,
)
from aish.templates.values import (
    NamePath,
    ProjectNames,
    is_template,
    look_up,
    parts_of,
    plain,
    render_plain,
)

Context = Mapping[str, JsonValue]
Result = TypeVar("Result")


def render(source: str, context: Context) -> str:
    """The text of a template; `readfile` reads where a context of `ProjectNames` allows.

    A text without braces is not a template and is returned unchanged.

    Raises:
        TemplateError: a name is not defined, a bound is reached, the template is wrong.
        ComputationStoppedError: a signal or the deadline of the task has stopped it.
    """
    if not is_template(source):
        return source
    text = render_plain(source, context)
    if text is not None and len(text) <= MAX_OUTPUT:
        return text
    from aish.templates.sandbox import compile_template

    def text_of_all() -> str:
        return collect(compile_template(source, _root(context)).generate(dict(context)))

    return _compute(text_of_all, MAX_SECONDS, source, context)


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
    """A value with every text in it rendered by `render_value`; keys are unchanged.

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
    from aish.templates.sandbox import compile_expression

    def value() -> JsonValue:
        return plain(compile_expression(expression, _root(context))(dict(context)))

    return _compute(value, MAX_EXPRESSION_SECONDS, source, context)


def _only_expression(source: str, context: Context) -> str | None:
    from aish.templates.sandbox import only_expression

    try:
        return only_expression(source)
    except Exception as error:
        raise template_error(error, source, context) from error


def _compute(work: Callable[[], Result], seconds: float, source: str, context: Context) -> Result:
    """The result of a Jinja2 template, computed so that it can be stopped."""
    from aish.system.computation import ComputationStoppedError, compute

    try:
        return compute(work, seconds)
    except ComputationStoppedError as stopped:
        if not stopped.is_late:
            raise
        error = TemplateLimitError(f"rendering takes longer than {seconds:g} s")
        raise template_error(error, source, context) from stopped
    except Exception as error:
        raise template_error(error, source, context) from error


def _root(context: Context) -> Path | None:
    return context.root if isinstance(context, ProjectNames) else None


# All templates of a large file are read by several checks, one after the other.
@lru_cache(maxsize=4096)
def references(source: str) -> frozenset[str]:
    """The paths that `source` reads; a path ends where the rest is known only at run time.

    Raises:
        UsageError: it is not a template, or uses a feature that does not exist.
    """
    if not is_template(source):
        return frozenset()
    parts = parts_of(source)
    if parts is not None:
        return frozenset(join_names(part) for part in parts if isinstance(part, tuple))
    from jinja2 import meta, nodes

    from aish.templates.sandbox import compile_template, sandbox

    environment = sandbox(None)
    try:
        tree = environment.parse(source)
        free = meta.find_undeclared_variables(tree)
        compile_template(source, None)
    except Exception as error:
        line = getattr(error, "lineno", None)
        why, hint = syntax_reason(error, environment.filters)
        raise UsageError(why, where=f"line {line}" if line else None, hint=hint) from error
    if tree.find((nodes.Include, nodes.Import, nodes.FromImport, nodes.Extends)):  # type: ignore[arg-type]  # a tuple will do
        raise UsageError("a template cannot load another one", hint="use the filter `readfile`")
    return frozenset(_chains(tree, free))


def references_of_expression(expression: str) -> frozenset[str]:
    """The paths that an expression without braces reads.

    Raises:
        UsageError: it is not an expression.
    """
    return references("{{ " + expression + " }}")


def join_names(path: NamePath) -> str:
    """Names up to the first index."""
    names: list[str] = []
    for key in path:
        if isinstance(key, int):
            break
        names.append(key)
    return ".".join(names)


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
