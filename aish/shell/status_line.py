"""The prompt and toolbar of the edited line, and the words for completion in a session."""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress

from aish.shell.command import Command, Completes
from aish.shell.commands.catalogue import COMMANDS
from aish.shell.commands.prompts import values_of
from aish.shell.input.deferred_editor import Shown
from aish.shell.servers import known_servers, taken_aliases
from aish.shell.session import Session

_PATHS: frozenset[Completes] = frozenset({"path", "attachment"})
_MOST_SESSIONS = 50


class SessionWords:
    """The words of the current session; nothing here waits for a server."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def commands(self) -> Mapping[str, str]:  # ruff: ignore[no-self-use] - see `lines.Words`
        """The commands with their summaries."""
        return {name: row.summary for name, row in COMMANDS.items()}

    def arguments(self, command: str) -> Sequence[str]:
        """Possible words after these words."""
        name, *words = command.split()
        row = COMMANDS.get(name)
        if row is not None and row.completes == "prompt" and words:
            given = {word.partition("=")[0] for word in words[1:]}
            values = values_of(self._session.open.plan.pipeline, words[0])
            return tuple(f"{value}=" for value in values if value not in given)
        if row is None or len(words) > 1:
            return ()
        if words:
            return self._of_kinds(form.completes for form in row.forms if form.name == words[0])
        return (*dict.fromkeys(form.name for form in row.forms), *self._of_kinds([row.completes]))

    def paths(self, command: str) -> bool:  # ruff: ignore[no-self-use] - see `lines.Words`
        """Whether a path may come next after these words."""
        row: Command | None = COMMANDS.get(command)
        return row is not None and row.completes in _PATHS

    def tools(self) -> Sequence[str]:
        """The tools as `alias__name`."""
        return tuple(str(tool.name) for tool in self._session.tools())

    def _of_kinds(self, kinds: Iterable[Completes]) -> tuple[str, ...]:
        found: Mapping[Completes, Callable[[], Iterable[str]]] = {
            "command": lambda: COMMANDS,
            "model": lambda: self._session.open.plan.pipeline.models,
            "tool": self.tools,
            "server": self._servers,
            "absent": self._absent,
            "attachment": self._session.open.offers.names,
            "session": self._sessions,
            "prompt": lambda: self._session.open.plan.pipeline.prompts,
        }
        return tuple(word for kind in kinds if kind in found for word in found[kind]())

    def _servers(self) -> Sequence[str]:
        return tuple(
            one.alias for one in self._session.open.servers.dynamic_registry.registry.servers
        )

    def _absent(self) -> Sequence[str]:
        taken = taken_aliases(self._session)
        return tuple(alias for alias in known_servers(self._session) if alias not in taken)

    def _sessions(self) -> Sequence[str]:
        """The ids of sessions, the newest first; their content is not read here."""
        place = self._session.open.place
        folder = place.wanted or place.project / ".aish" / place.folder_name
        names: list[str] = []
        with suppress(OSError), os.scandir(folder) as entries:
            names = [entry.name for entry in entries if not entry.name.startswith(".")]
        ours = self._session.open.environment.folder.id
        return sorted((name for name in names if name != ours), reverse=True)[:_MOST_SESSIONS]


def shown(session: Session) -> Shown:
    """The texts of a session that the editor shows."""
    return Shown(SessionWords(session), lambda: _prompt(session), lambda: _toolbar(session))


def _prompt(session: Session) -> str:
    return session.model or "aish"


def _toolbar(session: Session) -> str:
    servers = session.open.servers.dynamic_registry.registry.servers
    told = (
        ("connecting to", [one.alias for one in servers if one.state == "connecting"]),
        ("missing:", [one.alias for one in servers if one.state == "failed"]),
    )
    parts = [f"{state} {', '.join(names)}" for state, names in told if names]
    if session.autonomous.on:
        parts.append(f"norris: {session.autonomous.left} calls left")
    return "  ".join(parts)
