"""What a command of a session is: a row of the table that help, completion and docs are made of."""

from collections.abc import Awaitable, Callable
from typing import Literal

from aish.shell.session import Session
from aish.vocab.frozen import frozen

Completes = Literal[
    "", "command", "model", "server", "tool", "path", "attachment", "session", "switch"
]
"""What kind of word its argument is."""


@frozen
class Command:
    """`name` without its colon, `usage` the arguments, `summary` one line, `details` any more.

    `run` takes the session and what was typed after the name. It raises an `AishError` where
    that cannot be done, and nothing has changed then.
    """

    name: str
    usage: str
    summary: str
    run: Callable[[Session, str], Awaitable[None]]
    details: str = ""
    completes: Completes = ""

    @property
    def title(self) -> str:
        """As it is typed: `:model [ALIAS]`."""
        return f":{self.name} {self.usage}".rstrip()
