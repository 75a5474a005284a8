"""Where a run's tape is put in: at the models here, at servers and commands in their rooms (C2).

Imported only by runs that have a tape.
"""

from dataclasses import replace

from anyio.lowlevel import checkpoint

from aish.cassettes.http import taped
from aish.models.retry import RetryTiming
from aish.models.transport import MakeClient, open_client
from aish.run.credentials import ResolvedModel
from aish.run.surroundings import AnyTape
from aish.run.taping.reel import RunTape
from aish.system.clock import SystemClock


def tape_of(tape: AnyTape) -> RunTape:
    """The tape of `Surroundings` with its whole face."""
    assert isinstance(tape, RunTape), "`open_tape` makes the tapes of runs"
    return tape


def is_replayed(tape: AnyTape) -> bool:
    """Whether no model is asked."""
    return tape_of(tape).way("model") == "replay"


def unstarted(model: ResolvedModel) -> ResolvedModel:
    """An embedded model as a replay needs it: a place to ask, where nobody is."""
    return replace(model, entry=replace(model.entry, base_url=f"{_place(model)}/v1"))


def client_of(model: ResolvedModel, tape: AnyTape) -> MakeClient:
    """What opens the connections of a model: through the tape."""
    found = tape_of(tape)
    # The port of a model in a child process differs from run to run.
    origin = None if model.entry.embedded is None else _place(model)
    return lambda entry: taped(found, "model", lambda: open_client(entry), origin=origin)


def pace_of(tape: AnyTape) -> RetryTiming:
    """How a model waits before it tries again: in replay not at all, unless `--pace recorded`."""
    found = tape_of(tape)
    if found.way("model") != "replay" or found.rules.paced:
        return RetryTiming()
    clock = Hasty()
    # Nobody waits, and what a replay says of its waits is the same each time.
    return RetryTiming(clock=clock, sleep=clock.sleep, chance=lambda: 0.5, waits=False)


class Hasty:
    """A clock on which every wait is over at once."""

    def __init__(self) -> None:
        self._clock = SystemClock()
        self._skipped = 0.0

    def now(self) -> float:
        """Seconds since the epoch."""
        return self._clock.now() + self._skipped

    def monotonic(self) -> float:
        """Seconds of a clock that never goes back."""
        return self._clock.monotonic() + self._skipped

    async def sleep(self, seconds: float) -> None:
        """Let the time pass without waiting for it."""
        self._skipped += max(0.0, seconds)
        await checkpoint()


def _place(model: ResolvedModel) -> str:
    return f"http://{model.entry.alias}.embedded"
