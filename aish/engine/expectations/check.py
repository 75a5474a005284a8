"""Checks expectations against the result of a step or a run, and finds their reads.

Expectations about tool calls.

A call that is expected must have succeeded, if nothing else is said of it. A call that is not
expected, or only a limited number of times, must not even have been requested: denied calls and
those with bad arguments count.

Expectations about a text or a value, and about an expression.

Quotes of an answer, in the texts that a `QuoteScope` has.
"""

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from hashlib import sha256
from itertools import starmap

import anyio.to_thread

from aish.agent.runtime import CheckArguments, UsedCall
from aish.config.documents import REFERENCED_LIMIT, UnreadableError, reason
from aish.config.documents import as_text as decode_file
from aish.config.model import Expectation, ExpectKind, Quoted, QuoteSource, ToolMatch
from aish.core.errors import AishError, UsageError
from aish.core.events import FileDigest, QuoteEvidence
from aish.core.frozen import frozen
from aish.core.json import JsonValue
from aish.core.phrases import and_more, dollars, first_of, plural
from aish.core.tools import FAILED_KINDS, Tool, ToolName
from aish.engine.answer_schema import parse_whole
from aish.engine.expectations.quoted import (
    Passage,
    QuoteSearch,
    TooMuchError,
    call_passages,
    describe,
    diff_passages,
    evidence_of,
    file_passage,
    quotes_of,
    value_passages,
)
from aish.engine.expectations.rendering import UnusableError, render_expectation, template_sources
from aish.engine.expectations.snapshot import check_place, project_of, snapshot
from aish.engine.expectations.subject import (
    Mask,
    NotThereError,
    Subject,
    about,
    as_text,
    find,
    instead,
    kind_of,
    parse_path,
    short,
)
from aish.policy.rules import LONGEST, Fit, matches_tool, same_json
from aish.system.files import read_capped
from aish.system.globs import matches_path
from aish.system.schema.check import PYTHON_PATTERN, SchemaProblem
from aish.templates.limits import TemplateError
from aish.templates.render import evaluate, join_names, references, references_of_expression
from aish.templates.values import ProjectNames, is_template, text_of

_MOST_SHOWN = 8
_NEVER_RAN = frozenset({"denied", "bad_arguments"})


def tool_called(expectation: Expectation, subject: Subject) -> tuple[str, str | None]:
    """A matching call has succeeded, or ended as wanted; with `last` the last one of them."""
    (match,) = expectation.tools
    last = "the last call" if match.last else "a call"
    words = f"{last} of {_format_match(match, subject)}"
    alike = [call for call in subject.calls if fit(match, call) is Fit.YES]
    if any(_ends_as(match, call) for call in (alike[-1:] if match.last else alike)):
        return words, None
    alike = [call for call in subject.calls if _is_named(match, call)]
    return words, _these(alike, subject) if alike else _names(subject.calls)


def tool_not_called(expectation: Expectation, subject: Subject) -> tuple[str, str | None]:
    """No matching call was requested; a call that cannot be matched with certainty counts."""
    (unwanted,) = expectation.tools
    calls = [call for call in subject.calls if fit(unwanted, call) is not Fit.NO]
    return f"no call of {_format_match(unwanted, subject)}", _these(
        calls, subject
    ) if calls else None


def tool_sequence(expectation: Expectation, subject: Subject) -> tuple[str, str | None]:
    """Calls ran in this order, with others between them unless `exact`."""
    listed = ", ".join(_format_match(match, subject) for match in expectation.tools)
    words = f"calls of {listed} in this order" + (" and no others" if expectation.exact else "")
    ran = [call for call in subject.calls if call.kind not in _NEVER_RAN]
    if expectation.exact:
        same = len(ran) == len(expectation.tools) and all(
            starmap(_is_wanted, zip(expectation.tools, ran, strict=True))
        )
        return words, None if same else _names(ran)
    rest = iter(ran)
    if all(any(_is_wanted(match, call) for call in rest) for match in expectation.tools):
        return words, None
    return words, _names(ran)


def _is_wanted(match: ToolMatch, call: UsedCall) -> bool:
    return fit(match, call) is Fit.YES and _ends_as(match, call)


