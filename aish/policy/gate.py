"""The one gate that every tool call passes, on every path (P3, P6, P10).

`decide` says yes or no; `redeem` is called at dispatch and holds the yes against what is about to
be sent. A yes is good for one call.
"""

from collections.abc import Awaitable, Callable, Sequence

from aish.policy.decide import Ruling, decide, simple_fit
from aish.policy.digest import call_digest
from aish.policy.rules import Policy
from aish.vocab.events import Place, Verdict
from aish.vocab.frozen import frozen
from aish.vocab.json import JsonObject, JsonValue
from aish.vocab.protocols import Approver, Question
from aish.vocab.tools import Tool

CheckSchema = Callable[[JsonObject, JsonValue], Awaitable[Sequence[object]]]
"""All that is wrong with a value; the bounded checker of `system.schema`."""

Withdrawn = Callable[[Tool], str | None]
"""The reply to a call of a tool that is not offered any more, or `None` (P8)."""

THE_USER = "the user"
THE_LOCK = "the lock file"
NOBODY = "nobody to ask"


class ApprovalError(AssertionError):
    """A call came to dispatch without an approval of its own: a bug, never a person's mistake."""


@frozen
class Proposal:
    """A call as it would be sent, and where in the run."""

    tool: Tool
    arguments: JsonObject
    place: Place


@frozen
class Decision:
    """What became of a proposal.

    `rule` is the text of the rule that decided, or who did; `reply` is what the model is told
    where the call is not allowed; `number` makes each decision its own.
    """

    verdict: Verdict
    rule: str
    digest: str
    reply: str | None
    by_person: bool
    number: int = 0

    @property
    def allowed(self) -> bool:
        """Whether the call may be sent, once."""
        return self.verdict in {"auto", "ask-yes"}


class Gate:
    """Decides on calls by the rules, and by a person where the rules say to ask."""

    def __init__(
        self,
        policy: Policy,
        approver: Approver,
        run: str,
        check_schema: CheckSchema | None = None,
        withdrawn: Withdrawn | None = None,
    ) -> None:
        self._policy = policy
        self._approver = approver
        self._run = run
        self._check_schema = check_schema
        self._withdrawn = withdrawn
        self._count = 0
        self._open: dict[int, Decision] = {}

    @property
    def policy(self) -> Policy:
        """The rules."""
        return self._policy

    async def decide(self, proposal: Proposal) -> Decision:
        """The decision on a call; asks the person where there is one and the rules say so."""
        # Taken before anyone is asked: what is approved is what was there at the beginning.
        digest = self._digest(proposal)
        withdrawn = self._withdrawn(proposal.tool) if self._withdrawn else None
        if withdrawn is not None:
            return Decision("deny", THE_LOCK, digest, withdrawn, by_person=False)
        ruling = await self._ruling(proposal)
        if ruling.verdict == "auto":
            return self._grant("auto", ruling.rule, digest, by_person=False)
        if ruling.verdict == "deny":
            reply = f"[aish] tool call denied by rule {ruling.rule}"
            return Decision("deny", ruling.rule, digest, reply, by_person=False)
        if not self._approver.attended:
            reply = f"[aish] tool call denied: no rule approves {proposal.tool.name}"
            return Decision("ask-no", ruling.rule or NOBODY, digest, reply, by_person=False)
        question = Question(proposal.tool, proposal.arguments, ruling.reason, proposal.place)
        if await self._approver.ask(question) is True:
            return self._grant("ask-yes", THE_USER, digest, by_person=True)
        reply = "[aish] tool call denied by the user"
        return Decision("ask-no", THE_USER, digest, reply, by_person=True)

    def redeem(self, decision: Decision, proposal: Proposal) -> None:
        """Use up an approval, at dispatch.

        Raises:
            ApprovalError: it was not given here, was used before, or is for another call.
        """
        if not decision.allowed:
            raise ApprovalError(f"{proposal.tool.name} was not approved")
        if self._open.pop(decision.number, None) is not decision:
            raise ApprovalError(f"the approval of {proposal.tool.name} is not open")
        if self._digest(proposal) != decision.digest:
            raise ApprovalError(f"{proposal.tool.name} is not the call that was approved")

    def _digest(self, proposal: Proposal) -> str:
        return call_digest(self._run, proposal.place, proposal.tool, proposal.arguments)

    def _grant(self, verdict: Verdict, rule: str, digest: str, *, by_person: bool) -> Decision:
        self._count += 1
        decision = Decision(verdict, rule, digest, None, by_person, self._count)
        self._open[decision.number] = decision
        return decision

    async def _ruling(self, proposal: Proposal) -> Ruling:
        """The rules' verdict; schemas that only the worker can judge are asked of it first.

        Only its yes counts, and only for rules that approve: "took too long" and "does not fit"
        look the same from here, and a rule that denies must not be escaped by being slow.
        """
        tool, arguments = proposal.tool, proposal.arguments
        fitting: set[int] = set()
        for rule in self._policy.auto_approve if self._check_schema else ():
            schema = rule.entry.schema
            if schema is None or not rule.covers(tool.name):
                continue
            if simple_fit(schema, arguments) is None and await self._fits(schema, arguments):
                fitting.add(id(schema))

        def fits(schema: JsonObject, arguments: JsonObject) -> bool | None:
            return True if id(schema) in fitting else simple_fit(schema, arguments)

        return decide(self._policy, tool, arguments, fits)

    async def _fits(self, schema: JsonObject, arguments: JsonObject) -> bool:
        return self._check_schema is not None and not await self._check_schema(schema, arguments)
