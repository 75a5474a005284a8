"""The wheel and the sdist of this tree, and the size of what they install.

    python tests/support/distributions.py    # the size of an environment for each extra

It is measured without compiled files, which pip adds and which nearly double it.
"""

import os
import subprocess
import sys
import tomllib
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parents[2]
UV = Path(sys.executable).with_name("uv")


def build(folder: Path) -> tuple[Path, Path]:
    """The wheel and the sdist, as `make dist` builds them: the wheel from the sdist."""
    command = [str(UV), "build", "--no-build-isolation", "--offline", "--python", sys.executable]
    command += ["--out-dir", str(folder), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True)
    (wheel,), (sdist,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return wheel, sdist


def extras() -> list[str]:
    """The extras that install something."""
    tables = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    return [name for name, needs in tables["project"]["optional-dependencies"].items() if needs]


def size(folder: Path) -> int:
    """The bytes of the files below a folder."""
    return sum(path.lstat().st_size for path in folder.rglob("*") if not path.is_dir())


def main() -> None:
    """Print a row for the program alone, and one for each extra."""
    with TemporaryDirectory() as temporary:
        folder = Path(temporary)
        wheel, _ = build(folder / "dist")
        constraints = ["--constraint", str(ROOT / "constraints.txt")]
        for extra in ("", *extras()):
            environment = folder / (extra or "none")
            subprocess.run([UV, "venv", "-q", "-p", sys.executable, environment], check=True)
            named = f"{wheel}[{extra}]" if extra else str(wheel)
            install = [str(UV), "pip", "install", "-q", *constraints, named]
            variables = os.environ | {"VIRTUAL_ENV": str(environment)}
            subprocess.run(install, check=True, env=variables)
            (packages,) = environment.glob("lib/python*/site-packages")
            print(f"{extra or '(none)':10} {size(packages) / 1e6:4.0f} MB", flush=True)


if __name__ == "__main__":
    main()
