"""Jinja2, sandboxed, immutable, strict and bounded, with additional filters.

Imported only on demand.
"""

import csv as csv_module
import hashlib
import io
from collections.abc import Callable, Mapping
from functools import lru_cache, partial, wraps
from pathlib import Path
from typing import Any

from jinja2 import StrictUndefined, Template, UndefinedError, nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.environment import TemplateExpression
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import missing

from aish.templates.limits import (
    MAX_OUTPUT,
    TemplateLimitError,
    check_call,
    check_format,
    check_numbers,
    check_operator,
    check_replaced,
    check_size,
    join_texts,
)
from aish.templates.project_file import ProjectFileError, project_file
from aish.templates.values import json_of, plain, text_of, yaml_of

Filter = Callable[..., Any]


def tojson(value: Any, indent: int | None = None) -> str:
    """JSON, Unicode unescaped."""
    check_size((indent or 0) * 1000)
    return json_of(value, indent)


def indent(value: Any, width: int | str = 4, first: bool = False, blank: bool = False) -> str:  # ruff: ignore[boolean-type-hint-positional-argument, boolean-default-value-positional-argument] - Jinja2's own signature
    """Each line but the first moved to the right, as Jinja2's own filter does."""
    text = text_of(value)
    lines = text.split("\n")
    size = width if isinstance(width, int) else len(width)
    check_size(len(text) + max(size, 0) * len(lines))
    pad = " " * width if isinstance(width, int) else width
    moved = [pad + line if line or blank else line for line in lines[1:]]
    return "\n".join([pad + lines[0] if first else lines[0], *moved])


def center(value: Any, width: int = 80) -> str:
    check_numbers(width)
    return text_of(value).center(width)


def join(value: Any, d: Any = "", attribute: str | int | None = None) -> str:
    """The texts of a list's items, joined."""
    items = value
    if attribute is not None:
        items = (_attribute(item, attribute) for item in value)
    return join_texts(map(text_of, items), text_of(d))


def replace(value: Any, old: Any, new: Any, count: int | None = None) -> str:
    text, before, after = text_of(value), text_of(old), text_of(new)
    check_replaced(text, before, after)
    return text.replace(before, after, -1 if count is None else count)


def format_text(value: Any, *args: Any, **kwargs: Any) -> str:
    """`%` formatting."""
    form = text_of(value)
    given = tuple(map(_printable, args))
    check_format(form, (*given, *kwargs.values()))
    return form % ({key: _printable(inner) for key, inner in kwargs.items()} or given)


def wordwrap(
    value: Any,
    width: int = 79,
    break_long_words: bool = True,  # ruff: ignore[boolean-type-hint-positional-argument, boolean-default-value-positional-argument] - Jinja2's own signature
    wrapstring: str | None = None,
    break_on_hyphens: bool = True,  # ruff: ignore[boolean-type-hint-positional-argument, boolean-default-value-positional-argument] - Jinja2's own signature
) -> str:
    """The text with line ends where a line would be longer than `width`."""
    from textwrap import TextWrapper

    text, between = text_of(value), wrapstring or "\n"
    check_numbers(width)
    check_size(len(text) * len(between))
    wrapper = TextWrapper(
        max(width, 1),
        expand_tabs=False,
        replace_whitespace=False,
        break_long_words=break_long_words,
        break_on_hyphens=break_on_hyphens,
    )
    return between.join(between.join(wrapper.wrap(line)) for line in text.splitlines())


def check_before(function: Filter) -> Filter:
    """A filter of Jinja2 whose numbers are checked first."""

    @wraps(function)
    def call_checked(*args: Any, **kwargs: Any) -> Any:
        check_numbers(*args[1:], *kwargs.values())
        return function(*args, **kwargs)

    return call_checked


def csv(value: Any) -> str:
    """Rows as CSV: one row, a list of rows, or of mappings, whose keys become the first row."""
    rows = plain(value)
    if not isinstance(rows, list):
        rows = [[rows]]
    elif rows and isinstance(rows[0], dict):
        keys = list(dict.fromkeys(key for row in rows if isinstance(row, dict) for key in row))
        cells = [[row.get(key) if isinstance(row, dict) else None for key in keys] for row in rows]
        rows = [keys, *cells]
    elif rows and not isinstance(rows[0], list):
        rows = [rows]
    out = io.StringIO()
    writer = csv_module.writer(out, lineterminator="\n")
    writer.writerows(
        ["" if cell is None else text_of(cell) for cell in row] if isinstance(row, list) else [row]
        for row in rows
    )
    return out.getvalue().rstrip("\n")


def sha256(value: Any) -> str:
    """The hexadecimal SHA-256 of the text in UTF-8."""
    return hashlib.sha256(text_of(value).encode("utf-8", "surrogatepass")).hexdigest()


def _attribute(item: Any, name: str | int) -> Any:
    for part in str(name).split("."):
        is_place = part.isascii() and part.isdigit() and len(part) <= _LONGEST_PLACE
        item = item[int(part)] if is_place and isinstance(item, list) else item[part]
    return item


