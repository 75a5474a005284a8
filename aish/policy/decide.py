"""The decision of the rules on one call: pure, closed where in doubt.

Also explains the decision rule by rule, runs the file's `policy_tests`, and derives the rule
that an "always" stores: the narrowest rule for calls like the one asked about.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Literal

from aish.core.events import HeldFlow
from aish.core.frozen import frozen
from aish.core.json import JsonObject, JsonValue
from aish.core.rules import PolicyTest, RuleEntry
from aish.core.sources import Sources
from aish.core.tools import Tool, ToolName
from aish.policy.rules import (
    LONGEST,
    SEPARATOR,
    Fit,
    FitsSchema,
    Judgement,
    Policy,
    Rule,
    is_exact,
    judge,
    rule_of,
    split_glob,
)

RulingVerdict = Literal["auto", "ask", "deny", "staged"]


@frozen
class Ruling:
    """The verdict, the text of the deciding rule (empty if none), and the reason.

    `unsure` is set where the rule may or may not apply to the call.
    `hint` is the rule that would approve just this call, where none does. `flow` is what is said
    of the text that the call follows; with a `warning` the call is not held by it.
    """

    verdict: RulingVerdict
    rule: str
    reason: str
    hint: str | None = None
    unsure: bool = False
    flow: HeldFlow | None = None
    warning: str = ""

    @property
    def question(self) -> str:
        """The reason as a person is told it who is asked; with what is only warned of."""
        return "; ".join(filter(None, (self.reason, self.warning)))

    @property
    def is_held(self) -> bool:
        """True if the text that the call follows holds it: no rule lifts that."""
        return self.flow is not None and not self.warning


def simple_fit(schema: JsonObject, arguments: JsonObject) -> bool | None:
    """Return whether arguments fit a schema; `None` where this process cannot check that."""
    # Here and not above: without a rule that has a schema nothing of it is needed.
    from aish.system.schema.check import LOOP_STEPS, TOO_LONG, check_here

    problems = check_here(schema, arguments, steps=LOOP_STEPS)
    return None if problems is None or TOO_LONG in problems else not problems


def decide(
    policy: Policy,
    tool: Tool,
    arguments: JsonObject,
    fits_schema: FitsSchema = simple_fit,
    mask: Callable[[str], str] = str,
) -> Ruling:
    """The verdict on a call: deny beats stage beats ask beats auto; the default is to ask.

    A deny rule that may or may not apply makes the call one to ask about, and denies what would be
    staged: nobody is there to be asked when it is applied. `mask` takes secrets out of the reason.
    """

    def judge_all(rules: tuple[Rule, ...]) -> list[Judgement]:
        return [judge(rule, tool, arguments, fits_schema, mask) for rule in rules]

    denying = judge_all(policy.deny)
    if found := _first(denying, Fit.YES):
        return _make_ruling("deny", found)
    doubtful = _first(denying, Fit.UNSURE)
    staging = judge_all(policy.stage)
    if found := _first(staging, Fit.YES) or _first(staging, Fit.UNSURE):
        return _make_ruling("deny", doubtful) if doubtful else _make_ruling("staged", found)
    if doubtful:
        return _make_ruling("ask", doubtful)
    asking = judge_all(policy.ask)
    if found := _first(asking, Fit.YES) or _first(asking, Fit.UNSURE):
        return _make_ruling("ask", found)
    approving = judge_all(policy.auto_approve)
    if found := _first(approving, Fit.YES):
        return _make_ruling("auto", found)
    return _ruling_without_approval(tool, arguments, approving, mask)


def _ruling_without_approval(
    tool: Tool, arguments: JsonObject, approving: list[Judgement], mask: Callable[[str], str]
) -> Ruling:
    """The ruling without an approving rule; says why a similar rule does not apply."""
    from aish.policy.rule_yaml import rule_flow

    reason = f"no rule approves {tool.name}"
    exact = exact_entry(tool, arguments, mask)
    hint = None if exact is None else f"`{rule_flow(exact)}` under `mcp.auto_approve` approves this"
    nearest = max(approving, key=lambda one: one.near, default=None)
    if nearest is None or not nearest.near:
        return Ruling("ask", "", reason, hint)
    return Ruling("ask", "", f"{reason} (rule {nearest.rule.text}: {nearest.why})", hint)


def forbidden(policy: Policy, tool: Tool, arguments: JsonObject) -> Ruling | None:
    """The ruling of a deny rule that applies, or may apply, to an already approved call."""
    denying = [judge(rule, tool, arguments, simple_fit) for rule in policy.deny]
    found = _first(denying, Fit.YES) or _first(denying, Fit.UNSURE)
    return _make_ruling("deny", found) if found else None


def _first(judgements: list[Judgement], fit: Fit) -> Judgement | None:
    return next((found for found in judgements if found.fit is fit), None)


def _make_ruling(verdict: RulingVerdict, found: Judgement) -> Ruling:
    where = f" ({found.rule.entry.path})" if found.rule.entry.path else ""
    certainty = found.why if found.fit is Fit.UNSURE else "it matches"
    reason = f"{found.rule.list} rule {found.rule.text}{where}: {certainty}"
    return Ruling(verdict, found.rule.name, reason, unsure=found.fit is Fit.UNSURE)


_READ_IN_WHEN = frozenset({"path", "new_path", "argv", "command", "cwd", "shell"})
"""Arguments about which a rule has to say more than its schema can."""
_DEEPEST = 32
_LONGEST_KEY = 500
_LONGEST_NUMBER = 300


def exact_entry(
    tool: Tool, arguments: JsonObject, mask: Callable[[str], str] = str
) -> RuleEntry | None:
    """Return the rule that approves this call of this tool and no other, if there is one.

    An argument from which `mask` takes a secret is in no rule.
    """
    if rule_obstacle(tool.name, arguments, mask) is not None:
        return None
    entry = entry_of(tool.name, arguments)
    # The arguments fit the schema, which is made of them: only the other conditions are checked.
    found = judge(rule_of("auto_approve", entry), tool, arguments, lambda *_: True)
    return entry if found.fit is Fit.YES else None


def entry_of(
    tool: ToolName, arguments: JsonObject, patterns: Mapping[str, JsonValue] | None = None
) -> RuleEntry:
    """Return a rule about each argument, with its value or the pattern that replaces it."""
    pinned = {
        name: value
        for name, value in arguments.items()
        if isinstance(value, str)
        and not is_exact(value)
        and (patterns is None or patterns[name] == value)
    }
    when = {
        name: value
        for name, value in (patterns or arguments).items()
        if name not in pinned or name in _READ_IN_WHEN
    }
    schema: dict[str, JsonValue] = {}
    if pinned:
        schema["required"] = list(pinned)
        schema["properties"] = {name: {"const": value} for name, value in pinned.items()}
    schema["maxProperties"] = len(arguments)
    return RuleEntry(str(tool), when=when, schema=schema)


def rule_obstacle(
    tool: ToolName, arguments: JsonObject, mask: Callable[[str], str] = str
) -> str | None:
    """Return why no rule can be written about a call, or `None`."""
    if not tool.server or not tool.name or SEPARATOR in tool.server or not is_exact(str(tool)):
        return "a rule cannot name this tool alone"
    for name, value in arguments.items():
        if len(name) > _LONGEST_KEY:
            return f"the name of an argument is longer than {_LONGEST_KEY} characters"
        if why := _unwritable({name: value}, mask):
            return why
    return None


def _unwritable(argument: JsonObject, mask: Callable[[str], str]) -> str | None:
    size = -len(next(iter(argument)))
    for piece, depth in pieces(argument):
        text = piece if isinstance(piece, str) else str(piece)
        size += len(text)
        if size > LONGEST:
            return f"an argument is longer than {LONGEST:,} characters"
        if depth > _DEEPEST:
            return "its arguments are nested too deeply"
        if not isinstance(piece, str) and len(text) > _LONGEST_NUMBER:
            return f"a number in its arguments has more than {_LONGEST_NUMBER} digits"
        if not _is_text(text):
            return "its arguments contain half of a surrogate pair"
        if mask(text) != text:
            return "its arguments contain a secret"
    return None


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def pieces(value: JsonValue) -> Iterator[tuple[str | float | None, int]]:
    """Yield every key, text and number in a value, with its depth."""
    waiting: list[tuple[JsonValue, int]] = [(value, 0)]
    while waiting:
        held, depth = waiting.pop()
        if isinstance(held, Mapping):
            for name, one in held.items():
                yield name, depth
                waiting.append((one, depth + 1))
        elif isinstance(held, Sequence) and not isinstance(held, str):
            waiting += [(one, depth + 1) for one in held]
            yield "", depth
        else:
            yield held, depth


@frozen
class Explanation:
    """The verdict on a call and every rule that was evaluated, the strictest list first.

    `known` is false where no connected server was asked about the tool: its annotations, which
    may tighten the verdict, are not known then.
    """

    tool: ToolName
    arguments: JsonObject
    ruling: Ruling
    looked_at: tuple[Judgement, ...]
    known: bool


@frozen
class FailedPolicyTest:
    """A failed row of `policy_tests`; `path` is its place in the file."""

    path: str
    message: str
    hint: str


def tool_name(text: str) -> ToolName:
    """The pair that `alias__tool` names; a text without `__` is a `UsageError`."""
    server, name = split_glob(text)
    return ToolName(server, name)


Stricter = Callable[[Policy, Ruling, Tool, JsonObject, Sources], Ruling]
"""The stricter of a ruling and of what holds a call by its sources: `FlowPolicy.stricter`."""


def explain(
    policy: Policy,
    name: ToolName,
    arguments: JsonObject,
    tool: Tool | None = None,
    read: Iterable[str] = (),
    stricter: Stricter | None = None,
) -> Explanation:
    """The rule that decides a call made after text of sources was `read`, and why no other does."""
    subject = tool or _unknown(name)
    rules = policy.deciders()
    looked_at = tuple(judge(rule, subject, arguments, simple_fit) for rule in rules)
    ruling = decide(policy, subject, arguments)
    if stricter is not None:
        ruling = stricter(policy, ruling, subject, arguments, frozenset(read))
    return Explanation(name, arguments, ruling, looked_at, known=tool is not None)


def check_policy_tests(
    tests: Sequence[PolicyTest],
    policy: Policy,
    known: Iterable[Tool] = (),
    stricter: Stricter | None = None,
) -> tuple[FailedPolicyTest, ...]:
    """The rows of `policy_tests` that do not get the expected verdict, in order."""
    tools = {tool.name: tool for tool in known}
    failed = (_failure(test, policy, tools, stricter) for test in tests)
    return tuple(failure for failure in failed if failure is not None)


def _failure(
    test: PolicyTest, policy: Policy, tools: dict[ToolName, Tool], stricter: Stricter | None
) -> FailedPolicyTest | None:
    name = tool_name(test.tool)
    found = explain(policy, name, test.arguments, tools.get(name), test.read, stricter)
    verdict = found.ruling.verdict
    if verdict == test.expect:
        return None
    message = f"`{test.tool}` is expected to be `{test.expect}` and is `{verdict}`"
    return FailedPolicyTest(test.path, message, found.ruling.reason)


def _unknown(name: ToolName) -> Tool:
    """A tool known by name only; its data never loosens a verdict."""
    return Tool(name=name, wire=str(name), description="", input_schema={})
