"""The log that keeps a staged call from being made twice (B16)."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from model_turns import Ticking
from staged_calls import a_call

from aish.core.errors import UsageError
from aish.core.tools import ResultKind
from aish.features.staging.apply import (
    CallSelection,
    UnsettledError,
    is_unsettled,
    require_settled,
    select_calls,
)
from aish.features.staging.log import AppliedLog, State, log_path, states_in
from aish.journal.writer import JournalError
from aish.system.durable import Disk

ONE, TWO, THREE = a_call(1), a_call(2), a_call(3)


def log(path: Path) -> AppliedLog:
    return AppliedLog(path, Ticking())


@pytest.mark.parametrize(
    ("kind", "state"),
    [
        ("ok", "applied"),
        ("handler_error", "failed"),
        ("rpc_error", "failed"),
        ("transport_error", "unknown"),
    ],
)
def test_how_a_call_ended_is_known_afterwards(
    tmp_path: Path, kind: ResultKind, state: State
) -> None:
    path = tmp_path / "log"
    with log(path) as subject:
        subject.begin(ONE, "r1")
        subject.end(ONE, "r1", kind)
        subject.begin(TWO, "r1")
    assert states_in(path) == {ONE.digest: state, TWO.digest: "unknown"}
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_call_that_was_made_again_counts_as_it_ended_then(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with log(path) as subject:
        subject.begin(ONE, "r1")
    with log(path) as subject:
        assert subject.states == {ONE.digest: "unknown"}
        subject.begin(ONE, "r2")
        subject.end(ONE, "r2", "ok")
    assert states_in(path) == {ONE.digest: "applied"}


def test_where_there_is_no_log_nothing_was_applied(tmp_path: Path) -> None:
    assert states_in(tmp_path / "log") == {}


def test_the_log_is_beside_the_file_itself(tmp_path: Path) -> None:
    staged = tmp_path / "deep" / "staged.json"
    staged.parent.mkdir()
    staged.touch()
    (tmp_path / "latest.json").symlink_to(staged)
    beside = staged.with_name("staged.json.applied.jsonl")
    assert log_path(tmp_path / "latest.json") == log_path(staged) == beside


def test_two_processes_do_not_apply_at_once(tmp_path: Path) -> None:
    with log(tmp_path / "log"), pytest.raises(UsageError, match="is being written by process"):
        log(tmp_path / "log")


def test_a_torn_end_is_cut_off_and_nothing_else_is_forgiven(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with log(path) as subject:
        subject.begin(ONE, "r1")
        subject.end(ONE, "r1", "ok")
    whole = path.read_bytes()
    path.write_bytes(whole[:-10])
    with log(path) as subject:
        assert subject.states == {ONE.digest: "unknown"}
        subject.begin(TWO, "r2")
    assert states_in(path) == {ONE.digest: "unknown", TWO.digest: "unknown"}

    path.write_bytes(whole.replace(b'"call.begun"', b'"call.ended"'))
    with pytest.raises(JournalError, match="is damaged"):
        log(path)


def test_a_planted_link_is_not_written_through(tmp_path: Path) -> None:
    (tmp_path / "log").symlink_to(tmp_path / "target")
    with pytest.raises(UsageError, match="is a link"):
        log(tmp_path / "log")
    assert not (tmp_path / "target").exists()


def test_a_full_disk_stops_before_the_call(tmp_path: Path) -> None:
    subject = AppliedLog(tmp_path / "log", Ticking(), Disk(lambda fd, data: os.write(fd, data[:9])))
    with pytest.raises(OSError, match="No space left"):
        subject.begin(ONE, "r1")
    assert states_in(tmp_path / "log") == {}


SUPPORT = Path(__file__).parents[2] / "support"
PROGRAM = """
import os, signal, sys
from pathlib import Path
from model_turns import Ticking
from staged_calls import a_call
from aish.features.staging.log import AppliedLog

log = AppliedLog(Path(sys.argv[1]), Ticking())
log.begin(a_call(1), "r1")
if sys.argv[2] == "ended":
    log.end(a_call(1), "r1", "ok")
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize(("place", "state"), [("begun", "unknown"), ("ended", "applied")])
def test_a_killed_process_loses_nothing_of_the_log(
    tmp_path: Path, place: str, state: State
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "log"), place],
        env={**os.environ, "PYTHONPATH": str(SUPPORT)},
        check=False,
    )
    assert done.returncode == -signal.SIGKILL
    assert states_in(tmp_path / "log") == {ONE.digest: state}


def test_calls_are_chosen_by_the_beginnings_of_their_ids() -> None:
    calls = (ONE, TWO, THREE)
    assert select_calls(calls, CallSelection()) == calls
    assert select_calls(calls, CallSelection(only=(TWO.id[:6], ONE.digest))) == (ONE, TWO)
    assert select_calls(calls, CallSelection(skip=(TWO.id,))) == (ONE, THREE)
    assert select_calls(calls, CallSelection(only=(ONE.id, TWO.id), skip=(THREE.id,))) == (ONE, TWO)


@pytest.mark.parametrize(
    ("wish", "said"),
    [
        (CallSelection(only=("ffffffff",)), "no staged call has the id `ffffffff`"),
        (CallSelection(skip=("",)), "no staged call has the id ``"),
        (CallSelection(only=(ONE.id,), skip=(ONE.id,)), f"both name `{ONE.id}`"),
    ],
    ids=["unknown", "empty", "both"],
)
def test_an_id_that_names_no_call_is_a_mistake(wish: CallSelection, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        select_calls((ONE, TWO), wish)


def test_an_id_that_fits_two_calls_is_a_mistake() -> None:
    with pytest.raises(UsageError, match="fits 2 calls"):
        select_calls((ONE, ONE), CallSelection(only=(ONE.id,)))


def test_nobody_goes_past_a_call_of_which_nothing_is_known() -> None:
    with pytest.raises(UnsettledError) as refused:
        require_settled((ONE, TWO), {TWO.digest: "unknown", ONE.digest: "applied"}, CallSelection())
    assert TWO.id in refused.value.message
    assert ONE.id not in refused.value.message
    assert refused.value.hint is not None
    assert "--retry-unknown" in refused.value.hint
    assert refused.value.exit_code == 1


@pytest.mark.parametrize(
    ("state", "wish", "idempotent", "unsettled"),
    [
        ("open", CallSelection(), False, False),
        ("applied", CallSelection(), False, False),
        ("failed", CallSelection(), False, True),
        ("failed", CallSelection(), True, True),
        ("failed", CallSelection(retry_failed=True), False, False),
        ("failed", CallSelection(retry_unknown=True), False, True),
        ("unknown", CallSelection(), False, True),
        ("unknown", CallSelection(), True, False),
        ("unknown", CallSelection(retry_unknown=True), False, False),
        ("unknown", CallSelection(retry_failed=True), False, True),
    ],
)
def test_what_needs_a_word_before_it_is_made_again(
    *,
    state: State,
    wish: CallSelection,
    idempotent: bool,
    unsettled: bool,
) -> None:
    assert is_unsettled(state, wish, idempotent=idempotent) is unsettled


def test_a_call_that_failed_before_stops_those_after_it() -> None:
    with pytest.raises(UnsettledError, match="1 staged call failed before") as refused:
        require_settled((ONE, TWO), {ONE.digest: "failed"}, CallSelection())
    assert refused.value.hint is not None
    assert "--retry-failed" in refused.value.hint
    require_settled((ONE, TWO), {ONE.digest: "failed"}, CallSelection(retry_failed=True))
