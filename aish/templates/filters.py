"""The filters of our own, and Jinja2's where they could make much of little (F6)."""

import csv as csv_module
import hashlib
import io
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any

from aish.templates.limits import (
    check_format,
    check_numbers,
    check_replaced,
    check_size,
    joined,
)
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
    """The text in the middle of `width` columns."""
    check_numbers(width)
    return text_of(value).center(width)


def join(value: Any, between: Any = "", attribute: str | int | None = None) -> str:
    """The texts of a list's items, joined."""
    items = value
    if attribute is not None:
        items = (_attribute(item, attribute) for item in value)
    return joined(map(text_of, items), text_of(between))


def replace(value: Any, old: Any, new: Any, count: int | None = None) -> str:
    """The text with `old` replaced."""
    text, before, after = text_of(value), text_of(old), text_of(new)
    check_replaced(text, before, after)
    return text.replace(before, after, -1 if count is None else count)


def format_text(value: Any, *args: Any, **kwargs: Any) -> str:
    """`%` formatting."""
    form = text_of(value)
    given = tuple(map(_printable, args))
    check_format(form, (*given, *kwargs.values()))
    return form % ({key: _printable(inner) for key, inner in kwargs.items()} or given)


def wordwrap(value: Any, width: int = 79, wrapstring: str = "\n") -> str:
    """The text with line ends where a line would be longer than `width`."""
    from textwrap import wrap

    text = text_of(value)
    check_numbers(width)
    check_size(len(text) * max(len(wrapstring), 1))
    lines = (wrap(line, max(width, 1), break_on_hyphens=False) for line in text.splitlines())
    return wrapstring.join(wrapstring.join(line) for line in lines)


def counted(function: Filter) -> Filter:
    """A filter of Jinja2's whose numbers are looked at before."""

    @wraps(function)
    def checked(*args: Any, **kwargs: Any) -> Any:
        check_numbers(*args[1:], *kwargs.values())
        return function(*args, **kwargs)

    return checked


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
        item = item[int(part)] if part.isdigit() and isinstance(item, list) else item[part]
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
