"""The modes of a terminal in which a line is typed and seen, whoever had it before us (P2)."""

import termios
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from typing import Any

_IN, _OUT, _LOCAL, _KEYS = 0, 1, 3, 6
_KEY_OFF = b"\x00"
_USUAL_KEYS = ((termios.VINTR, b"\x03"), (termios.VEOF, b"\x04"), (termios.VERASE, b"\x7f"))
CTRL_C = b"\x03"


@contextmanager
def line_mode(device: int, *, interrupts: bool = True) -> Generator[None, None, None]:
    """Lines, with echo; what was set before is set again at the end.

    Without `interrupts` Ctrl-C sends no signal: it ends the line, as its last character.

    Raises:
        OSError: the terminal is gone.
    """
    with _changed(device, lambda before: _for_lines(before, interrupts=interrupts)):
        yield


@contextmanager
def every_key(device: int) -> Generator[None, None, None]:
    """What was typed can be read without waiting for the end of a line.

    Raises:
        OSError: the terminal is gone.
    """
    with _changed(device, _for_keys):
        yield


def drop_typed(device: int) -> None:
    """Throw away what was typed and not read.

    Raises:
        OSError: the terminal is gone.
    """
    try:
        termios.tcflush(device, termios.TCIFLUSH)
    except termios.error as gone:
        raise OSError(*gone.args) from gone


@contextmanager
def _changed(device: int, change: Callable[[list[Any]], list[Any]]) -> Generator[None, None, None]:
    before = _modes(device)
    _set(device, change(before))
    try:
        yield
    finally:
        # Where it went away there is nothing to be set.
        with suppress(OSError):
            _set(device, before)


def _for_keys(before: list[Any]) -> list[Any]:
    modes = [*before]
    modes[_LOCAL] &= ~termios.ICANON
    keys = list(modes[_KEYS])
    keys[termios.VMIN], keys[termios.VTIME] = 1, 0
    modes[_KEYS] = keys
    return modes


def _for_lines(before: list[Any], *, interrupts: bool) -> list[Any]:
    modes = [*before]
    modes[_IN] |= termios.ICRNL
    modes[_IN] &= ~(termios.IGNCR | termios.INLCR | termios.ISTRIP)
    modes[_OUT] |= termios.OPOST | termios.ONLCR
    modes[_LOCAL] |= termios.ICANON | termios.ECHO | termios.ECHOE | termios.IEXTEN | termios.ISIG
    keys = list(modes[_KEYS])
    for key, usual in _USUAL_KEYS:
        keys[key] = usual if keys[key] == _KEY_OFF else keys[key]
    if not interrupts:
        modes[_LOCAL] &= ~termios.ISIG
        keys[termios.VEOL] = CTRL_C
    modes[_KEYS] = keys
    return modes


def _modes(device: int) -> list[Any]:
    try:
        return termios.tcgetattr(device)
    except termios.error as gone:
        raise OSError(*gone.args) from gone


def _set(device: int, modes: list[Any]) -> None:
    try:
        # At once: output that was stopped by the person would hold up anything else.
        termios.tcsetattr(device, termios.TCSANOW, modes)
    except termios.error as gone:
        raise OSError(*gone.args) from gone
