"""What a local command came to, as the result of a tool: run here, or played from a cassette."""

from aish.core.json import JsonValue
from aish.core.tools import ResultKind, ToolResult


def ended(exit_code: int, stdout: str, stderr: str) -> ToolResult:
    """The result of a command that ran."""
    structured: JsonValue = {"exit_code": exit_code, "stdout": stdout, "stderr": stderr}
    kind: ResultKind = "ok" if exit_code == 0 else "handler_error"
    return ToolResult(kind, stdout or stderr, structured=structured)


def not_started(why: str) -> ToolResult:
    """The result of a command that did not run."""
    return ToolResult("handler_error", why)