def _ends_as(match: ToolMatch, call: UsedCall) -> bool:
    """Return true if a call ended as a pattern wants it; one that never ran did not."""
    if match.exit_code is not None and call.exit_code != match.exit_code:
        return False
    if match.outcome == "failed":
        return call.kind in FAILED_KINDS
    return call.kind == "ok" or (match.outcome == "any" and call.kind not in _NEVER_RAN)


def fit(match: ToolMatch, call: UsedCall) -> Fit:
    """Match a call; uncertain if its text is too long for globs."""
    if not _is_named(match, call):
        return Fit.NO
    arguments = call.arguments
    result = Fit.YES
    for name, expected in match.arguments.items():
        if not isinstance(arguments, dict) or name not in arguments:
            return Fit.NO
        value_fit = _fit_value(expected, arguments[name])
        if value_fit is Fit.NO:
            return value_fit
        result = value_fit if value_fit is Fit.UNSURE else result
    return result


def _fit_value(expected: JsonValue, value: JsonValue) -> Fit:
    """Text by glob or exactly, anything else by equality."""
    if same_json(expected, value):
        return Fit.YES
    if not isinstance(expected, str) or not isinstance(value, str):
        return Fit.NO
    if "*" not in expected and "?" not in expected:
        return Fit.NO
    if len(value) > LONGEST:
        return Fit.UNSURE
    return Fit.YES if matches_path(expected, value) else Fit.NO


def _is_named(match: ToolMatch, call: UsedCall) -> bool:
    server, _, name = call.tool.partition("__")
    return matches_tool(match.tool, ToolName(server, name))


def _format_match(match: ToolMatch, subject: Subject) -> str:
    arguments = f" with {short(dict(match.arguments), subject.mask)}" if match.arguments else ""
    failed = " that failed" if match.outcome == "failed" else ""
    code = "" if match.exit_code is None else f" with exit code {match.exit_code}"
    return f"`{match.tool}`{arguments}{failed}{code}"


def _these(calls: Sequence[UsedCall], subject: Subject) -> str:
    texts = [
        f"`{call.tool}` with {short(call.arguments, subject.mask)}" + _failure_of_call(call)
        for call in calls[:_MOST_SHOWN]
    ]
    return ", ".join(texts) + and_more(len(calls) - _MOST_SHOWN)


def _names(calls: Sequence[UsedCall]) -> str:
    if not calls:
        return "no call at all"
    names = [f"`{call.tool}`{_failure_of_call(call)}" for call in calls[:_MOST_SHOWN]]
    return f"calls of {', '.join(names)}{and_more(len(calls) - _MOST_SHOWN)}"


def _failure_of_call(call: UsedCall) -> str:
    if call.exit_code:
        return f" (exit {call.exit_code})"
    return "" if call.kind == "ok" else f" ({call.kind})"


_MOST_NAMES = 3


def contains(expectation: Expectation, subject: Subject) -> tuple[str, str | None]:
    """The text contains a text; a list contains it as an item."""
    expected = expectation.value
    words = f"{about(expectation.path)} to contain {short(expected, subject.mask)}"
    value = subject.at(expectation.path)
    held = _holds(value, expected)
    if held is None:
        return words, _no_text(value, subject)
    return words, None if held else short(value, subject.mask)


def not_contains(expectation: Expectation, subject: Subject) -> tuple[str, str | None]:
    """The opposite, for an existing value."""
    unwanted = expectation.value
    words = f"{about(expectation.path)} not to contain {short(unwanted, subject.mask)}"
    value = subject.at(expectation.path)
    held = _holds(value, unwanted)
    if held is None:
        return words, _no_text(value, subject)
    return words, _environment(value, unwanted, subject.mask) if held else None


def equals(expectation: Expectation, subject: Subject) -> tuple[str, str | None]:
    """A value equals another; trailing line ends of texts are ignored."""
    expected, value = expectation.value, subject.at(expectation.path)
    words = f"{about(expectation.path)} to be {short(expected, subject.mask)}"
    if isinstance(expected, str) and isinstance(value, str):
        if expected.rstrip("\r\n") == value.rstrip("\r\n"):
            return words, None
        return words, instead(expected, value, subject.mask)
    if same_json(expected, value):
        return words, None
    if isinstance(expected, list | dict) and isinstance(value, list | dict):
        return words, instead(as_text(expected), as_text(value), subject.mask)
    return words, f"{kind_of(value)}: {short(value, subject.mask)}" if isinstance(
        value, str
    ) else short(value, subject.mask)


