"""Whether a process was started by a run: by its parents, or by the mark it was started with."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from aish.system.process.ancestry import descends_from
from aish.system.process.reaper_process import MARK

# Prints a number once the process is where it is to be, and ends with its standard input.
WAIT = "import os, sys; print(os.getpid(), flush=True); sys.stdin.read()"
DOUBLE_FORK = (
    "import os, sys\n"
    "if os.fork(): os._exit(0)\n"
    "os.setsid()\n"
    "if os.fork(): os._exit(0)\n"
    "while os.getppid() != {parent}: pass\n"
    "print(os.getpid(), flush=True)\n"
    "sys.stdin.read()\n"
)
ADOPTING = (
    "import os, subprocess, sys\n"
    "from aish.system.process.ancestry import adopt_orphans, descends_from\n"
    "adopt_orphans()\n"
    "child = subprocess.Popen([sys.executable, '-c', sys.argv[1].format(parent=os.getpid())],\n"
    "    stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)\n"
    "pid = int(child.stdout.readline())\n"
    "child.wait()\n"
    "print(descends_from(pid, os.getpid()))\n"
)


def test_children_and_their_children_descend_and_parents_do_not() -> None:
    nested = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {WAIT!r}])"
    with subprocess.Popen(
        [sys.executable, "-c", nested], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        grandchild = int(child.stdout.readline())
        found = [descends_from(pid, os.getpid()) for pid in (os.getpid(), child.pid, grandchild)]
        upwards = [descends_from(pid, child.pid) for pid in (os.getpid(), os.getppid(), 1)]
        child.communicate("")

    assert found == [True, True, True]
    assert upwards == [False, False, False]


def test_a_process_that_left_its_parents_is_known_by_its_mark() -> None:
    # Its parents are those of this test: only the mark tells it from them.
    environ = {**os.environ, MARK: "abcd-1"}
    with subprocess.Popen(
        [sys.executable, "-c", WAIT],
        env=environ,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        elsewhere = 2**22  # no process has this number
        found = [descends_from(child.pid, elsewhere, marks) for marks in (["abcd"], ["ab", "x"])]
        others = [descends_from(child.pid, elsewhere, marks) for marks in (["bcd"], [])]
        child.communicate("")

    assert found == [True, True]
    assert others == [False, False]


def test_a_double_fork_does_not_hide_a_process_from_who_adopts_orphans() -> None:
    done = subprocess.run(
        [sys.executable, "-c", ADOPTING, DOUBLE_FORK],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[3],
    )

    assert done.stdout == "True\n"


@pytest.mark.parametrize("pid", [0, -1, 2**22])
def test_what_cannot_be_examined_counts_as_a_descendant(pid: int) -> None:
    assert descends_from(pid, os.getpid())
