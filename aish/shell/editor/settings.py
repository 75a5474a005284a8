"""What an editor is made with."""

from collections.abc import Callable
from pathlib import Path

from aish.core.frozen import frozen
from aish.shell.lines import Words


def nothing() -> str:
    """No text."""
    return ""


def as_it_is(text: str) -> str:
    """The same text."""
    return text


@frozen
class Settings:
    """The callables are asked each time something is drawn, so they have to be quick.

    `prompt` is the name before the line, `toolbar` what stands below it. `history` is a file,
    which gets what `mask` makes of a line; `folder` is where paths begin. `notice` is told what
    did not work but is no reason to end.
    """

    words: Words
    prompt: Callable[[], str]
    notice: Callable[[str], None]
    toolbar: Callable[[], str] = nothing
    history: Path | None = None
    mask: Callable[[str], str] = as_it_is
    folder: Path = Path()
    color: bool = True
