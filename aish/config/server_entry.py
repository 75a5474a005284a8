"""`mcp.servers` as declared (design 2.1): nothing is resolved; durations are seconds."""

from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import Literal

from aish.core.frozen import frozen

ProtocolChoice = Literal[
    "auto", "legacy", "2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25", "2026-07-28"
]


@frozen
class ServerTimeout:
    """Seconds. `tools` overrides `call` per tool name."""

    connect: float = 20.0
    call: float = 60.0
    tools: Mapping[str, float] = field(default_factory=dict)


@frozen
class ServerEntry:
    """`mcp.servers.ALIAS`. Exactly one of `url`, `command` and `pack` is set.

    `command` is the whole argv (`args` already appended). `env` maps names to values; a value of
    `None` means "pass on the variable of that name". `root` and `cwd` are absolute. `roots` are
    the folders told to a server that asks (M11). `tools` and `exclude` are globs over the
    server's own tool names; an empty `tools` means all. `required` of `None` leaves it to who opens
    the server: a run wants it, a session goes on without it (M5).
    """

    alias: str
    url: str | None = None
    auth_env: str | None = None
    auth_token: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    command: tuple[str, ...] = ()
    env: Mapping[str, str | None] = field(default_factory=dict)
    cwd: Path | None = None
    pack: tuple[str, ...] = ()
    root: Path | None = None
    required: bool | None = None
    trust: bool = False
    protocol: ProtocolChoice = "auto"
    sampling: Literal["deny", "allow"] = "deny"
    roots: tuple[Path, ...] = ()
    tools: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    timeout: ServerTimeout = ServerTimeout()
    verify_tls: bool = True
