"""Checks of expectations and tests before anything runs."""

import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice

from aish.config.inputs import fits
from aish.config.model import (
    Case,
    CassetteSettings,
    Expectation,
    Pipeline,
    PipelineStep,
    Quoted,
    QuoteSource,
    Step,
)
from aish.config.yaml_tree import texts_with_paths
from aish.core.errors import UsageError, did_you_mean
from aish.core.json import JsonValue
from aish.core.phrases import backticked
from aish.core.tools import ToolName
from aish.engine.expectations.check import all_names_read, names_read, path_read, quoted_paths
from aish.engine.expectations.quoted import TOOLS_WITH_LINES
from aish.engine.expectations.rendering import template_sources
from aish.engine.expectations.snapshot import check_place, project_of
from aish.engine.expectations.subject import parse_path
from aish.engine.plan.case_rows import cases_of
from aish.engine.plan.order import in_order, lacks_stdin
from aish.engine.plan.validation.issue import Issue, missing_inputs, unknown_name, within
from aish.engine.plan.validation.schemas import bad_schema_issues
from aish.engine.plan.validation.templates import (
    METHODS,
    item_names,
    name_issues,
    no_expression,
    unknown_output,
)
from aish.engine.plan.validation.tools import glob_issues, unknown_model
from aish.packs.catalogue import tool_marks
from aish.policy.rules import matches_tool
from aish.system.schema.check import spell_path
from aish.templates.render import references, references_of_expression
from aish.templates.values import is_template

OF_STEP = ("text", "output", "status", "tool_calls", "usage", "cost_usd", "seconds")
OF_RUN = (*OF_STEP, "outputs")

_SAID = frozenset({"title", "description", "$comment", "examples", "default"})
_MOST_SHOWN = 60
_ONE_SNAPSHOT = "a snapshot holds one result, and this step has one for each item"
_SNAPSHOT_OF_ALL = "put the snapshot into a test, for the `outputs` of all items"


def expect_issues(pipeline: Pipeline) -> Iterator[Issue]:
    """Problems in the expectations of steps, in tests and cassettes."""
    for step in pipeline.steps:
        seen = (*OF_STEP, *item_names(step))
        for expectation in step.expect:
            yield from _expectation(expectation, pipeline, seen, step)
            if expectation.kind == "snapshot" and step.flow.foreach is not None:
                where = within(expectation.where, expectation.kind)
                yield Issue(where, _ONE_SNAPSHOT, _SNAPSHOT_OF_ALL)
    if pipeline.cassette is not None:
        yield from _ignore_issues(pipeline.cassette, "cassette")
        yield from _plain_name(pipeline.cassette, "cassette", pipeline)
    names: dict[str, int] = {}
    for index, case in enumerate(pipeline.tests):
        if case.name in names:
            message = f"the name `{case.name}` is also used by test {names[case.name] + 1}"
            yield Issue(f"{case.where}.name", message)
        names.setdefault(case.name, index)
        yield from _case(case, pipeline)


def _case(case: Case, pipeline: Pipeline) -> Iterator[Issue]:
    if case.cassette is not None:
        yield from _ignore_issues(case.cassette, f"{case.where}.cassette")
    elif pipeline.cassette is None:
        hint = "name one under `cassette:`, here or at the top; `aish test --record` records it"
        message = f"the test `{case.name}` has no cassette"
        by = ("cassette", "tests[].cassette**")
        yield Issue(case.where, message, hint, warning=True, by=by)
    if _lacks_stdin(case, pipeline):
        message = f"the test `{case.name}` has no `stdin`, and the file needs it"
        hint = "give it one, or put `stdin: optional` at the top"
        yield Issue(case.where, message, hint, warning=True, by=("stdin", "tests[].stdin"))
    names: tuple[str, ...] = OF_RUN
    if case.rows is None:
        yield from _inputs(case, pipeline)
        yield from _plain_case(case, pipeline)
    else:
        names = (*OF_RUN, *(own := (case.rows.name, "index", "key")))
        yield from _row_templates(case, own)
    last = _last(pipeline)
    for expectation in case.expect:
        yield from _expectation(expectation, pipeline, names, last)


def _last(pipeline: Pipeline) -> Step | None:
    """The step whose `output` is that of the run, if it is a single value."""
    try:
        steps = in_order(pipeline)
    except UsageError:
        return None  # an invalid template or circular dependency is reported elsewhere
    return steps[-1] if steps and steps[-1].flow.foreach is None else None


def _plain_name(settings: CassetteSettings, path: str, pipeline: Pipeline) -> Iterator[Issue]:
    if "{{" in settings.name:
        message = f"`{settings.name}` is not rendered here"
        hint = "the `cassette` of a test with `foreach` may be a template"
        yield Issue(_part(path, "path", pipeline), message, hint)


