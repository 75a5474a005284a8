"""A command of a session: a row of the table that help, completion and docs are generated from."""

from collections.abc import Awaitable, Callable, Iterable
from typing import Literal

from aish.core.errors import UsageError, did_you_mean
from aish.core.frozen import frozen
from aish.shell.session import ShellSession

Completes = Literal[
    "", "command", "model", "server", "absent", "tool", "path", "attachment", "session", "prompt"
]
"""What kind of word an argument is."""

Run = Callable[[ShellSession, str], Awaitable[None]]
"""Takes the session and what was typed after the name.

It raises an `AishError` where that cannot be done, and nothing has changed then.
"""


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The hint with the command of the most similar name; the colon, which all have, is ignored."""
    hint = did_you_mean(name, known)
    return hint and hint.replace("`", "`:", 1)


@frozen
class Form:
    """A word that may follow a command's name, with its arguments and its effect: `on [N]`."""

    spelled: str
    summary: str
    completes: Completes = ""
    run: Run | None = None
    """What does it, where the command leaves that to its forms."""

    @property
    def name(self) -> str:
        return self.spelled.partition(" ")[0]


@frozen
class ShellCommand:
    """`spelled` as `model [ALIAS]`, `summary` one line, `details` further text.

    `also` are aliases, which no list shows.
    """

    spelled: str
    summary: str
    run: Run
    details: str = ""
    completes: Completes = ""
    forms: tuple[Form, ...] = ()
    also: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.spelled.partition(" ")[0]

    @property
    def title(self) -> str:
        return f":{self.spelled}"

    async def take(self, session: ShellSession, rest: str) -> None:
        """Execute what was typed.

        Raises:
            AishError: the command failed, and nothing has changed.
        """
        if rest and self.spelled == self.name:
            hint = f"`:help {self.name}` describes it"
            raise UsageError(f"`:{self.name}` takes no arguments", hint=hint)
        await self.run(session, rest)
