"""Tool calls of clients, from arguments to results; every call passes the gate.

A call is decided, recorded, sent, and recorded again. A call that no rule decides is asked about if
somebody is available; meanwhile its place is free for others. A failure is a result with `isError`,
never an empty success.
"""

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from itertools import count, islice
from typing import TYPE_CHECKING

import anyio

from aish.agent.dispatch import output_problem
from aish.agent.runtime import AgentRuntime
from aish.core.errors import AishError, JournalLostError, UsageError, did_you_mean
from aish.core.events import DecisionLevel, Notice, Place, ServerInfo
from aish.core.json import JsonObject, JsonValue, json_text, objects_in
from aish.core.protocols import Clock, Progress, Sampler
from aish.core.sources import CLIENT, NO_SOURCES, UNKNOWN, Sources, descriptions_of
from aish.core.text import safe_utf8
from aish.core.tools import Tool, ToolName, ToolResult
from aish.engine.plan.plan import follows_flows
from aish.engine.plan.validation.names import SERVED
from aish.mcp.client.server_requests import Call
from aish.mcp.protocol.convert_resources import MAX_URI
from aish.mcp.protocol.messages import (
    INTERNAL_ERROR,
    MISSING_CAPABILITY,
    REFUSED_BY_USER,
    RpcError,
)
from aish.mcp.protocol.requests import dump
from aish.mcp.protocol.revisions import META
from aish.policy.gate import NOT_KEPT, STAGED, Decision, Proposal
from aish.serve.calls.pack_models import PackModels
from aish.serve.calls.pending_calls import INPUT_REQUIRED, PendingCall
from aish.serve.calls.waiting_calls import (
    BusyError,
    CallApprovals,
    CallPlace,
    CallPlaces,
    ClientCall,
    Deferred,
    Owner,
    Resolved,
    TooManyQuestionsError,
    renew_sources,
)
from aish.serve.offer.active import ActiveConfig
from aish.serve.records.audit import AuditError, AuditEvent, AuditLog, Caller
from aish.serve.records.call_events import CallEvents, CallKind
from aish.serve.records.metrics import NONE, Metrics

if TYPE_CHECKING:
    from aish.policy.flow import RunFlow
    from aish.serve.offer.pipeline_tools import OnRun

_OURS = "aish/"
_SOURCES_KEY = "aish/sources"
RESULT_TYPE = "resultType"
_PREFIX = "[aish] "
_NOT_OFFERED = "the tool is not offered any more"
_OTHER_RULES = "the rules have changed while the call waited: call again"


_RESULTS = 1000
"""So many of the last results of a client may name resources to it."""
_NAMED = 10_000
"""So many resources they may name together."""


class NamedResources:
    """The resources that recent results named to each client, which it may read."""

    def __init__(self) -> None:
        self._results: dict[str, deque[frozenset[tuple[str, str]]]] = {}

    def note(self, client: str, alias: str, result: JsonObject) -> None:
        """Remember the resources that a server's result names."""
        resources = frozenset((alias, uri) for uri in islice(_uris_in(result), _NAMED))
        if not resources:
            return
        results = self._results.setdefault(client, deque(maxlen=_RESULTS))
        results.append(resources)
        while sum(map(len, results)) > _NAMED:
            results.popleft()

    def has(self, client: str, alias: str, uri: str) -> bool:
        return any((alias, uri) in resources for resources in self._results.get(client, ()))


