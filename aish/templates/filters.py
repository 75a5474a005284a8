"""The filters of our own: `tojson`, `toyaml`, `indent`, `csv`, `sha256`, `readfile` (F6)."""

import csv as csv_module
import hashlib
import io
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from aish.templates.limits import MAX_OUTPUT, TemplateLimitError, check_numbers

Filter = Callable[..., Any]


def tojson(value: Any, indent: int | None = None) -> str:
    """JSON, unescaped Unicode."""
    check_numbers(indent or 0)
    return json.dumps(plain(value), ensure_ascii=False, indent=indent)


def toyaml(value: Any) -> str:
    """YAML in block style, without a line end of its own."""
    from ruamel.yaml import YAML

    yaml = YAML(typ="safe", pure=True)
    yaml.default_flow_style = False
    yaml.allow_unicode = True
    out = io.StringIO()
    yaml.dump(plain(value), out)
    return out.getvalue().removesuffix("...\n").rstrip("\n")


def indent(value: Any, width: int = 4, first: bool = False, blank: bool = False) -> str:  # ruff: ignore[boolean-type-hint-positional-argument, boolean-default-value-positional-argument] - Jinja2's own signature
    """Each line but the first moved to the right, as Jinja2's own filter does."""
    text = str(value)
    check_numbers(width, width * (text.count("\n") + 1))
    pad = " " * width
    lines = text.split("\n")
    moved = [pad + line if line or blank else line for line in lines[1:]]
    return "\n".join([pad + lines[0] if first else lines[0], *moved])


def center(value: Any, width: int = 80) -> str:
    """The text in the middle of `width` columns."""
    check_numbers(width)
    return str(value).center(width)


def csv(value: Any) -> str:
    """One row, or a row for each item that is a list; the last line end left off."""
    rows = [value] if not value or not isinstance(value[0], list | tuple) else value
    out = io.StringIO()
    csv_module.writer(out, lineterminator="\n").writerows(rows)
    return out.getvalue().rstrip("\n")


def sha256(value: Any) -> str:
    """The hexadecimal SHA-256 of the text in UTF-8."""
    return hashlib.sha256(str(value).encode("utf-8", "surrogatepass")).hexdigest()


def readfile_in(root: Path) -> Filter:
    """A filter that reads UTF-8 files inside `root` and nowhere else."""
    inside = root.resolve()

    def readfile(value: Any) -> str:
        """The text of a file of the project."""
        path = (inside / str(value)).resolve()
        if not path.is_relative_to(inside) or not path.is_file():
            raise TemplateLimitError(f"readfile: `{value}` is not a file of the project's folder")
        with path.open("rb") as file:
            data = file.read(MAX_OUTPUT + 1)
        if len(data) > MAX_OUTPUT:
            raise TemplateLimitError(f"readfile: `{value}` is larger than 4 MiB")
        try:
            return data.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise TemplateLimitError(f"readfile: `{value}` is not UTF-8") from error

    return readfile


FILTERS: Mapping[str, Filter] = {
    "tojson": tojson,
    "toyaml": toyaml,
    "indent": indent,
    "center": center,
    "csv": csv,
    "sha256": sha256,
}


def plain(value: Any) -> Any:
    """The value in JSON's own types: generators become lists, marked-up text becomes text.

    Raises:
        TemplateLimitError: it holds something JSON has no word for.
    """
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple | set | frozenset) or hasattr(value, "__next__"):
        return [plain(inner) for inner in value]
    raise TemplateLimitError(f"a value of type {type(value).__name__} has no place in a pipeline")
