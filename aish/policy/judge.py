"""Whether one rule applies to one call, and why (P1, P4, P5)."""

from collections.abc import Callable, Mapping

from aish.core.frozen import frozen
from aish.core.json import JsonObject, JsonValue
from aish.core.tools import Tool
from aish.policy.commands import (
    Command,
    command_of,
    fit_command,
    is_command_tool,
    miss_of,
    spells_out,
    uncertain,
)
from aish.policy.rules import LOCAL_COMMAND, Rule
from aish.policy.texts import Fit, fit_value

FitsSchema = Callable[[JsonObject, JsonObject], bool | None]
"""Whether arguments fit a schema; `None` where that cannot be told here."""


@frozen
class Judgement:
    """One rule looked at: whether it applies, and the reason in words.

    Of rules that do not, the one with the highest `near` was meant the most likely; 0 is for those
    that are about something else.
    """

    rule: Rule
    fit: Fit
    why: str
    near: int = 0


def judge(
    rule: Rule,
    tool: Tool,
    arguments: JsonObject,
    fits_schema: FitsSchema,
    mask: Callable[[str], str] = str,
) -> Judgement:
    """Whether `rule` applies to a call of `tool` with exactly these arguments.

    `mask` takes the secrets out of those that the reason shows.
    """
    permits = rule.list not in {"ask", "deny", "stage"}
    # A rule that forbids a tool forbids it by whatever name it is called.
    if not any(rule.covers(name) for name in (tool.names[:1] if permits else tool.names)):
        return Judgement(rule, Fit.NO, f"`{rule.entry.tool}` does not match `{tool.name}`")
    if permits and (why := _not_meant(rule, tool)):
        return Judgement(rule, Fit.NO, why, near=MEANT)
    found = _conditions(rule, arguments, fits_schema, mask, permits=permits)
    if permits and found.fit is Fit.YES and any(map(is_command_tool, tool.names)):
        return _certain_command(rule, arguments) or found
    return found


def _not_meant(rule: Rule, tool: Tool) -> str | None:
    """Why a rule that permits does not permit this tool, though it has its name."""
    if rule.given_for is not None and rule.given_for != tool:
        return "it was given for the tool as it was before it changed"
    if tool.older_of and not rule.exact:
        return "it is an older name of a tool: only its exact name"
    if tool.annotations.destructive and not tool.trusted:
        if not rule.exact:
            return _DESTRUCTIVE
        if tool.name == LOCAL_COMMAND and rule.unconditional:
            # What approves the commands of a file's author approves none that a model thinks of.
            return "a model proposes it: only a rule about its command"
    return None


def _conditions(
    rule: Rule,
    arguments: JsonObject,
    fits_schema: FitsSchema,
    mask: Callable[[str], str],
    *,
    permits: bool,
) -> Judgement:
    """All conditions of a rule; the worst of them counts."""
    entry = rule.entry
    doubt = ""
    for name, wanted in entry.when.items():
        fit, which = _fit_argument(name, entry.when, arguments, permits=permits)
        if fit is Fit.NO:
            why = f"argument `{which}` does not fit `{wanted}`"
            return Judgement(rule, Fit.NO, why, near=_PARTLY)
        if fit is Fit.UNSURE:
            doubt = f"whether argument `{which}` fits `{wanted}` is not certain"
    if entry.command is not None:
        found = _command(rule, entry.command, arguments, mask, permits=permits)
        if found.fit is Fit.NO:
            return found
        doubt = found.why if found.fit is Fit.UNSURE else doubt
    if entry.schema is not None:
        fits = fits_schema(entry.schema, arguments)
        if fits is False or (fits is None and permits):
            why = "the arguments do not fit the schema" if fits is False else _UNCHECKED
            return Judgement(rule, Fit.NO, why, near=_PARTLY)
        if fits is None:
            doubt = _UNCHECKED
    return Judgement(rule, Fit.UNSURE, doubt) if doubt else Judgement(rule, Fit.YES, "it matches")


def _command(
    rule: Rule,
    pattern: tuple[str, ...],
    arguments: JsonObject,
    mask: Callable[[str], str],
    *,
    permits: bool,
) -> Judgement:
    """Whether the command of a call fits that of a rule."""
    command = command_of(arguments)
    fit = fit_command(pattern, command, permits=permits)
    if fit is Fit.NO and permits:
        miss = miss_of(pattern, command, mask)
        return Judgement(rule, fit, miss.why, near=miss.near)
    if fit is Fit.NO:
        return Judgement(rule, fit, "the command does not fit, word by word")
    return Judgement(rule, fit, "whether the command fits is not certain")


def _fit_argument(
    name: str, when: Mapping[str, JsonValue], arguments: JsonObject, *, permits: bool
) -> tuple[Fit, str]:
    """How a condition fares, and the argument that says so.

    What moves a file touches two paths, and a rule about `path` that is silent on `new_path` means
    both: it permits only where both are permitted, and forbids where one is forbidden.
    """
    names = [name]
    if name == _PATH and _NEW_PATH in arguments and _NEW_PATH not in when:
        names.append(_NEW_PATH)
    fits = [
        (
            fit_value(when[name], arguments[one], permits=permits) if one in arguments else Fit.NO,
            one,
        )
        for one in names
    ]
    order = (Fit.NO, Fit.UNSURE, Fit.YES) if permits else (Fit.YES, Fit.UNSURE, Fit.NO)
    return min(fits, key=lambda found: order.index(found[0]))


MEANT = 100
"""How near a rule is that would apply but for what kind of tool or command this is."""
_PARTLY = 50
_PATH = "path"
_NEW_PATH = "new_path"
_DESTRUCTIVE = (
    "the tool calls itself destructive and its server is not trusted: only its exact name"
)
_UNCHECKED = "the schema is too complex to be certain of"


def _certain_command(rule: Rule, arguments: JsonObject) -> Judgement | None:
    """Why a rule that permits does not permit this command after all, or `None`."""
    command = command_of(arguments)
    if command is None:
        return Judgement(rule, Fit.NO, "there is no command in the arguments")
    if command.words is not None or _states(rule, command):
        return None
    return Judgement(rule, Fit.NO, uncertain(command), near=MEANT)


def _states(rule: Rule, command: Command) -> bool:
    entry = rule.entry
    patterns = (entry.when.get("argv"), entry.when.get("command"), entry.command)
    return any(pattern is not None and spells_out(pattern, command) for pattern in patterns)