def _plain_case(case: Case, pipeline: Pipeline) -> Iterator[Issue]:
    """Without `foreach` there is no row, and the texts of a case are literal."""
    if case.cassette is not None:
        yield from _plain_name(case.cassette, f"{case.where}.cassette", pipeline)
    of_row = ("item", "index", "key")
    texts = (("name", case.name), ("stdin", case.stdin), ("inputs", dict(case.inputs)))
    for key, value in texts:
        for place, source in texts_with_paths(value, f"{case.where}.{key}"):
            if any(name.split(".")[0] in of_row for name in _read(source)):
                message = f"`{source[:_MOST_SHOWN]}` is not rendered: the test has no `foreach`"
                hint = "`foreach: {file: cases.csv}` makes a case of each row"
                yield Issue(place, message, hint, by=("tests[].foreach**",))


def _read(source: str) -> frozenset[str]:
    """The places that a text would read as a template; none if it is not a valid one."""
    try:
        return references(source)
    except UsageError:
        return frozenset()


def _row_templates(case: Case, names: Sequence[str]) -> Iterator[Issue]:
    """Problems in templates of a test with `foreach`; their values are checked with the rows."""
    cassette = None if case.cassette is None else case.cassette.name
    texts = {"name": case.name, "stdin": case.stdin, "cassette": cassette, "inputs": case.inputs}
    for key, value in texts.items():
        for path, source in texts_with_paths(value, f"{case.where}.{key}"):
            broken = tuple(_template(source, path))
            yield from broken
            for name in () if broken else sorted(references(source)):
                yield from _of_row(name, path, names)
    if case.rows is not None and case.rows.key is not None:
        path = f"{case.where}.key"
        try:
            read = references_of_expression(case.rows.key)
        except UsageError as error:
            yield no_expression(case.rows.key, path, error)
            return
        for name in sorted(read):
            yield from _of_row(name, path, names[:-1])


def _of_row(name: str, path: str, names: Sequence[str]) -> Iterator[Issue]:
    root = name.split(".", maxsplit=1)[0]
    if root not in names:
        listed = backticked(names)
        hint = did_you_mean(root, names) or f"no run exists yet, only {listed}"
        yield Issue(path, f"`{root}` is not defined", hint, by=("tests[].as",))


def _lacks_stdin(case: Case, pipeline: Pipeline) -> bool:
    try:
        return lacks_stdin(pipeline, case.stdin)
    except UsageError:
        # An invalid template is reported by the check of templates.
        return False


def _ignore_issues(settings: CassetteSettings, path: str) -> Iterator[Issue]:
    if not settings.ignore:
        return
    from aish.cassettes.replay.matching import Ignored

    for index, ignored in enumerate(settings.ignore):
        try:
            Ignored((ignored,))
        except UsageError as error:
            yield Issue(f"{path}.ignore[{index}]", error.message, error.hint)


def _inputs(case: Case, pipeline: Pipeline) -> Iterator[Issue]:
    from aish.system.schema.metaschema import check_schema

    where = f"{case.where}.inputs"
    for name, value in case.inputs.items():
        schema = pipeline.inputs.get(name)
        if schema is None:
            yield unknown_name("input", name, pipeline.inputs, f"{where}.{name}", ("inputs",))
        elif not check_schema(schema):
            for problem in fits(schema, value):
                place = f" at `{spell_path(problem.path)}`" if problem.path else ""
                message = f"the input does not fit its schema{place}: {problem.message}"
                yield Issue(f"{where}.{name}", message)
    if message := missing_inputs(pipeline.inputs, case.inputs):
        yield Issue(where, message, by=("inputs**", "tests[].inputs**"))


def _expectation(
    expectation: Expectation, pipeline: Pipeline, names: Sequence[str], own: Step | None
) -> Iterator[Issue]:
    where = within(expectation.where, expectation.kind)
    templates = tuple(template_sources(expectation))
    broken = False
    for key, source in templates:
        for issue in _template(source, _template_path(where, key, pipeline)):
            broken = True
            yield issue
    if broken:
        return
    yield from _names(expectation, where, pipeline, names, own)
    if expectation.kind == "matches" and not is_template(str(expectation.value)):
        yield from _regex(str(expectation.value), _part(where, "regex", pipeline))
    elif expectation.kind == "schema" and isinstance(expectation.value, dict):
        # The longer form of a schema path is used only with a path into the result.
        path = where if expectation.path is None else _part(where, "schema", pipeline)
        if expectation.file is not None:
            yield from _brace_issues(expectation.value, path)
        if not any(key.startswith("schema") for key, _ in templates):
            yield from bad_schema_issues(expectation.value, path, "the expected schema")
    elif expectation.kind == "judge":
        path = _part(where, "model", pipeline)
        yield from unknown_model(str(expectation.model), path, pipeline)
    elif expectation.quoted is not None:
        yield from _quoted(expectation.quoted, where, pipeline, own)
    yield from _tools(expectation, where, pipeline)


