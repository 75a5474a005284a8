"""Jinja2, sandboxed, immutable, strict and bounded (F6, X10). Imported only where it is needed."""

from functools import lru_cache
from pathlib import Path
from typing import Any

from jinja2 import StrictUndefined
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from aish.templates.filters import FILTERS, readfile_in
from aish.templates.limits import check_call, check_operator

# Filters whose own arguments could make them print without end.
_REFUSED_FILTERS = ("pprint", "xmlattr", "format", "wordwrap", "filesizeformat", "urlize")
_REFUSED_GLOBALS = ("lipsum", "cycler", "joiner")


class BoundedSandbox(ImmutableSandboxedEnvironment):
    """Jinja2's own sandbox with the bounds of F6."""

    intercepted_binops = frozenset({"*", "**", "%"})

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """An intercepted operator."""
        check_operator(operator, left, right)
        return super().call_binop(context, operator, left, right)

    def call(self, context: Context, obj: Any, *args: Any, **kwargs: Any) -> Any:
        """Any call in a template."""
        check_call(obj, args)
        return super().call(context, obj, *args, **kwargs)


@lru_cache(maxsize=8)
def sandbox(root: Path | None) -> BoundedSandbox:
    """The environment for templates of a project; `readfile` reads inside `root`."""
    made = BoundedSandbox(
        undefined=StrictUndefined, autoescape=False, keep_trailing_newline=True, cache_size=512
    )
    for name in _REFUSED_FILTERS:
        made.filters.pop(name, None)
    for name in _REFUSED_GLOBALS:
        made.globals.pop(name, None)
    made.filters.update(FILTERS)
    if root is not None:
        made.filters["readfile"] = readfile_in(root)
    return made
