"""What a forked `aish` has is what a started one has: otherwise tests prove less than they say."""

import os
import re
import signal
from collections.abc import Iterator

import pytest
from cli_process import Aish
from e2e_project import Project
from fork_server import ForkServer

# What the kernel says of the process whose child this is.
PORTRAIT = r"""
cd /proc/$PPID
grep -E '^(Umask|Threads|Sig(Ign|Cgt)):' status
cut -d')' -f2- stat | { read state parent group session terminal rest
  test $group = $PPID && echo leads its group
  test $session = $PPID && echo leads its session
  echo parent $parent terminal $terminal; }
readlink cwd
readlink fd/* | sed -E 's/[0-9]{2,}/N/g' | sort
"""


@pytest.fixture
def umask() -> Iterator[None]:
    before = os.umask(0o027)
    yield
    os.umask(before)


def runs(project: Project, script: str) -> None:
    project.write("script.sh", script)
    project.pipeline("mcp: {auto_approve: [shell__run]}\nrun: [sh, script.sh]")


def portrait(project: Project) -> str:
    runs(project, PORTRAIT)
    done = project.run("--ephemeral", stdin="nothing")
    assert done.code == 0, done.stderr
    return re.sub(r"(?<=SigCgt:\t)\w+", without_signals_of_the_library, done.stdout)


def without_signals_of_the_library(mask: re.Match[str]) -> str:
    """The C library catches 32 and 33 once there has been a thread, as in the rehearsed run."""
    return f"{int(mask[0], 16) & ~(0b11 << 31):016x}"


@pytest.mark.usefixtures("umask")
def test_a_forked_process_has_what_a_started_one_has(
    project: Project, fork_server: ForkServer
) -> None:
    project.aish.warm = fork_server
    forked = portrait(project)
    project.aish.warm = None
    started = portrait(project)

    assert forked == started
    assert "Umask:\t0027\n" in forked
    assert "leads its group\nleads its session\n" in forked
    assert f"parent {os.getpid()} " in forked


def test_a_signal_that_ends_a_forked_process_is_its_code(
    project: Project, fork_server: ForkServer
) -> None:
    project.aish.warm = fork_server
    runs(project, "kill -9 $PPID\n")

    assert project.run("--ephemeral").code == -signal.SIGKILL


@pytest.mark.parametrize(
    ("name", "value", "same"),
    [("PYTHONUTF8", "1", False), ("LC_ALL", "C", False), ("COLUMNS", "40", True)],
)
def test_what_an_interpreter_reads_at_its_start_takes_a_real_one(
    fork_server: ForkServer, name: str, value: str, *, same: bool
) -> None:
    assert fork_server.same_interpreter({**fork_server.env, name: value}) is same


@pytest.mark.real_process
def test_a_test_that_is_marked_starts_the_real_executable(run_aish: Aish) -> None:
    assert run_aish.warm is None
