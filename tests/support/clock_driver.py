"""`aish` on a clock that is ahead, as after an hour or a week for which nobody had to wait.

    python clock_driver.py SECONDS ARGUMENTS…

Only what time it is changes (`time.time`); how long something takes (`time.monotonic`) does not.
"""

import sys
import time


def main() -> None:
    ahead, real = float(sys.argv.pop(1)), time.time
    time.time = lambda: real() + ahead  # ruff: ignore[shared-clock-mock] - for the whole program

    from aish.__main__ import main as aish

    aish()


if __name__ == "__main__":
    main()
