"""What completion knows in a session: `lines.Words`, asked at each key."""

from collections.abc import Callable, Mapping, Sequence

from aish.shell.command import Completes
from aish.shell.commands.catalogue import COMMANDS
from aish.shell.session import Session

_MCP = ("list", "tools", "tool", "connect", "disconnect")
_PATHS = frozenset({"run", "save", "attach", "export"})


class SessionWords:
    """The words of a session as it is now."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def commands(self) -> Mapping[str, str]:  # ruff: ignore[no-self-use] - see `lines.Words`
        """The commands, and what each does."""
        return {name: row.summary for name, row in COMMANDS.items()}

    def arguments(self, command: str) -> Sequence[str]:
        """What may come after these words."""
        match command.split():
            case ["mcp"]:
                return _MCP
            case ["mcp", "tool" | "tools"]:
                return self.tools()
            case ["mcp", "disconnect"]:
                return self._servers()
            case [name] if name in COMMANDS:
                return self._of_kind(COMMANDS[name].completes)
        return ()

    def _of_kind(self, kind: Completes) -> Sequence[str]:
        found: Mapping[Completes, Callable[[], Sequence[str]]] = {
            "command": lambda: tuple(COMMANDS),
            "model": lambda: tuple(self._session.open.plan.pipeline.models),
            "tool": self.tools,
            "switch": lambda: ("on", "off"),
        }
        return found[kind]() if kind in found else ()

    def paths(self, command: str) -> bool:  # ruff: ignore[no-self-use] - see `lines.Words`
        """Whether a path may come next."""
        return command in _PATHS

    def tools(self) -> Sequence[str]:
        """The tools as `alias__name`."""
        return tuple(str(tool.name) for tool in self._session.tools())

    def _servers(self) -> Sequence[str]:
        return tuple(one.alias for one in self._session.open.servers.roster.registry.servers)
