"""Expectations, and the tests they stand in (F11, F12): what can be known before anything runs."""

import re
import warnings
from collections.abc import Iterator, Sequence

from aish.config.expected import Case, CassetteSettings, Expectation, ToolMatch
from aish.config.inputs import fits
from aish.config.pipeline import Pipeline
from aish.errors import UsageError, did_you_mean
from aish.run.checks.complaint import Complaint, within
from aish.run.checks.expressions import no_expression
from aish.run.checks.reading import undefined
from aish.run.checks.schemas import broken_schema
from aish.run.checks.tools import glob_complaints
from aish.run.expectations.names import names_read
from aish.run.expectations.result_path import parse_path
from aish.run.order import lacks_stdin
from aish.system.schema import check_schema, spell_path

OF_STEP = ("text", "output", "status", "tool_calls", "usage", "cost_usd", "seconds")
OF_RUN = (*OF_STEP, "outputs")

_ONE_SNAPSHOT = "a snapshot holds one result, and this step has one for each item"
_SNAPSHOT_OF_ALL = "let a test have the snapshot, of what `outputs` makes of all items"


def expect_complaints(pipeline: Pipeline) -> Iterator[Complaint]:
    """About the expectations of steps, about tests and cassettes."""
    for step in pipeline.steps:
        for expectation in step.expect:
            yield from _expectation(expectation, pipeline, OF_STEP)
            if expectation.kind == "snapshot" and step.flow.foreach is not None:
                where = within(expectation.where, expectation.kind)
                yield Complaint(where, _ONE_SNAPSHOT, _SNAPSHOT_OF_ALL)
    if pipeline.cassette is not None:
        yield from _ignored(pipeline.cassette, "cassette")
    names: dict[str, int] = {}
    for index, case in enumerate(pipeline.tests):
        if case.name in names:
            message = f"the name `{case.name}` is that of test {names[case.name] + 1} too"
            yield Complaint(f"{case.where}.name", message)
        names.setdefault(case.name, index)
        yield from _case(case, pipeline)


def _case(case: Case, pipeline: Pipeline) -> Iterator[Complaint]:
    if case.cassette is not None:
        yield from _ignored(case.cassette, f"{case.where}.cassette")
    elif pipeline.cassette is None:
        hint = "name one under `cassette:`, here or at the top; `aish record` writes it"
        message = f"the test `{case.name}` has no cassette"
        yield Complaint(case.where, message, hint, warning=True)
    yield from _inputs(case, pipeline)
    if _lacks_stdin(case, pipeline):
        message = f"the test `{case.name}` has no `stdin`, and the file needs it"
        hint = "give it one, or put `stdin: optional` at the top"
        yield Complaint(case.where, message, hint, warning=True)
    for expectation in case.expect:
        yield from _expectation(expectation, pipeline, OF_RUN)


def _lacks_stdin(case: Case, pipeline: Pipeline) -> bool:
    try:
        return lacks_stdin(pipeline, case.stdin)
    except UsageError:
        # A template is broken, and that is complained of where templates are looked at.
        return False


def _ignored(settings: CassetteSettings, path: str) -> Iterator[Complaint]:
    if not settings.ignore:
        return
    from aish.cassettes.ignored import Ignored

    for index, ignored in enumerate(settings.ignore):
        try:
            Ignored((ignored,))
        except UsageError as error:
            yield Complaint(f"{path}.ignore[{index}]", error.message, error.hint)


def _inputs(case: Case, pipeline: Pipeline) -> Iterator[Complaint]:
    where = f"{case.where}.inputs"
    for name, value in case.inputs.items():
        schema = pipeline.inputs.get(name)
        if schema is None:
            known = ", ".join(f"`{known}`" for known in pipeline.inputs)
            hint = did_you_mean(name, pipeline.inputs) or f"inputs: {known or 'none'}"
            yield Complaint(f"{where}.{name}", f"unknown input `{name}`", hint)
        elif not check_schema(schema):
            for found in fits(schema, value):
                place = f" at `{spell_path(found.path)}`" if found.path else ""
                message = f"the input does not fit its schema{place}: {found.message}"
                yield Complaint(f"{where}.{name}", message)
    missing = [
        f"`{name}`"
        for name, schema in pipeline.inputs.items()
        if "default" not in schema and name not in case.inputs
    ]
    if missing:
        many = "inputs are" if len(missing) > 1 else "input is"
        yield Complaint(where, f"the {many} missing: {', '.join(missing)}")


def _expectation(
    expectation: Expectation, pipeline: Pipeline, names: Sequence[str]
) -> Iterator[Complaint]:
    where = within(expectation.where, expectation.kind)
    yield from _names(expectation, where, pipeline, names)
    if expectation.kind == "matches":
        yield from _regex(str(expectation.value), _part(where, "regex", pipeline))
    elif expectation.kind == "schema" and isinstance(expectation.value, dict):
        # The path of a schema in a longer form is given only with a path into the result.
        path = where if expectation.path is None else _part(where, "schema", pipeline)
        yield from broken_schema(expectation.value, path, "the expected schema")
    elif expectation.kind == "judge" and expectation.model not in pipeline.models:
        known = ", ".join(f"`{alias}`" for alias in pipeline.models)
        hint = (
            did_you_mean(expectation.model or "", pipeline.models) or f"models: {known or 'none'}"
        )
        path = _part(where, "model", pipeline)
        yield Complaint(path, f"unknown model `{expectation.model}`", hint)
    for index, match in enumerate(expectation.tools):
        yield from _tool(match, _tool_path(expectation, where, index, pipeline), pipeline)


def _names(
    expectation: Expectation, where: str, pipeline: Pipeline, names: Sequence[str]
) -> Iterator[Complaint]:
    path = _part(where, "path", pipeline)
    if expectation.path is not None:
        try:
            parse_path(expectation.path)
        except ValueError as error:
            hint = "a path looks like `outputs.notes[0].title`"
            yield Complaint(path, str(error), hint)
            return
    try:
        read = names_read(expectation)
    except UsageError as error:
        yield no_expression(str(expectation.value), where, error)
        return
    for name in sorted(read):
        yield from undefined(name, path if expectation.path else where, pipeline, names)


def _regex(source: str, path: str) -> Iterator[Complaint]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            re.compile(source)
    except re.error as error:
        at = "" if error.pos is None else f" at character {error.pos + 1}"
        yield Complaint(path, f"`{source}` is no regular expression{at}: {error.msg}")
    except (RecursionError, OverflowError):
        yield Complaint(path, "the regular expression is too deep or too large")


def _tool(match: ToolMatch, path: str, pipeline: Pipeline) -> Iterator[Complaint]:
    yield from glob_complaints(match.tool, _part(path, "tool", pipeline), pipeline, local=True)


def _tool_path(expectation: Expectation, where: str, index: int, pipeline: Pipeline) -> str:
    if expectation.kind != "tool_sequence":
        return where
    return f"{_part(where, 'tools', pipeline)}[{index}]"


def _part(where: str, key: str, pipeline: Pipeline) -> str:
    """The path of a key of the longer form, if that form is used."""
    path = within(where, key)
    return path if path in pipeline.positions else where
