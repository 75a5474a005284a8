"""Runs within another program: what a refused start leaves open."""

from pathlib import Path

import anyio
import pytest
from open_descriptors import opened_below

from aish.core.errors import UsageError
from aish.engine.plan.options import RunOptions
from aish.engine.plan.plan import load_checked, make_plan
from aish.features.hosted_run import Ending, HostedRun, new_folder, run_hosted
from aish.system.clock import SystemClock


def test_a_refused_start_leaves_nothing_open(tmp_path: Path) -> None:
    file = tmp_path.resolve() / "p.yaml"
    file.write_text(
        "aish: 1\nmodels: {}\nmcp: {stage: [shell__run]}\nforeach: '[1]'\nrun: [ls]\n", "utf-8"
    )
    plan, clock = make_plan(load_checked(file, ()), RunOptions()), SystemClock()
    folder = new_folder(plan, RunOptions(), clock)
    assert folder.path is not None
    (folder.path / "staged.json").write_text("{}", "utf-8")

    with pytest.raises(UsageError):
        anyio.run(run_hosted, HostedRun(plan, RunOptions(), folder, clock, Ending()))

    assert opened_below(file.parent) == []
