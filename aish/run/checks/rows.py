"""The rows that tests with `foreach` are made of (F11, C12): read, and held against the file."""

from collections.abc import Iterator, Mapping
from itertools import islice

from aish.config.expected import Case
from aish.config.pipeline import Pipeline
from aish.core.errors import UsageError, did_you_mean
from aish.core.json import JsonValue
from aish.run.case_rows import cases_of
from aish.run.checks.complaint import Complaint
from aish.run.checks.reading import METHODS
from aish.run.expectations.names import all_names_read

_MOST = 5


def row_complaints(pipeline: Pipeline) -> Iterator[Complaint]:
    """About rows that make no case, and columns that are not there."""
    for case in pipeline.tests:
        if case.rows is not None:
            yield from _of_case(case, pipeline)


def _of_case(case: Case, pipeline: Pipeline) -> Iterator[Complaint]:
    where = f"{case.where}.foreach.file"
    try:
        rows = tuple(cases_of(case, pipeline))
    except UsageError as error:
        yield Complaint(where, str(error), error.hint)
        return
    yield from islice(_missing_inputs(case, rows, pipeline, where), _MOST)
    assert case.rows is not None
    first = rows[0].names[case.rows.name]
    if isinstance(first, Mapping):
        yield from _missing_columns(case, case.rows.name, first)
    asked = {repr((dict(row.inputs), row.stdin)) for row in rows}
    paths = {row.cassette.path for row in rows if row.cassette is not None}
    if case.cassette is not None and len(paths) == 1 and len(asked) > 1:
        said = f"{len(asked)} cases ask for different things, and one cassette holds one run"
        hint = "a name for each: `cassette: cassettes/{{ key }}.yaml`"
        yield Complaint(f"{case.where}.cassette", said, hint, warning=True)


def _missing_inputs(
    case: Case, rows: tuple[Case, ...], pipeline: Pipeline, where: str
) -> Iterator[Complaint]:
    for number, row in enumerate(rows, 1):
        for name, schema in pipeline.inputs.items():
            if "default" not in schema and name not in row.inputs:
                hint = f"give a column `{name}`, or `inputs: {{{name}: …}}` in the test"
                yield Complaint(where, f"row {number}: the input is missing: `{name}`", hint)
    for name in case.inputs:
        if name not in pipeline.inputs:
            near = did_you_mean(name, pipeline.inputs)
            yield Complaint(f"{case.where}.inputs.{name}", f"unknown input `{name}`", near)


def _missing_columns(case: Case, item: str, row: Mapping[str, JsonValue]) -> Iterator[Complaint]:
    for name in sorted(set(all_names_read(case.expect))):
        root, *rest = name.split(".")
        if root == item and rest and rest[0] not in row and rest[0] not in METHODS:
            columns = ", ".join(f"`{column}`" for column in row)
            near = did_you_mean(rest[0], row)
            hint = near.replace("`", f"`{item}.", 1) if near else f"columns: {columns}"
            yield Complaint(case.where, f"`{item}.{rest[0]}` is not defined", hint)
