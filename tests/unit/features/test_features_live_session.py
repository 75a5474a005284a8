"""Repeated live runs in this process: what an interrupted session keeps."""

import os
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from e2e_project import ModelEndpoints
from model_endpoint import Gate, Reply, hanging_reply, text_reply

from aish.features.testing.baseline import baseline_file, read_baseline
from aish.features.testing.discovery import find_files
from aish.features.testing.live import (
    CellDraft,
    LiveSession,
    LiveSettings,
    prepare_session,
    run_live,
)
from aish.features.testing.session import find_cases
from aish.reports.live_results import LiveRun

PIPELINE = """
aish: 1
name: rates
models: {m: {base_url: "${RATES_URL}", model: m}}
inputs: {question: {type: string, default: one}}
prompt: "{{ inputs.question }}"
tests:
  - {name: one, expect: [{contains: "yes"}]}
  - {name: two, inputs: {question: two}, expect: [{contains: "yes"}]}
"""
CASES, ROUNDS = 2, 5


class Ended:
    def __init__(self) -> None:
        self.runs: Counter[str] = Counter()

    def ended(self, draft: CellDraft, run: LiveRun, number: int) -> None:
        del draft, number
        self.runs[run.verdict] += 1


def test_a_session_interrupted_at_any_point_has_no_verdict_and_keeps_what_ran(
    tmp_path: Path, model_endpoint: ModelEndpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, baseline = tmp_path / "p.yaml", tmp_path / "b.json"
    path.write_text(PIPELINE)
    left = [ROUNDS * CASES]
    gate = Gate()

    def answer(_request: Any) -> Reply:
        left[0] -= 1
        if left[0] >= 0:
            return text_reply("yes")
        os.kill(os.getpid(), signal.SIGINT)
        return hanging_reply(gate)

    monkeypatch.setenv("RATES_URL", model_endpoint(answer).base_url)

    def session(**settings: Any) -> LiveSession:
        jobs = find_cases(find_files([path]), "").chosen
        return prepare_session(jobs, LiveSettings(width=1, stops=False, **settings), seed=7)

    whole = run_live(session(repeat=2), Ended())
    assert whole.exit == 0
    baseline.write_bytes(baseline_file(whole))

    for point in range(ROUNDS * CASES):
        left[0], told = point, Ended()
        results = run_live(session(repeat=ROUNDS, baseline=read_baseline(baseline)), told)

        assert (results.exit, results.interrupted) == (130, True), point
        ran = [run for cell in results.cells for run in cell.runs if run.verdict == "passed"]
        assert len(ran) == told.runs["passed"] == point
        assert all(run.folder is not None and Path(run.folder).is_dir() for run in ran)
        counts = [len(cell.tried) for cell in results.cells]
        assert max(counts) - min(counts) <= 1, point
        comparison = results.columns[0].comparison
        assert comparison is not None
        assert comparison.outcome == "undecided", point
