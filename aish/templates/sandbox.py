"""Jinja2, sandboxed, immutable, strict and bounded (F6, X10). Imported only where it is needed."""

from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from jinja2 import StrictUndefined, Template, UndefinedError, nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.environment import TemplateExpression
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import missing

from aish.templates.filters import FILTERS, counted
from aish.templates.limits import check_call, check_format, check_operator, joined
from aish.templates.readfile import readfile_in
from aish.templates.values import text_of

# Different in each run, or Python's own spelling.
_NO_FILTERS = ("random", "pprint")
_NO_GLOBALS = ("lipsum",)
# Filters whose arguments say how much they make.
_COUNTED_FILTERS = ("batch", "slice", "truncate", "round")


class NotDefinedError(UndefinedError):
    """A name that nothing defines; `inside` is what it was looked for in."""

    def __init__(self, inside: Any, name: Any, message: str | None = None) -> None:
        super().__init__(message)
        self.inside = None if inside is missing else inside
        self.name = name


class Strict(StrictUndefined):
    """A name that is not defined: every use but `is defined` and `default` is an error."""

    __slots__ = ()

    def __init__(
        self,
        hint: str | None = None,
        obj: Any = missing,
        name: Any = None,
        exc: Any = UndefinedError,
    ) -> None:
        # What the sandbox refuses has an exception of its own.
        said: Any = partial(NotDefinedError, obj, name) if exc is UndefinedError else exc
        super().__init__(hint, obj, name, said)


class _BoundedCode(CodeGenerator):
    """`~` is not an operator that a sandbox may watch, so its code is ours."""

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:  # ruff: ignore[invalid-function-name] - Jinja2 calls it by that name
        """Write a call that counts before it joins."""
        self.write("environment.concatenated((")
        for part in node.nodes:
            self.visit(part, frame)
            self.write(", ")
        self.write("))")


class BoundedSandbox(ImmutableSandboxedEnvironment):
    """Jinja2's own sandbox with the bounds of F6; a key of a mapping goes before its methods."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})
    code_generator_class = _BoundedCode

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """An intercepted operator."""
        check_operator(operator, left, right)
        return super().call_binop(context, operator, left, right)

    def call(self, context: Context, obj: Any, *args: Any, **kwargs: Any) -> Any:
        """Any call in a template."""
        check_call(obj, args, kwargs)
        return super().call(context, obj, *args, **kwargs)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """`"…".format(…)`, which Jinja2 replaces by a function of its own."""
        inner = super().wrap_str_format(value)
        if inner is None:
            return None
        form = value.__self__

        def formatted(*args: Any, **kwargs: Any) -> str:
            check_format(form, (*args, *kwargs.values()))
            return inner(*args, **kwargs)

        return formatted

    @staticmethod
    def concatenated(parts: tuple[Any, ...]) -> str:
        """What `a ~ b` comes to."""
        return joined(map(text_of, parts))

    def getattr(self, obj: Any, attribute: str) -> Any:
        """`obj.attribute`; an input called `items` is that input."""
        if isinstance(obj, Mapping) and attribute in obj:
            return obj[attribute]
        return super().getattr(obj, attribute)


@lru_cache(maxsize=8)
def sandbox(root: Path | None) -> BoundedSandbox:
    """The environment for templates of a project; `readfile` reads inside `root`."""
    made = BoundedSandbox(
        undefined=Strict,
        autoescape=False,
        keep_trailing_newline=True,
        finalize=text_of,
        optimized=False,
    )
    for name in _NO_FILTERS:
        made.filters.pop(name, None)
    for name in _NO_GLOBALS:
        made.globals.pop(name, None)
    for name in _COUNTED_FILTERS:
        made.filters[name] = counted(made.filters[name])
    made.filters.update(FILTERS)
    made.filters["readfile"] = readfile_in(root or Path())
    return made


@lru_cache(maxsize=256)
def compiled(source: str, root: Path | None) -> Template:
    """The compiled template."""
    return sandbox(root).from_string(source)


@lru_cache(maxsize=256)
def compiled_expression(source: str, root: Path | None) -> TemplateExpression:
    """The compiled expression, written without braces."""
    return sandbox(root).compile_expression(source, undefined_to_none=False)


@lru_cache(maxsize=256)
def only_expression(source: str) -> str | None:
    """What stands between the braces of a template, if nothing else stands beside them."""
    body = sandbox(None).parse(source).body
    if len(body) != 1 or not isinstance(body[0], nodes.Output):
        return None
    parts = body[0].nodes
    if len(parts) != 1 or isinstance(parts[0], nodes.TemplateData):
        return None
    # `{{-` and `-}}` trim what stands beside, and here there is nothing.
    inner = source[2:-2]
    return inner.removeprefix("-").removesuffix("-")
