"""When a process was started, as it finds out itself."""

import subprocess
import sys
import time

_ASK = "from aish.system.clock import process_began; print(process_began())"
# The kernel counts in hundredths of a second.
_TICK = 0.02


def test_a_process_knows_when_it_was_started() -> None:
    before = time.time()
    said = subprocess.run([sys.executable, "-c", _ASK], capture_output=True, check=True).stdout
    after = time.time()

    assert before - _TICK <= float(said) <= after
