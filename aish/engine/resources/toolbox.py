"""All tools of a run: the servers', and `run` steps as the alias `shell`."""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from aish.config.model import PLATFORM_SHELL
from aish.core.errors import StepFailedError
from aish.core.frozen import frozen
from aish.core.json import JsonObject, JsonValue
from aish.core.protocols import Progress, Sampler, Tools
from aish.core.rules import RuleEntry
from aish.core.tools import Annotations, Tool, ToolName, ToolResult
from aish.engine.environment import Recorder
from aish.policy.rules import Policy, rules_without_tools
from aish.system.process.child import CommandResult, Stream, child_environment, run_command
from aish.system.process.reaper import Reaper


def exit_result(exit_code: int, stdout: str, stderr: str) -> ToolResult:
    structured: JsonValue = {"exit_code": exit_code, "stdout": stdout, "stderr": stderr}
    return ToolResult("ok", stdout or stderr, structured=structured)


def not_started(why: str) -> ToolResult:
    return ToolResult("handler_error", why)


# A command with unlimited output or duration is stopped here; a run's own limit is usually
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


class OutputListener(Protocol):
    """Receives the output of a running command, as far as it is kept."""

    def printed(self, stream: Stream, data: bytes) -> None:
        """Take some bytes of its output."""

    def ended(self, result: CommandResult) -> None:
        """Take the result of a command that has ended by itself."""


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
    listener: OutputListener | None = None

    def of_step(self, step: str) -> "LocalCommands":
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
        return exit_result(result.exit_code, stdout, result.stderr.decode("utf-8", "replace"))


def argv_of(arguments: JsonObject) -> tuple[str, ...]:
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


@frozen
class AllTools:
    """`core.protocols.Tools` over the servers, if there are any, and local commands.

    What `watch` excludes is not listed, has no name, and is not called.
    """

    servers: "Registry | None"
    local: LocalCommands
    watch: "LockWatch | None" = None

    def of_step(self, step: str) -> "AllTools":
        return AllTools(self.servers, self.local.of_step(step))

    def listed(self) -> tuple[Tool, ...]:
        """The servers' tools; `shell__run` is for steps, never for a model."""
        tools = self.servers.listed() if self.servers else ()
        return tools if self.watch is None else tuple(filter(self.watch.offers, tools))

    def instructions(self, tools: Iterable[Tool]) -> Mapping[str, str]:
        """The servers' instructions for use of these tools, where the file wants them."""
        instructions = self.servers.instructions() if self.servers else {}
        aliases = dict.fromkeys(tool.name.server for tool in tools)
        return {alias: instructions[alias] for alias in aliases if alias in instructions}

    def by_wire_name(self, wire: str) -> Tool | None:
        return self._if_offered(self.servers.by_wire_name(wire) if self.servers else None)

    def by_name(self, name: ToolName) -> Tool | None:
        if name == SHELL_RUN.name:
            return SHELL_RUN
        return self._if_offered(self.servers.by_name(name) if self.servers else None)

    def denial_of(self, tool: Tool) -> str | None:
        if self.watch is None or tool.name == SHELL_RUN.name:
            return None
        reason = self.watch.exclusion_reason(tool.name)
        return reason and f"[aish] tool call denied: {tool.name}: {reason}"

    def require(self, name: ToolName) -> None:
        """Raise if a missing tool is excluded by the lock or its server.

        Raises:
            LockDiffersError: the lock does.
            StepFailedError: its server lists two of that name.
        """
        reason = self.watch.exclusion_reason(name) if self.watch else None
        if self.watch is not None and reason is not None:
            raise self.watch.refusal(f"the tool `{name}` is not offered: {reason}")
        reason = self.servers.omission_reason(name) if self.servers else None
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
        """Call a tool; every failure is a result, as is no answer within `limit` seconds."""
        if tool.name == SHELL_RUN.name:
            return await self.local.run(arguments)
        assert self.servers is not None, "a tool of a server comes from a server"
        # Checked again: it may have changed while the call was being approved.
        denied = self.denial_of(tool)
        if denied is not None:
            return ToolResult("denied", denied)
        return await self.servers.call(tool, arguments, on_progress, sample, limit)

    async def forward(
        self, tool: Tool, arguments: JsonObject, call: "Call", own: "Server | None" = None
    ) -> JsonObject | ToolResult:
        """Forward a call; return the server's raw answer; every failure is a result.

        `own` is the caller's own connection to the server, if it has one.
        """
        assert self.servers is not None, "a tool of a server comes from a server"
        denied = self.denial_of(tool)
        if denied is not None:
            return ToolResult("denied", denied)
        return await self.servers.forward(tool, arguments, call, own)

    def _if_offered(self, tool: Tool | None) -> Tool | None:
        return tool if tool is None or self.watch is None or self.watch.offers(tool) else None


def rules_without_tool(policy: Policy, tools: Tools) -> tuple[RuleEntry, ...]:
    """The rules that match no tool, listed or not."""
    exact = (ToolName(rule.server, rule.tool) for rule in policy.all() if rule.exact)
    named = filter(None, map(tools.by_name, exact))
    return rules_without_tools(policy, (*tools.listed(), *named))