class ClientSources:
    """The sources of what each client was given, over all its sessions.

    They are per client, because a client may repeat in one session what it has read in another.
    """

    def __init__(self, audit: AuditLog) -> None:
        self._audit = audit
        self._sources: dict[str, Sources] = {}

    def of(self, client: str) -> Sources:
        """Return the sources of a client's text: its own words, and what it was given."""
        return self._sources.get(client, _OF_CLIENT)

    def add(self, client: str, sources: Sources) -> None:
        before = self.of(client)
        if not sources <= before:
            self._sources[client] = before | sources

    def forget(self, client: str, by: str) -> Sequence[str]:
        """Forget what a client was given, and return its sources.

        Raises:
            UsageError: it was given nothing.
            AishError: that cannot be recorded; nothing has changed.
        """
        given = self._sources.get(client)
        if given is None:
            hint = did_you_mean(client, self._sources) or "the audit log has the names of clients"
            raise UsageError(f"the client `{client}` was given nothing", hint=hint)
        names = sorted(given - _OF_CLIENT)
        try:
            self._audit.note("sources_forgotten", None, client=client, by=by, sources=names)
        except AuditError as error:
            raise AishError(str(error)) from error
        del self._sources[client]
        return names


_OF_CLIENT: Sources = frozenset({CLIENT})


def _uris_in(result: JsonObject) -> Iterator[str]:
    """Yield the URIs of the resources in a result: in its blocks, messages and contents."""
    messages = objects_in(result.get("messages"))
    blocks = [*objects_in(result.get("content")), *objects_in(result.get("contents"))]
    for message in messages:
        content = message.get("content")
        blocks += objects_in(content if isinstance(content, list) else [content])
    for block in blocks:
        for about in (block, block.get("resource")):
            uri = about.get("uri") if isinstance(about, Mapping) else None
            if isinstance(uri, str) and len(uri) <= MAX_URI:
                yield uri


