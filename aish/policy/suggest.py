"""The narrowest rules that approve the calls that were made, and no denied call."""

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from aish.core.frozen import frozen
from aish.core.json import JsonObject, JsonValue, canonical
from aish.core.rules import RuleEntry, RuleLists
from aish.core.tools import Annotations, Tool, ToolName
from aish.policy.decide import decide, entry_of, exact_entry, pieces, rule_obstacle
from aish.policy.rules import (
    LOCAL_COMMAND,
    LONGEST,
    Policy,
    command_keys,
    command_of,
    compile_policy,
    has_metacharacter,
    is_command_tool,
    is_exact,
    is_odd,
)
from aish.system.globs import is_autorun

_WORDS = re.compile(r"[^\W\d_]+|\d+|.", re.DOTALL)
_ENDING = re.compile(r"[^.]\.[A-Za-z0-9]{1,8}\Z")
_HOST_AT = 3
"""How many slashes stand before the path of a URL."""

Family = tuple[str, str]


def family(value: JsonValue) -> Family | None:
    """The folder and the suffix of a text; `None` if no glob may replace it."""
    if not isinstance(value, str) or not value or len(value) > LONGEST:
        return None
    if not is_exact(value) or "\\" in value or is_odd(value) or any(map(str.isspace, value)):
        return None
    folder, slash, name = value.rpartition("/")
    if ("://" in value and value.count("/") < _HOST_AT) or "@" in name:
        # The variable part here would be a host, or a recipient.
        return None
    ending = _ENDING.search(name)
    return folder + slash, ending[0][1:] if ending else ""


def glob_of(texts: Sequence[str]) -> str | None:
    """A glob that matches these texts of one family, or `None` if they share too little."""
    found = family(texts[0])
    if found is None or not all(family(text) == found for text in texts):
        return None
    folder, ending = found
    names = [_WORDS.findall(text[len(folder) : len(text) - len(ending) or None]) for text in texts]
    begin = _longest_prefix(names)
    rest = [name[len(begin) :] for name in names]
    end = _longest_prefix([name[::-1] for name in rest])[::-1]
    # A suffix alone is too broad: `*.com` is any host.
    fixed = (folder, *begin, *end)
    if not any(map(_says_something, fixed)):
        return None
    return f"{folder}{''.join(begin)}*{''.join(end)}{ending}"


def _says_something(part: str) -> bool:
    return any(map(str.isalnum, part))


def _longest_prefix(rows: Sequence[Sequence[str]]) -> list[str]:
    """The words that all of them begin with."""
    shortest = min(map(len, rows))
    count = 0
    while count < shortest and all(one[count] == two[count] for one, two in pairwise(rows)):
        count += 1
    return list(rows[0][:count])


@frozen
class Made:
    """A call of a tool with its arguments; `unknown` says why these are not what was sent."""

    tool: ToolName
    arguments: JsonObject
    unknown: str = ""


Group = tuple[Made, ...]
_Fields = Mapping[str, JsonValue]


def groups(calls: Sequence[Made]) -> Iterator[tuple[Group, RuleEntry | None]]:
    """The calls of one tool, grouped for one rule with globs each; `None` for single ones.

    The caller decides which rule may be used.
    """
    parts: dict[object, list[Made]] = {}
    for call in calls:
        parts.setdefault(_kind(call), []).append(call)
    for part in parts.values():
        yield from _split(part)


def _split(part: list[Made]) -> Iterator[tuple[Group, RuleEntry | None]]:
    """A part whose arguments are of the same families, split where they share too little."""
    fields = [_fields(call) for call in part]
    first = fields[0]
    globs: dict[str, str | None] = {
        name: glob_of([str(one[name]) for one in fields])
        for name in first
        if any(canonical(one[name]) != canonical(first[name]) for one in fields)
    }
    if not globs:
        yield from (((call,), None) for call in part)
        return
    stuck = [name for name, glob in globs.items() if glob is None]
    if not stuck:
        yield tuple(part), _rule(part[0], {**first, **globs})
        return
    smaller: dict[str, list[Made]] = {}
    for call, one in zip(part, fields, strict=True):
        smaller.setdefault(canonical([one[name] for name in stuck]), []).append(call)
    for rest in smaller.values():
        yield from _split(rest)


def _kind(call: Made) -> object:
    """The common features of calls for one rule: families of texts, other values unchanged."""
    fields = _fields(call)
    words = _plain_words(call)
    fixed = {"0"} if words is not None else set()

    def kind(name: str, value: JsonValue) -> object:
        found = None if name in fixed or _needs_itself(name, value) else family(value)
        return canonical(value) if found is None else found

    kinds = tuple(sorted((name, repr(kind(name, value))) for name, value in fields.items()))
    return (words is not None, len(fields), kinds)


def _needs_itself(name: str, value: JsonValue) -> bool:
    """Return true if only a rule with this very value may approve a call."""
    return name in {"path", "new_path"} and isinstance(value, str) and is_autorun(value)


