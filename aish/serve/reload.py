"""Reloading the file, on SIGHUP or by command.

A file with problems changes nothing. Otherwise new servers are connected first; then servers,
rules, tools and clients are replaced at one instant, and calls to removed servers end.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Literal

import anyio
from anyio import to_thread

from aish.core.errors import AishError
from aish.core.frozen import frozen
from aish.core.json import JsonObject
from aish.core.phrases import backticked
from aish.core.protocols import Emit
from aish.engine.plan.plan import Plan
from aish.engine.resources.resources import watch_of
from aish.policy.gate import Gate
from aish.serve.hub import Hub
from aish.serve.offer.active import ActiveConfig, LoadedFile, check_aliases, with_kept_settings
from aish.serve.records.audit import AuditError, AuditLog
from aish.serve.supervisor import ServerChanges, ServerSupervisor

Load = Callable[[Plan], LoadedFile]
"""Loads what is served anew; the plan that is in force shares its secrets with the new one."""
ReloadResult = Literal["ok", "failed"]
_NO_CHANGES = ServerChanges((), (), ())


@frozen
class Reloaded:
    """The result of a reload: the problem, or the servers that changed."""

    problem: str | None = None
    servers: ServerChanges = _NO_CHANGES
    not_applied: tuple[str, ...] = ()
    """Settings that were changed and hold from the next start on."""

    @property
    def result(self) -> ReloadResult:
        return "ok" if self.problem is None else "failed"

    @property
    def record(self) -> JsonObject:
        """The changes as JSON, for a log or an answer."""
        if self.problem is not None:
            return {"result": self.result, "problem": self.problem}
        changes = self.servers
        return {
            "result": self.result,
            "added": list(changes.added),
            "removed": list(changes.removed),
            "changed": list(changes.changed),
            "not_applied": list(self.not_applied),
        }


class ReloadRequests:
    """Requests for a reload; those that arrive before it begins are merged."""

    def __init__(self) -> None:
        self._some = anyio.Event()

    def add(self) -> None:
        self._some.set()

    async def next(self) -> None:
        await self._some.wait()
        self._some = anyio.Event()


class Reloader:
    """Reloads the file, one reload at a time."""

    def __init__(
        self,
        hub: Hub,
        supervisor: ServerSupervisor,
        gate: Gate,
        audit: AuditLog,
        load: Load,
        emit: Emit,
    ) -> None:
        self.counts: dict[ReloadResult, int] = {"ok": 0, "failed": 0}
        """How many reloads there were, by their result."""
        self._hub = hub
        self._supervisor = supervisor
        self._gate = gate
        self._audit = audit
        self._load = load
        self._emit = emit
        self._one = anyio.Lock()

    async def run(self, wanted: ReloadRequests) -> None:
        """Reload on request, until this is cancelled."""
        while True:
            await wanted.next()
            await self.reload()

    async def reload(self) -> Reloaded:
        """Reload the file, and put it into force unless it has problems; both are reported."""
        async with self._one:
            await self._hub.wait_until_settled()
            try:
                outcome = await self._reload()
            except (AishError, AuditError) as error:
                outcome = Reloaded(problem=self._mask(str(error)))
            except Exception as error:  # ruff: ignore[blind-except] - a fault of ours ends one reload
                reason = self._mask(f"{type(error).__name__}: {error}")
                outcome = Reloaded(problem=f"the reload has failed: {reason}")
            self.counts[outcome.result] += 1
            self._report(outcome)
        return outcome

    async def _reload(self) -> Reloaded:
        old = self._hub.active.now
        if self._hub.draining.is_set():
            raise AishError("the server is shutting down")
        # The loop goes on meanwhile. A plan that is dropped has only added secrets to mask.
        loaded = await to_thread.run_sync(self._load, old.plan)
        check_aliases(loaded.plan)
        plan, not_applied = with_kept_settings(loaded.plan, old.plan)
        own = replace(old.tools.own, watch=watch_of(plan, self._emit))
        tools = old.tools.successor(own, loaded.pipelines, old.settings.limits.pipelines)
        clients = self._hub.clients
        tokens = clients.prepare(plan)
        async with self._supervisor.prepare(plan) as prepared:
            if self._hub.draining.is_set():
                raise AishError("the server is shutting down")
            config = ActiveConfig(plan, tools)
            self._hub.exchange(config, lambda: self._supervisor.exchange(prepared))
            clients.configure(tokens, plan.pipeline.serve)
        await self._gate.decide_open()
        return Reloaded(servers=prepared.changes, not_applied=not_applied)

    def _mask(self, text: str) -> str:
        return self._hub.active.now.plan.secrets.mask(text)

    def _report(self, outcome: Reloaded) -> None:
        try:
            self._audit.note("reloaded", None, **outcome.record)
        except AuditError as error:
            self._hub.tell("error", "audit_lost", str(error))
        if outcome.problem is not None:
            text = f"the file is not reloaded, and nothing has changed: {outcome.problem}"
            self._hub.tell("error", "reload_failed", text)
        else:
            self._hub.tell("info", "reloaded", f"the file is reloaded: {_summary(outcome.servers)}")
        if outcome.not_applied:
            keys = backticked(outcome.not_applied)
            text = f"{keys} will be what the file says after a restart"
            self._hub.tell("warning", "reload_not_applied", text)


def _summary(changes: ServerChanges) -> str:
    kinds = (("new", changes.added), ("changed", changes.changed), ("removed", changes.removed))
    parts = [f"{kind}: {backticked(aliases)}" for kind, aliases in kinds if aliases]
    return f"servers {', '.join(parts)}" if parts else "the servers are the same"
