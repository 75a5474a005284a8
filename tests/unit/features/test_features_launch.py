"""The launcher of runs: what a refused start leaves open."""

from pathlib import Path

import anyio
import pytest
from open_descriptors import opened_below

from aish.core.errors import UsageError
from aish.engine.cancellation import ShutdownRequests
from aish.engine.plan.options import RunOptions
from aish.engine.plan.plan import load_checked, make_plan
from aish.engine.run_folder import new_folder
from aish.features.control.run_services import ControlRequest
from aish.features.hosted_run import HostedRun, run_hosted
from aish.features.launch import Launch, open_run
from aish.system.clock import SystemClock


def launch_of(folder: Path, control: ControlRequest | None = None) -> Launch:
    file = folder.resolve() / "p.yaml"
    file.write_text(
        "aish: 1\nmodels: {}\nmcp: {stage: [shell__run]}\nforeach: '[1]'\nrun: [ls]\n", "utf-8"
    )
    plan, clock = make_plan(load_checked(file, ()), RunOptions()), SystemClock()
    run_folder = new_folder(plan, RunOptions(), clock)
    return Launch(plan, RunOptions(), run_folder, clock, control=control)


def test_a_start_refused_for_its_staged_calls_leaves_nothing_open(tmp_path: Path) -> None:
    launch = launch_of(tmp_path)
    assert launch.folder.path is not None
    (launch.folder.path / "staged.json").write_text("{}", "utf-8")

    with pytest.raises(UsageError):
        anyio.run(run_hosted, HostedRun(launch, ShutdownRequests()))

    assert opened_below(tmp_path.resolve()) == []
    assert not launch.folder.path.exists()


def test_a_start_refused_for_its_address_leaves_nothing_open(tmp_path: Path) -> None:
    launch = launch_of(tmp_path, ControlRequest((f"unix:{tmp_path}/no/such/socket",)))
    assert launch.folder.path is not None

    with pytest.raises(UsageError):
        anyio.run(run_hosted, HostedRun(launch, ShutdownRequests()))

    assert opened_below(tmp_path.resolve()) == []
    assert not launch.folder.path.exists()


def test_a_start_whose_journal_another_process_writes_leaves_nothing_else_open(
    tmp_path: Path,
) -> None:
    launch = launch_of(tmp_path)
    with open_run(launch) as first:
        first.begin()
        before = opened_below(tmp_path.resolve())

        with pytest.raises(UsageError, match="is being written"):
            anyio.run(run_hosted, HostedRun(launch, ShutdownRequests()))

        assert opened_below(tmp_path.resolve()) == before


def test_a_folder_that_is_moved_while_a_run_begins_ends_it_with_nothing_open(
    tmp_path: Path,
) -> None:
    launch = launch_of(tmp_path)
    assert launch.folder.path is not None

    with pytest.raises(UsageError, match="was deleted, moved or replaced"):
        begin_elsewhere(launch, launch.folder.path)

    assert opened_below(tmp_path.resolve()) == []


def begin_elsewhere(launch: Launch, folder: Path) -> None:
    with open_run(launch) as run:
        moved = folder.rename(folder.parent / "elsewhere")
        run.begin(journal_folder=moved)
