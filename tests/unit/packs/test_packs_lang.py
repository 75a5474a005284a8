"""The pack `lang`: languages by name, extension and first line (K26)."""

import os
from collections.abc import Iterator

import pytest
from pack_scenes import PackScene, opened_packs

from aish.packs.workspace.languages import LANGUAGES


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PackScene]:
    with opened_packs(["lang"], tmp_path_factory.mktemp("root")) as scene:
        yield scene


@pytest.mark.parametrize(
    ("path", "language", "by"),
    [
        ("Dockerfile", "dockerfile", "filename"),
        ("web/types.d.ts", "typescript", "extension"),
        ("bin/tool", "python", "first_line"),
        ("bin/missing", "plaintext", "default"),
        ("bin", "plaintext", "default"),
        # Out of the root a name is a name, and no file is looked at.
        ("../outside.py", "python", "extension"),
        ("/etc/passwd", "plaintext", "default"),
        ("../tool", "plaintext", "default"),
        # What is hidden is as if it were not there.
        (".ssh/tool", "plaintext", "default"),
        ("pipe", "plaintext", "default"),
        ("link", "plaintext", "default"),
    ],
)
def test_a_file_has_a_language(scene: PackScene, path: str, language: str, by: str) -> None:
    first = "#!/usr/bin/env python3\nprint()\n"
    scene.put("bin/tool", first)
    scene.put(".ssh/tool", first)
    (scene.root.parent / "tool").write_text(first)
    if not (scene.root / "pipe").exists():
        os.mkfifo(scene.root / "pipe")
        (scene.root / "link").symlink_to(scene.root.parent / "tool")

    assert scene.data("lang_detect", path=path) == {"path": path, "language": language, "by": by}
    assert f"is {language}" in scene.text("lang_detect", path=path)


@pytest.mark.parametrize("path", ["", ".", "/", "..", "a\0b", "x" * 5000])
def test_a_malformed_path_is_refused(scene: PackScene, path: str) -> None:
    assert scene.code("lang_detect", path=path) == "bad_path"


def test_no_root_is_needed() -> None:
    with opened_packs(["lang"], None) as scene:
        assert scene.data("lang_detect", path="a/setup.py")["language"] == "python"
        assert scene.data("lang_detect", path="a/setup")["by"] == "default"


def test_the_list_has_every_language(scene: PackScene) -> None:
    rows = scene.data("lang_list")["languages"]

    assert len(rows) == len(LANGUAGES) >= 60
    assert {
        "id": "typescript",
        "name": "TypeScript",
        "extensions": [".ts", ".mts", ".cts", ".d.ts", ".d.mts", ".d.cts"],
        "filenames": [],
    } in rows
    assert "dockerfile: Dockerfile: .dockerfile Dockerfile Containerfile" in scene.text("lang_list")


def test_a_detected_language_is_in_the_list(scene: PackScene) -> None:
    ids = {row["id"] for row in scene.data("lang_list")["languages"]}

    for path in ("a.py", "b.rs", "c", "Makefile"):
        assert scene.data("lang_detect", path=path)["language"] in ids
