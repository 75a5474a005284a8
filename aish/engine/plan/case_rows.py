"""Tests with `foreach`: each row of a file becomes a case.

tests:
  - name: answers as it should
    foreach: {file: cases.csv}
    key: item.id
    cassette: cassettes/{{ key }}.yaml
    expect: [{contains: "{{ item.answer }}"}]

A column with the name of an input sets that input. `name`, `inputs`, `stdin` and `cassette` of such
a test are templates with the row as `item` (or as `as` says), its `key` and `index`.
"""

import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from aish.config.inputs import fits
from aish.config.model import Case, CaseRows, CassetteSettings, Pipeline
from aish.core.errors import AishError, UsageError
from aish.core.json import JsonObject, JsonValue
from aish.engine.expectations.rendering import replace_file_name
from aish.items.items import from_file
from aish.items.keys import key_text
from aish.items.source import ItemsError
from aish.system.schema.check import spell_path
from aish.templates.render import render, render_tree, render_value
from aish.templates.values import ProjectNames, is_template

MOST_ROWS = 10_000
"""Cases of one test: more is a batch, and no test."""

_ONE_KEY = "a case is named by its key: use a column with unique values"


def with_rows(pipeline: Pipeline) -> Pipeline:
    """The same pipeline, with each `foreach` test replaced by the cases of its rows."""
    if all(case.rows is None for case in pipeline.tests):
        return pipeline
    cases = tuple(row for case in pipeline.tests for row in cases_of(case, pipeline))
    names: dict[str, Case] = {}
    for case in cases:
        other = names.setdefault(case.name, case)
        if other is not case:
            message = f"two cases have the name `{case.name}`"
            raise UsageError(message, where=f"{pipeline.file}: {case.where}", hint=_ONE_KEY)
    return replace(pipeline, tests=cases)


def cases_of(case: Case, pipeline: Pipeline) -> Iterator[Case]:
    """The cases of a test: one for each row of its file, itself without a file.

    Raises:
        UsageError: the file cannot be read, a row is invalid, or a template cannot be rendered.
    """
    if case.rows is None:
        yield case
        return
    rows, keys = case.rows, dict[str, int]()
    for number, row in enumerate(_rows(case.rows), 1):
        try:
            row_case = _case(case, pipeline, row, number - 1)
        except AishError as error:
            message = f"row {number}: {error.message}"
            hint = _other_delimiter(rows) or error.hint
            raise UsageError(message, where=rows.file, hint=hint) from error
        key = str(row_case.names["key"])
        if key in keys:
            message = f"rows {keys[key]} and {number} have the same key `{key}`"
            raise UsageError(message, where=rows.file, hint=_ONE_KEY)
        keys[key] = number
        yield row_case
    if not keys:
        raise UsageError("there are no rows, so the test has no cases", where=rows.file)


def _rows(rows: CaseRows) -> Iterator[JsonValue]:
    try:
        for item in from_file(rows.folder / rows.file, rows.delimiter):
            if item.index >= MOST_ROWS:
                said = f"more than {MOST_ROWS:,} rows are too many for a test"
                raise UsageError(said, where=rows.file, hint="`foreach` of a step takes any number")
            yield item.value
    except ItemsError as error:
        raise UsageError(error.message, where=error.where, hint=error.hint) from error


def _other_delimiter(rows: CaseRows) -> str | None:
    if rows.delimiter is not None:
        return None
    return from_file(rows.folder / rows.file).other_delimiter()


def _case(case: Case, pipeline: Pipeline, row: JsonValue, index: int) -> Case:
    assert case.rows is not None
    own: dict[str, JsonValue] = {case.rows.name: row, "index": index}
    names = ProjectNames(own, pipeline.file.parent)
    key = _key(case, names, row, index)
    own["key"] = key
    names = ProjectNames(own, pipeline.file.parent)
    title = render(case.name, names) if is_template(case.name) else f"{case.name}[{key}]"
    return replace(
        case,
        name=title,
        inputs=_inputs(case, pipeline, row, names),
        stdin=None if case.stdin is None else render(case.stdin, names),
        cassette=None if case.cassette is None else _cassette(case.cassette, names),
        rows=None,
        names=own,
    )


def _key(case: Case, names: ProjectNames, row: JsonValue, index: int) -> str:
    """The name of a row: the value of `key`, else its column `name`, else its number."""
    assert case.rows is not None
    if case.rows.key is not None:
        return key_text(render_value("{{ " + case.rows.key + " }}", names))
    if isinstance(row, Mapping) and isinstance(row.get("name"), str):
        return key_text(row["name"])
    return str(index + 1)


def _inputs(
    case: Case, pipeline: Pipeline, row: JsonValue, names: ProjectNames
) -> dict[str, JsonValue]:
    """The inputs: columns with the name of an input, and those of the test itself."""
    from aish.config.typed_text import takes_text

    inputs: dict[str, JsonValue] = {}
    columns = row if isinstance(row, Mapping) else {}
    for name, schema in pipeline.inputs.items():
        # An empty cell is the only way to omit a number in a table.
        empty = name in columns and columns[name] == ""  # ruff: ignore[compare-to-empty-string] - `0` and `false` are no empty cells
        if name in columns and not (empty and not takes_text(schema)):
            inputs[name] = _convert(columns[name], schema)
    for name, value in case.inputs.items():
        item = render_tree(value, names)
        computed = isinstance(value, str) and is_template(value)
        typed = computed and name in pipeline.inputs
        inputs[name] = _convert(item, pipeline.inputs[name]) if typed else item
    for name, schema in pipeline.inputs.items():
        for problem in fits(schema, inputs[name]) if name in inputs else ():
            place = f" at `{spell_path(problem.path)}`" if problem.path else ""
            raise UsageError(f"the input `{name}` does not fit{place}: {problem.message}")
    return inputs


def _convert(value: JsonValue, schema: JsonObject) -> JsonValue:
    from aish.config.typed_text import as_typed

    return as_typed(value, schema) if isinstance(value, str) else value


def _cassette(settings: CassetteSettings, names: ProjectNames) -> CassetteSettings:
    if not is_template(settings.name):
        return settings
    name = render(settings.name, names)
    if not name or "\0" in name or name.endswith("/"):
        raise UsageError(f"`{settings.name}` does not give a file name")
    path = replace_file_name(settings.path, settings.name, name)
    # Rows are untrusted: they must not lead out of the folder that the file names.
    before = settings.name[: settings.name.index("{")].rpartition("/")[0]
    folder = replace_file_name(settings.path, settings.name, before or ".")
    if not Path(os.path.normpath(path)).is_relative_to(os.path.normpath(folder)):
        raise UsageError(f"`{name}` leads out of the folder of the cassettes")
    return replace(settings, path=path, name=name)
