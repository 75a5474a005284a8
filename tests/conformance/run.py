"""Runs the MCP conformance suite for the client and for the server, in both eras (M13, H12).

    python tests/conformance/run.py [client|server] [scenario …]

Of the client all scenarios are run; where a person has to log in, a browser agrees to everything.
Of the extensions of OAuth, which are of no revision, those about a program are run. The server is
`aish serve` in front of `everything_server.py`, under the names that this has and with every tool
approved: each scenario that a revision requires has to pass, and of all others no check may fail
that passes without the hub. Those about tasks, which no revision requires, are run in front of
`task_server.py` and reported: two of them want of a server what a hub does not do, as it passes on
a failure as a result and requires tasks of nobody. The suite comes by npm (`package.json`) and
wants Node 22, which npm brings too. Where it is missing the run is skipped, and says so. The exit
code is 1 if a scenario fails.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "support"))
from mcp_peers import free_port, listening
from token_proxy import token_proxy

TOP = Path(__file__).resolve().parents[2]
MODULES = TOP / "node_modules"
SUITE = MODULES / "@modelcontextprotocol" / "conformance" / "dist" / "index.js"
DRIVER = "tests/conformance/driver.py"
EXTENSION, PROGRAM = "extension", "auth/client-credentials"
ERAS = {
    "handshake era": ("2025-06-18", "2025-11-25"),
    "stateless era": ("2026-07-28",),
    "of no revision": (EXTENSION,),
}
LISTED = re.compile(r"^\s+- (?P<name>\S+) \[(?P<versions>[^\]]*)\]$", re.MULTILINE)
ERA_NAMES = {"legacy": "handshake era", "auto": "stateless era"}
PASSED = re.compile(r"Passed: (\d+)/(\d+)")
NODE_WANTED = 22
SECONDS = 120
SERVER_SECONDS = 300
SERVED = (("2025-11-25", "legacy"), ("2025-11-25", "auto"), ("2026-07-28", "auto"))
"""Revisions that the suite speaks with the hub, and eras that the hub speaks with its server."""
SCORED = re.compile(r"^(?P<mark>[✓✗]) (?P<name>\S+): (?P<passed>\d+) passed", re.MULTILINE)
TOKEN = "the-token-of-the-conformance-suite-0123456789"
HUB = """
aish: 1
name: everything
mcp:
  servers:
    everything: {{{server}, protocol: {protocol}}}
  auto_approve: ["*__*"]
serve:
  names: plain
  hold: {hold}
  resources: ["*__*"]
  prompts: ["*__*"]
  forward: [elicitation, sampling, roots]
  hosts: ["127.0.0.1:{proxy}", "localhost:{proxy}"]
  origins: ["http://127.0.0.1:{proxy}", "http://localhost:{proxy}"]
  clients:
    suite: {{token_env: CONFORMANCE_TOKEN}}
"""


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


def suite(
    node: str, *arguments: str, seconds: float = SECONDS
) -> "subprocess.CompletedProcess[str]":
    """The suite's answer; the driver is found through `PATH`, because the suite splits words."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    return subprocess.run(
        [node, str(SUITE), *arguments],
        cwd=TOP,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        check=False,
        timeout=seconds,
    )


def scenarios(node: str) -> Iterator[Scenario]:
    """What the suite has for clients, of the extensions of OAuth only what aish has."""
    listed = suite(node, "list", "--client").stdout
    for found in LISTED.finditer(listed):
        if found["name"].startswith(PROGRAM):
            yield Scenario(found["name"], EXTENSION)
        for version in found["versions"].split(","):
            if version != EXTENSION and any(version in one for one in ERAS.values()):
                yield Scenario(found["name"], version)


def run(node: str, scenario: Scenario) -> Outcome:
    with tempfile.TemporaryDirectory() as folder:
        command = f"{Path(sys.executable).name} {DRIVER}"
        chosen: tuple[str, ...] = ("--scenario", scenario.name)
        if scenario.version != EXTENSION:
            chosen += ("--spec-version", scenario.version)
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


@contextmanager
def everything() -> Generator[int]:
    """The server behind the hub; its port."""
    port = free_port()
    with listening(sys.executable, "tests/conformance/everything_server.py", str(port), port=port):
        yield port


@contextmanager
def hub(server: str, protocol: str, folder: Path, hold: str = "50s") -> Generator[str]:
    """`aish serve` in front of a server, and the proxy in front of it; its url."""
    own, proxy = free_port(), free_port()
    file = folder / "hub.yaml"
    text = HUB.format(server=server, proxy=proxy, protocol=protocol, hold=hold)
    file.write_text(text, encoding="utf-8")
    command = (sys.executable, "-m", "aish", "serve", str(file), "--http", f"127.0.0.1:{own}")
    with ExitStack() as stack:
        token = {"CONFORMANCE_TOKEN": TOKEN}
        stack.enter_context(listening(*command, port=own, environment=token))
        stack.enter_context(token_proxy(proxy, own, TOKEN))
        yield f"http://127.0.0.1:{proxy}/mcp"


