"""The wheel and the sdist, installed into empty environments by the programs that people use."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from distributions import ROOT, UV, build, size

_PIPX = "pipx>=1.7"


def _run(*words: str | Path, **variables: str) -> str:
    """What a command printed; it has to succeed."""
    environment = {**os.environ, **variables}
    done = subprocess.run(
        words, env=environment, cwd=ROOT, check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def _installers(folder: Path, wheel: Path, sdist: Path) -> Mapping[str, Path]:
    """Install the program by each, and say where its executable is."""
    made = {}
    for name, package in (("pip", wheel), ("pip-sdist", sdist)):
        _run(sys.executable, "-m", "venv", folder / name)
        _run(folder / name / "bin" / "pip", "install", "-q", package)
        made[name] = folder / name / "bin"
    uv = folder / "uv"
    _run(
        *(UV, "tool", "install", "-q", "--python", sys.executable, wheel),
        UV_TOOL_DIR=str(uv / "tools"),
        UV_TOOL_BIN_DIR=str(uv / "bin"),
        UV_SYSTEM_CERTS="1",
    )
    made["uv"] = uv / "bin"
    _run(sys.executable, "-m", "venv", folder / "with-pipx")
    _run(folder / "with-pipx" / "bin" / "pip", "install", "-q", _PIPX)
    pipx = folder / "pipx"
    _run(
        *(folder / "with-pipx" / "bin" / "pipx", "install", "--python", sys.executable, wheel),
        PIPX_HOME=str(pipx),
        PIPX_BIN_DIR=str(pipx / "bin"),
        PIPX_MAN_DIR=str(pipx / "man"),
    )
    made["pipx"] = pipx / "bin"
    return {name: folder / "aish" for name, folder in made.items()}


@pytest.mark.slow(reason="installs the program four times, from the package index")
def test_what_is_installed_runs_without_this_tree(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reached = subprocess.run(
        [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", tmp_path, _PIPX],
        check=False,
        capture_output=True,
    )
    if reached.returncode:
        pytest.skip("the package index cannot be reached")
    wheel, sdist = build(tmp_path / "dist")
    expected = None
    for name, program in _installers(tmp_path, wheel, sdist).items():
        assert _run(program, "--version").startswith("aish ")
        for pipeline in ("review.yaml", "quickstart.yaml"):
            assert "ok" in _run(program, "validate", ROOT / "pipelines" / pipeline)
        cassette = ROOT / "tests" / "cassettes" / "quickstart.yaml"
        words = ("run", ROOT / "pipelines" / "quickstart.yaml", "--replay", cassette)
        answer = _run(program, *words, "-q", "--run-dir", tmp_path / f"run-{name}")
        expected = expected or answer
        assert answer == expected
        assert "Friday" in answer
        # The environment is the folder above that of the program, whoever linked to it.
        environment = program.resolve().parents[1]
        (packages,) = environment.glob("lib/python*/site-packages")
        assert not (packages / "tests").exists()
        with capsys.disabled():
            print(f"\n{name}: {size(packages) / 1e6:.0f} MB in {packages}")
