"""What stands beside the line that is edited: the model's alias, and how the servers are."""

from aish.shell.late import Shown
from aish.shell.session import Session
from aish.shell.words import SessionWords


def shown(session: Session) -> Shown:
    """What the editor shows of a session."""
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
    if session.norris.on:
        parts.append(f"norris: {session.norris.left} calls left")
    return "  ".join(parts)
