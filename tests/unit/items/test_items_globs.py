"""Items of a glob: the files of one folder, and none beyond it (F5, X9)."""

import os
from pathlib import Path

import pytest

from aish.core.json import JsonValue
from aish.items.items import from_glob, from_list
from aish.items.source import ItemsError


def plant(folder: Path, *names: str) -> None:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("", encoding="utf-8")


def found(pattern: str, folder: Path) -> list[JsonValue]:
    items = from_glob(pattern, folder)
    values = [item.value for item in items]
    assert items.total == len(values)
    return values


@pytest.mark.parametrize(
    ("pattern", "files"),
    [
        ("*.py", ["a.py", "b.py"]),
        ("**/*.py", ["a.py", "b.py", "src/c.py", "src/deep/down/d.py"]),
        ("src/**/*.py", ["src/c.py", "src/deep/down/d.py"]),
        ("src/**", ["src/c.py", "src/deep/down/d.py", "src/deep/e.txt"]),
        ("src/*/*.txt", ["src/deep/e.txt"]),
        ("./src/./c.py", ["src/c.py"]),
        ("?.py", ["a.py", "b.py"]),
        ("**/down/**/d.*", ["src/deep/down/d.py"]),
        (".hidden/*.py", [".hidden/h.py"]),
        ("src", []),
        ("none/*.py", []),
    ],
)
def test_files_that_match_come_in_order(tmp_path: Path, pattern: str, files: list[str]) -> None:
    plant(tmp_path, "b.py", "a.py", "src/c.py", "src/deep/down/d.py", "src/deep/e.txt")
    plant(tmp_path, ".hidden/h.py", ".dot.py", "src/.git/x.py")

    assert found(pattern, tmp_path) == files


@pytest.mark.parametrize("pattern", ["../*.py", "src/../../x", "/etc/*", "", "./", ".."])
def test_a_glob_that_leads_elsewhere_is_refused(tmp_path: Path, pattern: str) -> None:
    with pytest.raises(ItemsError):
        from_glob(pattern, tmp_path)


def test_links_that_leave_the_folder_are_not_followed(tmp_path: Path) -> None:
    plant(tmp_path, "outside/secret.py", "project/in.py", "project/lib/x.py")
    project = tmp_path / "project"
    (project / "leak.py").symlink_to(tmp_path / "outside" / "secret.py")
    (project / "away").symlink_to(tmp_path / "outside")
    (project / "same.py").symlink_to("in.py")
    (project / "round").symlink_to(".")
    (project / "gone.py").symlink_to("nowhere.py")

    assert found("**/*.py", project) == ["in.py", "lib/x.py", "same.py"]
    assert found("away/*.py", project) == []
    assert found("*/*.py", project) == ["lib/x.py"]
    assert found("round/*.py", project) == ["round/in.py", "round/same.py"]


def test_only_plain_files_are_items(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.py")
    (tmp_path / "folder.py").mkdir()

    assert found("*.py", tmp_path) == []


def test_a_name_that_is_no_text_is_refused(tmp_path: Path) -> None:
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.py")).write_text("", encoding="utf-8")

    with pytest.raises(ItemsError, match="not UTF-8"):
        from_glob("*.py", tmp_path)


def test_a_list_has_its_values_and_their_number() -> None:
    items = from_list(["a", {"b": 1}, None])

    assert [(item.index, item.value) for item in items] == [(0, "a"), (1, {"b": 1}), (2, None)]
    assert items.total == 3


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("abc", "gives a text"),
        (None, "gives null"),
        (7, "gives a number"),
        (True, "gives a boolean"),
        ({"a": 1}, "gives an object"),
    ],
)
def test_what_is_no_list_is_refused_by_what_it_is(value: JsonValue, said: str) -> None:
    with pytest.raises(ItemsError, match=said):
        from_list(value)
