"""All tools of a run: the servers', and `run` steps as the alias `shell` (F2, P10)."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from aish.config.model import PLATFORM_SHELL
from aish.core.errors import StepFailedError, UsageError
from aish.core.frozen import frozen
from aish.core.json import JsonObject, JsonValue
from aish.core.protocols import Progress, Sampler, Tools
from aish.core.rules import RuleEntry
from aish.core.tools import (
    Annotations,
    Capability,
    Part,
    PromptMessage,
    Resource,
    ServerPromptInfo,
    Tool,
    ToolName,
    ToolResult,
)
from aish.engine.environment import Recorder
from aish.policy.rules import Policy, unmatched_rules
from aish.system.process.child import CommandResult, Stream, child_environment, run_command
from aish.system.process.reaper import Reaper


def ended(exit_code: int, stdout: str, stderr: str) -> ToolResult:
    """The result of a command that ran."""
    structured: JsonValue = {"exit_code": exit_code, "stdout": stdout, "stderr": stderr}
    return ToolResult("ok", stdout or stderr, structured=structured)


def not_started(why: str) -> ToolResult:
    """The result of a command that was not started."""
    return ToolResult("handler_error", why)


# A command with unlimited output or duration is stopped here (X6); a run's own limit is usually
# tighter.
OUTPUT_LIMIT = 16 * 1024 * 1024
TIME_LIMIT = 24 * 3600.0

SHELL_RUN = Tool(
    name=ToolName("shell", "run"),
    wire="shell__run",
    description="Runs a local command",
    input_schema={
        "type": "object",
        "properties": {
            "argv": {"type": "array", "items": {"type": "string"}, "minItems": 1},
            "command": {"type": "string"},
        },
        "additionalProperties": False,
    },
    annotations=Annotations(read_only=False, destructive=True, idempotent=False, open_world=True),
    unlisted=True,
    trusted=True,
)


def command_arguments(run: Sequence[str] | str) -> JsonObject:
    """The arguments for the gate: the words of an argv, or the text for `sh`."""
    return {"command": run} if isinstance(run, str) else {"argv": list(run)}


class Listener(Protocol):
    """Receives the output of a running command, as far as it is kept."""

    def printed(self, stream: Stream, data: bytes) -> None:
        """Some bytes of it."""
        ...

    def ended(self, result: CommandResult) -> None:
        """It has ended by itself."""
        ...


@frozen
class LocalCommands:
    """Runs approved `shell__run` calls; `step` is the step named in the cassette.

    `environ` is the source of the small environment of a command; `environment` replaces it for
    some commands. `shell` are the words before a command line: if they are not the platform's, the
    command is recorded as its argv.
    """

    cwd: Path
    environ: Mapping[str, str]
    reaper: Reaper
    recorder: Recorder | None = None
    step: str = ""
    shell: tuple[str, ...] = PLATFORM_SHELL
    environment: Mapping[str, str] | None = None
    listener: Listener | None = None

    def of_step(self, step: str) -> "LocalCommands":
        """The same, for a step."""
        return replace(self, step=step)

    async def run(self, arguments: JsonObject) -> ToolResult:
        """Run the command; returns a result with `structured` of `{exit_code, stdout, stderr}`.

        Raises:
            CassetteMissError: a replay met a command that the cassette does not hold.
        """
        command = arguments.get("command")
        if isinstance(command, str) and self.shell != PLATFORM_SHELL:
            arguments = command_arguments((*self.shell, command))
        if self.recorder is None:
            return await self._run(arguments)
        return await self.recorder.command(self.step, arguments, self._run)

    async def _run(self, arguments: JsonObject) -> ToolResult:
        argv = argv_of(arguments)
        env = self.environment
        try:
            result = await run_command(
                argv,
                cwd=self.cwd,
                env=child_environment({}, self.environ) if env is None else env,
                timeout=TIME_LIMIT,
                limit_bytes=OUTPUT_LIMIT,
                reaper=self.reaper,
                hear=None if self.listener is None else self.listener.printed,
            )
        except OSError as error:
            why = error.strerror or os.strerror(error.errno or 0)
            return not_started(f"cannot start `{argv[0]}`: {why}")
        if self.listener is not None:
            self.listener.ended(result)
        stdout = result.stdout.decode("utf-8", "replace")
        return ended(result.exit_code, stdout, result.stderr.decode("utf-8", "replace"))


def argv_of(arguments: JsonObject) -> tuple[str, ...]:
    """The argv that `arguments` describe."""
    command = arguments.get("command")
    if isinstance(command, str):
        return (*PLATFORM_SHELL, command)
    words = arguments.get("argv")
    assert isinstance(words, Sequence)
    return tuple(str(word) for word in words)


if TYPE_CHECKING:
    from aish.engine.resources.lock_watch import LockWatch
    from aish.mcp.client.connection import Server
    from aish.mcp.client.registry import Registry
    from aish.mcp.client.server_requests import Call


class Offers(Protocol):
    """Resources and prompts of servers (M12)."""

    async def declaring(self, capability: Capability) -> tuple[str, ...]:
        """The servers that declare `resources`, or `prompts`."""
        ...

    async def resources(self) -> tuple[Resource, ...]:
        """The resources of all servers that have any, including templates."""
        ...

    async def read_resource(self, server: str, uri: str) -> tuple[Part, ...]:
        """The content of a resource.

        Raises:
            UsageError: there is no such server.
            UnavailableError: the server is unreachable.
            StepFailedError: the server refused, or its response is invalid.
        """
        ...

    async def prompts(self) -> tuple[ServerPromptInfo, ...]:
        """The prompts of all servers that have any."""
        ...

    async def get_prompt(
        self, server: str, name: str, arguments: Mapping[str, str]
    ) -> tuple[PromptMessage, ...]:
        """The messages of a server's prompt; fails as `read_resource` does."""
        ...


