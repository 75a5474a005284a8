"""Executes a workflow as GitHub's runner would, as far as that can be done without GitHub.

Each job has a machine of its own: home, temporary folder, checkout. A composite action in it is
executed step by step with bash. Artifacts lose modes and hidden files, as those of GitHub do.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_EXPRESSION = re.compile(r"\$\{\{\s*(.+?)\s*\}\}")
_EQUAL = re.compile(r"([\w.-]+) == '([^']*)'")


@dataclass
class JobResult:
    """How a job ended, and what it left."""

    ok: bool
    outputs: dict[str, str]
    log: str
    workspace: Path
    summary: str


@dataclass
class Workflow:
    """A workflow, the action that it uses, and what is checked out."""

    jobs: Mapping[str, Any]
    action: Mapping[str, Any]
    checkout: Path
    folder: Path
    secrets: Mapping[str, str] = field(default_factory=dict)
    artifacts: dict[str, Path] = field(default_factory=dict)
    results: dict[str, JobResult] = field(default_factory=dict)

    def run(self, name: str) -> JobResult | None:
        """Execute a job; `None` if its condition is false."""
        job = self.jobs[name]
        context = {"github.run_id": "12345"}
        for needed in [job["needs"]] if "needs" in job else []:
            found = self.results[needed].outputs
            context |= {f"needs.{needed}.outputs.{key}": value for key, value in found.items()}
        if not _holds(job.get("if"), context):
            return None
        result = _Job(self, name, context).run(job)
        self.results[name] = result
        return result


class _Job:
    """A job on a machine of its own."""

    def __init__(self, workflow: Workflow, name: str, context: dict[str, str]) -> None:
        self._workflow = workflow
        self._machine = workflow.folder / name
        self._temp = self._machine / "_temp"
        self._workspace = self._machine / f"work-of-{name}" / "repository"
        self._home = self._machine / "home"
        for folder in (self._temp, self._home):
            folder.mkdir(parents=True)
        self._context = context | {"runner.temp": str(self._temp)}
        self._context |= {f"secrets.{key}": value for key, value in workflow.secrets.items()}
        self._log = ""
        self._path = [str(Path(sys.executable).parent), os.environ["PATH"]]

    def run(self, job: Mapping[str, Any]) -> JobResult:
        """Execute the steps until one fails."""
        ok = True
        for step in job["steps"]:
            if ok and _holds(step.get("if"), self._context):
                ok = self._step(step)
        outputs = {key: self._filled(text) for key, text in job.get("outputs", {}).items()}
        summary = self._machine / "summary.md"
        said = summary.read_text("utf-8") if summary.exists() else ""
        return JobResult(ok, outputs, self._log, self._workspace, said)

    def _step(self, step: Mapping[str, Any]) -> bool:
        pairs = step.get("with", {}).items()
        given = {
            key: str(text).lower() if isinstance(text, bool) else self._filled(str(text))
            for key, text in pairs
        }
        uses = step["uses"].partition("@")[0]
        match uses:
            case "actions/checkout":
                shutil.copytree(self._workflow.checkout, self._workspace)
            case "actions/upload-artifact":
                self._upload(given)
            case "actions/download-artifact":
                stored = self._workflow.artifacts[given["name"]]
                shutil.copytree(stored, given["path"], dirs_exist_ok=True)
            case "OWNER/aish":
                env = {key: self._filled(text) for key, text in step.get("env", {}).items()}
                return self._action(given, env, step.get("id"))
            case _:
                raise AssertionError(f"nobody knows {uses}")
        return True

    def _upload(self, given: Mapping[str, str]) -> None:
        place = self._workflow.folder / "artifacts" / given["name"]
        place.mkdir(parents=True)
        source = Path(given["path"])
        assert source.is_file()
        assert not source.name.startswith("."), "hidden files are left out"
        # The content alone: an archive of GitHub keeps neither modes nor owners.
        (place / source.name).write_bytes(source.read_bytes())
        (place / source.name).chmod(0o644)
        self._workflow.artifacts[given["name"]] = place

    def _action(self, given: Mapping[str, str], env: Mapping[str, str], id: str | None) -> bool:
        action = self._workflow.action
        assert set(given) <= set(action["inputs"]), "an input that the action does not have"
        inputs = {key: str(one.get("default", "")) for key, one in action["inputs"].items()}
        inputs.update(given, install="false")
        context = {f"inputs.{key}": value for key, value in inputs.items()}
        ok = True
        for number, step in enumerate(action["runs"]["steps"]):
            output = self._machine / f"output-{number}"
            script = self._machine / "step.sh"
            script.write_text(step["run"], "utf-8")
            own = {key: _fill(text, context) for key, text in step["env"].items()}
            done = subprocess.run(
                ["bash", "--noprofile", "--norc", "-eo", "pipefail", str(script)],
                cwd=self._workspace / _fill(step.get("working-directory", "."), context),
                env={**self._environment(), **env, **own, "GITHUB_OUTPUT": str(output)},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                check=False,
            )
            self._log += done.stdout + done.stderr
            if output.exists():
                context |= _outputs(output, f"steps.{step['id']}.outputs.")
            ok = done.returncode == 0
            if not ok:
                break
        if id is not None:
            made = {key: _fill(one["value"], context) for key, one in action["outputs"].items()}
            self._context |= {f"steps.{id}.outputs.{key}": value for key, value in made.items()}
        return ok

    def _environment(self) -> dict[str, str]:
        return {
            "PATH": os.pathsep.join(self._path),
            "HOME": str(self._home),
            "LANG": "C.UTF-8",
            "RUNNER_TEMP": str(self._temp),
            "GITHUB_ACTIONS": "true",
            "GITHUB_PATH": str(self._machine / "path"),
            "GITHUB_STEP_SUMMARY": str(self._machine / "summary.md"),
            "GITHUB_ACTION_PATH": str(self._machine),
        }

    def _filled(self, text: str) -> str:
        return _fill(text, self._context)


def _fill(text: str, context: Mapping[str, str]) -> str:
    """A text with its expressions evaluated; what a step did not tell is empty."""
    return _EXPRESSION.sub(lambda found: _value(found[1], context), text)


def _value(name: str, context: Mapping[str, str]) -> str:
    return context.get(name, "") if name.startswith("steps.") else context[name]


def _holds(condition: str | None, context: Mapping[str, str]) -> bool:
    if condition is None:
        return True
    found = _EQUAL.fullmatch(condition)
    assert found is not None, f"a condition that this runner does not know: {condition}"
    return _value(found[1], context) == found[2]


def _outputs(path: Path, prefix: str) -> dict[str, str]:
    """What a step wrote to `$GITHUB_OUTPUT`."""
    found: dict[str, str] = {}
    lines = iter(path.read_text("utf-8").splitlines())
    for line in lines:
        name, _, end = line.partition("<<")
        value = []
        while (part := next(lines)) != end:
            value.append(part)
        found[prefix + name] = "\n".join(value)
    return found
