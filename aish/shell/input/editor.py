"""The line editor of a session at a terminal, by prompt_toolkit.

Invisible characters and terminal control characters are shown escaped while a line is edited.
"""

import asyncio
import os
import signal
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO, cast

from prompt_toolkit.application import get_app
from prompt_toolkit.document import Document
from prompt_toolkit.filters import Condition
from prompt_toolkit.formatted_text import StyleAndTextTuples
from prompt_toolkit.input.typeahead import clear_typeahead, get_typeahead, store_typeahead
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.keys import Keys
from prompt_toolkit.layout.processors import Processor, Transformation, TransformationInput
from prompt_toolkit.layout.utils import explode_text_fragments
from prompt_toolkit.output import ColorDepth
from prompt_toolkit.shortcuts.prompt import PromptSession
from prompt_toolkit.styles import Style

from aish.core.frozen import frozen
from aish.core.text import for_line, for_terminal, safe_utf8
from aish.shell.input.completion import LineCompleter
from aish.shell.input.history import HistoryFile, Remembered
from aish.shell.input.keyboard import Keyboard
from aish.shell.input.lines import INTERRUPTED, OnKey, Words
from aish.shell.input.streams import AboveStream, Typing, Unasked


def key_bindings() -> KeyBindings:
    """Enter sends, Escape and Enter begin another line, Tab completes."""
    keys = KeyBindings()

    @keys.add("escape", "enter")
    @keys.add("escape", "c-j")
    def begin_line(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    @keys.add("enter", filter=_after_backslash)
    def go_on(event: KeyPressEvent) -> None:
        event.current_buffer.delete_before_cursor()
        event.current_buffer.insert_text("\n")

    return keys


@Condition
def _after_backslash() -> bool:
    document = get_app().current_buffer.document
    before = document.text_before_cursor
    odd = (len(before) - len(before.rstrip("\\"))) % 2
    return document.is_cursor_at_the_end and bool(odd) and not before.startswith(":")


_TAB = "    "
_SELECTORS = frozenset("\ufe0e\ufe0f")


class OddText(Processor):
    """Shows text as `aish.core.text` does, but by character: the cursor position stays right."""

    def apply_transformation(  # ruff: ignore[no-self-use] - what prompt_toolkit calls
        self, transformation_input: TransformationInput
    ) -> Transformation:
        """Escape unusual characters of one line."""
        fragments = transformation_input.fragments
        line = "".join(fragment[1] for fragment in fragments)
        if "\t" not in line and for_terminal(line) == line:
            return Transformation(fragments)
        shown: StyleAndTextTuples = []
        places = [0]
        for fragment in explode_text_fragments(fragments):
            text = _show_character(fragment[1])
            odd = "" if text == fragment[1] else " class:odd"
            shown.append((fragment[0] + odd, text))
            places.append(places[-1] + len(text))
        places.append(places[-1] + 1)
        return Transformation(
            shown,
            source_to_display=lambda at: places[min(at, len(places) - 1)],
            display_to_source=lambda at: sum(1 for place in places[1:] if place <= at),
        )


def _show_character(character: str) -> str:
    if character == "\t":
        return _TAB
    # A variation selector is unusual only outside an emoji, which one character does not show.
    return character if character in _SELECTORS else for_terminal(character)


@frozen
class EditorSettings:
    """The callables are called each time something is drawn, so they have to be fast.

    `prompt` is the name before the line, `toolbar` the text below it. `history` is a file that gets
    lines as masked by `mask`; `folder` is where relative paths start. `notice` is called for
    problems that do not end the session.
    """

    words: Words
    prompt: Callable[[], str]
    notice: Callable[[str], None]
    toolbar: Callable[[], str] = str
    history: Path | None = None
    mask: Callable[[str], str] = str
    folder: Path = Path()
    color: bool = True


_MENU = 8
_BESIDE_MENU = 4
_NO_UTF8 = "the input is not valid UTF-8; invalid bytes were replaced"
_STYLE = Style.from_dict({"prompt": "bold", "bottom-toolbar": "noreverse dim", "odd": "ansired"})


class Editor:
    """Reads messages from a person; see `Lines`.

    Others write to the terminal through `out`, and read from it within `question`.
    """

    def __init__(
        self, settings: EditorSettings, stdin: TextIO, stdout: TextIO, environ: Mapping[str, str]
    ) -> None:
        self._settings = settings
        self._label: str | None = None
        self._aside = False
        self._interrupted = False
        self._is_message = False
        self._draft = Document()
        self._keyboard = Keyboard(stdin.fileno(), _writer(stdout))
        self._input = Typing(stdin)
        self._history = Remembered(HistoryFile(settings.history, settings.mask, settings.notice))
        self._session = self._make_session(stdout, environ.get("TERM"))
        self._app = self._session.app
        self._app.terminal_size_polling_interval = None
        self._app.before_render += self._lay_out
        self._above = AboveStream(stdout, lambda: self._app.is_running, self.above)
        self._keyboard.take()

    @property
    def out(self) -> TextIO:
        return cast("TextIO", self._above)

    async def next(self) -> str | None:
        """See `Lines`; Ctrl-C starts a message again, Ctrl-D on an empty line ends the input."""
        self._input.put(bytes(self._keyboard.typed))
        self._keyboard.typed.clear()
        store_typeahead(self._input, self._input.read_keys())
        while not self._interrupted:
            draft, self._draft = self._draft, Document()
            self._is_message = True
            try:
                with self._keyboard.message():
                    text = await self._editable(draft)
            except KeyboardInterrupt:
                continue
            except EOFError:
                return None
            finally:
                self._is_message = self._app.erase_when_done = False
            if text.strip():
                return text
        self._interrupted = False
        return INTERRUPTED

    def interrupt(self) -> None:
        self._interrupted = True
        self._leave_message()

    async def edit(self, text: str, label: str) -> str | None:
        """A text as changed; Ctrl-C, Ctrl-D or an empty text cancel.

        Input typed before it was shown does not answer it, and is kept.
        """
        waiting = get_typeahead(self._input)
        self._label, self._history.listening = label, False
        try:
            return (await self._editable(Document(text))).strip() or None
        except (KeyboardInterrupt, EOFError):
            return None
        finally:
            self._label, self._history.listening = None, True
            store_typeahead(self._input, waiting)

    @contextmanager
    def busy(self, on_key: OnKey | None = None) -> Generator[None]:
        """See `Lines`; a Ctrl-C that was read together with the Enter counts as a signal too."""
        waiting = get_typeahead(self._input)
        for at, key in enumerate(waiting):
            if key.key is Keys.ControlC:
                signal.raise_signal(signal.SIGINT)
                waiting = waiting[at + 1 :]
                break
        store_typeahead(self._input, waiting)
        with self._keyboard.quiet(on_key):
            yield

    @contextmanager
    def question(self) -> Generator[None]:
        if not self._app.is_running or self._aside:
            read = "".join(key.data for key in get_typeahead(self._input))
            self._keyboard.throw_away(self._settings.notice, read)
            with self._keyboard.restore_mode():
                yield
            return
        with self.above(), self._input.detach(), self._keyboard.restore_mode():
            yield

    @contextmanager
    def above(self) -> Generator[None]:
        """Hide the edited line, so that others can write whole lines to stdout."""
        if not self._app.is_running or self._aside:
            yield
            return
        self._app.renderer.erase()
        self._stand_aside(aside=True)
        try:
            yield
        finally:
            self._stand_aside(aside=False)
            self._app.renderer.reset()
            self._app.invalidate()
            self._leave_message()

    def refresh(self) -> None:
        self._app.invalidate()

    def forget(self) -> None:
        self._keyboard.forget()
        clear_typeahead(self._input)

    def restore(self) -> None:
        self._keyboard.restore()

    def _make_session(self, stdout: TextIO, term: str | None) -> "PromptSession[str]":
        settings = self._settings
        return PromptSession(
            self._prompt,
            completer=LineCompleter(settings.words, settings.folder),
            complete_while_typing=Condition(self._is_command),
            history=self._history,
            key_bindings=key_bindings(),
            input_processors=[OddText()],
            prompt_continuation=_continuation,
            style=_STYLE,
            include_default_pygments_style=False,
            color_depth=None if settings.color else ColorDepth.DEPTH_1_BIT,
            enable_suspend=True,
            input=self._input,
            output=Unasked.from_pty(stdout, term=term, enable_bell=False),
        )

    def _leave_message(self) -> None:
        """Put the message that is typed aside, if that was asked for and is possible now."""
        waiting = self._app.future
        if not (self._interrupted and self._is_message) or self._aside:
            return
        if waiting is not None and not waiting.done():
            self._draft = self._session.default_buffer.document
            self._app.erase_when_done = True
            self._app.exit(result="")

    async def _editable(self, text: Document) -> str:
        loop = asyncio.get_running_loop()
        before = loop.get_exception_handler()
        loop.set_exception_handler(self._fail)
        self._above.begin()
        try:
            typed = await self._session.prompt_async(
                default=text,
                set_exception_handler=False,
                handle_sigint=False,
                pre_run=self._leave_message,
            )
        finally:
            loop.set_exception_handler(before)
            self._above.release()
        safe = safe_utf8(typed)
        if safe != typed:
            self._settings.notice(_NO_UTF8)
        return safe

    def _fail(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """An exception in a callback while a line is edited ends the editing, and is not hidden."""
        error = context.get("exception")
        waiting = self._app.future
        if isinstance(error, Exception) and waiting is not None and not waiting.done():
            waiting.set_exception(error)
        else:
            loop.default_exception_handler(context)

    def _stand_aside(self, *, aside: bool) -> None:
        self._aside = aside
        self._app._running_in_terminal = aside  # ruff: ignore[private-member-access] - what `in_terminal` sets; that cannot be used where nothing can be awaited

    def _prompt(self) -> StyleAndTextTuples:
        label = self._label if self._label is not None else f"{self._settings.prompt()}> "
        room = max(1, self._app.output.get_size().columns // 2)
        text = for_line(label)
        return [("class:prompt", text if len(text) <= room else f"{text[: room - 2]}> ")]

    def _is_command(self) -> bool:
        return self._label is None and self._session.default_buffer.text.startswith(":")

    def _lay_out(self, _: object) -> None:
        """Adjust the layout before drawing: no row for an empty toolbar, not all for a menu."""
        rows = self._app.output.get_size().rows
        self._session.reserve_space_for_menu = max(0, min(_MENU, rows - _BESIDE_MENU))
        self._session.bottom_toolbar = for_line(self._settings.toolbar()) or None


def _continuation(width: int, line: int, wrapped: int) -> str:  # ruff: ignore[unused-function-argument] - what prompt_toolkit calls it with
    return "" if wrapped else " " * width


def _writer(stdout: TextIO) -> Callable[[str], None]:
    def write(text: str) -> None:
        # Not through the buffer of the stream: a signal may arrive while other code is using it.
        os.write(stdout.fileno(), text.encode())

    return write