_LINES = "`in: [{file: …}]` and `{diff: stdin}` have lines, and so have results of our packs"


def _quoted(wanted: Quoted, where: str, pipeline: Pipeline, own: Step | None) -> Iterator[Issue]:
    """Paths, globs and sources of quotes, and fields that no source could bear out."""
    for key, path in (("text", wanted.text), ("file", wanted.file), ("line", wanted.line)):
        if path is not None:
            yield from _path_issues(path, _part(where, key, pipeline), "quote")
    if wanted.tool is not None:
        place = _part(where, "tool", pipeline)
        if any(source.kind == "tools" for source in wanted.sources):
            yield from glob_issues(wanted.tool, place, pipeline, local=True)
        else:
            yield Issue(place, "`tool` is for results of calls, and `in` has no `tools`")
    for index, source in enumerate(wanted.sources):
        yield from _source_issues(source, f"{where}.in[{index}]", pipeline, own)
    located = any(_has_lines(source, wanted, pipeline) for source in wanted.sources)
    for key, field in (("file", wanted.file), ("line", wanted.line)):
        if field is not None and not located:
            message = f"`{key}` cannot be checked: no source has files and lines"
            yield Issue(_part(where, key, pipeline), message, _LINES)


def _source_issues(
    source: QuoteSource, place: str, pipeline: Pipeline, own: Step | None
) -> Iterator[Issue]:
    if source.path is not None and not is_template(source.name):
        try:
            check_place(source.path, project_of(pipeline.file), "sources of quotes have")
        except UsageError as error:
            yield Issue(f"{place}.file", error.message, error.hint)
        else:
            if not source.path.is_file():
                yield Issue(f"{place}.file", f"no such file: `{source.name}`")
    elif own is not None and source.name.split(".")[:2] == ["steps", own.id]:
        yield Issue(place, f"an answer of `{own.id}` is no source for quotes in it")


def _path_issues(path: str, place: str, example: str) -> Iterator[Issue]:
    try:
        parse_path(path)
    except ValueError as error:
        yield Issue(place, str(error), f"a path looks like `{example}`")


def _has_lines(source: QuoteSource, wanted: Quoted, pipeline: Pipeline) -> bool:
    if source.kind != "tools":
        return source.kind in {"file", "diff"}
    if any(isinstance(step, PipelineStep) for step in pipeline.steps):
        return True  # their files have servers of their own
    marks = tool_marks()
    return any(
        marks[name].pack in entry.pack
        and (wanted.tool is None or matches_tool(wanted.tool, ToolName(alias, name)))
        for alias, entry in pipeline.servers.items()
        for name in TOOLS_WITH_LINES
    )


def _tools(expectation: Expectation, where: str, pipeline: Pipeline) -> Iterator[Issue]:
    path = where
    for index, match in enumerate(expectation.tools):
        if expectation.kind == "tool_sequence":
            path = f"{_part(where, 'tools', pipeline)}[{index}]"
        if not is_template(match.tool):
            yield from glob_issues(match.tool, _part(path, "tool", pipeline), pipeline, local=True)


def _names(
    expectation: Expectation, where: str, pipeline: Pipeline, names: Sequence[str], own: Step | None
) -> Iterator[Issue]:
    path = _part(where, "path", pipeline)
    for named, key in () if expectation.quoted is None else quoted_paths(expectation.quoted):
        # `tests[0].expect[0].quoted`, or a key of the longer form.
        place = f"{where}.{key}"
        place = place if place in pipeline.positions else where
        issues = tuple(_quoted_path(named, place, own))
        yield from issues
        if issues:
            return
    if expectation.path is not None and not is_template(expectation.path):
        try:
            keys = parse_path(expectation.path)
        except ValueError as error:
            hint = "a path looks like `outputs.notes[0].title`"
            yield Issue(path, str(error), hint)
            return
        if keys[0] == "output" and own is not None:
            yield from unknown_output(own, keys[1:], "output", path)
    try:
        read = names_read(expectation)
    except UsageError as error:
        yield no_expression(str(expectation.value), where, error)
        return
    led = path_read(expectation)
    for name in sorted(read):
        yield from name_issues(name, path if name in led else where, pipeline, names, own)


def _quoted_path(named: str, place: str, own: Step | None) -> Iterator[Issue]:
    if is_template(named):
        yield Issue(place, f"`{named[:_MOST_SHOWN]}` is not rendered: it is a path")
        return
    issues = tuple(_path_issues(named, place, "output.findings"))
    yield from issues
    if not issues:
        keys = parse_path(named)
        if keys[0] == "output" and own is not None:
            yield from unknown_output(own, keys[1:], "output", place)


