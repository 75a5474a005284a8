"""Where a line goes: to the model, to a command, or to the local shell (S1). Pure."""

from aish.core.frozen import frozen


@frozen
class Question:
    """For the model, as it was typed."""

    text: str


@frozen
class CommandLine:
    """`:name rest`; `name` may be empty."""

    name: str
    rest: str


@frozen
class LocalLine:
    """`!command`, whose output goes to the model with the next turn, or `$command`."""

    command: str
    hand_over: bool


Route = Question | CommandLine | LocalLine


def route(line: str) -> Route | None:
    """Where `line` goes; nowhere if there is nothing in it.

    Only its first character counts: a line that begins with a blank is for the model, whatever
    comes then. A command is one line; local commands may have several.
    """
    if not line.strip():
        return None
    first, rest = line[0], line[1:].strip()
    if first == ":":
        name, *after = rest.split(None, 1) or [""]
        return CommandLine(name, after[0] if after else "")
    if first in "!$":
        return LocalLine(rest, hand_over=first == "!") if rest else None
    return Question(line.strip())
