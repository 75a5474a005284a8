"""A folder with a pipeline in it, the program to run it, and what a run leaves behind."""

import ctypes
import hashlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent
from typing import Any
from xml.etree import ElementTree as ET  # ruff: ignore[suspicious-xml-etree-import] - reads what we wrote

from cli_process import Aish, Done, Running
from mcp_scenes import HTTP_SERVER, STDIO_SERVER
from model_endpoint import ModelEndpoint
from patience import is_ready

from aish.core.errors import AishError
from aish.journal.history import RunHistory
from aish.journal.reader import (
    event_of,
    read_journal,
)
from aish.reports.junit import JUnitReport

PATIENCE = 60.0
ModelEndpoints = Callable[..., ModelEndpoint]
REPO = Path(__file__).resolve().parents[2]
# One model; its endpoint is named by `Project.uses`.
MODEL = 'models: {m: {base_url: "${MODEL_URL}", model: scripted}}'

_APPEARS = 0x100 | 0x80  # IN_CREATE, IN_MOVED_TO
_CLOSED = 0x8 | 0x80  # IN_CLOSE_WRITE, IN_MOVED_TO
_VOLATILE = (
    (re.compile(r"\d{8}T\d{6}Z-([a-z0-9-]+)-[a-z0-9]{4}\b"), r"<run>-\1"),
    (re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z"), "<time>"),
    (re.compile(r"\[ *\d+\.\d\ds\]"), "[<s>]"),
    (re.compile(r"\b\d+\.\d+ s\b"), "<s> s"),
    (re.compile(r'"((?:first_token_)?seconds)": ?\d[\d.e-]*'), r'"\1": 0.0'),
    (re.compile(r"\b127\.0\.0\.1:\d+"), "127.0.0.1:<port>"),
    (re.compile(r"\b[0-9a-f]{64}\b"), "<digest>"),
)


def junit_of(journal: Path) -> tuple[int, int] | None:
    """The failures and errors in the JUnit report of a run, and its exit code, if it has one."""
    history = RunHistory()
    with JUnitReport(history) as report:
        try:
            with read_journal(journal) as reading:
                for stamped in filter(None, map(event_of, reading)):
                    report.take(stamped, history.take(stamped))
        except (AishError, ValueError):
            return None  # damaged by a test
        report.add(history.rest())
        root = ET.fromstring(b"".join(report.xml()))  # ruff: ignore[suspicious-xml-element-tree-usage] - the same
    last = history.segments[-1] if history.segments else None
    if last is None or last.finished is None:
        return None
    return sum(int(root.get(name, "")) for name in ("failures", "errors")), last.finished.exit.code


_LARGE = 1_000_000


def _begun(folder: Path) -> tuple[str, float, str]:
    plan = folder / "plan.json"
    return folder.name[:16], plan.stat().st_mtime if plan.exists() else 0, folder.name


def without_source(told: str) -> str:
    """What is said of a file without the lines of it that are shown."""
    return re.sub(r"(?m)^ +\d* \| .*\n", "", told)


@dataclass
class Project:
    """What a person would have before them: a folder, a file in it, `aish`."""

    folder: Path
    aish: Aish

    def uses(self, endpoint: Any) -> None:
        """Let `${MODEL_URL}` be this endpoint."""
        self.aish.env["MODEL_URL"] = endpoint.base_url

    def write(self, name: str, text: str | bytes) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(dedent(text).encode() if isinstance(text, str) else text)
        return path

    def pipeline(self, text: str, name: str = "p.yaml") -> Path:
        """A pipeline file with the version line and, unless it has its own, one model."""
        body = dedent(text).lstrip("\n")
        models = "" if re.search(r"^models:", body, re.MULTILINE) else MODEL + "\n"
        return self.write(name, f"aish: 1\n{models}{body}")

    def run(self, *arguments: str | Path, **options: Any) -> Done:
        """`aish run p.yaml`."""
        return self.aish("run", "p.yaml", *arguments, **options)

    def through_shell(self, line: str) -> None:
        """Start `aish` by a shell line in which it is called `"$@"`.

        Python keeps what it has compiled even where a limit of the line has cut that short, and no
        later process could import it.
        """
        self.aish.env["PYTHONDONTWRITEBYTECODE"] = "1"
        self.aish.python = ("sh", "-c", line, "sh", sys.executable)

    def times_out(self, seconds: float, file: str) -> None:
        """Let the time-out of so many seconds run out in `aish` whenever there is this file."""
        driver = REPO / "tests" / "support" / "moved_clock_driver.py"
        target = str(self.folder / file)
        self.aish.python = (sys.executable, str(driver), f"{seconds:g}", target)

    def shorten_pauses(self) -> None:
        """Let `aish` pause for a fraction of its time, as between two questions for a batch."""
        driver = REPO / "tests" / "support" / "short_pauses_driver.py"
        self.aish.python = (sys.executable, str(driver))

    def result(self, *arguments: str | Path, **options: Any) -> Any:
        """The object of `aish run p.yaml --format json`, whatever the exit code."""
        done = self.run("--format", "json", *arguments, **options)
        assert done.stdout, done.stderr
        found = json.loads(done.stdout)
        assert found["exit"]["code"] == done.code
        return found

    @property
    def run_folders(self) -> list[Path]:
        """By their start: the names of runs of one second differ by chance alone."""
        return sorted((self.folder / ".aish" / "runs").glob("*"), key=_begun)

    @property
    def journal(self) -> list[Any]:
        """The events of the only run."""
        (folder,) = self.run_folders
        with read_journal(folder / "events.jsonl") as reading:
            return list(reading)

    def check_reports(self) -> None:
        """Hold what JUnit tells of each run that aish made against its exit code."""
        for folder in self.run_folders:
            journal = folder / "events.jsonl"
            if (
                (folder / "plan.json").exists()
                and journal.is_file()
                and journal.stat().st_size < _LARGE
            ):
                found = junit_of(journal)
                if found is not None:
                    bad, code = found
                    assert (bad > 0) == (code != 0), f"{bad} failures and errors, exit {code}"

    def served_state(self, root: str = ".") -> Path:
        """The folder with the state of a server of a file or a root here: key, token, questions."""
        named = (self.folder / root).resolve() / ".aish" / "serve"
        name = hashlib.sha256(os.fsencode(named)).hexdigest()[:16]
        return Path(self.aish.env["HOME"], ".local", "state", "aish", "serve", name)

    def everything_written(self) -> str:
        """All that runs have left in files here, and servers beside their keys and tokens."""
        state = self.served_state()
        served = (
            path for path in state.glob("*/**/*") if path.relative_to(state).parts[0] != ".aish"
        )
        found = [*(self.folder / ".aish").rglob("*"), *served]
        return "\n".join(path.read_text("utf-8", "replace") for path in found if path.is_file())

    def tidy(self, text: str) -> str:
        """`text` without what differs from run to run and from machine to machine."""
        for place, name in (
            (str(self.folder), "<project>"),
            (sys.executable, "<python>"),
            (str(REPO), "<repo>"),
        ):
            text = text.replace(place, name)
        for pattern, replacement in _VOLATILE:
            text = pattern.sub(replacement, text)
        return text


def driven(project: Project, failpoint: str, *arguments: str) -> Running:
    """The program, started so that it kills itself at a failpoint (`failpoint_driver.py`)."""
    return through(project, "failpoint_driver.py", failpoint, *arguments)


def ahead(project: Project, seconds: int, *arguments: str) -> Done:
    """The program, on a clock that is ahead (`clock_driver.py`)."""
    with through(project, "clock_driver.py", str(seconds), *arguments) as running:
        return running.finish()


def through(project: Project, driver: str, *arguments: str) -> Running:
    """The program, started by a driver of `tests/support`."""
    argv = [sys.executable, str(REPO / "tests" / "support" / driver), *arguments]
    aish = project.aish
    return Running(argv, cwd=project.folder, env=aish.env, stdin=None, warm=aish.warm)


def stdio(*flags: str | Path) -> str:
    """The `command` of our stdio server, as YAML."""
    return json.dumps([sys.executable, str(STDIO_SERVER), *map(str, flags)])


@contextmanager
def http_server(*flags: str) -> Generator[str]:
    """The URL of our HTTP server, a process of its own."""
    argv = [sys.executable, str(HTTP_SERVER), "--watch-stdin", *flags]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{int(process.stdout.readline())}/mcp"
        finally:
            process.kill()


def of_type(events: list[Any], kind: str) -> list[Any]:
    """The events of one type."""
    return [event for event in events if event["type"] == kind]


def wait_gone(pid: int) -> None:
    """Block until a process that is not ours to wait for has ended."""
    with suppress(ProcessLookupError):
        descriptor = os.pidfd_open(pid)
        try:
            assert is_ready(descriptor, PATIENCE), f"process {pid} is still there: {_command(pid)}"
        finally:
            os.close(descriptor)


def wait_file(path: Path, *, whole: bool = False) -> None:
    """Block until there is a file of this name; inotify tells, nothing is polled.

    A file that is not moved there is `whole` once something is in it and its writer has closed it.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = libc.inotify_init1(os.O_CLOEXEC)
    try:
        events = _CLOSED if whole else _APPEARS
        assert libc.inotify_add_watch(descriptor, os.fsencode(path.parent), events) >= 0
        while not path.exists() or (whole and not path.stat().st_size):
            assert is_ready(descriptor, PATIENCE), f"{path} did not appear"
            os.read(descriptor, 65536)
    finally:
        os.close(descriptor)


def processes_in(folder: Path) -> list[int]:
    """The processes whose working directory is at or below `folder`."""
    found = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if entry.name.isdigit() and (entry / "cwd").readlink().is_relative_to(folder):
                found.append(int(entry.name))
    return found


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return "?"
