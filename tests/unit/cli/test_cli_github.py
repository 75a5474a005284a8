"""The places of steps that a run annotates."""

from pathlib import Path

import pytest

from aish.cli.github import spots_of
from aish.config.loader import read_pipeline


@pytest.mark.parametrize(
    ("text", "line", "column"),
    [
        ("aish: 1\nname: t\nrun: [echo, x]\n", 3, 6),
        ("aish: 1\nname: t\nsteps:\n  - id: main\n    run: [echo, x]\n", 4, 5),
    ],
)
def test_a_step_is_annotated_where_it_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, line: int, column: int
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GITHUB_WORKSPACE", raising=False)
    Path("p.yaml").write_text(text, encoding="utf-8")
    reading = read_pipeline(Path("p.yaml"))
    assert reading.pipeline is not None

    spot = spots_of(reading.pipeline)["main"]

    assert (spot.file, spot.line, spot.column) == ("p.yaml", line, column)
