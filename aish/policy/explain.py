"""Why a call gets the verdict it gets, rule by rule (P7), and the file's own `policy_tests`."""

from collections.abc import Iterable, Sequence

from aish.core.frozen import frozen
from aish.core.json import JsonObject
from aish.core.rules import PolicyTest
from aish.core.tools import Tool, ToolName
from aish.policy.decide import Ruling, decide, simple_fit
from aish.policy.rules import Judgement, Policy, judge, split_glob


@frozen
class Explanation:
    """The verdict on a call and every rule that was looked at, the strictest list first.

    `known` is false where no connected server was asked about the tool: its annotations, which
    may tighten the verdict (P5), are not known then.
    """

    tool: ToolName
    arguments: JsonObject
    ruling: Ruling
    looked_at: tuple[Judgement, ...]
    known: bool


@frozen
class FailedPolicyTest:
    """A row of `policy_tests` that does not hold; `path` is where it stands in the file."""

    path: str
    message: str
    hint: str


def tool_name(text: str) -> ToolName:
    """The pair that `alias__tool` names; a text without `__` is a `UsageError`."""
    server, name = split_glob(text)
    return ToolName(server, name)


def explain(
    policy: Policy, name: ToolName, arguments: JsonObject, tool: Tool | None = None
) -> Explanation:
    """Which rule decides a call, and why each of the others does not."""
    subject = tool or _unknown(name)
    rules = policy.deciding()
    looked_at = tuple(judge(rule, subject, arguments, simple_fit) for rule in rules)
    ruling = decide(policy, subject, arguments)
    return Explanation(name, arguments, ruling, looked_at, known=tool is not None)


def check_policy_tests(
    tests: Sequence[PolicyTest], policy: Policy, known: Iterable[Tool] = ()
) -> tuple[FailedPolicyTest, ...]:
    """The rows of `policy_tests` that do not get the verdict they expect, in order."""
    tools = {tool.name: tool for tool in known}
    failed = (_failure(test, policy, tools) for test in tests)
    return tuple(failure for failure in failed if failure is not None)


def _failure(
    test: PolicyTest, policy: Policy, tools: dict[ToolName, Tool]
) -> FailedPolicyTest | None:
    name = tool_name(test.tool)
    found = explain(policy, name, test.arguments, tools.get(name))
    verdict = found.ruling.verdict
    if verdict == test.expect:
        return None
    message = f"`{test.tool}` is expected to be `{test.expect}` and is `{verdict}`"
    return FailedPolicyTest(test.path, message, found.ruling.reason)


def _unknown(name: ToolName) -> Tool:
    """A tool of which only the name is known; nothing in it loosens a verdict."""
    return Tool(name=name, wire=str(name), description="", input_schema={})
