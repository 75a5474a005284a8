import os
from pathlib import Path

import pytest
from pack_scenes import opened_packs

from aish.core.errors import UsageError
from aish.packs.command_options import ProcOptions, ShellOptions
from aish.packs.environment_file import LARGEST, read_environment

BASE = {"HOME": "/home/somebody", "PATH": "/usr/bin:/bin", "TERM": "dumb"}


def written(folder: Path, text: str) -> Path:
    path = folder / "tools.toml"
    path.write_text(text)
    return path


def refusal(folder: Path, text: str) -> str:
    with pytest.raises(UsageError) as raised:
        read_environment(written(folder, text), BASE)
    assert raised.value.exit_code == 2
    assert str(folder) in str(raised.value)
    return raised.value.message


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    folder = tmp_path / "programs"
    folder.mkdir(mode=0o755)
    return folder


def test_a_file_adds_variables_and_folders_of_programs(tmp_path: Path, programs: Path) -> None:
    text = f"""
    [path]
    prepend = ["{programs}", "/usr/bin"]
    [env]
    CARGO_HOME = "${{HOME}}/.cargo"
    BOTH = "${{HOME}}:${{TERM}} $HOME $$ {{}}"
    TERM = "xterm"
    EMPTY = ""
    """
    assert read_environment(written(tmp_path, text), BASE) == {
        "HOME": "/home/somebody",
        "PATH": f"{programs}:/usr/bin:/usr/bin:/bin",
        "TERM": "xterm",
        "CARGO_HOME": "/home/somebody/.cargo",
        "BOTH": "/home/somebody:dumb $HOME $$ {}",
        "EMPTY": "",
    }


def test_values_are_expanded_once_and_from_the_small_environment_only(tmp_path: Path) -> None:
    text = '[env]\nA = "1"\nB = "${A}"'
    assert refusal(tmp_path, text) == "`B` names `${A}`, and there are only: HOME, PATH, TERM"
    twice = {**BASE, "HOME": "${TERM}"}
    text = '[env]\nA = "${HOME}"'
    assert read_environment(written(tmp_path, text), twice)["A"] == "${TERM}"


@pytest.mark.parametrize(
    "name",
    [
        *("PATH", "LD_PRELOAD", "LD_LIBRARY_PATH", "PYTHONPATH", "PYTHONSTARTUP", "NODE_OPTIONS"),
        *("BASH_ENV", "ENV", "GIT_DIR", "GIT_SSH_COMMAND", "PERL5OPT", "RUBYOPT"),
        "AISH_PROCESS_MARK",
    ],
)
def test_names_that_decide_what_runs_are_refused(name: str, tmp_path: Path) -> None:
    expected = f"`{name}` must not be set: it decides which program runs, or what it loads"
    assert refusal(tmp_path, f'[env]\n{name} = "x"') == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[env]\n"A B" = "x"', "`A B` is not a valid name of a variable"),
        ("[env]\nA = 1", "`A` in `[env]` is not a text"),
        ('[env]\nA = "\\u0000"', "`A` in `[env]` is not a text"),
        ('[env]\nA = "${HOME"', "`A` has a `${` that is not closed"),
        ("env = 1", "`env` is not a table"),
        ("[other]\nx = 1", "unknown table `[other]`"),
        ("[path]\nappend = []", "unknown key `append` in `[path]`"),
        ('[path]\nprepend = "x"', "`prepend` in `[path]` is not a list of texts"),
        ('[path]\nprepend = ["bin"]', "`bin` in `prepend` is not the absolute path of a folder"),
        (
            '[path]\nprepend = ["/bin:/tmp"]',
            "`/bin:/tmp` in `prepend` is not the absolute path of a folder",
        ),
        ('[path]\nprepend = ["/no/such"]', "the folder `/no/such` in `prepend` does not exist"),
        ('[path]\nprepend = ["/etc/passwd"]', "`/etc/passwd` in `prepend` is not a folder"),
        (
            '[path]\nprepend = ["/tmp"]',
            "the folder `/tmp` in `prepend` is not safe: other users can change it",
        ),
        (
            "[other]\n[path]\nmore = 1",
            "unknown table `[other]`; unknown key `more` in `[path]`",
        ),
    ],
)
def test_what_is_not_allowed_is_an_error(text: str, message: str, tmp_path: Path) -> None:
    assert refusal(tmp_path, text) == message


def test_a_folder_below_one_that_others_can_change_is_not_safe(
    tmp_path: Path, programs: Path
) -> None:
    inner = programs / "bin"
    inner.mkdir()
    programs.chmod(0o777)
    message = refusal(tmp_path, f'[path]\nprepend = ["{inner}"]')
    assert message.endswith(f"is not safe: other users can change `{programs}`")


def test_a_file_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    def message(path: Path) -> str:
        with pytest.raises(UsageError) as raised:
            read_environment(path, BASE)
        return raised.value.message

    (tmp_path / "binary").write_bytes(b"\xff")
    (tmp_path / "large").write_text("#" * (LARGEST + 1))
    assert message(tmp_path / "missing") == "it cannot be read: no such file or directory"
    assert message(tmp_path) == "it cannot be read: is a directory"
    assert message(Path(os.devnull)) == "it is not a regular file"
    os.mkfifo(tmp_path / "pipe")
    assert message(tmp_path / "pipe") == "it is not a regular file"
    assert message(tmp_path / "binary").startswith("it is not valid TOML: ")
    assert message(tmp_path / "large") == "it has more than 65,536 bytes"
    assert refusal(tmp_path, "[env").startswith("it is not valid TOML: ")


@pytest.mark.requirement("K48")
def test_commands_of_both_packs_get_it(tmp_path: Path, programs: Path) -> None:
    program = programs / "our-tool"
    program.write_text('#!/bin/sh\necho "$GREETING"\n')
    program.chmod(0o755)
    file = written(tmp_path, f'[path]\nprepend = ["{programs}"]\n[env]\nGREETING = "hello"')
    options = {"shell": ShellOptions(env_file=file), "proc": ProcOptions(env_file=file)}
    services = {"environ": {"PATH": os.environ["PATH"]}}
    with opened_packs(["shell", "proc"], tmp_path, options, **services) as box:
        assert box.text("shell_run", command="our-tool") == "hello"
        id = box.data("process_start", command="our-tool")["id"]
        output = box.data("process_output", id=id, wait_seconds=20, wait_for="hello")
    assert output["found"] is True
