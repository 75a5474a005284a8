"""Expectations against what a step or a run came to, and what they read of it (F3, F11, F12)."""

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from aish.agent.runtime import CheckArguments
from aish.config.model import Expectation, ExpectKind
from aish.core.frozen import frozen
from aish.core.phrases import dollars, plural
from aish.engine.expectations.calls import tool_called, tool_not_called, tool_sequence
from aish.engine.expectations.rendering import UnusableError, rendered, template_sources
from aish.engine.expectations.snapshot import snapshot
from aish.engine.expectations.subject import (
    Mask,
    NotThereError,
    Subject,
    about,
    as_text,
    parse_path,
)
from aish.engine.expectations.text import (
    contains,
    equals,
    expression,
    matches,
    not_contains,
    schema,
)
from aish.templates.limits import TemplateError
from aish.templates.render import references, references_of_expression
from aish.templates.values import is_template


def max_tool_calls(expectation: Expectation, subject: Subject) -> tuple[str, str | None]:
    """Every call that was asked for counts."""
    most, count = _number(expectation), len(subject.calls)
    return _at_most(most, "tool call"), None if count <= most else f"{count:,}"


def max_tokens(expectation: Expectation, subject: Subject) -> tuple[str, str | None]:
    """Tokens read and written; a number that is not known is not small."""
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
    """US dollars; what is not known is not cheap."""
    most = _number(expectation)
    words = f"at most {dollars(most)}"
    if subject.cost_usd is None:
        said = "an unknown cost: a model has no `price`, or did not say how many tokens there were"
        return words, said
    return words, None if subject.cost_usd <= most else dollars(subject.cost_usd)


def max_seconds(expectation: Expectation, subject: Subject) -> tuple[str, str | None]:
    """Seconds of this run, by the clock on the wall."""
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
class Checked:
    """One expectation and whether it holds.

    `message` says what is expected and, if it does not hold, what there is instead: a sentence,
    maybe with the lines of a diff after it. `where` is the expectation's place in the file.
    """

    kind: ExpectKind
    ok: bool
    message: str
    where: str


_UNRENDERED = "a template that gives a usable value"


async def check_all(
    expectations: Sequence[Expectation],
    subject: Subject,
    fits: CheckArguments,
    mask: Mask = str,
    grade: Grade | None = None,
) -> tuple[Checked, ...]:
    """Every expectation, in their order; `fits` is the run's bounded check by a JSON Schema.

    `mask` takes secrets out of what is shown, and of what is compared with a snapshot, as was done
    when it was written.
    `grade` asks the model of a `judge`.

    Raises:
        AishError: a judge could not be asked, or gave no verdict.
    """
    return tuple([await check(one, subject, fits, mask, grade) for one in expectations])


async def check(
    expectation: Expectation,
    subject: Subject,
    fits: CheckArguments,
    mask: Mask = str,
    grade: Grade | None = None,
) -> Checked:
    """One expectation; nothing that it is about can make this fail, but for who judges it.

    Raises:
        AishError: a judge could not be asked, or gave no verdict.
    """
    wanted, got = _UNRENDERED, None
    subject = replace(subject, mask=mask)
    try:
        expectation = rendered(expectation, subject.names, mask)
        if expectation.kind == "judge":
            wanted, got = await judge(expectation, subject, grade)
        else:
            wanted, got = await _outcome(expectation, subject, fits)
    except NotThereError as error:
        wanted = f"something at `{expectation.path}`" if expectation.path else "a text"
        got = str(error)
    except UnusableError as error:
        got = str(error)
    except TemplateError as error:
        said = f"this cannot be checked: {error.message}"
        return Checked(expectation.kind, ok=False, message=said, where=expectation.where)
    message = f"expected {wanted}" + ("" if got is None else f"; got {got}")
    return Checked(expectation.kind, got is None, message, expectation.where)


async def judge(expectation: Expectation, subject: Subject, grade: Grade | None) -> tuple[str, Got]:
    """A model's verdict by a rubric; nothing is asked where there is nothing to judge."""
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
    """What is wanted in words, and what there is instead."""
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
    "max_tokens": max_tokens,
    "max_cost_usd": max_cost_usd,
    "max_seconds": max_seconds,
}
_WithSchema = Callable[[Expectation, Subject, CheckArguments], Awaitable[tuple[str, Got]]]
_WITH_SCHEMAS: Mapping[ExpectKind, _WithSchema] = {"matches": matches, "schema": schema}


def names_read(expectation: Expectation) -> frozenset[str]:
    """The places that an expectation reads, its templates included; its path if it is one.

    Raises:
        UsageError: it is an expression that is none, or holds a template that is none.
    """
    if expectation.kind == "expression":
        return references_of_expression(str(expectation.value))
    in_templates = (references(source) for _, source in template_sources(expectation))
    return path_read(expectation).union(*in_templates)


def path_read(expectation: Expectation) -> frozenset[str]:
    """The place that its path leads to; nothing where that is none, or known only when it runs."""
    if expectation.path is None or is_template(expectation.path):
        return frozenset()
    try:
        path = parse_path(expectation.path)
    except ValueError:
        return frozenset()
    names: list[str] = []
    for key in path:
        if isinstance(key, int):
            break
        names.append(key)
    return frozenset({".".join(names)})


def all_names_read(expectations: Iterable[Expectation]) -> Iterator[str]:
    """The places that several read.

    Raises:
        UsageError: one is an expression that is none.
    """
    for expectation in expectations:
        yield from names_read(expectation)
