"""The first and the last line of a session, and what a turn came to: pure, events in, text out."""

from collections.abc import Iterator

from aish.core.events import RunFinished, RunStarted, TurnFinished
from aish.core.text import counted, dollars, for_line
from aish.sinks.look import Look
from aish.sinks.sentences import parts_in_rows
from aish.sinks.tally import seconds_text, tokens_text


def opening_text(look: Look, event: RunStarted) -> str:
    """The file, its models, and the servers with what is known of them by now."""
    parts = [f"{model.alias} ({model.model})" for model in event.models]
    for server in event.servers:
        state = counted(server.tools, "tool") if server.state == "ready" else server.state
        parts.append(f"{server.alias} ({state})")
    title = look.fit(for_line(event.pipeline), look.width)
    rest = "".join(f" {look.glyphs.dot} {part}" for part in parts)
    return look.paint("bold", title) + look.paint(
        "dim", look.fit(for_line(rest), max(0, look.width - len(title)))
    )


def closing_rows(look: Look, event: RunFinished, answers: int) -> Iterator[str]:
    """What the session came to, and where it is kept."""
    parts = [counted(answers, "answer"), tokens_text(event.usage)]
    if event.cost_usd:
        parts.append(dollars(event.cost_usd))
    if event.folder:
        parts.append(event.folder)
    return parts_in_rows(list(map(for_line, parts)), look.glyphs.dot, look.width)


def turn_text(look: Look, event: TurnFinished) -> str:
    """Tokens, cost and time of one turn."""
    cost = dollars(event.cost_usd) if event.cost_usd else ""
    parts = [event.model, tokens_text(event.usage), cost, seconds_text(event.seconds)]
    return f"{look.glyphs.dot} " + f" {look.glyphs.dot} ".join(filter(None, parts))
