"""Write the pip constraints that `make` installs from.

    python dependency_versions.py lock constraints.txt    # the newest versions that fit together
    python dependency_versions.py lowest FILE             # the lowest that `pyproject.toml` allows

`lock` asks pip for one set of versions for all environments of the Makefile; it is run with the
lowest Python that aish supports, whose versions the later ones can use too.
"""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
GROUPS = ("test", "lint", "peers", "browser")
# What pip needs before anything else, and what hatchling needs for an editable install.
BOOTSTRAP = ("pip>=25.3", "editables")
HEADER = "# Exact versions of all that `make` installs. Written by `make lock`.\n"


def project() -> dict[str, Any]:
    """The tables of `pyproject.toml`."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def newest() -> dict[str, str]:
    """Name to version of everything that pip installs for all environments together."""
    tables = project()
    extras = ",".join(tables["project"]["optional-dependencies"])
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed"]
    command += ["--report", "-", f"{ROOT}[{extras}]", *BOOTSTRAP]
    command += [argument for group in GROUPS for argument in ("--group", group)]
    command += tables["build-system"]["requires"]
    report = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout
    packages = [entry["metadata"] for entry in json.loads(report)["install"]]
    own = tables["project"]["name"]
    return {
        re.sub(r"[-_.]+", "-", package["name"]).lower(): package["version"]
        for package in packages
        if package["name"] != own
    }


def lowest() -> dict[str, str]:
    """Name to the lowest version that `pyproject.toml` allows of everything that it names."""
    tables = project()
    table = tables["project"]
    requirements = [*table["dependencies"], *tables["build-system"]["requires"]]
    for group in (table["optional-dependencies"], tables["dependency-groups"]):
        for entries in group.values():
            requirements += entries
    versions: dict[str, str] = {}
    for requirement in requirements:
        if bound := re.fullmatch(r"([A-Za-z0-9._-]+)(?:>=|==)([\d.]+)(?:,.*)?", requirement):
            name = bound[1].lower()
            versions[name] = max(versions.get(name, "0"), bound[2], key=_numbers)
    return versions


def _numbers(version: str) -> list[int]:
    return [int(number) for number in version.split(".")]


def main() -> None:
    """Write the file that is named."""
    wanted, path = sys.argv[1:]
    versions = {"lock": newest, "lowest": lowest}[wanted]()
    lines = [f"{name}=={version}\n" for name, version in sorted(versions.items())]
    Path(path).write_text((HEADER if wanted == "lock" else "") + "".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