class Calls:
    """Makes the calls of all clients."""

    def __init__(
        self,
        approvals: CallApprovals,
        audit: AuditLog,
        clock: Clock,
        on_audit_failure: Callable[[str], None],
        events: CallEvents,
        models: PackModels,
        runtime: AgentRuntime,
        sources: ClientSources,
    ) -> None:
        self.metrics = Metrics()
        self.around_servers: Callable[[], AbstractContextManager[None]] = nullcontext
        """What holds while a server is asked: in a replay nothing else is reached."""
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
        self._asking: tuple[ActiveConfig | None, frozenset[str]] = None, frozenset()
        """Of a file the servers whose packs may ask models."""
        self._runtime = runtime
        self.sources = sources
        self._flow: RunFlow | None = None
        self._written: dict[str, Sources] = {}
        """The sources of what was given to the places of all files so far."""
        self.follow_sources(active.now)
        self._events = events
        self._places = CallPlaces(limits.calls, limits.waiting)
        self._numbers = count(1)

    def follow_sources(self, config: ActiveConfig) -> None:
        """Apply the flow rules of a file, if it has any, to what clients were given."""
        plan, self._flow = config.plan, None
        if follows_flows(plan):
            # Few servers load it.
            from aish.engine.flow_scope import served_flow

            pipelines = [pipeline.plan for pipeline in config.tools.pipelines]
            self._flow = served_flow(plan, pipelines, self._written)
        self._gate.stricter = None if self._flow is None else self._flow.policy.stricter

    def _sources_of(self, caller: Caller, tool: Tool) -> Sources:
        flow, sources = self._flow, self.sources.of(caller.client)
        return NO_SOURCES if flow is None else flow.of_call(tool, sources)

    @property
    def open(self) -> int:
        """The number of calls that have not ended."""
        return self._places.open

    def places(self) -> anyio.Semaphore:
        """The semaphore that limits the calls of a new session."""
        return anyio.Semaphore(self._limits.session_calls, fast_acquire=True)

    async def call(
        self,
        caller: Caller,
        places: anyio.Semaphore,
        find: Callable[[], Tool | None],
        arguments: JsonObject,
        about: Call,
        complete: Callable[[JsonObject], JsonObject],
        owner: Owner,
        is_withdrawn: Callable[[], bool],
    ) -> bytes:
        """Make a call, and return its `CallToolResult` as JSON. Only cancellation propagates.

        At a cancellation, `is_withdrawn` returns true if the client has cancelled this very call.
        """
        tool = find()
        if tool is None:
            return dump(complete(error_result(f"{_PREFIX}{_NOT_OFFERED}")))
        try:
            async with self.place(places) as place:
                sources = partial(self._sources_of, caller)
                call = ClientCall(
                    caller, place, find, about, complete, owner, is_withdrawn, sources
                )
                where = Place(
                    step=caller.client,
                    call=f"{caller.session}/{next(self._numbers)}",
                    client=caller.client,
                    session=caller.session,
                )
                proposal = Proposal(tool, arguments, where, sources(tool))
                return await self._handle(call, proposal)
        except BusyError as error:
            self.metrics.count_call(str(tool.name), NONE, "busy")
            return dump(complete(self._failure(tool, str(error))))

    def place(self, of_session: anyio.Semaphore) -> CallPlace:
        """Return a place for a call in its session and among all calls."""
        return CallPlace(self._places, of_session)

    async def _handle(self, call: ClientCall, proposal: Proposal) -> bytes:
        try:
            resolved = await self._decide(call, proposal)
        except (JournalLostError, TooManyQuestionsError) as error:
            # Of the disk, or of the client: the call is not made.
            return self._refuse(call, proposal, error.message)
        if resolved is None:
            return self._refuse(call, proposal, _NOT_OFFERED)
        if isinstance(resolved, Deferred):
            return self._defer(call, proposal, resolved)
        decision, proposal = resolved.decision, resolved.proposal
        tool = proposal.tool
        try:
            level = self._record(call.caller, proposal, decision)
        except AuditError as error:
            return self._refuse(call, proposal, f"the call was not made: {error}")
        self._events.note_decision(proposal, decision, level)
        began = self._clock.monotonic()
        kind: CallKind = "failed"
        encoded, result, run = None, None, None

        def note_run(id: str) -> None:
            nonlocal run
            run = id
            if isinstance(call.owner, PendingCall):
                call.owner.note_run(id)

        try:
            kind, result = await self._send(call, proposal, decision, note_run)
            self.named.note(call.caller.client, tool.name.server, result)
            encoded = self._encode(tool, result, call.complete)
        except anyio.get_cancelled_exc_class():
            kind = "cancelled"
            raise
        except RpcError:
            kind = "rpc_error"
            raise
        finally:
            seconds = self._clock.monotonic() - began
            self.metrics.count_call(str(tool.name), decision.verdict, kind, seconds)
            self._record_end(proposal.place.call or "", kind, encoded, run)
            self._events.note_end(proposal, kind, result, seconds)
        return encoded

    async def _decide(self, call: ClientCall, proposal: Proposal) -> Resolved | Deferred | None:
        decision: Decision | None = None
        # It may have waited, for a place or an answer, while another file came into force.
        offered = call.find() if call.place.has_waited else proposal.tool
        while offered is not None:
            decided_by = self._active.now
            is_same = offered == proposal.tool
            if offered is not proposal.tool:
                proposal = replace(proposal, tool=offered)
            if decision is None or not is_same:
                decision = await self._gate.decide(proposal)
            else:
                decision = await self._gate.decide_again(decision, proposal)
            if decision.verdict == "ask-no" and decision.approval is None:
                outcome = await self.approvals.ask(call, proposal, decision.digest)
                if isinstance(outcome, Deferred):
                    return outcome
                if outcome is not None:
                    decision, proposal = outcome.decision, outcome.proposal
                    # Others may have its place meanwhile; it was admitted, so it waits for another.
                    await call.place.take()
            renewed = renew_sources(call, proposal, decision, self._gate)
            if renewed is None and decided_by is self._active.now:
                return Resolved(decision, proposal)
            proposal, offered = renewed or proposal, call.find()
        return None

    def _record(self, caller: Caller, proposal: Proposal, decision: Decision) -> DecisionLevel:
        """Record a decision, and return its level.

        Raises:
            AuditError: it could not be recorded, so the decision is not used.
        """
        level = self._gate.level(proposal, decision)
        try:
            self._audit.note_decision(caller, proposal, decision, level)
        except AuditError:
            self._gate.drop(decision)
            raise
        return level

    def _defer(self, call: ClientCall, proposal: Proposal, held: Deferred) -> bytes:
        tool = proposal.tool
        about = {"tool": str(tool.name), "approval": held.id}
        try:
            event: AuditEvent = "replaced" if held.is_replaced else "waiting"
            self._audit.note(event, call.caller, **about)
        except AuditError as error:
            self._on_audit_failure(str(error))
        message = f"{_PREFIX}waiting for approval {held.id}: call again with the same arguments"
        if held.is_replaced:
            message = f"{_PREFIX}not made: a later call with the same arguments took its place"
        return dump(call.complete(error_result(message)))

    def _refuse(self, call: ClientCall, proposal: Proposal, reason: str) -> bytes:
        return dump(call.complete(self._failure(proposal.tool, reason)))

    async def _send(
        self, client_call: ClientCall, proposal: Proposal, decision: Decision, on_run: "OnRun"
    ) -> tuple[CallKind, JsonObject]:
        tool = proposal.tool
        if not decision.allowed:
            return await self._not_allowed(tool, decision)
        self._gate.redeem(decision, proposal)
        self._events.note_start(proposal)
        owner = client_call.owner
        sample = self._sampler(proposal)
        call = replace(client_call.about, owner=owner, sample=sample)
        if isinstance(owner, PendingCall):
            owner.is_passed = decision.verdict == "auto"
            call = replace(call, continuation=owner.continuation)
        arguments, config, flow = proposal.arguments, self._active.now, self._flow
        if flow is not None:
            flow.begin(tool, proposal.sources)
            # A rule for exact arguments approves the call whatever was read.
            call = replace(call, trace=flow.filter_metadata(tool, call.trace, proposal.sources))
        recheck = partial(self._recheck, client_call, proposal, decision, config)
        client = client_call.caller.client
        result: JsonObject | ToolResult | None = None
        around = None if flow is None else flow.with_inputs(proposal.sources)
        can_tell = call.on_progress is not None or bool(owner.capabilities())
        if can_tell and not tool.builtin and tool.name.server != SERVED:
            # What it tells the client on its way is not waited for.
            self.note_result(client, tool, proposal.sources, None)
        try:
            with self.around_servers():
                result = await config.tools.forward(
                    client_call.caller, tool, arguments, call, on_run, recheck, around
                )
        except RpcError as error:
            if error.code == MISSING_CAPABILITY and isinstance(owner, PendingCall):
                raise  # its client has the same error for that
            failure = ToolResult("rpc_error", f"tool dispatch failed: {error.message}")
            result = owner.pages(tool.name.server, error) or failure
        except AishError as error:  # a replay does not hold this call
            return "transport_error", self._failure(tool, self.mask(str(error)))
        finally:
            self.note_result(client, tool, proposal.sources, result)
        if isinstance(result, ToolResult):
            return result.kind, self._failure(tool, result.content.removeprefix(_PREFIX))
        if result.get(RESULT_TYPE) == INPUT_REQUIRED and isinstance(owner, PendingCall):
            required = owner.relay(tool.name.server, own_part(result))
            return INPUT_REQUIRED, {RESULT_TYPE: INPUT_REQUIRED, **required}
        return await self._check_result(proposal, result)

    @contextmanager
    def follow_request(self, caller: Caller, alias: str, given: JsonObject) -> Generator[None]:
        """Judge a client's request for a prompt or a resource, and note what it is given.

        Raises:
            RpcError: a flow rule holds the request.
        """
        flow, sources = self._flow, self.sources.of(caller.client)
        if why := self._judge(caller, alias, given, "a request"):
            raise RpcError(INTERNAL_ERROR, f"{_PREFIX}{why}")
        try:
            yield
        finally:
            own = frozenset({alias}) if flow is None else flow.of_request(alias, sources)
            self.sources.add(caller.client, own)

    def check_answer(self, caller: Caller, alias: str, answer: JsonObject) -> None:
        """Judge a client's answer to the request of a server.

        Raises:
            RpcError: a flow rule holds it; the server does not learn why.
        """
        if why := self._judge(caller, alias, answer, "an answer"):
            self._notify(caller, why)
            raise RpcError(REFUSED_BY_USER, "the client may not answer")

    def _judge(self, caller: Caller, alias: str, given: JsonObject, what: str) -> str:
        """Return why a client may not send something to a server, or note that it does."""
        if self._flow is None:
            return ""
        sources = self.sources.of(caller.client)
        why, warning = self._flow.begin_request(alias, given, sources, what)
        if warning:
            self._notify(caller, warning)
        return why

    def _notify(self, caller: Caller, text: str) -> None:
        place = Place(client=caller.client, session=caller.session)
        self._events.notify(Notice(place, "security", "exfiltration", text))

    async def resume(
        self, client: str, name: ToolName, run: str, report: Callable[[Progress], None]
    ) -> JsonObject:
        """Resume the interrupted run of a pipeline, and return its result for the client.

        Raises:
            AishError: it cannot be resumed.
        """
        tools = self._active.now.tools
        tool = tools.by_name(name)
        # What its client had read is not known any more.
        flow, lost = self._flow, frozenset({UNKNOWN})
        around = None if flow is None else flow.with_inputs(lost)
        result = await tools.resume(name, run, report, around)
        if tool is not None:
            self.note_result(client, tool, NO_SOURCES, result)
        return result

    def note_shown(
        self, client: str, shown: Iterable[ToolName], told: Sources = NO_SOURCES
    ) -> None:
        """Note that a client was shown descriptions, and what the servers in `told` say."""
        names = {descriptions_of(name.server) for name in shown if name.server != SERVED}
        flow = self._flow
        if flow is not None:
            names = {name for name in names if flow.policy.labels(name)}
        self.sources.add(client, told | names)

    def note_result(
        self, client: str, tool: Tool, sources: Sources, result: JsonObject | ToolResult | None
    ) -> None:
        """Note the sources of the result that a client was given."""
        flow = self._flow
        if flow is None:
            # The next file may ask for flows.
            self.sources.add(client, frozenset({str(tool.name)}))
            return
        if tool.name.server == SERVED:
            if isinstance(result, ToolResult) and result.kind in {"bad_arguments", "denied"}:
                return  # no run has begun
            meta = result.get("_meta") if isinstance(result, Mapping) else None
            given = meta.get(_SOURCES_KEY) if isinstance(meta, Mapping) else None
            if isinstance(given, Sequence):
                self.sources.add(client, frozenset(map(str, given)))
                return
        given_by = flow.of_result(tool, sources)
        if tool.name.server == SERVED:
            flow.begin(tool, given_by)  # nobody knows what it has written
        self.sources.add(client, given_by)

    def _sampler(self, proposal: Proposal) -> Sampler | None:
        """Return the sampler for a call of packs that may ask models; `None` for other servers."""
        config = self._active.now
        if self._asking[0] is not config:
            servers = config.plan.pipeline.servers.items()
            may_ask = frozenset(alias for alias, entry in servers if entry.model_consent.given)
            self._asking = config, may_ask
        if proposal.tool.name.server not in self._asking[1]:
            return None
        return self._models.sampler(proposal.place, self._clock)

    async def _check_result(
        self, proposal: Proposal, result: JsonObject
    ) -> tuple[CallKind, JsonObject]:
        tool = proposal.tool
        if result.get("content") is None and result.get("structuredContent") is None:
            return "transport_error", self._failure(tool, "the server sent no result")
        if tool.name.server == SERVED:
            # What our own pipelines say of a run is no mark of somebody else.
            return "handler_error" if result.get("isError") is True else "ok", result
        if result.get("isError") is True:
            return "handler_error", own_part(result)
        data = result.get("structuredContent")
        problem = await output_problem(tool, data, self._runtime, proposal.place)
        if problem is not None and tool.strict_output:
            return "handler_error", self._failure(tool, problem)
        if problem is not None:
            self._events.notify(Notice(proposal.place, "warning", "odd_output", problem))
        return "ok", own_part(result)

    async def _recheck(
        self, made: ClientCall, proposal: Proposal, decision: Decision, decided_by: ActiveConfig
    ) -> ToolResult | None:
        """Decide again about a call that is not sent yet, if the file or its sources have changed.

        Return the reason why it is no longer made; `None` if it is.
        """
        tool = proposal.tool
        while (
            renewed := renew_sources(made, proposal, decision, self._gate)
        ) is not None or decided_by is not self._active.now:
            decided_by, proposal = self._active.now, renewed or proposal
            if made.find() != tool:
                return ToolResult("denied", _NOT_OFFERED)
            again = await self._gate.decide_again(decision, proposal)
            try:
                self._record(made.caller, proposal, again)
            except AuditError as error:
                return ToolResult("denied", f"the call was not made: {error}")
            if not again.allowed:
                reply = again.reply if again.verdict == "deny" else None
                return ToolResult("denied", reply or _OTHER_RULES)
            if again is not decision:
                self._gate.redeem(again, proposal)
        return None

    async def _not_allowed(self, tool: Tool, decision: Decision) -> tuple[CallKind, JsonObject]:
        if decision.verdict == "staged":
            if await self._gate.is_put_down(decision):
                # Of a tool with an output schema clients take no other result without its content.
                is_error = tool.output_schema is not None
                return "ok", {"content": [{"type": "text", "text": STAGED}], "isError": is_error}
            return "transport_error", error_result(NOT_KEPT)
        assert decision.reply is not None, "a call that is not made has a reply"
        return "denied", error_result(self.mask(decision.reply))

    def _encode(
        self, tool: Tool, result: JsonObject, complete: Callable[[JsonObject], JsonObject]
    ) -> bytes:
        data = result.get("structuredContent")
        try:
            if data is not None and not result.get("content"):
                # Many clients read nothing else.
                result = {**result, "content": [{"type": "text", "text": json_text(data)}]}
            encoded = dump(complete(result))
        except (ValueError, RecursionError):
            message = "the result is not JSON that can be passed on"
        else:
            if len(encoded) <= self._limits.message:
                return encoded
            message = f"the result has {len(encoded):,} bytes, more than {self._limits.message:,}"
        return dump(complete(self._failure(tool, message)))

    def unreachable(
        self, server: ServerInfo, complete: Callable[[JsonObject], JsonObject]
    ) -> bytes:
        """Return the error result for a call whose server is lost."""
        why = f": {server.error}" if server.error else ""
        message = f"the server is not connected{why}; it is tried again"
        return dump(complete(error_result(f"{_PREFIX}{server.alias}: {self.mask(message)}")))

    def _failure(self, tool: Tool, reason: str) -> JsonObject:
        return error_result(f"{_PREFIX}{tool.name.server}: {self.mask(reason)}")

    def _record_end(self, call: str, kind: CallKind, result: bytes | None, run: str | None) -> None:
        try:
            self._audit.note_end(call, kind, result, run)
        except AuditError as error:
            # The call was made, so its result is delivered; no other one is.
            self._on_audit_failure(str(error))


def error_result(text: str) -> JsonObject:
    """Return an error result with a message."""
    return {"content": [{"type": "text", "text": safe_utf8(text)}], "isError": True}


def own_part(result: JsonObject, *, is_pack: bool = False) -> JsonObject:
    """Return a server's result without the keys that belong to the hop between it and us."""
    meta = result.get("_meta")
    part = {key: value for key, value in result.items() if key != RESULT_TYPE}
    if isinstance(meta, Mapping):
        kept: dict[str, JsonValue] = {
            key: value
            for key, value in meta.items()
            if not key.startswith(META) and (is_pack or not key.startswith(_OURS))
        }
        if kept:
            part["_meta"] = kept
        else:
            del part["_meta"]
    return part
