"""The pack `shell`: one command line, in the root folder, with a minimal environment (K8, X8)."""

import os

from aish.core.json import JsonValue
from aish.packs.framework.pack import Marks, Older, Pack, tool
from aish.packs.pack_error import PackError
from aish.packs.tool_results import TEXT_LIMIT, Answer
from aish.packs.workspace.workspace import Workspace
from aish.system.process.child import CommandResult, child_environment, run_command

LONGEST = 600
_KEPT = TEXT_LIMIT // 2 - 1000
"""Characters of each stream that are returned."""
_READ_LIMIT = 1024 * 1024


@tool(
    Marks(read_only=False, destructive=True, idempotent=False, open_world=True, parallel=False),
    result={
        "exit_code": "integer",
        "stdout": "string",
        "stderr": "string",
        "truncated": "boolean",
        "timed_out": "boolean",
        "sandbox": "string",
        "script": "string",
        "explanation": "string",
    },
    codes=(
        "bad_path",
        "outside",
        "not_found",
        "not_a_folder",
        "timeout",
        "not_installed",
        "unavailable",
    ),
    older={
        "execute_command": Older(),
        "run_command": Older(),
        "run_powershell": Older(
            rename={"script": "command", "base_dir": "cwd"}, set={"shell": "pwsh"}
        ),
    },
)
async def shell_run(place: Workspace, command: str, timeout_seconds: int = 60) -> Answer:
    """Runs a command line with `sh` in the root folder and returns what it prints.

    Args:
        place: The root, which no caller names.
        command: The command line.
        timeout_seconds: After how many seconds the command and all it started are ended.
    """
    if not command.strip() or "\0" in command:
        raise PackError("bad_arguments", "`command` is empty or has a NUL in it")
    seconds = min(max(timeout_seconds, 1), LONGEST)
    result = await run_command(
        ("/bin/sh", "-c", command),
        cwd=place.root,
        env=child_environment({}, os.environ),
        timeout=seconds,
        limit_bytes=_READ_LIMIT,
        reaper=place.reaper,
    )
    data = _data(result)
    if result.timed_out:
        printed = "".join(str(data[name]) for name in ("stdout", "stderr"))
        message = f"the command was ended after {seconds} seconds; it had printed:\n{printed}"
        raise PackError("timeout", message, **data)
    return Answer(_text(data), data)


def _data(result: CommandResult) -> dict[str, JsonValue]:
    stdout, stdout_cut = _end_of(result.stdout)
    stderr, stderr_cut = _end_of(result.stderr)
    return {
        "exit_code": result.exit_code,
        "stdout": stdout,
        "stderr": stderr,
        "truncated": result.truncated or stdout_cut or stderr_cut,
    }


def _end_of(printed: bytes) -> tuple[str, bool]:
    """A stream as text, without its middle if it is long; and whether that was removed."""
    text = printed.decode("utf-8", "replace")
    if len(text) <= _KEPT:
        return text, False
    half = _KEPT // 2
    left_out = len(text) - 2 * half
    return f"{text[:half]}\n[{left_out:,} characters left out]\n{text[-half:]}", True


def _text(data: dict[str, JsonValue]) -> str:
    parts = [str(data["stdout"])]
    if data["stderr"]:
        parts.append(f"[stderr]\n{data['stderr']}")
    if data["exit_code"] != 0:
        parts.append(f"[exit code {data['exit_code']}]")
    if data["truncated"]:
        parts.append("[truncated: true; send the output to a file or through head, tail or grep]")
    whole = "\n".join(part.rstrip("\n") for part in parts if part)
    return whole or "[exit code 0, nothing printed]"


PACK = Pack(tools=(shell_run,))
