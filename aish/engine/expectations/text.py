"""Expectations about a text or a value, and about an expression (F12)."""

from aish.agent.runtime import CheckArguments
from aish.config.model import Expectation
from aish.core.errors import AishError
from aish.core.json import JsonValue
from aish.core.phrases import first_of
from aish.engine.answer_schema import parse_whole
from aish.engine.expectations.subject import (
    Mask,
    NotThereError,
    Subject,
    about,
    as_text,
    find,
    instead,
    kind_of,
    short,
)
from aish.policy.rules import same_json
from aish.system.schema.check import SchemaProblem
from aish.templates.render import evaluate, references_of_expression
from aish.templates.values import text_of

_MOST_NAMES = 3


def contains(expectation: Expectation, subject: Subject) -> tuple[str, str | None]:
    """The text holds a text; a list holds it as an item."""
    wanted = expectation.value
    words = f"{about(expectation.path)} to contain {short(wanted, subject.mask)}"
    value = subject.at(expectation.path)
    held = _holds(value, wanted)
    if held is None:
        return words, _no_text(value, subject)
    return words, None if held else short(value, subject.mask)


def not_contains(expectation: Expectation, subject: Subject) -> tuple[str, str | None]:
    """The opposite, of what is there."""
    unwanted = expectation.value
    words = f"{about(expectation.path)} not to contain {short(unwanted, subject.mask)}"
    value = subject.at(expectation.path)
    held = _holds(value, unwanted)
    if held is None:
        return words, _no_text(value, subject)
    return words, _environment(value, unwanted, subject.mask) if held else None


def equals(expectation: Expectation, subject: Subject) -> tuple[str, str | None]:
    """A value is another; of texts, line ends at the end do not count."""
    wanted, value = expectation.value, subject.at(expectation.path)
    words = f"{about(expectation.path)} to be {short(wanted, subject.mask)}"
    if isinstance(wanted, str) and isinstance(value, str):
        if wanted.rstrip("\r\n") == value.rstrip("\r\n"):
            return words, None
        return words, instead(wanted, value, subject.mask)
    if same_json(wanted, value):
        return words, None
    if isinstance(wanted, list | dict) and isinstance(value, list | dict):
        return words, instead(as_text(wanted), as_text(value), subject.mask)
    return words, f"{kind_of(value)}: {short(value, subject.mask)}" if isinstance(
        value, str
    ) else short(value, subject.mask)


async def matches(
    expectation: Expectation, subject: Subject, fits: CheckArguments
) -> tuple[str, str | None]:
    """A text has a match of a regex, looked for where it can be stopped (X7)."""
    regex = str(expectation.value)
    words = f"{about(expectation.path)} to match {short(regex, subject.mask)}"
    value = subject.at(expectation.path)
    if not isinstance(value, str):
        return words, _no_text(value, subject)
    problems = await fits({"pattern": regex}, value)
    if any(problem.keyword != "pattern" for problem in problems):
        return words, "no answer: looking for it took too long"
    return words, short(value, subject.mask) if problems else None


async def schema(
    expectation: Expectation, subject: Subject, fits: CheckArguments
) -> tuple[str, str | None]:
    """A value fits a JSON Schema; a text may be JSON."""
    wanted = expectation.value
    assert isinstance(wanted, dict)
    words = f"{about(expectation.path, 'the output')} to fit its schema"
    value = subject.value if expectation.path is None else subject.at(expectation.path)
    problems = await fits(wanted, value)
    if problems and isinstance(value, str):
        try:
            parsed = parse_whole(value)
        except ValueError:
            return words, _problems(problems)
        problems = await fits(wanted, parsed)
    return words, _problems(problems) if problems else None


def expression(expectation: Expectation, subject: Subject) -> tuple[str, str | None]:
    """An expression is true, as templates see truth."""
    source = str(expectation.value)
    words = f"{short(source, subject.mask)} to be true"
    try:
        value = evaluate(source, subject.names)
    except AishError as error:
        return words, f"an error: {error.message}"
    if value:
        return words, None
    return words, "; ".join((short(value, subject.mask), *_read(source, subject)))


def _holds(value: JsonValue, wanted: JsonValue) -> bool | None:
    """Whether it is in there; `None` where nothing can be in it."""
    if isinstance(value, str):
        return text_of(wanted) in value
    if isinstance(value, list):
        return any(same_json(item, wanted) for item in value)
    return None


def _no_text(value: JsonValue, subject: Subject) -> str:
    return (
        "no text at all"
        if value is None
        else f"{kind_of(value)} and no text: {short(value, subject.mask)}"
    )


def _environment(value: JsonValue, unwanted: JsonValue, mask: Mask) -> str:
    """The text around what should not be there."""
    if not isinstance(value, str):
        return short(value, mask)
    text, word = mask(value), mask(text_of(unwanted))
    at = text.find(word)
    if at < 0:
        # It is in a secret.
        return short(text, str)
    begin, end = max(at - 40, 0), at + len(word) + 40
    shown = f"{'…' if begin else ''}{text[begin:end]}{'…' if end < len(text) else ''}"
    return short(shown, str)


def _problems(problems: tuple[SchemaProblem, ...]) -> str:
    return first_of([str(problem) for problem in problems], _MOST_NAMES, by="; ")


def _read(source: str, subject: Subject) -> list[str]:
    """What the names in an expression stand for, as far as that is short to say."""
    said: list[str] = []
    for name in sorted(references_of_expression(source)):
        try:
            value = find(tuple(name.split(".")), subject.names)
        except NotThereError:
            continue
        if not isinstance(value, dict):
            said.append(f"`{name}` is {short(value, subject.mask)}")
    return said[:_MOST_NAMES]