@frozen
class AllTools:
    """`core.protocols.Tools` and `Offers` over the servers, if there are any, and local commands.

    What `watch` excludes is not listed, has no name, and is not called (P8).
    """

    servers: "Registry | None"
    local: LocalCommands
    watch: "LockWatch | None" = None

    def of_step(self, step: str) -> "AllTools":
        """The same, with the local commands of a step."""
        return AllTools(self.servers, self.local.of_step(step))

    def listed(self) -> tuple[Tool, ...]:
        """The servers' tools; `shell__run` is for steps, never for a model."""
        found = self.servers.listed() if self.servers else ()
        return found if self.watch is None else tuple(filter(self.watch.offers, found))

    def by_wire_name(self, wire: str) -> Tool | None:
        """The tool a model named."""
        return self._offered(self.servers.by_wire_name(wire) if self.servers else None)

    def by_name(self, name: ToolName) -> Tool | None:
        """The tool a file or a person named."""
        if name == SHELL_RUN.name:
            return SHELL_RUN
        return self._offered(self.servers.by_name(name) if self.servers else None)

    def withdrawn(self, tool: Tool) -> str | None:
        """Why a tool that was offered no longer is, as the reply to a call of it."""
        if self.watch is None or tool.name == SHELL_RUN.name:
            return None
        reason = self.watch.withdrawn(tool.name)
        return reason and f"[aish] tool call denied: {tool.name}: {reason}"

    def require(self, name: ToolName) -> None:
        """Raise if a missing tool is excluded by the lock or its server.

        Raises:
            LockDiffersError: the lock does.
            StepFailedError: its server lists two of that name.
        """
        reason = self.watch.withdrawn(name) if self.watch else None
        if self.watch is not None and reason is not None:
            raise self.watch.refusal(f"the tool `{name}` is not offered: {reason}")
        reason = self.servers.left_out(name) if self.servers else None
        if reason is not None:
            hint = "a call would be ambiguous: rename one of them on the server"
            raise StepFailedError(f"the tool `{name}` is not offered: {reason}", hint=hint)

    async def call(
        self,
        tool: Tool,
        arguments: JsonObject,
        on_progress: Callable[[Progress], None],
        sample: Sampler | None = None,
        limit: float = inf,
    ) -> ToolResult:
        """Call a tool; every failure is a result (M8), as is no answer within `limit` seconds."""
        if tool.name == SHELL_RUN.name:
            return await self.local.run(arguments)
        assert self.servers is not None, "a tool of a server comes from a server"
        # Checked again: it may have changed while the call was being approved (P6).
        denied = self.withdrawn(tool)
        if denied is not None:
            return ToolResult("denied", denied)
        return await self.servers.call(tool, arguments, on_progress, sample, limit)

    async def forward(
        self, tool: Tool, arguments: JsonObject, call: "Call", own: "Server | None" = None
    ) -> JsonObject | ToolResult:
        """What a server answers to a call, unread; every failure is a result.

        `own` is the caller's own connection to the server, if it has one.
        """
        assert self.servers is not None, "a tool of a server comes from a server"
        denied = self.withdrawn(tool)
        if denied is not None:
            return ToolResult("denied", denied)
        return await self.servers.forward(tool, arguments, call, own)

    async def declaring(self, capability: Capability) -> tuple[str, ...]:
        """The servers that declare `resources`, or `prompts`."""
        return await self.servers.declaring(capability) if self.servers else ()

    async def resources(self) -> tuple[Resource, ...]:
        """The resources of all servers that have any, including templates."""
        return await self.servers.resources() if self.servers else ()

    async def read_resource(self, server: str, uri: str) -> tuple[Part, ...]:
        """The content of a resource; fails as `Offers.read_resource` does."""
        return await self._server(server).read_resource(server, uri)

    async def prompts(self) -> tuple[ServerPromptInfo, ...]:
        """The prompts of all servers that have any."""
        return await self.servers.prompts() if self.servers else ()

    async def get_prompt(
        self, server: str, name: str, arguments: Mapping[str, str]
    ) -> tuple[PromptMessage, ...]:
        """The messages of a server's prompt; fails as `Offers.read_resource` does."""
        return await self._server(server).get_prompt(server, name, arguments)

    def _server(self, alias: str) -> "Registry":
        if self.servers is None:
            raise UsageError("there is no such server", where=f"mcp server `{alias}`")
        return self.servers

    def _offered(self, tool: Tool | None) -> Tool | None:
        return tool if tool is None or self.watch is None or self.watch.offers(tool) else None


def unmatched(policy: Policy, tools: Tools) -> tuple[RuleEntry, ...]:
    """The rules that match no tool, listed or not."""
    exact = (ToolName(rule.server, rule.tool) for rule in policy.all() if rule.exact)
    named = filter(None, map(tools.by_name, exact))
    return unmatched_rules(policy, (*tools.listed(), *named))