async def matches(
    expectation: Expectation, subject: Subject, fits: CheckArguments
) -> tuple[str, str | None]:
    """A text matches a regex, searched in a process that can be stopped."""
    regex = str(expectation.value)
    words = f"{about(expectation.path)} to match {short(regex, subject.mask)}"
    value = subject.at(expectation.path)
    if not isinstance(value, str):
        return words, _no_text(value, subject)
    problems = await fits({PYTHON_PATTERN: regex}, value)
    if any(problem.keyword != "pattern" for problem in problems):
        return words, "no answer: looking for it took too long"
    return words, short(value, subject.mask) if problems else None


async def schema(
    expectation: Expectation, subject: Subject, fits: CheckArguments
) -> tuple[str, str | None]:
    """A value matches a JSON Schema; a text may be JSON."""
    document = expectation.value
    assert isinstance(document, dict)
    words = f"{about(expectation.path, 'the output')} to fit its schema"
    value = subject.value if expectation.path is None else subject.at(expectation.path)
    problems = await fits(document, value)
    if problems and isinstance(value, str):
        try:
            parsed = parse_whole(value)
        except ValueError:
            return words, _problems(problems)
        problems = await fits(document, parsed)
    return words, _problems(problems) if problems else None


def expression(expectation: Expectation, subject: Subject) -> tuple[str, str | None]:
    """An expression is true, by the truth rules of templates."""
    source = str(expectation.value)
    words = f"{short(source, subject.mask)} to be true"
    try:
        value = evaluate(source, subject.names)
    except AishError as error:
        return words, f"an error: {error.message}"
    if value:
        return words, None
    return words, "; ".join((short(value, subject.mask), *_read(source, subject)))


def _holds(value: JsonValue, expected: JsonValue) -> bool | None:
    """Return true if it is contained; `None` if the value is not a container."""
    if isinstance(value, str):
        return text_of(expected) in value
    if isinstance(value, list):
        return any(same_json(item, expected) for item in value)
    return None


def _no_text(value: JsonValue, subject: Subject) -> str:
    return (
        "no text at all"
        if value is None
        else f"{kind_of(value)} and no text: {short(value, subject.mask)}"
    )


def _environment(value: JsonValue, unwanted: JsonValue, mask: Mask) -> str:
    """The text around an unexpected match."""
    if not isinstance(value, str):
        return short(value, mask)
    text, word = mask(value), mask(text_of(unwanted))
    at = text.find(word)
    if at < 0:
        # It is inside a secret.
        return short(text, str)
    begin, end = max(at - 40, 0), at + len(word) + 40
    excerpt = f"{'…' if begin else ''}{text[begin:end]}{'…' if end < len(text) else ''}"
    return short(excerpt, str)


def _problems(problems: tuple[SchemaProblem, ...]) -> str:
    return first_of([str(problem) for problem in problems], _MOST_NAMES, by="; ")


def _read(source: str, subject: Subject) -> list[str]:
    """The values of the names in an expression, if they are short."""
    values: list[str] = []
    for name in sorted(references_of_expression(source)):
        try:
            value = find(tuple(name.split(".")), subject.names)
        except NotThereError:
            continue
        if not isinstance(value, dict):
            values.append(f"`{name}` is {short(value, subject.mask)}")
    return values[:_MOST_NAMES]


def max_tool_calls(expectation: Expectation, subject: Subject) -> tuple[str, str | None]:
    """Every requested call counts."""
    most, count = _number(expectation), len(subject.calls)
    return _at_most(most, "tool call"), None if count <= most else f"{count:,}"


def max_failed_calls(expectation: Expectation, subject: Subject) -> tuple[str, str | None]:
    """Failed calls, of some tools or of all; with `exit_codes` also commands that ended badly."""
    most = _number(expectation)
    calls = [
        call
        for call in subject.calls
        if call.kind in FAILED_KINDS or (expectation.exit_codes and call.exit_code)
        if not expectation.tools or any(_is_named(tool, call) for tool in expectation.tools)
    ]
    return _at_most(most, "failed tool call"), None if len(calls) <= most else _names(calls)


