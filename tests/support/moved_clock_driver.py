"""`aish` on a clock whose time-outs run out when a test says so, however busy the machine is.

    python moved_clock_driver.py SECONDS FILE ARGUMENTS…

Each time that there is a FILE it is removed, and the time-out of so many seconds has run out
(`waits.MovedClock`).
"""

import sys
import threading
import time
from functools import partial
from pathlib import Path

import anyio
from waits import MovedClock


def main() -> None:
    seconds, file = float(sys.argv.pop(1)), Path(sys.argv.pop(1))
    if sys.argv[1:3] == ["-m", "aish"]:  # as the interpreter is called
        del sys.argv[1:3]
    clock = MovedClock()
    options = {"loop_factory": clock.loop}
    anyio.run = partial(anyio.run, backend_options=options)  # type: ignore[assignment]  # the same
    threading.Thread(target=watch, args=(clock, seconds, file), daemon=True).start()

    from aish.__main__ import main as aish

    aish()


def watch(clock: MovedClock, seconds: float, file: Path) -> None:
    while True:
        if file.exists():
            file.unlink()
            clock.run_out(seconds)
        time.sleep(0.01)


if __name__ == "__main__":
    main()
