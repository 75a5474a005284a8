"""The single gate that every tool call passes, on every path.

A digest ties an approval to one call.
"""

import hashlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any, Literal, Protocol

import anyio
from anyio.lowlevel import checkpoint

from aish.core.errors import JournalLostError
from aish.core.events import (
    ApprovalAnswer,
    DecisionLevel,
    HeldFlow,
    Place,
    ToolDecided,
    Verdict,
)
from aish.core.frozen import frozen
from aish.core.json import JsonObject, JsonValue, canonical
from aish.core.phrases import duration
from aish.core.protocols import Answer, Approver, Asking, Question
from aish.core.rules import RuleEntry
from aish.core.sources import NO_SOURCES, Sources
from aish.core.tools import Tool, ToolName, definition_of
from aish.policy.decide import Ruling, Stricter, decide, exact_entry, forbidden, simple_fit
from aish.policy.questions import (
    EXPIRED,
    WITHDRAWN,
    AnswerRecording,
    OpenQuestion,
    QuestionEnd,
    Questions,
    RecordedAnswer,
)
from aish.policy.rules import THIS_SESSION, Policy, Rule, autorun_paths, is_command_tool, rule_of
from aish.system.task_group import task_group


def call_digest(
    run: str,
    place: Place,
    tool: Tool,
    arguments: JsonObject,
    definition: str | None = None,
    flow: HeldFlow | None = None,
) -> str:
    """SHA-256 over run, step, item, server, tool, its definition and the canonical arguments.

    `definition` is that of the tool in canonical JSON, where it is at hand. The digest covers the
    `flow` too, if a person is asked about the call because of that.
    """
    definition = definition or canonical(definition_of(tool))
    # Canonical JSON of all of it: these two keys come first.
    head = f'{{"arguments":{canonical(arguments)},"definition":{definition},'
    subject = _subject(run, place.item, place.step, tool.name.server, tool.name.name)
    held = "" if flow is None else f'"flow":{canonical([flow.rule, *flow.sources])},'
    return hashlib.sha256(f"{head}{held}{subject}".encode("ascii")).hexdigest()


@lru_cache(maxsize=256)
def _subject(run: str, item: str | None, step: str | None, server: str, tool: str) -> str:
    """The last keys of what a digest covers: a call has two, and many calls have the same."""
    keys: JsonObject = {"item": item, "run": run, "server": server, "step": step, "tool": tool}
    return canonical(keys)[1:]


STAGED = (
    "[aish] staged for review: this call was NOT executed. It is put down and may be executed "
    "later, after a person has reviewed it. Do not call it again, and do not rely on its effect"
)
NOT_KEPT = "[aish] tool call not executed, and it could not be put down for review either"


class Staging(Protocol):
    """Stores calls for review."""

    def refusal(self, tool: Tool, arguments: JsonObject) -> str | None:
        """Why this call cannot be staged, or `None`."""

    def definition(self, tool: Tool) -> str:
        """The SHA-256 of a tool's definition by its server, as in a lock."""

    def holds(self, digest: str) -> bool:
        """Return true if the call of this digest was staged."""


class Reviewed(Protocol):
    """The reviewed calls that the user applies."""

    def rule(self, tool: Tool, arguments: JsonObject, place: Place) -> str | None:
        """The rule that approves a reviewed call; `None` for other calls."""


CheckSchema = Callable[[JsonObject, JsonValue], Awaitable[Sequence[object]]]
"""All that is wrong with a value; the bounded checker of `system.schema.check`."""

Withdrawn = Callable[[Tool], str | None]
"""The reply to a call of a tool that is not offered any more, or `None`."""

Autonomy = Callable[[Tool], str | None]
"""By what a person lets a tool run unasked where no rule has matched, or `None`."""

DECLINED = "[aish] not run: declined by the user"
"""What is said of a local command, which is no call of a tool to those who read it."""
_LOCAL = ToolName("shell", "run")
THE_USER = "the user"
THE_LOCK = "the lock file"
THE_FILE = "the pipeline file"
NOBODY = "nobody to ask"


