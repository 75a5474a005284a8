"""A conversation as Markdown for people. Untrusted text in it is sanitized."""

from collections.abc import Iterator, Sequence

from aish.core.messages import AssistantTurn, SystemTurn, ToolTurn, Turn, UserTurn
from aish.core.text import for_terminal


def title(id: str) -> str:
    return f"# {id}"


def transcript(turns: Sequence[Turn], id: str) -> str:
    """The whole conversation of a session; tool calls and their results in fences."""
    parts = [title(id)]
    parts += [part for turn in turns for part in _parts(turn)]
    return for_terminal("\n\n".join(parts)) + "\n"


def _parts(turn: Turn) -> Iterator[str]:
    match turn:
        case SystemTurn(text):
            yield "## system"
            yield _fence(text)
        case UserTurn(text, media):
            yield "## you"
            yield text
            yield from (f"({medium.mime_type}, {len(medium.data):,} bytes)" for medium in media)
        case AssistantTurn(text, calls, _, origin):
            yield f"## {origin.partition(' ')[0] or 'model'}"
            if text:
                yield text
            for call in calls:
                yield f"calls `{call.name}`"
                yield _fence(call.arguments)
        case ToolTurn(_, tool, content):
            yield f"`{tool}` answers"
            yield _fence(content)


def _fence(text: str) -> str:
    """In a fence that is longer than any in the text."""
    mark = "```"
    while mark in text:
        mark += "`"
    return f"{mark}\n{text}\n{mark}"
