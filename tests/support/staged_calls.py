"""Staged calls to write, read and apply in tests."""

from typing import Any

from aish.core.json import JsonObject
from aish.core.tools import ToolName
from aish.features.staging.file import StagedCall, StagedHead, with_digest
from aish.policy.lock import ServerPin

HEAD = StagedHead("20261121T153101Z-notes-9kq2", "notes", "notes.yaml", "0" * 64)
PACK = ServerPin("pack", ("fs",), {})
HTTP = ServerPin("http", ("https://example.org/mcp",), {})
STDIO = ServerPin("stdio", ("uvx", "server", "${PLACE}"), {})


def a_call(number: int, arguments: JsonObject | None = None, **changes: Any) -> StagedCall:
    fields: dict[str, Any] = {
        "time": "2026-11-21T15:31:01.250Z",
        "step": "write",
        "item": None,
        "name": ToolName("repo", "file_write"),
        "server": PACK,
        "arguments": arguments or {"path": f"{number}.txt"},
        "definition": "d" * 64,
        "rule": "repo__file_write",
        "decision": f"{number:064x}",
    }
    return with_digest(StagedCall(**(fields | changes)), HEAD)