_MOST_DEFINITIONS = 1000
_AT_ONCE = Asking()
_ANSWERS: Mapping[Answer, ApprovalAnswer] = {"yes": "approve", "no": "deny", "always": "always"}


def _explanation(tool: Tool) -> str:
    """Return the hint where no rule would approve a call."""
    return f"`aish policy explain --tool {tool.name}` says why"


def _do_nothing() -> None:
    """Do nothing."""


class ApprovalError(AssertionError):
    """A call was dispatched without its own approval: a bug, never a user error."""


@frozen
class Proposal:
    """A call as it would be sent, its place in the run, and where its text came from.

    One that the file asks for `by_file` needs no rule that approves it.
    """

    tool: Tool
    arguments: JsonObject
    place: Place
    sources: Sources = NO_SOURCES
    by_file: bool = False


@frozen
class Decision:
    """The decision on a proposal.

    `rule` is the text of the rule that decided, or who did; `reply` is what the model is told
    where the call is not made; `number` makes each decision its own. `definition` is the hash of
    what the server says of a tool whose call is staged. `hint` is for who writes the rules.
    `approval` is the question that was asked about it, `flow` what is said of the text that it
    follows, and `warning` that in words where the call is made.
    """

    verdict: Verdict
    rule: str
    digest: str
    reply: str | None
    by_person: bool
    number: int = 0
    definition: str | None = None
    hint: str | None = None
    approval: str | None = None
    flow: HeldFlow | None = None
    warning: str = ""

    @property
    def allowed(self) -> bool:
        return self.verdict in {"auto", "ask-yes"}

    def event(self, proposal: Proposal, level: DecisionLevel) -> ToolDecided:
        """The event that this was decided about the proposal."""
        tool = proposal.tool.name
        return ToolDecided(
            place=proposal.place,
            tool=str(tool),
            server=tool.server,
            name=tool.name,
            arguments=proposal.arguments,
            digest=self.digest,
            verdict=self.verdict,
            rule=self.rule,
            definition=self.definition,
            level=level,
            approval=self.approval,
            hint=self.hint,
            flow=self.flow,
        )


