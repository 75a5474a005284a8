"""A long text in pages, for a person who has to have seen all of it (P2)."""

from collections.abc import Sequence

from aish.terminal.tty import Terminal

_LEAST = 5
_FOR_THE_PROMPT = 2
_REST = "all"


async def show_pages(terminal: Terminal, rows: Sequence[str]) -> bool:
    """Show all rows; false where the person had enough before the end."""
    start, everything = 0, False
    while True:
        size = len(rows) if everything else max(terminal.height - _FOR_THE_PROMPT, _LEAST)
        await terminal.show(rows[start : start + size])
        start += size
        if start >= len(rows):
            return True
        prompt = f"{len(rows) - start:,} more rows [Enter: next page, {_REST}: the rest, n: no]"
        typed = await terminal.ask(prompt)
        said = None if typed is None else typed.strip().lower()
        if said not in {"", _REST}:
            return False
        everything = said == _REST
