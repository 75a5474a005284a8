"""The last door: whatever is raised becomes a sentence, a hint and an exit code."""

import errno
import stat
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest

from aish.cli.boundary import report, run_guarded
from aish.core.errors import (
    AishError,
    BudgetError,
    PipelineError,
    Position,
    Problem,
    StepFailedError,
    UnavailableError,
    UsageError,
)


def raising(error: BaseException) -> Callable[[], int]:
    def call() -> NoReturn:
        raise error

    return call


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (AishError("it broke"), 1),
        (StepFailedError("it broke"), 1),
        (UsageError("it broke"), 2),
        (BudgetError("it broke"), 4),
        (UnavailableError("it broke"), 5),
        (KeyboardInterrupt(), 130),
        (EOFError(), 130),
        (OSError(errno.ENOSPC, "No space left on device"), 1),
    ],
)
def test_each_failure_has_its_exit_code(
    error: BaseException, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_guarded(raising(error), verbose=True) == code
    assert "Traceback" not in capsys.readouterr().err


def test_the_code_of_a_call_that_ends_well_is_kept() -> None:
    assert run_guarded(lambda: 4, verbose=False) == 4


def test_an_error_says_what_where_and_what_next(capsys: pytest.CaptureFixture[str]) -> None:
    error = UsageError("no such model", where="p.yaml:3:1", hint="models: `m`")

    run_guarded(raising(error), verbose=False)

    captured = capsys.readouterr()
    assert not captured.out
    assert captured.err == "error: p.yaml:3:1: no such model\n\nhint: models: `m`\n"


def test_all_problems_of_a_file_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    place = Position("p.yaml", 3, 1)
    problems = (
        Problem(place, "modle", "unknown key `modle`", "did you mean `model`"),
        Problem(Position("p.yaml", 9, 1), "", "odd", warning=True),
    )

    report(PipelineError(problems))

    assert capsys.readouterr().err == (
        "error: p.yaml:3:1: modle: unknown key `modle`\n"
        "  hint: did you mean `model`\n"
        "warning: p.yaml:9:1: odd\n"
    )


def test_foreign_text_in_an_error_cannot_steer_the_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    run_guarded(raising(AishError("\x1b[2J\u202e")), verbose=False)

    assert capsys.readouterr().err == "error: \\x1b[2J\\u202e\n"


def test_foreign_text_in_an_error_is_no_command_to_a_ci_runner(
    capsys: pytest.CaptureFixture[str],
) -> None:
    said = "its stderr ends with:\n::stop-commands::x\n##[error]y\n##vso[task.z]"
    run_guarded(raising(AishError(said)), verbose=False)

    shown = capsys.readouterr().err
    assert "its stderr ends with:\n\\x3a:stop-commands::x\n" in shown
    assert "##" not in shown


@pytest.mark.requirement("exit-70")
def test_a_bug_is_70_with_a_private_log_and_no_traceback(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))

    code = run_guarded(raising(ZeroDivisionError("on purpose")), verbose=False)

    said = capsys.readouterr().err
    assert code == 70
    assert "Traceback" not in said
    assert "this is a bug in aish: ZeroDivisionError: on purpose" in said
    assert "report it" in said
    (log,) = tmp_path.rglob("crash-*.log")
    assert str(log) in said
    assert "Traceback" in log.read_text(encoding="utf-8")
    assert stat.S_IMODE(log.stat().st_mode) == 0o600


def test_verbose_shows_the_traceback_of_a_bug(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))

    assert run_guarded(raising(ZeroDivisionError("on purpose")), verbose=True) == 70
    assert "Traceback" in capsys.readouterr().err


def test_a_bug_is_told_even_where_no_log_can_be_written(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".local").symlink_to(tmp_path / "elsewhere")
    monkeypatch.setenv("HOME", str(tmp_path))

    assert run_guarded(raising(KeyError("x")), verbose=False) == 70
    assert "`--verbose`" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == [".local"]
