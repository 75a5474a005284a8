"""What stands on a worker for what only the driver has: its gate, its meter, its folder (P10, B8).

What may be done is decided over there; nothing here says yes by itself.
"""

import itertools
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from aish.config.steps import Limits
from aish.core.deltas import Finish
from aish.core.events import Event, Place, ReasoningDelta, TextDelta, TextWithdrawn, ToolOutput
from aish.engine.limits.meter import prices_of
from aish.engine.limits.usage import Spending
from aish.engine.plan.plan import Plan
from aish.engine.resources.resources import Resources
from aish.models.pricing import Pricing
from aish.policy.gate import Decision, Gate, Proposal
from aish.policy.rules import Policy
from aish.run.cluster.letters import (
    CountCall,
    Decide,
    HoldEnded,
    Kept,
    Path,
    PutDown,
    Redeemed,
    Reserve,
    Told,
)
from aish.run.cluster.link import Link
from aish.terminal.unattended import Unattended

# Answers come whole from workers: piece by piece they are for who watches one answer.
_PIECES = (TextDelta, ReasoningDelta, TextWithdrawn, ToolOutput)


@dataclass(slots=True)
class Files:
    """Names files of the run's folder, which the driver writes."""

    keeps: bool
    link: Link
    _count: "itertools.count[int]" = field(default_factory=lambda: itertools.count(1))

    def keep(self, name: str, content: bytes) -> str | None:
        """As `RunFolder.keep`; the session is in the name, so that no two workers choose one."""
        if not self.keeps:
            return None
        tame = re.sub(r"[^A-Za-z0-9._-]+", "_", name).strip("._")[:60] or "file"
        chosen = f"{self.link.session}-{next(self._count):04d}-{tame}"
        self.link.post(Kept(chosen, content))
        return f"files/{chosen}"


class RemoteGate(Gate):
    """The driver's gate to one item: it decides there, and each yes is used up here and there."""

    def __init__(self, policy: Policy, run: str, link: Link, ticket: int, path: Path) -> None:
        super().__init__(policy, Unattended(), run)
        self._link = link
        self._ticket = ticket
        self._path = path

    async def decide(self, proposal: Proposal) -> Decision:
        """The driver's decision on a call."""
        found = await self._link.ask(Decide(self._path, proposal), self._ticket)
        assert isinstance(found, Decision)
        if found.allowed:
            self._open[found.number] = found
        return found

    def redeem(self, decision: Decision, proposal: Proposal) -> None:
        """Use up an approval here, and then over there.

        Raises:
            ApprovalError: it was not given, was used before, or is for another call.
        """
        super().redeem(decision, proposal)
        self._link.post(Redeemed(self._ticket, self._path, decision.number))

    async def is_put_down(self, decision: Decision) -> bool:
        """Whether a staged call has come to where it is reviewed."""
        return bool(await self._link.ask(PutDown(self._path, decision), self._ticket))


@dataclass(slots=True)
class RemoteMeter:
    """The driver's meter to all models of a plan; where nothing is `bounded` it is not asked."""

    link: Link
    bounded: bool
    prices: Mapping[str, Pricing | None]
    path: Path = ()
    ids: Mapping[int, str] = field(default_factory=dict)

    def inner(self, plan: Plan) -> "RemoteMeter":
        """The same, to a sub-pipeline."""
        path = (*self.path, self.ids[id(plan)])
        return RemoteMeter(self.link, self.bounded, prices_of(plan), path, _ids(plan))

    async def reserve(
        self, place: Place, alias: str, size: int, max_tokens: int | None
    ) -> "RemoteHold":
        """Set aside what a request may use, at the driver.

        Raises:
            BudgetError: a limit does not allow for it.
        """
        price = self.prices.get(alias)
        if not self.bounded:
            return RemoteHold(None, 0, price)
        number = await self.link.ask(Reserve(self.path, place, alias, size, max_tokens))
        return RemoteHold(self.link, int(number), price)

    async def count_call(self, place: Place) -> None:
        """A tool is about to be called.

        Raises:
            BudgetError: a limit does not allow for it.
        """
        if self.bounded:
            await self.link.ask(CountCall(self.path, place))


def meter_of(plan: Plan, link: Link) -> RemoteMeter:
    """The meter of a whole run."""
    return RemoteMeter(link, _bounded(plan), prices_of(plan), (), _ids(plan))


def _bounded(plan: Plan) -> bool:
    """Whether anything is limited that requests and calls use."""
    bounds = (plan.limits, *(step.flow.limits for step in plan.steps))
    own = any(replace(one, time=None) != Limits() for one in bounds)
    return own or any(map(_bounded, plan.inner.values()))


def _ids(plan: Plan) -> Mapping[int, str]:
    return {id(inner): step for step, inner in plan.inner.items()}


class RemoteHold:
    """What one request may use, told to the driver when it is over."""

    __slots__ = ("_link", "_number", "_open", "_pricing")

    def __init__(self, link: Link | None, number: int, pricing: Pricing | None) -> None:
        self._link = link
        self._number = number
        self._pricing = pricing
        self._open = True

    def settle(self, finish: Finish) -> Finish:
        """The request was answered; the same finish, with what it cost."""
        if finish.cost_usd is None and self._pricing is not None:
            finish = replace(finish, cost_usd=self._pricing.cost(finish.usage))
        self._end(HoldEnded(self._number, finish))
        return finish

    def close(self, *, begun: bool) -> None:
        """The request is over; does nothing after `settle`."""
        self._end(HoldEnded(self._number, None, begun))

    def _end(self, letter: HoldEnded) -> None:
        if self._open:
            self._open = False
            if self._link is not None:
                self._link.post(letter)


def of_item(
    resources: Resources,
    link: Link,
    run: str,
    ticket: int,
    spending: Spending,
    files: Files,
    path: Path = (),
) -> Resources:
    """What is open on this worker, to one item: what it says goes to the driver as that item's."""
    runtime = resources.runtime
    emit = _teller(link, ticket, spending)
    return replace(
        resources,
        runtime=replace(
            runtime,
            gate=RemoteGate(runtime.gate.policy, run, link, ticket, path),
            emit=emit,
            keep=files.keep,
            written=link.flushed,
        ),
        inner={
            id: of_item(one, link, run, ticket, spending, files, (*path, id))
            for id, one in resources.inner.items()
        },
    )


def _teller(link: Link, ticket: int, spending: Spending) -> Callable[[Event], None]:
    def emit(event: Event) -> None:
        spending.take(event)
        if not isinstance(event, _PIECES):
            link.post(Told(ticket, event))

    return emit