def _template(source: str, path: str) -> Iterator[Issue]:
    try:
        references(source)
    except UsageError as error:
        at = f" in {error.where}" if error.where else ""
        yield Issue(path, f"not a template{at}: {error.message}", error.hint)


def _template_path(where: str, key: str, pipeline: Pipeline) -> str:
    """The path of an expectation's template; its key is one of the longer form."""
    first = re.match(r"\w+", key)
    rest = key[first.end() :] if first else key
    return next((p for p in (f"{where}.{key}", f"{where}{rest}") if p in pipeline.positions), where)


def _brace_issues(schema: JsonValue, path: str) -> Iterator[Issue]:
    """A schema in a file of its own is not rendered: braces in it are a mistake."""
    template = next((text for text in _schema_texts(schema) if "{{" in text), None)
    if template is not None:
        message = f"`{template[:_MOST_SHOWN]}` is not rendered: the schema is in a file of its own"
        hint = "write the schema into the expectation; a pattern has `\\{` for a brace"
        yield Issue(path, message, hint)


def _schema_texts(schema: JsonValue) -> Iterator[str]:
    """The texts in a schema, without annotations such as descriptions."""
    if isinstance(schema, str):
        yield schema
    elif isinstance(schema, Mapping):
        for key, inner in schema.items():
            if key not in _SAID or isinstance(inner, Mapping):
                yield from _schema_texts(inner)
    elif isinstance(schema, list | tuple):
        for inner in schema:
            yield from _schema_texts(inner)


def _regex(source: str, path: str) -> Iterator[Issue]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            re.compile(source)
    except re.error as error:
        at = "" if error.pos is None else f" at character {error.pos + 1}"
        yield Issue(path, f"`{source}` is not a valid regular expression{at}: {error.msg}")
    except (RecursionError, OverflowError):
        yield Issue(path, "the regular expression is too deep or too large")


def _part(where: str, key: str, pipeline: Pipeline) -> str:
    """The path of a key of the longer form, if that form is used."""
    path = within(where, key)
    return path if path in pipeline.positions else where


_MOST = 5


def row_issues(pipeline: Pipeline) -> Iterator[Issue]:
    for case in pipeline.tests:
        if case.rows is not None:
            where = f"{case.where}.foreach.file"
            try:
                rows = tuple(cases_of(case, pipeline))
            except UsageError as error:
                yield Issue(where, str(error), error.hint)
            else:
                yield from _of_case(case, rows, pipeline, where)


def _of_case(case: Case, rows: tuple[Case, ...], pipeline: Pipeline, where: str) -> Iterator[Issue]:
    yield from islice(_row_input_issues(case, rows, pipeline, where), _MOST)
    assert case.rows is not None
    first = rows[0].names[case.rows.name]
    if isinstance(first, Mapping):
        yield from _column_issues(case, case.rows.name, first)
    asked = {repr((dict(row.inputs), row.stdin)) for row in rows}
    paths = {row.cassette.path for row in rows if row.cassette is not None}
    if case.cassette is not None and len(paths) == 1 and len(asked) > 1:
        message = f"{len(asked)} cases make different requests, and one cassette holds one run"
        hint = "give each its own: `cassette: cassettes/{{ key }}.yaml`"
        yield Issue(f"{case.where}.cassette", message, hint, warning=True)


def _row_input_issues(
    case: Case, rows: tuple[Case, ...], pipeline: Pipeline, where: str
) -> Iterator[Issue]:
    for number, row in enumerate(rows, 1):
        for name, schema in pipeline.inputs.items():
            if "default" not in schema and name not in row.inputs:
                hint = f"give a column `{name}`, or `inputs: {{{name}: …}}` in the test"
                yield Issue(where, f"row {number}: the input is missing: `{name}`", hint)
    for name in case.inputs:
        if name not in pipeline.inputs:
            near = did_you_mean(name, pipeline.inputs)
            yield Issue(f"{case.where}.inputs.{name}", f"unknown input `{name}`", near)


def _column_issues(case: Case, item: str, row: Mapping[str, JsonValue]) -> Iterator[Issue]:
    for name in sorted(set(all_names_read(case.expect))):
        root, *rest = name.split(".")
        if root == item and rest and rest[0] not in row and rest[0] not in METHODS:
            columns = backticked(row)
            near = did_you_mean(rest[0], row)
            hint = near.replace("`", f"`{item}.", 1) if near else f"columns: {columns}"
            yield Issue(case.where, f"`{item}.{rest[0]}` is not defined", hint)