def _printable(value: Any) -> Any:
    return value if isinstance(value, int | float) else text_of(value)


FILTERS: Mapping[str, Filter] = {
    "tojson": tojson,
    "toyaml": yaml_of,
    "indent": indent,
    "center": center,
    "join": join,
    "replace": replace,
    "format": format_text,
    "string": text_of,
    "wordwrap": wordwrap,
    "csv": csv,
    "sha256": sha256,
}


_IN_PARTS = (
    "`foreach: {file: rows.csv}` takes rows one by one, and with a server `{pack: fs}` a model "
    "reads parts of a file"
)


def readfile_in(root: Path) -> Callable[[object], str]:
    """A filter that reads UTF-8 files inside `root` and nowhere else."""

    def readfile(value: object) -> str:
        """The text of a file of the project."""
        name = str(value)
        try:
            return project_file(root, name, MAX_OUTPUT).decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise TemplateLimitError(f"readfile: `{name}` is not UTF-8") from error
        except ProjectFileError as error:
            refused = TemplateLimitError(f"readfile: `{name}` {error}")
            refused.hint = _IN_PARTS if error.is_too_large else None
            raise refused from error

    return readfile


# Different in each run, or Python's own notation.
_LONGEST_PLACE = 9
_NO_FILTERS = ("random", "pprint")
_NO_GLOBALS = ("lipsum",)
# Filters whose arguments determine the size of their result.
_COUNTED_FILTERS = ("batch", "slice", "truncate", "round")


class NotDefinedError(UndefinedError):
    """A name that is not defined; `inside` is where it was looked up."""

    def __init__(self, inside: Any, name: Any, message: str | None = None) -> None:
        super().__init__(message)
        self.inside = None if inside is missing else inside
        self.name = name


class Strict(StrictUndefined):
    """An undefined name: every use but `is defined` and `default` is an error."""

    __slots__ = ()

    def __init__(
        self,
        hint: str | None = None,
        obj: Any = missing,
        name: Any = None,
        exc: Any = UndefinedError,
    ) -> None:
        if isinstance(name, Strict):
            # It is what stands between brackets that is not defined.
            obj, name = name._undefined_obj, name._undefined_name  # ruff: ignore[private-member-access] - of its own class
        # The sandbox has an exception of its own for refused operations.
        said: Any = partial(NotDefinedError, obj, name) if exc is UndefinedError else exc
        super().__init__(hint, obj, name, said)


class _BoundedCode(CodeGenerator):
    """`~` is not an operator that a sandbox can intercept, so its code is replaced here."""

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:  # ruff: ignore[invalid-function-name] - Jinja2 calls it by that name
        """Write a call that checks the size before it joins."""
        self.write("environment.concatenated((")
        for part in node.nodes:
            self.visit(part, frame)
            self.write(", ")
        self.write("))")


class BoundedSandbox(ImmutableSandboxedEnvironment):
    """Jinja2's own sandbox, with bounds; a key of a mapping takes precedence over its methods."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})
    code_generator_class = _BoundedCode

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        check_operator(operator, left, right)
        return super().call_binop(context, operator, left, right)

    def call(self, context: Context, obj: Any, *args: Any, **kwargs: Any) -> Any:
        check_call(obj, args, kwargs)
        return super().call(context, obj, *args, **kwargs)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """`"…".format(…)`, which Jinja2 replaces by a function of its own."""
        inner = super().wrap_str_format(value)
        if inner is None:
            return None
        form = value.__self__

        def format_checked(*args: Any, **kwargs: Any) -> str:
            check_format(form, (*args, *kwargs.values()))
            return inner(*args, **kwargs)

        return format_checked

    @staticmethod
    def concatenated(parts: tuple[Any, ...]) -> str:
        return join_texts(map(text_of, parts))

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
        made.filters[name] = check_before(made.filters[name])
    made.filters.update(FILTERS)
    made.filters["readfile"] = readfile_in(root or Path())
    return made


@lru_cache(maxsize=256)
def compile_template(source: str, root: Path | None) -> Template:
    return sandbox(root).from_string(source)


@lru_cache(maxsize=256)
def compile_expression(source: str, root: Path | None) -> TemplateExpression:
    """The compiled expression, written without braces."""
    return sandbox(root).compile_expression(source, undefined_to_none=False)


@lru_cache(maxsize=256)
def only_expression(source: str) -> str | None:
    """The expression of a template that consists of nothing else."""
    body = sandbox(None).parse(source).body
    if len(body) != 1 or not isinstance(body[0], nodes.Output):
        return None
    parts = body[0].nodes
    if len(parts) != 1 or isinstance(parts[0], nodes.TemplateData):
        return None
    # `{{-` and `-}}` trim what stands beside, and here there is nothing.
    inner = source[2:-2]
    return inner.removeprefix("-").removesuffix("-")
