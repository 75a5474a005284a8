"""Expectations about tool calls (F12).

What is expected to be called has to have run. What is expected not to be called, or only so often,
may not even have been asked for: a call that was denied or had bad arguments counts.
"""

from collections.abc import Sequence

from aish.agent.runtime import UsedCall
from aish.config.model import Expectation, ToolMatch
from aish.core.json import JsonValue
from aish.core.phrases import and_more
from aish.core.tools import ToolName
from aish.engine.expectations.subject import Subject, short
from aish.policy.rules import LONGEST, Fit, matches_tool, same_json
from aish.system.globs import matches_path

_MOST_SHOWN = 8
_NEVER_RAN = frozenset({"denied", "bad_arguments"})


def tool_called(expectation: Expectation, subject: Subject) -> tuple[str, str | None]:
    """A call that fits has run."""
    (wanted,) = expectation.tools
    words = f"a call of {_shown_match(wanted, subject)}"
    ran = [call for call in subject.calls if has_run(call)]
    if any(fit(wanted, call) is Fit.YES for call in ran):
        return words, None
    alike = [call for call in subject.calls if _is_named(wanted, call)]
    return words, _these(alike, subject) if alike else _names(subject.calls)


def tool_not_called(expectation: Expectation, subject: Subject) -> tuple[str, str | None]:
    """No call that fits was asked for; one of which that cannot be told counts."""
    (unwanted,) = expectation.tools
    found = [call for call in subject.calls if fit(unwanted, call) is not Fit.NO]
    return f"no call of {_shown_match(unwanted, subject)}", _these(
        found, subject
    ) if found else None


def tool_sequence(expectation: Expectation, subject: Subject) -> tuple[str, str | None]:
    """Calls ran in this order, with others between them unless it says `exact`."""
    listed = ", ".join(_shown_match(match, subject) for match in expectation.tools)
    words = f"calls of {listed} in this order" + (" and no others" if expectation.exact else "")
    ran = [call for call in subject.calls if has_run(call)]
    if expectation.exact:
        same = len(ran) == len(expectation.tools) and all(
            fit(match, call) is Fit.YES for match, call in zip(expectation.tools, ran, strict=True)
        )
        return words, None if same else _names(ran)
    rest = list(ran)
    for match in expectation.tools:
        while rest and fit(match, rest[0]) is not Fit.YES:
            rest.pop(0)
        if not rest:
            return words, _names(ran)
        rest.pop(0)
    return words, None


def has_run(call: UsedCall) -> bool:
    """Whether a call got as far as its tool."""
    return call.kind not in _NEVER_RAN


def fit(match: ToolMatch, call: UsedCall) -> Fit:
    """Whether a call is one of those that are meant; unsure if its text is too long for globs."""
    if not _is_named(match, call):
        return Fit.NO
    given = call.arguments
    found = Fit.YES
    for name, wanted in match.arguments.items():
        if not isinstance(given, dict) or name not in given:
            return Fit.NO
        one = _fit_value(wanted, given[name])
        if one is Fit.NO:
            return one
        found = one if one is Fit.UNSURE else found
    return found


def _fit_value(wanted: JsonValue, value: JsonValue) -> Fit:
    """Text by glob or to the letter, anything else by being equal."""
    if same_json(wanted, value):
        return Fit.YES
    if not isinstance(wanted, str) or not isinstance(value, str):
        return Fit.NO
    if "*" not in wanted and "?" not in wanted:
        return Fit.NO
    if len(value) > LONGEST:
        return Fit.UNSURE
    return Fit.YES if matches_path(wanted, value) else Fit.NO


def _is_named(match: ToolMatch, call: UsedCall) -> bool:
    server, _, name = call.tool.partition("__")
    return matches_tool(match.tool, ToolName(server, name))


def _shown_match(match: ToolMatch, subject: Subject) -> str:
    given = f" with {short(dict(match.arguments), subject.mask)}" if match.arguments else ""
    return f"`{match.tool}`{given}"


def _these(calls: Sequence[UsedCall], subject: Subject) -> str:
    shown = [
        f"`{call.tool}` with {short(call.arguments, subject.mask)}"
        + ("" if has_run(call) else f" ({call.kind})")
        for call in calls[:_MOST_SHOWN]
    ]
    return ", ".join(shown) + and_more(len(calls) - _MOST_SHOWN)


def _names(calls: Sequence[UsedCall]) -> str:
    if not calls:
        return "no call at all"
    shown = [
        f"`{call.tool}`" + ("" if has_run(call) else f" ({call.kind})")
        for call in calls[:_MOST_SHOWN]
    ]
    return f"calls of {', '.join(shown)}{and_more(len(calls) - _MOST_SHOWN)}"
