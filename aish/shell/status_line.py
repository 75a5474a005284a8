"""The prompt and toolbar of the edited line, and the words for completion in a session."""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress

from aish.shell.command import Completes, ShellCommand
from aish.shell.commands.catalogue import COMMANDS
from aish.shell.commands.prompts import values_of
from aish.shell.input.deferred_editor import Shown
from aish.shell.servers import aliases_in_use, session_servers
from aish.shell.session import ShellSession

_PATHS: frozenset[Completes] = frozenset({"path", "attachment"})
_MOST_SESSIONS = 50


class SessionWords:
    """The words of the current session; nothing here waits for a server."""

    def __init__(self, session: ShellSession) -> None:
        self._session = session

    def commands(self) -> Mapping[str, str]:  # ruff: ignore[no-self-use] - see `lines.Words`
        return {name: row.summary for name, row in COMMANDS.items()}

    def arguments(self, command: str) -> Sequence[str]:
        name, *words = command.split()
        row = COMMANDS.get(name)
        if row is not None and row.completes == "prompt" and words:
            keys = {word.partition("=")[0] for word in words[1:]}
            values = values_of(self._session.open.plan.pipeline, words[0])
            return tuple(f"{value}=" for value in values if value not in keys)
        if row is None or len(words) > 1:
            return ()
        if words:
            return self._of_kinds(form.completes for form in row.forms if form.name == words[0])
        return (*dict.fromkeys(form.name for form in row.forms), *self._of_kinds([row.completes]))

    def paths(self, command: str) -> bool:  # ruff: ignore[no-self-use] - see `lines.Words`
        row: ShellCommand | None = COMMANDS.get(command)
        return row is not None and row.completes in _PATHS

    def tools(self) -> Sequence[str]:
        return tuple(str(tool.name) for tool in self._session.tools())

    def _of_kinds(self, kinds: Iterable[Completes]) -> tuple[str, ...]:
        sources: Mapping[Completes, Callable[[], Iterable[str]]] = {
            "command": lambda: COMMANDS,
            "model": lambda: self._session.open.plan.pipeline.models,
            "tool": self.tools,
            "server": self._servers,
            "absent": self._absent,
            "attachment": self._session.open.offers.names,
            "session": self._sessions,
            "prompt": lambda: self._session.open.plan.pipeline.prompts,
        }
        return tuple(word for kind in kinds if kind in sources for word in sources[kind]())

    def _servers(self) -> Sequence[str]:
        return tuple(server.alias for server in self._session.servers)

    def _absent(self) -> Sequence[str]:
        taken = aliases_in_use(self._session)
        return tuple(alias for alias in session_servers(self._session) if alias not in taken)

    def _sessions(self) -> Sequence[str]:
        """The ids of sessions, the newest first; their content is not read here."""
        place = self._session.open.place
        folder = place.wanted or place.project / ".aish" / place.folder_name
        names: list[str] = []
        with suppress(OSError), os.scandir(folder) as entries:
            names = [entry.name for entry in entries if not entry.name.startswith(".")]
        ours = self._session.open.environment.folder.id
        return sorted((name for name in names if name != ours), reverse=True)[:_MOST_SESSIONS]


def make_status_line(session: ShellSession) -> Shown:
    return Shown(SessionWords(session), lambda: session.model or "aish", lambda: _toolbar(session))


def _toolbar(session: ShellSession) -> str:
    servers = session.servers
    states = (
        ("connecting to", [server.alias for server in servers if server.state == "connecting"]),
        ("missing:", [server.alias for server in servers if server.state == "failed"]),
    )
    parts = [f"{state} {', '.join(names)}" for state, names in states if names]
    if session.autonomous.on:
        parts.append(f"norris: {session.autonomous.left} calls left")
    return "  ".join(parts)
