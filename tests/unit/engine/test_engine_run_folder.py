from collections.abc import Iterator
from pathlib import Path

import pytest

from aish.engine.run_folder import RunsPlace, open_folder


@pytest.mark.parametrize("elsewhere", [False, True])
def test_no_two_runs_have_one_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, elsewhere: bool
) -> None:
    drawn: Iterator[str] = iter("aaaa" * 2 + "bbbb")
    monkeypatch.setattr("aish.engine.run_folder.secrets.choice", lambda _: next(drawn))
    place = RunsPlace(tmp_path, tmp_path / "runs" if elsewhere else None)

    one, other = (open_folder("p", place, 0.0, ephemeral=False, mask=str) for _ in range(2))

    assert (one.id, other.id) == ("19700101T000000Z-p-aaaa", "19700101T000000Z-p-bbbb")
    assert {one.path, other.path} == {place.runs / one.id, place.runs / other.id}
    assert {path.name for path in place.runs.iterdir() if path.is_dir()} == {one.id, other.id}
