"""What the rules say of one call: pure, and closed where in doubt (P1, P4, P5, X1, X12)."""

from typing import Literal

from aish.policy.judge import FitsSchema, Judgement, judge
from aish.policy.rules import Policy, Rule
from aish.policy.texts import Fit
from aish.vocab.frozen import frozen
from aish.vocab.json import JsonObject
from aish.vocab.tools import Tool


@frozen
class Ruling:
    """The verdict, the text of the rule that made it (empty where none did), and the reason."""

    verdict: Literal["auto", "ask", "deny"]
    rule: str
    reason: str


def simple_fit(schema: JsonObject, arguments: JsonObject) -> bool | None:
    """Whether arguments fit a schema of the simple, bounded subset; `None` for any other."""
    # Here and not above: without a rule that has a schema nothing of it is needed.
    from aish.system.schema import LOOP_STEPS, check, is_simple

    if not is_simple(schema):
        return None
    problems = check(schema, arguments, steps=LOOP_STEPS)
    # Such a problem is the checker's, not the arguments': nothing is known then.
    return None if any(problem.keyword == "schema" for problem in problems) else not problems


def decide(
    policy: Policy, tool: Tool, arguments: JsonObject, fits_schema: FitsSchema = simple_fit
) -> Ruling:
    """The verdict on a call: deny beats ask beats auto, and what nothing matches is asked.

    A deny rule that may or may not apply makes the call one to ask about.
    """

    def looked_at(rules: tuple[Rule, ...]) -> list[Judgement]:
        return [judge(rule, tool, arguments, fits_schema) for rule in rules]

    denying = looked_at(policy.deny)
    if found := _first(denying, Fit.YES):
        return _ruling("deny", found)
    if found := _first(denying, Fit.UNSURE):
        return _ruling("ask", found)
    asking = looked_at(policy.ask)
    if found := _first(asking, Fit.YES) or _first(asking, Fit.UNSURE):
        return _ruling("ask", found)
    if found := _first(looked_at(policy.auto_approve), Fit.YES):
        return _ruling("auto", found)
    return Ruling("ask", "", f"no rule approves {tool.name}")


def _first(judgements: list[Judgement], fit: Fit) -> Judgement | None:
    return next((found for found in judgements if found.fit is fit), None)


def _ruling(verdict: Literal["auto", "ask", "deny"], found: Judgement) -> Ruling:
    where = f" ({found.rule.entry.path})" if found.rule.entry.path else ""
    certainty = found.why if found.fit is Fit.UNSURE else "it matches"
    reason = f"{found.rule.list} rule {found.rule.text}{where}: {certainty}"
    return Ruling(verdict, found.rule.text, reason)
