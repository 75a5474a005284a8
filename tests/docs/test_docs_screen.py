"""The quickstart's screen in README is what a terminal of 80 columns shows."""

import re
import shutil
from pathlib import Path

import pexpect
import pytest
from cli_process import clean_environment
from docs_pages import ROOT, blocks

# Times and names of folders; and how the model lays its JSON out.
_VARIES = re.compile(r"^ok · |╰ |/runs/|\"about\"")
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
PATIENCE = 120


@pytest.mark.slow(reason="the model writes for 5 s; a replay prints the same")
@pytest.mark.embedded
def test_the_screen_in_the_readme_is_what_a_terminal_shows(
    tmp_path: Path, empty_home: Path
) -> None:
    shutil.copy(ROOT / "README.md", tmp_path)
    shutil.copytree(
        ROOT / "pipelines", tmp_path / "pipelines", ignore=shutil.ignore_patterns(".aish")
    )
    screen = next(block for block in blocks(ROOT / "README.md") if "$ make run" in block.lines)
    command, *shown = screen.lines[1:]
    kept = [line for line in shown if line.strip() and not _VARIES.search(line)]

    program = pexpect.spawn(
        str(ROOT / command.split()[0]),
        command.split()[1:],
        cwd=str(tmp_path),
        env=clean_environment(empty_home),
        dimensions=(50, 80),
        encoding="utf-8",
        timeout=PATIENCE,
    )
    program.expect(pexpect.EOF)
    program.wait()
    program.close()

    assert program.exitstatus == 0
    printed = _ESCAPES.sub("", program.before or "").replace("\r", "\n").splitlines()
    lines = [line.rstrip() for line in printed]
    assert [line for line in kept if line not in lines] == []