@dataclass(frozen=True)
class Report:
    """What the suite says of a server: scenarios with their marks, and all checks by status."""

    scenarios: Mapping[str, bool]
    checks: Mapping[str, Counter[str]]
    output: str

    def failed(self, key: str) -> int:
        """How often a check failed, or was warned about."""
        found = self.checks.get(key, Counter())
        return found["FAILURE"] + found["WARNING"]

    @property
    def passed(self) -> int:
        """How many checks passed."""
        return sum(one["SUCCESS"] for one in self.checks.values())


def examine(node: str, url: str, *arguments: str) -> Report:
    """Run server scenarios of the suite against a url."""
    with tempfile.TemporaryDirectory() as folder:
        options = ("server", "--url", url, *arguments, "-o", folder)
        done = suite(node, *options, seconds=SERVER_SECONDS)
        output = done.stdout + done.stderr
        checks: dict[str, Counter[str]] = {}
        for file in Path(folder).rglob("checks.json"):
            scenario = re.sub(r"-\d{4}-\d\d-\d\dT.*$", "", file.parent.name.removeprefix("server-"))
            for check in json.loads(file.read_text("utf-8")):
                key = f"{scenario}: {check['id']}"
                checks.setdefault(key, Counter())[check["status"]] += 1
                if check["status"] in {"FAILURE", "WARNING"}:
                    output += f"\n{key}: {check.get('errorMessage')}"
    marks = {found["name"]: found["mark"] == "✓" for found in SCORED.finditer(output)}
    return Report(marks, checks, output)


def required(version: str) -> Sequence[str]:
    """The server scenarios that a revision requires."""
    listed = (SUITE.parents[1] / "requirements" / f"{version}.yaml").read_text("utf-8")
    part = listed.partition("\nserver:\n")[2].partition("\n\n")[0]
    return re.findall(r"^  - (\S+)$", part, re.MULTILINE)


def serve(node: str, wanted: Sequence[str]) -> bool:
    """Run the scenarios for servers, say what happened; whether all passed that have to."""
    good = True
    with everything() as port, tempfile.TemporaryDirectory() as folder:
        for version, protocol in SERVED:
            server = f'url: "http://127.0.0.1:{port}/mcp"'
            with hub(server, protocol, Path(folder)) as url:
                if wanted:
                    for name in wanted:
                        print(examine(node, url, "--scenario", name).output)
                else:
                    direct = f"http://127.0.0.1:{port}/mcp"
                    good = report(node, version, protocol, url, direct) and good
    if not wanted:
        report_tasks(node)
    return good


def report_tasks(node: str) -> None:
    """Say how the hub does in the scenarios about tasks, which no revision requires."""
    listed = suite(node, "list", "--server").stdout
    command = json.dumps([sys.executable, str(TOP / "tests" / "conformance" / "task_server.py")])
    passed = checks = 0
    with (
        tempfile.TemporaryDirectory() as folder,
        hub(f"command: {command}", "legacy", Path(folder), "300ms") as url,
    ):
        names = re.findall(r"^  - (tasks-\S+)", listed, re.MULTILINE)
        for name in names:
            found = examine(node, url, "--scenario", name)
            failed = [key for key in found.checks if found.failed(key)]
            print(f"{'not ok' if failed else 'ok    '} {name} (not required)")
            print("".join(f"       {key}\n" for key in failed), end="")
            passed += not failed
            checks += found.passed
    said = f"{passed} of {len(names)} scenarios, {checks} checks"
    print(f"server, tasks: {said}", flush=True)


def report(node: str, version: str, protocol: str, url: str, direct: str) -> bool:
    """Say how the hub does at one revision, beside the server behind it."""
    names = required(version)
    found = examine(node, url, "--requirements", version)
    passed = [name for name in names if found.scenarios.get(name)]
    for name in names:
        if name not in passed:
            print(f"FAILED {version} {name}")
            print(lines_of(found, name))
    for name, mark in found.scenarios.items():
        if name not in names:
            print(f"{'ok    ' if mark else 'not ok'} {version} {name} (not required)")
    every = ("--suite", "all", "--spec-version", version)
    ours, without = examine(node, url, *every), examine(node, direct, *every)
    worse = [key for key in ours.checks if ours.failed(key) > without.failed(key)]
    for key in worse:
        print(f"FAILED {version} {key}: passes without the hub")
        print(lines_of(ours, key))
    print(
        f"server, {version}, in front of one of the {ERA_NAMES[protocol]}: "
        f"{len(passed)} of {len(names)} scenarios, {found.passed} checks; "
        f"of all scenarios {ours.passed} checks, {without.passed} without the hub",
        flush=True,
    )
    return len(passed) == len(names) and bool(names) and not worse


def lines_of(report: Report, start: str) -> str:
    """What the suite said of a scenario or a check that failed."""
    return "\n".join(line for line in report.output.splitlines() if line.startswith(start))


def main() -> None:
    node = find_node()
    if node is None or not SUITE.exists():
        missing = f"Node {NODE_WANTED}" if node is None else "the conformance suite"
        print(f"skipped: {missing} is missing; `npm install --no-package-lock` brings both")
        return
    sides = {"client": play, "server": serve}
    words = sys.argv[1:]
    chosen = [words.pop(0)] if words and words[0] in sides else list(sides)
    passed = [sides[side](node, words) for side in chosen]
    if not all(passed):
        sys.exit(1)


if __name__ == "__main__":
    main()
