"""`run '<cmd>'? [y/N/e]`: asking about a command line that a model proposes (S2, P2)."""

from typing import Literal

from aish.system.secrets.secrets import Secrets
from aish.terminal.approver import YES
from aish.terminal.folding import barred, words
from aish.terminal.masking import Masks
from aish.terminal.pages import show_pages
from aish.terminal.sight import visible
from aish.terminal.tty import Terminal
from aish.terminal.turns import Turns

CommandAnswer = Literal["no", "yes", "edit"]

_EDIT = frozenset({"e", "edit"})
_LINE_ENDS = frozenset("\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029")
_RESIZED = "the window is narrower than it was, so here is the command again"
_SPELLED_OUT = "what cannot be seen in it is spelled out"


async def ask_command(
    command: str, terminal: Turns, *, secrets: Secrets | None = None
) -> CommandAnswer:
    """What a person says to one line; `no` to anything that is more than that, unasked."""
    if not terminal.attended or not command.strip() or not _LINE_ENDS.isdisjoint(command):
        return "no"
    shown = visible(Masks(secrets).text(command, "command"))
    note = _SPELLED_OUT if visible(command) != command else ""
    try:
        async with terminal.take() as screen:
            said = await _said(screen, shown, note)
    except OSError:
        # A terminal that goes away has not said yes.
        return "no"
    if said in YES:
        return "yes"
    return "edit" if said in _EDIT else "no"


async def _said(screen: Terminal, shown: str, note: str) -> str:
    """What is typed after all of it was seen; nothing where somebody stops reading."""
    while True:
        width = screen.width
        rows, prompt = _question(shown, width)
        rows = ("", *rows, *(words(note, width) if note else ()))
        # What scrolls out of sight is not seen, and a command may begin with the worst of it.
        if len(rows) < screen.height:
            await screen.show(rows)
        elif not await show_pages(screen, rows):
            return ""
        typed = await screen.ask(prompt)
        said = "" if typed is None else typed.strip().lower()
        if said not in YES or screen.width >= width:
            return said
        await screen.show(("", *words(_RESIZED, screen.width)))


def _question(shown: str, width: int) -> tuple[tuple[str, ...], str]:
    """The rows of a command that does not fit into the prompt, and the prompt."""
    prompt = f"run '{shown}'? [y/N/e]"
    # Broken at its spaces, a command would be another one; and it must not begin a line.
    if len(prompt) + 2 < width and prompt.isascii():
        return (), prompt
    return tuple(barred(shown, width)), "run this? [y/N/e]"
