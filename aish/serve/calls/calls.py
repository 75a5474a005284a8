"""One tool call of a client, from its arguments to its result: every call passes the one gate (H9).

Decided, written down, sent, written down. What no rule decides is asked about, if somebody is
there (H10); meanwhile the call gives its place back to others (H11). A failure is a result with
`isError`, never an empty success (H3).
"""

from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from dataclasses import replace
from functools import partial
from itertools import count, islice
from typing import TYPE_CHECKING

import anyio

from aish.core.errors import AishError, JournalLostError
from aish.core.events import DecisionLevel, Place, ServerInfo
from aish.core.frozen import frozen
from aish.core.json import JsonObject, JsonValue
from aish.core.protocols import Clock
from aish.core.text import safe_utf8
from aish.core.tools import Tool, ToolResult
from aish.engine.plan.validation.names import SERVED
from aish.mcp.client.server_requests import Call
from aish.mcp.protocol.convert_resources import MAX_URI
from aish.mcp.protocol.messages import MISSING_CAPABILITY, RpcError
from aish.mcp.protocol.requests import dump
from aish.mcp.protocol.revisions import META
from aish.policy.decide import decision_level
from aish.policy.gate import NOT_KEPT, STAGED, Decision, Proposal
from aish.serve.calls.client_requests import StreamOwner
from aish.serve.calls.held_calls import INPUT_REQUIRED, StatelessOwner
from aish.serve.calls.pack_models import PackModels
from aish.serve.calls.waiting_calls import (
    Approvals,
    ClientAsker,
    HeldOver,
    Settled,
    TooManyQuestionsError,
    WaitingCall,
)
from aish.serve.offer.active import ActiveConfig
from aish.serve.records.audit import AuditError, AuditLog, Caller
from aish.serve.records.call_events import CallEvents, CallKind
from aish.serve.records.metrics import NONE, Metrics

if TYPE_CHECKING:
    from aish.serve.offer.pipeline_tools import OnRun

Owner = StreamOwner | StatelessOwner
_OURS = "aish/"
RESULT_TYPE = "resultType"
_PREFIX = "[aish] "
_NOT_OFFERED = "the tool is not offered any more"
_OTHER_RULES = "the rules have changed while the call waited: call again"


Find = Callable[[], Tool | None]
"""The tool that a client means, as it is offered to it now."""


class BusyError(Exception):
    """There is no place for a call."""


Complete = Callable[[JsonObject], JsonObject]
"""Adds to a result what belongs to the hop to the client."""


class CallPlace:
    """The place of a call among those of its session and of all; it is taken and given back."""

    def __init__(self, semaphores: Sequence[anyio.Semaphore]) -> None:
        self._semaphores = semaphores
        self._held: list[anyio.Semaphore] = []

    async def take(self) -> None:
        """Wait for it, unless it is held."""
        for one in self._semaphores[len(self._held) :]:
            await one.acquire()
            self._held.append(one)

    def release(self) -> None:
        """Give it back to others."""
        while self._held:
            self._held.pop().release()


@frozen
class _Call:
    """A call on its way: who calls, its place, and how the client is answered."""

    caller: Caller
    place: CallPlace
    find: Find
    about: Call
    complete: Complete
    owner: Owner
    is_withdrawn: Callable[[], bool]

    def is_cancelled(self) -> bool:
        """Whether the client has cancelled just this call, or its task."""
        owner = self.owner
        return self.is_withdrawn() or (isinstance(owner, StatelessOwner) and owner.is_cancelled)

    def takes_task(self) -> bool:
        """Whether the call is a task now, so that nobody waits for its result."""
        return isinstance(self.owner, StatelessOwner) and self.owner.is_task


_RESULTS = 1000
"""So many of the last results of a client may name resources to it (H9)."""
_NAMED = 10_000
"""So many resources they may name together."""


class NamedResources:
    """The resources that the last results named to each client: those it may read too (H9)."""

    def __init__(self) -> None:
        self._results: dict[str, deque[frozenset[tuple[str, str]]]] = {}

    def note(self, client: str, alias: str, result: JsonObject) -> None:
        """Take up what a server's result names."""
        found = frozenset((alias, uri) for uri in islice(_named(result), _NAMED))
        if not found:
            return
        results = self._results.setdefault(client, deque(maxlen=_RESULTS))
        results.append(found)
        while sum(map(len, results)) > _NAMED:
            results.popleft()

    def has(self, client: str, alias: str, uri: str) -> bool:
        """Whether one of them named this resource."""
        return any((alias, uri) in found for found in self._results.get(client, ()))


