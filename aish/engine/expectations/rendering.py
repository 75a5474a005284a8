"""The templates in an expectation: where they are, and their values at check time.

Every text of an expectation is a template, as in a prompt, with the same context as its paths and
expressions. Exceptions are an `expression`, the alias of a judge's model, and a schema in a file of
its own.
"""

import re
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from sys import float_info

from aish.config.model import Expectation, QuoteSource, ToolMatch
from aish.config.yaml_tree import at, join, texts_with_paths
from aish.core.json import JsonValue
from aish.engine.expectations.subject import Mask, short
from aish.templates.render import Context, render, render_tree
from aish.templates.values import is_template, text_of

_BOUNDS = frozenset(
    {"max_tool_calls", "max_failed_calls", "max_tokens", "max_cost_usd", "max_seconds"}
)
_TEXTS = frozenset({"contains", "not_contains", "matches", "judge", "snapshot"})
_VALUE_KEYS = {"matches": "regex", "schema": "schema", "snapshot": "file", "judge": "rubric"}


class UnusableError(Exception):
    """A rendered value that cannot be expected; the message gives the value."""


def template_sources(expectation: Expectation) -> Iterator[tuple[str, str]]:
    """Each template text: its key in the longer form, and the source.

    For nested texts, the key is a path: `with.path`, `schema.properties.title.const`.
    """
    sources: list[tuple[str, str]] = []
    if expectation.path is not None:
        sources.append(("path", expectation.path))
    if expectation.kind != "expression" and not _is_schema_file(expectation):
        sources += texts_with_paths(expectation.value, _VALUE_KEYS.get(expectation.kind, "value"))
    if expectation.quoted is not None:
        files = enumerate(expectation.quoted.sources)
        sources += [(f"in[{n}].file", one.name) for n, one in files if one.kind == "file"]
    for index, match in enumerate(expectation.tools):
        place = at("tools", index) if expectation.kind == "tool_sequence" else ""
        sources.append((join(place, "tool"), match.tool))
        sources += texts_with_paths(dict(match.arguments), join(place, "with"))
    yield from ((key, source) for key, source in sources if is_template(source))


def render_expectation(expectation: Expectation, names: Context, mask: Mask = str) -> Expectation:
    """The expectation with its templates rendered; a lone `{{ … }}` keeps its type.

    `mask` masks the text shown in an error.

    Raises:
        TemplateError: a template cannot be rendered.
        UnusableError: a rendered value cannot be expected.
    """
    if next(template_sources(expectation), None) is None:
        return expectation
    changes: dict[str, object] = {}
    if expectation.path is not None:
        changes["path"] = render(expectation.path, names)
    kind, value = expectation.kind, expectation.value
    if kind == "snapshot":
        assert expectation.file is not None
        _, changes["file"] = _file(str(expectation.value), expectation.file, names)
    elif expectation.quoted is not None:
        sources = tuple(_quote_source(one, names) for one in expectation.quoted.sources)
        changes["quoted"] = replace(expectation.quoted, sources=sources)
    elif kind in _BOUNDS:
        changes["value"] = _number(render_tree(value, names), str(value))
    elif kind != "expression" and not _is_schema_file(expectation):
        result = render_tree(value, names)
        if kind in _TEXTS:
            # Every text contains the empty one: the expectation would never fail.
            _demand_text(text_of(result), str(value))
            result = result if kind in {"contains", "not_contains"} else text_of(result)
        if kind == "matches":
            _demand_regex(str(result), mask)
        if kind == "schema" and not isinstance(result, Mapping):
            raise UnusableError("a template that gives no JSON Schema")
        changes["value"] = result
    changes["tools"] = tuple(_match(match, names) for match in expectation.tools)
    return replace(expectation, **changes)  # type: ignore[arg-type]  # the keys are those of the class


def _is_schema_file(expectation: Expectation) -> bool:
    return expectation.kind == "schema" and expectation.file is not None


def _match(match: ToolMatch, names: Context) -> ToolMatch:
    tool = render(match.tool, names)
    _demand_text(tool, match.tool)
    arguments = {key: render_tree(value, names) for key, value in match.arguments.items()}
    return replace(match, tool=tool, arguments=arguments)


def _quote_source(source: QuoteSource, names: Context) -> QuoteSource:
    if source.path is None:
        return source
    name, path = _file(source.name, source.path, names)
    return replace(source, name=name, path=path)


def _file(source: str, path: Path, names: Context) -> tuple[str, Path]:
    """A file by its rendered name: only what is written is a template, not the folder before it."""
    name = render(source, names)
    _demand_text(name, source)
    if "\0" in name:
        raise UnusableError(f"`{source}`, which does not give a file name")
    return name, replace_file_name(path, source, name)


def replace_file_name(path: Path, source: str, name: str) -> Path:
    """An absolute path with its last part, `source` in the file, replaced by `name`.

    The preceding part is the folder of the file, and not a template: a folder may have any name.
    """
    return path.parents[len(Path(source).parts) - 1] / name


def _number(value: JsonValue, source: str) -> float:
    """A number; numeric text is accepted, because CSV rows contain only text."""
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            value = None
    # A whole number may be larger than a float can be; nothing measured comes near to it.
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not abs(value) <= float_info.max
    ):
        raise UnusableError(f"`{source}`, which does not give a number")
    return value


def _demand_regex(regex: str, mask: Mask) -> None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            re.compile(regex)
    except (re.error, RecursionError, OverflowError) as error:
        message = f"{short(regex, mask)}, which is not a valid regular expression: {error}"
        raise UnusableError(message) from error


def _demand_text(text: str, source: str) -> None:
    if not text.strip():
        raise UnusableError(f"`{source}`, which gives empty text")
