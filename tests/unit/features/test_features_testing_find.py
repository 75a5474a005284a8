"""Which files `aish test` looks at, and which cassettes nobody uses."""

import os
from pathlib import Path

import pytest

from aish.cassettes.format.file import show_path
from aish.core.errors import UsageError
from aish.features.testing.discovery import find_files, may_have_tests, orphans

PIPELINE = "aish: 1\nprompt: x\n"
CASSETTE = "metadata:\n  complete: true\nversion: 1\ninteractions:\n  []\n...\n"


@pytest.fixture(autouse=True)  # ruff: ignore[pytest-fixture-autouse] - every test here works in it
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def put(name: str, text: str = PIPELINE) -> Path:
    path = Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def names(*paths: str) -> list[str]:
    return [str(path) for path in find_files([Path(path) for path in paths]).files]


def test_folders_are_searched_for_pipelines_only() -> None:
    put("a/b/two.yaml")
    put("a/one.yml")
    put("a/quoted.yaml", '"aish" : 1\n')
    put("a/flow.yaml", "{aish: 1, prompt: x}")
    put("a/late.yaml", "# comment\n\nname: x\naish: 1\n")
    put("a/broken.yaml", "aish: 1\nprompt: [\n")
    put("a/other.yaml", "name: not one\nnested:\n  aish: 1\n")
    put("a/cassette.yaml", CASSETTE)
    put("a/text.txt")
    for skipped in (".hidden", "node_modules", ".venv", "venv", "__pycache__", "b/.git"):
        put(f"a/{skipped}/x.yaml")
    put("a/.hidden.yaml")
    os.mkfifo("a/pipe.yaml")
    Path("a/gone.yaml").symlink_to("nowhere")

    found = ["broken.yaml", "flow.yaml", "late.yaml", "one.yml", "quoted.yaml", "b/two.yaml"]
    assert names("a") == [f"a/{name}" for name in found]


def test_without_a_path_it_is_pipelines_or_the_current_folder() -> None:
    put("here.yaml")
    assert [str(path) for path in find_files([]).files] == ["here.yaml"]

    put("pipelines/there.yaml")
    assert [str(path) for path in find_files([]).files] == ["pipelines/there.yaml"]


def test_a_file_is_taken_once_however_often_it_is_named() -> None:
    put("a/one.yaml")
    put("a/two.yaml")

    assert names("a/two.yaml", "a", "./a/one.yaml", "a/../a") == ["a/two.yaml", "a/one.yaml"]
    assert names("a", "a/two.yaml") == ["a/one.yaml", "a/two.yaml"]


def test_only_a_search_of_folders_is_whole() -> None:
    put("a/one.yaml")
    put("a/two.yaml")

    assert find_files([Path("a")]).whole
    assert not find_files([Path("a/one.yaml")]).whole
    assert not find_files([Path("a"), Path("a/one.yaml")]).whole


def test_what_is_not_there_is_a_mistake() -> None:
    put("a/one.txt")

    for path, said in (("gone.yaml", "no such file or folder"), ("a", "no pipeline files in `a`")):
        with pytest.raises(UsageError, match=said):
            find_files([Path(path)])


def test_a_named_file_is_taken_whatever_it_holds() -> None:
    put("a.txt", "no pipeline")

    assert names("a.txt") == ["a.txt"]


def test_a_broken_file_may_have_tests_or_inherit_them() -> None:
    assert may_have_tests(put("a.yaml", "aish: 1\ntests:\n  - [\n"))
    assert may_have_tests(put("b.yaml", "aish: 1\nextends: [a.yaml]\n["))
    assert not may_have_tests(put("c.yaml", "aish: 1\nnested:\n  tests: []\n"))
    assert not may_have_tests(Path("gone.yaml"))


def test_orphans_are_the_cassettes_beside_those_in_use() -> None:
    used = put("c/used.yaml", CASSETTE)
    put("c/odd.yaml", CASSETTE)
    put("c/plain-vcrpy.yml", "interactions:\n- request: {}\nversion: 1\n")
    put("c/pipeline.yaml", PIPELINE + "interactions_of: x\n")
    put("c/notes.md", CASSETTE)
    put("c/odd.yaml.partial", CASSETTE)
    put("c/deeper/other.yaml", CASSETTE)
    put("elsewhere/other.yaml", CASSETTE)

    found = orphans([used, Path("c/../c/missing.yaml"), Path("no/folder.yaml")])

    assert [show_path(path) for path in found] == ["c/odd.yaml", "c/plain-vcrpy.yml"]


def test_paths_are_shown_as_one_would_type_them(folder: Path) -> None:
    put("a/one.yaml")

    assert show_path(folder / "a" / ".." / "a" / "one.yaml") == "a/one.yaml"
    assert show_path(Path("../x.yaml")) == "../x.yaml"
    assert show_path(Path("/a/../b.yaml")) == "/b.yaml"
