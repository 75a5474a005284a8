"""The lines that are remembered: private, bounded, and never a reason to end."""

import json
import stat
from pathlib import Path

import pytest

from aish.shell.input.history import LONGEST_ENTRY, LONGEST_FILE, HistoryFile, Remembered


class Kept:
    def __init__(self, path: Path | None) -> None:
        self.notices: list[str] = []
        self.file = HistoryFile(
            path, lambda text: text.replace("s3cret", "***"), self.notices.append
        )


def test_lines_come_back_in_their_order_and_whole(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "history"
    texts = ["one", "two\nlines", "\0\x1b[2J\u202e 🦉", "a s3cret"]
    for text in texts:
        Kept(path).file.add(text)
    kept = Kept(path)
    assert kept.file.read() == [*texts[:3], "a ***"]
    assert kept.notices == []
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


@pytest.mark.parametrize(
    ("typed", "kept"),
    [
        (
            ":mcp connect http://h/mcp?api_key=very-secret-word docs",
            ":mcp connect http://h/mcp?api_key=<secret:api_key> docs",
        ),
        (":mcp connect http://h/?a=1&Token=x%2Dy&b=2#c", None),
        ("  :mcp conect http://h/?sig=short", None),
        (
            ":mcp connect http://me:pa@ss@h/mcp",
            ":mcp connect http://<secret:credentials>@h/mcp",
        ),
        (":attach https://h/doc?page=1&accessToken=very-secret-word", None),
    ],
)
def test_a_key_in_a_url_that_is_typed_is_not_on_disk(
    tmp_path: Path, typed: str, kept: str | None
) -> None:
    history = Kept(tmp_path / "history")
    history.file.add(typed)

    (found,) = history.file.read()
    assert not any(one in found for one in ("very-secret-word", "x%2Dy", "short", "pa@ss"))
    assert found == (kept or found)
    assert found.split("?")[0] == (kept or typed).split("?")[0]


@pytest.mark.parametrize(
    "typed",
    [
        "what is http://h/?api_key=abc",
        "!curl 'http://h/?api_key=abc&b=2'",
        ":mcp connect http://h/mcp?page=1&size=2 docs auth_env=NAME",
        ":attach kid__review code='a b' key=value",
        ":attach docs://page/7 server=kid",
        ":model a@b",
    ],
)
def test_any_other_line_is_kept_as_it_was_typed(tmp_path: Path, typed: str) -> None:
    history = Kept(tmp_path / "history")
    history.file.add(typed)
    assert history.file.read() == [typed]


def test_a_file_that_is_not_there_is_empty_and_is_not_made(tmp_path: Path) -> None:
    kept = Kept(tmp_path / "history")
    assert kept.file.read() == []
    assert kept.notices == []
    assert list(tmp_path.iterdir()) == []


def test_the_folder_of_others_keeps_its_mode(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    Kept(tmp_path / "history").file.add("one")
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o755


def test_a_file_that_grew_is_cut_to_its_newest_lines(tmp_path: Path) -> None:
    path = tmp_path / "history"
    path.write_text("".join(f"{json.dumps(f'line {n}')}\n" for n in range(100_000)))
    path.chmod(0o600)
    lines = Kept(path).file.read()
    assert lines[-1] == "line 99999"
    assert lines[0].startswith("line ")
    assert LONGEST_FILE // 3 < path.stat().st_size <= LONGEST_FILE // 2
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert Kept(path).file.read() == lines


def test_what_is_no_line_of_ours_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "history"
    path.write_bytes(b'"one"\nno json\n{"a": 1}\n' + b"[" * 5000 + b'\n\xff\xfe\n"two"\n"half')
    path.chmod(0o600)
    assert Kept(path).file.read() == ["one", "two"]


def test_a_very_long_message_is_not_written(tmp_path: Path) -> None:
    kept = Kept(tmp_path / "history")
    kept.file.add("x" * LONGEST_ENTRY)
    kept.file.add("short")
    assert kept.file.read() == ["short"]


@pytest.mark.parametrize("obstacle", ["link", "folder", "no folder"])
def test_what_cannot_be_kept_is_told_once(tmp_path: Path, obstacle: str) -> None:
    path = tmp_path / "history"
    if obstacle == "link":
        path.symlink_to(tmp_path / "elsewhere")
    elif obstacle == "folder":
        path.mkdir()
    else:
        (tmp_path / "file").touch()
        path = tmp_path / "file" / "history"
    kept = Kept(path)
    assert kept.file.read() == []
    kept.file.add("one")
    kept.file.add("two")
    assert len(kept.notices) == 1
    assert kept.notices[0].startswith(f"lines are not stored in `{path}`: ")
    assert not (tmp_path / "elsewhere").exists()


def test_private_and_repeated_lines_are_not_remembered(tmp_path: Path) -> None:
    kept = Kept(tmp_path / "history")
    remembered = Remembered(kept.file)
    for text in ("one", " private", "", "one", "two", "one"):
        remembered.append_string(text)
    remembered.listening = False
    remembered.append_string("edited")
    assert remembered.get_strings() == ["one", "two", "one"]
    assert kept.file.read() == ["one", "two", "one"]


def test_without_a_file_there_is_still_a_history() -> None:
    remembered = Remembered(Kept(None).file)
    remembered.append_string("one")
    assert remembered.get_strings() == ["one"]
