"""Expectations against what a step or a run came to (F12).

A step's own are checked in `expect_step`, those of a test by `aish test`:

    subject = run_subject(stage.context(), stage.records, outputs, seconds=3.2)
    checked = await check_all(case.expect, subject, runtime.check_arguments)

What is not known is never taken for granted: an unknown number of tokens, a path that leads
nowhere, a pattern that takes too long are expectations that do not hold.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace

from aish.agent.runtime import CheckArguments
from aish.config.expected import Expectation, ExpectKind
from aish.core.frozen import frozen
from aish.run.expectations.bounds import max_cost_usd, max_seconds, max_tokens, max_tool_calls
from aish.run.expectations.calls import tool_called, tool_not_called, tool_sequence
from aish.run.expectations.rendering import UnusableError, rendered
from aish.run.expectations.result_path import NotThereError
from aish.run.expectations.snapshot import snapshot
from aish.run.expectations.subject import Subject
from aish.run.expectations.texts import contains, equals, expression, matches, not_contains, schema
from aish.run.expectations.words import Mask, about, as_text
from aish.templates.explain import TemplateError

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
        return words, "nobody to ask"
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
