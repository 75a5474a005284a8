"""`run` steps as a tool of the reserved alias `shell`, so that they pass the gate (F2, P10)."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from aish.config.model import PLATFORM_SHELL
from aish.core.frozen import frozen
from aish.core.json import JsonObject, JsonValue
from aish.core.tools import Annotations, ResultKind, Tool, ToolName, ToolResult
from aish.engine.environment import Recorder
from aish.system.process.child import CommandResult, Stream, child_environment, run_command
from aish.system.process.reaper import Reaper


def ended(exit_code: int, stdout: str, stderr: str) -> ToolResult:
    """The result of a command that ran."""
    structured: JsonValue = {"exit_code": exit_code, "stdout": stdout, "stderr": stderr}
    kind: ResultKind = "ok" if exit_code == 0 else "handler_error"
    return ToolResult(kind, stdout or stderr, structured=structured)


def not_started(why: str) -> ToolResult:
    """The result of a command that did not run."""
    return ToolResult("handler_error", why)


# A command that prints without end or never ends is stopped here (X6); a run's own limit is
# usually tighter.
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
    """What the gate sees of a command: the words of an argv, or the text for `sh`."""
    return {"command": run} if isinstance(run, str) else {"argv": list(run)}


class Listener(Protocol):
    """Hears what a command prints while it runs, as far as it is kept."""

    def printed(self, stream: Stream, data: bytes) -> None:
        """Some bytes of it."""
        ...

    def ended(self, result: CommandResult) -> None:
        """It has ended by itself."""
        ...


@frozen
class LocalCommands:
    """Runs what `shell__run` was approved for; `step` is the step that a cassette names.

    `environ` is what the small environment of a command is taken from; `environment` takes its
    place where a command gets another. `shell` are the words before a command line: where they are
    not the platform's, the command is recorded as the argv that it is.
    """

    cwd: Path
    environ: Mapping[str, str]
    reaper: Reaper
    tape: Recorder | None = None
    step: str = ""
    shell: tuple[str, ...] = PLATFORM_SHELL
    environment: Mapping[str, str] | None = None
    listener: Listener | None = None

    def of_step(self, step: str) -> "LocalCommands":
        """The same, run by a step."""
        return replace(self, step=step)

    async def run(self, arguments: JsonObject) -> ToolResult:
        """The command's end as a tool result; `structured` is `{exit_code, stdout, stderr}`.

        Raises:
            CassetteMissError: a replay met a command that the cassette does not hold.
        """
        command = arguments.get("command")
        if isinstance(command, str) and self.shell != PLATFORM_SHELL:
            arguments = command_arguments((*self.shell, command))
        if self.tape is None:
            return await self._run(arguments)
        return await self.tape.command(self.step, arguments, self._run)

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
    """The argv that `arguments` stand for."""
    command = arguments.get("command")
    if isinstance(command, str):
        return (*PLATFORM_SHELL, command)
    words = arguments.get("argv")
    assert isinstance(words, Sequence)
    return tuple(str(word) for word in words)
