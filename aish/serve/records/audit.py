"""The audit log: who called what, and what was decided, as JSON lines.

A record is written with one system call before the action it describes, and synced within a second.
No call is made without its record. The log has neither arguments nor results, but keyed digests,
names, types and sizes.
"""

import json
import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Literal

import anyio
from anyio import to_thread

from aish.config.model import AuditSettings
from aish.core.errors import UsageError
from aish.core.events import DecisionLevel
from aish.core.frozen import frozen
from aish.core.json import JsonObject, JsonValue
from aish.core.phrases import shorten
from aish.core.protocols import Clock
from aish.core.text import safe_utf8
from aish.core.tools import Tool
from aish.policy.gate import Decision, Proposal
from aish.serve.state import ServeState
from aish.system.durable import write_whole
from aish.system.files import open_append, private_folder

_SYNC_SECONDS = 1.0
_MOST_NAMES = 64
_LONGEST_NAME = 64
AuditEvent = Literal[
    "listening",
    "session.opened",
    "session.closed",
    "decided",
    "finished",
    "refused",
    "reloaded",
    "task",
    "asked",
    "answered",
    "waiting",
    "replaced",
    "read",
    "sources_forgotten",
]
_TYPES: Mapping[type, str] = {
    bool: "boolean",
    int: "number",
    float: "number",
    str: "string",
    dict: "object",
    list: "array",
    type(None): "null",
}


_ENCODER = json.JSONEncoder(separators=(",", ":"))


class AuditError(Exception):
    """A record could not be written."""


@frozen
class Caller:
    """The caller: the client's name, its session and its connection."""

    client: str
    session: str
    peer: JsonObject


@frozen
class AuditedCall:
    """A call whose first record is written and whose last one is not."""

    caller: Caller
    tool: Tool
    level: DecisionLevel
    began: float


