"""Completions of the word before the cursor: commands, their arguments, tools, paths."""

import os
import re
from collections.abc import AsyncGenerator, Iterable, Iterator
from itertools import islice
from pathlib import Path

import anyio.to_thread
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document

from aish.core.text import for_line
from aish.shell.input.lines import Words

MOST_SHOWN = 200
_MOST_SCANNED = 20_000
_LAST_WORD = re.compile(r"(?:\\.|[^\s\\])*\\?\Z", re.DOTALL)
_FOR_SHELL = re.compile(r"([^\w@%+=:,./~-])", re.ASCII)
_ESCAPED = re.compile(r"\\(.)")

_Found = Iterator[tuple[str, str]]


class LineCompleter(Completer):
    """Calls `words` in the event loop, and the file system in a thread."""

    def __init__(self, words: Words, folder: Path) -> None:
        self._words = words
        self._folder = folder

    def get_completions(  # ruff: ignore[no-self-use] - what prompt_toolkit calls
        self, document: Document, complete_event: CompleteEvent
    ) -> Iterable[Completion]:
        """No completions: prompt_toolkit requests them asynchronously only."""
        del document, complete_event
        return ()

    async def get_completions_async(
        self, document: Document, complete_event: CompleteEvent
    ) -> AsyncGenerator[Completion, None]:
        """Matching words, then paths; paths only on request."""
        text = document.text_before_cursor
        if text.startswith(":"):
            candidates, typed, path = self._of_command(text[1:])
        else:
            candidates, typed, path = self._of_message(text)
        for name, meaning in islice(candidates, MOST_SHOWN):
            yield Completion(name, -len(typed), for_line(name), for_line(meaning))
        if path is None or not complete_event.completion_requested:
            return
        local = _is_local(text)
        start = _ESCAPED.sub(r"\1", path) if local else path
        for name in await anyio.to_thread.run_sync(
            paths_like, start, self._folder, abandon_on_cancel=True
        ):
            if local and not name.isprintable():
                # A backslash does not join words across lines.
                continue
            insertion = _FOR_SHELL.sub(r"\\\1", name) if local else name
            yield Completion(insertion, -len(path), for_line(_last_part(name)))

    def _of_command(self, text: str) -> tuple[_Found, str, str | None]:
        before, space, typed = text.rpartition(" ")
        if not space:
            return _words_with(typed, self._words.commands().items()), typed, None
        known = ((word, "") for word in self._words.arguments(" ".join(before.split())))
        return _words_with(typed, known), typed, self._path(text)

    def _path(self, text: str) -> str | None:
        """The text after the words that a path may follow: it may contain spaces."""
        words = text.split(" ")
        for count in range(1, len(words)):
            if self._words.paths(" ".join(words[:count])):
                return " ".join(words[count:])
        return None

    def _of_message(self, text: str) -> tuple[_Found, str, str | None]:
        match = _LAST_WORD.search(text)
        typed = match[0] if match else ""
        if _is_local(text):
            return iter(()), "", typed if typed != text else typed[1:]
        tools = ((name, "") for name in self._words.tools())
        path = typed if "/" in typed or typed.startswith((".", "~")) else None
        return _words_with(typed, tools) if typed else iter(()), typed, path


def _is_local(text: str) -> bool:
    return text.startswith(("!", "$"))


def paths_like(start: str, folder: Path) -> list[str]:
    above, slash, name = start.rpartition("/")
    try:
        place = folder / Path(above + slash).expanduser()
        with os.scandir(place) as entries:
            paths = [
                f"{above}{slash}{entry.name}{'/' if entry.is_dir() else ''}"
                for entry in islice(entries, _MOST_SCANNED)
                if entry.name.startswith(name) and (name or not entry.name.startswith("."))
            ]
    except (OSError, ValueError, RuntimeError):
        return []
    return sorted(paths)[:MOST_SHOWN]


def _words_with(typed: str, known: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    return ((word, meaning) for word, meaning in known if word.startswith(typed))


def _last_part(path: str) -> str:
    above, slash, name = path.rstrip("/").rpartition("/")
    return path[len(above + slash) :] if name else path
