from pathlib import Path

import anyio
import pytest

from aish.core.errors import UsageError
from aish.packs.catalogue import PACKS
from aish.packs.framework.server import Pack, UnknownToolError, open_packs


def text(pack: Pack, name: str, **arguments: object) -> str:
    result = anyio.run(lambda: pack.call(name, arguments))  # type: ignore[arg-type]  # any JSON
    content = result["content"]
    assert isinstance(content, list)
    return str(content[0]["text"])


@pytest.mark.requirement("K4", "X1")
def test_without_a_root_there_are_no_tools() -> None:
    pack = open_packs(["fs", "shell"], None)
    assert not pack.tools
    with pytest.raises(UnknownToolError):
        text(pack, "file_read", path="x")
    anyio.run(pack.shutdown)


@pytest.mark.requirement("K4", "X1")
def test_everything_and_the_home_folder_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "link").symlink_to(tmp_path)
    for root in (Path("/"), tmp_path, tmp_path / "link", tmp_path / "link" / ".."):
        if root.resolve() in {Path("/"), tmp_path}:
            with pytest.raises(UsageError) as caught:
                open_packs(["fs"], root)
            assert "--allow-broad-root" in str(caught.value.hint)
    pack = open_packs(["fs"], tmp_path, allow_broad_root=True)
    assert "file_read" in pack.tools
    anyio.run(pack.shutdown)


@pytest.mark.requirement("K4")
def test_a_root_that_is_no_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="does not exist"):
        open_packs(["fs"], tmp_path / "none")
    with pytest.raises(UsageError, match="is not a folder"):
        open_packs(["fs"], tmp_path / "file")


@pytest.mark.requirement("K1")
def test_an_unknown_pack_is_refused_with_those_there_are(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no tool pack `fz`") as caught:
        open_packs(["fs", "fz"], tmp_path)
    assert caught.value.hint == f"there are: {', '.join(PACKS)}"


@pytest.mark.requirement("K3")
def test_an_unknown_tool_is_no_result(tmp_path: Path) -> None:
    pack = open_packs(["fs"], tmp_path)
    for name in ("nothing", "shell_run", "__class__"):
        with pytest.raises(UnknownToolError):
            text(pack, name)
    anyio.run(pack.shutdown)


@pytest.mark.requirement("K2")
def test_older_names_can_be_called_and_are_not_listed(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("content")
    pack = open_packs(["fs"], tmp_path)
    assert text(pack, "read_file", path="a") == "content"
    assert text(pack, "list_directory") == "a\n"
    assert pack.tools["read_file"].unlisted
    assert not pack.tools["file_read"].unlisted
    assert "execute_command" not in pack.tools
    anyio.run(pack.shutdown)


@pytest.mark.requirement("K3")
def test_after_the_end_calls_fail_and_say_nothing_of_the_system(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("content")
    pack = open_packs(["fs"], tmp_path)
    anyio.run(pack.shutdown)
    anyio.run(pack.shutdown)
    assert text(pack, "file_read", path="a").startswith("ERROR: ")


@pytest.mark.requirement("L16", "K1")
def test_reading_tools_may_run_side_by_side_and_no_others(tmp_path: Path) -> None:
    pack = open_packs(["fs", "edit", "shell"], tmp_path)
    assert {tool.name for tool in pack.tools.values() if not tool.parallel} == {
        "file_write",
        "write_file",
        "file_delete",
        "file_rename",
        "dir_create",
        "create_directory",
        "file_edit",
        "file_set_lines",
        "shell_run",
        "execute_command",
        "run_command",
    }
    anyio.run(pack.shutdown)


@pytest.mark.requirement("X8")
def test_a_command_runs_in_the_root_with_a_small_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("API_KEY", "secret-value")
    pack = open_packs(["shell"], tmp_path)
    assert text(pack, "shell_run", command="pwd") == str(tmp_path)
    assert "secret-value" not in text(pack, "shell_run", command="env")
    printed = text(pack, "shell_run", command="echo out; echo err >&2; exit 3")
    assert printed == "out\n[stderr]\nerr\n[exit code 3]"
    assert text(pack, "shell_run", command="true") == "[exit code 0, nothing printed]"
    assert text(pack, "shell_run", command=" ").startswith("ERROR: ")
    anyio.run(pack.shutdown)


@pytest.mark.requirement("X6", "X8")
def test_a_command_that_takes_too_long_is_ended_with_all_it_started(tmp_path: Path) -> None:
    pack = open_packs(["shell"], tmp_path)
    command = "echo before; sh -c 'echo $$ > child; exec sleep 600' & wait"
    printed = text(pack, "shell_run", command=command, timeout_seconds=1)
    assert printed.startswith("ERROR: the command was ended after 1 seconds")
    assert "before" in printed
    child = (tmp_path / "child").read_text().strip()
    status = Path(f"/proc/{child}/status")
    # It may stay as a name until the init process of this machine takes notice.
    assert not status.exists() or "State:\tZ" in status.read_text(encoding="utf-8")
    anyio.run(pack.shutdown)


@pytest.mark.requirement("K7", "X6")
def test_output_without_end_is_cut_and_its_end_kept(tmp_path: Path) -> None:
    pack = open_packs(["shell"], tmp_path)
    printed = text(pack, "shell_run", command="seq 1 100000")
    assert len(printed) <= 50_000
    assert printed.startswith("1\n2\n")
    assert "100000\n" in printed
    assert "characters left out" in printed
    assert "[truncated: true" in printed
    anyio.run(pack.shutdown)
