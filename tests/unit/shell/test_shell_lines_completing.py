"""What Tab offers, for commands, messages and local commands."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import anyio
import pytest
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document
from shell_editor_driver import SomeWords

from aish.shell.input.completion import MOST_SHOWN, LineCompleter, paths_like


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("a folder", ".hidden", "pipelines"):
        (tmp_path / name).mkdir()
    for name in ("a folder/notes.txt", "pipelines/a.yaml", "pipelines/b.yaml", ".env", "it's"):
        (tmp_path / name).touch()
    return tmp_path


def offered(folder: Path, text: str, *, asked: bool = True) -> list[str]:
    """The lines that each offer would make of `text`."""

    async def complete() -> list[str]:
        event = CompleteEvent(text_inserted=not asked, completion_requested=asked)
        completer = LineCompleter(SomeWords(), folder)
        return [
            text[: len(text) + found.start_position] + found.text
            async for found in completer.get_completions_async(Document(text), event)
        ]

    return anyio.run(complete)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (":", [":mcp", ":model", ":attach"]),
        (":m", [":mcp", ":model"]),
        (":nothing", []),
        (":mcp ", [":mcp list", ":mcp tools"]),
        (":mcp  to", [":mcp  tools"]),
        (":model l", [":model local", ":model large"]),
        (":attach p", [":attach pipelines/"]),
        (":attach a folder/n", [":attach a folder/notes.txt"]),
        (":attach .", [":attach .env", ":attach .hidden/"]),
        ("use repo__file_w", ["use repo__file_write"]),
        ("use ", []),
        ("", []),
        ("see ./pi", ["see ./pipelines/"]),
        ("see pipelines/", ["see pipelines/a.yaml", "see pipelines/b.yaml"]),
        ("see pipelines", []),
        ("two\nlines pipelines/a", ["two\nlines pipelines/a.yaml"]),
        ("!cat pipelines/a", ["!cat pipelines/a.yaml"]),
        ("!cat a", ["!cat a\\ folder/"]),
        ("!cat a\\ folder/n", ["!cat a\\ folder/notes.txt"]),
        ("$cat it", ["$cat it\\'s"]),
        ("!pi", ["!pipelines/"]),
        ("!cat no-folder/x", []),
        ("see ~nobody-of-that-name/x", []),
        ("see \0/", []),
    ],
)
def test_tab_offers_what_fits(folder: Path, text: str, expected: list[str]) -> None:
    assert offered(folder, text) == expected


def test_paths_are_looked_for_only_when_somebody_asks(folder: Path) -> None:
    assert offered(folder, ":attach p", asked=False) == []
    assert offered(folder, ":m", asked=False) == [":mcp", ":model"]


def test_a_folder_with_very_many_files_is_no_obstacle(tmp_path: Path) -> None:
    for number in range(MOST_SHOWN + 50):
        (tmp_path / f"file-{number}").touch()
    assert len(paths_like("file", tmp_path)) == MOST_SHOWN


def test_names_with_escape_sequences_are_shown_spelled_out(tmp_path: Path) -> None:
    (tmp_path / "a\x1b[2Jb").touch()

    class Words(SomeWords):
        def commands(self) -> Mapping[str, str]:
            return {"mcp": "servers\x1b[31m"}

        def tools(self) -> Sequence[str]:
            return ("a\u202eb",)

    async def shown(text: str) -> list[str]:
        completer = LineCompleter(Words(), tmp_path)
        event = CompleteEvent(completion_requested=True)
        found = completer.get_completions_async(Document(text), event)
        return [one.display_text + one.display_meta_text async for one in found]

    assert anyio.run(shown, ":attach a") == ["a\\x1b[2Jb"]
    assert anyio.run(shown, ":m") == ["mcpservers\\x1b[31m"]
    assert anyio.run(shown, "a") == ["a\\u202eb"]


def test_a_name_that_is_no_word_of_a_shell_is_not_offered_to_one(tmp_path: Path) -> None:
    (tmp_path / "a\nrm b").touch()
    assert offered(tmp_path, "!cat a") == []
    assert offered(tmp_path, ":attach a") == [":attach a\nrm b"]
