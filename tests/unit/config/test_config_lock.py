from pathlib import Path

from aish.config.loader import load_pipeline


def test_a_lock_stands_beside_the_file_that_names_it(tmp_path: Path) -> None:
    folder = tmp_path / "shared"
    folder.mkdir()
    (folder / "base.yaml").write_text("aish: 1\nlock: mine.json\nrun: ls\n")
    (tmp_path / "p.yaml").write_text("aish: 1\nextends: shared/base.yaml\n")
    (tmp_path / "plain.yaml").write_text("aish: 1\nrun: ls\n")

    assert load_pipeline(tmp_path / "p.yaml").lock == folder / "mine.json"
    assert load_pipeline(tmp_path / "plain.yaml").lock is None