def max_tokens(expectation: Expectation, subject: Subject) -> tuple[str, str | None]:
    """Tokens read and written; an unknown number fails."""
    most = _number(expectation)
    words = _at_most(most, "token")
    if subject.usage is None:
        return words, None
    read, written = subject.usage.input, subject.usage.output
    if read is None or written is None:
        return words, "an unknown number: a model did not say how many there were"
    total = read + written
    return words, None if total <= most else f"{total:,} ({read:,} in, {written:,} out)"


def max_cost_usd(expectation: Expectation, subject: Subject) -> tuple[str, str | None]:
    """US dollars; an unknown cost fails."""
    most = _number(expectation)
    words = f"at most {dollars(most)}"
    if subject.cost_usd is None:
        said = "an unknown cost: a model has no `price`, or did not say how many tokens there were"
        return words, said
    return words, None if subject.cost_usd <= most else dollars(subject.cost_usd)


def max_seconds(expectation: Expectation, subject: Subject) -> tuple[str, str | None]:
    """Wall-clock seconds of this run."""
    most = _number(expectation)
    within = subject.seconds <= most
    return f"at most {most:g} s", None if within else f"{subject.seconds:.2f} s"


def _at_most(most: float, noun: str) -> str:
    return f"at most {most:,.0f} {plural(most, noun)}"


def _number(expectation: Expectation) -> float:
    assert isinstance(expectation.value, int | float)
    return expectation.value


Grade = Callable[[Expectation, str], Awaitable[tuple[bool, str]]]
"""What a judge says of a text: whether it passes, and why."""

Got = str | None
"""What was found instead of what is expected; `None` where that is what was found."""


@frozen
class CheckedExpectation:
    """An expectation and whether it is met.

    `message` says what is expected and, if it is not met, the actual value, possibly followed by
    the lines of a diff. `where` is the expectation's place in the file.
    """

    kind: ExpectKind
    ok: bool
    message: str
    where: str
    evidence: tuple[QuoteEvidence, ...] | None = None
    file_digests: tuple[FileDigest, ...] | None = None


Remember = Callable[[Mapping[str, str]], Awaitable[Mapping[str, JsonValue] | None]]
"""Puts the digests of files into the cassette; returns those of a replay, if it has any."""


@frozen
class QuoteScope:
    """The calls whose results an answer may quote, in order, and what is known of their tools."""

    calls: Sequence[UsedCall] = ()
    tool_of: Callable[[UsedCall], Tool | None] = lambda _: None
    remember: Remember | None = None

    def reads(self, call: UsedCall) -> bool | None:
        """True for a tool of ours that only reads, false for another of ours, else `None`."""
        tool = self.tool_of(call)
        return None if tool is None or not tool.builtin else tool.only_reads


_UNRENDERED = "a template that gives a usable value"


async def check_all(
    expectations: Sequence[Expectation],
    subject: Subject,
    fits: CheckArguments,
    mask: Mask = str,
    grade: Grade | None = None,
    scope: QuoteScope | None = None,
) -> tuple[CheckedExpectation, ...]:
    """Check all expectations, in order; `fits` is the run's bounded JSON Schema check.

    `mask` masks what is shown, and what is compared with a snapshot, as when it was written.
    `grade` asks the model of a `judge`, `scope` has the sources of quotes.
    """
    return tuple([await check(entry, subject, fits, mask, grade, scope) for entry in expectations])


async def check(
    expectation: Expectation,
    subject: Subject,
    fits: CheckArguments,
    mask: Mask = str,
    grade: Grade | None = None,
    scope: QuoteScope | None = None,
) -> CheckedExpectation:
    """Check one expectation; only a judge and a cassette can raise an error."""
    expected, got = _UNRENDERED, None
    subject = replace(subject, mask=mask)
    try:
        expectation = render_expectation(expectation, subject.names, mask)
        if expectation.kind == "judge":
            expected, got = await judge(expectation, subject, grade)
        elif expectation.quoted is None:
            expected, got = await _outcome(expectation, subject, fits)
    except NotThereError as error:
        expected = f"something at `{expectation.path}`" if expectation.path else "a text"
        got = str(error)
    except UnusableError as error:
        got = str(error)
    except TemplateError as error:
        said = f"this cannot be checked: {error.message}"
        return CheckedExpectation(expectation.kind, ok=False, message=said, where=expectation.where)
    else:
        if expectation.quoted is not None:
            return await quoted(expectation.quoted, expectation, subject, scope or QuoteScope())
    message = f"expected {expected}" + ("" if got is None else f"; got {got}")
    return CheckedExpectation(expectation.kind, got is None, message, expectation.where)