class Gate:
    """Decides on calls by the rules, and by a person where the rules say to ask.

    `staging` is where calls that a rule stages are put down; without it they are denied. With
    `reviewed` only what a person applies is approved, and deny rules still hold. `mask` takes the
    secrets out of what is said of a call. `questions` are those of the run.
    """

    def __init__(
        self,
        policy: Policy,
        approver: Approver,
        run: str,
        check_schema: CheckSchema | None = None,
        withdrawn: Withdrawn | None = None,
        staging: Staging | None = None,
        reviewed: Reviewed | None = None,
        mask: Callable[[str], str] = str,
    ) -> None:
        self._policy = policy
        self._approver = approver
        self.run = run
        self._check_schema = check_schema
        self._withdrawn = withdrawn
        self._staging = staging
        self._reviewed = reviewed
        self._mask = mask
        self.autonomy: Autonomy | None = None
        self.stricter: Stricter | None = None
        self.offers_always = True
        """Whether an answer may add a rule, for the rest of this session."""
        self._count = 0
        self._open: dict[int, Decision] = {}
        self._definitions: dict[str, tuple[Tool, str]] = {}
        """The canonical definition of each tool that was called, by its wire name."""
        self.questions = Questions()

    @property
    def attended(self) -> bool:
        """True if somebody is asked at a terminal."""
        return self._approver.attended

    @property
    def policy(self) -> Policy:
        """The rules, including those of this session."""
        return self._policy

    def add_rule(self, name: Literal["auto_approve", "deny"], entry: RuleEntry) -> Rule:
        """Add a rule for the rest of this session.

        Raises:
            UsageError: its glob has no `__`, or its command no words.
        """
        rule = rule_of(name, replace(entry, path=THIS_SESSION))
        self._policy = self._policy.with_rule(rule)
        return rule

    def follow(self, policy: Policy, withdrawn: Withdrawn | None) -> None:
        """Decide by other rules from now on; `decide_open` does so about what is open already."""
        self._policy, self._withdrawn = policy, withdrawn

    async def decide_open(self) -> None:
        """Answer the open questions that the rules decide now."""
        for opened in tuple(self.questions.to_decide()):
            await self._end_by_rule(opened)

    async def decide_again(
        self,
        decision: Decision,
        proposal: Proposal,
        asking: Asking = _AT_ONCE,
        asked: Callable[[], None] = _do_nothing,
    ) -> Decision:
        """The decision on a call that was not sent before the rules became others.

        What a person has said stands as far as the rules let it be asked.
        """
        if decision.by_person:
            ruling = await self._decide_by_rules(proposal)
            is_same = not ruling.is_held or decision.digest == self._asked_digest(proposal, ruling)
            if ruling.verdict in {"auto", "ask"} and is_same:
                return decision
        self._open.pop(decision.number, None)
        return await self.decide(proposal, asking, asked)

    def forget(self, server: str) -> int:
        """Ask again about a server that is gone, for another one may take its alias.

        How many rules of this session are over with it.
        """
        before, self._policy = self._policy, self._policy.without_approved(server)
        return len(before.auto_approve) - len(self._policy.auto_approve)

    async def decide(
        self, proposal: Proposal, asking: Asking = _AT_ONCE, asked: Callable[[], None] = _do_nothing
    ) -> Decision:
        """The decision on a call; somebody is asked if the rules say so and can be asked.

        `asked` is called once a question is open, before its answer is waited for.
        """
        digest = self._digest(proposal)
        withdrawn = self._withdrawn(proposal.tool) if self._withdrawn else None
        if withdrawn is not None:
            return Decision("deny", THE_LOCK, digest, withdrawn, by_person=False)
        if self._reviewed is not None:
            return self._apply(self._reviewed, proposal, digest)
        ruling = await self._decide_by_rules(proposal)
        # Taken before the user is asked: the approval covers the state at the beginning.
        digest = self._asked_digest(proposal, ruling)
        is_asked, recorded = ruling.verdict == "ask", None
        recording = self.questions.recording
        if recording is not None and (is_asked or self._is_by_always(ruling)):
            recorded = self._through(recording, ruling, proposal)
        if recording is not None and recording.replays:
            is_asked = recorded is not None
        elif is_asked:
            is_asked = self._approver.attended or asking.waits
        if is_asked:
            decision = await self._ask(ruling, proposal, digest, asking, asked, recorded)
        else:
            decision = self._decide_without_asking(ruling, proposal, digest)
        if ruling.flow is None:
            return decision
        return self._replace(decision, flow=ruling.flow, warning=ruling.warning)

    def _is_by_always(self, ruling: Ruling) -> bool:
        rules = self._policy.auto_approve
        return any(one.given_for is not None and one.name == ruling.rule for one in rules)

    @staticmethod
    def _through(
        recording: AnswerRecording, ruling: Ruling, proposal: Proposal
    ) -> RecordedAnswer | None:
        """The recorded answer about a call, in a replay.

        It decides also where an "always" would: items of a replay may come to their questions in
        another order. So what an "always" approves is recorded too.
        """
        tool, arguments, place = proposal.tool, proposal.arguments, proposal.place
        is_asked = ruling.verdict == "ask"
        if recording.replays:
            found = recording.recorded(place, tool, arguments)
            if ruling.is_held and found is not None and found.is_by_rule:
                return None
            return found if is_asked or found is None or not found.is_by_rule else None
        if not is_asked:
            end = recording.begin(Question(tool, arguments, ruling.reason, place))
            end(QuestionEnd("approve", ruling.rule, "rule"))
        return None

    def is_held(self, proposal: Proposal) -> bool:
        """Return true if the text that a call follows holds it, whatever rules approve."""
        return self._with_flow(Ruling("auto", "", ""), proposal).is_held

    def level(self, proposal: Proposal, decision: Decision) -> DecisionLevel:
        """`info` for approved calls of tools that only read, else `security`.

        Our own marks and rules count, and what a trusted server says; not the claims of any other.
        What a call follows counts too.
        """
        tool = proposal.tool
        only_reads = tool.only_reads or self._policy.is_parallel(tool)
        is_info = decision.allowed and only_reads and decision.flow is None
        return "info" if is_info else "security"

    def redeem(self, decision: Decision, proposal: Proposal) -> None:
        """Use up an approval, at dispatch.

        Raises:
            ApprovalError: it was not given here, was used before, or is for another call.
        """
        if not decision.allowed:
            raise ApprovalError(f"{proposal.tool.name} was not approved")
        if self._open.pop(decision.number, None) is not decision:
            raise ApprovalError(f"the approval of {proposal.tool.name} is not open")
        if decision.digest not in {self._digest(proposal), self._digest(proposal, decision.flow)}:
            raise ApprovalError(f"{proposal.tool.name} is not the call that was approved")

    def drop(self, decision: Decision) -> None:
        """Revoke an unused approval."""
        self._open.pop(decision.number, None)

    async def is_put_down(self, decision: Decision) -> bool:
        """Return true if a call that was decided to be staged is now stored for review."""
        return self._staging is not None and self._staging.holds(decision.digest)

    def _decide_without_asking(self, ruling: Ruling, proposal: Proposal, digest: str) -> Decision:
        """The decision that follows from a ruling without asking the user."""
        match ruling.verdict:
            case "auto":
                return self._grant("auto", ruling.rule, digest)
            case "staged":
                return self._stage(ruling, proposal, digest)
            case "deny":
                by = ruling.reason if ruling.is_held else f"rule {ruling.rule}"
                reply = f"[aish] tool call denied by {by}"
                why = ruling.hint or _explanation(proposal.tool)
                return Decision("deny", ruling.rule, digest, reply, by_person=False, hint=why)
            case "ask":
                says_why = ruling.unsure or not ruling.rule
                asks = f"rule {ruling.rule} asks, and nobody is there to answer"
                why = ruling.reason if says_why else asks
                reply, who = f"[aish] tool call denied: {why}", ruling.rule or NOBODY
                if ruling.is_held:
                    reply = f"[aish] tool call denied by {ruling.reason}"
                why = _explanation(proposal.tool) if ruling.rule else ""
                hint = ruling.hint or why or None
                return Decision("ask-no", who, digest, reply, by_person=False, hint=hint)

    async def _ask(
        self,
        ruling: Ruling,
        proposal: Proposal,
        digest: str,
        asking: Asking,
        asked: Callable[[], None],
        recorded: RecordedAnswer | None = None,
    ) -> Decision:
        tool, arguments = proposal.tool, proposal.arguments
        is_offered = self.offers_always and not ruling.is_held
        entry = self._always(tool, arguments) if is_offered else None
        always = rule_of("auto_approve", entry).text if entry else None

        async def is_open() -> bool:
            return opened.end is None and not await self._end_by_rule(opened)

        def current_answer() -> str | None:
            return None if opened.end is None else self._mask(opened.end.said)

        question = Question(
            tool,
            arguments,
            ruling.question,
            proposal.place,
            always,
            proposal.sources,
            is_open,
            current_answer,
        )
        is_waited_for = asking.waits and recorded is None
        opened = self.questions.open(question, digest, asking.seconds if is_waited_for else None)
        opened.recorded = recorded
        rule = None if entry is None else self._session_rule(entry, tool)
        if rule is not None:
            opened.on_always = partial(self._add, rule)
        try:
            if opened.end is None:
                asked()
                await self._until_ended(opened, recorded)
        except BaseException:
            if opened.end is None and not asking.waits:
                self.questions.withdraw(lambda place: place == proposal.place)
            raise
        finally:
            opened.caller_waits = False
        assert opened.end is not None, "it was waited for"
        if opened.end.answer != "always" or rule is None:
            return self._decide_by_answer(opened, opened.end, asking, proposal, ruling.hint)
        # Of an answer that was given while nobody executed the run, nobody was told.
        self._add(rule)
        for other in self.questions.still_open():
            # In a replay each has a recorded answer of its own.
            if other.recorded is None or other.recorded.is_by_rule:
                await self._end_by_rule(other)
        decision = self._decide_by_answer(opened, opened.end, asking, proposal, ruling.hint)
        return self._replace(decision, rule=f"{decision.rule}, always: {rule.name}")

    async def ask_ahead(
        self,
        proposal: Proposal,
        ask: Callable[[Question], Awaitable[Answer | None]],
        asking: Asking,
    ) -> QuestionEnd:
        """Ask about a call before it is proposed; the decision uses the answer.

        `ask` asks at the terminal; if it returns `None`, the question is withdrawn. Others may
        answer too.
        """
        ruling = await self._decide_by_rules(proposal)

        def current_answer() -> str | None:
            return None if opened.end is None else self._mask(opened.end.said)

        async def end() -> QuestionEnd:
            answer = await ask(question)
            if answer is None:
                return WITHDRAWN
            return QuestionEnd(_ANSWERS[answer], THE_USER, "terminal")

        tool, arguments, place = proposal.tool, proposal.arguments, proposal.place
        question = Question(
            tool,
            arguments,
            ruling.question,
            place,
            sources=proposal.sources,
            answered=current_answer,
        )
        seconds = asking.seconds if asking.waits else None
        opened = self.questions.open(question, self._digest(proposal), seconds)
        try:
            await self._first_of(opened, end)
        except BaseException:
            self.questions.withdraw(lambda one: one == place)
            raise
        finally:
            opened.caller_waits = False
        self.questions.hand_over(opened)
        assert opened.end is not None, "it was waited for"
        return opened.end

    @staticmethod
    def _session_rule(entry: RuleEntry, tool: Tool) -> Rule:
        rule = rule_of("auto_approve", replace(entry, path=THIS_SESSION))
        return replace(rule, given_for=tool)

    def _add(self, rule: Rule) -> None:
        if rule not in self._policy.auto_approve:
            self._policy = self._policy.with_rule(rule)

    async def _until_ended(self, opened: OpenQuestion, recorded: RecordedAnswer | None) -> None:
        """Wait for the first answer: from the terminal, from elsewhere, or by its time.

        A recorded one is there at once. Where the recorded run cancelled the call before an answer,
        the same ends the replay of it.
        """
        if recorded is not None:
            # The other questions of the round are open before the first is answered.
            await checkpoint()
            if recorded.end is None:
                await opened.ended.wait()
            elif opened.end is None:
                self._settle(opened, recorded.end)
            return
        if not self._approver.attended:
            await self._until_answered(opened)
            return

        async def end() -> QuestionEnd:
            answer = await self._approver.ask(opened.question)
            offered = answer != "always" or opened.question.always is not None
            said = _ANSWERS.get(answer, "deny") if offered else "deny"
            return QuestionEnd(said, THE_USER, "terminal")

        await self._first_of(opened, end)

    async def _first_of(
        self, opened: OpenQuestion, ask: Callable[[], Awaitable[QuestionEnd]]
    ) -> None:
        """Wait for the first answer: that of the terminal, by `ask`, or one from elsewhere."""
        async with task_group() as tasks:

            async def at_the_terminal() -> None:
                self._settle(opened, await ask())

            tasks.start_soon(at_the_terminal)
            await self._until_answered(opened)
            tasks.cancel_scope.cancel()

    def _settle(self, opened: OpenQuestion, end: QuestionEnd) -> None:
        """End a question; without an answer in the journal the call is not made."""
        try:
            self.questions.settle(opened.id, end)
        except JournalLostError as error:
            note = f"the answer does not count: {error.message}"
            self.questions.settle(opened.id, QuestionEnd("withdrawn", "aish", "run", note))

    async def _until_answered(self, opened: OpenQuestion) -> None:
        with anyio.move_on_after(self.questions.seconds_left(opened)):
            await opened.ended.wait()
        if opened.end is None:
            self.questions.settle(opened.id, EXPIRED)

    async def _end_by_rule(self, opened: OpenQuestion) -> bool:
        """Answer a question by the rules, if one was added meanwhile that decides about it."""
        asked = opened.question
        proposal = Proposal(asked.tool, asked.arguments, asked.place, asked.sources)
        ruling = await self._decide_by_rules(proposal)
        if opened.end is not None:
            return True
        if ruling.verdict not in {"auto", "deny"}:
            return False
        answer: ApprovalAnswer = "approve" if ruling.verdict == "auto" else "deny"
        self.questions.settle(opened.id, QuestionEnd(answer, ruling.rule, "rule"))
        return True

    def _decide_by_answer(
        self,
        opened: OpenQuestion,
        end: QuestionEnd,
        asking: Asking,
        proposal: Proposal,
        hint: str | None,
    ) -> Decision:
        """Return the decision that follows from the end of a question.

        `hint` is for the author of the rules, where nobody answered.
        """
        digest = opened.digest
        if end.way == "rule":
            if end.approves:
                return self._grant("auto", end.by, digest, opened.id)
            reply = f"[aish] tool call denied by rule {end.by}"
            return Decision("deny", end.by, digest, reply, by_person=False, approval=opened.id)
        who = THE_USER if end.way == "terminal" else f"{end.by} ({end.way})"
        if end.approves:
            return self._grant("ask-yes", who, digest, opened.id, by_person=True)
        if end.answer == "deny":
            note = f": {self._mask(end.note)}" if end.note else ""
            reply = f"[aish] tool call denied by the user{note}"
            if proposal.tool.name == _LOCAL:
                reply = DECLINED
            return Decision("ask-no", who, digest, reply, by_person=True, approval=opened.id)
        why = end.note or "the question was withdrawn"
        if end.answer == "expired":
            why = f"nobody answered within {duration(asking.seconds)}"
        reply = f"[aish] tool call denied: {why}"
        return Decision(
            "ask-no", NOBODY, digest, reply, by_person=False, hint=hint, approval=opened.id
        )

    def _replace(self, decision: Decision, **changes: Any) -> Decision:
        """Return the decision with other fields, which is open in its place."""
        changed = replace(decision, **changes)
        if self._open.get(decision.number) is decision:
            self._open[decision.number] = changed
        return changed

    def _always(self, tool: Tool, arguments: JsonObject) -> RuleEntry | None:
        """The rule that an "always" stores, if it would approve this very call."""
        entry = exact_entry(tool, arguments, self._mask)
        if entry is None:
            return None
        policy = self._policy.with_rule(rule_of("auto_approve", entry))
        return entry if decide(policy, tool, arguments).verdict == "auto" else None

    def _stage(self, ruling: Ruling, proposal: Proposal, digest: str) -> Decision:
        staging, tool = self._staging, proposal.tool
        why = f"rule {ruling.rule} stages it, but nothing here can store it for review"
        if staging is not None:
            why = staging.refusal(tool, proposal.arguments) or ""
        if why or staging is None:
            reply = f"[aish] tool call denied: {why}"
            return Decision("deny", ruling.rule, digest, reply, by_person=False)
        definition = staging.definition(tool)
        return Decision(
            "staged", ruling.rule, digest, STAGED, by_person=False, definition=definition
        )

    def _apply(self, reviewed: Reviewed, proposal: Proposal, digest: str) -> Decision:
        tool, arguments = proposal.tool, proposal.arguments
        if ruling := forbidden(self._policy, tool, arguments):
            reply = f"[aish] tool call denied by rule {ruling.rule}"
            return Decision("deny", ruling.rule, digest, reply, by_person=False)
        rule = reviewed.rule(tool, arguments, proposal.place)
        if rule is None:
            reply = f"[aish] tool call denied: this call of {tool.name} was not reviewed"
            return Decision("deny", NOBODY, digest, reply, by_person=False)
        return self._grant("auto", rule, digest, by_person=True)

    async def question_digest(self, proposal: Proposal) -> str:
        """The digest by which a person is asked about a call, if the rules say to ask."""
        return self._asked_digest(proposal, await self._decide_by_rules(proposal))

    def _asked_digest(self, proposal: Proposal, ruling: Ruling) -> str:
        """The digest of a call; a yes to one that is held is for what it was shown to follow."""
        is_asked = ruling.is_held and ruling.verdict == "ask"
        return self._digest(proposal, ruling.flow if is_asked else None)

    def _digest(self, proposal: Proposal, flow: HeldFlow | None = None) -> str:
        tool, known = proposal.tool, self._definitions.get(proposal.tool.wire)
        if known is None or known[0] is not tool:
            if len(self._definitions) >= _MOST_DEFINITIONS:
                self._definitions.clear()
            known = self._definitions[tool.wire] = tool, canonical(definition_of(tool))
        return call_digest(self.run, proposal.place, tool, proposal.arguments, known[1], flow)

    def _grant(
        self,
        verdict: Verdict,
        rule: str,
        digest: str,
        approval: str | None = None,
        *,
        by_person: bool = False,
    ) -> Decision:
        self._count += 1
        decision = Decision(verdict, rule, digest, None, by_person, self._count, approval=approval)
        self._open[decision.number] = decision
        return decision

    async def _decide_by_rules(self, proposal: Proposal) -> Ruling:
        """The verdict of the rules; schemas that need the worker are checked there first.

        Only its yes counts, and only for rules that approve: "took too long" and "does not fit"
        look the same from here, and a rule that denies must not be escaped by being slow.
        """
        tool, arguments = proposal.tool, proposal.arguments
        if proposal.by_file:
            ruling = forbidden(self._policy, tool, arguments) or Ruling("auto", THE_FILE, THE_FILE)
            return self._with_flow(ruling, proposal)
        fitting: set[int] = set()
        for rule in self._policy.auto_approve if self._check_schema else ():
            schema = rule.entry.schema
            if schema is None or not rule.covers(tool.name):
                continue
            if simple_fit(schema, arguments) is None and await self._fits(schema, arguments):
                fitting.add(id(schema))

        def fits(schema: JsonObject, arguments: JsonObject) -> bool | None:
            return True if id(schema) in fitting else simple_fit(schema, arguments)

        ruling = decide(self._policy, tool, arguments, fits, self._mask)
        if ruling.verdict == "ask" and not ruling.rule:
            ruling = self._let(tool, arguments) or ruling
        return self._with_flow(ruling, proposal)

    def _with_flow(self, ruling: Ruling, proposal: Proposal) -> Ruling:
        """The stricter of a ruling and of what holds the call by the text that it follows."""
        if self.stricter is None or not proposal.sources:
            return ruling
        tool, arguments, sources = proposal.tool, proposal.arguments, proposal.sources
        return self.stricter(self._policy, ruling, tool, arguments, sources)

    def _let(self, tool: Tool, arguments: JsonObject) -> Ruling | None:
        """The ruling for a tool that the user allowed without asking; never for commands.

        Nor for files that other programs run by themselves.
        """
        if self.autonomy is None or is_command_tool(tool.name):
            return None
        if autorun_paths(tool, arguments):
            return None
        by = self.autonomy(tool)
        return Ruling("auto", by, by) if by else None

    async def _fits(self, schema: JsonObject, arguments: JsonObject) -> bool:
        return self._check_schema is not None and not await self._check_schema(schema, arguments)
