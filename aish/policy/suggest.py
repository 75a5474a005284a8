"""The narrowest rules that approve the calls that were made, and none that was denied (S8).

    suggest(made, denied) -> tuple[RuleEntry, ...]
    suggestion(made, denied) -> Suggestion      # with what no rule can be given for, and why

Whatever is given was put to `decide`: each call is approved by it, and no denied call is.
"""

import re
from collections.abc import Mapping, Sequence

from aish.core.frozen import frozen
from aish.core.json import JsonObject, JsonValue
from aish.core.rules import RuleEntry, RuleLists
from aish.core.tools import Annotations, Tool, ToolName
from aish.policy.decide import decide
from aish.policy.digest import canonical
from aish.policy.rules import Policy, compile_policy
from aish.policy.suggest_globs import has_wildcard
from aish.policy.suggest_rules import Made, exact_rules, groups
from aish.policy.texts import LONGEST

_MASK = re.compile(r"<secret:[^<>]*>")
_DEEPEST = 32
_LONGEST_KEY = 500
_LONGEST_NUMBER = 300
DENIED = "the same call was denied as well"


@frozen
class LeftOut:
    """A call that no rule is given for, and the reason in words."""

    call: Made
    why: str


@frozen
class Given:
    """A rule and the calls that it is for."""

    rule: RuleEntry
    calls: tuple[Made, ...]


@frozen
class Suggestion:
    """What is suggested; `left_out` are calls that no rule is given for."""

    given: tuple[Given, ...]
    left_out: tuple[LeftOut, ...]

    @property
    def rules(self) -> tuple[RuleEntry, ...]:
        """The rules alone."""
        return tuple(one.rule for one in self.given)


def suggest(made: Sequence[Made], denied: Sequence[Made] = ()) -> tuple[RuleEntry, ...]:
    """The narrowest rules for the calls that were made."""
    return suggestion(made, denied).rules


def suggestion(made: Sequence[Made], denied: Sequence[Made] = ()) -> Suggestion:
    """The same, with the calls that no rule can be given for."""
    given: list[Given] = []
    left_out: list[LeftOut] = []
    for calls in _by_tool(made).values():
        known: list[Made] = []
        for call in calls.values():
            if why := _unfit(call):
                left_out.append(LeftOut(call, why))
            else:
                known.append(call)
        refused = [call for call in denied if call.tool == next(iter(calls.values())).tool]
        for one in _of_tool(known, refused):
            if isinstance(one, Given):
                given.append(one)
            else:
                left_out.append(one)
    return Suggestion(tuple(given), tuple(left_out))


def stand_in(name: ToolName) -> Tool:
    """A tool of which only the name is known, and that is trusted with nothing."""
    return Tool(name, str(name), "", {}, annotations=Annotations(destructive=True))


def _by_tool(made: Sequence[Made]) -> Mapping[ToolName, Mapping[str, Made]]:
    """The calls of each tool, equal ones once, in the order in which they were made first."""
    found: dict[ToolName, dict[str, Made]] = {}
    for call in made:
        key = canonical([call.arguments, call.unknown])
        found.setdefault(call.tool, {}).setdefault(key, call)
    return found


def _of_tool(calls: Sequence[Made], denied: Sequence[Made]) -> list[Given | LeftOut]:
    """What is said of the calls of one tool."""
    # What was denied is not known where a part of it is masked: no glob is sure not to have it.
    sure = not any(_unknown(call) for call in denied)
    said: list[Given | LeftOut] = []
    for group, rule in groups(calls):
        if rule is not None and sure and _suits(rule, group, denied):
            said.append(Given(rule, group))
        else:
            said += [_exactly(call, denied) for call in group]
    return said


def _exactly(call: Made, denied: Sequence[Made]) -> Given | LeftOut:
    why = "no rule approves exactly this call"
    for rule in exact_rules(call):
        if _suits(rule, (call,), denied):
            return Given(rule, (call,))
        if _suits(rule, (call,), ()):
            why = DENIED
    return LeftOut(call, why)


def _suits(rule: RuleEntry, calls: Sequence[Made], denied: Sequence[Made]) -> bool:
    policy = compile_policy(RuleLists(auto_approve=(rule,)))
    return all(_approves(policy, call) for call in calls) and not any(
        _approves(policy, call) for call in denied
    )


def _approves(policy: Policy, call: Made) -> bool:
    return decide(policy, stand_in(call.tool), call.arguments).verdict == "auto"


def _unfit(call: Made) -> str | None:
    """Why a call cannot be spelled out in a rule."""
    tool = call.tool
    if not tool.server or not tool.name or "__" in tool.server or has_wildcard(str(tool)):
        return "a rule cannot name this tool alone"
    if why := _unknown(call):
        return why
    return _unwritable(call.arguments)


def _unknown(call: Made) -> str | None:
    """Why the arguments are not those that were sent."""
    if call.unknown:
        return call.unknown
    if masked := _MASK.search(_readable(call.arguments)):
        return f"a secret stood in its arguments: {masked[0]}"
    return None


def _readable(arguments: JsonObject) -> str:
    return "\n".join(piece for piece, _ in _pieces(arguments) if isinstance(piece, str))


def _unwritable(arguments: JsonObject) -> str | None:
    size = 0
    for piece, depth in _pieces(arguments):
        text = piece if isinstance(piece, str) else str(piece)
        size += len(text)
        if size > LONGEST:
            return f"its arguments are longer than {LONGEST} characters"
        if depth > _DEEPEST:
            return "its arguments are nested too deeply"
        if not isinstance(piece, str) and len(text) > _LONGEST_NUMBER:
            return f"a number in its arguments has more than {_LONGEST_NUMBER} digits"
        if not _is_text(text):
            return "its arguments hold half of a character, which no file can"
    if any(len(name) > _LONGEST_KEY for name in _names(arguments)):
        return f"the name of an argument is longer than {_LONGEST_KEY} characters"
    return None


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _names(value: JsonValue) -> list[str]:
    """All keys in a value."""
    found: list[str] = []
    waiting: list[JsonValue] = [value]
    while waiting:
        held = waiting.pop()
        if isinstance(held, Mapping):
            found += held
            waiting += held.values()
        elif isinstance(held, Sequence) and not isinstance(held, str):
            waiting += held
    return found


def _pieces(value: JsonValue) -> list[tuple[str | float | None, int]]:
    """Every key, text and number in a value, with its depth."""
    found: list[tuple[str | float | None, int]] = []
    waiting: list[tuple[JsonValue, int]] = [(value, 0)]
    while waiting:
        held, depth = waiting.pop()
        if isinstance(held, Mapping):
            found += [(name, depth) for name in held]
            waiting += [(one, depth + 1) for one in held.values()]
        elif isinstance(held, Sequence) and not isinstance(held, str):
            waiting += [(one, depth + 1) for one in held]
            found.append(("", depth))
        else:
            found.append((held, depth))
    return found
