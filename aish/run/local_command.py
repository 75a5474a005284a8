"""`run` steps as a tool of the reserved alias `shell`, so that they pass the gate (F2, P10)."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from aish.system.children import CommandResult, Reaper, child_environment, run_command
from aish.vocab.frozen import frozen
from aish.vocab.json import JsonObject, JsonValue
from aish.vocab.tools import Annotations, ResultKind, Tool, ToolName, ToolResult

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


@frozen
class LocalCommands:
    """Runs what `shell__run` was approved for."""

    cwd: Path
    environ: Mapping[str, str]
    reaper: Reaper

    async def run(self, arguments: JsonObject) -> ToolResult:
        """The command's end as a tool result; `structured` is `{exit_code, stdout, stderr}`."""
        argv = argv_of(arguments)
        try:
            result = await run_command(
                argv,
                cwd=self.cwd,
                env=child_environment({}, self.environ),
                timeout=TIME_LIMIT,
                limit_bytes=OUTPUT_LIMIT,
                reaper=self.reaper,
            )
        except OSError as error:
            why = error.strerror or os.strerror(error.errno or 0)
            return ToolResult("handler_error", f"cannot start `{argv[0]}`: {why}")
        return _as_tool_result(result)


def argv_of(arguments: JsonObject) -> tuple[str, ...]:
    """The argv that `arguments` stand for."""
    command = arguments.get("command")
    if isinstance(command, str):
        return ("/bin/sh", "-c", command)
    words = arguments.get("argv")
    assert isinstance(words, Sequence)
    return tuple(str(word) for word in words)


def _as_tool_result(result: CommandResult) -> ToolResult:
    stdout = result.stdout.decode("utf-8", "replace")
    stderr = result.stderr.decode("utf-8", "replace")
    structured: JsonValue = {
        "exit_code": result.exit_code,
        "stdout": stdout,
        "stderr": stderr,
    }
    kind: ResultKind = "ok" if result.exit_code == 0 else "handler_error"
    return ToolResult(kind, stdout or stderr, structured=structured)