async def quoted(
    wanted: Quoted, expectation: Expectation, subject: Subject, scope: QuoteScope
) -> CheckedExpectation:
    """Look up the quotes of an answer in their sources; secrets are masked on both sides.

    Raises:
        CassetteMissError: in a replay.
    """
    expected = f"the quotes of `{wanted.each or 'output'}` in {_format_sources(wanted)}"
    evidence: tuple[QuoteEvidence, ...] | None = None
    digests: dict[str, str] = {}
    try:
        files = {one.name: _read_source(one, subject) for one in _files_of(wanted)}
        digests = {name: sha256(data).hexdigest() for name, data in files.items()}
        await _require_same(digests, scope)
        look_up = partial(_look_up, wanted, subject, scope, files)
        evidence, got = await anyio.to_thread.run_sync(look_up)
    except (NotThereError, TooMuchError, UnusableError) as error:
        got = str(error)
    ok = evidence is not None and all(one.state == "found" for one in evidence)
    if ok and len(evidence or ()) < wanted.at_least:
        ok, got = False, f"{got}; at least {wanted.at_least:,} are expected"
    message = f"expected {expected}{': ' if ok else '; got '}{got}"
    told = tuple(starmap(FileDigest, digests.items())) or None
    return CheckedExpectation("quoted", ok, message, expectation.where, evidence, told)


def _look_up(
    wanted: Quoted, subject: Subject, scope: QuoteScope, files: Mapping[str, bytes]
) -> tuple[tuple[QuoteEvidence, ...], str]:
    mask = subject.mask
    given = [replace(one, text=mask(one.text)) for one in quotes_of(wanted, subject.names)]
    passages = _passages(wanted, subject, scope, files)
    search = QuoteSearch([replace(one, text=mask(one.text)) for one in passages], wanted)
    found = search.look_up(given)
    evidence = tuple(evidence_of(one, search, scope.calls) for one in found)
    return evidence, describe(found, evidence, search)


def _format_sources(wanted: Quoted) -> str:
    tool = f"calls of `{wanted.tool}`" if wanted.tool else "results of tools"
    return " or ".join(tool if one.kind == "tools" else f"`{one.name}`" for one in wanted.sources)


def _files_of(wanted: Quoted) -> Iterator[QuoteSource]:
    return (source for source in wanted.sources if source.kind == "file")


def _read_source(source: QuoteSource, subject: Subject) -> bytes:
    """The bytes of a file of the project.

    Raises:
        UnusableError: it cannot be read, or is outside of the project.
    """
    names, path = subject.names, source.path
    assert path is not None
    root = names.root if isinstance(names, ProjectNames) else path.parent
    try:
        check_place(path, project_of(root / "_"), "sources of quotes have")
        return read_capped(path, REFERENCED_LIMIT)
    except UsageError as error:
        raise UnusableError(f"a problem with `{source.name}`: {error.message}") from error
    except OSError as error:
        why = error.strerror or str(error)
        raise UnusableError(f"nothing of `{source.name}`: {why}") from error


async def _require_same(digests: Mapping[str, str], scope: QuoteScope) -> None:
    """Compare files with those of the recording, in a replay.

    Raises:
        UnusableError: one has changed.
    """
    held = await scope.remember(digests) if digests and scope.remember is not None else None
    for name, digest in digests.items():
        if held is not None and held.get(name) != digest:
            raise UnusableError(f"`{name}`, changed since the recording")


