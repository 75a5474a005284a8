"""The editor that fits a terminal, and the terminal as it was afterwards."""

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import TextIO

from aish.shell.editor.dumb import DumbEditor
from aish.shell.editor.settings import Settings
from aish.shell.lines import Lines


@contextmanager
def open_editor(
    settings: Settings, environ: Mapping[str, str], stdin: TextIO, stdout: TextIO
) -> Generator[Lines]:
    """The lines of a person; both streams have to be terminals.

    Meanwhile nothing that is typed is echoed, but by the editor and within `question`.
    """
    lines = _editor(settings, environ, stdin, stdout)
    try:
        yield lines
    finally:
        lines.restore()


def _editor(settings: Settings, environ: Mapping[str, str], stdin: TextIO, stdout: TextIO) -> Lines:
    if environ.get("TERM", "") in {"", "dumb"}:
        return DumbEditor(settings.prompt, stdin, stdout)
    # Costs a tenth of a second, which a dumb terminal need not wait for.
    from aish.shell.editor.editor import Editor

    return Editor(settings, stdin, stdout, environ)
