"""Asking the person at the terminal about a tool call (P2)."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

from aish.core.protocols import Answer, Question
from aish.system.secrets.secrets import Secrets
from aish.terminal.folding import field, words
from aish.terminal.pages import show_pages
from aish.terminal.question import Sheet, sheet_of
from aish.terminal.sight import visible
from aish.terminal.tty import Terminal
from aish.terminal.turns import Turns

PROMPT = "send this call? [y/N]"
PROMPT_ALWAYS = "send this call? [y/N/a]"
VIEW = "v shows all of it [v/N]"
UNSEEN = "not before all of it was shown"
RESIZED = "the window is narrower than it was, so here is the call again"
UNSHOWN = "its arguments are nested too deeply to be shown"
YES = frozenset({"y", "yes"})
_ALWAYS = frozenset({"a", "always"})
_VIEW = frozenset({"v", "view"})


class TerminalApprover:
    """Asks one question at a time; only `y` or `yes` is yes, only `a` or `always` is always.

    Talks to `/dev/tty`, to the descriptors given, or where `turns` says.
    """

    def __init__(
        self,
        *,
        reader: int | None = None,
        writer: int | None = None,
        pause: Callable[[], AbstractContextManager[object]] = nullcontext,
        secrets: Secrets | None = None,
        turns: Turns | None = None,
    ) -> None:
        self._turns = turns or Turns(reader=reader, writer=writer, pause=pause)
        self._secrets = secrets

    @property
    def attended(self) -> bool:
        """Whether there is a terminal; a pipe is not a person."""
        return self._turns.attended

    async def ask(self, question: Question) -> Answer:
        """Anything but `no` only where it was typed after the whole question was shown."""
        if not self.attended:
            return "no"
        try:
            async with self._turns.take() as terminal:
                return await self._asked(terminal, question)
        except OSError:
            # A terminal that goes away has not said yes.
            return "no"

    async def _asked(self, terminal: Terminal, question: Question) -> Answer:
        while True:
            width = terminal.width
            try:
                sheet = sheet_of(question, width, self._secrets)
            except (RecursionError, ValueError):
                name = visible(str(question.tool.name))
                await terminal.show(("", *field("not sent", f"{name}: {UNSHOWN}", width)))
                return "no"
            answer = await _answer(terminal, sheet)
            if answer == "no" or terminal.width >= width:
                return answer
            # The terminal has folded the rows by itself, so that some began without our bar.
            await terminal.show(("", *words(RESIZED, terminal.width)))


async def _answer(terminal: Terminal, sheet: Sheet) -> Answer:
    if not sheet.is_long:
        await terminal.show(sheet.whole())
    elif not await _shown_all(terminal, sheet):
        return "no"
    typed = await terminal.ask(PROMPT_ALWAYS if sheet.offers_always else PROMPT)
    said = "" if typed is None else typed.strip().lower()
    if said in YES:
        return "yes"
    return "always" if said in _ALWAYS and sheet.offers_always else "no"


async def _shown_all(terminal: Terminal, sheet: Sheet) -> bool:
    """Whether the person has looked at everything of a long call."""
    await terminal.show(sheet.beginning())
    while True:
        typed = await terminal.ask(VIEW)
        said = "" if typed is None else typed.strip().lower()
        if said in _VIEW:
            return await show_pages(terminal, sheet.whole())
        if said not in YES | _ALWAYS:
            return False
        await terminal.show(words(UNSEEN, terminal.width))
