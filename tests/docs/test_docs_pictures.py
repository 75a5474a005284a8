"""Pictures of the docs are small, have a text, and are as new as the code of what they show."""

import re
from pathlib import Path

import pictures
import pytest
from docs_pages import PAGES, ROOT

_IMAGE = re.compile(
    r"!\[(?P<text>[^\]]*)\]\((?P<target>[^)\s]+)\)"
    r"|<img src=\"(?P<source>[^\"]+)\" width=\"\d+\" alt=\"(?P<alt>[^\"]+)\">"
)
_NAMESPACE = "http://www.w3.org/2000/svg"


def test_each_picture_is_as_new_as_what_it_shows() -> None:
    assert [glob for one in pictures.ALL for glob in one.depends if not [*ROOT.glob(glob)]] == [], (
        "the code has moved"
    )
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


def test_each_picture_is_shown_with_a_text_and_needs_no_network() -> None:
    shown: dict[Path, str] = {}
    for page in PAGES:
        for found in _IMAGE.finditer(page.read_text("utf-8")):
            target = found["target"] or found["source"]
            shown[(page.parent / target).resolve()] = found["text"] or found["alt"]

    files = {one.file for one in pictures.ALL} | pictures.MEASURED
    assert set(shown) == files
    assert all(len(text.split()) > 10 for text in shown.values())
    for file in files:
        if file.suffix == ".svg":
            text = file.read_text("utf-8").replace(_NAMESPACE, "")
            assert "://" not in text
            assert str(ROOT) not in text
