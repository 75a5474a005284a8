"""What the editor asks of a session that is not there yet when the editor is made."""

from collections.abc import Mapping, Sequence

from aish.shell.lines import Words
from aish.shell.session import Session
from aish.vocab.event_parts import NOWHERE
from aish.vocab.events import Notice
from aish.vocab.protocols import Emit


class Late:
    """`lines.Words`, the prompt and the toolbar of a session, once it is held."""

    def __init__(self) -> None:
        self.emit: Emit | None = None
        self._session: Session | None = None
        self._words: Words | None = None

    def hold(self, session: Session) -> None:
        """This is the session."""
        from aish.shell.words import SessionWords

        self._session = session
        self._words = SessionWords(session)

    def notice(self, text: str) -> None:
        """Tell something that is no reason to end."""
        if self.emit is not None:
            self.emit(Notice(NOWHERE, "warning", "input", text))

    def prompt(self) -> str:
        """The name before the line: the model's alias."""
        session = self._session
        return "aish" if session is None or session.model is None else session.model

    def toolbar(self) -> str:
        """What is connecting or missing, and whether calls run unasked."""
        session = self._session
        if session is None:
            return ""
        servers = session.open.servers.roster.registry.servers
        parts = [
            f"{state} {', '.join(names)}"
            for state, names in (
                ("connecting to", [s.alias for s in servers if s.state == "connecting"]),
                ("missing:", [s.alias for s in servers if s.state == "failed"]),
            )
            if names
        ]
        if session.norris.on:
            parts.append(f"norris: {session.norris.left} calls left")
        return "  ".join(parts)

    def commands(self) -> Mapping[str, str]:
        """See `Words`."""
        return {} if self._words is None else self._words.commands()

    def arguments(self, command: str) -> Sequence[str]:
        """See `Words`."""
        return () if self._words is None else self._words.arguments(command)

    def paths(self, command: str) -> bool:
        """See `Words`."""
        return self._words is not None and self._words.paths(command)

    def tools(self) -> Sequence[str]:
        """See `Words`."""
        return () if self._words is None else self._words.tools()
