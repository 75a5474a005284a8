"""Pictures of the docs are small, and as new as the code of what they show."""

from pathlib import Path

import pictures
import pytest


def test_each_picture_is_as_new_as_what_it_shows() -> None:
    assert pictures.problems() == [], "`make pictures` makes them again"


def test_an_old_or_missing_picture_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    old, missing, *rest = pictures.ALL
    monkeypatch.setattr(pictures, "PICTURES", tmp_path)
    monkeypatch.setattr(pictures, "MADE", tmp_path / "made.json")
    made = {one.name: one.digest for one in (missing, *rest)}
    (tmp_path / "made.json").write_text(str(made).replace("'", '"'), "utf-8")
    for one in (old, *rest):
        one.file.write_bytes(b"")
    rest[0].file.write_bytes(bytes(pictures.LARGEST + 1))

    assert pictures.problems() == [
        f"{old.name} is older than the code that it shows",
        f"{missing.name} is missing",
        f"{rest[0].name} is larger than 150 KB",
    ]
