"""A pytest plugin that writes which tests cost much, for `samples.py` to take turns among them.

    AISH_TEST_TURN=all python -m pytest -n 2 -p cpu_costs      (`make costs`)

What a test costs is the CPU time of this process and of all that it has started, in all cases of
the test. One that carries a requirement is run on each change, as the examples of the documentation
are, and is not listed.
"""

import os
import resource
from collections import Counter
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from samples import COSTLY, TURN, function_of, takes_turns

LISTED_SECONDS = 0.3
_TICKS = os.sysconf("SC_CLK_TCK")
_SPENT = pytest.StashKey[Counter[str]]()
_SENT = "cpu_costs"


def pytest_configure(config: pytest.Config) -> None:
    assert TURN == "all", "what is left out would have no costs"
    config.stash[_SPENT] = Counter()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    before = _cpu_seconds()
    try:
        return (yield)
    finally:
        if takes_turns(item):
            item.config.stash[_SPENT][function_of(item)] += _cpu_seconds() - before  # type: ignore[assignment]  # counts need not be whole


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    node.config.stash[_SPENT].update(getattr(node, "workeroutput", {}).get(_SENT, {}))


@pytest.hookimpl(trylast=True)  # all workers have ended then
def pytest_sessionfinish(session: pytest.Session) -> None:
    spent = session.config.stash[_SPENT]
    if (sent := getattr(session.config, "workeroutput", None)) is not None:
        sent[_SENT] = dict(spent)
        return
    costly = [(seconds, name) for name, seconds in spent.items() if seconds > LISTED_SECONDS]
    lines = [f"{seconds:.1f} {name}\n" for seconds, name in sorted(costly, reverse=True)]
    COSTLY.write_text("".join(lines), "utf-8")


def _cpu_seconds() -> float:
    """What this process and its descendants have used, those that it has waited for too."""
    own, ended = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    running = sum(map(_cpu_ticks, _descendants(os.getpid())))
    return own.ru_utime + own.ru_stime + ended.ru_utime + ended.ru_stime + running / _TICKS


def _descendants(pid: int) -> Iterator[int]:
    try:
        told = [
            (task / "children").read_text("ascii") for task in Path(f"/proc/{pid}/task").iterdir()
        ]
    except OSError:  # it has just ended
        return
    for child in map(int, " ".join(told).split()):
        yield child
        yield from _descendants(child)


def _cpu_ticks(pid: int) -> int:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()
    except OSError:
        return 0
    return sum(map(int, fields[11:15]))  # its own, and of children it has waited for
