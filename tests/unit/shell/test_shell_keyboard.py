"""Who hears a key that is pressed while no line is edited (S1, S5)."""

import os
import pty
import signal
import sys
import termios
import tty
from collections.abc import Iterator
from contextlib import suppress

import anyio
import pytest

from aish.shell.input.keyboard import Keyboard

pytestmark = pytest.mark.anyio


@pytest.fixture
def terminal() -> Iterator[tuple[int, int]]:
    """Where a person types, and where that is read."""
    person, ours = pty.openpty()
    yield person, ours
    os.close(person)
    os.close(ours)


def keyboard_of(terminal: tuple[int, int]) -> Keyboard:
    return Keyboard(terminal[1], lambda _: None)


def signals_of(terminal: tuple[int, int]) -> bool:
    """Whether Ctrl-C is a signal."""
    return bool(termios.tcgetattr(terminal[1])[3] & termios.ISIG)


async def typed(keyboard: Keyboard, keys: bytes) -> None:
    """Until these keys wait for the next prompt."""
    with anyio.fail_after(60):
        while keyboard.typed != keys:
            await anyio.lowlevel.checkpoint()


async def test_a_ctrl_c_that_was_no_signal_yet_is_one_ctrl_c_and_no_key(
    terminal: tuple[int, int],
) -> None:
    keyboard = keyboard_of(terminal)
    pressed: list[str] = []
    # As an editor has it, for which Ctrl-C is a byte.
    tty.setraw(terminal[1])
    os.write(terminal[0], b"ahead\x03")
    # The kernel hands them over a moment later; then `quiet` would have made a signal of the last.
    await anyio.wait_readable(terminal[1])
    with (
        anyio.open_signal_receiver(signal.SIGINT) as signals,
        anyio.fail_after(60),
        keyboard.quiet(lambda: pressed.append("a key")),
    ):
        async for _ in signals:
            break
        os.write(terminal[0], b"x")
        await typed(keyboard, b"x")
    assert not pressed


async def test_a_ctrl_c_between_a_message_and_what_is_done_with_it_waits_for_that(
    terminal: tuple[int, int],
) -> None:
    keyboard = keyboard_of(terminal)
    keyboard.take()
    with anyio.open_signal_receiver(signal.SIGINT) as signals, anyio.fail_after(60):
        with keyboard.message():
            pass
        os.write(terminal[0], b"\x03ahead")
        await anyio.wait_readable(terminal[1])
        with keyboard.quiet():
            async for _ in signals:
                break
            assert keyboard.typed == b"ahead"


@pytest.mark.parametrize("given_up", [False, True])
async def test_ctrl_c_is_a_signal_wherever_no_message_waits_to_be_done(
    terminal: tuple[int, int], *, given_up: bool
) -> None:
    keyboard = keyboard_of(terminal)
    keyboard.take()
    assert signals_of(terminal)
    with suppress(EOFError), keyboard.message():
        assert not signals_of(terminal)
        if given_up:
            raise EOFError
    assert signals_of(terminal) is given_up
    with keyboard.quiet():
        await anyio.lowlevel.checkpoint()
        assert signals_of(terminal)
    assert signals_of(terminal)
    keyboard.restore()
    assert signals_of(terminal)


TWICE = """
import os, pty, select, tty
import anyio
from aish.shell.input.keyboard import Keyboard
from aish.shell.cancellation import Interrupts

async def main():
    person, ours = pty.openpty()
    keyboard = Keyboard(ours, lambda _: None)
    taken = Interrupts(attended=True, restore=keyboard.restore, forget=keyboard.forget)
    tty.setraw(ours)
    os.write(person, b"\\x03")
    # The kernel hands it over a moment later; it is to be a byte, and not a signal of `quiet`.
    select.select([ours], [], [], 20)
    with taken.handle_signals(), taken.session():
        with taken.cancellable() as scope, keyboard.quiet(taken.stop):
            try:
                await anyio.sleep_forever()
            finally:
                with anyio.CancelScope(shield=True):
                    # Longer than a signal takes that is on its way.
                    for _ in range(20):
                        await anyio.lowlevel.checkpoint()
        print("stopped", scope.cancelled_caught, flush=True)

anyio.run(main)
"""


async def test_where_any_key_stops_what_runs_ctrl_c_does_not_leave() -> None:
    done = await anyio.run_process([sys.executable, "-c", TWICE], check=False)

    assert (done.returncode, done.stdout) == (0, b"stopped True\n")