def _fields(call: Made) -> _Fields:
    """The parts that may vary: the words of a command by number, or the arguments."""
    words = _plain_words(call)
    if words is None:
        return call.arguments
    numbered = {str(number): word for number, word in enumerate(words)}
    return {**numbered, **{f" {name}": one for name, one in _beside(call).items()}}


def _rule(call: Made, fields: _Fields) -> RuleEntry:
    words = _plain_words(call)
    if words is None:
        return entry_of(call.tool, call.arguments, fields)
    pattern = tuple(str(fields[str(number)]) for number in range(len(words)))
    beside = {name[1:]: one for name, one in fields.items() if name.startswith(" ")}
    return _by_words(call, pattern, beside)


def _plain_words(call: Made) -> tuple[str, ...] | None:
    """The words of a command that a shell would read unchanged."""
    command = command_of(call.arguments, call.tool.name) if is_command_tool(call.tool) else None
    words = None if command is None else command.words
    if words is None or any(map(has_metacharacter, words)):
        return None
    return words


def _beside(call: Made) -> JsonObject:
    keys = command_keys(call.tool.name)
    return {name: value for name, value in call.arguments.items() if name not in keys}


def _by_words(call: Made, words: tuple[str, ...], beside: JsonObject) -> RuleEntry:
    tool = call.tool
    if tool == LOCAL_COMMAND:
        # It has no further arguments: its own schema, checked before any rule, sees to that.
        return RuleEntry(str(tool), command=words)
    conditions = entry_of(tool, beside)
    schema: JsonObject = {**(conditions.schema or {}), "maxProperties": len(call.arguments)}
    return RuleEntry(str(tool), when=conditions.when, schema=schema, command=words)


_MASK = re.compile(r"<secret:[^<>]*>")
DENIED = "the same call was denied as well"


@frozen
class LeftOut:
    """A call without a suggested rule, and the reason as text."""

    call: Made
    why: str


@frozen
class Given:
    """A rule and the calls that it is for."""

    rule: RuleEntry
    calls: tuple[Made, ...]


@frozen
class Suggestion:
    """The suggested rules; `left_out` are calls without a rule."""

    given: tuple[Given, ...]
    left_out: tuple[LeftOut, ...]

    @property
    def rules(self) -> tuple[RuleEntry, ...]:
        """Only the rules."""
        return tuple(one.rule for one in self.given)


def suggest(made: Sequence[Made], denied: Sequence[Made] = ()) -> tuple[RuleEntry, ...]:
    """The narrowest rules for the calls that were made."""
    return suggestion(made, denied).rules


def suggestion(made: Sequence[Made], denied: Sequence[Made] = ()) -> Suggestion:
    """The same, with the calls that no rule can match."""
    given: list[Given] = []
    left_out: list[LeftOut] = []
    for calls in _by_tool(made).values():
        known: list[Made] = []
        for call in calls.values():
            if why := _unknown(call) or rule_obstacle(call.tool, call.arguments):
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
    """An untrusted tool known by name only."""
    return Tool(name, str(name), "", {}, annotations=Annotations(destructive=True))


def _by_tool(made: Sequence[Made]) -> Mapping[ToolName, Mapping[str, Made]]:
    """The calls of each tool, without duplicates, in the order of their first occurrence."""
    found: dict[ToolName, dict[str, Made]] = {}
    for call in made:
        key = canonical([call.arguments, call.unknown])
        found.setdefault(call.tool, {}).setdefault(key, call)
    return found


def _of_tool(calls: Sequence[Made], denied: Sequence[Made]) -> list[Given | LeftOut]:
    """The suggestion for the calls of one tool."""
    # If part of a denied call is masked, it is unknown: any glob might match it.
    sure = not any(_unknown(call) for call in denied)
    said: list[Given | LeftOut] = []
    for group, rule in groups(calls):
        if rule is not None and sure and _suits(rule, group, denied):
            said.append(Given(rule, group))
        else:
            said += [_exactly(call, denied) for call in group]
    return said


def _exactly(call: Made, denied: Sequence[Made]) -> Given | LeftOut:
    rule = exact_entry(stand_in(call.tool), call.arguments)
    if rule is None:
        return LeftOut(call, "no rule approves exactly this call")
    return Given(rule, (call,)) if _suits(rule, (call,), denied) else LeftOut(call, DENIED)


def _suits(rule: RuleEntry, calls: Sequence[Made], denied: Sequence[Made]) -> bool:
    policy = compile_policy(RuleLists(auto_approve=(rule,)))
    return all(_approves(policy, call) for call in calls) and not any(
        _approves(policy, call) for call in denied
    )


def _approves(policy: Policy, call: Made) -> bool:
    return decide(policy, stand_in(call.tool), call.arguments).verdict == "auto"


def _unknown(call: Made) -> str | None:
    """Why the arguments are not those that were sent."""
    if call.unknown:
        return call.unknown
    texts = (piece for piece, _ in pieces(call.arguments) if isinstance(piece, str))
    if masked := _MASK.search("\n".join(texts)):
        return f"its arguments contained a secret: {masked[0]}"
    return None
