"""Opens the line editor, and restores the terminal afterwards."""

import signal
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import TextIO

from aish.shell.input.editor import Editor, EditorSettings
from aish.shell.input.lines import Lines

_ENDS = (signal.SIGTERM, signal.SIGHUP)


@contextmanager
def open_editor(
    settings: EditorSettings, environ: Mapping[str, str], stdin: TextIO, stdout: TextIO
) -> Generator[Lines]:
    """The lines of a person; both streams have to be terminals.

    Meanwhile only the editor, and code within `question`, echo what is typed.
    """
    lines = Editor(settings, stdin, stdout, environ)
    try:
        with _restore_by_signals(lines):
            yield lines
    finally:
        lines.restore()


@contextmanager
def _restore_by_signals(lines: Lines) -> Generator[None]:
    """While no event loop handles signals, restore the terminal before one ends the process."""

    def end(number: int, _frame: FrameType | None) -> None:
        lines.restore()
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)

    ours = [number for number in _ENDS if signal.getsignal(number) is signal.SIG_DFL]
    try:
        for number in ours:
            signal.signal(number, end)
        yield
    finally:
        for number in ours:
            if signal.getsignal(number) is end:
                signal.signal(number, signal.SIG_DFL)
