"""Expectations against what a step or a run came to (F12).

A step's own are checked in `expect_step`, those of a test by `aish test`:

    subject = run_subject(stage.context(), stage.records, outputs, seconds=3.2)
    checked = await check_all(case.expect, subject, equipment.check_arguments)

What is not known is never taken for granted: an unknown number of tokens, a path that leads
nowhere, a pattern that takes too long are expectations that do not hold.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence

from aish.config.expected import Expectation, ExpectKind
from aish.loop.equipment import CheckArguments
from aish.run.expectations.bounds import max_seconds, max_tokens, max_tool_calls
from aish.run.expectations.calls import tool_called, tool_not_called, tool_sequence
from aish.run.expectations.result_path import NotThereError
from aish.run.expectations.snapshot import Mask, snapshot
from aish.run.expectations.subject import Subject
from aish.run.expectations.texts import contains, equals, expression, matches, not_contains, schema
from aish.vocab.frozen import frozen

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


async def check_all(
    expectations: Sequence[Expectation],
    subject: Subject,
    fits: CheckArguments,
    mask: Mask = str,
) -> tuple[Checked, ...]:
    """Every expectation, in their order; `fits` is the run's bounded check by a JSON Schema.

    `mask` takes secrets out of what is compared with a snapshot, as was done when it was written.
    """
    return tuple([await check(one, subject, fits, mask) for one in expectations])


async def check(
    expectation: Expectation, subject: Subject, fits: CheckArguments, mask: Mask = str
) -> Checked:
    """One expectation; nothing that it is about can make this fail."""
    try:
        wanted, got = await _outcome(expectation, subject, fits, mask)
    except NotThereError as error:
        wanted = f"something at `{expectation.path}`" if expectation.path else "a text"
        got = str(error)
    message = f"expected {wanted}" + ("" if got is None else f"; got {got}")
    return Checked(expectation.kind, got is None, message, expectation.where)


async def _outcome(
    expectation: Expectation, subject: Subject, fits: CheckArguments, mask: Mask
) -> tuple[str, Got]:
    """What is wanted in words, and what there is instead."""
    if expectation.kind in _WITH_SCHEMAS:
        return await _WITH_SCHEMAS[expectation.kind](expectation, subject, fits)
    if expectation.kind == "snapshot":
        return snapshot(expectation, subject, mask)
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
    "max_seconds": max_seconds,
}
_WithSchema = Callable[[Expectation, Subject, CheckArguments], Awaitable[tuple[str, Got]]]
_WITH_SCHEMAS: Mapping[ExpectKind, _WithSchema] = {"matches": matches, "schema": schema}