class AuditLog:
    """The log of one process, `audit-PID.jsonl`; full files are numbered and kept for a while."""

    def __init__(
        self,
        folder: Path,
        settings: AuditSettings,
        state: ServeState,
        clock: Clock,
        mask: Callable[[str], str],
    ) -> None:
        self.path = folder / f"audit-{os.getpid()}.jsonl"
        self.failures = 0
        self._settings = settings
        self._state = state
        self._clock = clock
        self._mask = mask
        self._seq = 0
        self._calls: dict[str, AuditedCall] = {}
        self._sessions: dict[str, Caller] = {}
        self._descriptor = open_append(self.path)
        self._size = os.fstat(self._descriptor).st_size
        self._is_synced = True

    def note_decision(
        self, caller: Caller, proposal: Proposal, decision: Decision, level: DecisionLevel
    ) -> None:
        """Record the decision about a call before it is sent; its place identifies it.

        Raises:
            AuditError: it could not be written.
        """
        tool = proposal.tool
        about: JsonObject = {
            "tool": self._text(str(tool.name)),
            "arguments": self._digest_arguments(proposal.arguments),
            "decision": decision.verdict,
            "rule": self._text(decision.rule),
        }
        self._write("decided", level, caller, about)
        call = AuditedCall(caller, tool, level, self._clock.monotonic())
        self._calls.setdefault(proposal.place.call or "", call)

    def note_end(
        self, call: str, kind: str, result: bytes | None = None, run: str | None = None
    ) -> None:
        """Record the end of a call, cancelled without a `result`; `run` is that of a pipeline.

        Raises:
            AuditError: it could not be written.
        """
        about: JsonObject | None = None
        if result is not None:
            about = {"sha256": self._state.digest(result), "bytes": len(result)}
        ended = self._calls.pop(call)
        self._write(
            "finished",
            ended.level,
            ended.caller,
            {
                "tool": self._text(str(ended.tool.name)),
                "kind": kind,
                "result": about,
                "seconds": round(self._clock.monotonic() - ended.began, 6),
                **({} if run is None else {"run": run}),
            },
        )

    def read(self, caller: Caller, method: str, server: str | None, name: str) -> None:
        """Record a request for a resource or prompt before it is sent or refused.

        Raises:
            AuditError: it could not be written.
        """
        about: dict[str, JsonValue] = {
            "method": method,
            "server": server,
            "name": self._text(name),
            "decision": "deny" if server is None else "auto",
        }
        self._write("read", "security" if server is None else "info", caller, about)

    def open_session(self, caller: Caller) -> None:
        """Record the beginning of a session.

        Raises:
            AuditError: it could not be written.
        """
        self.note("session.opened", caller)
        self._sessions[caller.session] = caller

    def close_session(self, caller: Caller) -> None:
        """Record the end of a session.

        Raises:
            AuditError: it could not be written.
        """
        del self._sessions[caller.session]
        self.note("session.closed", caller)

    def note(self, event: AuditEvent, caller: Caller | None, **about: JsonValue) -> None:
        """Record another event: a session, a listener, a refused request.

        Raises:
            AuditError: it could not be written.
        """
        self._write(event, "security", caller, about)

    async def sync(self) -> None:
        """Sync the file every second until this is cancelled."""
        while True:
            await anyio.sleep(_SYNC_SECONDS)
            if not self._is_synced:
                self._is_synced = True
                try:
                    await to_thread.run_sync(os.fsync, self._descriptor)
                except OSError:
                    self.failures += 1

    def close(self) -> None:
        """Record the end of unfinished calls, then sync and close the file."""
        with suppress(AuditError):
            for call in tuple(self._calls):
                self.note_end(call, "cancelled")
            for caller in tuple(self._sessions.values()):
                self.close_session(caller)
        with suppress(OSError):  # of a pipe or a full disk: the records were written or counted
            os.fsync(self._descriptor)
        os.close(self._descriptor)

    def _digest_arguments(self, arguments: JsonObject) -> JsonObject:
        named = list(arguments.items())[:_MOST_NAMES]
        types = {self._text(name): _TYPES.get(type(value), "object") for name, value in named}
        digest: dict[str, JsonValue] = {"sha256": self._state.digest_of(arguments), "types": types}
        if len(arguments) > _MOST_NAMES:
            digest["more"] = len(arguments) - _MOST_NAMES
        return digest

    def _text(self, text: str) -> str:
        return shorten(safe_utf8(self._mask(text)), _LONGEST_NAME * 2)

    def _write(
        self, event: AuditEvent, level: DecisionLevel, caller: Caller | None, about: JsonObject
    ) -> None:
        record: dict[str, JsonValue] = {
            "v": 1,
            "seq": self._seq + 1,
            "time": _timestamp(self._clock.now()),
            "level": level,
            "event": event,
        }
        if caller is not None:
            record |= {"client": caller.client, "session": caller.session, "peer": caller.peer}
        line = _ENCODER.encode({**record, **about}).encode("ascii") + b"\n"
        try:
            if self._size and self._size + len(line) > self._settings.rotate:
                self._rotate()
            write_whole(self._descriptor, line)
        except OSError as error:
            self.failures += 1
            why = error.strerror or str(error)
            raise AuditError(f"the audit log cannot be written: {why}") from error
        self._seq += 1
        self._size += len(line)
        self._is_synced = False

    def _rotate(self) -> None:
        numbered = sorted(
            (int(tail), path)
            for path in self.path.parent.glob(f"{self.path.name}.*")
            if (tail := path.name.rpartition(".")[2]).isdecimal()
        )
        last = numbered[-1][0] if numbered else 0
        full = self.path.with_name(f"{self.path.name}.{last + 1}")
        os.fsync(self._descriptor)
        self.path.rename(full)
        try:
            descriptor = open_append(self.path)
        except OSError:
            full.rename(self.path)  # the next record tries again
            raise
        os.close(self._descriptor)
        self._descriptor, self._size = descriptor, 0
        paths = [*(path for _, path in numbered), full]
        for path in paths[: max(0, len(paths) - self._settings.keep)]:
            path.unlink(missing_ok=True)


def open_audit(
    settings: AuditSettings, state: ServeState, clock: Clock, mask: Callable[[str], str]
) -> AuditLog:
    """Open the audit log of this process.

    Raises:
        UsageError: it cannot be opened.
    """
    folder = settings.path or state.path / "audit"
    try:
        return AuditLog(private_folder(folder), settings, state, clock, mask)
    except OSError as error:
        message = f"the audit log cannot be opened: {error.strerror or error}"
        hint = "`serve.audit.path` names another folder"
        raise UsageError(message, where=str(folder), hint=hint) from error


def _timestamp(seconds: float) -> str:
    whole, part = divmod(seconds, 1)
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(whole))
    return f"{stamp}.{int(part * 1e6):06d}Z"