def _passages(
    wanted: Quoted, subject: Subject, scope: QuoteScope, files: Mapping[str, bytes]
) -> Iterator[Passage]:
    # Arguments of calls count against every source that a call may have changed.
    kinds = {source.kind for source in wanted.sources}
    if kinds & {"tools", "file"}:
        every = call_passages(scope.calls, wanted.tool, scope.reads)
        roles = {"arguments", "written"} if "tools" not in kinds else None
        yield from (one for one in every if roles is None or one.role in roles)
    for source in wanted.sources:
        if source.kind == "file":
            try:
                text = decode_file(files[source.name], source.name, REFERENCED_LIMIT)
            except UnreadableError as error:
                raise UnusableError(f"`{source.name}`, which {reason(error)}") from error
            yield file_passage(source.name, text, len(scope.calls))
        elif source.kind == "diff":
            yield from diff_passages(source.name, text_of(subject.at(source.name) or ""))
        elif source.kind == "value":
            value = subject.at(source.name)
            parts = source.name.split(".")
            if parts[0] == "steps" and len(parts) == _WHOLE_STEP:
                value = _results_of(value)
            yield from value_passages(source.name, value)


_WHOLE_STEP = 2


def _results_of(view: JsonValue) -> JsonValue:
    """The text and the output of a step, or of each item, without the arguments of its calls."""
    if isinstance(view, list):
        return [_results_of(item) for item in view]
    if not isinstance(view, dict):
        return view
    return [view.get("text"), view.get("output")]


async def judge(expectation: Expectation, subject: Subject, grade: Grade | None) -> tuple[str, Got]:
    """A model's verdict by a rubric; nothing is asked if there is nothing to judge."""
    words = f"{about(expectation.path)} to pass `{expectation.model}` as judge"
    value = subject.at(expectation.path)
    if value is None:
        return words, "no text at all"
    if grade is None:
        return words, "no judge"
    passed, reason = await grade(expectation, as_text(value))
    return (f"{words}: {reason}", None) if passed else (words, f"a no: {reason}")


async def _outcome(
    expectation: Expectation, subject: Subject, fits: CheckArguments
) -> tuple[str, Got]:
    """The expected value in words, and the actual one."""
    if expectation.kind in _WITH_SCHEMAS:
        return await _WITH_SCHEMAS[expectation.kind](expectation, subject, fits)
    if expectation.kind == "snapshot":
        return snapshot(expectation, subject)
    return _PLAIN[expectation.kind](expectation, subject)


_Plain = Callable[[Expectation, Subject], tuple[str, Got]]
_PLAIN: Mapping[ExpectKind, _Plain] = {
    "contains": contains,
    "not_contains": not_contains,
    "equals": equals,
    "expression": expression,
    "tool_called": tool_called,
    "tool_not_called": tool_not_called,
    "tool_sequence": tool_sequence,
    "max_tool_calls": max_tool_calls,
    "max_failed_calls": max_failed_calls,
    "max_tokens": max_tokens,
    "max_cost_usd": max_cost_usd,
    "max_seconds": max_seconds,
}
_WithSchema = Callable[[Expectation, Subject, CheckArguments], Awaitable[tuple[str, Got]]]
_WITH_SCHEMAS: Mapping[ExpectKind, _WithSchema] = {"matches": matches, "schema": schema}


def names_read(expectation: Expectation) -> frozenset[str]:
    """The places that an expectation reads, including its templates and its path.

    Raises:
        UsageError: an expression or a template in it is invalid.
    """
    if expectation.kind == "expression":
        return references_of_expression(str(expectation.value))
    if expectation.quoted is not None:
        named = [_read_by(path) for path, _ in quoted_paths(expectation.quoted)]
        in_files = (references(source) for _, source in template_sources(expectation))
        return frozenset().union(*named, *in_files)
    in_templates = (references(source) for _, source in template_sources(expectation))
    return path_read(expectation).union(*in_templates)


def quoted_paths(wanted: Quoted) -> Iterator[tuple[str, str]]:
    """The paths into the context, and the keys that they are under."""
    yield wanted.each or "output", "each"
    for index, source in enumerate(wanted.sources):
        if source.kind in {"value", "diff"}:
            yield source.name, f"in[{index}]" + (".diff" if source.kind == "diff" else "")


def path_read(expectation: Expectation) -> frozenset[str]:
    """The place that its path leads to; `None` if there is none, or only the run knows it."""
    return frozenset() if expectation.path is None else _read_by(expectation.path)


def _read_by(path: str) -> frozenset[str]:
    if is_template(path):
        return frozenset()
    try:
        return frozenset({join_names(parse_path(path))})
    except ValueError:
        return frozenset()


def all_names_read(expectations: Iterable[Expectation]) -> Iterator[str]:
    for expectation in expectations:
        yield from names_read(expectation)