def _named(result: JsonObject) -> Iterator[str]:
    """The URIs of the resources in a result: those of its blocks, its messages, its contents."""
    messages = _objects(result.get("messages"))
    blocks = [*_objects(result.get("content")), *_objects(result.get("contents"))]
    for message in messages:
        content = message.get("content")
        blocks += _objects(content if isinstance(content, list) else [content])
    for block in blocks:
        for about in (block, block.get("resource")):
            uri = about.get("uri") if isinstance(about, Mapping) else None
            if isinstance(uri, str) and len(uri) <= MAX_URI:
                yield uri


def _objects(value: JsonValue) -> list[JsonObject]:
    found = value if isinstance(value, list) else []
    return [one for one in found if isinstance(one, Mapping)]


class Calls:
    """Makes the calls of all clients."""

    def __init__(
        self,
        approvals: Approvals,
        audit: AuditLog,
        clock: Clock,
        on_audit_failure: Callable[[str], None],
        events: CallEvents,
        models: PackModels,
    ) -> None:
        self.metrics = Metrics()
        self.around_servers: Callable[[], AbstractContextManager[None]] = nullcontext
        """What holds while a server is asked: in a replay nothing else is reached."""
        self.open = 0
        """Calls that were taken and have not ended."""
        self.named = NamedResources()
        self.approvals = approvals
        self._gate = approvals.gate
        self._active = active = approvals.active
        self._audit = audit
        self._limits = limits = active.now.settings.limits
        self._clock = clock
        self.mask = active.now.plan.secrets.mask
        self._on_audit_failure = on_audit_failure
        self._models = models
        self._events = events
        self._all = anyio.Semaphore(limits.calls, fast_acquire=True)
        self._waiting = 0
        self._numbers = count(1)

    def places(self) -> anyio.Semaphore:
        """The places for calls of a new session: so many at a time."""
        return anyio.Semaphore(self._limits.session_calls, fast_acquire=True)

    async def call(
        self,
        caller: Caller,
        places: anyio.Semaphore,
        find: Find,
        arguments: JsonObject,
        about: Call,
        complete: Complete,
        owner: Owner,
        is_withdrawn: Callable[[], bool],
    ) -> bytes:
        """The JSON of the `CallToolResult` of a call. Only cancellation propagates.

        `is_withdrawn` says at a cancellation whether the client has cancelled just this call.
        """
        tool = find()
        if tool is None:
            return dump(complete(failed(f"{_PREFIX}{_NOT_OFFERED}")))
        try:
            async with self.place(places) as place:
                call = _Call(caller, place, find, about, complete, owner, is_withdrawn)
                where = Place(
                    step=caller.client,
                    call=f"{caller.session}/{next(self._numbers)}",
                    client=caller.client,
                    session=caller.session,
                )
                return await self._decided(call, Proposal(tool, arguments, where))
        except BusyError as error:
            self.metrics.count_call(str(tool.name), NONE, "busy")
            return dump(complete(self._failed(tool, str(error))))

    @asynccontextmanager
    async def place(self, places: anyio.Semaphore) -> AsyncGenerator[CallPlace]:
        """Wait for a place among the calls of a session, and of all.

        Raises:
            BusyError: too many wait already.
        """
        is_full = places.value == 0 or self._all.value == 0
        if is_full and self._waiting >= self._limits.waiting:
            raise BusyError(f"busy: {self._waiting} calls wait already, call again later")
        place = CallPlace((places, self._all))
        self.open += 1
        try:
            await self._take(place)
            yield place
        finally:
            place.release()
            self.open -= 1

    async def _take(self, place: "CallPlace") -> None:
        self._waiting += 1
        try:
            await place.take()
        finally:
            self._waiting -= 1

    async def _decided(self, call: "_Call", proposal: Proposal) -> bytes:
        try:
            settled = await self._settled(call, proposal)
        except (JournalLostError, TooManyQuestionsError) as error:
            # Of the disk, or of the client: the call is not made.
            return self._unmade(call, proposal, error.message)
        if settled is None:
            return self._unmade(call, proposal, _NOT_OFFERED)
        if isinstance(settled, HeldOver):
            return self._held_over(call, proposal, settled)
        decision, proposal = settled.decision, settled.proposal
        tool = proposal.tool
        level = decision_level(self._gate.policy, tool, decision.verdict)
        try:
            self._audit.decided(
                call.caller, tool, proposal.arguments, decision.verdict, decision.rule, level
            )
        except AuditError as error:
            self._gate.drop(decision)
            return self._unmade(call, proposal, f"the call was not made: {error}")
        self._events.decided(proposal, decision, level)
        began = self._clock.monotonic()
        kind: CallKind = "failed"
        encoded, result, run = None, None, None

        def note_run(id: str) -> None:
            nonlocal run
            run = id
            if isinstance(call.owner, StatelessOwner):
                call.owner.begun(id)

        try:
            kind, result = await self._made(call, proposal, decision, note_run)
            self.named.note(call.caller.client, tool.name.server, result)
            encoded = self._encoded(tool, result, call.complete)
        except anyio.get_cancelled_exc_class():
            kind = "cancelled"
            raise
        except RpcError:
            kind = "rpc_error"
            raise
        finally:
            seconds = self._clock.monotonic() - began
            self.metrics.count_call(str(tool.name), decision.verdict, kind, seconds)
            self._finished(call.caller, tool, kind, encoded, seconds, level, run)
            self._events.finished(proposal, kind, result, seconds)
        return encoded

    async def _settled(self, call: "_Call", proposal: Proposal) -> Settled | HeldOver | None:
        """The decision on a call that holds when it is sent; `None` if its tool is gone."""
        decision: Decision | None = None
        decided_by = None
        while decided_by is not self._active.now:
            # It may have waited, for a place or an answer, while another file came into force.
            decided_by = self._active.now
            offered = call.find()
            if offered is None:
                return None
            is_same, proposal = offered == proposal.tool, replace(proposal, tool=offered)
            if decision is None or not is_same:
                decision = await self._gate.decide(proposal)
            else:
                decision = await self._gate.decide_again(decision, proposal)
            if decision.verdict == "ask-no" and decision.approval is None:
                found = await self._asked(call, proposal, decision)
                if isinstance(found, HeldOver):
                    return found
                decision, proposal = found.decision, found.proposal
        assert decision is not None, "it was decided at least once"
        return Settled(decision, proposal)

    async def _asked(
        self, call: "_Call", proposal: Proposal, decision: Decision
    ) -> Settled | HeldOver:
        """The decision on a call after all who can be asked about it were asked."""
        asked = WaitingCall(
            proposal,
            decision.digest,
            call.find,
            call.about.on_progress or (lambda _: None),
            self._asker(call.owner),
            call.place.release,
            call.is_cancelled,
            call.takes_task,
        )
        found = await self.approvals.ask(asked)
        if found is None:
            return Settled(decision, proposal)
        if isinstance(found, Settled):
            # Others may have taken its place meanwhile; it was admitted, so it waits for another.
            await self._take(call.place)
        return found

    def _asker(self, owner: Owner) -> ClientAsker | None:
        """Asks the client itself, if it fills in forms and the file lets it (H10)."""
        if not owner.fills_forms:
            return None
        from aish.serve.calls.approval_form import ApprovalForm

        return ApprovalForm(owner, self._active.now.plan.secrets)

    def _held_over(self, call: "_Call", proposal: Proposal, held: HeldOver) -> bytes:
        """What a client is told whose call still waits, and is no task (H11)."""
        tool = proposal.tool
        about = {"tool": str(tool.name), "approval": held.id}
        try:
            self._audit.note("waiting", call.caller, **about)
        except AuditError as error:
            self._on_audit_failure(str(error))
        said = f"{_PREFIX}waiting for approval {held.id}: call again with the same arguments"
        return dump(call.complete(failed(said)))

    def _unmade(self, call: "_Call", proposal: Proposal, reason: str) -> bytes:
        return dump(call.complete(self._failed(proposal.tool, reason)))

    async def _made(
        self, made: "_Call", proposal: Proposal, decision: Decision, on_run: "OnRun"
    ) -> tuple[CallKind, JsonObject]:
        """The kind of result, and the result."""
        tool = proposal.tool
        if not decision.allowed:
            return await self._not_allowed(tool, decision)
        self._gate.redeem(decision, proposal)
        self._events.started(proposal)
        owner = made.owner
        entry = self._active.now.plan.pipeline.servers.get(tool.name.server)
        sample = self._models.sampler(entry, proposal.place, self._clock)
        call = replace(made.about, owner=owner, sample=sample)
        if isinstance(owner, StatelessOwner):
            owner.is_passed = decision.verdict == "auto"
            call = replace(call, continuation=owner.continuation)
        arguments, config = proposal.arguments, self._active.now
        recheck = partial(self._recheck, made, proposal, decision, config)
        try:
            with self.around_servers():
                session = made.caller.session
                found = await config.tools.forward(session, tool, arguments, call, on_run, recheck)
        except RpcError as error:
            if error.code == MISSING_CAPABILITY and isinstance(owner, StatelessOwner):
                raise  # its client has the same error for that
            failure = ToolResult("rpc_error", f"tool dispatch failed: {error.message}")
            found = owner.pages(tool.name.server, error) or failure
        except AishError as error:  # a replay does not hold this call
            return "transport_error", self._failed(tool, self.mask(str(error)))
        if isinstance(found, ToolResult):
            return found.kind, self._failed(tool, found.content.removeprefix(_PREFIX))
        if found.get(RESULT_TYPE) == INPUT_REQUIRED and isinstance(owner, StatelessOwner):
            required = owner.required(tool.name.server, own_part(found))
            return INPUT_REQUIRED, {RESULT_TYPE: INPUT_REQUIRED, **required}
        if "content" not in found and "structuredContent" not in found:
            return "transport_error", self._failed(tool, "the server sent no result")
        kind: CallKind = "handler_error" if found.get("isError") is True else "ok"
        # What our own pipelines say of a run is no mark of somebody else.
        return kind, found if tool.name.server == SERVED else own_part(found)

    async def _recheck(
        self, made: "_Call", proposal: Proposal, decision: Decision, decided_by: ActiveConfig
    ) -> ToolResult | None:
        """Decide again about a call that is still not sent when another file is in force (H23).

        Why it is not made any more; `None` if it is.
        """
        tool = proposal.tool
        while decided_by is not self._active.now:
            decided_by = self._active.now
            if made.find() != tool:
                return ToolResult("denied", _NOT_OFFERED)
            again = await self._gate.decide_again(decision, proposal)
            level = decision_level(self._gate.policy, tool, again.verdict)
            try:
                self._audit.decided(
                    made.caller, tool, proposal.arguments, again.verdict, again.rule, level
                )
            except AuditError as error:
                self._gate.drop(again)
                return ToolResult("denied", f"the call was not made: {error}")
            if not again.allowed:
                said = again.reply if again.verdict == "deny" else None
                return ToolResult("denied", said or _OTHER_RULES)
            if again is not decision:
                self._gate.redeem(again, proposal)
        return None

    async def _not_allowed(self, tool: Tool, decision: Decision) -> tuple[CallKind, JsonObject]:
        """What a client is told of a call that is denied, or was put down for review (B16)."""
        if decision.verdict == "staged":
            if await self._gate.is_put_down(decision):
                # Of a tool with an output schema clients take no other result without its content.
                is_error = tool.output_schema is not None
                return "ok", {"content": [{"type": "text", "text": STAGED}], "isError": is_error}
            return "transport_error", failed(NOT_KEPT)
        assert decision.reply is not None, "a call that is not made has a reply"
        return "denied", failed(self.mask(decision.reply))

    def _encoded(self, tool: Tool, result: JsonObject, complete: Complete) -> bytes:
        """The JSON of a result, or of the reason why it cannot be sent."""
        try:
            encoded = dump(complete(result))
        except (ValueError, RecursionError):
            said = "the result is not JSON that can be passed on"
        else:
            if len(encoded) <= self._limits.message:
                return encoded
            said = f"the result has {len(encoded):,} bytes, more than {self._limits.message:,}"
        return dump(complete(self._failed(tool, said)))

    def unreachable(self, server: ServerInfo, complete: Complete) -> bytes:
        """The result of a call whose server is lost: it is neither empty nor unknown (H3, H4)."""
        why = f": {server.error}" if server.error else ""
        said = f"the server is not connected{why}; it is tried again"
        return dump(complete(failed(f"{_PREFIX}{server.alias}: {self.mask(said)}")))

    def _failed(self, tool: Tool, reason: str) -> JsonObject:
        return failed(f"{_PREFIX}{tool.name.server}: {self.mask(reason)}")

    def _finished(
        self,
        caller: Caller,
        tool: Tool,
        kind: CallKind,
        result: bytes | None,
        seconds: float,
        level: DecisionLevel,
        run: str | None,
    ) -> None:
        try:
            self._audit.finished(caller, tool, kind, result, seconds, level, run)
        except AuditError as error:
            # The call was made, so its result is delivered; no other one is (H21).
            self._on_audit_failure(str(error))


def failed(text: str) -> JsonObject:
    """A result that says what went wrong."""
    return {"content": [{"type": "text", "text": safe_utf8(text)}], "isError": True}


def own_part(result: JsonObject, *, is_pack: bool = False) -> JsonObject:
    """What a server says, without what belongs to the hop between it and us."""
    meta = result.get("_meta")
    found = {key: value for key, value in result.items() if key != RESULT_TYPE}
    if isinstance(meta, Mapping):
        kept: dict[str, JsonValue] = {
            key: value
            for key, value in meta.items()
            if not key.startswith(META) and (is_pack or not key.startswith(_OURS))
        }
        if kept:
            found["_meta"] = kept
        else:
            del found["_meta"]
    return found
