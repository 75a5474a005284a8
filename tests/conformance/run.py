"""Runs the client scenarios of the MCP conformance suite that need no OAuth, in both eras (M13).

    python tests/conformance/run.py [scenario …]

The suite comes by npm (`package.json`) and wants Node 22, which npm brings too. Where it is
missing the run is skipped, and says so. The exit code is 1 if a scenario fails.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

TOP = Path(__file__).resolve().parents[2]
MODULES = TOP / "node_modules"
SUITE = MODULES / "@modelcontextprotocol" / "conformance" / "dist" / "index.js"
DRIVER = "tests/conformance/driver.py"
ERAS = {
    "handshake era": ("2025-06-18", "2025-11-25"),
    "stateless era": ("2026-07-28",),
}
LISTED = re.compile(r"^\s+- (?P<name>\S+) \[(?P<versions>[^\]]*)\]$", re.MULTILINE)
PASSED = re.compile(r"Passed: (\d+)/(\d+)")
NODE_WANTED = 22
SECONDS = 120


@dataclass(frozen=True)
class Scenario:
    """A scenario in one revision."""

    name: str
    version: str


@dataclass(frozen=True)
class Outcome:
    """Whether it passed, and how many of the suite's own checks did."""

    ok: bool
    checks: int
    output: str


def find_node() -> str | None:
    """A Node that is new enough: npm's, else the machine's."""
    for found in (MODULES / ".bin" / "node", shutil.which("node")):
        if found is None or not Path(found).exists():
            continue
        said = subprocess.run([found, "--version"], capture_output=True, text=True, check=False)
        major = said.stdout.removeprefix("v").partition(".")[0]
        if major.isdigit() and int(major) >= NODE_WANTED:
            return str(found)
    return None


def suite(node: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """The suite's answer; the driver is found through `PATH`, because the suite splits words."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    return subprocess.run(
        [node, str(SUITE), *arguments],
        cwd=TOP,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS,
    )


def scenarios(node: str) -> Iterator[Scenario]:
    """What the suite has for clients, but for OAuth and for extensions of the protocol."""
    listed = suite(node, "list", "--client").stdout
    for found in LISTED.finditer(listed):
        if found["name"].startswith("auth/"):
            continue
        for version in found["versions"].split(","):
            if any(version in versions for versions in ERAS.values()):
                yield Scenario(found["name"], version)


def run(node: str, scenario: Scenario) -> Outcome:
    with tempfile.TemporaryDirectory() as folder:
        command = f"{Path(sys.executable).name} {DRIVER}"
        chosen = ("--scenario", scenario.name, "--spec-version", scenario.version)
        done = suite(node, "client", "--command", command, *chosen, "-o", folder)
    output = done.stdout + done.stderr
    passed = PASSED.search(output)
    return Outcome(
        ok=done.returncode == 0 and passed is not None,
        checks=int(passed[1]) if passed else 0,
        output=output,
    )


def play(node: str, wanted: Sequence[str]) -> bool:
    """Run all, say what happened; whether all passed."""
    everything = [one for one in scenarios(node) if not wanted or one.name in wanted]
    good = bool(everything)
    for era, versions in ERAS.items():
        chosen = [one for one in everything if one.version in versions]
        passed = checks = 0
        for scenario in chosen:
            outcome = run(node, scenario)
            print(f"{'ok    ' if outcome.ok else 'FAILED'} {scenario.version} {scenario.name}")
            if not outcome.ok:
                print(outcome.output)
            passed += outcome.ok
            checks += outcome.checks
        good = good and passed == len(chosen)
        print(f"{era}: {passed} of {len(chosen)} scenarios, {checks} checks", flush=True)
    return good


def main() -> None:
    node = find_node()
    if node is None or not SUITE.exists():
        missing = f"Node {NODE_WANTED}" if node is None else "the conformance suite"
        print(f"skipped: {missing} is missing; `npm install --no-package-lock` brings both")
        return
    if not play(node, sys.argv[1:]):
        sys.exit(1)


if __name__ == "__main__":
    main()
